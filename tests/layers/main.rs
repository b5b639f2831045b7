//! The layers: one suite for all that decide when (`conformance`), moving deadlines in each (S28), pools, and queues.

#[path = "../common/mod.rs"]
mod common;

mod conformance;
mod delay_queue;
mod delay_queue_storms;
mod delayed_work_queue;
mod delayed_work_queue_storms;
mod pool;
mod s28_layers;

/// Some tests count what their thread allocates.
#[global_allocator]
static ALLOCATOR: common::allocations::Counting = common::allocations::Counting;
