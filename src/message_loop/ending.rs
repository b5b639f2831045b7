//! How a loop comes to its end.
//!
//! ```text
//!            quit_when_idle      quit_safely          quit, from           quit, on the
//!                                                     elsewhere            loop's thread
//!   Open ------> WhenIdle ------> Safely(at) ------> Drained ------------> Now
//!
//!   posts:  taken        taken             refused             refused              refused
//!   starts: all that is due                what is due `at`    what is immediate    nothing
//! ```
//!
//! An end becomes stricter, never milder, from any state to any further right. Each of them turns into
//! `Now` by itself when nothing is left that it lets start.

use std::time::Instant;

/// What may still start, and whether more may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    #[default]
    Open,
    WhenIdle,
    /// What was due then.
    Safely(Instant),
    Drained,
    Now,
}

/// Which delayed tasks may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delayed {
    WhenDue,
    Until(Instant),
    None,
}

impl End {
    /// An end that was asked for twice keeps its first time.
    pub(super) fn tighten(&mut self, to: End) {
        let is_again = matches!((&self, to), (End::Safely(_), End::Safely(_)));
        if !is_again {
            *self = (*self).max(to);
        }
    }

    pub(super) fn takes_posts(self) -> bool {
        self <= End::WhenIdle
    }

    pub(super) fn delayed(self) -> Delayed {
        match self {
            End::Open | End::WhenIdle => Delayed::WhenDue,
            End::Safely(at) => Delayed::Until(at),
            End::Drained | End::Now => Delayed::None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_end_becomes_stricter_and_never_milder() {
        let at = Instant::now();
        let in_order = [End::Open, End::WhenIdle, End::Safely(at), End::Drained, End::Now];
        for (rank, from) in in_order.into_iter().enumerate() {
            for (other, to) in in_order.into_iter().enumerate() {
                let mut end = from;
                end.tighten(to);
                assert_eq!(end, in_order[rank.max(other)], "{from:?} and then {to:?}");
            }
        }
    }

    #[test]
    fn a_second_quit_safely_does_not_move_the_first() {
        let at = Instant::now();
        let mut end = End::Safely(at);
        end.tighten(End::Safely(at + Duration::from_secs(1)));
        assert_eq!(end, End::Safely(at));
        assert_eq!(end.delayed(), Delayed::Until(at));
    }
}
