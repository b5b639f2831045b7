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

    /// Whether a delayed task may start, if it is due.
    pub(super) fn lets_start(self, deadline: Instant, is_due: impl FnOnce() -> bool) -> bool {
        match self {
            End::Open | End::WhenIdle => is_due(),
            End::Safely(at) => deadline <= at,
            End::Drained | End::Now => false,
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
        assert!(end.lets_start(at, || unreachable!("it was due then")));
        assert!(!end.lets_start(at + Duration::from_nanos(1), || true));
    }
}
