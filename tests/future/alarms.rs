//! Alarms, on which the futures stand: the tick thread calls their wakers, in the order of the deadlines, whatever the wakers
//! and the executor do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use crate::common::told::Poller;
use crate::common::{
    Moody, OnDrop, PATIENCE, Random, Wall, count, driven, driven_by, silence, until,
};
use crate::{poll_with, waker};
use tickwheel::{ManualClock, Observer, Precision, Scheduler, WheelView};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const READY: Poll<()> = Poll::Ready(());

/// All within one tick.
#[test]
fn s02_s19_a_thousand_sleeps_of_one_tick_are_woken_each_at_its_own_time() {
    let (scheduler, driver) = driven_by(Scheduler::builder().precision(Precision::Exact));
    let (task, step) = (Poller::new(), Duration::from_nanos(500));
    let mut sleeps: Vec<_> = (1..=1_000).map(|n| scheduler.sleep(step * n)).collect();
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
    for woken in 1..=1_000 {
        driver.advance(step);
        assert_eq!(task.woken(), woken);
    }
    let mut sleeps: Vec<_> = (0..5_000).map(|_| scheduler.sleep(SECOND)).collect();
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
    assert_eq!(driver.advance(SECOND), 5_000);
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == READY));
}

#[test]
fn s03_s19_wakers_and_tasks_keep_their_order_and_come_in_shares() {
    struct Note(Arc<Mutex<Vec<(u32, usize)>>>, (u32, usize));
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.0.lock().expect("no panic").push(self.1);
        }
    }
    /// Tasks handed over in this turn, the most of any turn, and the most at once.
    #[derive(Clone, Default)]
    struct Shares(Arc<[AtomicUsize; 3]>);
    impl Observer for Shares {
        fn handed_over(&self, tasks: usize) {
            let [turn, most, at_once] = &*self.0;
            most.fetch_max(turn.fetch_add(tasks, Ordering::Relaxed) + tasks, Ordering::Relaxed);
            at_once.fetch_max(tasks, Ordering::Relaxed);
        }
        fn turned(&self, _wheel: WheelView<'_>) {
            self.0[0].store(0, Ordering::Relaxed);
        }
    }
    let shares = Shares::default();
    let builder = Scheduler::builder().precision(Precision::Exact).observer(shares.clone());
    let (scheduler, driver) = driven_by(builder);
    let (start, notes) = (scheduler.now(), Arc::new(Mutex::new(Vec::new())));
    let (mut random, mut sleeps, mut is_waker) = (Random(7), Vec::new(), false);
    for number in 0..6_000 {
        if number == 4_000 {
            driver.advance(MILLI * 10);
        }
        if number % 2_000 == 0 || number > 5_000 {
            is_waker = !is_waker || random.below(3) == 0;
        }
        let tenths = 100 + 2 * random.below(4) as u32;
        let (at, note) = (start + MILLI / 10 * tenths, (tenths, number));
        let notes = Arc::clone(&notes);
        if is_waker {
            let (mut sleep, waker) =
                (scheduler.sleep_until(at), Waker::from(Arc::new(Note(notes, note))));
            if poll_with(&mut sleep, &waker).is_ready() {
                waker.wake();
            }
            sleeps.push(sleep);
        } else {
            let task = move || notes.lock().expect("no panic").push(note);
            scheduler.schedule_at(at, task).expect("open");
        }
    }
    driver.advance(MILLI * 2);
    let notes = std::mem::take(&mut *notes.lock().expect("no panic"));
    assert_eq!(notes.len(), 6_000);
    let is_late = |(tenths, number): &(u32, usize)| *tenths == 100 && *number >= 4_000;
    let (late, rest): (Vec<_>, Vec<_>) = notes.into_iter().partition(is_late);
    assert!(rest.is_sorted() && late.len() > 200, "what was due when it came waits for nobody");
    let [_, most, at_once] = shares.0.each_ref().map(|number| number.load(Ordering::Relaxed));
    assert_eq!((most, at_once), (1024, 256));
}

/// The clock is read once more for the lateness, when the waker has left its queue.
#[test]
fn a_clock_that_panics_loses_no_waker() {
    silence();
    for breaks_at in 1..12 {
        let (armed, task) = (Arc::new(AtomicUsize::new(0)), Poller::new());
        let clock = Moody(ManualClock::new(), Arc::clone(&armed));
        let (scheduler, driver) = driven_by(Scheduler::builder().clock(clock));
        let mut sleeps: Vec<_> = (0..10).map(|_| scheduler.sleep(SECOND)).collect();
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
        armed.store(breaks_at, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| driver.advance(SECOND)));
        armed.store(0, Ordering::Relaxed);
        driver.advance(SECOND);
        assert_eq!((task.woken(), scheduler.pending()), (10, 0), "at reading {breaks_at}");
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == READY));
    }
}

#[test]
fn the_tick_thread_wakes_whatever_the_executor_does() {
    let ((scheduler, driver), task) =
        (driven_by(Scheduler::builder().executor(Wall)), Poller::new());
    let walled = scheduler.with_executor(Wall);
    let (mut one, mut other) = (scheduler.sleep(MILLI), walled.sleep(MILLI));
    assert!(task.poll(&mut one).is_pending() && task.poll(&mut other).is_pending());
    assert_eq!(driver.advance(MILLI), 2);
    assert_eq!((task.poll(&mut one), task.poll(&mut other), task.woken()), (READY, READY, 2));
    assert_eq!(scheduler.stats().rejected(), 0);
}

#[test]
fn s11_a_waker_may_use_the_scheduler() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let other = Arc::new(Mutex::new(Some(scheduler.sleep(SECOND))));
    let inner = Arc::clone(&other);
    let (again, told) = (scheduler.clone(), task.clone());
    let busy = waker(move || {
        drop(inner.lock().expect("no panic").take());
        again.schedule_once(MILLI, || ()).expect("open");
        let mut next = again.sleep(MILLI);
        assert!(told.poll(&mut next).is_pending());
        *inner.lock().expect("no panic") = Some(next);
        assert!(again.close().is_err(), "on the tick thread");
    });
    let mut sleep = scheduler.sleep(MILLI);
    assert!(poll_with(&mut sleep, &busy).is_pending());
    assert_eq!(driver.advance(MILLI), 1);
    assert_eq!((driver.advance(MILLI), task.woken()), (2, 1));
}

#[test]
fn s11_a_waker_may_close_or_drop_what_it_waits_for_as_it_is_dropped() {
    let (scheduler, _driver) = driven();
    let stopping = scheduler.clone();
    let guard = Arc::new(Mutex::new(OnDrop(move || drop(stopping.stop()))));
    let mut sleep = scheduler.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker(move || drop(guard.lock()))).is_pending());
    drop(sleep);
    assert!(scheduler.is_closed());
}

#[test]
fn s26_a_million_sleeps_are_counted_like_tasks() {
    let half = count(500_000, 500_000);
    let all = 2 * half;
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut sleeps: Vec<_> =
        (0..all as u32).map(|n| scheduler.sleep(MILLI * (n % 1000 + 1))).collect();
    for sleep in &mut sleeps {
        assert!(task.poll(sleep).is_pending());
    }
    assert_eq!(scheduler.pending(), all);
    drop(sleeps.drain(..half));
    assert_eq!(scheduler.pending(), half);
    assert_eq!(driver.advance(SECOND), half);
    assert_eq!(task.woken(), half);
    assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep) == READY));
    let stats = scheduler.stats();
    assert_eq!((stats.cancelled(), stats.fired(), stats.pending()), (half as u64, half as u64, 0));
}

#[test]
fn s26_a_close_that_has_returned_has_counted_the_sleepers() {
    for _ in 0..20 {
        let builder = Scheduler::builder().shutdown_timeout(PATIENCE);
        let (scheduler, task) = (builder.build().expect("a thread"), Poller::new());
        let mut sleeps: Vec<_> = (0..500).map(|_| scheduler.sleep(SECOND * 60)).collect();
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()));
        assert!(scheduler.close().expect("in time").is_empty());
        assert_eq!((scheduler.pending(), scheduler.stats().dropped()), (0, 500));
        until("all are woken", || task.woken() == 500);
        assert!(sleeps.iter_mut().all(|sleep| task.poll(sleep).is_pending()), "elsewhere");
    }
}

// ----- alarms ------------------------------------------------------------------------------

#[test]
fn an_alarm_tells_where_it_stands_and_gives_its_waker_back() {
    let ((scheduler, driver), one, other) = (driven(), Poller::new(), Poller::new());
    let set = |at| scheduler.wake_at(at, &one.waker()).expect("open");
    assert!(set(scheduler.now()).is_none(), "its instant has come");
    let alarm = set(scheduler.now() + SECOND).expect("later");
    assert!(
        alarm.is_pending() && alarm.will_wake(&one.waker()) && !alarm.will_wake(&other.waker())
    );
    alarm.into_waker().expect("pending").wake();
    assert_eq!((one.woken(), one.wakers(), scheduler.pending()), (1, 0, 0));
    let alarm = set(scheduler.now() + SECOND).expect("later");
    driver.advance(SECOND);
    assert!(!alarm.is_pending() && one.woken() == 2);
    assert!(alarm.into_waker().is_none());
}

#[test]
fn an_alarm_that_is_just_ringing_is_not_pending() {
    let (scheduler, driver) = driven();
    let place = Arc::new(Mutex::new(None::<tickwheel::Alarm>));
    let (seen, inner) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&place));
    let count = Arc::clone(&seen);
    let looks = waker(move || {
        let is_pending =
            inner.lock().expect("no panic").as_ref().expect("it is there").is_pending();
        count.fetch_add(if is_pending { 100 } else { 1 }, Ordering::Relaxed);
    });
    *place.lock().expect("no panic") =
        scheduler.wake_at(scheduler.now() + MILLI, &looks).expect("open");
    driver.advance(MILLI);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    drop(place.lock().expect("no panic").take());
}
