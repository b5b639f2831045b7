//! A sleep that cannot fail: [`Delay`].
//!
//! ```text
//!              reset                      refused: closed, or full
//!   never --------------> own scheduler ---------------------------> fallback
//!     ^                     |   |   ^                                 |   |
//!     |  reset_after        |   |   |             reset               |   |
//!     '---- (too far) ------'   |   '---------------------------------'   |
//!                               |                                         |
//!                               '---------------> ready <-----------------'
//! ```
//!
//! The fallback is the global scheduler. If that takes nothing either, it is a nap of the thread that polls.
//!
//! - FALLBACK-1 A poll that returns `Pending` leaves its waker with whatever keeps the time at that moment, or has
//!   woken it already. A delay that waits for nothing keeps the waker itself, for a reset.
//! - FALLBACK-2 A fallback has its end in real time, which is computed once. A scheduler's own clock may stand still,
//!   and then what is left by that clock would never become less.
//! - FALLBACK-3 Each step of the fallback is tried once in a poll. Only the last one returns without a timer, and it
//!   sleeps first. So a delay that is polled whenever it is woken costs at most a hundred polls a second.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::{Sleep, after};
use crate::Scheduler;

/// A future that is ready when its deadline has come, and has no error. Made by [`Scheduler::delay`].
///
/// It is what the traits of other crates ask of a timer: `Future<Output = ()> + Unpin + Send + Sync`, with a name. It
/// keeps time like a [`Sleep`]: never early, at most a tick late, woken by the tick thread, nothing is scheduled before
/// the first poll. A later deadline costs next to nothing. Take a `Sleep` if your code can do something about a
/// scheduler that is closed or full, and a `Delay` if it only has to wait.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let scheduler = Scheduler::new();
/// # tickwheel::future::block_on(async {
/// scheduler.delay(Duration::from_millis(5)).await;
/// # });
/// ```
///
/// # A scheduler that is closed or full
///
/// A delay that its scheduler refuses, or that a close has woken too early, waits for the rest of its time on the
/// [global](Scheduler::global) scheduler. What is left is read once from the clock of its own scheduler and then passes
/// in real time, also if that clock is a virtual one. So code without a way to report an error neither spins, as it
/// would if the delay were ready at once, nor hangs. If the delay is reset, it asks its own scheduler first again.
///
/// In a [`Driver::block_on`](crate::Driver::block_on) such a wait is one for another thread: use
/// [`block_on_patiently`](crate::Driver::block_on_patiently) if the code under test goes on after a close.
///
/// If the global scheduler refuses too, because the system starts no thread or all slots of the process are in use, a
/// poll of the delay puts its thread to sleep for up to 10 ms, and then wakes its task.
///
/// # Polls after the end
///
/// A delay that was ready is ready again at each poll, until it is [reset](Delay::reset). With the feature
/// `futures-core` it is a `FusedFuture`, which is terminated in that time.
#[must_use = "a future does nothing unless it is polled or awaited"]
pub struct Delay {
    /// On the delay's own scheduler. It has the deadline, whatever keeps the time.
    sleep: Sleep,
    keeper: Keeper,
    /// It was ready, and has not been reset since.
    is_over: bool,
}

/// What keeps the time of a delay.
enum Keeper {
    /// Its own scheduler.
    Own,
    /// Nothing. Here is the waker of the last poll, for a reset (FALLBACK-1).
    Nobody(Option<Waker>),
    /// Something else. It is boxed, because it is rare, and delays are kept by the million.
    Fallback(Box<Fallback>),
}

impl Scheduler {
    /// Returns a future without errors, which is ready when `duration` has passed since this call.
    ///
    /// If that is beyond the range of the clock, as with [`Duration::MAX`], the future is [never](Delay::never) ready,
    /// and holds no timer.
    pub fn delay(&self, duration: Duration) -> Delay {
        let now = self.now();
        let is_far = now.checked_add(duration).is_none();
        let keeper = if is_far { Keeper::Nobody(None) } else { Keeper::Own };
        Delay { sleep: self.sleep_since(now, duration), keeper, is_over: false }
    }

    /// Returns a future without errors, which is ready when the instant has come.
    pub fn delay_until(&self, deadline: Instant) -> Delay {
        Delay { sleep: self.sleep_until(deadline), keeper: Keeper::Own, is_over: false }
    }
}

impl Delay {
    /// Returns a delay that is not ready until it is reset. It holds no timer, and no place in the scheduler.
    ///
    /// It is for a field that has a timer only now and then. A task that waits for it is woken by a reset.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::future::Delay;
    ///
    /// let scheduler = Scheduler::new();
    /// let mut keep_alive = Delay::never(&scheduler);
    /// // The connection is idle now:
    /// keep_alive.reset_after(Duration::from_millis(5));
    /// tickwheel::future::block_on(keep_alive);
    /// ```
    pub fn never(scheduler: &Scheduler) -> Delay {
        scheduler.delay(Duration::MAX)
    }

    /// Returns the deadline, by the scheduler's clock. For a delay that is never ready, it lies centuries ahead.
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// Returns true if the deadline has come, or if the delay was ready.
    pub fn is_elapsed(&self) -> bool {
        self.is_over
            || match &self.keeper {
                Keeper::Own => self.sleep.is_elapsed(),
                Keeper::Nobody(_) => false,
                Keeper::Fallback(fallback) => self.sleep.is_elapsed() || fallback.left().is_zero(),
            }
    }

    /// Moves the deadline, even of a delay that was ready. The task that waits for the delay is woken at the new
    /// deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let mut idle = scheduler.delay(Duration::from_secs(30));
    /// driver.advance(Duration::from_secs(20));
    /// idle.reset(scheduler.now() + Duration::from_secs(30)); // something has come in
    /// driver.advance(Duration::from_secs(20));
    /// assert!(!idle.is_elapsed());
    /// driver.block_on(idle)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&mut self, deadline: Instant) {
        self.is_over = false;
        let waker = match mem::replace(&mut self.keeper, Keeper::Own) {
            Keeper::Own => return self.sleep.reset(deadline),
            Keeper::Nobody(waker) => waker,
            Keeper::Fallback(fallback) => fallback.into_waker(),
        };
        self.sleep.reset(deadline); // it has no alarm, so this sets none
        if let Some(waker) = waker {
            if self.poll_with(&waker).is_ready() {
                waker.wake();
            }
        }
    }

    /// Moves the deadline to `duration` from now, by the scheduler's clock, like [`reset`](Delay::reset).
    ///
    /// If that is beyond the range of the clock, the delay is [never](Delay::never) ready, and gives up its timer.
    pub fn reset_after(&mut self, duration: Duration) {
        let now = self.sleep.scheduler().now();
        match now.checked_add(duration) {
            Some(deadline) => self.reset(deadline),
            None => self.reset_to_never(after(now, duration)),
        }
    }

    fn reset_to_never(&mut self, far: Instant) {
        self.is_over = false;
        let own = self.sleep.take_waker();
        let waker = match mem::replace(&mut self.keeper, Keeper::Own) {
            Keeper::Own => own,
            Keeper::Nobody(waker) => waker,
            Keeper::Fallback(fallback) => fallback.into_waker(),
        };
        self.keeper = Keeper::Nobody(waker);
        self.sleep.reset(far);
    }

    /// Returns true if it was ready, and has not been reset since.
    #[cfg(feature = "futures-core")]
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Polls whatever keeps the time (FALLBACK-1).
    fn poll_with(&mut self, waker: &Waker) -> Poll<()> {
        match &mut self.keeper {
            Keeper::Own => match self.sleep.poll_with(waker) {
                Poll::Ready(Err(_)) => self.fall_back(waker),
                polled => polled.map(drop),
            },
            Keeper::Nobody(kept) => {
                match kept {
                    Some(kept) => kept.clone_from(waker), // unless it wakes the same task
                    None => *kept = Some(waker.clone()),
                }
                Poll::Pending
            }
            // The own clock may have been moved by hand in the meantime.
            Keeper::Fallback(_) if self.sleep.is_elapsed() => Poll::Ready(()),
            Keeper::Fallback(fallback) => fallback.poll_with(waker),
        }
    }

    /// Waits elsewhere for what is left of the time (FALLBACK-2).
    #[cold]
    fn fall_back(&mut self, waker: &Waker) -> Poll<()> {
        let now = self.sleep.scheduler().now();
        let left = self.sleep.deadline().saturating_duration_since(now);
        if left.is_zero() {
            return Poll::Ready(());
        }
        let mut fallback = Fallback { until: after(Instant::now(), left), sleep: None };
        let polled = fallback.poll_with(waker);
        self.keeper = Keeper::Fallback(Box::new(fallback));
        polled
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.is_over {
            this.is_over = this.poll_with(context.waker()).is_ready();
        }
        if this.is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Delay");
        match &self.keeper {
            Keeper::Nobody(_) => text.field("is_never", &true),
            _ => text.field("deadline", &self.deadline()).field("is_elapsed", &self.is_elapsed()),
        };
        text.finish_non_exhaustive()
    }
}

// ----- the fallback ------------------------------------------------------------------------

/// For how long a poll without any timer puts its thread to sleep (FALLBACK-3).
const NAP: Duration = Duration::from_millis(10);

/// What keeps the time when the scheduler of a delay does not.
struct Fallback {
    /// In real time (FALLBACK-2).
    until: Instant,
    /// `None` if no scheduler takes it.
    sleep: Option<Sleep>,
}

impl Fallback {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn into_waker(mut self) -> Option<Waker> {
        self.sleep.as_mut().and_then(Sleep::take_waker)
    }

    fn poll_with(&mut self, waker: &Waker) -> Poll<()> {
        if let Some(sleep) = &mut self.sleep {
            match sleep.poll_with(waker) {
                Poll::Ready(Err(_)) => self.sleep = None, // no slot is free for another waker
                polled => return polled.map(drop),
            }
        }
        if let Ok(global) = Scheduler::try_global() {
            let mut sleep = global.sleep_until(self.until);
            match sleep.poll_with(waker) {
                Poll::Ready(Err(_)) => {}
                Poll::Ready(Ok(())) => return Poll::Ready(()),
                Poll::Pending => {
                    self.sleep = Some(sleep);
                    return Poll::Pending;
                }
            }
        }
        self.nap(waker)
    }

    /// Waits without a timer: sleeps for a moment, and has the task poll again.
    fn nap(&self, waker: &Waker) -> Poll<()> {
        let left = self.left();
        thread::sleep(left.min(NAP));
        if left <= NAP {
            return Poll::Ready(());
        }
        waker.wake_by_ref();
        Poll::Pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn without_any_timer_a_delay_neither_spins_nor_hangs() {
        let (start, time) = (Instant::now(), NAP * 5);
        let fallback = Fallback { until: start + time, sleep: None };
        let (mut polls, waker) = (1, Waker::noop());
        while fallback.nap(waker).is_pending() {
            polls += 1;
        }
        assert!(start.elapsed() >= time && polls <= 6, "{polls} polls");
    }
}
