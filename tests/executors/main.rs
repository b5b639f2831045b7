//! Executors: what they and the tasks may do wrong, and what nobody else notices of it (S17 to S19, S30, S31).

#[path = "../common/mod.rs"]
mod common;

mod abuse_of_executors;
mod end_of_a_thread_pool;
mod panic_names;
mod s17_s19_executor;
