//! The memory of one task: 64 bytes, one cache line, and beside it an [`Annex`], which few tasks need.
//!
//! ```text
//!    0        8          16            24                              64
//!    +--------+----------+-------------+-------------------------------+
//!    | word   | deadline | birth, past | closure: a table and 32 bytes |
//!    +--------+----------+-------------+-------------------------------+
//!      all threads race    written before the word        the body: belongs to one thread at a time
//! ```
//!
//! The word says which thread owns the body (WORD-1 in [`state`](super::state)). [`task`](super::task) turns that rule
//! into types.
//!
//! - HOLDER-1 The body is initialised in every phase but `Free`, until its owner moves it out.
//! - HOLDER-2 Only one thread at a time touches the body: the one that fills a vacancy, the runner, the thread that holds
//!   the task, or a canceller that has won. The task's own executor, in the annex, belongs to the body.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, LazyLock, Mutex};

use super::closure::{Closure, Content};
use super::state::{AtomicWord, Phase, Word};
use crate::clock::tick::Moment;
use crate::executor::own_executor::OwnExecutor;
use crate::platform::sync::{AtomicU64, IS_MODEL, Ordering, UnsafeCell, in_models, lock_std};
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey};

#[repr(C, align(64))]
pub(crate) struct TaskHolder {
    pub(super) word: AtomicWord,
    /// When the next run is due: see [`deadline`](super::deadline).
    deadline: AtomicU64,
    /// By which handles know the task (WORD-4).
    births: AtomicU64,
    pub(super) closure: UnsafeCell<MaybeUninit<Closure>>,
}

const _: () = assert!(IS_MODEL || size_of::<TaskHolder>() == 64, "one cache line");

// SAFETY: the closure is reached by one owner at a time, as the word decides (HOLDER-2), and it is `Send`.
unsafe impl Sync for TaskHolder {}
// SAFETY: a closure may be dropped or run on any thread.
unsafe impl Send for TaskHolder {}

impl TaskHolder {
    in_models! {
        pub(crate) fn new() -> TaskHolder {
            TaskHolder {
                word: AtomicWord::new(),
                deadline: AtomicU64::new(0),
                births: AtomicU64::new(0),
                closure: UnsafeCell::new(MaybeUninit::uninit()),
            }
        }
    }

    in_models! {
        /// Does what the system does to a holder whose page it takes.
        pub(crate) fn wipe(&self) {
            self.word.wipe();
            self.births.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the births of the task that is in the holder, or was the last one there, and of those before it. The word is
    /// to be loaded before (WORD-4). Acquire: pairs with the Release in `set_births`, so a thread that finds a later task
    /// sees what came before that task.
    #[inline]
    pub(super) fn births(&self) -> Births {
        Births(self.births.load(Ordering::Acquire))
    }

    /// The caller fills the holder.
    #[inline]
    pub(super) fn set_births(&self, births: Births) {
        self.births.store(births.0, Ordering::Release);
    }

    /// Returns true if the task of this key is in the holder, or was the last one there.
    #[inline]
    pub(super) fn is_of(&self, key: TaskKey) -> bool {
        self.births().last() == key.birth()
    }

    /// Acquire: pairs with the Release in `set_deadline`. A thread that reads the deadline of a later task than it meant
    /// then finds in the word that its own task is over.
    #[inline]
    pub(super) fn deadline(&self) -> Moment {
        Moment(self.deadline.load(Ordering::Acquire))
    }

    /// The caller holds the task, or fills the holder (RESET-3).
    #[inline]
    pub(super) fn set_deadline(&self, deadline: Moment) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    /// Returns the deadline under which the live entry is filed. The caller holds the task, whose word this is.
    #[inline]
    pub(super) fn filed(&self, annex: &Annex, word: Word) -> Moment {
        // Relaxed: what is read here was written by threads that have held the task before.
        if word.is_put_off() {
            Moment(annex.filed.load(Ordering::Relaxed))
        } else {
            self.deadline()
        }
    }

    /// Moves the deadline to `to`, and returns the word that says where the live entry is filed: under `filed`. The caller
    /// holds the task. Relaxed: as in `filed`.
    #[inline]
    pub(super) fn set_filed(&self, annex: &Annex, word: Word, to: Moment, filed: Moment) -> Word {
        if to != filed {
            annex.filed.store(filed.0, Ordering::Relaxed);
        }
        self.set_deadline(to);
        word.put_off(to != filed)
    }

    /// Holds the task of this entry, if it is pending and the entry is live. Returns its word.
    #[inline]
    pub(super) fn hold(&self, entry: Entry) -> Option<Word> {
        self.word.hold(|word| word.number() == entry.number(), Phase::Pending)
    }

    /// # Safety
    ///
    /// The caller owns the body, and it is not initialised (HOLDER-1, HOLDER-2).
    #[inline]
    pub(super) unsafe fn put_closure(&self, task: impl Content) {
        // SAFETY: the caller is the only one to touch the body.
        self.closure.with_mut(|place| task.write(unsafe { &mut *place }));
    }
}

/// What belongs to a holder, and only few tasks need. It lies elsewhere, so that the others do not pay for it. All
/// accesses to the numbers are Relaxed: each is written before a word is published, and read by threads that have seen
/// that word, or do not care.
pub(crate) struct Annex {
    /// The deadline under which the live entry of a task is filed that is put off: see [`deadline`](super::deadline).
    filed: AtomicU64,
    /// Nanoseconds between the runs of a series.
    pub(super) period: AtomicU64,
    /// The task's own executor, if it has one. Zeros are `None`.
    pub(super) executor: UnsafeCell<Option<Arc<OwnExecutor>>>,
}

// Zeroed pages are annexes (SLOT-3).
// SAFETY: both have the size of a pointer, and `None` has no provenance.
const _: () = assert!(unsafe { std::mem::transmute::<Option<Arc<OwnExecutor>>, usize>(None) } == 0);

// SAFETY: the executor belongs to the body, which one thread owns at a time (HOLDER-2). It is `Send`.
unsafe impl Sync for Annex {}

impl Annex {
    in_models! {
        pub(crate) fn new() -> Annex {
            let (filed, period) = (AtomicU64::new(0), AtomicU64::new(0));
            Annex { filed, period, executor: UnsafeCell::new(None) }
        }
    }
}

/// Returns the entry of a task that has a closure and this word. (Wakers are not filed twice.)
pub(super) fn entry(slot: u32, word: Word, deadline: Moment, now: Moment) -> Entry {
    let runner = if word.executor() == 0 { Runner::Default } else { Runner::Own };
    Entry::new(slot, word.number(), deadline, deadline <= now, runner, word.is_series())
}

/// The birth of a task, which is the number of its first filing, and what became of the four tasks that had the holder
/// before it.
///
/// From the low end there are eight bits for each of the four: a bit that is set if a cancel has ended it, and in seven
/// bits the difference to the birth after it, or 0 if that is not known. The birth is in the upper half.
#[derive(Clone, Copy)]
pub(super) struct Births(u64);

impl Births {
    #[inline]
    pub(super) fn last(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the births when another task is born.
    #[inline]
    pub(super) fn followed_by(self, birth: u32, was_cancelled: bool) -> Births {
        let since = birth.wrapping_sub(self.last());
        let before = if since < 1 << 7 { since << 1 | u32::from(was_cancelled) } else { 0 };
        Births(u64::from(birth) << 32 | u64::from((self.0 as u32) << 8 | before))
    }

    /// Returns true if one of the four tasks before the last one has this birth, and was ended by a cancel.
    pub(super) fn was_cancelled(self, birth: u32) -> bool {
        let mut each = self.last();
        for before in (self.0 as u32).to_le_bytes() {
            each = each.wrapping_sub(u32::from(before >> 1));
            if before >> 1 == 0 || each == birth {
                return before & 1 == 1 && each == birth;
            }
        }
        false
    }
}

// ----- where tasks have moved ------------------------------------------------------------------

/// The schedulers of tasks that have moved. A handle knows the scheduler that gave it out, and a leftover that moves to
/// another one keeps its holder, and so its handles. Its word says that it has moved, and this table says where to. A
/// task is put in before its word says so, and is removed when its holder is freed.
static MOVED: LazyLock<Mutex<HashMap<TaskKey, SchedulerId>>> = LazyLock::new(Mutex::default);

/// Notes that a task belongs to this scheduler from now on. The caller holds the task.
pub(super) fn note_move(key: TaskKey, scheduler: SchedulerId) {
    lock_std(&MOVED).insert(key, scheduler);
}

/// Returns the scheduler that a task which has moved belongs to now.
#[cold]
#[inline(never)]
pub(super) fn moved_to(key: TaskKey) -> Option<SchedulerId> {
    lock_std(&MOVED).get(&key).copied()
}

/// Removes a task that is over, and gives back what a large move has left of the table.
#[cold]
#[inline(never)]
pub(super) fn forget_move(key: TaskKey) {
    const WORTH_SHRINKING: usize = 1024;
    let mut table = lock_std(&MOVED);
    table.remove(&key);
    // A close of a scheduler with a million tasks may move them all at once. That should not be paid for until the end
    // of the process.
    let few = table.len();
    if table.capacity() > WORTH_SHRINKING.max(8 * few) {
        table.shrink_to(2 * few);
    }
}

// ----- how slots are numbered ------------------------------------------------------------------

/// There are at most 2^28 slots, which is 268 million. So a slot number leaves four bits of a `u32` free.
const SLOT_BITS: u32 = 28;
/// A block has 2^15 holders, which are two megabytes.
pub(super) const BLOCK_BITS: u32 = 15;
pub(super) const BLOCKS: usize = 1 << (SLOT_BITS - BLOCK_BITS);
/// The number of holders in a page of 4 KiB, which is also the number of bits in a word.
pub(super) const PAGE: usize = 64;

/// Returns the index of a slot in its block.
pub(super) fn index_of(slot: u32) -> usize {
    slot as usize & ((1 << BLOCK_BITS) - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_holder_remembers_the_outcomes_of_four_tasks() {
        let mut births = Births(0);
        let mut was_cancelled = false;
        for (birth, is_cancelled) in [(1, true), (2, false), (5, true), (6, true), (90, false)] {
            births = births.followed_by(birth, was_cancelled);
            was_cancelled = is_cancelled;
        }
        assert_eq!(births.last(), 90);
        let told: Vec<u32> = (0..100).filter(|birth| births.was_cancelled(*birth)).collect();
        assert_eq!(told, [1, 5, 6]);
        let births = births.followed_by(91, false);
        assert!(!births.was_cancelled(1) && births.was_cancelled(5), "the fifth one is forgotten");
        let births = births.followed_by(1000, true);
        assert!(!(0..1000).any(|birth| births.was_cancelled(birth)), "they are too far apart");
    }
}
