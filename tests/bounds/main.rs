//! Bounds and sight (S25 to S27), and the shape of the crate: its public API, and the rules of its source tree.

#[path = "../common/mod.rs"]
mod common;

mod api_table;
mod dump;
mod s25_s27_bounds_and_sight;
mod schedule_forms;
mod tree;

/// Some tests count what their thread allocates.
#[global_allocator]
static ALLOCATOR: common::allocations::Counting = common::allocations::Counting;
