//! The part of a loop that all threads share: the inbox, the wake-ups, the end.
//!
//! ```text
//!                  run or turned                              nothing to do
//!   Unattended <-----------------------------> Awake -------------------------> Resting(until)
//!        |         the outermost run ends      ^   ^                                |
//!        '---- something comes: woken ---------'   '---- something comes that ------'
//!                                                        cannot wait: woken; or the loop looks
//! ```
//!
//! - INBOX-1 Resting is the loop's last step before it waits. Under one lock it finds that nothing has come, also no end,
//!   and says until when it rests. A poster adds its task under the same lock, so one of the two sees the other. From
//!   then on a wake is a token that the pump keeps until it waits, so no wake between that step and the wait is lost.
//!   The pump waits until the time that was said, and not longer.
//! - INBOX-2 While a task, a handler or a destructor runs in a turn, the loop is awake: posts from there wake nobody. A post
//!   to a loop that rests wakes it only if the task is due before `until`. This holds on the loop's own thread too,
//!   because there somebody else's event loop has made the call.
//! - INBOX-3 The end is decided under the lock, so each post comes either before it or after it. The loop finds what was
//!   taken in; what came too late is given back.
//! - INBOX-4 While the lock is held, no closure, destructor, clock or waker is called. A job that a sweep removes has no
//!   closure left.
//! - INBOX-5 `changed` is a hint that spares the loop's thread the lock in most turns. It is Relaxed, and what it
//!   tells of is looked up under the lock. A late hint costs one turn, because the loop always looks before it rests.
//! - INBOX-6 A thread that posts much faster than the loop runs is held back, after its task was taken in, and with no lock
//!   held: [`backpressure`](crate::executor::backpressure). It counts the tasks in the inbox, and the overdue ones in the loop's
//!   own heap; a delayed task that the loop has taken over holds nobody back before its time has come. Never held
//!   back are the loop's own thread, a wake of a future, a reply, and a scheduler that hands a task over: other
//!   threads wait for these.
//! - INBOX-7 A cancelled task stays in its queue, without its closure, until a sweep removes it. A cancel sweeps the inbox,
//!   and the loop sweeps its own queues, each time that more have been cancelled than half of what is there, and a
//!   few. So the memory is in proportion to what is pending, also while the loop is busy or asleep.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicIsize, AtomicU64};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::end::End;
use super::queue::{PendingTask, SMALL};
use super::turns;
use crate::executor::backpressure::{Backpressure, Flow};
use crate::job::{Job, Owner, PendingLimit, Run, Work};
use crate::platform::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock};
use crate::{Clock, PanicHook, ScheduleError};

/// No sweep is made for fewer cancelled tasks than this; INBOX-7.
const MIN_SWEEP: isize = 256;

/// With more tasks than this in the inbox, or overdue, a poster is held back; INBOX-6.
const MAX_AHEAD: u64 = 1 << 16;

fn signed(count: usize) -> isize {
    isize::try_from(count).unwrap_or(isize::MAX)
}

/// Something that is to be dropped on the loop's thread, and nothing else.
pub(super) type ToDrop = Box<dyn Any + Send>;

pub(super) struct Shared {
    /// On cache lines of their own: posters write to this one all the time, and the loop reads the next in each call.
    inbox: CachePadded<Mutex<Inbox>>,
    /// INBOX-5.
    changed: CachePadded<AtomicBool>,
    /// About how many cancelled tasks are in the queues: each is counted after its cancel, and discounted when it is
    /// removed. Relaxed, as is the next field, because they only tell when to sweep.
    cancelled: AtomicIsize,
    /// Above this count they are swept; INBOX-7. It is written under the inbox's lock.
    sweep_above: AtomicIsize,
    /// How many tasks the loop has run or skipped; INBOX-6. On a cache line of its own, which only the loop writes. Relaxed,
    /// because it orders nothing.
    passed: CachePadded<AtomicU64>,
    limit: PendingLimit,
    pressure: Backpressure,
    clock: Arc<dyn Clock>,
    wakers: Vec<Waker>,
    /// One of them is not the pump's.
    wakes_a_host: bool,
    hook: PanicHook,
    me: Weak<Shared>,
}

#[derive(Default)]
struct Inbox {
    immediate: VecDeque<PendingTask>,
    delayed: Vec<PendingTask>,
    to_drop: Vec<ToDrop>,
    rest: Rest,
    end: End,
    /// The loop has looked for the last time.
    is_gone: bool,
    sequence: u64,
    wants_sweep: bool,
    /// How many tasks of the loop's own heap were overdue at its last look; INBOX-6.
    overdue: usize,
}

/// Whether a post has to wake the loop.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Rest {
    /// The loop is neither run nor turned. Its own thread may be about to do so, so a post from there wakes only a
    /// host, through the waker of [`wake_with`](super::LoopBuilder::wake_with).
    #[default]
    Unattended,
    /// The loop will look before it rests.
    Awake,
    /// The loop waits, or is about to.
    Resting(Option<Instant>),
}

/// What a look has found, beside tasks.
pub(super) struct Look {
    pub(super) end: End,
    pub(super) to_drop: Vec<ToDrop>,
    pub(super) wants_sweep: bool,
}

/// A task lies in the inbox.
pub(super) struct Admitted {
    /// Whether its poster should be held back; INBOX-6.
    is_over: bool,
    /// Whether the loop has to be woken.
    pub(super) rings: bool,
}

/// A task that was taken in, and whether its poster should be held back; or the work that comes back.
type Posted<W> = Result<(Arc<Job<W, Shared>>, bool), (ScheduleError, W)>;

impl Inbox {
    fn is_empty(&self) -> bool {
        self.immediate.is_empty() && self.delayed.is_empty() && self.to_drop.is_empty()
    }

    fn len(&self) -> usize {
        self.immediate.len() + self.delayed.len()
    }

    /// How far the posters are ahead of the loop; INBOX-6.
    fn ahead(&self) -> u64 {
        (self.len() + self.overdue) as u64
    }

    fn push(&mut self, task: PendingTask) {
        match task.deadline {
            None => self.immediate.push_back(task),
            Some(_) => self.delayed.push(task),
        }
    }

    /// INBOX-2.
    fn can_wait(&self, deadline: Option<Instant>) -> bool {
        match (self.rest, deadline) {
            (Rest::Resting(Some(until)), Some(deadline)) => deadline >= until,
            _ => false,
        }
    }

    fn sweep(&mut self) -> usize {
        let before = self.len();
        self.immediate.retain(|task| !task.job.is_done());
        self.delayed.retain(|task| !task.job.is_done());
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
        Arc::new_cyclic(|me| Shared {
            inbox: CachePadded::default(),
            changed: CachePadded::new(AtomicBool::new(false)),
            cancelled: AtomicIsize::new(0),
            sweep_above: AtomicIsize::new(MIN_SWEEP),
            passed: CachePadded::new(AtomicU64::new(0)),
            limit,
            pressure: Backpressure::new(MAX_AHEAD),
            clock,
            wakes_a_host: wakers.len() > 1,
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

    /// Takes a task in, or gives its work back: the loop has ended, or is full. Without a deadline it is an immediate
    /// one. If the caller is far ahead of the loop, it waits a little; INBOX-6.
    pub(super) fn post<W: Work>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        work: W,
    ) -> Result<Arc<Job<W, Shared>>, (ScheduleError, W)> {
        let (job, is_over) = self.take_in(deadline, nests, work, PendingLimit::enter)?;
        if is_over {
            self.hold_back();
        }
        Ok(job)
    }

    /// As `post`, for a task of a scheduler, whose thread must not be held back.
    pub(super) fn hand_over<W: Work>(&self, work: W) -> Result<(), (ScheduleError, W)> {
        self.take_in(None, true, work, PendingLimit::enter).map(drop)
    }

    /// As `post`, for a reply. A full loop takes it too, because nobody could take it back.
    pub(super) fn post_reply<W: Work>(&self, work: W) -> Result<(), W> {
        let enter = |limit: &PendingLimit| {
            limit.enter_anyway();
            true
        };
        self.take_in(None, true, work, enter).map(drop).map_err(|(_, work)| work)
    }

    fn take_in<W: Work>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        work: W,
        enter: impl FnOnce(&PendingLimit) -> bool,
    ) -> Posted<W> {
        let job = Job::new(Weak::clone(&self.me), work);
        let given = Arc::clone(&job) as Arc<dyn Run<Shared>>;
        match self.admit(given, deadline, nests, enter) {
            Ok(admitted) => {
                self.ring(admitted.rings);
                Ok((job, admitted.is_over))
            }
            Err(reason) => Err((reason, job.take_back().expect("nobody has taken it in"))),
        }
    }

    /// Puts a job into the inbox. The caller has to [`ring`](Shared::ring) after that, if the answer says so.
    #[inline]
    pub(super) fn admit(
        &self,
        job: Arc<dyn Run<Shared>>,
        deadline: Option<Instant>,
        nests: bool,
        enter: impl FnOnce(&PendingLimit) -> bool,
    ) -> Result<Admitted, ScheduleError> {
        let mut inbox = self.inbox();
        if !inbox.end.takes_posts() {
            return Err(ScheduleError::Closed); // INBOX-3
        }
        if !enter(&self.limit) {
            return Err(ScheduleError::Full);
        }
        inbox.sequence += 1;
        let sequence = inbox.sequence;
        inbox.push(PendingTask { job, deadline, sequence, nests });
        if deadline.is_some() {
            self.changed.store(true, Ordering::Relaxed);
        }
        let is_over = self.pressure.is_over(inbox.ahead());
        let rings = !inbox.can_wait(deadline) && self.is_to_be_woken(&mut inbox);
        Ok(Admitted { is_over, rings })
    }

    /// INBOX-6.
    #[cold]
    fn hold_back(&self) {
        if turns::is_current(self) {
            return;
        }
        self.tell(); // a loop that rests is not woken for what can wait, but now it is to take that over
        self.pressure.hold_back(|| {
            let ahead = self.inbox().ahead();
            Flow { ahead, passed: self.passed.load(Ordering::Relaxed) }
        });
    }

    /// Has something dropped on the loop's thread, or here if the loop is gone.
    pub(super) fn drop_on_loop(&self, item: ToDrop) {
        let mut inbox = self.inbox();
        if inbox.is_gone || turns::is_current(self) {
            drop(inbox);
            self.hook.catch(|| drop(item));
            return;
        }
        inbox.to_drop.push(item);
        self.tell_and_wake(inbox);
    }

    /// Asks for an end, unless a stricter one was asked for before.
    pub(super) fn end(&self, end: End) {
        let mut inbox = self.inbox();
        inbox.end.tighten(end);
        self.tell_and_wake(inbox);
    }

    /// Has the loop look soon at something outside of the inbox.
    pub(super) fn tell(&self) {
        self.tell_and_wake(self.inbox());
    }

    /// Has the loop look soon.
    fn tell_and_wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        self.changed.store(true, Ordering::Relaxed);
        let rings = self.is_to_be_woken(&mut inbox);
        drop(inbox); // INBOX-4
        self.ring(rings);
    }

    /// Returns true if the loop waits, or is about to; then this caller has to [`ring`](Shared::ring). INBOX-1, INBOX-2.
    #[inline]
    fn is_to_be_woken(&self, inbox: &mut Inbox) -> bool {
        let rests = match inbox.rest {
            Rest::Awake => false,
            Rest::Resting(_) => true,
            Rest::Unattended => self.wakes_a_host || !turns::is_current(self),
        };
        if rests {
            inbox.rest = Rest::Awake;
        }
        rests
    }

    /// Wakes the loop, if it is to be woken. Nothing is locked; INBOX-4.
    pub(super) fn ring(&self, rings: bool) {
        if rings {
            self.wakers.iter().for_each(|waker| _ = self.hook.catch(|| waker.wake_by_ref()));
        }
    }

    pub(super) fn takes_posts(&self) -> bool {
        self.inbox().end.takes_posts()
    }

    // ----- for the loop's thread -----------------------------------------------------------

    /// INBOX-5.
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Takes out what has come in: delayed tasks, and immediate ones if `immediate` is empty. The loop tells how many of
    /// its delayed tasks are overdue.
    pub(super) fn look(
        &self,
        immediate: &mut VecDeque<PendingTask>,
        arrived: &mut Vec<PendingTask>,
        overdue: usize,
    ) -> Look {
        let mut inbox = self.inbox();
        inbox.overdue = overdue;
        self.changed.store(false, Ordering::Relaxed);
        inbox.rest = Rest::Awake;
        if immediate.is_empty() {
            std::mem::swap(immediate, &mut inbox.immediate);
        }
        std::mem::swap(arrived, &mut inbox.delayed);
        let to_drop = std::mem::take(&mut inbox.to_drop);
        let wants_sweep = std::mem::take(&mut inbox.wants_sweep);
        Look { end: inbox.end, to_drop, wants_sweep }
    }

    /// Rests, unless something has come; INBOX-1. Under the lock `changed` is exact: whatever comes, except an
    /// immediate task, sets it there.
    pub(super) fn rest(&self, until: Option<Instant>) -> bool {
        let mut inbox = self.inbox();
        let rests = inbox.immediate.is_empty() && !self.has_changed();
        if rests {
            inbox.rest = Rest::Resting(until);
        }
        rests
    }

    /// The loop's thread is in a turn again.
    pub(super) fn set_awake(&self) {
        self.inbox().rest = Rest::Awake;
    }

    /// The outermost run has ended.
    pub(super) fn leave(&self) {
        self.inbox().rest = Rest::Unattended;
    }

    /// Ends a loop that was to end when nothing is left. Returns false if something has come in.
    pub(super) fn ends_if_empty(&self) -> bool {
        let mut inbox = self.inbox();
        let is_empty = inbox.is_empty();
        if is_empty {
            inbox.end.tighten(End::Now);
        }
        is_empty
    }

    /// The last look. Returns true if the inbox is empty: then it stays so; INBOX-3.
    pub(super) fn is_gone(&self) -> bool {
        let mut inbox = self.inbox();
        inbox.is_gone = inbox.is_empty();
        inbox.is_gone
    }

    pub(super) fn next_sequence(&self) -> u64 {
        let mut inbox = self.inbox();
        inbox.sequence += 1;
        inbox.sequence
    }

    /// The loop has run a task, or has skipped a cancelled one.
    pub(super) fn count_passed(&self) {
        let passed = self.passed.load(Ordering::Relaxed);
        self.passed.store(passed.wrapping_add(1), Ordering::Relaxed);
    }

    // ----- cancelled tasks -----------------------------------------------------------------

    pub(super) fn removed_cancelled(&self, count: usize) {
        self.cancelled.fetch_sub(signed(count), Ordering::Relaxed);
    }

    /// Whether a loop whose own queues have `len` tasks should sweep them; INBOX-7.
    pub(super) fn has_too_many_cancelled(&self, len: usize) -> bool {
        self.cancelled.load(Ordering::Relaxed) > MIN_SWEEP + signed(len) / 2
    }

    /// The loop has swept its own queues: `gone` tasks were removed, and `len` are left.
    pub(super) fn was_swept(&self, gone: usize, len: usize) {
        let inbox = self.inbox(); // or a cancel in between would count those that are gone
        self.removed_cancelled(gone);
        let sweep_above = MIN_SWEEP + signed(len + inbox.len()) / 2;
        self.sweep_above.store(sweep_above, Ordering::Relaxed);
    }

    /// Removes the cancelled tasks of the inbox, and has the loop sweep its own queues if too many are left.
    #[cold]
    fn sweep_inbox(&self) {
        let mut inbox = self.inbox();
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        if cancelled <= self.sweep_above.load(Ordering::Relaxed) {
            return; // another thread has swept
        }
        let gone = inbox.sweep();
        self.removed_cancelled(gone);
        let left = cancelled - signed(gone);
        // So that the cancels since the last sweep pay for the next one.
        let sweep_above = MIN_SWEEP + 2 * left + signed(inbox.len()) / 2;
        self.sweep_above.store(sweep_above, Ordering::Relaxed);
        if left > MIN_SWEEP {
            inbox.wants_sweep = true;
            self.tell_and_wake(inbox);
        }
    }
}

impl Owner for Shared {
    type Position = ();

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn no_longer_pending(&self) {
        self.limit.leave();
    }

    /// The job stays in its queue, without its closure, until its turn comes, or a sweep; INBOX-7.
    fn remove(&self, (): &()) {
        let cancelled = self.cancelled.fetch_add(1, Ordering::Relaxed) + 1;
        if cancelled > self.sweep_above.load(Ordering::Relaxed) {
            self.sweep_inbox();
        }
    }
}
