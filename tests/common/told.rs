//! A waker that counts its wake-ups, for tests that poll by hand.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::until;

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Told(Arc<AtomicUsize>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        let count = Arc::clone(&self.0);
        drop(self); // a test that sees the count counts the wakers
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// The part of a task, played by a test: its waker, and how often that was woken.
#[derive(Clone, Default)]
pub(crate) struct Poller(Arc<Told>);

impl Poller {
    pub(crate) fn new() -> Poller {
        Poller::default()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    pub(crate) fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&self.waker()))
    }

    /// Polls whenever it was woken, and returns the output of the future, and the number of polls.
    pub(crate) fn until_ready<F: Future + Unpin>(&self, future: &mut F) -> (F::Output, usize) {
        let mut polls = 0;
        loop {
            let woken = self.woken(); // before the poll, after which it may be woken at once
            polls += 1;
            if let Poll::Ready(output) = self.poll(future) {
                return (output, polls);
            }
            until("it is woken", || self.woken() > woken);
        }
    }

    pub(crate) fn polls_until_ready<F: Future + Unpin>(&self, future: &mut F) -> usize {
        self.until_ready(future).1
    }

    /// How often it was woken.
    pub(crate) fn woken(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    /// Returns the number of its wakers.
    pub(crate) fn wakers(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}
