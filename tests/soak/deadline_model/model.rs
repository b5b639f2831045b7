//! The lives of a deadline queue against a sorted map. One and the same queue, the [`Wheel`], lies under the pool, the workers
//! of `rx`, the loop and the delay queues. Here it lives as each of them has set it up, and once more behind the two queues
//! that users see.
//!
//! All that a life does is chosen by bytes. `tests/soak` takes them from a seed, and the fuzz target `deadlines` from the
//! fuzzer, which has this file too.

#![allow(clippy::option_option, reason = "a deadline that cannot be asked for, or of no value")]
#![allow(clippy::cast_possible_wrap, reason = "sizes of memory fit")]
#![allow(clippy::len_zero, reason = "it compares `len` and `is_empty`")]
#![allow(clippy::unchecked_time_subtraction, reason = "of times that were added before")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use tickwheel::delay::DelayQueue;
use tickwheel::pool::{DelayedWorkQueue, Key};
use tickwheel::wheel::{Wheel, WheelKey};
use tickwheel::{Clock, Driver, Inline, ManualClock, Scheduler};

/// The layers begin to count here, and deadlines may be earlier.
const START: u64 = 1 << 62;
const HOUR: u64 = 3_600_000_000_000;
/// From here on the pool counts seconds.
const FAR_SECONDS: u64 = 4_611_686_018;
const FAR: u64 = START + FAR_SECONDS * 1_000_000_000;

/// Lives one life, for as long as there are bytes. `bytes_out` is what the calling thread has taken from the allocator more
/// than it has given back, or always zero if nobody counts that.
pub(crate) fn live(bytes: &mut dyn Iterator<Item = u8>, bytes_out: fn() -> isize) -> Option<()> {
    let choices = &mut Choices(bytes);
    let choice = choices.byte()?;
    let orders = if choice & 8 == 0 { Orders::Own } else { Orders::Given };
    let wheel = |size, nanos, start| {
        let granularity = NonZeroU64::new(nanos).expect("above zero");
        let wheel = Wheel::with_granularity(size, granularity, start);
        Bare { wheel, orders, given: 0 }
    };
    match choice % 8 {
        // As `pool/queue.rs`, `rx/delayed.rs`, `message_loop/inbox.rs` and `delay/items.rs` have it.
        0 => World::new(wheel(256, 64_000_000, START), bytes_out).live(choices),
        1 => World::new(wheel(4, 1 << 32, START), bytes_out).live(choices),
        2 => World::new(wheel(1024, 32_000_000, START), bytes_out).live(choices),
        3 => World::new(wheel(32, 32_000_000, START), bytes_out).live(choices),
        // Any other, at either end of the range of ticks.
        4 | 5 => {
            let (size, nanos) = (1 << (choices.byte()? % 13), 1 + choices.number()? % (1 << 40));
            let start = choices.number()?;
            let start = if choice & 16 == 0 { start } else { u64::MAX - start };
            World::new(wheel(size, nanos, start), bytes_out).live(choices);
        }
        6 => World::new(Pool::new(), bytes_out).live(choices),
        _ => World::new(Delay::new(), bytes_out).live(choices),
    }
    Some(())
}

/// What is still to be chosen.
struct Choices<'a>(&'a mut dyn Iterator<Item = u8>);

impl Choices<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.next()
    }

    fn below(&mut self, end: usize) -> Option<usize> {
        let (high, middle, low) = (self.byte()?, self.byte()?, self.byte()?);
        Some((usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)) % end.max(1))
    }

    /// Returns a number of any size: a count of bits, and then that many bits.
    fn number(&mut self) -> Option<u64> {
        let bits = u32::from(self.byte()?) % 64;
        let mut number = 0;
        for _ in 0..bits.div_ceil(8) {
            number = number << 8 | u64::from(self.byte()?);
        }
        Some(number & ((1 << bits) - 1))
    }
}

/// A deadline queue. Values are numbers, each of which is used once.
trait Queue {
    type Key: Copy + Debug;

    /// Returns the nearest deadline that the queue keeps exactly.
    fn kept(&self, deadline: u64) -> u64;
    fn now(&self) -> u64;
    fn insert(&mut self, deadline: u64, value: u64) -> Self::Key;
    fn remove(&mut self, key: Self::Key) -> Option<u64>;
    fn reset(&mut self, key: Self::Key, deadline: u64) -> bool;
    /// The deadline of a key, if it can be asked for.
    fn deadline(&self, key: Self::Key) -> Option<Option<u64>>;
    /// The earliest deadline, and a bound of it.
    fn first(&mut self, budget: usize) -> [Option<u64>; 2];
    fn pass(&mut self, to: u64);
    /// Takes out the first value that is due. `choice`: in one way or another.
    fn take(&mut self, choice: u8) -> Option<u64>;
    fn len(&self) -> usize;
    /// Passes all that is left, in order.
    fn rest(self, choice: u8, note: &mut dyn FnMut(u64));
    /// What it may hold on to if those are the keys of its values.
    fn most_memory(&self, keys: &mut dyn Iterator<Item = Self::Key>) -> usize;
    fn check(&self);
}

/// A deadline, and the number of the insert or the reset that gave it.
type Place = (u64, u64);

struct World<Q: Queue> {
    queue: Q,
    model: BTreeMap<Place, (Q::Key, u64)>,
    /// Keys of values, some of which are gone.
    keys: Vec<(Q::Key, u64, Place)>,
    /// How many inserts and resets there have been.
    steps: u64,
    work: usize,
    bytes_out: fn() -> isize,
    /// What the queue holds.
    held: isize,
    /// So far ahead are most deadlines.
    near: u64,
}

/// So many values at a time are a crowd, which fills a page, and a peak, which fills some.
const CROWD: usize = 300;
const PEAK: usize = 4_000;

impl<Q: Queue> World<Q> {
    fn new(queue: Q, bytes_out: fn() -> isize) -> World<Q> {
        let (model, keys) = (BTreeMap::new(), Vec::new());
        World { queue, model, keys, steps: 0, work: 0, bytes_out, held: 0, near: 1 << 30 }
    }

    fn live(mut self, choices: &mut Choices<'_>) {
        while self.step(choices).is_some() {}
        self.check(true);
        let (mut rest, choice) = (std::mem::take(&mut self.model).into_values(), self.steps as u8);
        self.queue.rest(choice, &mut |value| {
            assert_eq!(Some(value), rest.next().map(|(_, value)| value), "the rest, in order");
        });
        assert!(rest.next().is_none(), "the rest, all of it");
    }

    /// Calls the queue, and counts what it takes and gives back.
    fn call<R>(&mut self, call: impl FnOnce(&mut Q) -> R) -> R {
        let before = (self.bytes_out)();
        let out = call(&mut self.queue);
        self.held += (self.bytes_out)() - before;
        out
    }

    fn step(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let (choice, size) = (choices.byte()?, choices.byte()?);
        let times = match size {
            0..200 => 1,
            200..240 => 2 + usize::from(size % 40),
            240..253 => CROWD,
            _ => PEAK,
        };
        match choice % 16 {
            0..4 => self.insert(times, choices)?,
            4..8 => self.remove(times, choices)?,
            8..10 => self.reset(times, choices)?,
            10 => self.look(choices)?,
            11 => self.near = 1 + choices.number()? % (1 << 45),
            12..14 => self.take(times, choices)?,
            14 => self.take(usize::MAX, choices)?,
            _ => self.remove_down_to(times, choices)?,
        }
        self.work += self.model.len();
        let is_cheap = self.work > 20_000 || self.model.len() < 100;
        self.work %= 20_000;
        self.check(is_cheap);
        Some(())
    }

    fn check(&mut self, all: bool) {
        assert_eq!(self.queue.len(), self.model.len());
        if all {
            self.queue.check();
            let mut keys = self.model.values().map(|(key, _)| *key);
            let (held, most) = (self.held, self.queue.most_memory(&mut keys));
            let len = self.model.len();
            assert!(held <= most as isize, "{held} bytes for {len} values, and {most} would do");
        }
    }

    fn deadline(&self, choices: &mut Choices<'_>) -> Option<u64> {
        let now = self.queue.now();
        Some(match choices.byte()? {
            0..8 => now.saturating_sub(choices.number()?),
            few @ 8..16 => u64::MAX - u64::from(few - 8),
            few @ 16..20 => u64::from(few - 16),
            few @ 20..30 => FAR - 5 + u64::from(few - 20),
            few @ 30..70 => now.saturating_add(u64::from(few - 30)),
            70..90 => now.saturating_add(choices.number()?),
            _ => now.saturating_add(choices.number()? % self.near),
        })
    }

    /// Some deadlines have many equals.
    fn insert(&mut self, times: usize, choices: &mut Choices<'_>) -> Option<()> {
        let (deadline, spread) = (self.deadline(choices)?, choices.number()? % self.near);
        for at in 0..times as u64 {
            let ahead = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7 & spread;
            let deadline = self.queue.kept(deadline.saturating_add(ahead));
            self.steps += 1;
            let (value, place) = (self.steps, (deadline, self.steps));
            let key = self.call(|queue| queue.insert(deadline, value));
            self.model.insert(place, (key, value));
            self.keys.push((key, value, place));
        }
        Some(())
    }

    /// Returns the positions of neighbours among the keys, in either direction, or of any.
    fn some(
        &self,
        times: usize,
        choices: &mut Choices<'_>,
    ) -> Option<impl Iterator<Item = usize> + use<Q>> {
        let (len, first) = (self.keys.len(), choices.below(self.keys.len())?);
        let step = [1, len.max(1) - 1, 7_919, 1][usize::from(choices.byte()? % 4)];
        let times = if len == 0 { 0 } else { times };
        Some((0..times).map(move |nth| (first + nth * step) % len))
    }

    fn remove(&mut self, times: usize, choices: &mut Choices<'_>) -> Option<()> {
        for at in self.some(times, choices)? {
            self.remove_one(at);
        }
        self.forget_some();
        Some(())
    }

    fn remove_one(&mut self, at: usize) {
        let (key, value, place) = self.keys[at];
        let expected = self.model.remove(&place).map(|_| value);
        assert_eq!(self.call(|queue| queue.remove(key)), expected, "of {place:?}");
        assert_eq!(self.call(|queue| queue.remove(key)), None, "of {place:?}");
    }

    /// The content goes down to few, from one end of the keys to the other.
    fn remove_down_to(&mut self, left: usize, choices: &mut Choices<'_>) -> Option<()> {
        for at in self.some(self.keys.len(), choices)? {
            if self.model.len() <= left % CROWD {
                break;
            }
            self.remove_one(at);
        }
        self.forget_some();
        Some(())
    }

    /// Keeps some keys of values that are gone, because they have to match nothing for ever.
    fn forget_some(&mut self) {
        if self.keys.len() > 2 * self.model.len() + PEAK {
            let (model, mut nth) = (&self.model, 0_usize);
            self.keys.retain(|(_, _, place)| {
                nth += 1;
                nth % 16 == 0 || model.contains_key(place)
            });
        }
    }

    fn reset(&mut self, times: usize, choices: &mut Choices<'_>) -> Option<()> {
        let some = self.some(times, choices)?;
        let (deadline, spread) = (self.deadline(choices)?, choices.number()? % self.near);
        for at in some {
            let (key, value, place) = self.keys[at];
            let ahead = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7 & spread;
            let deadline = self.queue.kept(deadline.saturating_add(ahead));
            self.steps += 1;
            let (to, before) = ((deadline, self.steps), self.model.remove(&place));
            assert_eq!(self.call(|queue| queue.reset(key, deadline)), before.is_some());
            if before.is_some() {
                self.model.insert(to, (key, value)); // the key stays valid
                self.keys[at].2 = to;
            }
        }
        Some(())
    }

    fn look(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let (budget, expected) = (choices.below(3_000)?, self.model.keys().next().map(|at| at.0));
        let [first, bound] = self.call(|queue| queue.first(budget));
        assert_eq!(first, expected, "the next deadline");
        assert!(bound <= first && bound.is_some() == first.is_some(), "{bound:?} and {first:?}");
        for at in self.some(40, choices)? {
            let (key, _, place) = self.keys[at];
            let expected = self.model.contains_key(&place).then_some(place.0);
            assert!(self.queue.deadline(key).is_none_or(|said| said == expected), "{place:?}");
        }
        Some(())
    }

    /// Lets time pass, and takes what is due.
    fn take(&mut self, most: usize, choices: &mut Choices<'_>) -> Option<()> {
        let (choice, now) = (choices.byte()?, self.queue.now());
        let to = match choice % 8 {
            0 => now,
            1 => now.saturating_add(1),
            2 => self.model.keys().next().map_or(now, |(deadline, _)| *deadline),
            3 => now.saturating_add(choices.number()?),
            _ => now.saturating_add(choices.number()? % self.near),
        };
        let to = self.queue.kept(to).max(now);
        self.call(|queue| queue.pass(to));
        assert_eq!(self.queue.now(), to);
        for _ in 0..most {
            let first = self.model.first_entry().filter(|first| first.key().0 <= to);
            let expected = first.map(|first| first.remove().1);
            assert_eq!(self.call(|queue| queue.take(choice)), expected, "by {to}");
            if expected.is_none() {
                break;
            }
        }
        Some(())
    }
}

// ----- the bare wheel ----------------------------------------------------------------------

/// Who numbers the inserts and resets: the wheel, or its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orders {
    Own,
    Given,
}

struct Bare {
    wheel: Wheel<u64>,
    orders: Orders,
    given: u64,
}

impl Queue for Bare {
    type Key = WheelKey;

    fn kept(&self, deadline: u64) -> u64 {
        deadline
    }

    fn now(&self) -> u64 {
        self.wheel.now()
    }

    fn insert(&mut self, deadline: u64, value: u64) -> WheelKey {
        self.given += 1;
        match self.orders {
            Orders::Own => self.wheel.insert(deadline, value),
            Orders::Given => self.wheel.insert_as(deadline, self.given, value),
        }
    }

    fn remove(&mut self, key: WheelKey) -> Option<u64> {
        let there = self.wheel.at(key.index()).is_some_and(|(at, _)| at == key);
        assert_eq!(there, self.wheel.contains(key));
        self.wheel.remove(key)
    }

    fn reset(&mut self, key: WheelKey, deadline: u64) -> bool {
        self.given += 1;
        match self.orders {
            Orders::Own => self.wheel.reset(key, deadline),
            Orders::Given => self.wheel.reset_as(key, deadline, self.given),
        }
    }

    fn deadline(&self, key: WheelKey) -> Option<Option<u64>> {
        Some(self.wheel.deadline(key))
    }

    fn first(&mut self, budget: usize) -> [Option<u64>; 2] {
        let bound = self.wheel.next_expiry_within(budget);
        [self.wheel.next_expiry(), bound]
    }

    fn pass(&mut self, to: u64) {
        self.wheel.advance(to);
    }

    fn take(&mut self, choice: u8) -> Option<u64> {
        let now = self.wheel.now();
        match choice % 3 {
            0 => self.wheel.advance(now).next().map(|(_, value)| value),
            1 => self.wheel.pop(now).map(|(_, _, value)| value),
            _ => {
                let peeked = self.wheel.peek(now);
                let popped = self.wheel.pop(now);
                assert_eq!(
                    peeked.map(|(deadline, _)| deadline),
                    popped.map(|(_, deadline, _)| deadline)
                );
                popped.map(|(_, _, value)| value)
            }
        }
    }

    fn len(&self) -> usize {
        assert_eq!(self.wheel.is_empty(), self.wheel.len() == 0);
        self.wheel.len()
    }

    fn rest(mut self, _: u8, note: &mut dyn FnMut(u64)) {
        self.wheel.advance(u64::MAX).for_each(|(_, value)| note(value));
        self.wheel.check_invariants();
        assert_eq!((self.wheel.next_expiry(), self.wheel.len()), (None, 0));
    }

    fn most_memory(&self, keys: &mut dyn Iterator<Item = WheelKey>) -> usize {
        let (mut pages, mut len) = (std::collections::BTreeSet::new(), 0);
        for key in keys {
            pages.insert(key.index() >> 10);
            len += 1;
        }
        // The ring, the half-turns that are found by index, and the blocks that an empty wheel keeps.
        let always = 190_000 + 300 * self.wheel.buckets();
        // A page with a value in it, and a spare one.
        let slots = pages.len() * 1024 * 40;
        // At worst each entry has a block of its own, there are twice as many entries as values, and as many blocks are kept.
        let entries = if len == 0 { 0 } else { 1_300 * (len + 64) };
        always + slots + entries
    }

    fn check(&self) {
        self.wheel.check_invariants();
    }
}

// ----- the queue of a pool -----------------------------------------------------------------

/// On a clock that is moved by hand. Numbers are nanoseconds, and far ahead seconds, as in the queue.
struct Pool {
    queue: DelayedWorkQueue<u64>,
    clock: ManualClock,
    origin: Instant,
}

impl Pool {
    fn new() -> Pool {
        let clock = ManualClock::new();
        let (queue, origin) = (DelayedWorkQueue::with_clock(clock.clone()), clock.now());
        Pool { queue, clock, origin }
    }

    fn instant(&self, number: u64) -> Instant {
        if number < START {
            return self.origin - Duration::from_nanos(START - number);
        }
        let seconds = number.saturating_sub(FAR);
        self.origin + Duration::from_nanos(number.min(FAR) - START) + Duration::from_secs(seconds)
    }
}

impl Queue for Pool {
    type Key = Key;

    fn kept(&self, deadline: u64) -> u64 {
        // Some systems have no instants before their start.
        let first = self.origin.checked_sub(Duration::from_nanos(HOUR)).map_or(0, |_| HOUR);
        deadline.clamp(START - first, FAR + 1_000)
    }

    fn now(&self) -> u64 {
        let passed = self.clock.now() - self.origin;
        let exact = passed.min(Duration::from_secs(FAR_SECONDS));
        START + exact.as_nanos() as u64 + (passed - exact).as_secs()
    }

    fn insert(&mut self, deadline: u64, value: u64) -> Key {
        self.queue.offer(self.instant(deadline), value).expect("open")
    }

    fn remove(&mut self, key: Key) -> Option<u64> {
        self.queue.remove(key)
    }

    fn reset(&mut self, key: Key, deadline: u64) -> bool {
        let same = self.queue.reset(key, self.instant(deadline));
        assert!(same.is_none_or(|same| same == key));
        same.is_some()
    }

    fn deadline(&self, _: Key) -> Option<Option<u64>> {
        None
    }

    fn first(&mut self, _: usize) -> [Option<u64>; 2] {
        let first = self.queue.next_deadline().map(|first| {
            let (before, after) = (
                self.origin.saturating_duration_since(first),
                first.saturating_duration_since(self.origin),
            );
            let exact = after.min(Duration::from_secs(FAR_SECONDS));
            START - before.as_nanos() as u64 + exact.as_nanos() as u64 + (after - exact).as_secs()
        });
        [first, first]
    }

    fn pass(&mut self, to: u64) {
        self.clock.advance(self.instant(to) - self.clock.now());
    }

    fn take(&mut self, choice: u8) -> Option<u64> {
        if choice & 1 == 0 { self.queue.poll() } else { self.queue.poll_timeout(Duration::ZERO) }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn rest(self, choice: u8, note: &mut dyn FnMut(u64)) {
        if choice & 1 == 0 {
            self.queue.close();
            assert_eq!(self.queue.poll(), None);
        }
        self.queue.drain().into_iter().for_each(note);
        assert!(self.queue.is_empty() && self.queue.next_deadline().is_none());
        self.queue.check_invariants();
    }

    fn most_memory(&self, keys: &mut dyn Iterator<Item = Key>) -> usize {
        match keys.count() {
            0 => 400_000,
            _ => usize::MAX >> 1, // each value may hold on to a page, and a key does not tell to which
        }
    }

    fn check(&self) {
        self.queue.check_invariants();
    }
}

// ----- a delay queue -----------------------------------------------------------------------

/// On a driven scheduler. A value is its own key.
struct Delay {
    queue: DelayQueue<u64, u64>,
    clock: ManualClock,
    origin: Instant,
    _driver: Driver,
}

impl Delay {
    fn new() -> Delay {
        let clock = ManualClock::new();
        let builder = Scheduler::builder().executor(Inline).clock(clock.clone());
        let (scheduler, driver) = builder.build_driven().expect("good settings");
        Delay { queue: DelayQueue::new(&scheduler), origin: clock.now(), clock, _driver: driver }
    }

    fn instant(&self, number: u64) -> Instant {
        self.origin + Duration::from_nanos(number - START)
    }
}

impl Queue for Delay {
    type Key = u64;

    /// What has passed is due at once, like all else that has passed. The far end is for other tests.
    fn kept(&self, deadline: u64) -> u64 {
        deadline.clamp(self.now(), FAR)
    }

    fn now(&self) -> u64 {
        START + (self.clock.now() - self.origin).as_nanos() as u64
    }

    fn insert(&mut self, deadline: u64, value: u64) -> u64 {
        let before = self.queue.insert_at(value, value, self.instant(deadline));
        assert_eq!(before.expect("open"), None);
        value
    }

    fn remove(&mut self, key: u64) -> Option<u64> {
        self.queue.remove(&key)
    }

    fn reset(&mut self, key: u64, deadline: u64) -> bool {
        self.queue.reset_at(&key, self.instant(deadline))
    }

    fn deadline(&self, key: u64) -> Option<Option<u64>> {
        let deadline = self.queue.deadline(&key);
        assert_eq!(self.queue.contains_key(&key), deadline.is_some());
        Some(deadline.map(|deadline| START + (deadline - self.origin).as_nanos() as u64))
    }

    fn first(&mut self, _: usize) -> [Option<u64>; 2] {
        let first = self.queue.next_deadline();
        [first.map(|first| START + (first - self.origin).as_nanos() as u64); 2]
    }

    fn pass(&mut self, to: u64) {
        self.clock.advance(self.instant(to) - self.clock.now());
    }

    fn take(&mut self, choice: u8) -> Option<u64> {
        let next = if choice & 1 == 0 {
            self.queue.try_next()
        } else {
            self.queue.recv_timeout(Duration::ZERO)
        };
        next.map(|expired| expired.value)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn rest(self, _: u8, note: &mut dyn FnMut(u64)) {
        self.queue.close().into_iter().for_each(|expired| note(expired.value));
        assert!(self.queue.is_empty() && self.queue.next_deadline().is_none());
        self.queue.check_invariants();
    }

    fn most_memory(&self, keys: &mut dyn Iterator<Item = u64>) -> usize {
        match keys.count() {
            0 => 4_000_000,       // for 64 shards
            _ => usize::MAX >> 1, // a shard gives back its peak with its last value
        }
    }

    fn check(&self) {
        self.queue.check_invariants();
    }
}
