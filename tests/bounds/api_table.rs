//! The public API as programs outside are compiled against it: every name, with its signature.

use std::any::Any;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Debug;
use std::future::{Future, Ready, ready};
use std::io;
use std::ops::ControlFlow;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tickwheel::delay::{DelayQueue, InsertError};
use tickwheel::future::block_on;
use tickwheel::message_loop::{
    AlreadyBound, DefaultPump, Delegate, IdleKey, LoopThread, MessageLoop, MessagePump, Next,
    NotBound, QuitHandle, RunLoop, TaskRunner,
};
use tickwheel::pool::{JoinError, PanicPayload, ScheduledFuture, ScheduledThreadPool};
use tickwheel::rx::{
    Cleanups, CompositeCancellable, CompositeKey, ContextAwareScheduler, ContextCapture,
    ExecutorScheduler, SingleThreadScheduler, TrampolineScheduler, Worker,
};
use tickwheel::wheel::Wheel;
use tickwheel::{
    BootClock, BuildError, Builder, Cancel, CancelOnDrop, Cancellable, Clock, CloseError, Driver,
    DueTask, Entered, Executor, Inline, Leftovers, ManualClock, MissedTicks, Observer, PendingTask,
    Period, Precision, Rejected, Repeat, RepeatingTask, Request, Schedule, ScheduleError,
    ScheduleExt, Scheduler, Stats, Stopping, SystemClock, Task, TaskPanic, ThreadPool,
    TryScheduleError, WeakScheduler, WheelView,
};

const SECOND: Duration = Duration::from_secs(1);

fn sendable<T: Send + 'static>() {}
fn shareable<T: Send + Sync + 'static>() {}
fn printable<T: Debug>() {}

#[test]
fn what_can_be_sent_shared_cloned_and_printed() {
    fn handle<T: Clone + Send + Sync + Debug>() {}
    fn error<T: Error + Send + Sync + 'static>() {}
    fn schedule<S: Schedule + ?Sized>() {}
    handle::<Scheduler>();
    handle::<Cancellable>();
    handle::<ManualClock>();
    handle::<SystemClock>();
    handle::<BootClock>();
    handle::<Stats>();
    handle::<Inline>();
    shareable::<ThreadPool>();
    shareable::<Stopping>();
    shareable::<Leftovers>();
    shareable::<PendingTask>();
    shareable::<CancelOnDrop>();
    sendable::<Driver>();
    sendable::<Builder>();
    shareable::<DueTask>();
    shareable::<Arc<dyn Schedule>>();
    schedule::<dyn Schedule>();
    schedule::<&dyn Schedule>();
    schedule::<Box<dyn Schedule>>();
    schedule::<Arc<dyn Schedule>>();
    schedule::<&Box<Arc<Scheduler>>>();
    shareable::<Arc<dyn Executor>>();
    printable::<Period>();
    printable::<Precision>();
    printable::<MissedTicks>();
    printable::<TaskPanic<'_>>();
    printable::<Wheel<u8>>();
    printable::<Arc<dyn Schedule>>();
    // For every type of task.
    printable::<TryScheduleError<fn(*mut u8)>>();
    error::<ScheduleError>();
    error::<CloseError>();
    error::<BuildError>();
    error::<Rejected>();
    error::<InsertError<std::cell::Cell<u8>, Box<dyn Any + Send>>>();
    error::<JoinError>();
    error::<TryScheduleError<std::cell::Cell<u8>>>();
}

/// A struct that keeps a handle, and crosses a `catch_unwind`, needs no `AssertUnwindSafe`.
#[test]
fn what_may_cross_a_catch_unwind() {
    fn crosses<T: UnwindSafe + RefUnwindSafe>() {}
    crosses::<Scheduler>();
    crosses::<WeakScheduler>();
    crosses::<Cancellable>();
    crosses::<CancelOnDrop>();
    crosses::<PendingTask>();
    crosses::<Leftovers>();
    crosses::<Stopping>();
    crosses::<Stats>();
    crosses::<ThreadPool>();
    crosses::<Wheel<u8>>();
    crosses::<DelayQueue<String, Box<dyn Any + Send>>>();
    crosses::<TaskRunner>();
    crosses::<LoopThread>();
    crosses::<ScheduledThreadPool>();
    crosses::<ScheduledFuture<Box<dyn Any + Send>>>();
    crosses::<PanicPayload>();
    crosses::<ExecutorScheduler>();
    crosses::<Worker>();
    crosses::<SingleThreadScheduler>();
    crosses::<CompositeCancellable>();
    crosses::<Cleanups>();
    crosses::<tickwheel::time::Sleep>();
    crosses::<tickwheel::time::Interval>();
    crosses::<tickwheel::time::Timeout<Ready<()>>>();
}

#[test]
fn the_builder_by_value() -> Result<(), BuildError> {
    struct Quiet;
    impl Observer for Quiet {}
    let builder: Builder = Scheduler::builder()
        .tick(Duration::from_millis(2))
        .wheel_size(512)
        .precision(Precision::Tick)
        .precision(Precision::Exact)
        .executor(Inline)
        .executor_fn(|task: DueTask| task.run())
        .executor_fn(DueTask::run)
        .executor_fn(|_| panic!("a closure that never returns"))
        .executor_fn(|task| if task.is_repeating() { Err(Rejected::new(task)) } else { Ok(()) })
        .executor_fn(|task| Err(Rejected::for_good(task)))
        .executor(|task: DueTask| Inline.execute(task))
        .executor(mpsc::channel::<DueTask>().0)
        .executor(mpsc::sync_channel::<DueTask>(1).0)
        .clock(SystemClock)
        .thread_name("named")
        .thread_name(String::from("named"))
        .max_pending(10)
        .shutdown_timeout(SECOND)
        .on_panic(|panic: TaskPanic<'_>| {
            let _: Option<&str> = panic.message();
            let _: &(dyn Any + Send) = panic.payload();
            let _: &'static str = panic.name();
        })
        .observer(Quiet);
    let scheduler: Scheduler = builder.build()?;
    let _: Instant = scheduler.now();
    let (_scheduler, _driver): (Scheduler, Driver) = Scheduler::builder().build_driven()?;
    Ok(())
}

#[test]
fn conversions_and_defaults() -> Result<(), Box<dyn Error>> {
    fn series(scheduler: &Scheduler, period: impl Into<Period>) -> io::Result<Cancellable> {
        Ok(scheduler.schedule_periodic(SECOND, period.into(), || ())?)
    }
    let (scheduler, driver) = Builder::default().max_pending(1).build_driven()?;
    assert_eq!(Period::from(SECOND), Period::fixed_rate(SECOND));
    assert_eq!(Period::from(SECOND).duration(), SECOND);
    assert!(series(&scheduler, SECOND).is_ok());
    let kind = |period: Duration| series(&scheduler, period).unwrap_err().kind();
    assert_eq!(kind(SECOND), io::ErrorKind::QuotaExceeded);
    assert_eq!(kind(Duration::ZERO), io::ErrorKind::InvalidInput);
    drop(driver.close());
    let closed = series(&scheduler, SECOND).unwrap_err();
    assert_eq!(closed.kind(), io::ErrorKind::Other);
    assert_eq!(closed.to_string(), ScheduleError::Closed.to_string(), "it says what to do");
    let reason = closed.into_inner().ok_or("it carries the reason")?;
    assert_eq!(reason.downcast_ref(), Some(&ScheduleError::Closed));
    let kinds = [
        io::Error::from(CloseError::Timeout).kind(),
        io::Error::from(CloseError::OnTickThread).kind(),
        io::Error::from(CloseError::Global).kind(),
        io::Error::from(BuildError::ZeroTick).kind(),
        io::Error::from(BuildError::Thread(io::ErrorKind::OutOfMemory.into())).kind(),
    ];
    let expected = [
        io::ErrorKind::TimedOut,
        io::ErrorKind::Deadlock,
        io::ErrorKind::Unsupported,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::OutOfMemory,
    ];
    assert_eq!(kinds, expected);
    Ok(())
}

/// An observer behind an `Arc`, a `Box` or both gets the same calls as the observer itself.
#[test]
fn observers_behind_pointers() {
    #[derive(Default)]
    struct Heard(Mutex<BTreeSet<&'static str>>);
    impl Heard {
        fn note(&self, what: &'static str) {
            self.0.lock().expect("no panic").insert(what);
        }
    }
    impl Observer for Heard {
        fn took_in(&self, tasks: usize) {
            self.note("took in");
            assert!(tasks > 0);
        }
        fn handed_over(&self, _: usize) {
            self.note("handed over");
        }
        fn rejected(&self, _: usize) {
            self.note("rejected");
        }
        fn will_sleep(&self, _: Option<Instant>) {
            self.note("will sleep");
        }
        fn turned(&self, wheel: WheelView<'_>) {
            self.note("turned");
            assert!(wheel.buckets() > 0);
        }
        fn woke(&self) {
            self.note("woke");
        }
        fn stopped(&self, _: usize) {
            self.note("stopped");
        }
    }
    fn all_of_it(heard: &Heard, observer: impl Observer) {
        observer.took_in(1);
        observer.handed_over(1);
        observer.rejected(1);
        observer.will_sleep(None);
        observer.woke();
        observer.stopped(1);
        let (scheduler, driver) =
            Scheduler::builder().observer(observer).build_driven().expect("good");
        scheduler.schedule_once(SECOND, || ()).expect("open");
        driver.advance(SECOND);
        let heard = std::mem::take(&mut *heard.0.lock().expect("no panic"));
        assert_eq!(heard.len(), 7, "{heard:?}");
    }
    let heard = Arc::new(Heard::default());
    all_of_it(&heard, Arc::clone(&heard));
    all_of_it(&heard, Box::new(Arc::clone(&heard)));
    let erased: Arc<dyn Observer> = heard.clone();
    all_of_it(&heard, Arc::clone(&erased));
    let boxed: Box<dyn Observer> = Box::new(erased);
    all_of_it(&heard, boxed);
}

#[test]
fn the_scheduler() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (scheduler, driver) = Scheduler::builder().build_driven()?;
    let _: Cancellable = scheduler.schedule_once(SECOND, || ())?;
    let _: Cancellable = scheduler.schedule_repeatedly(SECOND, SECOND, || ())?;
    let _: Cancellable =
        scheduler.schedule_repeatedly(SECOND, SECOND, || ControlFlow::Break(()))?;
    let _: Cancellable = scheduler.schedule_with_fixed_delay(SECOND, SECOND, || ())?;
    let rate = Period::fixed_rate(SECOND).missed(MissedTicks::Skip).missed(MissedTicks::Burst);
    let _: Cancellable =
        scheduler.schedule_periodic(SECOND, rate.missed(MissedTicks::Delay), || ())?;
    let _: Cancellable = scheduler.schedule_periodic(SECOND, Period::fixed_delay(SECOND), || ())?;
    let _: Cancellable = scheduler.schedule_self_paced(SECOND, || None)?;
    let _: Cancellable = scheduler.schedule_at(scheduler.now(), || ())?;
    let text = String::from("moved");
    let back: Result<Cancellable, TryScheduleError<_>> =
        scheduler.try_schedule_once(SECOND, move || drop(text));
    back?;
    let _: Cancellable = scheduler.try_schedule_at(scheduler.now(), || ())?;
    let _: Cancellable = scheduler.try_schedule_periodic(SECOND, rate, || ())?;
    let mine: Scheduler = scheduler.with_executor(Inline).with_executor(|task: DueTask| task.run());
    mine.schedule_once(SECOND, || ())?;
    let _: usize = scheduler.pending();
    let _: bool = scheduler.is_closed();

    let _: Instant = driver.now();
    let _: Option<Instant> = driver.turn();
    let runs: usize = driver.advance(SECOND);
    assert_eq!(runs, 10);

    let stats: Stats = scheduler.stats();
    let numbers: [u64; 8] = [
        stats.scheduled(),
        stats.fired(),
        stats.cancelled(),
        stats.rejected(),
        stats.panicked(),
        stats.dropped(),
        stats.wakeups(),
        stats.lateness().count(),
    ];
    assert_eq!(numbers, [12, 12, 0, 0, 0, 0, 0, 12]);
    assert_eq!(stats.pending() as usize, scheduler.pending());
    let _: Duration = stats.lateness().quantile(0.99);
    let _: Duration = stats.lateness().max();

    let leftovers: Leftovers = driver.close();
    assert!(!leftovers.is_empty() && leftovers.len() == scheduler.stats().scheduled() as usize - 7);
    Ok(())
}

fn awaited(_: impl Future<Output = Leftovers>) {}

#[test]
fn the_ends() -> Result<(), Box<dyn Error>> {
    let make = || Scheduler::builder().executor(Inline).build();
    let scheduler = make()?;
    scheduler.schedule_once(SECOND, || ())?;
    let leftovers: Result<Leftovers, CloseError> = scheduler.close();
    let other = make()?;
    for task in leftovers? {
        let _: Duration = task.remaining();
        let _: Instant = task.deadline();
        let _: Option<Duration> = task.period();
        let moved: Result<Cancellable, ScheduleError> = task.reschedule(&other);
        moved?;
    }
    for _ in 0..2 {
        other.schedule_once(SECOND, || ())?;
    }
    let mut tasks = other.close()?.into_iter();
    tasks.next().ok_or("three")?.run();
    tasks.next().ok_or("three")?.cancel();
    drop(tasks);

    let third = make()?;
    third.schedule_once(SECOND, || ())?;
    let runs: Result<usize, CloseError> = third.close_and_run();
    assert_eq!(runs, Ok(1));

    awaited(third.stop());
    let waited: Result<Leftovers, Stopping> = third.stop().wait_timeout(SECOND);
    assert_eq!(waited.map(Leftovers::run_all).map_err(drop), Ok(0));
    let _: Leftovers = third.stop().wait();
    Ok(())
}

#[test]
fn handles_over_anything() {
    struct Own;
    impl Cancel for Own {
        fn cancel(&self) -> bool {
            true
        }
        fn is_cancelled(&self) -> bool {
            false
        }
        fn is_done(&self) -> bool {
            false
        }
    }
    let handle: Cancellable = Arc::new(Own).into();
    assert!(handle.cancel() && !handle.is_cancelled() && !handle.is_done());
    let _: CancelOnDrop = handle.clone().cancel_on_drop();
    assert!(Cancellable::already_cancelled().is_cancelled());
}

#[test]
fn executors_of_every_kind() -> Result<(), Box<dyn Error>> {
    struct Refusing;
    impl Executor for Refusing {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            let _: (Instant, Duration) = (task.deadline(), task.lateness());
            let _: bool = task.is_repeating();
            Err(Rejected::new(task))
        }
    }
    let dynamic: Arc<dyn Executor> = Arc::new(Refusing);
    let rejected: Rejected = dynamic.execute(DueTask::new(Instant::now(), || ())).unwrap_err();
    let task: DueTask = rejected.into_task();
    let pool: ThreadPool = ThreadPool::new(1);
    pool.execute(task)?;
    let () = pool.shutdown();
    let waited: bool = pool.await_termination(SECOND);
    let (is_shut, is_over): (bool, bool) = (pool.is_shutdown(), pool.is_terminated());
    assert!(waited && is_shut && is_over);
    Inline.execute(DueTask::new(Instant::now(), || ()))?;
    let closure = |task: DueTask| task.run();
    closure.execute(DueTask::new(Instant::now(), || ()))?;
    // An `Arc` of any executor is an executor.
    let _ = Scheduler::builder().executor(Arc::new(ThreadPool::new(1))).executor(dynamic);
    Ok(())
}

#[test]
fn code_over_any_schedule() -> Result<(), Box<dyn Error>> {
    fn twice<S: Schedule + ?Sized>(schedule: &S) -> Result<Cancellable, ScheduleError> {
        let task: Task = Box::new(|| ());
        schedule.schedule_task(SECOND, task)?;
        schedule.schedule_task_at(schedule.now() + SECOND, Box::new(|| ()))?;
        let series: RepeatingTask = Box::new(|| ControlFlow::Continue(()));
        schedule.schedule_series(SECOND, Period::fixed_rate(SECOND), series)?;
        schedule.schedule_periodic(SECOND, Period::fixed_delay(SECOND), || ())?;
        schedule.schedule_once(SECOND, || ())
    }
    fn by_the_extension<S: Schedule + ?Sized>(schedule: &S) -> Result<(), ScheduleError> {
        let _: Cancellable = schedule.schedule_at(schedule.now(), || ())?;
        let _: Cancellable =
            schedule.schedule_repeatedly(SECOND, SECOND, || ControlFlow::Break(()))?;
        let _: Cancellable = schedule.schedule_with_fixed_delay(SECOND, SECOND, || ())?;
        Ok(())
    }
    fn with_names(schedule: &dyn Schedule) -> Result<(), ScheduleError> {
        let name: &'static str = "a name";
        let _: Cancellable =
            schedule.schedule_named(name, Request::After(SECOND, Box::new(|| ())))?;
        let _: Cancellable =
            schedule.schedule_named(name, Request::At(schedule.now(), Box::new(|| ())))?;
        let series: RepeatingTask = Box::new(|| ControlFlow::Break(()));
        let every = Period::fixed_rate(SECOND);
        let _: Cancellable =
            schedule.schedule_named(name, Request::Series(SECOND, every, series))?;
        assert!(schedule.as_scheduler().is_none_or(|scheduler| !scheduler.is_closed()));
        Ok(())
    }
    fn repeats<R: Repeat>(schedule: &Scheduler, task: impl FnMut() -> R + Send + 'static) -> bool {
        schedule.schedule_repeatedly(SECOND, SECOND, task).is_ok()
    }
    let (scheduler, driver) = Scheduler::builder().build_driven()?;
    assert!(repeats(&scheduler, || ()) && repeats(&scheduler, || ControlFlow::Break(())));
    let dynamic: Arc<dyn Schedule> = Arc::new(scheduler.clone());
    twice(&scheduler)?;
    twice(&dynamic)?;
    twice(&*dynamic)?;
    assert_eq!(driver.advance(SECOND), 17);
    by_the_extension(&*dynamic)?;
    with_names(&*dynamic)?;
    drop(scheduler.stop());
    assert_eq!(dynamic.schedule_once(SECOND, || ()).unwrap_err(), ScheduleError::Closed);
    Ok(())
}

#[test]
fn clocks_and_the_global_one() -> Result<(), ScheduleError> {
    let clock = ManualClock::new();
    let before = clock.now();
    clock.clone().advance(SECOND);
    assert_eq!(Clock::now(&clock) - before, SECOND);
    assert!(SystemClock.now() <= Instant::now());
    let global: &'static Scheduler = Scheduler::global();
    assert!(global.schedule_once(SECOND, || ())?.cancel());
    let _: Scheduler = Scheduler::default();
    Ok(())
}

/// The names of `tokio::time`, with its signatures.
#[test]
fn time_with_the_names_of_tokio() -> io::Result<()> {
    use tickwheel::time::error::Elapsed;
    use tickwheel::time::{self, Instant as TimeInstant, Interval, MissedTickBehavior};
    use tickwheel::time::{Sleep, Timeout};

    fn value<T: Copy + Eq + Debug + Send + Sync + 'static>() {}
    fn future<T: Future + Send + Sync + Unpin + Debug>(future: T) -> T {
        future
    }
    value::<TimeInstant>();
    value::<MissedTickBehavior>();
    value::<Elapsed>();
    let _: time::Duration = SECOND;
    let (std, now) = (Instant::now(), TimeInstant::now());
    let mut sleep: Sleep = future(time::sleep(SECOND));
    let _: [Sleep; 2] = [time::sleep_until(now), time::sleep_until(std)];
    let _: (TimeInstant, bool) = (sleep.deadline(), sleep.is_elapsed());
    let () = Pin::new(&mut sleep).reset(now);
    let () = Pin::new(&mut sleep).reset(std);

    let mut timeout: Timeout<Ready<u8>> = future(time::timeout(SECOND, ready(7)));
    let _: [Timeout<Ready<u8>>; 2] =
        [time::timeout_at(now, ready(7)), time::timeout_at(std, ready(7))];
    let _: (&Ready<u8>, &mut Ready<u8>) = (&timeout.get_ref().clone(), timeout.get_mut());
    let inner: Ready<u8> = timeout.into_inner();
    assert_eq!(block_on(inner), 7);
    let limited: Result<u8, Elapsed> = block_on(time::timeout(SECOND, ready(7)));
    assert_eq!(limited?, 7); // as an `io::Error`

    let mut interval: Interval = time::interval_at(std, SECOND);
    let tick: TimeInstant = block_on(interval.tick());
    let mut context = Context::from_waker(Waker::noop());
    let polled: Poll<TimeInstant> = interval.poll_tick(&mut context);
    assert!(tick == std.into() && polled.is_pending());
    let () = interval.reset();
    let () = interval.reset_immediately();
    let () = interval.reset_after(SECOND);
    let () = interval.reset_at(now);
    let _: Duration = interval.period();
    for missed in [MissedTickBehavior::Delay, MissedTickBehavior::Skip, MissedTickBehavior::Burst] {
        let () = interval.set_missed_tick_behavior(missed);
    }
    assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::default());
    let _: [Interval; 2] = [time::interval(SECOND), time::interval_at(now, SECOND)];

    let scheduler = Scheduler::global();
    let in_force: Entered<'_> = scheduler.enter();
    printable::<Entered<'_>>();
    drop(in_force);
    let _: [Sleep; 2] = [scheduler.sleep(SECOND), scheduler.sleep_until(now)];
    let _: [Timeout<Ready<u8>>; 2] =
        [scheduler.timeout(SECOND, ready(7)), scheduler.timeout_at(std, ready(7))];
    let _: [Interval; 2] = [scheduler.interval(SECOND), scheduler.interval_at(std, SECOND)];

    let () = time::pause();
    let () = block_on(time::advance(SECOND));
    let hook: fn() = time::advance_when_idle;
    hook();
    let () = time::resume();
    Ok(())
}

#[test]
fn workers_and_what_is_around_them() -> Result<(), Box<dyn Error + Send + Sync>> {
    fn handle<T: Clone + Send + Sync + Debug>() {}
    fn key<T: Copy + Eq + Debug + Send + Sync>() {}
    fn typed<F: FnOnce() + Send + 'static>(
        worker: &Worker,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        worker.try_schedule(f)
    }
    struct Nothing;
    impl ContextCapture for Nothing {
        type Context = ();
        fn capture(&self) {}
        fn replace(&self, (): ()) {}
    }
    handle::<ExecutorScheduler>();
    handle::<Worker>();
    handle::<CompositeCancellable>();
    handle::<SingleThreadScheduler>();
    handle::<Cleanups>();
    key::<CompositeKey>();
    shareable::<ContextAwareScheduler>();
    shareable::<TrampolineScheduler>();
    printable::<ContextAwareScheduler>();
    printable::<TrampolineScheduler>();

    let (timers, driver) = Scheduler::builder().build_driven()?;
    let workers: ExecutorScheduler = ExecutorScheduler::new(Inline, &timers);
    let worker: Worker = workers.worker();
    let _: Cancellable = worker.schedule(|| ());
    let _: Cancellable = worker.schedule_after(SECOND, || ());
    let _: Cancellable = worker.schedule_periodically(SECOND, SECOND, || ());
    let _: Cancellable =
        worker.schedule_periodically(SECOND, SECOND, || ControlFlow::<()>::Break(()));
    let _: Cancellable = typed(&worker, || ())?;
    let _: Arc<dyn Schedule> = Arc::new(worker.clone());
    let pending: usize = worker.pending();
    assert_eq!(pending, 3);
    driver.advance(SECOND);
    let () = worker.dispose();
    let is_disposed: bool = worker.is_disposed();
    assert!(is_disposed);

    let set = CompositeCancellable::new();
    let key: CompositeKey = set.add(Cancellable::already_cancelled());
    let removed: Option<Cancellable> = set.remove(key);
    assert!(removed.is_some());
    let prevented: usize = set.cancel();
    let (is_cancelled, len): (bool, usize) = (set.is_cancelled(), set.len());
    assert_eq!((prevented, is_cancelled, len), (0, true, 0));

    let _: Worker = ContextAwareScheduler::new(workers, Nothing).worker();
    let _: Worker = TrampolineScheduler::new().worker();
    let _: [Worker; 2] = [tickwheel::rx::single(), tickwheel::rx::new_thread()];

    let one: SingleThreadScheduler = SingleThreadScheduler::new("one")?;
    let _: SingleThreadScheduler = SingleThreadScheduler::with_clock("two", ManualClock::new())?;
    let _: Worker = one.on_panic(|_| ()).max_pending(2).worker();
    let (task, cleanups) = Cleanups::of(|| 1);
    let (_series, _): (_, Cleanups) = Cleanups::of_series(|| ());
    cleanups.add(|| ());
    let (ran, has_ended): (i32, bool) = (task(), cleanups.has_ended());
    assert_eq!((ran, has_ended), (1, true));
    Ok(())
}

#[test]
fn a_message_loop_and_what_is_around_it() -> Result<(), Box<dyn Error + Send + Sync>> {
    fn handle<T: Clone + Send + Sync + Debug>() {}
    fn value<T: Copy + Eq + Debug>() {}
    fn error<T: Error + Send + Sync + 'static>() {}
    fn typed<F: FnOnce() + Send + 'static>(
        runner: &TaskRunner,
        f: F,
    ) -> Result<Cancellable, TryScheduleError<F>> {
        runner.post(f)
    }
    struct Pump(DefaultPump);
    impl MessagePump for Pump {
        fn run(&self, delegate: &dyn Delegate) {
            let _: fn(&dyn Delegate) -> bool = |delegate| delegate.do_work();
            let _: fn(&dyn Delegate) -> bool = |delegate| delegate.do_delayed_work();
            let _: fn(&dyn Delegate) -> Option<Instant> = |delegate| delegate.next_delayed_work();
            let _: fn(&dyn Delegate) -> bool = |delegate| delegate.do_idle_work();
            self.0.run(delegate);
        }
        fn quit(&self) {
            self.0.quit();
        }
        fn waker(&self) -> Waker {
            self.0.waker()
        }
    }
    handle::<TaskRunner>();
    handle::<QuitHandle>();
    value::<IdleKey>();
    value::<Next>();
    error::<AlreadyBound>();
    error::<NotBound>();
    sendable::<LoopThread>();
    printable::<(MessageLoop, RunLoop, LoopThread, DefaultPump)>();

    let looper: MessageLoop = MessageLoop::prepare()?;
    let again: Result<MessageLoop, AlreadyBound> =
        MessageLoop::prepare_with(Pump(DefaultPump::new()));
    assert!(again.is_err());
    drop(looper);
    let looper: MessageLoop = MessageLoop::prepare_with(Pump(DefaultPump::new()))?;
    let runner: TaskRunner = looper.runner();
    let _: TaskRunner = MessageLoop::current()?;
    let _: Cancellable = typed(&runner, || ())?;
    let late: Cancellable = runner.post_delayed(SECOND, || ())?;
    let _: Cancellable = runner.post_at(Instant::now(), || ())?;
    let () = runner.run_or_post(|| ())?;
    let () = runner.post_and_reply(|| 7, |_: i32| ())?;
    let is_here: bool = runner.belongs_to_current_thread();
    assert!(is_here && late.cancel());
    let _: Arc<dyn Schedule> = Arc::new(runner.clone());
    let _: Box<dyn Executor> = Box::new(runner.clone());
    let key: IdleKey = looper.add_idle_handler(|| ());
    let _: IdleKey = looper.add_idle_handler(|| ControlFlow::<()>::Break(()));
    let was_there: bool = looper.remove_idle_handler(key);
    assert!(was_there);
    let ran: usize = looper.run_until_idle();
    assert_eq!(ran, 4);
    let next: Next = looper.turn();
    assert!(!matches!(next, Next::Now | Next::At(_) | Next::Quit) && next == Next::Idle);
    let run: RunLoop = RunLoop::new()?;
    let quits: QuitHandle = run.quit_handle();
    let () = quits.quit_when_idle();
    let () = quits.quit();
    let () = run.run();
    for quit in [TaskRunner::quit_when_idle, TaskRunner::quit_safely, TaskRunner::quit] {
        let () = quit(&runner);
    }
    let () = looper.run();

    let thread: LoopThread = LoopThread::spawn(String::from("api"))?;
    let runner: TaskRunner = thread.runner();
    let () = runner.wake();
    let () = runner.quit();
    let joined: std::thread::Result<()> = thread.join();
    assert!(joined.is_ok());
    Ok(())
}
