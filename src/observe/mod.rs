//! What a program can see of a scheduler: its panics, the turns of its tick thread, and its counters.
//!
//! A hook or an observer is called with nothing locked, and its panic is caught (S11, S17).
//!
//! - HOOK-3 A driven scheduler without a hook keeps the first panic of a task, for the driver's call to resume. Otherwise a
//!   test whose task fails would pass. A panic that a future tells of is not kept.

#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod stats;
pub(crate) mod trace;

use std::any::Any;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use crate::platform::impls::{impl_behind, impl_debug};
use crate::platform::panics::{Delivered, Payload, caught, discard, quietly};
use crate::wheel::Buckets;
use crate::wheel::entry::Entry;

#[cfg(feature = "metrics")]
pub use metrics::MetricsReporter;
pub use stats::{Lateness, Stats};

/// The panic of a task, of a captured value's `Drop`, or of an executor: the argument of a
/// [`Builder::on_panic`](crate::Builder::on_panic) hook.
///
/// ```
/// use std::time::Duration;
/// use std::sync::mpsc;
/// use tickwheel::Scheduler;
///
/// let (report, reports) = mpsc::channel();
/// let scheduler = Scheduler::builder()
///     .on_panic(move |panic| {
///         drop(report.send(format!("{}: {}", panic.name(), panic.message().unwrap_or("no text"))));
///     })
///     .build()?;
/// scheduler.schedule_once(Duration::ZERO, || panic!("out of cheese"))?;
/// assert!(reports.recv()?.ends_with(": out of cheese"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TaskPanic<'a> {
    /// `None` if it is not known.
    name: Option<&'static str>,
    payload: &'a (dyn Any + Send),
}

impl<'a> TaskPanic<'a> {
    /// Describes a panic with this payload, of a task whose name is not known: for layers that catch panics themselves.
    pub fn new(payload: &'a (dyn Any + Send)) -> TaskPanic<'a> {
        TaskPanic { name: None, payload }
    }

    /// Returns the type name of the closure that panicked, such as `my_app::main::{{closure}}`, or `"a task"` if it is
    /// not known.
    pub fn name(&self) -> &'static str {
        self.name.unwrap_or("a task")
    }

    /// Returns the panic message. Returns `None` if the panic carried a value that is not a string.
    pub fn message(&self) -> Option<&str> {
        let text = self.payload.downcast_ref::<&'static str>().copied();
        text.or_else(|| self.payload.downcast_ref::<String>().map(String::as_str))
    }

    /// Returns the value that the panic carried.
    pub fn payload(&self) -> &(dyn Any + Send) {
        self.payload
    }

    /// Writes one line on standard error. If that is closed or full, the line is lost. `eprintln!` would panic then.
    /// One call writes the whole line, so lines of several threads do not mix.
    fn print(&self) {
        // One line is enough: the panic hook of the process has written the whole message already.
        let message = self.message().and_then(|message| message.lines().next());
        let (colon, message) = message.map_or(("", ""), |message| (": ", message));
        let line = format!("tickwheel: the task `{}` has panicked{colon}{message}\n", self.name());
        _ = io::stderr().write_all(line.as_bytes());
    }
}

impl_debug!(TaskPanic<'_>, self, name: self.name(), message: self.message());

/// Watches the turns of a scheduler, on the tick thread.
///
/// Every method does nothing by default, so an observer implements only the methods that it needs. The tick thread
/// waits while an observer works. An `Arc<O>` or `Box<O>` of an observer is an observer too, so a program can keep its
/// own pointer to the observer that it gives to the builder.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
/// use tickwheel::{Observer, Scheduler};
///
/// #[derive(Default)]
/// struct Handed(AtomicUsize);
///
/// impl Observer for Handed {
///     fn handed_over(&self, tasks: usize) {
///         self.0.fetch_add(tasks, Ordering::Relaxed);
///     }
/// }
///
/// let handed = Arc::new(Handed::default());
/// let (scheduler, driver) = Scheduler::builder().observer(Arc::clone(&handed)).build_driven()?;
/// scheduler.schedule_once(Duration::from_secs(1), || ())?;
/// driver.advance(Duration::from_secs(1));
/// assert_eq!(handed.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[expect(unused_variables, reason = "the defaults do nothing")]
pub trait Observer: Send + Sync + 'static {
    /// Called when this many newly scheduled tasks were taken in.
    fn took_in(&self, tasks: usize) {}

    /// Called when this many tasks were handed to an executor, or wakers woken. Those that had been cancelled in the
    /// meantime count too.
    fn handed_over(&self, tasks: usize) {}

    /// Called when an executor refused this many tasks. They will be handed over again.
    fn rejected(&self, tasks: usize) {}

    /// Called before the tick thread sleeps: until this instant, or until a task is scheduled if it is `None`.
    fn will_sleep(&self, until: Option<Instant>) {}

    /// Called at the end of each turn, with a view of the wheel. Turns are frequent, so look at the wheel only now and
    /// then.
    fn turned(&self, wheel: WheelView<'_>) {}

    /// Called when the tick thread woke from its sleep.
    fn woke(&self) {}

    /// Called when the scheduler has stopped, with this many tasks left over.
    fn stopped(&self, leftovers: usize) {}
}

impl_behind!(O: Observer for Box<O>, Arc<O>; {
    fn took_in(&self, tasks: usize);
    fn handed_over(&self, tasks: usize);
    fn rejected(&self, tasks: usize);
    fn will_sleep(&self, until: Option<Instant>);
    fn turned(&self, wheel: WheelView<'_>);
    fn woke(&self);
    fn stopped(&self, leftovers: usize);
});

/// A scheduler's wheel at the end of a turn, for inspection: see [`Observer::turned`].
///
/// It counts tasks that were cancelled until they are swept out.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
/// use tickwheel::{Observer, Scheduler, WheelView};
///
/// /// Notes how many tasks are in the wheel.
/// #[derive(Default)]
/// struct Filled(AtomicUsize);
///
/// impl Observer for Filled {
///     fn turned(&self, wheel: WheelView<'_>) {
///         let near: usize = (0..wheel.buckets()).map(|bucket| wheel.waiting_in(bucket)).sum();
///         self.0.store(near + wheel.waiting_far(), Ordering::Relaxed);
///     }
/// }
///
/// let filled = Arc::new(Filled::default());
/// let (scheduler, driver) = Scheduler::builder().observer(Arc::clone(&filled)).build_driven()?;
/// scheduler.schedule_once(Duration::from_secs(1), || ())?;
/// scheduler.schedule_once(Duration::from_secs(3600), || ())?;
/// driver.turn();
/// assert_eq!(filled.0.load(Ordering::Relaxed), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct WheelView<'a>(pub(crate) &'a Buckets<Entry>);

impl WheelView<'_> {
    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.0.buckets()
    }

    /// Returns the bucket of the tick that has passed last. The bucket after it is served next.
    pub fn hand(&self) -> usize {
        self.0.hand()
    }

    /// Returns how many tasks wait in a bucket. Buckets are counted from zero.
    pub fn waiting_in(&self, bucket: usize) -> usize {
        self.0.waiting_in(bucket % self.buckets())
    }

    /// Returns how many tasks wait for a later rotation of the wheel, outside of the buckets.
    pub fn waiting_far(&self) -> usize {
        self.0.waiting_far()
    }
}

impl_debug!(WheelView<'_>, self,
    buckets: self.buckets(),
    hand: self.hand(),
    waiting_far: self.waiting_far()
);

/// Catches panics, and calls a closure for each: for executors and layers that run other people's code.
///
/// It never unwinds itself, even if the closure panics, or if the payload of a panic panics as it is dropped. Clones
/// call the same closure.
///
/// The [default](PanicHook::default) hook calls no closure. If the name of the task is known, it writes a line on
/// standard error, such as ``tickwheel: the task `my_app::main::{{closure}}` has panicked: out of cheese``. Otherwise
/// it writes nothing, because the panic hook of the process has written the message and the place already. With the
/// feature `tracing`, every panic is an event too.
///
/// ```
/// use std::sync::mpsc;
/// use tickwheel::PanicHook;
///
/// let (report, reports) = mpsc::channel();
/// let hook = PanicHook::new(move |panic| drop(report.send(panic.message().map(str::to_owned))));
/// assert_eq!(hook.catch(None, || 7), Some(7));
/// assert_eq!(hook.catch(None, || -> u8 { panic!("out of cheese") }), None);
/// assert_eq!(reports.recv()?.as_deref(), Some("out of cheese"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct PanicHook(Option<Arc<HookFn>>);

type HookFn = dyn Fn(TaskPanic<'_>) + Send + Sync;

impl PanicHook {
    /// Makes a hook that calls this closure.
    pub fn new(hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> PanicHook {
        PanicHook(Some(Arc::new(hook)))
    }

    /// Runs a piece of code, and returns its result. If it panics, reports the panic and returns `None`. The name is that of
    /// the task, or `None` if the code is not a task's.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use tickwheel::PanicHook;
    ///
    /// let (report, reports) = mpsc::channel();
    /// let hook = PanicHook::new(move |panic| drop(report.send(panic.name())));
    /// assert_eq!(hook.catch("my_app::heartbeat", || -> u8 { panic!("out of cheese") }), None);
    /// assert_eq!(reports.recv()?, "my_app::heartbeat");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn catch<R>(
        &self,
        name: impl Into<Option<&'static str>>,
        code: impl FnOnce() -> R,
    ) -> Option<R> {
        caught(code).map_err(|payload| self.report(name, payload)).ok()
    }

    /// Reports a panic, of the task with this name if there is one, and drops its payload.
    pub fn report(&self, name: impl Into<Option<&'static str>>, payload: Box<dyn Any + Send>) {
        self.tell(name, &*payload);
        discard(payload);
    }

    /// Reports a panic, of the task with this name if there is one, and leaves its payload to the caller.
    pub fn tell(&self, name: impl Into<Option<&'static str>>, payload: &(dyn Any + Send)) {
        let panic = TaskPanic { name: name.into(), payload };
        quietly(|| trace::panicked(panic.name, panic.message()));
        match &self.0 {
            Some(hook) => quietly(|| hook(panic)),
            None if panic.name.is_some() => quietly(|| panic.print()),
            // Without a name, the code that caught the panic knows better what to report.
            None => {}
        }
    }
}

impl_debug!(PanicHook, self, is_set: self.0.is_some());

/// The hooks of a scheduler.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) on_panic: PanicHook,
    pub(crate) observer: Option<Box<dyn Observer>>,
    /// The first panic of a task since the driver's last look (HOOK-3). `None` if nobody looks.
    first: Option<ArrayQueue<Payload>>,
}

impl Hooks {
    /// Runs code of a user. A panic is reported, and `None` is returned.
    #[inline]
    pub(crate) fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        self.on_panic.catch(None, code)
    }

    /// Reports a panic of the task with this name, in its run or when it is dropped by the scheduler. A driver resumes it
    /// (HOOK-3).
    pub(crate) fn report_named(&self, name: &'static str, payload: Payload) {
        match payload.downcast::<Delivered>() {
            Ok(delivered) => self.on_panic.report(name, Box::new(delivered.0)),
            Err(payload) => {
                self.on_panic.tell(name, &*payload);
                let left = match &self.first {
                    Some(first) => first.push(payload).err(), // full, so it is not the first
                    None => Some(payload),
                };
                left.into_iter().for_each(discard);
            }
        }
    }

    /// Has the first panic kept for a driver, if there is no hook (HOOK-3).
    pub(crate) fn are_driven(&mut self) {
        self.first = self.on_panic.0.is_none().then(|| ArrayQueue::new(1));
    }

    /// Takes the first panic out that was kept for the driver.
    pub(crate) fn first_panic(&self) -> Option<Payload> {
        self.first.as_ref()?.pop()
    }

    /// Drops the hooks, one after the other, also if some of them panic.
    pub(crate) fn drop_all(&mut self) {
        self.first_panic().into_iter().for_each(discard);
        let Hooks { on_panic, observer, .. } = std::mem::take(self);
        quietly(|| drop(observer));
        quietly(|| drop(on_panic));
    }

    /// Calls the observer, if there is one, and catches its panic.
    pub(crate) fn observe(&self, tell: impl FnOnce(&(dyn Observer + 'static))) {
        if let Some(observer) = &self.observer {
            quietly(|| tell(&**observer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_in_either_kind_of_text() {
        for payload in [Box::new("text") as Payload, Box::new(String::from("text"))] {
            assert_eq!(TaskPanic::new(&*payload).message(), Some("text"));
        }
        assert_eq!(TaskPanic::new(&7).message(), None);
    }
}
