//! How do I stop without losing anything? Ctrl-C, or a timer after two seconds, closes the scheduler. The pending tasks
//! go on in a second one: tasks that wait for their time, tasks that wait for a thread of the executor, and a heartbeat
//! that was in the middle of its run.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Inline, Scheduler};

const MILLI: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let first = Scheduler::new(); // with the default executor: a pool of threads
    let (sender, done) = mpsc::channel();

    println!(
        "3 reminders, 40 pages of 100 ms that are all due after 1.8 s, and a heartbeat of 500 ms"
    );
    for due in [500, 2_500, 3_500] {
        let sender = sender.clone();
        first.schedule_once(due * MILLI, move || _ = sender.send("reminders"))?;
    }
    for _ in 0..40 {
        let sender = sender.clone();
        first.schedule_once(1_800 * MILLI, move || {
            thread::sleep(100 * MILLI); // stands for a write to a disk
            let _ = sender.send("pages");
        })?;
    }
    let beats = sender;
    let heartbeat = first.schedule_repeatedly(500 * MILLI, 500 * MILLI, move || {
        thread::sleep(20 * MILLI);
        let _ = beats.send("beats");
    })?;

    // Either of two things ends the first scheduler.
    let (stop, stopped) = mpsc::channel();
    let by_hand = stop.clone();
    ctrlc::set_handler(move || by_hand.send("Ctrl-C").unwrap_or_default())?;
    let prompt = first.with_executor(Inline); // the timer must not wait for a thread of the pool
    prompt.schedule_once(2_010 * MILLI, move || stop.send("the timer").unwrap_or_default())?;
    let reason = stopped.recv()?;

    let leftovers = first.close()?;
    println!(
        "{:>4} ms  closed by {reason}: {} have not started, {} are still pending there",
        start.elapsed().as_millis(),
        leftovers.len(),
        first.pending(),
    );
    first.await_termination(Duration::from_secs(5));
    println!("{:>4} ms  what had started has ended", start.elapsed().as_millis());

    let second = Scheduler::new();
    let mut kinds = BTreeMap::new();
    for task in leftovers {
        let kind = match (task.period(), task.remaining()) {
            (Some(_), _) => "a heartbeat",
            (None, Duration::ZERO) => "pages that waited for a thread",
            (None, _) => "reminders",
        };
        *kinds.entry(kind).or_insert(0) += 1;
        task.reschedule(&second)?;
    }
    for (kind, count) in kinds {
        println!("         {count:>3} {kind} carry on in the second scheduler");
    }

    // The handle from before still reaches the heartbeat.
    second.schedule_once(2_000 * MILLI, move || _ = heartbeat.cancel())?;
    let mut counts = BTreeMap::new();
    for what in done {
        *counts.entry(what).or_insert(0) += 1;
    }
    println!("{:>4} ms  all is done: {counts:?}", start.elapsed().as_millis());
    assert_eq!((counts["reminders"], counts["pages"]), (3, 40), "each has run once");
    Ok(())
}
