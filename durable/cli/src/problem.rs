//! Why a command did not do its work, what it says then, and its exit code: [`Problem`].
//!
//! | code | what it means |
//! | --- | --- |
//! | 0 | done |
//! | 1 | nothing is there, or nothing was changed |
//! | 2 | the call is wrong: arguments, an address, or a timer that cannot be |
//! | 3 | the database is away or busy: the same call may work later |
//! | 4 | it refuses, and will again: no such file, database or role, a wrong password, no rights, no tables, tables of another version |
//! | 5 | the output could not be written |
//! | 130 | interrupted by Ctrl-C or SIGTERM |

use std::error::Error as StdError;
use std::io;

use rusqlite::ErrorCode;
use tickwheel_durable::{Error, SCHEMA_VERSION};

pub(crate) type Outcome = Result<(), Problem>;

#[derive(Debug)]
pub(crate) enum Problem {
    /// Nothing is there, or nothing was changed. What there is to say was said.
    Nothing,
    Usage(String),
    Away(String),
    Refused(String),
    Output(io::Error),
    Interrupted,
}

impl Problem {
    pub(crate) fn code(&self) -> u8 {
        match self {
            // The one who reads has seen enough, as `head` has.
            Problem::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Problem::Nothing => 1,
            Problem::Usage(_) => 2,
            Problem::Away(_) => 3,
            Problem::Refused(_) => 4,
            Problem::Output(_) => 5,
            Problem::Interrupted => 130,
        }
    }

    /// Returns what to print to stderr, if anything.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Problem::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Problem::Output(error) => Some(format!("the output could not be written: {error}")),
            Problem::Usage(text) | Problem::Away(text) | Problem::Refused(text) => {
                Some(text.clone())
            }
            Problem::Nothing | Problem::Interrupted => None,
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Output(error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let text = error.to_string();
        match error {
            // The client finds out that the address lacks a host or a password when it connects.
            Error::Unreachable(cause) if cause.to_string().starts_with("invalid configuration") => {
                Problem::Usage(format!(
                    "{text}\nComplete the address: postgres://user:password@host/database."
                ))
            }
            Error::Unreachable(cause) if lasts(&*cause) => Problem::Refused(format!(
                "{text}\nCheck the address: the file, or the database, the role and its password."
            )),
            Error::Unreachable(_) | Error::TooManyClients(_) => Problem::Away(format!(
                "{text}\nCheck the address, and that the server runs and lets you in."
            )),
            Error::Busy => Problem::Away(
                "another transaction has held the timer, or the file, for ten seconds: try again"
                    .to_owned(),
            ),
            Error::Unmigrated(version) => Problem::Refused(unmigrated(version)),
            Error::Schema(oldest) => Problem::Refused(format!(
                "the tables need a program that knows version {oldest}, and this one knows those up to {SCHEMA_VERSION}: \
                 update tickwheel-durable"
            )),
            Error::Refused(_) if text.contains("permission denied") => Problem::Refused(format!(
                "{text}\nUse a role that has rights on the tables. The documentation of tickwheel-durable has the grants."
            )),
            Error::Refused(_) => Problem::Refused(text),
            Error::Shards(of) => {
                // What has to be mended counts for more than what may come back by itself.
                let each = of.into_iter().map(|one| {
                    let (shard, name) = (one.shard, one.name);
                    let problem = Problem::from(one.error);
                    let text = problem.text().unwrap_or_default();
                    (problem.code(), format!("shard {shard} ({name}): {text}"))
                });
                let (codes, texts): (Vec<_>, Vec<_>) = each.unzip();
                let text = texts.join("\n");
                match codes.into_iter().max() {
                    Some(3) => Problem::Away(text),
                    Some(4) => Problem::Refused(text),
                    _ => Problem::Usage(text),
                }
            }
            _ => Problem::Usage(text),
        }
    }
}

/// Returns true if a connection will fail again for this reason, until somebody has mended it. The library calls each connection that fails
/// unreachable, because its workers try again whatever the reason is.
fn lasts(cause: &(dyn StdError + Send + Sync + 'static)) -> bool {
    let of_server = cause.downcast_ref::<postgres::Error>().and_then(postgres::Error::code);
    let of_file = cause.downcast_ref::<rusqlite::Error>();
    let of_file = of_file.and_then(rusqlite::Error::sqlite_error_code);
    // The role or its password (28), the database (3D), or a right on it (42).
    of_server.is_some_and(|code| ["28", "3D", "42"].contains(&&code.code()[..2]))
        || matches!(
            of_file,
            Some(
                ErrorCode::CannotOpen
                    | ErrorCode::NotADatabase
                    | ErrorCode::DatabaseCorrupt
                    | ErrorCode::ReadOnly
            )
        )
}

fn unmigrated(version: i32) -> String {
    let there = match version {
        0 => "there are no tables of tickwheel-durable here".to_owned(),
        version => {
            format!("the tables are of version {version}, and this program needs {SCHEMA_VERSION}")
        }
    };
    format!("{there}: run `tickwheel-durable migrate` as their owner")
}
