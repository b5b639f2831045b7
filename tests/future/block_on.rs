//! Async code in virtual time: `Driver::block_on`, and `Driver::next_deadline`.

use std::future::{IntoFuture, Ready, pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::driven;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tickwheel::{
    CloseError, Driver, DueTask, ManualClock, Observer, Precision, Rejected, Scheduler, Stopping,
    SystemClock,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A channel of one value between parts of a future, or threads.
#[derive(Clone)]
struct Slot<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

impl<T> Slot<T> {
    fn new() -> Slot<T> {
        Slot(Arc::new(Mutex::new((None, None))))
    }

    fn put(&self, value: T) {
        let mut state = self.0.lock().expect("whole");
        state.0 = Some(value);
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    async fn take(&self) -> T {
        std::future::poll_fn(|context| {
            let mut state = self.0.lock().expect("whole");
            state.1 = Some(context.waker().clone());
            state.0.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// An hour of all that a service does passes in milliseconds, and each part sees the virtual time that it should.
#[test]
fn an_hour_of_async_code_takes_a_moment() {
    let (scheduler, driver) = driven();
    let (began, start) = (Instant::now(), scheduler.now());
    let minutes = driver.block_on(async {
        let (said, minutes) = (Slot::new(), AtomicUsize::new(0));
        let ticks = async {
            let mut interval = scheduler.interval(60 * SECOND);
            loop {
                interval.tick().await;
                minutes.fetch_add(1, Ordering::Relaxed);
            }
        };
        let talk = async {
            scheduler.sleep(HOUR / 2).await;
            said.put("half an hour");
            scheduler.sleep(HOUR).await;
        };
        let listen = async {
            let early = scheduler.timeout(60 * SECOND, said.take()).await;
            assert!(early.is_err(), "nobody has said anything");
            assert_eq!(said.take().await, "half an hour");
            assert_eq!(scheduler.now() - start, HOUR / 2);
            let rest = scheduler.timeout(HOUR / 2, pending::<()>()).await;
            assert!(rest.is_err());
        };
        let (ticks, talk, listen) = (pin!(ticks), pin!(talk), pin!(listen));
        let all = select(select(ticks, talk), listen).await;
        assert!(matches!(all, Either::Right(_)), "an hour ends before an hour and a half");
        minutes.load(Ordering::Relaxed)
    });
    assert_eq!((minutes, scheduler.now() - start), (Ok(61), HOUR), "from 0 to 60");
    assert!(began.elapsed() < HOUR / 60, "{:?} for an hour", began.elapsed());
}

#[test]
fn a_thousand_sleeps_end_in_their_order() {
    for precision in [Precision::Tick, Precision::Exact] {
        let (scheduler, driver) =
            Scheduler::builder().precision(precision).build_driven().expect("good");
        let mut random = crate::common::Random(7);
        let sleeps: FuturesUnordered<_> = (0..1000)
            .map(|_| {
                let due = scheduler.now() + random.below(3600) as u32 * SECOND;
                let sleep = scheduler.sleep_until(due);
                async move {
                    sleep.await;
                    due
                }
            })
            .collect();
        let woken: Vec<_> = driver.block_on(sleeps.collect()).expect("all of them end");
        assert!(woken.len() == 1000 && woken.is_sorted());
        assert_eq!(scheduler.pending(), 0);
    }
}

#[test]
fn tasks_run_while_a_future_is_blocked_on() {
    let (scheduler, driver) = driven();
    let done = Slot::new();
    let tell = done.clone();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let beat = scheduler.schedule_repeatedly(SECOND, SECOND, move || {
        if count.fetch_add(1, Ordering::Relaxed) == 9 {
            tell.put(());
        }
    });
    assert_eq!(driver.block_on(done.take()), Ok(()));
    assert_eq!(runs.load(Ordering::Relaxed), 10);
    assert!(beat.expect("open").cancel());
}

/// What becomes a future.
struct Answer;

impl IntoFuture for Answer {
    type Output = u32;
    type IntoFuture = Ready<u32>;

    fn into_future(self) -> Ready<u32> {
        ready(42)
    }
}

#[test]
fn what_becomes_a_future_is_taken_too() {
    let (_scheduler, driver) = driven();
    assert_eq!(driver.block_on(Answer), Ok(42));
}

#[test]
fn a_future_that_nothing_will_wake_is_stalled() {
    let (scheduler, driver) = driven();
    let stalled = driver.block_on(pending::<()>()).expect_err("nothing wakes it");
    assert_eq!(stalled.pending(), 0);
    assert!(stalled.to_string().contains("no timer is pending"), "{stalled}");
    // What is pending is never due.
    let never = scheduler.schedule_once(Duration::MAX, || ()).expect("open");
    let unlimited = scheduler.timeout(Duration::MAX, pending::<()>());
    let stalled = driver.block_on(unlimited).expect_err("never");
    assert!(stalled.pending() == 2 && stalled.to_string().contains("never due"), "{stalled}");
    assert!(never.cancel());
    // Timers pass first, and their tasks run.
    let task = scheduler.schedule_once(HOUR, || ()).expect("open");
    driver.block_on(pending::<()>()).expect_err("nothing wakes it");
    assert!(task.is_done());
    // A closed scheduler has nothing more to give, and its sleeps wait elsewhere, in real time.
    let sleep = scheduler.sleep(HOUR);
    scheduler.close().map(drop).expect("nobody waits");
    assert!(driver.block_on(sleep).is_err() && driver.block_on(pending::<()>()).is_err());
}

#[test]
fn a_task_that_its_executor_refuses_for_good_is_named() {
    let gone = |task: DueTask| Err(Rejected::for_good(task));
    let executor = common_executor(gone);
    let (scheduler, driver) = Scheduler::builder().executor(executor).build_driven().expect("good");
    scheduler.schedule_once(SECOND, || ()).expect("open");
    let stalled = driver.block_on(pending::<()>()).expect_err("nothing wakes it");
    assert!(stalled.pending() == 1 && stalled.to_string().contains("its executor"), "{stalled}");
}

/// An executor that is this closure.
fn common_executor(
    execute: impl Fn(DueTask) -> Result<(), Rejected> + Send + Sync + 'static,
) -> impl tickwheel::Executor {
    struct By<F>(F);
    impl<F: Fn(DueTask) -> Result<(), Rejected> + Send + Sync + 'static> tickwheel::Executor for By<F> {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            (self.0)(task)
        }
    }
    By(execute)
}

#[test]
fn inside_a_task_of_the_same_driver_it_is_an_error() {
    let (scheduler, driver) = driven();
    let (driver, told) = (Arc::new(driver), Arc::new(Mutex::new(None)));
    let (inner, tell, timers) = (Arc::clone(&driver), Arc::clone(&told), scheduler.clone());
    let task = move || *tell.lock().expect("whole") = Some(inner.block_on(timers.sleep(SECOND)));
    scheduler.schedule_once(SECOND, task).expect("open");
    assert_eq!(driver.advance(SECOND), 1);
    let told = told.lock().expect("whole").take().expect("it has run");
    assert!(told.expect_err("it would wait for itself").to_string().contains("inside of a task"));
    // In another driver's task it works.
    let (other, outer) = driven();
    let (timers, start) = (scheduler.clone(), scheduler.now());
    let inner = Arc::clone(&driver);
    let sleeps = move || inner.block_on(timers.sleep(HOUR)).expect("woken");
    other.schedule_once(SECOND, sleeps).expect("open");
    assert_eq!(outer.advance(SECOND), 1);
    assert_eq!(scheduler.now() - start, HOUR);
}

#[test]
fn virtual_time_waits_for_other_threads_if_it_is_told_to() {
    let (scheduler, driver) = driven();
    let (start, answer) = (scheduler.now(), Slot::new());
    let (go, wait) = mpsc::channel();
    let put = answer.clone();
    let thread = thread::spawn(move || {
        wait.recv().expect("sent");
        thread::sleep(3 * MS); // in real time, while the test waits
        put.put(7);
    });
    let future = async {
        go.send(()).expect("the thread waits");
        scheduler.timeout(MS, answer.take()).await
    };
    let told = driver.block_on_patiently(60 * SECOND, future);
    assert_eq!(told.expect("woken").expect("virtual time stood still"), 7);
    assert_eq!(scheduler.now(), start);
    thread.join().expect("no panic");
    // Without patience the timeout comes first.
    let answer = Slot::<u32>::new();
    let told = driver.block_on(scheduler.timeout(MS, answer.take()));
    assert!(told.expect("woken by the timeout").is_err());
}

#[test]
fn on_a_clock_that_runs_by_itself_it_really_waits() {
    let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven().expect("good");
    let start = Instant::now();
    driver.block_on(scheduler.sleep(5 * MS)).expect("woken");
    assert!(start.elapsed() >= 5 * MS);
    let answer = Slot::new();
    let put = answer.clone();
    let thread = thread::spawn(move || {
        thread::sleep(5 * MS);
        put.put(1);
    });
    assert_eq!(
        driver.block_on(answer.take()),
        Ok(1),
        "nothing is pending, so only the thread wakes it"
    );
    thread.join().expect("no panic");
}

#[test]
fn a_panic_of_the_future_leaves_the_driver_usable() {
    let (scheduler, driver) = driven();
    let blocks = || driver.block_on(async { panic!("on purpose") });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(blocks)).is_err());
    driver.block_on(scheduler.sleep(HOUR)).expect("it is woken");
}

#[test]
fn the_next_deadline_is_that_of_what_is_still_pending() {
    for precision in [Precision::Tick, Precision::Exact] {
        let clock = ManualClock::new();
        let builder = Scheduler::builder().precision(precision).clock(clock.clone()).tick(10 * MS);
        let (scheduler, driver) = builder.build_driven().expect("good");
        let start = scheduler.now();
        let next = || driver.next_deadline().map(|next| (next - start).as_millis());
        assert_eq!(next(), None);
        let never = scheduler.schedule_once(Duration::MAX, || ()).expect("open");
        assert_eq!(next(), None, "it never comes");
        let tasks: Vec<_> = [3605, 7, 33, 12]
            .map(|ms| scheduler.schedule_once(ms * MS, || ()).expect("open"))
            .into();
        assert_eq!(next(), Some(7));
        assert!(tasks[1].cancel());
        assert_eq!(next(), Some(12));
        driver.turn();
        assert!(tasks[3].reset(40 * MS));
        assert_eq!(next(), Some(33), "the moved one has an entry at 12");
        assert!(tasks[2].reset(50 * MS) && tasks[3].reset(60 * MS));
        assert_eq!(next(), Some(50));
        assert!(tasks[0].reset(20 * MS));
        assert_eq!(next(), Some(20));
        clock.advance(25 * MS);
        assert_eq!(next(), Some(20), "it is due, and still pending");
        driver.advance(SECOND);
        assert_eq!(next(), None);
        assert!(never.reset(SECOND));
        assert_eq!(next(), Some(2025));
    }
}

type Action = Box<dyn FnOnce() + Send>;

/// Does this when the engine takes something in.
#[derive(Clone, Default)]
struct WhenTakenIn(Arc<Mutex<Option<Action>>>);

impl WhenTakenIn {
    fn is_to(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("whole") = Some(Box::new(act));
    }
}

impl Observer for WhenTakenIn {
    fn took_in(&self, _: usize) {
        let act = self.0.lock().expect("whole").take();
        act.into_iter().for_each(|act| act());
    }
}

fn observed() -> (Scheduler, Driver, WhenTakenIn) {
    let observer = WhenTakenIn::default();
    let builder = Scheduler::builder().observer(observer.clone());
    let (scheduler, driver) = builder.build_driven().expect("good");
    (scheduler, driver, observer)
}

#[test]
fn a_stop_while_the_next_deadline_is_looked_up_ends_the_scheduler() {
    let (scheduler, driver, observer) = observed();
    let (stops, stopping) = (scheduler.clone(), Arc::new(Mutex::new(None)));
    let told = Arc::clone(&stopping);
    observer.is_to(move || *told.lock().expect("whole") = Some(stops.stop()));
    scheduler.schedule_once(SECOND, || ()).expect("open");
    assert_eq!(driver.next_deadline(), Some(scheduler.now() + SECOND), "as it was");
    let stopping = stopping.lock().expect("whole").take().expect("it was taken in");
    let leftovers = stopping.wait_timeout(Duration::ZERO).expect("nobody has to turn it");
    assert_eq!((leftovers.len(), driver.next_deadline(), driver.turn()), (1, None, None));
}

#[test]
fn a_close_inside_a_look_for_the_next_deadline_is_an_error() {
    let (scheduler, driver, observer) = observed();
    let (closes, outcome) = (scheduler.clone(), Arc::new(Mutex::new(None)));
    let told = Arc::clone(&outcome);
    observer.is_to(move || *told.lock().expect("whole") = Some(closes.close().err()));
    scheduler.schedule_once(SECOND, || ()).expect("open");
    assert_eq!(driver.next_deadline(), Some(scheduler.now() + SECOND));
    assert_eq!(outcome.lock().expect("whole").take(), Some(Some(CloseError::OnTickThread)));
    assert_eq!((scheduler.is_closed(), scheduler.pending()), (false, 1));
}

#[test]
fn joins_of_many_kinds_pass_through_one_deadline_after_the_other() {
    let (scheduler, driver) = driven();
    let start = scheduler.now();
    let waits = (1..=50_u32).map(|n| {
        let scheduler = scheduler.clone();
        async move {
            for _ in 0..n {
                scheduler.sleep(SECOND).await;
            }
            scheduler.now()
        }
    });
    let ends = driver.block_on(join_all(waits)).expect("all end");
    let after: Vec<_> = ends.iter().map(|end| (*end - start).as_secs()).collect();
    assert!(after.iter().copied().eq(1..=50), "{after:?}");
    let mut polled = 0;
    let never_woken = std::future::poll_fn(|_: &mut Context<'_>| {
        polled += 1;
        Poll::<()>::Pending
    });
    assert!(driver.block_on(never_woken).is_err());
    assert_eq!(polled, 1, "it is polled when it is woken, and not else");
}

/// A future that wakes itself while it is polled, as one does that yields, is polled again.
#[test]
fn a_wake_during_the_poll_is_kept() {
    let (_scheduler, driver) = driven();
    let mut left = 1000;
    let yields = std::future::poll_fn(|context| {
        left -= 1;
        context.waker().wake_by_ref();
        if left == 0 { Poll::Ready("done") } else { Poll::Pending }
    });
    assert_eq!(driver.block_on(yields), Ok("done"));
}

/// While nothing is pending on a clock that runs by itself, another thread schedules what wakes the future.
#[test]
fn on_a_clock_that_runs_by_itself_what_others_schedule_runs() {
    let builder = Scheduler::builder().clock(SystemClock);
    let (scheduler, driver) = builder.build_driven().expect("good");
    let answer = Slot::new();
    let put = answer.clone();
    let timers = scheduler.clone();
    let thread = thread::spawn(move || {
        thread::sleep(5 * MS);
        timers.schedule_once(MS, move || put.put(5)).expect("open");
    });
    assert_eq!(driver.block_on_patiently(Duration::MAX, answer.take()), Ok(5));
    thread.join().expect("no panic");
}

/// A task stops the scheduler, and wakes the future. Nobody turns the driver after that.
#[test]
fn a_stop_in_the_last_turn_of_a_call_is_followed_by_the_end() {
    let (scheduler, driver) = driven();
    let (stopped, stops) = (Slot::<Stopping>::new(), scheduler.clone());
    let tells = Slot(Arc::clone(&stopped.0));
    scheduler.schedule_once(SECOND, move || tells.put(stops.stop())).expect("open");
    let stopping = driver.block_on(stopped.take()).expect("woken");
    assert!(stopping.wait_timeout(Duration::ZERO).is_ok(), "the last turn was done");

    let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven().expect("good");
    let (stops, kept) = (scheduler.clone(), Arc::<Mutex<Option<Stopping>>>::default());
    let keep = Arc::clone(&kept);
    let task = move || *keep.lock().expect("whole") = Some(stops.stop());
    scheduler.schedule_once(Duration::ZERO, task).expect("open");
    driver.advance(Duration::ZERO);
    let stopping = kept.lock().expect("whole").take().expect("it has run");
    assert!(stopping.wait_timeout(Duration::ZERO).is_ok(), "the last turn was done");
}

/// The series would go on for ever, and its sender with it.
#[test]
fn s24_the_last_handle_that_is_dropped_inside_of_a_driver_stops_its_scheduler() {
    let (scheduler, driver) = driven();
    let (send, received) = mpsc::channel::<()>();
    let ends = async move {
        let keeps = move || _ = &send;
        scheduler.schedule_repeatedly(SECOND, SECOND, keeps).expect("open");
        drop(scheduler);
        let mut polls = 0;
        poll_fn(|context: &mut Context<'_>| {
            polls += 1;
            assert!(polls < 100_000, "the series is still there");
            if received.try_recv() == Err(mpsc::TryRecvError::Disconnected) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    };
    driver.block_on(ends).expect("the series is dropped");

    let (scheduler, driver) = driven();
    let (send, received) = mpsc::channel::<()>();
    scheduler.schedule_once(SECOND, move || drop(send)).expect("open");
    driver.block_on(async move { drop(scheduler) }).expect("ready");
    let told = received.try_recv();
    assert_eq!(told, Err(mpsc::TryRecvError::Disconnected), "also in the last poll");
}

/// It would wait for a timer of the driver that it holds up.
#[test]
fn to_block_inside_of_a_driver_s_block_on_is_a_panic() {
    let (_scheduler, driver) = driven();
    let blocks =
        || driver.block_on(async { tickwheel::future::block_on(tickwheel::time::sleep(SECOND)) });
    assert!(catch_unwind(AssertUnwindSafe(blocks)).is_err());
}
