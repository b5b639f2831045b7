//! The memory of one task: 64 bytes, one cache line, and beside it an [`Annex`], which few tasks need.
//!
//! ```text
//!    0        8          16             24                              64
//!    +--------+----------+--------------+-------------------------------+
//!    | word   | deadline | birth, whose | closure: a table and 32 bytes |
//!    +--------+----------+--------------+-------------------------------+
//!      all threads race    written before the word        the body: belongs to one thread at a time
//! ```
//!
//! The word says which thread owns the body (WORD-1 in [`state`](super::state)). [`task`](super::task) turns that rule
//! into types.
//!
//! - HOLDER-1 The body is initialised in every phase but `Free`, until its owner moves it out.
//! - HOLDER-2 Only one thread at a time touches the body: the one that fills a vacancy, the runner, the thread that holds
//!   the task, or a canceller that has won. The task's own executor, in the annex, belongs to the body.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::closure::Closure;
use super::state::{AtomicWord, Phase, Word};
use crate::clock::tick::Moment;
use crate::executor::numbered::NumberedExecutor;
use crate::platform::sync::{AtomicU64, IS_MODEL, Ordering, Patience, UnsafeCell, in_models};
use crate::wheel::entry::{Entry, Runner, SchedulerId, TaskKey};

#[repr(C, align(64))]
pub(crate) struct TaskHolder {
    pub(crate) word: AtomicWord,
    /// When the next run is due: see [`deadline`](super::deadline).
    deadline: AtomicU64,
    /// The birth of the task in the upper half, and the id of its scheduler in the lower half (WORD-4).
    identity: AtomicU64,
    pub(super) closure: UnsafeCell<MaybeUninit<Closure>>,
}

const _: () = assert!(IS_MODEL || size_of::<TaskHolder>() == 64, "one cache line");

// SAFETY: the closure is reached by one owner at a time, as the word decides (HOLDER-2), and it is `Send`.
unsafe impl Sync for TaskHolder {}

impl TaskHolder {
    in_models! {
        pub(crate) fn new() -> TaskHolder {
            let (word, deadline, identity) = Default::default();
            TaskHolder { word, deadline, identity, closure: UnsafeCell::new(MaybeUninit::uninit()) }
        }
    }

    /// Returns the birth of the task that is in the holder, or was the last one there, and the scheduler that it belongs
    /// to. The word is to be loaded before (WORD-4). Acquire: pairs with the Release in `set_identity`, so a thread that
    /// finds a later task sees what came before that task.
    #[inline]
    pub(super) fn identity(&self) -> (u32, SchedulerId) {
        let identity = self.identity.load(Ordering::Acquire);
        ((identity >> 32) as u32, SchedulerId::of(identity as u32))
    }

    /// The caller fills the holder, or holds the task, which moves to another scheduler.
    #[inline]
    pub(crate) fn set_identity(&self, birth: u32, scheduler: SchedulerId) {
        self.identity.store(identity(birth, scheduler), Ordering::Release);
    }

    /// Returns the key of the task that is in the holder of this slot, or was the last one there.
    #[inline]
    pub(super) fn key(&self, slot: u32) -> TaskKey {
        TaskKey::new(slot, self.identity().0)
    }

    /// Returns true if the task of this key is in the holder, or was the last one there.
    #[inline]
    pub(super) fn is_of(&self, key: TaskKey) -> bool {
        self.identity().0 == key.birth()
    }

    /// Returns true if the task of this key is in the holder, or was the last one there, and belongs to this scheduler.
    #[inline]
    pub(super) fn is_at(&self, key: TaskKey, scheduler: SchedulerId) -> bool {
        self.identity.load(Ordering::Acquire) == identity(key.birth(), scheduler)
    }

    /// Calls `look` with the word of the holder, and returns what it finds there. All of that belongs together, because no
    /// thread has held the task or changed its word in the meantime. If `look` returns `None`, so does this. A task that is
    /// held is waited for, unless it is of no interest to `look`. In one total order with every cancel.
    pub(super) fn settled<R>(&self, look: impl Fn(Word) -> Option<R>) -> Option<R> {
        let mut patience = Patience::default();
        loop {
            let word = self.word.load_in_order();
            let found = look(word)?;
            // What `look` has read without a lock is of a later task, or of another scheduler, only if the word has
            // changed by then (WORD-4).
            if !word.is_in(Phase::Held) && self.word.load() == word {
                return Some(found);
            }
            patience.spin(); // for some instructions (WORD-5)
        }
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

    /// Moves the deadline to `to`, and returns the word that says where the live entry is filed: under `filed`. The caller
    /// holds the task. Relaxed: what is written here is read by threads that hold the task later.
    #[inline]
    pub(super) fn set_filed(&self, annex: &Annex, word: Word, to: Moment, filed: Moment) -> Word {
        if to != filed {
            annex.filed.store(filed.0, Ordering::Relaxed);
        }
        self.set_deadline(to);
        word.put_off(to != filed)
    }

    /// Gives the body to `work`.
    ///
    /// # Safety
    ///
    /// The body is there (HOLDER-1), and the caller owns it (HOLDER-2).
    #[inline]
    pub(super) unsafe fn with_body<R>(&self, work: impl FnOnce(&mut Closure) -> R) -> R {
        // SAFETY: as the caller promises.
        self.closure.with_mut(|place| work(unsafe { (*place).assume_init_mut() }))
    }

    /// Holds the task of this entry, if it is pending and the entry is live. Returns its word.
    #[inline]
    pub(super) fn hold(&self, entry: Entry) -> Option<Word> {
        self.word.hold(|word| word.number() == entry.number(), Phase::Pending)
    }
}

fn identity(birth: u32, scheduler: SchedulerId) -> u64 {
    u64::from(birth) << 32 | u64::from(scheduler.number())
}

/// What belongs to a holder, and only few tasks need. It lies elsewhere, so that the others do not pay for it. All
/// accesses to the numbers are Relaxed: each is written before a word is published, and read by threads that have seen
/// that word, or do not care.
#[derive(Default)]
pub(crate) struct Annex {
    /// The deadline under which the live entry of a task is filed that is put off: see [`deadline`](super::deadline).
    pub(super) filed: AtomicU64,
    /// Nanoseconds between the runs of a series.
    pub(super) period: AtomicU64,
    /// The task's own executor, if it has one. Zeros are `None`.
    pub(super) executor: UnsafeCell<Option<Arc<NumberedExecutor>>>,
}

// Zeroed pages are annexes (SLOT-3).
// SAFETY: both have the size of a pointer, and `None` has no provenance.
const _: () =
    assert!(unsafe { std::mem::transmute::<Option<Arc<NumberedExecutor>>, usize>(None) } == 0);

// SAFETY: the executor belongs to the body, which one thread owns at a time (HOLDER-2). It is `Send`.
unsafe impl Sync for Annex {}

/// Returns the entry of a task that has a closure and this word. (Wakers are not filed twice.)
pub(super) fn entry(slot: u32, word: Word, deadline: Moment, now: Moment) -> Entry {
    let runner = if word.executor() == 0 { Runner::Default } else { Runner::Own };
    Entry::new(slot, word.number(), deadline, deadline <= now, runner, word.is_series())
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
