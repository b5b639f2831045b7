//! Delay queues: values under keys, which come out when they are due. A key and a value are eight bytes each.
//!
//! tokio-util's `DelayQueue` gives out keys of its own, so its users keep a `HashMap` beside it, and a lock around both
//! where two threads use it. A cache of moka tells nobody when an entry expires, so it does not take part in D5.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tokio::runtime::Runtime;
use tokio_util::time::delay_queue::Key;

use crate::measure::{Random, Stretch, resident};
use crate::workloads::{Figures, MILLION, SETTLE, per};

pub(crate) const PEERS: &[&str] = &[OURS, "tokio-util DelayQueue", "moka", "BTreeMap"];
const OURS: &str = "tickwheel";

pub(crate) const ALL: &[(&str, &str)] = &[
    ("D1", "insert 1M, 5-60 s"),
    ("D1-2", "the same from 2 threads at once"),
    ("D2", "100k of 30 s pending, 5M times one of them is pushed to 30 s from now"),
    ("D2-2", "the same from 2 threads at once"),
    ("D3", "remove that 1M of D1, in any order"),
    ("D3-2", "the same from 2 threads at once"),
    ("D4", "churn: 100k of 30 s, remove the oldest, insert a new one"),
    ("D4-2", "the same from 2 threads at once"),
    ("D5", "1M due within 100 ms, taken by one thread"),
    ("D6", "memory of 1M"),
];

const PENDING: usize = 100_000;
const TIMES: usize = 5_000_000;
const DELAY: Duration = Duration::from_secs(30);
/// Bytes of a user's key and value.
const OWN: f64 = 16.0;

/// A queue of values by keys.
trait Peer: Send + Sized + 'static {
    /// `is_shared`: several threads will use it.
    fn new(is_shared: bool) -> Self;
    fn for_another_thread(&self) -> Self;
    fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
    fn insert(&mut self, key: u64, delay: Duration);
    fn reset(&mut self, key: u64, delay: Duration);
    fn remove(&mut self, key: u64);
    /// Takes so many items as they become due, on this thread. False: it cannot do that.
    fn take(&mut self, items: usize, note: impl FnMut(u64)) -> bool;
}

pub(crate) fn run_one(peer: &str, workload: &str) -> Figures {
    match peer {
        OURS => run::<tickwheel::delay::DelayQueue<u64, u64>>(workload),
        "tokio-util DelayQueue" => run::<Queue>(workload),
        "moka" => run::<Cache>(workload),
        "BTreeMap" => run::<Tree>(workload),
        other => panic!("no such queue: {other}"),
    }
}

fn run<P: Peer>(workload: &str) -> Figures {
    match workload {
        "D1" | "D3" => insert_and_remove::<P>(workload, 1),
        "D1-2" | "D3-2" => insert_and_remove::<P>(&workload[..2], 2),
        "D2" => resets::<P>(1),
        "D2-2" => resets::<P>(2),
        "D4" => churn::<P>(1),
        "D4-2" => churn::<P>(2),
        "D5" => expire::<P>(),
        "D6" => memory::<P>(),
        other => panic!("no such workload: {other}"),
    }
}

/// Runs work on so many threads, and measures the part that each passes to its last argument.
fn on_threads<P: Peer>(
    threads: usize,
    times: usize,
    work: impl Fn(&mut P, usize, &mut dyn FnMut(&mut dyn FnMut(&mut P), &mut P)) + Sync,
) -> Figures {
    let peer = P::new(threads > 1);
    let barrier = Barrier::new(threads);
    let measure = |number: usize, mut peer: P| {
        let mut figures = [0, 0, 0];
        let place = peer.for_another_thread();
        place.enter(|| {
            work(&mut peer, number, &mut |part, peer| {
                thread::sleep(SETTLE);
                barrier.wait();
                let stretch = Stretch::begin();
                part(peer);
                figures = [stretch.wall(), stretch.thread(), stretch.process()];
                barrier.wait();
            });
        });
        std::mem::forget(peer); // to drop what is left is not what is measured
        figures
    };
    let measure = &measure;
    let all: Vec<_> = if threads == 1 {
        vec![measure(0, peer)]
    } else {
        thread::scope(|scope| {
            let start = |number| {
                let peer = peer.for_another_thread();
                scope.spawn(move || measure(number, peer))
            };
            let threads: Vec<_> = (0..threads).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    };
    let most = |at: usize| all.iter().map(|figures| figures[at]).max().unwrap_or(0);
    let thread = all.iter().map(|figures| figures[1]).sum::<u64>();
    vec![
        ("wall ns", per(most(0), times)),
        ("thread ns", per(thread, times)),
        ("process ns", per(most(2), times)),
    ]
}

/// Keys of one thread, in any order.
fn keys(number: usize, count: usize) -> Vec<u64> {
    let mut random = Random(number as u64 * 7919 + 5);
    (0..count).map(|_| random.next()).collect()
}

fn shuffle(keys: &mut [u64]) {
    let mut random = Random(3);
    for at in (1..keys.len()).rev() {
        keys.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
}

fn insert_and_remove<P: Peer>(workload: &str, threads: usize) -> Figures {
    on_threads::<P>(threads, MILLION, |peer, number, measure| {
        let mut keys = keys(number, MILLION / threads);
        let mut random = Random(number as u64 + 1);
        let delays: Vec<_> = keys.iter().map(|_| random.micros(5_000_000, 60_000_000)).collect();
        let mut insert = |peer: &mut P| {
            keys.iter().zip(&delays).for_each(|(key, delay)| peer.insert(*key, *delay));
        };
        if workload == "D1" {
            return measure(&mut insert, peer);
        }
        insert(peer);
        shuffle(&mut keys);
        measure(&mut |peer| keys.iter().for_each(|key| peer.remove(*key)), peer);
    })
}

fn resets<P: Peer>(threads: usize) -> Figures {
    on_threads::<P>(threads, TIMES, |peer, number, measure| {
        let keys = keys(number, PENDING / threads);
        let mut random = Random(number as u64 + 11);
        let which: Vec<_> = (0..TIMES / threads)
            .map(|_| keys[(random.next() % keys.len() as u64) as usize])
            .collect();
        keys.iter().for_each(|key| peer.insert(*key, DELAY));
        let mut round = |peer: &mut P| which.iter().for_each(|key| peer.reset(*key, DELAY));
        round(peer);
        measure(&mut round, peer);
    })
}

fn churn<P: Peer>(threads: usize) -> Figures {
    on_threads::<P>(threads, TIMES, |peer, number, measure| {
        let (mine, times) = (PENDING / threads, TIMES / threads);
        let keys = keys(number, mine + 2 * times);
        keys[..mine].iter().for_each(|key| peer.insert(*key, DELAY));
        let round = |peer: &mut P, from: usize| {
            for at in from..from + times {
                peer.remove(keys[at]);
                peer.insert(keys[at + mine], DELAY);
            }
        };
        round(peer, 0);
        measure(&mut |peer| round(peer, times), peer);
    })
}

fn expire<P: Peer>() -> Figures {
    let mut peer = P::new(false);
    let place = peer.for_another_thread();
    place.enter(|| {
        let (start, mut random) = (Instant::now() + Duration::from_secs(2), Random(1));
        let due: Vec<_> = (0..MILLION).map(|_| start + random.micros(0, 100_000)).collect();
        let (mut early, mut taken) = (0, 0);
        for (key, due) in due.iter().enumerate() {
            peer.insert(key as u64, *due - Instant::now());
        }
        thread::sleep(
            start
                .checked_sub(Duration::from_millis(5))
                .unwrap()
                .saturating_duration_since(Instant::now()),
        );
        let stretch = Stretch::begin();
        let note = |key: u64| {
            taken += 1;
            if taken % 1024 == 0 {
                early += u64::from(Instant::now() < due[key as usize]);
            }
        };
        if !peer.take(MILLION, note) {
            return Figures::new();
        }
        let (end, process) = (Instant::now(), stretch.process());
        let late = end.saturating_duration_since(start + Duration::from_millis(100));
        vec![
            ("process ns", per(process, MILLION)),
            ("the last one late, ms", late.as_secs_f64() * 1e3),
            ("early", early as f64),
        ]
    })
}

fn memory<P: Peer>() -> Figures {
    let mut peer = P::new(false);
    let place = peer.for_another_thread();
    place.enter(|| {
        let mut random = Random(7);
        let before = resident();
        for _ in 0..MILLION {
            let key = random.next();
            peer.insert(key, random.micros(5_000_000, 60_000_000));
        }
        thread::sleep(SETTLE);
        let bytes = (resident() - before) as f64 / MILLION as f64;
        vec![("bytes each, beside key and value", bytes - OWN)]
    })
}

// ----- tickwheel ---------------------------------------------------------------------------

impl Peer for tickwheel::delay::DelayQueue<u64, u64> {
    fn new(_: bool) -> Self {
        tickwheel::delay::DelayQueue::new(&Scheduler::new())
    }

    fn for_another_thread(&self) -> Self {
        self.clone()
    }

    fn insert(&mut self, key: u64, delay: Duration) {
        Self::insert(self, key, key, delay).expect("open");
    }

    fn reset(&mut self, key: u64, delay: Duration) {
        assert!(Self::reset(self, &key, delay));
    }

    fn remove(&mut self, key: u64) {
        assert!(Self::remove(self, &key).is_some());
    }

    fn take(&mut self, items: usize, mut note: impl FnMut(u64)) -> bool {
        (0..items).for_each(|_| note(self.recv().expect("open").key));
        true
    }
}

// ----- tokio-util --------------------------------------------------------------------------

#[derive(Default)]
struct Keyed {
    queue: tokio_util::time::DelayQueue<(u64, u64)>,
    keys: HashMap<u64, Key>,
}

struct Queue {
    runtime: Arc<Runtime>,
    own: Keyed,
    shared: Option<Arc<Mutex<Keyed>>>,
}

impl Queue {
    fn with<R>(&mut self, work: impl FnOnce(&mut Keyed) -> R) -> R {
        match &self.shared {
            Some(shared) => work(&mut shared.lock().expect("no panic")),
            None => work(&mut self.own),
        }
    }
}

impl Peer for Queue {
    fn new(is_shared: bool) -> Queue {
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_time().build().expect("a runtime");
        let shared = is_shared.then(Arc::default);
        Queue { runtime: Arc::new(runtime), own: Keyed::default(), shared }
    }

    fn for_another_thread(&self) -> Queue {
        let (runtime, shared) = (Arc::clone(&self.runtime), self.shared.clone());
        Queue { runtime, own: Keyed::default(), shared }
    }

    fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        let _inside = self.runtime.enter();
        work()
    }

    fn insert(&mut self, key: u64, delay: Duration) {
        self.with(|keyed| {
            let place = keyed.queue.insert((key, key), delay);
            keyed.keys.insert(key, place);
        });
    }

    fn reset(&mut self, key: u64, delay: Duration) {
        self.with(|keyed| keyed.queue.reset(&keyed.keys[&key], delay));
    }

    fn remove(&mut self, key: u64) {
        self.with(|keyed| {
            let place = keyed.keys.remove(&key).expect("there");
            keyed.queue.remove(&place);
        });
    }

    fn take(&mut self, items: usize, mut note: impl FnMut(u64)) -> bool {
        let runtime = Arc::clone(&self.runtime);
        let Keyed { queue, keys } = &mut self.own;
        runtime.block_on(async {
            for _ in 0..items {
                let due = poll_fn(|context| queue.poll_expired(context)).await.expect("an item");
                let (key, _) = due.into_inner();
                keys.remove(&key);
                note(key);
            }
        });
        true
    }
}

// ----- moka --------------------------------------------------------------------------------

struct ByValue;

impl moka::Expiry<u64, Duration> for ByValue {
    fn expire_after_create(&self, _: &u64, value: &Duration, _: Instant) -> Option<Duration> {
        Some(*value)
    }

    fn expire_after_update(
        &self,
        _: &u64,
        value: &Duration,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(*value)
    }
}

struct Cache(moka::sync::Cache<u64, Duration>);

impl Peer for Cache {
    fn new(_: bool) -> Cache {
        Cache(moka::sync::Cache::builder().expire_after(ByValue).build())
    }

    fn for_another_thread(&self) -> Cache {
        Cache(self.0.clone())
    }

    fn insert(&mut self, key: u64, delay: Duration) {
        self.0.insert(key, delay);
    }

    fn reset(&mut self, key: u64, delay: Duration) {
        self.0.insert(key, delay);
    }

    fn remove(&mut self, key: u64) {
        self.0.invalidate(&key);
    }

    fn take(&mut self, _: usize, _: impl FnMut(u64)) -> bool {
        false
    }
}

// ----- a sorted map and a condition variable -----------------------------------------------

#[derive(Default)]
struct Sorted {
    by_time: BTreeMap<(Instant, u64), (u64, u64)>,
    by_key: HashMap<u64, (Instant, u64)>,
    inserted: u64,
}

#[derive(Clone, Default)]
struct Tree(Arc<(Mutex<Sorted>, Condvar)>);

impl Tree {
    fn put(&self, key: u64, delay: Duration, is_new: bool) {
        let mut sorted = self.0.0.lock().expect("no panic");
        sorted.inserted += 1;
        let place = (Instant::now() + delay, sorted.inserted);
        let before = sorted.by_key.insert(key, place);
        assert_eq!(before.is_none(), is_new);
        let value = before.and_then(|before| sorted.by_time.remove(&before));
        sorted.by_time.insert(place, value.unwrap_or((key, key)));
        if sorted.by_time.first_key_value().is_some_and(|(first, _)| *first == place) {
            self.0.1.notify_one();
        }
    }
}

impl Peer for Tree {
    fn new(_: bool) -> Tree {
        Tree::default()
    }

    fn for_another_thread(&self) -> Tree {
        self.clone()
    }

    fn insert(&mut self, key: u64, delay: Duration) {
        self.put(key, delay, true);
    }

    fn reset(&mut self, key: u64, delay: Duration) {
        self.put(key, delay, false);
    }

    fn remove(&mut self, key: u64) {
        let mut sorted = self.0.0.lock().expect("no panic");
        let place = sorted.by_key.remove(&key).expect("there");
        sorted.by_time.remove(&place);
    }

    fn take(&mut self, items: usize, mut note: impl FnMut(u64)) -> bool {
        let mut sorted = self.0.0.lock().expect("no panic");
        for _ in 0..items {
            loop {
                let first = *sorted.by_time.first_key_value().expect("an item").0;
                let left = first.0.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let (key, _) = sorted.by_time.remove(&first).expect("the first");
                    sorted.by_key.remove(&key);
                    drop(sorted); // as a queue that others insert into has to
                    note(key);
                    sorted = self.0.0.lock().expect("no panic");
                    break;
                }
                sorted = self.0.1.wait_timeout(sorted, left).expect("no panic").0;
            }
        }
        true
    }
}
