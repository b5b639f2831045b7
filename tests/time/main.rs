//! Time: never early, at most a tick late, in order, free when idle (S1 to S7), deadlines that move (S28), and what a
//! suspended machine finds.

#[path = "../common/mod.rs"]
mod common;

mod s01_s07_time;
mod s28_deadlines_that_move;
mod suspension;
