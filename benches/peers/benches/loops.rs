//! The posts per second that a message loop takes, and the time of a post to another thread and back, beside the usual
//! alternatives.
//!
//! `cargo bench -p peers --bench loops`. With `-- --test` it runs each row once with few tasks.
//!
//! - **crossbeam**: `crossbeam-channel`, and a thread that runs what comes out.
//! - **std mpsc**: `std::sync::mpsc`, and such a thread.
//! - **tokio**: a `LocalSet` on a `current_thread` runtime, and an unbounded `tokio::sync::mpsc` into it.
//!
//! None of these can cancel or delay a task, and a closed channel gives a task back only in the post. A row of posts is measured
//! from the first post to the end of the last run. In a row of round trips, each task posts the next one to the other one of two
//! threads, and each thread sleeps in between. The figures are medians of rounds that take turns.

#![expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "for people")]

#[path = "../../../tests/common/mod.rs"]
mod common;
mod rates;

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use common::digits;
use tickwheel::message_loop::{LoopThread, TaskRunner};
use tokio::runtime;
use tokio::sync::mpsc as tokio_mpsc;
use tokio::task::LocalSet;

type Task = Box<dyn FnOnce() + Send>;

/// Posts tasks to a thread.
trait Post: Clone + Send + 'static {
    /// A thread that ends by itself, or when nobody can post to it any more.
    fn start() -> Self;
    fn give(&self, task: impl FnOnce() + Send + 'static);
    fn end(&self) {}
}

impl Post for TaskRunner {
    fn start() -> TaskRunner {
        let thread = LoopThread::spawn("loop").expect("a thread");
        let runner = thread.runner();
        thread::spawn(|| thread.join()); // a drop would end the thread
        runner
    }

    fn give(&self, task: impl FnOnce() + Send + 'static) {
        assert!(self.post(task).is_ok());
    }

    fn end(&self) {
        self.quit();
    }
}

#[derive(Clone)]
struct Crossbeam(crossbeam_channel::Sender<Task>);

impl Post for Crossbeam {
    fn start() -> Crossbeam {
        let (sender, receiver) = crossbeam_channel::unbounded::<Task>();
        thread::spawn(move || receiver.into_iter().for_each(|task| task()));
        Crossbeam(sender)
    }

    fn give(&self, task: impl FnOnce() + Send + 'static) {
        assert!(self.0.send(Box::new(task)).is_ok());
    }
}

#[derive(Clone)]
struct Std(mpsc::Sender<Task>);

impl Post for Std {
    fn start() -> Std {
        let (sender, receiver) = mpsc::channel::<Task>();
        thread::spawn(move || receiver.into_iter().for_each(|task| task()));
        Std(sender)
    }

    fn give(&self, task: impl FnOnce() + Send + 'static) {
        assert!(self.0.send(Box::new(task)).is_ok());
    }
}

#[derive(Clone)]
struct Tokio(tokio_mpsc::UnboundedSender<Task>);

impl Post for Tokio {
    fn start() -> Tokio {
        let (sender, mut receiver) = tokio_mpsc::unbounded_channel::<Task>();
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().build().expect("a runtime");
            LocalSet::new().block_on(&runtime, async move {
                while let Some(task) = receiver.recv().await {
                    task();
                }
            });
        });
        Tokio(sender)
    }

    fn give(&self, task: impl FnOnce() + Send + 'static) {
        assert!(self.0.send(Box::new(task)).is_ok());
    }
}

/// Posts from some threads to one. Returns the nanoseconds per post.
fn posts<P: Post + Sync>(posters: usize, tasks: usize) -> f64 {
    let (there, ran) = (P::start(), Arc::new(AtomicU64::new(0)));
    there.give(|| ()); // warm: the thread runs
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..posters {
            scope.spawn(|| {
                for _ in 0..tasks / posters {
                    let ran = Arc::clone(&ran);
                    // One thread runs all of them, so the counter needs no atomic step.
                    there.give(move || {
                        ran.store(ran.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    let total = (tasks / posters * posters) as u64;
    common::until("all run", || ran.load(Ordering::Relaxed) == total);
    let nanos = start.elapsed().as_nanos() as f64 / total as f64;
    there.end();
    nanos
}

/// Posts to the other thread and back, this many times. Returns the nanoseconds per round trip.
fn round_trips<P: Post>(times: usize) -> f64 {
    fn bounce<P: Post>(from: P, to: &P, left: usize, tell: mpsc::Sender<()>) {
        let back = to.clone();
        to.give(move || match left {
            0 => tell.send(()).expect("awaited"),
            _ => bounce(back, &from, left - 1, tell),
        });
    }
    let (here, there) = (P::start(), P::start());
    let (tell, told) = mpsc::channel();
    let start = Instant::now();
    bounce(here.clone(), &there, 2 * times - 1, tell);
    told.recv().expect("it comes back");
    let nanos = start.elapsed().as_nanos() as f64 / times as f64;
    here.end();
    there.end();
    nanos
}

/// Runs each of the four in turn.
fn measure(
    rounds: usize,
    rows: [(&'static str, &dyn Fn() -> f64); 4],
) -> Vec<(&'static str, Vec<f64>)> {
    let mut taken: Vec<_> = rows.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for _ in 0..rounds {
        for ((_, nanos), (_, row)) in taken.iter_mut().zip(&rows) {
            nanos.push(row());
        }
    }
    taken
}

fn main() {
    let is_test = env::args().any(|argument| argument == "--test");
    let (tasks, trips, rounds) = if is_test { (4_000, 100, 1) } else { (1_000_000, 20_000, 7) };
    for posters in [1, 4] {
        let taken = measure(
            rounds,
            [
                ("message loop", &|| posts::<TaskRunner>(posters, tasks)),
                ("crossbeam", &|| posts::<Crossbeam>(posters, tasks)),
                ("std mpsc", &|| posts::<Std>(posters, tasks)),
                ("tokio LocalSet", &|| posts::<Tokio>(posters, tasks)),
            ],
        );
        let s = if posters == 1 { "" } else { "s" };
        rates::draw(&format!("posts, {}, by {posters} thread{s}", digits(tasks)), taken);
    }
    let taken = measure(
        rounds,
        [
            ("message loop", &|| round_trips::<TaskRunner>(trips)),
            ("crossbeam", &|| round_trips::<Crossbeam>(trips)),
            ("std mpsc", &|| round_trips::<Std>(trips)),
            ("tokio LocalSet", &|| round_trips::<Tokio>(trips)),
        ],
    );
    rates::draw(&format!("round trips between two threads, {}", digits(trips)), taken);
}
