//! Asleep until a deadline, or woken for an earlier one: what sleepers say about themselves, and who has to be woken.
//!
//! The page [`waking`](crate::docs::waking) explains the protocol, and why no wake-up is lost and none is spent twice.
//!
//! | type | for | used by |
//! | --- | --- | --- |
//! | [`SleepState`] | a sleeper, under the lock that also guards its deadlines | a message loop; each waiter of a list |
//! | [`WaitList`](wait_list::WaitList) | a leader and its followers, under such a lock | `DelayedWorkQueue`, and so the workers of a pool, and the thread of an `rx` worker that keeps the time itself; `DelayQueue`; tasks that await the end of a scheduler |
//! | [`Doorbell`](doorbell::Doorbell) | a sleeper whom others wake without a lock | the thread that turns an engine |
//!
//! Nothing here puts a thread to sleep, or calls a waker under a lock.

pub(crate) mod doorbell;
pub(crate) mod wait_list;

use std::mem;

use crate::clock::tick::Moment;

/// What a sleeper does, as far as those have to know that may wake it (WAKE-2). `T` is a point in time, and `W` what wakes
/// the sleeper.
#[derive(Debug)]
pub(crate) enum SleepState<T, W> {
    /// It will look for something to do before it sleeps. Set by the sleeper, and by the thread that wakes it.
    Awake,
    /// It has found nothing, and sleeps, or is about to sleep, or has just woken up by itself. `None` is a sleep without
    /// end.
    Asleep(Option<T>, W),
}

impl<T: Copy + Ord, W> SleepState<T, W> {
    /// Returns true if the sleeper would come too late for something that is due at this time.
    pub(crate) fn sleeps_past(&self, deadline: T) -> bool {
        matches!(self, SleepState::Asleep(until, _) if until.is_none_or(|until| deadline < until))
    }

    /// Makes the sleeper awake. Returns what wakes it, if it was asleep: for something that is due at once.
    pub(crate) fn wake(&mut self) -> Option<W> {
        match mem::replace(self, SleepState::Awake) {
            SleepState::Asleep(_, waker) => Some(waker),
            SleepState::Awake => None,
        }
    }

    /// Makes a sleeper awake that would sleep past this deadline. Returns what wakes it, to one caller alone.
    #[must_use]
    pub(crate) fn wake_for(&mut self, deadline: T) -> Option<W> {
        if self.sleeps_past(deadline) { self.wake() } else { None }
    }
}

/// A sleeper that others look at without a lock says in one word until when it sleeps, as a [`Moment`]. This is the word of
/// one that is awake. No deadline comes before it.
pub(crate) const AWAKE: u64 = 0;

/// Returns the word of a sleeper that sleeps until then.
pub(crate) fn asleep(until: Moment) -> u64 {
    until.0.max(AWAKE + 1)
}
