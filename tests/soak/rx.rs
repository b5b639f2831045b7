//! The lives of a `Worker`: over executors of all kinds, on the time of a scheduler, a pool or a loop. No two of its tasks run
//! at a time, those without a delay run in order, and it ends by a dispose or with what is below it.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tickwheel::message_loop::LoopThread;
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{Driver, Inline, ManualClock, Scheduler, SystemClock, ThreadPool};

use crate::book::{Book, lock};
use crate::common::{PATIENCE, Random, until};
use crate::life::{Extra, Habits, Life, Moody};
use crate::lives;

/// What a worker stands on.
enum Ground {
    Scheduler(Scheduler, Option<(Driver, ManualClock)>),
    Pool(ScheduledThreadPool),
    Loop(LoopThread),
}

impl Ground {
    /// Ends what is below a worker.
    fn end(self, random: &mut Random) {
        match self {
            Ground::Scheduler(_, Some((driver, _))) => drop(driver.close()),
            Ground::Scheduler(scheduler, None) => drop(scheduler.close().expect("in time")),
            Ground::Pool(pool) => match random.below(3) {
                0 => drop(pool.shutdown_now()),
                1 => pool.shutdown(),
                _ => drop(pool),
            },
            Ground::Loop(thread) => match random.below(4) {
                0 => thread.runner().quit(),
                1 => thread.runner().quit_safely(),
                2 => thread.runner().quit_when_idle(),
                _ => drop(thread),
            },
        }
    }

    /// Lets time pass.
    fn pass(&self, step: Duration) {
        match self {
            Ground::Scheduler(_, Some((driver, _))) => _ = driver.advance(step),
            _ => thread::sleep(Duration::from_micros(300)),
        }
    }
}

fn make(random: &mut Random, habits: Habits, book: &Arc<Book>, moody: &Moody) -> (Ground, Worker) {
    let limit = if random.one_in(3) { 1 + random.below(2 * habits.crowd) } else { u64::MAX };
    let ears = Arc::clone(book);
    let settle = |workers: ExecutorScheduler| {
        workers.max_pending(limit as usize).on_panic(move |panic| ears.hear(&panic)).worker()
    };
    match random.below(6) {
        0 => {
            let pool = ScheduledThreadPool::new(1 + random.below(3) as usize);
            let worker = settle(ExecutorScheduler::over(pool.clone(), pool.clone()));
            (Ground::Pool(pool), worker)
        }
        1 => {
            let thread = LoopThread::spawn("soak").expect("a thread");
            let worker = settle(ExecutorScheduler::over(thread.runner(), thread.runner()));
            (Ground::Loop(thread), worker)
        }
        kind => {
            let builder = Scheduler::builder()
                .executor(Inline)
                .shutdown_timeout(PATIENCE)
                .tick(Duration::from_micros(1 + random.below(1_000)));
            let (scheduler, driver) = if kind == 2 {
                let clock = ManualClock::new();
                let (scheduler, driver) =
                    builder.clock(clock.clone()).on_panic(|_| ()).build_driven().expect("good");
                (scheduler, Some((driver, clock)))
            } else {
                (builder.build().expect("a thread"), None)
            };
            let workers = match random.below(3) {
                0 => ExecutorScheduler::new(Inline, &scheduler),
                1 => ExecutorScheduler::new(
                    ThreadPool::new(1 + random.below(3) as usize),
                    &scheduler,
                ),
                _ => ExecutorScheduler::new(moody.clone(), &scheduler),
            };
            (Ground::Scheduler(scheduler, driver), settle(workers))
        }
    }
}

/// Tasks without a delay, by one caller at a time: they run in this order.
#[derive(Default)]
struct Line {
    next: Mutex<u64>,
    last: AtomicU64,
}

impl Line {
    fn queue_up(self: &Arc<Self>, worker: &Worker, book: &Arc<Book>, random: &mut Random) {
        // A task of this worker may be inside of a call of this one.
        let Ok(mut next) = self.next.try_lock() else { return };
        for _ in 0..random.below(100) {
            *next += 1;
            let (line, book, number) = (Arc::clone(self), Arc::clone(book), *next);
            let given = worker.try_schedule(move || {
                let before = line.last.swap(number, SeqCst);
                if before >= number {
                    book.fault(format!("{number} after {before}"));
                }
            });
            if given.is_ok_and(|handle| random.one_in(4) && !handle.cancel()) {
                thread::yield_now();
            }
        }
    }
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let mut habits = Habits { one_at_a_time: true, ..Habits::draw(&mut random) };
    let (book, moody) = (Arc::new(Book::default()), Moody::default());
    let disposes = random.one_in(2);
    // Tasks that hold their worker stay until it is disposed.
    habits.tasks_hold_it &= disposes;
    let (ground, worker) = make(&mut random, habits, &book, &moody);
    let (line, moods, ears) = (Arc::<Line>::default(), moody.clone(), Arc::clone(&book));
    let asked = Arc::new(Mutex::new(Some(worker.clone())));
    let asked_of = Arc::clone(&asked);
    let extra: Extra = Box::new(move |random| {
        moods.change(random);
        let worker = lock(&asked_of).clone();
        worker.inspect(|worker| line.queue_up(worker, &ears, random));
    });
    let life = match &ground {
        Ground::Scheduler(_, Some((_, clock))) => {
            Life::new(seed, habits, clock.clone(), worker.clone(), &book, extra)
        }
        _ => Life::new(seed, habits, SystemClock, worker.clone(), &book, extra),
    };
    let step = habits.delay / 8;
    let (stops_at, mut turns) = (random.one_in(2).then(|| random.below(60)), 0);
    let mut ground = Some(ground);
    life.go_on(|| {
        ground.as_ref().inspect(|ground| ground.pass(step));
        turns += 1;
        if stops_at == Some(turns) {
            if disposes {
                worker.dispose();
                assert_eq!(worker.pending(), 0, "after a dispose");
            } else {
                ground
                    .take()
                    .inspect(|_| book.forget_time())
                    .into_iter()
                    .for_each(|it| it.end(&mut random));
            }
        }
        thread::sleep(Duration::from_micros(100));
    });
    if let Some(ground) = ground.as_ref().filter(|_| random.one_in(2)) {
        life.drain(
            || worker.pending(),
            || {
                moody.calm_down();
                ground.pass(step);
            },
        );
    }
    life.call_it_a_day();
    lock(&asked).take();
    if disposes {
        worker.dispose();
    }
    moody.calm_down();
    ground.take().into_iter().for_each(|ground| ground.end(&mut random));
    until("the end of all", || {
        moody.calm_down();
        worker.dispose();
        worker.pending() == 0
    });
    life.let_go();
    drop(worker);
    book.settle(&life.take_handles());
}

#[test]
fn rx() {
    lives("rx", live);
}
