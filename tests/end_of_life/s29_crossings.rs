//! The end of life, crosswise: old executors, moves, cancels and closes that meet (S29).

#![allow(clippy::wildcard_imports, clippy::similar_names, reason = "pairs of ends of channels")]

mod pairs;

use crate::common::{PATIENCE, until};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::*;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<VecDeque<DueTask>>>);
impl Executor for Keeper {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.0.lock().unwrap().push_back(task);
        Ok(())
    }
}
impl Keeper {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    fn next(&self) -> DueTask {
        until("handed", || self.len() > 0);
        self.0.lock().unwrap().pop_front().unwrap()
    }
}
fn driven_over(executor: impl Executor) -> (Scheduler, Driver) {
    Scheduler::builder().executor(executor).build_driven().unwrap()
}

#[test]
fn s29_an_old_executor_does_not_run_what_has_moved() {
    let keeper = Keeper::default();
    let (a, driver_a) = driven_over(keeper.clone());
    let (b, driver_b) = driven_over(Inline);
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handle = a
        .schedule_once(Duration::ZERO, move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    driver_a.turn();
    let stale = keeper.next();
    for task in driver_a.close() {
        let _ = task.reschedule(&b).unwrap();
    }
    stale.run();
    assert_eq!(runs.load(Ordering::SeqCst), 0, "the old executor's run is a no-op");
    driver_b.advance(SECOND);
    assert_eq!((runs.load(Ordering::SeqCst), b.pending(), handle.is_done()), (1, 0, true));
    assert_eq!((a.stats().fired(), b.stats().fired()), (0, 1));
}

#[test]
fn s29_an_old_executor_does_not_drop_what_has_moved() {
    let keeper = Keeper::default();
    let (a, driver_a) = driven_over(keeper.clone());
    let (b, driver_b) = driven_over(Inline);
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    a.schedule_repeatedly(Duration::ZERO, SECOND, move || {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    driver_a.turn();
    let stale = keeper.next();
    for task in driver_a.close() {
        let _ = task.reschedule(&b).unwrap();
    }
    drop(stale);
    driver_b.advance(SECOND * 3);
    assert!(
        runs.load(Ordering::SeqCst) >= 3,
        "{} runs, b {:?}",
        runs.load(Ordering::SeqCst),
        b.pending()
    );
}

#[test]
fn s29_what_moves_out_of_a_pool_runs_where_it_is_now() {
    let a = Scheduler::new();
    let (b, driver_b) = driven_over(Inline);
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..300 {
        let count = runs.clone();
        a.schedule_once(Duration::ZERO, move || {
            thread::sleep(MILLI);
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    }
    until("some", || runs.load(Ordering::SeqCst) > 5);
    let left = a.close().unwrap();
    let n = left.len();
    for task in left {
        let _ = task.reschedule(&b).unwrap();
    }
    assert!(a.await_termination(PATIENCE));
    thread::sleep(SECOND);
    let ran_at_a = 300 - n;
    assert_eq!(runs.load(Ordering::SeqCst), ran_at_a, "b has not been turned yet, {n} left");
    driver_b.advance(SECOND);
    assert_eq!((b.pending(), runs.load(Ordering::SeqCst)), (0, 300));
}

#[test]
fn s29_the_run_of_a_series_that_was_cancelled_in_it_is_a_run() {
    for cancel_first in [false, true] {
        let scheduler = Scheduler::builder().shutdown_timeout(SECOND / 5).build().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let (started, starts) = mpsc::channel();
        let running = Arc::new(AtomicBool::new(false));
        let flag = running.clone();
        let handle = scheduler
            .schedule_repeatedly(Duration::ZERO, HOUR, move || {
                flag.store(true, Ordering::SeqCst);
                started.send(()).unwrap();
                wait.recv().unwrap();
                flag.store(false, Ordering::SeqCst);
            })
            .unwrap();
        starts.recv().unwrap();
        if cancel_first {
            assert!(handle.cancel());
        }
        drop(scheduler.close());
        if !cancel_first {
            assert!(handle.cancel());
        }
        let ended = scheduler.await_termination(MILLI * 300);
        let was_running = running.load(Ordering::SeqCst);
        go.send(()).unwrap();
        assert!(!(ended && was_running), "terminated while a run is in progress");
        assert!(scheduler.await_termination(PATIENCE));
    }
}

#[test]
fn s29_series_that_wait_in_an_executor_come_back_in_order() {
    let keeper = Keeper::default();
    let (a, driver) = driven_over(keeper.clone());
    let log = Arc::new(Mutex::new(Vec::new()));
    for name in 0..30 {
        let log = log.clone();
        a.schedule_repeatedly(SECOND, SECOND, move || log.lock().unwrap().push(name)).unwrap();
    }
    driver.advance(SECOND);
    assert_eq!(keeper.len(), 30);
    driver.close().run_all();
    assert_eq!(*log.lock().unwrap(), (0..30).collect::<Vec<_>>());
}

struct BadClock(Arc<AtomicBool>, ManualClock);
impl Clock for BadClock {
    fn now(&self) -> Instant {
        if self.0.load(Ordering::SeqCst) { panic!("clock") } else { self.1.now() }
    }
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        self.1.sleep(sleeper, until);
    }
}
#[test]
fn s17_a_clock_that_panics_behind_a_run_takes_nobody_along() {
    let keeper = Keeper::default();
    let (a, driver) = driven_over(keeper.clone());
    let bad = Arc::new(AtomicBool::new(false));
    let (b, _driver_b) = Scheduler::builder()
        .clock(BadClock(bad.clone(), ManualClock::new()))
        .build_driven()
        .unwrap();
    let (a2, driver2) = (a.clone(), Arc::new(Mutex::new(Some(driver))));
    let d = driver2.clone();
    let bad2 = bad.clone();
    let b2 = b.clone();
    a.schedule_repeatedly(SECOND, SECOND, move || {
        let left = a2.close().unwrap();
        for t in left {
            let _ = t.reschedule(&b2);
        }
        bad2.store(true, Ordering::SeqCst);
    })
    .unwrap();
    d.lock().unwrap().as_ref().unwrap().advance(SECOND);
    let task = keeper.next();
    let out = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.run()));
    let ended = a.await_termination(SECOND / 5);
    bad.store(false, Ordering::SeqCst);
    assert!(out.is_ok() && ended, "unwound {}, ended {ended}", out.is_err());
}

#[test]
fn s29_a_series_that_broke_was_not_cancelled() {
    let keeper = Keeper::default();
    let (a, driver) = driven_over(keeper.clone());
    let (b, _db) = driven_over(Inline);
    let (give, given) = mpsc::channel();
    let a2 = a.clone();
    let handle = a
        .schedule_repeatedly(SECOND, SECOND, move || {
            for t in a2.close().unwrap() {
                give.send(t).unwrap();
            }
            ControlFlow::Break(())
        })
        .unwrap();
    driver.advance(SECOND);
    keeper.next().run();
    let leftover = given.recv().unwrap();
    let moved = leftover.reschedule(&b).unwrap();
    assert_eq!(
        (handle.is_cancelled(), moved.is_cancelled(), moved == handle),
        (false, false, true)
    );
}

#[derive(Clone, Default)]
struct GivesBackLate {
    kept: Arc<Mutex<Vec<DueTask>>>,
    seen: Arc<AtomicUsize>,
}
impl Executor for GivesBackLate {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let mut kept = self.kept.lock().unwrap();
        let oldest = (self.seen.fetch_add(1, Ordering::SeqCst) == 1).then(|| kept.remove(0));
        kept.push(task);
        oldest.map_or(Ok(()), |oldest| Err(Rejected::new(oldest)))
    }
}
#[test]
fn s29_an_executor_that_gives_back_the_oldest_when_it_takes_another() {
    let e = GivesBackLate::default();
    let (a, driver) = driven_over(e.clone());
    a.schedule_once(SECOND, || ()).unwrap();
    a.schedule_once(SECOND * 2, || ()).unwrap();
    driver.advance(SECOND * 4);
    let left = driver.close();
    assert_eq!((left.len(), a.pending()), (2, 0));
    assert!(a.await_termination(SECOND / 5), "nothing runs");
    drop(left);
}

struct Flag(AtomicUsize);
impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
#[test]
fn s29_who_awaits_the_end_is_woken_when_a_run_begins_to_wait_for_it() {
    let keeper = Keeper::default();
    let (a, driver) = driven_over(keeper.clone());
    let (go, wait) = mpsc::channel::<()>();
    let (closes, closed) = mpsc::channel();
    let (begin, begun) = mpsc::channel::<()>();
    let (started, starts) = mpsc::channel();
    let a2 = a.clone();
    a.schedule_repeatedly(SECOND, SECOND, move || {
        started.send(()).unwrap();
        begun.recv().unwrap();
        closes.send(a2.close().unwrap().len()).unwrap();
        wait.recv().unwrap();
    })
    .unwrap();
    driver.advance(SECOND);
    let task = keeper.next();
    let runner = thread::spawn(move || task.run());
    starts.recv().unwrap();
    let mut stop = pin!(a.stop());
    let flag = Arc::new(Flag(AtomicUsize::new(0)));
    let waker = Waker::from(flag.clone());
    thread::sleep(MILLI * 50);
    assert!(stop.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    begin.send(()).unwrap();
    assert_eq!(closed.recv().unwrap(), 1);
    thread::sleep(MILLI * 200);
    let woken = flag.0.load(Ordering::SeqCst);
    let ready = matches!(stop.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(_));
    go.send(()).unwrap();
    runner.join().unwrap();
    assert!(woken > 0 || !ready, "ready, and nobody woke it");
}

#[test]
fn s24_series_that_end_their_runs_during_the_last_turn_are_dropped() {
    #[derive(Default)]
    struct Drops(AtomicUsize);
    struct Cap(Arc<Drops>);
    impl Drop for Cap {
        fn drop(&mut self) {
            self.0.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let mut bad = 0;
    for _ in 0..3 {
        let drops = Arc::new(Drops::default());
        let keeper = Keeper::default();
        let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build().unwrap();
        // An executor that keeps a task, and by that the scheduler.
        let own = scheduler.with_executor(keeper.clone());
        let _k = own.schedule_once(Duration::ZERO, || ()).unwrap();
        for _ in 0..200_000 {
            let _ = scheduler.schedule_once(HOUR, || ()).unwrap();
        }
        for _ in 0..50 {
            let cap = Cap(drops.clone());
            scheduler
                .schedule_repeatedly(Duration::ZERO, Duration::from_micros(1), move || {
                    let _c = &cap;
                    thread::sleep(Duration::from_micros(100));
                })
                .unwrap();
        }
        until("kept", || keeper.len() == 1);
        thread::sleep(MILLI * 50);
        drop((own, scheduler));
        until("dropped", || drops.0.load(Ordering::SeqCst) == 50);
        let n = drops.0.load(Ordering::SeqCst);
        if n != 50 {
            bad += 1;
        }
        drop(keeper.next());
    }
    assert_eq!(bad, 0);
}

struct CancelClock {
    on: AtomicBool,
    handle: Mutex<Option<Cancellable>>,
    won: AtomicUsize,
    inner: ManualClock,
}
struct C(Arc<CancelClock>);
impl Clock for C {
    fn now(&self) -> Instant {
        if self.0.on.load(Ordering::SeqCst) {
            let h = self.0.handle.lock().unwrap().take();
            if let Some(h) = h {
                if h.cancel() {
                    self.0.won.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        self.0.inner.now()
    }
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        self.0.inner.sleep(sleeper, until);
    }
}
#[test]
fn s08_a_cancel_does_not_win_against_the_last_run_of_a_leftover() {
    let c = Arc::new(CancelClock {
        on: AtomicBool::new(false),
        handle: Mutex::new(None),
        won: AtomicUsize::new(0),
        inner: ManualClock::new(),
    });
    let (a, driver) =
        Scheduler::builder().clock(C(c.clone())).executor(Inline).build_driven().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let h = a
        .schedule_repeatedly(SECOND, SECOND, move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    *c.handle.lock().unwrap() = Some(h.clone());
    let left: Vec<_> = driver.close().into_iter().collect();
    c.on.store(true, Ordering::SeqCst);
    left.into_iter().for_each(PendingTask::run);
    let (won, ran) = (c.won.load(Ordering::SeqCst), runs.load(Ordering::SeqCst));
    assert!(won + ran == 1, "won {won}, ran {ran}");
}

#[test]
fn s29_a_run_that_has_given_up_waiting_is_waited_for() {
    let builder = Scheduler::builder().executor(ThreadPool::new(2)); // on one processor, too
    let a = builder.shutdown_timeout(SECOND * 3).build().unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let (looked, looks) = mpsc::channel();
    let done = Arc::new(AtomicBool::new(false));
    let (a2, done2) = (a.clone(), done.clone());
    let mut first = true;
    let (begin, begun) = mpsc::channel::<()>();
    let x = a.clone();
    a.schedule_repeatedly(Duration::ZERO, SECOND, move || {
        if !std::mem::replace(&mut first, false) {
            return;
        }
        begun.recv().unwrap();
        let stop = x.stop();
        // the end comes; another run holds up, so this look times out
        let r = stop.wait_timeout(MILLI * 100);
        looked.send(r.is_err()).unwrap();
        wait.recv().unwrap();
        done2.store(true, Ordering::SeqCst);
    })
    .unwrap();
    let (go2, wait2) = mpsc::channel::<()>();
    let mut f2 = true;
    let (s2, started2) = mpsc::channel();
    a.schedule_repeatedly(Duration::ZERO, SECOND, move || {
        if std::mem::replace(&mut f2, false) {
            s2.send(()).unwrap();
            wait2.recv().unwrap();
        }
    })
    .unwrap();
    started2.recv().unwrap();
    begin.send(()).unwrap();
    assert!(looks.recv().unwrap(), "it has given up");
    go2.send(()).unwrap();
    thread::spawn(move || {
        thread::sleep(SECOND / 2);
        go.send(()).unwrap();
    });
    let left = a2.close().unwrap();
    assert!(
        done.load(Ordering::SeqCst),
        "close did not wait for a run that waits for nothing of ours"
    );
    drop(left);
}

#[test]
fn s21_a_driver_that_closes_while_another_thread_stops_gets_the_leftovers() {
    let mut empty = 0;
    for _ in 0..300 {
        let (a, driver) = driven_over(Inline);
        for _ in 0..2000 {
            a.schedule_once(HOUR, || ()).unwrap();
        }
        let b = a.clone();
        let barrier = Arc::new(std::sync::Barrier::new(2));
        let ba = barrier.clone();
        let t = thread::spawn(move || {
            ba.wait();
            b.stop()
        });
        barrier.wait();
        let left = driver.close();
        drop(t.join().unwrap()); // nobody gives anything up before that
        if left.is_empty() {
            empty += 1;
        }
    }
    assert_eq!(empty, 0, "of 300 closes found nothing, though a stop takes nothing");
}

#[test]
fn s25_a_series_that_moves_in_its_run_needs_a_place() {
    let keeper = Keeper::default();
    let (a, driver) = driven_over(keeper.clone());
    let (b, _db) = Scheduler::builder().max_pending(1).build_driven().unwrap();
    b.schedule_once(HOUR, || ()).unwrap();
    let (a2, b2) = (a.clone(), b.clone());
    let ok = Arc::new(AtomicBool::new(false));
    let ok2 = ok.clone();
    let handle = a
        .schedule_repeatedly(SECOND, SECOND, move || {
            for t in a2.close().unwrap() {
                ok2.store(t.try_reschedule(&b2).is_ok(), Ordering::SeqCst);
            }
        })
        .unwrap();
    driver.advance(SECOND);
    keeper.next().run();
    println!(
        "accepted {}, done {}, dropped at a {}",
        ok.load(Ordering::SeqCst),
        handle.is_done(),
        a.stats().dropped()
    );
    assert!(!(ok.load(Ordering::SeqCst) && handle.is_done()));
}

#[test]
fn s20_moves_and_cancels_and_old_executors_lose_nothing() {
    // a storm: executor threads with stale entries, moves, cancels
    let pool = Arc::new(ThreadPool::new(2));
    for round in 0..200 {
        let a = Scheduler::builder().executor(pool.clone()).build().unwrap();
        let (b, db) = driven_over(pool.clone());
        let runs = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..200)
            .map(|_| {
                let runs = runs.clone();
                a.schedule_once(Duration::ZERO, move || {
                    std::thread::yield_now();
                    runs.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap()
            })
            .collect();
        if round % 2 == 0 {
            thread::sleep(Duration::from_micros(50 * (round % 20)));
        }
        let hs = handles.clone();
        let t = thread::spawn(move || hs.iter().step_by(3).filter(|h| h.cancel()).count());
        let left = a.close().unwrap();
        for task in left {
            let _ = task.reschedule(&b).unwrap();
        }
        let won = t.join().unwrap();
        db.turn();
        until("all over", || handles.iter().all(Cancellable::is_done));
        assert!(a.await_termination(PATIENCE));
        assert_eq!(won + runs.load(Ordering::SeqCst), 200, "round {round}");
        assert_eq!((a.pending(), b.pending()), (0, 0), "round {round}");
        let (sa, sb) = (a.stats(), b.stats());
        assert_eq!(sa.fired() + sb.fired(), runs.load(Ordering::SeqCst) as u64);
        assert_eq!(sa.cancelled() + sb.cancelled(), won as u64);
        assert_eq!(sb.fired() + sb.cancelled(), sb.scheduled());
    }
}

/// Two series of two schedulers, each of which closes the other's in its run: neither waits for the other.
#[test]
fn s29_two_runs_that_close_each_others_schedulers_do_not_wait_for_each_other() {
    let (first, second) = (Scheduler::new(), Scheduler::new());
    let meet = Arc::new(std::sync::Barrier::new(2));
    let (tell, told) = mpsc::channel();
    for (mine, other) in [(&first, &second), (&second, &first)] {
        let (other, meet, tell) = (other.clone(), Arc::clone(&meet), tell.clone());
        let mut is_first = true;
        let task = mine.schedule_repeatedly(Duration::ZERO, HOUR, move || {
            if std::mem::take(&mut is_first) {
                meet.wait();
                tell.send(other.close().map(|left| left.len())).expect("the test waits");
            }
        });
        task.expect("open");
    }
    let start = Instant::now();
    let ends: Vec<_> = (0..2).map(|_| told.recv_timeout(PATIENCE).expect("no deadlock")).collect();
    assert_eq!(ends, [Ok(1), Ok(1)]);
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "not by the shutdown timeout: {:?}",
        start.elapsed()
    );
}
