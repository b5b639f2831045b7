//! What a task costs: schedule, cancel, churn, fire, hand over, tick.
//!
//! `cargo bench -p peers --bench core`. Absolute times do not hold from one machine to the next, so each group
//! begins with the floor of this run: `F`, a `malloc` and `free` of 48 bytes and an uncontended
//! swap, and `S`, the swap. Read the others as multiples of them. Times are of the wall; those of the
//! processor, by thread, are in `costs.rs`.
//!
//! Schedules are measured in the steady state: the holders come back from tasks that have been
//! cancelled, or have fired in another order than that in which they were scheduled.

#![expect(missing_docs, reason = "criterion makes a public function without docs")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use tickwheel::wheel::Wheel;
use tickwheel::{Cancellable, DueTask, Executor, Inline, Precision, Scheduler, ThreadPool, time};

use common::Random;

/// The number of tasks that a round schedules, and that are pending while it is measured.
const TASKS: usize = 200_000;

/// Measures the floor in the group that is compared with it.
fn floor(group: &mut BenchmarkGroup<'_, WallTime>) {
    let word = AtomicU64::new(0);
    group.bench_function("F: malloc, free and a swap", |bencher| {
        bencher.iter(|| {
            let block = black_box(Box::new([0_u8; 48]));
            word.swap(1, Ordering::SeqCst);
            drop(block);
        });
    });
    group.bench_function("S: a swap", |bencher| bencher.iter(|| word.swap(1, Ordering::SeqCst)));
    group.bench_function("the clock", |bencher| bencher.iter(Instant::now));
}

fn inline(precision: Precision) -> Scheduler {
    let builder = Scheduler::builder().executor(Inline).precision(precision);
    builder.build().expect("a tick thread")
}

/// Times `count` operations in rounds of at most [`TASKS`], each prepared by `prepare`.
fn in_rounds<T>(
    count: u64,
    mut prepare: impl FnMut(usize) -> T,
    mut measured: impl FnMut(usize, T) -> Duration,
) -> Duration {
    let mut left = usize::try_from(count).expect("a count that fits");
    let mut total = Duration::ZERO;
    while left > 0 {
        let round = left.min(TASKS);
        let prepared = prepare(round);
        total += measured(round, prepared);
        left -= round;
    }
    total
}

/// Schedules `count` tasks, lets them fire in random order, and waits until all have run.
fn fire_all(scheduler: &Scheduler, random: &mut Random, count: usize) {
    let soon = Instant::now() + Duration::from_millis(count as u64 / 2_000);
    for _ in 0..count {
        let due = soon + Duration::from_micros(random.below(20_000));
        scheduler.schedule_at(due, || ()).expect("open");
    }
    while scheduler.pending() > 0 {
        thread::yield_now();
    }
}

fn schedule_all(
    scheduler: &Scheduler,
    random: &mut Random,
    count: usize,
    handles: &mut Vec<Cancellable>,
) -> Duration {
    let delays: Vec<_> = (0..count).map(|_| random.timeout()).collect();
    let counter = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = delays.into_iter().map(|delay| (delay, Arc::clone(&counter))).collect();
    handles.reserve(count);
    let start = Instant::now();
    for (delay, counter) in tasks {
        let task = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        handles.push(scheduler.schedule_once(delay, task).expect("open"));
    }
    start.elapsed()
}

fn cancel_all(handles: &mut Vec<Cancellable>) -> Duration {
    let start = Instant::now();
    for handle in handles.iter() {
        handle.cancel();
    }
    let elapsed = start.elapsed();
    handles.clear();
    elapsed
}

fn schedule(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule");
    floor(&mut group);
    for precision in [Precision::Tick, Precision::Exact] {
        let scheduler = inline(precision);
        let mut random = Random(1);
        let mut handles = Vec::new();
        group.bench_function(format!("after fires, {precision:?}"), |bencher| {
            bencher.iter_custom(|count| {
                in_rounds(
                    count,
                    |round| fire_all(&scheduler, &mut Random(7), round),
                    |round, ()| {
                        let time = schedule_all(&scheduler, &mut random, round, &mut handles);
                        cancel_all(&mut handles);
                        time
                    },
                )
            });
        });
    }
    let scheduler = inline(Precision::Tick);
    let (mut random, mut handles) = (Random(1), Vec::new());
    group.bench_function("after cancels", |bencher| {
        bencher.iter_custom(|count| {
            in_rounds(count, drop, |round, ()| {
                let time = schedule_all(&scheduler, &mut random, round, &mut handles);
                cancel_all(&mut handles);
                time
            })
        });
    });
    group.bench_function("after cancels, two producers at once", |bencher| {
        bencher.iter_custom(|count| two_producers(&scheduler, count));
    });
    group.finish();
}

/// Returns the time of the slower of two threads that schedule `count` tasks each.
fn two_producers(scheduler: &Scheduler, count: u64) -> Duration {
    let producer = |seed| {
        let (mut random, mut handles) = (Random(seed), Vec::new());
        in_rounds(count, drop, |round, ()| {
            let time = schedule_all(scheduler, &mut random, round, &mut handles);
            cancel_all(&mut handles);
            time
        })
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| producer(2));
        producer(1).max(other.join().expect("no panic"))
    })
}

fn cancel(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cancel");
    floor(&mut group);
    let scheduler = inline(Precision::Tick);
    let mut random = Random(1);
    group.bench_function("a pending task, closure dropped", |bencher| {
        bencher.iter_custom(|count| {
            in_rounds(
                count,
                |round| {
                    let mut handles = Vec::new();
                    schedule_all(&scheduler, &mut random, round, &mut handles);
                    handles
                },
                |_, mut handles| cancel_all(&mut handles),
            )
        });
    });
    group.bench_function("churn: cancel the oldest of 100,000, schedule a new one", |bencher| {
        let mut random = Random(1);
        let mut ring: Vec<_> = (0..100_000)
            .map(|_| scheduler.schedule_once(random.timeout(), || ()).expect("open"))
            .collect();
        let mut at = 0;
        bencher.iter(|| {
            ring[at].cancel();
            ring[at] = scheduler.schedule_once(Duration::from_secs(30), || ()).expect("open");
            at = (at + 1) % ring.len();
        });
        for handle in &ring {
            handle.cancel();
        }
    });
    group.finish();
}

fn fire(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fire");
    group.sample_size(10);
    floor(&mut group);
    group.bench_function("inline, random order, on a driver", |bencher| {
        let (scheduler, driver) =
            Scheduler::builder().executor(Inline).build_driven().expect("good settings");
        let mut random = Random(1);
        bencher.iter_custom(|count| {
            in_rounds(
                count,
                |round| {
                    for _ in 0..round {
                        let delay = Duration::from_micros(random.below(100_000));
                        scheduler.schedule_once(delay, || ()).expect("open");
                    }
                },
                |round, ()| {
                    let start = Instant::now();
                    let runs = driver.advance(Duration::from_millis(100));
                    let time = start.elapsed();
                    assert_eq!(runs, round);
                    time
                },
            )
        });
    });
    hand_over(&mut group, "in batches", ThreadPool::new(2));
    let one_by_one = ThreadPool::new(2);
    hand_over(&mut group, "one by one", move |task: DueTask| drop(one_by_one.execute(task)));
    repeat(&mut group);
    group.finish();
}

fn hand_over(group: &mut BenchmarkGroup<'_, WallTime>, how: &str, executor: impl Executor) {
    let (scheduler, driver) =
        Scheduler::builder().executor(executor).build_driven().expect("good settings");
    group.bench_function(
        format!("hand over to a pool, {how}: until the last has run"),
        |bencher| {
            bencher.iter_custom(|count| {
                in_rounds(
                    count,
                    |round| {
                        let second = Duration::from_secs(1);
                        (0..round).for_each(|_| {
                            scheduler.schedule_once(second, || ()).expect("open");
                        });
                    },
                    |_, ()| {
                        let start = Instant::now();
                        driver.advance(Duration::from_secs(1));
                        while scheduler.pending() > 0 {
                            thread::yield_now();
                        }
                        start.elapsed()
                    },
                )
            });
        },
    );
}

fn repeat(group: &mut BenchmarkGroup<'_, WallTime>) {
    group.bench_function("a repetition, on a driver", |bencher| {
        let (scheduler, driver) =
            Scheduler::builder().executor(Inline).build_driven().expect("good settings");
        let second = Duration::from_secs(1);
        for _ in 0..1_000 {
            scheduler.schedule_repeatedly(second, second, || ()).expect("open");
        }
        bencher.iter_custom(|count| {
            let start = Instant::now();
            let mut runs = 0;
            while runs < count {
                runs += driver.advance(second) as u64;
            }
            // A round has at least a thousand tasks, because the clock cannot be advanced by less.
            let nanos = start.elapsed().as_nanos() * u128::from(count) / u128::from(runs);
            Duration::from_nanos(u64::try_from(nanos).expect("less than centuries"))
        });
    });
}

fn tick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tick, pending over an hour");
    group.sample_size(10);
    floor(&mut group);
    for pending in [1_000, 100_000, 1_000_000, 10_000_000_u64] {
        const HOUR: u64 = 3_600_000;
        let mut random = Random(1);
        let mut wheel = Wheel::new(4096);
        for id in 0..pending {
            wheel.insert(1 + random.below(HOUR), id);
        }
        group.bench_function(format!("{pending}"), |bencher| {
            let mut now = wheel.now();
            bencher.iter(|| {
                now += 1;
                // Due entries go back in, due an hour later, so that the load stays.
                let due: Vec<_> = wheel.advance(now).collect();
                for (_, id) in due {
                    wheel.insert(now + HOUR, id);
                }
            });
        });
    }
    group.finish();
}

/// What it costs to look up the scheduler in force: a sleep that is made for a known deadline does nothing else.
fn in_force(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("in force");
    floor(&mut group);
    let deadline = Instant::now() + Duration::from_secs(3600);
    let make = |bencher: &mut criterion::Bencher<'_>| {
        bencher.iter(|| drop(black_box(time::sleep_until(black_box(deadline)))));
    };
    group.bench_function("the global scheduler", make);
    let scheduler = Scheduler::new();
    group.bench_function("named, without a look", |bencher| {
        bencher.iter(|| drop(black_box(scheduler.sleep_until(black_box(deadline)))));
    });
    let guard = scheduler.enter();
    group.bench_function("one that is entered", make);
    drop(guard);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20);
    targets = schedule, cancel, fire, tick, in_force
}
criterion_main!(benches);
