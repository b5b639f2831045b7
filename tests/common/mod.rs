//! Helpers that several tests and benches use.

#![allow(dead_code, reason = "each of them uses a part of it")]

pub(crate) mod allocations;
pub(crate) mod ledger;
pub(crate) mod log;
pub(crate) mod schedules;
pub(crate) mod told;

use std::panic;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{
    Builder, Clock, Driver, DueTask, Executor, ManualClock, Rejected, Scheduler, Sleeper, TaskPanic,
};

/// A small generator of random numbers, the same for the same seed: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// Returns a number that is often small and sometimes huge: each order of magnitude below 2^`bits` is equally likely.
    pub(crate) fn of_any_size(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits);
        self.next() >> (64 - bits).min(63)
    }

    /// A service's timeout: 5 to 60 seconds.
    pub(crate) fn timeout(&mut self) -> Duration {
        Duration::from_micros(5_000_000 + self.below(55_000_000))
    }
}

/// Returns a number from the environment, such as a seed or a count of runs.
pub(crate) fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the path of a file in `/proc`, on a system that has them. Under Wine they can be read, but what is in
/// `self` there is about another process.
pub(crate) fn proc(file: &str) -> Option<PathBuf> {
    cfg!(any(target_os = "linux", target_os = "android")).then(|| Path::new("/proc").join(file))
}

/// Returns a scheduler on virtual time, and its driver.
pub(crate) fn driven() -> (Scheduler, Driver) {
    driven_by(Scheduler::builder())
}

pub(crate) fn driven_by(builder: Builder) -> (Scheduler, Driver) {
    builder.build_driven().expect("the settings are good")
}

// ----- storms ------------------------------------------------------------------------------

/// Returns the count for a storm: with `TICKWHEEL_STORM=n` n times the one of every day, as `.ci/run` does, with
/// `TICKWHEEL_FULL=1` the full one, as `scripts/storms` does. Plain `cargo test` takes a quarter of the one of every day.
pub(crate) fn count(every_day: usize, in_full: usize) -> usize {
    if is_brief() { every_day.div_ceil(4) } else { at_least(every_day, in_full) }
}

/// Returns the count for a storm that shows nothing if it is smaller: also in plain `cargo test` the one of every day.
pub(crate) fn at_least(every_day: usize, in_full: usize) -> usize {
    let factor = env("TICKWHEEL_STORM").unwrap_or(1) as usize;
    factor * if in_full_form() { in_full } else { every_day }
}

/// Runs a model on seeds, and says which one fails. `TICKWHEEL_SEED=n` is that one alone, and `TICKWHEEL_RUNS=n` makes n of
/// them, from `TICKWHEEL_FIRST` on, or fewer of a model whose runs weigh more. Otherwise there are so many every day, and a
/// quarter of them in plain `cargo test`.
pub(crate) fn for_each_seed(every_day: usize, weight: u64, run: impl Fn(u64)) {
    let first = env("TICKWHEEL_FIRST").unwrap_or(0);
    let runs = env("TICKWHEEL_RUNS")
        .map_or(count(every_day, every_day) as u64, |runs| runs.div_ceil(weight));
    for seed in env("TICKWHEEL_SEED").map_or(first..first + runs, |seed| seed..seed + 1) {
        if let Err(panic) = panic::catch_unwind(panic::AssertUnwindSafe(|| run(seed))) {
            eprintln!("repeat with TICKWHEEL_SEED={seed}");
            panic::resume_unwind(panic);
        }
    }
}

/// Returns true in plain `cargo test`, for which somebody waits.
pub(crate) fn is_brief() -> bool {
    env("TICKWHEEL_STORM").is_none() && !in_full_form()
}

/// Returns how long a storm lasts that is about time and not about a count, by the same rule as [`count`].
pub(crate) fn length(brief: Duration, every_day: Duration, in_full: Duration) -> Duration {
    if is_brief() {
        brief
    } else if in_full_form() {
        in_full
    } else {
        every_day
    }
}

/// Returns true if `TICKWHEEL_FULL=1` asks for the full form of a storm.
pub(crate) fn in_full_form() -> bool {
    env("TICKWHEEL_FULL").is_some_and(|full| full > 0)
}

/// A number as people read it: 10,000,000.
pub(crate) fn digits(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// The time that a test waits for other threads before it gives up. It is long, because a busy machine may give a test a
/// fiftieth of its processors. Planted bugs make tests wait, so `scripts/mutations.py` builds with `TICKWHEEL_IMPATIENT=1`.
pub(crate) const PATIENCE: Duration =
    Duration::from_secs(if option_env!("TICKWHEEL_IMPATIENT").is_some() { 20 } else { 120 });

/// Returns a command that runs one test of this program in a process of its own.
pub(crate) fn process_of<F: Fn()>(_test: F) -> Command {
    let path = std::any::type_name::<F>();
    let (_program, test) = path.split_once("::").expect("a path");
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command
}

/// Runs the calling test in a process of its own. Returns true in that process, and false when it has ended.
pub(crate) fn is_own_process(test: impl Fn()) -> bool {
    const IS_OWN: &str = "TICKWHEEL_OWN_PROCESS";
    if std::env::var_os(IS_OWN).is_some() {
        return true;
    }
    let child = process_of(test).env(IS_OWN, "1").output().expect("it starts");
    print!("{}", String::from_utf8_lossy(&child.stdout));
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    false
}

/// Waits until other threads have made something true.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        let waited = start.elapsed();
        assert!(waited < PATIENCE, "it did not come about: {what}");
        // Most conditions come true at once, and storms with many rounds wait in each of them. The others are asked less and less
        // often, because some of them ask a database, and other tests run beside them.
        if waited < Duration::from_millis(2) {
            thread::yield_now();
        } else {
            let (least, most) = (Duration::from_millis(1), Duration::from_millis(20));
            thread::sleep((waited / 32).clamp(least, most));
        }
    }
}

/// Waits for a moment without giving the processor away.
pub(crate) fn spin_until(instant: Instant) {
    while Instant::now() < instant {
        std::hint::spin_loop();
    }
}

/// A panic that belongs to a test; [`silence`] keeps it out of the output.
pub(crate) fn panic_on_purpose() -> ! {
    panic!("on purpose")
}

/// An executor that takes nothing.
pub(crate) struct Wall;

impl Executor for Wall {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        Err(Rejected::new(task))
    }
}

/// An executor that keeps what it gets until it is told to run it.
#[derive(Clone, Default)]
pub(crate) struct Later(pub(crate) Arc<Mutex<Vec<DueTask>>>);

impl Later {
    pub(crate) fn run(&self) {
        let tasks = std::mem::take(&mut *self.0.lock().expect("whole"));
        tasks.into_iter().for_each(DueTask::run);
    }
}

impl Executor for Later {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.0.lock().expect("whole").push(task);
        Ok(())
    }
}

/// A clock that is moved by hand. It panics at the n-th reading after it was told to, or never if that is 0.
pub(crate) struct Moody(pub(crate) ManualClock, pub(crate) Arc<AtomicUsize>);

impl Clock for Moody {
    fn now(&self) -> Instant {
        if self.1.load(Ordering::Relaxed) > 0 && self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
            panic_on_purpose();
        }
        self.0.now()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        self.0.sleep(sleeper, until);
    }

    fn advance_to(&self, instant: Instant) -> bool {
        self.0.advance_to(instant)
    }
}

/// Panics when it is dropped.
pub(crate) struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic_on_purpose();
    }
}

/// Does something when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Keeps the panics that say "on purpose" out of the output, and no others.
pub(crate) fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let panic = TaskPanic::new(info.payload());
            if !panic.message().is_some_and(|text| text.contains("on purpose")) {
                loud(info);
            }
        }));
    });
}
