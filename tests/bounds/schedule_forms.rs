//! A scheduler behind every kind of pointer, with `ScheduleExt` in scope. The tests count allocations, and look at the names of
//! tasks.

use std::any::type_name_of_val;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::allocations::Measurement;
use tickwheel::{
    Cancellable, Period, RepeatingTask, Request, Schedule, ScheduleError, ScheduleExt, Scheduler,
    Task,
};

const SECOND: Duration = Duration::from_secs(1);
const TASKS: usize = 20;

/// A task that captures eight bytes.
fn work(id: u64) -> impl FnMut() + Send + 'static {
    move || assert!(id < TASKS as u64)
}

/// Returns the number of allocations per task, without the blocks of the intake, which come along now and then.
fn cost(schedule: impl Fn(u64) -> Result<Cancellable, ScheduleError>) -> usize {
    let some = || (0..TASKS as u64).for_each(|id| assert!(schedule(id).expect("open").cancel()));
    some();
    let measurement = Measurement::start();
    some();
    measurement.allocations() / TASKS
}

/// The five scheduling methods, called on a receiver of any type.
macro_rules! costs {
    ($receiver:expr) => {{
        let receiver = $receiver;
        [
            cost(|id| receiver.schedule_once(SECOND, work(id))),
            cost(|id| receiver.schedule_at(receiver.now() + SECOND, work(id))),
            cost(|id| receiver.schedule_repeatedly(SECOND, SECOND, work(id))),
            cost(|id| receiver.schedule_with_fixed_delay(SECOND, SECOND, work(id))),
            cost(|id| receiver.schedule_periodic(SECOND, Period::fixed_rate(SECOND), work(id))),
        ]
    }};
}

#[test]
fn a_scheduler_behind_a_pointer_boxes_nothing() {
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let erased: Arc<dyn Schedule> = Arc::new(scheduler.clone());
    assert_eq!(costs!(scheduler.clone()), [0; 5], "Scheduler");
    assert_eq!(costs!(&scheduler), [0; 5], "&Scheduler");
    assert_eq!(costs!(Arc::new(scheduler.clone())), [0; 5], "Arc<Scheduler>");
    assert_eq!(costs!(&Arc::new(scheduler.clone())), [0; 5], "&Arc<Scheduler>");
    assert_eq!(costs!(Box::new(scheduler.clone())), [0; 5], "Box<Scheduler>");
    assert_eq!(costs!(&&scheduler), [0; 5], "&&Scheduler");
    assert_eq!(costs!(&erased), [0; 5], "Arc<dyn Schedule>");
    assert_eq!(costs!(&*erased), [0; 5], "dyn Schedule");
}

/// A schedule from outside the crate with the four required methods. It counts the boxes that it gets.
struct Plain(Scheduler, AtomicUsize);

impl Schedule for Plain {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.schedule_task(delay, task)
    }

    fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.schedule_task_at(at, task)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.schedule_series(initial, period, task)
    }
}

#[test]
fn a_wrapper_from_outside_gets_every_task() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let plain = Plain(scheduler, AtomicUsize::new(0));
    assert_eq!(costs!(&plain), [1; 5], "a box each");
    assert_eq!(costs!(&Box::new(&plain)), [1; 5]);
    assert_eq!(plain.1.load(Ordering::Relaxed), 2 * 5 * 2 * TASKS);
    drop(plain);
    driver.turn();
}

/// A schedule from outside the crate that has itself passed by.
struct Known(Plain);

impl Schedule for Known {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
        self.0.schedule_task(delay, task)
    }

    fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
        self.0.schedule_task_at(at, task)
    }

    fn schedule_series(
        &self,
        initial: Duration,
        period: Period,
        task: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        self.0.schedule_series(initial, period, task)
    }

    fn as_scheduler(&self) -> Option<&Scheduler> {
        Some(&self.0.0)
    }
}

#[test]
fn a_wrapper_that_names_its_scheduler_gets_no_box() {
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let known = Known(Plain(scheduler, AtomicUsize::new(0)));
    assert_eq!(costs!(&known), [0; 5]);
    assert_eq!(costs!(&Box::new(&known)), [0; 5]);
    assert_eq!(known.0.1.load(Ordering::Relaxed), 0);
}

/// Writes down the names, and schedules nothing.
#[derive(Default)]
struct Names(Mutex<Vec<&'static str>>);

impl Names {
    fn note(&self, name: &'static str) -> Cancellable {
        self.0.lock().expect("no panic").push(name);
        Cancellable::already_cancelled()
    }
}

impl Schedule for Names {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn schedule_task(&self, _: Duration, _: Task) -> Result<Cancellable, ScheduleError> {
        Ok(self.note("no name"))
    }

    fn schedule_task_at(&self, _: Instant, _: Task) -> Result<Cancellable, ScheduleError> {
        Ok(self.note("no name"))
    }

    fn schedule_series(
        &self,
        _: Duration,
        _: Period,
        _: RepeatingTask,
    ) -> Result<Cancellable, ScheduleError> {
        Ok(self.note("no name"))
    }

    fn schedule_named(&self, name: &'static str, _: Request) -> Result<Cancellable, ScheduleError> {
        Ok(self.note(name))
    }
}

#[test]
fn s31_a_box_carries_the_name_of_its_closure() {
    fn use_all(schedule: &(impl Schedule + ?Sized)) -> Vec<&'static str> {
        let tasks = (|| (), || (), || (), || (), || ());
        let names = vec![
            type_name_of_val(&tasks.0),
            type_name_of_val(&tasks.1),
            type_name_of_val(&tasks.2),
            type_name_of_val(&tasks.3),
            type_name_of_val(&tasks.4),
        ];
        schedule.schedule_once(SECOND, tasks.0).expect("taken");
        schedule.schedule_at(schedule.now(), tasks.1).expect("taken");
        schedule.schedule_repeatedly(SECOND, SECOND, tasks.2).expect("taken");
        schedule.schedule_with_fixed_delay(SECOND, SECOND, tasks.3).expect("taken");
        let period = Period::fixed_rate(SECOND);
        schedule.schedule_periodic(SECOND, period, tasks.4).expect("taken");
        names
    }
    let names = Arc::new(Names::default());
    let noted = || std::mem::take(&mut *names.0.lock().expect("no panic"));
    assert_eq!(use_all(&*names), noted(), "Names");
    assert_eq!(use_all(&&*names), noted(), "&Names");
    assert_eq!(use_all(&names), noted(), "Arc<Names>");
    assert_eq!(use_all(&Box::new(Arc::clone(&names))), noted(), "Box<Arc<Names>>");
    let erased: Arc<dyn Schedule> = names.clone();
    assert_eq!(use_all(&erased), noted(), "Arc<dyn Schedule>");
    assert_eq!(use_all(&*erased), noted(), "dyn Schedule");
    assert!(use_all(&names)[0].starts_with(concat!(module_path!(), "::s31")), "the type's name");
}
