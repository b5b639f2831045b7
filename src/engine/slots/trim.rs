//! How memory goes back to the system after a peak.
//!
//! A page whose holders are all free needs not be there. The trimmer goes through the depot from the
//! top, takes such pages into its hands, and gives them back.
//!
//! Who pays: the tick thread of any scheduler, in slices of [`SLICE`] pages, and only when it has
//! nothing else to do. The depot says when it is worth it: when more slots are free than in use, and
//! have been for the [`GRACE`] period. One trim goes on at a time.
//!
//! A page with a single slot in use, or in some thread's magazine, stays.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::depot::{Depot, PAGE, depot};
use super::{directory, memory};
use crate::platform::pages;
use crate::platform::sync::{IS_MODEL, TRIMS_AT_THE_END};

/// How many pages one slice of work gives back, and how many it looks at for each.
const SLICE: usize = 64;
const LOOK: usize = 64;

/// How long memory must have stayed free before it goes back. A program whose tasks come in waves
/// would otherwise give it back and fetch it again with each wave.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Up to where, from the top, a trim has come; `None` when none is under way.
static TRIMMER: Mutex<Option<usize>> = Mutex::new(None);

/// Whether it is worth coming back after the grace period, and begins to watch what stays free.
pub(crate) fn watch() -> bool {
    let mut free = depot();
    let bloated = free.is_bloated();
    if bloated {
        free.mark();
    }
    bloated
}

/// Begins a trim, if as much has stayed free since `watch`.
pub(crate) fn begin() -> bool {
    if !depot().stayed_bloated() {
        return false;
    }
    memory::put_down();
    if let Some(mut trimmer) = trimmer() {
        trimmer.get_or_insert_with(|| depot().pages());
    }
    true
}

/// How many engines there are, which trim as they turn.
static ENGINES: AtomicUsize = AtomicUsize::new(0);

/// An engine that is there to trim.
pub(crate) struct Trims(());

impl Trims {
    pub(crate) fn new() -> Trims {
        ENGINES.fetch_add(1, Ordering::Relaxed); // it orders nothing, as everywhere below
        Trims(())
    }
}

impl Drop for Trims {
    fn drop(&mut self) {
        ENGINES.fetch_sub(1, Ordering::Relaxed);
        at_the_end();
    }
}

/// Something that was pending has gone. If no engine is left that would trim, the caller does it here and now:
/// there is nobody whose tasks would wait for that.
pub(crate) fn at_the_end() {
    if !TRIMS_AT_THE_END || ENGINES.load(Ordering::Relaxed) > 0 || !depot().is_bloated() {
        return;
    }
    memory::put_down();
    if let Some(mut trimmer) = trimmer() {
        trimmer.get_or_insert_with(|| depot().pages());
    }
    while slice() {}
}

/// Does a slice of the trim that is under way. True when there is more to do.
pub(crate) fn slice() -> bool {
    let Some(mut trimmer) = trimmer() else { return false };
    let Some(below) = *trimmer else { return false };
    let (taken, below) = take_some(&mut depot(), below);
    for slots in joined(taken) {
        let is_bare = directory::discard(slots.clone());
        depot().put_group(slots, is_bare);
    }
    *trimmer = (below > 0).then_some(below);
    if below == 0 {
        depot().trimmed();
    }
    below > 0
}

/// `None` when another tick thread is at it.
fn trimmer() -> Option<MutexGuard<'static, Option<usize>>> {
    match TRIMMER.try_lock() {
        Ok(trimmer) => Some(trimmer),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes free pages out of the depot, from the top downwards; and up to where that came.
fn take_some(depot: &mut Depot, mut below: usize) -> (Vec<Range<u32>>, usize) {
    // What the system calls a page may be several of ours.
    let group = (pages::page_bytes() / pages::PAGE_BYTES).max(1);
    let mut taken = Vec::new();
    for _ in 0..SLICE * LOOK {
        if below == 0 || taken.len() >= SLICE {
            break;
        }
        below = below.saturating_sub(group);
        taken.extend(depot.take_group(below..below + group));
    }
    (taken, below)
}

/// Neighbours as one, so that they cost one call; they came from the top.
fn joined(pages: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.start == page.end && !starts_a_block(last.start) => {
                last.start = page.start;
            }
            _ => runs.push(page),
        }
    }
    runs
}

fn starts_a_block(slot: u32) -> bool {
    super::depot::place_of(slot) == 0
}

const _: () =
    assert!(IS_MODEL || pages::PAGE_BYTES == PAGE * size_of::<super::holder::TaskHolder>());

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::slots::depot::{PAGE, block_of};

    /// What goes back in one call must lie in one block: the next one may be anywhere.
    #[test]
    fn neighbours_are_joined_but_not_across_blocks() {
        let page = |number: u32| number * PAGE as u32..(number + 1) * PAGE as u32;
        let first_of_a_block = (1..10_000).find(|number| starts_a_block(page(*number).start));
        let first = first_of_a_block.expect("a block has an end");
        let from_the_top = [first + 2, first + 1, first, first - 1, first - 2, first - 4];
        let runs = joined(from_the_top.map(page).to_vec());
        let expected = [(first, first + 2), (first - 2, first - 1), (first - 4, first - 4)];
        assert_eq!(runs, expected.map(|(low, high)| page(low).start..page(high).end));
        assert_eq!(block_of(page(first).start), 1);
        assert_eq!(block_of(page(first - 1).start), 0);
    }
}
