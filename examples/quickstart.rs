//! How do I run something later, again and again, and cancel it?

use std::error::Error;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;

fn main() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let say = move |what: &str| println!("{:>4} ms  {what}", start.elapsed().as_millis());
    let scheduler = Scheduler::new();

    // Once.
    let (sender, answer) = mpsc::channel();
    scheduler.schedule_once(Duration::from_millis(120), move || {
        say("once: 120 ms have passed");
        let _ = sender.send(());
    })?;

    // Again and again, at a fixed rate.
    let mut beats = 0;
    let heart =
        scheduler.schedule_repeatedly(Duration::ZERO, Duration::from_millis(50), move || {
            beats += 1;
            say(&format!("beat {beats}"));
        })?;

    // A timeout that is cancelled, as most are.
    let timeout = scheduler.schedule_once(Duration::from_millis(80), move || say("never seen"))?;
    println!("   the timeout was called off: {}", timeout.cancel());

    answer.recv()?;
    heart.cancel();

    // Tasks that are pending at the end come back.
    scheduler.schedule_once(Duration::from_secs(3600), move || say("an hour early, by hand"))?;
    let leftovers = scheduler.close()?;
    println!("   closed, with {} task left over:", leftovers.len());
    for task in leftovers {
        println!("   due in {:.0?}, run now:", task.remaining());
        task.run();
    }
    Ok(())
}
