//! How a `ThreadPool` ends: what it has accepted runs, what comes later is refused, and who waits is told. The threads are
//! real ones. Nothing here waits for time to pass.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::rx::ExecutorScheduler;
use tickwheel::{
    Clock, DueBatch, DueTask, Executor, ManualClock, Rejected, Scheduler, Sleeper, ThreadPool,
};

use crate::common::{OnDrop, PATIENCE, panic_on_purpose, until};

const SECOND: Duration = Duration::from_secs(1);

fn task(f: impl FnOnce() + Send + 'static) -> DueTask {
    DueTask::new(Instant::now(), f)
}

/// Keeps a thread of the pool busy until the sender is dropped.
fn occupy(pool: &ThreadPool) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    let (sender, busy) = mpsc::channel();
    let wait = move || {
        sender.send(()).expect("it waits");
        _ = released.recv();
    };
    pool.execute(task(wait)).expect("a thread starts");
    busy.recv_timeout(PATIENCE).expect("it runs");
    release
}

#[test]
fn what_was_accepted_runs_and_what_comes_later_is_refused_for_good() {
    let (pool, runs) = (ThreadPool::new(1), Arc::new(AtomicUsize::new(0)));
    let release = occupy(&pool);
    for _ in 0..100 {
        let runs = Arc::clone(&runs);
        let counts = move || _ = runs.fetch_add(1, Ordering::Relaxed);
        pool.execute(task(counts)).expect("open");
    }
    assert!(!pool.is_shutdown() && !pool.is_terminated());
    pool.shutdown();
    pool.shutdown();
    assert!(pool.is_shutdown() && !pool.is_terminated());
    assert!(!pool.await_termination(Duration::ZERO) && !pool.await_termination(SECOND / 1000));
    let refused = pool.execute(task(|| ())).expect_err("shut down");
    assert!(refused.is_for_good() && refused.is_finishing() && !refused.goes_on_here());
    drop(release);
    assert!(pool.await_termination(Duration::MAX), "no time is too long");
    assert!(pool.is_terminated() && pool.await_termination(Duration::ZERO));
    assert_eq!(runs.load(Ordering::Relaxed), 100);
    let refused = pool.execute(task(|| ())).expect_err("terminated");
    assert!(refused.is_for_good() && !refused.is_finishing());
}

#[test]
fn a_pool_that_has_never_had_a_thread_terminates_at_once() {
    let pool = ThreadPool::new(2);
    let begin = Barrier::new(5);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                begin.wait();
                let start = Instant::now();
                assert!(pool.await_termination(PATIENCE));
                assert!(start.elapsed() < PATIENCE, "nobody has told it");
            });
        }
        begin.wait();
        pool.shutdown();
    });
    assert!(pool.is_terminated());
}

/// A task cannot wait for the end of the threads, of which it holds one.
#[test]
fn inside_a_task_nobody_waits() {
    let pool = Arc::new(ThreadPool::new(1));
    let (own, (sender, receiver)) = (Arc::clone(&pool), mpsc::channel());
    let ends = move || {
        let before = own.await_termination(Duration::MAX);
        own.shutdown();
        let refused = own.execute(task(|| ())).expect_err("shut down");
        sender.send((before, own.await_termination(Duration::MAX), refused)).expect("it waits");
        panic_on_purpose();
    };
    pool.execute(task(ends)).expect("open");
    let (before, after, refused) = receiver.recv_timeout(PATIENCE).expect("no deadlock");
    assert!(!before && !after && refused.goes_on_here());
    assert!(pool.await_termination(PATIENCE), "although the task has panicked");
}

#[test]
fn a_scheduler_keeps_what_a_pool_refuses_that_is_shut_down() {
    let pool = Arc::new(ThreadPool::new(2));
    let builder = Scheduler::builder().executor(Arc::clone(&pool));
    let (scheduler, driver) = builder.build_driven().expect("good");
    let runs = Arc::new(AtomicUsize::new(0));
    let release = [occupy(&pool), occupy(&pool)];
    for delay in [SECOND; 10].into_iter().chain([2 * SECOND; 10]) {
        let runs = Arc::clone(&runs);
        let counts = move || _ = runs.fetch_add(1, Ordering::Relaxed);
        scheduler.schedule_once(delay, counts).expect("open");
    }
    driver.advance(SECOND); // a batch that the pool has
    pool.shutdown();
    driver.advance(SECOND); // a batch that it refuses
    drop(release);
    assert!(pool.await_termination(PATIENCE));
    assert_eq!(runs.load(Ordering::Relaxed), 10);
    driver.advance(100 * SECOND);
    assert_eq!((scheduler.stats().rejected(), scheduler.pending()), (10, 10), "it asks once");
    assert_eq!(driver.close().len(), 10);
}

#[test]
fn a_worker_on_the_pool_runs_all_that_it_has_accepted() {
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let (pool, runs) = (Arc::new(ThreadPool::new(2)), Arc::new(AtomicUsize::new(0)));
    let worker = ExecutorScheduler::new(Arc::clone(&pool), &timers).worker();
    let (release, released) = mpsc::channel::<()>();
    worker.schedule(move || _ = released.recv());
    for _ in 0..1000 {
        let runs = Arc::clone(&runs);
        worker.schedule(move || _ = runs.fetch_add(1, Ordering::Relaxed));
    }
    pool.shutdown();
    drop(release);
    assert!(pool.await_termination(PATIENCE));
    assert_eq!(runs.load(Ordering::Relaxed), 1000);
    until("it knows", || worker.schedule(|| ()).is_cancelled() && worker.is_disposed());
}

#[test]
fn a_shutdown_among_many_callers_loses_none_and_takes_none_after_it() {
    for round in 0..200 {
        let (pool, runs) = (ThreadPool::new(1 + round % 3), Arc::new(AtomicUsize::new(0)));
        let begin = Barrier::new(4);
        let accepted = thread::scope(|scope| {
            let bring = || {
                begin.wait();
                let is_accepted = |_: &usize| {
                    let runs = Arc::clone(&runs);
                    pool.execute(task(move || _ = runs.fetch_add(1, Ordering::Relaxed))).is_ok()
                };
                (0..100).filter(is_accepted).count()
            };
            let callers = [scope.spawn(bring), scope.spawn(bring), scope.spawn(bring)];
            begin.wait();
            pool.shutdown();
            assert!(pool.await_termination(PATIENCE));
            callers.into_iter().map(|caller| caller.join().expect("no panic")).sum::<usize>()
        });
        assert_eq!(runs.load(Ordering::Relaxed), accepted);
    }
}

/// An executor takes the tasks of a batch, and gives the rest of it, which is empty, to the pool. The batch is the last that
/// owns the scheduler, and so its clock.
#[test]
fn s11_an_empty_batch_drops_nothing_under_the_lock_of_the_pool() {
    struct TakesAll(Arc<ThreadPool>);
    impl Executor for TakesAll {
        fn execute(&self, task: DueTask) -> Result<(), Rejected> {
            self.0.execute(task)
        }
        fn execute_batch(&self, batch: &mut DueBatch) {
            batch.by_ref().for_each(DueTask::run);
            self.0.execute_batch(batch);
        }
    }
    struct Asks<F: FnMut()>(ManualClock, Mutex<OnDrop<F>>);
    impl<F: FnMut() + Send + 'static> Clock for Asks<F> {
        fn now(&self) -> Instant {
            self.0.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            self.0.sleep(sleeper, until);
        }
    }
    let pool = Arc::new(ThreadPool::new(1));
    let ((release, released), (sender, dropped)) = (mpsc::channel::<()>(), mpsc::channel());
    pool.execute(DueTask::new(Instant::now(), move || _ = released.recv())).expect("open");
    let asked = Arc::clone(&pool);
    let asks = OnDrop(move || sender.send(asked.is_shutdown()).expect("awaited"));
    let builder = Scheduler::builder().clock(Asks(ManualClock::new(), Mutex::new(asks)));
    let built = builder.executor(TakesAll(Arc::clone(&pool))).build_driven();
    let (scheduler, driver) = built.expect("good");
    (0..2).for_each(|_| drop(scheduler.schedule_once(Duration::ZERO, || ())));
    driver.turn();
    drop((driver, scheduler));
    drop(release);
    assert_eq!(dropped.recv_timeout(PATIENCE), Ok(false));
}
