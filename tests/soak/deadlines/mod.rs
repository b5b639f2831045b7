//! The lives of the one deadline queue, as each layer has it: see [`model`].

mod model;

use crate::common::allocations::Measurement;
use crate::common::{Random, is_brief};
use crate::lives;

fn live(seed: u64) {
    let mut random = Random(seed);
    let steps = [60, 600, if is_brief() { 2_000 } else { 20_000 }][random.below(3) as usize];
    let counted = Measurement::start();
    let mut bytes = std::iter::from_fn(|| Some(random.next() as u8)).take(steps);
    model::live(&mut bytes, Measurement::bytes_out);
    drop(counted);
}

#[test]
fn deadlines() {
    lives("deadlines", live);
}
