//! The deadline queue of all layers against a sorted map: `tests/soak` lives the same lives on random bytes.

#![no_main]

#[path = "../../tests/soak/deadline_model/model.rs"]
mod model;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.iter().copied();
    model::live(&mut bytes, || 0);
});
