//! How to test code that waits: in virtual time, without a sleep.
//!
//! [`Builder::build_driven`](crate::Builder::build_driven) makes a [`Scheduler`](crate::Scheduler) without a thread, and
//! a [`Driver`](crate::Driver), on a clock that stands still until the driver moves it. What a test sees does not depend
//! on the load of the machine, and an hour takes as long as its work.
//!
//! | the code under test | the test |
//! | --- | --- |
//! | schedules closures | [`Driver::advance`](crate::Driver::advance) moves the time, and runs what is due on the way |
//! | is async | [`Driver::block_on`](crate::Driver::block_on) runs it, and the time jumps whenever it waits |
//! | is async, and other threads wake it | [`Driver::block_on_patiently`](crate::Driver::block_on_patiently) |
//! | takes any [`Schedule`](crate::Schedule) | give it the driven scheduler |
//! | has a loop of its own | [`Driver::turn`](crate::Driver::turn), and a [`ManualClock`](crate::ManualClock) that the test moves |
//!
//! # Closures
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use std::time::Duration;
//! use tickwheel::{Cancellable, ScheduleError, Scheduler};
//!
//! /// The code under test: counts the sessions that were idle for half an hour.
//! fn watch(scheduler: &Scheduler, closed: &Arc<AtomicUsize>) -> Result<Cancellable, ScheduleError> {
//!     let closed = Arc::clone(closed);
//!     scheduler.schedule_once(IDLE, move || _ = closed.fetch_add(1, Ordering::Relaxed))
//! }
//! const IDLE: Duration = Duration::from_secs(30 * 60);
//!
//! let (scheduler, driver) = Scheduler::builder().build_driven()?;
//! let closed = Arc::new(AtomicUsize::new(0));
//! let session = watch(&scheduler, &closed)?;
//! for _packet in 0..100 {
//!     driver.advance(Duration::from_secs(29 * 60));
//!     assert!(session.reset(IDLE));
//! }
//! assert_eq!(closed.load(Ordering::Relaxed), 0, "two days later");
//! driver.advance(IDLE);
//! assert_eq!(closed.load(Ordering::Relaxed), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Driver::next_deadline`](crate::Driver::next_deadline) tells what comes next, and
//! [`Scheduler::pending`](crate::Scheduler::pending) whether something was left behind. The tasks run on the thread of
//! the test, one after the other ([`Inline`](crate::Inline)). So a task may contain an `assert!`: the call of the driver in
//! which it fails resumes its panic, and the test fails. If the builder was given an
//! [`on_panic`](crate::Builder::on_panic), the hook is told instead.
//!
//! # Three mistakes
//!
//! **An executor with threads.** `advance` hands the tasks over, and returns while the executor's threads still run them.
//! Its result counts the runs that have started by then, often none. Leave the executor of a test at
//! [`Inline`](crate::Inline), which is the default here. If the code under test brings its own, wait for its tasks:
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//! use tickwheel::{Scheduler, ThreadPool};
//!
//! let (scheduler, driver) = Scheduler::builder().executor(ThreadPool::new(1)).build_driven()?;
//! let (send, answers) = mpsc::channel();
//! scheduler.schedule_once(Duration::from_secs(1), move || send.send(42).expect("the test waits"))?;
//! driver.advance(Duration::from_secs(1));
//! // Wrong: `answers.try_recv()`. The pool's thread may not have begun.
//! assert_eq!(answers.recv()?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **A [`ManualClock`](crate::ManualClock) with [`build`](crate::Builder::build).** That scheduler has a tick thread. To
//! advance the clock wakes the thread, and does not wait for it, so the tasks run a little later, in real time. Use
//! `build_driven`, also with a clock that the test keeps:
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::{ManualClock, Scheduler};
//!
//! let clock = ManualClock::new();
//! let (scheduler, driver) = Scheduler::builder().clock(clock.clone()).build_driven()?;
//! let task = scheduler.schedule_once(Duration::from_secs(1), || ())?;
//! clock.advance(Duration::from_secs(1));
//! driver.turn(); // with `build` there would be nothing to call here
//! assert!(task.is_done());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Deadlines between ticks.** By default a task runs at the end of the tick in which it is due, also in virtual time: one
//! that is due at 1.5 ms runs at 2 ms. So `advance` by just its delay may leave it pending, two deadlines within a tick come
//! together, and a loop that advances to [`Driver::next_deadline`](crate::Driver::next_deadline) stands still there.
//! [`Driver::turn`](crate::Driver::turn) answers with the end of the tick. With [`Precision::Exact`](crate::Precision::Exact) each
//! task runs at its own deadline:
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::{Precision, Scheduler};
//!
//! let (scheduler, driver) = Scheduler::builder().precision(Precision::Exact).build_driven()?;
//! driver.advance(Duration::from_micros(1500));
//! scheduler.schedule_once(Duration::from_secs(1), || ())?;
//! assert_eq!(driver.advance(Duration::from_secs(1)), 1); // 0 with ticks of a millisecond
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Async code
//!
//! ```
//! use tickwheel::Scheduler;
//! use tickwheel::time::{self, Duration};
//!
//! /// The code under test: asks until there is an answer, with growing gaps.
//! async fn retry<T>(mut ask: impl FnMut() -> Option<T>) -> T {
//!     let mut gap = Duration::from_secs(1);
//!     loop {
//!         if let Some(answer) = ask() {
//!             return answer;
//!         }
//!         time::sleep(gap).await;
//!         gap *= 2;
//!     }
//! }
//!
//! let (scheduler, driver) = Scheduler::builder().build_driven()?;
//! let (start, mut asked) = (scheduler.now(), 0);
//! let answer = driver.block_on(retry(|| {
//!     asked += 1;
//!     (asked == 11).then_some("at last")
//! }))?;
//! assert_eq!((answer, scheduler.now() - start), ("at last", Duration::from_secs(1023)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Inside `block_on` the driver's scheduler is in force, so the functions of [`time`](crate::time) keep its time. On a
//! runtime of one thread, [`time::pause`](crate::time::pause()) makes that thread's time virtual.
//!
//! A future that nothing can wake any more does not hang the test: [`Stalled`](crate::Stalled) says so. The time jumps as
//! soon as the future waits. If another thread is at work for it, a pool or a file, that would make each timeout fire
//! before the answer. So the caller says how long such work may take in real time:
//! [`block_on_patiently`](crate::Driver::block_on_patiently). It is a parameter of the call and not of the scheduler,
//! because one test has futures of both kinds.
//!
//! # Any scheduler
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::{Schedule, ScheduleError, ScheduleExt, Scheduler};
//!
//! /// The code under test has no idea of what keeps the time.
//! fn remind(timers: &dyn Schedule, say: impl FnOnce() + Send + 'static) -> Result<(), ScheduleError> {
//!     timers.schedule_once(Duration::from_secs(24 * 3600), say).map(drop)
//! }
//!
//! let (scheduler, driver) = Scheduler::builder().build_driven()?;
//! remind(&scheduler, || ())?;
//! assert_eq!(driver.advance(Duration::from_secs(24 * 3600)), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Workers, pools and loops keep time by a clock too: workers by that of their scheduler,
//! those of [`PoolBuilder::clock`](crate::pool::PoolBuilder::clock) and
//! [`LoopBuilder::clock`](crate::message_loop::LoopBuilder::clock) by a [`ManualClock`](crate::ManualClock).
//!
//! # Beside `tokio::time::pause`
//!
//! [`time::pause`](crate::time::pause()) is that function, for the calling thread. A [`Driver`](crate::Driver) does more:
//!
//! | there | here |
//! | --- | --- |
//! | one clock for the whole runtime, which has to be a current-thread one | a clock for each scheduler, in any runtime or none |
//! | the time jumps whenever the runtime is idle | the time jumps whenever the future waits and nothing is due |
//! | not while a `spawn_blocking` task runs; no other switch | for as long as [`block_on_patiently`](crate::Driver::block_on_patiently) is told to wait |
//! | `advance(d)` moves the clock, and then wakes what has become due | [`advance`](crate::Driver::advance) goes from deadline to deadline, so each task sees its own time, or the end of its tick |
//! | a future that nothing will wake hangs the test | [`Stalled`](crate::Stalled) |
//! | one future after the other, in one runtime | closures, series, pools and queues on the same clock |
