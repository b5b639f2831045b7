//! loom models: small programs of the real code, of which every interleaving is tried, with every
//! value that a look may find.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release --lib models`
//!
//! Who looks runs in a thread that starts after the one that writes: loom tries a look before a write only
//! if it has first seen it after, and it starts with the threads in their order.
//!
//! What is not the real thing: a directory of one page of holders ([`blocks`]), magazines and blocks of
//! two, and no time. `scripts/mutations.py ordering` weakens each ordering that is named here, one by
//! one, and shows which model fails.
//!
//! | file | of what | the orderings that it guards |
//! | --- | --- | --- |
//! | [`alarms`] | a ring against a look and a drop; one that is set against a stop | none of its own: the word's exchange and look |
//! | [`ends`] | a close against runs, series in their runs, breaks and cancels; a move against a cancel; a look at the name | the word of a series that ends, and `is_closing` |
//! | [`holders`] | run, cancel, reuse, rearm, a magazine's way, a trim, clones of a handle | the word's exchange (Acquire, Release), its `end` and its look; the handle's `shared`, the clone's look at the word |
//! | [`lanes`] | push, take, close; the ready list; the order by count | `published`: swap, look, close; `listed`: look, clearing; the head of the ready list: push, look, take; the count |
//! | [`loops`] | the wake event of a message loop: post, end, quit handle, what is dropped on the loop's thread, each against a loop that goes to sleep; a wake and a cancel against the poll of a future | none: all is under locks |
//! | [`sleep`] | arm, look, sleep, against publish and ring | the threshold: arming and look |
//! | [`workers`] | the drain of `rx::Worker`: schedule, run, cancel, dispose, refusal, series | a job's `is_over`: Release, Acquire; all else is under locks |
//! | [`whole`] | the scheduler with its thread: schedule, cancel, close | all of them together |

mod alarms;
#[expect(clippy::missing_const_for_fn, reason = "what it stands for is none")]
pub(crate) mod blocks;
mod ends;
mod holders;
mod lanes;
mod loops;
mod sleep;
pub(crate) mod threads;
mod whole;
mod workers;
