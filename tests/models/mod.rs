//! loom models: small programs of the real code. loom tries every interleaving of their threads, with every
//! value that a load may return.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release --lib models`
//!
//! The reader thread is started after the writer. loom starts with the threads in their order, and tries a load before a
//! store only if it has first seen the load after it.
//!
//! Some parts are not the real ones: there are two pages of holders ([`blocks`]), magazines and lane blocks hold
//! two, and there is no time. `scripts/mutations.py ordering` weakens each ordering that is named here, one by one, and
//! shows which model fails.
//!
//! | file | what races | the orderings that it guards |
//! | --- | --- | --- |
//! | [`alarms`] | an alarm that fires against a load and a drop; an alarm that is set against a stop | none of its own: the word's exchange and load |
//! | [`deadlines`] | a deadline that moves, against a run, a rearm, a cancel, a close, a look, another reset, and a move to another scheduler | the holder's deadline: Release, Acquire; all else holds the task |
//! | [`delays`] | inserts, resets, alarms, drops and closes of a delay queue, against takers that go to sleep | none: `asleep_until` is ordered by the shards' locks |
//! | [`ends`] | a close against runs, series in their runs, breaks, cancels and turns; a move against a cancel and a turn; a read of the name | the word of a series that ends, and `is_closing` |
//! | [`holders`] | run, cancel, reuse, rearm, magazines, a trim, clones of a handle | the word's exchange (Acquire, Release), its `end` and its load; the handle's `shared`, the clone's load of the word |
//! | [`lanes`] | push, take, close; the ready list; the order by count | `published`: swap, load, close; `listed`: load, clearing; the head of the ready list: push, load, take; the count |
//! | [`loops`] | the wake event of a message loop: post, end, quit handle, what is dropped on the loop's thread, each against a loop that goes to sleep; a wake and a cancel against the poll of a future | none: all is under locks |
//! | [`sleep`] | arm, look, sleep, against publish and ring | the threshold: arming and load |
//! | [`takers`] | the takers of a queue, a leader and its followers, against offers, resets, a leader that leaves, and a close | none: all is under a lock |
//! | [`workers`] | the drain of `rx::Worker`: schedule, run, cancel, dispose, refusal, series | a job's `is_over`: Release, Acquire; all else is under locks |
//! | [`whole`] | the scheduler with its thread: schedule, cancel, close | all of them together |

mod alarms;
#[expect(clippy::missing_const_for_fn, reason = "the real functions are not const")]
pub(crate) mod blocks;
mod deadlines;
mod delays;
mod ends;
mod holders;
mod lanes;
mod loops;
mod sleep;
mod takers;
pub(crate) mod threads;
mod whole;
mod workers;
