//! The threads that a model has started without a handle. The model ends after them.

use std::io;

use loom::lazy_static;
use loom::sync::Mutex;
use loom::thread::{self, JoinHandle};

use crate::engine::slots::magazines;
use crate::platform::sync::lock;

lazy_static! {
    static ref STARTED: Mutex<Vec<JoinHandle<()>>> = Mutex::default();
}

/// Starts a thread. loom lets it be joined before its thread-locals are dropped, so it flushes its magazines itself.
pub(crate) fn start(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        work();
        magazines::flush();
    };
    let started = thread::Builder::new().name(name).spawn(work)?;
    lock(&STARTED).push(started);
    Ok(())
}

/// Joins all started threads. This is the last step of a model: afterwards nobody touches a holder.
pub(super) fn end() {
    let started = std::mem::take(&mut *lock(&STARTED));
    started.into_iter().for_each(|thread| thread.join().expect("no panic"));
    magazines::flush();
}
