//! The tail of a call: a million schedules and as many cancels, each of which is timed. One reading of the clock is
//! in each figure. Calls in which the system took the processor away are left out: that is no work of the timer.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::{Random, preemptions};
use crate::peers::{Held, OnTickThread, Peer, Queue, Sleep, Tickwheel};
use crate::workloads::{Figures, MILLION, SETTLE, warm_up};

pub(crate) const PEERS: &[&str] = &["tickwheel", "tokio-util DelayQueue", "tokio Sleep"];

pub(crate) const ALL: &[(&str, &str)] = &[
    ("W12-fresh", "tail of a call: 1M schedules, then 1M cancels, in a fresh process"),
    ("W12", "the same after a million have fired"),
    ("W12-2-fresh", "from 2 threads at once, in a fresh process"),
    ("W12-2", "from 2 threads, after a million have fired"),
];

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    let (threads, is_warm) = match workload {
        "W12-fresh" => (1, false),
        "W12" => (1, true),
        "W12-2-fresh" => (2, false),
        "W12-2" => (2, true),
        other => panic!("no such workload: {other}"),
    };
    match peer {
        "tickwheel" => run::<Tickwheel<OnTickThread>>(threads, is_warm),
        "tokio-util DelayQueue" => run::<Queue>(threads, is_warm),
        "tokio Sleep" => run::<Sleep>(threads, is_warm),
        other => panic!("no such timer: {other}"),
    }
}

/// The time of a call in which the thread lost the processor.
const NOT_OURS: u32 = u32::MAX;

/// Nanoseconds from which on a call may be one of those.
const SUSPICIOUS: u32 = 3_000;

/// Room that is there already, and the time of each call in it.
struct Times(Vec<u32>);

impl Times {
    fn new(calls: usize) -> Times {
        Times(vec![u32::MAX; calls]) // not zeros, so that each page is touched
    }

    fn note_all(&mut self, mut call: impl FnMut(usize)) {
        let mut preempted = preemptions();
        let mut before = Instant::now();
        for (number, time) in self.0.iter_mut().enumerate() {
            call(number);
            let mut now = Instant::now();
            let took = u32::try_from((now - before).as_nanos()).unwrap_or(NOT_OURS - 1);
            *time = took;
            if took > SUSPICIOUS {
                let count = preemptions();
                if count != preempted {
                    (*time, preempted) = (NOT_OURS, count);
                }
                now = Instant::now();
            }
            before = now;
        }
    }
}

/// One thread's share: schedules, cancels, and nothing but the clock.
fn share<P: Peer>(peer: &mut P, calls: usize, start: &Barrier, seed: u64) -> [Times; 3] {
    let held: Held = Arc::new(AtomicU64::new(0));
    let mut random = Random(seed);
    let delays: Vec<_> = (0..calls).map(|_| random.micros(5_000_000, 60_000_000)).collect();
    let mut handles: Vec<Option<P::Handle>> = Vec::with_capacity(calls);
    handles.resize_with(calls, || None);
    let mut times = [0; 3].map(|_| Times::new(calls));
    let place = peer.for_another_thread();
    place.enter(|| {
        start.wait();
        times[0]
            .note_all(|call| handles[call] = Some(peer.schedule(delays[call], call as u64, &held)));
        thread::sleep(SETTLE);
        start.wait();
        times[1].note_all(|call| {
            handles[call].take().into_iter().for_each(|handle| peer.cancel(handle));
        });
        start.wait();
        times[2].note_all(|_| ());
    });
    times
}

fn run<P: Peer>(threads: usize, is_warm: bool) -> Figures {
    let mut peer = P::new();
    if is_warm {
        warm_up(&mut peer);
        thread::sleep(SETTLE);
    }
    let (start, calls) = (Barrier::new(threads), MILLION / threads);
    let shares: Vec<_> = if threads == 1 {
        vec![share(&mut peer, calls, &start, 12)]
    } else {
        let peers: Vec<_> = (0..threads).map(|_| peer.for_another_thread()).collect();
        thread::scope(|scope| {
            let start = &start;
            let run = |(seed, mut peer): (usize, P)| {
                scope.spawn(move || share(&mut peer, calls, start, seed as u64))
            };
            let running: Vec<_> = peers.into_iter().enumerate().map(run).collect();
            running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    };
    let [schedules, cancels, clock] = [0, 1, 2].map(|which| {
        let mut all: Vec<u32> = shares
            .iter()
            .flat_map(|share| share[which].0.iter().copied())
            .filter(|time| *time != NOT_OURS)
            .collect();
        all.sort_unstable();
        all
    });
    let at = |all: &[u32], share: f64| {
        let place = ((all.len() - 1) as f64 * share) as usize;
        Duration::from_nanos(all[place].into()).as_secs_f64() * 1e6
    };
    vec![
        ("schedule, p50 us", at(&schedules, 0.5)),
        ("p99.9", at(&schedules, 0.999)),
        ("p99.99", at(&schedules, 0.9999)),
        ("longest", at(&schedules, 1.0)),
        ("cancel, p50 us", at(&cancels, 0.5)),
        ("cancel p99.9", at(&cancels, 0.999)),
        ("cancel p99.99", at(&cancels, 0.9999)),
        ("cancel longest", at(&cancels, 1.0)),
        ("only the clock, longest", at(&clock, 1.0)),
    ]
}
