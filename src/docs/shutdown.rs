//! The end of a scheduler: which tasks are returned, run or dropped, by each call that ends it.
//!
//! A task is *pending* until its run starts, wherever it is. A close returns every pending task, so that the caller can
//! run it, move it to another scheduler, write it down, or drop it. It does not matter which executor has the task. One
//! that waits in the queue of a [`ThreadPool`](crate::ThreadPool), of tokio or of rayon comes back too, and when that
//! executor comes to it later, it runs nothing.
//!
//! | the task | [`close`](crate::Scheduler::close), [`stop`](crate::Scheduler::stop), [`Driver::close`](crate::Driver::close) | [`close_and_run`](crate::Scheduler::close_and_run) | the last `Scheduler`, or the [`Driver`](crate::Driver), is dropped |
//! | --- | --- | --- | --- |
//! | was just scheduled, and is not in the wheel yet | returned | run | dropped |
//! | waits for its deadline | returned | run | dropped |
//! | was due, and its executor has refused it | returned | run | dropped |
//! | was handed over, and waits in its executor's queue | returned | run | dropped |
//! | is in its run, and does not repeat | runs to its end; the close does not wait for it | runs to its end | runs to its end |
//! | repeats, and is in a run | returned when that run has ended | runs once more when that run has ended | dropped when that run has ended |
//! | was cancelled before | nothing | nothing | nothing |
//!
//! Each cell of the first six rows is a test (`tests/end_of_life/s29_s31_end_of_life.rs`). A turn that has begun goes to its end: if a
//! task on [`Inline`](crate::Inline) stops the scheduler, those that are due with it still run, a thousand and as many as have just
//! come in at most.
//!
//! # How the calls differ
//!
//! | call | waits | where it may be called | gives |
//! | --- | --- | --- | --- |
//! | `close` | for the tick thread, and for runs of series, at most [`shutdown_timeout`](crate::Builder::shutdown_timeout) | everywhere except on the tick thread | [`Leftovers`](crate::Leftovers), or a [`CloseError`](crate::CloseError) |
//! | `close_and_run` | as `close`, and then runs the leftovers | everywhere except on the tick thread | how many runs were started |
//! | `stop` | for nothing | everywhere | [`Stopping`](crate::Stopping), which can be waited for or awaited |
//! | `Driver::close` | for runs of series, at most `shutdown_timeout` | outside of the driver's own tasks | `Leftovers` |
//! | a drop | for nothing | everywhere | nothing |
//! | [`await_termination`](crate::Scheduler::await_termination) | until it is closed and no run is in progress, at most for the given time | everywhere; inside the scheduler's own tasks it returns `false` at once | `true` if that is so |
//!
//! - The [global](crate::Scheduler::global) scheduler never ends: `close` is [`CloseError::Global`](crate::CloseError::Global),
//!   and `stop` gives a `Stopping` that is ready at once, without leftovers.
//! - From the call on, nothing is accepted: every `schedule_*` returns
//!   [`ScheduleError::Closed`](crate::ScheduleError::Closed).
//! - When the end has come, [`pending`](crate::Scheduler::pending) is 0: after a `close` that has not timed out, and after a
//!   `stop` when its [`Stopping`](crate::Stopping) is ready.
//! - The drop of the last handle ends nothing as long as a future of the scheduler is left, such as a sleep or a call: the
//!   scheduler ends with the last one. Nor does it drop a task while the [`Driver`](crate::Driver) is there: its
//!   [`close`](crate::Driver::close) returns them, and its next turn, or look at the next deadline, drops them.
//! - Leftovers come in order of deadline. Those of equal deadlines that had been handed to an executor have no order. Only one
//!   call gets them. A second close finds none. Their runs count in
//!   [`Stats::fired`](crate::Stats::fired) of the scheduler that returned them.
//! - A close that times out has closed the scheduler anyway. A later close returns the leftovers.
//! - Handles go on working. A handle cancels its task among the leftovers, and if the task
//!   [moves](crate::PendingTask::reschedule) to another scheduler, the handle cancels it there.
//! - A leftover that the other scheduler refuses comes back from
//!   [`try_reschedule`](crate::PendingTask::try_reschedule).
//! - Leftovers wait for a caller that takes them. A [`Stopping`](crate::Stopping) that is dropped gives them up, unless
//!   another one is there or a thread is in a `close`: the tick thread drops them, and a later close gets none. After a close
//!   that has timed out they are given up with the last handle. A dropped leftover is a dropped task.
//!
//! # What holds a scheduler
//!
//! Most of what a scheduler holds is a program's, and may hold the scheduler in turn. This is what ends each such circle:
//!
//! | what holds the scheduler | what ends the circle |
//! | --- | --- |
//! | the closure of a pending task | its run or its cancel; a close, whose leftovers are run or dropped; `drop(scheduler.stop())` |
//! | a task in the queue of an executor | the same: the close claims it back |
//! | the executor of a task ([`with_executor`](crate::Scheduler::with_executor)) that keeps what it is handed | the end of its last task, as above |
//! | the scheduler's executor | the end of the scheduler, which drops it. It must be stopped, because the executor's handle counts as one |
//! | the waker of a future that waits | the deadline, the end of the scheduler, or the drop of the future |
//! | the waker of a driver | the end of the scheduler, or of the driver |
//! | a leftover that was taken in its run | the end of that run |
//! | the future of [`call_after`](crate::Scheduler::call_after) | the task's end. The future keeps the scheduler going. When the last one goes without a handle, nobody is left who could take leftovers |
//! | a hook, an observer, or a clock | nothing: give it a [`WeakScheduler`](crate::WeakScheduler) |
//!
//! # Inside a task
//!
//! A task may close its own scheduler. On the tick thread (an [`Inline`](crate::Inline) executor) `close` would wait
//! for itself. There it returns [`CloseError::OnTickThread`](crate::CloseError::OnTickThread) and closes nothing;
//! `stop` works. On another thread `close` works, and does not wait for the run that it is called from. If that run
//! belongs to a series, `close` returns the series at once. [`run`](crate::PendingTask::run) or
//! [`reschedule`](crate::PendingTask::reschedule) on it takes effect after the run in progress, on that run's thread. Two
//! runs that close at the same time do not wait for each other.
//!
//! # Losing nothing
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//!
//! let scheduler = Scheduler::new();
//! for page in 0..100 {
//!     scheduler.schedule_once(Duration::ZERO, move || println!("page {page} is written"))?;
//! }
//! // Some pages are written by now, some are being written, and most wait in the pool.
//! let leftovers = scheduler.close()?;
//! println!("{} pages to go", leftovers.len());
//! leftovers.run_all();
//! assert!(scheduler.await_termination(Duration::from_secs(10)), "a page hangs");
//! // All are written, each once.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The layers
//!
//! | layer | its end | what waits | its handles and futures |
//! | --- | --- | --- | --- |
//! | [`rx::Worker`](crate::rx::Worker) | `dispose`; its executor is gone for good | is cancelled and dropped | cancelled; if what keeps its time has ended too, a delayed task is only done |
//! | | a graceful stop of the pool or loop that it runs on | what is queued runs; what is delayed may run: see [`rx::Worker`](crate::rx::Worker) | done |
//! | [`pool::ScheduledThreadPool`](crate::pool::ScheduledThreadPool) | `shutdown` | one-shots run, series end: see [`ShutdownPolicy`](crate::pool::ShutdownPolicy) | the result, or `Cancelled` |
//! | | `shutdown_now`; the last handle is dropped | comes back as [`Unstarted`](crate::pool::Unstarted) | the result if it is run, otherwise `Cancelled` |
//! | [`ThreadPool`](crate::ThreadPool), an executor | `shutdown`; it is dropped | runs | of the scheduler or worker that has handed it over |
//! | [`message_loop`](crate::message_loop) | `quit`, `quit_safely`, `quit_when_idle` | see the table of the module | done |
//!
//! If the executor of a scheduler is one of these and has ended, the scheduler keeps its tasks. The executor refuses
//! them with [`Rejected::for_good`](crate::Rejected::for_good), so it is not asked again, and a close returns them.
