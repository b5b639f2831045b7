//! Clocks: the operating system's, and one that a test moves by hand.

use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

pub use crate::clock::parking::Sleeper;
use crate::clock::tick::{Moment, Times};
use crate::clock::timeline::{Timeline, short_of_never};
use crate::platform::impls::{impl_behind, impl_debug};
use crate::platform::sleep::{PROCESSORS_MAY_DIFFER, boot_time};
use crate::platform::sync::lock_std;

/// A source of [`Instant`]s that the tick thread can also sleep on.
///
/// # Contract
///
/// `now` never goes back, on any thread. `sleep` returns when this clock reaches `until`, or
/// when the sleeper is woken, whichever is first. It may always return early.
///
/// A clock should not panic. If it does so on the tick thread, the panic is reported like that of a task, time stands
/// still, and the clock is asked again some milliseconds later. If it does so in a call of yours, such as `schedule_once`,
/// which needs the time of that call, the call unwinds, and nothing is scheduled. A [`Driver`](crate::Driver) asks three
/// times. A pool and a [message loop](crate::message_loop) go on, and ask again.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tickwheel::{Clock, Sleeper, SystemClock};
///
/// /// A clock that runs at half the speed of real time.
/// struct HalfSpeed(Instant);
///
/// impl Clock for HalfSpeed {
///     fn now(&self) -> Instant {
///         self.0 + self.0.elapsed() / 2
///     }
///     fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
///         let real = until.map(|until| self.0 + (until - self.0) * 2);
///         SystemClock.sleep(sleeper, real);
///     }
/// }
/// # let clock = HalfSpeed(Instant::now());
/// # clock.sleep(&Sleeper::default(), Some(clock.now() + Duration::from_millis(1)));
/// ```
#[expect(unused_variables, reason = "the default cannot move")]
pub trait Clock: Send + Sync + 'static {
    /// Returns the present time.
    fn now(&self) -> Instant;

    /// Puts the calling thread to sleep until `until`, or until it is woken if that is `None`.
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>);

    /// Moves the clock to an instant, and returns true if it stands there or later. Returns false if this clock cannot
    /// be moved. [`Driver::advance`](crate::Driver::advance) calls this.
    fn advance_to(&self, instant: Instant) -> bool {
        false
    }

    /// Returns true if two readings, one taken after the other on any threads, always differ. Then these readings keep
    /// tasks of equal deadlines from several threads in order. Otherwise a counter does, which the threads share.
    ///
    /// A clock that wraps another one passes the question on. A wrong true takes the order from equal deadlines (S3).
    fn tells_calls_apart(&self) -> bool {
        false
    }

    /// Returns true if this clock runs at the speed of real time. Then the histogram of lateness may use a
    /// reading that is about a microsecond old.
    ///
    /// A clock that wraps another one passes the question on. A wrong true makes the histogram less exact.
    fn runs_in_real_time(&self) -> bool {
        false
    }
}

impl_behind!(C: Clock for Arc<C>; {
    fn now(&self) -> Instant;
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>);
    fn advance_to(&self, instant: Instant) -> bool;
    fn tells_calls_apart(&self) -> bool;
    fn runs_in_real_time(&self) -> bool;
});

/// The operating system's monotonic clock: [`Instant::now`].
///
/// A sleep on it ends on time. By default, Linux may delay a timed wait by another 50 us (the timer slack of the
/// thread). During the sleep that is turned off.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// So many readings, one after the other, show whether some of them are equal. They take some microseconds.
const READINGS: usize = 256;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        sleep_by(self, sleeper, until, Sleeper::sleep_for);
    }

    /// Returns true if its steps are shorter than a reading takes, as they are on most systems.
    fn tells_calls_apart(&self) -> bool {
        static ALWAYS_DIFFER: OnceLock<bool> = OnceLock::new();
        *ALWAYS_DIFFER.get_or_init(|| {
            // Of a clock with coarse steps some of them are equal.
            let readings: Vec<_> = (0..READINGS).map(|_| Instant::now()).collect();
            // On Windows the steps are 100 ns, and two processors may differ by one.
            !PROCESSORS_MAY_DIFFER && readings.is_sorted_by(|before, after| before < after)
        })
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }
}

/// Sleeps until this instant of a clock that runs by itself, or until a wake if it is `None`.
pub(crate) fn sleep_by(
    clock: &impl Clock,
    sleeper: &Sleeper,
    until: Option<Instant>,
    sleep: impl FnOnce(&Sleeper, Duration),
) {
    let Some(until) = until else { return sleeper.sleep() };
    let left = until.saturating_duration_since(clock.now());
    if !left.is_zero() {
        sleep(sleeper, left);
    }
}

/// A clock that counts the time in which the machine was suspended.
///
/// [`SystemClock`] stands still on most systems while a laptop's lid is closed or a phone sleeps: a timeout of an hour
/// then ends after an hour in which the machine was awake. On this clock it ends an hour after it began. What became due
/// during a suspension is due soon after the resume: at once, or within five seconds on Windows. A machine is not woken
/// for it.
///
/// Take it for what the world outside counts: sessions, leases, tokens, caches, reminders. Take [`SystemClock`] for what
/// the program itself counts: timeouts of requests, polls, frames. After a suspension, their other side was suspended too.
/// See [`platforms`](crate::platforms) for the clocks behind both.
///
/// After a suspension its instants are later than those of [`Instant::now`]. So compare them only with its own.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{BootClock, Clock, Scheduler};
///
/// let scheduler = Scheduler::builder().clock(BootClock).build()?;
/// let (expired, expiry) = mpsc::channel();
/// let start = BootClock.now();
/// scheduler.schedule_once(Duration::from_millis(20), move || expired.send("the lease").unwrap())?;
/// assert_eq!(expiry.recv()?, "the lease");
/// assert!(BootClock.now() - start >= Duration::from_millis(20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        /// A reading of both clocks, from which all others are counted.
        static BOTH: OnceLock<Option<(Instant, Duration)>> = OnceLock::new();
        // Counted on from a reading of std's clock, because an `Instant` can be made in no other way.
        let both = BOTH.get_or_init(|| Some((Instant::now(), boot_time()?)));
        let now = both.and_then(|(start, at)| Some(start + boot_time()?.saturating_sub(at)));
        now.unwrap_or_else(Instant::now)
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        sleep_by(self, sleeper, until, Sleeper::sleep_through_suspension);
    }

    /// As for [`SystemClock`].
    fn tells_calls_apart(&self) -> bool {
        SystemClock.tells_calls_apart()
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }
}

/// A clock that moves only when a test moves it. Clones show the same time.
///
/// If the scheduler has a tick thread, [`advance`](ManualClock::advance) wakes that thread. After
/// [`build_driven`](crate::Builder::build_driven) nothing happens until the next [`turn`](crate::Driver::turn).
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now() - before, Duration::from_secs(3600));
/// ```
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<Mutex<Manual>>,
}

struct Manual {
    now: Instant,
    sleepers: Vec<Waker>,
}

impl ManualClock {
    /// Creates a clock that stands at the present instant.
    pub fn new() -> ManualClock {
        ManualClock::at(Instant::now())
    }

    /// Creates a clock that stands at this instant.
    pub(crate) fn at(instant: Instant) -> ManualClock {
        let manual = Manual { now: short_of_never(instant), sleepers: Vec::new() };
        ManualClock { shared: Arc::new(Mutex::new(manual)) }
    }

    /// Moves the clock forward. If the result would be beyond the range of [`Instant`], the clock does not move.
    pub fn advance(&self, by: Duration) {
        self.move_to(|now| now.checked_add(by).unwrap_or(now));
    }

    /// Moves the clock to the time that `time` returns for its present one, but never back.
    fn move_to(&self, time: impl FnOnce(Instant) -> Instant) {
        let mut manual = lock_std(&self.shared);
        manual.now = manual.now.max(short_of_never(time(manual.now)));
        // All of them: each looks at the time by itself, and sleeps again if it is not its own.
        let sleepers = std::mem::take(&mut manual.sleepers);
        drop(manual);
        sleepers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        lock_std(&self.shared).now
    }

    /// Sleeps until an [`advance`](ManualClock::advance), or until woken.
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        // The time is compared and the waker is left under one lock. So either this sees an `advance`, or the
        // `advance` wakes it.
        let waker = sleeper.waker();
        let mut manual = lock_std(&self.shared);
        if until.is_some_and(|until| until <= manual.now) {
            return;
        }
        manual.sleepers.push(waker.clone());
        drop(manual); // or no `advance` could come
        sleeper.sleep();
        // Another wake may have ended the sleep, and then the waker is still there.
        lock_std(&self.shared).sleepers.retain(|other| !other.will_wake(&waker));
    }

    fn advance_to(&self, instant: Instant) -> bool {
        self.move_to(|_| instant);
        true
    }
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        ManualClock::new()
    }
}

impl_debug!(ManualClock, self, now: self.now());

// ----- a clock and its timeline ------------------------------------------------------------------

/// A scheduler's watch: its clock, and the [`Timeline`] on which it reads it.
pub(crate) struct Watch {
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) timeline: Timeline,
    pub(crate) is_in_real_time: bool,
    /// The clock is a [`SystemClock`](crate::SystemClock).
    pub(crate) has_system_clock: bool,
    /// The tick that the user has asked for, in nanoseconds. That of the timeline may be finer.
    pub(crate) tick: u64,
}

impl Watch {
    /// Returns the present.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.timeline.present(self.clock.now())
    }

    /// Returns the times of a task that is to run after a delay. Callers call it before anything else that takes time
    /// (S1).
    #[inline]
    pub(crate) fn after(&self, delay: Duration) -> Times {
        let now = self.now();
        Times { now, deadline: now.after(delay) }
    }

    /// Returns the times of a task that is to run at an instant.
    pub(crate) fn at(&self, instant: Instant) -> Times {
        let reading = self.clock.now();
        let deadline = self.timeline.deadline(instant, reading);
        Times { now: self.timeline.present(reading), deadline }
    }
}
