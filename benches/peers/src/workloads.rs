//! The workloads. Each runs in a process of its own, and prints its figures as `name value` lines.

use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::{Random, Stretch, process_cpu, resident, sleeps};
use crate::peers::{Held, Log, Peer};

pub(crate) const MILLION: usize = 1_000_000;
pub(crate) const SETTLE: Duration = Duration::from_millis(300);

/// The figures of a run.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// All workloads, and what they are.
pub(crate) const ALL: &[(&str, &str)] = &[
    ("W1", "schedule 1M, 5-60 s, after as many have fired"),
    ("W1-fresh", "the same in a process that has done nothing before"),
    ("W2", "W1 from 2 producers at once"),
    ("W3", "cancel that 1M"),
    ("W4", "churn: 100k of 30 s, cancel the oldest, schedule a new one"),
    ("W5", "1M due within 100 ms"),
    ("W6", "20k due within 2 s"),
    ("W7", "idle"),
    ("W8", "pending over an hour"),
    ("W9", "memory"),
    ("W10", "10k at a fixed rate of 100 ms, 5 s"),
];

pub(crate) fn run<P: Peer>(workload: &str) -> Figures {
    let mut peer = P::new();
    match workload {
        "W1" => schedule_and_cancel(&mut peer, true, true),
        "W1-fresh" => schedule_and_cancel(&mut peer, true, false),
        "W3" => schedule_and_cancel(&mut peer, false, true),
        "W2" => two_producers(&peer),
        "W4" => churn(&mut peer),
        "W5" => burst(&mut peer),
        "W6" => lateness(&mut peer),
        "W7" => idle(&mut peer),
        "W8" => background(&mut peer),
        "W9" => memory(&mut peer),
        "W10" if P::REPEATS => repeat(&mut peer),
        _ => Figures::new(),
    }
}

pub(crate) fn per(nanos: u64, count: usize) -> f64 {
    nanos as f64 / count as f64
}

/// Runs work inside of what the timer wants a thread to be in.
pub(crate) fn entered<P: Peer>(peer: &mut P, work: impl FnOnce(&mut P)) {
    let place = peer.for_another_thread();
    place.enter(|| work(peer));
}

/// Has a million pending, and lets them fire, so that memory is what it is in a program that runs.
pub(crate) fn warm_up<P: Peer>(peer: &mut P) {
    let (mut random, soon) = (Random(1), Instant::now() + Duration::from_secs(2));
    let due: Vec<_> = (0..MILLION).map(|_| soon + random.micros(0, 100_000)).collect();
    let log = Log::new(MILLION, MILLION);
    entered(peer, |peer| {
        peer.start_all(&due, &log);
        peer.fire(&log, MILLION as u64);
    });
}

/// Room that is there already: to touch it for the first time is not the timer's work.
pub(crate) fn room_for_handles<P: Peer>() -> Vec<Option<P::Handle>> {
    let mut handles = Vec::with_capacity(MILLION);
    handles.resize_with(MILLION, || None);
    handles
}

fn schedule_and_cancel<P: Peer>(peer: &mut P, asks_for_schedule: bool, is_warm: bool) -> Figures {
    let held: Held = Arc::new(AtomicU64::new(0));
    if is_warm {
        warm_up(peer);
    }
    let mut random = Random(2);
    let delays: Vec<_> = (0..MILLION).map(|_| random.micros(5_000_000, 60_000_000)).collect();
    let mut handles = room_for_handles::<P>();
    thread::sleep(SETTLE);

    let stretch = Stretch::begin();
    entered(peer, |peer| {
        for (number, delay) in delays.iter().enumerate() {
            handles[number] = Some(peer.schedule(*delay, number as u64, &held));
        }
    });
    let (wall, thread) = (stretch.wall(), stretch.thread());
    thread::sleep(SETTLE);
    let process = stretch.process();
    let scheduled = vec![
        ("wall ns", per(wall, MILLION)),
        ("thread ns", per(thread, MILLION)),
        ("process ns", per(process, MILLION)),
    ];

    let before = Arc::strong_count(&held);
    let stretch = Stretch::begin();
    entered(peer, |peer| handles.drain(..).flatten().for_each(|handle| peer.cancel(handle)));
    let (wall, thread) = (stretch.wall(), stretch.thread());
    let kept = Arc::strong_count(&held) - 1;
    thread::sleep(SETTLE);
    let process = stretch.process();
    let kept_later = Arc::strong_count(&held) - 1;
    let share = |kept: usize| 100.0 * kept as f64 / (before - 1).max(1) as f64;
    let cancelled = vec![
        ("wall ns", per(wall, MILLION)),
        ("thread ns", per(thread, MILLION)),
        ("process ns", per(process, MILLION)),
        ("closures kept %", share(kept)),
        ("kept 0.3 s later %", share(kept_later)),
    ];
    if asks_for_schedule { scheduled } else { cancelled }
}

fn two_producers<P: Peer>(peer: &P) -> Figures {
    let held: Held = Arc::new(AtomicU64::new(0));
    let start = Arc::new(Barrier::new(2));
    let threads: Vec<_> = (0..2)
        .map(|seed| {
            let (mut peer, held, start) =
                (peer.for_another_thread(), Arc::clone(&held), Arc::clone(&start));
            thread::spawn(move || {
                let mut random = Random(seed);
                let delays: Vec<_> =
                    (0..MILLION).map(|_| random.micros(5_000_000, 60_000_000)).collect();
                let mut times = (0, 0);
                let place = peer.for_another_thread();
                place.enter(|| {
                    // The second pass is the one that counts: the memory is there.
                    for _ in 0..2 {
                        let mut handles = room_for_handles::<P>();
                        start.wait();
                        let stretch = Stretch::begin();
                        for (number, delay) in delays.iter().enumerate() {
                            handles[number] = Some(peer.schedule(*delay, number as u64, &held));
                        }
                        times = (stretch.wall(), stretch.thread());
                        start.wait();
                        thread::sleep(SETTLE);
                        handles.drain(..).flatten().for_each(|handle| peer.cancel(handle));
                        thread::sleep(SETTLE);
                    }
                });
                times
            })
        })
        .collect();
    let times: Vec<_> =
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    let wall = times.iter().map(|(wall, _)| *wall).max().unwrap_or(0);
    let cpu = times.iter().map(|(_, cpu)| *cpu).sum::<u64>();
    vec![("wall ns", per(wall, MILLION)), ("thread ns", per(cpu, 2 * MILLION))]
}

fn churn<P: Peer>(peer: &mut P) -> Figures {
    const OUTSTANDING: usize = 100_000;
    const PAIRS: usize = 2_000_000;
    let held: Held = Arc::new(AtomicU64::new(0));
    let delay = Duration::from_secs(30);
    let mut figures = Figures::new();
    entered(peer, |peer| {
        let mut ring: std::collections::VecDeque<_> =
            (0..OUTSTANDING).map(|number| peer.schedule(delay, number as u64, &held)).collect();
        let mut round = |pairs: usize| {
            for number in 0..pairs {
                let oldest = ring.pop_front().expect("a hundred thousand");
                peer.cancel(oldest);
                ring.push_back(peer.schedule(delay, number as u64, &held));
            }
        };
        round(PAIRS / 4);
        let memory = resident();
        let stretch = Stretch::begin();
        round(PAIRS);
        let (wall, thread) = (stretch.wall(), stretch.thread());
        thread::sleep(SETTLE);
        figures = vec![
            ("wall ns", per(wall, PAIRS)),
            ("thread ns", per(thread, PAIRS)),
            ("process ns", per(stretch.process(), PAIRS)),
            ("MB grown", resident().saturating_sub(memory) as f64 / 1e6),
        ];
    });
    figures
}

fn burst<P: Peer>(peer: &mut P) -> Figures {
    warm_up(peer);
    let mut random = Random(3);
    let log = Log::new(MILLION, MILLION);
    let window = Instant::now() + Duration::from_secs(3);
    let due: Vec<_> = (0..MILLION).map(|_| window + random.micros(0, 100_000)).collect();
    entered(peer, |peer| {
        peer.start_all(&due, &log);
        assert!(Instant::now() < window, "three seconds are enough to schedule a million");
        peer.fire(&log, MILLION as u64);
    });
    thread::sleep(SETTLE); // the last ones may still be writing
    let last = log.fired().map(|(_, at)| at).max().expect("all fired");
    let early = log.lateness().filter(|late| *late < 0).count();
    vec![("M tasks/s", 1.0 / (last - window).as_secs_f64()), ("early", early as f64)]
}

fn lateness<P: Peer>(peer: &mut P) -> Figures {
    const TASKS: usize = 20_000;
    let (mut random, now) = (Random(4), Instant::now());
    let due: Vec<_> = (0..TASKS).map(|_| now + random.micros(1_000, 2_000_000)).collect();
    let log = Log::new(TASKS, TASKS);
    entered(peer, |peer| {
        peer.start_all(&due, &log);
        peer.fire(&log, TASKS as u64);
    });
    thread::sleep(SETTLE);
    let mut late: Vec<_> = log.lateness().collect();
    late.sort_unstable();
    let at = |share: f64| late[((TASKS - 1) as f64 * share) as usize] as f64 / 1e6;
    let early = late.iter().filter(|late| **late < 0).count();
    vec![("p50 ms", at(0.5)), ("p99 ms", at(0.99)), ("max ms", at(1.0)), ("early", early as f64)]
}

fn idle<P: Peer>(peer: &mut P) -> Figures {
    const WATCHED: Duration = Duration::from_secs(3);
    let held: Held = Arc::new(AtomicU64::new(0));
    let watch = || {
        thread::sleep(SETTLE * 4);
        let before = sleeps();
        thread::sleep(WATCHED);
        (sleeps() - before) as f64 / WATCHED.as_secs_f64()
    };
    let empty = watch();
    let mut handles = Vec::new();
    entered(peer, |peer| {
        let hour = Duration::from_secs(3600);
        handles.extend((0..100_000).map(|number| peer.schedule(hour, number, &held)));
    });
    let loaded = watch();
    vec![("empty, wake-ups/s", empty), ("100k an hour ahead", loaded)]
}

fn background<P: Peer>(peer: &mut P) -> Figures {
    const WATCHED: Duration = Duration::from_secs(4);
    let held: Held = Arc::new(AtomicU64::new(0));
    let mut random = Random(5);
    let mut handles = Vec::new();
    let mut figures = Figures::new();
    let mut pending = 0;
    for (name, count) in [("1k, ms/s", 1_000), ("1M", MILLION), ("5M", 5 * MILLION)] {
        entered(peer, |peer| {
            while pending < count {
                handles.push(peer.schedule(random.micros(0, 3_600_000_000), 1, &held));
                pending += 1;
            }
        });
        thread::sleep(Duration::from_secs(1));
        let before = process_cpu();
        thread::sleep(WATCHED);
        figures.push((name, (process_cpu() - before) as f64 / 1e6 / WATCHED.as_secs_f64()));
    }
    figures
}

fn memory<P: Peer>(peer: &mut P) -> Figures {
    let held: Held = Arc::new(AtomicU64::new(0));
    let mut random = Random(6);
    let mut handles = room_for_handles::<P>(); // what lies behind them counts
    let before = resident();
    entered(peer, |peer| {
        for place in &mut handles {
            *place = Some(peer.schedule(random.micros(5_000_000, 3_600_000_000), 1, &held));
        }
    });
    thread::sleep(SETTLE);
    let pending = resident() - before;
    entered(peer, |peer| handles.drain(..).flatten().for_each(|handle| peer.cancel(handle)));
    thread::sleep(Duration::from_secs(3));
    let kept = resident().saturating_sub(before);
    vec![
        ("bytes each", pending as f64 / 1e6),
        ("kept 3 s after a cancel of all, MB", kept as f64 / 1e6),
    ]
}

fn repeat<P: Peer>(peer: &mut P) -> Figures {
    const TASKS: usize = 10_000;
    let (period, over) = (Duration::from_millis(100), Duration::from_millis(5_050));
    let expected = (over.as_millis() / period.as_millis()) as usize * TASKS;
    let log = Log::new(TASKS, 2 * expected);
    let start = Instant::now();
    entered(peer, |peer| peer.repeat(TASKS, period, over, &log));
    // How far from its phase each run was.
    let drifts = log.fired().map(|(_, fired)| {
        let since = (fired - start).as_secs_f64() * 1e3;
        since - (since / 100.0).round() * 100.0
    });
    let (runs, drift) = drifts.fold((0.0, 0.0), |(runs, sum), drift| (runs + 1.0, sum + drift));
    vec![("done %", 100.0 * runs / expected as f64), ("drift ms", drift / runs)]
}
