//! A scheduler's timeline: instants as [`Moment`]s, and moments as ticks.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::clock::tick::{Moment, Tick, nanos};

/// When something is to happen, as a user says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    After(Duration),
    At(Instant),
}

/// The timeline begins at least this many nanoseconds before the build: 18 years.
const BEFORE_THE_BUILD: u64 = 1 << 59;

/// The longest tick, in nanoseconds: 18 years. A longer one is cut to this, which only makes tasks more punctual.
const LONGEST_TICK: u64 = 1 << 59;

/// A scheduler's timeline. It converts instants into [`Moment`]s and back, and moments into ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    built: Origin,
    /// The moment of `built`. A multiple of the tick, so that ticks are counted from the build.
    pub(crate) start: Moment,
    /// The length of a tick, in nanoseconds.
    pub(crate) tick: NonZeroU64,
}

impl Timeline {
    /// Creates a timeline with ticks of this length, counted from `built`. Returns `None` for a tick of zero.
    pub(crate) fn new(built: Instant, tick: Duration) -> Option<Timeline> {
        let tick = NonZeroU64::new(nanos(tick).min(LONGEST_TICK))?;
        // A multiple of the tick, so the first tick ends one tick after the build.
        let start = Moment(BEFORE_THE_BUILD.div_ceil(tick.get()) * tick.get());
        Some(Timeline { built: Origin::new(built), start, tick })
    }

    /// Returns the moment of an instant.
    #[inline]
    pub(crate) fn moment(&self, instant: Instant) -> Moment {
        match self.built.nanos_to(instant) {
            Some(since) => self.start.after_nanos(since),
            None => self.moment_by_arithmetic(instant),
        }
    }

    fn moment_by_arithmetic(&self, instant: Instant) -> Moment {
        match instant.checked_duration_since(self.built.at) {
            Some(elapsed) => self.start.after(elapsed),
            None => Moment(self.start.0.saturating_sub(nanos(self.built.at - instant))),
        }
    }

    /// Returns the present by a reading of the clock.
    #[inline]
    pub(crate) fn present(&self, reading: Instant) -> Moment {
        // A clock never reaches `NEVER`, or what is never due would be due then (TIME-3).
        self.moment(reading).min(Moment::LAST)
    }

    /// Returns the deadline of what is to happen at an instant, by a reading of the clock.
    #[inline]
    pub(crate) fn deadline(&self, instant: Instant, reading: Instant) -> Moment {
        // An instant beyond the end of the timeline is due if the clock has passed it. But the farthest instant stands
        // for never (TIME-3).
        let deadline = self.moment(instant);
        let has_passed = || instant <= reading && short_of_never(instant) == instant;
        if deadline == Moment::NEVER && has_passed() { Moment::LAST } else { deadline }
    }

    /// Returns the instant of a moment, or the latest possible [`Instant`] if the moment is beyond it.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        if moment == Moment::NEVER {
            return farthest(self.built.at);
        }
        if moment >= self.start {
            after(self.built.at, moment.since(self.start))
        } else {
            self.built.before(self.start.since(moment))
        }
    }

    /// Returns the instant of a moment, or `None` for never.
    pub(crate) fn instant_if_any(&self, moment: Moment) -> Option<Instant> {
        (moment != Moment::NEVER).then(|| self.instant(moment))
    }

    /// Returns the last tick that has ended by `now`.
    pub(crate) fn passed(&self, now: Moment) -> Tick {
        // The last tick of the timeline ends early, at the last moment that a clock shows (TIME-3).
        if now >= Moment::LAST { self.covering(Moment::LAST) } else { Tick(now.0 / self.tick) }
    }

    /// Returns the first tick that ends at or after a moment.
    pub(crate) fn covering(&self, moment: Moment) -> Tick {
        // Up, never down, so that no task runs before its deadline (S1).
        Tick(moment.0.div_ceil(self.tick.get()))
    }

    /// Returns when a tick ends (TIME-3). The tasks that it covers may run then.
    pub(crate) fn end_of(&self, tick: Tick) -> Moment {
        Moment(tick.0.saturating_mul(self.tick.get())).min(Moment::LAST)
    }
}

/// An instant from which others are counted, in nanoseconds.
///
/// std takes 12 ns for the difference of two instants, a sixth of the cost of a schedule. A subtraction of their parts takes
/// 1 ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) at: Instant,
    /// `None` if the parts of instants are not what [`Parts`] expects.
    parts: Option<Parts>,
}

impl Origin {
    pub(crate) fn new(at: Instant) -> Origin {
        static ARE_KNOWN: OnceLock<bool> = OnceLock::new();
        let parts = ARE_KNOWN.get_or_init(Parts::are_known).then(|| Parts::of(at));
        Origin { at, parts }
    }

    /// Returns the nanoseconds from here to an instant. `None` for an instant that is earlier, or more than 272 years later,
    /// or whose parts are not known: then std's arithmetic tells.
    #[inline]
    pub(crate) fn nanos_to(self, instant: Instant) -> Option<u64> {
        self.parts.and_then(|parts| Parts::of(instant).nanos_since(parts))
    }

    /// Returns the instant that lies this long before, or this one if that is beyond the range of the clock.
    pub(crate) fn before(self, ago: Duration) -> Instant {
        self.at.checked_sub(ago).unwrap_or(self.at)
    }
}

/// The parts of an [`Instant`]: seconds and nanoseconds from some origin, on the systems that we know.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    seconds: u64,
    nanos: u32,
    /// The instant has other parts than these.
    is_unknown: bool,
}

impl Hasher for Parts {
    /// Also of an `i64`, which the default of its method passes on.
    #[inline]
    fn write_u64(&mut self, seconds: u64) {
        self.seconds = seconds;
    }

    #[inline]
    fn write_u32(&mut self, nanos: u32) {
        self.nanos = nanos;
    }

    fn write(&mut self, _: &[u8]) {
        self.is_unknown = true;
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Parts {
    #[inline]
    fn of(instant: Instant) -> Parts {
        // An instant shows its parts only to a hasher.
        let mut parts = Parts::default();
        instant.hash(&mut parts);
        parts
    }

    /// Returns true if the parts of instants differ by as much as they should.
    fn are_known() -> bool {
        // How an instant is hashed is no promise of std. So this tests, on all scales, that the parts mean what they seem to
        // mean. If they do not, nobody uses them.
        let origin = Instant::now();
        let parts = Parts::of(origin);
        let mut steps = (0..62).map(|bit| 1 << bit).chain([0, 999_999_999, 1_000_000_001]);
        let is_right = |nanos| {
            let later = origin.checked_add(Duration::from_nanos(nanos));
            later.is_none_or(|later| Parts::of(later).nanos_since(parts) == Some(nanos))
        };
        !parts.is_unknown && steps.all(is_right)
    }

    /// Returns the nanoseconds since `origin`. `None` if this is earlier, or more than 272 years later.
    #[inline]
    fn nanos_since(self, origin: Parts) -> Option<u64> {
        // The range is checked first, so the rest cannot overflow. A difference that wraps is out of the range.
        let seconds = self.seconds.wrapping_sub(origin.seconds);
        if seconds >= 1 << 33 {
            return None;
        }
        (seconds * 1_000_000_000 + u64::from(self.nanos)).checked_sub(u64::from(origin.nanos))
    }
}

/// Returns this instant, or the one before it if it is the farthest, which stands for never (TIME-3).
pub(crate) fn short_of_never(instant: Instant) -> Instant {
    let step = Duration::from_nanos(1);
    let is_farthest = instant.checked_add(step).is_none();
    if is_farthest { instant.checked_sub(step).unwrap_or(instant) } else { instant }
}

/// Returns the instant that lies `ahead` of now, or the latest possible one if that is beyond the range of the clock.
#[inline]
pub(crate) fn after(now: Instant, ahead: Duration) -> Instant {
    now.checked_add(ahead).unwrap_or_else(|| farthest(now))
}

/// Returns the latest possible instant.
#[cold]
pub(crate) fn farthest(from: Instant) -> Instant {
    // std has no constant for it, so this adds ever smaller steps as long as they fit.
    let seconds = (0..64).rev().map(|bit| Duration::from_secs(1 << bit));
    let nanos = (0..30).rev().map(|bit| Duration::from_nanos(1 << bit));
    seconds.chain(nanos).fold(from, |far, step| far.checked_add(step).unwrap_or(far))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(tick: Duration) -> Timeline {
        Timeline::new(Instant::now(), tick).expect("a tick above zero")
    }

    #[test]
    fn s01_a_deadline_is_rounded_up_to_its_tick() {
        let line = timeline(Duration::from_millis(1));
        let start = line.start;
        assert_eq!(line.end_of(line.covering(start)), start);
        for delay in [1, 999_999, 1_000_000] {
            let end = line.end_of(line.covering(start.after_nanos(delay)));
            assert_eq!(end, start.after_nanos(1_000_000), "a delay of {delay} ns");
        }
        assert_eq!(line.passed(start.after_nanos(999_999)), line.passed(start));
    }

    #[test]
    fn parts_and_arithmetic_agree() {
        let line = timeline(Duration::from_millis(1));
        if cfg!(target_os = "linux") {
            assert!(line.built.parts.is_some(), "an instant has other parts now: adapt `Parts`");
        }
        let mut seed = 7_u64;
        for bits in (0..64).cycle().take(10_000) {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let step = Duration::from_nanos(seed >> bits) * (1 + u32::from(bits == 0) * 1_000);
            let around = [line.built.at.checked_add(step), line.built.at.checked_sub(step)];
            for instant in around.into_iter().flatten() {
                assert_eq!(line.moment(instant), line.moment_by_arithmetic(instant), "{step:?}");
            }
        }
    }

    #[test]
    fn s04_a_moment_after_the_end_of_the_timeline_is_never() {
        for tick in [Duration::from_nanos(1), Duration::from_millis(1), Duration::MAX] {
            let line = timeline(tick);
            assert_eq!(line.start.after(Duration::MAX), Moment::NEVER);
            assert!(line.instant(Moment::NEVER) > line.built.at + Duration::from_secs(1 << 33));
            assert!(line.end_of(line.covering(Moment::NEVER)) >= Moment(u64::MAX - (1 << 60)));
        }
    }

    #[test]
    fn an_instant_from_before_the_build_has_a_moment() {
        let line = timeline(Duration::from_millis(3));
        let ago = Duration::from_millis(5);
        let before = line.built.at.checked_sub(ago).expect("the machine has been up that long");
        assert_eq!(line.start.since(line.moment(before)), Duration::from_millis(5));
        assert_eq!(line.instant(line.moment(before)), before);
        assert_eq!(
            line.instant(line.start.after_nanos(7)),
            line.built.at + Duration::from_nanos(7)
        );
    }
}
