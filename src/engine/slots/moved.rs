//! Tasks that have moved to another scheduler.
//!
//! A handle knows the scheduler that gave it out. A leftover that moves to another scheduler keeps its holder, and so its
//! handles. Its word says that it has moved, and the table here says to which scheduler. A task is put into the table
//! before its word says so, and is removed when its holder is freed.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::wheel::entry::{SchedulerId, TaskKey};

static MOVED: LazyLock<Mutex<HashMap<TaskKey, SchedulerId>>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, HashMap<TaskKey, SchedulerId>> {
    MOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a task belongs to this scheduler from now on. The caller holds the task.
pub(super) fn insert(key: TaskKey, scheduler: SchedulerId) {
    table().insert(key, scheduler);
}

/// Returns the scheduler that a task which has moved belongs to now.
#[cold]
#[inline(never)]
pub(super) fn scheduler(key: TaskKey) -> Option<SchedulerId> {
    table().get(&key).copied()
}

/// Removes a task that is over, and gives back what a large move has left of the table.
#[cold]
#[inline(never)]
pub(super) fn forget(key: TaskKey) {
    const WORTH_SHRINKING: usize = 1024;
    let mut table = table();
    table.remove(&key);
    // A close of a scheduler with a million tasks may move them all at once. That should not be paid for until the end
    // of the process.
    let few = table.len();
    if table.capacity() > WORTH_SHRINKING.max(8 * few) {
        table.shrink_to(2 * few);
    }
}
