//! Deadlines that move: `reset`, `reset_at` and `deadline` of the core (S28).

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::told::Poller;
use crate::common::{driven, driven_by};
use tickwheel::{
    Cancellable, Driver, DueTask, Executor, ManualClock, Observer, Precision, Rejected, Scheduler,
    SystemClock, WheelView,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The times of runs, on the clock of the driver.
type Runs = Arc<Mutex<Vec<Duration>>>;

/// Returns a closure that notes when it runs, counted from now.
fn notes(scheduler: &Scheduler) -> (impl Fn() + Send + 'static, Runs) {
    let (runs, start, clock) = (Runs::default(), scheduler.now(), scheduler.clone());
    let noted = Arc::clone(&runs);
    (move || noted.lock().expect("whole").push(clock.now() - start), runs)
}

/// Schedules a task that notes when it has run, counted from now.
fn noting(scheduler: &Scheduler, delay: Duration) -> (Cancellable, Runs) {
    let (note, runs) = notes(scheduler);
    (scheduler.schedule_once(delay, note).expect("open"), runs)
}

fn ran_at(runs: &Runs) -> Vec<u128> {
    runs.lock().expect("whole").iter().map(Duration::as_millis).collect()
}

/// The handle of a task, for the task itself. It is set before the task runs.
type Own = Arc<OnceLock<Cancellable>>;

#[test]
fn s28_a_later_deadline_counts_and_the_old_one_is_void() {
    let (scheduler, driver) = driven();
    let (task, runs) = noting(&scheduler, SECOND);
    driver.advance(999 * MS);
    assert!(task.reset(SECOND));
    assert_eq!(task.deadline(), Some(scheduler.now() + SECOND));
    driver.advance(999 * MS);
    assert!(runs.lock().expect("whole").is_empty() && !task.is_done() && scheduler.pending() == 1);
    driver.advance(HOUR);
    assert_eq!((ran_at(&runs), task.is_done(), scheduler.pending()), (vec![1999], true, 0));
    assert!(!task.reset(SECOND) && !task.reset_at(scheduler.now()) && task.deadline().is_none());
}

#[test]
fn s28_an_earlier_deadline_counts_and_the_old_one_is_void() {
    let (scheduler, driver) = driven();
    let (task, runs) = noting(&scheduler, HOUR);
    driver.advance(SECOND);
    assert!(task.reset_at(scheduler.now() + SECOND));
    driver.advance(999 * MS);
    assert!(ran_at(&runs).is_empty());
    driver.advance(MS);
    assert_eq!(ran_at(&runs), [2000]);
    driver.advance(2 * HOUR);
    assert_eq!(ran_at(&runs), [2000], "once");
}

#[test]
fn s28_a_deadline_that_has_passed_is_due_now() {
    let (scheduler, driver) = driven();
    driver.advance(SECOND);
    let (task, runs) = noting(&scheduler, HOUR);
    let past = scheduler.now().checked_sub(SECOND).expect("the machine runs for longer");
    assert!(task.reset_at(past));
    assert_eq!(task.deadline(), Some(past));
    driver.turn();
    assert_eq!(ran_at(&runs), [0]);
    let (task, runs) = noting(&scheduler, HOUR);
    assert!(task.reset(Duration::ZERO));
    driver.turn();
    assert_eq!(ran_at(&runs), [0]);
}

#[test]
fn s28_whatever_the_history_it_runs_once_at_its_last_deadline() {
    let mut random = crate::common::Random(28);
    for round in 0..300 {
        let precision = if round % 2 == 0 { Precision::Tick } else { Precision::Exact };
        let builder = Scheduler::builder().precision(precision).tick(10 * MS).wheel_size(16);
        let (scheduler, driver) = driven_by(builder);
        let start = scheduler.now();
        let (task, runs) = noting(&scheduler, 50 * MS);
        let mut deadline = start + 50 * MS;
        while deadline > scheduler.now() {
            let delay = random.below(100) as u32 * MS;
            deadline = scheduler.now() + delay;
            assert!(task.reset(delay) && task.deadline() == Some(deadline));
            driver.advance(random.below(30) as u32 * MS);
            if task.is_done() {
                break;
            }
        }
        driver.advance(SECOND);
        let due = (deadline - start).as_millis();
        let ran = ran_at(&runs);
        assert_eq!(ran.len(), 1, "round {round}");
        let tick = if precision == Precision::Tick { 10 } else { 0 };
        assert!((due..=due + tick).contains(&ran[0]), "round {round}: {ran:?}, due at {due}");
    }
}

/// Equal deadlines run in the order of scheduling, but for tasks that were moved, which have no promised place (S3).
#[test]
fn s28_those_that_stay_keep_their_order_beside_those_that_move() {
    for precision in [Precision::Tick, Precision::Exact] {
        let (scheduler, driver) = driven_by(Scheduler::builder().precision(precision));
        let log = Log::default();
        let at = |ms: u32| scheduler.now() + ms * MS;
        let when = at(20);
        let schedule = |number| scheduler.schedule_at(when, log.task(number)).expect("open");
        let moved = scheduler.schedule_at(at(10), log.task(2)).expect("open");
        let twice = scheduler.schedule_at(at(12), log.task(5)).expect("open");
        let sooner = scheduler.schedule_at(at(3000), log.task(7)).expect("open");
        let stays = schedule(8);
        schedule(1);
        assert!(moved.reset_at(when) && twice.reset_at(when));
        schedule(3);
        driver.advance(11 * MS);
        schedule(4);
        assert!(twice.reset_at(when));
        schedule(6);
        assert!(sooner.reset_at(when) && stays.reset_at(when));
        schedule(9);
        driver.advance(SECOND);
        let mut ran = log.all();
        let stayed: Vec<_> = ran.iter().copied().filter(|n| [1, 3, 4, 6, 9].contains(n)).collect();
        assert_eq!(stayed, [1, 3, 4, 6, 9], "{precision:?}");
        ran.sort_unstable();
        assert_eq!(ran, [1, 2, 3, 4, 5, 6, 7, 8, 9], "{precision:?}");
    }
}

#[test]
fn s28_too_late_changes_nothing() {
    let (scheduler, driver) = driven();
    let (task, runs) = noting(&scheduler, SECOND);
    assert!(task.cancel() && !task.reset(SECOND) && task.deadline().is_none());
    driver.advance(HOUR);
    assert!(ran_at(&runs).is_empty());
    let none = Cancellable::already_cancelled();
    assert!(!none.reset(SECOND) && none.deadline().is_none());
    // In its own run.
    let (own, (tell, told)) = (Own::default(), mpsc::channel());
    let seen = Arc::clone(&own);
    let task = scheduler.schedule_once(SECOND, move || {
        let own = seen.get().expect("set before the run");
        tell.send((own.reset(SECOND), own.deadline())).expect("heard");
    });
    own.set(task.expect("open")).expect("once");
    assert_eq!(driver.advance(HOUR), 1);
    assert_eq!(told.try_recv(), Ok((false, None)));
    // Of another task in the same slot.
    let stale = scheduler.schedule_once(SECOND, || ()).expect("open");
    assert!(stale.cancel());
    let next = scheduler.schedule_once(SECOND, || ()).expect("open");
    let due = next.deadline();
    assert!(!stale.reset(HOUR) && next.deadline() == due);
}

#[test]
fn s28_of_a_series_the_next_run_moves_and_the_phase_goes_on_from_there() {
    let (scheduler, driver) = driven();
    let ((note, runs), start) = (notes(&scheduler), scheduler.now());
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, note).expect("open");
    driver.advance(2500 * MS);
    assert!(series.reset(1200 * MS)); // later: 3.7
    driver.advance(2500 * MS);
    assert_eq!(ran_at(&runs), [1000, 2000, 3700, 4700]);
    assert!(series.reset(100 * MS)); // earlier: 5.1
    assert_eq!(series.deadline(), Some(start + 5100 * MS));
    driver.advance(2 * SECOND);
    assert_eq!(ran_at(&runs)[4..], [5100, 6100]);
    for _ in 0..40 {
        assert!(series.reset(10 * SECOND) && series.reset(SECOND / 2)); // leaves void entries behind
        driver.advance(SECOND / 2);
    }
    assert_eq!(ran_at(&runs).len(), 46);
    driver.advance(20 * SECOND);
    let expected: Vec<_> = (1..=20).map(|second| 27_000 + second * 1000).collect();
    assert_eq!(ran_at(&runs)[46..], expected, "no void entry has made a run");
    assert!(series.cancel());
}

#[test]
fn s28_in_a_run_of_a_series_the_run_after_it_moves() {
    let (scheduler, driver) = driven();
    let ((note, runs), own) = (notes(&scheduler), Own::default());
    let seen = Arc::clone(&own);
    let mut delays = [Some(5), None, Some(2), Some(0), None].into_iter();
    let series = scheduler.schedule_with_fixed_delay(SECOND, SECOND, move || {
        note();
        let own = seen.get().expect("set before the run");
        assert_eq!(own.deadline(), None, "it runs");
        let Some(delay) = delays.next() else { return ControlFlow::Break(()) };
        if let Some(delay) = delay {
            assert!(own.reset(HOUR) && own.reset(delay * SECOND), "the last one counts");
        }
        ControlFlow::Continue(())
    });
    own.set(series.expect("open")).expect("once");
    driver.advance(HOUR);
    assert_eq!(ran_at(&runs), [1000, 6000, 7000, 9000, 9000, 10_000]);
    assert!(!own.get().expect("set").reset(SECOND), "it is over");
}

/// An executor that keeps what it is handed.
fn keeping() -> (Scheduler, Driver, mpsc::Receiver<DueTask>) {
    let (queue, tasks) = mpsc::channel::<DueTask>();
    let builder = Scheduler::builder();
    let builder = builder.executor_fn(move |task| queue.send(task).expect("the receiver lives"));
    let (scheduler, driver) = driven_by(builder);
    (scheduler, driver, tasks)
}

#[test]
fn s28_what_waits_in_an_executors_queue_does_not_run_at_its_old_time() {
    let (scheduler, driver, tasks) = keeping();
    let (task, runs) = noting(&scheduler, SECOND);
    let (dropped, drops) = noting(&scheduler, SECOND);
    driver.advance(SECOND);
    assert!(task.reset(SECOND) && dropped.reset(SECOND));
    tasks.try_recv().expect("it was handed over").run();
    drop(tasks.try_recv().expect("this too"));
    assert!(ran_at(&runs).is_empty() && !task.is_done() && !dropped.is_done());
    driver.advance(999 * MS);
    assert!(tasks.try_recv().is_err(), "it is not due");
    driver.advance(MS);
    tasks.try_iter().for_each(DueTask::run);
    assert_eq!((ran_at(&runs), ran_at(&drops), scheduler.pending()), (vec![2000], vec![2000], 0));
    assert_eq!(scheduler.stats().dropped(), 0);
}

#[test]
fn s28_what_waits_in_an_executors_queue_runs_there_when_its_new_time_has_come() {
    let (scheduler, driver, tasks) = keeping();
    let (later, runs) = noting(&scheduler, SECOND);
    let (sooner, soon) = noting(&scheduler, SECOND);
    driver.advance(SECOND);
    let past = scheduler.now().checked_sub(SECOND).expect("the machine runs for longer");
    assert!(later.reset(SECOND) && sooner.reset_at(past));
    driver.advance(2 * SECOND);
    tasks.try_iter().for_each(DueTask::run);
    assert_eq!((ran_at(&runs), ran_at(&soon)), (vec![3000], vec![3000]));
    driver.advance(HOUR);
    tasks.try_iter().for_each(DueTask::run);
    assert_eq!((ran_at(&runs).len(), ran_at(&soon).len(), scheduler.pending()), (1, 1, 0));
}

/// An executor that keeps the last task that it was handed, and gives the one before it back.
struct Swaps(Mutex<Option<DueTask>>);

impl Executor for Swaps {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let before = self.0.lock().expect("whole").replace(task);
        before.map_or(Ok(()), |before| Err(Rejected::new(before)))
    }
}

#[test]
fn s28_an_entry_that_is_void_and_comes_back_hides_no_valid_one_from_the_close() {
    let builder = Scheduler::builder().executor(Swaps(Mutex::default()));
    let (scheduler, driver) = driven_by(builder);
    driver.advance(MS / 2); // within a tick, so what is due at once is not in the wheel
    let (task, runs) = noting(&scheduler, Duration::ZERO);
    driver.turn();
    let past = scheduler.now().checked_sub(MS / 4).expect("the machine runs for longer");
    assert!(task.reset_at(past), "it waits in the executor's queue, and gets a new entry");
    driver.turn(); // the executor gets the new one, and gives the old one back
    assert_eq!(scheduler.stats().rejected(), 1);
    let leftovers = driver.close();
    assert_eq!((leftovers.len(), scheduler.pending()), (1, 0));
    assert_eq!((leftovers.run_all(), runs.lock().expect("whole").len()), (1, 1));
}

#[test]
fn s28_leftovers_show_the_new_deadline_and_can_be_moved() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let (first, _) = noting(&scheduler, SECOND);
    let (second, _) = noting(&scheduler, 2 * SECOND);
    let (third, _) = noting(&scheduler, HOUR);
    assert!(first.reset(5 * SECOND) && third.reset(3 * SECOND));
    let leftovers: Vec<_> = driver.close().into_iter().collect();
    let deadlines = |tasks: &[tickwheel::PendingTask]| -> Vec<Duration> {
        tasks.iter().map(|task| task.deadline() - start).collect()
    };
    assert_eq!(deadlines(&leftovers), [2 * SECOND, 3 * SECOND, 5 * SECOND], "in their new order");
    assert!(second.reset_at(start + 9 * SECOND) && second.deadline() == Some(start + 9 * SECOND));
    assert_eq!(deadlines(&leftovers), [9 * SECOND, 3 * SECOND, 5 * SECOND]);
    // One that is refused elsewhere keeps its new deadline.
    let (closed, its_driver) = driven();
    drop(its_driver.close());
    let refuse = |task: tickwheel::PendingTask| {
        task.try_reschedule(&closed).expect_err("it is closed").into_task()
    };
    let leftovers: Vec<_> = leftovers.into_iter().map(refuse).collect();
    assert_eq!(deadlines(&leftovers), [9 * SECOND, 3 * SECOND, 5 * SECOND]);
    // At another scheduler they go on, and their handles move them there.
    let (other, driver) = driven();
    driver.advance(HOUR);
    for task in leftovers {
        let remaining = task.remaining();
        let handle = task.reschedule(&other).expect("open");
        assert_eq!(handle.deadline(), Some(other.now() + remaining));
    }
    assert!(first.reset(SECOND / 2));
    assert_eq!(first.deadline(), Some(other.now() + SECOND / 2));
    assert_eq!(driver.advance(SECOND / 2), 1);
    assert!(first.is_done() && other.pending() == 2);
    assert!(third.reset(10 * SECOND) && second.cancel());
    assert_eq!((driver.advance(9 * SECOND), driver.advance(SECOND)), (0, 1));
}

#[test]
fn s28_a_series_in_its_run_at_the_end_keeps_the_deadline_that_the_run_has_chosen() {
    let (scheduler, driver) = driven();
    let own = Own::default();
    let (seen, timers) = (Arc::clone(&own), scheduler.clone());
    let (keep, _stopping) = mpsc::channel();
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, move || {
        assert!(seen.get().expect("set before the run").reset(30 * SECOND));
        keep.send(timers.stop()).expect("the test keeps it");
    });
    own.set(series.expect("open")).expect("once");
    driver.advance(SECOND);
    let leftovers: Vec<_> = driver.close().into_iter().collect();
    assert_eq!(leftovers.len(), 1);
    assert_eq!(leftovers[0].remaining(), 30 * SECOND);
}

#[test]
fn s28_a_million_resets_leave_nothing_behind() {
    let (scheduler, driver) = driven();
    let tasks: Vec<_> = (0..1000).map(|_| scheduler.schedule_once(30 * SECOND, || ())).collect();
    for round in 0..1000 {
        for task in &tasks {
            assert!(task.as_ref().expect("open").reset(30 * SECOND));
        }
        let woken = scheduler.stats().fired();
        assert_eq!(woken, 0, "round {round}");
        driver.advance(100 * MS);
    }
    assert_eq!(driver.advance(29_899 * MS), 0);
    assert_eq!((driver.advance(MS), scheduler.pending()), (1000, 0));
}

#[test]
fn s28_never_is_a_deadline_too() {
    let (scheduler, driver) = driven();
    let (task, runs) = noting(&scheduler, SECOND);
    assert!(task.reset(Duration::MAX));
    let farthest = task.deadline().expect("pending");
    assert!(farthest > scheduler.now() + 100_000 * HOUR);
    driver.advance(1000 * HOUR);
    assert!(ran_at(&runs).is_empty() && task.reset(SECOND));
    driver.advance(SECOND);
    assert_eq!(ran_at(&runs).len(), 1);
}

#[test]
fn s28_in_real_time_each_packet_pushes_the_timeout_further() {
    let scheduler = Scheduler::new();
    let (told, runs) = mpsc::channel();
    let task = scheduler.schedule_once(40 * MS, move || told.send(Instant::now()).expect("waits"));
    let task = task.expect("open");
    let (start, mut last) = (Instant::now(), Instant::now());
    while start.elapsed() < 120 * MS {
        let now = Instant::now();
        if !task.reset(40 * MS) {
            break; // this thread was not run for so long
        }
        last = now;
    }
    let ran = runs.recv().expect("it runs");
    assert!(ran - last >= 40 * MS, "not early");
    assert!(runs.recv().is_err(), "once");
}

#[test]
fn s28_threads_that_reset_one_task_agree_on_the_last() {
    let scheduler = Scheduler::new();
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..crate::common::count(20, 200) {
        let count = Arc::clone(&runs);
        let task = scheduler.schedule_once(HOUR, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let task = task.expect("open");
        std::thread::scope(|scope| {
            for seed in 1..=3 {
                let (task, scheduler) = (&task, &scheduler);
                scope.spawn(move || {
                    let mut random = crate::common::Random(seed);
                    for _ in 0..200 {
                        let later = HOUR + random.below(50) as u32 * MS;
                        assert!(task.reset_at(scheduler.now() + later));
                    }
                });
            }
        });
        assert!(task.reset(Duration::ZERO));
        crate::common::until("it runs", || task.is_done());
    }
    crate::common::until("all have run", || {
        runs.load(Ordering::Relaxed) == crate::common::count(20, 200)
    });
}

/// How many entries the wheel has, as its observer is told.
struct Entries(Arc<AtomicUsize>);

impl Observer for Entries {
    fn turned(&self, wheel: WheelView<'_>) {
        let near = (0..wheel.buckets()).map(|bucket| wheel.waiting_in(bucket)).sum::<usize>();
        self.0.store(near + wheel.waiting_far(), Ordering::Relaxed);
    }
}

/// However often a task moves, it has one entry, and those that an earlier deadline has left go at their time.
#[test]
fn s28_a_task_has_one_entry_whatever_its_history() {
    let entries = Arc::new(AtomicUsize::new(0));
    let builder = Scheduler::builder().observer(Entries(Arc::clone(&entries)));
    let (scheduler, driver) = driven_by(builder);
    let task = scheduler.schedule_once(HOUR, || ()).expect("open");
    let series = scheduler.schedule_repeatedly(HOUR, HOUR, || ()).expect("open");
    let entries = || entries.load(Ordering::Relaxed);
    for round in 0..1000_u32 {
        assert!(task.reset(HOUR + round * SECOND) && series.reset(HOUR + round * MS));
        driver.advance(SECOND);
        assert_eq!(entries(), 2, "later and later, round {round}");
    }
    for second in (1..=50).rev() {
        for moved in [&task, &series] {
            assert!(moved.reset(second * SECOND) && moved.reset(HOUR));
            driver.turn();
        }
    }
    assert!(entries() <= 2 + 100, "each earlier deadline has left one: {}", entries());
    driver.advance(60 * SECOND);
    for _ in 0..200 {
        assert!(task.reset(HOUR) && series.reset(HOUR));
        driver.advance(60 * SECOND);
    }
    assert_eq!(entries(), 2, "their time has come");
}

#[test]
fn s28_a_later_deadline_wakes_nobody_and_an_earlier_one_wakes_as_a_schedule_does() {
    let (scheduler, driver) = driven();
    let poller = Poller::new();
    driver.wake_with(Some(poller.waker()));
    let tasks: Vec<_> = (1..4).map(|n| scheduler.schedule_once(n * HOUR, || ())).collect();
    let tasks: Vec<_> = tasks.into_iter().map(|task| task.expect("open")).collect();
    driver.turn();
    let before = poller.woken();
    let woken = || poller.woken() - before;
    for _ in 0..1000 {
        assert!(tasks[0].reset(2 * HOUR) && tasks[1].reset(3 * HOUR));
    }
    assert_eq!(woken(), 0, "the engine sleeps until the first of the old deadlines");
    assert!(tasks[2].reset(2 * HOUR));
    assert_eq!(woken(), 0, "earlier, and not before the engine wakes up anyway");
    assert!(tasks[2].reset(SECOND));
    assert_eq!(woken(), 1);
    assert_eq!(driver.advance(SECOND), 1);
}

/// A deadline before all moments of the timeline is a deadline, and not the mark of a run.
#[test]
fn s28_a_deadline_of_long_ago_can_be_told_and_moved() {
    let (scheduler, driver, tasks) = keeping();
    let long_ago = scheduler.now().checked_sub(20 * 365 * 24 * HOUR);
    let Some(long_ago) = long_ago else { return }; // this system's clock begins later
    let task = scheduler.schedule_at(long_ago, || ()).expect("open");
    assert!(task.deadline().is_some_and(|deadline| deadline < scheduler.now()));
    driver.turn();
    assert!(task.reset_at(long_ago) && task.deadline().is_some());
    tasks.try_iter().for_each(DueTask::run);
    assert!(task.is_done());
}

/// A series that is overdue is moved to now at the earliest: it does not make up for the time since then.
#[test]
fn s28_a_series_is_moved_to_now_at_the_earliest() {
    let (scheduler, driver) = driven_by(Scheduler::builder().clock(tickwheel::SystemClock));
    let series = scheduler.schedule_repeatedly(Duration::ZERO, HOUR, || ()).expect("open");
    for _ in 0..3 {
        let due = series.deadline().expect("it waits");
        crate::common::spin_until(due + 10 * Duration::from_micros(1));
        let now = scheduler.now();
        assert!(series.reset_at(due + Duration::from_micros(1))); // has passed, and is later than before
        assert!(series.deadline().is_some_and(|due| due >= now));
    }
    assert!(series.cancel());
    drop(driver);
}

/// Refuses while it is told to, and notes how long before its deadline it sees a task.
#[derive(Clone, Default)]
struct Noting {
    is_full: Arc<AtomicBool>,
    early: Arc<Mutex<Vec<Duration>>>,
    calls: Arc<AtomicUsize>,
    scheduler: Arc<OnceLock<Scheduler>>,
}

impl Executor for Noting {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let now = self.scheduler.get().expect("it is set").now();
        let early = task.deadline().saturating_duration_since(now);
        self.early.lock().expect("whole").extend((early > Duration::ZERO).then_some(early));
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_full.load(Ordering::Relaxed) {
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    }
}

/// S28 beside S18 and S30: what was refused and then put off is not offered before its new deadline, whether it is the
/// first of the refused tasks or in their middle, and `next_deadline` tells the deadlines that are left.
#[test]
fn s28_a_refused_task_that_is_put_off_is_not_offered_before_its_new_deadline() {
    for (own, recovers) in [(false, false), (false, true), (true, false), (true, true)] {
        let executor = Noting::default();
        executor.is_full.store(true, Ordering::Relaxed);
        let (scheduler, driver) = if own {
            let (scheduler, driver) = driven();
            (scheduler.with_executor(executor.clone()), driver)
        } else {
            driven_by(Scheduler::builder().executor(executor.clone()))
        };
        assert!(executor.scheduler.set(scheduler.clone()).is_ok());
        let start = scheduler.now();
        let tasks = [1, 2, 3, 4].map(|delay| noting(&scheduler, delay * MS));
        driver.advance(10 * MS);
        assert!(tasks[0].0.reset(SECOND) && tasks[2].0.reset(HOUR));
        let second = start + 2 * MS;
        assert_eq!(driver.next_deadline(), Some(second), "what waits for a retry counts");
        executor.is_full.store(!recovers, Ordering::Relaxed);
        let before = executor.calls.load(Ordering::Relaxed);
        driver.advance(500 * MS);
        assert!(executor.calls.load(Ordering::Relaxed) > before, "the others are offered");
        executor.is_full.store(false, Ordering::Relaxed);
        driver.advance(2 * HOUR);
        assert_eq!(*executor.early.lock().expect("whole"), [], "it has seen a task too early");
        assert_eq!(ran_at(&tasks[0].1), [1010]);
        assert_eq!(ran_at(&tasks[2].1), [3_600_010]);
        assert!(tasks.iter().all(|(_, runs)| ran_at(runs).len() == 1));
    }
}

/// S28 beside S30: refused tasks that were put off, and are due again when their executor recovers, wait in its line and
/// not in that of all executors, where they would be before what is due later. Each run takes a microsecond.
#[test]
fn s28_s30_refused_tasks_that_were_put_off_do_not_delay_those_of_others() {
    const TASKS: u32 = 200_000;
    let executor = Noting::default();
    executor.is_full.store(true, Ordering::Relaxed);
    let clock = ManualClock::new();
    let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let own = scheduler.with_executor(executor.clone());
    assert!(executor.scheduler.set(scheduler.clone()).is_ok());
    let ran = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (ran, clock) = (Arc::clone(&ran), clock.clone());
            let task = move || {
                ran.fetch_add(1, Ordering::Relaxed);
                clock.advance(MS / 1000);
            };
            own.schedule_once(MS, task).expect("open")
        })
        .collect();
    driver.advance(2 * MS);
    assert!(tasks.iter().step_by(2).all(|task| task.reset(MS)));
    driver.advance(2 * MS);
    let others: Vec<_> = (1..20).map(|at| noting(&scheduler, at * 10 * MS).1).collect();
    executor.is_full.store(false, Ordering::Relaxed);
    driver.advance(SECOND);
    assert_eq!(ran.load(Ordering::Relaxed), TASKS as usize);
    assert_eq!(*executor.early.lock().expect("whole"), []);
    for (at, runs) in (1..).zip(&others) {
        let late = ran_at(runs)[0] - 10 * at;
        assert!(late <= 10, "{late} ms late, where a turn takes 4 ms"); // and a batch, and a tick
    }
}

/// The engine has much to take in, so resets do not announce each new deadline. The deadlines are kept all the same.
#[test]
fn s28_resets_of_an_engine_that_is_far_behind_are_kept() {
    let mut random = crate::common::Random(15);
    for round in 0..8 {
        let precision = if round % 2 == 0 { Precision::Tick } else { Precision::Exact };
        let (scheduler, driver) = driven_by(Scheduler::builder().precision(precision));
        let start = scheduler.now();
        let tasks: Vec<_> = (0..20).map(|_| noting(&scheduler, HOUR)).collect();
        let mut deadlines = vec![start + HOUR; tasks.len()];
        for _ in 0..4 {
            let dummy = scheduler.schedule_once(2 * HOUR, || ()).expect("open");
            (0..10_000).for_each(|_| assert!(dummy.reset(Duration::ZERO) && dummy.reset(HOUR)));
            assert!(dummy.cancel());
            for _ in 0..100 {
                let at = random.below(20) as usize;
                if tasks[at].0.is_done() {
                    continue;
                }
                // Some of them have passed.
                let to = driver.now() + random.below(200) as u32 * MS;
                let to = to.checked_sub(50 * MS).expect("the machine runs for longer");
                assert!(tasks[at].0.reset_at(to));
                assert_eq!(tasks[at].0.deadline(), Some(to));
                deadlines[at] = to.max(scheduler.now());
            }
            driver.advance(random.below(150) as u32 * MS);
        }
        driver.advance(2 * HOUR);
        for ((_, runs), deadline) in tasks.iter().zip(deadlines) {
            let due = (deadline - start).as_millis();
            let ran = ran_at(runs);
            assert!(ran.len() == 1 && (due..=due + 1).contains(&ran[0]), "{ran:?}, due {due}");
        }
    }
}

/// A reset is no reason to come behind a deadline that is later, however much the engine has to take in.
#[test]
fn s03_s28_what_is_moved_into_the_past_has_its_place_also_if_the_engine_is_far_behind() {
    for flood in [0, 40_000] {
        let clock = ManualClock::new();
        let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
        let (start, order) = (scheduler.now(), Arc::new(Mutex::new(Vec::new())));
        let task = |name: u32| {
            let order = Arc::clone(&order);
            let note = move || order.lock().expect("whole").push(name);
            scheduler.schedule_at(start + name * MS, note).expect("open")
        };
        let (moved, twice, _stays) = (task(90), task(80), task(60));
        for _ in 0..flood {
            scheduler.schedule_once(HOUR, || ()).expect("open");
        }
        clock.advance(100 * MS);
        assert!(moved.reset_at(start + 50 * MS));
        assert!(twice.reset_at(start + 30 * MS) && twice.reset_at(start + 40 * MS));
        driver.advance(SECOND);
        assert_eq!(*order.lock().expect("whole"), [80, 90, 60], "due after 40, 50 and 60 ms");
    }
}

/// Also if nothing else has happened than that deadlines move further away, on the system's clock.
#[test]
fn s28_an_executor_does_not_get_a_task_that_was_put_off() {
    let (sender, receiver) = mpsc::channel();
    let builder = Scheduler::builder().clock(SystemClock).executor(sender);
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let task = scheduler.schedule_once(5 * MS, || ()).expect("open");
    assert!(task.reset(HOUR));
    driver.advance(20 * MS);
    assert!(receiver.try_recv().is_err(), "it is due in an hour");
    assert!(task.reset_at(scheduler.now()) || task.is_done());
    driver.advance(20 * MS);
    receiver.try_recv().expect("it is due").run();
    assert!(task.is_done() && scheduler.stats().fired() == 1);
}

/// An executor that has a task too early files it again, and that wakes the driver. Its waker may ask for the task.
#[test]
fn s28_a_waker_that_is_woken_by_a_filing_again_may_look_at_the_task() {
    struct Looks(OnceLock<Cancellable>, Mutex<mpsc::Sender<Option<Instant>>>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let Some(task) = self.0.get() else { return };
            let _ = self.1.lock().expect("whole").send(task.deadline());
        }
    }
    let (told, tells) = mpsc::channel();
    let (sender, receiver) = mpsc::channel();
    let (scheduler, driver) = driven_by(Scheduler::builder().executor(sender));
    let task = scheduler.schedule_once(SECOND, || ()).expect("open");
    let looks = Arc::new(Looks(OnceLock::new(), Mutex::new(told)));
    driver.wake_with(Some(Waker::from(Arc::clone(&looks))));
    driver.advance(SECOND);
    let due = receiver.try_recv().expect("it is due");
    assert!(task.reset(5 * SECOND));
    driver.turn();
    assert!(looks.0.set(task.clone()).is_ok());
    let runner = thread::spawn(move || due.run());
    let deadline = tells.recv_timeout(Duration::from_secs(20)).expect("it is woken, and goes on");
    assert_eq!(deadline, Some(scheduler.now() + 5 * SECOND));
    runner.join().expect("no panic");
    assert!(!task.is_done());
}
