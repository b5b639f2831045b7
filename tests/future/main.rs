//! `future`: sleeps, timeouts, intervals, calls, and async code in virtual time.

#[path = "../common/mod.rs"]
mod common;

mod block_on;
mod delay;
mod ends;
mod futures;
mod storms;
mod wakers;
