//! Thread pools that keep time: [`ScheduledThreadPool`], and the [`DelayedWorkQueue`] under it.
//!
//! A [`Scheduler`](crate::Scheduler) decides *when* a task runs, and leaves to an executor *where*. A pool does both,
//! and gives results: its own threads wait for the next deadline, in turn, and run the tasks that are due. It is exact,
//! and starts tasks in order.
//!
//! A pool works with a million pending tasks as well as with a thousand, but each task costs a lock, and the memory of its
//! result. Among a million pending tasks, a task takes 153 bytes, and 0.2 us of processor time to schedule, 0.1 us to cancel,
//! and 0.7 us to run in order. A timeout of a scheduler costs a fraction of that. Take a pool for results, exact deadlines and
//! order, and a scheduler for timeouts, most of which are cancelled.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::pool::{JoinError, ScheduledThreadPool};
//!
//! let pool = ScheduledThreadPool::new(2);
//! let report = pool.schedule(Duration::from_millis(3), || vec![1, 2, 3])?;
//! let broken = pool.submit(|| -> u8 { panic!("no paper") })?;
//! assert_eq!(report.join()?, [1, 2, 3]);
//! assert!(matches!(broken.join(), Err(JoinError::Panicked(_))));
//! pool.shutdown();
//! assert!(pool.await_termination(Duration::from_secs(5)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Coming from java.util.concurrent
//!
//! | there | here |
//! | --- | --- |
//! | `new ScheduledThreadPoolExecutor(n)` | [`ScheduledThreadPool::new`], [`builder`](ScheduledThreadPool::builder) |
//! | `execute(f)`, `submit(f)` | [`execute`](ScheduledThreadPool::execute), [`submit`](ScheduledThreadPool::submit) |
//! | `schedule(f, delay, unit)` | [`schedule`](ScheduledThreadPool::schedule) |
//! | `RejectedExecutionException`, a `RejectedExecutionHandler` | [`try_execute`](ScheduledThreadPool::try_execute), [`try_submit`](ScheduledThreadPool::try_submit), [`try_schedule`](ScheduledThreadPool::try_schedule): the closure comes back |
//! | `scheduleAtFixedRate`, `scheduleWithFixedDelay` | [`schedule_at_fixed_rate`](ScheduledThreadPool::schedule_at_fixed_rate), [`schedule_with_fixed_delay`](ScheduledThreadPool::schedule_with_fixed_delay); `ControlFlow::Break` ends a series with `Ok` |
//! | at equal deadlines, a series comes before all that were scheduled after it, at each run | at equal deadlines, a series comes behind all that were scheduled before its last run has ended, because each run is queued anew (S3) |
//! | `future.get()`, `get(timeout)` | [`join`](ScheduledFuture::join), [`join_timeout`](ScheduledFuture::join_timeout), or `.await` |
//! | `CancellationException`, `ExecutionException` | [`JoinError::Cancelled`], [`JoinError::Panicked`] |
//! | `future.cancel(false)` | [`cancel`](ScheduledFuture::cancel), or a [`handle`](ScheduledFuture::handle) that is kept apart |
//! | `future.cancel(true)` | nothing: a thread in Rust cannot be interrupted |
//! | a cancel, and `schedule` again with another delay | [`reset`](crate::Cancellable::reset) of the [`handle`](ScheduledFuture::handle) |
//! | `future.getDelay(unit)`, `isPeriodic()`, `isDone()` | [`remaining`](ScheduledFuture::remaining), [`is_periodic`](ScheduledFuture::is_periodic), [`is_done`](ScheduledFuture::is_done); what is overdue has zero `remaining`, and never less |
//! | `setRemoveOnCancelPolicy(true)` | always: a cancel removes the task and drops its closure |
//! | `setExecuteExistingDelayedTasksAfterShutdownPolicy` | [`ShutdownPolicy::run_delayed`] |
//! | `setContinueExistingPeriodicTasksAfterShutdownPolicy` | [`ShutdownPolicy::continue_periodic`] |
//! | `shutdown()`, `shutdownNow()` | [`shutdown`](ScheduledThreadPool::shutdown), [`shutdown_now`](ScheduledThreadPool::shutdown_now), whose tasks can still be run |
//! | `Executors.newFixedThreadPool(n)`, without delays and futures | a [`ThreadPool`](crate::ThreadPool), which has the same four |
//! | `awaitTermination`, `isTerminated` | [`await_termination`](ScheduledThreadPool::await_termination), [`is_terminated`](ScheduledThreadPool::is_terminated) |
//! | `getQueue().size()` | [`pending`](ScheduledThreadPool::pending) |
//! | a `ThreadFactory` | [`PoolBuilder::thread_factory`], [`thread_name`](PoolBuilder::thread_name); by default threads are called `pool-N-thread-M`, as there |
//! | the core size, `setKeepAliveTime`, `allowCoreThreadTimeOut` | [`PoolBuilder::core_threads`], [`keep_alive`](PoolBuilder::keep_alive) |
//! | a core size of 0 | [`core_threads(0)`](PoolBuilder::core_threads) with a maximum of one [thread](PoolBuilder::threads) at least; a maximum of 0 is an error |
//! | `beforeExecute(t, r)`, `afterExecute(r, t)` | [`PoolBuilder::before_execute`], [`after_execute`](PoolBuilder::after_execute), [`on_panic`](PoolBuilder::on_panic) |
//! | a pool that nobody shuts down lives for ever | a pool shuts down when its last handle is dropped |
//! | `get()` in a task of the same pool may hang, and so may pools that wait for each other | [`JoinError::WouldDeadlock`] |
//! | `awaitTermination` in a task of the same pool waits in vain | it returns `false` at once |
//! | `DelayQueue`: `offer`, `take`, `poll`, `remove(o)` in O(n) | [`DelayedWorkQueue`]: the same, `remove(key)` in O(log n); with keys of your own a [`DelayQueue`](crate::delay::DelayQueue) |
//! | `drainTo(c)`: what has expired | [`drain_due`](DelayedWorkQueue::drain_due); [`drain`](DelayedWorkQueue::drain) returns all |

mod builder;
mod future;
mod queue;
mod scheduled;
mod shared;
mod task;
mod workers;

pub use builder::{PoolBuilder, ShutdownPolicy};
pub use future::{JoinError, PanicPayload, ScheduledFuture};
pub(crate) use future::{Joinable, ResultCell};
pub use queue::{DelayedWorkQueue, Key};
pub use scheduled::{ScheduledThreadPool, Unstarted};
