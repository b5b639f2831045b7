//! Series and futures that are not `Send`, and stay on the thread of a loop.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::log::Log;
use crate::common::{Grenade, OnDrop, PATIENCE, Random, count, panic_on_purpose, silence, until};
use tickwheel::message_loop::{
    LocalJoinHandle, LocalTaskRunner, LoopThread, MessageLoop, Next, RunLoop, TaskRunner,
};
use tickwheel::pool::JoinError;
use tickwheel::{Cancellable, Clock, ManualClock, Period, ScheduleError, Scheduler};

const SECOND: Duration = Duration::from_secs(1);

/// A loop in virtual time.
fn virtual_loop() -> (MessageLoop, LocalTaskRunner, ManualClock) {
    silence();
    let clock = ManualClock::new();
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
    let local = looper.local_runner();
    (looper, local, clock)
}

/// Returns the loop of the calling thread, for tasks.
fn here() -> TaskRunner {
    MessageLoop::current().expect("it is called in a task")
}

fn every(period: Duration) -> Period {
    Period::fixed_rate(period)
}

/// Returns what the handle says now.
fn look<T>(handle: &mut LocalJoinHandle<T>) -> Poll<Result<T, JoinError>> {
    Pin::new(handle).poll(&mut Context::from_waker(Waker::noop()))
}

fn is_cancelled<T>(handle: &mut LocalJoinHandle<T>) -> bool {
    matches!(look(handle), Poll::Ready(Err(JoinError::Cancelled)))
}

/// Notes the thread on which it is dropped.
fn note_drop(notes: &Arc<Mutex<Vec<ThreadId>>>) -> impl FnOnce() + use<> {
    let notes = Arc::clone(notes);
    let guard = OnDrop(move || notes.lock().expect("no panic").push(thread::current().id()));
    move || drop(guard)
}

/// A future that hands out its waker at each poll, and is ready when told.
#[derive(Clone, Default)]
struct Signal {
    waker: Arc<Mutex<Option<Waker>>>,
    polls: Arc<AtomicUsize>,
    is_ready: Arc<AtomicBool>,
}

impl Signal {
    fn wait(&self) -> impl Future<Output = ()> + use<> {
        let signal = self.clone();
        poll_fn(move |context| {
            *signal.waker.lock().expect("no panic") = Some(context.waker().clone());
            signal.polls.fetch_add(1, Ordering::Relaxed);
            if signal.is_ready.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    fn waker(&self) -> Waker {
        self.waker.lock().expect("no panic").clone().expect("it was polled")
    }

    fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
        self.waker().wake();
    }
}

// ----- series ------------------------------------------------------------------------------

#[test]
fn s12_a_local_series_keeps_its_phase_and_ends_by_break() {
    let (looper, local, clock) = virtual_loop();
    let (runs, start) = (Rc::new(RefCell::new(Vec::new())), clock.now());
    let (noted, reads) = (Rc::clone(&runs), clock.clone());
    let series = local.schedule_periodic(SECOND, every(2 * SECOND), move || {
        noted.borrow_mut().push((reads.now() - start).as_secs());
        if noted.borrow().len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let series = series.expect("open");
    assert!(runs.borrow().is_empty(), "S5: not on the caller's stack");
    for _ in 0..20 {
        looper.run_until_idle();
        clock.advance(SECOND);
    }
    assert_eq!(*runs.borrow(), [1, 3, 5]);
    assert!(series.is_done() && !series.is_cancelled() && !series.cancel());
    assert_eq!(Rc::strong_count(&runs), 1, "its closure is dropped");
}

#[test]
fn a_local_series_without_an_initial_delay_has_its_turn_among_the_immediate_tasks() {
    let (looper, local, clock) = virtual_loop();
    let log = Log::default();
    looper.runner().post(log.task(1)).expect("open");
    let said = log.clone();
    let gap = Period::fixed_delay(SECOND);
    local.schedule_periodic(Duration::ZERO, gap, move || said.say(2)).expect("open");
    looper.runner().post(log.task(3)).expect("open");
    assert_eq!(looper.run_until_idle(), 3);
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 1);
    assert_eq!(log.all(), [1, 2, 3, 2]);
}

#[test]
fn s16_a_local_series_may_cancel_itself_in_its_run() {
    let (looper, local, clock) = virtual_loop();
    let own: Rc<RefCell<Option<Cancellable>>> = Rc::default();
    let (inside, runs) = (Rc::clone(&own), Rc::new(Cell::new(0)));
    let counted = Rc::clone(&runs);
    let series = local.schedule_periodic(SECOND, every(SECOND), move || {
        counted.set(counted.get() + 1);
        if counted.get() == 2 {
            let own = inside.borrow_mut().take().expect("set");
            assert!(own.cancel() && !own.cancel() && own.is_cancelled());
        }
    });
    let series = series.expect("open");
    *own.borrow_mut() = Some(series.clone());
    for _ in 0..5 {
        clock.advance(SECOND);
        looper.run_until_idle();
    }
    assert_eq!(runs.get(), 2);
    assert!(series.is_done());
    assert_eq!((Rc::strong_count(&runs), Rc::strong_count(&own)), (1, 1), "all is dropped");
}

#[test]
fn a_local_series_that_is_cancelled_elsewhere_is_dropped_at_home() {
    let (looper, local, clock) = virtual_loop();
    let drops = Arc::default();
    let (held, home) = (Rc::new(Cell::new(Some(note_drop(&drops)))), thread::current().id());
    let series = local.schedule_periodic(SECOND, every(SECOND), move || _ = &held);
    let series = series.expect("open");
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 1);
    let cancelled = thread::spawn(move || series.cancel()).join().expect("no panic");
    assert!(cancelled && drops.lock().expect("no panic").is_empty());
    looper.turn();
    assert_eq!(*drops.lock().expect("no panic"), [home]);
}

#[test]
fn s15_s17_a_panic_ends_a_local_series_and_is_reported_once() {
    silence();
    let reports = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&reports);
    let clock = ManualClock::new();
    let builder = MessageLoop::builder().clock(clock.clone());
    let builder = builder.on_panic(move |_| _ = told.fetch_add(1, Ordering::Relaxed));
    let looper = builder.prepare().expect("no other one");
    let held = Rc::new(());
    let captured = Rc::clone(&held);
    let task = move || -> () {
        let _captured = &captured;
        panic_on_purpose()
    };
    let series = looper.local_runner().schedule_periodic(SECOND, every(SECOND), task);
    let series = series.expect("open");
    clock.advance(10 * SECOND);
    assert_eq!(looper.run_until_idle(), 1);
    assert!(series.is_done() && !series.is_cancelled());
    assert_eq!((reports.load(Ordering::Relaxed), Rc::strong_count(&held)), (1, 1));
    // A task that drops its loop, panics, and holds a value whose drop panics. No panic comes during a panic.
    let (run, grenade) = (RunLoop::new().expect("a loop"), Grenade);
    let kept = Rc::new(Cell::new(None));
    let own = Rc::clone(&kept);
    let task = move || -> () {
        let _captured = &grenade;
        drop(own.take());
        panic_on_purpose()
    };
    let local = looper.local_runner();
    local.schedule_periodic(Duration::ZERO, every(SECOND), task).expect("open");
    kept.set(Some(looper));
    run.run();
    assert_eq!(reports.load(Ordering::Relaxed), 3, "of the run, and of what it held");
    assert_eq!(Rc::strong_count(&kept), 1);
}

#[test]
fn a_local_series_that_is_refused_comes_back() {
    let looper = MessageLoop::builder().max_pending(1).prepare().expect("no other one");
    let (local, held) = (looper.local_runner(), Rc::new(()));
    let refuse = |period, reason| {
        let captured = Rc::clone(&held);
        let task = move || assert_eq!(Rc::strong_count(&captured), 2);
        let refused = local.schedule_periodic(SECOND, period, task).expect_err("refused");
        assert_eq!(refused.reason(), reason);
        refused.into_task()();
        assert_eq!(Rc::strong_count(&held), 1);
    };
    refuse(every(Duration::ZERO), ScheduleError::ZeroPeriod);
    let series = local.schedule_periodic(Duration::ZERO, every(SECOND), || ()).expect("open");
    looper.run_until_idle();
    refuse(every(SECOND), ScheduleError::Full); // S25: it holds its place until it ends
    series.cancel();
    local.post(|| ()).expect("the place is free");
    looper.runner().quit();
    refuse(every(SECOND), ScheduleError::Closed);
}

// ----- futures: turns and wakes ------------------------------------------------------------

#[test]
fn a_future_has_its_turns_among_the_immediate_tasks() {
    let (looper, local, _clock) = virtual_loop();
    let log = Log::default();
    let (said, signal) = (log.clone(), Signal::default());
    let wait = signal.wait();
    looper.runner().post(log.task(1)).expect("open");
    let mut handle = local
        .spawn_local(async move {
            said.say(2);
            wait.await;
            said.say(5);
            Rc::new(7)
        })
        .expect("open");
    looper.runner().post(log.task(3)).expect("open");
    assert!(log.all().is_empty(), "S5: not on the caller's stack");
    assert_eq!((looper.run_until_idle(), looper.turn()), (3, Next::Idle));
    assert!(look(&mut handle).is_pending() && !handle.is_done() && !handle.handle().is_done());
    looper.runner().post(log.task(4)).expect("open");
    signal.set();
    looper.runner().post(log.task(6)).expect("open");
    assert_eq!(looper.run_until_idle(), 3, "a poll counts as a task");
    assert_eq!(log.all(), [1, 2, 3, 4, 5, 6]);
    assert!(handle.is_done() && handle.handle().is_done() && !handle.cancel());
    assert!(matches!(look(&mut handle), Poll::Ready(Ok(seven)) if *seven == 7));
}

#[test]
fn many_wakes_are_one_poll_and_one_during_a_poll_is_another() {
    let (looper, local, _clock) = virtual_loop();
    let signal = Signal::default();
    local.spawn_local(signal.wait()).expect("open");
    looper.run_until_idle();
    (0..10).for_each(|_| signal.waker().wake());
    assert_eq!((looper.run_until_idle(), signal.polls()), (1, 2));
    let polls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&polls);
    let wakes_itself = poll_fn(move |context| {
        counted.set(counted.get() + 1);
        context.waker().wake_by_ref();
        context.waker().wake_by_ref();
        if counted.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
    });
    let handle = local.spawn_local(wakes_itself).expect("open");
    assert_eq!((looper.run_until_idle(), polls.get()), (3, 3));
    assert!(handle.is_done());
}

#[test]
fn a_future_that_wakes_itself_again_and_again_keeps_nobody_waiting() {
    let (looper, local, clock) = virtual_loop();
    let polls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&polls);
    let endless = poll_fn(move |context| {
        counted.set(counted.get() + 1);
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    let endless = local.spawn_local(endless).expect("open");
    looper.turn();
    let log = Log::default();
    for number in 0..3 {
        looper.runner().post(log.task(number)).expect("open");
        looper.runner().post_delayed(SECOND, log.task(10 + number)).expect("open");
    }
    clock.advance(SECOND);
    let before = polls.get();
    for _ in 0..4 {
        assert_eq!(looper.turn(), Next::Now);
    }
    assert_eq!((log.all().len(), polls.get() - before), (6, 1));
    // An end from another thread ends it too.
    let runner = looper.runner();
    thread::spawn(move || runner.quit()).join().expect("no panic");
    looper.run();
    assert!(!endless.is_done(), "it goes with the loop");
    drop(looper);
    assert!(endless.is_done());
    assert_eq!(Rc::strong_count(&polls), 1);
}

#[test]
fn a_future_sleeps_on_a_scheduler_and_is_woken_from_its_thread() {
    let scheduler = Scheduler::new();
    let looper = MessageLoop::prepare().expect("no other one");
    let (local, home) = (looper.local_runner(), thread::current().id());
    let heard = Rc::new(Cell::new(0));
    for number in 1..=20 {
        let (scheduler, heard) = (scheduler.clone(), Rc::clone(&heard));
        let sleeps = async move {
            scheduler.sleep(Duration::from_micros(300 * number)).await;
            assert_eq!(thread::current().id(), home);
            heard.set(heard.get() + 1);
            if heard.get() == 20 {
                here().quit();
            }
        };
        local.spawn_local(sleeps).expect("open");
    }
    looper.run();
    assert_eq!(heard.get(), 20);
}

/// Each wake that comes after a poll has read the count is followed by a poll that reads it again.
#[test]
fn no_wake_is_lost_between_a_future_and_other_threads() {
    const FUTURES: usize = 4;
    let each = count(20_000, 1_000_000);
    let looper = LoopThread::spawn("woken").expect("a thread");
    let signals: Vec<_> = (0..FUTURES).map(|_| (Signal::default(), Arc::default())).collect();
    let (tell, told) = channel();
    for (signal, sent) in &signals {
        let (signal, sent, tell) = (signal.clone(), Arc::clone(sent), tell.clone());
        let spawn = move || {
            let (seen, wait) = (Cell::new(0), Cell::new(Some(Box::pin(signal.wait()))));
            let hears = poll_fn(move |context| {
                let mut inner = wait.take().expect("one poll at a time");
                _ = inner.as_mut().poll(context);
                wait.set(Some(inner));
                seen.set(AtomicUsize::load(&sent, Ordering::Relaxed));
                if seen.get() == each { Poll::Ready(()) } else { Poll::Pending }
            });
            let handle = LocalTaskRunner::current().expect("in a task").spawn_local(hears);
            let handle = handle.expect("open");
            let waits = async move { tell.send(handle.await.is_ok()).expect("awaited") };
            LocalTaskRunner::current().expect("in a task").spawn_local(waits).expect("open");
        };
        looper.runner().post(spawn).expect("open");
    }
    until("all are polled", || signals.iter().all(|(signal, _)| signal.polls() > 0));
    let wakers: Vec<_> = signals
        .into_iter()
        .map(|(signal, sent): (Signal, Arc<AtomicUsize>)| {
            thread::spawn(move || {
                for _ in 0..each {
                    sent.fetch_add(1, Ordering::Relaxed);
                    signal.waker().wake();
                }
            })
        })
        .collect();
    for _ in 0..FUTURES {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "a wake is lost");
    }
    wakers.into_iter().for_each(|waker| waker.join().expect("no panic"));
    looper.runner().quit();
    looper.join().expect("no panic");
}

#[test]
fn a_wake_whose_turn_comes_in_the_poll_itself_is_not_lost() {
    let looper = MessageLoop::prepare().expect("no other one");
    let mut polls = 0;
    let nests = poll_fn(move |context| {
        polls += 1;
        if polls == 2 {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        let run = RunLoop::new().expect("in a task");
        run.quit_handle().quit_when_idle();
        run.run(); // the turn of the wake
        Poll::Pending
    });
    let handle = looper.local_runner().spawn_local(nests).expect("open");
    assert_eq!(looper.run_until_idle(), 2);
    assert!(handle.is_done());
}

#[test]
fn a_future_is_polled_in_a_nested_run() {
    let (looper, local, _clock) = virtual_loop();
    let log = Log::default();
    let (said, inner) = (log.clone(), local.clone());
    let outer = async move {
        let run = RunLoop::new().expect("in a task");
        let (quit, told) = (run.quit_handle(), said.clone());
        inner
            .spawn_local(async move {
                told.say(1);
                quit.quit();
            })
            .expect("open");
        run.run();
        said.say(2);
    };
    local.spawn_local(outer).expect("open");
    looper.run_until_idle();
    assert_eq!(log.all(), [1, 2]);
}

// ----- futures: ends -----------------------------------------------------------------------

#[test]
fn a_future_that_panics_is_reported_and_its_handle_tells() {
    silence();
    let (tell, told) = channel();
    let builder = MessageLoop::builder()
        .on_panic(move |panic| tell.send(panic.message().map(str::to_owned)).expect("awaited"));
    let looper = builder.prepare().expect("no other one");
    let (local, held) = (looper.local_runner(), Rc::new(()));
    let captured = Rc::clone(&held);
    let mut panics = local
        .spawn_local(async move {
            let _captured = captured;
            panic_on_purpose()
        })
        .expect("open");
    let log = Log::default();
    looper.runner().post(log.task(1)).expect("open");
    assert_eq!(looper.run_until_idle(), 2);
    let result: Poll<Result<(), JoinError>> = look(&mut panics);
    let Poll::Ready(Err(JoinError::Panicked(payload))) = result else { panic!("{result:?}") };
    assert_eq!((payload.message(), Rc::strong_count(&held)), (Some("on purpose"), 1));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [Some(String::from("on purpose"))]);
    // A value that the future holds panics when it is dropped, at each of its ends.
    let ready = local.spawn_local(async { _ = &Grenade }).expect("open");
    let grenade = Grenade;
    let cancelled = local.spawn_local(async move {
        let _grenade = &grenade;
        pending::<()>().await;
    });
    let cancelled = cancelled.expect("open");
    let grenade = Grenade;
    let dropped = local.spawn_local(async move {
        let _grenade = &grenade;
        pending::<()>().await;
    });
    let dropped = dropped.expect("open");
    looper.run_until_idle();
    assert!(cancelled.cancel());
    drop((looper, local));
    assert!(ready.is_done() && cancelled.is_done() && dropped.is_done());
    assert_eq!(told.try_iter().count(), 3, "and each is reported");
}

#[test]
fn s17_a_result_that_nobody_wants_may_panic_when_it_is_dropped() {
    silence();
    let (tell, told) = channel();
    let builder = MessageLoop::builder().on_panic(move |_| tell.send(()).expect("awaited"));
    let looper = builder.prepare().expect("no other one");
    let panics = async { OnDrop(|| panic_on_purpose()) };
    drop(looper.local_runner().spawn_local(panics).expect("open"));
    let log = Log::default();
    looper.runner().post(log.task(1)).expect("open");
    looper.run_until_idle();
    assert_eq!((log.all(), told.try_iter().count()), (vec![1], 1));
}

#[test]
fn s08_s09_a_future_that_is_cancelled_at_home_is_dropped_at_once() {
    let (looper, local, _clock) = virtual_loop();
    let held = Rc::new(());
    let spawn = || {
        let captured = Rc::clone(&held);
        let future = async move {
            let _captured = captured;
            pending::<()>().await;
        };
        local.spawn_local(future).expect("open")
    };
    let (mut early, mut late) = (spawn(), spawn());
    assert!(early.cancel() && !early.cancel() && early.handle().is_cancelled());
    assert_eq!(Rc::strong_count(&held), 2, "before its first poll");
    assert_eq!(looper.run_until_idle(), 1, "a cancelled one is no task");
    assert!(late.handle().cancel() && !late.cancel());
    assert_eq!(Rc::strong_count(&held), 1, "and after it");
    assert!(is_cancelled(&mut early) && is_cancelled(&mut late));
    assert_eq!(looper.turn(), Next::Idle);
}

#[test]
fn a_future_that_is_cancelled_elsewhere_is_dropped_at_home() {
    let (looper, local, _clock) = virtual_loop();
    let (drops, signal, home) = (Arc::default(), Signal::default(), thread::current().id());
    for wakes_too in [false, true] {
        let (noted, wait) = (note_drop(&drops), signal.wait());
        let mut handle = local
            .spawn_local(async move {
                let _noted = noted;
                wait.await;
            })
            .expect("open");
        looper.run_until_idle();
        let (cancels, waker) = (handle.handle(), signal.waker());
        let elsewhere = thread::spawn(move || {
            if wakes_too {
                waker.wake_by_ref();
            }
            let cancelled = cancels.cancel();
            waker.wake();
            cancelled
        });
        assert!(elsewhere.join().expect("no panic") && !handle.cancel());
        assert!(drops.lock().expect("no panic").is_empty() && !handle.is_done());
        looper.turn();
        assert_eq!(std::mem::take(&mut *drops.lock().expect("no panic")), [home]);
        assert!(is_cancelled(&mut handle));
        assert_eq!(looper.run_until_idle(), 0, "it is not polled again");
    }
}

#[test]
fn s16_a_future_may_cancel_itself() {
    for is_ready in [false, true] {
        let (looper, local, _clock) = virtual_loop();
        let (own, held): (Rc<Cell<Option<Cancellable>>>, _) = (Rc::default(), Rc::new(()));
        let (inside, captured) = (Rc::clone(&own), Rc::clone(&held));
        let cancels = poll_fn(move |context| {
            let own = inside.take().expect("polled once");
            assert!(own.cancel() && !own.cancel());
            context.waker().wake_by_ref();
            if is_ready { Poll::Ready(Rc::clone(&captured)) } else { Poll::Pending }
        });
        let mut handle = local.spawn_local(cancels).expect("open");
        own.set(Some(handle.handle()));
        assert_eq!(looper.run_until_idle(), 1);
        assert!(is_cancelled(&mut handle) && handle.handle().is_cancelled());
        assert_eq!((Rc::strong_count(&held), Rc::strong_count(&own)), (1, 1));
    }
}

/// Wakers outlive the loop, also on other threads. The values that the future held do not.
#[test]
fn a_future_is_dropped_with_its_loop_and_its_wakers_do_nothing_then() {
    let (drops, signal) = (Arc::default(), Signal::default());
    let (noted, wait) = (note_drop(&drops), signal.wait());
    let (tell, told) = channel();
    let home = thread::spawn(move || {
        let (looper, local, _clock) = virtual_loop();
        let noted = noted;
        let spawned = local.spawn_local(async move {
            let _noted = noted;
            wait.await;
        });
        let mut handle = spawned.expect("open");
        looper.run_until_idle();
        signal.waker().wake_by_ref(); // queued, as it ends
        looper.runner().quit();
        looper.run();
        drop(looper);
        assert!(is_cancelled(&mut handle) && handle.handle().is_done() && !handle.cancel());
        assert!(local.spawn_local(async {}).is_err());
        tell.send((signal.waker(), handle.handle())).expect("awaited");
        thread::current().id()
    });
    let (waker, handle) = told.recv_timeout(PATIENCE).expect("no panic");
    let home = home.join().expect("no panic");
    assert_eq!(*drops.lock().expect("no panic"), [home]);
    waker.wake_by_ref();
    let clone = waker.clone();
    drop(waker);
    clone.wake();
    assert!(!handle.cancel() && handle.is_done() && !handle.is_cancelled());
}

#[test]
fn a_future_that_drops_its_loop_ends_with_it() {
    let (looper, local, _clock) = virtual_loop();
    let (run, held) = (RunLoop::new().expect("a loop"), Rc::new(()));
    let (kept, captured) = (Rc::new(Cell::new(None)), Rc::clone(&held));
    let own = Rc::clone(&kept);
    let drops_it = poll_fn(move |context| {
        let _captured = &captured;
        drop::<Option<MessageLoop>>(own.take());
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    let mut handle = local.spawn_local(drops_it).expect("open");
    kept.set(Some(looper));
    run.run();
    assert!(is_cancelled(&mut handle) && handle.handle().is_done());
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_future_that_is_refused_comes_back() {
    let looper = MessageLoop::builder().max_pending(1).prepare().expect("no other one");
    let (local, signal, held) = (looper.local_runner(), Signal::default(), Rc::new(()));
    let refuse = |reason| {
        let captured = Rc::clone(&held);
        let refused = local.spawn_local(async move { drop(captured) }).expect_err("refused");
        assert_eq!((refused.reason(), Rc::strong_count(&held)), (reason, 2));
        drop(refused.into_task());
        assert_eq!(Rc::strong_count(&held), 1);
    };
    local.spawn_local(signal.wait()).expect("open");
    looper.run_until_idle();
    refuse(ScheduleError::Full); // S25: it holds its place until it has ended
    signal.set(); // a wake takes no place
    looper.run_until_idle();
    let cancelled = local.spawn_local(pending::<()>()).expect("the place is free");
    refuse(ScheduleError::Full);
    cancelled.cancel();
    local.spawn_local(async {}).expect("the place is free at once");
    looper.runner().quit();
    refuse(ScheduleError::Closed);
}

/// Random wakes, cancels and ends from several threads. Each future is dropped once, on the thread of its loop, and each handle
/// resolves.
#[test]
fn a_storm_of_wakes_and_cancels_leaves_no_future_behind() {
    const FUTURES: usize = 100;
    for seed in 0..count(40, 2_000) as u64 {
        let looper = LoopThread::spawn("storm").expect("a thread");
        let drops = Arc::default();
        let (give, take) = channel();
        let resolved = Arc::new(AtomicUsize::new(0));
        for _ in 0..FUTURES {
            let (signal, noted) = (Signal::default(), note_drop(&drops));
            let (give, resolved) = (give.clone(), Arc::clone(&resolved));
            let spawn = move || {
                let local = LocalTaskRunner::current().expect("in a task");
                let wait = signal.wait();
                let handle = local.spawn_local(async move {
                    let _noted = noted;
                    wait.await;
                });
                let handle = handle.expect("open");
                give.send((signal, handle.handle())).expect("awaited");
                let watch = OnDrop(move || _ = resolved.fetch_add(1, Ordering::Relaxed));
                let waits = async move {
                    let _watch = watch; // runs to its end, or is dropped with the loop
                    _ = handle.await;
                };
                local.spawn_local(waits).expect("open");
            };
            looper.runner().post(spawn).expect("open");
        }
        let futures: Arc<Vec<_>> = Arc::new(take.into_iter().take(FUTURES).collect());
        until("all are polled", || futures.iter().all(|(signal, _)| signal.polls() > 0));
        let wins = Arc::new(AtomicUsize::new(0));
        let storms: Vec<_> = (0..3)
            .map(|thread| {
                let (futures, wins) = (Arc::clone(&futures), Arc::clone(&wins));
                let mut random = Random(3 * seed + thread);
                thread::spawn(move || {
                    for _ in 0..5 * FUTURES {
                        let (signal, handle) = &futures[random.below(FUTURES as u64) as usize];
                        match random.below(4) {
                            0 if handle.cancel() => _ = wins.fetch_add(1, Ordering::Relaxed),
                            0 => {}
                            1 => signal.set(),
                            _ => signal.waker().wake(),
                        }
                    }
                })
            })
            .collect();
        if seed % 2 == 0 {
            looper.runner().quit();
        }
        storms.into_iter().for_each(|storm| storm.join().expect("no panic"));
        looper.runner().quit();
        looper.join().expect("no panic");
        let cancelled = futures.iter().filter(|(_, handle)| handle.is_cancelled()).count();
        assert_eq!(cancelled, wins.load(Ordering::Relaxed), "S8, seed {seed}");
        assert!(futures.iter().all(|(_, handle)| handle.is_done()), "seed {seed}");
        let drops = drops.lock().expect("no panic");
        assert_eq!(drops.len(), FUTURES, "seed {seed}");
        assert!(drops.iter().all(|thread| *thread == drops[0]), "at home, seed {seed}");
        assert_eq!(resolved.load(Ordering::Relaxed), FUTURES, "seed {seed}");
    }
}

/// A handle that is dropped lets the task go that has awaited it. The future goes on.
#[test]
fn a_dropped_handle_keeps_no_waker() {
    struct Held;
    impl std::task::Wake for Held {
        fn wake(self: Arc<Self>) {
            unreachable!("nobody waits any more");
        }
    }
    let (looper, local, clock) = virtual_loop();
    let scheduler = Scheduler::builder().clock(clock.clone()).build_driven().expect("good");
    let (scheduler, driver) = scheduler;
    let ended = Rc::new(Cell::new(false));
    let ends = Rc::clone(&ended);
    let mut handle = local
        .spawn_local(async move {
            scheduler.sleep(SECOND).await;
            ends.set(true);
        })
        .expect("open");
    let held = Arc::new(Held);
    let waker = Waker::from(Arc::clone(&held));
    assert!(Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    assert_eq!(Arc::strong_count(&held), 2);
    drop(handle);
    assert_eq!(Arc::strong_count(&held), 1);
    looper.run_until_idle();
    driver.advance(SECOND);
    looper.run_until_idle();
    assert!(ended.get());
}
