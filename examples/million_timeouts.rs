//! Does it hold a service's timeouts? Two threads open a million requests in ten seconds, each with a timeout of 30 ms
//! to 5 s. Most requests are answered in time, and their timeouts are cancelled. The other timeouts fire. In the end
//! the books must balance, and nothing may have fired early.
//!
//! The tasks are a few instructions long, so they run inline, on the tick thread: to hand each to another thread would
//! cost more than to run it.

use std::collections::BinaryHeap;
use std::error::Error;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Cancellable, Inline, Lateness, ScheduleError, Scheduler};

const REQUESTS: u64 = 1_000_000;
const CLIENTS: u64 = 2;
const OVER: Duration = Duration::from_secs(10);

/// Counts of what has happened to the requests.
#[derive(Default)]
struct Books {
    opened: AtomicU64,
    answered: AtomicU64,
    timed_out: AtomicU64,
    early: AtomicU64,
}

impl Books {
    fn read(&self) -> (u64, u64, u64) {
        let [opened, answered, timed_out] =
            [&self.opened, &self.answered, &self.timed_out].map(|n| n.load(Ordering::SeqCst));
        (opened, answered, timed_out)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = Scheduler::builder().executor(Inline).build()?;
    let books = Arc::new(Books::default());
    let start = Instant::now();
    println!("{} requests over {} s, timeouts of 30 ms to 5 s:", grouped(REQUESTS), OVER.as_secs());

    // A task of the same scheduler draws the progress.
    let progress = {
        let (books, watched) = (Arc::clone(&books), scheduler.clone());
        let period =
            Duration::from_millis(if std::io::stdout().is_terminal() { 100 } else { 1000 });
        scheduler
            .schedule_repeatedly(Duration::ZERO, period, move || draw(&books, &watched, start))?
    };
    let client_of = |seed| {
        let (scheduler, books) = (&scheduler, &books);
        move || client(scheduler, books, start, seed)
    };
    thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|seed| scope.spawn(client_of(seed + 1)));
        let clients: Vec<_> = clients.collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })?;
    // The last timeouts are due within five seconds.
    while books.read().1 + books.read().2 < REQUESTS {
        thread::sleep(Duration::from_millis(10));
    }
    progress.cancel();
    draw(&books, &scheduler, start);
    if std::io::stdout().is_terminal() {
        println!();
    }
    balance(&books, &scheduler)
}

/// Opens a share of the requests, evenly over the time, and answers nine of ten in time.
fn client(
    scheduler: &Scheduler,
    books: &Arc<Books>,
    start: Instant,
    seed: u64,
) -> Result<(), ScheduleError> {
    let mut random = Random(seed);
    // The answers that are still to come: when, and to which request.
    let mut answers: BinaryHeap<Answer> = BinaryHeap::new();
    let share = REQUESTS / CLIENTS;
    for n in 0..share {
        let due = start + share_of(OVER, n, share);
        while answers.peek().is_some_and(|answer| answer.at <= Instant::now()) {
            answers.pop().into_iter().for_each(|answer| answer.arrive(books));
        }
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early.max(Duration::from_micros(200)));
        }
        let timeout = Duration::from_micros(30_000 + random.below(4_970_000));
        let handle = open(scheduler, books, timeout)?;
        if random.below(10) > 0 {
            let at = Instant::now() + share_of(timeout, random.below(900), 1000);
            answers.push(Answer { at, handle });
        }
    }
    for answer in answers.into_sorted_vec().into_iter().rev() {
        thread::sleep(answer.at.saturating_duration_since(Instant::now()));
        answer.arrive(books);
    }
    Ok(())
}

/// Opens a request, which schedules its timeout.
fn open(
    scheduler: &Scheduler,
    books: &Arc<Books>,
    timeout: Duration,
) -> Result<Cancellable, ScheduleError> {
    books.opened.fetch_add(1, Ordering::SeqCst);
    let (books, due) = (Arc::clone(books), Instant::now() + timeout);
    scheduler.schedule_once(timeout, move || {
        books.early.fetch_add(u64::from(Instant::now() < due), Ordering::SeqCst);
        books.timed_out.fetch_add(1, Ordering::SeqCst);
    })
}

/// An answer that is on its way. The earliest compares greatest, because the heap yields the greatest first.
struct Answer {
    at: Instant,
    handle: Cancellable,
}

impl Answer {
    fn arrive(self, books: &Books) {
        if self.handle.cancel() {
            books.answered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Answer {}
impl PartialOrd for Answer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Answer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

/// Prints one line of progress, over the last one if the output is a terminal.
fn draw(books: &Books, scheduler: &Scheduler, start: Instant) {
    let (opened, answered, timed_out) = books.read();
    let filled = (opened * 24 / REQUESTS) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(24 - filled));
    let line = format!(
        "{:>5.1} s [{bar}] {:>6} pending, {:>7} answered, {:>6} timed out",
        start.elapsed().as_secs_f64(),
        scheduler.pending().saturating_sub(1), // without the task that draws
        answered,
        timed_out,
    );
    let mut out = std::io::stdout().lock();
    let drawn = if out.is_terminal() { write!(out, "\r{line}") } else { writeln!(out, "{line}") };
    drawn.and_then(|()| out.flush()).ok();
}

/// Prints both sides of the ledger, as the clients counted and as the scheduler counted.
fn balance(books: &Books, scheduler: &Scheduler) -> Result<(), Box<dyn Error>> {
    let (opened, answered, timed_out) = books.read();
    let early = books.early.load(Ordering::SeqCst);
    let stats = scheduler.stats();
    let lateness = stats.lateness();

    println!("\n              opened   =   answered   +  timed out");
    println!(
        "  clients  {:>9}   =  {:>9}   +  {:>9}",
        grouped(opened),
        grouped(answered),
        grouped(timed_out)
    );
    println!("            scheduled  =  cancelled   +      fired");
    println!(
        "  wheel    {:>9}   =  {:>9}   +  {:>9}   (and the task that drew)",
        grouped(stats.scheduled() - 1),
        grouped(stats.cancelled() - 1),
        grouped(timed_out),
    );
    println!("  early    {early:>9}");
    println!("  wake-ups {:>9}   of the tick thread", grouped(stats.wakeups()));
    println!("\nhow late {} runs were, progress included:", grouped(lateness.count()));
    histogram(lateness);

    let balances = opened == answered + timed_out
        && stats.scheduled() - 1 == opened
        && stats.cancelled() - 1 == answered
        && stats.pending() == 0;
    if !balances || early > 0 {
        return Err(format!("the books do not balance, or {early} fired early: {stats:?}").into());
    }
    println!("\nthe books balance, and none was early");
    Ok(())
}

/// Prints the histogram of lateness. The last bar holds everything later than 5 ms.
fn histogram(lateness: &Lateness) {
    const EDGES: [u64; 10] = [50, 100, 250, 500, 750, 1_000, 1_250, 1_500, 2_000, 5_000];
    let mut rows = vec![0_u64; EDGES.len() + 1];
    for (late, runs) in lateness.bins() {
        let row = EDGES.iter().position(|edge| late.as_micros() <= u128::from(*edge));
        rows[row.unwrap_or(EDGES.len())] += runs;
    }
    let most = rows.iter().copied().max().unwrap_or(0).max(1);
    for (row, runs) in rows.into_iter().enumerate() {
        let label = match EDGES.get(row) {
            Some(edge) => format!("<= {}.{:02} ms", edge / 1000, edge % 1000 / 10),
            None => String::from(">  5.00 ms"),
        };
        println!("  {label}  {:<44} {}", "#".repeat((runs * 44 / most) as usize), grouped(runs));
    }
    println!(
        "  median {:.2?}, p99 {:.2?}, max {:.2?}",
        lateness.quantile(0.5),
        lateness.quantile(0.99),
        lateness.max(),
    );
}

/// Returns `part` of `whole` of a duration.
fn share_of(duration: Duration, part: u64, whole: u64) -> Duration {
    let nanos = duration.as_nanos() * u128::from(part) / u128::from(whole);
    Duration::from_nanos(u64::try_from(nanos).expect("less than centuries"))
}

/// Formats 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}
