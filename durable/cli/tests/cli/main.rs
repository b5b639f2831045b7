//! What the program `tickwheel-durable` prints, and with which exit code it ends: the real program, on SQLite files and on a PostgreSQL
//! server.

mod changes;
mod exits;
mod hostile;
#[cfg(unix)]
mod live;
mod program;
#[path = "../../../tests/common/server.rs"]
mod server;
mod sight;
mod transcript;
