//! Async code on a driver: [`Driver::block_on`].
//!
//! ```text
//!   poll --ready--> its output
//!     |  waits
//!     v
//!   turn, once and until the waker was woken --> poll
//!     |  nothing is due, also by the clock of `time::pause`
//!     v
//!   something is pending: move the clock to its deadline --> turn
//!   nothing is: a clock that can be moved: Stalled; one that runs by itself: look again and again
//! ```

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::driver::Driver;
use super::in_force::{self, Guard, Guarded};
use crate::clock::parking::Sleeper;
use crate::error::Stalled;

impl Driver {
    /// Runs a future on this thread to its end, and turns the scheduler meanwhile. Whenever the future waits and nothing
    /// is due, virtual time jumps to the next deadline. So an hour of sleeps and timeouts takes as long as its work.
    ///
    /// Its scheduler is [in force](crate::time#the-scheduler-in-force) on this thread meanwhile, as long as a handle of
    /// it is left, and unless a guard of [`enter`](crate::Scheduler::enter) or [`time::pause`](crate::time::pause())
    /// comes before it. So make sleeps inside of the future: an argument `time::sleep(..)` is made before this call,
    /// and keeps real time.
    ///
    /// The future may wait for whatever is woken on this thread: sleeps, timeouts, tasks, channels between parts of it.
    /// If other threads are to wake it, say so by [`block_on_patiently`](Driver::block_on_patiently): otherwise the time
    /// jumps ahead of them.
    ///
    /// On a clock that cannot be moved, as with [`SystemClock`](crate::SystemClock), it really waits: for the next
    /// deadline, or for another thread to wake the future.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let (hour, start) = (Duration::from_secs(3600), scheduler.now());
    /// let answer = driver.block_on(async {
    ///     let slow = async {
    ///         scheduler.sleep(hour).await;
    ///         42
    ///     };
    ///     scheduler.timeout(2 * hour, slow).await.expect("in time")
    /// })?;
    /// assert_eq!((answer, scheduler.now() - start), (42, hour));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Stalled`] if the future waits, nothing is pending any more, and the clock can be moved: nothing on this thread
    /// will wake it. Also if this is called inside of a task of the same driver, which would wait for itself. The future
    /// is dropped.
    ///
    /// # Panics
    ///
    /// With a panic of the future, or of a task, as [`turn`](Driver::turn) does.
    pub fn block_on<F: IntoFuture>(&self, future: F) -> Result<F::Output, Stalled> {
        self.block_on_patiently(Duration::ZERO, future)
    }

    /// Like [`block_on`](Driver::block_on), for a future that other threads wake too. Before virtual time jumps, and
    /// before it gives up, this waits up to `patience`, in real time, for another thread to wake the future.
    ///
    /// So a test decides whether its virtual time waits for real work. Without this it would depend on the load of the
    /// machine whether a timeout or an answer comes first.
    ///
    /// ```
    /// use std::thread;
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    /// use tickwheel::pool::ScheduledThreadPool;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// let pool = ScheduledThreadPool::new(1);
    /// let work = pool.submit(|| {
    ///     thread::sleep(Duration::from_millis(5)); // in real time
    ///     42
    /// })?;
    /// let in_time = scheduler.timeout(Duration::from_millis(1), work); // in virtual time
    /// let answer = driver.block_on_patiently(Duration::from_secs(60), in_time)?;
    /// assert_eq!(answer.expect("virtual time stood still")?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`block_on`](Driver::block_on).
    ///
    /// # Panics
    ///
    /// The panics of [`block_on`](Driver::block_on).
    pub fn block_on_patiently<F: IntoFuture>(
        &self,
        patience: Duration,
        future: F,
    ) -> Result<F::Output, Stalled> {
        // The engine is out, so it cannot be turned for the future.
        if self.shared.is_turned_here() {
            return Err(Stalled { pending: 0, is_inside_a_task: true });
        }
        // So that the functions of `time` inside of the future keep time by this driver.
        let _in_force = Guard::new(Guarded::Driven(self.shared.id, self.scheduler.clone()));
        let mut future = pin!(future.into_future());
        let (sleeper, mut may_jump) = (Sleeper::new(), true);
        let waker = sleeper.waker();
        let result = loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                break Ok(output);
            }
            if let Err(stalled) = self.wait(&sleeper, patience, &mut may_jump) {
                break Err(stalled);
            }
        };
        // A stop may have come in the last poll, or the last handle may have gone there, and no turn follows.
        self.end_if_stopped();
        self.resume_panic();
        result
    }

    /// Turns the scheduler until the future is woken. `may_jump`: it is the turn of the clock of `time::pause`.
    fn wait(
        &self,
        sleeper: &Sleeper,
        patience: Duration,
        may_jump: &mut bool,
    ) -> Result<(), Stalled> {
        loop {
            let mut next = self.turn(); // also if the future wakes itself each time
            // Taken before the next poll, so a wake during that poll, or after it, is found here.
            if sleeper.take_woken() {
                return Ok(());
            }
            if self.has_more(sleeper, next) {
                continue;
            }
            // Two clocks that can be moved take turns, because on each of them a series may have no end.
            let is_alone = next.is_none() || self.shared.watch.is_in_real_time;
            if std::mem::replace(may_jump, is_alone) && in_force::jump_when_idle() {
                continue;
            }
            *may_jump = true;
            if !self.moves_clock_to(self.reading()) {
                // It runs by itself. Another thread may schedule, so nothing is waited for in one go. If nothing is pending,
                // this thread looks for that each millisecond.
                match next {
                    Some(next) => self.sleep_towards(next, sleeper),
                    None => sleeper.sleep_for(Duration::from_millis(1)),
                }
                continue;
            }
            // Other threads may be about to wake the future, which takes real time. The clock must not jump before
            // that.
            if !patience.is_zero() {
                let start = Instant::now();
                while !sleeper.is_woken() && start.elapsed() < patience {
                    sleeper.sleep_for(patience.saturating_sub(start.elapsed())); // it may return early
                }
                next = self.turn(); // they may have scheduled something
            }
            match next {
                _ if self.has_more(sleeper, next) => {}
                Some(next) => _ = self.moves_clock_to(next),
                // Nothing is pending, and nobody has woken the future in the time that the caller gives them.
                None => {
                    let pending = self.shared.pending();
                    return Err(Stalled { pending, is_inside_a_task: false });
                }
            }
        }
    }

    /// Returns true if the future was woken, or if something is due.
    fn has_more(&self, sleeper: &Sleeper, next: Option<Instant>) -> bool {
        // The future may also wait for a task that this driver runs, so what is due comes before a jump of the clock.
        let is_due = next.is_some_and(|next| next <= self.reading());
        is_due || sleeper.is_woken()
    }
}
