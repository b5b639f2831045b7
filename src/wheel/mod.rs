//! The timer wheel: what is due when, and nothing else. No thread, no clock, no atomics.
//!
//! It is the hashed wheel of Varghese and Lauck as Akka's scheduler has it, with a power of two of
//! buckets, an *offset* into them, and *rounds* for what is due later than the wheel can show. In the
//! textbook a bucket holds tasks of all rounds, and each visit looks at all of them to count their
//! rounds down; that costs a task a visit per turn of the wheel, and a tick the length of its bucket.
//! Here a bucket holds only what is due at one tick. What is due later is filed by its half-turn (the
//! rounds, counted up from zero instead of down from now) and is brought into the buckets once, while
//! the half-turn before it passes.
//!
//! ```text
//!            the present half-turn       the next one            later ones, by half-turn
//!   ring:  [ . . x . . . x x . . . ][ . x . . . x . . . . . ]    far:  7 ──> [ entries ]
//!                  ^ now                       ^                       9 ──> [ entries ]
//!                  '- given out as the         '--- brought in        31 ──> [ entries ]
//!                     ticks pass                    a share per tick
//! ```
//!
//! So each entry is touched at most twice before it is due, a tick costs what it gives out and a share
//! of what comes in, and a jump of any length costs what it gives out: a bitmap finds the next bucket,
//! and the far store the next half-turn.
//!
//! | file | what it is |
//! | --- | --- |
//! | `buckets` | the wheel proper: entries by value, filed by tick; the invariants WHEEL-1 to WHEEL-5 |
//! | `chain` | the blocks in which entries lie |
//! | `far` | the half-turns that are not in the ring yet |
//! | `occupancy` | the bitmap |
//! | `sweep` | what comes first of what is alive, and the sweep |
//! | `keyed` | [`Wheel`]: values with keys on top of it |
//!
//! The scheduler uses `buckets` as [`Wheel`] does: both hold the values elsewhere, and small names of
//! them in the buckets. A removed value leaves a stale name behind, which is dropped when it comes
//! up, or swept when there are many.

mod buckets;
mod chain;
pub(crate) mod entry;
mod far;
mod keyed;
mod occupancy;
mod sweep;

pub(crate) use buckets::Buckets;
pub(crate) use chain::Timed;
pub use keyed::{Expired, Key, Wheel, WheelKey};
