//! A log that tasks write to, in the order in which they run.

use std::sync::{Arc, Mutex};

/// Clones are the same log.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    /// Returns a task that writes a number.
    pub(crate) fn task(&self, number: u32) -> impl FnOnce() + Send + 'static {
        let log = self.clone();
        move || log.say(number)
    }

    pub(crate) fn say(&self, number: u32) {
        self.0.lock().expect("no panic").push(number);
    }

    pub(crate) fn all(&self) -> Vec<u32> {
        self.0.lock().expect("no panic").clone()
    }
}
