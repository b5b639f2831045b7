//! Catching the panics of handlers and hooks.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tickwheel::TaskPanic;

use crate::failure::Failure;

/// Runs user code, and returns its panic as a failure. The code borrows nothing of ours, so a panic can only leave its own
/// data half changed.
pub(crate) fn caught<R>(f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    let payload = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => return result,
        Err(payload) => payload,
    };
    let message = TaskPanic::new(&*payload).message().unwrap_or("(no text)").to_owned();
    // If the drop of the payload panics too, the second payload is leaked: to drop it could panic again, for ever.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another);
    }
    Err(Failure::new(format!("panicked: {message}")))
}

/// Runs a hook, and ignores its panic.
pub(crate) fn quietly(hook: impl FnOnce()) {
    _ = caught(|| {
        hook();
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_with_its_message() {
        let failure = caught::<()>(|| panic!("oh")).expect_err("it panics");
        assert_eq!(failure.reason(), "panicked: oh");
    }

    #[test]
    fn a_payload_that_panics_when_dropped_does_no_harm() {
        struct Grenade;
        impl Drop for Grenade {
            fn drop(&mut self) {
                std::panic::panic_any(Grenade);
            }
        }
        let failure = caught::<()>(|| std::panic::panic_any(Grenade)).expect_err("it panics");
        assert_eq!(failure.reason(), "panicked: (no text)");
    }
}
