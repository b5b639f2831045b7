//! The whole engine on virtual time: tasks, series, cancels from outside and inside, rejections, and a
//! close. Each task has one end, none is early, and all run in their order.

#![no_main]

mod bytes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tickwheel::{Cancellable, Driver, DueTask, Precision, Rejected, Scheduler};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let _ = run(&mut bytes);
});

/// What has run: which task, and when.
#[derive(Default)]
struct Log(Mutex<Vec<(u64, Instant)>>);

struct Known {
    deadline: Option<Instant>,
    handle: Cancellable,
    cancelled: bool,
    /// It waits for no tick, so it may overtake what is due earlier in the same one (S3, S5).
    is_at_once: bool,
}

struct World {
    scheduler: Scheduler,
    driver: Driver,
    log: Arc<Log>,
    tick: Duration,
    known: HashMap<u64, Known>,
    next: u64,
    rejects: bool,
}

fn run(bytes: &mut Bytes<'_>) -> Option<()> {
    let settings = bytes.byte()?;
    let tick = Duration::from_nanos(1 + bytes.number()? % 50_000_000);
    let precision = if settings & 1 == 0 { Precision::Tick } else { Precision::Exact };
    let rejects = settings & 2 != 0;
    let turn = Arc::new(Mutex::new(u64::from(settings)));
    let executor = move |task: DueTask| {
        let mut turn = turn.lock().expect("no panic");
        *turn = turn.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let refuse = rejects && *turn >> 62 == 0;
        drop(turn);
        if refuse {
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    };
    let builder = Scheduler::builder().tick(tick).precision(precision).wheel_size(1 << (settings >> 4 & 7));
    let (scheduler, driver) = builder.executor(Fallible(executor)).build_driven().expect("good settings");
    let (log, known) = (Arc::default(), HashMap::new());
    let mut world = World { scheduler, driver, log, tick, known, next: 0, rejects };
    while world.step(bytes).is_some() {
        world.check_runs();
    }
    world.close();
    None
}

struct Fallible<F>(F);

impl<F: Fn(DueTask) -> Result<(), Rejected> + Send + Sync + 'static> tickwheel::Executor for Fallible<F> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        (self.0)(task)
    }
}

impl World {
    fn step(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        match bytes.byte()? % 6 {
            0 | 1 => {
                let delay = Duration::from_nanos(bytes.number()?);
                let id = self.id();
                let (log, scheduler) = (Arc::clone(&self.log), self.scheduler.clone());
                let task = move || log.0.lock().expect("no panic").push((id, scheduler.now()));
                let handle = self.scheduler.schedule_once(delay, task).expect("open");
                let deadline = self.driver.now().checked_add(delay);
                self.known.insert(id, Known { deadline, handle, cancelled: false, is_at_once: delay.is_zero() });
            }
            2 if self.next > 0 => {
                let id = bytes.number()? % self.next;
                if let Some(known) = self.known.get_mut(&id) {
                    assert!(known.handle.cancel() != known.cancelled, "one cancel wins: {id}");
                    known.cancelled = true;
                }
            }
            3 => drop(self.driver.turn()),
            _ => _ = self.driver.advance(Duration::from_nanos(bytes.number()? % (1 << 45))),
        }
        Some(())
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Takes what has run off the books.
    fn check_runs(&mut self) {
        let runs = std::mem::take(&mut *self.log.0.lock().expect("no panic"));
        let mut last = None;
        for (id, ran) in runs {
            let known = self.known.remove(&id).expect("a task runs once");
            assert!(!known.cancelled, "a cancelled task has run: {id}");
            assert!(known.handle.is_done() && !known.handle.cancel());
            let deadline = known.deadline.expect("never is never");
            assert!(ran >= deadline, "early: {id}");
            if !self.rejects {
                assert!(ran - deadline < self.tick, "late: {id}");
                if !known.is_at_once {
                    assert!(last <= Some((deadline, id)), "out of order: {id}");
                    last = Some((deadline, id));
                }
            }
        }
        let pending = self.known.values().filter(|known| !known.cancelled).count();
        assert_eq!(self.scheduler.pending(), pending);
    }

    fn close(self) {
        let pending = self.known.values().filter(|known| !known.cancelled).count();
        let leftovers = self.driver.close();
        assert_eq!(leftovers.len(), pending, "all that is pending comes back");
    }
}
