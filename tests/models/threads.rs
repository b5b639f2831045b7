//! The threads that a model has started without a handle: it ends after them.

use std::io;

use loom::lazy_static;
use loom::sync::Mutex;
use loom::thread::{self, JoinHandle};

use crate::engine::slots::memory;
use crate::platform::sync::lock;

lazy_static! {
    static ref STARTED: Mutex<Vec<JoinHandle<()>>> = Mutex::default();
}

/// loom lets a thread be joined before its thread-locals are dropped, so it puts down its slots itself.
pub(crate) fn start(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        work();
        memory::put_down();
    };
    let started = thread::Builder::new().name(name).spawn(work)?;
    lock(&STARTED).push(started);
    Ok(())
}

/// The last step of a model: afterwards nobody touches a holder.
pub(super) fn end() {
    let started = std::mem::take(&mut *lock(&STARTED));
    started.into_iter().for_each(|thread| thread.join().expect("no panic"));
    memory::put_down();
}
