//! Stands in for `src/engine/slots/blocks.rs` in a model: two pages of holders, which each run of a model has anew.

use std::ops::Range;

use loom::lazy_static;
use loom::sync::atomic::AtomicU32;

use crate::engine::slots::holder::{Annex, TaskHolder};
use crate::engine::slots::state::Word;
use crate::wheel::entry::SchedulerId;

/// Two pages, because the trimmer may have one of them in hand.
const HOLDERS: u32 = 128;

lazy_static! {
    static ref PAGES: Vec<TaskHolder> = (0..HOLDERS).map(|_| TaskHolder::new()).collect();
    static ref ANNEXES: Vec<Annex> = (0..HOLDERS).map(|_| Annex::default()).collect();
    static ref GIVEN_BACK: AtomicU32 = AtomicU32::new(0);
}

pub(crate) fn holder(slot: u32) -> Option<&'static TaskHolder> {
    PAGES.get(slot as usize)
}

pub(crate) fn annex(slot: u32) -> Option<&'static Annex> {
    ANNEXES.get(slot as usize)
}

pub(crate) fn prefetch(_slot: u32) {}

/// A model has its two pages from the beginning.
pub(crate) struct Block;

pub(crate) fn map(_is_ahead: bool) -> Option<Block> {
    Some(Block)
}

pub(crate) fn publish(_number: usize, _block: Block) {}

pub(crate) fn given_back(_slot: u32) -> &'static AtomicU32 {
    &GIVEN_BACK
}

/// Does what the system does to a page that is given back.
pub(crate) fn discard(slots: Range<u32>) -> bool {
    for holder in slots.filter_map(holder) {
        holder.word.fill(Word::default());
        holder.set_identity(0, SchedulerId::FIRST);
    }
    true
}
