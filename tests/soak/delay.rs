//! The lives of a `DelayQueue`: threads that insert, replace, move and remove, takers of all kinds, some of which leave in
//! the middle, in real and in virtual time, and an end of the queue or of its scheduler.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::delay::{DelayQueue, Expired};
use tickwheel::{Driver, Precision, Scheduler};

use crate::book::lock;
use crate::common::ledger::{End, Ledger};
use crate::common::{PATIENCE, Random};
use crate::{lives, some_deadline};

struct Item {
    id: usize,
    /// It may not come out before that. Whoever holds the lock of its key may move it.
    not_before: Arc<Mutex<Instant>>,
}

/// What is known of a key. Takers do not ask for its lock.
type Place = Mutex<Option<Arc<Mutex<Instant>>>>;

struct World {
    queue: DelayQueue<usize, Item>,
    scheduler: Scheduler,
    ledger: Arc<Ledger>,
    places: Vec<Place>,
    next: AtomicUsize,
    ids: usize,
    span: u64,
    /// No more items come.
    is_over: AtomicBool,
    takers_leave: AtomicBool,
}

impl World {
    fn deadline(&self, random: &mut Random) -> Instant {
        some_deadline(self.scheduler.now(), self.span, random)
    }

    fn came_out(&self, item: &Item, end: End) {
        let (now, not_before) = (self.scheduler.now(), *lock(&item.not_before));
        assert!(end != End::Ran || now >= not_before, "item {} is early", item.id);
        self.ledger.book(item.id, end);
    }

    fn act(&self, random: &mut Random) {
        for _ in 0..=random.below(20) {
            if self.is_over.load(SeqCst) {
                return;
            }
            let goal = random.below(1 + self.places.len() as u64) as usize;
            let mut tries = 4 * self.places.len();
            while self.queue.len() < goal && tries > 0 && self.insert(random) {
                tries -= 1;
                if random.one_in(6) {
                    self.remove_or_move(random);
                }
            }
            while self.queue.len() > goal && tries > 0 {
                tries -= 1;
                self.remove_or_move(random);
            }
            if random.one_in(4) {
                thread::sleep(Duration::from_micros(random.below(3_000)));
            }
        }
    }

    /// Returns false if there is nothing left to insert.
    fn insert(&self, random: &mut Random) -> bool {
        let id = self.next.fetch_add(1, SeqCst);
        if id >= self.ids {
            return false;
        }
        let key = random.below(self.places.len() as u64) as usize;
        let mut place = lock(&self.places[key]);
        let deadline = self.deadline(random);
        let not_before = Arc::new(Mutex::new(deadline));
        let item = Item { id, not_before: Arc::clone(&not_before) };
        let given = if random.one_in(2) {
            self.queue.insert_at(key, item, deadline)
        } else {
            let delay = deadline.saturating_duration_since(self.scheduler.now());
            self.queue.insert(key, item, delay)
        };
        match given {
            Ok(replaced) => {
                *place = Some(not_before);
                replaced.inspect(|item| self.came_out(item, End::Cancelled));
            }
            Err(refused) => self.came_out(&refused.into_inner().1, End::Refused),
        }
        true
    }

    fn remove_or_move(&self, random: &mut Random) {
        let key = random.below(self.places.len() as u64) as usize;
        let place = lock(&self.places[key]);
        if !random.one_in(3) {
            self.queue.remove(&key).inspect(|item| self.came_out(item, End::Cancelled));
            assert!(self.queue.remove(&key).is_none() && !self.queue.contains_key(&key));
            return;
        }
        let Some(not_before) = place.as_ref() else { return };
        let (deadline, before) = (self.deadline(random), *lock(not_before));
        *lock(not_before) = deadline.min(before);
        if self.queue.reset_at(&key, deadline) {
            *lock(not_before) = deadline;
        }
    }

    fn take(&self, random: &mut Random) {
        let mut stream = self.queue.stream();
        let mut context = Context::from_waker(Waker::noop());
        while !self.takers_leave.load(SeqCst) {
            let taken: Option<Expired<usize, Item>> = match random.below(8) {
                0 | 1 if self.scheduler.is_closed() || self.queue.is_closed() => self.queue.recv(),
                // In line, and gone again: whoever is behind it gets what it was woken for.
                2 => match pin!(self.queue.next()).poll(&mut context) {
                    Poll::Ready(taken) => taken,
                    Poll::Pending => None,
                },
                3 => match stream.poll_next(&mut context) {
                    Poll::Ready(taken) => taken,
                    // It would stay first in line.
                    Poll::Pending => {
                        stream = self.queue.stream();
                        None
                    }
                },
                4 => self.queue.try_next(),
                _ => self.queue.recv_timeout(Duration::from_micros(random.below(3_000))),
            };
            taken.inspect(|taken| self.came_out(&taken.value, End::Ran));
            if random.one_in(2_000) {
                thread::sleep(Duration::from_micros(random.below(4_000)));
            }
        }
    }
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    TheQueue,
    TheScheduler,
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let builder = Scheduler::builder()
        .tick(Duration::from_micros(1 + random.below(1_500)))
        .precision([Precision::Tick, Precision::Exact][random.below(2) as usize])
        .shutdown_timeout(PATIENCE);
    let (scheduler, driver) = if random.one_in(2) {
        let (scheduler, driver) = builder.build_driven().expect("good settings");
        (scheduler, Some(driver))
    } else {
        (builder.build().expect("a thread"), None)
    };
    let keys = [1, 40, 700, 6_000][random.below(4) as usize];
    let ids = [300, 5_000, 40_000][random.below(3) as usize];
    let queue = if random.one_in(3) {
        DelayQueue::with_capacity_limit(&scheduler, 1 + random.below(2 * keys) as usize)
    } else {
        DelayQueue::new(&scheduler)
    };
    let world = World {
        queue,
        scheduler,
        ledger: Ledger::new(ids),
        places: (0..keys).map(|_| Mutex::default()).collect(),
        next: AtomicUsize::new(0),
        ids,
        span: 1 + random.of_any_size(25),
        is_over: AtomicBool::new(false),
        takers_leave: AtomicBool::new(false),
    };
    let ending = [Ending::TheQueue, Ending::TheScheduler][random.below(2) as usize];
    let ends_in_between = random.one_in(3).then(|| Duration::from_micros(random.below(20_000)));
    let (start, world) = (Instant::now(), &world);
    let mut driver = driver;
    thread::scope(|scope| {
        for taker in 0..=random.below(4) {
            scope.spawn(move || world.take(&mut Random(seed ^ (taker + 1) << 50)));
        }
        let actors: Vec<_> = (0..=random.below(3))
            .map(|actor| scope.spawn(move || world.act(&mut Random(seed ^ (actor + 1) << 40))))
            .collect();
        while !actors.iter().all(thread::ScopedJoinHandle::is_finished) {
            pass(driver.as_ref(), world.span / 4);
            if ends_in_between.is_some_and(|after| start.elapsed() > after) {
                end(ending, world, &mut driver);
                world.is_over.store(true, SeqCst);
            }
        }
        // What is due is taken by the takers, and by nobody else, also when the scheduler has ended.
        let is_due = || {
            let far = world.scheduler.now() + Duration::from_secs(600);
            world.queue.next_deadline().is_some_and(|first| first < far)
        };
        while !world.scheduler.is_closed() && !world.queue.is_closed() && is_due() {
            assert!(start.elapsed() < PATIENCE, "no taker takes what is due");
            pass(driver.as_ref(), world.span);
        }
        end(ending, world, &mut driver);
        world.takers_leave.store(true, SeqCst);
    });
    world.queue.check_invariants();
    for expired in world.queue.close() {
        world.came_out(&expired.value, End::Returned);
    }
    world.queue.check_invariants();
    assert!(world.queue.is_empty() && world.queue.next_deadline().is_none());
    for id in world.next.load(SeqCst)..ids {
        world.ledger.book(id, End::Refused);
    }
    world.ledger.tally().assert_balanced();
}

/// Lets time pass.
fn pass(driver: Option<&Driver>, nanos: u64) {
    driver.inspect(|driver| _ = driver.advance(Duration::from_nanos(nanos)));
    thread::sleep(Duration::from_micros(200));
}

fn end(ending: Ending, world: &World, driver: &mut Option<Driver>) {
    if ending == Ending::TheQueue {
        for expired in world.queue.close() {
            world.came_out(&expired.value, End::Returned);
        }
    } else if let Some(driver) = driver.take() {
        assert!(driver.close().is_empty(), "an alarm is no leftover");
    } else if !world.scheduler.is_closed() {
        let leftovers = world.scheduler.close().expect("in time");
        assert!(leftovers.is_empty(), "an alarm is no leftover");
    }
}

#[test]
fn delay() {
    lives("delay", live);
}
