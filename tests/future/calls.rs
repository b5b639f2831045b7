//! `call_after`, and `block_on` where it would wait for itself.

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::common::told::Poller;
use crate::common::{Grenade, PATIENCE, driven, driven_by, panic_on_purpose, silence, until};
use futures_util::future::join;
use tickwheel::future::block_on;
use tickwheel::pool::{JoinError, ScheduledFuture, ScheduledThreadPool};
use tickwheel::{CloseError, Inline, ScheduleError, Scheduler, ThreadPool};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the outcome of a call, and does not wait for ever.
fn ended<T>(call: ScheduledFuture<T>) -> Result<T, JoinError> {
    call.join_timeout(PATIENCE).expect("it resolves")
}

#[test]
fn a_call_is_made_at_its_time_and_gives_its_value() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let mut call = scheduler.call_after(SECOND, || String::from("done"));
    assert_eq!((call.remaining(), call.is_done(), call.is_periodic()), (SECOND, false, false));
    assert!(task.poll(&mut call).is_pending());
    driver.advance(SECOND);
    assert_eq!((call.remaining(), call.is_done(), task.woken()), (Duration::ZERO, true, 1));
    assert_eq!(ended(call).expect("it has run"), "done");
    assert_eq!(task.wakers(), 0);
}

#[test]
fn a_call_whose_future_is_dropped_is_made_all_the_same() {
    let (scheduler, driver) = driven();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    drop(scheduler.call_after(SECOND, move || count.fetch_add(1, Ordering::Relaxed)));
    driver.advance(SECOND);
    assert_eq!((runs.load(Ordering::Relaxed), Arc::strong_count(&runs)), (1, 1));
}

#[test]
fn s08_s09_a_call_that_is_cancelled_drops_its_closure_and_tells() {
    let ((scheduler, driver), task) = (driven(), Poller::new());
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let mut call = scheduler.call_after(SECOND, move || drop(inside));
    let handle = call.handle();
    assert!(task.poll(&mut call).is_pending());
    assert!(handle.cancel() && !call.cancel() && handle.is_cancelled());
    assert_eq!((Arc::strong_count(&held), task.woken()), (1, 1));
    assert!(matches!(task.poll(&mut call), Poll::Ready(Err(JoinError::Cancelled))));
    assert_eq!(driver.advance(SECOND), 0);
}

#[test]
fn s15_a_call_that_panics_tells_its_future_and_its_scheduler() {
    silence();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let builder = Scheduler::builder().on_panic(move |panic| {
        tell.lock().expect("no panic").push(panic.message().map(str::to_owned));
    });
    let (scheduler, driver) = driven_by(builder);
    let call = scheduler.call_after(MILLI, || panic_on_purpose());
    let other = scheduler.call_after(MILLI, || std::panic::resume_unwind(Box::new(42_u8)));
    driver.advance(MILLI);
    let Err(JoinError::Panicked(payload)) = ended(call) else { panic!("it panicked") };
    assert_eq!(payload.message(), Some("on purpose"));
    let Err(JoinError::Panicked(payload)) = ended(other) else { panic!("it panicked") };
    assert_eq!(payload.into_inner().downcast_ref::<u8>(), Some(&42));
    assert_eq!(scheduler.stats().panicked(), 2);
    let told: Vec<_> = told.lock().expect("no panic").clone();
    assert_eq!(told[0].as_deref(), Some("on purpose"));
    assert!(told[1].is_some());
}

/// Each of these schedulers is gone for its user, and the call is a leftover that nobody takes.
#[test]
fn s24_a_call_whose_scheduler_was_stopped_and_left_resolves() {
    let threaded = || Scheduler::builder().shutdown_timeout(MILLI).build().expect("a thread");
    let call = {
        let scheduler = threaded();
        let call = scheduler.call_after(HOUR, || 1);
        drop(scheduler.stop());
        assert!(matches!(ended(call), Err(JoinError::Cancelled)), "its handle is still here");
        let (scheduler, _driver) = driven();
        let call = scheduler.call_after(HOUR, || 1);
        drop(scheduler.stop());
        call
    };
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));

    // The close gives up waiting for a run, and its user gives up too: the future is all that is left.
    let scheduler = threaded();
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let series = move || {
        enter.send(()).expect("the test waits");
        left.recv().expect("the test goes on");
    };
    scheduler.schedule_repeatedly(Duration::ZERO, HOUR, series).expect("open");
    let call = scheduler.call_after(HOUR, || 1);
    entered.recv().expect("it runs");
    assert_eq!(scheduler.close().map(drop), Err(CloseError::Timeout));
    assert!(!call.is_done(), "a later close may collect it");
    drop(scheduler);
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));
    leave.send(()).expect("it runs");
}

/// A task asks for the leftovers and cannot wait for them. After that nobody is left who could close.
#[test]
fn s24_a_call_resolves_whoever_of_handle_driver_and_stopping_goes_last() {
    let asks = |scheduler: &Scheduler| {
        let inner = scheduler.clone();
        let ask = move || assert!(inner.stop().wait().is_empty(), "it is on the tick thread");
        scheduler.schedule_once(Duration::ZERO, ask).expect("open");
    };
    for driver_goes_first in [true, false] {
        let (scheduler, driver) = driven();
        let call = scheduler.call_after(HOUR, || 1);
        asks(&scheduler);
        driver.turn();
        assert!(scheduler.is_closed() && !call.is_done(), "a later close may collect it");
        if driver_goes_first {
            drop(driver);
            drop(scheduler);
        } else {
            drop(scheduler);
            assert!(!call.is_done(), "the driver may collect it");
            drop(driver);
        }
        assert!(matches!(ended(call), Err(JoinError::Cancelled)));
    }

    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let call = scheduler.call_after(HOUR, || 1);
    let (sender, receiver) = mpsc::channel::<Scheduler>();
    let ask = move || {
        let last = receiver.recv().expect("the test gives it");
        let stopping = last.stop();
        drop(last);
        assert!(stopping.wait().is_empty(), "it is on the tick thread");
    };
    scheduler.schedule_once(Duration::ZERO, ask).expect("open");
    sender.send(scheduler).expect("it waits");
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));
}

/// Nobody takes the result, and the payload of the panic panics when it is dropped.
#[test]
fn s17_a_call_whose_panic_panics_takes_nobody_along() {
    silence();
    let (scheduler, driver) = driven();
    drop(scheduler.call_after(MILLI, || std::panic::panic_any(Grenade)));
    let other = scheduler.call_after(MILLI, || 5);
    driver.advance(MILLI);
    assert_eq!(ended(other).expect("it has run"), 5);
    assert_eq!(scheduler.stats().panicked(), 1);
}

#[test]
fn s20_a_call_that_will_not_be_made_resolves() {
    let (scheduler, _driver) = driven();
    let (returned, run) = (scheduler.call_after(SECOND, || 1), scheduler.call_after(SECOND, || 2));
    let mut leftovers = scheduler.close().expect("nobody turns it").into_iter();
    drop(leftovers.next());
    leftovers.next().expect("two were pending").run();
    assert!(matches!(ended(returned), Err(JoinError::Cancelled)));
    assert_eq!(ended(run).expect("it has run"), 2);
    let refused = scheduler.call_after(SECOND, || 3);
    assert!(refused.is_done() && !refused.cancel());
    assert!(matches!(ended(refused), Err(JoinError::Refused(ScheduleError::Closed))));
}

#[test]
fn s09_a_captured_value_that_panics_as_it_is_dropped_leaves_no_future_waiting() {
    silence();
    let (scheduler, _driver) = driven();
    let grenade = Grenade;
    let call = scheduler.call_after(SECOND, move || drop(grenade));
    assert!(call.cancel());
    assert!(matches!(ended(call), Err(JoinError::Cancelled)));
}

#[test]
fn a_call_that_is_joined_on_the_tick_thread_is_an_error() {
    let (scheduler, driver) = driven();
    let inner = scheduler.clone();
    let outcome = scheduler.call_after(MILLI, move || inner.call_after(MILLI, || ()).join());
    driver.advance(SECOND);
    let joined = ended(outcome).expect("it has run");
    assert!(matches!(joined, Err(JoinError::WouldDeadlock)), "{joined:?}");
}

/// Makes a call on a scheduler, and waits for its value, but not for ever.
fn outcome<T: Send + 'static>(
    scheduler: &Scheduler,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    scheduler.call_after(Duration::ZERO, f).join_timeout(PATIENCE).expect("it does not hang")
}

#[test]
fn a_call_that_only_threads_that_wait_could_make_is_an_error() {
    let executor = Arc::new(ThreadPool::new(1));
    let scheduler = Scheduler::builder().executor(executor).build().expect("threads");
    let inner = scheduler.clone();
    let joined = outcome(&scheduler, move || inner.call_after(MILLI, || 1).join());
    assert!(matches!(joined, Ok(Err(JoinError::WouldDeadlock))), "{joined:?}");

    // On another executor, or on a free thread, the call is made.
    let inner = scheduler.with_executor(Inline);
    let joined = outcome(&scheduler, move || inner.call_after(MILLI, || 1).join());
    assert!(matches!(joined, Ok(Ok(1))), "{joined:?}");
    let two = scheduler.with_executor(ThreadPool::new(2));
    for _ in 0..3 {
        let inner = two.clone();
        let joined = outcome(&two, move || inner.call_after(MILLI, || 1).join());
        assert!(matches!(joined, Ok(Ok(1))), "{joined:?}");
    }

    // Both wait. The second one gets the error, and then makes the call that the first one waits for.
    let meet = Arc::new(Barrier::new(2));
    let outer = [(); 2].map(|()| {
        let (inner, meet) = (two.clone(), Arc::clone(&meet));
        two.call_after(Duration::ZERO, move || {
            meet.wait();
            inner.call_after(MILLI, || 1).join().is_ok()
        })
    });
    let joined = outer.map(|call| call.join_timeout(PATIENCE).expect("no hang").expect("no panic"));
    assert_ne!(joined[0], joined[1], "one of them is told");
}

#[test]
fn a_call_that_joins_itself_is_an_error() {
    let scheduler = Scheduler::builder().executor(ThreadPool::new(3)).build().expect("threads");
    let (give, own) = channel::<ScheduledFuture<()>>();
    let (tell, told) = channel();
    let call = scheduler.call_after(MILLI, move || {
        let joined = own.recv_timeout(PATIENCE).expect("given").join();
        tell.send(matches!(joined, Err(JoinError::WouldDeadlock))).expect("awaited");
    });
    give.send(call).expect("it waits");
    assert!(told.recv_timeout(PATIENCE).expect("no hang"));
}

#[test]
fn a_call_that_a_pool_would_have_to_make_crosswise_is_an_error() {
    let pool = ScheduledThreadPool::new(1);
    let on_pool = Scheduler::builder().executor(pool.clone()).build().expect("threads");
    let on_thread = on_pool.with_executor(ThreadPool::new(1));
    let started = Arc::new(Barrier::new(2));
    let (inner, meet) = (pool.clone(), Arc::clone(&started));
    let one = on_thread.call_after(Duration::ZERO, move || {
        meet.wait();
        inner.submit(|| 1).expect("open").join().is_ok()
    });
    let (inner, meet) = (on_thread.clone(), Arc::clone(&started));
    let other = on_pool.call_after(Duration::ZERO, move || {
        meet.wait();
        inner.call_after(Duration::ZERO, || 1).join().is_ok()
    });
    let joined =
        [one, other].map(|call| call.join_timeout(PATIENCE).expect("no hang").expect("no panic"));
    assert_ne!(joined[0], joined[1], "one of them is told");
}

/// Runs a closure in a task on the tick thread of a scheduler, with a handle to the scheduler.
fn on_tick_thread<T: Send + 'static>(
    f: impl FnOnce(&Scheduler) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let inner = scheduler.clone();
    outcome(&scheduler, move || f(&inner))
}

#[test]
fn to_block_on_a_timer_that_only_this_thread_serves_is_a_panic() {
    silence();
    let one = on_tick_thread(|scheduler| block_on(scheduler.sleep(MILLI)));
    let message = |ended: Result<(), JoinError>| match ended {
        Err(JoinError::Panicked(payload)) => payload.message().map(str::to_owned),
        other => panic!("{other:?}"),
    };
    assert!(message(one).expect("words").contains("ThreadPool"), "it says what to do");
    let two = on_tick_thread(|scheduler| {
        let sleeps = join(scheduler.sleep(SECOND), scheduler.sleep(MILLI));
        _ = block_on(sleeps);
    });
    assert!(message(two).is_some());
    let timeout =
        on_tick_thread(|scheduler| _ = block_on(scheduler.timeout(MILLI, pending::<()>())));
    assert!(message(timeout).is_some());

    // A turn of a driver behaves like a tick thread.
    let (scheduler, driver) = driven();
    let inner = scheduler.clone();
    let call = scheduler.call_after(MILLI, move || block_on(inner.sleep(MILLI)));
    driver.advance(SECOND);
    assert!(message(ended(call)).is_some());
}

#[test]
fn to_block_on_what_is_ready_or_woken_by_others_works_on_a_tick_thread_too() {
    assert!(matches!(on_tick_thread(|_| block_on(ready(1))), Ok(1)));
    let past = on_tick_thread(|scheduler| block_on(scheduler.sleep(Duration::ZERO)));
    assert!(matches!(past, Ok(())));
    // The timer of another scheduler.
    let other = Scheduler::new();
    let slept = on_tick_thread(move |_| block_on(other.sleep(MILLI)));
    assert!(matches!(slept, Ok(())));
    // A value from another thread, with a timeout of this scheduler.
    let pool = ScheduledThreadPool::new(1);
    let value = on_tick_thread(move |scheduler| {
        let value = pool.schedule(20 * MILLI, || 1).expect("open");
        block_on(scheduler.timeout(HOUR, value))
    });
    assert!(matches!(value, Ok(Ok(Ok(1)))), "{value:?}");
    // A timer that was dropped before others are waited for.
    let pool = ScheduledThreadPool::new(1);
    let value = on_tick_thread(move |scheduler| {
        block_on(async {
            let mut sleep = scheduler.sleep(SECOND);
            std::future::poll_fn(|context| {
                assert!(Pin::new(&mut sleep).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(sleep);
            pool.schedule(20 * MILLI, || 1).expect("open").await
        })
    });
    assert!(matches!(value, Ok(Ok(1))), "{value:?}");
}

#[test]
fn a_pending_call_does_not_keep_its_scheduler_alive_but_its_future_does() {
    let scheduler = Scheduler::new();
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    drop(scheduler.call_after(HOUR, move || drop(inside)));
    drop(scheduler);
    until("the call is dropped with its scheduler", || Arc::strong_count(&held) == 1);
    let future = Scheduler::new().call_after(MILLI, || 5);
    assert_eq!(block_on(future).expect("it runs"), 5);
}
