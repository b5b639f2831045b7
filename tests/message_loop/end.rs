//! The end of a loop, and the tasks that wait in it: the table in the documentation of `message_loop`, cell by cell.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::{OnDrop, PATIENCE, silence, until};
use tickwheel::message_loop::{LocalJoinHandle, LoopThread, MessageLoop, RunLoop, TaskRunner};
use tickwheel::{Cancellable, ManualClock, Period, ScheduleError, ScheduleExt, Scheduler};

const SECOND: Duration = Duration::from_secs(1);

thread_local! {
    /// Holds the loop, so that its tasks can drop it.
    static LOOP: RefCell<Option<MessageLoop>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    QuitHere,
    QuitElsewhere,
    Safely,
    WhenIdle,
    Drop,
}

const ENDS: [End; 5] = [End::QuitHere, End::QuitElsewhere, End::Safely, End::WhenIdle, End::Drop];

impl End {
    fn come(self, runner: &TaskRunner) {
        match self {
            End::QuitHere => runner.quit(),
            End::QuitElsewhere => {
                let runner = runner.clone();
                thread::spawn(move || runner.quit()).join().expect("no panic");
            }
            End::Safely => runner.quit_safely(),
            End::WhenIdle => runner.quit_when_idle(),
            End::Drop => drop(LOOP.take()),
        }
    }
}

/// The trace of a task: how often it ran, and where it was dropped.
#[derive(Clone, Default)]
struct Traces {
    runs: Arc<AtomicUsize>,
    drops: Arc<Mutex<Vec<ThreadId>>>,
}

impl Traces {
    /// A piece of code that is traced, for any sort of task.
    fn leave(&self) -> impl FnMut() + Send + 'static + use<> {
        let (runs, drops) = (Arc::clone(&self.runs), Arc::clone(&self.drops));
        let dropped = OnDrop(move || drops.lock().expect("no panic").push(thread::current().id()));
        move || {
            let _held = &dropped;
            runs.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

/// A loop that is about to end, in virtual time.
struct Case {
    end: End,
    clock: ManualClock,
    runner: TaskRunner,
    traces: Traces,
    run: RunLoop,
}

impl Case {
    fn new(end: End) -> Case {
        silence();
        let clock = ManualClock::new();
        let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
        let (runner, run) = (looper.runner(), RunLoop::new().expect("a loop"));
        LOOP.set(Some(looper));
        Case { end, clock, runner, traces: Traces::default(), run }
    }

    fn on_loop<R>(&self, act: impl FnOnce(&MessageLoop) -> R) -> R {
        assert!(self.runner.belongs_to_current_thread());
        LOOP.with_borrow(|looper| act(looper.as_ref().expect("not dropped yet")))
    }

    fn turn_until_idle(&self) {
        self.on_loop(|looper| _ = looper.run_until_idle());
    }

    /// Lets the loop end, and drops it. Returns how often the task has run after the end was asked for.
    fn runs_after_the_end(&self) -> usize {
        let before = self.traces.runs();
        self.end.come(&self.runner);
        self.run_to_the_end(before)
    }

    fn run_to_the_end(&self, before: usize) -> usize {
        self.run.run();
        drop(LOOP.take());
        let home = thread::current().id();
        assert_eq!(*self.traces.drops.lock().expect("no panic"), [home], "dropped once, at home");
        self.traces.runs() - before
    }

    fn is_over(&self, handle: &Cancellable) {
        assert!(handle.is_done() && !handle.is_cancelled() && !handle.cancel(), "{:?}", self.end);
    }
}

fn is_cancelled<T>(handle: &mut LocalJoinHandle<T>) -> bool {
    let polled = std::pin::pin!(handle).poll(&mut Context::from_waker(Waker::noop()));
    matches!(polled, Poll::Ready(Err(tickwheel::pool::JoinError::Cancelled)))
}

/// Checks one row of the table: how often the task runs after each of the ends.
fn row(row: impl Fn(&Case) -> usize) -> [usize; 5] {
    ENDS.map(|end| row(&Case::new(end)))
}

#[test]
fn s20_an_immediate_task() {
    let posted = row(|case| {
        let handle = case.runner.post(case.traces.leave()).expect("open");
        let runs = case.runs_after_the_end();
        case.is_over(&handle);
        runs
    });
    assert_eq!(posted, [0, 1, 1, 1, 0]);
    let local = row(|case| {
        let task = (Rc::new(()), case.traces.leave());
        let task = move || {
            let (_not_send, mut leaves) = task;
            leaves();
        };
        let handle = case.on_loop(|looper| looper.local_runner().post(task)).expect("open");
        let runs = case.runs_after_the_end();
        case.is_over(&handle);
        runs
    });
    assert_eq!(local, posted);
    let handed_over = row(|case| {
        let (scheduler, driver) =
            Scheduler::builder().executor(case.runner.clone()).build_driven().expect("good");
        let handle = scheduler.schedule_once(SECOND, case.traces.leave()).expect("open");
        driver.advance(SECOND);
        let runs = case.runs_after_the_end();
        case.is_over(&handle);
        runs
    });
    assert_eq!(handed_over, posted);
}

#[test]
fn s20_a_delayed_task() {
    for (passes, expected) in [(SECOND, [0, 0, 1, 1, 0]), (SECOND / 2, [0; 5])] {
        let posted = row(|case| {
            let handle = case.runner.post_delayed(SECOND, case.traces.leave()).expect("open");
            case.turn_until_idle();
            case.clock.advance(passes);
            let runs = case.runs_after_the_end();
            case.is_over(&handle);
            runs
        });
        assert_eq!(posted, expected, "after {passes:?}");
        let local = row(|case| {
            let (not_send, mut leaves) = (Rc::new(()), case.traces.leave());
            let task = move || {
                let _held = &not_send;
                leaves();
            };
            let local = case.on_loop(MessageLoop::local_runner);
            let handle = local.post_delayed(SECOND, task).expect("open");
            case.clock.advance(passes);
            let runs = case.runs_after_the_end();
            case.is_over(&handle);
            runs
        });
        assert_eq!(local, expected, "after {passes:?}");
    }
}

#[test]
fn s20_a_series() {
    let every = Period::fixed_rate(3600 * SECOND);
    // Its next run is due, or not yet; its first run is an immediate task, if it has no initial delay.
    for (initial, passes, expected) in [
        (SECOND, SECOND, [0, 0, 1, 1, 0]),
        (SECOND, SECOND / 2, [0; 5]),
        (Duration::ZERO, Duration::ZERO, [0, 1, 1, 1, 0]),
    ] {
        let shared = row(|case| {
            let series = case.runner.schedule_periodic(initial, every, case.traces.leave());
            case.clock.advance(passes);
            let runs = case.runs_after_the_end();
            case.is_over(&series.expect("open"));
            runs
        });
        assert_eq!(shared, expected, "{initial:?}, {passes:?}");
        let local = row(|case| {
            let local = case.on_loop(MessageLoop::local_runner);
            let (not_send, mut leaves) = (Rc::new(()), case.traces.leave());
            let task = move || {
                let _held = &not_send;
                leaves();
            };
            let series = local.schedule_periodic(initial, every, task);
            case.clock.advance(passes);
            let runs = case.runs_after_the_end();
            case.is_over(&series.expect("open"));
            runs
        });
        assert_eq!(local, expected, "{initial:?}, {passes:?}");
    }
}

/// Runs of a series that have been missed are due at the call too, and the clock stands still while the loop ends. It ends
/// between two runs, or in the first one.
#[test]
fn s20_a_series_that_is_behind() {
    let every = Period::fixed_rate(SECOND);
    for (in_its_run, expected) in [(false, [0, 0, 1, 10, 0]), (true, [1, 1, 1, 10, 1])] {
        for is_local in [false, true] {
            let runs = row(|case| {
                let (mut leaves, runner, end) =
                    (case.traces.leave(), case.runner.clone(), case.end);
                let mut is_first = in_its_run;
                let task = move || {
                    leaves();
                    if std::mem::take(&mut is_first) {
                        end.come(&runner);
                    }
                };
                let series = if is_local {
                    let local = case.on_loop(MessageLoop::local_runner);
                    local.schedule_periodic(SECOND, every, task).expect("open")
                } else {
                    case.runner.schedule_periodic(SECOND, every, task).expect("open")
                };
                case.clock.advance(10 * SECOND);
                let runs =
                    if in_its_run { case.run_to_the_end(0) } else { case.runs_after_the_end() };
                case.is_over(&series);
                runs
            });
            assert_eq!(runs, expected, "in its run: {in_its_run}, local: {is_local}");
        }
    }
}

/// A series whose own run ends the loop, and lasts for ten periods after that.
#[test]
fn s20_a_series_in_its_run() {
    for is_local in [false, true] {
        let runs = row(|case| {
            let (mut leaves, clock, end) = (case.traces.leave(), case.clock.clone(), case.end);
            let (runner, mut is_first) = (case.runner.clone(), true);
            let task = move || {
                leaves();
                if std::mem::take(&mut is_first) {
                    end.come(&runner);
                    clock.advance(10 * SECOND);
                }
            };
            let (every, at_once) = (Period::fixed_rate(SECOND), Duration::ZERO);
            let series = if is_local {
                let local = case.on_loop(MessageLoop::local_runner);
                local.schedule_periodic(at_once, every, task).expect("open")
            } else {
                case.runner.schedule_periodic(at_once, every, task).expect("open")
            };
            let runs = case.run_to_the_end(0);
            case.is_over(&series);
            runs - 1
        });
        assert_eq!(runs, [0, 0, 0, 10, 0], "the ten runs that it has missed, or none");
    }
}

#[test]
fn s20_a_future() {
    #[derive(Clone, Copy, PartialEq)]
    enum Woken {
        Never,
        New,
        Before,
        After,
    }
    for (woken, expected) in [
        (Woken::Never, [0; 5]),
        (Woken::New, [0, 1, 1, 1, 0]),
        (Woken::Before, [0, 1, 1, 1, 0]),
        (Woken::After, [0, 0, 0, 1, 0]),
    ] {
        let polls = row(|case| {
            let (mut leaves, waker) = (case.traces.leave(), Rc::new(Cell::new(None)));
            let given = Rc::clone(&waker);
            let future = poll_fn(move |context| {
                leaves();
                given.set(Some(context.waker().clone()));
                Poll::<()>::Pending
            });
            let handle = case.on_loop(|looper| looper.local_runner().spawn_local(future));
            let mut handle = handle.expect("open");
            if woken == Woken::New {
                return case.runs_after_the_end();
            }
            case.turn_until_idle();
            let (before, waker): (_, Waker) = (case.traces.runs(), waker.take().expect("polled"));
            if woken == Woken::Before {
                waker.wake_by_ref();
            }
            case.end.come(&case.runner);
            if woken == Woken::After {
                waker.wake_by_ref();
            }
            let polls = case.run_to_the_end(before);
            waker.wake();
            assert!(is_cancelled(&mut handle));
            case.is_over(&handle.handle());
            polls
        });
        assert_eq!(polls, expected);
    }
}

#[test]
fn a_future_that_wakes_itself_goes_on_when_the_loop_is_to_quit_when_idle() {
    let looper = MessageLoop::prepare().expect("no other one");
    let mut left = 100;
    let wakes_itself = poll_fn(move |context| {
        left -= 1;
        context.waker().wake_by_ref();
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    });
    let handle = looper.local_runner().spawn_local(wakes_itself).expect("open");
    looper.runner().quit_when_idle();
    looper.run();
    assert!(handle.is_done() && handle.handle().is_done());
}

#[test]
fn s20_s23_what_is_posted_after_the_end_was_asked_for() {
    let posted = row(|case| {
        case.end.come(&case.runner);
        let posted = case.runner.post(case.traces.leave());
        let is_taken = posted.is_ok();
        assert_eq!(is_taken, case.end == End::WhenIdle, "{:?}", case.end);
        drop(posted); // a refused task comes back, and is dropped here
        let runs = case.run_to_the_end(0);
        assert_eq!(case.runner.post(|| ()).expect_err("over").reason(), ScheduleError::Closed);
        runs
    });
    assert_eq!(posted, [0, 0, 0, 1, 0]);
}

#[test]
fn s20_a_reply_that_comes_after_the_end_was_asked_for() {
    for is_local in [false, true] {
        let replies = row(|case| {
            let there = LoopThread::spawn("there").expect("a thread");
            let (may_go_on, waits) = channel::<()>();
            let task = move || _ = waits.recv();
            let mut leaves = case.traces.leave();
            let asked = if is_local {
                let local = case.on_loop(MessageLoop::local_runner);
                let reply = move |()| leaves();
                local.post_and_reply(&there.runner(), task, reply).map_err(drop)
            } else {
                there.runner().post_and_reply(task, move |()| leaves()).map_err(drop)
            };
            asked.expect("open");
            case.end.come(&case.runner);
            drop(may_go_on);
            there.runner().quit();
            there.join().expect("no panic");
            case.run_to_the_end(0)
        });
        assert_eq!(replies, [0, 0, 0, 1, 0]);
    }
}

#[test]
fn s20_an_idle_handler() {
    let calls = row(|case| {
        let handler = case.traces.leave();
        case.on_loop(|looper| _ = looper.add_idle_handler(handler));
        case.runner.post(|| ()).expect("open");
        case.runs_after_the_end()
    });
    assert_eq!(calls, [0; 5], "a loop that ends is not about to wait");
}

// ----- posts from anywhere -----------------------------------------------------------------

/// The waker of a future's handle runs while the loop drops that future. Its posts are refused.
#[test]
fn a_waker_that_posts_to_a_loop_that_is_dropped_is_refused() {
    struct Posts(TaskRunner, AtomicUsize);
    impl Wake for Posts {
        fn wake(self: Arc<Self>) {
            assert!(self.0.post(|| ()).is_err() && self.0.run_or_post(|| ()).is_err());
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let looper = MessageLoop::prepare().expect("no other one");
    let (local, runner) = (looper.local_runner(), looper.runner());
    let mut handle = local.spawn_local(pending::<()>()).expect("open");
    looper.run_until_idle();
    let posts = Arc::new(Posts(runner, AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&posts));
    assert!(std::pin::pin!(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(looper);
    assert_eq!(posts.1.load(Ordering::Relaxed), 1);
    assert!(is_cancelled(&mut handle));
}

/// A host's waker may call the loop, or post to it, from inside a post.
#[test]
fn a_host_s_waker_that_posts_and_turns_the_loop_finds_all_in_order() {
    struct Turns(Mutex<Option<TaskRunner>>, AtomicUsize);
    impl Wake for Turns {
        fn wake(self: Arc<Self>) {
            let runner = self.0.lock().expect("no panic").clone();
            if let Some(runner) = runner {
                self.1.fetch_add(1, Ordering::Relaxed);
                runner.post(|| ()).expect("open");
                LOOP.with_borrow(|looper| _ = looper.as_ref().expect("set").run_until_idle());
            }
        }
    }
    let turns = Arc::new(Turns(Mutex::default(), AtomicUsize::new(0)));
    let looper = MessageLoop::builder().wake_with(Waker::from(Arc::clone(&turns)));
    let looper = looper.prepare().expect("no other one");
    let (local, runner) = (looper.local_runner(), looper.runner());
    *turns.0.lock().expect("no panic") = Some(runner);
    LOOP.set(Some(looper));
    let polled = Rc::new(Cell::new(0));
    let counted = Rc::clone(&polled);
    // The turn in the waker comes before `spawn_local` returns, and the future is there.
    let handle = local.spawn_local(async move { counted.set(counted.get() + 1) }).expect("open");
    assert!(handle.is_done() && polled.get() == 1);
    let counted = Rc::clone(&polled);
    local.post(move || counted.set(counted.get() + 1)).expect("open");
    assert_eq!((polled.get(), turns.1.load(Ordering::Relaxed)), (2, 2));
    *turns.0.lock().expect("no panic") = None;
    drop(LOOP.take());
}

/// Otherwise the reply would stay in the table of a loop that is gone, for ever if it holds a runner of that loop.
#[test]
fn a_local_reply_to_a_loop_that_is_gone_comes_back() {
    let there = LoopThread::spawn("there").expect("a thread");
    let looper = MessageLoop::prepare().expect("no other one");
    let (local, held) = (looper.local_runner(), Rc::new(()));
    drop(looper);
    let (own, captured) = (local.clone(), Rc::clone(&held));
    let reply = move |()| drop((own, captured));
    let refused = local.post_and_reply(&there.runner(), || (), reply);
    let refused = refused.expect_err("its home is gone");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    drop(refused);
    for _ in 0..3 {
        let captured = Rc::clone(&held);
        drop(local.post(move || drop(captured)).expect_err("gone"));
        let captured = Rc::clone(&held);
        drop(local.spawn_local(async move { drop(captured) }).expect_err("gone"));
    }
    assert_eq!(Rc::strong_count(&held), 1);
}

/// A destructor that runs at the end of a loop may call everything that a task may call.
#[test]
fn a_destructor_at_the_end_of_a_loop_may_call_everything() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let thread = thread::spawn(move || {
        let looper = MessageLoop::prepare().expect("no other one");
        let (local, runner) = (looper.local_runner(), looper.runner());
        let guard = |what: &'static str| {
            let (local, runner, counted) = (local.clone(), runner.clone(), Arc::clone(&counted));
            OnDrop(move || {
                assert!(local.post(|| ()).is_err() && runner.post(|| ()).is_err(), "{what}");
                assert!(local.spawn_local(async {}).is_err(), "{what}");
                let every = Period::fixed_rate(SECOND);
                assert!(local.schedule_periodic(SECOND, every, || ()).is_err(), "{what}");
                assert!(local.post_and_reply(&runner, || (), |()| ()).is_err(), "{what}");
                runner.quit();
                runner.quit_when_idle();
                if let Ok(run) = RunLoop::new() {
                    run.run(); // it returns
                }
                local.remove_idle_handler(local.add_idle_handler(|| ()));
                counted.fetch_add(1, Ordering::Relaxed);
            })
        };
        let (now, later, series) = (guard("now"), guard("later"), guard("series"));
        let (future, idle) = (guard("future"), guard("idle"));
        local.post(move || drop(now)).expect("open");
        local.post_delayed(SECOND, move || drop(later)).expect("open");
        let every = Period::fixed_rate(SECOND);
        local.schedule_periodic(SECOND, every, move || _ = &series).expect("open");
        local
            .spawn_local(async move {
                let _future = &future;
                pending::<()>().await;
            })
            .expect("open");
        looper.add_idle_handler(move || _ = &idle);
        drop(looper);
    });
    thread.join().expect("no panic");
    assert_eq!(calls.load(Ordering::Relaxed), 5);
}

/// A loop that is leaked ends with its thread, together with its local tasks.
#[test]
fn a_leaked_loop_drops_what_is_local_with_its_thread() {
    let traces = Traces::default();
    let left = (traces.leave(), traces.leave(), traces.leave());
    let thread = thread::spawn(move || {
        let looper = MessageLoop::prepare().expect("no other one");
        let local = looper.local_runner();
        let (task, series, future) = left;
        local.post_delayed(SECOND, task).expect("open");
        local.schedule_periodic(SECOND, Period::fixed_rate(SECOND), series).expect("open");
        let handle = local.spawn_local(async move {
            let _held = &future;
            pending::<()>().await;
        });
        let handle = handle.expect("open").handle();
        looper.run_until_idle();
        LOOP.set(Some(looper)); // dropped with the thread, in an unknown order
        (thread::current().id(), handle)
    });
    let (home, handle) = thread.join().expect("no panic");
    until("all is dropped", || traces.drops.lock().expect("no panic").len() == 3);
    assert!(traces.drops.lock().expect("no panic").iter().all(|thread| *thread == home));
    assert!(handle.is_done() && !handle.cancel());
}

/// Every task that is posted while the loop ends has one end. Nothing is kept, and every handle resolves.
#[test]
fn s20_what_comes_while_a_loop_ends_is_run_refused_or_dropped() {
    let ends: [fn(&TaskRunner); 4] =
        [TaskRunner::quit, TaskRunner::quit_safely, TaskRunner::quit_when_idle, |runner| {
            drop(runner.post(|| MessageLoop::current().expect("in a task").quit()));
        }];
    for round in 0..crate::common::count(200, 5_000) {
        let thread = LoopThread::spawn("ends").expect("a thread");
        let runner = thread.runner();
        let held = Arc::new(());
        let poster = {
            let (runner, held) = (runner.clone(), Arc::clone(&held));
            thread::spawn(move || {
                let mut handles = Vec::new();
                for number in 0..200_u64 {
                    let captured = Arc::clone(&held);
                    let delay = Duration::from_micros(number % 3);
                    let every = Period::fixed_rate(Duration::from_micros(10));
                    handles.push(match number % 4 {
                        0 => runner.post(move || drop(captured)).map_err(drop),
                        1 => runner.post_delayed(delay, move || drop(captured)).map_err(drop),
                        2 => runner
                            .schedule_periodic(delay, every, move || _ = &captured)
                            .map_err(drop),
                        _ => runner.post_non_nestable(move || drop(captured)).map_err(drop),
                    });
                }
                handles.into_iter().flatten().collect::<Vec<_>>()
            })
        };
        if round % 3 > 0 {
            thread::yield_now();
        }
        ends[round % ends.len()](&runner);
        let series_keep_it_awake = ends.len() - 2 == round % ends.len();
        let handles = if series_keep_it_awake {
            let handles = poster.join().expect("no panic");
            runner.quit(); // ten series of 10 us are never idle
            handles
        } else {
            poster.join().expect("no panic")
        };
        thread.join().expect("no panic");
        assert!(handles.iter().all(Cancellable::is_done), "round {round}");
        assert_eq!(Arc::strong_count(&held), 1, "round {round}");
    }
}

#[test]
fn a_task_that_waits_for_its_own_loop_is_told_or_returns() {
    // A nested run whose loop has quit returns, and so does one that is told to quit before.
    let looper = LoopThread::spawn("waits").expect("a thread");
    let (tell, told) = channel();
    let runner = looper.runner();
    let waits = move || {
        let run = RunLoop::new().expect("in a task");
        MessageLoop::current().expect("in a task").quit();
        run.run();
        let joined = looper.join();
        tell.send(joined.is_err_and(|e| e.is::<tickwheel::message_loop::WouldDeadlock>()))
            .expect("awaited");
    };
    runner.post(waits).expect("open");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn quit_and_join_runs_what_was_posted_before_and_waits_for_it() {
    let looper = LoopThread::spawn("ends").expect("a thread");
    let runner = looper.runner();
    let (tell, told) = channel();
    let says = |number| {
        let tell = tell.clone();
        move || tell.send(number).expect("awaited")
    };
    for number in 0..100 {
        runner.post(says(number)).expect("open");
    }
    let delayed = runner.post_delayed(Duration::from_secs(3600), says(100)).expect("open");
    looper.quit_and_join().expect("no panic");
    assert!(told.try_iter().eq(0..100));
    assert!(delayed.is_done() && !delayed.is_cancelled());
    assert!(runner.post(|| ()).is_err());
}

#[test]
fn quit_and_join_on_the_loop_s_own_thread_is_told_and_quits() {
    let looper = LoopThread::spawn("ends").expect("a thread");
    let runner = looper.runner();
    let (tell, told) = channel();
    let says = tell.clone();
    let ends = move || {
        let joined = looper.quit_and_join();
        let is_told = joined.is_err_and(|e| e.is::<tickwheel::message_loop::WouldDeadlock>());
        tell.send(is_told).expect("awaited");
    };
    let (open, gate) = channel::<()>();
    runner.post(move || _ = gate.recv()).expect("open");
    runner.post(ends).expect("open");
    runner.post(move || says.send(true).expect("awaited")).expect("open");
    drop(open);
    assert!(told.iter().eq([true, true]), "what was posted before still runs");
    assert!(runner.post(|| ()).is_err());
}
