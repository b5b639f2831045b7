//! The lives of a `DelayedWorkQueue`: producers whose number of items goes up and down by thousands, takers of all kinds,
//! removes and resets, in real and in virtual time, and a close or a drain in the middle.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::pool::{DelayedWorkQueue, Key};
use tickwheel::{Clock, ManualClock, SystemClock};

use crate::book::lock;
use crate::common::ledger::{End, Ledger};
use crate::common::{PATIENCE, Random};
use crate::{lives, some_deadline};

struct Item {
    id: usize,
    /// It may not come out before that. Whoever has the key may move it.
    not_before: Arc<Mutex<Instant>>,
}

struct Held {
    key: Key,
    id: usize,
    not_before: Arc<Mutex<Instant>>,
}

struct World {
    queue: DelayedWorkQueue<Item>,
    clock: Arc<dyn Clock>,
    ledger: Arc<Ledger>,
    held: Mutex<Vec<Held>>,
    next: AtomicUsize,
    ids: usize,
    span: u64,
    is_over: AtomicBool,
}

impl World {
    fn deadline(&self, random: &mut Random) -> Instant {
        some_deadline(self.clock.now(), self.span, random)
    }

    fn came_out(&self, item: &Item, end: End) {
        let (now, not_before) = (self.clock.now(), *lock(&item.not_before));
        assert!(end != End::Ran || now >= not_before, "item {} is early", item.id);
        self.ledger.book(item.id, end);
    }

    fn act(&self, random: &mut Random) {
        while !self.is_over.load(SeqCst) {
            let goal = random.below(4_000);
            while (self.queue.len() as u64) < goal && self.offer(random) {}
            while self.queue.len() as u64 > goal && self.remove_or_move(random) {}
            if random.one_in(4) {
                thread::sleep(Duration::from_micros(random.below(3_000)));
            }
            if self.next.load(SeqCst) >= self.ids {
                return;
            }
        }
    }

    /// Returns false if nothing is accepted any more.
    fn offer(&self, random: &mut Random) -> bool {
        let id = self.next.fetch_add(1, SeqCst);
        if id >= self.ids {
            return false;
        }
        let deadline = self.deadline(random);
        let not_before = Arc::new(Mutex::new(deadline));
        match self.queue.offer(deadline, Item { id, not_before: Arc::clone(&not_before) }) {
            Ok(key) => lock(&self.held).push(Held { key, id, not_before }),
            Err(item) => {
                assert!(self.queue.is_closed());
                self.came_out(&item, End::Refused);
                return false;
            }
        }
        if random.one_in(6) {
            self.remove_or_move(random);
        }
        true
    }

    /// Returns false if there is no key.
    fn remove_or_move(&self, random: &mut Random) -> bool {
        let mut held = lock(&self.held);
        let at = random.below(held.len().max(1) as u64) as usize;
        let Some(mut one) = (!held.is_empty()).then(|| held.swap_remove(at)) else { return false };
        drop(held);
        if !random.one_in(3) {
            if let Some(item) = self.queue.remove(one.key) {
                assert_eq!(item.id, one.id, "the item of another key");
                self.came_out(&item, End::Cancelled);
            }
            assert!(self.queue.remove(one.key).is_none(), "removed twice");
            return true;
        }
        let (deadline, before) = (self.deadline(random), *lock(&one.not_before));
        *lock(&one.not_before) = deadline.min(before);
        if let Some(key) = self.queue.reset(one.key, deadline) {
            *lock(&one.not_before) = deadline;
            one.key = key;
            lock(&self.held).push(one);
        }
        true
    }

    fn take(&self, random: &mut Random) {
        while !self.queue.is_closed() {
            let taken = match random.below(8) {
                0..3 => self.queue.take(),
                3 => self.queue.poll(),
                4 if random.one_in(50) => {
                    self.queue.drain_due().iter().for_each(|item| self.came_out(item, End::Ran));
                    None
                }
                _ => self.queue.poll_timeout(Duration::from_micros(random.below(3_000))),
            };
            taken.inspect(|item| self.came_out(item, End::Ran));
            if random.one_in(2_000) {
                thread::sleep(Duration::from_micros(random.below(4_000)));
            }
        }
    }
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let manual = random.one_in(2).then(ManualClock::new);
    let clock: Arc<dyn Clock> = match &manual {
        Some(manual) => Arc::new(manual.clone()),
        None => Arc::new(SystemClock),
    };
    let ids = [300, 5_000, 40_000][random.below(3) as usize];
    let world = World {
        queue: DelayedWorkQueue::with_clock(Arc::clone(&clock)),
        clock,
        ledger: Ledger::new(ids),
        held: Mutex::default(),
        next: AtomicUsize::new(0),
        ids,
        span: 1 + random.of_any_size(25),
        is_over: AtomicBool::new(false),
    };
    let closes_in_between = random.one_in(3).then(|| Duration::from_micros(random.below(20_000)));
    let (start, world) = (Instant::now(), &world);
    thread::scope(|scope| {
        for taker in 0..=random.below(4) {
            scope.spawn(move || world.take(&mut Random(seed ^ (taker + 1) << 50)));
        }
        let producers: Vec<_> = (0..=random.below(3))
            .map(|producer| {
                scope.spawn(move || world.act(&mut Random(seed ^ (producer + 1) << 40)))
            })
            .collect();
        while !producers.iter().all(thread::ScopedJoinHandle::is_finished) {
            manual.as_ref().inspect(|clock| clock.advance(Duration::from_nanos(world.span / 4)));
            thread::sleep(Duration::from_micros(200));
            if random.one_in(100) {
                world.queue.check_invariants();
            }
            if closes_in_between.is_some_and(|after| start.elapsed() > after) {
                world.queue.close();
                world.is_over.store(true, SeqCst);
            }
        }
        // What is due is taken by the takers, and by nobody else; what is far goes.
        let is_due = || {
            let far = world.clock.now() + Duration::from_secs(600);
            world.queue.next_deadline().is_some_and(|first| first < far)
        };
        while !world.queue.is_closed() && is_due() {
            assert!(start.elapsed() < PATIENCE, "no taker takes what is due");
            manual.as_ref().inspect(|clock| clock.advance(Duration::from_nanos(world.span)));
            thread::sleep(Duration::from_micros(200));
        }
        world.queue.close();
    });
    world.queue.check_invariants();
    for item in world.queue.drain() {
        world.came_out(&item, End::Returned);
    }
    world.queue.check_invariants();
    assert_eq!(world.queue.len(), 0);
    for id in world.next.load(SeqCst)..ids {
        world.ledger.book(id, End::Refused);
    }
    world.ledger.tally().assert_balanced();
}

#[test]
fn queue() {
    lives("queue", live);
}
