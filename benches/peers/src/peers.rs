//! The timers under test, each behind the same face.
//!
//! A closure, where the timer takes one, captures an `Arc` and a number: 16 bytes. Timers that give
//! futures hold the same beside the future. What fires notes its time in a [`Log`].

use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{
    ClosureTimer, OneShotClosureState, PeriodicClosureState, Timer, TimerReturn,
};
use pingora_timeout::ToTimeout;
use pingora_timeout::fast_timeout::FastTimeout;
use scheduled_thread_pool::{JobHandle, ScheduledThreadPool};
use tickwheel::{Cancellable, Inline, Precision, Scheduler};
use tokio::runtime::Runtime;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

/// What was due when, and what has fired when. Times are nanoseconds after `start`.
pub(crate) struct Log {
    start: Instant,
    due: Vec<AtomicU64>,
    /// Which task, and when, in the order of firing: so that noting costs the same for all timers,
    /// and little.
    fired: Vec<[AtomicU64; 2]>,
    count: AtomicU64,
}

impl Log {
    /// For so many tasks, which fire so often in all.
    pub(crate) fn new(tasks: usize, runs: usize) -> Arc<Log> {
        let due = (0..tasks).map(|_| AtomicU64::new(0)).collect();
        let mut fired = Vec::new();
        fired.resize_with(runs, || [AtomicU64::new(u64::MAX), AtomicU64::new(0)]);
        Arc::new(Log { start: Instant::now(), due, fired, count: AtomicU64::new(0) })
    }

    /// A task is about to be scheduled: the delay up to its deadline. It is due then, and not before.
    pub(crate) fn delay(&self, task: usize, until: Instant) -> Duration {
        let now = Instant::now();
        let delay = until.saturating_duration_since(now);
        let due = (now + delay - self.start).as_nanos() as u64;
        self.due[task].store(due, Ordering::Relaxed);
        delay
    }

    pub(crate) fn note(&self, task: usize) {
        let at = self.start.elapsed().as_nanos() as u64;
        let place = self.count.fetch_add(1, Ordering::Relaxed) as usize;
        if let Some([whose, when]) = self.fired.get(place) {
            whose.store(task as u64, Ordering::Relaxed);
            when.store(at, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What has fired when, in order.
    pub(crate) fn fired(&self) -> impl Iterator<Item = (usize, Instant)> + '_ {
        let all = self.fired.iter().take(self.count() as usize);
        all.map(|[task, at]| {
            let at = Duration::from_nanos(at.load(Ordering::Relaxed));
            (task.load(Ordering::Relaxed) as usize, self.start + at)
        })
    }

    /// How late each was, in nanoseconds; less than nothing when it was early.
    pub(crate) fn lateness(&self) -> impl Iterator<Item = i64> + '_ {
        self.fired.iter().take(self.count() as usize).map(|[task, at]| {
            let due = &self.due[task.load(Ordering::Relaxed) as usize];
            at.load(Ordering::Relaxed) as i64 - due.load(Ordering::Relaxed) as i64
        })
    }
}

/// What a task holds on to.
pub(crate) type Held = Arc<AtomicU64>;

/// A timer, as a workload sees it.
pub(crate) trait Peer: Send + Sized + 'static {
    type Handle: Send;
    /// Whether it repeats by itself, or by being asked to again.
    const REPEATS: bool = true;

    fn new() -> Self;
    /// The same timer for another thread.
    fn for_another_thread(&self) -> Self;
    /// What a thread has to be inside of.
    fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
    fn schedule(&mut self, delay: Duration, number: u64, held: &Held) -> Self::Handle;
    fn cancel(&mut self, handle: Self::Handle);
    /// Makes a sleep, polls it once and drops it. False: this timer has no sleeps.
    fn sleep(&mut self, _duration: Duration) -> bool {
        false
    }
    /// Schedules a task that notes its run in a log, for each deadline.
    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>);
    /// Does what is due, if the timer needs somebody to; until so many have fired.
    fn fire(&mut self, log: &Arc<Log>, count: u64) {
        while log.count() < count {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    /// Runs so many tasks at a fixed rate, until the time is over.
    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>);
}

// ----- tickwheel ---------------------------------------------------------------------------

/// How a scheduler is made.
pub(crate) trait Make: Send + 'static {
    fn scheduler() -> Scheduler;
}

pub(crate) struct OnTickThread;
pub(crate) struct Exact;
pub(crate) struct OnDefault;

impl Make for OnTickThread {
    fn scheduler() -> Scheduler {
        Scheduler::builder().executor(Inline).build().expect("a tick thread")
    }
}

impl Make for Exact {
    fn scheduler() -> Scheduler {
        let builder = Scheduler::builder().executor(Inline).precision(Precision::Exact);
        builder.build().expect("a tick thread")
    }
}

impl Make for OnDefault {
    fn scheduler() -> Scheduler {
        Scheduler::new()
    }
}

pub(crate) struct Tickwheel<M>(Scheduler, PhantomData<M>);

impl<M: Make> Peer for Tickwheel<M> {
    type Handle = Cancellable;

    fn new() -> Self {
        Tickwheel(M::scheduler(), PhantomData)
    }

    fn for_another_thread(&self) -> Self {
        Tickwheel(self.0.clone(), PhantomData)
    }

    fn schedule(&mut self, delay: Duration, number: u64, held: &Held) -> Cancellable {
        let held = Arc::clone(held);
        let task = move || held.store(number, Ordering::Relaxed);
        self.0.schedule_once(delay, task).expect("open")
    }

    fn cancel(&mut self, handle: Cancellable) {
        handle.cancel();
    }

    fn sleep(&mut self, duration: Duration) -> bool {
        let sleep = pin!(self.0.sleep(duration));
        sleep.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            let (delay, log) = (log.delay(task, *deadline), Arc::clone(log));
            self.0.schedule_once(delay, move || log.note(task)).expect("open");
        }
    }

    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>) {
        for task in 0..tasks {
            let log = Arc::clone(log);
            self.0.schedule_repeatedly(period, period, move || log.note(task)).expect("open");
        }
        std::thread::sleep(over);
    }
}

// ----- tickwheel's pool --------------------------------------------------------------------

pub(crate) struct OwnPool(tickwheel::pool::ScheduledThreadPool);

impl Peer for OwnPool {
    type Handle = tickwheel::pool::ScheduledFuture<()>;

    fn new() -> Self {
        OwnPool(tickwheel::pool::ScheduledThreadPool::new(1))
    }

    fn for_another_thread(&self) -> Self {
        OwnPool(self.0.clone())
    }

    fn schedule(&mut self, delay: Duration, number: u64, held: &Held) -> Self::Handle {
        let held = Arc::clone(held);
        self.0.schedule(delay, move || held.store(number, Ordering::Relaxed)).expect("open")
    }

    fn cancel(&mut self, handle: Self::Handle) {
        handle.cancel();
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            let (delay, log) = (log.delay(task, *deadline), Arc::clone(log));
            drop(self.0.schedule(delay, move || log.note(task)).expect("open"));
        }
    }

    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>) {
        for task in 0..tasks {
            let log = Arc::clone(log);
            let series = self.0.schedule_at_fixed_rate(period, period, move || log.note(task));
            drop(series.expect("open"));
        }
        std::thread::sleep(over);
    }
}

// ----- tokio-util's DelayQueue -------------------------------------------------------------

/// A queue for one thread, or, behind the lock, for several.
pub(crate) struct Queue {
    runtime: Arc<Runtime>,
    queue: Arc<Mutex<DelayQueue<(u64, Held)>>>,
    due: DelayQueue<usize>,
    is_shared: bool,
    own: DelayQueue<(u64, Held)>,
}

fn runtime() -> Runtime {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_time().build().expect("a runtime")
}

impl Queue {
    /// Pushes an item to an instant, or to so much from now.
    pub(crate) fn push(&mut self, key: &Key, to: Result<Instant, Duration>) {
        let push = |queue: &mut DelayQueue<(u64, Held)>| match to {
            Ok(at) => queue.reset_at(key, at.into()),
            Err(delay) => queue.reset(key, delay),
        };
        if self.is_shared {
            push(&mut self.queue.lock().expect("no panic"));
        } else {
            push(&mut self.own);
        }
    }
}

impl Peer for Queue {
    type Handle = Key;

    fn new() -> Self {
        let runtime = Arc::new(runtime());
        let queue = Arc::new(Mutex::new(DelayQueue::new()));
        let (due, own) = (DelayQueue::new(), DelayQueue::new());
        Queue { runtime, queue, due, is_shared: false, own }
    }

    fn for_another_thread(&self) -> Self {
        Queue {
            runtime: Arc::clone(&self.runtime),
            queue: Arc::clone(&self.queue),
            due: DelayQueue::new(),
            is_shared: true,
            own: DelayQueue::new(),
        }
    }

    fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        let _inside = self.runtime.enter();
        work()
    }

    fn schedule(&mut self, delay: Duration, number: u64, held: &Held) -> Key {
        let task = (number, Arc::clone(held));
        if self.is_shared {
            self.queue.lock().expect("no panic").insert(task, delay)
        } else {
            self.own.insert(task, delay)
        }
    }

    fn cancel(&mut self, key: Key) {
        if self.is_shared {
            self.queue.lock().expect("no panic").remove(&key);
        } else {
            self.own.remove(&key);
        }
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            self.due.insert(task, log.delay(task, *deadline));
        }
    }

    fn fire(&mut self, log: &Arc<Log>, count: u64) {
        let runtime = Arc::clone(&self.runtime);
        runtime.block_on(async {
            while log.count() < count {
                let Some(due) = poll_fn(|context| self.due.poll_expired(context)).await else {
                    break;
                };
                log.note(due.into_inner());
            }
        });
    }

    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>) {
        let start = tokio::time::Instant::now();
        for task in 0..tasks {
            self.due.insert_at(task, start + period);
        }
        let runtime = Arc::clone(&self.runtime);
        runtime.block_on(async {
            while start.elapsed() < over {
                let Some(due) = poll_fn(|context| self.due.poll_expired(context)).await else {
                    break;
                };
                let next = due.deadline() + period;
                log.note(*due.get_ref());
                self.due.insert_at(due.into_inner(), next);
            }
        });
    }
}

// ----- tokio's Sleep -----------------------------------------------------------------------

pub(crate) struct Sleep(Arc<Runtime>);

type Sleeping<F> = (Pin<Box<F>>, Held);

fn poll_once<F: Future>(future: &mut Pin<Box<F>>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
}

impl Peer for Sleep {
    type Handle = Sleeping<tokio::time::Sleep>;

    fn new() -> Self {
        Sleep(Arc::new(runtime()))
    }

    fn for_another_thread(&self) -> Self {
        Sleep(Arc::clone(&self.0))
    }

    fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        let _inside = self.0.enter();
        work()
    }

    fn schedule(&mut self, delay: Duration, _number: u64, held: &Held) -> Self::Handle {
        let mut sleep = Box::pin(tokio::time::sleep(delay));
        poll_once(&mut sleep);
        (sleep, Arc::clone(held))
    }

    fn cancel(&mut self, handle: Self::Handle) {
        drop(handle);
    }

    fn sleep(&mut self, duration: Duration) -> bool {
        let sleep = pin!(tokio::time::sleep(duration));
        sleep.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            let sleep = tokio::time::sleep(log.delay(task, *deadline));
            let log = Arc::clone(log);
            self.0.spawn(async move {
                sleep.await;
                log.note(task);
            });
        }
    }

    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>) {
        let start = tokio::time::Instant::now() + period;
        for task in 0..tasks {
            let log = Arc::clone(log);
            self.0.spawn(async move {
                let mut interval = tokio::time::interval_at(start, period);
                loop {
                    interval.tick().await;
                    log.note(task);
                }
            });
        }
        std::thread::sleep(over);
    }
}

// ----- pingora-timeout ---------------------------------------------------------------------

pub(crate) struct Pingora(Arc<Runtime>);

impl Peer for Pingora {
    type Handle = (Pin<Box<dyn Future<Output = ()> + Send + Sync>>, Held);
    const REPEATS: bool = false;

    fn new() -> Self {
        Pingora(Arc::new(runtime()))
    }

    fn for_another_thread(&self) -> Self {
        Pingora(Arc::clone(&self.0))
    }

    fn schedule(&mut self, delay: Duration, _number: u64, held: &Held) -> Self::Handle {
        let mut timeout = FastTimeout::create(delay).timeout();
        let mut context = Context::from_waker(Waker::noop());
        assert!(timeout.as_mut().poll(&mut context).is_pending());
        (timeout, Arc::clone(held))
    }

    fn cancel(&mut self, handle: Self::Handle) {
        drop(handle);
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            let timeout = FastTimeout::create(log.delay(task, *deadline)).timeout();
            let log = Arc::clone(log);
            self.0.spawn(async move {
                timeout.await;
                log.note(task);
            });
        }
    }

    fn repeat(&mut self, _: usize, _: Duration, _: Duration, _: &Arc<Log>) {
        unreachable!("it does not repeat");
    }
}

// ----- hierarchical_hash_wheel_timer -------------------------------------------------------

type Once = OneShotClosureState<u64>;
type Again = PeriodicClosureState<u64>;

pub(crate) struct HashWheel {
    _thread: Option<TimerWithThread<u64, Once, Again>>,
    timer: TimerRef<u64, Once, Again>,
    next: u64,
}

impl HashWheel {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Peer for HashWheel {
    type Handle = u64;

    fn new() -> Self {
        let thread = TimerWithThread::new().expect("a thread");
        let timer = thread.timer_ref();
        HashWheel { _thread: Some(thread), timer, next: 0 }
    }

    fn for_another_thread(&self) -> Self {
        static THREADS: AtomicU64 = AtomicU64::new(1);
        let first = THREADS.fetch_add(1, Ordering::Relaxed) << 40;
        HashWheel { _thread: None, timer: self.timer.clone(), next: first }
    }

    fn schedule(&mut self, delay: Duration, number: u64, held: &Held) -> u64 {
        let (id, held) = (self.id(), Arc::clone(held));
        self.timer.schedule_action_once(id, delay, move |_| held.store(number, Ordering::Relaxed));
        id
    }

    fn cancel(&mut self, id: u64) {
        self.timer.cancel(&id);
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            let (id, delay, log) = (self.id(), log.delay(task, *deadline), Arc::clone(log));
            self.timer.schedule_action_once(id, delay, move |_| log.note(task));
        }
    }

    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>) {
        for task in 0..tasks {
            let (id, log) = (self.id(), Arc::clone(log));
            self.timer.schedule_action_periodic(id, period, period, move |_| {
                log.note(task);
                TimerReturn::Reschedule(())
            });
        }
        std::thread::sleep(over);
    }
}

// ----- scheduled-thread-pool ---------------------------------------------------------------

pub(crate) struct Pool(Arc<ScheduledThreadPool>);

impl Peer for Pool {
    type Handle = JobHandle;

    fn new() -> Self {
        Pool(Arc::new(ScheduledThreadPool::new(1)))
    }

    fn for_another_thread(&self) -> Self {
        Pool(Arc::clone(&self.0))
    }

    fn schedule(&mut self, delay: Duration, number: u64, held: &Held) -> JobHandle {
        let held = Arc::clone(held);
        self.0.execute_after(delay, move || held.store(number, Ordering::Relaxed))
    }

    fn cancel(&mut self, handle: JobHandle) {
        handle.cancel();
    }

    fn start_all(&mut self, deadlines: &[Instant], log: &Arc<Log>) {
        for (task, deadline) in deadlines.iter().enumerate() {
            let (delay, log) = (log.delay(task, *deadline), Arc::clone(log));
            self.0.execute_after(delay, move || log.note(task));
        }
    }

    fn repeat(&mut self, tasks: usize, period: Duration, over: Duration, log: &Arc<Log>) {
        for task in 0..tasks {
            let log = Arc::clone(log);
            self.0.execute_at_fixed_rate(period, period, move || log.note(task));
        }
        std::thread::sleep(over);
    }
}
