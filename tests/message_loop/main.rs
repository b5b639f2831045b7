//! `message_loop`: a loop on its own thread, inside of other loops, among threads, and at its end.

#[path = "../common/mod.rs"]
mod common;

mod end;
mod hosts;
mod local;
mod own_thread;
mod threads;
mod wake;
