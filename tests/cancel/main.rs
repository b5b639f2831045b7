//! Cancel: one caller wins, the closure goes at once, and no other task is ever hit (S8 to S11).

#[path = "../common/mod.rs"]
mod common;

mod abuse_of_closures;
mod s08_s11_cancel;
