//! Workers over anything that keeps time: a loop, a pool, a driven scheduler, a schedule of the user's own. The clock is
//! that of the schedule below.

use std::any::type_name_of_val;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::schedules::ByHand;
use crate::common::{PATIENCE, driven, driven_by, until};
use tickwheel::message_loop::{LoopThread, MessageLoop};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{
    self, ContextAwareScheduler, ContextCapture, ExecutorScheduler, TrampolineScheduler, Worker,
};
use tickwheel::{
    Cancellable, DueTask, Inline, ManualClock, Schedule, ScheduleError, ScheduleExt, Scheduler,
    ThreadPool,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The delay runs on the clock of the schedule below. On any other clock it would never end here.
#[test]
fn a_worker_on_a_virtual_loop_keeps_its_delays_there() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the first one");
    let worker = Worker::new(looper.runner());
    worker.schedule_after(HOUR, log.task(3));
    worker.schedule_after(HOUR, log.task(4));
    worker.schedule_after(HOUR / 2, log.task(2));
    worker.schedule(log.task(1));
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let series =
        worker.schedule_periodically(HOUR, HOUR, move || _ = count.fetch_add(1, Ordering::Relaxed));
    let never = worker.schedule_after(Duration::MAX, || unreachable!("never"));
    assert_eq!((worker.pending(), Schedule::now(&worker)), (6, looper.runner().now()));
    looper.run_until_idle();
    assert_eq!(log.all(), [1]);
    clock.advance(HOUR.saturating_sub(Duration::from_nanos(1)));
    looper.run_until_idle();
    assert_eq!(log.all(), [1, 2], "never early");
    clock.advance(Duration::from_nanos(1));
    looper.run_until_idle();
    assert_eq!((log.all(), runs.load(Ordering::Relaxed)), (vec![1, 2, 3, 4], 1));
    for _ in 0..3 {
        clock.advance(HOUR);
        looper.run_until_idle();
    }
    assert_eq!((runs.load(Ordering::Relaxed), worker.pending()), (4, 2));
    assert!(series.cancel() && never.cancel() && worker.pending() == 0);
    clock.advance(HOUR);
    assert_eq!(looper.run_until_idle(), 0, "and nothing is left in the loop");
}

/// The timer of a task is a task of the scheduler, and has the name of the closure that it is for.
#[test]
fn s31_a_leftover_of_a_worker_has_the_name_of_its_task() {
    fn once() {}
    fn moved() {}
    fn again() {}
    fn boxed() {}
    fn put_off() {}
    let (scheduler, driver) = driven();
    let worker = ExecutorScheduler::new(Inline, &scheduler).worker();
    worker.schedule_after(SECOND * 5, once);
    let sooner = worker.schedule_after(HOUR, moved);
    worker.schedule_periodically(SECOND, SECOND * 6, again);
    let anything: &dyn Schedule = &worker;
    anything.schedule_once(SECOND * 8, boxed).expect("open");
    assert_eq!(driver.advance(SECOND), 1, "the series runs once, so its timer is another one");
    assert!(sooner.reset(SECOND * 5));
    // It waits for its turn without a timer. A reset puts it off, and sets one.
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let runs_nothing = move |task: DueTask| keep.lock().expect("whole").push(task);
    let other = ExecutorScheduler::new(runs_nothing, &scheduler).worker();
    let later = other.schedule(put_off);
    assert!(later.reset(SECOND * 20));
    let names = driver.close().into_iter().map(|left| left.name()).collect::<Vec<_>>();
    let expected = [type_name_of_val(&once), type_name_of_val(&moved), type_name_of_val(&again)];
    let later = [type_name_of_val(&boxed), type_name_of_val(&put_off)];
    assert_eq!(names, [&expected[..], &later].concat());
    kept.lock().expect("whole").clear(); // the drain that the executor keeps has the queue
}

#[test]
fn a_worker_on_a_loop_thread_runs_there() {
    let ui = LoopThread::spawn("ui").expect("a thread");
    let (worker, (sender, receiver)) = (Worker::new(ui.runner()), mpsc::channel());
    let start = Instant::now();
    let runner = ui.runner();
    worker.schedule_after(5 * MS, move || {
        sender.send(runner.belongs_to_current_thread()).expect("it waits");
    });
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true));
    assert!(start.elapsed() >= 5 * MS);
    // A loop that quits drops the delayed tasks that wait there.
    let late = worker.schedule_after(HOUR, || unreachable!("the loop is gone"));
    ui.runner().quit();
    ui.join().expect("no panic");
    until("it is over", || late.is_done());
    assert!(worker.schedule_after(HOUR, || ()).is_done(), "nobody keeps its time");
}

#[test]
fn a_worker_on_a_pool_keeps_its_order_on_many_threads() {
    let clock = ManualClock::new();
    let pool = ScheduledThreadPool::builder().threads(4).clock(clock.clone()).build();
    let pool = pool.expect("good");
    for round in 0..20 {
        let (worker, log) = (Worker::new(pool.clone()), Log::default());
        let busy = Arc::new(AtomicBool::new(false));
        for number in (0..200).rev() {
            // Deadlines in any order, and two tasks of each.
            for half in [0, 1] {
                let (task, busy) = (log.task(2 * number + half), Arc::clone(&busy));
                worker.schedule_after(HOUR + MS * number, move || {
                    assert!(!busy.swap(true, Ordering::Relaxed), "two at once");
                    task();
                    busy.store(false, Ordering::Relaxed);
                });
            }
        }
        clock.advance(2 * HOUR);
        until("all have run", || log.all().len() == 400);
        assert!(log.all().into_iter().eq(0..400), "round {round}: in order of their deadlines");
        until("it rests", || worker.pending() == 0);
    }
    assert_eq!(pool.pending(), 0);
}

#[test]
fn a_worker_over_a_driven_scheduler_is_queued_on_its_tick_thread() {
    // The scheduler's own executor is not used, in whatever form the scheduler is passed.
    let builder = Scheduler::builder().executor_fn(|_| unreachable!("not the business of workers"));
    let (timers, driver) = driven_by(builder);
    let log = Log::default();
    let workers = ExecutorScheduler::over(Inline, timers.clone());
    let plain: Arc<dyn Schedule> = Arc::new(timers.with_executor(Inline));
    let boxed = ExecutorScheduler::over(Inline, plain);
    for (number, workers) in [&workers, &boxed].into_iter().enumerate() {
        let worker = workers.worker();
        worker.schedule_after(SECOND, log.task(number as u32));
        driver.advance(SECOND.saturating_sub(Duration::from_nanos(1)));
        assert_eq!((log.all().len(), worker.pending()), (number, 1), "never early");
        driver.advance(Duration::from_nanos(1));
        assert_eq!((log.all().len(), worker.pending()), (number + 1, 0));
    }
    assert_eq!(timers.pending(), 0);
}

/// A schedule with several threads may run due tasks late, and in any order. The worker restores the order.
#[test]
fn arrivals_that_overtake_each_other_keep_the_order_of_deadlines() {
    let (hand, log) = (ByHand::default(), Log::default());
    let worker = Worker::new(hand.timers());
    for number in 0..10 {
        worker.schedule_after(SECOND + MS * (number / 2), log.task(number));
    }
    let mut arrivals = hand.take();
    hand.advance(2 * SECOND);
    arrivals.remove(6)();
    assert_eq!((log.all(), worker.pending()), (vec![0, 1, 2, 3, 4, 5, 6], 3), "and none later");
    arrivals.into_iter().rev().for_each(|task| task());
    assert!(log.all().into_iter().eq(0..10) && worker.pending() == 0, "each once");
}

/// A series has run with the arrival of another task and waits again. Its own arrival, which comes now, belongs to the earlier
/// wait.
#[test]
fn an_arrival_that_comes_too_late_brings_no_run_early() {
    let (hand, log) = (ByHand::default(), Log::default());
    let (worker, said) = (Worker::new(hand.timers()), log.clone());
    let series = worker.schedule_periodically(SECOND, HOUR, move || said.say(1));
    worker.schedule_after(SECOND + MS, log.task(2));
    let mut arrivals = hand.take();
    hand.advance(2 * SECOND);
    arrivals.pop().expect("the second")();
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 1));
    arrivals.pop().expect("the first")();
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 1), "an hour early");
    let again = hand.take();
    assert_eq!((again.len(), series.is_done()), (1, false));
    // A task whose arrival is dropped does not run. If the task has arrived before, the drop does not touch it.
    worker.schedule_after(SECOND, log.task(3));
    worker.schedule_after(SECOND + MS, log.task(4));
    let mut arrivals = hand.take();
    hand.advance(2 * SECOND);
    arrivals.pop().expect("the last")();
    drop(arrivals);
    assert_eq!((log.all(), worker.pending()), (vec![1, 2, 3, 4], 1));
    drop(again);
    assert!(series.is_done() && !series.is_cancelled() && worker.pending() == 0);
}

/// A schedule may have no thread, have no room, or panic while the worker asks it for a delay.
#[test]
fn a_schedule_that_refuses_or_panics_loses_nothing_else() {
    crate::common::silence();
    let (hand, held, log) = (ByHand::default(), Arc::new(()), Log::default());
    let worker = ExecutorScheduler::over(Inline, hand.timers()).max_pending(1).worker();
    let task = || {
        let held = Arc::clone(&held);
        move || drop(held)
    };
    hand.refuse_next(ScheduleError::Full);
    assert!(worker.schedule_after(SECOND, task()).is_done());
    hand.answer_next(|_| crate::common::panic_on_purpose());
    let panics = std::panic::AssertUnwindSafe(|| worker.schedule_after(SECOND, task()));
    assert!(std::panic::catch_unwind(panics).is_err(), "it is the caller's");
    assert_eq!(
        (Arc::strong_count(&held), worker.pending()),
        (1, 0),
        "nothing is kept, no place either"
    );
    hand.answer_next(|_| crate::common::panic_on_purpose());
    let series = worker.schedule_periodically(Duration::ZERO, SECOND, || ());
    assert!(series.is_done(), "it cannot go on");
    worker.schedule(log.task(1));
    assert_eq!((log.all(), worker.pending(), hand.waiting()), (vec![1], 0, 0));
}

/// Another arrival comes while the schedule refuses a task. The refused task does not come along with it.
#[test]
fn a_task_that_its_schedule_refuses_does_not_run() {
    let (hand, log) = (ByHand::default(), Log::default());
    let worker = ExecutorScheduler::over(Inline, hand.timers()).worker();
    worker.schedule_after(2 * SECOND, log.task(1));
    let below = hand.clone();
    hand.answer_next(move |_refused| {
        below.advance(2 * SECOND);
        below.take().into_iter().for_each(|arrival| arrival());
        Err(ScheduleError::Closed)
    });
    let refused = worker.schedule_after(SECOND, log.task(2));
    assert!(refused.is_done());
    hand.take().into_iter().for_each(|drain| drain()); // the call has run none
    assert!(log.all() == [1] && worker.pending() == 0);
}

// ----- contexts over anything ------------------------------------------------------------------

thread_local!(static TENANT: Cell<[u32; 2]> = const { Cell::new([0; 2]) });

/// One of the two fields of a context.
struct Field(usize);

impl ContextCapture for Field {
    type Context = u32;

    fn capture(&self) -> u32 {
        TENANT.get()[self.0]
    }

    fn replace(&self, new: u32) -> u32 {
        let mut both = TENANT.get();
        let before = std::mem::replace(&mut both[self.0], new);
        TENANT.set(both);
        before
    }
}

#[test]
fn a_context_goes_along_to_anything_that_gives_out_workers() {
    let timers = Scheduler::new();
    let pool = ScheduledThreadPool::new(1);
    let ui = LoopThread::spawn("ui").expect("a thread");
    let (trampolines, runner) = (TrampolineScheduler::new(), ui.runner());
    let plain = ExecutorScheduler::over(ThreadPool::new(1), pool.clone());
    let sources = [
        ContextAwareScheduler::new(ExecutorScheduler::new(ThreadPool::new(1), &timers), Field(0)),
        ContextAwareScheduler::new(plain, Field(0)),
        ContextAwareScheduler::over(rx::single, Field(0)),
        ContextAwareScheduler::over(rx::new_thread, Field(0)),
        ContextAwareScheduler::over(move || trampolines.worker(), Field(0)),
        ContextAwareScheduler::over(move || Worker::new(pool.clone()), Field(0)),
        ContextAwareScheduler::over(move || Worker::new(runner.clone()), Field(0)),
    ];
    TENANT.set([7, 0]);
    for (at, source) in sources.iter().enumerate() {
        let (sender, receiver) = mpsc::channel();
        let (worker, later) = (source.worker(), sender.clone());
        worker.schedule(move || sender.send(TENANT.get()).expect("it waits"));
        worker.schedule_after(MS, move || later.send(TENANT.get()).expect("it waits"));
        for _ in 0..2 {
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok([7, 0]), "{at}");
        }
    }
    ui.runner().quit();
}

#[test]
fn contexts_stack() {
    let (timers, driver) = driven();
    let one = ContextAwareScheduler::new(ExecutorScheduler::new(Inline, &timers), Field(0));
    let both = ContextAwareScheduler::over(move || one.worker(), Field(1));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&seen);
    TENANT.set([1, 2]);
    both.worker().schedule_after(SECOND, move || said.lock().expect("no panic").push(TENANT.get()));
    TENANT.set([3, 4]);
    driver.advance(SECOND);
    assert_eq!((seen.lock().expect("no panic").clone(), TENANT.get()), (vec![[1, 2]], [3, 4]));
    let back = both.worker();
    back.dispose();
    assert!(back.try_schedule(|| ()).is_err(), "and the closure comes back out of both");
}

/// A worker over a worker keeps the same promises, and its series end with it.
#[test]
fn a_worker_over_a_worker() {
    let (timers, driver) = driven();
    let below = ExecutorScheduler::new(Inline, &timers).worker();
    let (worker, log) = (Worker::new(below.clone()), Log::default());
    let (said, mut left) = (log.clone(), 3);
    worker.schedule_periodically(SECOND, SECOND, move || {
        said.say(left);
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    driver.advance(5 * SECOND);
    assert_eq!((log.all(), worker.pending(), below.pending()), (vec![3, 2, 1], 0, 0));
    let late = worker.schedule_after(SECOND, || unreachable!("disposed"));
    below.dispose();
    assert!(late.is_done(), "nobody keeps its time");
    assert!(worker.schedule(|| ()).is_cancelled() && worker.is_disposed(), "S30");
}

/// Threads schedule, cancel and dispose while the pool below is shut down.
#[test]
fn each_closure_has_one_end_over_a_pool_that_is_shut_down() {
    for round in 0..crate::common::count(200, 5_000) {
        let pool = ScheduledThreadPool::new(2);
        let (worker, held) = (Worker::new(pool.clone()), Arc::new(()));
        let ran = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = thread::scope(|scope| {
            let producers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let task = |number: u32| {
                            let (held, ran) = (Arc::clone(&held), Arc::clone(&ran));
                            let task = move || {
                                ran.fetch_add(1, Ordering::Relaxed);
                                drop(held);
                            };
                            worker.schedule_after(Duration::from_micros(100) * (number % 3), task)
                        };
                        (0..60).map(task).collect::<Vec<_>>()
                    })
                })
                .collect();
            scope.spawn(|| {
                (0..round % 50).for_each(|_| thread::yield_now());
                drop(pool.shutdown_now());
                worker.dispose();
            });
            producers.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
        });
        until("all end", || handles.iter().all(Cancellable::is_done));
        until("all are dropped", || Arc::strong_count(&held) == 1);
        let cancelled = handles.iter().filter(|handle| handle.is_cancelled()).count();
        assert!(ran.load(Ordering::Relaxed) + cancelled <= handles.len());
        assert_eq!(worker.pending(), 0);
    }
}
