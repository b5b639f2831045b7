//! How memory is made ready before it is needed.
//!
//! A new block of holders is two megabytes. The system fills it with zeros when it is first touched, which takes from 0.3
//! to 8 ms; on the thread of a caller that would be one schedule that takes so long. So the tick thread does it: when
//! fewer slots are left than half a block has, it brings the next one, and touches it before anybody knows of it.
//!
//! A caller that finds no slot before that brings a block by itself, of small pages, of which it touches one at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use super::depot::depot;
use super::directory;

/// Few slots are left. Relaxed: a hint, and the depot's lock tells what is true.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Few slots are left: a tick thread should do something about it.
pub(super) fn is_short() {
    IS_SHORT.store(true, Ordering::Relaxed);
}

/// Brings a block, if one will soon be needed. For tick threads; the depot is not locked while the system works.
pub(crate) fn ahead() {
    if !IS_SHORT.load(Ordering::Relaxed) || !IS_SHORT.swap(false, Ordering::Relaxed) {
        return;
    }
    let reserved = depot().reserve_block();
    let Some(block) = reserved else { return };
    if directory::add_block_ahead(block) {
        depot().open_block(block);
    } else {
        depot().lose_block();
    }
}
