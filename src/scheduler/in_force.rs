//! The scheduler in force on a thread: what the functions of [`time`](crate::time) keep time by.
//!
//! ```text
//!   1  the virtual clock that `time::pause` has put on this thread
//!   2  the innermost guard of `Scheduler::enter`
//!   3  the innermost `Driver::block_on`
//!   4  after `time::resume`, a clock that is ahead of the real one
//!   5  the global scheduler: also if the one above is closed, or if this thread has lost its thread-locals
//! ```
//!
//! - FORCE-1 A future takes a [`TimeSource`] where it is made, and keeps it. So it may move to any thread.
//! - FORCE-2 Nothing is borrowed here while a clock, a waker or the end of a scheduler runs.
//! - FORCE-3 The global scheduler is never counted, because all threads would share that count. It is made at the first
//!   poll that needs it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Driver, GLOBAL, Scheduler};
use crate::clock::clocks::{Clock, ManualClock, Sleeper, SystemClock};
use crate::engine::Precision;
use crate::platform::panics::quietly;

/// A scheduler as futures keep it: a share of a handle's count, or nothing for the global one (FORCE-3).
#[derive(Clone)]
pub(crate) struct TimeSource(Option<Arc<Scheduler>>);

impl TimeSource {
    pub(crate) fn of(scheduler: &Scheduler) -> TimeSource {
        TimeSource((!scheduler.is_global()).then(|| scheduler.for_futures()))
    }

    /// Returns what is in force on the calling thread.
    #[inline]
    pub(crate) fn in_force() -> TimeSource {
        if !IS_ANY.get() {
            return TimeSource(None);
        }
        let chosen = HERE.try_with(|here| here.borrow().chosen().cloned()).ok().flatten();
        TimeSource(chosen.filter(|scheduler| !scheduler.is_closed()))
    }

    /// Returns the present, without making the global scheduler.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.known().map_or_else(Instant::now, Scheduler::now)
    }

    /// Returns true if its clock does not run by itself.
    pub(crate) fn is_virtual(&self) -> bool {
        self.known().is_some_and(|scheduler| !scheduler.shared().is_in_real_time())
    }

    /// Returns the scheduler, or `None` if it is the global one and the system starts no thread for it.
    #[inline]
    pub(crate) fn scheduler(&self) -> Option<&Scheduler> {
        match &self.0 {
            Some(scheduler) => Some(scheduler),
            None => Scheduler::try_global().ok(),
        }
    }

    /// Goes over to the scheduler that runs below the others: the one of a thread that has resumed its time, or the global one.
    /// Returns this deadline by its clock, or `None` if this is the global one already.
    pub(crate) fn fall_back(&mut self, deadline: Instant) -> Option<Instant> {
        let old = self.0.take()?;
        let resumed = HERE.try_with(|here| here.borrow().resumed.clone()).ok().flatten();
        self.0 = resumed.filter(|resumed| !Arc::ptr_eq(resumed, &old));
        let has_system_clock = |scheduler: &Scheduler| scheduler.shared().has_system_clock();
        if has_system_clock(&old) && self.known().is_none_or(has_system_clock) {
            return Some(deadline);
        }
        let left = deadline.saturating_duration_since(old.now()); // before the other reading, so that it is never early
        let now = self.now();
        Some(now.checked_add(left).unwrap_or(deadline))
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn is(&self, scheduler: &Scheduler) -> bool {
        match &self.0 {
            Some(own) => Arc::ptr_eq(own.shared(), scheduler.shared()),
            None => scheduler.is_global(),
        }
    }

    /// Returns the scheduler, or `None` if it is the global one and nobody has used it yet.
    fn known(&self) -> Option<&Scheduler> {
        self.0.as_deref().or_else(|| GLOBAL.get())
    }
}

thread_local! {
    /// Something is in `HERE`. It has no destructor, so it can be read as long as the thread lives.
    static IS_ANY: Cell<bool> = const { Cell::new(false) };
    static HERE: RefCell<Here> =
        const { RefCell::new(Here { paused: None, entered: Vec::new(), driven: Vec::new(), resumed: None, guards: 0 }) };
}

/// What is in force on a thread.
struct Here {
    paused: Option<Rc<Paused>>,
    /// By the numbers of their guards, the innermost last.
    entered: Vec<(u64, Arc<Scheduler>)>,
    driven: Vec<(u64, Arc<Scheduler>)>,
    resumed: Option<Arc<Scheduler>>,
    guards: u64,
}

impl Here {
    fn chosen(&self) -> Option<&Arc<Scheduler>> {
        let innermost = self.entered.last().or(self.driven.last()).map(|(_, scheduler)| scheduler);
        let paused = self.paused.as_ref().map(|paused| &paused.scheduler);
        paused.or(innermost).or(self.resumed.as_ref())
    }

    fn note_if_any(&self) {
        IS_ANY.set(self.chosen().is_some());
    }
}

// ----- guards --------------------------------------------------------------------------------

/// A guard: a scheduler is in force on this thread until it is dropped. Made by [`Scheduler::enter`].
#[must_use = "the scheduler is in force until the guard is dropped"]
pub struct Entered<'a> {
    guard: Guard,
    /// It belongs to its thread.
    _scheduler: PhantomData<(&'a Scheduler, *mut ())>,
}

impl Scheduler {
    /// Makes this scheduler the one in force on the calling thread until the guard is dropped. The functions of
    /// [`time`](crate::time) use it then.
    ///
    /// Guards nest, and the innermost one counts. The guard belongs to its thread: it is not `Send`. If it is held across
    /// an `.await`, the scheduler is in force for whatever else this thread polls in the meantime. On a thread where time
    /// is [paused](crate::time::pause) the virtual clock counts.
    ///
    /// If many threads enter, give each of them a clone of its own. A guard and its futures share one count with all that
    /// are made through the same handle.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Scheduler, time};
    ///
    /// let scheduler = Scheduler::new();
    /// let sleep = {
    ///     let _in_force = scheduler.enter();
    ///     time::sleep(Duration::from_millis(5)) // keeps this scheduler, wherever it is polled
    /// };
    /// tickwheel::future::block_on(sleep);
    /// ```
    pub fn enter(&self) -> Entered<'_> {
        let guard = Guard::new(self.for_futures(), |here| &mut here.entered);
        Entered { guard, _scheduler: PhantomData }
    }
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").field("number", &self.guard.number).finish_non_exhaustive()
    }
}

type Guards = fn(&mut Here) -> &mut Vec<(u64, Arc<Scheduler>)>;

/// Puts a scheduler among the guards of this thread until it is dropped. Guards may be dropped in any order.
pub(super) struct Guard {
    number: u64,
    guards: Guards,
}

impl Guard {
    fn new(scheduler: Arc<Scheduler>, guards: Guards) -> Guard {
        let number = HERE.try_with(|here| {
            let mut here = here.borrow_mut();
            here.guards += 1;
            let number = here.guards;
            guards(&mut here).push((number, scheduler));
            here.note_if_any();
            number
        });
        Guard { number: number.unwrap_or(0), guards } // without thread-locals nothing is in force
    }

    /// For the time of a `Driver::block_on`.
    pub(super) fn driven(scheduler: &Scheduler) -> Guard {
        Guard::new(scheduler.for_futures(), |here| &mut here.driven)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let taken = HERE.try_with(|here| {
            let mut here = here.borrow_mut();
            let guards = (self.guards)(&mut here);
            let at = guards.iter().rposition(|(number, _)| *number == self.number)?;
            let taken = guards.remove(at);
            here.note_if_any();
            Some(taken)
        });
        drop(taken); // it may be the last share of its scheduler (FORCE-2)
    }
}

// ----- a virtual clock -----------------------------------------------------------------------

/// The virtual time of a thread.
struct Paused {
    scheduler: Arc<Scheduler>,
    driver: Driver,
    /// What the last sleep waits with that was polled here.
    last: RefCell<Option<Waker>>,
}

impl Drop for Paused {
    /// A thread that ends must not unwind here.
    fn drop(&mut self) {
        let last = self.last.take();
        quietly(|| drop(last));
    }
}

fn paused() -> Option<Rc<Paused>> {
    IS_ANY.get().then(|| HERE.try_with(|here| here.borrow().paused.clone()).ok().flatten())?
}

/// What [`pause`] and [`resume`] found.
pub(crate) enum Time {
    Changed,
    WasSo,
    /// The thread is in a [`Driver::block_on`], whose time is virtual already.
    Driven,
}

/// Returns true if a `Driver::block_on` decides about the time of the calling thread.
fn is_driven() -> bool {
    let is_driven = |here: &RefCell<Here>| {
        let here = here.borrow();
        here.paused.is_none() && here.entered.is_empty() && !here.driven.is_empty()
    };
    IS_ANY.get() && HERE.try_with(is_driven).unwrap_or(false)
}

/// Puts a virtual clock on the calling thread.
pub(crate) fn pause() -> Time {
    if is_driven() {
        return Time::Driven;
    }
    if paused().is_some() {
        return Time::WasSo;
    }
    let clock = ManualClock::new();
    clock.advance_to(TimeSource::in_force().now());
    let built = Scheduler::builder().precision(Precision::Exact).clock(clock).build_driven();
    let (scheduler, driver) = built.expect("the defaults are right");
    let paused =
        Rc::new(Paused { scheduler: scheduler.for_futures(), driver, last: RefCell::new(None) });
    let _ = HERE.try_with(|here| {
        let mut here = here.borrow_mut();
        here.paused = Some(paused);
        here.note_if_any();
    });
    Time::Changed
}

/// Has the time of the calling thread run on from where it stands. What is left of sleeps on the virtual clock passes in
/// real time: their scheduler is closed.
pub(crate) fn resume() -> Time {
    let paused = HERE.try_with(|here| here.borrow_mut().paused.take());
    let Some(paused) = paused.ok().flatten() else {
        return if is_driven() { Time::Driven } else { Time::WasSo };
    };
    let ahead = paused.driver.now().saturating_duration_since(Instant::now());
    let clock = Ahead(ahead);
    let resumed = (!ahead.is_zero()).then(|| Scheduler::builder().clock(clock).build().ok());
    let resumed = resumed.flatten().map(|scheduler| scheduler.for_futures());
    let before = HERE.try_with(|here| {
        let mut here = here.borrow_mut();
        let before = std::mem::replace(&mut here.resumed, resumed);
        here.note_if_any();
        before
    });
    drop(before); // nothing is borrowed (FORCE-2)
    drop(paused.scheduler.close()); // it wakes the sleeps
    Time::Changed
}

/// The time of a thread after [`resume`]: it runs on from where the virtual clock stood, so that instants never go back.
struct Ahead(Duration);

impl Clock for Ahead {
    fn now(&self) -> Instant {
        Instant::now() + self.0
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        SystemClock.sleep(sleeper, until.map(|until| until.checked_sub(self.0).unwrap_or(until)));
    }

    fn tells_calls_apart(&self) -> bool {
        SystemClock.tells_calls_apart()
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }
}

/// Moves the virtual clock of the calling thread.
pub(crate) fn advance(duration: Duration) -> Time {
    match paused() {
        Some(paused) => {
            paused.driver.advance(duration);
            Time::Changed
        }
        None if is_driven() => Time::Driven,
        None => Time::WasSo,
    }
}

/// Notes that a sleep which was polled on this thread waits.
#[inline]
pub(crate) fn note_waiting(waker: &Waker) {
    if IS_ANY.get() {
        if let Some(paused) = paused() {
            let before = paused.last.replace(Some(waker.clone()));
            drop(before); // with nothing borrowed (FORCE-2)
        }
    }
}

/// Moves the virtual clock of the calling thread to the next deadline. Returns false if there is no such clock, or if
/// nothing is pending on it.
///
/// What is due then may wake something that is no task of this thread's runtime. The runtime would sleep, and not ask again,
/// so the task that has polled a sleep last is woken too.
pub(crate) fn jump_when_idle() -> bool {
    let Some(paused) = paused().filter(|paused| !paused.scheduler.is_turned_here()) else {
        return false;
    };
    let Some(next) = paused.driver.next_deadline() else { return false };
    paused.driver.advance(next.saturating_duration_since(paused.driver.now()));
    let last = paused.last.take(); // its task polls a sleep again, if it still waits for one
    quietly(|| last.into_iter().for_each(Waker::wake)); // a panic would end the runtime
    true
}
