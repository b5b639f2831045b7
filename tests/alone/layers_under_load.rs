//! The layers under overload: hard limits that are exact (S25), soft limits that hold producers back and never lock them out, and
//! cancelled tasks that take no memory.
//!
//! The tests of limits run on virtual time, except for the storms. Floods run in real time, because they are about threads that
//! are faster than others.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Random, count, proc, spin_until, until};
use crate::{alone, in_own_process, live};
use tickwheel::message_loop::{LoopThread, MessageLoop, TaskRunner};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{ExecutorScheduler, SingleThreadScheduler, Worker};
use tickwheel::{
    Cancellable, DueTask, Executor, Inline, ManualClock, Period, Schedule, ScheduleError,
    ScheduleExt, Scheduler, ThreadPool,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Starts a task that waits until the returned sender is dropped. The task is running when this returns.
fn block(layer: &impl Schedule) -> Sender<()> {
    let (release, wait) = channel::<()>();
    let (tell, told) = channel();
    let task = move || {
        tell.send(()).expect("told");
        _ = wait.recv();
    };
    layer.schedule_once(Duration::ZERO, task).expect("open");
    told.recv_timeout(PATIENCE).expect("it runs");
    release
}

// ----- max_pending -------------------------------------------------------------------------

/// Returns the number of free places. It takes all of them, and frees them by cancels.
fn room(layer: &impl Schedule) -> usize {
    let mut taken = Vec::new();
    loop {
        match layer.schedule_once(HOUR, || ()) {
            Ok(handle) => taken.push(handle),
            Err(reason) => {
                assert_eq!(reason, ScheduleError::Full);
                return taken.iter().map(|handle| usize::from(handle.cancel())).sum();
            }
        }
    }
}

/// Checks the promises of a limit of three, on any layer. `advance` moves its clock.
fn a_bound_of_three(layer: &(impl Schedule + Clone + 'static), advance: impl Fn(Duration)) {
    let rate = Period::fixed_rate(SECOND);
    assert_eq!(room(layer), 3);
    let (inner, seen) = (layer.clone(), Arc::new(AtomicUsize::new(0)));
    let tell = Arc::clone(&seen);
    let task = move || tell.store(10 + room(&inner), Ordering::SeqCst);
    layer.schedule_once(SECOND, task).expect("the first place");
    let (runs, one_more) = counter();
    let series = layer.schedule_periodic(2 * SECOND, rate, one_more).expect("the second place");
    let other = layer.schedule_once(HOUR, || ()).expect("the third place");
    assert_eq!(room(layer), 0);
    assert_eq!(layer.schedule_periodic(SECOND, rate, || ()).unwrap_err(), ScheduleError::Full);
    assert!(other.cancel() && !other.cancel());
    assert_eq!(room(layer), 1, "a cancel frees the place at once");
    layer.schedule_once(HOUR, || ()).expect("the third place");
    advance(SECOND);
    until("it runs", || seen.load(Ordering::SeqCst) != 0);
    assert_eq!(seen.load(Ordering::SeqCst), 11, "the place is free when the run starts");
    advance(10 * SECOND);
    until("the series runs", || runs.load(Ordering::SeqCst) == 10);
    assert_eq!(room(layer), 1, "a series holds its place between its runs");
    assert!(series.cancel() && !series.cancel());
    assert_eq!(room(layer), 2);
    advance(HOUR);
    until("the last one has run", || room(layer) == 3);

    // Series that end by themselves, by a panic, and by their own hand.
    crate::common::silence();
    layer.schedule_periodic(SECOND, rate, || ControlFlow::Break(())).expect("a place");
    let panics = || -> ControlFlow<()> { crate::common::panic_on_purpose() };
    layer.schedule_periodic(SECOND, rate, panics).expect("a place");
    assert_eq!(room(layer), 1);
    advance(SECOND);
    until("they have ended", || room(layer) == 3);
    let (own, inner, told) = (Arc::new(Mutex::new(None::<Cancellable>)), layer.clone(), channel());
    let mine = Arc::clone(&own);
    let cancels = move || {
        let handle = mine.lock().expect("no panic").take().expect("it was put there");
        let before = room(&inner);
        let won = (handle.cancel(), handle.cancel());
        told.0.send((before, won, room(&inner))).expect("told");
    };
    let mut place = own.lock().expect("no panic");
    *place = Some(layer.schedule_periodic(SECOND, rate, cancels).expect("a place"));
    drop(place);
    advance(SECOND);
    let told = told.1.recv_timeout(PATIENCE).expect("it runs");
    assert_eq!(told, (2, (true, false), 3), "a cancel in the run frees the place at once");
    assert_eq!(room(layer), 3, "no place is lost, and there are not too many");
}

fn counter() -> (Arc<AtomicUsize>, impl Fn() + Send + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let more = Arc::clone(&count);
    (count, move || _ = more.fetch_add(1, Ordering::SeqCst))
}

#[test]
fn s25_a_pool_refuses_the_next_one_and_a_place_is_free_when_it_should_be() {
    let clock = ManualClock::new();
    let builder = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let pool = builder.max_pending(3).build().expect("threads");
    a_bound_of_three(&pool, |time| clock.advance(time));
    assert_eq!(pool.execute(|| ()), Ok(()));
    pool.shutdown();
    let none = ScheduledThreadPool::builder().max_pending(0).build().expect("threads");
    assert_eq!(none.execute(|| ()), Err(ScheduleError::Full));
    none.shutdown();
    assert_eq!(none.execute(|| ()), Err(ScheduleError::Closed), "and not full");
    assert!(none.await_termination(PATIENCE));
}

#[test]
fn s25_what_a_shutdown_gives_back_frees_its_place_once() {
    let clock = ManualClock::new();
    let builder = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    let pool = builder.max_pending(2).build().expect("threads");
    let one = pool.schedule(HOUR, || 7).expect("a place");
    let series = pool.schedule_at_fixed_rate(HOUR, SECOND, || ()).expect("a place");
    assert_eq!(pool.execute(|| ()), Err(ScheduleError::Full));
    pool.shutdown_now().into_iter().for_each(tickwheel::pool::Unstarted::run);
    assert_eq!(one.join().expect("it ran"), 7);
    assert!(series.is_done());
}

#[test]
fn s25_a_loop_refuses_the_next_one_and_a_place_is_free_when_it_should_be() {
    let clock = ManualClock::new();
    let builder = MessageLoop::builder().clock(clock.clone()).on_panic(|_| ());
    let looper = builder.max_pending(3).prepare().expect("no other one");
    let runner = looper.runner();
    a_bound_of_three(&runner, |time| {
        clock.advance(time);
        looper.run_until_idle();
    });
    // The closures come back, whatever the method.
    (0..3).for_each(|_| _ = runner.post(|| ()).expect("a place"));
    let (ran, one_more) = counter();
    let refused = runner.post(one_more).map(drop).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Full);
    refused.into_task()();
    assert_eq!(ran.load(Ordering::SeqCst), 1, "the very closure");
    let refused = runner.post_and_reply(|| 2, |_| ()).unwrap_err();
    assert_eq!((refused.reason(), refused.into_task().0()), (ScheduleError::Full, 2));
    let local = looper.local_runner();
    let three = std::rc::Rc::new(3);
    let refused = local.post(move || drop(three)).map(drop).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Full);
    refused.into_task()();
    runner.quit();
    let refused = runner.post(|| ()).map(drop).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Closed, "and not full");
}

/// Nobody could take a reply back, so a full loop accepts it.
#[test]
fn s25_a_reply_comes_home_to_a_loop_that_is_full() {
    let looper = MessageLoop::builder().max_pending(1).prepare().expect("no other one");
    let (runner, disk) = (looper.runner(), LoopThread::spawn("disk").expect("a thread"));
    let (told, reply) = counter();
    runner.post(|| ()).expect("the only place");
    disk.runner().post_and_reply(|| (), move |()| reply()).expect("open");
    disk.runner().quit();
    disk.join().expect("no panic");
    assert_eq!(looper.run_until_idle(), 2);
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(room(&runner), 1, "both places are free again");
}

#[test]
fn s25_a_loop_thread_and_a_scheduler_know_the_bound_of_a_loop() {
    let thread = LoopThread::spawn_with("bound", || MessageLoop::builder().max_pending(2));
    let thread = thread.expect("a thread");
    let runner = thread.runner();
    assert_eq!(room(&runner), 2);
    what_is_refused_is_offered_again(&runner, runner.clone());
}

#[test]
fn s25_a_worker_refuses_the_next_one_and_a_place_is_free_when_it_should_be() {
    let (timers, driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    let workers = ExecutorScheduler::new(Inline, &timers).on_panic(|_| ()).max_pending(3);
    let worker = workers.worker();
    a_bound_of_three(&worker, |time| _ = driver.advance(time));
    let kept: Vec<_> = (0..3).map(|_| worker.schedule_after(HOUR, || ())).collect();
    assert_eq!(room(&workers.worker()), 3, "each has places of its own");
    let (ran, one_more) = counter();
    let refused = worker.try_schedule(one_more).map(drop).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Full);
    refused.into_task()();
    assert_eq!(ran.load(Ordering::SeqCst), 1, "the very closure");
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    let refused = worker.schedule(move || drop(hold));
    assert!(refused.is_cancelled() && !refused.cancel());
    assert_eq!(Arc::strong_count(&alive), 1, "the closure is dropped");
    assert!(worker.schedule_periodically(SECOND, SECOND, || ()).is_cancelled());
    worker.dispose();
    assert!(kept.iter().all(Cancellable::is_cancelled));
    let refused = worker.try_schedule(|| ()).map(drop).unwrap_err();
    assert_eq!(refused.reason(), ScheduleError::Closed, "and not full");
}

#[test]
fn s25_a_full_scheduler_takes_no_place_of_a_worker() {
    let builder = Scheduler::builder().max_pending(1);
    let (timers, _driver) = builder.build_driven().expect("good settings");
    let worker = ExecutorScheduler::new(Inline, &timers).max_pending(2).worker();
    let later = worker.schedule_task(HOUR, Box::new(|| ())).expect("a place in both");
    for _ in 0..5 {
        let refused = worker.schedule_task(HOUR, Box::new(|| ()));
        assert_eq!(refused.unwrap_err(), ScheduleError::Full, "by the scheduler");
    }
    assert!(worker.try_schedule(|| ()).is_ok(), "a place of its own is left");
    assert!(later.cancel());
}

#[test]
fn s25_a_scheduler_offers_again_what_a_full_pool_or_worker_refuses() {
    let pool = ScheduledThreadPool::builder().threads(1).max_pending(2).build().expect("threads");
    what_is_refused_is_offered_again(&pool, pool.clone());
    let timers = Scheduler::new();
    let threads = ThreadPool::new(1);
    let worker = ExecutorScheduler::new(threads, &timers).max_pending(2).worker();
    what_is_refused_is_offered_again(&worker, worker.clone());
}

/// On a layer with two places. In real time, because the scheduler's thread tries again in its own.
fn what_is_refused_is_offered_again(layer: &impl Schedule, executor: impl Executor + Clone) {
    let release = block(layer);
    let waiting: Vec<_> = (0..2).map(|_| layer.schedule_once(HOUR, || ())).collect();
    assert!(waiting.iter().all(Result::is_ok));
    let refused = executor.execute(DueTask::new(Instant::now(), || ())).unwrap_err();
    drop(refused.into_task());
    let timers = Scheduler::builder().executor(executor).build().expect("a tick thread");
    let (ran, one_more) = counter();
    timers.schedule_once(Duration::ZERO, one_more).expect("open");
    until("it was refused", || timers.stats().rejected() > 0);
    waiting.into_iter().flatten().for_each(|task| assert!(task.cancel()));
    drop(release);
    until("it was offered again", || ran.load(Ordering::SeqCst) == 1);
}

/// Many threads take places, cancel, and let tasks run. There are never more tasks than the limit, and in the end all places are
/// free.
fn a_storm_of_places(layer: &(impl Schedule + Clone + 'static), bound: usize, seed: u64) {
    let held = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (held, mut random) = (&held, Random(seed * 4 + thread));
            scope.spawn(move || {
                let mut mine = VecDeque::new();
                for _ in 0..count(3_000, 100_000) {
                    match random.below(6) {
                        // These hold their places until they are cancelled here.
                        0..3 => {
                            let Ok(handle) = layer.schedule_once(HOUR, || ()) else { continue };
                            assert!(held.fetch_add(1, Ordering::SeqCst) < bound, "one too many");
                            mine.push_back(handle);
                        }
                        3 => {
                            let Some(handle) = mine.pop_front() else { continue };
                            held.fetch_sub(1, Ordering::SeqCst); // before its place is free
                            assert!(handle.cancel());
                        }
                        // These run, or end, or are cancelled, whichever comes first.
                        4 => {
                            let handle = layer.schedule_once(Duration::ZERO, || ());
                            handle.into_iter().for_each(|handle| _ = handle.cancel());
                        }
                        _ => {
                            let (mut left, period) =
                                (random.below(3), Period::fixed_rate(MILLI / 100));
                            let series = move || {
                                left = left.saturating_sub(1);
                                if left == 0 {
                                    ControlFlow::Break(())
                                } else {
                                    ControlFlow::Continue(())
                                }
                            };
                            let handle = layer.schedule_periodic(Duration::ZERO, period, series);
                            let Ok(handle) = handle else { continue };
                            spin_until(Instant::now() + MILLI / 50);
                            handle.cancel();
                        }
                    }
                }
                for handle in mine {
                    held.fetch_sub(1, Ordering::SeqCst);
                    assert!(handle.cancel());
                }
            });
        }
    });
    until("all places are free", || room(layer) == bound);
}

/// Real threads, because the test is about their races.
#[test]
fn s25_a_bound_is_exact_whoever_races() {
    let _alone = alone();
    let bound = 20;
    let builder = ScheduledThreadPool::builder().threads(2);
    let pool = builder.max_pending(bound).build().expect("threads");
    a_storm_of_places(&pool, bound, 1);
    let builder = move || MessageLoop::builder().max_pending(bound);
    let thread = LoopThread::spawn_with("storm", builder).expect("a thread");
    a_storm_of_places(&thread.runner(), bound, 2);
    let timers = Scheduler::new();
    let workers = ExecutorScheduler::new(ThreadPool::new(2), &timers).max_pending(bound);
    a_storm_of_places(&workers.worker(), bound, 3);
    // A disposal in the middle of it leaves nothing behind, and nobody hangs.
    let worker = workers.worker();
    let other = worker.clone();
    let disposes = thread::spawn(move || other.dispose());
    (0..1_000).for_each(|_| _ = worker.schedule_after(HOUR, || ()));
    disposes.join().expect("no panic");
    assert_eq!(worker.pending(), 0);
}

/// A task that is cancelled leaves its queue before its place is free. Real threads, because the test is about the time
/// between the two.
fn pending_stays_below(bound: usize, layer: &(impl Schedule + Clone), pending: impl Fn() -> usize) {
    let looks = AtomicUsize::new(0);
    thread::scope(|scope| {
        for delay in [Duration::ZERO, HOUR, HOUR] {
            let looks = &looks;
            scope.spawn(move || {
                while looks.load(Ordering::Relaxed) < count(20_000, 500_000) {
                    let task = layer.schedule_once(delay, || ());
                    task.into_iter().for_each(|task| _ = task.cancel());
                }
            });
        }
        while looks.fetch_add(1, Ordering::Relaxed) < count(20_000, 500_000) {
            let pending = pending();
            if pending > bound {
                looks.store(usize::MAX / 2, Ordering::Relaxed); // the threads end
                panic!("{pending} are pending, of at most {bound}");
            }
        }
    });
    until("the last has left", || pending() == 0);
}

#[test]
fn s25_what_is_pending_in_a_pool_or_a_worker_is_never_more_than_its_bound() {
    let _alone = alone();
    let pool = ScheduledThreadPool::builder().threads(1).max_pending(2).build().expect("threads");
    pending_stays_below(2, &pool, || pool.pending());
    let timers = Scheduler::new();
    let workers = ExecutorScheduler::new(ThreadPool::new(1), &timers).max_pending(2);
    let worker = workers.worker();
    pending_stays_below(2, &worker, || worker.pending());
}

// ----- cancelled tasks take no memory ------------------------------------------------------

/// Schedules timeouts and cancels the oldest of a thousand, so often. Bytes that it leaves behind, the last thousand
/// included, which are handed out.
fn churn(layer: &impl Schedule, delay: Duration) -> isize {
    let before = live();
    let mut window = VecDeque::with_capacity(1_001);
    let mut most = 0;
    for round in 0..count(200_000, 5_000_000) {
        // A cancelled task holds its closure no more. Only the task around it is left.
        window.push_back(layer.schedule_task(delay, Box::new(|| ())).expect("open"));
        if window.len() > 1_000 {
            assert!(window.pop_front().is_some_and(|oldest| oldest.cancel()));
        }
        if round % 1_000 == 0 {
            most = most.max(live() - before);
        }
    }
    window.into_iter().for_each(|handle| assert!(handle.cancel()));
    most
}

/// A thousand waiting tasks take some hundred kilobytes, and so may a thousand cancelled ones.
const LITTLE: isize = 2_000_000;

#[test]
fn what_is_cancelled_takes_no_memory_on_a_loop_busy_or_asleep() {
    let Some(_alone) = in_own_process(what_is_cancelled_takes_no_memory_on_a_loop_busy_or_asleep)
    else {
        return;
    };
    let thread = LoopThread::spawn("churn").expect("a thread");
    let runner = thread.runner();
    for delay in [HOUR, 30 * SECOND] {
        let most = churn(&runner, delay);
        assert!(most < LITTLE, "{most} bytes beside a loop that sleeps");
    }
    let release = block(&runner);
    for delay in [HOUR, Duration::ZERO] {
        let most = churn(&runner, delay);
        assert!(most < LITTLE, "{most} bytes beside a loop that is busy, {delay:?}");
    }
    drop(release);
    // Beside one that takes over what comes, all the time.
    let (stop, wakes) = (Arc::new(AtomicBool::new(false)), runner.clone());
    let stopped = Arc::clone(&stop);
    let keeps_it_awake = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            _ = wakes.post_delayed(MILLI / 100, || ());
            thread::sleep(MILLI / 50); // otherwise the test would measure these tasks
        }
    });
    let most = churn(&runner, HOUR);
    stop.store(true, Ordering::Relaxed);
    keeps_it_awake.join().expect("no panic");
    assert!(most < 2 * LITTLE, "{most} bytes beside a loop that works");
}

/// Many threads cancel while a loop sweeps. None of them makes the others wait for too many cancelled tasks.
#[test]
fn what_many_threads_cancel_takes_no_memory_on_a_loop() {
    let Some(_alone) = in_own_process(what_many_threads_cancel_takes_no_memory_on_a_loop) else {
        return;
    };
    let thread = LoopThread::spawn("churn").expect("a thread");
    let runner = thread.runner();
    let most = thread::scope(|scope| {
        let churns: Vec<_> = (0..4).map(|_| scope.spawn(|| churn(&runner, HOUR))).collect();
        churns.into_iter().map(|churn| churn.join().expect("no panic")).max()
    });
    assert!(most.is_some_and(|most| most < 5 * LITTLE), "{most:?} bytes");
    runner.quit();
    thread.join().expect("no panic");
}

#[test]
fn what_is_cancelled_takes_no_memory_on_a_pool_and_on_a_worker() {
    let Some(_alone) = in_own_process(what_is_cancelled_takes_no_memory_on_a_pool_and_on_a_worker)
    else {
        return;
    };
    let pool = ScheduledThreadPool::new(1);
    let most = churn(&pool, HOUR);
    assert!(most < LITTLE, "{most} bytes beside a pool that sleeps");
    let release = block(&pool);
    for delay in [HOUR, Duration::ZERO] {
        let most = churn(&pool, delay);
        assert!(most < LITTLE, "{most} bytes beside a pool that is busy, {delay:?}");
    }
    drop(release);
    let timers = Scheduler::new();
    let worker = ExecutorScheduler::new(ThreadPool::new(1), &timers).worker();
    let release = block(&worker);
    let most = churn(&worker, Duration::ZERO);
    assert!(most < LITTLE, "{most} bytes beside a worker that is busy");
    drop(release);
}

// ----- floods ------------------------------------------------------------------------------

/// Runs a flood from four threads at full speed, of tasks that take longer to run than to schedule. Returns the most tasks that
/// were pending. It runs in real time, because it is about the speed of threads.
fn flood(layer: &(impl Schedule + Clone + 'static), delay: Duration) -> usize {
    let (brought, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let until_then = Instant::now() + Duration::from_millis(count(1_500, 6_000) as u64);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (layer, brought, ran) = (layer.clone(), Arc::clone(&brought), Arc::clone(&ran));
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                let mut most = 0;
                while Instant::now() < until_then {
                    let (count, is_over) = (Arc::clone(&ran), Arc::clone(&is_over));
                    let task = move || {
                        if !is_over.load(Ordering::Relaxed) {
                            spin_until(Instant::now() + MILLI / 20);
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                    };
                    layer.schedule_once(delay, task).expect("open");
                    let brought = brought.fetch_add(1, Ordering::Relaxed) + 1;
                    most = most.max(brought.saturating_sub(ran.load(Ordering::Relaxed)));
                }
                most
            })
        })
        .collect();
    let most = threads.into_iter().map(|thread| thread.join().expect("no panic")).max();
    is_over.store(true, Ordering::Relaxed);
    until("all have run", || ran.load(Ordering::Relaxed) == brought.load(Ordering::Relaxed));
    most.expect("four threads")
}

/// The pending tasks of a flood are fewer than this. Without back-pressure there would be one to four million. It is far more than
/// the soft limits, because a busy machine may leave the consumer without a processor, and the limits grow when it seems to stand
/// still.
const MANY: usize = 700_000;

#[test]
fn a_flood_of_a_pool_is_held_back() {
    let _alone = alone();
    let pool = ScheduledThreadPool::new(1);
    for delay in [Duration::ZERO, MILLI] {
        let most = flood(&pool, delay);
        assert!(most < MANY, "{most} were pending, {delay:?}");
    }
}

#[test]
fn a_flood_of_a_worker_is_held_back() {
    let _alone = alone();
    let timers = Scheduler::new();
    let worker = ExecutorScheduler::new(ThreadPool::new(1), &timers).worker();
    let on_one_thread = SingleThreadScheduler::new("flood").expect("a thread").worker();
    for worker in [worker, on_one_thread] {
        let most = flood(&worker, Duration::ZERO);
        assert!(most < MANY, "{most} were pending");
    }
}

#[test]
fn a_flood_of_a_loop_is_held_back() {
    let _alone = alone();
    let thread = LoopThread::spawn("flood").expect("a thread");
    for delay in [Duration::ZERO, MILLI] {
        let most = flood(&thread.runner(), delay);
        assert!(most < MANY, "{most} were pending, {delay:?}");
    }
}

/// A producer that is ahead of a layer that stands still goes on after some waits, because the layer may wait for this producer.
fn stands_still(layer: &(impl Schedule + Clone + 'static)) {
    let release = block(layer);
    let (ran, one_more) = counter();
    let one_more = Arc::new(one_more);
    let began = Instant::now();
    let posts = count(300_000, 3_000_000);
    for _ in 0..posts {
        let one_more = Arc::clone(&one_more);
        layer.schedule_once(Duration::ZERO, move || one_more()).expect("open");
    }
    assert!(began.elapsed() < PATIENCE, "it is no deadlock");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    drop(release); // on the very thread that was held back
    until("all have run", || ran.load(Ordering::SeqCst) == posts);
}

#[test]
fn who_is_ahead_of_a_layer_that_stands_still_is_not_locked_out() {
    let _alone = alone();
    stands_still(&ScheduledThreadPool::new(1));
    let timers = Scheduler::new();
    let worker: Worker = ExecutorScheduler::new(ThreadPool::new(1), &timers).worker();
    stands_still(&worker);
    stands_still(&SingleThreadScheduler::new("stands still").expect("a thread").worker());
    let thread = LoopThread::spawn("stands still").expect("a thread");
    let runner: TaskRunner = thread.runner();
    stands_still(&runner);
}

/// A task that brings others to its own layer is not held back, otherwise the layer would wait for itself. The test counts
/// context switches, because each wait sleeps several times.
#[test]
fn a_task_that_floods_its_own_layer_does_not_wait() {
    let _alone = alone();
    let posts = 200_000;
    let pool = ScheduledThreadPool::new(1);
    let timers = Scheduler::new();
    let worker = ExecutorScheduler::new(ThreadPool::new(1), &timers).worker();
    let thread = LoopThread::spawn("itself").expect("a thread");
    floods_its_own(&pool, posts);
    floods_its_own(&worker, posts);
    floods_its_own(&SingleThreadScheduler::new("itself").expect("a thread").worker(), posts);
    floods_its_own(&thread.runner(), posts);
}

/// A thread that a layer holds back has waited 141 times by the time that it is told to go on (measured with a pool that stood still).
/// One that is not held back may still meet a lock that is held: six times was the most that was seen.
const HELD_BACK: u64 = 30;

/// Returns the number of voluntary context switches of the calling thread.
fn waits() -> Option<u64> {
    let status = std::fs::read_to_string(proc("thread-self/status")?).ok()?;
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn floods_its_own(layer: &(impl Schedule + Clone + 'static), posts: usize) {
    let (ran, one_more) = counter();
    let (one_more, inner, (tell, told)) = (Arc::new(one_more), layer.clone(), channel());
    let task = move || {
        let before = waits();
        for _ in 0..posts {
            let one_more = Arc::clone(&one_more);
            inner.schedule_once(Duration::ZERO, move || one_more()).expect("open");
        }
        tell.send(waits().zip(before).map(|(after, before)| after - before)).expect("told");
    };
    layer.schedule_once(Duration::ZERO, task).expect("open");
    let waited = told.recv_timeout(PATIENCE).expect("it has run");
    assert!(waited.is_none_or(|waited| waited < HELD_BACK), "{waited:?} waits");
    until("all have run", || ran.load(Ordering::SeqCst) == posts);
}

/// Tasks that are not due hold nobody back, however many there are, because they are no work yet. These are more than may be ahead.
#[test]
fn pending_timers_hold_nobody_back() {
    let _alone = alone();
    let clock = ManualClock::new();
    let builder = ScheduledThreadPool::builder().threads(1).clock(clock.clone());
    brings_timers(&builder.build().expect("threads"));
    let (timers, _driver) = Scheduler::builder().build_driven().expect("the defaults are good");
    brings_timers(&ExecutorScheduler::new(ThreadPool::new(1), &timers).worker());
    let workers = SingleThreadScheduler::with_clock("waits", clock.clone());
    brings_timers(&workers.expect("a thread").worker());
    let looper = MessageLoop::builder().clock(clock).prepare().expect("no other one");
    brings_timers(&looper.runner()); // on its own thread, where it may lie in the inbox for as long as it likes
}

fn brings_timers(layer: &impl Schedule) {
    let before = waits();
    let timers: Vec<_> = (0..150_000).map(|_| layer.schedule_once(HOUR, || ())).collect();
    let waited = waits().zip(before).map(|(after, before)| after - before);
    assert!(waited.is_none_or(|waited| waited < HELD_BACK), "{waited:?} waits");
    timers.into_iter().flatten().for_each(|timer| assert!(timer.cancel()));
}
