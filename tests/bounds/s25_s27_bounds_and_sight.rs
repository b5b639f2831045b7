//! Bounds and sight: an exact limit, exact counters, and everything can be printed (S25 to S27).

use std::error::Error;
use std::fmt::{self, Debug, Write};
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, panic_on_purpose, silence, until};
use tickwheel::delay::DelayQueue;
use tickwheel::message_loop::{LoopThread, MessageLoop, RunLoop};
use tickwheel::pool::{DelayedWorkQueue, ScheduledThreadPool};
use tickwheel::rx::{
    self, CompositeCancellable, ContextAwareScheduler, ContextCapture, ExecutorScheduler,
    TrampolineScheduler, Worker,
};
use tickwheel::wheel::Wheel;
use tickwheel::{
    BuildError, Cancellable, CloseError, DueBatch, DueTask, Executor, Inline, ManualClock,
    Observer, PanicHook, Period, Precision, Rejected, Schedule, ScheduleError, Scheduler, Sleeper,
    SystemClock, ThreadPool, TryScheduleError, WheelView,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn s25_the_limit_refuses_the_next_one_and_a_place_is_free_when_it_should_be() {
    let (scheduler, driver) =
        Scheduler::builder().max_pending(3).build_driven().expect("good settings");
    let inner = scheduler.clone();
    let seen = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&seen);
    scheduler
        .schedule_once(SECOND, move || {
            // The run has started, so its place is free.
            tell.store(inner.pending(), Ordering::Relaxed);
            inner.schedule_once(HOUR, || ()).expect("a place is free");
        })
        .expect("the first place");
    let series = scheduler.schedule_repeatedly(SECOND * 2, SECOND, || ()).expect("the second");
    let other = scheduler.schedule_once(HOUR, || ()).expect("the third");
    for _ in 0..3 {
        assert_eq!(scheduler.schedule_once(SECOND, || ()).unwrap_err(), ScheduleError::Full);
    }
    assert_eq!(scheduler.pending(), 3);
    assert!(other.cancel());
    assert_eq!(scheduler.pending(), 2, "a cancel frees it at once");
    let back = scheduler.schedule_once(HOUR * 2, || ()).expect("the third again");
    driver.advance(SECOND);
    assert_eq!((seen.load(Ordering::Relaxed), scheduler.pending()), (2, 3));

    driver.advance(SECOND * 10);
    assert_eq!(scheduler.pending(), 3, "a series holds its place between its runs");
    assert!(series.cancel());
    let refused = scheduler.try_schedule_once(HOUR, || ()).map(drop);
    assert!(refused.is_ok());
    let count = Arc::clone(&seen);
    let task = move || {
        count.store(7, Ordering::Relaxed);
    };
    let refused = scheduler.try_schedule_once(HOUR, task).map(drop);
    let Err(task) = refused.map_err(TryScheduleError::into_task) else { panic!("it is full") };
    task();
    assert_eq!(seen.load(Ordering::Relaxed), 7, "the very task");
    let every = Period::fixed_rate(SECOND);
    let full = scheduler.try_schedule_periodic(HOUR, every, task).expect_err("it is full");
    assert_eq!(full.reason(), ScheduleError::Full);
    let full = scheduler.try_schedule_at(scheduler.now(), full.into_task()).expect_err("full");
    assert_eq!(full.reason(), ScheduleError::Full);
    assert!(back.cancel());
    assert_eq!(driver.close().len(), 2);
    assert_eq!(scheduler.pending(), 0);
}

/// An executor that runs, refuses, keeps or drops its tasks.
struct Moody {
    queue: Arc<Mutex<Vec<DueTask>>>,
    mood: Arc<AtomicUsize>,
}
impl tickwheel::Executor for Moody {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        match self.mood.load(Ordering::Relaxed) {
            0 => task.run(),
            1 => return Err(Rejected::new(task)),
            2 => self.queue.lock().expect("whole").push(task),
            _ => drop(task),
        }
        Ok(())
    }
}

/// It takes real threads: what they schedule and cancel is in lanes of their own, which nobody can read at one moment.
#[test]
fn s25_s26_what_is_pending_is_never_more_than_the_limit() {
    const MOST: usize = 3;
    let scheduler = Scheduler::builder().max_pending(MOST).build().expect("a tick thread");
    let looks = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while looks.load(Ordering::Relaxed) < 20_000 {
                    let tasks: Vec<_> =
                        (0..2).map_while(|_| scheduler.schedule_once(HOUR, || ()).ok()).collect();
                    assert!(tasks.iter().all(Cancellable::cancel));
                }
            });
        }
        while looks.fetch_add(1, Ordering::Relaxed) < 20_000 {
            let pending = (scheduler.pending(), scheduler.stats().pending() as usize);
            if pending.0.max(pending.1) > MOST {
                looks.store(usize::MAX / 2, Ordering::Relaxed); // the threads end
                panic!("{pending:?} are pending, of at most {MOST}");
            }
        }
    });
    assert_eq!((scheduler.pending(), scheduler.stats().pending()), (0, 0));
}

#[test]
fn s26_every_number_is_exact() {
    let queue = Arc::new(Mutex::new(Vec::<DueTask>::new()));
    let mood = Arc::new(AtomicUsize::new(0));
    let (accept, moods) = (Arc::clone(&queue), Arc::clone(&mood));
    let (scheduler, driver) = Scheduler::builder()
        .on_panic(|_| ()) // so the driver does not resume it
        .executor(Moody { queue: accept, mood: moods })
        .build_driven()
        .expect("good settings");
    let in_a_second = |count: u32| {
        for _ in 0..count {
            scheduler.schedule_once(SECOND, || ()).expect("open");
        }
    };
    in_a_second(5);
    scheduler.schedule_once(SECOND, || panic!("counted")).expect("open");
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, || ()).expect("open");
    driver.advance(SECOND * 2); // 5 and a panic and 2 runs of the series
    assert!(series.cancel());

    mood.store(1, Ordering::Relaxed);
    in_a_second(3);
    driver.advance(SECOND + MILLI * 2); // all are refused at 1000 ms, and the first one once more at 1001 ms
    mood.store(0, Ordering::Relaxed);
    driver.advance(MILLI);

    mood.store(2, Ordering::Relaxed);
    in_a_second(4);
    driver.advance(SECOND);
    assert_eq!(scheduler.pending(), 4, "handed over is not yet run");
    let mut held = queue.lock().expect("whole").drain(..).collect::<Vec<_>>();
    held.pop().expect("four").run();
    drop(held);

    mood.store(3, Ordering::Relaxed);
    in_a_second(2);
    driver.advance(SECOND);
    scheduler.schedule_once(HOUR, || ()).expect("open").cancel();
    scheduler.schedule_once(HOUR, || ()).expect("open");

    let stats = scheduler.stats();
    assert_eq!(stats.scheduled(), 5 + 1 + 1 + 3 + 4 + 2 + 2);
    assert_eq!(stats.fired(), 5 + 1 + 2 + 3 + 1);
    assert_eq!(stats.lateness().count(), stats.fired());
    assert_eq!((stats.cancelled(), stats.panicked()), (2, 1));
    assert_eq!(stats.dropped(), 3 + 2);
    assert_eq!(stats.rejected(), 4);
    assert_eq!((stats.pending(), scheduler.pending()), (1, 1));
}

/// A leftover in its run has room there until the run is over.
#[test]
fn s26_nothing_is_pending_after_a_close_also_in_the_numbers() {
    let (home, driver) = crate::common::driven();
    let (other, other_driver) = crate::common::driven_by(Scheduler::builder().max_pending(2));
    let (closing, to) = (home.clone(), other.clone());
    let run = move || {
        for leftover in closing.stop().wait_timeout(Duration::ZERO).into_iter().flatten() {
            leftover.reschedule(&to).expect("open");
        }
    };
    home.schedule_repeatedly(Duration::ZERO, Duration::from_secs(1), run).expect("open");
    let reserved = other.clone();
    driver.advance(Duration::from_secs(1));
    drop(other_driver.close());
    assert_eq!((reserved.pending(), reserved.stats().pending()), (0, 0));
}

#[test]
fn s26_the_lateness_is_right_within_a_factor_of_two() {
    let clock = ManualClock::new();
    let (scheduler, driver) = Scheduler::builder()
        .clock(clock.clone())
        .precision(Precision::Exact)
        .build_driven()
        .expect("good settings");
    for late in [0_u64, 3, 1_000, 123_456, 5_000_000, 60_000_000_000] {
        scheduler.schedule_once(SECOND, || ()).expect("open");
        clock.advance(SECOND + Duration::from_nanos(late));
        driver.turn();
        let max = scheduler.stats().lateness().max();
        assert_eq!(max, Duration::from_nanos(late), "the latest of all is exact");
        let told = scheduler.stats().lateness().quantile(1.0).as_nanos();
        assert!((u128::from(late)..=u128::from(late) * 2).contains(&told), "{late} told as {told}");
    }
    let stats = scheduler.stats();
    assert_eq!(stats.lateness().count(), 6);
    let middle = stats.lateness().quantile(0.5).as_nanos();
    assert!((1_000..=2_000).contains(&middle), "{middle}");
    assert_eq!(stats.lateness().bins().map(|(_, runs)| runs).sum::<u64>(), 6);
}

#[test]
fn s26_counters_of_threads_that_have_ended_are_kept() {
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good settings");
    for _ in 0..50 {
        let scheduler = scheduler.clone();
        let thread = thread::spawn(move || {
            let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
            scheduler.schedule_once(HOUR, || ()).expect("open");
            handle.cancel()
        });
        assert!(thread.join().expect("no panic"));
    }
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled(), stats.cancelled(), stats.pending()), (100, 50, 50));
}

#[test]
fn an_observer_sees_the_turns() {
    #[derive(Clone, Default)]
    struct Seen(Arc<[AtomicU64; 4]>);
    impl Observer for Seen {
        fn took_in(&self, tasks: usize) {
            self.0[0].fetch_add(tasks as u64, Ordering::Relaxed);
        }
        fn handed_over(&self, tasks: usize) {
            self.0[1].fetch_add(tasks as u64, Ordering::Relaxed);
        }
        fn stopped(&self, leftovers: usize) {
            self.0[2].fetch_add(leftovers as u64, Ordering::Relaxed);
        }
        fn rejected(&self, tasks: usize) {
            self.0[3].fetch_add(tasks as u64, Ordering::Relaxed);
        }
    }
    let seen = Seen::default();
    let (scheduler, driver) =
        Scheduler::builder().observer(seen.clone()).build_driven().expect("good settings");
    for n in 0..10 {
        scheduler.schedule_once(SECOND * n, || ()).expect("open");
    }
    driver.advance(SECOND * 4);
    drop(driver.close());
    assert_eq!(seen.0.each_ref().map(|n| n.load(Ordering::Relaxed)), [10, 5, 5, 0]);
}

/// The wheel has eight buckets of ten milliseconds. Tasks that are due later than these wait outside of the buckets.
#[test]
fn an_observer_sees_where_tasks_wait() {
    type Look = (usize, Vec<usize>, usize);
    #[derive(Clone, Default)]
    struct Looks(Arc<Mutex<Look>>);
    impl Observer for Looks {
        fn turned(&self, wheel: WheelView<'_>) {
            let buckets = (0..wheel.buckets()).map(|bucket| wheel.waiting_in(bucket)).collect();
            assert_eq!(wheel.waiting_in(wheel.buckets()), wheel.waiting_in(0));
            *self.0.lock().expect("no panic") = (wheel.hand(), buckets, wheel.waiting_far());
        }
    }
    let looks = Looks::default();
    let builder = Scheduler::builder().tick(MILLI * 10).wheel_size(8).precision(Precision::Tick);
    let (scheduler, driver) =
        builder.observer(looks.clone()).build_driven().expect("good settings");
    let look = || looks.0.lock().expect("no panic").clone();
    for ticks in [2, 2, 3, 30, 31] {
        scheduler.schedule_once(MILLI * 10 * ticks, || ()).expect("open");
    }
    driver.advance(MILLI);
    let (first, buckets, far) = look();
    let after = |ticks: usize| (first + ticks) % 8;
    assert_eq!((buckets[after(2)], buckets[after(3)], far), (2, 1, 2));
    assert_eq!(buckets.iter().sum::<usize>(), 3);
    driver.advance(MILLI * 20);
    let (hand, buckets, far) = look();
    assert_eq!((hand, buckets[after(3)], buckets.iter().sum(), far), (after(2), 1, 1, 2));
    driver.advance(MILLI * 260);
    let (hand, buckets, far) = look();
    assert_eq!((hand, buckets[after(30)], buckets[after(31)], far), (after(28), 1, 1, 0));
}

/// Alarms that are counted nowhere leave entries as well, which go when there are many of them.
#[test]
fn s09_cancelled_alarms_that_are_counted_nowhere_are_swept_too() {
    #[derive(Clone, Default)]
    struct Far(Arc<AtomicUsize>);
    impl Observer for Far {
        fn turned(&self, wheel: WheelView<'_>) {
            self.0.store(wheel.waiting_far(), Ordering::Relaxed);
        }
    }
    let far = Far::default();
    let (scheduler, driver) =
        Scheduler::builder().observer(far.clone()).build_driven().expect("good settings");
    let later = scheduler.now() + HOUR;
    let alarm = |_| scheduler.wake_uncounted_at(later, Waker::noop()).expect("open");
    let alarms: Vec<_> = (0..50_000).map(alarm).collect();
    driver.turn();
    assert_eq!((far.0.load(Ordering::Relaxed), scheduler.pending()), (50_000, 0));
    drop(alarms);
    (0..200).for_each(|_| _ = driver.turn());
    assert!(far.0.load(Ordering::Relaxed) < 10_000, "{far:?}", far = far.0);
    assert_eq!((scheduler.stats().cancelled(), scheduler.stats().scheduled()), (0, 0));
}

/// A single task that is due later does not wake the tick thread, and a single cancel does not either. Thousands of them do,
/// otherwise their entries would pile up for as long as nothing is due.
#[test]
fn s09_a_flow_that_wakes_nobody_is_taken_in_and_swept_all_the_same() {
    #[derive(Clone, Default)]
    struct Waiting(Arc<AtomicUsize>);
    impl Observer for Waiting {
        fn turned(&self, wheel: WheelView<'_>) {
            let near = (0..wheel.buckets()).map(|bucket| wheel.waiting_in(bucket)).sum::<usize>();
            self.0.store(near + wheel.waiting_far(), Ordering::Relaxed);
        }
    }
    let waiting = Waiting::default();
    let so_many = || waiting.0.load(Ordering::Relaxed);
    let scheduler = Scheduler::builder().observer(waiting.clone()).executor(Inline).build();
    let scheduler = scheduler.expect("a tick thread");
    scheduler.schedule_once(HOUR, || ()).expect("open");
    until("it is in the wheel", || so_many() == 1);
    let later = || scheduler.schedule_once(HOUR * 2, || ()).expect("open");
    let handles: Vec<_> = (0..100_000).map(|_| later()).collect();
    // The thread is woken once per 32,768 tasks, so that many may be on their way. Its last look before it sleeps takes
    // tasks in too, and no observer is told of that, so the blocks of 128 records that it has emptied count as well.
    let emptied = || {
        let dump = scheduler.dump();
        let (before, _) = dump.split_once(" emptied").expect("a line on the blocks");
        let (_, blocks) = before.rsplit_once(' ').expect("a number of blocks");
        blocks.parse::<usize>().expect("a number")
    };
    until("most of them are in the wheel", || so_many() > 66_000 || 128 * emptied() > 66_000);
    assert!(handles.iter().all(Cancellable::cancel));
    until("most of them are gone", || so_many() < 20_000);
    assert_eq!(scheduler.pending(), 1);
}

#[test]
fn s27_everything_public_can_be_printed() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let handle = scheduler.schedule_once(SECOND, || ()).expect("open");
    let period = Period::fixed_rate(SECOND);
    let due = DueTask::new(Instant::now(), || ());
    let printed = [
        format!("{scheduler:?} {driver:?} {handle:?} {period:?} {due:?}"),
        format!("{:?} {:?}", Scheduler::builder(), ThreadPool::new(1)),
        format!("{Inline:?} {SystemClock:?} {:?}", ManualClock::new()),
        format!("{:?} {:?}", scheduler.stats(), Wheel::<()>::new(4)),
        format!("{:?}", Rejected::new(due)),
        format!("{:?}", handle.clone().cancel_on_drop()),
    ];
    assert!(printed.iter().all(|text| text.len() > 10), "{printed:?}");
    scheduler.schedule_once(SECOND, || ()).expect("open");
    let stopping = scheduler.stop();
    assert!(format!("{stopping:?}").contains("has_ended: true"), "the engine is at hand");
    let leftovers = stopping.wait();
    assert!(format!("{leftovers:?}").contains("len: 1"));
    let task = leftovers.into_iter().next().expect("one");
    assert!(format!("{task:?}").contains("remaining"));
}

/// Prints a value to a writer that calls back for each piece of text, as one that logs, sends or counts may do.
fn print_with(value: &dyn Debug, call_back: &dyn Fn()) {
    struct CallsBack<'a>(&'a dyn Fn());
    impl Write for CallsBack<'_> {
        fn write_str(&mut self, _text: &str) -> fmt::Result {
            (self.0)();
            Ok(())
        }
    }
    write!(CallsBack(call_back), "{value:?} {value:#?}").expect("it writes");
}

/// S11: a writer is user code. So it may call each method of the value that is printed, while the value is printed.
#[test]
fn s27_nothing_is_locked_while_something_is_printed() {
    let (began, printing) = mpsc::channel();
    let thread = thread::spawn(move || print_all(&began));
    let mut last = "nothing";
    loop {
        match printing.recv_timeout(PATIENCE) {
            Ok(name) => last = name,
            Err(RecvTimeoutError::Disconnected) => break thread.join().expect("it prints all"),
            Err(RecvTimeoutError::Timeout) => panic!("it hangs while it prints {last}"),
        }
    }
}

fn print_all(began: &mpsc::Sender<&'static str>) {
    let print = |name, value: &dyn Debug, call_back: &dyn Fn()| {
        began.send(name).expect("somebody listens");
        print_with(value, call_back);
    };
    print_core(&print);
    print_hooks(&print);
    print_layers(&print);
    print_loops(&print);
}

type Print<'a> = &'a dyn Fn(&'static str, &dyn Debug, &dyn Fn());

fn print_core(print: Print<'_>) {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let use_scheduler = || {
        let handle = scheduler.schedule_once(SECOND, || ()).expect("open");
        assert!(scheduler.pending() > 0 && scheduler.stats().pending() > 0 && handle.cancel());
    };
    print("Scheduler", &scheduler, &use_scheduler);
    print("WeakScheduler", &scheduler.downgrade(), &use_scheduler);
    print("dyn Schedule", &(&scheduler as &dyn Schedule), &use_scheduler);
    print("Driver", &driver, &|| {
        use_scheduler();
        _ = (driver.turn(), driver.next_deadline(), driver.now());
    });
    print("Stats", &scheduler.stats(), &use_scheduler);
    print("Builder", &Scheduler::builder(), &use_scheduler);
    let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
    let use_handle = || assert!(handle.reset(HOUR) && !handle.is_done());
    print("Cancellable", &handle, &use_handle);
    let guard = handle.clone().cancel_on_drop();
    print("CancelOnDrop", &guard, &use_handle);
    let waker = Waker::noop();
    let alarm = scheduler.wake_at(scheduler.now() + HOUR, waker).expect("open").expect("later");
    print("Alarm", &alarm, &|| assert!(alarm.is_pending() && alarm.will_wake(waker)));
    let sleep = scheduler.sleep(HOUR);
    print("Sleep", &sleep, &|| assert!(!sleep.is_elapsed()));
    print("Interval", &scheduler.interval(SECOND), &use_scheduler);
    print("Entered", &scheduler.enter(), &use_scheduler);
    print("Instant", &sleep.deadline(), &use_scheduler);
    print("Timeout", &scheduler.timeout(HOUR, pending::<()>()), &use_scheduler);
    let call = scheduler.call_after(HOUR, || 1);
    print("ScheduledFuture", &call, &|| assert!(!call.is_done() && call.remaining() > SECOND));

    let clock = ManualClock::new();
    print("ManualClock", &clock, &|| clock.advance(MILLI));
    let sleeper = Sleeper::new();
    print("Sleeper", &sleeper, &|| sleeper.waker().wake());
    print("Wheel", &Wheel::<()>::new(4), &use_scheduler);
    let pool = ThreadPool::new(1);
    print("ThreadPool", &pool, &|| {
        pool.execute(DueTask::new(Instant::now(), || ())).expect("it has a thread");
    });

    scheduler.schedule_once(HOUR, || ()).expect("open");
    let stopping = scheduler.stop();
    print("Stopping", &stopping, &|| assert!(scheduler.is_closed()));
    let leftovers = stopping.wait();
    print("Leftovers", &leftovers, &|| assert!(!leftovers.is_empty()));
    let mut leftovers = leftovers.into_iter();
    let task = leftovers.next().expect("one is left");
    print("PendingTask", &task, &|| assert!(!task.name().is_empty() && task.period().is_none()));
    print("LeftoversIter", &leftovers, &|| assert_eq!(scheduler.pending(), 0));
}

/// What only hooks, observers and executors get to see.
fn print_hooks(print: Print<'_>) {
    struct Prints;
    impl Observer for Prints {
        fn turned(&self, wheel: WheelView<'_>) {
            print_with(&wheel, &|| assert!(wheel.hand() < wheel.buckets()));
        }
    }
    impl Executor for Prints {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            print_with(&task, &|| assert!(!task.name().is_empty()));
            let rejected = Rejected::new(task);
            print_with(&rejected, &|| assert!(!rejected.is_for_good()));
            rejected.into_task().run();
            Ok(())
        }

        fn execute_batch(&self, batch: &mut DueBatch) {
            print_with(batch, &|| assert!(!batch.is_empty()));
            batch.by_ref().for_each(|task| assert!(self.execute(task).is_ok()));
        }
    }
    silence();
    print("what a hook, an observer and an executor get", &(), &|| ());
    let shared = Arc::new(Mutex::new(None::<Scheduler>));
    let own = Arc::clone(&shared);
    let builder = Scheduler::builder().observer(Prints).executor(Prints).on_panic(move |panic| {
        let scheduler = own.lock().expect("no panic").clone().expect("it is there");
        print_with(&panic, &|| assert!(panic.message().is_some() && scheduler.pending() == 0));
    });
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    *shared.lock().expect("no panic") = Some(scheduler.clone());
    scheduler.schedule_once(SECOND, || panic_on_purpose()).expect("open");
    assert_eq!((driver.advance(SECOND), scheduler.stats().panicked()), (1, 1));
    *shared.lock().expect("no panic") = None;
    let hook = PanicHook::new(|_| ());
    print("PanicHook", &hook, &|| assert_eq!(hook.catch(None, || 1), Some(1)));
}

fn print_layers(print: Print<'_>) {
    struct Nothing;
    impl ContextCapture for Nothing {
        type Context = ();
        fn capture(&self) {}
        fn replace(&self, (): ()) {}
    }
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good settings");
    for handles in 0..2 {
        let set = CompositeCancellable::new();
        let later = || scheduler.schedule_once(HOUR, || ()).expect("open");
        (0..handles).for_each(|_| _ = set.add(later()));
        let use_set = || {
            assert!(!set.is_cancelled() && set.len() == handles);
            let key = set.add(later());
            assert!(set.remove(key).is_some_and(|handle| handle.cancel()));
        };
        print("CompositeCancellable", &set, &use_set);
        print("CompositeKey", &set.add(Cancellable::already_cancelled()), &use_set);
        print("a handle of a set", &Cancellable::from(Arc::new(set.clone())), &use_set);
    }
    let workers = ExecutorScheduler::new(Inline, &scheduler);
    let in_context = ContextAwareScheduler::new(workers.clone(), Nothing);
    let all = [
        workers.worker(),
        in_context.worker(),
        TrampolineScheduler::new().worker(),
        rx::single(),
        rx::SingleThreadScheduler::new("one").expect("a thread").worker(),
        Worker::new(ScheduledThreadPool::new(1)),
    ];
    let use_workers =
        || all.iter().for_each(|worker| assert!(!worker.schedule(|| ()).is_cancelled()));
    all.iter().for_each(|worker| print("Worker", worker, &use_workers));
    print("ExecutorScheduler", &workers, &|| drop(workers.worker()));
    print("ContextAwareScheduler", &in_context, &|| drop(in_context.worker()));
    let one_thread = rx::SingleThreadScheduler::new("one").expect("a thread");
    print("SingleThreadScheduler", &one_thread, &|| drop(one_thread.worker()));
    let (_task, cleanups) = rx::Cleanups::of(|| ());
    print("Cleanups", &cleanups, &|| cleanups.add(|| ()));
    print("TrampolineScheduler", &TrampolineScheduler::new(), &use_workers);
    let debounced = rx::debounce(scheduler.clone(), SECOND, |()| ());
    print("Debounced", &debounced, &|| assert!(debounced.call(()).is_ok() && debounced.flush()));
    let throttled = rx::throttle(scheduler.clone(), SECOND, |()| ());
    print("Throttled", &throttled, &|| {
        assert!(throttled.call(()).is_ok() && throttled.is_pending());
    });

    let pool = ScheduledThreadPool::new(1);
    let use_pool = || assert!(pool.submit(|| ()).is_ok() && pool.pending() < 1000);
    print("ScheduledThreadPool", &pool, &use_pool);
    print("PoolBuilder", &ScheduledThreadPool::builder(), &use_pool);
    let future = pool.schedule(HOUR, || 1).expect("open");
    print("ScheduledFuture", &future, &|| {
        assert!(!future.is_done() && future.remaining() > SECOND);
    });
    pool.shutdown_now().iter().for_each(|task| {
        print("Unstarted", task, &|| assert!(task.deadline() < Instant::now() + 2 * HOUR));
    });
    let queue = DelayedWorkQueue::new();
    queue.offer(Instant::now(), 1).expect("open");
    print("DelayedWorkQueue", &queue, &|| assert!(queue.next_deadline().is_some()));

    let delays = DelayQueue::new(&scheduler);
    assert!(delays.insert(1, 1, HOUR).is_ok());
    let use_delays = || assert!(delays.insert(2, 2, HOUR).is_ok() && delays.len() == 2);
    print("DelayQueue", &delays, &use_delays);
    print("Next", &delays.next(), &use_delays);
    print("Expirations", &delays.stream(), &use_delays);
    delays.close();
    let refused = delays.insert(3, 3, HOUR).expect_err("closed");
    print("InsertError", &refused, &|| assert_eq!(refused.reason(), ScheduleError::Closed));
    scheduler.stop().wait().run_all();
    let refused = scheduler.try_schedule_once(HOUR, || ()).expect_err("closed");
    print("TryScheduleError", &refused, &|| assert!(scheduler.is_closed()));
}

fn print_loops(print: Print<'_>) {
    print("LoopBuilder", &MessageLoop::builder(), &|| ());
    let looper = MessageLoop::prepare().expect("the first one");
    let (runner, local) = (looper.runner(), looper.local_runner());
    let use_loop = || {
        assert!(runner.post(|| ()).is_ok() && local.post(|| ()).is_ok());
        assert_eq!(looper.run_until_idle(), 2);
    };
    print("MessageLoop", &looper, &use_loop);
    print("TaskRunner", &runner, &use_loop);
    print("LocalTaskRunner", &local, &use_loop);
    let future = local.spawn_local(pending::<()>()).expect("open");
    looper.run_until_idle();
    print("LocalJoinHandle", &future, &use_loop);
    let run = RunLoop::new().expect("there is a loop");
    print("RunLoop", &run, &use_loop);
    print("QuitHandle", &run.quit_handle(), &use_loop);
    let thread = LoopThread::spawn("printed").expect("a thread");
    print("LoopThread", &thread, &|| assert!(thread.runner().post(|| ()).is_ok()));
}

#[test]
fn s27_errors_say_what_to_do() {
    let told = [
        (ScheduleError::Closed.to_string(), "build a new one"),
        (ScheduleError::Full.to_string(), "max_pending"),
        (ScheduleError::ZeroPeriod.to_string(), "at least one nanosecond"),
        (CloseError::Timeout.to_string(), "call `close` again"),
        (CloseError::OnTickThread.to_string(), "call `stop`"),
        (CloseError::Global.to_string(), "build a scheduler of your own"),
        (BuildError::ZeroTick.to_string(), "above zero"),
        (BuildError::WheelSize(1000).to_string(), "1024"),
        (BuildError::Thread(io::ErrorKind::WouldBlock.into()).to_string(), "use `build_driven`"),
        (Rejected::new(DueTask::new(Instant::now(), || ())).to_string(), "into_task().run()"),
    ];
    for (text, advice) in told {
        assert!(text.contains(advice), "{text}");
    }
    let thread = BuildError::Thread(io::Error::other("too many"));
    assert!(!thread.to_string().contains("too many"), "only the source tells it: {thread}");
    assert_eq!(thread.source().expect("the system's error").to_string(), "too many");
    let builder = Scheduler::builder;
    assert!(matches!(builder().tick(Duration::ZERO).build(), Err(BuildError::ZeroTick)));
    assert!(matches!(builder().wheel_size(0).build(), Err(BuildError::WheelSize(0))));
    assert!(matches!(builder().wheel_size(12).build_driven(), Err(BuildError::WheelSize(12))));
    // Every other choice is accepted.
    for size in [1, 2, 1 << (usize::BITS - 1)] {
        assert!(builder().wheel_size(size).tick(Duration::MAX).build_driven().is_ok());
    }
}

#[test]
fn there_is_one_global_scheduler() -> Result<(), BuildError> {
    assert!(std::ptr::eq(Scheduler::global(), Scheduler::global()));
    assert!(std::ptr::eq(Scheduler::global(), Scheduler::try_global()?));
    Ok(())
}

#[test]
fn s27_a_refusal_says_why() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    drop(driver);
    let refused = scheduler.try_schedule_once(SECOND, || ()).expect_err("its driver is gone");
    assert!(refused.to_string().contains("into_task"), "it says what to do: {refused}");
    let error: Box<dyn Error + Send + Sync> = refused.into();
    let reason = error.source().and_then(|reason| reason.downcast_ref());
    assert_eq!(reason, Some(&ScheduleError::Closed));
}
