//! Sleeps that are awaited, beside those of tokio, async-io and futures-timer.
//!
//! Each is polled by hand on one thread, inside of what it wants a thread to be in: so what is compared is the
//! timer, and no runtime's way to schedule tasks.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Precision, Scheduler};

use crate::measure::{Random, Stretch};
use crate::workloads::Figures;

pub(crate) const PEERS: &[&str] =
    &["tickwheel", "tickwheel Exact", "tokio", "async-io", "futures-timer"];

pub(crate) const ALL: &[(&str, &str)] = &[
    ("S1", "create, poll once, drop: 1M of 30 s"),
    ("S2", "create, poll, fire: 1M due within 1 s"),
    ("S3", "100k at once"),
];

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    match peer {
        "tickwheel" => run::<Ours<false>>(workload),
        "tickwheel Exact" => run::<Ours<true>>(workload),
        "tokio" => run::<Tokio>(workload),
        "async-io" => run::<AsyncIo>(workload),
        "futures-timer" => run::<FuturesTimer>(workload),
        other => panic!("no such timer: {other}"),
    }
}

/// A kind of sleep.
trait Timer {
    type Sleep: Future;

    fn new() -> Self;
    fn sleep(&self, duration: Duration) -> Self::Sleep;
    fn sleep_until(&self, instant: Instant) -> Self::Sleep;
    /// Polls a future on this thread until it is ready, and drives the timer meanwhile if need be.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

struct Ours<const EXACT: bool>(Scheduler);

impl<const EXACT: bool> Timer for Ours<EXACT> {
    type Sleep = tickwheel::time::Sleep;

    fn new() -> Self {
        let precision = if EXACT { Precision::Exact } else { Precision::Tick };
        Ours(Scheduler::builder().precision(precision).build().expect("a tick thread"))
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn sleep_until(&self, instant: Instant) -> Self::Sleep {
        self.0.sleep_until(instant)
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        tickwheel::future::block_on(future)
    }
}

struct Tokio(tokio::runtime::Runtime);

impl Timer for Tokio {
    type Sleep = tokio::time::Sleep;

    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        Tokio(runtime.expect("a runtime"))
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        tokio::time::sleep(duration)
    }

    fn sleep_until(&self, instant: Instant) -> Self::Sleep {
        tokio::time::sleep_until(instant.into())
    }

    /// Without the limit on what one poll may do, which would have it poll a hundred sleeps at a time.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(tokio::task::unconstrained(future))
    }
}

struct AsyncIo;

impl Timer for AsyncIo {
    type Sleep = async_io::Timer;

    fn new() -> Self {
        AsyncIo
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        async_io::Timer::after(duration)
    }

    fn sleep_until(&self, instant: Instant) -> Self::Sleep {
        async_io::Timer::at(instant)
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        async_io::block_on(future)
    }
}

struct FuturesTimer;

impl Timer for FuturesTimer {
    type Sleep = futures_timer::Delay;

    fn new() -> Self {
        FuturesTimer
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        futures_timer::Delay::new(duration)
    }

    fn sleep_until(&self, instant: Instant) -> Self::Sleep {
        futures_timer::Delay::new(instant.saturating_duration_since(Instant::now()))
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        tickwheel::future::block_on(future)
    }
}

fn run<T: Timer>(workload: &str) -> Figures {
    let timer = T::new();
    match workload {
        "S1" => dropped(&timer),
        "S2" => fired(&timer),
        "S3" => at_once(&timer),
        _ => Figures::new(),
    }
}

/// A task that counts its wake-ups, and wakes somebody else at the last.
struct Counting {
    woken: AtomicUsize,
    last: usize,
    waiting: Waker,
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        if self.woken.fetch_add(1, Ordering::AcqRel) + 1 == self.last {
            self.waiting.wake_by_ref();
        }
    }
}

/// Sleeps that stay where they are.
struct Crowd<S>(Box<[S]>);

impl<S: Future> Crowd<S> {
    fn poll_all(&mut self, waker: &Waker) -> usize {
        let mut ready = 0;
        for sleep in &mut self.0 {
            // SAFETY: nothing moves what is in the box before it is dropped.
            let sleep = unsafe { Pin::new_unchecked(sleep) };
            ready += usize::from(sleep.poll(&mut Context::from_waker(waker)).is_ready());
        }
        ready
    }
}

fn per(nanos: u64, count: usize) -> f64 {
    nanos as f64 / count as f64
}

/// Has a crowd woken that is made as told; what it took to make and poll it, and all of it.
fn wake_all<T: Timer>(
    timer: &T,
    count: usize,
    mut make: impl FnMut(usize) -> T::Sleep,
) -> (Stretch, u64, Crowd<T::Sleep>) {
    let mut sleeps = Vec::with_capacity(count);
    let mut waiting = None;
    let (mut crowd, mut told) = (None, 0);
    let stretch = Stretch::begin();
    timer.block_on(poll_fn(|context| {
        let counting = waiting.get_or_insert_with(|| {
            Arc::new(Counting {
                woken: AtomicUsize::new(0),
                last: count,
                waiting: context.waker().clone(),
            })
        });
        if crowd.is_none() {
            sleeps.extend((0..count).map(&mut make));
            let waker = Waker::from(Arc::clone(counting));
            let mut sleeps = Crowd(std::mem::take(&mut sleeps).into_boxed_slice());
            assert_eq!(sleeps.poll_all(&waker), 0, "none is due yet");
            told = stretch.wall();
            crowd = Some(sleeps);
        }
        if counting.woken.load(Ordering::Acquire) < count { Poll::Pending } else { Poll::Ready(()) }
    }));
    (stretch, told, crowd.expect("it has been polled"))
}

fn dropped<T: Timer>(timer: &T) -> Figures {
    const COUNT: usize = 1_000_000;
    let mut random = Random(1);
    let delays: Vec<_> = (0..1024).map(|_| random.micros(25_000_000, 35_000_000)).collect();
    let round = || {
        timer.block_on(poll_fn(|context| {
            for n in 0..COUNT {
                let sleep = std::pin::pin!(timer.sleep(delays[n % 1024]));
                assert!(sleep.poll(context).is_pending());
            }
            Poll::Ready(())
        }));
    };
    round(); // so that memory is what it is in a program that runs
    thread::sleep(Duration::from_millis(300));
    let stretch = Stretch::begin();
    round();
    let (wall, thread) = (stretch.wall(), stretch.thread());
    std::thread::sleep(Duration::from_millis(300));
    vec![
        ("wall ns", per(wall, COUNT)),
        ("thread ns", per(thread, COUNT)),
        ("process ns", per(stretch.process(), COUNT)),
    ]
}

fn fired<T: Timer>(timer: &T) -> Figures {
    const COUNT: usize = 1_000_000;
    let mut random = Random(2);
    let delays: Vec<_> =
        (0..COUNT).map(|_| Duration::from_millis(1_500) + random.micros(0, 1_000_000)).collect();
    drop(wake_all(timer, COUNT, |number| timer.sleep(delays[number])));
    let (stretch, told, mut crowd) = wake_all(timer, COUNT, |number| timer.sleep(delays[number]));
    let ready = timer.block_on(poll_fn(|context| Poll::Ready(crowd.poll_all(context.waker()))));
    assert_eq!(ready, COUNT);
    let process = stretch.process();
    vec![("create and poll, wall ns", per(told, COUNT)), ("process ns", per(process, COUNT))]
}

fn at_once<T: Timer>(timer: &T) -> Figures {
    const COUNT: usize = 100_000;
    let at_once = |lead: Duration| {
        let due = Instant::now() + lead;
        let (stretch, _, mut crowd) = wake_all(timer, COUNT, |_| timer.sleep_until(due));
        let late = Instant::now().saturating_duration_since(due);
        let ready = timer.block_on(poll_fn(|context| Poll::Ready(crowd.poll_all(context.waker()))));
        assert_eq!(ready, COUNT);
        (late, stretch.process())
    };
    let _ = at_once(Duration::from_millis(300));
    let (late, process) = at_once(Duration::from_millis(300));
    vec![
        ("all woken after, ms", late.as_secs_f64() * 1e3),
        ("process ns each", per(process, COUNT)),
    ]
}
