//! The tasks of a worker that wait for their time, in a [`Wheel`].
//!
//! No lock is taken here and no task runs: the queue that owns a [`Delayed`] has the lock. Each task has a timer, which is a
//! task of the worker's scheduler. So the task is among the leftovers of that scheduler, counts towards its limit, and
//! a pool or a loop treats it as its policy says. What a thread does with the timer is in [`timer`](super::timer).
//!
//! ```text
//!                         accepted               moved, or replaced
//!   InHand, the first ----------------> Stored --------------------> InHand
//!          |                              ^           stored          |  |
//!          | refused                      '---------------------------'  | refused: its thread sets another
//!          v                                                             '--> InHand, under another key
//!   the task leaves <--- its thread finds, when it stores the timer, that it was dropped in the meantime
//! ```
//!
//! - DELAY-1 The key under which a task is in the wheel names one timer of one task, and is never used again. A task that
//!   needs another timer is put in again. So a timer that comes too late, when the task has left, waits for another run or
//!   has another timer, finds nothing.
//! - DELAY-2 The deadline of a task is the one that stands here. Its timer fires no later than that, or a thread has the
//!   timer in hand, and looks at the deadline again when it stores the timer. A timer never fires before `set_for`. If it
//!   finds a deadline after that, only the clock can tell whether the task is due.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use super::worker::TaskQueue;
use crate::Cancellable;
use crate::clock::epoch::Epoch;
use crate::job::{Position, Run};
use crate::wheel::{Wheel, WheelKey};

/// A task as its queue holds it.
pub(super) type Entry = Arc<dyn Run<dyn TaskQueue>>;

/// The size of the wheel, and what a bucket of it covers, in nanoseconds: four seconds. Most workers have few delayed tasks,
/// and a wheel of more buckets would take more memory than they. Nearer deadlines are in the wheel's heap.
const BUCKETS: usize = 4;
const GRANULARITY: NonZeroU64 = NonZeroU64::new(1 << 32).expect("above zero");

/// A queue keeps the memory for this many tasks after a peak.
pub(super) const SMALL: usize = 512;

/// The tasks that wait for their time.
#[derive(Default)]
pub(super) struct Delayed {
    /// The wheel counts from there, in nanoseconds. `None` if timers fire in order of deadline: then it need not sort their
    /// tasks.
    epoch: Option<Epoch>,
    /// Made for the first task. A worker without a delayed task needs no memory for them.
    tasks: Option<Box<Wheel<DelayedTask>>>,
}

pub(super) struct DelayedTask {
    pub(super) job: Entry,
    pub(super) deadline: Instant,
    timer: Timer,
    /// The timer does not fire earlier, by the clock of the worker. `None` if it goes by another clock.
    set_for: Option<Instant>,
}

pub(super) enum Timer {
    /// A thread sets it, or moves it.
    InHand,
    /// The same, and it was dropped in the meantime.
    Dropped,
    /// It is set, or there is none.
    Stored(Option<Cancellable>),
}

/// What a thread needs to know that sets or moves the timer of a task.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) key: WheelKey,
    pub(super) deadline: Instant,
    pub(super) set_for: Option<Instant>,
}

/// What a firing timer finds.
pub(super) enum Found {
    /// This task is due. `is_own` is true if it is the timer's, and false if it is another one that has to come before.
    Due { task: DelayedTask, is_own: bool },
    /// The task was moved to a later deadline. The timer was set for this time.
    Early(Option<Instant>),
    /// Its task has left.
    Nothing,
}

impl DelayedTask {
    pub(super) fn into_timer(self) -> Option<Cancellable> {
        if let Timer::Stored(timer) = self.timer { timer } else { None }
    }
}

impl Delayed {
    pub(super) fn new(epoch: Option<Epoch>) -> Delayed {
        Delayed { epoch, tasks: None }
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.as_ref().map_or(0, |tasks| tasks.len())
    }

    /// Returns the number by which the wheel sorts a deadline.
    fn place(&self, deadline: Instant) -> u64 {
        self.epoch.map_or(Epoch::START, |epoch| epoch.number(deadline))
    }

    pub(super) fn get(&self, key: WheelKey) -> Option<&DelayedTask> {
        self.tasks.as_ref()?.get(key)
    }

    fn get_mut(&mut self, key: WheelKey) -> Option<&mut DelayedTask> {
        self.tasks.as_mut()?.get_mut(key)
    }

    /// Adds a task. The caller has its first timer in hand, or has it [taken](Delayed::take_timer) to set another.
    pub(super) fn insert(&mut self, job: Entry, deadline: Instant, timer: Timer) -> Wait {
        // A task may be refused as long as its first timer is being set. So no other timer brings it along before that one
        // is stored.
        let is_unsure = matches!(timer, Timer::InHand) && self.epoch.is_some();
        let place = if is_unsure { u64::MAX } else { self.place(deadline) };
        self.file(place, DelayedTask { job, deadline, timer, set_for: Some(deadline) })
    }

    /// Files a task under a new key.
    fn file(&mut self, place: u64, task: DelayedTask) -> Wait {
        let (deadline, set_for) = (task.deadline, task.set_for);
        let wheel = || Wheel::with_granularity(BUCKETS, GRANULARITY, Epoch::START);
        let tasks = self.tasks.get_or_insert_with(|| Box::new(wheel()));
        let key = tasks.insert(place, task);
        if let Some(task) = tasks.get(key) {
            task.job.position().set(Position::Delayed(key));
        }
        Wait { key, deadline, set_for }
    }

    /// Removes a task, if it is still there under this key.
    pub(super) fn remove(&mut self, key: WheelKey) -> Option<DelayedTask> {
        let task = self.tasks.as_mut()?.remove(key)?;
        task.job.position().set(Position::Gone);
        Some(task)
    }

    /// Removes all tasks, and returns them in order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = DelayedTask> + use<> {
        let mut tasks = self.tasks.take();
        std::iter::from_fn(move || tasks.as_mut()?.pop(u64::MAX).map(|(_, _, task)| task))
    }

    /// Moves the deadline of a task. Its timer has to follow (DELAY-2). Returns false if it has left.
    pub(super) fn move_to(&mut self, key: WheelKey, deadline: Instant) -> bool {
        let place = self.place(deadline);
        let Some(tasks) = &mut self.tasks else { return false };
        tasks.reset(key, place) && tasks.get_mut(key).map(|task| task.deadline = deadline).is_some()
    }

    // ----- timers --------------------------------------------------------------------------

    /// Takes the timer in hand, if there is one. Returns `None` if the task has left, or if another thread has its timer.
    pub(super) fn take_timer(&mut self, key: WheelKey) -> Option<(Wait, Option<Cancellable>)> {
        let task = self.get_mut(key)?;
        let Timer::Stored(timer) = &mut task.timer else { return None };
        let timer = timer.take();
        task.timer = Timer::InHand;
        let wait = Wait { key, deadline: task.deadline, set_for: task.set_for };
        task.set_for = task.set_for.min(Some(task.deadline)); // it may be moved to there at any time
        Some((wait, timer))
    }

    /// Stores a timer that was set, or moved, as `wait` says. Returns true if the deadline was moved in the meantime, so
    /// the timer has to follow. If the task has left, or the timer was dropped, returns the timer, which nobody needs.
    /// In the second case the task is still there, and the caller withdraws it.
    pub(super) fn keep(
        &mut self,
        Wait { key, deadline: known, set_for }: Wait,
        timer: Cancellable,
    ) -> Result<bool, Cancellable> {
        let task = self.get_mut(key).filter(|task| !matches!(task.timer, Timer::Dropped));
        let Some(task) = task else { return Err(timer) };
        debug_assert!(!matches!(task.timer, Timer::Stored(_)), "a key has one timer (DELAY-1)");
        (task.timer, task.set_for) = (Timer::Stored(Some(timer)), set_for);
        let deadline = task.deadline;
        let place = self.place(deadline);
        let tasks = self.epoch.and(self.tasks.as_mut());
        if let Some(tasks) = tasks.filter(|tasks| tasks.deadline(key) > Some(place)) {
            tasks.reset(key, place); // it was its first timer
        }
        Ok(deadline != known)
    }

    /// A timer was dropped without having fired. Returns true if the caller withdraws its task. If a thread has the timer in
    /// hand, that thread does so.
    pub(super) fn drop_timer(&mut self, key: WheelKey) -> bool {
        let Some(task) = self.get_mut(key) else { return false };
        let is_stored = matches!(task.timer, Timer::Stored(_));
        if !is_stored {
            task.timer = Timer::Dropped;
        }
        is_stored
    }

    /// Gives a task another key for another timer, which the caller has in hand (DELAY-1). That one goes by the clock of
    /// the worker, or by another one. Also returns the old timer, which is to be dropped with nothing locked.
    pub(super) fn reissue(&mut self, key: WheelKey, is_elsewhere: bool) -> Option<(Wait, Timer)> {
        let mut task = self.remove(key)?;
        let timer = std::mem::replace(&mut task.timer, Timer::InHand);
        task.set_for = (!is_elsewhere).then_some(task.deadline);
        Some((self.file(self.place(task.deadline), task), timer))
    }

    /// Removes what is due when the timer with this key fires. `now` is the time if the clock was asked.
    pub(super) fn come_out(&mut self, key: WheelKey, now: Option<Instant>) -> Found {
        let Some(task) = self.get_mut(key) else { return Found::Nothing };
        let (deadline, set_for) = (task.deadline, task.set_for);
        if set_for.max(now) < Some(deadline) {
            return Found::Early(set_for); // DELAY-2
        }
        let first = self.first_until(key, deadline);
        let task = self.remove(first);
        task.map_or(Found::Nothing, |task| Found::Due { task, is_own: first == key })
    }

    /// Returns the key of the task that has to be queued first when the task with this key is due: one that is due earlier,
    /// an older one with the same deadline, or the task itself.
    fn first_until(&mut self, key: WheelKey, deadline: Instant) -> WheelKey {
        let (Some(epoch), Some(tasks)) = (self.epoch, &mut self.tasks) else { return key };
        let until = epoch.number(deadline);
        let first = tasks.peek_key(until).filter(|first| tasks.deadline(*first) <= Some(until));
        first.unwrap_or(key)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::super::composite::CompositeCancellable;
    use super::super::serial::SerialQueue;
    use super::*;
    use crate::job::{Job, Once};

    impl Delayed {
        /// Checks that each task knows its key, in O(n).
        fn check_invariants(&self) {
            let tasks = self.tasks.as_ref().expect("it had a task");
            tasks.check_invariants();
            for (_, task) in tasks.iter() {
                let Position::Delayed(key) = task.job.position().get() else {
                    panic!("it has no key")
                };
                assert!(
                    tasks.get(key).is_some_and(|it| Arc::ptr_eq(&it.job, &task.job)),
                    "its own key"
                );
            }
        }
    }

    /// Returns a task that is only moved about.
    fn task() -> Entry {
        let nobody: Weak<dyn TaskQueue> = Weak::<SerialQueue>::new();
        Job::new(nobody, Once::new(|| ()))
    }

    /// Returns the tasks of a worker whose timers keep no order, and their first moment.
    fn delayed() -> (Delayed, Instant) {
        let start = Instant::now();
        (Delayed::new(Some(Epoch::new(start))), start)
    }

    /// This is not an assertion of the build, because std's locks are larger on other systems.
    #[test]
    #[cfg(all(target_os = "linux", not(feature = "tracing")))] // which adds a span
    fn a_job_of_two_words_fits_into_a_cache_line() {
        let size = size_of::<Job<Once<[usize; 2]>, Weak<dyn TaskQueue>>>();
        assert!(size <= 64, "{size}; with its counts it takes 16 bytes more");
    }

    /// Returns a handle unlike any other. A cancel of a clone shows which one it is.
    fn timer() -> Cancellable {
        Cancellable::from(Arc::new(CompositeCancellable::new()))
    }

    #[test]
    fn a_timer_of_an_earlier_wait_finds_nothing() {
        let ((mut delayed, start), job) = (delayed(), task());
        let wait = delayed.insert(Arc::clone(&job), start, Timer::InHand);
        let first = timer();
        assert!(matches!(delayed.keep(wait, first.clone()), Ok(false)));
        let came = delayed.remove(wait.key).expect("in it").into_timer();
        assert!(!first.is_cancelled());
        came.expect("its timer").cancel();
        assert!(first.is_cancelled(), "the same one");
        let is_unwanted = |kept: Result<bool, _>| kept.is_err();
        assert!(is_unwanted(delayed.keep(wait, timer())), "it has come");
        let again = delayed.insert(Arc::clone(&job), start, Timer::InHand);
        assert!(is_unwanted(delayed.keep(wait, timer())), "it waits again");
        assert!(matches!(delayed.come_out(wait.key, None), Found::Nothing));
        assert!(matches!(delayed.keep(again, timer()), Ok(false)));
        assert_eq!(delayed.len(), 1);
        delayed.check_invariants();
        assert!(delayed.remove(again.key).is_some_and(|task| task.into_timer().is_some()));
        assert!(job.position().get() == Position::Gone && delayed.take_all().next().is_none());
    }

    #[test]
    fn tasks_come_in_order_once_their_timers_are_accepted() {
        let (mut delayed, start) = delayed();
        let at = |ms| start + Duration::from_millis(ms);
        let waits: Vec<_> =
            (0..100_000_u64).map(|n| delayed.insert(task(), at(n % 7), Timer::InHand)).collect();
        for wait in waits.iter().skip(1) {
            assert!(matches!(delayed.keep(*wait, timer()), Ok(false)));
        }
        delayed.check_invariants();
        // Due no later than the second task that waits for 1 ms.
        let mut come_until = |until: &Wait| {
            let mut came = Vec::new();
            while let Found::Due { task, is_own } = delayed.come_out(until.key, None) {
                came.push(task.deadline);
                if is_own {
                    break;
                }
            }
            came
        };
        let came = come_until(&waits[8]);
        assert_eq!(
            came.len(),
            waits.len().div_ceil(7) - 1 + 2,
            "all of 0 ms but the first, and two"
        );
        assert!(came.is_sorted() && came.last() == Some(&at(1)));
        assert_eq!(come_until(&waits[0]).len(), 1, "its own timer brings it");
        waits[15..].iter().for_each(|wait| _ = delayed.remove(wait.key));
        assert_eq!(delayed.len(), 10);
        delayed.check_invariants();
    }
}
