//! What runs on seeds: models, which predict each step (`driver_model`, `wheel_model`, `deadline_model`, `delay_queue_model`,
//! `delayed_work_queue_model`), and long random lives of the core and of each layer, with a ledger: sizes that go up and down by
//! thousands, moves, cancels, series, executors that refuse and recover, panics in tasks, destructors and hooks, and ends of all
//! kinds in the middle of it. Each task that is accepted ends exactly once, and none starts early (`book.rs`).
//!
//! | file | what it is |
//! | --- | --- |
//! | `book.rs` | the record of each task, and its checks |
//! | `life.rs` | the threads and tasks that schedule, move and cancel, on any `dyn Schedule` |
//! | the models | each tells how it is run |
//! | the others | the lives of one layer each, and their ends |
//!
//! `cargo test` lives for a moment. `TICKWHEEL_SOAK=n` lives for n seconds in each test, and `scripts/soak lives` does that
//! with the checks of a debug build at the speed of a release. `TICKWHEEL_FIRST=n` begins with that seed, and
//! `TICKWHEEL_SEED=n` lives the life of that seed again. Real threads do not meet twice in the same way, so a seed repeats
//! the settings and the calls of a life, and it may need a few lives of the same seed (`TICKWHEEL_RUNS=n`) to fail again.
//!
//! A life that hangs ends the program after two minutes, with its seed.

#![allow(clippy::similar_names)] // `moods` of one that is `moody`, a `line` of a `life`

#[path = "../common/mod.rs"]
mod common;

mod book;
mod core;
mod deadline_model;
mod delay;
mod delay_queue_model;
mod delayed_work_queue_model;
mod driver_model;
mod life;
mod message_loop;
mod pool;
mod queue;
mod rx;
mod wheel_model;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, Random, env, silence};

/// Some lives count what their thread allocates.
#[global_allocator]
static ALLOCATOR: common::allocations::Counting = common::allocations::Counting;

/// A life takes some milliseconds, and waits in it give up after [`PATIENCE`].
const HANGS: Duration = Duration::from_secs(30).saturating_add(PATIENCE);

/// Returns a deadline: mostly within `span` nanoseconds, sometimes in the past, or far ahead.
fn some_deadline(now: Instant, span: u64, random: &mut Random) -> Instant {
    match random.below(16) {
        0 => now,
        1 => now.checked_sub(Duration::from_millis(1)).unwrap_or(now),
        2 => now + Duration::from_secs(3_600),
        _ => now + Duration::from_nanos(random.below(span)),
    }
}

/// Lives one life after the other, until the time is up.
fn lives(name: &str, live: impl Fn(u64)) {
    silence();
    let time = env("TICKWHEEL_SOAK").map_or(Duration::from_millis(200), Duration::from_secs);
    let first = env("TICKWHEEL_FIRST").unwrap_or(0);
    let (start, mut said) = (Instant::now(), Duration::ZERO);
    let watch = Watchdog::new(name);
    let end = |seed| match env("TICKWHEEL_SEED") {
        Some(_) => seed >= env("TICKWHEEL_RUNS").unwrap_or(1),
        None => start.elapsed() >= time,
    };
    let mut count = 0;
    while !end(count) {
        let seed = env("TICKWHEEL_SEED").unwrap_or(first + count);
        watch.see(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| live(seed))) {
            eprintln!("repeat with TICKWHEEL_SEED={seed} ({name})");
            resume_unwind(panic);
        }
        count += 1;
        if start.elapsed().saturating_sub(said) > Duration::from_secs(60) {
            said = start.elapsed();
            println!("{name}: {count} lives in {} s, seeds from {first}", said.as_secs());
        }
    }
    println!("{name}: {count} lives in {:.1} s, seeds from {first}", start.elapsed().as_secs_f32());
}

/// Ends the program when a life hangs.
struct Watchdog(mpsc::Sender<u64>);

impl Watchdog {
    fn new(name: &str) -> Watchdog {
        let ((sender, seeds), name) = (mpsc::channel(), name.to_owned());
        thread::spawn(move || {
            let mut last = None;
            loop {
                match seeds.recv_timeout(HANGS) {
                    Ok(seed) => last = Some(seed),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let seed = last.unwrap_or(0);
                        eprintln!("it hangs; repeat with TICKWHEEL_SEED={seed} ({name})");
                        std::process::exit(101);
                    }
                }
            }
        });
        Watchdog(sender)
    }

    fn see(&self, seed: u64) {
        self.0.send(seed).expect("it watches");
    }
}
