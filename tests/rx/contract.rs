//! The contract of `rx::Worker`, on executors of every kind: in order, never two at once, each sees what
//! the one before has written, and nothing is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Random, count, panic_on_purpose, silence, until};
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{DueTask, Executor, Inline, Rejected, Scheduler, ThreadPool};

/// Refuses at random, drops at random, and panics at random.
struct Moody {
    inner: ThreadPool,
    random: Mutex<Random>,
}

impl Executor for Moody {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let mood = self.random.lock().expect("no panic holds it").below(6);
        match mood {
            0 => Err(Rejected::new(task)),
            1 => {
                drop(task);
                Ok(())
            }
            2 => panic_on_purpose(),
            _ => self.inner.execute(task),
        }
    }
}

/// Every executor that the contract is tried on.
fn executors() -> Vec<(&'static str, Arc<dyn Executor>)> {
    silence();
    let late = |task: DueTask| {
        drop(thread::spawn(move || {
            thread::yield_now();
            task.run();
        }));
    };
    let moody = Moody { inner: ThreadPool::new(2), random: Mutex::new(Random(7)) };
    vec![
        ("inline", Arc::new(Inline)),
        ("a thread pool", Arc::new(ThreadPool::new(4))),
        ("one that is late", Arc::new(late)),
        ("one that refuses, drops and panics", Arc::new(moody)),
    ]
}

/// The counts of the tasks of one worker. They are read and written in two steps, so that tasks that overlap, or do not see each
/// other, miscount.
#[derive(Default)]
struct Line {
    is_busy: AtomicBool,
    runs: AtomicUsize,
    /// The numbers of each producer in the order of their runs.
    order: Mutex<Vec<(usize, usize)>>,
}

impl Line {
    fn task(self: &Arc<Self>, producer: usize, number: usize) -> impl FnOnce() + Send + 'static {
        let line = Arc::clone(self);
        move || {
            assert!(!line.is_busy.swap(true, Ordering::Relaxed), "two at once");
            let runs = line.runs.load(Ordering::Relaxed);
            line.order.lock().expect("no panic").push((producer, number));
            line.runs.store(runs + 1, Ordering::Relaxed);
            assert!(line.is_busy.swap(false, Ordering::Relaxed), "two at once");
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

#[test]
fn tasks_run_in_order_and_one_at_a_time_on_every_executor() {
    const PRODUCERS: usize = 4;
    let each = count(500, 20_000);
    for (name, executor) in executors() {
        let timers = Scheduler::new();
        let workers = ExecutorScheduler::new(executor, &timers);
        let lines: Vec<(Worker, Arc<Line>)> =
            (0..3).map(|_| (workers.worker(), Arc::default())).collect();
        thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let lines = &lines;
                scope.spawn(move || {
                    for number in 0..each {
                        for (worker, line) in lines {
                            worker.schedule(line.task(producer, number));
                        }
                    }
                });
            }
        });
        for (worker, line) in &lines {
            until(name, || line.runs() == PRODUCERS * each);
            until(name, || worker.pending() == 0);
            let order = line.order.lock().expect("no panic");
            assert_eq!(order.len(), PRODUCERS * each, "{name}: each once");
            for producer in 0..PRODUCERS {
                let of_one = order.iter().filter(|(from, _)| *from == producer).map(|(_, n)| *n);
                assert!(of_one.eq(0..each), "{name}: out of order");
            }
        }
    }
}

#[test]
fn a_ledger_of_tasks_cancels_and_disposals_balances_on_every_executor() {
    for (name, executor) in executors() {
        let timers = Scheduler::builder().tick(Duration::from_micros(100)).build().expect("good");
        let workers = ExecutorScheduler::new(executor, &timers);
        for seed in 0..count(40, 2_000) as u64 {
            balance(name, &workers.worker(), seed);
        }
        until(name, || timers.pending() == 0);
    }
}

/// What a task captures.
struct Closure {
    runs: Arc<AtomicUsize>,
    ends: Arc<AtomicUsize>,
}
impl Drop for Closure {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
    }
}

/// Each closure has one end: it ran, or it was dropped. `cancel` tells which.
fn balance(name: &str, worker: &Worker, seed: u64) {
    const TASKS: usize = 200;
    let (runs, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (mut random, mut handles) = (Random(seed), Vec::new());
    let (mut refused, mut cancelled_at_once) = (0, 0);
    let dispose_at = random.below(2 * TASKS as u64) as usize;
    let disposer = worker.clone();
    let disposal = thread::scope(|scope| {
        let disposal = scope.spawn(move || {
            if dispose_at < TASKS {
                thread::yield_now();
                disposer.dispose();
            }
        });
        for _ in 0..TASKS {
            let closure = Closure { runs: Arc::clone(&runs), ends: Arc::clone(&ends) };
            let task = move || _ = closure.runs.fetch_add(1, Ordering::Relaxed);
            let handle = if random.one_in(3) {
                worker.schedule_after(Duration::from_micros(random.below(300)), task)
            } else {
                match worker.try_schedule(task) {
                    Ok(handle) => handle,
                    Err(back) => {
                        drop(back.into_task());
                        refused += 1;
                        continue;
                    }
                }
            };
            if random.one_in(4) && handle.cancel() {
                cancelled_at_once += 1;
            } else {
                handles.push(handle);
            }
        }
        disposal.join()
    });
    disposal.expect("no panic");
    handles.iter().filter(|_| random.one_in(2)).for_each(|handle| _ = handle.cancel());
    until(name, || handles.iter().all(tickwheel::Cancellable::is_done));
    until(name, || ends.load(Ordering::Relaxed) == TASKS);
    assert_eq!(worker.pending(), 0, "{name}, seed {seed}");
    let cancelled = handles.iter().filter(|handle| handle.is_cancelled()).count();
    let ran = runs.load(Ordering::Relaxed);
    let ends = ran + refused + cancelled_at_once + cancelled;
    assert_eq!(
        ends, TASKS,
        "{name}, seed {seed}: {ran} ran, {refused} refused, {cancelled} cancelled"
    );
}

#[test]
fn equal_delays_keep_their_order_on_a_pool() {
    for (name, executor) in executors() {
        let (timers, driver) = Scheduler::builder().build_driven().expect("good");
        let worker = ExecutorScheduler::new(executor, &timers).worker();
        let line = Arc::new(Line::default());
        for number in 0..2_000 {
            worker.schedule_after(Duration::from_millis(20), line.task(0, number));
        }
        assert_eq!(driver.advance(Duration::from_millis(20)), 2_000, "{name}");
        until(name, || {
            driver.advance(Duration::from_millis(1)); // for the executor that has refused
            line.runs() == 2_000
        });
        let order = line.order.lock().expect("no panic");
        assert!(order.iter().map(|(_, number)| *number).eq(0..2_000), "{name}: out of order");
    }
}

#[test]
fn a_panic_ends_its_own_task_and_nothing_else() {
    for (name, executor) in executors() {
        let timers = Scheduler::new();
        let panics = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&panics);
        let hook = move |panic: tickwheel::TaskPanic<'_>| {
            assert_eq!(panic.message(), Some("on purpose"));
            told.fetch_add(1, Ordering::Relaxed);
        };
        let workers = ExecutorScheduler::new(executor, &timers).on_panic(hook);
        let (worker, line) = (workers.worker(), Arc::new(Line::default()));
        for number in 0..100 {
            let handle = worker.schedule(|| panic_on_purpose());
            worker.schedule(line.task(0, number));
            until(name, || handle.is_done());
            assert!(!handle.is_cancelled());
        }
        until(name, || line.runs() == 100);
        assert!(panics.load(Ordering::Relaxed) >= 100, "{name}: not reported");
    }
}

#[test]
fn a_worker_never_touches_another_nor_the_executor() {
    let timers = Scheduler::new();
    let pool = Arc::new(ThreadPool::new(2));
    let workers = ExecutorScheduler::new(Arc::clone(&pool), &timers);
    let (one, other, line) = (workers.worker(), workers.worker(), Arc::new(Line::default()));
    let delayed = other.schedule_after(Duration::from_secs(3600), || ());
    for number in 0..100 {
        one.schedule(|| ());
        other.schedule(line.task(0, number));
    }
    one.dispose();
    until("the other's tasks run", || line.runs() == 100);
    assert!(one.is_disposed() && !other.is_disposed() && !delayed.is_done());
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    let task = DueTask::new(Instant::now(), move || runs.store(true, Ordering::Release));
    pool.execute(task).expect("the executor is as it was");
    until("the executor runs", || ran.load(Ordering::Acquire));
    other.dispose();
    assert_eq!(timers.pending(), 0);
}

type Answer = fn(DueTask) -> Result<(), Rejected>;

/// An executor that fails five times in one way, and then runs its tasks.
struct Bad(AtomicUsize, Answer);
impl Executor for Bad {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        if self.0.fetch_add(1, Ordering::Relaxed) < 5 {
            return self.1(task);
        }
        Inline.execute(task)
    }
}

/// An executor is full, or does not answer, for a while. Nobody calls the worker again, and it still goes on.
#[test]
fn a_refused_drain_is_handed_over_again_without_a_further_call() {
    silence();
    let answers: [(&str, Answer); 3] = [
        ("refused", |task| Err(Rejected::new(task))),
        ("dropped", |task| {
            drop(task);
            Ok(())
        }),
        ("panicked", |_| panic_on_purpose()),
    ];
    for (name, answer) in answers {
        let (timers, driver) = Scheduler::builder().build_driven().expect("good");
        let executor = Arc::new(Bad(AtomicUsize::new(0), answer));
        let worker = ExecutorScheduler::new(Arc::clone(&executor), &timers).worker();
        let line = Arc::new(Line::default());
        worker.schedule(line.task(0, 0));
        worker.schedule(line.task(0, 1));
        assert_eq!((line.runs(), executor.0.load(Ordering::Relaxed)), (0, 1), "{name}");
        // The pauses are of a millisecond.
        driver.advance(Duration::from_millis(4));
        assert_eq!((line.runs(), executor.0.load(Ordering::Relaxed)), (0, 5), "{name}");
        driver.advance(Duration::from_millis(1));
        assert_eq!((line.runs(), executor.0.load(Ordering::Relaxed)), (2, 6), "{name}");
        // The worker goes on as before.
        worker.schedule(line.task(0, 2));
        assert_eq!((line.runs(), executor.0.load(Ordering::Relaxed)), (3, 7), "{name}");
        assert_eq!(timers.pending(), 0, "{name}");
    }
}

/// Refuses everything, and counts.
struct Never<F>(F);
impl<F: Fn() + Send + Sync + 'static> Executor for Never<F> {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        (self.0)();
        Err(Rejected::new(task))
    }
}

/// The last task that an executor has refused is cancelled: nothing is left to hand over.
#[test]
fn a_disposed_worker_hands_nothing_over() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let never = Never(move || _ = counted.fetch_add(1, Ordering::Relaxed));
    let worker = ExecutorScheduler::new(never, &timers).worker();
    let handle = worker.schedule(|| unreachable!("nobody runs it"));
    driver.advance(Duration::from_secs(60));
    let tried = calls.load(Ordering::Relaxed);
    // Sixteen times 1, 2, 4, .. and 32 ms, which takes a second, and then every 64.
    assert!((1015..=1025).contains(&tried), "the pause grows to 64 ms: {tried}");
    assert!(handle.cancel());
    driver.advance(Duration::from_secs(1));
    assert!(calls.load(Ordering::Relaxed) <= tried + 1);
    assert_eq!((timers.pending(), worker.pending()), (0, 0));
    worker.schedule(|| unreachable!("nobody runs it"));
    assert_eq!(timers.pending(), 1, "it is to be handed over again");
    worker.dispose();
    assert_eq!(timers.pending(), 0, "nor any more");
}

/// Refuses every second time.
struct EverySecond(AtomicUsize);

impl Executor for EverySecond {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        match self.0.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Err(Rejected::new(task)),
            _ => Inline.execute(task),
        }
    }
}

/// The pause grows with refusals in a row. A drain that has run ends the row.
#[test]
fn an_executor_that_refuses_now_and_then_is_asked_again_soon() {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let worker = ExecutorScheduler::new(EverySecond(AtomicUsize::new(0)), &timers).worker();
    let line = Arc::new(Line::default());
    (0..6_400).for_each(|number| _ = worker.schedule(line.task(0, number)));
    driver.advance(Duration::from_millis(110));
    assert_eq!(line.runs(), 6_400, "a hundred batches, a millisecond each");
}

/// Refuses the first.
struct Once(AtomicUsize);
impl Executor for Once {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(Rejected::new(task));
        }
        Inline.execute(task)
    }
}

/// A closed scheduler keeps no time. Queued tasks still run, with the next call at the latest.
#[test]
fn without_a_clock_the_next_task_hands_over() {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let worker = ExecutorScheduler::new(Once(AtomicUsize::new(0)), &timers).worker();
    drop(driver.close());
    let line = Arc::new(Line::default());
    worker.schedule(line.task(0, 0));
    // It retries on the global scheduler.
    until("it is handed over again", || line.runs() == 1);
    assert!(worker.schedule_after(Duration::from_secs(1), || ()).is_cancelled());
}
