//! The lives of a `ScheduledThreadPool`: beside the usual tasks, futures that each resolve with the truth, a policy that
//! changes, and each kind of shutdown, in real and in virtual time.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tickwheel::pool::{JoinError, ScheduledFuture, ScheduledThreadPool, ShutdownPolicy};
use tickwheel::{Clock, ManualClock, SystemClock};

use crate::book::{Book, lock};
use crate::common::{PATIENCE, Random, panic_on_purpose, until};
use crate::life::{Extra, Habits, Life};
use crate::lives;

/// A future, and how often its task has run.
type Answer = (ScheduledFuture<usize>, Arc<AtomicUsize>, bool);

#[derive(Default)]
struct Answers(Mutex<Vec<Answer>>);

impl Answers {
    /// Schedules tasks with results, and takes some of the results.
    fn ask(&self, pool: &ScheduledThreadPool, random: &mut Random) {
        for _ in 0..random.below(60) {
            let (runs, panics) = (Arc::new(AtomicUsize::new(0)), random.one_in(20));
            let count = Arc::clone(&runs);
            let task = move || {
                if panics {
                    panic_on_purpose();
                }
                count.fetch_add(1, SeqCst)
            };
            let given = match random.below(4) {
                0 => pool.submit(task),
                1 => pool.schedule(Duration::from_secs(3_600), task),
                _ => pool.schedule(Duration::from_micros(random.below(3_000)), task),
            };
            lock(&self.0).extend(given.map(|future| (future, runs, panics)));
        }
        let mut answers = std::mem::take(&mut *lock(&self.0));
        while let Some((future, runs, panics)) = answers.pop() {
            if random.one_in(2) && future.cancel() {
                assert!(future.is_done() && runs.load(SeqCst) == 0);
                assert!(matches!(future.join(), Err(JoinError::Cancelled)));
            } else {
                match future.join_timeout(Duration::ZERO) {
                    Ok(result) => check(&result, &runs, panics),
                    Err(future) => lock(&self.0).push((future, runs, panics)),
                }
            }
            if answers.len() < 40 {
                break;
            }
        }
        lock(&self.0).append(&mut answers);
    }

    /// Each future resolves when the pool has ended.
    fn settle(&self) {
        // Unlocked before the wait: a task that asks takes the lock, and may hold the last handle of the pool.
        let answers = std::mem::take(&mut *lock(&self.0));
        for (future, runs, panics) in answers {
            let result = future.join_timeout(PATIENCE).expect("it resolves");
            check(&result, &runs, panics);
        }
    }
}

fn check(result: &Result<usize, JoinError>, runs: &AtomicUsize, panics: bool) {
    match result {
        Ok(before) => assert_eq!((*before, runs.load(SeqCst)), (0, 1)),
        Err(JoinError::Panicked(_)) => assert!(panics),
        // A task of the pool may ask, and is the only one that would run the other.
        Err(JoinError::Cancelled | JoinError::WouldDeadlock) => assert_eq!(runs.load(SeqCst), 0),
        Err(other) => panic!("{other}"),
    }
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let mut habits = Habits::draw(&mut random);
    // A pool lives while its tasks hold it, so it is not ended by its last handle then.
    let end = random.below(4);
    habits.tasks_hold_it &= end < 3;
    let book = Arc::new(Book::default());
    let manual = random.one_in(3).then(ManualClock::new);
    let clock: Arc<dyn Clock> = match &manual {
        Some(manual) => Arc::new(manual.clone()),
        None => Arc::new(SystemClock),
    };
    let ears = Arc::clone(&book);
    let mut builder = ScheduledThreadPool::builder()
        .threads(1 + random.below(3) as usize)
        .keep_alive(Duration::from_millis(random.below(5)))
        .clock(Arc::clone(&clock))
        .on_panic(move |panic| ears.hear(&panic));
    if random.one_in(3) {
        builder = builder.max_pending(1 + random.below(2 * habits.crowd) as usize);
    }
    if random.one_in(2) {
        builder = builder.core_threads(0);
    }
    let pool = builder.build().expect("good settings");
    let answers = Arc::new(Answers::default());
    let (asking, asked) = (Arc::clone(&answers), Arc::new(Mutex::new(Some(pool.clone()))));
    let asked_of = Arc::clone(&asked);
    let extra: Extra = Box::new(move |random| {
        let Some(pool) = lock(&asked_of).clone() else { return };
        asking.ask(&pool, random);
        let policy = ShutdownPolicy::default().run_delayed(random.one_in(2));
        pool.set_shutdown_policy(policy.continue_periodic(random.one_in(2)));
    });
    let life = Life::new(seed, habits, clock, pool.clone(), &book, extra);
    let step = habits.delay / 8;
    let pass = || {
        manual.as_ref().inspect(|clock| clock.advance(step));
        thread::sleep(Duration::from_micros(300));
    };
    let (stops_at, mut turns) = (random.one_in(2).then(|| random.below(60)), 0);
    life.go_on(|| {
        pass();
        turns += 1;
        if stops_at == Some(turns) && end < 3 {
            shut_down(end, &pool, &life.book, seed);
        }
    });
    if !pool.is_shutdown() && random.one_in(2) {
        life.drain(
            || pool.pending(),
            || {
                lock(&answers.0).iter().for_each(|(future, ..)| _ = future.cancel());
                pass();
            },
        );
    }
    life.call_it_a_day();
    lock(&asked).take();
    if end < 3 {
        shut_down(end, &pool, &book, seed);
        // Delayed tasks run by default. Those of the next hours are not waited for.
        let handles = life.take_handles();
        until("the end of the pool", || {
            // Again and again, because a run that is in progress may change it.
            let ends = ShutdownPolicy::default().run_delayed(false).continue_periodic(false);
            pool.set_shutdown_policy(ends);
            pass();
            pool.await_termination(Duration::from_millis(1))
        });
        assert!(pool.is_terminated() && pool.pending() == 0);
        life.let_go();
        answers.settle();
        book.settle(&handles);
    } else {
        let handles = life.take_handles();
        life.let_go();
        drop(pool);
        answers.settle();
        book.settle(&handles);
    }
}

fn shut_down(end: u64, pool: &ScheduledThreadPool, book: &Book, seed: u64) {
    let mut random = Random(seed);
    if end == 0 {
        book.forget_time();
        for task in pool.shutdown_now() {
            if random.one_in(2) {
                task.run();
            }
        }
    } else {
        pool.shutdown();
    }
    assert!(pool.is_shutdown() && pool.execute(|| ()).is_err());
}

#[test]
fn pool() {
    lives("pool", live);
}
