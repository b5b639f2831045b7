//! Slots: where tasks live, from the call that schedules them to their end.
//!
//! **How a task gets a slot.** A *slot* is the number of a [`holder`], which is 64 bytes of memory that is never
//! unmapped ([`blocks`]). Each thread has some free slots at hand ([`magazines`]). If it has none, it takes a magazine
//! of them from the [`depot`], which all threads share. A depot without free slots adds a block of 32,768 holders. The caller
//! writes the closure in place ([`closure`]: up to 32 bytes in the holder itself, more in a box), and then stores the
//! holder's word ([`state`]), which makes the task pending. From now on its slot and the number of its first filing
//! ([`TaskKey`](crate::wheel::entry::TaskKey)) stand for the task in handles, and an entry for its present filing in
//! lanes, the wheel and queues. Threads that want to run, cancel or return the task race on the word.
//!
//! **Where a closure is dropped.** The winner of that race drops the closure where it lies, on its own thread, while it
//! holds no lock, and then gives the slot back:
//!
//! - A cancelled task: the thread that cancels, before its `cancel` returns (S9). The old entry may still lie in a lane, in
//!   the wheel or in a queue. It is skipped there, because the number of the holder is another one.
//! - A series that is cancelled during a run: the thread that runs it, after the run. The cancel only marks that run as
//!   the last one (the phase `Doomed`).
//! - A task that runs: the thread that runs it. A one-shot is consumed by the call. A series is dropped after its last run.
//! - A task that is refused is not dropped here. The caller gets its closure back ([`task::withdraw`]).
//! - A leftover: the thread that drops it. If nobody has called `close` or `stop`, the thread that does the last turn,
//!   or the thread of the run for a series that is in one.
//! - A [`DueTask`](crate::DueTask) that an executor drops: the thread that drops it.
//!
//! Each file uses only those above it:
//!
//! | file | what it is |
//! | --- | --- |
//! | [`state`] | the word: the rule of filing numbers, phases, transitions |
//! | [`closure`] | a closure without its type |
//! | [`holder`] | the memory of one task |
//! | [`blocks`], [`depot`], [`magazines`] | the memory of all holders, and the free ones: of the process, and of a thread |
//! | [`task`] | a task in its holder, by its owner: fill, cancel, run, drop, move |
//! | [`deadline`] | resets, claims, and the next run of a series |
//! | [`trim`] | memory that goes back to the system |
//!
//! **How memory comes and goes.** The tick thread adds the next block before the depot is empty
//! ([`depot::add_block_ahead`]). After a peak it gives pages whose slots are all free back to the system ([`trim`]).

use crate::platform::sync::{in_models, outside_models};

// A block is memory of the system, which a model does not have.
outside_models! {
    #[expect(unsafe_code, reason = "a slot number becomes a reference")]
    pub(crate) mod blocks;
}
in_models! {
    pub(crate) use crate::models::blocks;
}
#[expect(unsafe_code, reason = "a closure of any type lies in 32 bytes without a type")]
pub(crate) mod closure;
pub(crate) mod deadline;
pub(crate) mod depot;
#[expect(unsafe_code, reason = "the body belongs to whom the word says")]
pub(crate) mod holder;
pub(crate) mod magazines;
pub(crate) mod state;
#[expect(unsafe_code, reason = "the body belongs to whom the word says")]
pub(crate) mod task;
pub(crate) mod trim;

pub(crate) use closure::{Content, InSpan, Named, Series, Wake};
pub(crate) use state::Phase;
pub(crate) use task::{Running, Thrown};
