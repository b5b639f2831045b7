//! Memory that goes back (S9): after a peak, and when schedulers come and go. One test at a time, because
//! it reads what the whole process has; and in real time, because that is when the system takes memory.

#![expect(clippy::cast_possible_wrap, reason = "sizes of memory fit")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Cancellable, Inline, Scheduler};

/// The system's allocator, and how many bytes are out.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(30);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Bytes of memory that the process has, where the system tells.
fn resident() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}

fn threads() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}

fn descriptors() -> Option<usize> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it did not come about: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn s09_s10_after_a_peak_memory_goes_back_and_stale_handles_stay_harmless() {
    const TASKS: usize = 500_000;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let ran = Arc::new(AtomicUsize::new(0));
    let task = || {
        let ran = Arc::clone(&ran);
        move || {
            ran.fetch_add(1, Ordering::Relaxed);
        }
    };

    // Every ten-thousandth task stays while the memory around it goes.
    let mut stale = Vec::with_capacity(TASKS);
    let mut staying = 0;
    let (before, live) = (resident(), LIVE.load(Ordering::Relaxed));
    for number in 0..TASKS {
        if number % 10_000 == 0 {
            scheduler.schedule_once(Duration::from_secs(5), task()).expect("open");
            staying += 1;
        }
        stale.push(scheduler.schedule_once(HOUR, task()).expect("open"));
    }
    let peak = resident();
    assert!(stale.iter().all(Cancellable::cancel));
    if let (Some(before), Some(peak)) = (before, peak) {
        let handles = TASKS * size_of::<Cancellable>();
        let grown = peak - before - handles;
        assert!(grown > TASKS * 64, "the holders alone: {grown}");
        // Half of it may be with the allocator; the holders are three quarters.
        until("most of it goes back", || {
            resident().is_some_and(|now| now.saturating_sub(before + handles) < grown / 2)
        });
    }

    until("the heap is as it was, but for a few megabytes to work with", || {
        LIVE.load(Ordering::Relaxed) - live < 6_000_000
    });

    // The slots are used again while their old handles are used too.
    let fresh = thread::scope(|scope| {
        let fresh = scope.spawn(|| {
            (0..TASKS).filter(|_| scheduler.schedule_once(Duration::ZERO, task()).is_ok()).count()
        });
        for handle in &stale {
            assert!(!handle.cancel(), "a stale handle has cancelled another task");
            assert!(handle.is_done() && handle.is_cancelled());
        }
        fresh.join().expect("no panic")
    });
    until("all run", || ran.load(Ordering::Relaxed) == fresh + staying);
    assert_eq!(scheduler.stats().cancelled(), TASKS as u64);
    assert_eq!(scheduler.pending(), 0);
}

#[test]
fn s24_schedulers_that_come_and_go_leave_nothing() {
    const ROUNDS: usize = 2_000;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let come_and_go = |rounds: usize| {
        for _ in 0..rounds {
            let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
            scheduler.schedule_once(HOUR, || ()).expect("open");
            assert_eq!(scheduler.close().expect("in time").len(), 1);
        }
    };
    come_and_go(200);
    let (memory, handles, running) = (resident(), descriptors(), threads());
    come_and_go(ROUNDS);
    until("the threads end", || threads() <= running);
    assert_eq!(descriptors(), handles);
    if let (Some(before), Some(after)) = (memory, resident()) {
        let grown = after.saturating_sub(before);
        assert!(grown < ROUNDS * 1_000, "each scheduler leaves {} bytes", grown / ROUNDS);
    }
}
