//! Kinds side by side: how large a share of the claims each gets, and what limits over all processes hold back.
//!
//! The dispatcher makes one claim at a time. A kind whose timers wake after a pause comes before one that has a backlog or a steady
//! stream, and as long as several kinds have something to claim, each claims [`BESIDE`] at a time, or a part of that by its weight. So
//! what is due waits for one small claim of a flood, and not for its backlog.
//!
//! Limits are kept by the database, in the claim's own transaction (STORE-9). What they hold back is not claimed until they may
//! let something pass: at the time that the claim has told, or when a run of the kind ends here. Other kinds go on.
//!
//! Of a kind with groups, timers are passed over whose group is held, and the claims go on behind them. What was seen is remembered,
//! so that nothing is walked over twice, and so that no timer runs before an earlier one of its group:
//!
//! - GROUP-1 All that is due at or before the frontier was seen by a claim of this worker. If it waits, its group is in `passed`, with
//!   a place before it. No place is at or behind the frontier: what waits there is found by the claim that begins there. So a group
//!   that has nothing before the frontier is not remembered, however many of them a backlog has.
//! - GROUP-2 A claim that begins at a place takes nothing of groups that were passed over before that place.
//! - GROUP-3 When a run of a group ends, its worker claims from where the group was passed over. For groups that other workers hold,
//!   some of these places are claimed from each [`HELD_BACK`], and all of them when a pass begins again.
//! - GROUP-4 After [`FLOOR`](super::dispatcher), or ten times as long as the claims of this pass have taken until the frontier had come to
//!   the end of what is due, and while something was passed over, the next pass begins. It finds what was locked, or was committed late.
//!   So a pass that does nothing but look comes to its end, however long that takes, and no claims after that put the next one off.
//! - GROUP-5 What a claim has looked at is no place any more. So a group is passed over once, and not by a claim for each of its timers,
//!   however many of them a look has told of.
//! - GROUP-6 Of what comes before the frontier, because it was committed late, say, nobody knows the group. So it is claimed before
//!   anything else, or a later timer of that group could run before it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant, SystemTime};

use crate::store::{Claimed, Floor, HELD_BACK, Limits, Passed};

/// So many timers a kind claims at a time, while others have something to claim too.
const BESIDE: u64 = 128;

/// For how long a kind that has claimed something counts as one of those that have something to claim.
const ACTIVE: Duration = Duration::from_secs(1);

/// How many places of groups that other workers hold are looked at each time.
const FOREIGN: usize = 4;

/// The kinds that have something to claim.
pub(super) struct Shares {
    /// The weight of each, and when it has last claimed something.
    kinds: Vec<(u32, Option<Instant>)>,
}

impl Shares {
    pub(super) fn new(weights: impl Iterator<Item = u32>) -> Shares {
        Shares { kinds: weights.map(|weight| (weight.max(1), None)).collect() }
    }

    pub(super) fn has_claimed(&mut self, kind: usize, now: Instant) {
        self.kinds[kind].1 = Some(now);
    }

    /// Returns true if a kind has claimed something a short while ago.
    pub(super) fn is_active(&self, kind: usize, now: Instant) -> bool {
        self.kinds[kind].1.is_some_and(|at| now < at + ACTIVE)
    }

    /// Returns the weight of a kind and that of the heaviest, if others have something to claim too. The others alone count, so a kind
    /// that is alone has no bound here.
    pub(super) fn of(&self, kind: usize, now: Instant) -> Option<(u32, u32)> {
        let others = self.kinds.iter().enumerate().filter(|(other, _)| *other != kind);
        let active = others.filter(|(other, _)| self.is_active(*other, now));
        let heaviest = active.map(|(_, of)| of.0).max();
        let mine = self.kinds[kind].0;
        heaviest.map(|other| (mine, mine.max(other)))
    }
}

/// Returns the part of a number that a kind gets by its weight, at least 1.
pub(super) fn part(number: u64, (mine, heaviest): (u32, u32)) -> u32 {
    let part = number * u64::from(mine) / u64::from(heaviest);
    u32::try_from(part).unwrap_or(u32::MAX).max(1)
}

/// Returns how many timers a kind claims at a time.
pub(super) fn at_a_time(share: Option<(u32, u32)>) -> u32 {
    share.map_or(u32::MAX, |share| part(BESIDE, share))
}

/// Returns the time until a limit is tried again, by some random bits: not all workers at the same moment, of which one would get what
/// there is. A rate of one a day is not hours late for that.
pub(super) fn spread(delay: Duration, bits: u8) -> Duration {
    delay + (delay * u32::from(bits) / 1024).min(HELD_BACK)
}

/// What is known of the groups of a kind.
pub(super) struct Groups {
    /// `None`: nothing was seen yet (GROUP-1).
    frontier: Option<Floor>,
    must_advance: bool,
    /// Where claims are to begin, beside the frontier.
    places: BTreeSet<Floor>,
    /// The same for what has come since, and is claimed first (GROUP-6).
    new: BTreeSet<Floor>,
    /// Of each group that was passed over, a place before its first timer.
    passed: BTreeMap<String, Floor>,
    was_advance: bool,
    /// When the pass began, how long its claims took, and whether the frontier has come to the end of what is due, from where on they
    /// do not count (GROUP-4).
    began: Instant,
    looked: Duration,
    is_whole: bool,
}

/// Where a claim begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) floor: Option<Floor>,
    is_advance: bool,
    is_new: bool,
}

impl Groups {
    pub(super) fn new(now: Instant) -> Groups {
        Groups {
            frontier: None,
            must_advance: false,
            places: BTreeSet::new(),
            new: BTreeSet::new(),
            passed: BTreeMap::new(),
            was_advance: false,
            began: now,
            looked: Duration::ZERO,
            is_whole: false,
        }
    }

    /// A timer wakes between these times.
    pub(super) fn wakes(&mut self, first: SystemTime, last: SystemTime) {
        match self.frontier {
            Some(frontier) if first <= frontier.0 => {
                self.new.insert((first, 0));
                self.must_advance |= last > frontier.0;
            }
            _ => self.must_advance = true,
        }
    }

    /// Begins a pass over all that is due (GROUP-4).
    pub(super) fn begin_anew(&mut self, now: Instant) {
        (self.frontier, self.must_advance) = (None, true);
        (self.began, self.looked, self.is_whole) = (now, Duration::ZERO, false);
        self.places.clear();
        self.new.clear();
        self.passed.clear(); // all of it is behind the frontier now (GROUP-1)
    }

    /// A run of this group has ended here (GROUP-3). Returns true if there is something to claim.
    pub(super) fn has_ended(&mut self, group: &str) -> bool {
        let place = self.passed.get(group);
        place.is_some_and(|place| self.places.insert(*place))
    }

    /// Takes the places of some groups that are not held here (GROUP-3).
    pub(super) fn try_foreign(&mut self, own: &HashSet<String>) {
        let foreign = self.passed.iter().filter(|(group, _)| !own.contains(*group));
        let mut places: Vec<_> = foreign.map(|(_, place)| *place).collect();
        places.sort_unstable();
        self.places.extend(places.into_iter().take(FOREIGN));
    }

    /// Returns in which time the next pass begins (GROUP-4). `None`: nothing was passed over.
    pub(super) fn next_pass(&self, floor: Duration, now: Instant) -> Option<Duration> {
        let left =
            floor.max(self.looked * 10).saturating_sub(now.saturating_duration_since(self.began));
        (!self.passed.is_empty()).then_some(left)
    }

    /// Returns where the first claim of all that is to be claimed begins.
    pub(super) fn floor(&self) -> Option<Floor> {
        let firsts = [self.frontier?].into_iter();
        firsts.chain(self.places.first().copied()).chain(self.new.first().copied()).min()
    }

    pub(super) fn is_hungry(&self) -> bool {
        self.must_advance || !self.places.is_empty() || !self.new.is_empty()
    }

    /// Returns where the next claim begins: where something has come, or at one of the places and at the frontier by turns.
    pub(super) fn start(&mut self) -> Start {
        if let Some(new) = self.new.pop_first() {
            return Start { floor: Some(new), is_advance: false, is_new: true };
        }
        let is_advance = self.places.is_empty() || self.must_advance && !self.was_advance;
        self.was_advance = is_advance;
        let floor = if is_advance { self.frontier } else { self.places.pop_first() };
        self.must_advance &= !is_advance;
        Start { floor, is_advance, is_new: false }
    }

    /// Returns the places among which a claim has begun that was not at the frontier.
    fn places_of(&mut self, start: Start) -> &mut BTreeSet<Floor> {
        if start.is_new { &mut self.new } else { &mut self.places }
    }

    /// Puts back a place at which nothing was claimed.
    pub(super) fn put_back(&mut self, start: Start) {
        match start.floor {
            Some(place) if !start.is_advance => _ = self.places_of(start).insert(place),
            _ => self.must_advance = true,
        }
    }

    /// Returns the groups of which a claim that begins here must take nothing (GROUP-2).
    pub(super) fn before(&self, start: Start) -> Vec<String> {
        let Some(floor) = start.floor else { return Vec::new() };
        let before = self.passed.iter().filter(|(_, place)| **place < floor);
        before.map(|(group, _)| group.clone()).collect()
    }

    /// Takes in what a claim has seen, and how long it took.
    pub(super) fn learn(
        &mut self,
        start: Start,
        claimed: &Claimed,
        limits: Limits,
        took: Duration,
    ) {
        if !self.is_whole {
            self.looked += took;
        }
        self.is_whole |= start.is_advance && !claimed.more;
        // Without a timer in sight, nothing is due behind the start.
        let reached = claimed.reached.or(start.floor);
        let behind = reached.filter(|_| claimed.more);
        let is_seen = |place: &Floor| {
            start.floor.is_none_or(|floor| *place >= floor)
                && (Some(*place) <= reached || !claimed.more)
        };
        // Behind the last one in sight, nothing was looked at (GROUP-5).
        let is_left = |place: &Floor| !is_seen(place) || Some(*place) == behind;
        self.places.retain(is_left);
        self.new.retain(is_left);
        // What is in sight is told anew. What is not may be behind the end of what was in sight.
        let seen = self.passed.iter().filter(|(_, place)| is_seen(place));
        let seen: Vec<String> = seen.map(|(group, _)| group.clone()).collect();
        seen.iter().for_each(|group| _ = self.passed.remove(group));
        if start.is_advance {
            self.frontier = reached;
            self.must_advance |= claimed.more;
        }
        // What may wait at or behind the frontier, the claim that begins there will see (GROUP-1).
        let frontier = self.frontier;
        let is_before = |place: &Floor| frontier.is_some_and(|frontier| *place < frontier);
        if let Some(reached) = behind {
            if is_before(&reached) {
                if !seen.is_empty() || !claimed.timers.is_empty() {
                    self.places_of(start).insert(reached); // what is behind a late one may be late too
                }
                let taken = claimed.timers.iter();
                let taken = taken.filter_map(|taken| limits.group_of(&taken.timer.key));
                for group in seen.into_iter().chain(taken.map(str::to_owned)) {
                    self.passed.entry(group).or_insert(reached);
                }
            } else {
                self.must_advance = true;
            }
        }
        for Passed { group, before } in &claimed.passed {
            if !is_before(before) {
                self.must_advance = true;
                continue;
            }
            let place = self.passed.entry(group.clone()).or_insert(*before);
            if start.floor.is_none_or(|floor| *place >= floor) {
                *place = *before;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::store::ClaimedTimer;
    use crate::timer::Timer;

    #[test]
    fn those_that_have_something_to_claim_share_by_weight() {
        let now = Instant::now();
        let mut shares = Shares::new([1, 4, 100].into_iter());
        let claims = |shares: &Shares, kind, at| at_a_time(shares.of(kind, at));
        assert_eq!(claims(&shares, 0, now), u32::MAX, "it is alone");
        shares.has_claimed(0, now);
        assert_eq!((claims(&shares, 0, now), claims(&shares, 1, now)), (u32::MAX, 128));
        shares.has_claimed(1, now);
        assert_eq!((claims(&shares, 0, now), claims(&shares, 1, now)), (32, 128));
        shares.has_claimed(2, now);
        assert_eq!((claims(&shares, 0, now), part(7, (1, 100))), (1, 1));
        assert_eq!(claims(&shares, 0, now + ACTIVE), u32::MAX, "the others have nothing any more");
    }

    #[test]
    fn a_slow_rate_is_little_later() {
        let day = Duration::from_secs(86400);
        assert_eq!((spread(day, 0), spread(day, u8::MAX)), (day, day + HELD_BACK));
        let short = Duration::from_millis(40);
        assert!(spread(short, u8::MAX) > short && spread(short, u8::MAX) < short * 5 / 4);
    }

    fn at(millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(millis)
    }

    fn limits() -> Limits {
        Limits { serial_by: Some('/'), ..Limits::default() }
    }

    /// What a claim has taken, how far it has looked, and what it has passed over.
    fn claimed(taken: &[&str], reached: (u64, bool), passed: &[(&str, u64)]) -> Claimed {
        let taken = taken
            .iter()
            .map(|key| ClaimedTimer::new(Timer::new(1, "serial", *key, at(0)), at(0), false));
        let passed = passed.iter().map(|(group, before)| Passed::new(*group, (at(*before), 0)));
        Claimed {
            more: reached.1,
            reached: Some((at(reached.0), 0)),
            passed: passed.collect(),
            ..Claimed::new(at(1000), taken.collect())
        }
    }

    #[test]
    fn what_is_passed_over_is_found_when_its_group_is_free() {
        let now = Instant::now();
        let mut groups = Groups::new(now);
        groups.wakes(at(9), at(10));
        let start = groups.start();
        assert!(start.floor.is_none());
        groups.learn(
            start,
            &claimed(&["a/1", "x/1"], (100, true), &[("a", 20)]),
            limits(),
            Duration::ZERO,
        );
        assert!(
            !groups.passed.contains_key("x"),
            "the next one may be behind what was in sight, where the next claim begins"
        );
        // The claims go on behind it, and take nothing of the group (GROUP-2).
        assert!(groups.is_hungry());
        let start = groups.start();
        assert_eq!((start.floor, groups.before(start)), (Some((at(100), 0)), vec!["a".to_owned()]));
        groups.learn(start, &claimed(&["b/1"], (200, false), &[]), limits(), Duration::ZERO);
        assert!(!groups.is_hungry());
        assert!(!groups.has_ended("b") && groups.has_ended("a"));
        let start = groups.start();
        assert_eq!((start.floor, groups.before(start)), (Some((at(20), 0)), Vec::new()));
        // No other of the group is in sight, so it is behind what was.
        groups.learn(start, &claimed(&["a/2"], (90, true), &[]), limits(), Duration::ZERO);
        assert_eq!(groups.passed["a"], (at(90), 0));
        // What wakes later is at the frontier, and what wakes before it is a place.
        groups.wakes(at(299), at(300));
        groups.wakes(at(49), at(50));
        let starts = [groups.start(), groups.start(), groups.start()].map(|start| start.floor);
        assert!(starts.contains(&Some((at(200), 0))) && starts.contains(&Some((at(49), 0))));
    }

    /// A backlog of which each timer is a group by itself, as a flood of distinct keys, and one group that waits at its front.
    #[test]
    fn a_backlog_of_many_groups_is_not_remembered() {
        let now = Instant::now();
        let mut groups = Groups::new(now);
        groups.wakes(at(9), at(10));
        let mut sent = 0;
        for claim in 1..=100_u64 {
            let start = groups.start();
            sent += groups.before(start).len();
            let taken: Vec<String> = (0..500).map(|n| format!("{claim} {n}")).collect();
            let taken: Vec<&str> = taken.iter().map(String::as_str).collect();
            let passed: &[_] = if claim == 1 { &[("a", 20)] } else { &[] };
            groups.learn(
                start,
                &claimed(&taken, (claim * 100, true), passed),
                limits(),
                Duration::ZERO,
            );
            taken.iter().for_each(|group| assert!(!groups.has_ended(group)));
            assert!(groups.is_hungry(), "the backlog goes on");
        }
        assert_eq!((groups.passed.len(), groups.places.len(), sent), (1, 0, 99));
        // The next pass remembers nothing of the last one either.
        groups.begin_anew(now);
        assert!(groups.passed.is_empty() && groups.start().floor.is_none());
    }

    /// A look tells of each timer of a group that was passed over. A claim looks at a hundred of them.
    #[test]
    fn a_group_is_passed_over_once_after_a_look() {
        let mut groups = Groups::new(Instant::now());
        groups.wakes(at(1), at(1));
        let start = groups.start();
        let all = claimed(&[], (1000, false), &[("a", 0)]);
        groups.learn(start, &all, limits(), Duration::ZERO);
        assert!(!groups.is_hungry());
        (1..1000).for_each(|wake| groups.wakes(at(wake), at(wake)));
        let mut claims = 0;
        while groups.is_hungry() && claims < 1000 {
            let start = groups.start();
            let from = start.floor.and_then(|floor| floor.0.duration_since(UNIX_EPOCH).ok());
            let from = from.map_or(0, |from| from.as_millis() as u64);
            let reached = (from + 100).min(1000);
            let passed: &[_] = if groups.before(start).is_empty() { &[("a", from)] } else { &[] };
            let seen = claimed(&[], (reached, reached < 1000), passed);
            groups.learn(start, &seen, limits(), Duration::ZERO);
            claims += 1;
        }
        assert!((9..=20).contains(&claims), "{claims} claims");
        assert!(groups.has_ended("a"), "it is found when it is free");
        // At the place where the sight of a claim ended, nothing was looked at.
        let mut groups = Groups::new(Instant::now());
        groups.wakes(at(1), at(1));
        let start = groups.start();
        groups.learn(start, &claimed(&[], (1000, false), &[]), limits(), Duration::ZERO);
        [10, 99, 100].into_iter().for_each(|wake| groups.wakes(at(wake), at(wake)));
        let start = groups.start();
        groups.learn(start, &claimed(&[], (100, true), &[]), limits(), Duration::ZERO);
        assert_eq!(groups.start().floor, Some((at(100), 0)));
    }

    #[test]
    fn what_was_committed_late_is_claimed_to_its_end_before_anything_else() {
        let mut groups = Groups::new(Instant::now());
        groups.wakes(at(1), at(1));
        let start = groups.start();
        groups.learn(start, &claimed(&["a/1"], (500, false), &[]), limits(), Duration::ZERO);
        groups.wakes(at(100), at(600));
        let start = groups.start();
        assert_eq!(start.floor, Some((at(100), 0)));
        groups.put_back(start);
        // There is room for one of them.
        let start = groups.start();
        groups.learn(start, &claimed(&["g/1"], (100, true), &[]), limits(), Duration::ZERO);
        let starts = [groups.start(), groups.start()].map(|start| start.floor);
        assert_eq!(starts, [Some((at(100), 0)), Some((at(500), 0))]);
    }

    #[test]
    fn what_others_hold_is_looked_at_again_and_so_is_all() {
        let now = Instant::now();
        let mut groups = Groups::new(now);
        groups.begin_anew(now);
        let start = groups.start();
        let passed = [("a", 10), ("b", 20), ("c", 30)];
        groups.learn(start, &claimed(&[], (100, false), &passed), limits(), Duration::from_secs(2));
        let next = |groups: &Groups, at| {
            groups.next_pass(Duration::from_secs(1), now + Duration::from_secs(at))
        };
        assert_eq!(next(&groups, 0), Some(Duration::from_secs(20)));
        assert_eq!(next(&groups, 21), Some(Duration::ZERO));
        // What is still looking for the first time is not broken off (GROUP-4).
        let mut slow = Groups::new(now);
        for claim in 1..=30_u64 {
            let start = slow.start();
            slow.learn(
                start,
                &claimed(&[], (claim * 100, true), &passed),
                limits(),
                Duration::from_millis(300),
            );
            let left = next(&slow, claim / 3);
            assert!(left > Some(Duration::ZERO), "after claim {claim}, {left:?}");
        }
        // Once it has come to the end, no claim puts the next pass off, however often what others hold is looked at.
        let start = slow.start();
        slow.learn(start, &claimed(&[], (3100, false), &passed), limits(), Duration::ZERO);
        let pass = next(&slow, 0);
        for _ in 0..30 {
            slow.try_foreign(&HashSet::new());
            let start = slow.start();
            let seen = claimed(&[], (3100, false), &passed);
            slow.learn(start, &seen, limits(), Duration::from_millis(300));
        }
        assert_eq!((next(&slow, 0), next(&slow, 91)), (pass, Some(Duration::ZERO)));
        groups.try_foreign(&HashSet::from(["a".to_owned()]));
        assert_eq!(groups.start().floor, Some((at(20), 0)));
        // It is gone, and so is what was behind the place.
        let start = Start { floor: Some((at(20), 0)), is_advance: false, is_new: false };
        groups.learn(start, &claimed(&[], (100, false), &[("c", 30)]), limits(), Duration::ZERO);
        assert!(groups.passed.contains_key("a") && !groups.passed.contains_key("b"));
        groups.begin_anew(now);
        assert_eq!(groups.start().floor, None);
    }
}
