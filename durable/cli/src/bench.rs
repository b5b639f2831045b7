//! `bench`: how late and how fast timers run in this process, from this database.
//!
//! Its timers have a kind of their own, which no other worker has, and its worker has no other kind. So it runs nobody's timers, and
//! nobody runs its. It removes them whatever happens, but for `kill -9`, so it says first how to remove them by hand.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::{Precision, Scheduler};
use tickwheel_durable::{Filter, NewTimer, Timers, Worker};

use crate::arguments;
use crate::changes::{ask, must_ask};
use crate::output::{Object, Output, tell};
use crate::problem::{Outcome, Problem};
use crate::terminal;
use crate::times::{milliseconds, precise, rough};

/// How many are written in one transaction.
const BATCH: u32 = 1000;

/// How long nothing may run before it is given up.
const PATIENCE: Duration = Duration::from_secs(15);

/// What was measured.
struct Figures {
    /// How long it took to write all timers.
    writing: Duration,
    /// How late each run began.
    late: Vec<Duration>,
    /// From the begin of the first run to that of the last.
    running: Duration,
    /// By so much the clocks of this machine and of the database may differ, after they were compared.
    clock_error: Duration,
}

/// What the handlers write down: when each began, and by how much that was after the due time.
type Runs = Arc<Mutex<Vec<(Instant, Duration)>>>;

pub(crate) fn bench(
    timers: &Timers,
    name: &str,
    of: &arguments::Bench,
    out: &mut Output,
) -> Outcome {
    let random = RandomState::new().hash_one(SystemTime::now()) >> 32;
    let kind = format!("tickwheel-bench-{random:08x}");
    let count = of.timers;
    if !of.yes {
        must_ask(&format!("this writes {count} timers into {name}"))?;
        ask(&format!("Write {count} timers into {name}, run them, and remove them?"))?;
    }
    terminal::catch_interrupts();
    tell(&format!(
        "If this is killed, `tickwheel-durable cancel --kind {kind} --all` removes what it leaves."
    ));
    let measured = measure(timers, &kind, of);
    // What is left counts for more than why nothing was measured: an interrupted bench has cleared up, or does not end as one.
    let left = remove(timers, &kind).inspect_err(|_| {
        tell(&format!(
            "Not all timers were removed. `tickwheel-durable cancel --kind {kind} --all` removes them."
        ));
    })?;
    let figures = measured?;
    if figures.late.is_empty() {
        return Err(Problem::Away("none of the timers has run".to_owned()));
    }
    report(&figures, &kind, of, left, out)?;
    let ran = figures.late.len();
    if ran < count as usize {
        return Err(Problem::Away(format!("only {ran} of {count} timers have run")));
    }
    Ok(())
}

fn measure(timers: &Timers, kind: &str, of: &arguments::Bench) -> Result<Figures, Problem> {
    let (clock, clock_error) = compare(timers)?;
    // The first batch tells how long all take to be written, so that none is due before that. It is written again.
    let begin = Instant::now();
    let first = of.timers.min(BATCH);
    write(timers, kind, of, 0..first, clock.now() + Duration::from_secs(3600))?;
    let each = begin.elapsed() / first;
    let lead = each * of.timers * 2 + Duration::from_secs(1);
    let base = clock.now() + lead;
    let begin = Instant::now();
    for from in (0..of.timers).step_by(BATCH as usize) {
        interrupted()?;
        write(timers, kind, of, from..of.timers.min(from + BATCH), base)?;
    }
    let writing = begin.elapsed();
    let runs = Runs::default();
    let worker = start(timers, kind, of.threads, clock, &runs)?;
    let ended = wait(&worker, &runs, of.timers as usize, lead + of.over);
    worker.stop(Duration::from_secs(5));
    ended?;
    let runs = std::mem::take(&mut *lock(&runs));
    let begins = || runs.iter().map(|(at, _)| *at);
    let running =
        begins().max().zip(begins().min()).map_or(Duration::ZERO, |(last, first)| last - first);
    let mut late: Vec<_> = runs.iter().map(|(_, late)| *late).collect();
    late.sort_unstable();
    Ok(Figures { writing, late, running, clock_error })
}

/// Compares the clocks. Returns by how much they may differ after that, too.
fn compare(timers: &Timers) -> Result<(Clock, Duration), Problem> {
    // The first call connects, which is no part of a round trip.
    let first = timers.now()?;
    loop {
        let before = Instant::now();
        let theirs = timers.now()?;
        let round_trip = before.elapsed();
        // The clock of SQLite's timers goes in milliseconds, so it is right when it has just gone on.
        if theirs != first {
            return Ok((Clock { ours: before + round_trip / 2, theirs }, round_trip));
        }
    }
}

/// The same moment by two clocks.
#[derive(Clone, Copy)]
struct Clock {
    ours: Instant,
    theirs: SystemTime,
}

impl Clock {
    /// Returns the database's time.
    fn now(self) -> SystemTime {
        self.theirs + self.ours.elapsed()
    }
}

fn write(
    timers: &Timers,
    kind: &str,
    of: &arguments::Bench,
    numbers: std::ops::Range<u32>,
    base: SystemTime,
) -> Outcome {
    let new = |number: u32| {
        let due = base + of.over.mul_f64(f64::from(number) / f64::from(of.timers));
        NewTimer::new(kind, number.to_string(), due).payload(vec![b'x'; of.payload as usize])
    };
    timers.schedule_all(&numbers.map(new).collect::<Vec<_>>())?;
    Ok(())
}

fn start(
    timers: &Timers,
    kind: &str,
    threads: u16,
    clock: Clock,
    runs: &Runs,
) -> Result<Worker, Problem> {
    let scheduler = Scheduler::builder().precision(Precision::Exact).build();
    let scheduler = scheduler.map_err(|error| Problem::Usage(error.to_string()))?;
    let runs = Arc::clone(runs);
    let handle = move |run: &tickwheel_durable::Run<'_>| {
        let late = clock.now().duration_since(run.due()).unwrap_or_default();
        lock(&runs).push((Instant::now(), late));
        Ok(())
    };
    let worker = timers
        .worker()
        .threads(threads.into())
        .handle(kind, handle)
        .on_error(|error| tell(&format!("tickwheel-durable: {error}")));
    Ok(worker.start(&scheduler)?)
}

/// Waits until all have run, or none has for a while.
fn wait(worker: &Worker, runs: &Runs, all: usize, lead: Duration) -> Outcome {
    let (mut count, mut until) = (0, Instant::now() + lead + PATIENCE);
    while count < all && Instant::now() < until && worker.is_running() {
        interrupted()?;
        thread::sleep(Duration::from_millis(20));
        let ran = lock(runs).len();
        if ran > count {
            (count, until) = (ran, until.max(Instant::now() + PATIENCE));
        }
    }
    Ok(())
}

fn interrupted() -> Outcome {
    if terminal::is_interrupted() { Err(Problem::Interrupted) } else { Ok(()) }
}

fn lock(runs: &Runs) -> std::sync::MutexGuard<'_, Vec<(Instant, Duration)>> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what there is of the kind. Returns how many there were: those that have not run.
fn remove(timers: &Timers, kind: &str) -> Result<u64, Problem> {
    let batch = Filter::new().kind(kind).limit(BATCH);
    let mut count = 0;
    loop {
        let cancelled = timers.cancel_all(&batch)?;
        count += cancelled;
        if cancelled < BATCH.into() {
            return Ok(count);
        }
    }
}

fn report(
    figures: &Figures,
    kind: &str,
    of: &arguments::Bench,
    removed: u64,
    out: &mut Output,
) -> Outcome {
    let late = |share: f64| {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank among some millions"
        )]
        let rank = (figures.late.len() as f64 * share).ceil() as usize;
        figures.late[rank.clamp(1, figures.late.len()) - 1]
    };
    let ran = figures.late.len();
    let pace = |count: usize, time: Duration| {
        #[expect(clippy::cast_precision_loss, reason = "three digits count")]
        let pace = count as f64 / time.as_secs_f64().max(1e-6);
        pace.round()
    };
    let written = pace(of.timers as usize, figures.writing);
    let run = pace(ran, figures.running);
    if out.json {
        let lateness = Object::new()
            .number("p50", milliseconds(late(0.5)))
            .number("p90", milliseconds(late(0.9)))
            .number("p99", milliseconds(late(0.99)))
            .number("max", milliseconds(late(1.0)));
        let object = Object::new()
            .text("kind", kind)
            .number("timers", of.timers)
            .number("over_ms", milliseconds(of.over))
            .number("threads", of.threads)
            .number("written_per_second", written)
            .number("run", ran)
            .number("run_ms", milliseconds(figures.running))
            .number("run_per_second", run)
            .object("late_ms", Some(lateness))
            .number("clock_error_ms", milliseconds(figures.clock_error))
            .number("removed", removed);
        return Ok(out.object(object)?);
    }
    let due =
        if of.over.is_zero() { "at once".to_owned() } else { format!("over {}", rough(of.over)) };
    let percentiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];
    let percentiles = percentiles.map(|(name, share)| format!("{name} {}", precise(late(share))));
    let (writing, running) = (precise(figures.writing), precise(figures.running));
    let (threads, clock_error) = (of.threads, precise(figures.clock_error));
    let lines = [
        format!("written  {} in {writing}: {written} a second", of.timers),
        format!(
            "run      {ran} in {running}: {run} a second, on {threads} threads; they were due {due}"
        ),
        format!("late     {}", percentiles.join("   ")),
        format!(
            "         from the due time to the call of the handler, by the database's clock, known to {clock_error}"
        ),
        format!("removed  {removed} that had not run"),
    ];
    lines.iter().try_for_each(|line| Ok(out.line(line)?))
}
