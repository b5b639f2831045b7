//! The end of life: every accepted task has exactly one end, wherever it is (S20 to S24, S29, S31), and the table of pairs of
//! promises.

#[path = "../common/mod.rs"]
mod common;

mod s20_s24_shutdown;
mod s29_crossings;
mod s29_s31_end_of_life;
