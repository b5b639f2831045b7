//! Runs tasks in the context of the thread that scheduled them: thread-locals, spans, tenants, deadlines.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::scheduler::ExecutorScheduler;
use super::worker::Worker;
use crate::PanicHook;
use crate::job::{Plan, Work};
use crate::platform::impls::impl_debug;
use crate::platform::panics::FirstPanic;

/// Captures a context of a thread, and installs it on another.
///
/// ```
/// use std::cell::Cell;
/// use tickwheel::rx::{ContextAwareScheduler, ContextCapture, ExecutorScheduler};
/// use tickwheel::{Scheduler, ThreadPool};
///
/// thread_local!(static TENANT: Cell<u32> = const { Cell::new(0) });
///
/// struct Tenant;
///
/// impl ContextCapture for Tenant {
///     type Context = u32;
///     fn capture(&self) -> u32 {
///         TENANT.get()
///     }
///     fn replace(&self, tenant: u32) -> u32 {
///         TENANT.replace(tenant)
///     }
/// }
///
/// let timers = Scheduler::new();
/// let plain = ExecutorScheduler::new(ThreadPool::new(2), &timers);
/// let worker = ContextAwareScheduler::new(plain, Tenant).worker();
/// TENANT.set(7);
/// let (sender, receiver) = std::sync::mpsc::channel();
/// worker.schedule(move || sender.send(TENANT.get()).unwrap());
/// assert_eq!(receiver.recv().unwrap(), 7);
/// ```
pub trait ContextCapture: Send + Sync + 'static {
    /// What is captured.
    type Context: Clone + Send + 'static;

    /// Returns the context of the calling thread. It is called when a task is scheduled, on the thread that schedules
    /// it. A worker that is disposed or full refuses the task without calling it.
    fn capture(&self) -> Self::Context;

    /// Installs a context on the calling thread, and returns the one before. The thread that runs a task calls it twice
    /// for each run: before it with the captured context, and after it with the one that was returned. If the first call
    /// panics, the task has panicked, and does not run.
    fn replace(&self, context: Self::Context) -> Self::Context;
}

/// Gives out workers whose tasks run in the context of the thread that scheduled them.
///
/// The context is captured when a task is scheduled, with or without a delay or a period, and installed for each of its
/// runs. After a run, or a panic, the thread has its own context again. If such a worker is the executor of a
/// scheduler, its tasks have the context of the tick thread, which hands them over.
///
/// It wraps anything that gives out workers: [`over`](ContextAwareScheduler::over) takes a closure, so it works with
/// [`single()`](super::single()), [`SingleThreadScheduler::worker`](super::SingleThreadScheduler::worker),
/// [`new_thread`](super::new_thread), a trampoline's `worker` and a loop.
#[derive(Clone)]
pub struct ContextAwareScheduler {
    make: Arc<dyn Fn() -> Worker + Send + Sync>,
    context: Capture,
}

impl ContextAwareScheduler {
    /// Adds a context to the workers of a scheduler.
    pub fn new(inner: ExecutorScheduler, capture: impl ContextCapture) -> ContextAwareScheduler {
        ContextAwareScheduler::over(move || inner.worker(), capture)
    }

    /// Adds a context to the workers that a closure returns. If they have a context already, this one is installed
    /// inside of it.
    ///
    /// ```
    /// # use tickwheel::rx::{ContextAwareScheduler, ContextCapture, TrampolineScheduler, Worker, single};
    /// # use tickwheel::pool::ScheduledThreadPool;
    /// # #[derive(Clone, Copy)]
    /// # struct Tenant;
    /// # impl ContextCapture for Tenant {
    /// #     type Context = ();
    /// #     fn capture(&self) {}
    /// #     fn replace(&self, (): ()) {}
    /// # }
    /// let on_one_thread = ContextAwareScheduler::over(single, Tenant);
    /// let trampolines = TrampolineScheduler::new();
    /// let on_the_caller_s = ContextAwareScheduler::over(move || trampolines.worker(), Tenant);
    /// let pool = ScheduledThreadPool::new(2);
    /// let on_a_pool = ContextAwareScheduler::over(move || Worker::new(pool.clone()), Tenant);
    /// # let (sender, receiver) = std::sync::mpsc::channel();
    /// # for workers in [on_one_thread, on_the_caller_s, on_a_pool] {
    /// #     let sender = sender.clone();
    /// #     workers.worker().schedule(move || sender.send(()).unwrap());
    /// # }
    /// # drop(sender);
    /// # assert_eq!(receiver.iter().count(), 3);
    /// ```
    pub fn over(
        workers: impl Fn() -> Worker + Send + Sync + 'static,
        capture: impl ContextCapture,
    ) -> ContextAwareScheduler {
        let capture = Arc::new(capture);
        let context = move || -> Scope {
            let (context, capture) = (capture.capture(), Arc::clone(&capture));
            Box::new(move |run| {
                let (before, mut panics) =
                    (capture.replace(context.clone()), FirstPanic::default());
                panics.catch(run); // of a context inside of this one; those of the task are caught in there
                panics.catch(|| drop(capture.replace(before)));
                panics.resume();
            })
        };
        ContextAwareScheduler { make: Arc::new(workers), context: Arc::new(context) }
    }

    /// Returns a new worker.
    pub fn worker(&self) -> Worker {
        (self.make)().in_context(Arc::clone(&self.context))
    }
}

impl_debug!(ContextAwareScheduler, self);

/// Captures the context of the calling thread.
pub(super) type Capture = Arc<dyn Fn() -> Scope + Send + Sync>;

/// Calls something in a context that was captured.
pub(super) type Scope = Box<dyn Fn(&mut dyn FnMut()) + Send>;

/// Returns one context inside of another.
pub(super) fn both(outer: Capture, inner: Capture) -> Capture {
    Arc::new(move || {
        let (outer, inner) = (outer(), inner());
        Box::new(move |run| outer(&mut || inner(run)))
    })
}

/// Work in the context of the thread that scheduled it.
pub(super) struct InContext<W> {
    pub(super) scope: Scope,
    /// `None` once a one-shot has run.
    pub(super) work: Option<W>,
}

impl<W: Work<Output = ()>> Work for InContext<W> {
    const IS_PERIODIC: bool = W::IS_PERIODIC;
    type Output = ();

    fn name(&self) -> &'static str {
        self.work.as_ref().map_or("a task", W::name)
    }

    fn run(in_context: &mut Option<Self>, hook: &PanicHook) -> ControlFlow<()> {
        let Some(InContext { scope, work }) = in_context else { return ControlFlow::Break(()) };
        let (mut outcome, name) = (None, work.as_ref().map_or("a task", W::name));
        let run = &mut || outcome = hook.catch(name, || W::run(work, hook));
        let came_back = hook.catch(None, || scope(run));
        came_back.and(outcome).unwrap_or(ControlFlow::Break(()))
    }

    /// Drops the two apart, because both may panic, and a panic during a panic would end the process.
    fn discard(self, hook: &PanicHook) {
        let name = self.name();
        self.work.into_iter().for_each(|work| work.discard(hook));
        hook.catch(name, || drop(self.scope));
    }

    fn plan(&mut self) -> Option<&mut Plan> {
        self.work.as_mut()?.plan()
    }
}
