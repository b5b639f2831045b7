//! The error of an insert: an [`InsertError`].

use std::error::Error;
use std::fmt;

use crate::platform::impls::impl_debug;
use crate::{ScheduleError, TryScheduleError};

/// An insert that was refused: the key, the value, and the reason.
///
/// It is `Send` and `Sync` for every key and value that is `Send`, because it never gives out a reference to them. So `?`
/// converts it into `Box<dyn Error + Send + Sync>`.
pub struct InsertError<K, V>(TryScheduleError<(K, V)>);

impl<K, V> InsertError<K, V> {
    pub(super) fn new(reason: ScheduleError, refused: (K, V)) -> InsertError<K, V> {
        InsertError(TryScheduleError::new(reason, refused))
    }

    /// Returns the key and the value.
    pub fn into_inner(self) -> (K, V) {
        self.0.into_task()
    }

    /// Returns why the insert was refused: [`Closed`](ScheduleError::Closed) or [`Full`](ScheduleError::Full).
    pub fn reason(&self) -> ScheduleError {
        self.0.reason()
    }
}

impl<K, V> fmt::Display for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason() {
            ScheduleError::Full => {
                "the delay queue is full: take what is due, remove something, or raise the limit that was given to \
                 `with_capacity_limit`"
            }
            _ => {
                "the delay queue or its scheduler has been closed: keep the value that `into_inner` returns, or insert it \
                 into another queue"
            }
        })
    }
}

impl_debug!(InsertError<K, V>, self, reason: self.reason());

/// The source is the [`ScheduleError`].
impl<K, V> Error for InsertError<K, V> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
