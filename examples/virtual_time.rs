//! How do I test something that takes an hour? On virtual time: the driver moves the clock from deadline to deadline,
//! and every task runs on this thread, in order and without waiting.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickwheel::{ScheduleError, Scheduler};

/// Tries again after 1, 2, 4, ... seconds, 15 minutes at most, until an hour has passed. This is the code under test.
/// It does not know that time is virtual.
fn retry(
    scheduler: &Scheduler,
    delay: Duration,
    deadline: Instant,
    mut attempt: impl FnMut() -> bool + Send + 'static,
) -> Result<(), ScheduleError> {
    let next = scheduler.clone();
    scheduler
        .schedule_once(delay, move || {
            let next_delay = (delay * 2).min(Duration::from_secs(15 * 60));
            if !attempt() && next.now() + next_delay <= deadline {
                // The scheduler has been closed in the meantime, so there is nothing left to retry for.
                let _ = retry(&next, next_delay, deadline, attempt);
            }
        })
        .map(drop)
}

fn main() -> Result<(), Box<dyn Error>> {
    let real = Instant::now();
    let (scheduler, driver) = Scheduler::builder().build_driven()?;
    let start = scheduler.now();
    let attempts = Arc::new(Mutex::new(Vec::new()));

    let (log, clock) = (Arc::clone(&attempts), scheduler.clone());
    let hour = Duration::from_secs(3600);
    retry(&scheduler, Duration::from_secs(1), start + hour, move || {
        log.lock().expect("nobody panics").push(clock.now() - start);
        false // never an answer
    })?;
    let runs = driver.advance(hour);
    let took = real.elapsed();

    let attempts = attempts.lock().expect("nobody panics");
    for (n, at) in attempts.iter().enumerate() {
        let minutes = at.as_secs() / 60;
        println!(
            "attempt {:>2} at {minutes:>2} min {:>2} s  {}",
            n + 1,
            at.as_secs() % 60,
            "#".repeat(minutes as usize)
        );
    }
    println!(
        "{runs} attempts in {} minutes of virtual time, and {took:.1?} of real time",
        hour.as_secs() / 60
    );
    assert_eq!(attempts.first(), Some(&Duration::from_secs(1)));
    assert!(attempts.is_sorted() && attempts.len() == runs);
    Ok(())
}
