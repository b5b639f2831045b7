//! Order, isolation and mass cancellation on any executor: [`Worker`]s, as `RxJava` has them.
//!
//! An executor with several threads runs tasks in any order, and several at once. A [`Worker`] on top of it runs its
//! tasks one at a time and in order, on whichever thread is free. It needs no thread of its own, so there may be one
//! for each account, connection or actor.
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//! use tickwheel::rx::ExecutorScheduler;
//! use tickwheel::{Scheduler, ThreadPool};
//!
//! let timers = Scheduler::new();                                       // when
//! let workers = ExecutorScheduler::new(ThreadPool::new(4), &timers);   // where
//! let connection = workers.worker();                                   // in which order
//!
//! let (sender, said) = mpsc::channel();
//! let say = |word| {
//!     let sender = sender.clone();
//!     move || sender.send(word).unwrap()
//! };
//! connection.schedule_after(Duration::from_millis(50), say("timers"));
//! connection.schedule(say("queue"));
//! connection.schedule(say("up"));
//! assert_eq!(said.iter().take(3).collect::<Vec<_>>(), ["queue", "up", "timers"]);
//! connection.dispose(); // cancels what has not started, of this connection alone
//! # Ok::<(), mpsc::RecvError>(())
//! ```
//!
//! # Coming from `RxJava`
//!
//! Schedulers and workers are here, and `Observable`s and their operators are not.
//!
//! | there | here |
//! | --- | --- |
//! | `Schedulers.from(executor)` | [`ExecutorScheduler::new`], with the [`Scheduler`](crate::Scheduler) that keeps the delays; or [`Worker::new`] on a loop or a pool, which keeps time itself |
//! | `scheduler.createWorker()` | [`ExecutorScheduler::worker`] |
//! | `worker.schedule(r)`, `schedule(r, delay, unit)` | [`schedule`](Worker::schedule), [`schedule_after`](Worker::schedule_after) |
//! | `worker.schedulePeriodically(..)` | [`schedule_periodically`](Worker::schedule_periodically) |
//! | `worker.dispose()`, `isDisposed()` | [`dispose`](Worker::dispose), [`is_disposed`](Worker::is_disposed) |
//! | `scheduler.scheduleDirect(r)` | a worker for it alone, or the executor itself |
//! | `Disposable.isDisposed()` of a task, which is true when it has run too | [`is_done`](crate::Cancellable::is_done); [`is_cancelled`](crate::Cancellable::is_cancelled) is true after a cancel alone |
//! | `dispose()` interrupts a task that runs (`newThread`, `io`, an interruptible `from`) | nothing: a thread in Rust cannot be interrupted. The task runs to its end |
//! | `ScheduledAction.add(subscription)` (`RxJava` 1) | [`Cleanups::add`]: `cleanups.add(move \|\| _ = handle.cancel())`; to cancel both with one call, put both handles into a [`CompositeCancellable`] |
//! | `GenericScheduledExecutorService`, the helper of `Schedulers.from`: it keeps the delays of an executor that cannot | the scheduler that you give; [`Scheduler::global`](crate::Scheduler::global) is one for the process |
//! | a worker whose executor is shut down runs what is queued | the same after a graceful stop, and a hard one cancels it: see [`Worker`] |
//! | `Disposable`, `dispose()` | [`Cancellable`](crate::Cancellable), [`cancel`](crate::Cancellable::cancel), which also returns whether it came in time |
//! | `dispose()`, and `schedule` again with another delay | [`Cancellable::reset`](crate::Cancellable::reset) |
//! | `Disposable.disposed()` | [`Cancellable::already_cancelled`](crate::Cancellable::already_cancelled) |
//! | `CompositeDisposable`: `add`, `delete`, `dispose`, `size` | [`CompositeCancellable`]: [`add`](CompositeCancellable::add), [`remove`](CompositeCancellable::remove) by key, [`cancel`](CompositeCancellable::cancel), [`len`](CompositeCancellable::len) |
//! | `Schedulers.trampoline()` | [`TrampolineScheduler`] |
//! | `Schedulers.single()`, `newThread()` | [`single()`], [`new_thread`] |
//! | `Schedulers.from(newSingleThreadScheduledExecutor(factory))`, `RxJavaPlugins.createSingleScheduler(factory)` | [`SingleThreadScheduler::new`], with a name |
//! | `Schedulers.io()`, `computation()` | an [`ExecutorScheduler`] on a [`ThreadPool`](crate::ThreadPool), or on your own executor |
//! | `TestScheduler`, `advanceTimeBy` | [`Builder::build_driven`](crate::Builder::build_driven), [`Driver::advance`](crate::Driver::advance), with [`Inline`](crate::Inline) |
//! | `debounce`, `throttleWithTimeout` | [`debounce()`], with [`max_wait`](Debounced::max_wait) for a stream that never stops |
//! | `throttleLatest` | [`throttle()`] |
//! | `throttleLast`, `sample` | [`debounce()`] with a [`max_wait`](Debounced::max_wait) as long as the quiet time: a window begins with its first value |
//! | `RxJavaPlugins.setScheduleHandler`, for context | [`ContextAwareScheduler`], [`ContextCapture`] |
//! | `RxJavaPlugins.onError` | [`ExecutorScheduler::on_panic`], [`SingleThreadScheduler::on_panic`] |
//! | a cancelled task stays in the queue until its turn, or is searched for | its closure is dropped at once, without a search |
//! | `RejectedExecutionException` drops the task, `Disposable.disposed()` comes back | the worker offers its work again; if the executor is gone for good, it disposes itself |

mod cleanups;
mod composite;
mod context;
mod debounce;
mod delayed;
mod drain;
mod rate;
mod retries;
mod scheduler;
mod serial;
mod shared_queue;
mod single;
#[cfg(feature = "tracing")]
mod spans;
mod throttle;
mod timer;
mod trampoline;
mod worker;

pub use cleanups::Cleanups;
pub use composite::{CompositeCancellable, CompositeKey};
pub use context::{ContextAwareScheduler, ContextCapture};
pub use debounce::{Debounced, debounce};
pub use scheduler::ExecutorScheduler;
pub use single::{SingleThreadScheduler, new_thread, single};
#[cfg(feature = "tracing")]
pub use spans::{Spans, TracingSpans};
pub use throttle::{Throttled, throttle};
pub use trampoline::TrampolineScheduler;
pub use worker::Worker;
