//! Moved tasks of workers whose scheduler is full, in a program that tries to close the global one. A test program of
//! its own, because it counts what is pending there.

use std::sync::Arc;
use std::time::Duration;

use crate::common::log::Log;
use crate::common::{Later, until};
use crate::in_own_process;
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{Cancellable, CloseError, Driver, Scheduler};

const HOUR: Duration = Duration::from_secs(3600);

/// A worker with a task that was moved while it was queued, and a scheduler that is full, so it refuses the timer.
struct Moved {
    timers: Scheduler,
    _driver: Driver,
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
        Moved { timers, _driver: driver, other, later, worker, task, log, held }
    }

    fn waits(&self) -> bool {
        !self.task.is_done() && self.worker.pending() == 1 && Arc::strong_count(&self.held) == 2
    }
}

/// A close of the global scheduler would end the timers of everybody. It is an error, and they stay.
#[test]
fn s28_a_moved_task_stays_with_the_global_scheduler_which_nobody_closes() {
    let Some(_alone) =
        in_own_process(s28_a_moved_task_stays_with_the_global_scheduler_which_nobody_closes)
    else {
        return;
    };
    let (here, there) = (Moved::new(), Moved::new());
    assert!(here.waits() && there.waits());
    let global = Scheduler::global();
    assert_eq!(global.pending(), 2, "the global scheduler keeps their time");
    assert_eq!(global.close().unwrap_err(), CloseError::Global);
    assert!(global.stop().wait().is_empty() && !global.is_closed());
    assert!(here.waits() && there.waits() && global.pending() == 2);

    assert!(here.task.reset(Duration::ZERO));
    until("its timer fires", || !here.later.0.lock().expect("whole").is_empty());
    here.later.run();
    assert_eq!((here.log.all(), here.worker.pending()), (vec![1], 0));
    assert!(here.task.is_done() && there.waits());

    assert!(there.other.cancel(), "its own scheduler has room again");
    assert!(there.task.cancel() && Arc::strong_count(&there.held) == 1);
    assert_eq!((there.worker.pending(), there.timers.pending(), global.pending()), (0, 0, 0));
}
