//! What a program can watch: panics and the tick thread's turns.
//!
//! - O1 A hook or an observer is called with nothing locked, and its panic is caught (S11, S17).

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::trace;

/// The panic of a task, of a captured value's `Drop`, or of an executor, as
/// [`Builder::on_panic`](crate::Builder::on_panic) is told of it.
///
/// ```
/// use std::time::Duration;
/// use std::sync::mpsc;
/// use tickwheel::Scheduler;
///
/// let (report, reports) = mpsc::channel();
/// let scheduler = Scheduler::builder()
///     .on_panic(move |panic| drop(report.send(panic.message().map(str::to_owned))))
///     .build()?;
/// scheduler.schedule_once(Duration::ZERO, || panic!("out of cheese"))?;
/// assert_eq!(reports.recv()?.as_deref(), Some("out of cheese"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TaskPanic<'a> {
    payload: &'a (dyn Any + Send),
}

impl<'a> TaskPanic<'a> {
    /// The panic that carried this: for layers that catch panics themselves.
    pub fn new(payload: &'a (dyn Any + Send)) -> TaskPanic<'a> {
        TaskPanic { payload }
    }

    /// The text that `panic!` was given, if it was given one.
    pub fn message(&self) -> Option<&str> {
        let text = self.payload.downcast_ref::<&'static str>().copied();
        text.or_else(|| self.payload.downcast_ref::<String>().map(String::as_str))
    }

    /// Whatever the panic carried.
    pub fn payload(&self) -> &(dyn Any + Send) {
        self.payload
    }
}

impl fmt::Debug for TaskPanic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskPanic").field("message", &self.message()).finish_non_exhaustive()
    }
}

/// Watches the turns of a scheduler, on the tick thread.
///
/// Every method has a body that does nothing, so an observer names only what it wants to see. The
/// tick thread waits while an observer works.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
/// use tickwheel::{Observer, Scheduler};
///
/// #[derive(Default)]
/// struct Handed(Arc<AtomicUsize>);
///
/// impl Observer for Handed {
///     fn handed_over(&self, tasks: usize) {
///         self.0.fetch_add(tasks, Ordering::Relaxed);
///     }
/// }
///
/// let handed = Arc::new(AtomicUsize::new(0));
/// let (scheduler, driver) =
///     Scheduler::builder().observer(Handed(Arc::clone(&handed))).build_driven()?;
/// scheduler.schedule_once(Duration::from_secs(1), || ())?;
/// driver.advance(Duration::from_secs(1));
/// assert_eq!(handed.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// So many tasks came in through the intake.
    fn took_in(&self, tasks: usize) {
        let _ = tasks;
    }

    /// So many tasks were handed to an executor, or woken; those that had been cancelled meanwhile count too.
    fn handed_over(&self, tasks: usize) {
        let _ = tasks;
    }

    /// An executor refused so many tasks; they will be handed over again.
    fn rejected(&self, tasks: usize) {
        let _ = tasks;
    }

    /// There is nothing to do until this instant, or until something new comes (`None`).
    fn will_sleep(&self, until: Option<Instant>) {
        let _ = until;
    }

    /// A turn has ended; so the wheel stands. It is called often: look at it now and then.
    fn turned(&self, wheel: WheelView<'_>) {
        let _ = wheel;
    }

    /// The tick thread woke from its sleep.
    fn woke(&self) {}

    /// The scheduler has stopped, with so many tasks left over.
    fn stopped(&self, leftovers: usize) {
        let _ = leftovers;
    }
}

/// A scheduler's wheel at the end of a turn, for who wants to look at it: see [`Observer::turned`].
///
/// Tasks that were cancelled may be in it for a while.
#[derive(Clone, Copy)]
pub struct WheelView<'a>(&'a dyn Ring);

/// What a wheel tells of itself.
pub(crate) trait Ring {
    fn buckets(&self) -> usize;
    fn hand(&self) -> usize;
    fn waiting_in(&self, bucket: usize) -> usize;
    fn waiting_far(&self) -> usize;
}

impl<'a> WheelView<'a> {
    pub(crate) fn of(ring: &'a dyn Ring) -> WheelView<'a> {
        WheelView(ring)
    }

    /// How many buckets it has.
    pub fn buckets(&self) -> usize {
        self.0.buckets()
    }

    /// The bucket of the tick that has passed last; the next one to be served is behind it.
    pub fn hand(&self) -> usize {
        self.0.hand()
    }

    /// How many tasks wait in a bucket, counted from zero.
    pub fn waiting_in(&self, bucket: usize) -> usize {
        self.0.waiting_in(bucket % self.buckets())
    }

    /// How many wait for a later turn of the wheel, outside of the buckets.
    pub fn waiting_far(&self) -> usize {
        self.0.waiting_far()
    }
}

impl fmt::Debug for WheelView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WheelView")
            .field("buckets", &self.buckets())
            .field("hand", &self.hand())
            .field("waiting_far", &self.waiting_far())
            .finish_non_exhaustive()
    }
}

/// Who is told of panics, and what catches them: for executors and layers that run other people's code.
///
/// It never unwinds itself: not when the hook panics, nor when what a panic carried does so as it is
/// dropped. Clones tell the same hook.
///
/// ```
/// use std::sync::mpsc;
/// use tickwheel::PanicHook;
///
/// let (report, reports) = mpsc::channel();
/// let hook = PanicHook::new(move |panic| drop(report.send(panic.message().map(str::to_owned))));
/// assert_eq!(hook.catch(|| 7), Some(7));
/// assert_eq!(hook.catch(|| -> u8 { panic!("out of cheese") }), None);
/// assert_eq!(reports.recv()?.as_deref(), Some("out of cheese"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct PanicHook(Option<Arc<Told>>);

type Told = dyn Fn(TaskPanic<'_>) + Send + Sync;

impl PanicHook {
    /// Tells this closure. The default tells nobody.
    pub fn new(hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> PanicHook {
        PanicHook(Some(Arc::new(hook)))
    }

    /// Runs a piece of code; a panic of it is reported, and `None`.
    pub fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        caught(code).map_err(|payload| self.report(payload)).ok()
    }

    /// Tells of a panic, and gets rid of what it carried.
    pub fn report(&self, payload: Box<dyn Any + Send>) {
        self.tell(&*payload);
        discard(payload);
    }

    /// Tells of a panic whose payload somebody else gets.
    pub fn tell(&self, payload: &(dyn Any + Send)) {
        quietly(|| trace::panicked(TaskPanic { payload }.message()));
        if let Some(hook) = &self.0 {
            quietly(|| hook(TaskPanic { payload }));
        }
    }
}

impl fmt::Debug for PanicHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PanicHook").field("is_set", &self.0.is_some()).finish()
    }
}

/// The hooks of a scheduler.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) on_panic: PanicHook,
    pub(crate) observer: Option<Box<dyn Observer>>,
}

impl Hooks {
    /// Tells of a panic, and gets rid of it.
    pub(crate) fn report(&self, payload: Payload) {
        self.on_panic.report(payload);
    }

    /// Tells the observer, if there is one; O1.
    pub(crate) fn observe(&self, tell: impl FnOnce(&(dyn Observer + 'static))) {
        if let Some(observer) = &self.observer {
            quietly(|| tell(&**observer));
        }
    }
}

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Runs user code; a panic of it comes back as a value. Whatever the code left half done is its
/// own: nothing of ours is borrowed by it (S11).
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, Payload> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Runs user code whose panic is nobody's business.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(payload) = caught(f) {
        discard(payload);
    }
}

/// Drops what a panic carried. A payload whose own `Drop` panics is leaked with what it was
/// replaced by, or it would go on for ever.
pub(crate) fn discard(payload: Payload) {
    if let Err(another) = caught(|| drop(payload)) {
        std::mem::forget(another);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_panics_when_dropped_is_survived() {
        struct Grenade;
        impl Drop for Grenade {
            fn drop(&mut self) {
                std::panic::panic_any(Grenade);
            }
        }
        quietly(|| std::panic::panic_any(Grenade));
    }

    #[test]
    fn a_message_is_found_in_either_kind_of_text() {
        for payload in [Box::new("text") as Payload, Box::new(String::from("text"))] {
            assert_eq!(TaskPanic { payload: &*payload }.message(), Some("text"));
        }
        assert_eq!(TaskPanic { payload: &7 }.message(), None);
    }
}
