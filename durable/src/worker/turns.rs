//! Whose turn it is: each timer is claimed by one of the workers when it is due, and the others see to it a little later.
//!
//! Without turns, all workers that are told of a timer claim at the same moment, and one of them gets it. With eight workers that
//! is eight times the work for the database.
//!
//! The workers know each other by a list in the database ([`Connection::attend`](crate::store::Connection::attend)). Time is
//! cut into slots of [`SLOT`]. For each kind and slot, a hash of the kind, the slot and the worker puts the workers in an order, which
//! each of them computes by itself:
//!
//! ```text
//!   a slot of a kind                            the end + MARGIN           within a second
//!   ├──────────────────────────────────────────────┼─────────────────────────┼──────────>
//!   the first claims each timer when it is due      the second checks         the others check
//! ```
//!
//! A check is a look at the first timer of the kind, so it covers all slots before it, and costs less than a claim. Each of the others
//! checks once a second, whatever the number of timers, and each at a moment of its own.
//!
//! - TURN-1 A worker that leaves a timer to another has a check ahead that would find it, within a second. So it does not matter
//!   which workers each of them knows: a list that is out of date costs claims, or at most 30 ms while the second one lives, and a
//!   second otherwise, but never a timer.
//! - TURN-2 A worker leaves to others only what all of them come to know: it was told to all, or each of them sees it in a look. What
//!   this worker knows alone it claims itself: the next attempt of a timer that has failed, the next run of a series, a timer that a
//!   claim has shown. So there are no turns for workers that are not told of each timer. Of a batch they are told of the first timer,
//!   and one may have looked before the batch and another behind it. So a worker that finds something which another one has left tells
//!   all to look.
//! - TURN-3 Turns are for what comes. What is late by more than a slot and [`MARGIN`] is claimed by whoever sees it. So is a kind of
//!   which more is due than one worker has had room for during [`FULL`]: for [`OPEN`], in all workers, or until a claim of the worker
//!   finds nothing. So a backlog is worked off by all, and when it is over, timers are not claimed by all for a second.
//! - TURN-4 A worker always counts itself. So one that is alone, or knows no other, claims everything when it is due.
//!
//! SQLite has no list. Its workers ask the file themselves, which costs microseconds while nothing has changed, and are on one
//! machine; as nobody tells them of timers, there would be no turns by TURN-2 either.

use std::time::{Duration, Instant, SystemTime};

use crate::clock::{from_micros, micros};

/// How long the first one of an order has its turn: 20 ms, in microseconds. It makes one check out of many, and is added to
/// the lateness of what a worker that has died leaves behind.
const SLOT: i64 = 20_000;

/// How long after the end of a slot the second one checks, so that the first one has claimed what was due at the end.
pub(super) const MARGIN: Duration = Duration::from_millis(10);

/// How long a worker has had no room for what is due of a kind when it calls for help. The first claim of a worker is a small one,
/// and quick handlers make room for the next one sooner than that.
pub(super) const FULL: Duration = Duration::from_millis(25);

/// How often those behind the second one check, in microseconds: once a second.
const PERIOD: i64 = 1_000_000;

/// For how long a kind has no turns after more of it was due than one worker had room for.
const OPEN: Duration = Duration::from_secs(1);

/// How often the others are told so, at most.
const TOLD: Duration = Duration::from_millis(500);

/// What a worker does with a timer that wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It claims it.
    Mine,
    /// It checks, some time after this end of the slot, whether the first one has.
    Second(SystemTime),
    /// It checks, some time after this one, whether one of those before it has.
    Later(SystemTime),
}

struct Kind {
    hash: u64,
    /// The other workers that live and have this kind. None: there are no turns.
    others: Vec<i64>,
    open: Option<Instant>,
    /// Since when this worker has had no room for what is due, and when something of that woke.
    full: Option<(Instant, SystemTime)>,
    /// When the others were told of more that is due, and of more that comes.
    told: [Option<Instant>; 2],
}

/// The order of the workers, as one of them sees it.
pub(super) struct Turns {
    me: i64,
    kinds: Vec<Kind>,
}

impl Turns {
    pub(super) fn new<'a>(me: i64, kinds: impl Iterator<Item = &'a str>) -> Turns {
        let kind = |name| {
            let (hash, others) = (hash_of(name), Vec::new());
            Kind { hash, others, open: None, full: None, told: [None; 2] }
        };
        Turns { me, kinds: kinds.map(kind).collect() }
    }

    pub(super) fn me(&self) -> i64 {
        self.me
    }

    /// Takes in the others that live, by positions of kinds.
    pub(super) fn set(&mut self, others: &[(usize, i64)]) {
        for (position, kind) in self.kinds.iter_mut().enumerate() {
            let of_kind = others.iter().filter(|(of, other)| *of == position && *other != self.me);
            kind.others = of_kind.map(|(_, other)| *other).collect();
        }
    }

    /// Returns true if another worker has this kind (TURN-4).
    pub(super) fn has_others(&self, kind: usize) -> bool {
        self.others(kind) > 0
    }

    /// Returns how many other workers have this kind.
    pub(super) fn others(&self, kind: usize) -> usize {
        self.kinds[kind].others.len()
    }

    /// Returns what this worker does with a timer that wakes at this time of the database.
    pub(super) fn turn(&self, kind: usize, wake: SystemTime, now: Instant) -> Turn {
        let of = &self.kinds[kind];
        if of.open.is_some_and(|until| now < until) {
            return Turn::Mine;
        }
        let slot = micros(wake) / SLOT;
        let score = |worker: i64| (mix(mix(of.hash ^ mix(bits(slot))) ^ bits(worker)), worker);
        let mine = score(self.me);
        match of.others.iter().filter(|other| score(**other) > mine).count() {
            0 => Turn::Mine,
            1 => Turn::Second(from_micros((slot + 1).saturating_mul(SLOT))),
            _ => {
                let phase = self.me.rem_euclid(PERIOD);
                let periods = (micros(wake) - phase).div_euclid(PERIOD) + 1;
                Turn::Later(from_micros(periods.saturating_mul(PERIOD).saturating_add(phase)))
            }
        }
    }

    /// Returns true if what wakes at this time is late at that one, so that it is nobody's turn (TURN-3).
    pub(super) fn is_late(wake: SystemTime, now: SystemTime) -> bool {
        now.duration_since(wake).is_ok_and(|late| late > micros_of(SLOT) + MARGIN)
    }

    /// This worker has no room for what is due of this kind, or has again. Returns when something of that woke, if it has lasted
    /// for [`FULL`], so that the others are to help.
    pub(super) fn fills(
        &mut self,
        kind: usize,
        waits: Option<SystemTime>,
        now: Instant,
    ) -> Option<SystemTime> {
        let of = &mut self.kinds[kind];
        of.full = waits.map(|wake| of.full.unwrap_or((now, wake)));
        of.full.filter(|(since, _)| now >= *since + FULL).map(|(_, wake)| wake)
    }

    /// Returns when something woke for which this worker has no room.
    pub(super) fn waits(&self, kind: usize) -> Option<SystemTime> {
        self.kinds[kind].full.map(|(_, wake)| wake)
    }

    /// More is due of this kind than one worker has room for (TURN-3).
    pub(super) fn open(&mut self, kind: usize, now: Instant) {
        self.kinds[kind].open = Some(now + OPEN);
    }

    /// A claim of this kind has found nothing, so there is no backlog in which this worker could help (TURN-3).
    pub(super) fn close(&mut self, kind: usize) {
        self.kinds[kind].open = None;
    }

    /// Returns true if the others are to be told of more of this kind, that is due or comes. They were not told for a while then.
    pub(super) fn tells(&mut self, kind: usize, is_due: bool, now: Instant) -> bool {
        let of = &mut self.kinds[kind];
        let told = &mut of.told[usize::from(is_due)];
        let is_new = told.is_none_or(|told| now >= told + TOLD) && !of.others.is_empty();
        if is_new {
            *told = Some(now);
        }
        is_new
    }
}

fn micros_of(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

fn bits(number: i64) -> u64 {
    u64::from_ne_bytes(number.to_ne_bytes())
}

/// FNV-1a, which is the same in all programs and versions: all workers must compute the same order.
fn hash_of(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Mixes the bits of a number, as splitmix64 does.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: [i64; 8] = [3, 1, -4, 15, 9, i64::MIN, 6, 5];

    /// What each worker of a list does, if all of them know the same.
    fn all(workers: &[i64], kind: &str, wake: i64) -> Vec<Turn> {
        let of = |me: &i64| {
            let mut turns = Turns::new(*me, [kind].into_iter());
            let others: Vec<_> = workers.iter().map(|other| (0, *other)).collect();
            turns.set(&others);
            turns.turn(0, from_micros(wake), Instant::now())
        };
        workers.iter().map(of).collect()
    }

    #[test]
    fn each_slot_has_one_first_and_one_second() {
        let mut firsts = [0; WORKERS.len()];
        for slot in 0..4000 {
            let turns = all(&WORKERS, "mail", slot * SLOT);
            // One worker serves all timers of a slot.
            let is_first = |turns: &[Turn]| turns.iter().position(|turn| *turn == Turn::Mine);
            let at_its_end = all(&WORKERS, "mail", slot * SLOT + SLOT - 1);
            assert_eq!(is_first(&at_its_end), is_first(&turns));
            let first: Vec<_> = (0..turns.len()).filter(|n| turns[*n] == Turn::Mine).collect();
            assert_eq!(first.len(), 1);
            firsts[first[0]] += 1;
            let second = Turn::Second(from_micros((slot + 1) * SLOT));
            assert_eq!(turns.iter().filter(|turn| **turn == second).count(), 1);
            let soon = from_micros(slot * SLOT)..=from_micros(slot * SLOT + PERIOD);
            let is_later = |turn: &&Turn| matches!(turn, Turn::Later(at) if soon.contains(at));
            assert_eq!(turns.iter().filter(is_later).count(), 6);
        }
        assert!(firsts.iter().all(|count| (400..600).contains(count)), "{firsts:?}");
    }

    #[test]
    fn another_kind_has_another_order() {
        let differ =
            |slot: &i64| all(&WORKERS, "mail", slot * SLOT) != all(&WORKERS, "bill", slot * SLOT);
        assert!((0..1000).filter(differ).count() > 800);
    }

    /// When a worker goes, the second of its slots is the first, and the turns of the others stay.
    #[test]
    fn a_worker_that_goes_leaves_its_turns_to_the_second() {
        for slot in 0..1000 {
            let before = all(&WORKERS, "mail", slot * SLOT);
            let first = before.iter().position(|turn| *turn == Turn::Mine).expect("a first");
            let left: Vec<_> =
                WORKERS.into_iter().enumerate().filter(|(n, _)| *n != first).collect();
            let ids: Vec<_> = left.iter().map(|(_, id)| *id).collect();
            let after = all(&ids, "mail", slot * SLOT);
            let new = after.iter().position(|turn| *turn == Turn::Mine).expect("a first");
            assert!(matches!(before[left[new].0], Turn::Second(_)));
            let last: Vec<_> = WORKERS.into_iter().filter(|id| *id != WORKERS[first]).collect();
            assert_eq!(last, ids);
        }
    }

    #[test]
    fn without_others_or_with_more_than_room_it_is_always_mine() {
        let now = Instant::now();
        let mut turns = Turns::new(7, ["mail", "bill"].into_iter());
        let is_mine = |turns: &Turns, kind, at| {
            (0..500).all(|slot| turns.turn(kind, from_micros(slot * SLOT), at) == Turn::Mine)
        };
        assert!(is_mine(&turns, 0, now) && !turns.has_others(0) && !turns.tells(0, true, now));
        turns.set(&[(0, 7), (0, 8), (1, 7)]);
        assert!(!is_mine(&turns, 0, now) && is_mine(&turns, 1, now));
        assert!(turns.has_others(0) && !turns.has_others(1));
        assert!(turns.tells(0, true, now) && turns.tells(0, false, now));
        assert!(!turns.tells(0, true, now) && turns.tells(0, true, now + TOLD));
        turns.open(0, now);
        assert!(is_mine(&turns, 0, now) && !is_mine(&turns, 0, now + OPEN));
        turns.close(0);
        assert!(!is_mine(&turns, 0, now));
    }

    #[test]
    fn a_worker_calls_for_help_when_it_has_been_full_for_a_while() {
        let now = Instant::now();
        let mut turns = Turns::new(7, ["mail"].into_iter());
        let wake = from_micros(9);
        assert_eq!(turns.fills(0, Some(wake), now), None);
        assert_eq!(turns.fills(0, None, now + FULL), None);
        assert_eq!(turns.fills(0, Some(wake), now + FULL), None);
        assert_eq!(turns.fills(0, Some(from_micros(10)), now + FULL * 2), Some(wake));
        assert_eq!(turns.waits(0), Some(wake));
    }

    #[test]
    fn what_is_late_is_nobodys_turn() {
        let now = from_micros(1_000_000);
        assert!(Turns::is_late(now - Duration::from_millis(31), now));
        assert!(!Turns::is_late(now - Duration::from_millis(30), now));
        assert!(!Turns::is_late(now + Duration::from_secs(9), now));
    }
}
