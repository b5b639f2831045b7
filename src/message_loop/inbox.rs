//! The part of a loop that all threads share: the inbox, the wake-ups, and the order to quit.
//!
//! ```text
//!                  run or turned                              nothing to do
//!   NotRunning <-----------------------------> Awake -------------------------> Asleep(until)
//!        |         the outermost run ends      ^   ^                                |
//!        '--- something comes: a wake ---------'   '---- something comes that ------'
//!                                                        cannot wait: a wake; or a new turn
//! ```
//!
//! - INBOX-1 Falling asleep is the loop's last step before it waits, after everything that could post. Under one lock
//!   the loop finds that nothing has come, and says until when it sleeps. A poster adds its task under the same lock,
//!   so one of the two sees the other. From then on a wake is a token that the pump keeps until it waits, so no wake
//!   between that step and the wait is lost. The pump never waits longer than the loop has said, because posters rely
//!   on that.
//! - INBOX-2 A post to a loop that sleeps wakes it only if the task is due before `until`. While a loop runs tasks,
//!   idle handlers and destructors it is awake, so their posts wake nobody. A post from the loop's own thread does wake
//!   a loop that sleeps, because then another event loop has made the call, and may be about to wait.
//! - INBOX-3 The order to quit is given under the lock, so each post comes either before or after it. The loop finds a
//!   task that came before, and a task that comes after is given back.
//! - INBOX-4 No closure, destructor, clock, pump or waker is called while the inbox is locked, or while a part of the
//!   loop is borrowed, because each of them may call the loop again. A job that a sweep removes has no closure left.
//! - INBOX-5 `changed` says that something other than an immediate task has come. It spares the loop's thread the lock
//!   in most turns. It is written under the lock, so it is exact there. Without the lock it is a hint, which may be late
//!   because it is Relaxed. A late hint costs one turn, because the loop always takes the lock before it sleeps.
//! - INBOX-6 A thread that posts much faster than the loop runs is [held back](crate::executor::backpressure), after
//!   its task was taken, and with no lock held. The measure is the number of tasks in the inbox, plus the overdue tasks
//!   of the loop's own heap. Never held back are the loop's own thread, a wake of a future, a reply, and a scheduler
//!   that hands a task over, because other threads wait for these.
//! - INBOX-7 A cancelled task stays in its queue, without its closure, until a sweep removes it. So does the old entry of
//!   a task that was moved to an earlier deadline (LOOP-5). A cancel or a reset sweeps the inbox, and the loop sweeps its
//!   own queues, each time that more than half of their tasks, and a few, are cancelled.
//!   So the memory is in proportion to the tasks that are pending, also while the loop is busy or asleep.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicIsize, AtomicU64};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::entry::{LoopPosition, QueuedTask};
use super::queue::SMALL;
use super::run_loop::Quit;
use super::turn;
use crate::executor::backpressure::PendingLimit;
use crate::executor::backpressure::{Backpressure, Flow};
use crate::platform::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock};
use crate::pool::job::{Due, Epoch, Job, Owner, Run, Work};
use crate::{Cancellable, Clock, PanicHook, ScheduleError};

/// Fewer cancelled tasks than this are not worth a sweep (INBOX-7).
const MIN_SWEEP: isize = 256;

/// With more tasks than this in the inbox, or overdue, a poster is held back (INBOX-6).
const MAX_AHEAD: u64 = 1 << 16;

fn signed(count: usize) -> isize {
    isize::try_from(count).unwrap_or(isize::MAX)
}

/// A value that is to be dropped on the loop's thread.
pub(super) type ToDrop = Box<dyn Any + Send>;

pub(super) struct Shared {
    /// The inbox and `changed` have cache lines of their own: posters write the first all the time, and the loop reads
    /// the second in each call.
    inbox: CachePadded<Mutex<Inbox>>,
    /// Something other than an immediate task has come (INBOX-5).
    changed: CachePadded<AtomicBool>,
    /// About how many cancelled tasks are in the queues. A task is counted after its cancel, and subtracted when it is
    /// removed. Relaxed suffices here and for the next field, because they only tell when to sweep.
    cancelled: AtomicIsize,
    /// A higher count of cancelled tasks calls for a sweep (INBOX-7). It is written under the inbox's lock.
    sweep_above: AtomicIsize,
    /// How many tasks the loop has run or skipped (INBOX-6). Only the loop writes it, on a cache line of its own.
    /// Relaxed suffices, because it orders nothing.
    passed: CachePadded<AtomicU64>,
    limit: PendingLimit,
    pressure: Backpressure,
    clock: Arc<dyn Clock>,
    /// When the loop was made.
    epoch: Epoch,
    /// The pump's waker, and that of [`wake_with`](super::LoopBuilder::wake_with) if there is one.
    wakers: Vec<Waker>,
    hook: PanicHook,
    me: Weak<Shared>,
}

#[derive(Default)]
struct Inbox {
    immediate: VecDeque<QueuedTask>,
    delayed: Vec<QueuedTask>,
    to_drop: Vec<ToDrop>,
    state: LoopState,
    quit: Quit,
    /// The loop has drained the inbox for the last time.
    is_gone: bool,
    /// The number of the last task.
    sequence: u64,
    wants_sweep: bool,
    /// How many tasks of the loop's own heap were overdue when it last drained the inbox (INBOX-6).
    overdue: usize,
}

/// What the loop's thread does, as far as a post needs to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LoopState {
    /// The loop is neither run nor turned. Its own thread may be about to do so, so a post from there wakes only a
    /// event loop of another library, through the waker of [`wake_with`](super::LoopBuilder::wake_with).
    #[default]
    NotRunning,
    /// The loop will drain the inbox before it sleeps.
    Awake,
    /// The loop waits, or is about to: until this instant, or `None` until it is woken.
    Asleep(Option<Instant>),
}

/// What the loop has taken out of the inbox, beside tasks.
pub(super) struct Received {
    pub(super) quit: Quit,
    pub(super) to_drop: Vec<ToDrop>,
    pub(super) wants_sweep: bool,
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

impl Inbox {
    fn is_empty(&self) -> bool {
        self.immediate.is_empty() && self.delayed.is_empty() && self.to_drop.is_empty()
    }

    fn len(&self) -> usize {
        self.immediate.len() + self.delayed.len()
    }

    /// Returns how far the posters are ahead of the loop (INBOX-6).
    fn ahead(&self) -> u64 {
        (self.len() + self.overdue) as u64
    }

    fn sweep(&mut self) -> usize {
        let before = self.len();
        self.immediate.retain(|task| !task.is_void()); // which takes no lock of a job (JOB-5)
        self.delayed.retain(|task| !task.is_void());
        self.immediate.shrink_to(2 * self.immediate.len() + SMALL);
        self.delayed.shrink_to(2 * self.delayed.len() + SMALL);
        before - self.len()
    }
}

impl Shared {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        wakers: Vec<Waker>,
        hook: PanicHook,
        limit: PendingLimit,
    ) -> Arc<Shared> {
        let epoch = Epoch(clock.now());
        Arc::new_cyclic(|me| Shared {
            inbox: CachePadded::default(),
            changed: CachePadded::new(AtomicBool::new(false)),
            cancelled: AtomicIsize::new(0),
            sweep_above: AtomicIsize::new(MIN_SWEEP),
            passed: CachePadded::new(AtomicU64::new(0)),
            limit,
            pressure: Backpressure::new(MAX_AHEAD),
            clock,
            epoch,
            wakers,
            hook,
            me: Weak::clone(me),
        })
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    pub(super) fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        self.hook.catch(code)
    }

    // ----- from any thread -----------------------------------------------------------------

    /// Adds a task, or gives its work back if the loop takes no posts or is full. A task without a deadline is
    /// immediate. A program's thread that is far ahead of the loop waits a little (INBOX-6).
    pub(super) fn post<W: Work>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        origin: Origin,
        work: W,
    ) -> Result<Cancellable, (ScheduleError, W)> {
        let job = Job::new(Weak::clone(&self.me), work);
        let queued = Arc::clone(&job) as Arc<dyn Run<Shared>>;
        let enqueued = match self.enqueue(queued, deadline, nests, origin) {
            Ok(enqueued) => enqueued,
            Err(reason) => return Err((reason, job.take_back().expect("no queue has it"))),
        };
        self.wake_if(enqueued.must_wake);
        if enqueued.is_over && origin == Origin::Program {
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
        let has_place = match origin {
            Origin::Program | Origin::Scheduler => self.limit.enter(),
            Origin::Reply => {
                self.limit.enter_anyway();
                true
            }
            Origin::Wake => true,
        };
        if !has_place {
            return Err(ScheduleError::Full);
        }
        inbox.sequence += 1;
        let task = QueuedTask { job, deadline, sequence: inbox.sequence, nests };
        task.note(self.epoch);
        if deadline.is_none() {
            inbox.immediate.push_back(task);
        } else {
            inbox.delayed.push(task);
            self.changed.store(true, Ordering::Relaxed);
        }
        let is_over = self.pressure.is_over(inbox.ahead());
        let must_wake = self.claim_wake(&mut inbox, deadline);
        Ok(Enqueued { is_over, must_wake })
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if the caller has to wake the loop, for something that is due at `deadline`, or at once. The next
    /// caller finds the loop awake (INBOX-2).
    #[inline] // see `enqueue`
    fn claim_wake(&self, inbox: &mut Inbox, deadline: Option<Instant>) -> bool {
        let must_wake = match (inbox.state, deadline) {
            (LoopState::Awake, _) => false,
            (LoopState::Asleep(Some(until)), Some(deadline)) => deadline < until,
            (LoopState::Asleep(_), _) => true,
            (LoopState::NotRunning, _) => self.wakers.len() > 1 || !turn::is_current(self),
        };
        if must_wake {
            inbox.state = LoopState::Awake;
        }
        must_wake
    }

    /// Wakes the loop if `must_wake` says so. The inbox must not be locked (INBOX-4).
    pub(super) fn wake_if(&self, must_wake: bool) {
        if must_wake {
            self.wakers.iter().for_each(|waker| _ = self.catch(|| waker.wake_by_ref()));
        }
    }

    /// Lets the calling thread sleep while it is far ahead of the loop (INBOX-6).
    #[cold]
    fn hold_back(&self) {
        if turn::is_current(self) {
            return;
        }
        self.notify(); // a post that can wait has not woken the loop, but now the loop has to take it over
        self.pressure.hold_back(|| {
            let ahead = self.inbox().ahead();
            Flow { ahead, passed: self.passed.load(Ordering::Relaxed) }
        });
    }

    /// Has a value dropped on the loop's thread, or here if the loop is gone.
    pub(super) fn drop_on_loop(&self, value: ToDrop) {
        let mut inbox = self.inbox();
        if inbox.is_gone || turn::is_current(self) {
            drop(inbox);
            self.catch(|| drop(value));
            return;
        }
        inbox.to_drop.push(value);
        self.notify_and_unlock(inbox);
    }

    /// Tells the loop to quit, unless it was told something stricter before.
    pub(super) fn quit(&self, quit: Quit) {
        let mut inbox = self.inbox();
        inbox.quit.tighten(quit);
        self.notify_and_unlock(inbox);
    }

    /// Makes the loop take a turn soon, because something outside of the inbox has changed.
    pub(super) fn notify(&self) {
        self.notify_and_unlock(self.inbox());
    }

    fn notify_and_unlock(&self, mut inbox: MutexGuard<'_, Inbox>) {
        self.changed.store(true, Ordering::Relaxed);
        let must_wake = self.claim_wake(&mut inbox, None);
        drop(inbox); // a waker is a user's code (INBOX-4)
        self.wake_if(must_wake);
    }

    pub(super) fn takes_posts(&self) -> bool {
        self.inbox().quit.takes_posts()
    }

    /// Returns true if no task may start any more.
    pub(super) fn quits_now(&self) -> bool {
        self.inbox().quit == Quit::Now
    }

    // ----- for the loop's thread -----------------------------------------------------------

    /// Returns true if something other than an immediate task has come (INBOX-5).
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Takes out what has come in: delayed tasks, and immediate ones if `immediate` is empty. `overdue` is the number
    /// of overdue tasks in the loop's heap.
    pub(super) fn drain(
        &self,
        immediate: &mut VecDeque<QueuedTask>,
        arrived: &mut Vec<QueuedTask>,
        overdue: usize,
    ) -> Received {
        let mut inbox = self.inbox();
        inbox.overdue = overdue;
        self.changed.store(false, Ordering::Relaxed);
        inbox.state = LoopState::Awake;
        if immediate.is_empty() {
            std::mem::swap(immediate, &mut inbox.immediate);
        }
        std::mem::swap(arrived, &mut inbox.delayed);
        let to_drop = std::mem::take(&mut inbox.to_drop);
        let wants_sweep = std::mem::take(&mut inbox.wants_sweep);
        Received { quit: inbox.quit, to_drop, wants_sweep }
    }

    /// Puts the loop to sleep, or returns false if something has come (INBOX-1).
    pub(super) fn go_to_sleep(&self, until: Option<Instant>) -> bool {
        let mut inbox = self.inbox();
        let sleeps = inbox.immediate.is_empty() && !self.has_changed();
        if sleeps {
            inbox.state = LoopState::Asleep(until);
        }
        sleeps
    }

    pub(super) fn set_state(&self, state: LoopState) {
        self.inbox().state = state;
    }

    /// Ends a loop that was told to quit and has nothing left to do. Returns false if something has come in.
    pub(super) fn quit_if_empty(&self) -> bool {
        let mut inbox = self.inbox();
        let is_empty = inbox.is_empty();
        if is_empty {
            inbox.quit.tighten(Quit::Now);
        }
        is_empty
    }

    /// Returns true if the inbox of a loop that takes no posts is empty. Then it stays so (INBOX-3).
    pub(super) fn leave_if_empty(&self) -> bool {
        let mut inbox = self.inbox();
        inbox.is_gone = inbox.is_empty();
        inbox.is_gone
    }

    pub(super) fn next_sequence(&self) -> u64 {
        let mut inbox = self.inbox();
        inbox.sequence += 1;
        inbox.sequence
    }

    /// Counts a task that the loop has run or skipped.
    pub(super) fn count_passed(&self) {
        let passed = self.passed.load(Ordering::Relaxed);
        self.passed.store(passed.wrapping_add(1), Ordering::Relaxed);
    }

    /// Checks the inbox, and what it knows of the loop, whose own thread says that its state is `state`, and that it
    /// was told `quit`.
    pub(super) fn check_invariants(&self, state: LoopState, quit: Quit) {
        let inbox = self.inbox();
        let has_unsaid =
            !inbox.delayed.is_empty() || !inbox.to_drop.is_empty() || inbox.wants_sweep;
        assert!(self.has_changed() || !has_unsaid && inbox.quit == quit, "a lost hint (INBOX-5)");
        assert!(!inbox.is_gone || inbox.is_empty() && inbox.quit == Quit::Now, "INBOX-3");
        if let LoopState::Asleep(until) = inbox.state {
            assert_eq!(state, inbox.state, "posters know how long the loop sleeps (INBOX-1)");
            assert!(
                inbox.immediate.is_empty() && inbox.to_drop.is_empty(),
                "it was not woken (INBOX-2)"
            );
            let mut some = inbox.delayed.iter().take(16);
            assert!(
                some.all(|task| until.is_some() && task.deadline >= until),
                "it was not woken (INBOX-2)"
            );
        }
    }

    // ----- cancelled tasks -----------------------------------------------------------------

    pub(super) fn removed_cancelled(&self, count: usize) {
        self.cancelled.fetch_sub(signed(count), Ordering::Relaxed);
    }

    /// Returns true if a loop whose own queues have `len` tasks should sweep them (INBOX-7).
    pub(super) fn has_too_many_cancelled(&self, len: usize) -> bool {
        self.cancelled.load(Ordering::Relaxed) > MIN_SWEEP + signed(len) / 2
    }

    /// Notes that the loop has swept its own queues: `removed` tasks have gone, and `len` are left.
    pub(super) fn was_swept(&self, removed: usize, len: usize) {
        let inbox = self.inbox(); // without the lock, a cancel in between would count the removed tasks
        self.removed_cancelled(removed);
        let sweep_above = MIN_SWEEP + signed(len + inbox.len()) / 2;
        self.sweep_above.store(sweep_above, Ordering::Relaxed);
    }

    /// Removes the cancelled tasks of the inbox, and asks the loop to sweep its own queues if too many are left there.
    #[cold]
    fn sweep_inbox(&self) {
        let mut inbox = self.inbox();
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        if cancelled <= self.sweep_above.load(Ordering::Relaxed) {
            return; // another thread has swept
        }
        let removed = inbox.sweep();
        self.removed_cancelled(removed);
        let left = cancelled - signed(removed);
        // Twice `left`, so that the cancels since this sweep pay for the next one.
        let sweep_above = MIN_SWEEP + 2 * left + signed(inbox.len()) / 2;
        self.sweep_above.store(sweep_above, Ordering::Relaxed);
        if left > MIN_SWEEP {
            inbox.wants_sweep = true;
            self.notify_and_unlock(inbox);
        }
    }
}

impl Owner for Shared {
    type Position = LoopPosition;
    /// Whether there is a new entry, and whether the loop has to be woken for it.
    type AfterMove = Option<bool>;

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    /// Counts a cancelled job, which stays in its queue until its turn, or until a sweep (INBOX-7).
    fn remove(&self, position: &LoopPosition) {
        position.end();
        self.count_void();
    }

    fn deadline(&self, position: &LoopPosition) -> Option<Due> {
        Some(position.due(self.epoch))
    }

    fn move_to(&self, position: &LoopPosition, deadline: Instant) -> Option<Option<bool>> {
        let mut inbox = self.inbox();
        if !inbox.quit.takes_posts() {
            return None; // the loop will not run what is delayed (INBOX-3)
        }
        inbox.sequence += 1;
        let earlier = position.move_to(deadline, self.epoch, inbox.sequence);
        Some(earlier.map(|task| {
            task.note(self.epoch);
            let deadline = task.deadline;
            inbox.delayed.push(task);
            self.changed.store(true, Ordering::Relaxed);
            self.claim_wake(&mut inbox, deadline)
        }))
    }

    fn has_moved(&self, new_entry: Option<bool>) {
        if let Some(must_wake) = new_entry {
            self.wake_if(must_wake);
            self.count_void(); // the entry before
        }
    }

    fn repeats(&self) -> bool {
        self.takes_posts()
    }
}

impl Shared {
    /// Counts an entry that has become void, and sweeps if there are too many (INBOX-7).
    fn count_void(&self) {
        let cancelled = self.cancelled.fetch_add(1, Ordering::Relaxed) + 1;
        if cancelled > self.sweep_above.load(Ordering::Relaxed) {
            self.sweep_inbox();
        }
    }
}
