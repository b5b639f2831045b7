//! Tasks that have moved to another scheduler.
//!
//! A handle knows the scheduler that gave it out. A leftover that moves keeps its holder, and so its handles, and its
//! word says that it [has moved](super::state::Word::has_moved). Then the scheduler that it belongs to stands here.
//!
//! - MOVED-1 A task is noted before its word says that it has moved, and forgotten when its holder is freed. So the
//!   table has one entry for each task that has moved and is not over.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::wheel::entry::{SchedulerId, TaskKey};

/// A table with more room gives some back when little of it is used.
const MUCH_ROOM: usize = 1024;

static MOVED: LazyLock<Mutex<HashMap<TaskKey, SchedulerId>>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, HashMap<TaskKey, SchedulerId>> {
    MOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn note(key: TaskKey, scheduler: SchedulerId) {
    table().insert(key, scheduler);
}

#[cold]
pub(super) fn find(key: TaskKey) -> Option<SchedulerId> {
    table().get(&key).copied()
}

#[cold]
pub(super) fn forget(key: TaskKey) {
    let mut table = table();
    table.remove(&key);
    let few = table.len();
    if table.capacity() > MUCH_ROOM.max(8 * few) {
        table.shrink_to(2 * few); // what is left of a large move
    }
}
