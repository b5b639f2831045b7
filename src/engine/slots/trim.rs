//! How memory goes back to the system after a peak.
//!
//! A page whose holders are all free does not have to be in memory. A trim goes through the depot from the top
//! downwards, takes such pages into its hands, and gives them back. A page with a single slot in use, or in some
//! thread's magazine, stays.
//!
//! The tick thread of any scheduler does it, in slices, and only when it has nothing else to do. The depot says when it
//! is worth it: if more slots are free than in use, and have been for the [`GRACE`] period.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use super::blocks;
use super::depot::depot;
use super::holder::{PAGE, TaskHolder, index_of};
use super::magazines;
use super::state::Word;
use crate::platform::pages;
use crate::platform::sync::IS_MODEL;

/// The most pages that one slice of work gives back, and how many pages it looks at for each.
const SLICE: usize = 64;
const LOOK: usize = 64;

/// How long memory must have stayed free before it goes back. A program whose tasks come in waves would otherwise give it
/// back and fetch it again with each wave.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

const _: () = assert!(IS_MODEL || pages::PAGE_BYTES == PAGE * size_of::<TaskHolder>());

/// The page down to which a trim has come from the top. `None` if no trim is under way. After a panic of ours under this lock
/// nothing is trimmed any more.
static TRIMMER: Mutex<Option<usize>> = Mutex::new(None);

/// Each engine that trims as it turns holds this.
pub(crate) static ENGINES: LazyLock<Arc<()>> = LazyLock::new(Arc::default);

/// Begins a trim from the top if much has stayed free since [`watch`](super::depot::Depot::watch). Returns true if so.
pub(crate) fn begin() -> bool {
    if !depot().stayed_bloated() {
        return false;
    }
    // This thread may have been idle since the peak, with the slots of whole pages in its magazines.
    magazines::flush();
    if let Ok(mut trimmer) = TRIMMER.try_lock() {
        *trimmer = Some(depot().trim_begins());
    }
    true
}

/// Trims on the calling thread, if no engine is left to do it. The callers have just dropped something that kept slots in
/// use.
pub(crate) fn at_the_end() {
    // Several models run at a time in one process, and each has to do the same in all of its runs.
    if IS_MODEL || Arc::strong_count(&ENGINES) > 1 || !depot().watch() {
        return;
    }
    begin();
    // All of it at once: without an engine no task is pending that would have to wait for it.
    while slice() {}
}

/// Does a slice of the trim that is under way. Returns true if there is more to do.
pub(crate) fn slice() -> bool {
    let Ok(mut trimmer) = TRIMMER.try_lock() else { return false }; // another thread is at it
    let Some(mut below) = *trimmer else { return false };
    // A page of the system may be several of ours.
    let group = (pages::page_bytes() / pages::PAGE_BYTES).max(1);
    // Free pages from the top downwards. The depot is locked to take them out and to put them back, not while the system
    // works.
    let (mut taken, mut locked) = (Vec::new(), depot());
    for _ in 0..SLICE * LOOK {
        if below == 0 || taken.len() >= SLICE {
            break;
        }
        below = below.saturating_sub(group);
        taken.extend(locked.take_group(below..below + group));
    }
    drop(locked);
    for slots in joined(&taken) {
        let is_absent = give_back(slots.clone());
        depot().put_group(slots, is_absent);
    }
    *trimmer = (below > 0).then_some(below);
    below > 0
}

/// Joins neighbours of one block, so that they cost one call of the system. The pages come from the top.
fn joined(pages: &[Range<u32>]) -> impl Iterator<Item = Range<u32>> {
    let are_joined = |above: &Range<u32>, below: &Range<u32>| {
        above.start == below.end && index_of(above.start) != 0
    };
    pages.chunk_by(are_joined).map(|run| run[run.len() - 1].start..run[0].end)
}

/// Gives the memory of these slots back to the system. Returns false if it stays. The caller has all of the slots in
/// hand (SLOT-3).
pub(crate) fn give_back(slots: Range<u32>) -> bool {
    let words = slots.clone().filter_map(|slot| blocks::holder(slot)?.word.vacant());
    let newest = words.map(Word::number).max().unwrap_or(0); // 0 if none ever held a task
    if newest > u32::MAX / 4 {
        return false; // one old slot must not make a whole block old
    }
    // The next tasks in these holders get higher numbers (SLOT-4). Relaxed: the slots pass on through the depot's
    // lock.
    blocks::given_back(slots.start).fetch_max(newest, Ordering::Relaxed);
    blocks::discard(slots)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::slots::blocks::block_of;

    /// The pages that one call gives back must lie in one block, because the next block may have any address.
    #[test]
    fn neighbours_are_joined_but_not_across_blocks() {
        let page = |number: u32| number * PAGE as u32..(number + 1) * PAGE as u32;
        let first_of_a_block = (1..10_000).find(|number| index_of(page(*number).start) == 0);
        let first = first_of_a_block.expect("a block has an end");
        let from_the_top = [first + 2, first + 1, first, first - 1, first - 2, first - 4];
        let from_the_top = from_the_top.map(page);
        let runs: Vec<_> = joined(&from_the_top).collect();
        let expected = [(first, first + 2), (first - 2, first - 1), (first - 4, first - 4)];
        assert_eq!(runs, expected.map(|(low, high)| page(low).start..page(high).end));
        assert_eq!(block_of(page(first).start), 1);
        assert_eq!(block_of(page(first - 1).start), 0);
    }
}
