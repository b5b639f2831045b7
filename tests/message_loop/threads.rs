//! A loop and other threads: wake-ups, order, replies, ends, and schedulers that stand on a loop.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::common::ledger::{End, Ledger};
use crate::common::log::Log;
use crate::common::{PATIENCE, Random, count, panic_on_purpose, silence, until};
use tickwheel::message_loop::{
    DefaultPump, Delegate, LoopThread, MessageLoop, MessagePump, RunLoop, TaskRunner, WouldDeadlock,
};
use tickwheel::rx::ExecutorScheduler;
use tickwheel::{
    Clock, DueTask, Executor, ManualClock, Schedule, ScheduleError, ScheduleExt, Scheduler,
    Sleeper, SystemClock,
};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the loop of the calling thread, for tasks.
fn here() -> TaskRunner {
    MessageLoop::current().expect("it is called in a task")
}

/// Notes the thread on which it is dropped.
struct Dropped(Sender<ThreadId>);
impl Drop for Dropped {
    fn drop(&mut self) {
        _ = self.0.send(thread::current().id());
    }
}

// ----- wake-ups and order ------------------------------------------------------------------

#[test]
fn a_pump_looks_again_when_its_waker_says_so() {
    /// A delegate that has another thread wake the pump at its first look, and quits at the next one.
    struct Work<'a>(&'a DefaultPump, Cell<usize>);
    impl Delegate for Work<'_> {
        fn do_work(&self) -> bool {
            self.1.set(self.1.get() + 1);
            match self.1.get() {
                1 => {
                    let waker = self.0.waker();
                    _ = thread::spawn(move || waker.wake());
                }
                _ => self.0.quit(),
            }
            false
        }
        fn do_delayed_work(&self) -> bool {
            false
        }
        fn next_delayed_work(&self) -> Option<Instant> {
            None
        }
        fn do_idle_work(&self) -> bool {
            false
        }
    }
    let pump = DefaultPump::new();
    let work = Work(&pump, Cell::new(0));
    pump.run(&work);
    assert_eq!(work.1.get(), 2);
}

/// An idle loop sleeps until its deadline, and does not wake for tasks that are due later.
#[test]
fn s07_a_loop_that_waits_sleeps() {
    #[derive(Clone, Default)]
    struct Sleeps(Arc<Mutex<(usize, Option<Instant>)>>);
    impl Clock for Sleeps {
        fn now(&self) -> Instant {
            SystemClock.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            let mut sleeps = self.0.lock().expect("no panic");
            *sleeps = (sleeps.0 + 1, until);
            drop(sleeps);
            SystemClock.sleep(sleeper, until);
        }
    }
    let sleeps = Sleeps::default();
    let (own, so_far) = (sleeps.clone(), || *sleeps.0.lock().expect("no panic"));
    let thread = LoopThread::spawn_with("idle", || MessageLoop::builder().clock(own));
    let thread = thread.expect("a thread");
    let hour = Duration::from_secs(3600);
    thread.runner().post_delayed(hour, || ()).expect("open");
    until("its sleep", || so_far().1.is_some());
    let (count, deadline) = so_far();
    assert!(deadline.is_some_and(|at| at > Instant::now() + hour / 2));
    (0..100).for_each(|_| _ = thread.runner().post_delayed(hour * 2, || ()).expect("open"));
    thread::sleep(Duration::from_millis(100)); // real time, because the test counts wake-ups of an idle loop
    assert_eq!(so_far(), (count, deadline), "they are all later");
    thread.runner().post_delayed(hour / 2, || ()).expect("open");
    until("the earlier deadline", || so_far().1 < deadline);
    assert!(so_far().0 <= count + 2, "it looks, and sleeps again");
}

/// Posts to the other loop and back, this many times.
fn bounce(from: TaskRunner, to: &TaskRunner, left: usize, tell: Sender<()>) {
    let back = to.clone();
    let posted = to.post(move || match left {
        0 => tell.send(()).expect("awaited"),
        _ => bounce(back, &from, left - 1, tell),
    });
    posted.expect("open");
}

/// After a lost wake-up the loop would sleep although it has a task. It goes to sleep after each task.
#[test]
fn no_wake_up_is_lost_between_two_loops() {
    let (here, there) = (LoopThread::spawn("here"), LoopThread::spawn("there"));
    let (here, there) = (here.expect("a thread"), there.expect("a thread"));
    let (tell, told) = channel();
    bounce(here.runner(), &there.runner(), count(20_000, 2_000_000), tell);
    told.recv_timeout(PATIENCE).expect("a wake-up is lost");
}

/// No wake-up is lost for delayed tasks either, which come in while the loop is about to wait for a later one.
#[test]
fn no_earlier_deadline_is_slept_over() {
    let thread = LoopThread::spawn("sleeper").expect("a thread");
    let runner = thread.runner();
    let mut random = Random(7);
    for _ in 0..count(500, 20_000) {
        let late = runner.post_delayed(600 * SECOND, || ()).expect("open");
        let (tell, told) = sync_channel(1);
        let delay = Duration::from_nanos(random.below(200_000));
        let start = Instant::now();
        runner.post_delayed(delay, move || _ = tell.send(Instant::now())).expect("open");
        let ran = told.recv_timeout(PATIENCE).expect("a wake-up is lost");
        assert!(ran.duration_since(start) >= delay, "S1: early");
        late.cancel();
    }
}

#[test]
fn each_poster_s_tasks_keep_their_order() {
    const POSTERS: usize = 2;
    let each = count(20_000, 2_000_000);
    let thread = LoopThread::spawn("order").expect("a thread");
    let next: Arc<[AtomicUsize; POSTERS]> = Arc::default();
    let start = Arc::new(Barrier::new(POSTERS));
    let posters: Vec<_> = (0..POSTERS)
        .map(|poster| {
            let (runner, next, start) = (thread.runner(), Arc::clone(&next), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                for number in 0..each {
                    let next = Arc::clone(&next);
                    let task = move || {
                        let before = next[poster].swap(number + 1, Ordering::Relaxed);
                        assert_eq!(before, number, "out of order");
                    };
                    runner.post(task).expect("open");
                }
            })
        })
        .collect();
    posters.into_iter().for_each(|poster| poster.join().expect("no panic"));
    thread.runner().quit_safely();
    thread.join().expect("no panic");
    assert!(next.iter().all(|next| next.load(Ordering::Relaxed) == each));
}

/// Each closure has one end: it ran, it was cancelled, it came back, or it was dropped with the loop.
#[test]
fn a_ledger_of_posts_cancels_and_ends_balances() {
    const TASKS: usize = 300;
    for seed in 0..count(60, 20_000) as u64 {
        let ledger = Ledger::new(2 * TASKS);
        let looper = LoopThread::spawn("ledger").expect("a thread");
        let posters: Vec<_> = (0..2)
            .map(|poster| {
                let (runner, ledger) = (looper.runner(), Arc::clone(&ledger));
                let mut random = Random(2 * seed + poster as u64);
                thread::spawn(move || {
                    let mut handles = Vec::new();
                    for id in poster * TASKS..(poster + 1) * TASKS {
                        let page = ledger.page(id);
                        let task = move || page.run();
                        let posted = if random.one_in(3) {
                            let delay = Duration::from_micros(random.below(300));
                            runner.post_delayed(delay, task)
                        } else {
                            runner.post(task)
                        };
                        match posted {
                            Ok(handle) => handles.push((id, handle)),
                            Err(_refused) => {} // dropped here: the page says so
                        }
                        if random.one_in(8) {
                            let chosen = random.below(handles.len().max(1) as u64) as usize;
                            if let Some((_, handle)) = handles.get(chosen) {
                                handle.cancel();
                            }
                        }
                    }
                    handles
                })
            })
            .collect();
        let runner = looper.runner();
        match seed % 4 {
            0 => runner.quit(),
            1 => runner.quit_safely(),
            2 => runner.quit_when_idle(),
            _ => _ = runner.post_delayed(Duration::from_micros(200), || here().quit()),
        }
        let handles: Vec<_> =
            posters.into_iter().flat_map(|poster| poster.join().expect("no panic")).collect();
        looper.join().expect("no panic");
        let tally = ledger.tally();
        tally.assert_balanced();
        let cancelled = handles.iter().filter(|(_, handle)| handle.is_cancelled()).count();
        let refused = 2 * TASKS - handles.len();
        assert!(tally.of(End::Dropped) >= cancelled + refused, "seed {seed}: {tally}");
        for (id, handle) in handles {
            assert!(handle.is_done(), "seed {seed}");
            assert!(!(ledger.has_run(id) && handle.is_cancelled()), "seed {seed}: S8");
        }
    }
}

/// A pump must not wait longer than the posting threads assume, also after a cancel, and after a nested run has deferred a
/// task.
#[test]
fn a_loop_that_has_dropped_a_deadline_still_hears_of_earlier_ones() {
    let soon = Duration::from_millis(10);
    let thread = LoopThread::spawn("sleeper").expect("a thread");
    let runner = thread.runner();
    until("it is cancelled in time", || {
        let cancelled = runner.post_delayed(2 * soon, || ()).expect("open");
        ask_id(&runner);
        cancelled.cancel()
    });
    thread::sleep(4 * soon); // real time: its deadline passes while the loop sleeps
    let (tell, told) = channel();
    let again = tell.clone();
    runner.post_delayed(soon, move || again.send(1).expect("awaited")).expect("open");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(1));

    let (give, handle) = channel();
    let nest = move || {
        here().post_non_nestable_delayed(soon, || ()).expect("open");
        let run = RunLoop::new().expect("in a task");
        give.send(run.quit_handle()).expect("awaited");
        run.run();
        tell.send(2).expect("awaited");
    };
    runner.post(nest).expect("open");
    let quit = handle.recv_timeout(PATIENCE).expect("it runs");
    thread::sleep(4 * soon); // real time: a task that does not nest is deferred
    runner.post_delayed(soon, move || quit.quit()).expect("open");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
}

// ----- replies -----------------------------------------------------------------------------

#[test]
fn a_reply_runs_and_everything_is_dropped_where_it_belongs() {
    let looper = MessageLoop::prepare().expect("no other one");
    let there = LoopThread::spawn("there").expect("a thread");
    let (home, away) = (thread::current().id(), ask_id(&there.runner()));
    let ((of_task, task_drops), (of_reply, reply_drops)) = (channel(), channel());
    let (of_the_task, of_the_reply) = (Dropped(of_task), Dropped(of_reply));
    let task = move || {
        let _held = &of_the_task;
        (thread::current().id(), String::from("value"))
    };
    let reply = move |(ran_on, value): (ThreadId, String)| {
        let _held = &of_the_reply;
        assert!(ran_on == away && value == "value" && thread::current().id() == home);
        here().quit();
    };
    there.runner().post_and_reply(task, reply).expect("open");
    looper.run();
    assert_eq!(task_drops.recv_timeout(PATIENCE), Ok(away));
    assert_eq!(reply_drops.recv_timeout(PATIENCE), Ok(home));
}

fn ask_id(runner: &TaskRunner) -> ThreadId {
    let (tell, told) = channel();
    runner.post(move || tell.send(thread::current().id()).expect("awaited")).expect("open");
    told.recv_timeout(PATIENCE).expect("it runs")
}

/// If the reply does not run, the closures are still dropped on their threads: after a panic of the task, after the end of the
/// loop before the task has run, and after the end of the loop of the reply.
#[test]
fn a_reply_that_will_not_run_is_dropped_at_home() {
    silence();
    for case in ["the task panics", "its loop ends first", "home has quit"] {
        let looper = MessageLoop::prepare().expect("no other one");
        let there = LoopThread::spawn("there").expect("a thread");
        let (home, away) = (thread::current().id(), ask_id(&there.runner()));
        let (at_work, may_go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (working, going_on) = (Arc::clone(&at_work), Arc::clone(&may_go_on));
        let busy = move || {
            working.wait();
            going_on.wait();
            if case == "its loop ends first" {
                here().quit();
            }
        };
        there.runner().post(busy).expect("open");
        at_work.wait();
        let ((of_task, task_drops), (of_reply, reply_drops)) = (channel(), channel());
        let (of_the_task, of_the_reply) = (Dropped(of_task), Dropped(of_reply));
        let task = move || {
            let _held = of_the_task;
            if case == "the task panics" {
                panic_on_purpose();
            }
        };
        let reply = move |()| {
            let _held = &of_the_reply;
            unreachable!("{case}");
        };
        there.runner().post_and_reply(task, reply).expect("open");
        if case == "home has quit" {
            looper.runner().quit();
        }
        may_go_on.wait();
        assert_eq!(task_drops.recv_timeout(PATIENCE), Ok(away), "{case}");
        // It is on its way. A turn, or the end of the loop, drops it.
        until(case, || {
            looper.turn();
            reply_drops.try_recv().is_ok_and(|id| id == home)
        });
        drop(looper);
    }
}

#[test]
fn a_reply_whose_home_goes_is_dropped_with_it() {
    let there = LoopThread::spawn("there").expect("a thread");
    let looper = MessageLoop::prepare().expect("no other one");
    let gate = Arc::new(Barrier::new(2));
    let ((of_reply, reply_drops), inside) = (channel(), Arc::clone(&gate));
    let held = Dropped(of_reply);
    let task = move || _ = inside.wait();
    there.runner().post_and_reply(task, move |()| drop(held)).expect("open");
    drop(looper);
    assert_eq!(reply_drops.try_recv(), Ok(thread::current().id()));
    gate.wait();
}

#[test]
fn who_asks_without_a_loop_gets_both_closures_back() {
    let there = LoopThread::spawn("there").expect("a thread");
    let refused = there.runner().post_and_reply(|| 7, |seven| assert_eq!(seven, 7));
    let refused = refused.expect_err("this thread has no loop");
    assert_eq!(refused.reason(), ScheduleError::NotBound);
    let (task, reply) = refused.into_task();
    reply(task());
    let _looper = MessageLoop::prepare().expect("no other one");
    there.runner().quit();
    let refused = there.runner().post_and_reply(|| 7, |seven| assert_eq!(seven, 7));
    let refused = refused.expect_err("it has quit");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    let (task, reply) = refused.into_task();
    reply(task());
}

#[test]
fn a_loop_may_ask_itself() {
    let looper = MessageLoop::prepare().expect("no other one");
    let runner = looper.runner();
    runner
        .post_and_reply(|| 7, |seven| assert!(seven == 7 && here().post(|| ()).is_ok()))
        .expect("open");
    assert_eq!(looper.run_until_idle(), 3);
}

// ----- threads -----------------------------------------------------------------------------

#[test]
fn a_loop_thread_ends_when_it_is_told_to() {
    let thread = LoopThread::spawn("na\0med").expect("a thread");
    let log = Log::default();
    let (tell, told) = channel();
    let name = move || tell.send(thread::current().name().map(str::to_owned)).expect("awaited");
    thread.runner().post(name).expect("open");
    assert_eq!(told.recv_timeout(PATIENCE).expect("it runs").as_deref(), Some("named"));
    thread.runner().post(log.task(1)).expect("open");
    let runner = thread.runner();
    drop(thread); // quit, without waiting
    until("it is told to quit", || runner.post(|| ()).is_err());
    until("what was posted before runs", || log.all() == [1]);
}

#[test]
fn a_loop_thread_that_its_own_task_drops_still_runs_what_was_posted() {
    let thread = LoopThread::spawn("itself").expect("a thread");
    let (runner, gate, log) = (thread.runner(), Arc::new(Barrier::new(2)), Log::default());
    let opened = Arc::clone(&gate);
    let drops = move || {
        opened.wait();
        drop(thread);
    };
    runner.post(drops).expect("open");
    runner.post(log.task(1)).expect("open");
    gate.wait();
    until("it runs", || log.all() == [1]);
}

#[test]
fn a_loop_that_nobody_drops_ends_with_its_thread() {
    /// Keeps the leaked loop reachable, so that a sanitizer does not report it.
    static KEPT: AtomicPtr<MessageLoop> = AtomicPtr::new(std::ptr::null_mut());
    let dropped = Arc::new(());
    let captured = Arc::clone(&dropped);
    let leaks = thread::spawn(move || {
        let looper = MessageLoop::prepare().expect("no other one");
        let runner = looper.runner();
        runner.post(move || drop(captured)).expect("open");
        KEPT.store(Box::into_raw(Box::new(looper)), Ordering::Relaxed);
        runner
    });
    let runner = leaks.join().expect("no panic");
    until("it is closed", || runner.post(|| ()).is_err());
    assert_eq!(Arc::strong_count(&dropped), 1);
}

#[test]
fn a_thread_that_is_about_to_end_gets_no_loop() {
    struct AtTheEnd(Sender<bool>);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let prepared = MessageLoop::prepare();
            self.0.send(prepared.is_ok()).expect("awaited");
        }
    }
    thread_local!(static LAST: Cell<Option<AtTheEnd>> = const { Cell::new(None) });
    let (tell, told) = channel();
    let thread = thread::spawn(move || {
        LAST.set(Some(AtTheEnd(tell)));
        drop(MessageLoop::prepare().expect("no other one"));
    });
    thread.join().expect("no panic");
    told.recv().expect("whichever it is, it is no abort");
}

/// It costs the loop a pause at most.
#[test]
fn s17_a_clock_that_panics_does_not_end_a_loop() {
    struct Bad(Arc<AtomicUsize>);
    impl Clock for Bad {
        fn now(&self) -> Instant {
            let left = self.0.load(Ordering::Relaxed);
            if left > 0 && thread::current().name() == Some("blind") {
                self.0.store(left - 1, Ordering::Relaxed);
                panic_on_purpose();
            }
            SystemClock.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            SystemClock.sleep(sleeper, until);
        }
    }
    silence();
    let panics = Arc::new(AtomicUsize::new(0));
    let clock = Bad(Arc::clone(&panics));
    let builder = move || MessageLoop::builder().clock(clock).on_panic(|_| ());
    let looper = LoopThread::spawn_with("blind", builder).expect("a thread");
    let (tell, told) = channel();
    for left in [1, 2, 5] {
        let (tell, left_here) = (tell.clone(), Arc::clone(&panics));
        let task = move || tell.send(()).expect("awaited");
        let breaks = move || {
            here().post_delayed(Duration::from_millis(20), task).expect("open");
            left_here.store(left, Ordering::Relaxed);
        };
        looper.runner().post(breaks).expect("open");
        told.recv_timeout(PATIENCE).expect("the loop goes on");
        assert_eq!(panics.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn join_waits_and_does_not_quit() {
    let thread = LoopThread::spawn("waited for").expect("a thread");
    let (runner, has_quit) = (thread.runner(), Arc::new(AtomicBool::new(false)));
    let quitting = Arc::clone(&has_quit);
    let quitter = thread::spawn(move || {
        ask_id(&runner); // it still takes tasks
        quitting.store(true, Ordering::Relaxed);
        runner.quit();
    });
    thread.join().expect("no panic");
    assert!(has_quit.load(Ordering::Relaxed));
    quitter.join().expect("no panic");
}

#[test]
fn a_loop_that_would_wait_for_itself_is_told() {
    let thread = LoopThread::spawn("itself").expect("a thread");
    let runner = thread.runner();
    let (tell, told) = channel();
    let task =
        move || tell.send(thread.join().map_err(|e| e.is::<WouldDeadlock>())).expect("awaited");
    runner.post(task).expect("open");
    assert_eq!(told.recv_timeout(PATIENCE).expect("no hang"), Err(true));
    ask_id(&runner); // and it goes on
    runner.quit();
}

#[test]
fn a_thread_whose_setup_panics_is_an_error() {
    silence();
    let failed = LoopThread::spawn_with("broken", || panic_on_purpose());
    assert!(failed.expect_err("no loop").to_string().contains("setup"));
}

#[test]
fn a_loop_thread_in_virtual_time() {
    let clock = ManualClock::new();
    let own = clock.clone();
    let thread = LoopThread::spawn_with("virtual", || MessageLoop::builder().clock(own));
    let (thread, log) = (thread.expect("a thread"), Log::default());
    for seconds in [3, 1, 2] {
        let delay = SECOND * seconds;
        thread.runner().post_delayed(delay, log.task(seconds)).expect("open");
    }
    ask_id(&thread.runner());
    assert!(log.all().is_empty(), "it moves only when told");
    clock.advance(SECOND);
    until("the first", || log.all() == [1]);
    clock.advance(SECOND * 2);
    until("the others, in order", || log.all() == [1, 2, 3]);
}

// ----- what stands on a loop ---------------------------------------------------------------

#[test]
fn a_scheduler_runs_its_tasks_on_a_loop() {
    let looper = MessageLoop::prepare().expect("no other one");
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let on_loop = scheduler.with_executor(looper.runner());
    let log = Log::default();
    on_loop.schedule_once(2 * SECOND, log.task(2)).expect("open");
    on_loop.schedule_once(SECOND, log.task(1)).expect("open");
    let cancelled = on_loop.schedule_once(SECOND, log.task(9)).expect("open");
    driver.advance(SECOND * 3);
    assert!(log.all().is_empty() && cancelled.cancel(), "handed over is not yet run");
    looper.run_until_idle();
    assert_eq!(log.all(), [1, 2]);
    // A loop that has quit refuses; nothing is lost.
    looper.runner().quit();
    on_loop.schedule_once(SECOND, log.task(3)).expect("open");
    driver.advance(SECOND);
    drop(looper);
    assert_eq!(log.all(), [1, 2]);
    let stopping = scheduler.stop();
    driver.turn();
    assert_eq!(stopping.wait().run_all(), 1);
    assert_eq!(log.all(), [1, 2, 3]);
}

/// A loop that was told to quit refuses for good. A full loop refuses for now.
#[test]
fn s30_a_loop_that_has_quit_refuses_for_good_and_is_not_asked_again() {
    let ends: [fn(&TaskRunner); 3] =
        [TaskRunner::quit, TaskRunner::quit_safely, TaskRunner::quit_when_idle];
    for (end, is_dropped) in ends.into_iter().flat_map(|end| [(end, false), (end, true)]) {
        let looper = MessageLoop::builder().max_pending(1).prepare().expect("no other one");
        let runner = looper.runner();
        let due = || DueTask::new(Instant::now(), || ());
        runner.execute(due()).expect("open");
        let full = runner.execute(due()).expect_err("it has one place");
        assert!(!full.is_for_good(), "a place may become free");
        end(&runner);
        if !runner.post(|| ()).is_err_and(|e| e.reason() == ScheduleError::Closed) {
            // It takes posts until it has stopped, so no refusal is for good before that.
            assert!(!runner.execute(due()).expect_err("still full").is_for_good());
            looper.run();
        }
        if is_dropped {
            drop(looper);
        }
        assert!(runner.execute(due()).expect_err("it has ended").is_for_good());

        let (scheduler, driver) =
            Scheduler::builder().executor(runner).build_driven().expect("good");
        let held = Arc::new(());
        for after in 1..=5 {
            let held = Arc::clone(&held);
            scheduler.schedule_once(SECOND * after, move || drop(held)).expect("open");
        }
        let every = tickwheel::Period::fixed_rate(SECOND);
        let series = scheduler.schedule_periodic(SECOND, every, || ()).expect("open");
        driver.advance(SECOND * 10);
        let (rejected, wakeups) = (scheduler.stats().rejected(), scheduler.stats().wakeups());
        assert!((1..=6).contains(&rejected), "{rejected}: told by the first, and seldom asked");
        assert_eq!(driver.turn(), None, "nobody comes back to ask again");
        driver.advance(SECOND * 100);
        assert_eq!(scheduler.stats().rejected(), rejected);
        assert_eq!(scheduler.stats().wakeups(), wakeups);
        assert_eq!((scheduler.pending(), Arc::strong_count(&held)), (6, 6));
        let left = driver.close();
        assert_eq!((left.len(), left.run_all()), (6, 6));
        assert_eq!(Arc::strong_count(&held), 1);
        drop(series);
    }
}

/// Once more with a tick thread, which sleeps for good.
#[test]
fn s30_a_tick_thread_sleeps_when_its_loop_has_quit() {
    let looper = LoopThread::spawn("gone").expect("a thread");
    let runner = looper.runner();
    runner.quit();
    looper.join().expect("no panic");
    let scheduler = Scheduler::builder().executor(runner).build().expect("good");
    for _ in 0..10 {
        scheduler.schedule_once(Duration::ZERO, || ()).expect("open");
    }
    until("it is told", || scheduler.stats().rejected() > 0);
    let so_far = || (scheduler.stats().rejected(), scheduler.stats().wakeups());
    until("it sleeps", || {
        let before = so_far();
        thread::sleep(Duration::from_millis(300)); // real time: otherwise it would ask three times
        so_far() == before
    });
    assert_eq!((scheduler.pending(), scheduler.close().expect("in time").len()), (10, 10));
}

#[test]
fn a_worker_sits_on_a_loop() {
    let looper = MessageLoop::prepare().expect("no other one");
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let worker = ExecutorScheduler::new(looper.runner(), &timers).worker();
    let log = Log::default();
    worker.schedule_after(SECOND, log.task(3));
    worker.schedule(log.task(1));
    worker.schedule(log.task(2));
    looper.run_until_idle();
    driver.advance(SECOND);
    looper.run_until_idle();
    assert_eq!(log.all(), [1, 2, 3]);
}

#[test]
fn a_series_on_a_loop_thread_is_ended_from_elsewhere() {
    let thread = LoopThread::spawn("series").expect("a thread");
    let timers: Arc<dyn Schedule> = Arc::new(thread.runner());
    let (runs, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let (count, captured) = (Arc::clone(&runs), Arc::clone(&held));
    let every = tickwheel::Period::fixed_rate(Duration::from_micros(50));
    let series = timers.schedule_periodic(Duration::ZERO, every, move || {
        let _captured = &captured;
        count.fetch_add(1, Ordering::Relaxed);
    });
    let series = series.expect("open");
    until("it goes on", || runs.load(Ordering::Relaxed) > 20);
    assert!(series.cancel());
    until("its closure is dropped", || Arc::strong_count(&held) == 1);
    let after = runs.load(Ordering::Relaxed);
    ask_id(&thread.runner());
    assert_eq!(runs.load(Ordering::Relaxed), after);
}

/// A reply that is not `Send` stays on its thread, however its task ends.
#[test]
fn a_local_reply_stays_at_home() {
    silence();
    let looper = MessageLoop::prepare().expect("no other one");
    let (local, there) = (looper.local_runner(), LoopThread::spawn("there").expect("a thread"));
    let heard = Rc::new(Cell::new(0));
    let (answer, lost) = (Rc::clone(&heard), Rc::clone(&heard));
    local.post_and_reply(&there.runner(), || 7, move |seven| answer.set(seven)).expect("open");
    let panics =
        local.post_and_reply(&there.runner(), || panic_on_purpose(), move |()| lost.set(9));
    panics.expect("open");
    until("the reply runs, and the other is dropped", || {
        looper.run_until_idle();
        heard.get() == 7 && Rc::strong_count(&heard) == 1
    });
    there.runner().quit();
    let kept = Rc::clone(&heard);
    let refused = local.post_and_reply(&there.runner(), || 8, move |eight| kept.set(eight));
    let (task, reply) = refused.expect_err("it has quit").into_task();
    reply(task());
    assert_eq!((heard.get(), Rc::strong_count(&heard)), (8, 1));
}
