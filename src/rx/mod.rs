//! Order, isolation and mass cancellation on any executor: [`Worker`]s, as `RxJava` has them.
//!
//! An executor of many threads runs what it is given in any order, and two of it at once. A [`Worker`] on
//! top of it is a line: its tasks run one at a time, in order, each after the other's end, on whichever
//! thread is free. It costs no thread, so there may be one for each account, connection or actor.
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
//! connection.schedule_after(Duration::from_millis(2), say("timers"));
//! connection.schedule(say("queue"));
//! connection.schedule(say("up"));
//! assert_eq!(said.iter().take(3).collect::<Vec<_>>(), ["queue", "up", "timers"]);
//! connection.dispose(); // cancels what has not started, of this connection alone
//! # Ok::<(), mpsc::RecvError>(())
//! ```
//!
//! # Coming from `RxJava`
//!
//! | there | here |
//! | --- | --- |
//! | `Schedulers.from(executor)` | [`ExecutorScheduler::new`], with the [`Scheduler`](crate::Scheduler) that keeps its delays; [`Worker::new`] on a loop or a pool, which keeps time itself |
//! | `scheduler.createWorker()` | [`ExecutorScheduler::worker`] |
//! | `worker.schedule(r)`, `schedule(r, delay, unit)` | [`schedule`](Worker::schedule), [`schedule_after`](Worker::schedule_after) |
//! | `worker.schedulePeriodically(..)` | [`schedule_periodically`](Worker::schedule_periodically) |
//! | `worker.dispose()`, `isDisposed()` | [`dispose`](Worker::dispose), [`is_disposed`](Worker::is_disposed) |
//! | `scheduler.scheduleDirect(r)` | a worker for it alone, or the executor itself |
//! | `Disposable`, `dispose()` | [`Cancellable`](crate::Cancellable), [`cancel`](crate::Cancellable::cancel), which also says whether it came in time |
//! | `Disposable.disposed()` | [`Cancellable::already_cancelled`](crate::Cancellable::already_cancelled) |
//! | `CompositeDisposable`: `add`, `delete`, `dispose`, `size` | [`CompositeCancellable`]: [`add`](CompositeCancellable::add), [`remove`](CompositeCancellable::remove) by key, [`cancel`](CompositeCancellable::cancel), [`len`](CompositeCancellable::len) |
//! | `Schedulers.trampoline()` | [`TrampolineScheduler`] |
//! | `Schedulers.single()`, `newThread()` | [`single`], [`new_thread`] |
//! | `Schedulers.io()`, `computation()` | an [`ExecutorScheduler`] on a [`ThreadPool`](crate::ThreadPool), or on your own executor |
//! | `TestScheduler`, `advanceTimeBy` | [`Builder::build_driven`](crate::Builder::build_driven), [`Driver::advance`](crate::Driver::advance), with [`Inline`](crate::Inline) |
//! | `RxJavaPlugins.setScheduleHandler`, for context | [`ContextAwareScheduler`], [`ContextCapture`] |
//! | `RxJavaPlugins.onError` | [`ExecutorScheduler::on_panic`] |
//! | a cancelled task waits in the queue for its turn, or a scan | its closure is dropped at once, and the queue is never scanned for it |
//! | `RejectedExecutionException` drops the task, `Disposable.disposed()` comes back | the worker offers its work again by itself; on an executor that is gone for good it disposes itself |
//!
//! # The files
//!
//! | file | what it is |
//! | --- | --- |
//! | `worker` | [`Worker`], and what it asks of the queue behind it |
//! | `scheduler` | what gives out workers: [`ExecutorScheduler`], [`single`], [`new_thread`] |
//! | `serial` | the queue of a worker on an executor: its locks, how tasks come and go |
//! | `drain` | how the tasks of such a queue come to a thread |
//! | `delayed` | where a task is, and the tasks that wait for their time, as data |
//! | `trampoline` | the other queue: on the caller's thread |
//! | `composite` | [`CompositeCancellable`] |
//! | `context`, `spans` | [`ContextAwareScheduler`]; spans of `tracing` |

mod composite;
mod context;
mod delayed;
mod drain;
mod scheduler;
mod serial;
#[cfg(feature = "tracing")]
mod spans;
mod trampoline;
mod worker;

pub use composite::{CompositeCancellable, CompositeKey};
pub use context::{ContextAwareScheduler, ContextCapture};
pub use scheduler::{ExecutorScheduler, new_thread, single};
#[cfg(feature = "tracing")]
pub use spans::{Spans, TracingSpans};
pub use trampoline::TrampolineScheduler;
pub use worker::Worker;
