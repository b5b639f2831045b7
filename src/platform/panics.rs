//! Catching the panics of user code.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

/// The payload of a panic.
pub(crate) type Payload = Box<dyn Any + Send>;

/// The payload of a panic that somebody is told of already, with its message: by a future, for example. It is counted and
/// reported like any other.
pub(crate) struct Delivered(pub(crate) String);

/// Runs user code, and returns its panic as an error. The code borrows nothing of ours (S11), so a panic can only leave
/// its own data half changed.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, Payload> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Runs user code, and ignores its panic.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(payload) = caught(f) {
        discard(payload);
    }
}

/// Drops the payload of a panic. If that panics too, the second payload is leaked: to drop it could panic again, for
/// ever.
pub(crate) fn discard(payload: Payload) {
    if let Err(another) = caught(|| drop(payload)) {
        std::mem::forget(another);
    }
}

/// The first panic of several pieces of user code. It goes on when all of them have run.
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Payload>);

impl FirstPanic {
    /// Runs a piece of code. Returns `None` if it panics.
    pub(crate) fn catch<R>(&mut self, code: impl FnOnce() -> R) -> Option<R> {
        let keep = |panic| match self.0 {
            None => self.0 = Some(panic),
            Some(_) => discard(panic),
        };
        caught(code).map_err(keep).ok()
    }

    /// Panics if a piece of code has panicked. On a thread that unwinds already the panic is ignored, because a second
    /// one would abort.
    pub(crate) fn resume(self) {
        match self.0 {
            Some(panic) if thread::panicking() => discard(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

/// How long a thread rests whose clock panics again and again.
pub(crate) const BLIND_PAUSE: Duration = Duration::from_millis(100);

/// Rests before a clock that panics is asked again.
pub(crate) fn rest_blind() {
    thread::sleep(BLIND_PAUSE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_panics_when_dropped_does_no_harm() {
        struct Grenade;
        impl Drop for Grenade {
            fn drop(&mut self) {
                std::panic::panic_any(Grenade);
            }
        }
        quietly(|| std::panic::panic_any(Grenade));
    }
}
