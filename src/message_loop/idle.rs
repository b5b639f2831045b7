//! Idle handlers: what a loop does once, each time that it is about to wait.
//!
//! - I1 An idle phase begins when a task has run, and each handler runs once in it.
//! - I2 A handler is taken out of the table while it runs, so it may add and remove handlers, itself too.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use super::inbox::Shared;
use crate::Repeat;

type Handler = Box<dyn FnMut() -> ControlFlow<()>>;

/// Names an idle handler of a [`MessageLoop`](super::MessageLoop), and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdleKey(u64);

#[derive(Default)]
pub(super) struct IdleHandlers {
    /// `None`: it runs just now; I2.
    handlers: RefCell<BTreeMap<u64, Option<Handler>>>,
    /// They have run in this phase; I1.
    has_run: Cell<bool>,
}

impl IdleHandlers {
    pub(super) fn add<R: Repeat>(&self, mut f: impl FnMut() -> R + 'static) -> IdleKey {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let key = COUNT.fetch_add(1, Ordering::Relaxed); // it only has to be another one
        let handler: Handler = Box::new(move || f().flow());
        self.handlers.borrow_mut().insert(key, Some(handler));
        IdleKey(key)
    }

    /// True if it was there.
    pub(super) fn remove(&self, key: IdleKey, shared: &Shared) -> bool {
        let removed = self.handlers.borrow_mut().remove(&key.0);
        let was_there = removed.is_some();
        shared.catch(|| drop(removed));
        was_there
    }

    /// I1.
    pub(super) fn something_ran(&self) {
        self.has_run.set(false);
    }

    /// Runs all, unless they have run in this phase, as long as the loop goes on. True if there were any.
    pub(super) fn run(&self, shared: &Shared, goes_on: impl Fn() -> bool) -> bool {
        if self.has_run.replace(true) {
            return false;
        }
        let keys: Vec<u64> = self.handlers.borrow().keys().copied().collect();
        keys.iter().take_while(|_| goes_on()).for_each(|key| self.run_one(*key, shared));
        !keys.is_empty()
    }

    fn run_one(&self, key: u64, shared: &Shared) {
        let taken = self.handlers.borrow_mut().get_mut(&key).and_then(Option::take);
        let Some(mut handler) = taken else { return }; // it was removed, or runs below
        let flow = shared.catch(&mut handler);
        let goes_on = flow == Some(ControlFlow::Continue(()));
        let mut handlers = self.handlers.borrow_mut();
        let unwanted = match handlers.get_mut(&key) {
            Some(room) if goes_on => room.replace(handler),
            _ => {
                handlers.remove(&key);
                Some(handler)
            }
        };
        drop(handlers);
        shared.catch(|| drop(unwanted));
    }

    pub(super) fn clear(&self, shared: &Shared) {
        let handlers = std::mem::take(&mut *self.handlers.borrow_mut());
        for handler in handlers.into_values() {
            shared.catch(|| drop(handler));
        }
    }
}
