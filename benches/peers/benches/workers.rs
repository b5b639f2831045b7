//! The tasks per second that go through `rx` workers in order, beside queues that people write by hand.
//!
//! `cargo bench -p peers --bench workers`. With `-- --test` it runs each row once with few tasks.
//!
//! - **mutex queue**: a `Mutex<VecDeque<Box<dyn FnOnce>>>` and a flag. A producer that finds the flag clear has the thread pool
//!   drain the queue. It keeps the order, and no task can be cancelled.
//! - **with flags**: a mutex queue whose tasks can be cancelled by an `Arc<AtomicBool>` each. A cancelled closure stays until its
//!   turn.
//! - **channel**: `crossbeam-channel`, and a thread per worker that runs the tasks.
//!
//! A row is measured from the first schedule to the end of the last run. The figures are medians of rounds that take turns. Every
//! task adds to a counter of its worker without an atomic step, so tasks that overlap would miscount, and the bench checks that.

#![expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "for people")]

#[path = "../../../tests/common/mod.rs"]
mod common;
mod rates;

use std::collections::VecDeque;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use common::digits;
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{DueTask, Executor, Scheduler, ThreadPool};

const THREADS: usize = 2;

type Task = Box<dyn FnOnce() + Send>;

/// Something that runs tasks in order.
trait InOrder: Clone + Send + 'static {
    fn give(&self, task: impl FnOnce() + Send + 'static);
}

impl InOrder for Worker {
    fn give(&self, task: impl FnOnce() + Send + 'static) {
        self.schedule(task);
    }
}

#[derive(Clone)]
struct MutexQueue {
    pool: Arc<ThreadPool>,
    queue: Arc<(Mutex<VecDeque<Task>>, AtomicBool)>,
}

impl MutexQueue {
    fn run(&self) {
        let (queue, is_busy) = &*self.queue;
        loop {
            let mut tasks = queue.lock().expect("no panic");
            let Some(task) = tasks.pop_front() else {
                is_busy.store(false, Ordering::Relaxed); // under the lock
                return;
            };
            drop(tasks);
            task();
        }
    }
}

impl InOrder for MutexQueue {
    fn give(&self, task: impl FnOnce() + Send + 'static) {
        let (queue, is_busy) = &*self.queue;
        let mut tasks = queue.lock().expect("no panic");
        tasks.push_back(Box::new(task));
        let was_busy = is_busy.swap(true, Ordering::Relaxed);
        drop(tasks);
        if !was_busy {
            let this = self.clone();
            let run = DueTask::new(Instant::now(), move || this.run());
            self.pool.execute(run).expect("a pool takes everything");
        }
    }
}

/// Gives each task a handle, as a worker does.
#[derive(Clone)]
struct WithFlags(MutexQueue);

impl InOrder for WithFlags {
    fn give(&self, task: impl FnOnce() + Send + 'static) {
        let handle = Arc::new(AtomicBool::new(false));
        let is_cancelled = Arc::clone(&handle);
        self.0.give(move || {
            if !is_cancelled.load(Ordering::Acquire) {
                task();
            }
        });
        drop(handle);
    }
}

#[derive(Clone)]
struct Channel(crossbeam_channel::Sender<Task>);

impl InOrder for Channel {
    fn give(&self, task: impl FnOnce() + Send + 'static) {
        self.0.send(Box::new(task)).expect("its thread lives as long as this");
    }
}

fn workers(count: usize) -> Vec<Worker> {
    let timers = Scheduler::new();
    let workers = ExecutorScheduler::new(ThreadPool::new(THREADS), &timers);
    (0..count).map(|_| workers.worker()).collect()
}

fn mutex_queues(count: usize) -> Vec<MutexQueue> {
    let pool = Arc::new(ThreadPool::new(THREADS));
    (0..count).map(|_| MutexQueue { pool: Arc::clone(&pool), queue: Arc::default() }).collect()
}

fn with_flags(count: usize) -> Vec<WithFlags> {
    mutex_queues(count).into_iter().map(WithFlags).collect()
}

fn channels(count: usize) -> Vec<Channel> {
    let channel = |_| {
        let (sender, receiver) = crossbeam_channel::unbounded::<Task>();
        thread::spawn(move || receiver.into_iter().for_each(|task| task()));
        Channel(sender)
    };
    (0..count).map(channel).collect()
}

/// Schedules tasks on some workers in turn, from some threads. Returns the nanoseconds per task.
fn measure<W: InOrder + Sync>(workers: &[W], producers: usize, tasks: usize) -> f64 {
    let counts: Arc<Vec<AtomicU64>> = Arc::new(workers.iter().map(|_| AtomicU64::new(0)).collect());
    // The first tasks start the threads and allocate the memory.
    for worker in workers {
        worker.give(|| ());
    }
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                for number in 0..tasks / producers {
                    let (at, counts) = (number % workers.len(), Arc::clone(&counts));
                    workers[at].give(move || {
                        let count = &counts[at];
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    let total = (tasks / producers * producers) as u64;
    common::until("all run, and none over another", || {
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() == total
    });
    start.elapsed().as_nanos() as f64 / total as f64
}

fn main() {
    let is_test = env::args().any(|argument| argument == "--test");
    let (tasks, rounds) = if is_test { (4_000, 1) } else { (1_000_000, 7) };
    println!("tasks a second, of {}, on {THREADS} threads\n", digits(tasks));
    let rows = [("1 worker", 1), ("1,000 workers", 1_000)];
    for (name, count) in rows {
        for producers in [1, 4] {
            let [mut rx, mut queue, mut flags, mut channel] = [const { Vec::new() }; 4];
            for _ in 0..rounds {
                rx.push(measure(&workers(count), producers, tasks));
                queue.push(measure(&mutex_queues(count), producers, tasks));
                flags.push(measure(&with_flags(count), producers, tasks));
                channel.push(measure(&channels(count), producers, tasks));
            }
            let title =
                format!("{name}, {producers} producer{}", if producers == 1 { "" } else { "s" });
            let rows = [
                ("rx worker", rx),
                ("mutex queue", queue),
                ("with flags", flags),
                ("channel + thread", channel),
            ];
            rates::draw(&title, rows);
        }
    }
}
