//! Workers on an inline executor, over each other: what runs in which call, and for how long.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::schedules::{Due, Fixed, TasksOnly, wrapping};
use crate::common::{OnDrop, PATIENCE, driven, panic_on_purpose, silence, until};
use tickwheel::message_loop::{MessageLoop, TaskRunner};
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{Cancellable, DueTask, Executor, Inline, Scheduler, Task, ThreadPool};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// An inline worker whose time another inline worker keeps.
fn over_a_worker(timers: &Scheduler) -> Worker {
    let keeper = ExecutorScheduler::new(Inline, timers).worker();
    ExecutorScheduler::over(Inline, keeper).worker()
}

/// Calls something on another thread, and returns true if the call ends.
fn ends(call: impl FnOnce() + Send + 'static) -> bool {
    let (said, ended) = mpsc::channel();
    thread::spawn(move || {
        call();
        said.send(())
    });
    ended.recv_timeout(PATIENCE).is_ok()
}

/// Returns true if the tick thread runs a task that comes now.
fn has_a_tick_thread(timers: &Scheduler) -> bool {
    let (said, ran) = mpsc::channel();
    let timers = timers.with_executor(Inline);
    timers.schedule_once(MS * 50, move || _ = said.send(())).expect("open");
    ran.recv_timeout(PATIENCE).is_ok()
}

#[test]
fn a_series_that_lags_behind_over_another_inline_worker_holds_nobody() {
    let timers = Scheduler::new();
    for initial in [Duration::ZERO, MS] {
        let worker = over_a_worker(&timers);
        let series = worker.clone();
        let nano = Duration::from_nanos(1);
        assert!(ends(move || drop(series.schedule_periodically(initial, nano, || ()))));
        assert!(has_a_tick_thread(&timers));
        worker.dispose();
    }
}

fn play(stops: Arc<AtomicBool>, mine: Worker, other: Worker) {
    if !stops.load(Ordering::Relaxed) {
        let server = other.clone();
        server.schedule(move || play(stops, other, mine));
    }
}

#[test]
fn an_inline_worker_that_brings_itself_tasks_without_end_lets_the_call_go() {
    let timers = Scheduler::new();
    for worker in [ExecutorScheduler::new(Inline, &timers).worker(), over_a_worker(&timers)] {
        let stops = Arc::new(AtomicBool::new(false));
        let (stop, player) = (Arc::clone(&stops), worker.clone());
        let has_ended = ends(move || play(stop, player.clone(), player));
        stops.store(true, Ordering::Relaxed);
        assert!(has_ended && has_a_tick_thread(&timers));
        until("all have run", || worker.pending() == 0);
    }
}

/// The drain of each ends with each task, and brings that of the other.
#[test]
fn two_inline_workers_that_bring_each_other_tasks_without_end_hold_nobody() {
    let timers = Scheduler::new();
    for keeps_time in [false, true] {
        let [first, second] = [(); 2].map(|()| {
            let worker = ExecutorScheduler::new(Inline, &timers).worker();
            if keeps_time { ExecutorScheduler::over(Inline, worker).worker() } else { worker }
        });
        let stops = Arc::new(AtomicBool::new(false));
        let (stop, player) = (Arc::clone(&stops), first.clone());
        first.schedule_after(MS, move || play(stop, player, second));
        let has_a_thread = has_a_tick_thread(&timers);
        stops.store(true, Ordering::Relaxed);
        assert!(has_a_thread);
    }
}

/// The clock of the second drain stands still, or panics.
#[test]
fn inline_workers_of_other_clocks_let_the_call_go_too() {
    silence();
    let (timers, (still, _driver)) = (Scheduler::new(), driven());
    let on = |timers: &Scheduler| ExecutorScheduler::new(Inline, timers).worker();
    let [first, second, bystander] = [&timers, &timers, &still].map(on);
    let stops = Arc::new(AtomicBool::new(false));
    let (stop, panics) = (Arc::clone(&stops), Arc::new(AtomicBool::new(false)));
    assert!(ends(move || {
        let starts = first.clone();
        starts.schedule(move || {
            bystander.schedule(|| ());
            play(stop, first, second);
        });
    }));
    let (stop, is_panicking, kept) = (Arc::clone(&stops), Arc::clone(&panics), timers.clone());
    let now =
        move || if panics.load(Ordering::Relaxed) { panic_on_purpose() } else { Instant::now() };
    let odd = TasksOnly::new(now, move |due: Due, task| due.on(&kept, task));
    let blind = ExecutorScheduler::over(Inline, odd);
    let [first, second] = [(); 2].map(|()| blind.worker());
    is_panicking.store(true, Ordering::Relaxed);
    assert!(ends(move || play(stop, first, second)));
    stops.store(true, Ordering::Relaxed);
    assert!(has_a_tick_thread(&timers));
}

/// Whether the clocks go on or stand still.
#[test]
fn inline_workers_of_ever_new_clocks_let_the_call_go_soon() {
    let (real, (still, _driver)) = (Scheduler::new(), driven());
    for (timers, takes) in [(&real, MS), (&still, Duration::ZERO)] {
        let stops = Arc::new(AtomicBool::new(false));
        let (stop, kept, count) = (Arc::clone(&stops), timers.clone(), Arc::default());
        let ran = Arc::clone(&count);
        assert!(ends(move || play_on_new_ones(stop, kept, takes, count)));
        // Those that have come in the first 100 ms are one after the other in time for as long again.
        assert!(takes.is_zero() || ran.load(Ordering::Relaxed) < 800);
        stops.store(true, Ordering::Relaxed);
    }
}

fn play_on_new_ones(
    stops: Arc<AtomicBool>,
    timers: Scheduler,
    takes: Duration,
    count: Arc<AtomicUsize>,
) {
    count.fetch_add(1, Ordering::Relaxed);
    if !stops.load(Ordering::Relaxed) {
        thread::sleep(takes);
        let worker = ExecutorScheduler::over(Inline, wrapping(&timers, Fixed)).worker();
        worker.schedule(move || play_on_new_ones(stops, timers, takes, count));
    }
}

/// The call is the last owner of the timers of a worker.
#[test]
fn what_the_drop_of_timers_brings_at_the_end_of_a_call_is_not_lost() {
    let (timers, driver) = driven();
    let (log, clock, kept) = (Log::default(), timers.clone(), timers.clone());
    let [outer, late] = [(); 2].map(|()| ExecutorScheduler::new(Inline, &timers).worker());
    let (first, second, brought) = (log.task(1), log.clone(), late.clone());
    outer.schedule(move || {
        let brings = OnDrop(move || drop(brought.schedule(second.task(2))));
        let odd = TasksOnly::new(
            move || clock.now(),
            move |due: Due, task| {
                _ = &brings;
                due.on(&kept, task)
            },
        );
        ExecutorScheduler::over(Inline, odd).worker().schedule(first);
    });
    driver.advance(MS);
    late.schedule(log.task(3));
    assert_eq!(log.all(), [1, 2, 3]);
}

/// As long as a clock stands still, its drains take no time, whatever the clocks of others say.
#[test]
fn a_call_runs_all_in_virtual_time_also_beside_workers_of_real_time() {
    let (real, (still, _driver)) = (Scheduler::new(), driven());
    let [first, second] = [(); 2].map(|()| ExecutorScheduler::new(Inline, &still).worker());
    let [starts, beside] = [(); 2].map(|()| ExecutorScheduler::new(Inline, &real).worker());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    starts.schedule(move || {
        beside.schedule(|| ());
        back_and_forth(counted, first, second, beside);
    });
    assert_eq!(count.load(Ordering::Relaxed), ROUNDS);
}

const ROUNDS: usize = 20;

fn back_and_forth(count: Arc<AtomicUsize>, mine: Worker, other: Worker, beside: Worker) {
    if count.load(Ordering::Relaxed) < ROUNDS {
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(MS * 10);
        beside.schedule(|| ());
        let server = other.clone();
        server.schedule(move || back_and_forth(count, other, mine, beside));
    }
}

/// The thread that hands the drain over is the executor's own, which finishes: it would run the queue to its end (DRAIN-3).
#[test]
fn a_reset_runs_nothing_in_the_call_also_if_the_executor_finishes() {
    let quits: [fn(&TaskRunner); 3] =
        [TaskRunner::quit_safely, TaskRunner::quit_when_idle, TaskRunner::quit];
    for (quit, is_own) in quits.into_iter().flat_map(|quit| [(quit, false), (quit, true)]) {
        let looper = MessageLoop::prepare().expect("the first one");
        let runner = looper.runner();
        let (timers, _driver) = driven();
        let worker = if is_own {
            Worker::new(runner.clone())
        } else {
            ExecutorScheduler::over(runner.clone(), wrapping(&timers, Fixed)).worker()
        };
        let lock = Arc::new(Mutex::new(()));
        let (of_task, log) = (Arc::clone(&lock), Log::default());
        let said = log.clone();
        let task = worker.schedule_after(HOUR, move || {
            said.say(u32::from(of_task.try_lock().is_err()));
        });
        let (moved, of_loop) = (task.clone(), runner.clone());
        let posted = runner.post(move || {
            quit(&of_loop);
            let held = lock.lock();
            moved.reset(Duration::ZERO);
            drop(held);
        });
        assert!(posted.is_ok());
        looper.run_until_idle();
        assert!(!log.all().contains(&1), "it ran under the lock of its caller");
        drop(looper);
        until("the task is over", || task.is_done());
    }
    let pool = Arc::new(ThreadPool::new(1));
    let (timers, _driver) = driven();
    let worker = ExecutorScheduler::over(Arc::clone(&pool), wrapping(&timers, Fixed)).worker();
    let (ran, says) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let has_run = Arc::clone(&ran);
    let task = worker.schedule_after(HOUR, move || has_run.store(true, Ordering::Relaxed));
    let (own, moved, said) = (Arc::clone(&pool), task.clone(), says.0);
    let in_the_pool = DueTask::new(Instant::now(), move || {
        own.shutdown();
        moved.reset(Duration::ZERO);
        _ = said.send(ran.load(Ordering::Relaxed));
    });
    assert!(pool.execute(in_the_pool).is_ok());
    assert_eq!(says.1.recv_timeout(PATIENCE), Ok(false));
    until("the task is over", || task.is_done());
}

#[test]
fn a_destructor_that_panics_in_a_call_that_runs_nothing_keeps_no_inline_worker_of_the_thread() {
    silence();
    let (timers, driver) = driven();
    let (clock, kept, is_first) = (timers.clone(), timers.clone(), AtomicBool::new(true));
    let odd = TasksOnly::new(
        move || clock.now(),
        move |due: Due, task| {
            if is_first.swap(false, Ordering::Relaxed) {
                let grenade = OnDrop(|| panic_on_purpose());
                let inner = TasksOnly::new(Instant::now, move |_, task: Task| {
                    _ = &grenade;
                    task();
                    Ok(Cancellable::already_cancelled())
                });
                let passing = ExecutorScheduler::over(Inline, inner).worker();
                passing.schedule(|| ());
                passing.dispose();
            }
            due.on(&kept, task)
        },
    );
    let worker = ExecutorScheduler::over(Inline, odd).worker();
    let call = || drop(worker.schedule_after(HOUR, || ()));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_ok());
    let log = Log::default();
    ExecutorScheduler::new(Inline, &timers).worker().schedule(log.task(1));
    driver.turn();
    assert_eq!(log.all(), [1]);
}

#[test]
fn a_destructor_that_panics_in_an_attempt_keeps_no_other_worker_waiting() {
    silence();
    let (timers, driver) = driven();
    let (refuses, log) = (Arc::new(AtomicBool::new(true)), Log::default());
    let is_refusing = Arc::clone(&refuses);
    let executor = move |task: DueTask| {
        if !is_refusing.load(Ordering::Relaxed) {
            task.run();
        }
    };
    let workers = ExecutorScheduler::new(executor, &timers);
    let grenade = OnDrop(|| panic_on_purpose());
    let doomed = workers.clone().on_panic(move |_| _ = &grenade).worker();
    doomed.schedule(|| ());
    drop(doomed);
    let other = workers.worker();
    other.schedule(log.task(1));
    refuses.store(false, Ordering::Relaxed);
    driver.advance(HOUR);
    driver.advance(HOUR);
    assert_eq!(log.all(), [1]);
}

#[test]
fn a_reset_through_any_number_of_inline_workers_stays_in_virtual_time() {
    for depth in 1..12 {
        let (timers, driver) = driven();
        let mut keeper = ExecutorScheduler::new(Inline, &timers).worker();
        for _ in 1..depth {
            keeper = ExecutorScheduler::over(Inline, keeper).worker();
        }
        let worker = ExecutorScheduler::over(Inline, wrapping(&keeper, Fixed)).worker();
        let (on, said) = (Arc::new(Mutex::new(None)), mpsc::channel());
        let (ran_on, tell) = (Arc::clone(&on), said.0);
        let task = worker.schedule_after(HOUR, move || {
            *ran_on.lock().expect("whole") = Some(thread::current().id());
            _ = tell.send(());
        });
        assert!(task.reset(Duration::ZERO));
        assert_eq!(*on.lock().expect("whole"), None, "over {depth}");
        driver.advance(MS);
        assert!(said.1.try_recv().is_ok(), "over {depth}");
        assert_eq!(*on.lock().expect("whole"), Some(thread::current().id()), "over {depth}");
    }
}

/// A schedule nests a loop in a call that moves a task. What that loop gives to this thread runs at once, because the loop may
/// wait for it.
#[test]
fn a_drain_from_a_nested_loop_runs_at_once_also_in_a_call_that_runs_none() {
    let (timers, _driver) = driven();
    let (queued, log) = (Arc::new(Mutex::new(Vec::new())), Log::default());
    let queue = Arc::clone(&queued);
    let into_a_queue = move |task: DueTask| queue.lock().expect("whole").push(task);
    let other = ExecutorScheduler::new(into_a_queue, &timers).worker();
    let (nests, in_the_loop) = (Arc::new(AtomicBool::new(false)), log.clone());
    let (is_nesting, clock, kept) = (Arc::clone(&nests), timers.clone(), timers.clone());
    let odd = TasksOnly::new(
        move || clock.now(),
        move |due: Due, task| {
            if is_nesting.load(Ordering::Relaxed) {
                other.schedule(in_the_loop.task(1));
                let tasks = std::mem::take(&mut *queued.lock().expect("whole"));
                tasks.into_iter().for_each(DueTask::run);
                in_the_loop.say(2);
            }
            Ok(Cancellable::from(Arc::new(Fixed(due.on(&kept, task)?))))
        },
    );
    let task = ExecutorScheduler::over(Inline, odd).worker().schedule_after(HOUR, || ());
    let moves = move |due: DueTask| {
        task.reset(MS * 30);
        due.run();
    };
    let calls = ExecutorScheduler::new(moves, &timers).worker();
    nests.store(true, Ordering::Relaxed);
    calls.schedule(|| ());
    assert_eq!(log.all(), [1, 2]);
}

/// Returns a worker whose drain waits in a queue, and what runs all that is in there.
fn in_a_loop(timers: &Scheduler) -> (Worker, impl Fn() + Send + Sync + 'static) {
    let queued = Arc::new(Mutex::new(Vec::new()));
    let queue = Arc::clone(&queued);
    let into_a_queue = move |task: DueTask| queue.lock().expect("whole").push(task);
    let turn = move || {
        let tasks = std::mem::take(&mut *queued.lock().expect("whole"));
        tasks.into_iter().for_each(DueTask::run);
    };
    (ExecutorScheduler::new(into_a_queue, timers).worker(), turn)
}

/// A task of an inline worker nests a loop. A task there brings an inline worker something, maybe with a lock held.
#[test]
fn a_nested_loop_runs_nothing_that_waits_for_the_drain_below_it() {
    let (timers, _driver) = driven();
    let (in_the_loop, turn) = in_a_loop(&timers);
    let [outer, waits, inner] = [(); 3].map(|()| ExecutorScheduler::new(Inline, &timers).worker());
    let log = Log::default();
    let (nested, waiting, ends) = (log.task(1), log.task(4), log.task(2));
    let said = log.clone();
    outer.schedule(move || {
        waits.schedule(waiting);
        in_the_loop.schedule(move || {
            inner.schedule(nested);
            ends();
        });
        turn();
        said.say(3);
    });
    assert_eq!(log.all(), [1, 2, 3, 4]);
}

/// An executor drops a drain. The schedule that has to keep the time of the next attempt nests a loop.
#[test]
fn a_drain_from_a_nested_loop_runs_at_once_also_while_another_one_is_handed_over() {
    let (timers, _driver) = driven();
    let (in_the_loop, turn) = in_a_loop(&timers);
    let [outer, inner] = [(); 2].map(|()| ExecutorScheduler::new(Inline, &timers).worker());
    let (log, kept) = (Log::default(), timers.clone());
    let (said, in_the_call) = (log.clone(), log.clone());
    let nests = TasksOnly::new(Instant::now, move |due: Due, task| {
        let (said, inner, nested) = (said.clone(), inner.clone(), said.task(1));
        in_the_loop.schedule(move || {
            inner.schedule(nested);
            said.say(2);
        });
        turn();
        in_the_call.say(3);
        due.on(&kept, task)
    });
    let dropped = ExecutorScheduler::over(drop::<DueTask>, nests).worker();
    outer.schedule(move || drop(dropped.schedule(|| ())));
    assert_eq!(log.all(), [1, 2, 3]);
}

#[test]
fn a_reset_in_a_thread_that_ends_runs_nothing_in_the_call() {
    type AtEnd = OnDrop<Box<dyn FnMut()>>;
    thread_local!(static END: RefCell<Option<AtEnd>> = const { RefCell::new(None) });
    let (timers, _driver) = driven();
    let worker = ExecutorScheduler::over(Inline, wrapping(&timers, Fixed)).worker();
    let (said, ran_on) = mpsc::channel();
    let task = worker.schedule_after(HOUR, move || _ = said.send(thread::current().id()));
    let other = ExecutorScheduler::new(Inline, &timers).worker();
    let ended = thread::spawn(move || {
        let reset = move || assert!(task.reset(Duration::ZERO));
        END.with(|end| *end.borrow_mut() = Some(OnDrop(Box::new(reset))));
        other.schedule(|| ()); // the list of those that wait is made now, and goes before `END`
        thread::current().id()
    });
    let ended = ended.join().expect("it does not panic");
    assert_ne!(ran_on.recv_timeout(PATIENCE), Ok(ended));
}

/// Returns two workers of which each hands what is due to the other one. Only a delay is kept by a scheduler.
fn each_other_s_keepers(timers: &Scheduler) -> [Worker; 2] {
    let workers = [(); 2].map(|()| Arc::new(OnceLock::<Worker>::new()));
    for (own, other) in [(0, 1), (1, 0)] {
        let (other, kept) = (Arc::clone(&workers[other]), timers.clone());
        let to_the_other = TasksOnly::new(Instant::now, move |due: Due, task| {
            let handle = match due {
                Due::At(at) if at <= Instant::now() => {
                    due.on(other.get().expect("it is made by now"), task)?
                }
                _ => due.on(&kept, task)?,
            };
            Ok(Cancellable::from(Arc::new(Fixed(handle))))
        });
        let worker = ExecutorScheduler::over(Inline, to_the_other).worker();
        assert!(workers[own].set(worker).is_ok());
    }
    workers.map(|worker| worker.get().expect("it is made").clone())
}

#[test]
fn a_reset_of_a_worker_whose_keeper_waits_for_it_is_not_lost() {
    let [worker, _other] = each_other_s_keepers(&Scheduler::new());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let task = worker.schedule_after(HOUR, move || _ = counted.fetch_add(1, Ordering::Relaxed));
    assert!(task.reset(Duration::ZERO));
    assert_eq!(count.load(Ordering::Relaxed), 0);
    until("it runs", || count.load(Ordering::Relaxed) == 1);
}

#[test]
fn a_call_that_lasts_too_long_loses_no_worker_whose_keeper_waits_for_it() {
    let (stops, [first, second]) = (Arc::default(), each_other_s_keepers(&Scheduler::new()));
    let (stop, player, other) = (Arc::clone(&stops), first.clone(), second.clone());
    let has_ended = ends(move || play(stop, player, other));
    stops.store(true, Ordering::Relaxed);
    assert!(has_ended);
    let log = Log::default();
    _ = [&first, &second].map(|worker| worker.schedule(log.task(1)));
    until("all have run", || log.all().len() == 2);
}

/// Such timers are wrong, and their tasks run early. But a call that sets one returns.
#[test]
fn timers_that_run_each_task_in_the_call_hold_nobody() {
    let at_once = TasksOnly::new(Instant::now, |_, task: Task| {
        task();
        Ok(Cancellable::already_cancelled())
    });
    let worker = ExecutorScheduler::over(Inline, at_once).worker();
    let (stops, player) = (Arc::<AtomicBool>::default(), worker.clone());
    let stop = Arc::clone(&stops);
    let has_ended = ends(move || play(stop, player.clone(), player));
    stops.store(true, Ordering::Relaxed);
    assert!(has_ended);
    let (said, ran_on) = mpsc::channel();
    let (caller, is_over) = mpsc::channel();
    assert!(ends(move || {
        worker.schedule_after(HOUR, move || _ = said.send(thread::current().id()));
        _ = caller.send((thread::current().id(), worker));
    }));
    let (caller, _worker) = is_over.recv_timeout(PATIENCE).expect("it has ended");
    assert!(ran_on.recv_timeout(PATIENCE).is_ok_and(|ran_on| ran_on != caller));
}
