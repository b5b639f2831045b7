//! How do I stop without losing what is pending? Ctrl-C, or a timer after two seconds, closes the
//! scheduler; what was pending carries on in a second one, with the delay that remained.

use std::error::Error;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;

fn main() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let first = Scheduler::new();
    println!("five tasks, due after 0.5, 1.5, 2.5, 3.0 and 3.5 s; closing after 2 s, or on Ctrl-C");
    let (sender, runs) = mpsc::channel();
    for due in [500, 1_500, 2_500, 3_000, 3_500] {
        let (due, sender) = (Duration::from_millis(due), sender.clone());
        first.schedule_once(due, move || {
            let late = start.elapsed().saturating_sub(due);
            println!("{:>4} ms  ran, {late:.1?} late", start.elapsed().as_millis());
            sender.send(()).expect("main counts the runs");
        })?;
    }
    drop(sender);

    // Either of two things ends the first scheduler.
    let (stop, stopped) = mpsc::channel();
    let by_hand = stop.clone();
    ctrlc::set_handler(move || by_hand.send("Ctrl-C").unwrap_or_default())?;
    first.schedule_once(Duration::from_secs(2), move || {
        stop.send("the timer").unwrap_or_default();
    })?;
    let reason = stopped.recv()?;
    let leftovers = first.close()?;
    let now = start.elapsed().as_millis();
    println!(
        "{now:>4} ms  closed by {reason}; {} left over, which carry on in a second one:",
        leftovers.len()
    );

    let second = Scheduler::new();
    for task in leftovers {
        println!("         {:>4} ms to go", task.remaining().as_millis());
        task.reschedule(&second)?;
    }
    println!("all {} have run, each once", runs.iter().count());
    Ok(())
}
