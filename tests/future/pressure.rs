//! A poll never puts its thread to sleep. If the tick thread is far behind, it wakes its task, until there is room.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tickwheel::{Inline, Scheduler};

use crate::common::told::Poller;
use crate::common::until;

const HOUR: Duration = Duration::from_secs(3600);

/// No task is held back for longer, so what is shorter than half of it shows that the thread did not wait.
const LONGEST: Duration = Duration::from_millis(100);

/// The tick thread stands still from now on, until the sender is dropped.
fn stands_still(scheduler: &Scheduler) -> mpsc::Sender<()> {
    let (let_go, waits) = mpsc::channel();
    let (start, started) = mpsc::channel();
    let busy = move || {
        start.send(()).expect("awaited");
        let _ = waits.recv();
    };
    scheduler.schedule_once(Duration::ZERO, busy).expect("open");
    started.recv().expect("it runs");
    let_go
}

#[test]
fn a_poll_that_finds_no_room_wakes_its_task_and_is_let_in_later() {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let let_go = stands_still(&scheduler);
    let (task, mut longest, mut sleeps) = (Poller::new(), Duration::ZERO, Vec::new());
    let (start, mut waiting) = loop {
        let mut sleep = scheduler.sleep(HOUR);
        let start = Instant::now();
        assert!(task.poll(&mut sleep).is_pending());
        longest = longest.max(start.elapsed());
        if task.woken() > 0 {
            break (start, sleep);
        }
        sleeps.push(sleep);
        assert!(sleeps.len() < 2_000_000, "the bound of what is not filed");
    };
    println!("{} sleeps; the longest poll took {longest:?}", sleeps.len());

    let (pending, woken) = (scheduler.pending(), task.woken());
    for polls in 1..=100 {
        assert!(task.poll(&mut waiting).is_pending());
        if start.elapsed() > LONGEST / 2 {
            break; // soon it will be let in, because nothing moves
        }
        assert_eq!((scheduler.pending(), task.woken()), (pending, woken + polls));
    }

    drop(let_go);
    until("there is room", || {
        assert!(task.poll(&mut waiting).is_pending());
        scheduler.pending() > pending
    });
    let woken = task.woken();
    assert!(task.poll(&mut waiting).is_pending());
    assert_eq!(task.woken(), woken, "it has a timer");
}

/// If the thread that a task holds up is the tick thread, nobody must wait for it for ever.
#[test]
fn a_tick_thread_that_stands_still_holds_no_task_for_long() {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let let_go = stands_still(&scheduler);
    let (task, mut sleeps) = (Poller::new(), Vec::new());
    let start = Instant::now();
    for _ in 0..400_000 {
        let mut sleep = scheduler.sleep(HOUR);
        let woken = task.woken();
        assert!(task.poll(&mut sleep).is_pending());
        if task.woken() > woken {
            until("it is let in", || {
                let woken = task.woken();
                assert!(task.poll(&mut sleep).is_pending());
                task.woken() == woken
            });
        }
        sleeps.push(sleep);
    }
    assert_eq!(scheduler.pending(), sleeps.len());
    println!("{} sleeps behind a thread that stands still: {:?}", sleeps.len(), start.elapsed());
    drop(let_go);
}
