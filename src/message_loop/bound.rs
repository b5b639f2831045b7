//! Which loop a thread is bound to.
//!
//! A loop is bound from its `prepare` until it is dropped. One that is leaked instead ends with its thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::inbox::Shared;
use super::turns::Turns;
use crate::sync::local;

local!(
    CURRENT: RefCell<Option<Bound>> = RefCell::new(None)
);

struct Bound(Rc<Turns>);

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Binds a loop to this thread. False: the thread has one, or is about to end.
pub(super) fn bind(turns: &Rc<Turns>) -> bool {
    let bind = |current: &RefCell<Option<Bound>>| {
        let mut current = current.borrow_mut();
        let is_free = current.is_none();
        if is_free {
            *current = Some(Bound(Rc::clone(turns)));
        }
        is_free
    };
    CURRENT.try_with(bind).unwrap_or(false)
}

/// Gives the thread free, if it is bound to this loop.
pub(super) fn unbind(shared: &Shared) {
    if is_current(shared) {
        let bound = CURRENT.try_with(|current| current.borrow_mut().take());
        drop(bound);
    }
}

/// The loop of the calling thread. None as well when the thread is about to end.
pub(super) fn current() -> Option<Rc<Turns>> {
    let look = |current: &RefCell<Option<Bound>>| Some(Rc::clone(&current.borrow().as_ref()?.0));
    CURRENT.try_with(look).ok().flatten()
}

/// Whether this is the loop of the calling thread.
pub(super) fn is_current(shared: &Shared) -> bool {
    let look = |current: &RefCell<Option<Bound>>| {
        let current = current.borrow();
        current.as_ref().is_some_and(|bound| std::ptr::eq(Arc::as_ptr(&bound.0.shared), shared))
    };
    CURRENT.try_with(look).unwrap_or(false)
}
