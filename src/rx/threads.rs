//! Workers on threads of their own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::worker::{ExecutorScheduler, Worker};
use crate::{Scheduler, ThreadPool};

/// A new worker on the one thread that all such workers of the process share.
///
/// The thread is called `tickwheel-single-1`. Delays are kept by [`Scheduler::global`].
///
/// # Panics
///
/// When the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
///
/// ```
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// for _ in 0..2 {
///     let sender = sender.clone();
///     tickwheel::rx::single().schedule(move || sender.send(std::thread::current().id()).unwrap());
/// }
/// assert_eq!(receiver.recv()?, receiver.recv()?, "two workers, one thread");
/// # Ok::<(), mpsc::RecvError>(())
/// ```
#[doc(alias = "Schedulers.single")]
pub fn single() -> Worker {
    static SINGLE: OnceLock<ExecutorScheduler> = OnceLock::new();
    SINGLE.get_or_init(|| on_one_thread("tickwheel-single")).worker()
}

/// A worker on a thread of its own, which starts with its first task, and ends when the worker is disposed,
/// or dropped and without tasks.
///
/// The thread is called `tickwheel-worker1-1`, and so on. Delays are kept by [`Scheduler::global`].
///
/// # Panics
///
/// When the thread of the global scheduler cannot be started, as [`Scheduler::global`] does.
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
    let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1; // it only has to be another one
    on_one_thread(&format!("tickwheel-worker{number}")).worker()
}

fn on_one_thread(name: &str) -> ExecutorScheduler {
    ExecutorScheduler::new(ThreadPool::named(1, name), Scheduler::global())
}
