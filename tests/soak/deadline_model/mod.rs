//! The deadline queue of all layers against a sorted map: see [`model`].
//!
//! `TICKWHEEL_SEED=n` repeats the life of that seed, and `TICKWHEEL_STORM=n` lives longer.

mod model;

use std::iter;

use crate::common::allocations::Measurement;
use crate::common::{Random, for_each_seed, is_brief};

fn live(seed: u64) {
    let mut random = Random(seed);
    let steps = [60, 600, if is_brief() { 2_000 } else { 8_000 }][random.below(3) as usize];
    let kind = (seed % 8) as u8 | (random.next() as u8) << 3; // each kind in turn
    let counted = Measurement::start();
    let mut bytes = iter::once(kind).chain(iter::repeat_with(|| random.next() as u8).take(steps));
    model::live(&mut bytes, Measurement::bytes_out);
    drop(counted);
}

#[test]
fn s09_s10_the_queue_of_each_layer_does_what_a_sorted_map_does() {
    for_each_seed(64, 50, live); // a quarter in plain `cargo test`
}
