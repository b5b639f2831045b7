//! Deadlines that move (S28), in workers, pools and loops: what the rows of `conformance` do not show. Races in real
//! time, leftovers, memory, and timers of other people.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::allocations::Measurement;
use crate::common::log::Log;
use crate::common::schedules::{Due, Fixed, OnDrop, TasksOnly, wrapping};
use crate::common::{Later, Random, count, driven, driven_by, until};
use tickwheel::message_loop::{LoopThread, MessageLoop};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{self, CompositeCancellable, ExecutorScheduler, TrampolineScheduler, Worker};
use tickwheel::{
    Cancel, Cancellable, Clock, Inline, ManualClock, Schedule, ScheduleError, ScheduleExt,
    Scheduler, Task, ThreadPool,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

// ----- races ---------------------------------------------------------------------------------------------------

/// Checks workers in real time. The check is told the name of each.
fn on_workers(threads: usize, check: &dyn Fn(&str, &dyn Schedule)) {
    let timers = Scheduler::new();
    check("a worker", &ExecutorScheduler::new(ThreadPool::new(threads), &timers).worker());
    check("a worker on the tick thread", &ExecutorScheduler::new(Inline, &timers).worker());
    check("a worker on a pool", &Worker::new(ScheduledThreadPool::new(threads)));
    check("rx::single", &rx::single());
}

/// Checks a pool, a loop and a worker on a loop, in real time.
fn on_pools_and_loops(threads: usize, check: &dyn Fn(&str, &dyn Schedule)) {
    check("a pool", &ScheduledThreadPool::new(threads));
    let looper = LoopThread::spawn("a loop").expect("a thread");
    check("a loop", &looper.runner());
    check("a worker on a loop", &Worker::new(looper.runner()));
    looper.runner().quit();
    looper.join().expect("no panic");
}

/// A task of the storm. Its lock is held while a reset is made and noted, so the task, when it runs, knows of all resets
/// that came before it.
#[derive(Default)]
struct Stormed {
    handle: OnceLock<Cancellable>,
    /// The last deadline, and how often the task ran.
    last: Mutex<(Option<Instant>, usize)>,
    is_cancelled: AtomicBool,
}

/// Threads move the deadlines of the tasks at random while they run, and cancel some.
fn storm(name: &str, schedule: &dyn Schedule) {
    let tasks: Vec<_> = (0..count(400, 4_000)).map(|_| Arc::new(Stormed::default())).collect();
    let early = Arc::new(AtomicUsize::new(0));
    let start = schedule.now();
    for (number, stormed) in tasks.iter().enumerate() {
        let (own, early) = (Arc::clone(stormed), Arc::clone(&early));
        let deadline = start + (number % 20) as u32 * MS;
        own.last.lock().expect("whole").0 = Some(deadline);
        let task = move || {
            let now = Instant::now();
            let mut last = own.last.lock().expect("whole");
            last.1 += 1;
            early.fetch_add(usize::from(last.0.is_some_and(|at| now < at)), Ordering::Relaxed);
        };
        stormed.handle.set(schedule.schedule_at(deadline, task).expect("open")).expect("once");
    }
    thread::scope(|scope| {
        for seed in 0..3 {
            let tasks = &tasks;
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..count(60_000, 600_000) {
                    let task = &tasks[random.below(tasks.len() as u64) as usize];
                    let handle = task.handle.get().expect("set");
                    if random.one_in(200) {
                        let won = handle.cancel();
                        assert!(!won || !task.is_cancelled.swap(true, Ordering::AcqRel), "twice");
                        continue;
                    }
                    let deadline = Instant::now() + random.below(3_000) as u32 * MS / 1_000;
                    let mut last = task.last.lock().expect("whole");
                    if handle.reset_at(deadline) {
                        assert_eq!(last.1, 0, "{name}: it has run, and moved");
                        last.0 = Some(deadline);
                    }
                }
            });
        }
    });
    for task in &tasks {
        until(&format!("{name}: each ends"), || task.handle.get().expect("set").is_done());
        until(&format!("{name}: its run ends"), || {
            let is_cancelled = task.is_cancelled.load(Ordering::Acquire);
            task.last.lock().expect("whole").1 == usize::from(!is_cancelled)
        });
        assert!(!task.handle.get().expect("set").reset(SECOND), "{name}: it is over");
    }
    assert_eq!(early.load(Ordering::Relaxed), 0, "{name}: early");
}

#[test]
fn s28_storms_of_resets_on_workers() {
    on_workers(2, &storm);
}

#[test]
fn s28_storms_of_resets_on_pools_and_loops() {
    on_pools_and_loops(2, &storm);
}

/// A series is moved by others while it runs, and never overlaps or stops.
#[test]
fn s28_a_series_that_is_moved_all_the_time_goes_on() {
    let check = |name: &str, schedule: &dyn Schedule| {
        let (runs, is_running) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
        let counted = Arc::clone(&runs);
        let task = move || {
            assert!(!is_running.swap(true, Ordering::AcqRel), "runs do not overlap");
            counted.fetch_add(1, Ordering::Relaxed);
            is_running.store(false, Ordering::Release);
        };
        let series = schedule.schedule_repeatedly(MS, MS, task).expect("open");
        thread::scope(|scope| {
            for seed in 0..2 {
                let (series, runs) = (&series, &runs);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    let enough = count(100, 3_000);
                    while runs.load(Ordering::Relaxed) < enough {
                        assert!(series.reset(random.below(20) as u32 * MS / 1_000), "{name}");
                    }
                });
            }
        });
        assert!(series.cancel() && !series.reset(MS), "{name}");
    };
    on_workers(2, &check);
    on_pools_and_loops(2, &check);
}

/// Whoever sleeps towards an old deadline is woken for an earlier one.
#[test]
fn s28_an_earlier_deadline_wakes_the_thread_that_waits_for_the_old_one() {
    let check = |name: &str, schedule: &dyn Schedule| {
        let log = Log::default();
        let task = schedule.schedule_once(HOUR, log.task(1)).expect("open");
        thread::sleep(20 * MS); // real time: the thread falls asleep
        assert!(task.reset(MS), "{name}");
        until(&format!("{name}: it runs"), || log.all() == [1]);
    };
    on_workers(1, &check);
    on_pools_and_loops(1, &check);
}

// ----- what is kept --------------------------------------------------------------------------------------------

/// However often deadlines move, to and fro, no more memory is used than by the tasks themselves.
#[test]
fn s28_resets_leave_no_memory_behind() {
    let clock = ManualClock::new();
    let (timers, driver) = driven_by(Scheduler::builder().clock(clock.clone()));
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one");
    let pool = ScheduledThreadPool::builder().clock(clock.clone()).build().expect("good");
    let schedules: [(&str, Box<dyn Schedule>); 4] = [
        ("worker", Box::new(ExecutorScheduler::new(Inline, &timers).worker())),
        ("worker on a loop", Box::new(Worker::new(looper.runner()))),
        ("pool", Box::new(pool)),
        ("loop", Box::new(looper.runner())),
    ];
    for (name, schedule) in &schedules {
        let start = schedule.now();
        let handles: Vec<_> = (0..1_000)
            .map(|_| schedule.schedule_at(start + 30 * SECOND, || unreachable!("never")))
            .map(|handle| handle.expect("open"))
            .collect();
        let mut random = Random(7);
        let turn = || {
            driver.turn();
            looper.run_until_idle();
        };
        let mut churn = |resets: usize| {
            for number in 0..resets {
                let handle = &handles[random.below(1_000) as usize];
                // One of ten to an earlier deadline than it has, most often.
                let to = if number % 10 == 0 { 10 } else { 30 };
                assert!(handle.reset(to * SECOND + random.below(1_000) as u32 * MS), "{name}");
                if number % 1_000 == 0 {
                    turn();
                }
            }
            turn();
        };
        churn(20_000);
        let memory = Measurement::start();
        churn(count(200_000, 1_000_000));
        // And each time earlier than before, which leaves an old entry behind.
        for number in 0..20_000 {
            let to = (10_000 - number / 1_000) * MS;
            assert!(handles[number as usize % 1_000].reset(to), "{name}");
            if number % 1_000 == 0 {
                turn();
            }
        }
        turn();
        let more = memory.bytes();
        assert!(more < 200_000, "{name}: {more} bytes more for 1,000 tasks");
        assert!(handles.iter().all(Cancellable::cancel), "{name}");
        turn();
    }
}

/// The leftovers of the scheduler that keeps a worker's delays show the new deadlines, also of resets after the close.
#[test]
fn s28_leftovers_of_a_worker_show_the_new_deadline() {
    let (timers, driver) = driven();
    let worker = ExecutorScheduler::new(Inline, &timers).worker();
    let (log, start) = (Log::default(), timers.now());
    let one = worker.schedule_after(SECOND, log.task(1));
    let other = worker.schedule_after(SECOND, log.task(2));
    let series = {
        let log = log.clone();
        worker.schedule_periodically(SECOND, SECOND, move || log.task(3)())
    };
    assert!(one.reset_at(start + HOUR) && series.reset_at(start + 2 * HOUR));
    let leftovers: Vec<_> = driver.close().into_iter().collect();
    assert!(other.reset_at(start + 3 * HOUR));
    let mut deadlines: Vec<_> = leftovers.iter().map(tickwheel::PendingTask::deadline).collect();
    deadlines.sort_unstable();
    assert_eq!(deadlines, [start + HOUR, start + 2 * HOUR, start + 3 * HOUR]);
    for leftover in leftovers {
        leftover.run();
    }
    let mut said = log.all();
    said.sort_unstable();
    assert_eq!(said, [1, 2, 3], "a leftover that is run queues its task, whenever it is due");
    assert_eq!((one.is_done(), other.is_done(), worker.pending()), (true, true, 0));
}

// ----- timers of other people ------------------------------------------------------------------------------------

#[test]
fn s28_a_handle_of_another_type_moves_nothing_unless_it_says_so_and_equals_its_clones() {
    let (scheduler, _driver) = driven();
    let task = scheduler.schedule_once(SECOND, || ()).expect("open");
    let [one, other] = [(); 2].map(|()| Cancellable::from(Arc::new(Fixed(task.clone()))));
    assert!(!one.reset(HOUR) && !one.reset_at(scheduler.now()) && one.deadline().is_none());
    assert!(one == one.clone() && one != other && one != task);
    assert_eq!(task.deadline(), Some(scheduler.now() + SECOND));
}

/// Whoever moves a task may hold a lock that the task takes, also if the executor runs tasks in the calls that bring them.
#[test]
fn s28_a_reset_of_a_task_that_is_due_does_not_run_it_in_the_call() {
    let (timers, driver) = driven();
    let other = ExecutorScheduler::new(Inline, &timers).worker();
    let third = ExecutorScheduler::over(Inline, other.clone()).worker();
    let (clock, kept) = (timers.clone(), timers.clone());
    // What is due when it comes runs in the call there, so its drain waits for a time that has not come.
    let in_the_call = TasksOnly::new(
        move || clock.now(),
        move |due, task| match due {
            Due::At(at) if at <= kept.now() => {
                task();
                Ok(Cancellable::from(Arc::new(CompositeCancellable::new())))
            }
            _ => Ok(Cancellable::from(Arc::new(Fixed(due.on(&kept, task)?)))),
        },
    );
    for workers in [
        ExecutorScheduler::over(Inline, wrapping(&timers, Fixed)),
        ExecutorScheduler::over(Inline, wrapping(&other, Fixed)),
        ExecutorScheduler::over(Inline, wrapping(&third, Fixed)),
        ExecutorScheduler::over(Inline, in_the_call),
    ] {
        let (lock, log) = (Arc::new(Mutex::new(())), Log::default());
        let (of_task, said) = (Arc::clone(&lock), log.clone());
        let task = move || said.say(of_task.try_lock().is_ok().into());
        let task = workers.worker().schedule_after(HOUR, task);
        let held = lock.lock().expect("whole");
        assert!(task.reset(Duration::ZERO), "its timer cannot move, so it gets another one");
        assert_eq!(log.all(), []);
        drop(held);
        driver.advance(MS);
        assert_eq!(log.all(), [1]);
    }
}

/// An inline task has brought a task to another worker, which waits for its end, and serves an executor that moves a third one.
#[test]
fn s28_a_call_that_runs_none_leaves_what_waits_below_it() {
    let (timers, driver) = driven();
    let inline = ExecutorScheduler::over(Inline, wrapping(&timers, Fixed));
    let (outer, waits, moved) = (inline.worker(), inline.worker(), inline.worker());
    let later = Later::default();
    let served = ExecutorScheduler::new(later.clone(), &timers).worker();
    let log = Log::default();
    let (third, said) = (moved.schedule_after(HOUR, log.task(3)), log.clone());
    outer.schedule(move || {
        waits.schedule(said.task(2));
        served.schedule(move || assert!(third.reset(Duration::ZERO)));
        later.run();
        said.say(1);
    });
    assert_eq!(log.all(), [1, 2]);
    driver.turn();
    assert_eq!(log.all(), [1, 2, 3]);
}

/// The other worker gets the timer when it is due, and would run it in the call.
#[test]
fn s28_a_delay_that_has_passed_on_the_way_to_an_inline_worker_runs_nothing_in_the_call() {
    let timers = Scheduler::new();
    let other = ExecutorScheduler::new(Inline, &timers).worker();
    let worker = ExecutorScheduler::over(Inline, other).worker();
    let (ran, runs_on) = mpsc::channel();
    let task = move || ran.send(thread::current().id()).expect("awaited");
    worker.schedule_after(Duration::from_nanos(1), task);
    let runs_on = runs_on.recv_timeout(crate::common::PATIENCE).expect("it runs");
    assert_ne!(runs_on, thread::current().id());
}

/// A run of it is its last, so no run after it can move.
#[test]
fn s28_a_series_in_its_last_run_does_not_move() {
    let in_its_run = |schedule: Arc<dyn Schedule>, end: Box<dyn Fn() + Send>| {
        let ((give, own), (sender, moved)) = (mpsc::channel::<Cancellable>(), mpsc::channel());
        let series = schedule.schedule_repeatedly(MS, HOUR, move || {
            let own = own.recv().expect("its handle");
            let before = own.reset(HOUR);
            end();
            sender.send((before, own.reset(HOUR))).expect("awaited");
        });
        give.send(series.expect("open")).expect("it waits");
        moved.recv_timeout(crate::common::PATIENCE).expect("it runs")
    };
    let pool = ScheduledThreadPool::new(1);
    let closes = pool.clone();
    assert_eq!(in_its_run(Arc::new(pool), Box::new(move || closes.shutdown())), (true, false));
    let looper = LoopThread::spawn("quits").expect("a thread");
    let quits = looper.runner();
    let end = Box::new(move || quits.quit_safely());
    assert_eq!(in_its_run(Arc::new(looper.runner()), end), (true, false));
    let (worker, timers) = (rx::single(), Scheduler::new());
    let disposed = worker.clone();
    assert_eq!(in_its_run(Arc::new(worker), Box::new(move || disposed.dispose())), (true, false));
    let executor = Arc::new(ThreadPool::new(1));
    let worker = ExecutorScheduler::new(Arc::clone(&executor), &timers).worker();
    let end = Box::new(move || executor.shutdown());
    in_its_run(Arc::new(worker), end); // the worker learns of it when it brings the next run
}

#[test]
fn s28_a_worker_moves_its_tasks_on_timers_that_do_not_move() {
    let (timers, driver) = driven();
    let workers = ExecutorScheduler::over(Inline, wrapping(&timers, Fixed));
    let (worker, log) = (workers.worker(), Log::default());
    let tasks = [1, 2, 3].map(|number| worker.schedule_after(SECOND, log.task(number)));
    for _ in 0..1_000 {
        assert!(tasks[0].reset(3 * SECOND), "later");
    }
    assert_eq!(timers.stats().scheduled(), 3, "a later deadline sets no timer");
    assert!(tasks[1].reset(SECOND / 2), "earlier");
    assert!(tasks[2].reset(HOUR) && tasks[2].reset(2 * SECOND), "to and fro");
    driver.advance(SECOND / 2);
    assert_eq!(log.all(), [2]);
    driver.advance(SECOND);
    assert_eq!((log.all(), worker.pending()), (vec![2], 2));
    driver.advance(SECOND / 2);
    assert_eq!(log.all(), [2, 3]);
    driver.advance(SECOND);
    assert_eq!((log.all(), worker.pending(), timers.pending()), (vec![2, 3, 1], 0, 0));
}

/// A move to earlier on such a timer sets another one, and the task gets another key. A reset on another thread at the same
/// time is decided by what the task is then.
#[test]
fn s28_two_threads_move_a_task_on_timers_that_do_not_move() {
    let (timers, _driver) = driven();
    let worker = ExecutorScheduler::over(Inline, wrapping(&timers, Fixed)).worker();
    let task = worker.schedule_after(2 * HOUR, || ());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for left in (0..20_000).rev() {
                    assert!(task.reset(HOUR + left * MS), "it waits for an hour");
                }
            });
        }
    });
    assert!(task.cancel());
}

/// A worker on the caller's thread waits for the new deadline.
#[test]
fn s28_on_a_trampoline_a_task_that_waits_moves() {
    let (worker, log) = (TrampolineScheduler::new().worker(), Log::default());
    let (inner, said) = (worker.clone(), log.clone());
    worker.schedule(move || {
        let sooner = inner.schedule_after(HOUR, said.task(1));
        let later = inner.schedule_after(Duration::ZERO, said.task(2));
        assert!(sooner.deadline().is_some_and(|at| at > Instant::now() + HOUR / 2));
        assert!(sooner.reset(5 * MS) && later.reset(10 * MS));
    });
    assert_eq!(
        (log.all(), worker.pending()),
        (vec![1, 2], 0),
        "and it returns, long before an hour"
    );
}

/// The handle of a pool's future moves it, and the future tells the time that remains.
#[test]
fn s28_the_future_of_a_pool_follows_its_handle() {
    let clock = ManualClock::new();
    let pool = ScheduledThreadPool::builder().clock(clock.clone()).build().expect("good");
    let future = pool.schedule(SECOND, || 7).expect("open");
    let handle = future.handle();
    assert!(handle.reset(HOUR));
    assert_eq!(future.remaining(), HOUR);
    assert_eq!(handle.deadline(), Some(clock.now() + HOUR));
    clock.advance(2 * SECOND);
    assert!(!future.is_done());
    assert!(handle.reset_at(clock.now()));
    assert_eq!(future.join().expect("it runs"), 7);
    assert!(!handle.reset(SECOND) && handle.deadline().is_none());
}

// ----- what a review found ---------------------------------------------------------------------------------------

/// The worker is younger than its virtual clock, which stands behind that of the system.
#[test]
fn s28_a_queued_task_moves_on_a_clock_that_is_older_than_the_worker() {
    let (timers, driver) = driven();
    thread::sleep(50 * MS); // real time passes, and virtual time does not
    let later = Later::default();
    let (worker, log) = (ExecutorScheduler::new(later.clone(), &timers).worker(), Log::default());
    let now = worker.schedule(log.task(1));
    let soon = worker.schedule(log.task(2));
    assert!(now.reset(Duration::ZERO) && soon.reset(10 * MS));
    assert_eq!(soon.deadline(), Some(timers.now() + 10 * MS));
    later.run();
    assert_eq!((log.all(), worker.pending()), (vec![1], 1));
    driver.advance(10 * MS);
    later.run();
    assert_eq!((log.all(), worker.pending()), (vec![1, 2], 0));
}

/// A task that was moved needs a timer that it did not need before. It is not lost if the scheduler is full.
#[test]
fn s28_a_queued_task_that_was_moved_is_not_lost_when_the_scheduler_is_full() {
    let timers = Scheduler::builder().max_pending(1).executor(Inline).build().expect("a thread");
    let later = Later::default();
    let (worker, log) = (ExecutorScheduler::new(later.clone(), &timers).worker(), Log::default());
    timers.schedule_once(HOUR, || ()).expect("the only place");
    let task = worker.schedule(log.task(1));
    let start = Instant::now();
    assert!(task.reset(500 * MS));
    later.run();
    assert!(log.all().is_empty() && worker.pending() == 1 && !task.is_done());
    until("the global scheduler keeps its time", || {
        later.run();
        log.all() == [1]
    });
    assert!(start.elapsed() >= 500 * MS && task.is_done());
}

/// Deadlines that are further away than 146 years, for tasks that were due before when they were moved there.
#[test]
fn s28_a_task_that_is_moved_by_centuries_does_not_run_early() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let clock = ManualClock::new();
    let builder = Scheduler::builder().tick(HOUR).clock(clock.clone());
    let (timers, driver) = builder.build_driven().expect("good");
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one");
    let (later, log) = (Later::default(), Log::default());
    let worker = ExecutorScheduler::new(later.clone(), &timers).worker();
    let delayed = looper.runner().post_delayed(YEAR, log.task(200)).expect("open");
    let tasks = [
        (worker.schedule(log.task(145)), 145),
        (worker.schedule(log.task(200)), 200),
        (worker.schedule(log.task(500)), 500),
        (delayed, 200),
    ];
    for (task, years) in &tasks {
        let to = clock.now() + *years * YEAR;
        assert!(task.reset_at(to));
        let deadline = task.deadline().expect("it waits");
        assert!(to <= deadline && deadline < to + SECOND, "{years}: {:?}", deadline - to);
    }
    let run_all = || {
        later.run();
        looper.run_until_idle();
    };
    run_all();
    let mut year = 0;
    for (by, ran) in [(2, 0), (142, 0), (2, 1), (1, 1), (52, 1), (2, 3), (298, 3), (2, 4), (50, 4)]
    {
        year += by;
        driver.advance(by * YEAR);
        run_all();
        assert_eq!(log.all().len(), ran, "after {year} years: {:?}", log.all());
    }
    assert_eq!(log.all(), [145, 200, 200, 500]);
}

/// Nor does a delay end there that has more nanoseconds than a number of 64 bits.
#[test]
fn s04_a_delay_of_centuries_is_as_long_as_it_says() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let (clock, log) = (ManualClock::new(), Log::default());
    let builder = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let pool = builder.build().expect("threads");
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one");
    let (worker, far) = (Worker::new(pool.clone()), 700 * YEAR);
    let moved = pool.try_schedule(YEAR, log.task(1)).expect("open");
    assert!(moved.handle().reset(far));
    let posted = looper.runner().post_delayed(far, log.task(2)).expect("open");
    let tasks = [moved.handle(), posted, worker.schedule_after(far, log.task(3))];
    let end = clock.now() + far;
    assert!(tasks.iter().all(|task| task.deadline() >= Some(end)));
    clock.advance(600 * YEAR);
    looper.run_until_idle();
    assert!(tasks.iter().all(|task| !task.is_done()) && log.all().is_empty());
    clock.advance(101 * YEAR + Duration::from_millis(1500)); // what is due at once is due in the middle of a second too
    looper.run_until_idle();
    until("all have run", || tasks.iter().all(Cancellable::is_done));
    assert_eq!(log.all().len(), 3);
}

/// A task that waits only for its turn is due now, however long it waits.
#[test]
fn s28_the_deadline_of_a_task_that_waits_for_its_turn_is_the_present() {
    let clock = ManualClock::new();
    let (timers, driver) = Scheduler::builder().clock(clock.clone()).build_driven().expect("good");
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one");
    let (later, runner) = (Later::default(), looper.runner());
    let worker = ExecutorScheduler::new(later.clone(), &timers).worker();
    let tasks = [
        ("of a worker", worker.schedule(|| ())),
        ("of a worker, delayed at first", worker.schedule_after(SECOND, || ())),
        ("of a worker, to a time that has passed", worker.schedule(|| ())),
        ("of a worker on a loop", Worker::new(runner.clone()).schedule(|| ())),
        ("of a loop", runner.post(|| ()).expect("open")),
    ];
    assert!(tasks[2].1.reset_at(clock.now()));
    clock.advance(SECOND);
    driver.turn();
    for _ in 0..3 {
        for (name, task) in &tasks {
            assert_eq!(task.deadline(), Some(clock.now()), "{name}");
        }
        clock.advance(SECOND);
    }
    later.run();
    looper.run_until_idle();
    assert!(tasks.iter().all(|(_, task)| task.is_done() && task.deadline().is_none()));
}

/// The global scheduler runs on the system's clock, and the deadlines of the task are times of another clock.
#[test]
fn s28_a_task_moves_by_its_own_clock_while_the_global_scheduler_keeps_its_time() {
    let (timers, driver) = Scheduler::builder().max_pending(1).build_driven().expect("good");
    driver.advance(10 * HOUR);
    let later = Later::default();
    let (worker, log) = (ExecutorScheduler::new(later.clone(), &timers).worker(), Log::default());
    timers.schedule_once(20 * HOUR, || ()).expect("the only place");
    let task = worker.schedule(log.task(1));
    assert!(task.reset(HOUR));
    later.run();
    assert!(task.reset(20 * MS), "it waits on the global scheduler");
    driver.advance(20 * MS);
    until("the global scheduler looks at the clock", || {
        later.run();
        log.all() == [1]
    });
    assert!(task.is_done() && worker.pending() == 0);
}

/// Once nobody keeps the time, a queued task stays where it is.
#[test]
fn s28_a_queued_task_does_not_move_when_the_scheduler_is_closed() {
    let (timers, driver) = driven();
    let later = Later::default();
    let (worker, log) = (ExecutorScheduler::new(later.clone(), &timers).worker(), Log::default());
    let task = worker.schedule(log.task(1));
    drop(driver.close());
    assert!(!task.reset(MS));
    later.run();
    assert_eq!((log.all(), worker.pending()), (vec![1], 0));
}

/// A loop that is behind with its work runs what was moved in its order, as everything else does.
#[test]
fn s28_overdue_tasks_of_a_loop_run_in_order_of_their_new_deadlines() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one");
    let runner = looper.runner();
    let tasks = [5, 6, 7, 8].map(|n| runner.post_delayed(n * SECOND, log.task(n)).expect("open"));
    let equal = runner.post_delayed(4 * SECOND, log.task(10)).expect("open");
    runner.post_delayed(7 * SECOND, log.task(11)).expect("open");
    assert!(tasks[0].reset(9 * SECOND) && equal.reset(7 * SECOND));
    clock.advance(10 * SECOND);
    looper.run_until_idle();
    assert_eq!(log.all(), [6, 7, 11, 10, 8, 5]);
}

/// After the end of its owner, a series is not told that it moves.
#[test]
fn s28_a_series_does_not_move_after_the_end_of_its_owner() {
    let pool = Arc::new(ScheduledThreadPool::new(1));
    let handle = Arc::new(OnceLock::<Cancellable>::new());
    let (own, ends) = (Arc::clone(&handle), Arc::clone(&pool));
    let (sender, said) = mpsc::channel();
    let task = move || {
        while own.get().is_none() {
            thread::yield_now();
        }
        let own = own.get().expect("set");
        let before = own.reset(HOUR);
        ends.shutdown();
        sender.send((before, own.reset(MS))).expect("heard");
    };
    let series = pool.schedule_repeatedly(Duration::ZERO, HOUR, task).expect("open");
    handle.set(series).expect("once");
    assert_eq!(said.recv(), Ok((true, false)));

    let looper = MessageLoop::prepare().expect("the only one");
    let runner = looper.runner();
    let posted = runner.post_delayed(HOUR, || ()).expect("open");
    runner.quit_when_idle();
    assert!(posted.reset(2 * HOUR), "it takes posts");
    looper.run();
    assert!(!posted.reset(MS), "it takes none");
}

/// A handle from outside that panics costs the task nothing.
#[test]
fn s28_a_timer_whose_handle_panics_is_replaced() {
    struct PanicsOnCancel(Cancellable);
    impl Cancel for PanicsOnCancel {
        fn cancel(&self) -> bool {
            self.0.cancel();
            crate::common::panic_on_purpose()
        }
        fn is_cancelled(&self) -> bool {
            self.0.is_cancelled()
        }
        fn is_done(&self) -> bool {
            self.0.is_done()
        }
        fn reset_at(&self, _: Instant) -> bool {
            crate::common::panic_on_purpose()
        }
    }
    crate::common::silence();
    let (timers, driver) = driven();
    let workers = ExecutorScheduler::over(Inline, wrapping(&timers, PanicsOnCancel));
    let (worker, log) = (workers.worker(), Log::default());
    let task = worker.schedule_after(HOUR, log.task(1));
    assert!(task.reset(2 * HOUR) && task.reset(SECOND));
    driver.advance(SECOND);
    assert_eq!((log.all(), worker.pending(), task.is_done()), (vec![1], 0, true));
    // Nor does it keep a cancel or a disposal from what they have left to do.
    let capture = Arc::new(());
    let cancelled = worker.schedule_after(HOUR, keeping(&capture));
    assert!(cancelled.cancel() && worker.pending() == 0);
    let disposed = [(); 3].map(|()| worker.schedule_after(HOUR, keeping(&capture)));
    worker.dispose();
    assert!(disposed.iter().all(Cancellable::is_cancelled));
    assert_eq!((Arc::strong_count(&capture), worker.pending()), (1, 0));
}

/// A schedule from outside drops its tasks. The handle of such a timer may panic when it is dropped, and a panic during a
/// panic would end the process.
#[test]
fn s28_a_timer_that_is_dropped_may_have_a_handle_that_panics() {
    crate::common::silence();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&kept);
    let take = move |_, task| -> Result<Cancellable, ScheduleError> {
        keeps.lock().expect("whole").push(task);
        Ok(Cancellable::from(Arc::new(OnDrop(Box::new(|| crate::common::panic_on_purpose())))))
    };
    let worker = ExecutorScheduler::over(Inline, TasksOnly::new(Instant::now, take)).worker();
    let tasks = [(); 2].map(|()| worker.schedule_after(HOUR, || ()));
    drop(std::mem::take(&mut *kept.lock().expect("whole")));
    assert!(tasks.iter().all(Cancellable::is_done));
    assert_eq!(worker.pending(), 0);
}

/// Returns a task that holds this until it has gone.
fn keeping(capture: &Arc<()>) -> impl FnOnce() + Send + 'static {
    let capture = Arc::clone(capture);
    move || drop(capture)
}

/// A leftover of a pool that keeps a worker's time runs, whenever it is due.
#[test]
fn s28_a_moved_leftover_of_a_pool_that_keeps_the_time_runs() {
    let pool = ScheduledThreadPool::new(1);
    let (worker, log) = (ExecutorScheduler::over(Inline, pool.clone()).worker(), Log::default());
    let task = worker.schedule_after(HOUR, log.task(1));
    assert!(task.reset(2 * HOUR));
    let unstarted = pool.shutdown_now();
    assert_eq!(unstarted.len(), 1);
    unstarted.into_iter().for_each(tickwheel::pool::Unstarted::run);
    assert_eq!((log.all(), worker.pending(), task.is_done()), (vec![1], 0, true));
}

/// Disposals, cancels and resets of queued tasks, all at the same time. Every handle resolves, and every closure goes.
#[test]
fn s28_a_storm_of_resets_and_disposals() {
    let timers = Scheduler::new();
    let workers = ExecutorScheduler::new(ThreadPool::new(2), &timers);
    for round in 0..count(200, 5_000) as u64 {
        let (worker, held) = (workers.worker(), Arc::new(()));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let held = Arc::clone(&held);
                worker.schedule(move || drop(held))
            })
            .collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(round);
                for _ in 0..40 {
                    tasks[random.below(8) as usize].reset(random.below(300) as u32 * MS / 1_000);
                }
            });
            scope.spawn(|| {
                for _ in 0..round % 50 {
                    std::hint::spin_loop();
                }
                worker.dispose();
            });
        });
        until("all are over", || tasks.iter().all(Cancellable::is_done));
        until("all closures are dropped", || Arc::strong_count(&held) == 1);
        assert!(worker.pending() == 0 && tasks.iter().all(|task| !task.reset(MS)));
    }
}

/// A loop that quits still runs what is due. A worker's timer among that is no leftover, and its task was moved.
#[test]
fn s28_a_timer_of_a_loop_that_quits_does_not_run_a_moved_task() {
    let (clock, log) = (ManualClock::new(), Log::default());
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("the only one");
    let runner = looper.runner();
    let worker = ExecutorScheduler::over(Inline, runner.clone()).worker();
    let task = worker.schedule_after(SECOND, log.task(1));
    clock.advance(SECOND);
    runner.quit_safely();
    let has_moved = task.reset(50 * MS);
    looper.run_until_idle();
    assert_eq!(log.all().is_empty(), has_moved, "not before its new deadline");
    drop(looper);
    if has_moved {
        clock.advance(50 * MS);
        until("the global scheduler keeps its time", || log.all() == [1]);
    }
    until("its run is over", || task.is_done());
    assert_eq!(worker.pending(), 0);
}

/// Keeps its first timer. Its second timer fires while it is being set, when its task has just been moved to a later
/// time. From then on it is closed.
struct Fires {
    start: Instant,
    passed: Mutex<Duration>,
    timers: AtomicUsize,
    first: Mutex<Option<Task>>,
    task: OnceLock<Cancellable>,
    /// The second timer is a leftover that somebody runs. Otherwise it fires at its time.
    is_leftover: bool,
}

impl Fires {
    fn now(&self) -> Instant {
        self.start + *self.passed.lock().expect("whole")
    }

    fn take(&self, due: Due, timer: Task) -> Result<Cancellable, ScheduleError> {
        let at = match due {
            Due::After(delay) => self.now() + delay,
            Due::At(at) => at,
        };
        match self.timers.fetch_add(1, Ordering::Relaxed) {
            0 => *self.first.lock().expect("whole") = Some(timer),
            1 => {
                assert!(self.task.get().expect("set").reset_at(self.start + 9 * HOUR));
                if !self.is_leftover {
                    *self.passed.lock().expect("whole") = at - self.start;
                }
                timer();
            }
            _ => return Err(ScheduleError::Closed),
        }
        Ok(Cancellable::from(Arc::new(CompositeCancellable::new())))
    }
}

/// A timer may fire before the worker has its handle. Even then the worker knows whether it is a leftover.
#[test]
fn s28_a_leftover_is_told_from_a_timer_that_fires_while_it_is_being_set() {
    for (is_series, is_leftover) in [(false, false), (false, true), (true, false), (true, true)] {
        let fires = Arc::new(Fires {
            start: Instant::now(),
            passed: Mutex::default(),
            timers: AtomicUsize::new(0),
            first: Mutex::default(),
            task: OnceLock::new(),
            is_leftover,
        });
        let (clock, timers) = (Arc::clone(&fires), Arc::clone(&fires));
        let schedule = TasksOnly::new(move || clock.now(), move |due, task| timers.take(due, task));
        let worker = ExecutorScheduler::over(Inline, schedule).worker();
        let log = Log::default();
        let said = log.clone();
        let task = if is_series {
            worker.schedule_periodically(2 * HOUR, 2 * HOUR, move || said.say(1))
        } else {
            worker.schedule_after(2 * HOUR, move || said.say(2))
        };
        fires.task.set(task.clone()).expect("once");
        if is_series {
            *fires.passed.lock().expect("whole") = 2 * HOUR;
            let first = fires.first.lock().expect("whole").take();
            first.expect("kept")(); // the timer of the next run is the second one
        } else {
            assert!(task.reset_at(fires.start + HOUR), "an earlier time needs a second timer");
        }
        let expected: &[u32] = match (is_series, is_leftover) {
            (true, true) => &[1, 1],
            (true, false) => &[1],
            (false, true) => &[2],
            (false, false) => &[], // the global scheduler keeps its new time
        };
        until("it ends, but not in the reset", || task.is_done() == is_leftover);
        assert_eq!(log.all(), expected, "series: {is_series}, leftover: {is_leftover}");
        assert_eq!((task.is_done(), worker.pending()), (is_leftover, usize::from(!is_leftover)));
        worker.dispose();
    }
}

/// The handle of a timer is dropped with nothing locked, also if the timer refuses late.
#[test]
fn s28_a_timer_that_is_dropped_drops_its_handle_unlocked() {
    let (owner, kept) = (Arc::<OnceLock<Worker>>::default(), Arc::<Mutex<Vec<Task>>>::default());
    let (locked, keeps) = (Arc::clone(&owner), Arc::clone(&kept));
    let schedule = TasksOnly::new(Instant::now, move |_, task| {
        keeps.lock().expect("whole").push(task);
        let worker = locked.get().expect("set").clone();
        Ok(Cancellable::from(Arc::new(OnDrop(Box::new(move || _ = worker.pending())))))
    });
    let worker = ExecutorScheduler::over(Inline, schedule).worker();
    owner.set(worker.clone()).expect("once");
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        let task = worker.schedule_after(HOUR, || unreachable!("dropped"));
        let kept = std::mem::take(&mut *kept.lock().expect("whole"));
        drop(kept);
        sender.send((task.is_done(), worker.pending())).expect("heard");
    });
    assert_eq!(done.recv_timeout(crate::common::PATIENCE), Ok((true, 0)), "it is stuck");
}

/// A disposed worker moves nothing, also while it still drops its tasks.
#[test]
fn s28_a_disposed_worker_moves_nothing() {
    let (timers, driver) = driven();
    for worker in [ExecutorScheduler::new(Inline, &timers).worker(), rx::single()] {
        let other = Arc::new(OnceLock::<Cancellable>::new());
        let (sender, said) = mpsc::channel();
        let tells = |sender: mpsc::Sender<bool>| {
            let other = Arc::clone(&other);
            crate::common::OnDrop(move || {
                _ = sender.send(other.get().expect("set").reset(2 * HOUR));
            })
        };
        let held = [tells(sender.clone()), tells(sender)];
        let handles = held.map(|held| worker.schedule_after(HOUR, move || drop(held)));
        other.set(worker.schedule_after(HOUR, || ())).expect("once");
        worker.dispose();
        assert_eq!(said.iter().collect::<Vec<_>>(), [false, false]);
        assert!(handles.iter().all(Cancellable::is_cancelled));
    }
    drop(driver);
}
