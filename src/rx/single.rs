//! Workers on one thread: [`single`] and [`new_thread`].
//!
//! A worker hands a drain to its executor, which runs a batch of its tasks. So of two workers on one thread, one would run
//! several tasks before the other runs any. The workers of [`single`] hand over a drain for each task, which runs the tasks up
//! to that one. Then the queue of the thread keeps one order for all of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::scheduler::ExecutorScheduler;
use super::worker::Worker;
use crate::{Scheduler, ThreadPool};

/// Returns a new worker on the one thread that all such workers of the process share.
///
/// They also share one order: tasks without a delay run in the order in which they were scheduled, whatever worker they
/// belong to. Disposing one worker does not affect the others.
///
/// The thread is named `tickwheel-single-1`. [`Scheduler::global`] keeps the delays.
///
/// # Panics
///
/// Panics if the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
///
/// ```
/// use std::sync::mpsc;
///
/// let (one, other) = (tickwheel::rx::single(), tickwheel::rx::single());
/// let (sender, receiver) = mpsc::channel();
/// for (number, worker) in [&one, &other, &one, &other].into_iter().enumerate() {
///     let sender = sender.clone();
///     worker.schedule(move || sender.send(number).unwrap());
/// }
/// assert!(receiver.iter().take(4).eq(0..4), "two workers, one thread, one order");
/// ```
#[doc(alias = "Schedulers.single")]
pub fn single() -> Worker {
    static SINGLE: OnceLock<ExecutorScheduler> = OnceLock::new();
    SINGLE.get_or_init(|| on_one_thread("tickwheel-single").in_line()).worker()
}

/// Returns a new worker on a thread of its own.
///
/// The thread starts with the first task, and ends when the worker is disposed, or when all its handles are dropped and
/// its tasks have run. It is named `tickwheel-worker1-1`, and so on. [`Scheduler::global`] keeps the delays.
///
/// # Panics
///
/// Panics if the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
///
/// ```
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// let worker = tickwheel::rx::new_thread();
/// worker.schedule(move || sender.send(std::thread::current().id()).unwrap());
/// assert_ne!(receiver.recv()?, std::thread::current().id());
/// worker.dispose();
/// # Ok::<(), mpsc::RecvError>(())
/// ```
#[doc(alias = "Schedulers.newThread")]
pub fn new_thread() -> Worker {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1; // Relaxed, because only the number matters
    on_one_thread(&format!("tickwheel-worker{number}")).worker()
}

fn on_one_thread(name: &str) -> ExecutorScheduler {
    ExecutorScheduler::new(ThreadPool::named(1, name), Scheduler::global())
}
