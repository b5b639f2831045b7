//! The part of a loop that all threads share: the inbox, the wake-ups, and the order to quit.
//!
//! The loop is one sleeper under the lock of the inbox (WAKE-2). Of it alone:
//!
//! - INBOX-1 Falling asleep is the loop's last step before it waits, after everything that could post. The pump never
//!   waits longer than the loop has said, because posters rely on that.
//! - INBOX-2 While a loop runs tasks, idle handlers and destructors it is awake, so their posts wake nobody. A loop that
//!   is not run counts as asleep without end. Its own thread looks into the inbox when it runs the loop, so a post from
//!   there wakes only an event loop of another library, through the waker of
//!   [`wake_with`](super::LoopBuilder::wake_with). A post from its own thread does wake a loop that sleeps between two
//!   turns or in its pump, because then another event loop has made the call, and may be about to wait. A loop that is
//!   gone stays awake, so its pump and its wakers are left alone.
//! - INBOX-3 The order to quit is given under the lock, so each post comes either before or after it. The loop finds a
//!   task that came before, and a task that comes after is given back.
//! - INBOX-4 No closure, destructor, clock, pump or waker is called while the inbox is locked, or while a part of the
//!   loop is borrowed, because each of them may call the loop again. A job that a sweep removes has no closure left.
//! - INBOX-5 `changed` says that something other than an immediate task has come. It spares the loop's thread the lock
//!   in most turns. It is written under the lock, so it is exact there. Without the lock it is a hint, which may be late
//!   because it is Relaxed. A late hint costs one turn, because the loop always takes the lock before it sleeps.
//! - INBOX-6 A thread that posts much faster than the loop runs is [held back](crate::backpressure), after
//!   its task was taken, and with no lock held. The measure is the number of immediate tasks in the inbox, plus the delayed
//!   tasks that have come since the loop last looked at them, or that were overdue then. Never held back are the loop's own
//!   thread, a wake of a future, a reply, and a scheduler that hands a task over, because other threads wait for these.
//!
//! Delayed tasks are in one wheel under the lock of the inbox, so a cancel takes its task out, and a reset moves it, on any
//! thread. The loop's thread takes them out one by one. Immediate tasks leave the inbox all at once, because the loop has
//! no lock to take then. A cancelled one stays in its queue, without its closure, until its turn, or until a sweep that
//! keeps the memory in proportion to the tasks that are pending.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::queue::{QueuedTask, SMALL};
use super::run_loop::Quit;
use super::turn;
use crate::backpressure::{Backpressure, Flow, PendingLimit};
use crate::clock::epoch::Epoch;
use crate::job::{
    AtomicPosition, Due, Job, Next, Owner, Place, Position, Run, Taken, Work, owner_has,
};
use crate::platform::impls::impl_debug;
use crate::platform::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock};
use crate::wake::SleepState;
use crate::wheel::Wheel;
use crate::{Cancellable, Clock, PanicHook, ScheduleError};

/// Fewer cancelled tasks than this are not worth a sweep.
const MIN_SWEEP: usize = 256;

/// The size of the wheel of delayed tasks, and what a bucket of it covers, in nanoseconds.
const BUCKETS: usize = 1024;
const GRANULARITY: NonZeroU64 = NonZeroU64::new(32_000_000).expect("above zero");

/// About so many entries of the wheel are looked at to find out until when the loop may sleep. If they do not suffice, it
/// may wake up once too early.
const LOOK: usize = 64;

/// With more tasks than this in the inbox, or overdue, a poster is held back (INBOX-6).
const MAX_AHEAD: u64 = 1 << 16;

pub(super) struct Shared {
    /// The inbox and `changed` have cache lines of their own: posters write the first all the time, and the loop reads
    /// the second in each call.
    inbox: CachePadded<Mutex<Inbox>>,
    /// Something other than an immediate task has come (INBOX-5).
    changed: CachePadded<AtomicBool>,
    /// How many tasks the loop has run or skipped (INBOX-6). Only the loop writes it, on a cache line of its own.
    /// Relaxed suffices, because it orders nothing.
    passed: CachePadded<AtomicU64>,
    /// The loop was [woken](Shared::wake), and has not drained the inbox since. Both sides swap it with `AcqRel`: the turn of
    /// one wake sees what was done before each wake that found the flag set.
    is_woken: AtomicBool,
    limit: PendingLimit,
    pressure: Backpressure,
    clock: Arc<dyn Clock>,
    /// The wheel counts nanoseconds from here.
    epoch: Epoch,
    /// The pump's waker, and that of [`wake_with`](super::LoopBuilder::wake_with) if there is one.
    wakers: Vec<Waker>,
    hook: PanicHook,
}

struct Inbox {
    immediate: VecDeque<QueuedTask>,
    /// All delayed tasks, by deadline, and at equal deadlines in the order of posting. `None` keeps the place of an
    /// immediate task that was reset to this time, until its turn comes.
    delayed: Wheel<Option<QueuedTask>>,
    /// Entries of the local table that the loop's thread has to drop (LOCAL-1). `None` once the loop is gone: it drops all that are
    /// left, and looks at no number any more.
    discarded: Option<Vec<u64>>,
    /// Whether the loop has to be woken, and for what. Each of the `wakers` is called then. A loop that is asleep and not
    /// run has `false` there (INBOX-2).
    sleep: SleepState<Instant, bool>,
    quit: Quit,
    /// How many immediate tasks were cancelled since the last sweep, or since the loop took them all.
    cancelled: usize,
    /// How many delayed tasks have come since the loop last looked at them, and how many were overdue then (INBOX-6).
    delayed_ahead: usize,
}

/// Where a task comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A call of the program, whose thread may be held back (INBOX-6).
    Program,
    /// A scheduler that hands a task over.
    Scheduler,
    /// A reply. A full loop takes it too, because nobody could take it back.
    Reply,
    /// A wake of a future, which has its place already.
    Wake,
}

/// A task has been added to the inbox.
pub(super) struct Enqueued {
    /// The poster should be held back (INBOX-6).
    is_over: bool,
    /// The poster has to wake the loop.
    pub(super) must_wake: bool,
}

/// What the loop's thread knows of the inbox without its lock.
#[derive(Default)]
pub(super) struct Seen {
    /// As the inbox said when the loop last looked.
    pub(super) quit: Cell<Quit>,
    /// When the first delayed task is due, or earlier if that one has been cancelled or moved. For a loop that sleeps it is
    /// the time that the inbox was told, because the pump must not wait longer than posters assume (INBOX-1).
    pub(super) first: Cell<Option<Instant>>,
    /// The loop has gone to sleep, and has not been called since.
    pub(super) is_asleep: Cell<bool>,
    /// The idle handlers have run in this idle phase.
    pub(super) has_idled: Cell<bool>,
}

impl Inbox {
    /// Returns how far the posters are ahead of the loop (INBOX-6).
    fn ahead(&self) -> u64 {
        (self.immediate.len() + self.delayed_ahead) as u64
    }

    /// Looks at the delayed tasks. Returns when the first one is due, or somewhat earlier.
    fn look(&mut self, epoch: Epoch) -> Option<Instant> {
        // As of the last reading of the clock, which is a user's, so it is not read under the lock (INBOX-4).
        self.delayed_ahead = self.delayed.count_due(self.delayed.now());
        self.delayed.next_expiry_within(LOOK).map(|tick| epoch.instant(tick))
    }

    fn file(&mut self, deadline: u64, task: QueuedTask) {
        let key = self.delayed.insert(deadline, Some(task));
        let filed = self.delayed.get(key).and_then(Option::as_ref);
        filed.into_iter().for_each(|task| task.job.position().set(Position::Delayed(key)));
    }

    /// Counts an immediate task that was cancelled, and removes all of these if they are many.
    fn note_cancelled(&mut self) {
        self.cancelled += 1;
        // Each sweep is paid for by the cancels since the one before. Tasks that the loop has taken out may have been
        // counted, and then a sweep finds less.
        if self.cancelled > MIN_SWEEP + self.immediate.len() / 2 {
            self.cancelled = 0;
            self.immediate.retain(|task| !task.has_ended()); // takes no lock of a job (JOB-5)
            self.immediate.shrink_to(2 * self.immediate.len() + SMALL);
        }
    }
}

impl Shared {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        wakers: Vec<Waker>,
        hook: PanicHook,
        limit: PendingLimit,
    ) -> Arc<Shared> {
        let epoch = Epoch::new(clock.now());
        let inbox = Inbox {
            immediate: VecDeque::new(),
            delayed: Wheel::with_granularity(BUCKETS, GRANULARITY, Epoch::START),
            discarded: Some(Vec::new()),
            sleep: SleepState::Asleep(None, false),
            quit: Quit::No,
            cancelled: 0,
            delayed_ahead: 0,
        };
        Arc::new(Shared {
            inbox: CachePadded::new(Mutex::new(inbox)),
            changed: CachePadded::new(AtomicBool::new(false)),
            passed: CachePadded::new(AtomicU64::new(0)),
            is_woken: AtomicBool::new(false),
            limit,
            pressure: Backpressure::new(MAX_AHEAD),
            clock,
            epoch,
            wakers,
            hook,
        })
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    pub(super) fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        self.hook.catch(None, code)
    }

    // ----- from any thread -----------------------------------------------------------------

    /// Adds a task, or gives its work back if the loop takes no posts or is full. A task without a deadline is
    /// immediate. A program's thread that is far ahead of the loop waits a little (INBOX-6).
    pub(super) fn post<W: Work<Output = ()>>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        nests: bool,
        origin: Origin,
        work: W,
    ) -> Taken<W> {
        let job = Job::new(Arc::downgrade(self), work);
        let queued = Arc::clone(&job) as Arc<dyn Run<Shared>>;
        let refused = |reason| (reason, job.take_back().expect("no queue has it"));
        let enqueued = self.enqueue(queued, deadline, nests, origin).map_err(refused)?;
        // Before this thread is held back, or the loop could not come nearer in the meantime.
        self.wake_if(enqueued.must_wake);
        // The loop's own thread would wait for itself.
        if enqueued.is_over && origin == Origin::Program && turn::if_current(self).is_none() {
            self.hold_back();
        }
        Ok(Cancellable::from(job))
    }

    /// Puts a job into the inbox. After that the caller has to call [`wake_if`](Shared::wake_if) with the answer.
    #[inline] // without it a post costs 540 ns instead of 375 ns
    pub(super) fn enqueue(
        &self,
        job: Arc<dyn Run<Shared>>,
        deadline: Option<Instant>,
        nests: bool,
        origin: Origin,
    ) -> Result<Enqueued, ScheduleError> {
        let mut inbox = self.inbox();
        if !inbox.quit.takes_posts() {
            return Err(ScheduleError::Closed); // the loop may not look into the inbox any more (INBOX-3)
        }
        match origin {
            Origin::Program | Origin::Scheduler if !self.limit.enter() => {
                return Err(ScheduleError::Full);
            }
            // Nobody could take a reply back.
            Origin::Reply => self.limit.enter_anyway(),
            _ => {}
        }
        let task = QueuedTask { job, nests };
        if let Some(deadline) = deadline {
            inbox.file(self.epoch.number(deadline), task);
            // The loop goes by the first deadline that it was told, so it has to look again.
            inbox.delayed_ahead += 1;
            self.changed.store(true, Ordering::Relaxed);
        } else {
            task.job.position().set(QueuedTask::AT_ONCE);
            inbox.immediate.push_back(task);
        }
        // Found under the lock, and acted on without it (INBOX-6).
        let is_over = self.pressure.is_over(inbox.ahead());
        let must_wake = self.claim_wake(&mut inbox, deadline);
        Ok(Enqueued { is_over, must_wake })
    }

    /// Returns true if the caller has to wake the loop, for something that is due at `deadline`, or at once. The next
    /// caller finds the loop awake (WAKE-2).
    #[inline] // see `enqueue`
    fn claim_wake(&self, inbox: &mut Inbox, deadline: Option<Instant>) -> bool {
        // Its own thread will look into the inbox when it runs the loop. Another library's event loop may sleep before.
        let is_not_run = matches!(inbox.sleep, SleepState::Asleep(_, false));
        let comes_by_itself =
            is_not_run && self.wakers.len() == 1 && turn::if_current(self).is_some();
        let woken = match deadline {
            _ if comes_by_itself => None,
            Some(deadline) => inbox.sleep.wake_for(deadline),
            None => inbox.sleep.wake(),
        };
        woken.is_some()
    }

    /// Wakes the loop if `must_wake` says so. The inbox must not be locked (INBOX-4).
    pub(super) fn wake_if(&self, must_wake: bool) {
        if must_wake {
            // A waker is a user's. If one panics, the next is woken all the same.
            self.wakers.iter().for_each(|waker| _ = self.catch(|| waker.wake_by_ref()));
        }
    }

    /// Lets the calling thread sleep while it is far ahead of the loop (INBOX-6).
    #[cold]
    fn hold_back(&self) {
        self.notify(); // a post that can wait has not woken the loop, but now the loop has to take it over
        let passed = || self.passed.load(Ordering::Relaxed);
        self.pressure.hold_back(|| Flow { ahead: self.inbox().ahead(), passed: passed() });
    }

    /// Has an entry of the local table dropped by the loop's thread.
    pub(super) fn discard(&self, number: u64) {
        self.tell(|inbox| inbox.discarded.iter_mut().for_each(|discarded| discarded.push(number)));
    }

    /// Tells the loop to quit, unless it was told something stricter before.
    pub(super) fn quit(&self, quit: Quit) {
        self.tell(|inbox| inbox.quit.tighten(quit));
    }

    /// Makes the loop take a turn soon, and begin a new idle phase.
    pub(super) fn wake(&self) {
        // If the flag is set, another thread has notified the loop, or is about to. So threads that wake it without a pause
        // do not keep the lock from it.
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.notify();
        }
    }

    /// Makes the loop take a turn soon, because something outside of the inbox has changed.
    pub(super) fn notify(&self) {
        self.tell(|_| ());
    }

    /// Changes something other than the immediate tasks, and makes the loop take a turn soon.
    fn tell(&self, change: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox();
        change(&mut inbox);
        self.changed.store(true, Ordering::Relaxed);
        let must_wake = self.claim_wake(&mut inbox, None);
        drop(inbox); // a waker is a user's code (INBOX-4)
        self.wake_if(must_wake);
    }

    pub(super) fn quit_state(&self) -> Quit {
        self.inbox().quit
    }

    // ----- for the loop's thread -----------------------------------------------------------

    /// Returns true if something other than an immediate task has come (INBOX-5).
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Takes out what has come in, and immediate tasks if `immediate` is empty. Returns the entries of the local table that
    /// the caller has to drop.
    pub(super) fn drain(&self, immediate: &mut VecDeque<QueuedTask>, seen: &Seen) -> Vec<u64> {
        let mut inbox = self.inbox();
        // Under the lock, so what comes later says so again (INBOX-5).
        self.changed.store(false, Ordering::Relaxed);
        inbox.sleep = SleepState::Awake;
        if immediate.is_empty() {
            immediate.shrink_to(SMALL); // or the memory of a peak would go back and forth between the two
            std::mem::swap(immediate, &mut inbox.immediate);
            inbox.cancelled = 0;
        }
        // The lock shows a wake that has notified.
        if self.is_woken.load(Ordering::Relaxed) && self.is_woken.swap(false, Ordering::AcqRel) {
            seen.has_idled.set(false);
        }
        seen.is_asleep.set(false);
        seen.quit.set(inbox.quit);
        seen.first.set(inbox.look(self.epoch));
        inbox.discarded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes out the first delayed task, if it may start at this reading of the clock. If there is none, the one that was
    /// the first has been cancelled or moved.
    pub(super) fn pop_delayed(&self, now: Instant, seen: &Seen) -> Option<QueuedTask> {
        let mut inbox = self.inbox();
        let mut task = None;
        if let Some(by) = inbox.quit.starts_by(now) {
            let by = self.epoch.passed_by(by);
            // The wheel may have been moved beyond the time of a `quit_safely`.
            while task.is_none() && inbox.delayed.peek(by).is_some_and(|(at, _)| at <= by) {
                task = inbox.delayed.pop(by).and_then(|(_, _, task)| task);
            }
        }
        // So a reset from now on finds that it is out of the wheel, and makes a new place for it.
        task.iter().for_each(|task| task.job.position().set(QueuedTask::AT_ONCE));
        seen.first.set(inbox.look(self.epoch));
        task
    }

    /// Puts the loop to sleep until the first deadline, or ends it if it was told to quit. Returns false if something has come
    /// (INBOX-1).
    pub(super) fn rest(&self, seen: &Seen) -> bool {
        let mut inbox = self.inbox();
        // Looked at again, because tasks may have been cancelled or moved. A poster comes before or after this (INBOX-1).
        let until = inbox.look(self.epoch);
        let rests = inbox.immediate.is_empty() && !self.has_changed();
        let sleeps = rests && inbox.quit == Quit::No;
        if sleeps {
            inbox.sleep = SleepState::Asleep(until, true);
        } else if rests {
            inbox.quit.tighten(Quit::Now);
        }
        seen.first.set(until);
        seen.quit.set(inbox.quit);
        seen.is_asleep.set(sleeps);
        rests
    }

    /// Notes that the loop is run no more (INBOX-2).
    pub(super) fn end_run(&self) {
        self.inbox().sleep = SleepState::Asleep(None, false);
    }

    /// Takes all tasks out, for good, in the order in which they would run: the immediate ones, then by deadline. The loop
    /// takes no posts any more, so nothing comes in after this (INBOX-3).
    pub(super) fn take_all(&self) -> Vec<QueuedTask> {
        let mut inbox = self.inbox();
        inbox.discarded = None;
        let mut all = Vec::from(std::mem::take(&mut inbox.immediate));
        // The wheel gives them out in no order.
        let mut delayed = inbox.delayed.take_all();
        delayed.sort_unstable_by_key(|(deadline, order, _)| (*deadline, *order));
        all.extend(delayed.into_iter().filter_map(|(_, _, task)| task));
        all
    }

    /// Counts a task that the loop has run or skipped.
    pub(super) fn count_passed(&self) {
        // No read-modify-write, because only the loop's thread writes it.
        let passed = self.passed.load(Ordering::Relaxed);
        self.passed.store(passed.wrapping_add(1), Ordering::Relaxed);
    }

    /// Checks the inbox against what the loop's thread knows, in a debug build.
    pub(super) fn check_invariants(&self, seen: &Seen, is_closed: bool) {
        if !cfg!(debug_assertions) {
            return;
        }
        let mut inbox = self.inbox();
        let is_told =
            inbox.discarded.as_ref().is_none_or(Vec::is_empty) && inbox.quit == seen.quit.get();
        assert!(self.has_changed() || is_told, "a lost hint (INBOX-5)");
        let is_empty = inbox.immediate.is_empty() && inbox.delayed.is_empty();
        let is_over = is_empty && inbox.quit == Quit::Now;
        assert!(is_over || !is_closed, "a post to a loop that is gone (INBOX-3)");
        if matches!(inbox.sleep, SleepState::Asleep(_, true)) {
            let first = inbox.look(self.epoch);
            let sleeps_past = first.is_some_and(|first| inbox.sleep.sleeps_past(first));
            let sleeps = seen.is_asleep.get() && inbox.immediate.is_empty() && !sleeps_past;
            assert!(sleeps, "it was not woken (WAKE-2)");
        }
    }
}

/// What the loop does with a task that has come out, when it starts and when it is due again.
pub(super) struct OutOfQueue<'a> {
    pub(super) shared: &'a Shared,
    pub(super) task: &'a QueuedTask,
}

impl Place for OutOfQueue<'_> {
    fn is_due(&mut self) -> bool {
        let Position::Delayed(key) = self.task.job.position().get() else {
            return true; // nobody has moved it, and the job's lock is held
        };
        // A reset has made a place for it. Even if it is due by now, because others may be due before it. If its time has
        // come so long ago that the loop has come to the place and skipped it, it runs now.
        let mut inbox = self.shared.inbox();
        let Some(place) = inbox.delayed.get_mut(key) else { return true };
        *place = Some(self.task.clone());
        false
    }

    /// Queues the next run of a series, whose run has just ended.
    fn put_back(&mut self, Next { mut due, ended }: Next) -> bool {
        let mut inbox = self.shared.inbox();
        // On a clock that stands still, or has long steps, a series that is behind would be due at the call of
        // `quit_safely` again and again.
        if due == ended && !inbox.quit.takes_posts() {
            due = due.checked_add(Duration::from_nanos(1)).unwrap_or(due);
        }
        inbox.file(self.shared.epoch.number(due), self.task.clone());
        self.shared.changed.store(true, Ordering::Relaxed);
        true
    }
}

impl_debug!(Shared, self, quit: self.quit_state());

impl Owner for Shared {
    owner_has!(self, now: self.clock.now(), hook: self.hook, limit: self.limit);

    /// Removes a delayed task. An immediate one stays in its queue, without its closure, until its turn or a sweep.
    fn remove(&self, position: &AtomicPosition) {
        let mut inbox = self.inbox();
        let removed = inbox.delayed.remove(position.key()).flatten();
        position.set(Position::Gone);
        if removed.is_none() {
            // Among the immediate ones, or out of its queue already.
            inbox.note_cancelled();
        }
        drop(inbox); // before `removed`
    }

    fn deadline(&self, position: &AtomicPosition) -> Option<Due> {
        let tick = self.inbox().delayed.deadline(position.key());
        Some(tick.map_or(Due::Now, |tick| Due::At(self.epoch.instant(tick))))
    }

    fn move_to(&self, position: &AtomicPosition, deadline: Instant) -> Option<bool> {
        let mut inbox = self.inbox();
        if !inbox.quit.takes_posts() {
            return None; // the loop will not run what is delayed (INBOX-3)
        }
        let tick = self.epoch.number(deadline);
        if !inbox.delayed.reset(position.key(), tick) {
            // It is among the immediate tasks, or has come out. When it is to start, it goes to this place instead.
            position.set(Position::Delayed(inbox.delayed.insert(tick, None)));
        }
        self.changed.store(true, Ordering::Relaxed);
        // A later deadline wakes nobody: the loop wakes up at the old one, and looks again.
        Some(self.claim_wake(&mut inbox, Some(deadline)))
    }

    fn has_moved(&self, _position: &AtomicPosition) {
        self.wake_if(true);
    }

    fn repeats(&self) -> bool {
        self.quit_state().takes_posts()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::MessageLoop;

    #[test]
    fn a_loop_that_is_gone_keeps_no_number_of_a_local_task_that_is_dropped_elsewhere() {
        let looper = MessageLoop::prepare().expect("no other one");
        let shared = looper.runner().shared;
        shared.discard(1);
        drop(looper);
        (0..1000).for_each(|number| shared.discard(number));
        assert!(shared.inbox().discarded.is_none());
    }
}
