//! The wake-ups of a message loop: [`crate::message_loop`].
//!
//! A lost wake leaves the loop asleep for ever, which loom reports as a deadlock. The clock stands still, so nothing
//! else wakes the loop.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use crate::message_loop::{MessageLoop, Next, RunLoop, TaskRunner};
use crate::platform::sync::{AtomicBool, Ordering};
use crate::{ManualClock, Sleeper};

const LATER: Duration = Duration::from_secs(1);

fn prepare() -> (MessageLoop, TaskRunner) {
    let looper = MessageLoop::builder().clock(ManualClock::new()).prepare().expect("no other one");
    let runner = looper.runner();
    (looper, runner)
}

fn quit() {
    MessageLoop::current().expect("in a task").quit();
}

struct QuitOnDrop;
impl Drop for QuitOnDrop {
    fn drop(&mut self) {
        quit();
    }
}

/// A post meets a loop that goes to sleep: one of the two sees the other (INBOX-1).
#[test]
fn models_a_post_against_a_loop_that_goes_to_sleep() {
    loom::model(|| {
        let (looper, runner) = prepare();
        let poster = thread::spawn(move || runner.post(quit).map(drop));
        looper.run();
        poster.join().unwrap().expect("open");
    });
}

/// A reset to now meets a loop that goes to sleep: the loop finds the new deadline, or is woken for it (INBOX-1).
#[test]
fn models_an_earlier_deadline_against_a_loop_that_goes_to_sleep() {
    loom::model(|| {
        let (looper, runner) = prepare();
        let task = runner.post_delayed(LATER, quit).expect("open");
        let other = thread::spawn(move || {
            assert!(task.reset(2 * LATER) && task.reset_at(crate::Schedule::now(&runner)));
        });
        looper.run();
        other.join().unwrap();
    });
}

/// A reset against the run of a task. If the reset wins, the task does not run now (JOB-6).
fn models_a_reset_against_a_run(delay: Duration) {
    loom::model(move || {
        let clock = ManualClock::new();
        let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let counts = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let task = looper.runner().post_delayed(delay, counts).expect("open");
        clock.advance(delay);
        let other = thread::spawn(move || task.reset(LATER));
        looper.run_until_idle();
        let won = other.join().unwrap();
        looper.run_until_idle();
        assert_eq!(runs.load(Ordering::Relaxed), usize::from(!won));
        clock.advance(LATER);
        looper.run_until_idle();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "in its time");
    });
}

#[test]
fn models_a_reset_of_a_posted_task_against_its_run() {
    models_a_reset_against_a_run(Duration::ZERO);
}

#[test]
fn models_a_reset_of_a_delayed_task_against_its_run() {
    models_a_reset_against_a_run(LATER);
}

/// One of two posters wakes the loop, and the other finds it awake (INBOX-2). Both tasks run.
#[test]
fn models_two_posters_and_one_wake() {
    loom::model(|| {
        let (looper, runner) = prepare();
        let runs = Arc::new(AtomicUsize::new(0));
        let task = |runs: &Arc<AtomicUsize>| {
            let runs = Arc::clone(runs);
            move || {
                if runs.fetch_add(1, Ordering::Relaxed) == 1 {
                    quit();
                }
            }
        };
        let (other, first) = (runner.clone(), task(&runs));
        let poster = thread::spawn(move || other.post(first).map(drop));
        let second = task(&runs);
        let another = thread::spawn(move || runner.post(second).map(drop));
        looper.run();
        poster.join().unwrap().expect("open");
        another.join().unwrap().expect("open");
    });
}

/// A delayed task that can wait does not wake the loop, and hides no later post (INBOX-2).
#[test]
fn models_a_post_that_can_wait_hides_no_later_one() {
    loom::model(|| {
        let (looper, runner) = prepare();
        runner.post_delayed(LATER, || unreachable!("the clock stands still")).expect("open");
        let poster = thread::spawn(move || {
            runner.post_delayed(2 * LATER, || unreachable!("the same")).expect("open");
            runner.post(quit).map(drop).expect("open");
        });
        looper.run();
        poster.join().unwrap();
    });
}

/// A post meets an order to quit: the task runs if it came before, and otherwise comes back (INBOX-3).
#[test]
fn models_a_post_against_a_quit() {
    loom::model(|| {
        let (looper, runner) = prepare();
        let runs = Arc::new(AtomicUsize::new(0));
        let (other, count) = (runner.clone(), Arc::clone(&runs));
        let poster = thread::spawn(move || {
            let task = move || _ = count.fetch_add(1, Ordering::Relaxed);
            other.post(task).is_ok()
        });
        let quits = thread::spawn(move || runner.quit());
        looper.run();
        let is_taken = poster.join().unwrap();
        quits.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), usize::from(is_taken));
        drop(looper);
        assert_eq!(Arc::strong_count(&runs), 1, "every closure is dropped");
    });
}

/// Another thread tells a run to quit while it goes to sleep.
#[test]
fn models_a_quit_handle_against_a_run_that_goes_to_sleep() {
    loom::model(|| {
        let (_looper, _runner) = prepare();
        let run = RunLoop::new().expect("a loop");
        let handle = run.quit_handle();
        let other = thread::spawn(move || handle.quit());
        run.run();
        other.join().unwrap();
    });
}

/// A foreign event loop sleeps when a turn says so, and meets a post and a quit from another thread (INBOX-1).
#[test]
fn models_a_foreign_event_loop_sleeps_through_nothing() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let builder = MessageLoop::builder().clock(ManualClock::new()).wake_with(sleeper.waker());
        let looper = builder.prepare().expect("no other one");
        let runner = looper.runner();
        runner.post(|| ()).expect("open");
        let other = thread::spawn(move || {
            runner.post(|| ()).expect("open");
            runner.quit();
        });
        loop {
            match looper.turn() {
                Next::Now => {}
                Next::At(_) | Next::Idle => sleeper.sleep(),
                Next::Quit => break,
            }
        }
        other.join().unwrap();
    });
}

/// Another thread tells a run to quit when idle while it goes to sleep.
#[test]
fn models_a_quit_when_idle_against_a_run_that_goes_to_sleep() {
    loom::model(|| {
        let (_looper, _runner) = prepare();
        let run = RunLoop::new().expect("a loop");
        let handle = run.quit_handle();
        let other = thread::spawn(move || handle.quit_when_idle());
        run.run();
        other.join().unwrap();
    });
}

/// Two threads wake the loop while it calls an idle handler, and while it goes to sleep. The handler sees what both have
/// done before, although one turn may be for both.
#[test]
fn models_a_wake_without_a_task_against_a_loop_that_goes_to_sleep() {
    loom::model(|| {
        let (looper, runner) = prepare();
        let are_set = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let others = are_set.clone().map(|sets| {
            let runner = runner.clone();
            thread::spawn(move || {
                sets.store(true, Ordering::Relaxed);
                runner.wake();
            })
        });
        looper.add_idle_handler(move || {
            if are_set.iter().all(|is_set| is_set.load(Ordering::Relaxed)) {
                quit();
            }
        });
        looper.run();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// Another thread cancels a local task. The loop drops the closure, although nothing else wakes it (LOCAL-1).
#[test]
fn models_a_local_closure_that_is_cancelled_elsewhere_is_dropped_by_its_loop() {
    loom::model(|| {
        let (looper, _runner) = prepare();
        let captured = std::rc::Rc::new(QuitOnDrop);
        let handle = looper.local_runner().post_delayed(LATER, move || drop(captured));
        let handle = handle.expect("open");
        let other = thread::spawn(move || handle.cancel());
        looper.run();
        assert!(other.join().unwrap());
    });
}

/// Another thread wakes a future during its poll, after it, and while the loop goes to sleep (SPAWN-1).
#[test]
fn models_a_wake_against_the_poll_of_a_future() {
    loom::model(|| {
        let (looper, _runner) = prepare();
        let is_set = Arc::new(AtomicBool::new(false));
        let mut other = None;
        let waits = poll_fn(move |context| {
            if is_set.load(Ordering::Relaxed) {
                quit();
                return Poll::Ready(());
            }
            other.get_or_insert_with(|| {
                let (waker, sets) = (context.waker().clone(), Arc::clone(&is_set));
                thread::spawn(move || {
                    sets.store(true, Ordering::Relaxed);
                    waker.wake();
                })
            });
            Poll::Pending
        });
        let handle = looper.local_runner().spawn_local(waits).expect("open");
        looper.run();
        assert!(handle.is_done());
    });
}

/// Another thread cancels a future before, during, or after its poll. The loop drops it, and resolves its handle.
#[test]
fn models_a_cancel_against_the_poll_of_a_future() {
    loom::model(|| {
        let (looper, _runner) = prepare();
        let captured = QuitOnDrop;
        let handle = looper.local_runner().spawn_local(async move {
            let _captured = &captured;
            pending::<()>().await;
        });
        let handle = handle.expect("open");
        let cancels = handle.handle();
        let other = thread::spawn(move || cancels.cancel());
        looper.run();
        assert!(other.join().unwrap() && handle.is_done());
    });
}
