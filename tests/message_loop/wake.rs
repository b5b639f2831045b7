//! A wake: one more turn of a loop, without a task.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::log::Log;
use crate::common::told::Poller;
use crate::common::{OnDrop, PATIENCE, count, panic_on_purpose, silence};
use tickwheel::ManualClock;
use tickwheel::message_loop::{
    LocalTaskRunner, LoopThread, MessageLoop, Next, RunLoop, TaskRunner,
};

const SECOND: Duration = Duration::from_secs(1);

/// A loop in virtual time, with an idle handler that counts.
fn counted() -> (MessageLoop, TaskRunner, Rc<Cell<u32>>) {
    silence();
    let looper = MessageLoop::builder().clock(ManualClock::new()).prepare().expect("no other one");
    let (runner, idled) = (looper.runner(), Rc::new(Cell::new(0)));
    let count = Rc::clone(&idled);
    looper.add_idle_handler(move || count.set(count.get() + 1));
    (looper, runner, idled)
}

#[test]
fn a_wake_begins_an_idle_phase_and_runs_no_task() {
    let (looper, runner, idled) = counted();
    runner.post_delayed(SECOND, || unreachable!("it is not due")).expect("open");
    let Next::At(due) = looper.turn() else { panic!("it waits for the task") };
    assert_eq!(idled.get(), 1);
    for wakes in [1, 3] {
        (0..wakes).for_each(|_| runner.wake());
        assert_eq!((looper.turn(), looper.turn()), (Next::At(due), Next::At(due)));
    }
    assert_eq!(idled.get(), 3, "several wakes before a turn are one");
    runner.wake();
    assert_eq!((looper.run_until_idle(), idled.get()), (0, 3), "that never waits");
    looper.turn();
    assert_eq!(idled.get(), 4, "the wake is kept for the next run that may wait");
}

#[test]
fn a_wake_before_the_first_run_is_part_of_its_first_phase() {
    let (looper, runner, idled) = counted();
    runner.wake();
    assert_eq!((looper.turn(), looper.turn()), (Next::Idle, Next::Idle));
    assert_eq!(idled.get(), 1);
}

/// In a task, in an idle handler, and in a nested run, whose turn it is then.
#[test]
fn a_wake_on_the_loop_s_own_thread_is_not_slept_over() {
    let (looper, runner, idled) = counted();
    let own = runner.clone();
    runner.post(move || own.wake()).expect("open");
    assert_eq!((looper.turn(), idled.get()), (Next::Idle, 1), "the task has begun the phase");
    let (own, mut left) = (runner.clone(), 3);
    looper.add_idle_handler(move || {
        own.wake();
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    runner.post(|| ()).expect("open");
    assert_eq!((looper.turn(), idled.get()), (Next::Idle, 5), "once more for each wake");

    let log = Log::default();
    let (outer, said) = (runner.clone(), log.clone());
    let nest = move || {
        let (run, said_inside) = (RunLoop::new().expect("a loop"), said.clone());
        let (ends, looper) = (run.quit_handle(), MessageLoop::current().expect("a loop"));
        let local = LocalTaskRunner::current().expect("a loop");
        local.add_idle_handler(move || {
            said_inside.say(1);
            ends.quit();
            ControlFlow::Break(())
        });
        // The phase has begun, so only a wake brings the new handler its turn.
        looper.wake();
        run.run();
        said.say(2);
        outer.quit();
    };
    runner.post(nest).expect("open");
    looper.run();
    assert_eq!(log.all(), [1, 2]);
}

#[test]
fn a_wake_after_the_end_changes_nothing() {
    let told = Poller::new();
    let looper = MessageLoop::builder().wake_with(told.waker()).prepare().expect("no other one");
    let (runner, idled) = (looper.runner(), Rc::new(Cell::new(0)));
    let count = Rc::clone(&idled);
    looper.add_idle_handler(move || count.set(count.get() + 1));
    runner.quit();
    runner.wake();
    assert_eq!((looper.turn(), idled.get()), (Next::Quit, 0));
    looper.run();
    // A destructor wakes the loop with which it is dropped.
    let (own, has_woken) = (runner.clone(), Rc::new(Cell::new(false)));
    let told_so = Rc::clone(&has_woken);
    let captured = OnDrop(move || {
        own.wake();
        told_so.set(true);
    });
    looper.add_idle_handler(move || _ = &captured);
    drop(looper);
    let before = told.woken();
    runner.wake();
    thread::spawn(move || runner.wake()).join().expect("no panic");
    assert!(has_woken.get() && idled.get() == 0);
    assert_eq!(told.woken(), before, "nobody is woken for a loop that is gone");
}

/// The end of a run notes that the loop sleeps, and a run may come after the end of its loop.
#[test]
fn a_run_after_the_end_does_not_bring_the_wakes_back() {
    let told = Poller::new();
    let looper = MessageLoop::builder().wake_with(told.waker()).prepare().expect("no other one");
    let (runner, run) = (looper.runner(), RunLoop::new().expect("a loop"));
    drop(looper);
    run.run();
    let before = told.woken();
    thread::spawn(move || runner.wake()).join().expect("no panic");
    assert_eq!(told.woken(), before, "nobody is woken for a loop that is gone");
}

#[test]
fn a_handler_that_panics_at_a_wake_is_removed_and_the_others_go_on() {
    let (looper, runner, idled) = counted();
    let mut calls = 0;
    looper.add_idle_handler(move || -> () {
        calls += 1;
        if calls == 2 {
            panic_on_purpose()
        }
    });
    for _ in 0..4 {
        runner.wake();
        looper.turn();
    }
    assert_eq!(idled.get(), 4);
}

/// The handler polls what does not know of the loop. A wake that is lost would leave the loop asleep.
#[test]
fn wakes_from_other_threads_are_not_lost() {
    let (ready, (seen, told)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
    let polled = Arc::clone(&ready);
    let thread = LoopThread::spawn("polls").expect("a thread");
    let runner = thread.runner();
    let add = move || {
        let local = LocalTaskRunner::current().expect("in a task");
        let mut last = 0;
        local.add_idle_handler(move || {
            let now = polled.load(Ordering::Relaxed);
            (last..now).for_each(|number| seen.send(number).expect("it waits"));
            last = now;
        });
    };
    runner.post(add).expect("open");
    for round in 0..count(20_000, 200_000) {
        ready.fetch_add(1, Ordering::Relaxed);
        runner.wake();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(round), "it was slept over");
    }
    // Several threads at once, while the loop ends.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    runner.wake();
                }
            });
        }
        runner.post(|| ()).expect("open");
        runner.quit();
        let ended = thread.join();
        is_over.store(true, Ordering::Relaxed);
        ended.expect("no panic");
    });
    assert!(runner.post(|| ()).is_err());
}
