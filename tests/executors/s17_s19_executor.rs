//! Executors: nothing that they or the tasks do takes the tick thread down, and no task is lost
//! (S17 to S19).

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Grenade, PATIENCE, count, panic_on_purpose, silence, until};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::{
    Builder, Clock, CloseError, Driver, DueBatch, DueTask, Executor, Inline, ManualClock, Observer,
    Precision, Rejected, ScheduleError, Scheduler, Sleeper, SystemClock, ThreadPool,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// An executor that refuses as many tasks as the test says.
struct Moody<F>(F);

impl<F: Fn() -> bool + Send + Sync + 'static> Executor for Moody<F> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        if (self.0)() {
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    }
}

#[test]
fn s17_panics_of_tasks_executors_observers_and_hooks_cost_nobody_a_run() {
    struct Rude;
    impl Observer for Rude {
        fn took_in(&self, _: usize) {
            panic!("observer");
        }
        fn handed_over(&self, _: usize) {
            panic!("observer");
        }
        fn will_sleep(&self, _: Option<Instant>) {
            panic!("observer");
        }
        fn woke(&self) {
            panic!("observer");
        }
    }
    let scheduler = Scheduler::builder()
        .executor(Inline)
        .observer(Rude)
        .on_panic(|_| panic!("hook"))
        .build()
        .expect("the defaults are good");
    let (sender, receiver) = mpsc::channel();
    for n in 0..200 {
        let sender = sender.clone();
        let task = move || {
            sender.send(n).expect("the receiver lives");
            assert!(n % 2 == 0, "every other task panics");
        };
        scheduler.schedule_once(MILLI * (n % 7), task).expect("open");
    }
    let mut ran: Vec<u32> = (0..200).map_while(|_| receiver.recv_timeout(PATIENCE).ok()).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..200).collect::<Vec<_>>());
    // The last panic is counted after the last message, so look once more from a later task.
    drop(scheduler.close().expect("the tick thread lives"));
    assert_eq!((scheduler.stats().fired(), scheduler.stats().panicked()), (200, 100));
}

#[test]
fn s17_an_executor_that_panics_loses_only_the_task_that_it_held() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let (scheduler, driver) = Scheduler::builder()
        .executor_fn(move |task| {
            assert!(count.fetch_add(1, Ordering::Relaxed) != 1, "the second call panics");
            task.run();
        })
        .build_driven()
        .expect("the defaults are good");
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let runs = Arc::clone(&runs);
        scheduler
            .schedule_once(SECOND, move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
            .expect("open");
    }
    driver.advance(SECOND * 2);
    assert_eq!((runs.load(Ordering::Relaxed), scheduler.stats().dropped()), (4, 1));
    assert_eq!(scheduler.pending(), 0);
}

// ----- a task that panics on a driver --------------------------------------------------------

/// Returns the text of the panic with which a call unwinds.
fn panic_of<R>(call: impl FnOnce() -> R) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(call)).err()?;
    panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or(Some(String::new()))
}

/// A test whose task fails must fail. The step in which it failed is done to its end, and a further call goes on.
#[test]
fn s17_a_driver_without_a_hook_resumes_the_first_panic_and_nothing_is_lost() {
    silence();
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let ran = Arc::new(AtomicUsize::new(0));
    let start = scheduler.now();
    let schedule = |seconds, panics: Option<&'static str>| {
        let ran = Arc::clone(&ran);
        let task = move || {
            ran.fetch_add(1, Ordering::Relaxed);
            if let Some(text) = panics {
                std::panic::panic_any(text);
            }
        };
        scheduler.schedule_once(SECOND * seconds, task).expect("open")
    };
    let tasks = [
        schedule(1, None),
        schedule(1, Some("on purpose: first")),
        schedule(1, Some("on purpose: second")),
        schedule(1, None),
        schedule(2, None),
        schedule(3, Some("on purpose: third")),
    ];
    let after = |seconds| (scheduler.now() - start, ran.load(Ordering::Relaxed)) == seconds;
    assert_eq!(panic_of(|| driver.advance(HOUR)).as_deref(), Some("on purpose: first"));
    assert!(after((SECOND, 4)), "the step is done, and the time stands there");
    assert_eq!(panic_of(|| driver.advance(SECOND)), None, "one is resumed of those of a step");
    assert!(after((SECOND * 2, 5)));
    assert_eq!(panic_of(|| driver.advance(HOUR)).as_deref(), Some("on purpose: third"));
    assert!(after((SECOND * 3, 6)) && tasks.iter().all(tickwheel::Cancellable::is_done));

    schedule(0, Some("on purpose: in a turn"));
    assert_eq!(panic_of(|| driver.turn()).as_deref(), Some("on purpose: in a turn"));
    schedule(1, Some("on purpose: beside a future"));
    let future = scheduler.sleep(SECOND * 2);
    assert_eq!(
        panic_of(|| driver.block_on(future)).as_deref(),
        Some("on purpose: beside a future")
    );
    let (stops, inner) = (schedule(1, None), scheduler.clone());
    assert!(stops.cancel());
    let stop = move || {
        drop(inner.stop());
        panic_on_purpose();
    };
    scheduler.schedule_once(SECOND, stop).expect("open");
    let waits = schedule(9, None);
    assert_eq!(panic_of(|| driver.advance(SECOND)).as_deref(), Some("on purpose"));
    assert!(scheduler.is_closed() && scheduler.pending() == 0 && !waits.is_cancelled());
    assert_eq!((scheduler.stats().panicked(), driver.turn()), (6, None));
}

#[test]
fn s17_a_driver_with_a_hook_tells_the_hook_and_resumes_nothing() {
    silence();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let builder = Scheduler::builder().on_panic(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    (1..4).for_each(|n| {
        _ = scheduler.schedule_once(SECOND * n, || panic_on_purpose()).expect("open");
    });
    assert_eq!((driver.advance(HOUR), told.load(Ordering::Relaxed)), (3, 3));
}

/// What a thread of a pool has thrown is resumed by the call that comes next.
#[test]
fn s17_a_driver_resumes_what_another_thread_has_thrown() {
    silence();
    let builder = Scheduler::builder().executor(ThreadPool::new(1));
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let task = scheduler.schedule_once(SECOND, || panic_on_purpose()).expect("open");
    let mut resumed = panic_of(|| driver.advance(SECOND));
    until("the task has run", || task.is_done());
    // The pool's thread reports it behind the run.
    until("it is resumed", || {
        resumed = resumed.take().or_else(|| panic_of(|| driver.turn()));
        resumed.is_some()
    });
    assert_eq!(resumed.as_deref(), Some("on purpose"));
}

/// A call inside of a task returns. It is the outer one that unwinds.
#[test]
fn s17_a_call_of_a_driver_inside_of_a_task_resumes_nothing() {
    silence();
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let driver = Arc::new(driver);
    let (inner, ran) = (Arc::downgrade(&driver), Arc::new(AtomicUsize::new(0)));
    scheduler.schedule_once(SECOND, || panic_on_purpose()).expect("open");
    let count = Arc::clone(&ran);
    let task = move || {
        let driver = inner.upgrade().expect("it lives");
        assert_eq!(driver.advance(HOUR), 0);
        driver.turn();
        count.fetch_add(1, Ordering::Relaxed);
    };
    scheduler.schedule_once(SECOND, task).expect("open");
    assert_eq!(panic_of(|| driver.advance(SECOND)).as_deref(), Some("on purpose"));
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

// ----- a clock that panics -------------------------------------------------------------------

/// The system's clock, which panics while it is told to: whenever it is asked the time, or for a sleep.
#[derive(Clone, Default)]
struct Broken {
    now: Arc<AtomicBool>,
    sleep: Arc<AtomicBool>,
}

impl Clock for Broken {
    fn now(&self) -> Instant {
        if self.now.load(Ordering::SeqCst) { panic_on_purpose() } else { Instant::now() }
    }
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        if self.sleep.load(Ordering::SeqCst) {
            panic_on_purpose();
        }
        SystemClock.sleep(sleeper, until);
    }
}

#[test]
fn s17_a_clock_that_panics_takes_the_tick_thread_not_down_and_is_asked_again() {
    silence();
    for breaks in [[true, false], [false, true], [true, true]] {
        let (clock, reports) = (Broken::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&reports);
        let scheduler = Scheduler::builder()
            .clock(clock.clone())
            .executor(Inline)
            .on_panic(move |_| _ = count.fetch_add(1, Ordering::SeqCst))
            .build()
            .expect("a tick thread");
        let (sender, receiver) = mpsc::channel();
        let series = scheduler
            .schedule_repeatedly(MILLI, MILLI, move || sender.send(()).is_ok().then_some(MILLI))
            .expect("open");
        let waits = scheduler.schedule_once(HOUR, || ()).expect("open");
        receiver.recv_timeout(PATIENCE).expect("it runs");
        clock.now.store(breaks[0], Ordering::SeqCst);
        clock.sleep.store(breaks[1], Ordering::SeqCst);
        until("some panics", || reports.load(Ordering::SeqCst) > 5);
        clock.now.store(false, Ordering::SeqCst);
        clock.sleep.store(false, Ordering::SeqCst);
        let _ = receiver.try_iter().count();
        receiver.recv_timeout(PATIENCE).expect("the series goes on");
        let (sender, receiver) = mpsc::channel();
        scheduler.schedule_once(MILLI, move || sender.send(()).expect("alive")).expect("open");
        receiver.recv_timeout(PATIENCE).expect("what is new runs too");
        assert!(series.cancel());
        assert_eq!(scheduler.close().expect("the thread lives").len(), 1, "{breaks:?}");
        assert!(waits.is_done());
    }
}

/// While it is broken the thread asks it some tens of times a second, and a stop comes through.
#[test]
fn s17_a_clock_that_is_broken_for_good_costs_little_and_hinders_no_close() {
    silence();
    let (clock, reports) = (Broken::default(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&reports);
    let scheduler = Scheduler::builder()
        .clock(clock.clone())
        .on_panic(move |_| _ = count.fetch_add(1, Ordering::SeqCst))
        .build()
        .expect("a tick thread");
    let start = Instant::now();
    clock.sleep.store(true, Ordering::SeqCst); // so the thread asks the clock, although nothing is due
    scheduler.schedule_once(HOUR, || ()).expect("open");
    clock.now.store(true, Ordering::SeqCst);
    until("it is asked again and again", || reports.load(Ordering::SeqCst) > 20);
    let (count, millis) = (reports.load(Ordering::SeqCst) as u128, start.elapsed().as_millis());
    assert!(count < 2 * millis + 10, "{count} reports in {millis} ms");
    assert_eq!(scheduler.close().expect("in time").len(), 1);
}

/// The deadline would be unknown, and an older reading would make the task early (S1).
#[test]
fn s01_s17_a_clock_that_panics_in_a_schedule_is_the_callers_and_nothing_is_scheduled() {
    silence();
    let (clock, driver_clock) = (Broken::default(), ManualClock::new());
    let (scheduler, _driver) = Scheduler::builder()
        .clock(clock.clone())
        .max_pending(1)
        .build_driven()
        .expect("good settings");
    clock.now.store(true, Ordering::SeqCst);
    let alive = Arc::new(());
    for at in [None, Some(driver_clock.now())] {
        let hold = Arc::clone(&alive);
        let call = || match at {
            None => scheduler.schedule_once(MILLI, move || drop(hold)).map(drop),
            Some(at) => scheduler.schedule_at(at, move || drop(hold)).map(drop),
        };
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    }
    clock.now.store(false, Ordering::SeqCst);
    assert_eq!((scheduler.pending(), scheduler.stats().scheduled()), (0, 0));
    assert_eq!(Arc::strong_count(&alive), 1);
    scheduler.schedule_once(MILLI, || ()).expect("its place is free");
}

/// Its panics come at each of the readings that a step of the driver takes.
#[test]
fn s17_a_driver_reports_a_clock_that_panics_and_goes_on() {
    silence();
    for breaks_at in 1..60 {
        let (armed, reports) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (clock, count) = (ManualClock::new(), Arc::clone(&reports));
        let (scheduler, driver) = Scheduler::builder()
            .clock(crate::common::Moody(clock.clone(), Arc::clone(&armed)))
            .on_panic(move |_| _ = count.fetch_add(1, Ordering::SeqCst))
            .build_driven()
            .expect("good settings");
        scheduler.schedule_once(SECOND, || ()).expect("open");
        scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
        armed.store(breaks_at, Ordering::Relaxed);
        assert_eq!(driver.advance(SECOND * 5), 6, "broken at reading {breaks_at}");
        let was_broken = armed.swap(0, Ordering::Relaxed) == 0;
        assert_eq!(reports.load(Ordering::SeqCst), usize::from(was_broken));
        driver.block_on(scheduler.sleep(SECOND)).expect("it is woken");
    }
}

/// Their receiver goes after the first task.
#[test]
fn s18_s30_a_channel_without_a_receiver_refuses_for_good_and_no_task_is_lost() {
    let (unbounded, bounded, closure) =
        (mpsc::channel(), mpsc::sync_channel(9), mpsc::channel::<DueTask>());
    let send = move |task| closure.0.send(task).map_err(|refused| Rejected::for_good(refused.0));
    let executors: [(Arc<dyn Executor>, _); 3] = [
        (Arc::new(unbounded.0), unbounded.1),
        (Arc::new(bounded.0), bounded.1),
        (Arc::new(send), closure.1),
    ];
    for (executor, tasks) in executors {
        let (scheduler, driver) =
            Scheduler::builder().executor(executor).build_driven().expect("good settings");
        let handles = [1, 2, 3].map(|n| scheduler.schedule_once(SECOND * n, || ()).expect("open"));
        driver.advance(SECOND);
        tasks.recv().expect("handed over").run();
        drop(tasks);
        driver.advance(HOUR);
        let stats = scheduler.stats();
        assert_eq!((stats.fired(), stats.rejected(), stats.dropped()), (1, 1, 0));
        assert!(handles[0].is_done() && !handles[1].is_done() && !handles[2].is_done());
        assert_eq!(driver.turn(), None, "it is not asked again");
        assert_eq!(driver.close().run_all(), 2);
    }
}

#[test]
fn s18_a_channel_that_is_full_is_asked_again() {
    let (queue, tasks) = mpsc::sync_channel(2);
    let (scheduler, driver) =
        Scheduler::builder().executor(queue).build_driven().expect("good settings");
    (0..5).for_each(|_| drop(scheduler.schedule_once(SECOND, || ()).expect("open")));
    let mut ran = 0;
    for _ in 0..20 {
        driver.advance(SECOND);
        ran += tasks.try_iter().map(DueTask::run).count();
    }
    assert_eq!((ran, scheduler.pending()), (5, 0));
}

/// A waker that takes itself out of its driver when it is woken, so that the call which wakes it drops the last of it.
struct TakesItselfOut(Mutex<Option<Arc<Mutex<Driver>>>>);

impl Wake for TakesItselfOut {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let driver = self.0.lock().expect("no panic").take();
        if let Some(driver) = driver {
            driver.lock().expect("no panic").wake_with(None);
        }
    }
}

impl Drop for TakesItselfOut {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        panic_on_purpose();
    }
}

static DROPPED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn s17_a_waker_that_panics_when_it_is_dropped_unwinds_out_of_no_call() {
    silence();
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let driver = Arc::new(Mutex::new(driver));
    let arm = || {
        let waker = TakesItselfOut(Mutex::new(Some(Arc::clone(&driver))));
        let driver = driver.lock().expect("no panic");
        driver.wake_with(Some(Waker::from(Arc::new(waker))));
        driver.turn(); // now an earlier deadline rings
    };
    arm();
    let task = scheduler.schedule_once(MILLI, || ()).expect("accepted, and the handle is here");
    assert_eq!((DROPPED.load(Ordering::Relaxed), scheduler.pending()), (1, 1));
    arm();
    let ring = scheduler.clone();
    let run = DueTask::new(Instant::now(), move || {
        ring.schedule_once(Duration::ZERO, || ()).expect("accepted");
    });
    run.run();
    assert_eq!((DROPPED.load(Ordering::Relaxed), scheduler.pending()), (2, 2));
    arm();
    driver.lock().expect("no panic").wake_with(None);
    assert_eq!(DROPPED.load(Ordering::Relaxed), 3, "nor out of the exchange");
    arm();
    let stopping = scheduler.stop();
    assert_eq!((DROPPED.load(Ordering::Relaxed), stopping.wait().len()), (4, 1));
    assert!(task.is_done());
}

/// The last one that knows a scheduler may be a task in an executor's queue. Its run drops what the user gave the builder.
#[test]
fn s17_hooks_and_a_clock_that_panic_when_they_are_dropped_unwind_out_of_no_run() {
    struct Clockwork(ManualClock, Grenade);
    impl Clock for Clockwork {
        fn now(&self) -> Instant {
            self.0.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            self.0.sleep(sleeper, until);
        }
        fn advance_to(&self, instant: Instant) -> bool {
            self.0.advance_to(instant)
        }
    }
    struct Watches(Grenade);
    impl Observer for Watches {}
    silence();
    let (queue, tasks) = mpsc::channel();
    let (hook, alive) = (Grenade, Arc::new(()));
    let held = Arc::clone(&alive);
    let (scheduler, driver) = Scheduler::builder()
        .executor_fn(move |task: DueTask| queue.send(task).expect("the receiver lives"))
        .clock(Clockwork(ManualClock::new(), Grenade))
        .observer(Watches(Grenade))
        .on_panic(move |_| _ = (&hook, &held))
        .build_driven()
        .expect("good settings");
    for _ in 0..2 {
        scheduler.schedule_once(SECOND, || ()).expect("open");
    }
    driver.advance(SECOND);
    let first = tasks.recv().expect("handed over");
    drop((scheduler, driver));
    first.run();
    assert_eq!(Arc::strong_count(&alive), 2, "the second task keeps them");
    tasks.recv().expect("handed over").run();
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn s18_a_rejected_task_is_handed_over_again_in_its_order() {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let (scheduler, driver) = Scheduler::builder()
        .executor(Moody(move || full.load(Ordering::Relaxed)))
        .build_driven()
        .expect("the defaults are good");
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..4_u32 {
        let order = Arc::clone(&order);
        let task = move || order.lock().expect("whole").push(n);
        scheduler.schedule_once(MILLI * n, task).expect("open");
    }
    assert_eq!(driver.advance(MILLI * 10), 0);
    // At 0 ms, and then the first one again at 1, 3 and 7 ms (S30).
    assert_eq!(scheduler.stats().rejected(), 4);
    assert_eq!(scheduler.pending(), 4);

    is_full.store(false, Ordering::Relaxed);
    assert_eq!(driver.advance(MILLI * 4), 0);
    assert_eq!(driver.advance(MILLI), 4, "at 15 ms");
    assert_eq!(*order.lock().expect("whole"), [0, 1, 2, 3]);
}

/// The first one is refused again and again, and stays the first one of its deadline (S3, S30).
#[test]
fn s18_a_task_that_is_refused_again_keeps_its_place() {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let (scheduler, driver) = Scheduler::builder()
        .executor(Moody(move || full.load(Ordering::Relaxed)))
        .build_driven()
        .expect("the defaults are good");
    let (order, at) = (Arc::new(Mutex::new(Vec::new())), driver.now() + MILLI);
    for n in 0..5_u32 {
        let order = Arc::clone(&order);
        let task = move || order.lock().expect("whole").push(n);
        scheduler.schedule_at(at, task).expect("open");
    }
    driver.advance(MILLI * 10);
    is_full.store(false, Ordering::Relaxed);
    assert_eq!(driver.advance(MILLI * 100), 5);
    assert_eq!(*order.lock().expect("whole"), [0, 1, 2, 3, 4]);
}

/// An executor that has recovered gets twice as much each time, and there is more than so often twice as much. Among the
/// live ones are cancelled ones, so that an offer may come together from many looks.
#[test]
fn s18_however_many_were_refused_all_of_them_run_in_one_turn() {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let (scheduler, driver) = Scheduler::builder()
        .executor(Moody(move || full.load(Ordering::Relaxed)))
        .build_driven()
        .expect("the defaults are good");
    let tasks = (0..40_000).map(|_| scheduler.schedule_once(MILLI, || ()).expect("open"));
    let tasks: Vec<_> = tasks.collect();
    driver.advance(MILLI * 10);
    assert_eq!(scheduler.pending(), tasks.len());
    let cancelled = tasks[..20_000].iter().step_by(2).filter(|task| task.cancel()).count();
    is_full.store(false, Ordering::Relaxed);
    assert_eq!(driver.advance(SECOND), tasks.len() - cancelled);
    assert_eq!((scheduler.pending(), driver.next_deadline()), (0, None));
}

#[test]
fn s18_a_rejected_task_can_be_cancelled_and_is_among_the_leftovers() {
    let (scheduler, driver) = Scheduler::builder()
        .executor(Moody(|| true))
        .build_driven()
        .expect("the defaults are good");
    let first = scheduler.schedule_once(SECOND, || ()).expect("open");
    let second = scheduler.schedule_once(SECOND, || ()).expect("open");
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    driver.advance(SECOND * 3);
    assert!(first.cancel());
    let leftovers = driver.close();
    assert_eq!(leftovers.len(), 2);
    assert_eq!(leftovers.run_all(), 2);
    assert!(second.is_done() && series.is_done());
}

#[test]
fn s18_an_executor_that_rejects_at_random_loses_nothing() {
    let turn = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&turn);
    let reject = move || count.fetch_add(1, Ordering::Relaxed) % 3 != 0;
    let (scheduler, driver) =
        Scheduler::builder().executor(Moody(reject)).build_driven().expect("the defaults are good");
    let runs = Arc::new(AtomicUsize::new(0));
    for n in 0..1_000 {
        let runs = Arc::clone(&runs);
        let task = move || {
            runs.fetch_add(1, Ordering::Relaxed);
        };
        scheduler.schedule_once(MILLI * (n % 50), task).expect("open");
    }
    driver.advance(SECOND * 200); // S30: it takes two or three tasks each time that it is asked
    assert_eq!((runs.load(Ordering::Relaxed), scheduler.pending()), (1_000, 0));
}

#[test]
fn s18_what_a_batch_executor_leaves_or_gives_back_is_not_lost() {
    /// Runs the first of each batch, rejects the second, leaves the rest.
    struct Picky;
    impl Executor for Picky {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            Err(Rejected::new(task))
        }
        fn execute_batch(&self, batch: &mut DueBatch) {
            batch.next().into_iter().for_each(DueTask::run);
            if let Some(second) = batch.next() {
                batch.reject(Rejected::new(second));
            }
        }
    }
    let (scheduler, driver) =
        Scheduler::builder().executor(Picky).build_driven().expect("the defaults are good");
    (0..10).for_each(|_| drop(scheduler.schedule_once(SECOND, || ()).expect("open")));
    assert_eq!(driver.advance(SECOND), 1);
    assert_eq!(driver.advance(SECOND), 9);
}

#[test]
fn a_batch_says_how_much_is_left() {
    type Said = (usize, bool, (usize, Option<usize>));
    struct Counts(mpsc::Sender<Said>);
    impl Executor for Counts {
        fn execute(&self, _task: DueTask) -> Result<(), Rejected> {
            unreachable!("they come in a batch")
        }
        fn execute_batch(&self, batch: &mut DueBatch) {
            let say = |batch: &DueBatch| (batch.len(), batch.is_empty(), batch.size_hint());
            self.0.send(say(batch)).expect("the receiver lives");
            while let Some(task) = batch.next() {
                task.run();
                self.0.send(say(batch)).expect("the receiver lives");
            }
        }
    }
    let (send, said) = mpsc::channel();
    let (scheduler, driver) =
        Scheduler::builder().executor(Counts(send)).build_driven().expect("the defaults are good");
    (0..3).for_each(|_| drop(scheduler.schedule_once(SECOND, || ()).expect("open")));
    driver.advance(SECOND);
    // Tasks that are cancelled by then are left out.
    let expected = [3, 2, 1, 0].map(|left| (left, left == 0, (0, Some(left))));
    assert_eq!(said.try_iter().collect::<Vec<_>>(), expected);
}

/// Runs its batch, and gives back in it what it was given before.
struct Mixer(Arc<Mutex<Vec<DueTask>>>);

impl Executor for Mixer {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        Err(Rejected::new(task))
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        batch.run_all();
        let others = std::mem::take(&mut *self.0.lock().expect("no panic"));
        others.into_iter().for_each(|task| batch.reject(Rejected::new(task)));
    }
}

/// Two schedulers share an executor, which mixes their tasks up. The one that gets a task of the other may be full.
#[test]
fn s18_a_task_that_comes_back_in_the_batch_of_another_scheduler_goes_home() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let (home, home_driver) = Scheduler::builder()
        .executor_fn(move |task| keep.lock().expect("no panic").push(task))
        .build_driven()
        .expect("the defaults are good");
    let builder = Scheduler::builder().executor(Mixer(Arc::clone(&kept))).max_pending(1);
    let (other, driver) = builder.build_driven().expect("the defaults are good");
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let count = Arc::clone(&runs);
        let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
        home.schedule_once(SECOND, task).expect("open");
    }
    home_driver.advance(SECOND);
    other.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND);
    assert_eq!((home.pending(), other.pending(), kept.lock().expect("no panic").len()), (3, 0, 0));
    home_driver.turn();
    let again = std::mem::take(&mut *kept.lock().expect("no panic"));
    again.into_iter().take(1).for_each(DueTask::run);
    assert_eq!((runs.load(Ordering::Relaxed), home.pending()), (1, 0), "two were dropped");
    let (at_home, there) = (home.stats(), other.stats());
    assert_eq!((at_home.scheduled(), at_home.fired(), at_home.dropped()), (3, 1, 2));
    assert_eq!((there.scheduled(), there.fired(), there.rejected()), (1, 1, 0));
}

/// The scheduler of a task closes before another one gives the task back.
#[test]
fn s18_s29_a_task_that_comes_back_elsewhere_after_a_close_is_a_leftover_once() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let (home, home_driver) = Scheduler::builder()
        .executor_fn(move |task| keep.lock().expect("no panic").push(task))
        .build_driven()
        .expect("the defaults are good");
    let (other, driver) =
        Scheduler::builder().executor(Mixer(kept)).build_driven().expect("the defaults are good");
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
    home.schedule_once(SECOND, task).expect("open");
    home_driver.advance(SECOND);
    let leftovers = home_driver.close();
    other.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND * 2);
    assert_eq!((leftovers.run_all(), runs.load(Ordering::Relaxed), home.pending()), (1, 1, 0));
}

/// An executor that says of another one's task that it is refused for good speaks for itself alone.
#[test]
fn s30_who_refuses_for_good_is_not_asked_again_whosever_task_it_gives_back() {
    struct Swapper(Arc<Mutex<Vec<DueTask>>>, Arc<AtomicUsize>);
    impl Executor for Swapper {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let mut kept = self.0.lock().expect("no panic");
            let of_other = kept.pop().expect("one of the other executor");
            kept.push(task);
            Err(Rejected::for_good(of_other))
        }
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let honest = scheduler.with_executor(move |task| keep.lock().expect("no panic").push(task));
    let asked = Arc::new(AtomicUsize::new(0));
    let swapper = scheduler.with_executor(Swapper(Arc::clone(&kept), Arc::clone(&asked)));
    honest.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND);
    swapper.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND * 2);
    assert_eq!(kept.lock().expect("no panic").len(), 2, "the honest one is asked again");
    swapper.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND * 60);
    assert_eq!((asked.load(Ordering::Relaxed), scheduler.pending()), (1, 3));
}

#[test]
fn s18_a_strangers_task_that_comes_back_is_run_too() {
    /// Gives back another task than it was given.
    struct Swapper(Arc<AtomicUsize>);
    impl Executor for Swapper {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            let deadline = task.deadline();
            task.run();
            let runs = Arc::clone(&self.0);
            if runs.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
            let count = move || {
                runs.fetch_add(1, Ordering::Relaxed);
            };
            Err(Rejected::new(DueTask::new(deadline, count)))
        }
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let (scheduler, driver) = Scheduler::builder()
        .executor(Swapper(Arc::clone(&runs)))
        .build_driven()
        .expect("the defaults are good");
    scheduler.schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND * 2);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// An executor that passes tasks on, each in a layer of its own.
struct Layered<E>(E, Arc<AtomicUsize>);

impl<E: Executor> Executor for Layered<E> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let runs = Arc::clone(&self.1);
        let layer = move |task: DueTask| {
            runs.fetch_add(1, Ordering::Relaxed);
            task.run();
        };
        self.0.execute(task.wrap(layer).wrap(DueTask::run))
    }
}

#[test]
fn s18_a_task_that_is_refused_in_a_layer_is_the_one_that_was_handed_over() {
    let (queue, tasks) = mpsc::sync_channel(1);
    let layers = Arc::new(AtomicUsize::new(0));
    let builder = Scheduler::builder().executor(Layered(queue, Arc::clone(&layers)));
    let (scheduler, driver) = builder.max_pending(3).build_driven().expect("the defaults are good");
    let handles = [(); 3].map(|()| scheduler.schedule_once(SECOND, || ()).expect("open"));
    let due = scheduler.now() + SECOND;
    driver.advance(SECOND * 60);
    assert_eq!((scheduler.pending(), Arc::strong_count(&layers)), (3, 3), "one layer is kept");
    assert!(handles[1].cancel() && scheduler.pending() == 2);
    for handle in [&handles[0], &handles[2]] {
        let task = tasks.try_recv().expect("one is in the queue");
        assert_eq!((task.deadline(), task.is_repeating()), (due, false));
        assert!(task.lateness() >= SECOND * 58 && task.name().contains("s17_s19"));
        task.run();
        assert!(handle.is_done());
        driver.advance(SECOND);
    }
    assert_eq!((layers.load(Ordering::Relaxed), scheduler.stats().fired()), (2, 2));
    assert_eq!(scheduler.pending(), 0);
    drop(tasks);
    scheduler.schedule_once(SECOND, || ()).expect("open");
    let asked = scheduler.stats().rejected();
    driver.advance(SECOND * 60);
    assert_eq!(scheduler.stats().rejected() - asked, 1, "for good");
}

/// Such a closure hides the task, so nobody can take it off.
#[test]
fn s18_s30_a_refused_closure_around_a_task_comes_back_to_its_executor_ten_times_a_second() {
    let (queue, tasks) = mpsc::sync_channel::<DueTask>(0);
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let hides = scheduler.with_executor(move |task: DueTask| {
        count.fetch_add(1, Ordering::Relaxed);
        queue.execute(DueTask::new(task.deadline(), move || task.run()))
    });
    hides.schedule_once(SECOND, || unreachable!("its executor is full")).expect("open");
    driver.advance(SECOND * 2);
    assert!((10..=12).contains(&asked.load(Ordering::Relaxed)), "{asked:?}");
    assert!(scheduler.stats().rejected() >= 10);
    drop(tasks);
    driver.advance(SECOND);
    let last = asked.load(Ordering::Relaxed);
    driver.advance(SECOND * 60);
    assert_eq!(asked.load(Ordering::Relaxed), last, "it has refused for good");
}

/// Each of the two hands over at once what has come back, and so gives the task of the other one back.
#[test]
fn s30_two_schedulers_whose_executor_gives_back_the_other_one_s_tasks_do_not_spin() {
    /// A queue of one place, which gives back what was there.
    #[derive(Clone, Default)]
    struct Newest(Arc<Mutex<Option<DueTask>>>, Arc<AtomicUsize>);
    impl Executor for Newest {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let before = self.0.lock().expect("no panic").replace(task);
            before.map_or(Ok(()), |before| Err(Rejected::new(before)))
        }
    }
    let newest = Newest::default();
    let both = [(); 2].map(|()| {
        let builder = Scheduler::builder().executor(newest.clone());
        builder.build_driven().expect("the defaults are good")
    });
    for (scheduler, _) in &both {
        scheduler.schedule_once(SECOND, || ()).expect("open");
    }
    let turns = || {
        (0..1000).for_each(|_| {
            both.iter().for_each(|(_, driver)| _ = driver.advance(Duration::from_millis(1)));
        });
    };
    turns();
    turns();
    let before = newest.1.load(Ordering::Relaxed);
    turns();
    let asked = newest.1.load(Ordering::Relaxed) - before;
    assert!((10..=60).contains(&asked), "{asked} times in a second");
    let last = newest.0.lock().expect("no panic").take().expect("one is there");
    last.run();
    turns();
    newest.0.lock().expect("no panic").take().expect("the other one came").run();
    assert!(both.iter().all(|(scheduler, _)| scheduler.stats().fired() == 1));
}

#[test]
fn s19_a_flood_of_zero_delays_does_not_stop_the_wheel() {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("the defaults are good");
    let is_over = Arc::new(AtomicBool::new(false));
    let flood: Vec<_> = (0..2)
        .map(|_| {
            let (scheduler, is_over) = (scheduler.clone(), Arc::clone(&is_over));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
                    while scheduler.pending() > 100_000 {
                        thread::yield_now(); // the test is not about memory
                    }
                }
            })
        })
        .collect();
    let (sender, receiver) = mpsc::channel();
    scheduler
        .schedule_once(MILLI * 20, move || sender.send(()).expect("the receiver lives"))
        .expect("open");
    let came = receiver.recv_timeout(PATIENCE);
    is_over.store(true, Ordering::Relaxed);
    flood.into_iter().for_each(|thread| thread.join().expect("no panic"));
    came.expect("the wheel turned under the flood");
}

#[test]
fn s19_a_million_tasks_of_one_tick_all_run() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let runs = Arc::new(AtomicUsize::new(0));
    let tasks = count(1_000_000, 1_000_000);
    for _ in 0..tasks {
        let runs = Arc::clone(&runs);
        scheduler
            .schedule_once(SECOND, move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
            .expect("open");
    }
    assert_eq!(driver.advance(SECOND), tasks);
    assert_eq!(runs.load(Ordering::Relaxed), tasks);
}

/// A tick thread hands over due tasks after it has taken in a quarter of a million. A driver takes in all of them first, because
/// the task that is due first may have been scheduled last.
#[test]
fn s03_a_driver_takes_in_all_that_was_scheduled_before_its_turn() {
    const TASKS: u64 = 300_000;
    let clock = tickwheel::ManualClock::new();
    let builder = Scheduler::builder().clock(clock.clone()).executor(Inline);
    let (scheduler, driver) = builder.build_driven().expect("the defaults are good");
    let ran = Arc::new(Mutex::new(Vec::new()));
    for number in (0..TASKS).rev() {
        let ran = Arc::clone(&ran);
        let task = move || ran.lock().expect("no panic").push(number);
        scheduler.schedule_once(Duration::from_micros(number), task).expect("open");
    }
    clock.advance(SECOND);
    while driver.turn().is_some() {}
    assert!(ran.lock().expect("no panic").iter().copied().eq(0..TASKS));
}

#[test]
fn s21_an_executor_that_blocks_does_not_hold_a_close_beyond_its_time() {
    let (release, blocked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let blocked = Mutex::new(blocked);
    let scheduler = Scheduler::builder()
        .executor_fn(move |task| {
            tell.send(()).expect("the receiver lives");
            let _ = blocked.lock().expect("whole").recv();
            task.run();
        })
        .shutdown_timeout(MILLI * 50)
        .build()
        .expect("the defaults are good");
    scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
    let later = scheduler.schedule_once(HOUR, || ()).expect("open");
    told.recv_timeout(PATIENCE).expect("the tick thread is stuck");
    let start = Instant::now();
    assert_eq!(scheduler.close().unwrap_err(), CloseError::Timeout);
    assert!(start.elapsed() < PATIENCE);
    assert!(scheduler.is_closed());

    drop(release); // the executor goes on, and a later close collects
    let leftovers = scheduler.stop().wait();
    assert_eq!(leftovers.len(), 1);
    drop(leftovers);
    assert!(later.is_done());
}

/// Returns true for `before`, a number, `between`, and another number.
fn is_numbered(name: &str, before: &str, between: &str) -> bool {
    let numbers = name.strip_prefix(before).and_then(|rest| rest.split_once(between));
    numbers.is_some_and(|(one, other)| one.parse::<u64>().is_ok() && other.parse::<u64>().is_ok())
}

/// In a debugger, a list of threads, or the message of a panic.
#[test]
fn threads_tell_by_their_names_whose_they_are() {
    let (tell, told) = mpsc::channel();
    let task = || {
        let tell = tell.clone();
        move || tell.send(thread::current().name().expect("a name").to_owned()).expect("awaited")
    };
    let name = || told.recv_timeout(PATIENCE).expect("it runs");
    let build = |builder: Builder| {
        let scheduler = builder.build().expect("good settings");
        scheduler.schedule_once(Duration::ZERO, task()).expect("open");
        name()
    };
    let mut names: Vec<_> = (0..2).map(|_| build(Scheduler::builder())).collect();
    for _ in 0..2 {
        let pool = ThreadPool::new(1);
        pool.execute(DueTask::new(Instant::now(), task())).expect("a thread");
        names.push(name());
        let pool = ScheduledThreadPool::new(1);
        pool.execute(task()).expect("a thread");
        names.push(name());
    }
    let all: HashSet<_> = names.iter().collect();
    assert_eq!(all.len(), names.len(), "{names:?}");
    assert!(names.iter().all(|name| is_numbered(name, "pool-", "-thread-")), "{names:?}");
    assert_eq!(build(Scheduler::builder().thread_name("orders")), "orders-pool-1");
    assert_eq!(build(Scheduler::builder().thread_name("orders").executor(Inline)), "orders");
    assert_eq!(build(Scheduler::builder().executor(Inline)), "tickwheel");
}

#[test]
fn a_pool_runs_tasks_side_by_side_and_none_waits_behind_a_slow_one() {
    let scheduler =
        Scheduler::builder().executor(ThreadPool::new(4)).build().expect("the defaults are good");
    // Four tasks of one tick, hence of one batch, that wait for each other.
    let together = Arc::new(Barrier::new(4));
    let (sender, receiver) = mpsc::channel();
    let due = scheduler.now() + MILLI * 5;
    for _ in 0..4 {
        let (together, sender) = (Arc::clone(&together), sender.clone());
        let task = move || {
            together.wait();
            sender.send(thread::current().name().map(str::to_owned)).expect("the receiver lives");
        };
        scheduler.schedule_at(due, task).expect("open");
    }
    let mut names: Vec<_> = (0..4)
        .map(|_| receiver.recv_timeout(PATIENCE).expect("no task waits behind another"))
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4, "on four threads: {names:?}");
    assert!(names.iter().flatten().all(|name| is_numbered(name, "pool-", "-thread-")));
}

#[test]
fn a_pool_that_is_dropped_runs_what_it_has_accepted_and_blocks_nobody() {
    let pool = ThreadPool::named(1, "drained");
    let (go, wait) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let blocker = DueTask::new(Instant::now(), move || {
        let _ = wait.recv();
    });
    pool.execute(blocker).expect("a thread starts");
    for n in 0..100 {
        let sender = sender.clone();
        let task =
            DueTask::new(Instant::now(), move || sender.send(n).expect("the receiver lives"));
        pool.execute(task).expect("a thread lives");
    }
    drop(pool); // it would hang here if it waited
    drop((go, sender));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_pool_whose_threads_were_idle_starts_as_many_as_it_may() {
    let pool = ThreadPool::new(3);
    let (sender, receiver) = mpsc::channel();
    for n in 0..20 {
        let sender = sender.clone();
        let task =
            DueTask::new(Instant::now(), move || sender.send(n).expect("the receiver lives"));
        pool.execute(task).expect("a thread starts");
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(n)); // so the thread falls idle each time
    }
    let together = Arc::new(Barrier::new(3));
    for n in 0..3 {
        let (together, sender) = (Arc::clone(&together), sender.clone());
        let task = DueTask::new(Instant::now(), move || {
            together.wait();
            sender.send(n).expect("the receiver lives");
        });
        pool.execute(task).expect("a thread starts");
    }
    (0..3).for_each(|_| _ = receiver.recv_timeout(PATIENCE).expect("they run side by side"));
}

#[test]
fn a_pool_survives_tasks_that_panic() {
    let pool = ThreadPool::new(0); // one, at least
    let (sender, receiver) = mpsc::channel();
    for n in 0..20 {
        let sender = sender.clone();
        let task = DueTask::new(Instant::now(), move || {
            sender.send(n).expect("the receiver lives");
            panic!("task {n}");
        });
        pool.execute(task).expect("a thread lives");
    }
    drop(sender);
    assert_eq!(receiver.iter().count(), 20);
}

#[test]
fn one_wheel_serves_many_executors() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let names = Arc::new(Mutex::new(Vec::new()));
    let called = |name: &'static str| {
        let names = Arc::clone(&names);
        scheduler.with_executor(move |task: DueTask| {
            names.lock().expect("whole").push(name);
            task.run();
        })
    };
    let (red, blue) = (called("red"), called("blue"));
    for (n, handle) in [&red, &scheduler, &blue, &red].into_iter().enumerate() {
        handle.schedule_once(MILLI * n as u32, || ()).expect("open");
    }
    let series = blue.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    drop((red, blue)); // a task keeps its executor
    driver.advance(SECOND * 2);
    assert_eq!(*names.lock().expect("whole"), ["red", "blue", "red", "blue", "blue"]);
    assert!(series.cancel());
    let alive = Arc::strong_count(&names);
    assert_eq!(alive, 1, "the executors went with their last task");
}

#[test]
fn a_due_task_tells_about_itself_and_is_dropped_if_it_is_not_run() {
    let (queue, tasks) = mpsc::channel::<DueTask>();
    let clock = tickwheel::ManualClock::new();
    let (scheduler, driver) = Scheduler::builder()
        .clock(clock.clone())
        .executor_fn(move |task| queue.send(task).expect("the receiver lives"))
        .build_driven()
        .expect("the defaults are good");
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    let start = scheduler.now();
    let once = scheduler.schedule_once(SECOND, move || drop(hold)).expect("open");
    scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    driver.advance(SECOND);
    clock.advance(MILLI * 7);
    let (first, second) = (tasks.recv().expect("handed over"), tasks.recv().expect("handed over"));
    assert_eq!((first.deadline(), first.lateness()), (start + SECOND, MILLI * 7));
    assert_eq!((first.is_repeating(), second.is_repeating()), (false, true));

    drop(first);
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(once.is_done() && !once.is_cancelled());
    second.run();
    let stats = scheduler.stats();
    assert_eq!((stats.dropped(), stats.fired(), stats.pending()), (1, 1, 1));
}

#[test]
fn s17_a_name_that_no_thread_can_have_loses_no_task() {
    let builder = Scheduler::builder().thread_name("a\0b").executor(ThreadPool::named(1, "c\0d"));
    let scheduler = builder.build().expect("a tick thread");
    let (sender, receiver) = mpsc::channel();
    scheduler.schedule_once(MILLI, move || sender.send(()).expect("a receiver")).expect("open");
    receiver.recv_timeout(PATIENCE).expect("it runs");
}

#[test]
fn inline_runs_what_it_is_given() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let task = DueTask::new(Instant::now(), move || _ = count.fetch_add(1, Ordering::Relaxed));
    Inline.execute(task).expect("inline takes everything");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// The tasks that wait for a pool stay bounded, because producers are held back. It takes real threads to outrun a pool.
#[test]
fn s19_a_flood_for_a_pool_that_is_slow_is_held_back() {
    is_held_back(ThreadPool::new(1), Duration::from_micros(20));
}

/// A turn of the tick thread takes longer here than a producer waits for one that stands still.
#[test]
fn s19_a_flood_for_a_tick_thread_that_runs_slow_tasks_is_held_back() {
    is_held_back(Inline, Duration::from_micros(200));
}

/// Two threads flood a scheduler for a second with tasks that take so long.
fn is_held_back(executor: impl Executor, work: Duration) {
    let scheduler = Scheduler::builder().executor(executor).build().expect("a thread");
    let (is_over, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let work = move || thread::sleep(work);
                    scheduler.schedule_once(Duration::ZERO, work).expect("open");
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < SECOND {
            most.fetch_max(scheduler.pending(), Ordering::Relaxed);
            thread::sleep(MILLI * 10);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let most = most.load(Ordering::Relaxed);
    // On their way in, due and not handed over, and with the executor: the bounds are in `docs/design.rs`. Some 170,000 of
    // them come in until the last one is noticed, and without it 1,700,000 in a second.
    let bound = 262_144 + 65_536 + 32_768;
    assert!(most < bound, "{most} tasks were pending, more than {bound}");
    drop(scheduler.close());
}

/// A hundred thousand tasks of the millisecond that passes wait in front of the wheel, each for its own deadline. It stands
/// here, because the memory that it leaves free wakes tick threads a second later, and nobody here counts wake-ups.
#[test]
fn s05_a_zero_delay_does_not_wait_for_what_is_not_due() {
    let clock = ManualClock::new();
    let builder = Scheduler::builder().clock(clock.clone()).executor(Inline);
    let scheduler = builder.precision(Precision::Exact).build().expect("a tick thread");
    clock.advance(MILLI / 4);
    let tasks = 100_000;
    for _ in 0..tasks {
        scheduler.schedule_once(MILLI / 4, || ()).expect("open");
    }
    for n in 0..3 {
        let (sender, receiver) = mpsc::channel();
        let task = move || sender.send(n).expect("the receiver lives");
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(n));
    }
    assert_eq!(scheduler.pending(), tasks);
}

#[test]
fn s30_an_executor_that_refuses_for_good_in_a_retry_is_not_asked_once_more() {
    #[derive(Default)]
    struct Ends(AtomicUsize);
    impl Executor for Ends {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            Err(Rejected::for_good(task))
        }
        fn execute_batch(&self, batch: &mut DueBatch) {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => {} // it is full
                1 | 2 => batch.for_each(DueTask::run),
                _ => {
                    while let Some(task) = batch.next() {
                        batch.reject(Rejected::for_good(task));
                    }
                }
            }
        }
    }
    let ends = Arc::new(Ends::default());
    let built = Scheduler::builder().executor(Arc::clone(&ends)).build_driven();
    let (scheduler, driver) = built.expect("good");
    (0..20).for_each(|_| drop(scheduler.schedule_once(Duration::ZERO, || ())));
    driver.advance(Duration::from_secs(60));
    assert_eq!((ends.0.load(Ordering::SeqCst), scheduler.pending()), (4, 17));
}

/// A task of no scheduler that an executor gives back in a batch is a task of that scheduler.
#[test]
fn s17_s31_a_task_of_no_scheduler_keeps_its_name_and_its_panic_is_told() {
    struct GivesBack(Mutex<Option<DueTask>>);
    impl Executor for GivesBack {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            Err(Rejected::new(task))
        }
        fn execute_batch(&self, batch: &mut DueBatch) {
            let kept = self.0.lock().expect("whole").take();
            kept.into_iter().for_each(|task| batch.reject(Rejected::new(task)));
            batch.run_all();
        }
    }
    silence();
    let task = DueTask::new(Instant::now(), || panic_on_purpose());
    let (name, told) = (task.name(), Arc::new(Mutex::new(Vec::new())));
    let tells = Arc::clone(&told);
    let builder = Scheduler::builder().executor(GivesBack(Mutex::new(Some(task))));
    let builder = builder.on_panic(move |panic| tells.lock().expect("whole").push(panic.name()));
    let (scheduler, driver) = builder.build_driven().expect("good");
    scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
    driver.advance(Duration::from_secs(1));
    assert_eq!(
        (told.lock().expect("whole").clone(), scheduler.stats().panicked()),
        (vec![name], 1)
    );
}

#[test]
fn s17_a_refused_closure_whose_drop_panics_costs_nobody_the_reason() {
    silence();
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let grenade = Grenade;
    let zero = scheduler.schedule_repeatedly(Duration::ZERO, Duration::ZERO, move || _ = &grenade);
    assert_eq!(zero.err(), Some(ScheduleError::ZeroPeriod));
    drop(driver.close());
    let grenade = Grenade;
    let refused = scheduler.schedule_once(Duration::ZERO, move || drop(grenade));
    assert_eq!(refused.err(), Some(ScheduleError::Closed));
}
