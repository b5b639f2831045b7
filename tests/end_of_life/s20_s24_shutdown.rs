//! Shutdown: every accepted task has exactly one end, and nobody waits for ever (S20 to S24).

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::common::told::Poller;
use crate::common::{PATIENCE, driven, until};
use tickwheel::{
    CloseError, DueTask, Executor, Inline, Observer, PendingTask, Period, Rejected, ScheduleError,
    Scheduler, ThreadPool, WeakScheduler,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn threaded() -> Scheduler {
    let builder = Scheduler::builder().executor(Inline).shutdown_timeout(PATIENCE);
    builder.build().expect("the defaults are good")
}

#[test]
fn s20_the_leftovers_come_in_order_with_their_remaining_delay() {
    let (scheduler, driver) = driven();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (name, delay) in [("b", 20), ("c", 30), ("a", 10), ("c2", 30), ("gone", 1)] {
        let order = Arc::clone(&order);
        let task = move || order.lock().expect("whole").push(name);
        scheduler.schedule_once(SECOND * delay, task).expect("open");
    }
    scheduler.schedule_repeatedly(SECOND * 25, HOUR, || ()).expect("open");
    scheduler.schedule_once(Duration::MAX, || ()).expect("open");
    driver.advance(SECOND * 5);

    let tasks: Vec<_> = driver.close().into_iter().collect();
    let remaining: Vec<_> = tasks.iter().map(|task| task.remaining().as_secs()).collect();
    assert_eq!(remaining[..5], [5, 15, 20, 25, 25]);
    assert_eq!(tasks[2].period(), Some(HOUR));
    assert_eq!(tasks[5].remaining(), Duration::MAX);
    assert!(tasks[5].deadline() > scheduler.now() + HOUR * 24 * 365 * 100);
    assert_eq!(tasks.len(), 6);
    tasks.into_iter().for_each(PendingTask::run);
    assert_eq!(*order.lock().expect("whole"), ["gone", "a", "b", "c", "c2"]);
}

#[test]
fn s20_leftovers_that_no_turn_has_seen_come_in_order_too() {
    let (scheduler, driver) = driven();
    for delay in [30, 10, 20, 5, 25] {
        scheduler.schedule_once(SECOND * delay, || ()).expect("open");
    }
    let remaining: Vec<_> =
        driver.close().into_iter().map(|task| task.remaining().as_secs()).collect();
    assert_eq!(remaining, [5, 10, 20, 25, 30]);
}

#[test]
fn s20_leftovers_carry_on_in_another_scheduler() {
    let (first, first_driver) = driven();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let log = |name: &'static str| {
        let runs = Arc::clone(&runs);
        move || runs.lock().expect("whole").push(name)
    };
    let old = first.schedule_once(SECOND * 10, log("once")).expect("open");
    first
        .schedule_periodic(SECOND * 11, Period::fixed_rate(SECOND * 2), log("series"))
        .expect("open");
    let dropped = first.schedule_once(SECOND * 12, log("dropped")).expect("open");
    first_driver.advance(SECOND * 4);

    let (second, second_driver) = driven();
    let mut moved = Vec::new();
    for (n, task) in first_driver.close().into_iter().enumerate() {
        if n < 2 {
            moved.push(task.reschedule(&second).expect("open"));
        }
    }
    assert!(!old.is_done() && moved[0] == old, "its handles go on working (S29)");
    assert!(dropped.is_done() && !dropped.is_cancelled());
    assert_eq!(first.stats().dropped(), 1);
    assert_eq!(second.pending(), 2);

    assert_eq!(
        second_driver.advance((SECOND * 6).saturating_sub(MILLI)),
        0,
        "six seconds remained"
    );
    assert_eq!(second_driver.advance(MILLI), 1);
    assert_eq!(second_driver.advance(SECOND * 5), 3);
    assert_eq!(*runs.lock().expect("whole"), ["once", "series", "series", "series"]);
    assert!(moved[1].cancel());
    assert_eq!(second.pending(), 0);
}

#[test]
fn s20_a_leftover_that_is_refused_elsewhere_is_dropped_and_counted() {
    let (first, first_driver) = driven();
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    first.schedule_once(HOUR, move || drop(hold)).expect("open");
    let (closed, _) = driven(); // its driver is gone already
    for task in first_driver.close() {
        assert_eq!(task.reschedule(&closed).unwrap_err(), ScheduleError::Closed);
    }
    assert_eq!((Arc::strong_count(&alive), first.stats().dropped()), (1, 1));
}

#[test]
fn s08_a_returned_task_can_be_cancelled_and_then_does_nothing() {
    let scheduler = threaded();
    let runs = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = (0..3)
        .map(|_| {
            let runs = Arc::clone(&runs);
            let task = move || {
                runs.fetch_add(1, Ordering::Relaxed);
            };
            scheduler.schedule_once(HOUR, task).expect("open")
        })
        .collect();
    let mut tasks = scheduler.close().expect("in time").into_iter();
    assert_eq!(scheduler.pending(), 0, "they are returned");

    assert!(handles[0].cancel() && handles[0].is_cancelled());
    tasks.next().expect("three").run();
    assert_eq!(runs.load(Ordering::Relaxed), 0);

    assert!(tasks.next().expect("three").cancel());
    assert!(!handles[1].cancel() && handles[1].is_cancelled() && handles[1].is_done());

    tasks.next().expect("three").run();
    assert!(!handles[2].cancel() && handles[2].is_done() && !handles[2].is_cancelled());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let stats = scheduler.stats();
    assert_eq!((stats.cancelled(), stats.fired(), stats.pending()), (2, 1, 0));
}

/// Whatever library of the process tries it: the others go on.
#[test]
fn s21_the_global_scheduler_is_closed_by_nobody() {
    let global = Scheduler::global();
    let waits = global.schedule_once(HOUR, || ()).expect("open");
    let (clone, own) = (global.clone(), global.with_executor(Inline));
    let upgraded = global.downgrade().upgrade().expect("it lives");
    for handle in [global, &clone, &own, &upgraded] {
        assert_eq!(handle.close().map(drop), Err(CloseError::Global));
        assert_eq!(handle.close_and_run(), Err(CloseError::Global));
        assert!(handle.stop().wait().is_empty());
        assert!(handle.stop().wait_timeout(HOUR).expect("at once").is_empty());
        let mut stopping = handle.stop();
        assert!(matches!(Poller::new().poll(&mut stopping), Poll::Ready(left) if left.is_empty()));
        drop(handle.stop());
        assert!(!handle.is_closed());
    }
    let (sender, receiver) = mpsc::channel();
    let task = move || sender.send(Scheduler::global().close().map(drop)).expect("a receiver");
    own.schedule_once(Duration::ZERO, task).expect("open");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(Err(CloseError::Global)), "on its tick thread");
    assert!(!waits.is_done() && waits.cancel());
}

#[test]
fn s21_close_wakes_the_tick_thread_and_the_second_one_is_empty() {
    let builder = Scheduler::builder().executor(Inline).shutdown_timeout(PATIENCE * 2);
    let scheduler = builder.build().expect("a tick thread");
    scheduler.schedule_once(HOUR, || ()).expect("open");
    let start = Instant::now();
    let leftovers = scheduler.close().expect("in time");
    assert!(start.elapsed() < PATIENCE, "not after the shutdown timeout");
    assert_eq!(leftovers.len(), 1);
    assert!(scheduler.close().expect("closed before").is_empty());
    assert_eq!(scheduler.close_and_run(), Ok(0));
}

#[test]
fn s21_a_close_on_the_tick_thread_is_an_error_and_closes_nothing() {
    let scheduler = threaded();
    let (sender, receiver) = mpsc::channel();
    let inner = scheduler.clone();
    let task = move || {
        let told = (inner.close().map(drop), inner.close_and_run());
        sender.send(told).expect("the receiver lives");
    };
    scheduler.schedule_once(MILLI, task).expect("open");
    let told = receiver.recv_timeout(PATIENCE).expect("no deadlock");
    assert_eq!(told, (Err(CloseError::OnTickThread), Err(CloseError::OnTickThread)));
    assert!(!scheduler.is_closed());
    scheduler.schedule_once(MILLI, || ()).expect("still open");
}

#[test]
fn s21_a_close_by_an_observer_is_an_error_too() {
    struct Closes(Arc<Mutex<Option<Scheduler>>>, mpsc::Sender<Option<CloseError>>);
    impl Observer for Closes {
        fn will_sleep(&self, _: Option<Instant>) {
            let scheduler = self.0.lock().expect("no panic").take();
            if let Some(scheduler) = scheduler {
                self.1.send(scheduler.close().err()).expect("the receiver lives");
            }
        }
    }
    let (sender, receiver) = mpsc::channel();
    let victim = Arc::default();
    let observer = Closes(Arc::clone(&victim), sender);
    let scheduler = Scheduler::builder().observer(observer).build().expect("good settings");
    *victim.lock().expect("no panic") = Some(scheduler.clone());
    scheduler.schedule_once(MILLI, || ()).expect("open");
    let told = receiver.recv_timeout(PATIENCE).expect("it sleeps sometime");
    assert_eq!(told, Some(CloseError::OnTickThread));
    assert!(!scheduler.is_closed());
}

#[test]
fn s21_a_stop_works_on_the_tick_thread_and_its_wait_is_no_deadlock_there() {
    let scheduler = threaded();
    let (sender, receiver) = mpsc::channel();
    let inner = scheduler.clone();
    scheduler.schedule_once(HOUR, || ()).expect("open");
    let task = move || {
        let stopping = inner.stop().wait_timeout(HOUR).expect_err("at once, on the tick thread");
        let nothing = stopping.wait();
        sender.send((nothing.len(), inner.is_closed())).expect("the receiver lives");
    };
    scheduler.schedule_once(MILLI, task).expect("open");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok((0, true)));
    assert_eq!(scheduler.close().expect("in time").len(), 1, "the leftovers were kept");
}

#[test]
fn s21_a_close_from_a_pool_thread_is_no_deadlock() {
    let scheduler =
        Scheduler::builder().executor(ThreadPool::new(1)).build().expect("the defaults are good");
    let (sender, receiver) = mpsc::channel();
    let inner = scheduler.clone();
    scheduler.schedule_once(HOUR, || ()).expect("open");
    let task = move || {
        let left = inner.close().map(|left| left.len());
        sender.send(left).expect("the receiver lives");
    };
    scheduler.schedule_once(MILLI, task).expect("open");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(Ok(1)));
}

#[test]
fn s21_a_driven_scheduler_is_closed_by_its_driver_or_by_the_next_turn() {
    let (scheduler, driver) = driven();
    scheduler.schedule_once(HOUR, || ()).expect("open");
    assert_eq!(driver.close().len(), 1);
    assert_eq!(scheduler.schedule_once(HOUR, || ()).unwrap_err(), ScheduleError::Closed);

    let (scheduler, driver) = driven();
    scheduler.schedule_once(HOUR, || ()).expect("open");
    let stopping = scheduler.stop();
    assert_eq!(driver.turn(), None);
    assert_eq!(stopping.wait().len(), 1);

    let (scheduler, _driver) = driven();
    scheduler.schedule_once(HOUR, || ()).expect("open");
    assert_eq!(scheduler.close().expect("nobody turns it").len(), 1);
}

/// After the `shutdown_timeout` it does not wait for the run, and returns the series that is in it too.
#[test]
fn s29_a_driver_s_close_returns_what_there_is_while_a_run_goes_on() {
    let builder = Scheduler::builder().executor(ThreadPool::new(1)).shutdown_timeout(MILLI);
    let (scheduler, driver) = builder.build_driven().expect("good");
    let ((go_on, goes_on), (sender, has_begun)) = (mpsc::channel::<()>(), mpsc::channel());
    let series = scheduler.schedule_repeatedly(Duration::ZERO, SECOND, move || {
        sender.send(()).expect("awaited");
        _ = goes_on.recv();
    });
    let other = scheduler.schedule_once(HOUR, || ()).expect("open");
    driver.turn();
    has_begun.recv().expect("it runs");
    let leftovers = driver.close();
    assert_eq!((leftovers.len(), scheduler.pending()), (2, 0));
    drop(leftovers);
    assert!(other.is_done());
    drop(go_on);
    until("the run is over", || series.as_ref().is_ok_and(tickwheel::Cancellable::is_done));
}

/// Of a task that was cancelled there is nothing to move, and it takes no place there.
#[test]
fn s25_a_leftover_that_was_cancelled_takes_no_place_elsewhere() {
    let (scheduler, driver) = driven();
    let (full, _other) = Scheduler::builder().max_pending(1).build_driven().expect("good");
    let task = scheduler.schedule_once(SECOND, || ()).expect("open");
    for leftover in driver.close() {
        assert!(task.cancel());
        assert!(leftover.reschedule(&full).is_ok_and(|moved| moved.is_done()));
    }
    assert_eq!(full.pending(), 0);
    full.schedule_once(SECOND, || ()).expect("room for one");
}

#[test]
fn s21_a_stop_can_be_awaited() {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let scheduler = threaded();
    scheduler.schedule_once(HOUR, || ()).expect("open");
    let mut stopping = pin!(scheduler.stop());
    let start = Instant::now();
    let leftovers = loop {
        match stopping.as_mut().poll(&mut context) {
            Poll::Ready(leftovers) => break leftovers,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    };
    assert!(start.elapsed() < PATIENCE, "woken, not timed out");
    assert_eq!(leftovers.len(), 1);
}

#[test]
fn s22_close_and_run_runs_each_once_here_and_a_panic_stops_nothing() {
    let (report, reports) = mpsc::channel();
    let scheduler = Scheduler::builder()
        .on_panic(move |panic| drop(report.send(panic.message().map(str::to_owned))))
        .build()
        .expect("the defaults are good");
    let here = thread::current().id();
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..6_u32 {
        let order = Arc::clone(&order);
        let task = move || {
            assert_eq!(thread::current().id(), here);
            order.lock().expect("whole").push(n);
            assert!(n != 2, "task two");
        };
        if n == 4 {
            scheduler.schedule_repeatedly(HOUR * (n + 1), HOUR, task).expect("open");
        } else {
            scheduler.schedule_once(HOUR * (n + 1), task).expect("open");
        }
    }
    let cancelled = scheduler.schedule_once(HOUR, || ()).expect("open");
    cancelled.cancel();
    assert_eq!(scheduler.close_and_run(), Ok(6));
    assert_eq!(*order.lock().expect("whole"), [0, 1, 2, 3, 4, 5]);
    assert_eq!(reports.try_iter().flatten().count(), 1);
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.panicked(), stats.pending()), (6, 1, 0));
}

#[test]
fn s23_after_the_stop_everything_is_refused() {
    let scheduler = threaded();
    let _stopping = scheduler.stop();
    let alive = Arc::new(());
    let task = || {
        let hold = Arc::clone(&alive);
        move || drop(hold.clone())
    };
    let refused = [
        scheduler.schedule_once(Duration::ZERO, task()),
        scheduler.schedule_at(scheduler.now(), task()),
        scheduler.schedule_repeatedly(SECOND, SECOND, task()),
        scheduler.schedule_with_fixed_delay(SECOND, SECOND, task()),
        scheduler.schedule_self_paced(SECOND, || None),
        scheduler.with_executor(Inline).schedule_once(SECOND, task()),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err(), ScheduleError::Closed);
    }
    let back = scheduler.try_schedule_once(SECOND, task()).unwrap_err();
    assert_eq!(back.reason(), ScheduleError::Closed);
    assert_eq!(Arc::strong_count(&alive), 2, "only the one that was given back is left");
    back.into_task()();
    let back = scheduler.try_schedule_at(scheduler.now(), task()).unwrap_err();
    assert_eq!((back.reason(), Arc::strong_count(&alive)), (ScheduleError::Closed, 2));
    back.into_task()();
    let every = Period::fixed_rate(SECOND);
    let back = scheduler.try_schedule_periodic(SECOND, every, task()).unwrap_err();
    assert_eq!((back.reason(), Arc::strong_count(&alive)), (ScheduleError::Closed, 2));
    let never = Period::fixed_rate(Duration::ZERO);
    let back = scheduler.try_schedule_periodic(SECOND, never, back.into_task()).unwrap_err();
    assert_eq!((back.reason(), Arc::strong_count(&alive)), (ScheduleError::ZeroPeriod, 2));
    back.into_task()();
    assert_eq!((scheduler.stats().scheduled(), scheduler.pending()), (0, 0));
}

#[test]
fn s24_dropping_the_last_handle_drops_what_is_pending_on_the_tick_thread() {
    let (sender, receiver) = mpsc::channel();
    let scheduler =
        Scheduler::builder().thread_name("wheel").build().expect("the defaults are good");
    let clone = scheduler.with_executor(Inline);
    let captured = Where(sender);
    let handle = scheduler.schedule_once(HOUR, move || drop(captured)).expect("open");
    drop(scheduler);
    assert!(receiver.try_recv().is_err(), "a clone is left");
    drop(clone);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(Some(String::from("wheel"))));
    until("the end of the task", || handle.is_done());
    assert!(!handle.is_cancelled());
}

#[test]
fn s24_a_weak_handle_keeps_nothing_alive_but_finds_what_is() {
    struct Counting(Arc<AtomicUsize>);
    impl Executor for Counting {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Inline.execute(task)
        }
    }
    let (scheduler, driver) = driven();
    let (ran, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let own = scheduler.with_executor(Counting(Arc::clone(&ran)));
    let (weak, weak_own) = (scheduler.downgrade(), own.downgrade());
    weak_own.upgrade().expect("it lives").schedule_once(SECOND, || ()).expect("open");
    driver.advance(SECOND);
    assert_eq!(ran.load(Ordering::Relaxed), 1, "it comes back with the executor that it had");

    let held = Arc::clone(&alive);
    own.schedule_once(HOUR, move || drop(held)).expect("open");
    assert!(format!("{weak:?}").contains("is_alive: true"));
    drop((scheduler, own));
    driver.advance(SECOND);
    assert_eq!(Arc::strong_count(&alive), 1, "the last strong handle ended it");
    assert!(weak.upgrade().is_none() && weak_own.clone().upgrade().is_none());
    assert!(format!("{weak:?}").contains("is_alive: false"));
}

#[test]
fn s24_a_task_that_holds_its_scheduler_is_no_leak_once_it_has_run() {
    let alive = Arc::new(());
    let scheduler = threaded();
    let (inner, hold) = (scheduler.clone(), Arc::clone(&alive));
    scheduler.schedule_once(MILLI * 5, move || drop((inner, hold))).expect("open");
    let hold = Arc::clone(&alive);
    scheduler.schedule_once(HOUR, move || drop(hold)).expect("open");
    drop(scheduler);
    // The task's own clone was the last handle: its drop stopped the scheduler.
    until("the end of the scheduler", || Arc::strong_count(&alive) == 1);
}

#[test]
fn s24_a_driver_that_is_dropped_ends_its_scheduler() {
    let (scheduler, driver) = driven();
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    scheduler.schedule_once(HOUR, move || drop(hold)).expect("open");
    drop(driver);
    assert_eq!(Arc::strong_count(&alive), 1);
    assert_eq!(scheduler.schedule_once(HOUR, || ()).unwrap_err(), ScheduleError::Closed);
    assert!(scheduler.close().expect("ended").is_empty());
    assert_eq!(scheduler.stats().dropped(), 1);
}

#[test]
fn s24_leftovers_that_nobody_takes_go_with_the_last_stopping() {
    let (scheduler, driver) = driven();
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    let handle = scheduler.schedule_once(HOUR, move || drop(hold)).expect("open");
    let (one, other) = (scheduler.stop(), scheduler.stop());
    driver.turn();
    drop((one, driver));
    assert_eq!(Arc::strong_count(&alive), 2, "the other one could still collect");
    drop(other);
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(handle.is_done() && !handle.is_cancelled());
    assert!(scheduler.close().expect("it has ended").is_empty());
    assert_eq!(scheduler.stats().dropped(), 1);
}

/// Tells on which thread it is dropped.
struct Where(mpsc::Sender<Option<String>>);

impl Drop for Where {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().map(str::to_owned));
    }
}

/// The tasks hold their scheduler, so nothing else would ever end it. It does not matter whether the end comes before the
/// drop or after it.
#[test]
fn s24_a_stopping_that_is_dropped_gives_the_leftovers_up_on_the_tick_thread() {
    let names = |receiver: &mpsc::Receiver<_>, tasks| {
        let name = |_| receiver.recv_timeout(PATIENCE).expect("they are dropped");
        (0..tasks).map(name).collect::<Vec<Option<String>>>()
    };
    for round in 0..50 {
        let (sender, receiver) = mpsc::channel();
        let builder = Scheduler::builder().thread_name("wheel").shutdown_timeout(PATIENCE);
        let scheduler = builder.build().expect("a tick thread");
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (inner, held) = (scheduler.clone(), Where(sender.clone()));
                scheduler.schedule_once(HOUR, move || drop((inner, held))).expect("open")
            })
            .collect();
        let inner = scheduler.clone();
        let held = Where(sender.clone());
        let series = move || _ = (inner.now(), &held);
        let series = scheduler.schedule_repeatedly(HOUR, HOUR, series).expect("open");
        let stopping = scheduler.stop();
        if round % 2 == 0 {
            until("the end", || format!("{stopping:?}").contains("has_ended: true"));
        }
        drop(stopping);
        assert!(scheduler.close().expect("in time").is_empty(), "they were given up");
        assert_eq!(names(&receiver, 4), vec![Some(String::from("wheel")); 4]);
        until("their end", || tasks.iter().chain([&series]).all(tickwheel::Cancellable::is_done));
        assert_eq!((scheduler.pending(), scheduler.stats().dropped()), (0, 4));
    }
}

/// An executor of a task keeps what it is handed, and the task keeps its executor.
#[test]
fn s24_a_stopping_that_is_dropped_frees_an_executor_that_keeps_its_tasks() {
    struct Keeps(Mutex<Vec<DueTask>>, #[allow(dead_code, reason = "it is dropped")] Arc<()>);
    impl Executor for Keeps {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            self.0.lock().expect("whole").push(task);
            Ok(())
        }
    }
    for is_driven in [false, true] {
        let alive = Arc::new(());
        let builder = Scheduler::builder();
        let (scheduler, driver) = if is_driven {
            let (scheduler, driver) = builder.build_driven().expect("good settings");
            (scheduler, Some(driver))
        } else {
            (builder.build().expect("a tick thread"), None)
        };
        let own = scheduler.with_executor(Keeps(Mutex::default(), Arc::clone(&alive)));
        let (inner, hold) = (own.clone(), Arc::clone(&alive));
        own.schedule_once(Duration::ZERO, move || drop((inner, hold))).expect("open");
        let task = own.schedule_once(HOUR, || ()).expect("open");
        driver.iter().for_each(|driver| _ = driver.turn());
        drop(own.stop());
        drop(own);
        until("all is dropped", || Arc::strong_count(&alive) == 1);
        until("it has ended", || task.is_done());
        assert!(scheduler.close().expect("ended").is_empty());
    }
}

/// Also if the `Stopping` is dropped inside of a task, and if a series is in its run when the end comes.
#[test]
fn s24_what_is_given_up_in_a_run_is_dropped_behind_it() {
    let (sender, receiver) = mpsc::channel();
    let scheduler = threaded();
    let pool = scheduler.with_executor(ThreadPool::new(1));
    let held = Where(sender.clone());
    let waits = scheduler.schedule_once(HOUR, move || drop(held)).expect("open");
    let (inner, held) = (scheduler.clone(), Where(sender));
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let series = pool.schedule_repeatedly(Duration::ZERO, HOUR, move || {
        let _held = &held;
        drop(inner.stop());
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    });
    let series = series.expect("open");
    entered.recv_timeout(PATIENCE).expect("it runs");
    until("the other task is dropped", || waits.is_done());
    assert!(receiver.recv_timeout(PATIENCE).is_ok() && receiver.try_recv().is_err());
    assert!(!series.is_done(), "it runs");
    leave.send(()).expect("it runs");
    assert!(receiver.recv_timeout(PATIENCE).is_ok(), "it is dropped behind its run");
    until("its end", || series.is_done());
    assert!(scheduler.close().expect("in time").is_empty());
}

/// A thread that is in a close when the `Stopping` is dropped gets them.
#[test]
fn s20_s24_a_close_that_waits_keeps_the_leftovers_from_being_given_up() {
    let scheduler = Scheduler::builder().executor(ThreadPool::new(1)).build().expect("a thread");
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let series = move || {
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    };
    scheduler.schedule_repeatedly(Duration::ZERO, HOUR, series).expect("open");
    scheduler.schedule_once(HOUR, || ()).expect("open");
    entered.recv_timeout(PATIENCE).expect("it runs");
    let closes = scheduler.clone();
    let other = thread::spawn(move || closes.close().expect("in time").len());
    until("the close has begun", || scheduler.is_closed());
    drop(scheduler.stop());
    leave.send(()).expect("it runs");
    assert_eq!(other.join().expect("no panic"), 2);
}

#[test]
fn s26_leftovers_that_are_dropped_leave_the_scheduler_once() {
    let (scheduler, driver) = driven();
    (0..3).for_each(|_| _ = scheduler.schedule_once(HOUR, || ()).expect("open"));
    let leftovers = driver.close();
    assert_eq!(scheduler.pending(), 0, "they are their owner's now");
    drop(leftovers);
    assert_eq!((scheduler.pending(), scheduler.stats().dropped()), (0, 3));
}

#[test]
fn s24_an_executor_goes_when_its_scheduler_ends() {
    let alive = Arc::new(());
    let hold = Arc::clone(&alive);
    let scheduler = Scheduler::builder()
        .executor_fn(move |task: DueTask| {
            let _hold = &hold;
            task.run();
        })
        .build()
        .expect("the defaults are good");
    let leftovers = scheduler.close().expect("in time");
    assert!(leftovers.is_empty());
    until("the end of the executor", || Arc::strong_count(&alive) == 1);
}

#[test]
fn s20_leftovers_say_how_many_there_are_at_each_step() {
    let (scheduler, driver) = driven();
    (0..3).for_each(|_| _ = scheduler.schedule_once(HOUR, || ()).expect("open"));
    let leftovers = driver.close();
    assert!(!leftovers.is_empty());
    let mut leftovers = leftovers.into_iter();
    for left in (0..3).rev() {
        assert!(leftovers.next().is_some());
        assert_eq!((leftovers.size_hint(), leftovers.len()), ((left, Some(left)), left));
    }
    assert!(leftovers.next().is_none());
}

#[test]
fn s27_a_stop_can_be_seen_to_have_come() {
    let (scheduler, driver) = driven();
    let (send, stopping) = mpsc::channel();
    let inner = scheduler.clone();
    let task = move || {
        let stopping = inner.stop();
        assert!(format!("{stopping:?}").contains("has_ended: false"), "not before the turn's end");
        send.send(stopping).expect("the receiver lives");
    };
    scheduler.schedule_once(SECOND, task).expect("open");
    driver.advance(SECOND);
    driver.turn();
    let stopping = stopping.try_recv().expect("the task has run");
    assert!(format!("{stopping:?}").contains("has_ended: true"));
}

/// The waker is a user's: it goes with the driver, although threads that have scheduled keep the bell.
#[test]
fn s24_a_driver_that_is_dropped_lets_its_waker_go() {
    let (scheduler, driver) = driven();
    let told = Poller::new();
    driver.wake_with(Some(told.waker()));
    scheduler.schedule_once(HOUR, || ()).expect("open");
    assert_eq!(told.wakers(), 1);
    drop(scheduler.stop());
    driver.turn();
    assert_eq!(told.wakers(), 0, "the end lets it go");
    driver.wake_with(Some(told.waker()));
    drop(driver);
    assert_eq!(told.wakers(), 0);
    drop(scheduler);
}

/// Another thread that stops the scheduler may be collecting what is pending just now. All of it comes back all the same.
#[test]
fn s20_a_driver_s_close_waits_for_the_thread_that_ends_its_scheduler() {
    const TASKS: usize = 1_000;
    for _ in 0..200 {
        let (scheduler, driver) = driven();
        for _ in 0..TASKS {
            scheduler.schedule_once(Duration::from_secs(60), || ()).expect("it is open");
        }
        let both = Barrier::new(2);
        let leftovers = thread::scope(|scope| {
            let stops = scope.spawn(|| {
                both.wait();
                scheduler.stop()
            });
            both.wait();
            while !scheduler.is_closed() {
                std::hint::spin_loop();
            }
            let leftovers = driver.close();
            assert!(stops.join().expect("no panic").wait().is_empty(), "one of them gets all");
            leftovers
        });
        assert_eq!(leftovers.len(), TASKS);
    }
}

/// Code that runs in the last turn asks for the end, too, when it has come already.
#[test]
fn s20_a_wait_inside_of_the_last_turn_takes_nothing_from_another_caller() {
    struct Asks(Arc<OnceLock<WeakScheduler>>);
    impl Observer for Asks {
        fn stopped(&self, _leftovers: usize) {
            let scheduler = self.0.get().and_then(WeakScheduler::upgrade);
            drop(scheduler.expect("it is held").stop().wait());
        }
    }
    let me = Arc::new(OnceLock::new());
    let builder = Scheduler::builder().observer(Asks(Arc::clone(&me)));
    let (scheduler, _driver) = builder.build_driven().expect("good settings");
    assert!(me.set(scheduler.downgrade()).is_ok());
    scheduler.schedule_once(HOUR, || ()).expect("open");
    assert_eq!(scheduler.stop().wait().len(), 1);
}

/// They are sorted by the deadlines that they tell, also when they were moved between the end and the call that takes them.
#[test]
fn s20_s28_a_leftover_tells_the_deadline_by_which_it_was_sorted_also_when_it_is_over() {
    let (scheduler, _driver) = driven();
    let [first, second] =
        [1, 2].map(|delay| scheduler.schedule_once(SECOND * delay, || ()).expect("open"));
    let stopping = scheduler.stop();
    assert!(first.reset_at(scheduler.now() + SECOND * 3));
    let tasks: Vec<_> = stopping.wait().into_iter().collect();
    assert!(first.cancel() && second.cancel());
    let remaining = tasks.iter().map(|task| task.remaining().as_secs());
    assert_eq!(remaining.collect::<Vec<_>>(), [2, 3]);
}
