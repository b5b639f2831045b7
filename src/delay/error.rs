//! The error of an insert: an [`InsertError`].

use thiserror::Error;

use crate::platform::impls::impl_debug;
use crate::{ScheduleError, TryScheduleError};

/// An insert that was refused: the key, the value, and the reason.
///
/// It is `Send` and `Sync` for every key and value that is `Send`, because it never gives out a reference to them. So `?`
/// converts it into `Box<dyn Error + Send + Sync>`. The [`source`](std::error::Error::source) is the [`ScheduleError`].
#[derive(Error)]
#[error("{}", if *.reason == ScheduleError::Full { FULL } else { CLOSED })]
pub struct InsertError<K, V> {
    #[source]
    reason: ScheduleError,
    refused: TryScheduleError<(K, V)>,
}

const FULL: &str = "the delay queue is full: take what is due, remove something, or raise the limit that was given to \
                    `with_capacity_limit`";
const CLOSED: &str = "the delay queue or its scheduler has been closed: keep the value that `into_inner` returns, or \
                      insert it into another queue";

impl<K, V> InsertError<K, V> {
    pub(super) fn new(reason: ScheduleError, refused: (K, V)) -> InsertError<K, V> {
        InsertError { reason, refused: TryScheduleError::new(reason, refused) }
    }

    /// Returns the key and the value.
    pub fn into_inner(self) -> (K, V) {
        self.refused.into_task()
    }

    /// Returns why the insert was refused: [`Closed`](ScheduleError::Closed) or [`Full`](ScheduleError::Full).
    pub fn reason(&self) -> ScheduleError {
        self.reason
    }
}

impl_debug!(InsertError<K, V>, self, reason: self.reason);
