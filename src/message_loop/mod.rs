//! Message loops, as Android and Chromium have them. A [`MessageLoop`] gives a thread a queue of immediate and delayed
//! tasks, to which any thread may post.
//!
//! Some things belong to one thread: a window, a database connection, a state machine. With a loop, other threads can
//! post tasks to that thread. Its tasks run one at a time and in order, so they may use these things without a lock.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::message_loop::{LoopThread, MessageLoop};
//!
//! let looper = MessageLoop::prepare()?;               // this thread
//! let disk = LoopThread::spawn("disk")?;              // another one, with a loop of its own
//!
//! let ui = looper.runner();
//! ui.post_delayed(Duration::from_millis(5), || println!("a timer"))?;
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
//! neither, the loop calls its idle handlers, and then its [pump](MessagePump) waits. Delays are exact, because the loop
//! has no tick. A series that cannot keep up does not keep other tasks waiting: its next run is queued as of the time
//! when it could first start, which is its planned time, or the end of the run before, whichever is later.
//!
//! A [`LocalTaskRunner`] posts tasks, series, and [futures](LocalTaskRunner::spawn_local) that are not [`Send`], on the
//! loop's own thread.
//!
//! # The end of a loop
//!
//! A loop ends for good. If it is told to quit several times, the strictest call counts. [`QuitHandle::quit`] ends only
//! its own [`RunLoop`].
//!
//! | what is pending when the loop is to end | [`quit`](TaskRunner::quit) on the loop's thread | [`quit`](TaskRunner::quit) elsewhere, or a [`LoopThread`] is dropped | [`quit_safely`](TaskRunner::quit_safely) | [`quit_when_idle`](TaskRunner::quit_when_idle) | the [`MessageLoop`] is dropped |
//! | --- | --- | --- | --- | --- | --- |
//! | an immediate task, also the first run of a series without an initial delay | dropped | runs | runs | runs | dropped |
//! | a delayed task that is due | dropped | dropped | runs | runs | dropped |
//! | a delayed task that is not due | dropped | dropped | dropped | dropped | dropped |
//! | a series whose next run is due | dropped | dropped | runs once | runs until it is not due | dropped |
//! | a series in its run | that run is its last | that run is its last | that run is its last | repeats until its next run is not due yet | that run is its last |
//! | a future that has been woken, or is new | dropped | is polled | is polled | is polled | dropped |
//! | a future that waits | dropped | dropped | dropped | dropped | dropped |
//! | a post that comes afterwards | refused | refused | refused | taken until the loop has stopped | refused |
//! | a wake that comes afterwards | not taken | not taken | not taken | taken until the loop has stopped | not taken |
//! | a reply that comes afterwards | dropped | dropped | dropped | taken until the loop has stopped | dropped |
//! | an idle handler | dropped | dropped | dropped | dropped | dropped |
//!
//! - A delayed task that does not nest, and whose turn has come in a nested run, is an immediate task from then on.
//! - *Dropped* means: on the loop's thread, together with the [`MessageLoop`]. Then the task's handle says that it is
//!   done, and not that it was cancelled. The handle of a future returns
//!   [`JoinError::Cancelled`](crate::pool::JoinError::Cancelled). If a destructor posts, its task is refused.
//! - *Refused* means: the closure, or the future, comes back in the error. As an [`Executor`](crate::Executor) the loop
//!   refuses [for good](crate::Rejected::for_good).
//! - A task that is running runs to its end. Local tasks and series end in the same way as `Send` tasks. A task that
//!   a scheduler has handed over counts as an immediate one. So does all that a [`Worker`](crate::rx::Worker) on the loop
//!   has in its queue.
//! - The clock of the loop decides which tasks are due. Of the runs that a series has missed until then, `quit_safely` makes
//!   one.
//! - What still runs after a quit may not post more work, except after `quit_when_idle`. So a future that wakes itself
//!   again and again is polled once more, and a loop that was told to `quit_when_idle` goes on as long as the future
//!   does so.
//!
//! # Calls that wait
//!
//! | call | returns when | on the loop's own thread, in a task |
//! | --- | --- | --- |
//! | [`MessageLoop::run`] | the loop was told to quit | nests, and ends with the loop |
//! | [`RunLoop::run`] | its [`QuitHandle`], or the loop, was told to quit | nests, and the task goes on after that |
//! | [`LoopThread::join`] | the thread has ended (`join` does not tell its loop to quit) | returns a [`WouldDeadlock`] at once |
//! | [`LoopThread::quit_and_join`] | the thread has ended | quits, and returns a [`WouldDeadlock`] at once |
//! | [`LoopThread::spawn_with`] | `setup` has returned, on the new thread | also waits for `setup`; so `setup` must not wait for this thread |
//! | a post | at once, or at most 100 ms later if the caller is far ahead of the loop | never waits |
//!
//! A loop that is never told to quit runs for ever, even if the last handle that could tell it is gone. A task that
//! blocks until its own loop has done something (a reply, a future, a message from another task of the loop) blocks for
//! ever. So does a task of one loop that joins a second one while a task there joins the first. To wait in a task, use a
//! [`RunLoop`], a reply, or a future.
//!
//! # Coming from Android and Chromium
//!
//! | Android | Chromium | here |
//! | --- | --- | --- |
//! | `Looper.prepare()`, `loop()` | `MessageLoop`, `RunLoop::Run` | [`MessageLoop::prepare`], [`run`](MessageLoop::run) |
//! | the static `Looper.loop()`, in a function that does not have the looper | `RunLoop().Run()` | `RunLoop::new()?.run()`: [`RunLoop::new`] finds the loop of the thread |
//! | `Looper.myLooper()` | `ThreadTaskRunnerHandle::Get` | [`MessageLoop::current`] |
//! | `Handler(looper)` | `task_runner()` | [`MessageLoop::runner`], [`LoopThread::runner`] |
//! | `post`, `postDelayed`, `postAtTime` | `PostTask`, `PostDelayedTask` | [`post`](TaskRunner::post), [`post_delayed`](TaskRunner::post_delayed), [`post_at`](TaskRunner::post_at) |
//! | `removeCallbacks(r)` | a `WeakPtr`, `CancelableOnceClosure` | [`Cancellable::cancel`](crate::Cancellable::cancel): drops the closure at once |
//! | `removeCallbacks(r)`, and `postDelayed(r, d)` again | `DelayTimer::Reset` | [`Cancellable::reset`](crate::Cancellable::reset), for a task or a series |
//! | `runOnUiThread` | | [`run_or_post`](TaskRunner::run_or_post) |
//! | a `Handler` on either side | `PostTaskAndReplyWithResult` | [`post_and_reply`](TaskRunner::post_and_reply) |
//! | | `PostNonNestableTask` | [`post_non_nestable`](TaskRunner::post_non_nestable) |
//! | any closure | any closure | a [`TaskRunner`] takes closures that are `Send`, a [`LocalTaskRunner`] takes any, on its own thread |
//! | `HandlerThread` | `base::Thread` | [`LoopThread`] |
//! | `quit()`, and `join()` | `Thread::Stop` | [`LoopThread::quit_and_join`] |
//! | `quit()`, `quitSafely()` | the end of the thread | [`quit`](TaskRunner::quit), [`quit_safely`](TaskRunner::quit_safely), [`quit_when_idle`](TaskRunner::quit_when_idle): for good |
//! | | `RunLoop`, nested or not; `Quit`, `QuitWhenIdle`, `QuitClosure` | [`RunLoop`], and its [`QuitHandle`] for that run alone |
//! | `MessageQueue.IdleHandler` | `DoIdleWork` | [`add_idle_handler`](MessageLoop::add_idle_handler), or inside a task [`LocalTaskRunner::add_idle_handler`] |
//! | `Handler.postDelayed(this)` at the end of a run | `RepeatingTimer` | [`ScheduleExt::schedule_periodic`](crate::ScheduleExt::schedule_periodic), [`LocalTaskRunner::schedule_periodic`] |
//! | `Handler.asCoroutineDispatcher()` | | [`LocalTaskRunner::spawn_local`]; `tokio::task::spawn_local` on a `LocalSet` |
//! | `nativeWake` of the `MessageQueue` | `MessagePump::ScheduleWork` | [`wake`](TaskRunner::wake): a turn without a task |
//! | `epoll` in the native looper | `MessagePump` | [`MessagePump`], or [`turn`](MessageLoop::turn) from your own loop |
//! | `isCurrentThread` | `RunsTasksInCurrentSequence` | [`belongs_to_current_thread`](TaskRunner::belongs_to_current_thread) |
//! | `post` returns false after `quit` | the task is dropped on any thread | the closure comes back in the error |
//! | an exception ends the program | | a panic is caught and reported ([`LoopBuilder::on_panic`]), and the loop goes on |
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
