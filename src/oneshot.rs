//! The oneshot that a scheduler's end is told through.
//!
//! - Q1 The end comes once. Who takes the leftovers first gets them all; everybody else finds an
//!   end without leftovers.
//! - Q2 The end holds names, not a hub, or hub and end would keep each other alive. A hub that goes
//!   while its end still has leftovers drops them.

use std::sync::PoisonError;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::key::TaskKey;
use crate::observe::quietly;
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::task::Kind;
use crate::tick::Moment;

/// A task that was pending at the end, by name.
#[derive(Clone, Copy)]
pub(crate) struct Returned {
    pub(crate) key: TaskKey,
    pub(crate) deadline: Moment,
    pub(crate) kind: Kind,
    pub(crate) period: u64,
}

/// The oneshot: fulfilled once, by the engine.
#[derive(Default)]
pub(crate) struct End {
    state: Mutex<State>,
    fulfilled: Condvar,
}

#[derive(Default)]
struct State {
    /// Somebody will take the leftovers; else the engine drops them itself (S24).
    is_wanted: bool,
    has_come: bool,
    leftovers: Vec<Returned>,
    wakers: Vec<Waker>,
}

impl End {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Somebody will take the leftovers.
    pub(crate) fn want(&self) {
        self.lock().is_wanted = true;
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.lock().is_wanted
    }

    pub(crate) fn has_come(&self) -> bool {
        self.lock().has_come
    }

    /// The end has come.
    pub(crate) fn fulfil(&self, leftovers: Vec<Returned>) {
        let mut state = self.lock();
        state.has_come = true;
        state.leftovers = leftovers;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.fulfilled.notify_all();
        for waker in wakers {
            quietly(|| waker.wake()); // a user's code: it must not take the others' wake-ups along
        }
    }

    /// Q1.
    pub(crate) fn take(&self) -> Option<Vec<Returned>> {
        Self::take_from(&mut self.lock())
    }

    fn take_from(state: &mut State) -> Option<Vec<Returned>> {
        state.has_come.then(|| std::mem::take(&mut state.leftovers))
    }

    pub(crate) fn wait(&self) -> Vec<Returned> {
        let mut state = self.lock();
        loop {
            if let Some(leftovers) = Self::take_from(&mut state) {
                return leftovers;
            }
            state = self.fulfilled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn wait_timeout(&self, timeout: Duration) -> Option<Vec<Returned>> {
        let Some(until) = Instant::now().checked_add(timeout) else {
            return Some(self.wait());
        };
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let leftovers = Self::take_from(&mut state);
            if leftovers.is_some() || left.is_zero() {
                return leftovers;
            }
            let woken = self.fulfilled.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Vec<Returned>> {
        let mine = waker.clone(); // a user's code, so before the lock (S11)
        let mut state = self.lock();
        if let Some(leftovers) = Self::take_from(&mut state) {
            return Poll::Ready(leftovers);
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(mine);
        }
        Poll::Pending
    }
}
