//! Repetition: phases, missed runs, series that choose their delays (S12 to S16).

#[path = "../common/mod.rs"]
mod common;

mod s12_s16_repeating;
mod series_that_choose;

/// Some tests count what their thread allocates.
#[global_allocator]
static ALLOCATOR: common::allocations::Counting = common::allocations::Counting;
