//! Series that choose their next delay: closures that return `Option<Duration>`, through everything that schedules (S12).

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tickwheel::message_loop::LoopThread;
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::ExecutorScheduler;
use tickwheel::{Inline, Period, Repeat, RepeatingTask, Schedule, ScheduleExt, Scheduler};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// In milliseconds. After them the series ends.
const DELAYS: [u32; 5] = [1, 20, 5, 0, 7];

/// Returns a series that chooses these delays, and the times of its runs, counted from now.
fn choosing(
    schedule: &Arc<dyn Schedule>,
) -> (impl FnMut() -> Option<Duration> + Send + 'static, Arc<Mutex<Vec<Duration>>>) {
    let (runs, clock, start) = (Arc::default(), Arc::clone(schedule), schedule.now());
    let (note, mut left) = (Arc::<Mutex<Vec<_>>>::clone(&runs), DELAYS.iter());
    let series = move || {
        note.lock().expect("whole").push(clock.now() - start);
        left.next().map(|delay| *delay * MS)
    };
    (series, runs)
}

#[test]
fn s12_a_series_may_choose_its_next_delay() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let schedule: Arc<dyn Schedule> = Arc::new(scheduler.clone());
    let (first, at_first) = choosing(&schedule);
    let (second, at_second) = choosing(&schedule);
    let (third, at_third) = choosing(&schedule);
    let (fourth, at_fourth) = choosing(&schedule);
    let handle = scheduler.schedule_with_fixed_delay(Duration::ZERO, HOUR, first).expect("open");
    schedule.schedule_repeatedly(Duration::ZERO, MS, second).expect("open"); // in a box
    scheduler.schedule_self_paced(Duration::ZERO, third).expect("open");
    schedule.schedule_self_paced(Duration::ZERO, fourth).expect("open");
    assert_eq!(driver.advance(60 * SECOND), 24);
    assert!(handle.is_done());
    for runs in [at_first, at_second, at_third, at_fourth] {
        let at: Vec<_> = runs.lock().expect("whole").iter().map(Duration::as_millis).collect();
        assert_eq!(at, [0, 1, 21, 26, 26, 33]);
    }
}

#[test]
fn s12_a_series_may_choose_its_next_delay_wherever_it_runs() {
    let (core, driver) = Scheduler::builder().build_driven().expect("good");
    let thread = LoopThread::spawn("chooses").expect("a thread");
    let schedules: [(&str, Arc<dyn Schedule>); 4] = [
        ("box", Arc::new(Box::new(core.clone()) as Box<dyn Schedule>)),
        ("worker", Arc::new(ExecutorScheduler::new(Inline, &core).worker())),
        ("pool", Arc::new(ScheduledThreadPool::new(1))),
        ("loop", Arc::new(thread.runner())),
    ];
    for (name, schedule) in &schedules {
        let (series, runs) = choosing(schedule);
        let period = Period::fixed_rate(HOUR);
        let handle = schedule.schedule_periodic(Duration::ZERO, period, series).expect("open");
        let (paced, at_paced) = choosing(schedule);
        let self_paced = schedule.schedule_self_paced(Duration::ZERO, paced).expect("open");
        crate::common::until(name, || {
            driver.advance(MS);
            handle.is_done() && self_paced.is_done()
        });
        for runs in [runs, at_paced] {
            let runs = runs.lock().expect("whole");
            assert_eq!(runs.len(), DELAYS.len() + 1, "{name}");
            for (pair, delay) in runs.windows(2).zip(DELAYS) {
                assert!(pair[1] >= pair[0] + delay * MS, "{name}: {runs:?}");
            }
        }
    }
}

/// The delay that it has chosen goes on in another scheduler, and so does the pace.
#[test]
fn s12_s29_a_series_at_its_own_pace_moves() {
    let (closed, its_driver) = Scheduler::builder().build_driven().expect("good");
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let mut left = 3;
    let paced = closed.schedule_self_paced(SECOND, move || {
        left -= 1;
        (left > 0).then_some(10 * SECOND)
    });
    assert_eq!(its_driver.advance(2 * SECOND), 1);
    for task in its_driver.close() {
        assert_eq!(task.remaining(), 9 * SECOND);
        task.reschedule(&scheduler).expect("open");
    }
    assert_eq!((driver.advance(9 * SECOND), driver.advance(HOUR)), (1, 1));
    assert!(paced.expect("open").is_done());
}

/// What a series has chosen is its own: the one that runs next on the same thread keeps its period.
#[test]
fn s12_a_delay_that_was_chosen_is_for_one_series() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let boxed: &dyn Schedule = &scheduler;
    let chooses = boxed.schedule_repeatedly(SECOND, SECOND, || Some(60 * SECOND)).expect("open");
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let plain = boxed.schedule_repeatedly(SECOND, SECOND, move || {
        count.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    driver.advance(10 * SECOND);
    assert_eq!(runs.load(Ordering::Relaxed), 10);
    assert!(chooses.cancel() && plain.expect("open").cancel());
}

/// A series that calls the box of another one has not chosen what that one has.
#[test]
fn s12_a_delay_that_a_called_box_has_chosen_is_not_the_callers() {
    let (core, driver) = Scheduler::builder().build_driven().expect("good");
    let thread = LoopThread::spawn("calls").expect("a thread");
    let schedules: [(&str, Arc<dyn Schedule>); 4] = [
        ("core", Arc::new(core.clone())),
        ("worker", Arc::new(ExecutorScheduler::new(Inline, &core).worker())),
        ("pool", Arc::new(ScheduledThreadPool::new(1))),
        ("loop", Arc::new(thread.runner())),
    ];
    let boxed = || Box::new(|| Some(HOUR).flow()) as RepeatingTask;
    for (name, schedule) in &schedules {
        let runs: [Arc<AtomicUsize>; 3] = Default::default();
        let [one, other, third] = runs.each_ref().map(Arc::clone);
        let (mut first, mut second, mut inner) = (boxed(), boxed(), boxed());
        let plain = move || {
            one.fetch_add(1, Ordering::Relaxed);
            assert!(first().is_continue());
        };
        let flowing = move || {
            other.fetch_add(1, Ordering::Relaxed);
            second()
        };
        let in_a_box = Box::new(move || {
            third.fetch_add(1, Ordering::Relaxed);
            inner().flow()
        });
        schedule.schedule_repeatedly(Duration::ZERO, MS, plain).expect("open");
        schedule.schedule_repeatedly(Duration::ZERO, MS, flowing).expect("open");
        schedule.schedule_series(Duration::ZERO, Period::fixed_rate(MS), in_a_box).expect("open");
        crate::common::until(name, || {
            driver.advance(MS);
            runs.iter().all(|runs| runs.load(Ordering::Relaxed) > 3)
        });
    }
    let (count, mut inner) = (Arc::new(AtomicUsize::new(0)), boxed());
    let runs = Arc::clone(&count);
    let series = core.schedule_repeatedly(SECOND, SECOND, move || {
        runs.fetch_add(1, Ordering::Relaxed);
        inner()
    });
    driver.advance(10 * SECOND);
    assert!(series.expect("open").cancel());
    assert_eq!(count.load(Ordering::Relaxed), 10);
}

/// A reset during the run moves the run after it, whatever the run returns.
#[test]
fn s28_a_reset_during_the_run_counts_more_than_what_it_returns() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let own = Arc::new(Mutex::new(None::<tickwheel::Cancellable>));
    let seen = Arc::clone(&own);
    let series = scheduler.schedule_repeatedly(SECOND, SECOND, move || {
        assert!(seen.lock().expect("whole").as_ref().is_some_and(|own| own.reset(5 * SECOND)));
        Some(SECOND)
    });
    *own.lock().expect("whole") = Some(series.expect("open"));
    assert_eq!(driver.advance(16 * SECOND), 4, "at 1, 6, 11 and 16");
}

/// A leftover that chooses a delay in its only run leaves it to nobody: not to the series in whose run it runs.
#[test]
fn s12_a_leftover_chooses_for_nobody() {
    let (closed, its_driver) = Scheduler::builder().build_driven().expect("good");
    closed.schedule_repeatedly(SECOND, SECOND, || Some(HOUR)).expect("open");
    let leftovers = Mutex::new(Some(its_driver.close()));
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let outer = scheduler.schedule_repeatedly(SECOND, SECOND, move || {
        let leftovers = leftovers.lock().expect("whole").take();
        leftovers.into_iter().for_each(|leftovers| assert_eq!(leftovers.run_all(), 1));
    });
    assert_eq!(driver.advance(10 * SECOND), 10);
    assert!(outer.expect("open").cancel());
}
