//! Message loops, as Android and Chromium have them: a [`MessageLoop`] is a thread with a queue of tasks, immediate and
//! delayed, that any thread brings.
//!
//! Some things belong to one thread: a window, a database connection, a state machine. A loop makes
//! that thread a place where others can bring work to: each task has the thread to itself, in order, and
//! may touch what lives there without a lock.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::message_loop::{LoopThread, MessageLoop};
//!
//! let looper = MessageLoop::prepare()?;               // this thread
//! let disk = LoopThread::spawn("disk")?;              // another one, with a loop of its own
//!
//! let home = looper.runner();
//! home.post_delayed(Duration::from_millis(5), || println!("a timer"))?;
//! disk.runner().post_and_reply(
//!     || "read there".len(),
//!     |length| {
//!         println!("shown here: {length}");
//!         MessageLoop::current().unwrap().quit_safely();
//!     },
//! )?;
//! looper.run();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A turn runs one immediate task and one delayed task, so that neither sort keeps the other waiting. If there is
//! neither, idle handlers run, and then the loop's [pump](MessagePump) waits. Delays are exact: the loop has no tick.
//! The next run of a series has its turn from the moment when it became possible, so a series that cannot keep up
//! keeps nobody else waiting.
//!
//! What is not [`Send`] is brought by a [`LocalTaskRunner`], on the loop's own thread: tasks, series, and
//! [futures](LocalTaskRunner::spawn_local).
//!
//! # The end of a loop
//!
//! A loop ends for good, and becomes stricter, never milder. [`QuitHandle::quit`] ends only its own [`RunLoop`].
//!
//! | what waits when the end is asked for | [`quit`](TaskRunner::quit) on the loop's thread | [`quit`](TaskRunner::quit) elsewhere, or a [`LoopThread`] is dropped | [`quit_safely`](TaskRunner::quit_safely) | [`quit_when_idle`](TaskRunner::quit_when_idle) | the [`MessageLoop`] is dropped |
//! | --- | --- | --- | --- | --- | --- |
//! | an immediate task, also the first run of a series without an initial delay | dropped | runs | runs | runs | dropped |
//! | a delayed task that is due | dropped | dropped | runs | runs | dropped |
//! | a delayed task that is not due | dropped | dropped | dropped | dropped | dropped |
//! | a series whose next run is due | dropped | dropped | runs once | runs until it is not due | dropped |
//! | a series in its run | that run is its last | that run is its last | that run is its last | goes on until it is not due | that run is its last |
//! | a future that has been woken, or is new | dropped | is polled | is polled | is polled | dropped |
//! | a future that waits | dropped | dropped | dropped | dropped | dropped |
//! | a post that comes afterwards | refused | refused | refused | taken until the loop has stopped | refused |
//! | a wake that comes afterwards | not taken | not taken | not taken | taken until the loop has stopped | not taken |
//! | a reply that comes afterwards | dropped | dropped | dropped | taken until the loop has stopped | dropped |
//! | an idle handler | dropped | dropped | dropped | dropped | dropped |
//!
//! - *Dropped* means: with the [`MessageLoop`], on the loop's thread. Then its handle says that it is done, and not that
//!   it was cancelled; that of a future says [`JoinError::Cancelled`](crate::pool::JoinError::Cancelled). Only the reply
//!   of a [`TaskRunner`] to a loop that is gone is dropped on the thread of its task. A destructor may post: it is
//!   refused.
//! - *Refused* means: the closure, or the future, comes back in the error. As an [`Executor`](crate::Executor) the loop
//!   refuses [for good](crate::Rejected::for_good).
//! - A task that is running runs to its end. Local tasks and series fare as those that are `Send`. A task that a
//!   scheduler has handed over is an immediate one.
//! - The clock tells what is due. So on a [`ManualClock`](crate::ManualClock) that stands still, all the runs that a
//!   series has missed are due at the call of `quit_safely`.
//! - Immediate tasks and polls that still run may not bring more, except after `quit_when_idle`. So a future that wakes
//!   itself again and again is polled once more, and a loop that was told to `quit_when_idle` goes on as long as it
//!   does so.
//!
//! # What waits
//!
//! | call | returns when | on the loop's own thread, in a task |
//! | --- | --- | --- |
//! | [`MessageLoop::run`] | the loop was told to quit | nests, and ends with the loop |
//! | [`RunLoop::run`] | its [`QuitHandle`], or the loop, was told to quit | nests; the task goes on after that |
//! | [`LoopThread::join`] | the thread has ended, which somebody has to tell it to | a [`WouldDeadlock`], at once |
//! | [`LoopThread::spawn_with`] | `setup` has returned, on the new thread | the same |
//! | a post | at once; at most 100 ms later if the caller is far ahead of the loop | never waits |
//!
//! A loop that nobody tells to quit runs for ever: nothing is told if the last handle that could do so is gone. And a
//! task that blocks for something that its own loop has to do (a reply, a future, a channel that another task of the
//! loop fills) blocks for ever, as does a task of one loop that joins a second one whose task joins the first. To wait
//! in a task, use a [`RunLoop`], a reply, or a future.
//!
//! # Coming from Android and Chromium
//!
//! | Android | Chromium | here |
//! | --- | --- | --- |
//! | `Looper.prepare()`, `loop()` | `MessageLoop`, `RunLoop::Run` | [`MessageLoop::prepare`], [`run`](MessageLoop::run) |
//! | `Looper.myLooper()` | `ThreadTaskRunnerHandle::Get` | [`MessageLoop::current`] |
//! | `Handler(looper)` | `task_runner()` | [`MessageLoop::runner`], [`LoopThread::runner`] |
//! | `post`, `postDelayed`, `postAtTime` | `PostTask`, `PostDelayedTask` | [`post`](TaskRunner::post), [`post_delayed`](TaskRunner::post_delayed), [`post_at`](TaskRunner::post_at) |
//! | `removeCallbacks(r)` | a `WeakPtr`, `CancelableOnceClosure` | [`Cancellable::cancel`](crate::Cancellable::cancel): the closure is dropped there and then |
//! | `runOnUiThread` | | [`run_or_post`](TaskRunner::run_or_post) |
//! | a `Handler` on either side | `PostTaskAndReplyWithResult` | [`post_and_reply`](TaskRunner::post_and_reply) |
//! | | `PostNonNestableTask` | [`post_non_nestable`](TaskRunner::post_non_nestable) |
//! | any closure | any closure | a [`TaskRunner`] takes what is `Send`; a [`LocalTaskRunner`] takes the rest, on its own thread |
//! | `HandlerThread` | `base::Thread` | [`LoopThread`] |
//! | `quit()`, `quitSafely()` | the end of the thread | [`quit`](TaskRunner::quit), [`quit_safely`](TaskRunner::quit_safely), [`quit_when_idle`](TaskRunner::quit_when_idle): for good |
//! | | `RunLoop`, nested or not; `Quit`, `QuitWhenIdle`, `QuitClosure` | [`RunLoop`], [`QuitHandle`]: that run alone |
//! | `MessageQueue.IdleHandler` | `DoIdleWork` | [`add_idle_handler`](MessageLoop::add_idle_handler), from inside a task [`LocalTaskRunner::add_idle_handler`] |
//! | `Handler.postDelayed(this)` at the end of a run | `RepeatingTimer` | [`ScheduleExt::schedule_periodic`](crate::ScheduleExt::schedule_periodic), [`LocalTaskRunner::schedule_periodic`] |
//! | `Handler.asCoroutineDispatcher()` | | [`LocalTaskRunner::spawn_local`]; `tokio::task::spawn_local` on a `LocalSet` |
//! | `epoll` in the native looper | `MessagePump` | [`MessagePump`], or [`turn`](MessageLoop::turn) from your own loop |
//! | `isCurrentThread` | `RunsTasksInCurrentSequence` | [`belongs_to_current_thread`](TaskRunner::belongs_to_current_thread) |
//! | `post` says false after `quit` | the task is dropped, somewhere | the closure comes back, in the error |
//! | an exception ends the program | | it is caught and reported ([`LoopBuilder::on_panic`]), and the loop goes on |
//! | `ShadowLooper.idleFor` | `TaskEnvironment::FastForwardBy` | [`LoopBuilder::clock`] with a [`ManualClock`](crate::ManualClock) |

mod inbox;
mod local;
mod looper;
mod pump;
mod queue;
mod run_loop;
mod runner;
mod spawn;
mod turn;

pub use local::LocalTaskRunner;
pub use looper::{
    AlreadyBound, LoopBuilder, LoopThread, MessageLoop, Next, NotBound, WouldDeadlock,
};
pub use pump::{DefaultPump, Delegate, MessagePump};
pub use run_loop::{QuitHandle, RunLoop};
pub use runner::TaskRunner;
pub use spawn::LocalJoinHandle;
pub use turn::IdleKey;
