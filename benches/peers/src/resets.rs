//! Timeouts that are pushed further: 100,000 of 30 s are pending, and five million times one of them, at random, is pushed
//! to 30 s from now. Where a timer cannot do that, its timeout is cancelled, and a new one is scheduled.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::{Random, Stretch, resident};
use crate::peers::{HashWheel, Held, OnTickThread, Peer, Pingora, Pool, Queue, Sleep, Tickwheel};
use crate::workloads::{Figures, SETTLE, per};

/// Ours as a program would do it without a reset.
const BY_CANCEL: &str = "tickwheel, by cancel";

pub(crate) const PEERS: &[&str] = &[
    "tickwheel",
    BY_CANCEL,
    "tokio Sleep",
    "tokio-util DelayQueue",
    "hierarchical_hash_wheel_timer",
    "scheduled-thread-pool",
    "pingora-timeout",
];

pub(crate) const ALL: &[(&str, &str)] = &[
    ("W11", "100k of 30 s pending, 5M times one of them is pushed to 30 s from now"),
    ("W11-2", "the same, from 2 threads at once"),
    ("W11-at", "W11, to an instant that is known: without a reading of the clock"),
];

const PENDING: usize = 100_000;
const PUSHES: usize = 5_000_000;
const DELAY: Duration = Duration::from_secs(30);

/// How a timeout is pushed further. False: this timer cannot.
type Push<P> = fn(&mut P, &mut <P as Peer>::Handle, Instant, bool) -> bool;

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    match peer {
        "tickwheel" => run::<Tickwheel<OnTickThread>>(workload, |_, handle, at, is_known| {
            if is_known { handle.reset_at(at) } else { handle.reset(DELAY) }
        }),
        BY_CANCEL => run::<Tickwheel<OnTickThread>>(workload, by_cancel),
        "tokio Sleep" => run::<Sleep>(workload, |_, (sleep, _), at, is_known| {
            let at = if is_known { at.into() } else { tokio::time::Instant::now() + DELAY };
            sleep.as_mut().reset(at);
            true
        }),
        "tokio-util DelayQueue" => run::<Queue>(workload, |queue, key, at, is_known| {
            queue.push(key, if is_known { Ok(at) } else { Err(DELAY) });
            true
        }),
        "hierarchical_hash_wheel_timer" => run::<HashWheel>(workload, by_cancel),
        "scheduled-thread-pool" => run::<Pool>(workload, by_cancel),
        "pingora-timeout" => run::<Pingora>(workload, by_cancel),
        other => panic!("no such timer: {other}"),
    }
}

fn by_cancel<P: Peer>(_: &mut P, _: &mut P::Handle, _: Instant, _: bool) -> bool {
    false
}

fn run<P: Peer>(workload: &str, push: Push<P>) -> Figures {
    match workload {
        "W11" => pushes::<P>(push, 1, false),
        "W11-2" => pushes::<P>(push, 2, false),
        "W11-at" => pushes::<P>(push, 1, true),
        other => panic!("no such workload: {other}"),
    }
}

fn pushes<P: Peer>(push: Push<P>, threads: usize, is_known: bool) -> Figures {
    let peer = P::new();
    let barrier = Arc::new(Barrier::new(threads));
    let held: Held = Arc::new(AtomicU64::new(0));
    let (mine, times) = (PENDING / threads, PUSHES / threads);
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let (mut peer, barrier) = (peer.for_another_thread(), Arc::clone(&barrier));
            let held = Arc::clone(&held);
            thread::spawn(move || {
                let mut random = Random(number as u64 + 11);
                let which: Vec<_> =
                    (0..times).map(|_| (random.next() % mine as u64) as u32).collect();
                let place = peer.for_another_thread();
                let mut figures = [0, 0, 0, 0];
                place.enter(|| {
                    let mut handles: Vec<_> =
                        (0..mine).map(|at| Some(peer.schedule(DELAY, at as u64, &held))).collect();
                    let mut round = |which: &[u32]| {
                        let at = Instant::now() + DELAY;
                        for at_random in which {
                            let place = &mut handles[*at_random as usize];
                            let handle = place.as_mut().expect("each is pending");
                            if !push(&mut peer, handle, at, is_known) {
                                place.take().into_iter().for_each(|old| peer.cancel(old));
                                *place = Some(peer.schedule(DELAY, 1, &held));
                            }
                        }
                    };
                    round(&which[..times / 4]);
                    thread::sleep(SETTLE);
                    barrier.wait();
                    let memory = resident();
                    let stretch = Stretch::begin();
                    round(&which);
                    let (wall, thread) = (stretch.wall(), stretch.thread());
                    thread::sleep(SETTLE);
                    let grown = resident().saturating_sub(memory);
                    figures = [wall, thread, stretch.process(), grown];
                    barrier.wait();
                    std::mem::forget(handles); // to drop them is not what is measured
                });
                figures
            })
        })
        .collect();
    let all: Vec<_> = workers.into_iter().map(|one| one.join().expect("no panic")).collect();
    let most = |at: usize| all.iter().map(|figures| figures[at]).max().unwrap_or(0);
    let thread = all.iter().map(|figures| figures[1]).sum::<u64>();
    vec![
        ("wall ns", per(most(0), times)),
        ("thread ns", per(thread, PUSHES)),
        ("process ns", per(most(2), PUSHES)),
        ("MB grown", most(3) as f64 / 1e6),
    ]
}
