//! Workers of a `SingleThreadScheduler`: one order on one thread, which ends with its handles. In virtual time, on a real
//! thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::ledger::{End, Ledger};
use crate::common::log::Log;
use crate::common::{
    Grenade, Moody, OnDrop, PATIENCE, Random, count, panic_on_purpose, silence, until,
};
use tickwheel::rx::{SingleThreadScheduler, Worker};
use tickwheel::{ManualClock, Schedule, ScheduleError, ScheduleExt};

const SECOND: Duration = Duration::from_secs(1);

fn on_virtual_time() -> (SingleThreadScheduler, ManualClock) {
    silence();
    let clock = ManualClock::new();
    (SingleThreadScheduler::with_clock("one", clock.clone()).expect("a thread"), clock)
}

/// Keeps the thread busy until the sender is dropped.
fn occupy(worker: &Worker) -> mpsc::Sender<()> {
    let ((release, released), (sender, busy)) = (mpsc::channel::<()>(), mpsc::channel());
    worker.schedule(move || {
        sender.send(()).expect("it waits");
        _ = released.recv();
    });
    busy.recv_timeout(PATIENCE).expect("it runs");
    release
}

/// Returns a flag that is set when the thread of this worker ends.
fn watch_the_end(worker: &Worker) -> Arc<AtomicBool> {
    thread_local!(static AT_END: RefCell<Vec<Box<dyn std::any::Any>>> = RefCell::default());
    let ended = Arc::new(AtomicBool::new(false));
    let sets = Arc::clone(&ended);
    let (sender, receiver) = mpsc::channel();
    worker.schedule(move || {
        let guard = OnDrop(move || sets.store(true, Ordering::Release));
        AT_END.with(|at_end| at_end.borrow_mut().push(Box::new(guard)));
        sender.send(()).expect("it waits");
    });
    receiver.recv_timeout(PATIENCE).expect("it runs");
    ended
}

/// A task without a delay is due when it is scheduled, so it runs between two others although both are overdue.
#[test]
fn s03_all_workers_have_one_order_of_deadline_and_age() {
    let (workers, clock) = on_virtual_time();
    let [one, two, three] = [(); 3].map(|()| workers.worker());
    let (release, log, begin) = (occupy(&three), Log::default(), three.now());
    one.schedule_after(2 * SECOND, log.task(5));
    two.schedule_after(SECOND, log.task(1));
    one.schedule_after(SECOND, log.task(2));
    clock.advance(SECOND);
    three.schedule(log.task(3));
    one.schedule(log.task(4));
    clock.advance(SECOND);
    two.schedule(log.task(6));

    three.schedule_at(begin, log.task(7)).expect("open");
    one.schedule_after(SECOND, log.task(8));
    drop(release);
    until("all that is due has run", || log.all().len() == 7);
    clock.advance(SECOND);
    until("the last one has run", || log.all().len() == 8);
    assert!(log.all().into_iter().eq(1..=8), "{:?}", log.all());
}

/// By its plan alone, a series that lags behind would come before all that is due later than it was.
#[test]
fn a_series_that_lags_behind_starves_no_other_worker() {
    let (workers, clock) = on_virtual_time();
    let (lags, other, log) = (workers.worker(), workers.worker(), Log::default());
    let said = log.clone();
    let series = lags.schedule_periodically(SECOND, SECOND, move || said.say(1));
    let release = occupy(&other);
    clock.advance(1000 * SECOND);
    let said = log.clone();
    other.schedule(move || {
        said.say(2);
        series.cancel();
    });
    drop(release);
    until("the other's has run", || log.all().contains(&2));
    assert_eq!(log.all(), [1, 2]);
}

#[test]
fn the_thread_has_the_name_and_ends_with_the_last_handle() {
    let (workers, clock) = on_virtual_time();
    let (worker, (sender, receiver)) = (workers.worker(), mpsc::channel());
    let name = move || sender.send(thread::current().name().map(String::from)).expect("it waits");
    worker.schedule(name);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(Some("one".into())));
    let (ended, log) = (watch_the_end(&worker), Log::default());
    drop((workers.clone(), workers)); // the worker is a handle too
    worker.schedule(log.task(1));
    until("it runs", || log.all() == [1]);
    // A task that waits keeps the thread, and its handle works.
    let waits = worker.schedule_after(SECOND, log.task(2));
    let cancelled = worker.schedule_after(2 * SECOND, log.task(3));
    drop(worker);
    assert!(waits.reset(4 * SECOND) && cancelled.cancel());
    clock.advance(3 * SECOND);
    assert!(!ended.load(Ordering::Acquire) && !waits.is_done());
    clock.advance(SECOND);
    until("the thread ends", || ended.load(Ordering::Acquire));
    assert_eq!(log.all(), [1, 2]);
    assert!(waits.is_done() && !waits.reset(SECOND));

    // So does a series, until a cancel.
    let worker = SingleThreadScheduler::new("a\0b").expect("a name without the zero").worker();
    let ended = watch_the_end(&worker);
    let series = worker.schedule_periodically(Duration::from_secs(3600), SECOND, || ());
    drop(worker);
    assert!(!series.is_done() && series.cancel());
    until("the thread ends", || ended.load(Ordering::Acquire));
}

/// The last handle may go on any thread, also in a task, a destructor and a hook of the thread itself.
#[test]
fn the_last_handle_may_be_dropped_on_the_thread_itself() {
    for from_a_destructor in [false, true] {
        let (workers, _clock) = on_virtual_time();
        let worker = workers.worker();
        let (ended, release) = (watch_the_end(&worker), occupy(&worker));
        let own = (workers.on_panic(|_| ()), worker.clone());
        let guard = OnDrop({
            let mut own = Some(own);
            move || drop(own.take())
        });
        if from_a_destructor {
            worker.schedule(move || {
                let _guard = &guard;
                panic_on_purpose();
            });
        } else {
            worker.schedule(move || drop(guard));
        }
        drop((worker, release));
        until("the thread ends", || ended.load(Ordering::Acquire));
    }
    for _ in 0..200 {
        drop(SingleThreadScheduler::new("unused").expect("a thread"));
    }
}

/// Also if the turn of a task comes while the disposal drops another one.
#[test]
fn s09_a_disposal_drops_all_closures_before_it_returns() {
    let (workers, _clock) = on_virtual_time();
    let (one, other, log) = (workers.worker(), workers.worker(), Log::default());
    let (release, behind) = (Mutex::new(Some(occupy(&other))), log.clone());
    let first = OnDrop(move || {
        drop(release.lock().expect("whole").take());
        until("the turn of the second one has come and gone", || behind.all() == [1]);
    });
    let (sender, dropped_by) = mpsc::channel();
    let second = OnDrop(move || sender.send(thread::current().id()).expect("awaited"));
    one.schedule(move || drop(first));
    one.schedule(move || drop(second));
    other.schedule(log.task(1));
    one.dispose();
    assert_eq!(dropped_by.try_recv(), Ok(thread::current().id()));
}

#[test]
fn nothing_starts_during_a_disposal_whose_destructors_take_long() {
    let (workers, clock) = on_virtual_time();
    let (one, other, log) = (workers.worker(), workers.worker(), Log::default());
    let is_due = Arc::new(AtomicBool::new(false));
    for id in 0..9 {
        // The first one that the disposal drops lets the others be due, until their turns have come and gone.
        let (clock, is_first, others) = (clock.clone(), Arc::clone(&is_due), log.clone());
        let slow = OnDrop(move || {
            if !is_first.swap(true, Ordering::Relaxed) {
                clock.advance(SECOND);
                until("the tasks behind have run", || others.all().contains(&100));
            }
        });
        let said = log.clone();
        one.schedule_after(SECOND, move || {
            let _slow = &slow;
            said.say(id);
        });
    }
    let said = log.clone();
    other.schedule_after(SECOND, move || said.say(100));
    one.dispose();
    assert!(is_due.load(Ordering::Relaxed));
    assert_eq!((log.all(), one.pending()), (vec![100], 0));
}

#[test]
fn a_disposal_cancels_the_tasks_of_that_worker_alone() {
    let (workers, clock) = on_virtual_time();
    let (one, other, log) = (workers.worker(), workers.worker(), Log::default());
    let (release, ledger) = (occupy(&other), Ledger::new(200));
    for id in 0..100 {
        let (delay, page) = (SECOND * (id as u32 % 3), ledger.page(id));
        one.schedule_after(delay, move || page.run());
        let page = ledger.page(100 + id);
        other.schedule_after(delay, move || page.run());
    }
    let held = Arc::new(());
    let captured = Arc::clone(&held);
    one.schedule_periodically(SECOND, SECOND, move || drop(Arc::clone(&captured)));
    assert_eq!((one.pending(), other.pending()), (101, 100));
    one.dispose();
    one.dispose();
    assert_eq!((one.pending(), other.pending()), (0, 100));
    assert_eq!((ledger.tally().of(End::Dropped), Arc::strong_count(&held)), (100, 1));
    assert!(one.is_disposed() && !other.is_disposed() && one.schedule(|| ()).is_cancelled());
    let refused = one.try_schedule(|| ()).expect_err("disposed");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    drop(release);
    clock.advance(2 * SECOND);
    until("all have ended", || ledger.is_closed());
    assert!((100..200).all(|id| ledger.has_run(id)));
    // From inside a task, a destructor and a series, which does not run again.
    let (own, said) = (other.clone(), log.clone());
    let disposes = OnDrop(move || {
        said.say(3);
        own.dispose();
        said.say(4);
    });
    let said = log.clone();
    let series = other.schedule_periodically(Duration::ZERO, SECOND, move || -> () {
        let _disposes = &disposes;
        said.say(1);
        panic_on_purpose();
    });
    until("it ends", || series.is_done() && other.is_disposed());
    assert_eq!(log.all(), [1, 3, 4]);
    assert!(workers.worker().try_schedule(|| ()).is_ok(), "the scheduler gives out more");
}

#[test]
fn s17_panics_of_tasks_drops_and_hooks_end_neither_the_thread_nor_the_others() {
    let (workers, clock) = on_virtual_time();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let one = workers
        .clone()
        .on_panic(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            panic_on_purpose();
        })
        .worker();
    let (other, log) = (workers.worker(), Log::default());
    for round in 0..10 {
        one.schedule(|| panic_on_purpose());
        let grenade = Grenade;
        one.schedule_after(SECOND, move || drop(grenade));
        other.schedule(log.task(round));
        other.schedule(|| panic_on_purpose()); // not told to the hook of another worker
        let grenade = Grenade;
        assert!(one.schedule_after(SECOND, move || drop(grenade)).cancel());
        clock.advance(SECOND);
    }
    until("all are told", || told.load(Ordering::Relaxed) == 30);
    until("all have run", || log.all().into_iter().eq(0..10));
}

/// A clock that panics costs its thread a pause, and no task.
#[test]
fn s17_a_clock_that_panics_loses_no_task() {
    silence();
    let (clock, countdown) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let moody = Moody(clock.clone(), Arc::clone(&countdown));
    let worker = SingleThreadScheduler::with_clock("moody", moody).expect("a thread").worker();
    let log = Log::default();
    for number in 0..3 {
        let release = occupy(&worker);
        worker.schedule(log.task(number));
        countdown.store(1, Ordering::Relaxed); // the thread reads it when it looks for the next task
        drop(release);
        until("it runs all the same", || log.all().len() == number as usize + 1);
    }
}

/// The task was taken in before, so the wait ends, and the hook is told.
#[test]
fn s17_a_clock_that_panics_while_it_holds_a_producer_back_ends_the_wait() {
    silence();
    let (clock, countdown) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let moody = Moody(clock.clone(), Arc::clone(&countdown));
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let workers = SingleThreadScheduler::with_clock("moody", moody).expect("a thread");
    let worker = workers.on_panic(move |_| _ = count.fetch_add(1, Ordering::Relaxed)).worker();
    let log = Log::default();
    let release = occupy(&worker);
    (0..4200).for_each(|number| drop(worker.schedule(log.task(number)))); // so long that it may be behind
    countdown.store(2, Ordering::Relaxed); // the first reading is for the task, and the second for the wait
    let last = worker.schedule(log.task(4200));
    assert_eq!((told.load(Ordering::Relaxed), last.is_cancelled()), (1, false));
    drop(release);
    until("all have run", || log.all().into_iter().eq(0..=4200));
}

#[test]
fn s25_each_worker_has_a_limit_of_its_own() {
    let (workers, _clock) = on_virtual_time();
    let free = workers.worker();
    let workers = workers.max_pending(2);
    let (one, other, release) = (workers.worker(), workers.worker(), occupy(&free));
    let [first, _second] = [(); 2].map(|()| one.schedule(|| ()));
    let refused = one.try_schedule(|| ()).expect_err("full");
    assert_eq!(refused.reason(), ScheduleError::Full);
    assert!(!other.schedule(|| ()).is_cancelled() && !free.schedule(|| ()).is_cancelled());
    assert!(first.cancel() && one.try_schedule(|| ()).is_ok());
    drop(release);
    until("all have run", || one.pending() + other.pending() + free.pending() == 0);
}

/// Workers, cancels, resets and disposals from several threads. Each task that was accepted ends once.
#[test]
fn s20_a_storm_loses_no_task_and_runs_none_twice() {
    const THREADS: usize = 4;
    let rounds = count(4000, 100_000);
    let workers = SingleThreadScheduler::new("storm").expect("a thread");
    let ledger = Ledger::new(THREADS * rounds);
    let (running, begin) = (AtomicUsize::new(0), Barrier::new(THREADS));
    let running = Arc::new(running);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (workers, ledger, running, begin) = (&workers, &ledger, &running, &begin);
            scope.spawn(move || {
                let (mut random, mut own) =
                    (Random(number as u64), [(); 3].map(|()| workers.worker()));
                let mut handles = Vec::new();
                begin.wait();
                for round in 0..rounds {
                    let (page, running) =
                        (ledger.page(number * rounds + round), Arc::clone(running));
                    let delay = Duration::from_micros(random.below(3) * random.below(500));
                    let worker = random.below(3) as usize;
                    handles.push(own[worker].schedule_after(delay, move || {
                        assert_eq!(
                            running.fetch_add(1, Ordering::AcqRel),
                            0,
                            "they do not overlap"
                        );
                        page.run();
                        running.fetch_sub(1, Ordering::AcqRel);
                    }));
                    let some = random.below(handles.len() as u64) as usize;
                    match random.below(16) {
                        0..4 => _ = handles.swap_remove(some).cancel(),
                        4..8 => _ = handles[some].reset(Duration::from_micros(random.below(500))),
                        8 => {
                            own[worker].dispose();
                            assert_eq!(own[worker].pending(), 0);
                            own[worker] = workers.worker();
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    until("all have ended", || ledger.is_closed());
    ledger.tally().assert_balanced();
}
