//! How do I keep tasks in order on a pool of threads?
//!
//! Three accounts share one pool. The bookings of one account must run in order and one at a time; those of different
//! accounts may run at once. Each account gets an `rx::Worker`.
//!
//! `cargo run --example ordered_workers`

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{DueTask, Executor, Scheduler, ThreadPool};

const ACCOUNTS: [&str; 3] = ["Ada", "Grace", "Mary"];
const BOOKINGS: usize = 12;
const MS: Duration = Duration::from_millis(1);

/// One booking: when it ran, and on which thread.
struct Booking {
    account: usize,
    number: usize,
    thread: String,
    start: Duration,
    end: Duration,
}

/// A booking takes some milliseconds, as a call to another service would.
fn book(account: usize, number: usize, opened: Instant, journal: &mpsc::Sender<Booking>) {
    let start = opened.elapsed();
    thread::sleep(MS * [11, 2, 6, 1][(account + number) % 4]);
    let thread = thread::current().name().unwrap_or("?").to_owned();
    let booking = Booking { account, number, thread, start, end: opened.elapsed() };
    journal.send(booking).expect("the main thread reads it");
}

/// Draws a line for each account. A digit is the thread that works on the account, `!` means that two do.
fn draw(journal: &[Booking]) {
    let end = journal.iter().map(|booking| booking.end).max().unwrap_or_default();
    for (account, name) in ACCOUNTS.iter().enumerate() {
        let mark = |step: u32| {
            let middle = MS * step + MS / 2;
            let mut at_it = journal.iter().filter(|booking| {
                booking.account == account && booking.start <= middle && booking.end > middle
            });
            match (at_it.next(), at_it.next()) {
                (Some(_), Some(_)) => '!',
                (Some(booking), None) => booking.thread.chars().last().unwrap_or('?'),
                (None, _) => '.',
            }
        };
        let line: String = (0..=end.as_millis() as u32).map(mark).collect();
        println!("  {name:6}{line}");
    }
    let (mut disorder, mut overlaps) = (0, 0);
    for account in 0..ACCOUNTS.len() {
        let of_one: Vec<_> = journal.iter().filter(|booking| booking.account == account).collect();
        disorder += of_one.windows(2).filter(|pair| pair[0].number > pair[1].number).count();
        overlaps += of_one
            .iter()
            .enumerate()
            .flat_map(|(at, one)| of_one[at + 1..].iter().map(move |other| (one, other)))
            .filter(|(one, other)| one.start < other.end && other.start < one.end)
            .count();
    }
    println!("  {disorder} ended before an earlier one, {overlaps} pairs were at it at once\n");
}

/// Brings a booking for each account every 5 ms, by `bring`, and draws them when all have run.
fn open(bring: impl Fn(usize, Box<dyn FnOnce() + Send>)) {
    let (journal, bookings) = mpsc::channel();
    let opened = Instant::now();
    for number in 0..BOOKINGS {
        for account in 0..ACCOUNTS.len() {
            let journal = journal.clone();
            bring(account, Box::new(move || book(account, number, opened, &journal)));
        }
        thread::sleep(5 * MS);
    }
    drop(journal);
    draw(&bookings.iter().collect::<Vec<_>>());
}

fn main() {
    let pool = Arc::new(ThreadPool::named(3, "clerk"));

    println!("straight on a pool of three threads; a digit is the thread, ! is two at once:");
    open(|_, task| pool.execute(DueTask::new(Instant::now(), task)).expect("a pool takes all"));

    println!("the same, by a worker for each account:");
    let timers = Scheduler::new();
    let workers = ExecutorScheduler::new(Arc::clone(&pool), &timers);
    let accounts: Vec<Worker> = ACCOUNTS.iter().map(|_| workers.worker()).collect();
    open(|account, task| _ = accounts[account].schedule(task));

    println!("standing orders run among the other bookings; closing an account cancels its own:");
    let paid = Arc::new(Mutex::new([0; ACCOUNTS.len()]));
    for (account, worker) in accounts.iter().enumerate() {
        let paid = Arc::clone(&paid);
        worker.schedule_periodically(5 * MS, 10 * MS, move || {
            paid.lock().expect("no panic")[account] += 1;
        });
    }
    thread::sleep(53 * MS);
    accounts[2].dispose();
    let then = *paid.lock().expect("no panic");
    thread::sleep(50 * MS);
    let now = *paid.lock().expect("no panic");
    for (account, name) in ACCOUNTS.iter().enumerate() {
        let state = if accounts[account].is_disposed() { "closed" } else { "open" };
        let (then, now) = (then[account], now[account] - then[account]);
        println!("  {name:6}{}|{}  {state}", "#".repeat(then), "#".repeat(now));
    }
    accounts.iter().for_each(Worker::dispose);
    println!("\nthree lines of work, three threads, and {} tasks pending", timers.pending());
}
