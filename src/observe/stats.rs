//! Counters of each thread, and the [`Stats`] that they add up to.
//!
//! Every thread that schedules, cancels or runs tasks has counters of its own, beside its lane of the
//! [`intake`](crate::engine::intake). Only this thread writes them, and a snapshot adds the counters of all threads up.
//! So counting costs a plain load and a plain store, and no two threads write to the same cache line.
//!
//! - COUNT-1 A counter has one writer at a time. A reader may see an old value, but sees every event once things are
//!   quiet (S26), because an event is counted before anything that tells another thread of it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::tick::Moment;
use crate::platform::impls::impl_debug;

/// A counter with one writer (COUNT-1).
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Clone for Counter {
    fn clone(&self) -> Counter {
        Counter(AtomicU64::new(self.get()))
    }
}

impl Counter {
    /// Relaxed, and no read-modify-write: no other thread writes it, and nothing is published by it.
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    #[inline]
    fn raise_to(&self, value: u64) {
        if value > self.get() {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one thread.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) scheduled: Counter,
    /// Tasks that are not pending any more, which makes room for others (S25).
    pub(crate) left: Counter,
    pub(crate) fired: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) panicked: Counter,
    pub(crate) dropped: Counter,
    /// Tasks that the scheduler's executor has done, those that were cancelled in its queue included.
    pub(crate) done: Counter,
    /// Made by a thread's first run: other threads need none.
    lateness: OnceLock<Lateness>,
}

impl Counts {
    /// Records how late a run starts that was due at `due`.
    #[inline]
    pub(crate) fn record_lateness(&self, now: Moment, due: Moment) {
        self.lateness.get_or_init(Lateness::default).record(now.0.saturating_sub(due.0));
    }
}

/// Each doubling has four bins, so a value is known within a quarter.
const STEPS_BITS: u32 = 2;
const STEPS: u64 = 1 << STEPS_BITS;
const BINS: usize = 64 * STEPS as usize;

/// Returns the bin of a value. Values below `2 * STEPS` have a bin each, larger ones share.
#[inline]
fn bin_of(nanos: u64) -> usize {
    let doubling = (nanos | STEPS).ilog2() - STEPS_BITS;
    (u64::from(doubling) * STEPS + (nanos >> doubling)) as usize
}

/// Returns the largest value of a bin.
fn end_of(bin: usize) -> u64 {
    let doubling = (bin as u64 / STEPS).saturating_sub(1);
    let next = (bin as u64 - doubling * STEPS + 1) << doubling;
    next.wrapping_sub(1) // the last bin ends with the last value, so `next` is zero there
}

/// A snapshot of a scheduler's counters.
///
/// In a snapshot that is taken while other threads schedule, cancel or run tasks, some of the numbers may be slightly
/// old. Once things are quiet, a snapshot is exact.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// scheduler.schedule_once(Duration::from_millis(5), || ())?;
/// scheduler.schedule_once(Duration::from_secs(60), || ())?.cancel();
/// driver.advance(Duration::from_millis(5));
///
/// let stats = scheduler.stats();
/// assert_eq!((stats.scheduled(), stats.fired(), stats.cancelled()), (2, 1, 1));
/// assert_eq!(stats.pending(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub(crate) scheduled: u64,
    pub(crate) left: u64,
    pub(crate) fired: u64,
    pub(crate) cancelled: u64,
    pub(crate) rejected: u64,
    pub(crate) panicked: u64,
    pub(crate) dropped: u64,
    pub(crate) wakeups: u64,
    pub(crate) lateness: Lateness,
}

impl Stats {
    /// Returns how many tasks were accepted. A series counts once.
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Returns how many tasks wait for their run, including series that have not ended.
    pub fn pending(&self) -> u64 {
        self.scheduled.saturating_sub(self.left)
    }

    /// Returns how many runs were started, including those that panicked.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Returns how many tasks and series were ended by a cancel.
    pub fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// Returns how often an executor refused a task.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Returns how many runs panicked, and how many wakers.
    pub fn panicked(&self) -> u64 {
        self.panicked
    }

    /// Returns how many tasks were dropped without a run and without a cancel: by an executor, or with the scheduler.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns how often the tick thread woke from its sleep.
    pub fn wakeups(&self) -> u64 {
        self.wakeups
    }

    /// Returns how late runs were started.
    pub fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    /// Adds what one thread has counted, except for `scheduled`.
    pub(crate) fn add_what_left(&mut self, counts: &Counts) {
        self.left += counts.left.get();
        self.fired += counts.fired.get();
        self.cancelled += counts.cancelled.get();
        self.panicked += counts.panicked.get();
        self.dropped += counts.dropped.get();
        counts.lateness.get().into_iter().for_each(|lateness| self.lateness.add(lateness));
    }
}

/// A histogram of how late runs were started, exact within a quarter of each value.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (scheduler, driver) = Scheduler::builder().tick(Duration::from_millis(10)).build_driven()?;
/// scheduler.schedule_once(Duration::from_millis(1), || ())?;
/// driver.advance(Duration::from_millis(10));
///
/// let stats = scheduler.stats();
/// assert_eq!(stats.lateness().count(), 1);
/// assert_eq!(stats.lateness().max(), Duration::from_millis(9)); // it waited for its tick
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Lateness {
    bins: Box<[Counter; BINS]>,
    /// In nanoseconds.
    max: Counter,
}

impl Lateness {
    #[inline]
    fn record(&self, nanos: u64) {
        self.bins[bin_of(nanos)].add(1);
        self.max.raise_to(nanos);
    }

    fn add(&self, other: &Lateness) {
        self.bins.iter().zip(&*other.bins).for_each(|(sum, bin)| sum.add(bin.get()));
        self.max.raise_to(other.max.get());
    }

    /// Returns how many runs were measured.
    pub fn count(&self) -> u64 {
        self.bins.iter().map(Counter::get).sum()
    }

    /// Returns the lateness of the latest run, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max.get())
    }

    /// Returns the lateness that a share `q` of the runs did not exceed: 0.5 is the median, 0.99 leaves out one run in
    /// a hundred. Returns zero if nothing has run.
    #[expect(clippy::cast_precision_loss, reason = "a rank among 2^53 need not be exact")]
    #[expect(clippy::cast_sign_loss, reason = "it is at least one")]
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        // Counted from the lowest, and from 1.
        let rank = (count as f64 * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bin = self.bins.iter().position(|bin| {
            seen += bin.get();
            seen >= rank
        });
        bin.map_or(self.max(), |bin| Duration::from_nanos(end_of(bin)).min(self.max()))
    }

    /// Returns the bins that are not empty, in order: the largest lateness of each, and how many runs fell into it.
    pub fn bins(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.bins.iter().map(Counter::get).enumerate().filter(|(_, runs)| *runs > 0);
        filled.map(|(bin, runs)| (Duration::from_nanos(end_of(bin)), runs))
    }
}

impl Default for Lateness {
    fn default() -> Lateness {
        let bins = Box::new(std::array::from_fn(|_| Counter::default()));
        Lateness { bins, max: Counter::default() }
    }
}

impl_debug!(Lateness, self,
    count: self.count(),
    median: self.quantile(0.5),
    p99: self.quantile(0.99),
    max: self.max()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s26_every_value_is_known_within_a_quarter() {
        let edges = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in edges.chain([u64::MAX, 1_234_567, 999]) {
            let end = end_of(bin_of(value));
            assert!(end >= value, "{value} ends before itself, at {end}");
            assert!(end - value <= value / 4, "{value} is in a bin that ends at {end}");
        }
    }

    #[test]
    fn a_bin_ends_where_the_next_begins() {
        let last = bin_of(u64::MAX);
        for bin in 0..last {
            assert_eq!((bin_of(end_of(bin)), bin_of(end_of(bin) + 1)), (bin, bin + 1));
        }
        assert_eq!(end_of(last), u64::MAX);
    }

    #[test]
    fn only_bins_that_are_not_empty_are_returned() {
        let (lateness, other) = (Lateness::default(), Lateness::default());
        [3, 3, 1_000_000].iter().for_each(|nanos| other.record(*nanos));
        lateness.add(&other);
        let bins: Vec<_> = lateness.bins().map(|(end, runs)| (end.as_nanos(), runs)).collect();
        assert_eq!(bins, [(3, 2), (u128::from(end_of(bin_of(1_000_000))), 1)]);
    }

    #[test]
    fn quantiles_are_read_from_the_bins() {
        let lateness = Lateness::default();
        assert_eq!(lateness.quantile(0.5), Duration::ZERO);
        let other = Lateness::default();
        (1..=100).for_each(|milli| other.record(milli * 1_000_000));
        lateness.add(&other);
        assert_eq!(lateness.count(), 100);
        let median = lateness.quantile(0.5).as_secs_f64();
        assert!((0.050..0.0625).contains(&median), "the median is {median}");
        assert_eq!(lateness.quantile(1.0), Duration::from_millis(100));
        assert_eq!(lateness.quantile(f64::NAN), lateness.quantile(0.0));
    }
}
