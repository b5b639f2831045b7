//! A loop on its own thread: order, turns, ends, nested runs, idle handlers. In virtual time.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::{Grenade, OnDrop, panic_on_purpose, silence};
use tickwheel::message_loop::{
    AlreadyBound, DefaultPump, LocalTaskRunner, MessageLoop, Next, NotBound, RunLoop, TaskRunner,
};
use tickwheel::{
    Cancellable, Clock, ManualClock, Period, Schedule, ScheduleError, ScheduleExt, Sleeper,
};

const SECOND: Duration = Duration::from_secs(1);

/// A loop in virtual time.
fn virtual_loop() -> (MessageLoop, TaskRunner, ManualClock) {
    silence();
    let clock = ManualClock::new();
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
    let runner = looper.runner();
    (looper, runner, clock)
}

/// Returns the loop of the calling thread, for tasks.
fn here() -> TaskRunner {
    MessageLoop::current().expect("it is called in a task")
}

fn counter() -> (Arc<AtomicUsize>, impl Fn() -> usize) {
    let count = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&count);
    (count, move || told.load(Ordering::Relaxed))
}

// ----- order and time ----------------------------------------------------------------------

#[test]
fn immediate_tasks_run_in_the_order_of_posting() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    for number in 0..100 {
        runner.post(log.task(number)).expect("open");
    }
    assert!(log.all().is_empty(), "S5: not on the caller's stack");
    assert_eq!(looper.run_until_idle(), 100);
    assert!(log.all().into_iter().eq(0..100));
}

#[test]
fn s01_s03_delayed_tasks_run_by_deadline_and_never_early() {
    let (looper, runner, clock) = virtual_loop();
    let (log, start) = (Log::default(), clock.now());
    runner.post_delayed(2 * SECOND, log.task(4)).expect("open");
    runner.post_at(start + SECOND, log.task(1)).expect("open");
    runner.post_delayed(SECOND, log.task(2)).expect("open");
    runner.post_at(start + SECOND, log.task(3)).expect("open");
    clock.advance(Duration::from_nanos(999_999_999));
    assert_eq!(looper.run_until_idle(), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(looper.run_until_idle(), 3);
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 1);
    assert_eq!(log.all(), [1, 2, 3, 4]);
}

/// The next run of a series is scheduled after a run, behind the tasks that were posted before.
#[test]
fn s03_a_series_takes_its_turn_among_tasks_of_the_same_deadline() {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    let said = log.clone();
    let period = Period::fixed_rate(SECOND);
    let series = runner.schedule_periodic(SECOND, period, move || said.say(0)).expect("open");
    for number in 1..=5 {
        runner.post_delayed(2 * SECOND, log.task(number)).expect("open");
    }
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 1);
    runner.post_delayed(SECOND, log.task(6)).expect("open");
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 7);
    assert_eq!(log.all(), [0, 1, 2, 3, 4, 5, 0, 6]);
    assert!(series.cancel());
}

/// By its plan alone, the next run of an overloaded series always has the earliest deadline, and would keep all other tasks
/// waiting.
#[test]
fn s12_s13_an_overloaded_series_keeps_no_one_shot_waiting_and_stays_in_phase() {
    const MS: Duration = Duration::from_millis(1);
    let (looper, runner, clock) = virtual_loop();
    let (start, overloaded) = (clock.now(), 200);
    let (runs, runs_so_far) = counter();
    let works = clock.clone();
    let every = Period::fixed_rate(MS);
    let series = runner.schedule_periodic(MS, every, move || {
        if runs.fetch_add(1, Ordering::Relaxed) < overloaded {
            works.advance(3 * MS);
        }
    });
    let (tell, told) = std::sync::mpsc::channel();
    let reads = clock.clone();
    runner
        .post_at(start + 300 * MS, move || tell.send(reads.now()).expect("awaited"))
        .expect("open");
    while runs_so_far() < overloaded {
        if let Next::At(at) = looper.turn() {
            clock.advance(at - clock.now());
        }
    }
    let late = told.try_recv().expect("it has run") - (start + 300 * MS);
    assert!(late <= 2 * 3 * MS, "{late:?} late");
    // The plan has 601 runs by now, and an idle loop catches up at once.
    looper.run_until_idle();
    let plan = (clock.now() - start).as_millis() as usize;
    assert_eq!((plan, runs_so_far()), (601, 601));
    assert_eq!(looper.turn(), Next::At(start + 602 * MS), "S12: the phase of the plan");
    assert!(series.expect("open").cancel());
}

#[test]
fn s04_any_delay() {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    let never = runner.post_delayed(Duration::MAX, log.task(9)).expect("open");
    runner.post_delayed(Duration::ZERO, log.task(1)).expect("open");
    runner.post_delayed(Duration::from_nanos(1), log.task(2)).expect("open");
    let past = clock.now().checked_sub(SECOND).unwrap_or_else(|| clock.now());
    runner.post_at(past, log.task(3)).expect("open");
    clock.advance(1_000_000 * SECOND);
    assert_eq!(looper.run_until_idle(), 3);
    assert_eq!(log.all(), [1, 3, 2], "an immediate one, then by deadline");
    assert!(never.cancel());
}

#[test]
fn neither_sort_keeps_the_other_waiting() {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    for number in 0..3 {
        runner.post_delayed(SECOND, log.task(10 + number)).expect("open");
        runner.post(log.task(number)).expect("open");
    }
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 6);
    assert_eq!(log.all(), [0, 10, 1, 11, 2, 12]);
}

#[test]
fn a_delayed_task_is_not_late_behind_a_long_queue() {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    for _ in 0..1_000 {
        runner.post(|| ()).expect("open");
    }
    looper.turn();
    // The loop has taken those over; this one comes in behind them.
    runner.post_delayed(SECOND, log.task(1)).expect("open");
    clock.advance(SECOND);
    looper.turn();
    assert_eq!(log.all(), [1]);
}

#[test]
fn what_a_task_posts_comes_after_what_was_posted_before() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    let later = log.task(3);
    runner
        .post({
            let log = log.clone();
            move || {
                log.say(1);
                here().post(later).expect("open");
            }
        })
        .expect("open");
    runner.post(log.task(2)).expect("open");
    assert_eq!(looper.run_until_idle(), 3);
    assert_eq!(log.all(), [1, 2, 3]);
}

// ----- turns -------------------------------------------------------------------------------

#[test]
fn a_turn_runs_one_of_each_and_says_when_to_come_back() {
    let (looper, runner, clock) = virtual_loop();
    let (log, start) = (Log::default(), clock.now());
    assert_eq!(looper.turn(), Next::Idle);
    runner.post(log.task(1)).expect("open");
    runner.post(log.task(2)).expect("open");
    runner.post_delayed(SECOND, log.task(3)).expect("open");
    runner.post_delayed(SECOND, log.task(4)).expect("open");
    assert_eq!((looper.turn(), log.all().len()), (Next::Now, 1));
    assert_eq!((looper.turn(), log.all().len()), (Next::At(start + SECOND), 2));
    assert_eq!((looper.turn(), log.all().len()), (Next::At(start + SECOND), 2));
    clock.advance(SECOND);
    assert_eq!((looper.turn(), log.all().len()), (Next::Now, 3));
    assert_eq!((looper.turn(), log.all().len()), (Next::Idle, 4));
    runner.quit_safely();
    assert_eq!(looper.turn(), Next::Quit);
    assert_eq!(looper.turn(), Next::Quit, "and so it stays");
}

// ----- ends --------------------------------------------------------------------------------

/// Returns which of three immediate tasks, a due one and a later one run if the first one ends the loop.
fn what_runs(end: impl FnOnce(&TaskRunner) + Send + 'static) -> Vec<u32> {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    runner.post_delayed(SECOND, log.task(4)).expect("open");
    runner.post_delayed(2 * SECOND, log.task(5)).expect("open");
    clock.advance(SECOND);
    let said = log.clone();
    let first = move || {
        said.say(1);
        end(&here());
    };
    runner.post(first).expect("open");
    runner.post(log.task(2)).expect("open");
    runner.post(log.task(3)).expect("open");
    looper.run();
    assert_eq!(runner.post(|| ()).expect_err("it has quit").reason(), ScheduleError::Closed);
    looper.run(); // the end is final, so it returns
    assert_eq!((looper.run_until_idle(), looper.turn()), (0, Next::Quit));
    log.all()
}

/// Runs a closure on another thread, and waits for it.
fn elsewhere(f: impl FnOnce(&TaskRunner) + Send + 'static) -> impl FnOnce(&TaskRunner) + Send {
    move |runner| {
        let runner = runner.clone();
        std::thread::spawn(move || f(&runner)).join().expect("no panic");
    }
}

#[test]
fn quit_on_the_loop_s_thread_lets_nothing_more_start() {
    assert_eq!(what_runs(TaskRunner::quit), [1]);
}

#[test]
fn quit_from_elsewhere_lets_the_immediate_tasks_start_that_came_before() {
    assert_eq!(what_runs(elsewhere(TaskRunner::quit)), [1, 2, 3]);
}

#[test]
fn quit_safely_lets_start_what_is_due_at_the_call() {
    assert_eq!(what_runs(TaskRunner::quit_safely), [1, 4, 2, 3]);
    assert_eq!(what_runs(elsewhere(TaskRunner::quit_safely)), [1, 4, 2, 3]);
}

#[test]
fn quit_when_idle_takes_posts_until_nothing_is_due() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    let late = log.task(3);
    runner.quit_when_idle();
    runner
        .post({
            let log = log.clone();
            move || {
                log.say(1);
                here().post(move || _ = here().post(late)).expect("not yet");
            }
        })
        .expect("not yet");
    runner.post(log.task(2)).expect("not yet");
    runner.post_delayed(SECOND, log.task(9)).expect("not yet");
    looper.run();
    assert_eq!(log.all(), [1, 2, 3]);
    assert!(runner.post(|| ()).is_err());
    drop(looper);
    assert_eq!(what_runs(TaskRunner::quit_when_idle), [1, 4, 2, 3]);
}

#[test]
fn an_end_becomes_stricter_never_milder() {
    let both = |runner: &TaskRunner| {
        runner.quit();
        runner.quit_safely();
        runner.quit_when_idle();
    };
    assert_eq!(what_runs(both), [1]);
    assert_eq!(what_runs(elsewhere(both)), [1, 2, 3]);
    assert_eq!(
        what_runs(|runner| {
            runner.quit_safely();
            runner.quit();
        }),
        [1]
    );
}

#[test]
fn a_loop_that_has_quit_before_it_runs_returns_at_once() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    runner.post(log.task(1)).expect("open");
    runner.quit();
    looper.run();
    assert!(log.all().is_empty());
    drop(looper);
    // If another thread ends the loop, earlier posts run first.
    let (looper, runner, _clock) = virtual_loop();
    runner.post(log.task(2)).expect("open");
    elsewhere(TaskRunner::quit)(&runner);
    looper.run();
    assert_eq!(log.all(), [2]);
}

#[test]
fn an_end_from_elsewhere_lets_no_delayed_task_start_between_those_that_do() {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    for number in 0..10 {
        runner.post(log.task(number)).expect("open");
        runner.post_delayed(SECOND, log.task(100 + number)).expect("open");
    }
    looper.turn();
    clock.advance(SECOND);
    elsewhere(TaskRunner::quit)(&runner);
    looper.run();
    assert!(log.all().into_iter().eq(0..10));
}

// ----- nested runs -------------------------------------------------------------------------

#[test]
fn runs_nest_fifty_deep_and_each_ends_by_its_own_handle() {
    fn dive(depth: u32, log: &Log) {
        log.say(depth);
        if depth == 50 {
            return;
        }
        let run = RunLoop::new().expect("in a task");
        let (quit, log) = (run.quit_handle(), log.clone());
        let deeper = log.clone();
        here()
            .post(move || {
                dive(depth + 1, &deeper);
                quit.quit();
            })
            .expect("open");
        run.run();
        log.say(100 + depth);
    }
    let (looper, runner, _clock) = virtual_loop();
    let (log, top) = (Log::default(), Log::default());
    let inside = log.clone();
    runner.post(move || dive(1, &inside)).expect("open");
    runner.post(top.task(1)).expect("open");
    looper.run_until_idle();
    let up = (1..50).rev().map(|depth| 100 + depth);
    assert!(log.all().into_iter().eq((1..=50).chain(up)));
    assert_eq!(top.all(), [1], "it has had its turn, in some depth");
}

#[test]
fn the_loop_s_quit_ends_all_runs() {
    for end in [TaskRunner::quit, TaskRunner::quit_safely, TaskRunner::quit_when_idle] {
        let (looper, runner, _clock) = virtual_loop();
        let log = Log::default();
        let inside = log.clone();
        let nest = move || {
            let inner = inside.clone();
            here()
                .post(move || {
                    here().post(move || end(&here())).expect("open");
                    RunLoop::new().expect("in a task").run();
                    inner.say(1);
                })
                .expect("open");
            RunLoop::new().expect("in a task").run();
            inside.say(2);
        };
        runner.post(nest).expect("open");
        looper.run();
        assert_eq!(log.all(), [1, 2]);
        assert_eq!(looper.turn(), Next::Quit);
    }
}

#[test]
fn a_run_that_was_told_to_quit_before_returns_at_once() {
    let (looper, runner, _clock) = virtual_loop();
    let run = RunLoop::new().expect("there is a loop");
    let log = Log::default();
    runner.post(log.task(1)).expect("open");
    run.quit_handle().quit();
    run.run();
    run.run();
    assert!(log.all().is_empty());
    let run = RunLoop::new().expect("there is a loop");
    run.quit_handle().quit_when_idle();
    run.run();
    assert_eq!(log.all(), [1]);
    assert_eq!(runner.post(log.task(2)).map(drop).ok(), Some(()), "the loop goes on");
    assert_eq!(looper.run_until_idle(), 1);
}

#[test]
fn a_handle_ends_its_own_run_alone_also_when_that_is_not_the_innermost() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    let said = log.clone();
    runner
        .post(move || {
            let outer = RunLoop::new().expect("in a task");
            let quit_outer = outer.quit_handle();
            let told = said.clone();
            here()
                .post(move || {
                    let inner = RunLoop::new().expect("in a task");
                    let quit_inner = inner.quit_handle();
                    let still = told.clone();
                    here()
                        .post(move || {
                            quit_outer.quit();
                            here().post(move || still.say(1)).expect("open");
                            here().post(move || quit_inner.quit()).expect("open");
                        })
                        .expect("open");
                    inner.run();
                    told.say(2);
                    here().post(move || told.say(9)).expect("open");
                })
                .expect("open");
            outer.run();
            said.say(3);
            here().quit();
        })
        .expect("open");
    looper.run();
    assert_eq!(log.all(), [1, 2, 3], "9 was behind the end of the outer one");
}

#[test]
fn what_does_not_nest_waits_for_the_outermost_run() {
    let (looper, runner, clock) = virtual_loop();
    let log = Log::default();
    let said = log.clone();
    let inside = clock.clone();
    runner
        .post(move || {
            here().post_non_nestable(said.task(4)).expect("open");
            here().post_non_nestable_delayed(SECOND, said.task(5)).expect("open");
            here().post(said.task(1)).expect("open");
            here().post_delayed(SECOND, said.task(2)).expect("open");
            inside.advance(SECOND);
            let run = RunLoop::new().expect("in a task");
            run.quit_handle().quit_when_idle();
            run.run();
            said.say(3);
        })
        .expect("open");
    runner.post(log.task(0)).expect("open");
    assert_eq!(looper.run_until_idle(), 6);
    assert_eq!(log.all(), [0, 2, 1, 3, 5, 4], "put by in the order of their turns");
    // Also if another thread ends the loop in the nested run.
    let said = log.clone();
    runner
        .post(move || {
            here().post_non_nestable(said.task(7)).expect("open");
            elsewhere(TaskRunner::quit)(&here());
            RunLoop::new().expect("in a task").run();
            said.say(6);
        })
        .expect("open");
    looper.run();
    assert_eq!(log.all()[6..], [6, 7]);
}

#[test]
fn the_methods_of_a_loop_may_be_called_from_inside_its_tasks() {
    let (looper, _runner, _clock) = virtual_loop();
    let (looper, log) = (Rc::new(looper), Log::default());
    let (inside, said) = (Rc::clone(&looper), log.clone());
    looper
        .local_runner()
        .post(move || {
            let key = inside.add_idle_handler(|| ());
            assert!(inside.remove_idle_handler(key) && !inside.remove_idle_handler(key));
            inside.runner().post(said.task(1)).expect("open");
            inside.runner().post(said.task(2)).expect("open");
            assert_eq!(inside.turn(), Next::Now);
            assert_eq!(inside.run_until_idle(), 1);
            assert_eq!(inside.turn(), Next::Idle);
            inside.runner().post(|| here().quit_when_idle()).expect("open");
            inside.run();
            said.say(3);
        })
        .expect("open");
    looper.run();
    assert_eq!(log.all(), [1, 2, 3]);
}

// ----- idle handlers -----------------------------------------------------------------------

#[test]
fn idle_handlers_run_once_when_the_loop_is_about_to_wait() {
    let (looper, runner, _clock) = virtual_loop();
    let idle = Rc::new(Cell::new(0));
    let count = Rc::clone(&idle);
    let key = looper.add_idle_handler(move || count.set(count.get() + 1));
    assert_eq!(looper.turn(), Next::Idle);
    assert_eq!(looper.turn(), Next::Idle);
    assert_eq!(idle.get(), 1, "it has never waited before");
    runner.post(|| ()).expect("open");
    runner.post(|| ()).expect("open");
    assert_eq!((looper.turn(), idle.get()), (Next::Now, 1), "there is more to do");
    assert_eq!((looper.turn(), idle.get()), (Next::Idle, 2));
    assert_eq!((looper.turn(), idle.get()), (Next::Idle, 2), "once in a phase");
    runner.post(|| ()).expect("open");
    assert_eq!((looper.run_until_idle(), idle.get()), (1, 2), "that never waits");
    assert!(looper.remove_idle_handler(key) && !looper.remove_idle_handler(key));
    runner.post(|| ()).expect("open");
    assert_eq!((looper.turn(), idle.get()), (Next::Idle, 2));
    assert_eq!(Rc::strong_count(&idle), 1, "the handler is dropped");
}

#[test]
fn an_idle_handler_ends_by_break_and_by_a_panic() {
    let (looper, runner, _clock) = virtual_loop();
    let (calls, told) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let count = Rc::clone(&calls);
    looper.add_idle_handler(move || {
        count.set(count.get() + 1);
        if count.get() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let count = Rc::clone(&told);
    looper.add_idle_handler(move || -> () {
        count.set(count.get() + 1);
        panic_on_purpose()
    });
    for _ in 0..4 {
        runner.post(|| ()).expect("open");
        looper.turn();
    }
    assert_eq!((calls.get(), told.get()), (2, 1));
    assert_eq!((Rc::strong_count(&calls), Rc::strong_count(&told)), (1, 1));
}

#[test]
fn an_idle_handler_may_post_add_and_remove() {
    let (looper, runner, _clock) = virtual_loop();
    let looper = Rc::new(looper);
    let (log, own) = (Log::default(), Rc::new(Cell::new(None)));
    let (inside, said, key) = (Rc::downgrade(&looper), log.clone(), Rc::clone(&own));
    own.set(Some(looper.add_idle_handler(move || {
        let looper = inside.upgrade().expect("it runs");
        looper.runner().post(said.task(1)).expect("open");
        let (more, whole) = (said.clone(), Rc::downgrade(&looper));
        looper.add_idle_handler(move || {
            more.say(2);
            whole.upgrade().expect("it runs").runner().quit();
        });
        assert!(looper.remove_idle_handler(key.take().expect("once")));
    })));
    runner.post(log.task(0)).expect("open");
    looper.run();
    assert_eq!(log.all(), [0, 1, 2]);
}

/// What it returns says whether it goes on. It is no choice for the series in whose run it is called.
#[test]
fn an_idle_handler_in_a_nested_run_does_not_move_the_series_around_it() {
    let (looper, runner, _clock) = virtual_loop();
    let run = move || {
        let nested = RunLoop::new().expect("a loop");
        let quit = nested.quit_handle();
        LocalTaskRunner::current().expect("in a task").add_idle_handler(move || {
            quit.quit();
            Some(SECOND * 3600)
        });
        nested.run();
        ControlFlow::Continue(())
    };
    let series = runner.schedule_series(Duration::ZERO, Period::fixed_rate(SECOND), Box::new(run));
    let series = series.expect("open");
    let start = runner.now();
    looper.turn();
    assert_eq!(series.deadline(), Some(start + SECOND));
}

#[test]
fn idle_handlers_behind_one_that_quits_do_not_start() {
    let (looper, _runner, _clock) = virtual_loop();
    let log = Log::default();
    let (first, second) = (log.clone(), log.clone());
    looper.add_idle_handler(move || {
        first.say(1);
        here().quit();
    });
    looper.add_idle_handler(move || second.say(2));
    looper.run();
    assert_eq!(log.all(), [1]);
}

#[test]
fn a_task_may_add_an_idle_handler() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    let said = log.clone();
    let add = move || {
        let local = LocalTaskRunner::current().expect("in a task");
        let gone = local.add_idle_handler(|| -> () { unreachable!("it is removed") });
        let idle = said.clone();
        local.add_idle_handler(move || idle.say(1));
        said.say(u32::from(local.remove_idle_handler(gone)) * 10);
        said.say(u32::from(local.remove_idle_handler(gone)) * 20);
    };
    runner.post(add).expect("open");
    looper.turn();
    looper.turn();
    assert_eq!(log.all(), [10, 0, 1], "removed once, and only that one");
}

#[test]
fn a_nested_run_in_an_idle_handler() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    let said = log.clone();
    looper.add_idle_handler(move || {
        said.say(1);
        here().post(said.task(2)).expect("open");
        let run = RunLoop::new().expect("a loop");
        run.quit_handle().quit_when_idle();
        run.run();
        said.say(3);
        here().quit();
    });
    runner.post(log.task(0)).expect("open");
    looper.run();
    assert_eq!(log.all(), [0, 1, 2, 3]);
}

// ----- cancel ------------------------------------------------------------------------------

#[test]
fn s08_s09_a_cancel_wins_once_and_drops_the_closure() {
    let (looper, runner, clock) = virtual_loop();
    let held = Arc::new(());
    let post = |delay| {
        let held = Arc::clone(&held);
        runner.post_delayed(delay, move || drop(held)).expect("open")
    };
    let handles = [post(Duration::ZERO), post(SECOND)];
    assert!(handles.iter().all(|handle| !handle.is_done() && !handle.is_cancelled()));
    assert!(handles.iter().all(Cancellable::cancel));
    assert_eq!(Arc::strong_count(&held), 1, "dropped before `cancel` returns");
    assert!(!handles.iter().any(Cancellable::cancel));
    assert!(handles.iter().all(|handle| handle.is_done() && handle.is_cancelled()));
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 0, "a cancelled task is none");
    assert_eq!(looper.turn(), Next::Idle);
    let ran = post(Duration::ZERO);
    looper.run_until_idle();
    assert!(ran.is_done() && !ran.is_cancelled() && !ran.cancel());
}

#[test]
fn a_cancelled_deadline_wakes_nobody() {
    let (looper, runner, clock) = virtual_loop();
    let first = runner.post_delayed(SECOND, || ()).expect("open");
    runner.post_delayed(2 * SECOND, || ()).expect("open");
    looper.turn();
    first.cancel();
    assert_eq!(looper.turn(), Next::At(clock.now() + 2 * SECOND));
}

#[test]
fn s16_a_task_may_cancel_others_and_itself() {
    let (looper, runner, _clock) = virtual_loop();
    let (ran, runs) = counter();
    let own: Rc<RefCell<Option<Cancellable>>> = Rc::default();
    let victim = runner.post_delayed(SECOND, || ()).expect("open");
    let inside = Rc::clone(&own);
    let local = looper.local_runner();
    let task = local.post(move || {
        assert!(victim.cancel());
        assert!(!inside.borrow().as_ref().expect("set").cancel(), "it runs already");
        ran.fetch_add(1, Ordering::Relaxed);
    });
    *own.borrow_mut() = Some(task.expect("open"));
    assert_eq!((looper.run_until_idle(), runs()), (1, 1));
}

// ----- panics and destructors --------------------------------------------------------------

#[test]
fn s17_a_panic_is_reported_and_the_loop_goes_on() {
    silence();
    let (told, reports) = counter();
    let looper = MessageLoop::builder().on_panic(move |panic| {
        assert_eq!(panic.message(), Some("on purpose"));
        told.fetch_add(1, Ordering::Relaxed);
    });
    let looper = looper.prepare().expect("no other one");
    let (runner, log) = (looper.runner(), Log::default());
    let panics = runner.post(|| panic_on_purpose()).expect("open");
    runner.post(log.task(1)).expect("open");
    assert_eq!(looper.run_until_idle(), 2);
    assert!(panics.is_done() && !panics.is_cancelled());
    assert_eq!((log.all(), reports()), (vec![1], 1));
    runner.run_or_post(|| panic_on_purpose()).expect("open");
    assert_eq!(reports(), 2);
    let grenade = Grenade;
    let cancelled = runner.post(move || drop(grenade)).expect("open");
    assert!(cancelled.cancel());
    assert_eq!(reports(), 3, "S9: a panic in a `Drop` too");
    let grenade = Grenade;
    runner.post(move || drop(grenade)).expect("open");
    let local = looper.local_runner();
    for at_home in [Grenade, Grenade] {
        local.post_delayed(SECOND, move || drop(at_home)).expect("open");
    }
    drop((looper, local));
    assert_eq!(reports(), 6, "and when the loop is dropped");
}

#[test]
fn a_loop_that_is_dropped_drops_what_is_pending_and_refuses_what_that_posts() {
    let (looper, runner, _clock) = virtual_loop();
    let (refused, refusals) = counter();
    let guard = |runner: &TaskRunner| {
        let (runner, refused) = (runner.clone(), Arc::clone(&refused));
        OnDrop(move || {
            assert!(runner.belongs_to_current_thread(), "at home");
            let back = runner.post(|| ()).expect_err("it is being dropped");
            assert_eq!(back.reason(), ScheduleError::Closed);
            assert!(runner.run_or_post(|| ()).is_err());
            refused.fetch_add(1, Ordering::Relaxed);
        })
    };
    let at_once = guard(&runner);
    runner.post(move || drop(at_once)).expect("open");
    let later = guard(&runner);
    let delayed = runner.post_delayed(SECOND, move || drop(later)).expect("open");
    let (idle, here) = (guard(&runner), guard(&runner));
    looper.add_idle_handler(move || _ = &idle);
    let local = looper.local_runner();
    local.post_delayed(SECOND, move || drop(here)).expect("open");
    drop(looper);
    assert_eq!(refusals(), 4);
    assert!(delayed.is_done() && !delayed.is_cancelled() && !delayed.cancel());
    assert!(!runner.belongs_to_current_thread());
    assert!(runner.post(|| ()).is_err());
    assert_eq!(MessageLoop::current().err(), Some(NotBound));
    let (late, kept) = (Rc::new(()), local.clone());
    let handler = Rc::clone(&late);
    assert!(!local.remove_idle_handler(local.add_idle_handler(move || _ = (&handler, &kept))));
    assert_eq!(Rc::strong_count(&late), 1, "nobody would call it");
    drop(MessageLoop::prepare().expect("the thread is free again"));
}

#[test]
fn a_loop_may_be_dropped_by_its_own_task() {
    let (looper, runner, _clock) = virtual_loop();
    let (dropped, drops) = counter();
    let run = RunLoop::new().expect("a loop");
    let (local, log) = (looper.local_runner(), Log::default());
    let on_drop = OnDrop(move || _ = dropped.fetch_add(1, Ordering::Relaxed));
    local.post(move || drop(looper)).expect("open");
    runner.post(move || drop(on_drop)).expect("open");
    run.run();
    assert_eq!(drops(), 1);
    assert!(local.post(|| ()).is_err() && runner.post(log.task(1)).is_err());
    assert_eq!(MessageLoop::current().err(), Some(NotBound));
}

#[test]
fn a_series_that_drops_its_loop_ends() {
    let (looper, runner, _clock) = virtual_loop();
    let (local, held) = (looper.local_runner(), Arc::new(()));
    let captured = Arc::clone(&held);
    let run = RunLoop::new().expect("a loop");
    let every = Period::fixed_rate(SECOND);
    let series = runner.schedule_periodic(Duration::ZERO, every, move || {
        let _captured = &captured;
        drop(LOOP.take());
    });
    LOOP.set(Some(looper));
    run.run();
    let series = series.expect("open");
    assert!(series.is_done() && !series.is_cancelled());
    assert_eq!(Arc::strong_count(&held), 1, "its closure does not wait for the last runner");
    drop(local);
}

thread_local! {
    static LOOP: RefCell<Option<MessageLoop>> = const { RefCell::new(None) };
}

// ----- bad input ---------------------------------------------------------------------------

#[test]
fn a_thread_has_one_loop_or_none() {
    assert_eq!(MessageLoop::current().err(), Some(NotBound));
    assert_eq!(RunLoop::new().err(), Some(NotBound));
    assert_eq!(LocalTaskRunner::current().err(), Some(NotBound));
    let looper = MessageLoop::prepare().expect("no other one");
    assert_eq!(MessageLoop::prepare().err(), Some(AlreadyBound));
    assert_eq!(MessageLoop::prepare_with(DefaultPump::new()).err(), Some(AlreadyBound));
    assert!(MessageLoop::current().is_ok() && LocalTaskRunner::current().is_ok());
    let run = RunLoop::new().expect("there is one");
    drop(looper);
    run.run(); // of a loop that is gone: it returns
    run.quit_handle().quit();
    let advice = (NotBound.to_string(), AlreadyBound.to_string());
    assert!(advice.0.contains("prepare") && advice.1.contains("current"));
}

#[test]
fn what_is_refused_comes_back() {
    let (looper, runner, _clock) = virtual_loop();
    runner.quit();
    let text = String::from("mine");
    let back = runner.post(move || assert_eq!(text, "mine")).expect_err("it has quit");
    back.into_task()();
    let text = String::from("mine");
    let back = runner.post_delayed(SECOND, move || assert_eq!(text, "mine")).expect_err("the same");
    back.into_task()();
    let local = Rc::new(7);
    let kept = Rc::clone(&local);
    let back = looper.local_runner().post(move || assert_eq!(*kept, 7)).expect_err("the same");
    assert_eq!(Rc::strong_count(&local), 2);
    back.into_task()();
    assert_eq!(Rc::strong_count(&local), 1, "and nothing is kept");
}

// ----- local tasks -------------------------------------------------------------------------

#[test]
fn local_tasks_keep_their_order_among_the_others() {
    let (looper, runner, clock) = virtual_loop();
    let (local, log) = (looper.local_runner(), Rc::new(RefCell::new(Vec::new())));
    let sent = Log::default();
    for number in 0..10 {
        let (log, shared) = (Rc::clone(&log), sent.clone());
        local
            .post(move || {
                log.borrow_mut().push(number);
                shared.say(2 * number);
            })
            .expect("open");
        runner.post(sent.task(2 * number + 1)).expect("open");
    }
    let late = Rc::clone(&log);
    local.post_delayed(SECOND, move || late.borrow_mut().push(100)).expect("open");
    let at = Rc::clone(&log);
    local.post_at(clock.now() + SECOND, move || at.borrow_mut().push(101)).expect("open");
    clock.advance(SECOND);
    assert_eq!(looper.run_until_idle(), 22);
    assert!(sent.all().into_iter().eq(0..20));
    assert_eq!(log.borrow().len(), 12);
    assert_eq!(Rc::strong_count(&log), 1);
}

#[test]
fn a_local_task_that_is_cancelled_elsewhere_is_dropped_at_home() {
    let (looper, _runner, _clock) = virtual_loop();
    let home = std::thread::current().id();
    let (dropped, drops) = counter();
    let guard = OnDrop(move || {
        assert_eq!(std::thread::current().id(), home);
        dropped.fetch_add(1, Ordering::Relaxed);
    });
    let not_send = Rc::new(guard);
    let handle = looper.local_runner().post_delayed(SECOND, move || drop(not_send));
    let handle = handle.expect("open");
    let cancelled = std::thread::spawn(move || handle.cancel()).join().expect("no panic");
    assert!(cancelled && drops() == 0);
    looper.turn();
    assert_eq!(drops(), 1);
    let again = Rc::new(());
    let inside = Rc::clone(&again);
    let handle = looper.local_runner().post(move || drop(inside)).expect("open");
    assert!(handle.cancel());
    assert_eq!(Rc::strong_count(&again), 1, "at home it goes at once");
}

#[test]
fn run_or_post_on_the_loop_s_thread_runs_here_and_now() {
    let (looper, runner, _clock) = virtual_loop();
    let log = Log::default();
    runner.post(log.task(2)).expect("open");
    runner.run_or_post(log.task(1)).expect("open");
    assert_eq!(log.all(), [1]);
    assert_eq!(looper.run_until_idle(), 1);
    let elsewhere = runner.clone();
    let task = log.task(3);
    let posted = std::thread::spawn(move || elsewhere.run_or_post(task).is_ok());
    assert!(posted.join().expect("no panic"));
    assert_eq!(log.all(), [1, 2]);
    assert_eq!(looper.run_until_idle(), 1);
    assert_eq!(log.all(), [1, 2, 3]);
}

/// A clock is user code, so it may call the loop that reads it (S11).
#[test]
fn s01_no_task_is_early_if_the_clock_runs_the_loop_that_reads_it() {
    thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });
    struct Runs(ManualClock);
    impl Clock for Runs {
        fn now(&self) -> Instant {
            DEPTH.set(DEPTH.get() + 1);
            if DEPTH.get() == 1 {
                // Once for each reading, and not for those of the nested run.
                let nested = RunLoop::new();
                nested.iter().for_each(|nested| {
                    nested.quit_handle().quit_when_idle();
                    nested.run();
                });
            }
            DEPTH.set(DEPTH.get() - 1);
            self.0.now()
        }

        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            self.0.sleep(sleeper, until);
        }
    }
    let (clock, log) = (ManualClock::new(), Log::default());
    let looper = MessageLoop::builder().clock(Runs(clock.clone())).prepare().expect("no other one");
    let (runner, one, two) = (looper.runner(), log.task(1), log.task(2));
    runner.post_delayed(SECOND, one).expect("open");
    runner.post_delayed(2 * SECOND, two).expect("open");
    assert_eq!(looper.run_until_idle(), 0);
    clock.advance(SECOND);
    looper.run_until_idle();
    assert_eq!((log.all(), looper.turn()), (vec![1], Next::At(clock.now() + SECOND)));
    clock.advance(SECOND);
    looper.run_until_idle();
    assert_eq!((log.all(), looper.turn()), (vec![1, 2], Next::Idle));
}
