//! Units of time inside the crate, and the one place where they are rounded.
//!
//! A user speaks in [`Instant`] and [`Duration`]. Inside, a point in time is a [`Moment`]:
//! nanoseconds on the scheduler's own 64-bit line, whose zero lies years before the scheduler was
//! built, so that an instant from before has a place on it too. A [`Tick`] counts whole ticks on
//! that line.
//!
//! ```text
//!   0 ............ bias .............................................. u64::MAX
//!   the line begins  |  the scheduler was built; a tick border      [`Moment::NEVER`]
//! ```
//!
//! - TIME-1 Rounding goes up, never down: a deadline's tick ends at or after the deadline (S1).
//! - TIME-2 Arithmetic saturates: what lies beyond the line is [`Moment::NEVER`] (S4).

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// A tick of the wheel. Tick `n` covers what is due after tick `n - 1` and up to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Tick(pub(crate) u64);

/// A point on a scheduler's line of time, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Later than everything that a clock can say.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    /// This long after; TIME-2.
    pub(crate) fn after(self, delay: Duration) -> Moment {
        self.after_nanos(nanos(delay))
    }

    /// The same in bare nanoseconds.
    pub(crate) fn after_nanos(self, delay: u64) -> Moment {
        Moment(self.0.saturating_add(delay))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in nanoseconds, as many as 64 bits hold (584 years).
pub(crate) fn nanos(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(u64::from(duration.subsec_nanos()))
}

/// How far before the build the line begins, at least: 18 years.
const BEFORE_THE_BUILD: u64 = 1 << 59;

/// The longest tick: 18 years. A longer one is cut to this, which only makes it more exact.
const LONGEST_TICK: u64 = 1 << 59;

/// A scheduler's line of time: turns instants into [`Moment`]s and back, and moments into ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    built: Instant,
    /// The moment of `built`. A multiple of the tick, so that ticks are counted from the build.
    bias: u64,
    tick: NonZeroU64,
    /// The parts of `built`, if instants can be read by their parts.
    parts: Option<Parts>,
}

impl Timeline {
    /// A line with ticks of this length, counted from `built`; `None` for a tick of zero.
    pub(crate) fn new(built: Instant, tick: Duration) -> Option<Timeline> {
        let tick = NonZeroU64::new(nanos(tick).min(LONGEST_TICK))?;
        let bias = BEFORE_THE_BUILD.div_ceil(tick.get()) * tick.get();
        Some(Timeline { built, bias, tick, parts: Parts::of_origin(built) })
    }

    /// The moment when the scheduler was built.
    pub(crate) fn start(&self) -> Moment {
        Moment(self.bias)
    }

    /// The length of a tick in nanoseconds.
    pub(crate) fn tick_nanos(&self) -> NonZeroU64 {
        self.tick
    }

    /// Where an instant lies on the line.
    #[inline]
    pub(crate) fn moment(&self, instant: Instant) -> Moment {
        let since = self.parts.and_then(|built| Parts::of(instant).nanos_since(built));
        match since {
            Some(since) => Moment(self.bias.saturating_add(since)),
            None => self.moment_by_arithmetic(instant),
        }
    }

    fn moment_by_arithmetic(&self, instant: Instant) -> Moment {
        match instant.checked_duration_since(self.built) {
            Some(elapsed) => self.start().after(elapsed),
            None => Moment(self.bias.saturating_sub(nanos(self.built - instant))),
        }
    }

    /// The instant of a moment; for never, the farthest that an [`Instant`] can say.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        if moment == Moment::NEVER {
            return farthest(self.built);
        }
        let built = self.start();
        let instant = if moment >= built {
            self.built.checked_add(moment.since(built))
        } else {
            self.built.checked_sub(built.since(moment))
        };
        instant.unwrap_or_else(|| if moment >= built { farthest(self.built) } else { self.built })
    }

    /// The last tick that has wholly passed.
    pub(crate) fn passed(&self, now: Moment) -> Tick {
        Tick(now.0 / self.tick)
    }

    /// The first tick at whose end nothing due by `moment` is early; TIME-1.
    pub(crate) fn covering(&self, moment: Moment) -> Tick {
        Tick(moment.0.div_ceil(self.tick.get()))
    }

    /// When a tick ends, which is when what it covers may run.
    pub(crate) fn end_of(&self, tick: Tick) -> Moment {
        Moment(tick.0.saturating_mul(self.tick.get()))
    }
}

/// What an [`Instant`] is made of: seconds and nanoseconds from some origin, on the systems we know.
///
/// An instant tells them to nobody but to a hasher, so that is what this is. The difference of two
/// instants by std takes 12 ns, a sixth of what a schedule costs, and a subtraction of the parts one.
/// That they are what they seem is tried when a line is made; if not, std does it.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    seconds: i64,
    nanos: u32,
    /// An instant told something else.
    is_strange: bool,
}

impl Hasher for Parts {
    #[inline]
    fn write_i64(&mut self, seconds: i64) {
        self.seconds = seconds;
    }

    #[inline]
    fn write_u64(&mut self, seconds: u64) {
        self.seconds = i64::from_ne_bytes(seconds.to_ne_bytes());
    }

    #[inline]
    fn write_u32(&mut self, nanos: u32) {
        self.nanos = nanos;
    }

    fn write(&mut self, _: &[u8]) {
        self.is_strange = true;
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Parts {
    #[inline]
    fn of(instant: Instant) -> Parts {
        let mut parts = Parts::default();
        instant.hash(&mut parts);
        parts
    }

    /// The parts of an origin, if those of later instants differ from them by as much as they should.
    fn of_origin(origin: Instant) -> Option<Parts> {
        let parts = Parts::of(origin);
        let steps = (0..62).map(|bit| 1 << bit).chain([0, 999_999_999, 1_000_000_001]);
        let is_right = |nanos| {
            let later = origin.checked_add(Duration::from_nanos(nanos));
            later.is_none_or(|later| Parts::of(later).nanos_since(parts) == Some(nanos))
        };
        (!parts.is_strange && steps.into_iter().all(is_right)).then_some(parts)
    }

    /// `None` for what is earlier, or so much later that nanoseconds do not count it.
    #[inline]
    fn nanos_since(self, origin: Parts) -> Option<u64> {
        let seconds = self.seconds.wrapping_sub(origin.seconds);
        if !(0..1 << 33).contains(&seconds) {
            return None;
        }
        let nanos = seconds * 1_000_000_000 + i64::from(self.nanos) - i64::from(origin.nanos);
        u64::try_from(nanos).ok()
    }
}

/// Divides by the length of a tick, which the wheel does for each task: by a multiplication, because the
/// processor's division takes 20 to 40 cycles. The method is Granlund's and Montgomery's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granularity {
    units: NonZeroU64,
    magic: u64,
    shifts: [u32; 2],
}

impl Granularity {
    pub(crate) fn new(units: NonZeroU64) -> Granularity {
        let bits = u64::BITS - (units.get() - 1).leading_zeros();
        let above = (1_u128 << bits) - u128::from(units.get());
        let magic = ((above << 64) / u128::from(units.get()) + 1) as u64;
        Granularity { units, magic, shifts: [bits.min(1), bits.saturating_sub(1)] }
    }

    /// `value / units`, rounded up.
    #[inline]
    pub(crate) fn div_ceil(self, value: u64) -> u64 {
        let high = ((u128::from(self.magic) * u128::from(value)) >> 64) as u64;
        let quotient = (high + ((value - high) >> self.shifts[0])) >> self.shifts[1];
        quotient + u64::from(quotient * self.units.get() != value)
    }
}

/// The last instant that can be told, by adding ever smaller steps for as long as they fit.
fn farthest(from: Instant) -> Instant {
    let seconds = (0..64).rev().map(|bit| Duration::from_secs(1 << bit));
    let nanos = (0..30).rev().map(|bit| Duration::from_nanos(1 << bit));
    seconds.chain(nanos).fold(from, |far, step| far.checked_add(step).unwrap_or(far))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tick: Duration) -> Timeline {
        Timeline::new(Instant::now(), tick).expect("a tick above zero")
    }

    #[test]
    fn s1_a_deadline_is_rounded_up_to_its_tick() {
        let line = line(Duration::from_millis(1));
        let start = line.start();
        assert_eq!(line.end_of(line.covering(start)), start);
        for delay in [1, 999_999, 1_000_000] {
            let end = line.end_of(line.covering(start.after_nanos(delay)));
            assert_eq!(end, start.after_nanos(1_000_000), "a delay of {delay} ns");
        }
        assert_eq!(line.passed(start.after_nanos(999_999)), line.passed(start));
    }

    #[test]
    fn parts_say_what_arithmetic_says() {
        let line = line(Duration::from_millis(1));
        if cfg!(target_os = "linux") {
            assert!(line.parts.is_some(), "an instant is made of other parts now: read them anew");
        }
        let mut seed = 7_u64;
        for bits in (0..64).cycle().take(10_000) {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let step = Duration::from_nanos(seed >> bits) * (1 + u32::from(bits == 0) * 1_000);
            let around = [line.built.checked_add(step), line.built.checked_sub(step)];
            for instant in around.into_iter().flatten() {
                assert_eq!(line.moment(instant), line.moment_by_arithmetic(instant), "{step:?}");
            }
        }
    }

    #[test]
    fn a_granularity_divides_as_the_processor_does() {
        let edges = |around: u64| [around.wrapping_sub(1), around, around.wrapping_add(1)];
        let powers = (0..64).flat_map(|bit| edges(1 << bit));
        let values: Vec<u64> =
            powers.chain(edges(1_000_000)).chain(edges(u64::MAX)).chain([3, 7, 12_345]).collect();
        for units in values.iter().filter_map(|units| NonZeroU64::new(*units)) {
            let granularity = Granularity::new(units);
            let multiples = values.iter().flat_map(|value| edges(value.wrapping_mul(units.get())));
            for value in values.iter().copied().chain(multiples) {
                let expected = value.div_ceil(units.get());
                assert_eq!(granularity.div_ceil(value), expected, "{value} / {units}");
            }
        }
    }

    #[test]
    fn s4_what_lies_beyond_the_line_is_never() {
        for tick in [Duration::from_nanos(1), Duration::from_millis(1), Duration::MAX] {
            let line = line(tick);
            assert_eq!(line.start().after(Duration::MAX), Moment::NEVER);
            assert!(line.instant(Moment::NEVER) > line.built + Duration::from_secs(1 << 33));
            assert!(line.end_of(line.covering(Moment::NEVER)) >= Moment(u64::MAX - (1 << 60)));
        }
    }

    #[test]
    fn an_instant_from_before_the_build_has_its_place() {
        let line = line(Duration::from_millis(3));
        let ago = Duration::from_millis(5);
        let before = line.built.checked_sub(ago).expect("the machine has been up that long");
        assert_eq!(line.start().since(line.moment(before)), Duration::from_millis(5));
        assert_eq!(line.instant(line.moment(before)), before);
        assert_eq!(line.instant(line.start().after_nanos(7)), line.built + Duration::from_nanos(7));
    }
}
