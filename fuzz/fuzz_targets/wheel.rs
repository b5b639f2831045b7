//! The wheel against a sorted map: what comes out, in which order, and what comes next.

#![no_main]

mod bytes;

use std::collections::BTreeMap;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tickwheel::wheel::Wheel;

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let _ = run(&mut bytes);
});

fn run(bytes: &mut Bytes<'_>) -> Option<()> {
    let size = 1 << (bytes.byte()? % 13);
    let start = bytes.number()?;
    let mut wheel = Wheel::starting_at(size, start);
    // By deadline and the order of insertion; what is in the past is due at once.
    let mut model = BTreeMap::new();
    let mut keys = Vec::new();
    for sequence in 0_u64.. {
        match bytes.byte()? % 8 {
            0..=2 => {
                let deadline = wheel.now().saturating_add(bytes.number()?);
                let key = wheel.insert(deadline, sequence);
                model.insert((deadline, sequence), key);
                keys.push((key, deadline, sequence));
            }
            3 | 4 if !keys.is_empty() => {
                let at = bytes.number()? as usize % keys.len();
                let (key, deadline, sequence) = keys[at];
                let is_there = model.remove(&(deadline, sequence)).is_some();
                assert_eq!(wheel.remove(key), is_there.then_some(sequence));
            }
            5 => assert_eq!(wheel.next_expiry(), model.keys().next().map(|(deadline, _)| *deadline)),
            _ => {
                let to = wheel.now().saturating_add(bytes.number()?);
                let out: Vec<_> = wheel.advance(to).collect();
                let later = match to.checked_add(1) {
                    Some(next) => model.split_off(&(next, 0)),
                    None => BTreeMap::new(),
                };
                let due = std::mem::replace(&mut model, later);
                assert!(out.into_iter().eq(due.into_keys()), "out of order, or not all");
            }
        }
        assert_eq!(wheel.len(), model.len());
        wheel.check_invariants();
    }
    None
}
