//! What is the difference between a fixed rate and a fixed delay, and what happens to missed runs?
//!
//! It is drawn on virtual time: a run "takes time" by moving the clock. The period is 10 ms. A run takes 3 ms, except
//! the second, which takes 34.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tickwheel::{ManualClock, MissedTicks, Period, Scheduler};

const MILLI: Duration = Duration::from_millis(1);
const PERIOD: Duration = Duration::from_millis(10);
const SHOWN: usize = 72;

fn main() -> Result<(), Box<dyn Error>> {
    println!("period 10 ms, a run takes 3 ms, the second takes 34 ms; one column is 1 ms\n");
    println!("{:<22}{}", "", ruler());
    let rate = Period::fixed_rate(PERIOD);
    for (name, period) in [
        ("rate, Burst (default)", rate),
        ("rate, Skip", rate.missed(MissedTicks::Skip)),
        ("rate, Delay", rate.missed(MissedTicks::Delay)),
        ("fixed delay", Period::fixed_delay(PERIOD)),
    ] {
        println!("{name:<22}{}", timeline(period)?);
    }
    println!("\nBurst catches up, one run after the other, until it is back in phase.");
    println!("Skip leaves out what was missed and keeps the phase: 0, 10, 50, 60, ...");
    println!("Delay starts a new phase, a period after the end of the late run.");
    println!("A fixed delay counts from the end of each run, so it never misses any.");
    Ok(())
}

/// Returns a drawing of the first 72 ms of a series.
fn timeline(period: Period) -> Result<String, Box<dyn Error>> {
    let clock = ManualClock::new();
    let (scheduler, driver) = Scheduler::builder().clock(clock.clone()).build_driven()?;
    let start = scheduler.now();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&runs);
    let mut run = 0;
    scheduler.schedule_periodic(Duration::ZERO, period, move || {
        run += 1;
        let begin = driver_time(&clock, start);
        clock.advance(MILLI * if run == 2 { 34 } else { 3 });
        log.lock().expect("nobody panics").push((begin, driver_time(&clock, start)));
    })?;
    driver.advance(MILLI * 80);

    let mut line = vec![' '; SHOWN];
    for (begin, end) in runs.lock().expect("nobody panics").iter().copied() {
        for (at, column) in line.iter_mut().enumerate().take(end).skip(begin) {
            *column = if at == begin { '[' } else { '=' };
        }
    }
    Ok(line.into_iter().collect::<String>().trim_end().to_owned())
}

/// Returns the milliseconds since the start.
fn driver_time(clock: &ManualClock, start: std::time::Instant) -> usize {
    let elapsed = tickwheel::Clock::now(clock) - start;
    usize::try_from(elapsed.as_millis()).unwrap_or(usize::MAX)
}

fn ruler() -> String {
    let marks: Vec<_> = (0..SHOWN).step_by(10).map(|milli| format!("{milli:<10}")).collect();
    marks.concat().trim_end().to_owned()
}
