//! Catching the panics of user code.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
}
