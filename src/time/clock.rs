//! Where the time comes from: the system, or a test that moves it by hand.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::platform::sleep::on_time;
pub use crate::time::parking::Sleeper;

/// A source of [`Instant`]s that the tick thread can also sleep on.
///
/// # Contract
///
/// `now` never goes back, on any thread. `sleep` returns when `until` has come on this clock, or
/// when the sleeper is woken, whichever is first; returning early is always allowed.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tickwheel::{Clock, Sleeper, SystemClock};
///
/// /// A clock on which everything takes twice as long.
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
pub trait Clock: Send + Sync + 'static {
    /// The present.
    fn now(&self) -> Instant;

    /// Puts the calling thread to sleep until `until` has come (`None`: until woken).
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>);

    /// Moves the clock to an instant, if it can be moved: true says that it stands there, or
    /// later. [`Driver::advance`](crate::Driver::advance) asks for it.
    fn advance_to(&self, instant: Instant) -> bool {
        let _ = instant;
        false
    }

    /// Whether two readings, of which one was taken after the other on whatever threads, never
    /// say the same. If they do not, tasks of equal deadlines from several threads are kept in
    /// order by these readings, else by a counter that the threads share.
    fn tells_calls_apart(&self) -> bool {
        false
    }

    /// Whether a microsecond here is a microsecond there. If so, the histogram of lateness may take a
    /// reading that is about a microsecond old for the present.
    fn runs_in_real_time(&self) -> bool {
        false
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        (**self).sleep(sleeper, until);
    }

    fn advance_to(&self, instant: Instant) -> bool {
        (**self).advance_to(instant)
    }

    fn tells_calls_apart(&self) -> bool {
        (**self).tells_calls_apart()
    }

    fn runs_in_real_time(&self) -> bool {
        (**self).runs_in_real_time()
    }
}

/// The operating system's monotonic clock: [`Instant::now`].
///
/// A sleep on it ends on time: the fifty microseconds by which Linux may put off any thread's wake-up are
/// set aside while it lasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        match until {
            None => sleeper.sleep(),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    on_time(|| sleeper.sleep_for(left));
                }
            }
        }
    }

    /// It counts in nanoseconds or a few tens of them, and a task takes longer than that to pass
    /// from one thread to another.
    fn tells_calls_apart(&self) -> bool {
        true
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }
}

/// A clock that moves only when told, for tests. Clones show the same time.
///
/// With a scheduler that has its tick thread, [`advance`](ManualClock::advance) wakes that thread;
/// with [`build_driven`](crate::Builder::build_driven) nothing happens until the next
/// [`turn`](crate::Driver::turn).
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
    /// A clock that stands at the present instant.
    pub fn new() -> ManualClock {
        let manual = Manual { now: Instant::now(), sleepers: Vec::new() };
        ManualClock { shared: Arc::new(Mutex::new(manual)) }
    }

    /// Moves the time on. What lies beyond the range of [`Instant`] leaves it where it is.
    pub fn advance(&self, by: Duration) {
        let mut manual = self.lock();
        if let Some(later) = manual.now.checked_add(by) {
            manual.now = later;
        }
        Self::wake_all(manual);
    }

    fn wake_all(mut manual: std::sync::MutexGuard<'_, Manual>) {
        let sleepers = std::mem::take(&mut manual.sleepers);
        drop(manual);
        sleepers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Manual> {
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.lock().now
    }

    /// The waker is left under the same lock under which the time is compared, so an `advance`
    /// either is seen here or wakes.
    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        let waker = sleeper.waker();
        let mut manual = self.lock();
        if until.is_some_and(|until| until <= manual.now) {
            return;
        }
        manual.sleepers.push(waker.clone());
        drop(manual);
        sleeper.sleep();
        self.lock().sleepers.retain(|other| !other.will_wake(&waker));
    }

    fn advance_to(&self, instant: Instant) -> bool {
        let mut manual = self.lock();
        manual.now = manual.now.max(instant);
        Self::wake_all(manual);
        true
    }
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        ManualClock::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}
