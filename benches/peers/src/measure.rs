//! What is measured: time of the wall and of the processor, memory, wake-ups.

use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Splitmix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A duration between two numbers of microseconds.
    pub(crate) fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.next() % (to - from))
    }
}

/// A stretch of work on the calling thread: nanoseconds of the wall and of the processor.
pub(crate) struct Stretch {
    wall: Instant,
    thread: u64,
    process: u64,
}

impl Stretch {
    pub(crate) fn begin() -> Stretch {
        let (thread, process) = (cpu(libc::CLOCK_THREAD_CPUTIME_ID), process_cpu());
        Stretch { wall: Instant::now(), thread, process }
    }

    pub(crate) fn wall(&self) -> u64 {
        u64::try_from(self.wall.elapsed().as_nanos()).expect("a short while")
    }

    pub(crate) fn thread(&self) -> u64 {
        cpu(libc::CLOCK_THREAD_CPUTIME_ID) - self.thread
    }

    /// Of all threads, background work included.
    pub(crate) fn process(&self) -> u64 {
        process_cpu() - self.process
    }
}

pub(crate) fn process_cpu() -> u64 {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes into `time`.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How often the system has taken the processor from the calling thread, which had not asked for it.
pub(crate) fn preemptions() -> i64 {
    // SAFETY: all of its fields are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes into `usage`.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// Bytes of memory that the process has.
pub(crate) fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("a Linux system");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("numbers");
    pages * 4096
}

/// The most bytes that the process ever had.
pub(crate) fn peak_resident() -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("a Linux system");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Nanoseconds of the processor that the threads of a name have used.
pub(crate) fn cpu_of(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("a Linux system").flatten();
    let read =
        |path: &std::path::Path, file| fs::read_to_string(path.join(file)).unwrap_or_default();
    tasks
        .map(|task| task.path())
        .filter(|path| read(path, "comm").trim() == name)
        .filter_map(|path| read(&path, "schedstat").split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// How often threads other than the first have gone to sleep.
pub(crate) fn sleeps() -> u64 {
    let me = std::process::id().to_string();
    let tasks = fs::read_dir("/proc/self/task").expect("a Linux system").flatten();
    let others = tasks.filter(|task| task.file_name().to_string_lossy() != me);
    others.map(|task| sleeps_of(&task.path().join("status"))).sum()
}

fn sleeps_of(status: &std::path::Path) -> u64 {
    let text = fs::read_to_string(status).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Nanoseconds for each of: `malloc` and `free` of 48 bytes, an uncontended swap, the clock; and of the processor, a sleep.
pub(crate) fn floor() -> [f64; 4] {
    const TIMES: u32 = 5_000_000;
    const SLEEPS: u32 = 250;
    let word = AtomicU64::new(0);
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..TIMES).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / f64::from(TIMES)
    };
    [
        timed(&mut || drop(black_box(Box::new(black_box([0_u8; 48]))))),
        timed(&mut || {
            black_box(&word).swap(1, Ordering::SeqCst);
        }),
        timed(&mut || {
            black_box(Instant::now());
        }),
        {
            let before = process_cpu();
            (0..SLEEPS).for_each(|_| thread::sleep(Duration::from_millis(4)));
            (process_cpu() - before) as f64 / f64::from(SLEEPS)
        },
    ]
}
