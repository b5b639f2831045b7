//! Attempts to connect, and how long each may take: [`Attempts`].
//!
//! The client's own timeout is for the sockets alone. A server that is halted, or a proxy with nothing behind it, takes the connection,
//! and never says a word on it, and the client waits for it without an end. So it connects on a thread of its own, for which the caller
//! waits only so long. What comes after that is dropped.
//!
//! - LATE-1 No attempt begins while there are [`MOST_LATE`] threads for which nobody waits any more. The next one is made when one
//!   of them has ended.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::unreachable;
use crate::error::{Error, Result};

const MOST_LATE: usize = 16;

#[derive(Clone)]
pub(super) struct Attempts {
    /// For the whole of an attempt: all hosts, TLS, and what is said until the server is ready.
    timeout: Duration,
    late: Arc<Late>,
}

/// How many threads there are for which nobody waits (LATE-1).
#[derive(Default)]
struct Late {
    count: Mutex<usize>,
    has_ended: Condvar,
}

impl Late {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempts {
    pub(super) fn new(timeout: Duration) -> Attempts {
        Attempts { timeout, late: Arc::default() }
    }

    /// # Errors
    ///
    /// Those of the client, and [`Error::Unreachable`] if the server has not answered in time.
    pub(super) fn make<T: Send + 'static>(
        &self,
        connect: impl FnOnce() -> std::result::Result<T, postgres::Error> + Send + 'static,
    ) -> Result<T> {
        let deadline = Instant::now() + self.timeout;
        let is_full = |count: &mut usize| *count >= MOST_LATE;
        let waited =
            self.late.has_ended.wait_timeout_while(self.late.count(), self.timeout, is_full);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            return Err(self.is_silent());
        }
        let (tell, told) = channel();
        let late = Arc::clone(&self.late);
        let attempt = move || {
            let made = connect();
            let mut count = late.count();
            let unwanted = tell.send(made);
            if unwanted.is_err() {
                *count -= 1;
                late.has_ended.notify_one();
            }
            drop(count);
            drop(unwanted); // which closes the connection, with nothing locked
        };
        let thread = thread::Builder::new().name("tickwheel-connect".to_owned());
        thread.spawn(attempt).map_err(Error::unreachable)?;
        let made = match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {
                let mut count = self.late.count();
                let made = told.try_recv(); // it may have come at the last moment
                if made.is_err() {
                    *count += 1;
                    drop(told); // while the thread cannot tell
                    return Err(self.is_silent());
                }
                made.ok()
            }
            made => made.ok(),
        };
        let panicked = || Error::unreachable("the attempt to connect has panicked");
        made.ok_or_else(panicked)?.map_err(unreachable)
    }

    /// Makes an attempt on a runtime, where it needs no thread.
    #[cfg(feature = "tokio-postgres")]
    pub(super) fn make_on<T>(
        &self,
        runtime: &tokio::runtime::Runtime,
        connect: impl Future<Output = std::result::Result<T, postgres::Error>>,
    ) -> Result<T> {
        let made = runtime.block_on(async { tokio::time::timeout(self.timeout, connect).await });
        made.map_err(|_| self.is_silent())?.map_err(unreachable)
    }

    fn is_silent(&self) -> Error {
        let timeout = self.timeout;
        Error::unreachable(format!(
            "the server does not answer: no connection was made in {timeout:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_hang_are_few_and_their_ends_are_noticed() {
        let attempts = Attempts::new(Duration::from_millis(20));
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let begun = Arc::new(Mutex::new(0));
        let hang = || {
            let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
            attempts.make(move || {
                *begun.lock().expect("no panic") += 1;
                _ = gate.lock().expect("no panic").recv();
                Ok(())
            })
        };
        for _ in 0..MOST_LATE + 2 {
            let error = hang().expect_err("it hangs");
            assert!(error.to_string().contains("does not answer"), "{error}");
        }
        assert_eq!(*begun.lock().expect("no panic"), MOST_LATE);
        drop(open);
        let patient = Attempts { timeout: Duration::from_secs(60), ..attempts };
        patient.make(|| Ok(())).expect("one has ended");
        let left = patient.late.count();
        let none =
            patient.late.has_ended.wait_timeout_while(left, patient.timeout, |left| *left > 0);
        assert!(!none.expect("no panic").1.timed_out());
    }
}
