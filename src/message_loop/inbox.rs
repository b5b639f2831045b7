//! What all threads share of a loop: where tasks come in, and what wakes it.
//!
//! ```text
//!                  somebody runs or turns it                  nothing to do
//!   Unattended <-----------------------------> Awake -------------------------> Resting(until)
//!        |         the outermost run ends      ^   ^                                |
//!        '---- something comes: woken ---------'   '---- something comes that ------'
//!                                                        cannot wait: woken; or the loop looks
//! ```
//!
//! - B1 To rest is the loop's last step: it says until when under the same lock under which it finds that
//!   nothing has come, also no end; and who brings something does so under that lock. One of the two sees
//!   the other. From then on a wake is a token, which the pump keeps until it waits: nothing that happens
//!   between that step and the wait is lost. The pump waits until then, and not longer.
//! - B2 While a task, a handler or a destructor runs in a turn, the loop is awake: what they bring wakes
//!   nobody. Who brings something to a loop that rests wakes it only for what comes before `until`; also on
//!   the loop's own thread, for then somebody else's event loop has called.
//! - B3 The end is decided under the lock, so of each post everybody knows whether it came before. What was
//!   taken in is found by the loop; what came too late is given back.
//! - B4 With the lock held no closure, destructor, clock or waker is called. A job that was thrown out
//!   has nothing left that could run.
//! - B5 `news` is a hint, so that the loop's thread need not lock in each turn: it is Relaxed, and what it
//!   tells of is looked up under the lock. A hint that comes late costs a turn, because before the loop
//!   rests it looks anyway.
//! - B6 Those who post much faster than the loop runs are held back, after their task was taken in, and with no
//!   lock held: [`backpressure`](crate::backpressure). What counts is what lies in the inbox, and what is
//!   overdue in the loop's own heap; delayed tasks that the loop has taken over hold nobody back before their
//!   time has come. The loop's own thread is never held back, and nobody who posts a reply, or hands over a
//!   scheduler's task: these are threads that others wait for.
//! - B7 A cancelled task stays where it is, without its closure, until it is swept out. Whoever cancels sweeps
//!   the inbox, the loop its own queues: each time that more husks have come than half of what is there, and a
//!   few. So they take memory in proportion to what is pending, also while the loop is busy, or asleep.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicIsize, AtomicU64};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::agenda::{PendingTask, SMALL};
use super::ending::End;
use super::turns;
use crate::backpressure::{Backpressure, Flow};
use crate::job::{Job, Owner, Places, Run, Work};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock};
use crate::{Clock, PanicHook, ScheduleError};

/// So many cancelled tasks may lie in the queues, whatever else is there.
const FEW: isize = 256;

/// So many tasks may lie in the inbox or be overdue before who posts more is held back; B6.
const AHEAD: u64 = 1 << 16;

fn signed(count: usize) -> isize {
    isize::try_from(count).unwrap_or(isize::MAX)
}

/// Something that is to be dropped on the loop's thread, and nothing else.
pub(super) type Stray = Box<dyn Any + Send>;

pub(super) struct Shared {
    /// On lines of their own: the posters write to the one all the time, and the loop reads the other in each
    /// call.
    inbox: CachePadded<Mutex<Inbox>>,
    /// B5.
    news: CachePadded<AtomicBool>,
    /// How many cancelled tasks lie in the queues, about: a task is counted after it is cancelled, and
    /// discounted when it is found. Relaxed, as is the next: they only say when to sweep.
    husks: AtomicIsize,
    /// From how many on they are swept. It is written under the inbox's lock; B7.
    patience: AtomicIsize,
    /// How many tasks the loop has run, or has passed by; B6. On a line of its own, which only the loop writes.
    /// Relaxed, because it orders nothing.
    passed: CachePadded<AtomicU64>,
    places: Places,
    pressure: Backpressure,
    clock: Arc<dyn Clock>,
    wakers: Vec<Waker>,
    /// One of them is not the pump's.
    has_host: bool,
    hook: PanicHook,
    me: Weak<Shared>,
}

#[derive(Default)]
struct Inbox {
    immediate: VecDeque<PendingTask>,
    delayed: Vec<PendingTask>,
    strays: Vec<Stray>,
    rest: Rest,
    end: End,
    /// Nobody will look any more.
    is_gone: bool,
    sequence: u64,
    wants_sweep: bool,
    /// How many tasks of the loop's own heap are overdue, as it said with its last look; B6.
    overdue: usize,
}

/// Whether somebody has to be woken for what comes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Rest {
    /// Nobody runs the loop, or turns it. It may be that its own thread is about to: so what that brings
    /// wakes only those who have asked for it.
    #[default]
    Unattended,
    /// It will look before it rests.
    Awake,
    /// It waits, or is about to.
    Resting(Option<Instant>),
}

/// What a look has found, beside tasks.
pub(super) struct Look {
    pub(super) end: End,
    pub(super) strays: Vec<Stray>,
    pub(super) wants_sweep: bool,
}

/// A task lies in the inbox.
pub(super) struct Admitted {
    /// Whether its poster should be held back; B6.
    is_over: bool,
    /// Whether the loop has to be woken.
    pub(super) rings: bool,
}

/// A task that was taken in, and whether its poster should be held back; or the work that comes back.
type Posted<W> = Result<(Arc<Job<W, Shared>>, bool), (ScheduleError, W)>;

impl Inbox {
    fn is_empty(&self) -> bool {
        self.immediate.is_empty() && self.delayed.is_empty() && self.strays.is_empty()
    }

    fn len(&self) -> usize {
        self.immediate.len() + self.delayed.len()
    }

    /// How far those who post are ahead of the loop; B6.
    fn ahead(&self) -> u64 {
        (self.len() + self.overdue) as u64
    }

    fn push(&mut self, task: PendingTask) {
        match task.deadline {
            None => self.immediate.push_back(task),
            Some(_) => self.delayed.push(task),
        }
    }

    /// B2.
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
        places: Places,
    ) -> Arc<Shared> {
        Arc::new_cyclic(|me| Shared {
            inbox: CachePadded::default(),
            news: CachePadded::new(AtomicBool::new(false)),
            husks: AtomicIsize::new(0),
            patience: AtomicIsize::new(FEW),
            passed: CachePadded::new(AtomicU64::new(0)),
            places,
            pressure: Backpressure::new(AHEAD),
            clock,
            has_host: wakers.len() > 1,
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
    /// one. If the caller is far ahead of the loop, it waits a little; B6.
    pub(super) fn post<W: Work>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        work: W,
    ) -> Result<Arc<Job<W, Shared>>, (ScheduleError, W)> {
        let (job, is_over) = self.take_in(deadline, nests, work, Places::take)?;
        if is_over {
            self.hold_back();
        }
        Ok(job)
    }

    /// The same for a task of a scheduler, whose thread must not be held back.
    pub(super) fn hand_over<W: Work>(&self, work: W) -> Result<(), (ScheduleError, W)> {
        self.take_in(None, true, work, Places::take).map(drop)
    }

    /// The same for a reply, which nobody could take back: a loop that is full takes it too.
    pub(super) fn post_reply<W: Work>(&self, work: W) -> Result<(), W> {
        let take = |places: &Places| {
            places.take_anyway();
            true
        };
        self.take_in(None, true, work, take).map(drop).map_err(|(_, work)| work)
    }

    fn take_in<W: Work>(
        &self,
        deadline: Option<Instant>,
        nests: bool,
        work: W,
        take_place: impl FnOnce(&Places) -> bool,
    ) -> Posted<W> {
        let job = Job::new(Weak::clone(&self.me), work);
        let given = Arc::clone(&job) as Arc<dyn Run<Shared>>;
        match self.admit(given, deadline, nests, take_place) {
            Ok(admitted) => {
                self.ring(admitted.rings);
                Ok((job, admitted.is_over))
            }
            Err(reason) => Err((reason, job.take_back().expect("nobody has taken it in"))),
        }
    }

    /// Puts a job into the inbox. The caller has to [`ring`](Shared::ring) after that, if the answer says so.
    pub(super) fn admit(
        &self,
        job: Arc<dyn Run<Shared>>,
        deadline: Option<Instant>,
        nests: bool,
        take_place: impl FnOnce(&Places) -> bool,
    ) -> Result<Admitted, ScheduleError> {
        let mut inbox = self.inbox();
        if !inbox.end.takes_posts() {
            return Err(ScheduleError::Closed); // B3
        }
        if !take_place(&self.places) {
            return Err(ScheduleError::Full);
        }
        inbox.sequence += 1;
        let sequence = inbox.sequence;
        inbox.push(PendingTask { job, deadline, sequence, nests });
        if deadline.is_some() {
            self.news.store(true, Ordering::Relaxed);
        }
        let is_over = self.pressure.is_over(inbox.ahead());
        let rings = !inbox.can_wait(deadline) && self.is_to_be_woken(&mut inbox);
        Ok(Admitted { is_over, rings })
    }

    /// B6.
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

    /// Has something dropped on the loop's thread; if that is over, here.
    pub(super) fn send_home(&self, stray: Stray) {
        let mut inbox = self.inbox();
        if inbox.is_gone || turns::is_current(self) {
            drop(inbox);
            self.hook.catch(|| drop(stray));
            return;
        }
        inbox.strays.push(stray);
        self.tell_and_wake(inbox);
    }

    /// Ends the loop, as strictly as is said, or as it was said before.
    pub(super) fn end(&self, end: End) {
        let mut inbox = self.inbox();
        inbox.end.tighten(end);
        self.tell_and_wake(inbox);
    }

    /// Something has happened outside of the inbox that the loop is to see soon.
    pub(super) fn tell(&self) {
        self.tell_and_wake(self.inbox());
    }

    /// Something has happened that the loop is to see soon.
    fn tell_and_wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        self.news.store(true, Ordering::Relaxed);
        let rings = self.is_to_be_woken(&mut inbox);
        drop(inbox); // B4
        self.ring(rings);
    }

    /// Whether somebody waits for the loop, or is about to, and this caller is the one to [`ring`](Shared::ring); B1,
    /// B2.
    fn is_to_be_woken(&self, inbox: &mut Inbox) -> bool {
        let rests = match inbox.rest {
            Rest::Awake => false,
            Rest::Resting(_) => true,
            Rest::Unattended => self.has_host || !turns::is_current(self),
        };
        if rests {
            inbox.rest = Rest::Awake;
        }
        rests
    }

    /// Wakes the loop, if it is to be woken. Nothing is locked; B4.
    pub(super) fn ring(&self, rings: bool) {
        if rings {
            self.wakers.iter().for_each(|waker| _ = self.hook.catch(|| waker.wake_by_ref()));
        }
    }

    pub(super) fn takes_posts(&self) -> bool {
        self.inbox().end.takes_posts()
    }

    // ----- for the loop's thread -----------------------------------------------------------

    /// B5.
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Takes out what has come in: delayed tasks, and immediate ones if there are none left. It says how many
    /// delayed tasks are overdue.
    pub(super) fn look(
        &self,
        immediate: &mut VecDeque<PendingTask>,
        arrived: &mut Vec<PendingTask>,
        overdue: usize,
    ) -> Look {
        let mut inbox = self.inbox();
        inbox.overdue = overdue;
        self.news.store(false, Ordering::Relaxed);
        inbox.rest = Rest::Awake;
        if immediate.is_empty() {
            std::mem::swap(immediate, &mut inbox.immediate);
        }
        std::mem::swap(arrived, &mut inbox.delayed);
        let strays = std::mem::take(&mut inbox.strays);
        let wants_sweep = std::mem::take(&mut inbox.wants_sweep);
        Look { end: inbox.end, strays, wants_sweep }
    }

    /// B1: the loop rests, unless something has come. Under the lock `news` is no hint: all that is not an
    /// immediate task sets it there.
    pub(super) fn rest(&self, until: Option<Instant>) -> bool {
        let mut inbox = self.inbox();
        let rests = inbox.immediate.is_empty() && !self.has_news();
        if rests {
            inbox.rest = Rest::Resting(until);
        }
        rests
    }

    /// The loop's thread is in a turn again.
    pub(super) fn rouse(&self) {
        self.inbox().rest = Rest::Awake;
    }

    /// The outermost run has ended.
    pub(super) fn leave(&self) {
        self.inbox().rest = Rest::Unattended;
    }

    /// The end of a loop that was to end when nothing is left, and finds that so. False: something has come in.
    pub(super) fn settles(&self) -> bool {
        let mut inbox = self.inbox();
        let is_empty = inbox.is_empty();
        if is_empty {
            inbox.end.tighten(End::Now);
        }
        is_empty
    }

    /// The last look of all. True: there is nothing, and never will be; B3.
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

    /// The loop has run a task, or has passed one by.
    pub(super) fn has_passed_one(&self) {
        let passed = self.passed.load(Ordering::Relaxed);
        self.passed.store(passed.wrapping_add(1), Ordering::Relaxed);
    }

    // ----- cancelled tasks -----------------------------------------------------------------

    /// So many were found, and are gone.
    pub(super) fn found_husks(&self, count: usize) {
        self.husks.fetch_sub(signed(count), Ordering::Relaxed);
    }

    /// Whether more are there than a loop with so many tasks should keep.
    pub(super) fn is_full_of_husks(&self, len: usize) -> bool {
        self.husks.load(Ordering::Relaxed) > FEW + signed(len) / 2
    }

    /// After a sweep of the loop's own queues, which has thrown out so many and has left so many.
    pub(super) fn was_swept(&self, gone: usize, len: usize) {
        let inbox = self.inbox(); // lest somebody counts those who are gone, and is very patient then
        self.found_husks(gone);
        let patience = FEW + signed(len + inbox.len()) / 2;
        self.patience.store(patience, Ordering::Relaxed);
    }

    /// Too many cancelled tasks lie around: throws out those in the inbox, and has the loop see to its own.
    #[cold]
    fn sweep_inbox(&self) {
        let mut inbox = self.inbox();
        let husks = self.husks.load(Ordering::Relaxed);
        if husks <= self.patience.load(Ordering::Relaxed) {
            return; // somebody else has
        }
        let gone = inbox.sweep();
        self.found_husks(gone);
        let left = husks - signed(gone);
        // So far off that each sweep is paid for by those who were cancelled since the last.
        let patience = FEW + 2 * left + signed(inbox.len()) / 2;
        self.patience.store(patience, Ordering::Relaxed);
        if left > FEW {
            inbox.wants_sweep = true;
            self.tell_and_wake(inbox);
        }
    }
}

impl Owner for Shared {
    type Place = ();

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn hook(&self) -> &PanicHook {
        &self.hook
    }

    fn free_place(&self) {
        self.places.free();
    }

    /// It stays where it is, without its closure, until its turn comes, or a sweep; B7.
    fn forget(&self, (): &()) {
        let husks = self.husks.fetch_add(1, Ordering::Relaxed) + 1;
        if husks > self.patience.load(Ordering::Relaxed) {
            self.sweep_inbox();
        }
    }
}
