//! `rx`: workers on every executor, sets of handles, contexts, trampolines, debounce and throttle.

#[path = "../common/mod.rs"]
mod common;

mod cleanups;
mod contract;
mod debounce;
mod end;
mod handles;
mod inline;
mod one_thread;
mod others;
mod over;
mod worker;
