//! The scheduler in force on a thread: what the functions of [`time`](crate::time) keep time by.
//!
//! ```text
//!   1  the virtual clock that `time::pause` has put on this thread
//!   2  the innermost guard of `Scheduler::enter`
//!   3  the innermost `Driver::block_on`, as long as a handle of its scheduler is left
//!   4  after `time::resume`, a clock that runs on from where the virtual one stood
//!   5  the global scheduler
//! ```
//!
//! If the first of these is closed, the fourth or fifth is in force.
//!
//! A future takes a [`TimeSource`] where it is made, and keeps it. So it may move to any thread. The global scheduler is
//! made at the first poll that needs it.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Driver, GLOBAL, Scheduler, WeakScheduler};
use crate::clock::clocks::{Clock, ManualClock, Sleeper, sleep_by};
use crate::clock::timeline::{after, short_of_never};
use crate::engine::Precision;
use crate::engine::shared::Shared;
use crate::engine::this_thread::is_turning;
use crate::platform::impls::impl_debug;
use crate::platform::panics::quietly;
use crate::wheel::entry::SchedulerId;

/// A scheduler as futures keep it: a share of a handle's count, or nothing for the global one.
pub(crate) struct TimeSource(Option<Arc<Scheduler>>);

impl TimeSource {
    pub(crate) fn of(scheduler: &Scheduler) -> TimeSource {
        // Futures of the global scheduler count on nothing, because all threads would share that count.
        TimeSource((!scheduler.is_global()).then(|| scheduler.for_futures()))
    }

    /// Returns what is in force on the calling thread.
    #[inline]
    pub(crate) fn in_force() -> TimeSource {
        // One flag for the usual case, which is the global scheduler.
        TimeSource(if IS_ANY.get() { in_force() } else { None })
    }

    /// Returns the present, without making the global scheduler.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.known().map_or_else(Instant::now, Scheduler::now)
    }

    /// Returns true if its clock does not run by itself.
    pub(crate) fn is_virtual(&self) -> bool {
        self.known().is_some_and(|scheduler| !scheduler.shared().watch.is_in_real_time)
    }

    /// Returns the scheduler, or `None` if it is the global one and the system starts no thread for it.
    #[inline]
    pub(crate) fn scheduler(&self) -> Option<&Scheduler> {
        self.0.as_deref().or_else(|| Scheduler::try_global().ok())
    }

    /// Goes over to the scheduler that follows this one, or to the global one. Returns this deadline by its clock, or
    /// `None` if this is the global one already.
    pub(crate) fn fall_back(&mut self, mut deadline: Instant) -> Option<Instant> {
        let old = Arc::clone(self.0.as_ref()?);
        let next = TimeSource(old.service.life.successor.get().cloned());
        // The instants of two clocks cannot be compared, unless both are the system's.
        let has_system_clock = |scheduler: &Scheduler| scheduler.shared().watch.has_system_clock;
        let is_one_time = has_system_clock(&old) && next.known().is_none_or(has_system_clock);
        if next.0.is_none() && !is_one_time {
            let left = deadline.saturating_duration_since(old.now()); // before the other reading, so that it is never early
            deadline = after(next.now(), left);
        }
        *self = next; // last, because a clock may panic
        Some(deadline)
    }

    /// Returns the scheduler, or `None` if it is the global one and nobody has used it yet.
    #[inline] // in programs' timeouts, where a call costs as much as what it does
    fn known(&self) -> Option<&Scheduler> {
        self.0.as_deref().or_else(|| GLOBAL.get())
    }

    /// Returns true if it is this scheduler.
    #[cfg(feature = "hyper")]
    pub(crate) fn is(&self, scheduler: &Scheduler) -> bool {
        self.known().is_some_and(|own| Arc::ptr_eq(own.shared(), scheduler.shared()))
    }
}

thread_local! {
    /// Something is in `HERE`. It has no destructor, so it can be read as long as the thread lives.
    static IS_ANY: Cell<bool> = const { Cell::new(false) };
    static HERE: RefCell<Here> =
        const { RefCell::new(Here { paused: None, guards: Vec::new(), resumed: None }) };
}

/// What is in force on a thread.
struct Here {
    paused: Option<Rc<Paused>>,
    /// By their numbers, the innermost last.
    guards: Vec<(u64, Guarded)>,
    resumed: Option<Arc<Scheduler>>,
}

/// What a guard has put in force.
#[derive(Clone)]
pub(super) enum Guarded {
    Entered(Arc<Scheduler>),
    /// In a `Driver::block_on`, which keeps nothing alive.
    Driven(SchedulerId, WeakScheduler),
}

impl Here {
    /// Changes what is in force. What the change returns is for the caller to drop. On a thread that has lost its
    /// thread-locals, nothing changes.
    fn change<R>(change: impl FnOnce(&mut Here) -> R) -> Option<R> {
        let changed = HERE.try_with(|here| {
            // Only for the change: a clock, a waker or the end of a scheduler is user code, and may come back here.
            let here = &mut *here.borrow_mut();
            let result = change(here);
            IS_ANY.set(here.paused.is_some() || !here.guards.is_empty() || here.resumed.is_some());
            result
        });
        changed.ok()
    }

    /// Looks at what is in force. `None` if nothing is.
    fn look<R>(look: impl FnOnce(&Here) -> Option<R>) -> Option<R> {
        IS_ANY.get().then(|| HERE.try_with(|here| look(&here.borrow())).ok().flatten())?
    }

    /// Returns what decides: the virtual clock, or else the innermost guard of `enter`, or else the innermost `block_on`.
    fn chosen(&self) -> Option<Guarded> {
        let paused = self.paused.as_ref().map(|it| Guarded::Entered(Arc::clone(&it.scheduler)));
        // A guard of `enter` inside or around a `block_on` was asked for by name, so it counts more. `max_by_key`
        // returns the last of several guards that count as much.
        let is_entered = |guarded: &&Guarded| matches!(guarded, Guarded::Entered(_));
        let innermost = self.guards.iter().map(|(_, guarded)| guarded).max_by_key(is_entered);
        paused.or_else(|| innermost.cloned())
    }
}

/// Returns the scheduler in force, or `None` if that is the global one.
#[cold]
fn in_force() -> Option<Arc<Scheduler>> {
    let chosen = Here::look(Here::chosen).and_then(|guarded| match guarded {
        Guarded::Entered(scheduler) => Some(scheduler),
        Guarded::Driven(_, scheduler) => Some(scheduler.upgrade()?.for_futures()),
    });
    let is_open = |scheduler: &Arc<Scheduler>| !scheduler.is_closed();
    // A closed scheduler would take no timer.
    chosen.filter(is_open).or_else(|| Here::look(|here| here.resumed.clone())).filter(is_open)
}

// ----- guards --------------------------------------------------------------------------------

/// A guard: a scheduler is in force on this thread until it is dropped. Made by [`Scheduler::enter`].
#[must_use = "the scheduler is in force until the guard is dropped: write `let _guard = scheduler.enter();`"]
pub struct Entered<'a> {
    _guard: Guard,
    /// It belongs to its thread.
    _scheduler: PhantomData<(&'a Scheduler, *mut ())>,
}

impl Scheduler {
    /// Makes this scheduler the one in force on the calling thread until the guard is dropped. The functions of
    /// [`time`](crate::time) use it then.
    ///
    /// Guards nest, and the innermost one counts. The guard belongs to its thread: it is not `Send`. If it is held across
    /// an `.await`, the scheduler is in force for whatever else this thread polls in the meantime. On a thread where time
    /// is [paused](crate::time::pause()) the virtual clock counts.
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
        let guard = Guard::new(Guarded::Entered(self.for_futures()));
        Entered { _guard: guard, _scheduler: PhantomData }
    }

    /// Returns a handle to the scheduler [in force](crate::time#the-scheduler-in-force) on the calling thread, for what
    /// takes a scheduler.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Scheduler;
    ///
    /// let (scheduler, driver) = Scheduler::builder().build_driven()?;
    /// driver.block_on(async {
    ///     let later = Scheduler::in_force().call_after(Duration::from_secs(3600), || 42);
    ///     assert_eq!(later.await.unwrap(), 42);
    /// })?;
    /// # drop(scheduler);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`global`](Scheduler::global) does.
    pub fn in_force() -> Scheduler {
        let source = TimeSource::in_force();
        source.0.map_or_else(|| Scheduler::global().clone(), |own| own.for_users())
    }
}

impl_debug!(Entered<'_>, self);

/// Keeps something in force on this thread until it is dropped.
pub(super) struct Guard(u64);

impl Guard {
    pub(super) fn new(guarded: Guarded) -> Guard {
        let number = Here::change(|here| {
            let number = here.guards.last().map_or(1, |(last, _)| last + 1);
            here.guards.push((number, guarded));
            number
        });
        Guard(number.unwrap_or(0)) // the numbers begin with 1
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let taken = Here::change(|here| {
            // By the number, because guards may be dropped in any order.
            let at = here.guards.iter().rposition(|(number, _)| *number == self.0)?;
            Some(here.guards.remove(at))
        });
        drop(taken); // with nothing borrowed: it may be the last handle of a scheduler
    }
}

/// Returns true if the calling thread is in a turn of this scheduler, or in a `Driver::block_on` of it. It must not wait for
/// that scheduler in another way.
pub(crate) fn is_served_here(scheduler: &Shared) -> bool {
    let is_meant = |(_, guarded): &(u64, Guarded)| matches!(guarded, Guarded::Driven(id, _) if *id == scheduler.id);
    let is_driven = || Here::look(|here| Some(here.guards.iter().any(is_meant))).unwrap_or(false);
    scheduler.is_turned_here() || is_driven()
}

// ----- a virtual clock -----------------------------------------------------------------------

/// The virtual time of a thread.
struct Paused {
    scheduler: Arc<Scheduler>,
    driver: Driver,
    /// The waker of the sleep that was polled here last, for [`jump_when_idle`].
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
    Here::look(|here| here.paused.clone())
}

/// Returns the scheduler of a `Driver::block_on` in virtual time, if that decides about the time of the calling thread.
pub(crate) fn driven() -> Option<Scheduler> {
    let Some(Guarded::Driven(_, driver)) = Here::look(Here::chosen) else { return None };
    driver.upgrade().filter(|driver| !driver.shared().watch.is_in_real_time)
}

/// Puts a virtual clock on the calling thread. Returns false if it has one.
pub(crate) fn pause() -> bool {
    if paused().is_some() {
        return false;
    }
    // From the time that was in force, so instants never go back.
    let clock = ManualClock::at(TimeSource::in_force().now());
    let built = Scheduler::builder().precision(Precision::Exact).clock(clock).build_driven();
    let (scheduler, driver) = built.expect("the defaults are right");
    let last = RefCell::new(None);
    let paused = Rc::new(Paused { scheduler: scheduler.for_futures(), driver, last });
    drop(Here::change(|here| here.paused.replace(paused)));
    true
}

/// Has the time of the calling thread run on from where its virtual clock stands. The sleeps on that clock go over to that
/// time. Returns false if it has no virtual clock.
pub(crate) fn resume() -> bool {
    let Some(paused) = Here::change(|here| here.paused.take()).flatten() else { return false };
    let clock = Resumed { stood_at: paused.driver.now(), at: Instant::now() };
    let resumed = Scheduler::builder().clock(clock).thread_name("tickwheel-resumed").build();
    let resumed = resumed.ok().map(|scheduler| scheduler.for_futures());
    // Set before the close wakes the sleeps, which look for it then.
    let successor = &paused.scheduler.service.life.successor;
    resumed.iter().for_each(|next| _ = successor.set(Arc::clone(next)));
    drop(Here::change(|here| std::mem::replace(&mut here.resumed, resumed)));
    drop(paused.scheduler.close()); // it wakes the sleeps
    true
}

/// The time of a thread after [`resume`]: it runs on from where the virtual clock stood, so instants never go back.
struct Resumed {
    stood_at: Instant,
    /// In real time.
    at: Instant,
}

impl Clock for Resumed {
    fn now(&self) -> Instant {
        after(self.stood_at, self.at.elapsed())
    }

    fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
        // For a duration, because std's clock shows other instants, and runs at the same speed.
        sleep_by(self, sleeper, until, Sleeper::sleep_for);
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }
}

/// Moves the virtual clock of the calling thread. Returns false if it has none.
pub(crate) fn advance(duration: Duration) -> bool {
    if let Some(paused) = paused() {
        paused.driver.advance(duration);
        return true;
    }
    let Some(driven) = driven() else { return false };
    // What is due by then is done in the turn that follows each poll.
    let clock = &driven.shared().watch.clock;
    clock.advance_to(short_of_never(after(clock.now(), duration)));
    true
}

/// Notes that a sleep which was polled on this thread waits.
#[inline]
pub(crate) fn note_waiting(waker: &Waker) {
    if IS_ANY.get() && !is_turning() {
        if let Some(paused) = paused() {
            let waker = waker.clone(); // user code, as the drop of the one before, so nothing is borrowed here
            drop(paused.last.replace(Some(waker)));
        }
    }
}

/// Moves the virtual clock of the calling thread to the next deadline. Returns false if there is no such clock, or if
/// nothing is pending on it.
pub(crate) fn jump_when_idle() -> bool {
    let Some(paused) = paused().filter(|paused| !paused.scheduler.is_turned_here()) else {
        return false;
    };
    let (driver, now) = (&paused.driver, paused.driver.now());
    let Some(mut next) = driver.next_deadline() else { return false };
    if next <= now {
        let come_back = driver.turn();
        // What is still due was refused by its executor. The turn tells when that is asked again.
        if driver.next_deadline().is_some_and(|next| next <= now) {
            let Some(come_back) = come_back else { return false };
            next = come_back;
        }
    }
    // To the very next deadline, because what it wakes may schedule something that comes before all the others.
    driver.advance(next.saturating_duration_since(now));
    // The tasks that were due may have woken something that is no task of this thread's runtime. The runtime would
    // sleep, and not ask again. So the task that has polled a sleep last is woken too. If it still waits, it polls one
    // again.
    let last = paused.last.take();
    quietly(|| last.into_iter().for_each(Waker::wake)); // a panic would end the runtime
    true
}
