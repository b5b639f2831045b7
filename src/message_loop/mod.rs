//! A thread with a queue, delayed tasks, and those who bring them: [`MessageLoop`], as Android and Chromium
//! have it.
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
//! A turn runs one immediate task and one delayed task, so that neither sort keeps the other waiting; when there
//! is neither, idle handlers; then the loop's [pump](MessagePump) waits. Delays are exact: the loop has no tick.
//!
//! | to end | from the loop's thread | from another | then still starts |
//! | --- | --- | --- | --- |
//! | [`quit`](TaskRunner::quit) | at once | after the immediate tasks posted before | nothing else |
//! | [`quit_safely`](TaskRunner::quit_safely) | the same as from another | when what is due at the call has run | delayed tasks too, if they were due |
//! | [`quit_when_idle`](TaskRunner::quit_when_idle) | the same as from another | when nothing is due | also what is posted meanwhile |
//! | [`QuitHandle::quit`] | after the present task | the same | ends its own [`RunLoop`] alone |
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
//! | `epoll` in the native looper | `MessagePump` | [`MessagePump`], or [`turn`](MessageLoop::turn) from your own loop |
//! | `isCurrentThread` | `RunsTasksInCurrentSequence` | [`belongs_to_current_thread`](TaskRunner::belongs_to_current_thread) |
//! | `post` says false after `quit` | the task is dropped, somewhere | the closure comes back, in the error |
//! | an exception ends the program | | it is caught and reported ([`LoopBuilder::on_panic`]), and the loop goes on |
//! | `ShadowLooper.idleFor` | `TaskEnvironment::FastForwardBy` | [`LoopBuilder::clock`] with a [`ManualClock`](crate::ManualClock) |
//!
//! # The files
//!
//! | file | what it is |
//! | --- | --- |
//! | `looper`, `builder` | [`MessageLoop`] and how it is made |
//! | `runner`, `reply` | [`TaskRunner`], as all threads have it; a task there with a reply here |
//! | `local_runner` | [`LocalTaskRunner`]: closures that stay on their thread |
//! | `inbox` | what all threads share: where tasks come in, sleep and wake |
//! | `turns` | what the loop's thread does in a turn; runs and nested runs |
//! | `bound` | which loop a thread has |
//! | `agenda`, `queues` | what there is to do, on the loop's side; the tasks that wait: data, no lock |
//! | `ending` | how a loop comes to its end: its states |
//! | `pump` | [`MessagePump`], [`Delegate`], [`DefaultPump`] |
//! | `idle` | idle handlers |
//! | `run_loop` | [`RunLoop`], [`QuitHandle`] |
//! | `loop_thread` | [`LoopThread`] |
//! | `error` | [`AlreadyBound`], [`NotBound`], [`WouldDeadlock`] |

mod agenda;
mod ending;
mod inbox;
mod local;
mod looper;
mod pump;
mod run_loop;
mod runner;
mod spawn;
mod turns;

pub use local::LocalTaskRunner;
pub use looper::{
    AlreadyBound, LoopBuilder, LoopThread, MessageLoop, Next, NotBound, WouldDeadlock,
};
pub use pump::{DefaultPump, Delegate, MessagePump};
pub use run_loop::{QuitHandle, RunLoop};
pub use runner::TaskRunner;
pub use spawn::LocalJoinHandle;
pub use turns::IdleKey;
