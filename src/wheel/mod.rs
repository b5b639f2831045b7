//! The timer wheel: values by deadline, as a plain data structure. It has no thread, no clock and no atomics.
//!
//! It is the hashed wheel of Varghese and Lauck as Akka's scheduler has it: a power of two of buckets, an *offset* into
//! them, and *rounds* for what is due later than the wheel can show. In the textbook a bucket holds tasks of all
//! rounds, and each visit looks at all of them to count their rounds down. That costs a task one visit per turn of the
//! wheel, and makes a tick as long as its bucket. Here a bucket holds only what is due at one tick. What is due later is
//! filed by its half-turn (the rounds, counted up from zero instead of down from now), and is brought into the buckets
//! once, while the half-turn before it passes. For days and years the wheel keeps groups of half-turns. While
//! one group passes, it brings the entries of the next one to their half-turns.
//!
//! ```text
//!            the present half-turn       the next one            later ones, by half-turn
//!   ring:  [ . . x . . . x x . . . ][ . x . . . x . . . . . ]    far:  7 ──> [ entries ]
//!                  ^ now                       ^                       9 ──> [ entries ]
//!                  '- given out as the         '--- brought in        31 ──> [ entries ]
//!                     ticks pass                    a share per tick
//! ```
//!
//! So each entry is moved at most twice before it is due. A tick costs what it gives out and a share of what comes in.
//! A jump of any length costs what it gives out, because a bitmap finds the next bucket, and the next half-turn in
//! the same way. One that lands in a group of which nothing was brought in does that too, which takes 6 to 9 ns an entry.
//!
//! The buckets hold small entries, and the values lie elsewhere. To remove a value leaves its entry behind. Such a stale
//! entry is dropped when it comes up, or swept when there are many.

// `buckets` is the wheel proper: entries by tick, and where each of them is (WHEEL-1). `sweep` finds the first live
// entry and drops stale ones. Below them, `places` has the chains of entries by place, `chain` the blocks in which they lie,
// and `occupancy` the bitmap. Two use them: `keyed`, which is `Wheel`, with the values in `slots`, and the scheduler, with
// `entry`.
mod buckets;
mod chain;
pub(crate) mod entry;
mod keyed;
mod occupancy;
mod places;
mod slots;
mod sweep;

pub use keyed::{Advance, Wheel, WheelKey};
#[cfg(feature = "std")]
pub(crate) use {buckets::Buckets, chain::Timed};
