//! A task: its holder, the word that everybody races on, its closure, and the memory under it.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`state`] | the states of a holder and the transitions between them, on one atomic word |
//! | [`closure`] | a closure without a type: 32 bytes inline, larger ones boxed |
//! | [`holder`] | the holder itself: word, period, body; who may touch the body |
//! | [`moved`] | tasks that have moved to another scheduler |
//! | [`directory`] | where holders lie, and why a stale handle may look there |
//! | [`memory`] | the free slots that a thread has at hand |
//! | [`depot`] | the free slots that no thread has at hand |
//! | [`grow`] | how memory is made ready before it is needed |
//! | [`trim`] | how memory goes back to the system after a peak |

use crate::platform::sync::{in_models, outside_models};

#[expect(unsafe_code, reason = "a closure of any type lies in 32 bytes without a type")]
pub(crate) mod closure;
pub(crate) mod depot;
pub(crate) mod directory;
pub(crate) mod grow;
#[expect(unsafe_code, reason = "the body belongs to whom the word says")]
pub(crate) mod holder;
pub(crate) mod memory;
mod moved;
pub(crate) mod state;
pub(crate) mod trim;

outside_models! {
    #[expect(unsafe_code, reason = "a slot number becomes a reference")]
    mod blocks;
}
in_models! {
    use crate::models::blocks;
}

pub(crate) use closure::{Content, Named, NamedAfter, OneShot, Series, Wake};
pub(crate) use holder::{Body, Cancelled, Running, Thrown};
pub(crate) use state::Phase;
