//! A few holders that each run of a model has anew, in the place of the directory's blocks.

use std::ops::Range;

use loom::lazy_static;
use loom::sync::atomic::AtomicU32;

use crate::engine::slots::holder::TaskHolder;

/// Two pages: one may be in the trimmer's hands.
const HOLDERS: u32 = 128;

lazy_static! {
    static ref PAGES: Vec<TaskHolder> = (0..HOLDERS).map(|_| TaskHolder::new()).collect();
    static ref GIVEN_BACK: AtomicU32 = AtomicU32::new(0);
}

pub(crate) fn holder(slot: u32) -> Option<&'static TaskHolder> {
    PAGES.get(slot as usize)
}

pub(crate) fn prefetch(_slot: u32) {}

pub(crate) fn add_block(_number: usize) -> bool {
    true
}

pub(crate) fn add_block_ahead(_number: usize) -> bool {
    true
}

pub(crate) fn given_back(_block: usize) -> &'static AtomicU32 {
    &GIVEN_BACK
}

/// What the system does to a page that is given back.
pub(crate) fn wipe(slots: Range<u32>) -> bool {
    slots.filter_map(holder).for_each(TaskHolder::wipe);
    true
}
