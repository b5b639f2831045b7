//! A timer service: millions of pending one-shot and repeating tasks, scheduled from any thread,
//! cancelled in O(1), run on your own executor.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//!
//! let scheduler = Scheduler::new();
//! let timeout = scheduler.schedule_once(Duration::from_secs(30), || println!("no answer"))?;
//! let beat = scheduler.schedule_repeatedly(Duration::ZERO, Duration::from_secs(1), || println!("beat"))?;
//! timeout.cancel();
//! let leftovers = scheduler.close()?; // the beat: it comes back, to be run, dropped or moved
//! # drop(leftovers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The picture
//!
//! Something decides *when* a task runs, and something decides *where*. When is the wheel's
//! business, where is an [`Executor`]'s.
//!
//! ```text
//!   your threads                     the tick thread                        the executor
//!
//!   schedule_once ──> holder         ┌──────────── turn ─────────────┐
//!        │            (64 bytes,     │                               │
//!        │             reused)       │   take in ── advance ── hand ─┼──> Inline, ThreadPool,
//!        └─> lane ═══════════════════╪═> intake      wheel     over  │    your own
//!            (one per thread)        │                               │       │
//!                                    │   tidy, then sleep until the  │       └─> claim, run
//!   cancel ──> one exchange on       │   next deadline               │
//!              the holder's word     └───────────────────────────────┘
//! ```
//!
//! A **holder** keeps the closure; its one word says which task lives there and where it stands, and
//! everybody who wants to run, cancel or return the task races on that word. The **lane** carries
//! sixteen bytes, deadline and name, to the **wheel**; the holder is not touched again until the
//! task is due. A cancelled task leaves a stale name behind, which is swept. The tick thread sleeps
//! until the next deadline, however far; nobody wakes it for a later one.
//!
//! # Where to look
//!
//! | I want to | use |
//! | --- | --- |
//! | run something later, once | [`Scheduler::schedule_once`], [`schedule_at`](Scheduler::schedule_at) |
//! | run something again and again | [`schedule_repeatedly`](Scheduler::schedule_repeatedly), [`schedule_with_fixed_delay`](Scheduler::schedule_with_fixed_delay), [`schedule_periodic`](Scheduler::schedule_periodic) |
//! | wait in async code, under any runtime | [`Scheduler::sleep`], [`timeout`](Scheduler::timeout), [`interval`](Scheduler::interval), [`call_after`](Scheduler::call_after); [`future`] |
//! | call it off | [`Cancellable::cancel`], [`cancel_on_drop`](Cancellable::cancel_on_drop) |
//! | choose the thread that runs it | [`Builder::executor`], [`Scheduler::with_executor`], [`Executor`] |
//! | meet deadlines to less than a tick | [`Precision::Exact`] |
//! | stop, and keep what was pending | [`Scheduler::close`], [`Leftovers`] |
//! | test in virtual time | [`Builder::build_driven`], [`Driver::advance`], [`ManualClock`] |
//! | turn it from my own event loop | [`Driver::turn`], [`Driver::wake_with`] |
//! | bound it, and see what it does | [`Builder::max_pending`], [`Scheduler::stats`], [`Observer`] |
//! | learn which task panicked, and why | [`Builder::on_panic`], [`TaskPanic`] |
//! | write code that does not care which scheduler it gets | [`Schedule`], [`ScheduleExt`] |
//! | get results, on threads that keep time | [`pool::ScheduledThreadPool`] |
//! | keep tasks in order on an executor of many threads, and call off all of them | [`rx::Worker`] |
//! | make a thread a place that others bring work to | [`message_loop::MessageLoop`] |
//! | call off a changing set of things at once | [`rx::CompositeCancellable`] |
//! | take a context along to where a task runs | [`rx::ContextAwareScheduler`] |
//! | have just the data structure | [`wheel::Wheel`] |
//!
//! # The promises
//!
//! They are numbered; the numbers stand in the code and in the names of the tests.
//!
//! - **Time.** Never early (S1). At most a tick late, plus what system and executor add (S2). By
//!   deadline, and at equal deadlines in the order of scheduling (S3). Any [`Duration`] (S4). A zero
//!   delay does not wait, and never runs on the caller's stack (S5). After a stall what is due runs
//!   at once and in order (S6). Idle costs nothing (S7).
//! - **Cancel.** One caller wins, and then the task does not start (S8). The closure is dropped
//!   before `cancel` returns (S9). A handle never hits another task (S10). Your code never runs
//!   under a lock of ours (S11).
//! - **Repeating.** A fixed rate keeps its phase (S12); what was missed is caught up, skipped, or
//!   starts a new phase (S13); nothing is allocated (S14); a panic ends the series (S15); a task may
//!   cancel itself (S16).
//! - **Executor.** Panics are caught, anywhere (S17). What an executor rejects is handed over again
//!   (S18). Work on the tick thread is bounded per turn (S19). An executor that refuses costs the others nothing (S30).
//! - **Shutdown.** Every accepted task has exactly one end: run, cancelled, returned, or dropped;
//!   every other is refused (S20). `close` waits for a bounded time, and is no deadlock anywhere
//!   (S21). Leftovers can be run (S22). After the stop all is refused (S23). Dropping the last
//!   handle stops without blocking (S24).
//! - **Bounds and sight.** A limit that is exact (S25), counters that are exact once things are
//!   quiet (S26), errors that say what to do (S27).
//!
//! # Under overload
//!
//! A wheel can be outrun: several threads bring tasks faster than one thread files them, or than an executor runs them.
//! Then the producers are held back. A call of `schedule_*` that finds itself far ahead sleeps for some milliseconds, and
//! for 100 ms at most, so that what is pending on the way in stays bounded, and others are served in time. It happens only
//! to a thread that schedules thousands of tasks a second, and never
//!
//! - on a tick thread, or where a [`Driver`] is turned,
//! - for the sake of an executor, on a thread that runs one of its tasks,
//! - for timeouts that wait in the wheel, however many: only what has not been filed yet counts, and what is due and has
//!   not been started.
//!
//! It is never a deadlock, whatever locks the caller holds: if nothing moves for 100 ms, the bound doubles. Whoever wants
//! errors in place of waiting says so by [`Builder::max_pending`]. Workers, pools and message loops do the same.
//!
//! # Features
//!
//! All are off by default, and only add.
//!
//! | feature | what it gives |
//! | --- | --- |
//! | `tokio` | a runtime's `Handle` is an [`Executor`]; `TokioBlocking` for what blocks |
//! | `rayon` | a `rayon::ThreadPool` is an [`Executor`] |
//! | `hyper` | a [`Scheduler`] is a timer for hyper 1 |
//! | `futures-core` | [`future::Interval`] is a `Stream` |
//! | `tracing` | a one-shot runs in the span where it was scheduled, each run of a series in a root span of its own, so that no trace grows for ever; panics and rejections are events; `rx::TracingSpans` |
//! | `metrics` | `MetricsReporter`: counters, a gauge and the histogram of lateness |
//!
//! [`shutdown`] tells what the end of a scheduler does with each task, [`design`] how the crate works inside, [`waking`]
//! how it sleeps, and [`coming_from`] the counterpart of each call of other timers.
//!
//! [`Duration`]: std::time::Duration

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)] // four files in `task/`, `sync.rs`, `system.rs` and `future/timeout.rs` are excepted, each with its reason

mod docs;
mod engine;
mod error;
mod executor;
pub mod future;
mod job;
pub mod message_loop;
mod observe;
mod platform;
pub mod pool;
pub mod rx;
mod scheduler;
mod time;
pub mod wheel;

/// loom models: every interleaving of small programs.
#[cfg(all(test, loom))]
#[path = "../tests/models/mod.rs"]
mod models;

#[cfg(any(doc, doctest))]
pub use docs::shutdown;
#[cfg(doc)]
pub use docs::{coming_from, design, waking};
pub use engine::Precision;
pub use error::{BuildError, CloseError, ScheduleError, TryScheduleError};
#[cfg(feature = "tokio")]
pub use executor::TokioBlocking;
pub use executor::{DueBatch, DueTask, Executor, Inline, Rejected, ThreadPool};
#[cfg(feature = "metrics")]
pub use observe::MetricsReporter;
pub use observe::{Lateness, Observer, PanicHook, Stats, TaskPanic, WheelView};
pub use scheduler::{
    Alarm, Builder, Cancel, CancelOnDrop, Cancellable, Driver, IntoIter, Leftovers, PendingTask,
    RepeatingTask, Schedule, ScheduleExt, Scheduler, Stopping, Task, WeakScheduler,
};
pub use time::clock::{Clock, ManualClock, Sleeper, SystemClock};
pub use time::repeat::{MissedTicks, Period, Repeat};

/// The README's code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
