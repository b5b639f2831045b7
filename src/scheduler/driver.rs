//! The engine without its thread: for tests, and for somebody's own event loop.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::engine::shared::Shared;
use crate::engine::termination;
use crate::engine::{Engine, Next};
use crate::platform::panics::quietly;
use crate::scheduler::leftovers::Leftovers;
use crate::time::parking::Sleeper;
use crate::time::tick::Moment;

/// Turns a scheduler that has no thread: what [`Builder::build_driven`](crate::Builder::build_driven)
/// gives beside it.
///
/// Nothing runs but inside [`turn`](Driver::turn) and [`advance`](Driver::advance), on the thread
/// that calls them (with the default executor, [`Inline`](crate::Inline)). The time is virtual, and
/// stands still between calls, unless the builder was given another clock. Dropping the driver ends
/// its scheduler and drops what was pending.
///
/// A test of an hour:
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
///
/// let (scheduler, driver) = Scheduler::builder().build_driven()?;
/// let minute = Duration::from_secs(60);
/// scheduler.schedule_repeatedly(minute, minute, || ())?;
/// assert_eq!(driver.advance(60 * minute), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A loop of one's own, on the system's clock:
///
/// ```
/// use std::time::{Duration, Instant};
/// use tickwheel::{Scheduler, SystemClock};
///
/// let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven()?;
/// let done = scheduler.schedule_once(Duration::from_millis(3), || ())?;
/// while !done.is_done() {
///     let come_back = driver.turn();
///     // ... wait for sockets, until `come_back` at the latest ...
///     # std::thread::sleep(come_back.map_or(Duration::ZERO, |at| at - Instant::now()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the driver ends its scheduler: keep it, and call `turn` or `advance`"]
pub struct Driver {
    shared: Arc<Shared>,
    cell: Arc<EngineCell>,
}

/// An engine that is taken out to be turned, so that nothing is locked while tasks run (S11).
pub(crate) struct EngineCell(Mutex<Option<Box<Engine>>>);

impl EngineCell {
    pub(crate) fn new(engine: Engine) -> Arc<EngineCell> {
        Arc::new(EngineCell(Mutex::new(Some(Box::new(engine)))))
    }

    /// Takes the engine out; `None` when it is out already: somebody turns it.
    fn take(&self) -> Option<Taken<'_>> {
        let engine = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Taken { cell: self, engine: Some(engine) })
    }

    /// Turns a stopped engine to its end, unless somebody is turning it.
    pub(crate) fn end(&self) {
        if let Some(mut taken) = self.take() {
            taken.turns();
        }
    }
}

/// The engine, out of its cell; it goes back when this is dropped.
struct Taken<'a> {
    cell: &'a EngineCell,
    engine: Option<Box<Engine>>,
}

impl Taken<'_> {
    /// Turns until all is done that is due and was scheduled before this call.
    fn turns(&mut self) -> Next {
        let Some(engine) = &mut self.engine else { return Next::Ended };
        let cut = engine.cut();
        loop {
            match engine.turn(cut) {
                Next::Again => {}
                next => return next,
            }
        }
    }

    /// Arms the doorbell for the time until `next`, and rings it if something came in between the turn and the arming: arm,
    /// then look (WAKE-8).
    fn arm(&self, next: Next) {
        let Some(engine) = &self.engine else { return };
        let (at, threshold) = match next {
            Next::At(at) => (at, engine.threshold(at)),
            Next::Idle => (Moment::NEVER, Moment::NEVER),
            Next::Again | Next::Ended => return,
        };
        let shared = engine.shared();
        shared.will_wake_at(at);
        shared.bell.arm(threshold);
        if engine.has_news() {
            shared.bell.ring_if_asleep();
        }
    }

    /// When to come back: at once, if something came in after the cut.
    fn answer(&self, next: Next) -> Option<Instant> {
        let engine = self.engine.as_ref()?;
        let shared = engine.shared();
        match next {
            Next::Ended => None,
            _ if engine.has_news() => Some(shared.clock.now()),
            Next::Again => Some(shared.clock.now()),
            Next::At(at) => Some(shared.timeline.instant(at)),
            Next::Idle => None,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.cell.0.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.take();
    }
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, cell: Arc<EngineCell>) -> Driver {
        Driver { shared, cell }
    }

    /// The present, on the scheduler's clock.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Does what is due by the clock, and says when to come back: `None` when nothing is pending, or only tasks of
    /// executors that have refused them for good.
    ///
    /// What tasks schedule during the turn is left to the next one, even if it is due at once; then
    /// the answer is the present. Called from inside a task of the same driver it does nothing.
    pub fn turn(&self) -> Option<Instant> {
        let Some(mut engine) = self.cell.take() else {
            return Some(self.now());
        };
        self.shared.bell.disarm();
        let next = engine.turns();
        engine.arm(next);
        engine.answer(next)
    }

    /// Moves the virtual time, step by step from deadline to deadline, and runs everything in
    /// order, what is scheduled on the way included. How many runs were started.
    ///
    /// On a clock that cannot be moved, such as [`SystemClock`](crate::SystemClock), it waits until the time has passed.
    /// A task that keeps scheduling itself with no delay keeps this call from returning. Called from
    /// inside a task of the same driver it does nothing.
    pub fn advance(&self, by: Duration) -> usize {
        if self.shared.is_turned_here() {
            return 0; // inside a task: time does not pass for it
        }
        let before = self.shared.fired();
        let target = self.now().checked_add(by);
        let target = target.unwrap_or_else(|| self.shared.timeline.instant(Moment::NEVER));
        loop {
            match self.turn() {
                Some(next) if next <= target => self.move_to(next),
                _ if self.now() < target => self.move_to(target),
                _ => break,
            }
        }
        usize::try_from(self.shared.fired() - before).unwrap_or(usize::MAX)
    }

    /// Moves the clock, or waits for it.
    fn move_to(&self, instant: Instant) {
        if instant <= self.now() || self.shared.clock.advance_to(instant) {
            return;
        }
        // Tick by tick: what another thread schedules meanwhile may be due earlier.
        let tick = Duration::from_nanos(self.shared.timeline.tick_nanos().get());
        let step = self.now().checked_add(tick).map_or(instant, |step| step.min(instant));
        self.shared.clock.sleep(&Sleeper::new(), Some(step));
    }

    /// Ends the scheduler, and returns what was pending.
    pub fn close(self) -> Leftovers {
        self.shared.termination.want();
        self.shared.stop();
        self.cell.end();
        let termination = &self.shared.termination;
        let until = termination::after(self.shared.shutdown_timeout);
        // Another thread that closes or stops the scheduler may have the engine now.
        let waited = if self.shared.is_turned_here() { None } else { termination.wait(until) };
        let leftovers = waited.or_else(|| termination.take()).unwrap_or_default();
        Leftovers::new(Arc::clone(&self.shared), leftovers)
    }

    /// Names what is woken when, after a [`turn`](Driver::turn), something comes in from another
    /// thread that is due before the time that the turn has told. `None` names nobody.
    ///
    /// A waker can write to a pipe, post to a loop, or unpark a thread:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::task::{Wake, Waker};
    /// use std::thread::{self, Thread};
    /// use tickwheel::{Scheduler, SystemClock};
    ///
    /// struct Unpark(Thread);
    /// impl Wake for Unpark {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.unpark();
    ///     }
    /// }
    ///
    /// let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven()?;
    /// driver.wake_with(Some(Waker::from(Arc::new(Unpark(thread::current())))));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn wake_with(&self, waker: Option<Waker>) {
        self.shared.bell.wakes(waker);
    }
}

impl Drop for Driver {
    /// The bell may outlive it in the lanes of threads; a user's waker must not.
    fn drop(&mut self) {
        quietly(|| self.shared.bell.wakes(None));
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("pending", &self.shared.pending()).finish_non_exhaustive()
    }
}
