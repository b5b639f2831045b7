//! The subjects of the suite: everything that implements `Schedule`, each on a clock that is moved by hand, and each also behind
//! `&S`, `Box<S>` and `Arc<S>`.
//!
//! `rx::single()` and `rx::new_thread()` are left out, because they use the system's clock. The first is a worker on one
//! thread, and the second a worker on a pool. A trampoline blocks the thread that schedules, so its rows are in a file of their own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::message_loop::{MessageLoop, TaskRunner};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{
    ContextAwareScheduler, ContextCapture, ExecutorScheduler, SingleThreadScheduler, Worker,
};
use tickwheel::{
    Cancellable, Driver, Executor, Inline, ManualClock, Period, RepeatingTask, Schedule,
    ScheduleError, ScheduleExt, Scheduler, Task, ThreadPool,
};

use crate::common::log::Log;
use crate::common::{silence, until};

/// Makes a subject. With a number, it holds at most this many tasks.
pub(crate) type Make = fn(Option<usize>) -> Subject;

pub(crate) const SCHEDULERS: &[Make] = &[driven, on_inline, on_the_default];
pub(crate) const WORKERS_ON_INLINE: &[Make] = &[worker_on_inline];
pub(crate) const WORKERS: &[Make] = &[worker_on_a_pool, worker_with_context, worker_on_one_thread];
pub(crate) const POOLS: &[Make] = &[pool_of_one, pool_of_three];
pub(crate) const LOOPS: &[Make] = &[message_loop];

pub(crate) fn makers() -> impl Iterator<Item = Make> {
    let columns = [SCHEDULERS, WORKERS_ON_INLINE, WORKERS, POOLS, LOOPS];
    columns.into_iter().flatten().copied()
}

/// The reason why a row cannot hold for a subject, or cannot hold after one of its ends.
type Reason = (&'static str, &'static str);

const IN_ORDER: Reason =
    ("s03", "tasks are handed over in order, but several threads run them at the same time");
const ELSEWHERE: Reason = (
    "s09 memory",
    "its tick thread gives back what others have taken: `tests/alone` measures the whole process",
);
const SEVERAL_THREADS: &[Reason] = &[IN_ORDER];
const A_TICK_THREAD: &[Reason] = &[ELSEWHERE];
const ON_THREADS: &[Reason] = &[IN_ORDER, ELSEWHERE];
const KEPT: &str = "a loop that has quit keeps what is delayed until it is dropped";
const A_LOOP: &[Reason] =
    &[("s20, quit", KEPT), ("s20, quit_safely", KEPT), ("s20, quit_when_idle", KEPT)];
const ON_THE_CALLER: &[Reason] =
    &[("s05", "the executor is `Inline`, so a worker at rest runs what it is given in that call")];

/// A way to stop a subject, and what it is called.
type End = (&'static str, Box<dyn Fn()>);

/// A way to stop a subject that one of its own tasks may take.
pub(crate) type Quit = (&'static str, Arc<dyn Fn() + Send + Sync>);

/// A schedule under test, with its clock and the ways to stop it.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) schedule: Arc<dyn Schedule>,
    pub(crate) clock: ManualClock,
    /// Runs due tasks, for a subject without a thread of its own.
    pump: Box<dyn Fn()>,
    /// How many threads of its own run tasks.
    pub(crate) threads: usize,
    /// The thread that runs the test keeps its time, by `pump`.
    needs_a_pump: bool,
    /// How often it was pumped.
    pumped: Arc<AtomicUsize>,
    /// The ways to stop it.
    pub(crate) ends: Vec<End>,
    /// The ways in which a task of it may stop it.
    pub(crate) quits: Vec<Quit>,
    cannot: &'static [Reason],
}

impl Subject {
    fn new(name: &str, clock: ManualClock, schedule: impl Schedule + 'static) -> Subject {
        Subject {
            name: name.to_owned(),
            schedule: Arc::new(schedule),
            clock,
            pump: Box::new(|| ()),
            threads: 0,
            needs_a_pump: false,
            pumped: Arc::default(),
            ends: Vec::new(),
            quits: Vec::new(),
            cannot: &[],
        }
    }

    fn end(mut self, name: &'static str, end: impl Fn() + 'static) -> Subject {
        self.ends.push((name, Box::new(end)));
        self
    }

    fn quit(mut self, name: &'static str, quit: impl Fn() + Send + Sync + 'static) -> Subject {
        self.quits.push((name, Arc::new(quit)));
        self
    }

    /// Returns true if the row cannot hold for this subject, and prints the reason.
    pub(crate) fn cannot(&self, row: &str) -> bool {
        let reason = self.cannot.iter().find(|(excused, _)| *excused == row);
        reason.is_some_and(|(_, reason)| {
            println!("{row}: not for {}: {reason}", self.name);
            true
        })
    }

    /// Lets time pass by ten steps, so that a series can wait for its next run in between.
    pub(crate) fn advance(&self, time: Duration) {
        for _ in 0..10 {
            self.step(time / 10);
        }
    }

    /// Lets time pass at once, and runs everything that is due then.
    pub(crate) fn step(&self, time: Duration) {
        self.clock.advance(time);
        (self.pump)();
        self.settle();
    }

    /// Occupies each of its threads with a task at the same time. By then all earlier tasks have run.
    fn settle(&self) {
        let (arrived, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let gate = || {
            let (arrived, open) = (Arc::clone(&arrived), Arc::clone(&open));
            move || {
                arrived.fetch_add(1, Ordering::AcqRel);
                while !open.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            }
        };
        let taken = |_: &usize| self.schedule.schedule_once(Duration::ZERO, gate()).is_ok();
        let taken = (0..self.threads).filter(taken).count();
        until("every thread stands at the gate", || arrived.load(Ordering::Acquire) == taken);
        open.store(true, Ordering::Release);
    }

    /// Waits until its tasks have made something true.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        until(&format!("{}: {what}", self.name), || {
            (self.pump)();
            self.pumped.fetch_add(1, Ordering::AcqRel);
            is_so()
        });
    }

    /// What a task does that takes so long: it moves the clock. Where other threads keep the time than those that run
    /// tasks, it gives them the turn in which they would look at the clock in the meantime.
    pub(crate) fn takes(&self, time: Duration) -> impl Fn() + Send + 'static {
        let (clock, pumped) = (self.clock.clone(), Arc::clone(&self.pumped));
        let is_pumped_elsewhere = self.threads > 0 && self.needs_a_pump;
        move || {
            clock.advance(time);
            let before = pumped.load(Ordering::Acquire);
            if is_pumped_elsewhere {
                until("it is pumped", || pumped.load(Ordering::Acquire) >= before + 2);
            }
        }
    }

    /// Waits until the log has this many entries, and compares. With several threads any of them may write first.
    #[track_caller]
    pub(crate) fn says(&self, log: &Log, expected: &[u32]) {
        self.until("it speaks", || log.all().len() >= expected.len());
        let (mut said, mut expected) = (log.all(), expected.to_vec());
        if self.threads > 1 {
            said.sort_unstable();
            expected.sort_unstable();
        }
        assert_eq!(said, expected, "{}", self.name);
    }
}

/// Runs a row of the suite on every subject, behind every pointer.
pub(crate) fn every(row: &str, test: impl Fn(&Subject)) {
    on_each(makers(), None, row, test);
}

/// Runs a row on these subjects, which hold at most this many tasks.
pub(crate) fn on_each(
    makers: impl Iterator<Item = Make>,
    limit: Option<usize>,
    row: &str,
    test: impl Fn(&Subject),
) {
    silence();
    for make in makers {
        for behind in [itself, behind_a_reference, behind_a_box] {
            let subject = behind(make(limit));
            if !subject.cannot(row) {
                test(&subject);
            }
        }
    }
}

// ----- pointers ----------------------------------------------------------------------------------------------

/// The subject in its `Arc`.
fn itself(subject: Subject) -> Subject {
    subject
}

fn behind_a_reference(subject: Subject) -> Subject {
    let schedule = Arc::new(ByReference(subject.schedule));
    Subject { name: format!("&{}", subject.name), schedule, ..subject }
}

fn behind_a_box(subject: Subject) -> Subject {
    let schedule = Arc::new(Box::new(subject.schedule));
    Subject { name: format!("Box<{}>", subject.name), schedule, ..subject }
}

/// Every call goes through `&S`.
struct ByReference<S>(S);

impl<S: Schedule> Schedule for ByReference<S> {
    fn now(&self) -> Instant {
        <&S as Schedule>::now(&&self.0)
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        <&S as Schedule>::schedule_task(&&self.0, delay, task)
    }

    fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
        <&S as Schedule>::schedule_task_at(&&self.0, at, task)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        <&S as Schedule>::schedule_series(&&self.0, initial, period, task)
    }
}

// ----- subjects ----------------------------------------------------------------------------------------------

/// A driven scheduler and its driver, which is gone after an end that takes it.
fn driven_by(
    clock: &ManualClock,
    limit: Option<usize>,
) -> (Scheduler, Rc<RefCell<Option<Driver>>>) {
    let builder = Scheduler::builder().clock(clock.clone());
    let builder = limit.into_iter().fold(builder, tickwheel::Builder::max_pending);
    let (scheduler, driver) = builder.on_panic(|_| ()).build_driven().expect("good");
    (scheduler, Rc::new(RefCell::new(Some(driver))))
}

/// Turns until nothing is due, because a task that comes due again in a turn is left to the next turn.
fn turns(driver: &Rc<RefCell<Option<Driver>>>) -> Box<dyn Fn()> {
    let driver = Rc::clone(driver);
    Box::new(move || {
        if let Some(driver) = &*driver.borrow() {
            while driver.turn().is_some_and(|next| next <= driver.now()) {}
        }
    })
}

fn driven(limit: Option<usize>) -> Subject {
    let clock = ManualClock::new();
    let (scheduler, driver) = driven_by(&clock, limit);
    let (stopped, quit, turn) = (scheduler.clone(), scheduler.clone(), turns(&driver));
    let (closed, dropped) = (Rc::clone(&driver), Rc::clone(&driver));
    let stop = move || {
        let stopping = stopped.stop();
        turn();
        drop(stopping.wait());
    };
    Subject {
        pump: turns(&driver),
        needs_a_pump: true,
        ..Subject::new("driven scheduler", clock, scheduler)
    }
    .end("stop", stop)
    .end("Driver::close", move || drop(closed.take().map(Driver::close)))
    .end("drop of the driver", move || drop(dropped.take()))
    .quit("stop", move || drop(quit.stop()))
}

fn with_a_thread(name: &str, scheduler: Scheduler, clock: ManualClock) -> Subject {
    let [stop, close, close_and_run, quit] = std::array::from_fn(|_| scheduler.clone());
    Subject::new(name, clock, scheduler)
        .end("stop", move || drop(stop.stop().wait()))
        .end("close", move || drop(close.close().expect("in time")))
        .end("close_and_run", move || _ = close_and_run.close_and_run().expect("in time"))
        .quit("stop", move || drop(quit.stop()))
}

fn on_inline(limit: Option<usize>) -> Subject {
    let clock = ManualClock::new();
    let builder = Scheduler::builder().executor(Inline).clock(clock.clone());
    let builder = limit.into_iter().fold(builder, tickwheel::Builder::max_pending);
    let scheduler = builder.build().expect("a thread");
    let cannot = A_TICK_THREAD;
    Subject { threads: 1, cannot, ..with_a_thread("scheduler on inline", scheduler, clock) }
}

fn on_the_default(limit: Option<usize>) -> Subject {
    let clock = ManualClock::new();
    let builder = Scheduler::builder().clock(clock.clone());
    let builder = limit.into_iter().fold(builder, tickwheel::Builder::max_pending);
    let scheduler = builder.build().expect("a thread");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let cannot = ON_THREADS;
    Subject { threads, cannot, ..with_a_thread("scheduler", scheduler, clock) }
}

fn worker_on(
    name: &str,
    executor: impl Executor,
    limit: Option<usize>,
    worker: impl FnOnce(ExecutorScheduler) -> Worker,
) -> Subject {
    let clock = ManualClock::new();
    let (timers, driver) = driven_by(&clock, None);
    let workers = ExecutorScheduler::new(executor, &timers);
    let worker = worker(limit.into_iter().fold(workers, ExecutorScheduler::max_pending));
    let (disposed, quit) = (worker.clone(), worker.clone());
    Subject { pump: turns(&driver), needs_a_pump: true, ..Subject::new(name, clock, worker) }
        .end("dispose", move || disposed.dispose())
        .quit("dispose", move || quit.dispose())
}

fn worker_on_inline(limit: Option<usize>) -> Subject {
    let subject = worker_on("worker on inline", Inline, limit, |workers| workers.worker());
    Subject { cannot: ON_THE_CALLER, ..subject }
}

/// Its tasks run one after the other, on any thread.
fn worker_on_a_pool(limit: Option<usize>) -> Subject {
    let worker = |workers: ExecutorScheduler| workers.worker();
    Subject { threads: 1, ..worker_on("worker on a pool", ThreadPool::new(3), limit, worker) }
}

fn worker_with_context(limit: Option<usize>) -> Subject {
    /// A capture of nothing.
    struct Nothing;
    impl ContextCapture for Nothing {
        type Context = ();
        fn capture(&self) {}
        fn replace(&self, (): ()) {}
    }
    let worker = |workers| ContextAwareScheduler::new(workers, Nothing).worker();
    Subject { threads: 1, ..worker_on("worker with context", ThreadPool::new(3), limit, worker) }
}

/// Its thread keeps the time and runs the tasks.
fn worker_on_one_thread(limit: Option<usize>) -> Subject {
    let clock = ManualClock::new();
    let workers = SingleThreadScheduler::with_clock("single", clock.clone()).expect("a thread");
    let worker = limit.into_iter().fold(workers, SingleThreadScheduler::max_pending).worker();
    let disposed = worker.clone();
    Subject { threads: 1, ..Subject::new("worker on one thread", clock, worker) }
        .end("dispose", move || disposed.dispose())
}

fn pool_of(threads: usize, limit: Option<usize>) -> Subject {
    let clock = ManualClock::new();
    let builder = ScheduledThreadPool::builder().threads(threads).clock(clock.clone());
    let builder = limit.into_iter().fold(builder, tickwheel::pool::PoolBuilder::max_pending);
    let pool = builder.build().expect("good");
    let [now, orderly, quit_now, quit] = std::array::from_fn(|_| pool.clone());
    let name = format!("pool of {threads}");
    Subject { threads, ..Subject::new(&name, clock, pool) }
        .end("shutdown_now", move || drop(now.shutdown_now()))
        .end("shutdown", move || orderly.shutdown())
        .quit("shutdown_now", move || drop(quit_now.shutdown_now()))
        .quit("shutdown", move || quit.shutdown())
}

fn pool_of_one(limit: Option<usize>) -> Subject {
    pool_of(1, limit)
}

fn pool_of_three(limit: Option<usize>) -> Subject {
    Subject { cannot: SEVERAL_THREADS, ..pool_of(3, limit) }
}

fn message_loop(limit: Option<usize>) -> Subject {
    let clock = ManualClock::new();
    let builder = MessageLoop::builder().clock(clock.clone());
    let builder =
        limit.into_iter().fold(builder, tickwheel::message_loop::LoopBuilder::max_pending);
    let looper = builder.prepare().expect("no other one");
    let runner = looper.runner();
    let looper = Rc::new(RefCell::new(Some(looper)));
    let (turned, dropped) = (Rc::clone(&looper), Rc::clone(&looper));
    let quits = |quit: fn(&TaskRunner), is_dropped: bool| {
        let (runner, looper) = (runner.clone(), Rc::clone(&looper));
        move || {
            quit(&runner);
            looper.borrow().iter().for_each(MessageLoop::run);
            drop(is_dropped.then(|| looper.take()));
        }
    };
    let quit = quits(TaskRunner::quit, false);
    let quit_safely = quits(TaskRunner::quit_safely, false);
    let quit_when_idle = quits(TaskRunner::quit_when_idle, false);
    let quit_and_drop = quits(TaskRunner::quit, true);
    let [now, safely, when_idle] = std::array::from_fn(|_| runner.clone());
    let pump = Box::new(move || _ = turned.borrow().as_ref().map(MessageLoop::run_until_idle));
    Subject {
        pump,
        needs_a_pump: true,
        cannot: A_LOOP,
        ..Subject::new("message loop", clock, runner)
    }
    .end("drop of the loop", move || drop(dropped.take()))
    .end("quit", quit)
    .end("quit_safely", quit_safely)
    .end("quit_when_idle", quit_when_idle)
    .end("quit and drop", quit_and_drop)
    .quit("quit", move || now.quit())
    .quit("quit_safely", move || safely.quit_safely())
    .quit("quit_when_idle", move || when_idle.quit_when_idle())
}
