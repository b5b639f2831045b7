//! A timer service: it runs closures once after a delay, or repeatedly, and cancels them in constant time. Any thread
//! may schedule, millions of tasks may be pending, and the tasks run on an executor of your choice.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//!
//! let scheduler = Scheduler::new();
//! let timeout = scheduler.schedule_once(Duration::from_secs(30), || println!("no answer"))?;
//! let beat = scheduler.schedule_repeatedly(Duration::ZERO, Duration::from_secs(1), || println!("beat"))?;
//! timeout.cancel();
//! let leftovers = scheduler.close()?; // the beat is returned, to be run, dropped or moved
//! # drop(leftovers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The picture
//!
//! The timer wheel decides *when* a task runs. An [`Executor`] decides *where* it runs.
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
//! A **holder** keeps the closure. Its one atomic word names the task that is in it, and that task's state. Threads
//! that want to run, cancel or return the task race on that word. A **lane** carries a small record to the tick
//! thread, which keeps sixteen bytes of it in the **wheel**: the deadline and a key. The tick thread normally leaves the
//! holder alone until the task is due. A cancelled task leaves its entry in the wheel, which the tick thread sweeps out
//! later. The tick thread sleeps until the next deadline, however far it is, and a task that is due later does not wake
//! it.
//!
//! # Where to look
//!
//! | I want to | use |
//! | --- | --- |
//! | run a task once, later | [`Scheduler::schedule_once`], [`schedule_at`](Scheduler::schedule_at) |
//! | run a task repeatedly | [`schedule_repeatedly`](Scheduler::schedule_repeatedly), [`schedule_with_fixed_delay`](Scheduler::schedule_with_fixed_delay), [`schedule_periodic`](Scheduler::schedule_periodic), [`schedule_self_paced`](Scheduler::schedule_self_paced) |
//! | wait in async code, under any runtime, with tokio's names | [`time::sleep`](time::sleep()), [`timeout`](time::timeout()), [`interval`](time::interval()); the page [`adopting`] |
//! | call a closure later, and await its result | [`Scheduler::call_after`] |
//! | cancel a task | [`Cancellable::cancel`], [`cancel_on_drop`](Cancellable::cancel_on_drop) |
//! | push a timeout further, again and again | [`Cancellable::reset`], [`reset_at`](Cancellable::reset_at) |
//! | run a closure when calls have stopped for a while, or at most once in a period | [`rx::debounce`](rx::debounce()), [`rx::throttle`](rx::throttle()) |
//! | choose the thread that runs it | [`Builder::executor`], [`Scheduler::with_executor`], [`Executor`] |
//! | meet deadlines to less than a tick | [`Precision::Exact`] |
//! | stop, and keep the pending tasks | [`Scheduler::close`], [`Leftovers`] |
//! | test in virtual time | the page [`testing`]; [`Builder::build_driven`], [`Driver::advance`], [`Driver::block_on`], [`ManualClock`] |
//! | turn the scheduler in my own event loop | [`Driver::turn`], [`Driver::wake_with`] |
//! | limit the pending tasks, and see what happens | [`Builder::max_pending`], [`Scheduler::stats`], [`Observer`] |
//! | learn which task has panicked, and why | [`Builder::on_panic`], [`TaskPanic`] |
//! | write code that works with any scheduler | [`Schedule`], [`ScheduleExt`] |
//! | get a task's result, from a pool that keeps time itself | [`pool::ScheduledThreadPool`] |
//! | keep tasks in order on an executor of many threads, and cancel all of them | [`rx::Worker`] |
//! | give a thread a queue of tasks that other threads post | [`message_loop::MessageLoop`] |
//! | keep values under keys until they are due: sessions, leases, requests | [`delay::DelayQueue`] |
//! | have timers that survive the process, in SQLite or PostgreSQL | the crate `tickwheel-durable` |
//! | cancel a changing set of tasks at once | [`rx::CompositeCancellable`] |
//! | take thread-locals or a context along to the thread that runs a task | [`rx::ContextAwareScheduler`] |
//! | use only the data structure | [`wheel::Wheel`] |
//!
//! # The promises
//!
//! Each promise has a number, by which the code and the names of the tests cite it.
//!
//! - **Time.** A task never starts early (S1). It starts at most a tick late, plus the delays of system and executor
//!   (S2). Tasks are handed over in order of deadline, and at equal deadlines in the order of scheduling, where the
//!   next run of a series counts as scheduled when the run before has ended (S3). Any [`Duration`] is accepted (S4). A
//!   task with a delay of zero does not wait for a tick, even if one that was due before does, and never runs on the
//!   caller's stack (S5). After a stall, all tasks that are due run at once and in order (S6). An idle scheduler uses no processor time (S7).
//! - **Cancel.** Only one caller wins, and then the task does not start (S8). The closure is dropped before `cancel`
//!   returns, or after the run if a series is in one (S9). A handle never cancels another task (S10). Your code never
//!   runs under a lock of this crate (S11).
//! - **Repeating.** A fixed rate keeps its phase (S12). Missed runs are caught up, skipped, or start a new phase (S13).
//!   A run allocates nothing (S14). A panic ends the series (S15). A task may cancel itself (S16).
//! - **Executor.** Panics are caught everywhere (S17). A task that an executor rejects is handed over again (S18). The
//!   work of the tick thread is bounded per turn (S19). An executor that refuses does not delay the tasks of others
//!   (S30).
//! - **Shutdown.** Every accepted task has exactly one end: it is run, cancelled, returned, or dropped. Every other
//!   task is refused (S20). `close` waits for a bounded time, and never deadlocks (S21). Leftovers can be run (S22).
//!   After the stop, every task is refused (S23). Dropping the last handle stops the scheduler without blocking (S24).
//!   A close also returns tasks that executors have taken and not started, and series after their run. The handles of a
//!   leftover go on working when it moves (S29).
//! - **Deadlines that move.** [`reset`](Cancellable::reset) moves the deadline of a task that has not started, earlier or
//!   later, under the same handle. The task runs once, not before its last deadline, and at most a tick after it (S28).
//! - **Limits and inspection.** A limit is exact (S25). Counters are exact once things are quiet (S26). Errors say what
//!   to do (S27). A task has a name, which reports of panics and leftovers tell (S31).
//!
//! # Under overload
//!
//! Several threads can schedule tasks faster than one tick thread files them, or than an executor runs them. Then these
//! threads are held back: a call of `schedule_*` on a thread that is far ahead sleeps for some milliseconds, and for at
//! most 100 ms. So the number of unfiled tasks stays bounded, and the tasks of other threads are served in time. Only a
//! thread that schedules thousands of tasks a second is ever held back. It is never held back
//!
//! - on a tick thread, or inside a turn of a [`Driver`],
//! - because of a slow executor, while it runs a scheduled task itself,
//! - in a poll of a future: see [`time`](time#under-load),
//! - because of timeouts that wait in the wheel, however many they are. Only tasks count that have not been filed, or
//!   that are due and have not been done.
//!
//! This cannot deadlock, whatever locks the caller holds: if nothing moves for 100 ms, the bound doubles. To get errors
//! instead of waits, set [`Builder::max_pending`]. Workers, pools and message loops hold their producers back in the
//! same way.
//!
//! # Features
//!
//! All features but `std` are off by default. Each only adds items or impls.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `std` | all but [`wheel::Wheel`], which needs no more than an allocator |
//! | `tokio` | a runtime's `Handle` is an [`Executor`]; `TokioBlocking` runs tasks that block |
//! | `rayon` | a `rayon::ThreadPool` is an [`Executor`] |
//! | `hyper` | a [`Scheduler`] is a timer for hyper 1 |
//! | `futures-core` | [`time::Interval`] is a `Stream`; `future::StreamTimeExt` for every `Stream`; the futures of `time`, `delay` and `pool` are `FusedFuture`s |
//! | `tracing` | a one-shot runs in the span where it was scheduled, and each run of a series in a root span of its own, so that no trace grows for ever; panics and rejections are events; `rx::TracingSpans` |
//! | `metrics` | `MetricsReporter`: counters, a gauge and a histogram of lateness |
//!
//! # More pages
//!
//! [`shutdown`] tells what becomes of each task at the end of a scheduler, [`testing`] how to test in virtual time,
//! [`design`] how the crate works inside, [`waking`] how threads sleep and wake, [`coming_from`] which method
//! replaces each call of other timers, [`adopting`] how services, libraries and tests on tokio or another runtime take these
//! timers, and [`platforms`] what the crate promises on which system, and which clock to take on a machine that sleeps.
//!
//! [`Duration`]: std::time::Duration

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![cfg_attr(not(feature = "std"), allow(dead_code, reason = "the scheduler uses it"))]
// Excepted are three files in `engine/slots/`, `time/timeout.rs`, and the files in `platform/` that call a system or the
// processor. `tests/bounds/tree.rs` has the list.
#![deny(unsafe_code)]

#[cfg(all(feature = "std", not(target_has_atomic = "64")))]
compile_error!(
    "tickwheel needs atomics of 64 bits, which this target lacks. Only `wheel::Wheel` can do without them: say \
     `default-features = false`"
);
#[cfg(all(feature = "std", target_family = "wasm", target_os = "unknown"))]
compile_error!(
    "this target has no clock and no threads. Build for `wasm32-wasip1`, or say `default-features = false` to have \
     `wheel::Wheel` alone"
);

extern crate alloc;

#[cfg(feature = "std")]
mod backpressure;
mod clock;
#[cfg(feature = "std")]
pub mod delay;
#[cfg(feature = "std")]
mod docs;
#[cfg(feature = "std")]
mod engine;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod executor;
#[cfg(feature = "std")]
pub mod future;
#[cfg(feature = "std")]
mod job;
#[cfg(feature = "std")]
pub mod message_loop;
#[cfg(feature = "std")]
mod observe;
mod platform;
#[cfg(feature = "std")]
pub mod pool;
#[cfg(feature = "std")]
pub mod rx;
#[cfg(feature = "std")]
mod scheduler;
#[cfg(feature = "std")]
pub mod time;
#[cfg(feature = "std")]
mod wake;
pub mod wheel;

/// Models of the concurrent parts, of which loom runs every interleaving.
#[cfg(all(test, loom))]
#[path = "../tests/models/mod.rs"]
mod models;

#[cfg(feature = "std")]
pub use self::{
    clock::clocks::{BootClock, Clock, ManualClock, Sleeper, SystemClock},
    clock::repeat::{MissedTicks, Period, Repeat},
    engine::Precision,
    error::{BuildError, CloseError, ScheduleError, Stalled, TryScheduleError},
    executor::{DueBatch, DueTask, ExecuteOutcome, Executor, Inline, Rejected, ThreadPool},
    observe::{Lateness, Observer, PanicHook, Stats, TaskPanic, WheelView},
    scheduler::{
        Alarm, Builder, Cancel, CancelOnDrop, Cancellable, Driver, Entered, Leftovers,
        LeftoversIter, PendingTask, RepeatingTask, Request, Schedule, ScheduleExt, Scheduler,
        Stopping, Task, WeakScheduler,
    },
};
#[cfg(all(any(doc, doctest), feature = "std"))]
pub use docs::{adopting, shutdown, testing};
#[cfg(all(doc, feature = "std"))]
pub use docs::{coming_from, design, platforms, waking};
#[cfg(feature = "tokio")]
pub use executor::TokioBlocking;
#[cfg(feature = "metrics")]
pub use observe::MetricsReporter;

/// Lets these types cross a `catch_unwind`. Their state is behind atomics and locks, under which no code of a user runs, so
/// a panic leaves none of it half changed. The compiler does not see that through their `dyn`s. (A panic in the closure of
/// [`delay::DelayQueue::with`] may leave that one value half changed, as a panic with an `&mut` always may.)
#[cfg(feature = "std")]
macro_rules! cross_unwinds {
    ($([$($parameter:ident)*] $type:ty,)*) => {$(
        impl<$($parameter),*> std::panic::UnwindSafe for $type {}
        impl<$($parameter),*> std::panic::RefUnwindSafe for $type {}
    )*};
}
#[cfg(feature = "std")]
cross_unwinds! {
    [] Scheduler,
    [] WeakScheduler,
    [] Cancellable,
    [] PendingTask,
    [] Leftovers,
    [] Stopping,
    [] ThreadPool,
    [K V] delay::DelayQueue<K, V>,
    [] message_loop::LoopThread,
    [] message_loop::TaskRunner,
    [T] pool::ScheduledFuture<T>,
    [] pool::ScheduledThreadPool,
    [] rx::ExecutorScheduler,
    [] rx::SingleThreadScheduler,
    [] rx::Worker,
    [] time::Sleep,
}

/// The README's code, compiled and run.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
