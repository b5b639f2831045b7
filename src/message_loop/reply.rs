//! A task on one loop, and its reply on another: each closure is dropped where it belongs.
//!
//! - R1 The reply travels in a [`Relay`]. If that is dropped, because the task panicked or will never run,
//!   it sends the reply home to be dropped there.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::inbox::Shared;
use crate::PanicHook;
use crate::job::{Once, Work};

/// A reply on its way; R1.
pub(super) struct Relay<R: Send + 'static> {
    reply: Option<R>,
    home: Arc<Shared>,
}

impl<R: Send + 'static> Relay<R> {
    pub(super) fn new(reply: R, home: Arc<Shared>) -> Relay<R> {
        Relay { reply: Some(reply), home }
    }

    /// Runs it at home.
    fn send<T: Send + 'static>(mut self, value: T)
    where
        R: FnOnce(T),
    {
        let Some(reply) = self.reply.take() else { return };
        let answer = Once(move || reply(value));
        if let Err(refused) = self.home.post_reply(answer) {
            self.home.send_home(Box::new(refused));
        }
    }
}

impl<R: Send + 'static> Drop for Relay<R> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            self.home.send_home(Box::new(reply));
        }
    }
}

/// The task, with its reply.
pub(super) struct Ask<F, R: Send + 'static, T> {
    task: Option<F>,
    relay: Relay<R>,
    result: std::marker::PhantomData<fn() -> T>,
}

impl<F, R: Send + 'static, T> Ask<F, R, T> {
    pub(super) fn new(task: F, relay: Relay<R>) -> Ask<F, R, T> {
        Ask { task: Some(task), relay, result: std::marker::PhantomData }
    }

    /// Both closures, of one that was refused.
    pub(super) fn into_parts(mut self) -> (F, R) {
        let parts = self.task.take().zip(self.relay.reply.take());
        parts.expect("it has not run")
    }
}

impl<T, F, R> Work for Ask<F, R, T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
    R: FnOnce(T) + Send + 'static,
{
    fn run(work: &mut Option<Self>, _hook: &PanicHook) -> ControlFlow<()> {
        if let Some(Ask { task: Some(task), relay, .. }) = work.take() {
            relay.send(task());
        }
        ControlFlow::Break(())
    }
}
