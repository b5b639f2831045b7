//! Moved tasks of workers in a program that closes the global scheduler. A test program of its own, because nothing
//! opens that scheduler again.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::log::Log;
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{Cancellable, Driver, DueTask, Executor, Rejected, Scheduler};

const HOUR: Duration = Duration::from_secs(3600);

/// An executor that keeps what it gets until it is told to run it.
#[derive(Clone, Default)]
struct Later(Arc<Mutex<Vec<DueTask>>>);

impl Later {
    fn run(&self) {
        let tasks = std::mem::take(&mut *self.0.lock().expect("whole"));
        tasks.into_iter().for_each(DueTask::run);
    }
}

impl Executor for Later {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.0.lock().expect("whole").push(task);
        Ok(())
    }
}

/// A worker with a task that was moved while it was queued, and a scheduler that is full, so it refuses the timer.
struct Moved {
    timers: Scheduler,
    driver: Driver,
    /// Takes the one place that the scheduler has.
    other: Cancellable,
    later: Later,
    worker: Worker,
    task: Cancellable,
    log: Log,
    /// The closure of the task holds it.
    held: Arc<()>,
}

impl Moved {
    fn new() -> Moved {
        let (timers, driver) = Scheduler::builder().max_pending(1).build_driven().expect("good");
        let other = timers.schedule_once(2 * HOUR, || ()).expect("the only place");
        let (later, log, held) = (Later::default(), Log::default(), Arc::new(()));
        let worker = ExecutorScheduler::new(later.clone(), &timers).worker();
        let (says, captured) = (log.task(1), Arc::clone(&held));
        let task = worker.schedule(move || {
            drop(captured);
            says();
        });
        assert!(task.reset(HOUR));
        later.run();
        Moved { timers, driver, other, later, worker, task, log, held }
    }

    fn waits(&self) -> bool {
        !self.task.is_done() && self.worker.pending() == 1 && Arc::strong_count(&self.held) == 2
    }

    /// Returns true if the task has ended without a run.
    fn is_withdrawn(&self) -> bool {
        let is_over = self.task.is_done() && !self.task.is_cancelled();
        let is_gone = self.worker.pending() == 0 && Arc::strong_count(&self.held) == 1;
        is_over && is_gone && self.log.all().is_empty()
    }
}

/// One test, because the order matters.
#[test]
fn s28_a_moved_task_returns_from_the_global_scheduler_or_is_withdrawn() {
    let (returns, ends) = (Moved::new(), Moved::new());
    assert!(returns.waits() && ends.waits());
    assert_eq!(Scheduler::global().pending(), 2, "the global scheduler keeps their time");
    assert!(returns.other.cancel(), "its own scheduler has room again");
    drop(Scheduler::global().close().expect("in time"));

    assert!(returns.waits() && returns.timers.pending() == 1);
    returns.driver.advance(HOUR);
    returns.later.run();
    assert_eq!((returns.log.all(), returns.worker.pending()), (vec![1], 0));
    assert!(returns.task.is_done());

    assert!(ends.is_withdrawn(), "its own scheduler is still full");
    assert!(Moved::new().is_withdrawn(), "both schedulers refuse its timer");
}
