//! The lives of a `MessageLoop`: posts from other threads and from its own, local tasks and futures, nested runs, replies of
//! another loop, and each kind of end, in real and in virtual time.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use tickwheel::message_loop::{LocalTaskRunner, LoopThread, MessageLoop, RunLoop, TaskRunner};
use tickwheel::{Clock, ManualClock, SystemClock};

use crate::book::{Book, Kind, Page};
use crate::common::{Random, until};
use crate::life::{Extra, Habits, Life};
use crate::lives;

/// What only a loop has. `nests` is false where no two tasks may run at a time.
fn extra(book: &Arc<Book>, clock: &Arc<dyn Clock>, nests: bool, other: TaskRunner) -> Extra {
    let (book, clock) = (Arc::clone(book), Arc::clone(clock));
    Box::new(move |random| {
        // Only a task of the loop has one.
        let Ok(local) = LocalTaskRunner::current() else { return };
        let page = book.open(Kind::Once, clock.now(), false);
        let time = Arc::clone(&clock);
        match random.below(5) {
            0 => post_local(&local, page, time, random),
            1 => {
                let mut polls = random.below(4);
                let future = poll_fn(move |context| {
                    if polls == 0 {
                        let _running = page.begin(time.now());
                        return Poll::Ready(());
                    }
                    polls -= 1;
                    context.waker().wake_by_ref();
                    Poll::Pending
                });
                // A loop that is full, or ends, refuses it.
                let Ok(handle) = local.spawn_local(future) else { return };
                assert!(!random.one_in(4) || handle.cancel(), "it has not been polled yet");
            }
            2 => {
                let reply = move |()| _ = page.begin(time.now());
                let there = Arc::clone(&clock);
                // The other loop may have ended, and then the reply is dropped here.
                let record = book.open(Kind::Once, clock.now(), false);
                drop(other.post_and_reply(move || _ = record.begin(there.now()), reply));
            }
            3 if nests => {
                let Ok(run) = RunLoop::new() else { return };
                let quit = run.quit_handle();
                let ends = local.post(move || {
                    let _running = page.begin(time.now());
                    quit.quit();
                });
                if ends.is_ok() {
                    run.run();
                }
            }
            _ => drop(local.add_idle_handler({
                let mut page = Some(page);
                move || {
                    page.take().inspect(|page| _ = page.begin(time.now()));
                    std::ops::ControlFlow::Break(())
                }
            })),
        }
    })
}

fn post_local(local: &LocalTaskRunner, page: Page, clock: Arc<dyn Clock>, random: &mut Random) {
    let captured = std::rc::Rc::new(page);
    let task = move || _ = captured.begin(clock.now());
    let posted = local.post(task);
    posted.inspect(|handle| _ = random.one_in(4) && handle.cancel()).ok();
}

/// Runs a loop on this thread, in one of the ways that there are, until it is told to quit, or until `leaves`.
fn run(looper: MessageLoop, way: u64, clock: Option<&ManualClock>, leaves: &AtomicBool) {
    match way {
        0 => looper.run(),
        _ => {
            while !leaves.load(SeqCst) {
                if way == 1 {
                    looper.run_until_idle();
                } else {
                    looper.turn();
                }
                if clock.is_none() || way == 1 {
                    thread::yield_now();
                }
            }
        }
    }
    drop(looper);
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let mut habits = Habits::draw(&mut random);
    habits.one_at_a_time = random.one_in(2);
    let book = Arc::new(Book::default());
    let manual = random.one_in(3).then(ManualClock::new);
    let clock: Arc<dyn Clock> = match &manual {
        Some(manual) => Arc::new(manual.clone()),
        None => Arc::new(SystemClock),
    };
    let (ears, time) = (Arc::clone(&book), Arc::clone(&clock));
    let limit = random.one_in(3).then(|| 1 + random.below(2 * habits.crowd) as usize);
    let (way, leaves) = (random.below(3), Arc::new(AtomicBool::new(false)));
    let (sender, runners) = mpsc::channel();
    let (turned, flag) = (manual.clone(), Arc::clone(&leaves));
    let thread = thread::spawn(move || {
        let mut builder =
            MessageLoop::builder().clock(time).on_panic(move |panic| ears.hear(&panic));
        if let Some(limit) = limit {
            builder = builder.max_pending(limit);
        }
        let looper = builder.prepare().expect("the first of this thread");
        sender.send(looper.runner()).expect("it is awaited");
        run(looper, way, turned.as_ref(), &flag);
    });
    let runner = runners.recv().expect("a loop");
    let other = LoopThread::spawn("soak-other").expect("a thread");
    let extra = extra(&book, &clock, !habits.one_at_a_time, other.runner());
    let life = Life::new(seed, habits, clock, runner.clone(), &book, extra);
    let step = habits.delay / 8;
    let pass = || {
        manual.as_ref().inspect(|clock| clock.advance(step));
        thread::sleep(Duration::from_micros(300));
    };
    let end = random.below(4);
    let (stops_at, mut turns) = (random.one_in(2).then(|| random.below(60)), 0);
    life.go_on(|| {
        pass();
        turns += 1;
        if stops_at == Some(turns) {
            quit(end, &runner, &leaves);
        }
    });
    // Only `run` calls idle handlers.
    let drains = way == 0 && stops_at.is_none() && random.one_in(2);
    if drains && !thread.is_finished() {
        life.drain(|| book.alive.load(SeqCst), pass);
    }
    life.call_it_a_day();
    quit(end, &runner, &leaves);
    until("the end of the loop", || {
        pass();
        leaves.store(true, SeqCst);
        // A loop that is full has not taken the task that would have ended it.
        runner.quit_safely();
        thread.is_finished()
    });
    thread.join().expect("a loop catches panics");
    assert!(runner.post(|| ()).is_err(), "posted to what has ended");
    life.let_go();
    drop(other);
    book.settle(&life.take_handles());
}

/// The last of them is the loop that is dropped while it has work, or is told to quit by a task of its own.
fn quit(end: u64, runner: &TaskRunner, leaves: &AtomicBool) {
    match end {
        0 => runner.quit(),
        1 => runner.quit_safely(),
        2 => runner.quit_when_idle(),
        _ => {
            let itself = runner.clone();
            drop(runner.post(move || itself.quit()));
            leaves.store(true, SeqCst);
        }
    }
}

#[test]
fn message_loop() {
    lives("message_loop", live);
}
