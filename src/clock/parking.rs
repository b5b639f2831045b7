//! How a thread sleeps: the [`Sleeper`] that clocks sleep with.
//!
//! A wake that comes before the sleep ends it (WAKE-3). The page [`waking`](crate::docs::waking) tells until when a thread
//! sleeps, and who wakes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::platform::impls::impl_debug;
use crate::platform::sleep::{KernelTimer, TAKES_KERNEL_TIMERS, boot_time, on_time};
use crate::platform::sync::{Condvar, Mutex, lock};

/// What a sleeper and its wakers share: a token and a condition variable, or, for times that a condition variable does not
/// keep, a timer of the system.
#[derive(Default)]
struct Parker {
    state: Mutex<ParkerState>,
    left: Condvar,
    /// There was a wake since the last call of [`Sleeper::take_woken`]. A sleep leaves it. It is written under the lock of
    /// `state`, and read without it. Relaxed suffices, because a thread that finds it set takes that lock, in `take_woken`,
    /// and looks after that at what the wake was for. So it is std's in a model too.
    is_woken: AtomicBool,
    /// Made for the first sleep that takes it.
    timer: OnceCell<KernelTimer>,
}

#[derive(Default)]
struct ParkerState {
    token: bool,
    is_on_condvar: bool,
    is_on_timer: bool,
}

/// A thread that has to count suspensions, and has no timer that does, looks at the clock so often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Parker {
    fn park_on_condvar(&self, timeout: Option<Duration>) {
        let mut state = lock(&self.state);
        // The look at the token and the wait are under one lock, so no wake comes between them (WAKE-3).
        if !state.token {
            let left = &self.left;
            state.is_on_condvar = true;
            state = match timeout {
                None => left.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let woken = on_time(|| left.wait_timeout(state, timeout));
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.is_on_condvar = false;
        }
        state.token = false; // this sleep has taken it
    }

    /// Returns false if there is no timer, or the system refuses. Then it has not slept.
    fn park_on_timer(&self, timeout: Duration, counts_suspension: bool) -> bool {
        // Most parkers never need one, and it is a handle of the system.
        let timer = self.timer.get_or_try_init(|| KernelTimer::new().ok_or(()));
        let Ok(timer) = timer else { return false };
        let mut state = lock(&self.state);
        debug_assert!(!state.is_on_timer, "two threads sleep with one `Sleeper`");
        // The timer is set under the lock, and so is `is_on_timer`, and the wait comes after that. So a wake
        // either comes before, and the thread finds the token, or it ends the timer that was set. An end that comes
        // late makes a later sleep return early.
        if !state.token {
            if !timer.set(timeout, counts_suspension) {
                return false;
            }
            state.is_on_timer = true;
            drop(state);
            let has_slept = timer.wait();
            state = lock(&self.state);
            state.is_on_timer = false;
            if !has_slept {
                return false;
            }
        }
        state.token = false;
        true
    }
}

/// What a [`Clock`](crate::Clock) puts the tick thread to sleep with.
///
/// A sleeper keeps a token: a wake that comes before the sleep ends it at once. So a clock that
/// hands out [`waker`](Sleeper::waker) first and sleeps afterwards loses no wake-up. One thread at a time sleeps with it.
#[derive(Default)]
pub struct Sleeper(Arc<Parker>);

impl Sleeper {
    /// Makes a sleeper for the calling thread.
    pub fn new() -> Sleeper {
        Sleeper::default()
    }

    /// Sleeps until woken. It may return early.
    pub fn sleep(&self) {
        self.0.park_on_condvar(None);
    }

    /// Sleeps until woken, for this long at most. It may return early.
    pub fn sleep_for(&self, timeout: Duration) {
        // On some systems the timed waits of std are not exact.
        let has_slept = TAKES_KERNEL_TIMERS && self.0.park_on_timer(timeout, false);
        if !has_slept {
            self.0.park_on_condvar(Some(timeout));
        }
    }

    /// Sleeps until woken, for this long at most, and counts the time in which the machine is suspended. It may return
    /// early.
    pub(crate) fn sleep_through_suspension(&self, timeout: Duration) {
        if !self.0.park_on_timer(timeout, true) {
            // A condition variable may stand still during a suspension. So a clock that runs on is looked at now and
            // then.
            let most = if boot_time().is_some() { LOOK_AGAIN } else { timeout };
            self.0.park_on_condvar(Some(timeout.min(most)));
        }
    }

    /// Returns true if a waker has woken it since the last call, also if a sleep has taken the token. Then no token is left.
    pub(crate) fn take_woken(&self) -> bool {
        let mut state = lock(&self.0.state);
        state.token = false;
        self.0.is_woken.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.0.is_woken.load(Ordering::Relaxed)
    }

    /// Returns how many wakers there are.
    pub(crate) fn wakers(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Returns a waker that ends the sleep, from any thread.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }
}

// Nothing of the token: its lock would be held while the formatter, which may be user code, runs.
impl_debug!(Sleeper, self);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// Leaves a token, and wakes the thread if it sleeps.
    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        // It stays for a sleep that comes later (WAKE-3).
        state.token = true;
        self.is_woken.store(true, Ordering::Relaxed);
        let (is_on_timer, is_on_condvar) = (state.is_on_timer, state.is_on_condvar);
        drop(state);
        match self.timer.get() {
            Some(timer) if is_on_timer => timer.end(),
            // The system is called only if a thread sleeps. A message loop is often woken while it spins.
            _ if is_on_condvar => self.left.notify_one(),
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::clocks::{BootClock, Clock, SystemClock};
    use std::time::Instant;

    /// A condition variable stands still while the machine is suspended, where std's clock does.
    #[test]
    fn a_sleep_that_counts_suspensions_takes_a_timer_of_the_system() {
        let sleeper = Sleeper::new();
        sleeper.sleep_through_suspension(Duration::from_micros(10));
        assert!(sleeper.0.timer.get().is_some() || boot_time().is_none());
        let sleeper = Sleeper::new();
        SystemClock.sleep(&sleeper, Some(Instant::now() + Duration::from_micros(200)));
        assert_eq!(sleeper.0.timer.get().is_some(), TAKES_KERNEL_TIMERS);
        // On a busy machine a millisecond may be over before the sleep begins.
        let waits = [1, 10, 100, 1000].map(Duration::from_millis);
        for wait in waits.into_iter().filter(|_| sleeper.0.timer.get().is_none()) {
            BootClock.sleep(&sleeper, Some(BootClock.now() + wait));
        }
        assert!(sleeper.0.timer.get().is_some() || boot_time().is_none());
    }

    #[test]
    fn a_token_ends_the_next_sleep_at_once() {
        let sleeper = Sleeper::new();
        sleeper.waker().wake();
        sleeper.sleep(); // it would hang without the token (WAKE-3)
    }
}
