//! The errors of stores and workers: [`Error`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::sharded::ShardError;
use crate::store::SCHEMA_VERSION;

/// What any call of a store may return.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of [`Timers`](crate::Timers), or a [`Worker`](crate::Worker), could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the address of a store.
    #[error(
        "{0}: give a path as in `sqlite:timers.db`, or a server as in `postgres://user@host/database`"
    )]
    Address(String),
    /// The database cannot be reached, or the connection was lost, or the disk is full. A later call opens a new connection,
    /// so it may be repeated.
    #[error("the database cannot be reached or used: {}", with_causes(&**.0))]
    Unreachable(#[source] Box<dyn StdError + Send + Sync>),
    /// The server has no room for another connection, or those that
    /// [`OpenOptions::max_connections`](crate::OpenOptions::max_connections) allows were all in use, and none became free in
    /// time. Nothing was sent, so the call may be repeated.
    #[error("too many clients: no connection is free: {}", with_causes(&**.0))]
    TooManyClients(#[source] Box<dyn StdError + Send + Sync>),
    /// The database refused a statement.
    #[error("the database refused: {}", with_causes(&**.0))]
    Refused(#[source] Box<dyn StdError + Send + Sync>),
    /// A transaction has held a timer, or a whole SQLite file, for more than ten seconds.
    #[error(
        "another transaction has held the timer, or the file, for ten seconds: inside a transaction use the functions \
         that take the transaction, and keep it short"
    )]
    Busy,
    /// The tables are from a newer version of this crate, which this one cannot work with: they need one that knows this version.
    #[error(
        "the tables need a tickwheel that knows version {0}, and this one knows those up to {known}: update tickwheel",
        known = SCHEMA_VERSION
    )]
    Schema(i32),
    /// The tables are of an older version than this crate needs, or there are none (version 0). They are not changed, because
    /// [`Timers::open_unmigrated`](crate::Timers::open_unmigrated) only checks them, or because the role may not.
    #[error(
        "the tables are of version {0}{none}, and this version of tickwheel needs {SCHEMA_VERSION}: as their owner, call \
         `Timers::open` once, or run the files of `migrations` from {next:04} to {SCHEMA_VERSION:04}",
        none = if *.0 == 0 { ", which means that there are none" } else { "" },
        next = *.0 + 1
    )]
    Unmigrated(i32),
    /// A field of a timer, or a setting, is not possible. Or the schema of the tables was renamed, which its functions do not know.
    #[error("{0}")]
    Invalid(String),
    /// A worker has stopped by itself. [`WorkerBuilder::on_error`](crate::WorkerBuilder::on_error) is told so.
    #[error("a worker has stopped: {0}")]
    Stopped(StopReason),
    /// A handler has exceeded its time limit. Its run has failed, and another thread stands in for its own; an async one is dropped. The
    /// hook of [`WorkerBuilder::on_error`](crate::WorkerBuilder::on_error) gets this at once, once for each run. It gets it again, with
    /// `late`, when a handler has returned after all that went on for more than 100 ms.
    #[error("the handler of the kind {kind:?} has exceeded its time limit of {limit:?} with the timer {key:?}{}", has_returned(*.late))]
    #[non_exhaustive]
    TimeLimit {
        /// The kind of the timer.
        kind: String,
        /// Its key.
        key: String,
        /// How long the run might take.
        limit: Duration,
        /// How long after that the handler has returned. `None`: it goes on.
        late: Option<Duration>,
    },
    /// A handler was not called, because its transaction, or its runtime, was not there within the time limit. That is no attempt, and the
    /// run comes again: it is given back, or, if its timer is suspected of having killed a worker, its lease is left to end.
    /// [`WorkerBuilder::on_error`](crate::WorkerBuilder::on_error) is told so, but for times in which the database cannot be reached, which
    /// it knows already. A limit that is shorter than a transaction takes to begin shows itself by one after the other of these.
    #[error(
        "the handler of the kind {kind:?} was not called with the timer {key:?}, because its transaction, or its runtime, was not \
         there within the time limit of {limit:?}: this is no attempt, and the run comes again"
    )]
    #[non_exhaustive]
    NotCalled {
        /// The kind of the timer.
        kind: String,
        /// Its key.
        key: String,
        /// How long the run might take, and has waited.
        limit: Duration,
    },
    /// All threads of this kind are in handlers that have exceeded their time limits, so the worker claims no more timers of
    /// the kind until one of them returns. [`WorkerBuilder::on_error`](crate::WorkerBuilder::on_error) is told so.
    #[error(
        "all threads of the kind {0:?} hang in handlers that have exceeded their time limits: no more of its timers are \
         claimed until one returns"
    )]
    Stuck(String),
    /// Of several stores, which were opened with `Timers::sharded`, these have failed. A call over several has been made on the
    /// others.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Shards(Vec<ShardError>),
    /// A payload is not the JSON of the type that was asked for, or a value has no JSON.
    #[cfg(feature = "serde")]
    #[error("the payload and its type do not fit: {0}")]
    Json(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Wraps an error of a database's client, for writers of stores.
    pub fn refused(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Refused(error.into())
    }

    /// Wraps an error after which the connection cannot be used any more, for writers of stores.
    pub fn unreachable(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Unreachable(error.into())
    }
}

impl Error {
    #[cfg(feature = "serde")]
    pub(crate) fn json(error: serde_json::Error) -> Error {
        Error::Json(error.into())
    }

    /// Returns the same error, with texts in place of its causes.
    pub(crate) fn copy(&self) -> Error {
        let text = |cause: &(dyn StdError + Send + Sync + 'static)| with_causes(cause).into();
        match self {
            Error::Address(text) => Error::Address(text.clone()),
            Error::Unreachable(cause) => Error::Unreachable(text(&**cause)),
            Error::TooManyClients(cause) => Error::TooManyClients(text(&**cause)),
            Error::Refused(cause) => Error::Refused(text(&**cause)),
            Error::Busy => Error::Busy,
            Error::Schema(oldest) => Error::Schema(*oldest),
            Error::Unmigrated(version) => Error::Unmigrated(*version),
            Error::Invalid(text) => Error::Invalid(text.clone()),
            Error::Stopped(reason) => Error::Stopped(*reason),
            Error::TimeLimit { kind, key, limit, late } => {
                let (kind, key) = (kind.clone(), key.clone());
                Error::TimeLimit { kind, key, limit: *limit, late: *late }
            }
            Error::NotCalled { kind, key, limit } => {
                Error::NotCalled { kind: kind.clone(), key: key.clone(), limit: *limit }
            }
            Error::Stuck(kind) => Error::Stuck(kind.clone()),
            Error::Shards(_) => Error::Invalid(self.to_string()),
            #[cfg(feature = "serde")]
            Error::Json(cause) => Error::Json(text(&**cause)),
        }
    }

    /// Returns true if there was no connection, or it was lost. So another one may do.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        matches!(self, Error::Unreachable(_) | Error::TooManyClients(_))
    }
}

/// Why a [`Worker`](crate::Worker) does not run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// [`Worker::stop`](crate::Worker::stop) was called.
    Stopped,
    /// The tables are now of a version that this crate cannot work with, and need at least this one:
    /// [`Error::Schema`].
    Schema(i32),
    /// The scheduler on whose clock it waits was closed.
    SchedulerClosed,
    /// The runtime of its async handlers is gone: it has dropped one without a poll. Its timers are given back.
    RuntimeGone,
    /// A thread of the worker itself has panicked. That is a fault of this crate, or of a store.
    Panicked,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Stopped => f.write_str("it was told to stop"),
            StopReason::Schema(oldest) => {
                write!(f, "the tables need a tickwheel that knows version {oldest}")
            }
            StopReason::SchedulerClosed => f.write_str("its scheduler was closed"),
            StopReason::RuntimeGone => {
                f.write_str("the runtime of its async handlers is gone, or refuses them")
            }
            StopReason::Panicked => f.write_str("one of its own threads has panicked"),
        }
    }
}

fn has_returned(late: Option<Duration>) -> String {
    match late {
        Some(late) => format!(", and has returned {late:.1?} after that"),
        None => ": the run has failed".to_owned(),
    }
}

/// Returns the message of an error and of its causes, each once.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}
