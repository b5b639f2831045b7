//! The engine: what the tick thread, or a [`Driver`](crate::Driver), turns.
//!
//! [`Engine::turn`] is the whole data path:
//!
//! ```text
//!   turn:  take in  ->  advance  ->  hand over  ->  tidy  ->  when to come back
//!            |             |             |            |
//!          intake        wheel         front        sweep, settle, trim
//! ```
//!
//! The engine is the only owner of the wheel; nothing here is locked. Every step is bounded (S19),
//! and what it leaves is done by the next turn, which the answer asks for at once.
//!
//! - TURN-1 A task's entry is in exactly one of: a lane, the wheel, the front, the line of an executor that has
//!   refused, an executor's queue. A cancelled task leaves its entry behind, stale; whoever meets it drops it.
//! - TURN-2 What is due is handed over by deadline, and at equal deadlines by the order of scheduling
//!   (S3): the intake gives records in that order, the wheel keeps it, the front sorts stably.
//! - TURN-3 A turn never answers with a time later than the earliest live deadline needs.
//!
//! | file | what it is |
//! | --- | --- |
//! | here | the turn; taking in, advancing, tidying |
//! | [`dispatch`] | what is due, to whom it goes, and what comes back |
//! | [`outbox`] | what is remembered of an executor: what it has and what it refused |
//! | [`next_wakeup`] | when to turn again |
//! | [`shutdown`] | the last turn |

mod dispatch;
pub(crate) mod intake;
pub(crate) mod limit;
mod next_wakeup;
mod outbox;
pub(crate) mod ready;
pub(crate) mod registry;
mod run;
pub(crate) mod shared;
mod shutdown;
pub(crate) mod slots;
pub(crate) mod termination;
pub(crate) mod tick_thread;

use std::sync::Arc;
use std::task::Waker;

use self::dispatch::Outboxes;
use self::registry::TurningMark;
use self::shared::Shared;
use crate::engine::intake::IntakeReader;
use crate::engine::ready::{Entry, ReadyQueue};
use crate::engine::slots::trim::Trims;
use crate::engine::slots::{depot, holder, trim};
use crate::executor::batch::AHEAD;
use crate::executor::{DueBatch, Executor};
use crate::observe::WheelView;
use crate::time::tick::{Moment, Tick};
use crate::wheel::{Buckets, Timed};

/// How many tasks are handed over at once.
const BATCH: usize = 256;
/// How many tasks a turn hands over at least, before it looks at the intake again.
const HAND_OVER: usize = 4 * BATCH;
/// How long a turn may hand over more than that, in nanoseconds.
const SHARE: u64 = 4_000_000;
/// How many tasks a turn of a thread takes in at most: some three milliseconds of work.
const TAKE_IN: usize = 64 * 1024;
/// The same where nothing may be handed over before all is in: it is only a share of the work.
const TAKE_IN_SHARE: usize = 8 * 1024;
/// While so many tasks are due and not handed over, a thread takes in none.
const MOST_DUE: usize = 64 * 1024;
/// The same, if it is so many nanoseconds late.
const MUCH_DUE: usize = 8 * 1024;
const LATE: u64 = 50_000_000;
/// How many entries a turn looks at in a sweep.
const SWEEP: usize = 2048;
/// How many entries a turn moves ahead of their time.
const SETTLE: usize = 2048;
/// How many entries a turn looks at to find the next live one; beyond that it may come back early.
/// With 4096 a churn of timeouts, whose earliest is always the one that was just cancelled, cost the
/// tick thread 60 ns more per task.
const LOOK_AHEAD: usize = 256;
/// How many stale entries a turn drops from the head of the front.
const SKIP: usize = 1024;
/// How many blocks of the wheel a turn gives back.
const GIVE_BACK: usize = 1024;
/// More buckets than that serve nobody.
const MOST_BUCKETS: usize = 1 << 22;
/// So many stale entries are no reason for a sweep.
const STALE: usize = 4096;

/// How exactly a deadline is met: see [`Builder::precision`](crate::Builder::precision).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// To the tick: what is due within a tick runs together at its end. One wake-up serves them
    /// all.
    #[default]
    Tick,
    /// To the deadline: far tasks wait in the wheel, and those of the tick that comes next are
    /// served one by one, each at its own time, as from a heap.
    Exact,
}

/// When to turn again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once: this turn's share was not all there is to do.
    Again,
    /// Then, or when something earlier comes in.
    At(Moment),
    /// When something comes in.
    Idle,
    /// Never: the scheduler has ended.
    Ended,
}

/// What is being swept.
#[derive(Default)]
struct Sweeping {
    wheel: bool,
    /// The lines of executors that refuse.
    lines: bool,
}

/// The engine of one scheduler.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    /// What the clock said when the turn began.
    now: Moment,
    /// `None` once the scheduler has ended.
    executor: Option<Box<dyn Executor>>,
    precision: Precision,
    reader: IntakeReader,
    wheel: Buckets<Entry>,
    ready: ReadyQueue,
    /// What is about to be filed. Empty between turns.
    incoming: Vec<Entry>,
    /// What the wheel has just given out.
    given_out: Vec<Entry>,
    batch: DueBatch,
    /// Room for wakers that are about to be woken.
    wakers: Vec<Waker>,
    outboxes: Outboxes,
    sweeping: Sweeping,
    /// How many tasks were filed since it was last looked at whether to sweep, and after how many that is.
    filed: usize,
    look_after: usize,
    /// The wheel is giving back what it does not need.
    is_trimming: bool,
    /// When memory that has stayed free until then goes back.
    trim_at: Option<Moment>,
    /// When much of what executors have is looked at again; OUTBOX-4.
    look_at: Option<Moment>,
    /// The last turn has taken in as much as it may.
    is_far_behind: bool,
    /// It trims while it turns.
    trims: Option<Trims>,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        executor: Box<dyn Executor>,
        precision: Precision,
        wheel_size: usize,
    ) -> Engine {
        let timeline = shared.timeline;
        let now = timeline.passed(shared.now());
        Engine {
            batch: DueBatch::new(Arc::<Shared>::clone(&shared)),
            wheel: Buckets::new(wheel_size.min(MOST_BUCKETS), timeline.tick_nanos(), now),
            shared,
            now: Moment(0),
            executor: Some(executor),
            precision,
            reader: IntakeReader::new(),
            ready: ReadyQueue::new(),
            incoming: Vec::with_capacity(INCOMING),
            given_out: Vec::new(),
            wakers: Vec::new(),
            outboxes: Outboxes::new(),
            sweeping: Sweeping::default(),
            filed: 0,
            look_after: STALE,
            is_trimming: false,
            trim_at: None,
            look_at: None,
            is_far_behind: false,
            trims: Some(Trims::new()),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The cut of a turn that begins now; see [`intake`](crate::engine::intake).
    pub(crate) fn cut(&self) -> u64 {
        self.shared.intake.cut(self.shared.now().0)
    }

    /// One turn: does what is due of what was scheduled before the cut, or a bounded share of it,
    /// and says when to come back.
    pub(crate) fn turn(&mut self, cut: u64) -> Next {
        let _mark = TurningMark::new(&self.shared);
        if self.shared.is_closing() {
            self.shut_down();
            return Next::Ended;
        }
        let now = self.shared.now();
        self.now = now;
        let taken = self.take_in(cut);
        if !self.shared.has_a_thread && self.reader.is_behind(cut) {
            return Next::Again; // what is still out there may be due first (S3)
        }
        self.advance(now);
        self.hand_over(now, taken.tasks);
        self.ask_again(now); // what is due stands in line by now
        self.outboxes.forget_over(&self.shared.backlog);
        let is_tidy = self.tidy(taken.tasks);
        self.shared.hooks.observe(|observer| observer.turned(WheelView::of(&self.wheel)));
        match self.next(now, cut, is_tidy) {
            next @ (Next::At(_) | Next::Idle) => self.no_later_than(taken.earliest, next, now),
            next => next,
        }
    }

    // ----- take in -------------------------------------------------------------------------

    /// Files what was scheduled before the cut, or the first of it. A thread that is far behind hands over what is due
    /// before it has taken in all: a flood of schedules must not stop the wheel (S19).
    ///
    /// An engine that is far behind looks at the holder of each task before it files it: by then most have been
    /// cancelled. Otherwise that would cost a miss of the cache for each, and find next to none.
    fn take_in(&mut self, cut: u64) -> TakenIn {
        let most = match self.shared.has_a_thread {
            false => TAKE_IN_SHARE,
            // What comes now is due later than all that. It stays in its lanes, where it holds up its producers.
            true if self.is_overdue() => 0,
            true => TAKE_IN,
        };
        let looks = self.is_far_behind;
        let mut filing = Filing {
            wheel: &mut self.wheel,
            ready: &mut self.ready,
            incoming: &mut self.incoming,
            looks,
            earliest: Moment::NEVER,
        };
        let tasks =
            self.reader.take(&self.shared.intake, cut, most, |record| filing.add(record.into()));
        filing.file_all_but(0);
        let earliest = filing.earliest;
        self.is_far_behind = tasks == most;
        if tasks > 0 {
            self.filed += tasks;
            depot::add_block_ahead();
            self.shared.hooks.observe(|observer| observer.took_in(tasks));
        }
        TakenIn { tasks, earliest }
    }

    /// Returns true if so much is due and not handed over that nothing should be taken in first: very much, or much that
    /// is late. The first of it is due, so that this turn hands something over.
    fn is_overdue(&self) -> bool {
        let Some(next) = self.ready.next().filter(|next| *next <= self.now) else { return false };
        let is_late = next.after_nanos(LATE) < self.now;
        self.ready.len() > if is_late { MUCH_DUE } else { MOST_DUE }
    }

    // ----- advance -------------------------------------------------------------------------

    /// Moves the wheel to the present, and what it gives out to the front.
    fn advance(&mut self, now: Moment) {
        let passed = self.shared.timeline.passed(now);
        let to = match self.precision {
            Precision::Tick => passed,
            // The bucket of the tick that is passing: its entries wait in the front for their own
            // deadlines.
            Precision::Exact => Tick(passed.0.saturating_add(1)),
        };
        if to > self.wheel.now() {
            self.wheel.advance(to, &mut self.given_out);
            self.ready.append(&mut self.given_out);
        }
    }

    // ----- tidy ----------------------------------------------------------------------------

    /// Sweeps stale entries when they outnumber the live ones, and moves some far entries near. A
    /// bounded share, twice as much as has come in; true when there is nothing left to do.
    fn tidy(&mut self, taken_in: usize) -> bool {
        if !self.sweeping.wheel && self.is_time_to_look() {
            let most = 2 * self.shared.pending() + STALE;
            self.sweeping.wheel = self.wheel.len() > most;
            self.sweeping.lines = self.outboxes.waiting() > most;
        }
        if self.sweeping.lines {
            self.sweeping.lines = !self.outboxes.sweep(SWEEP);
        }
        if self.sweeping.wheel {
            let wheel = &mut self.wheel;
            let is_done = wheel.sweep(SWEEP + 2 * taken_in, |entry| is_live(*entry));
            self.sweeping.wheel = !is_done;
        }
        self.wheel.settle(SETTLE + taken_in) && !self.sweeping.wheel && !self.sweeping.lines
    }

    /// Returns true if so much has changed since the last time that it is worth counting what is pending. That is a walk
    /// over all seats, however many threads there ever were, so it must not come with each turn.
    fn is_time_to_look(&mut self) -> bool {
        if !self.shared.intake.were_many_cancelled() && self.filed < self.look_after {
            return false;
        }
        self.filed = 0;
        self.look_after = (self.wheel.len() / 4).max(4 * self.reader.seats()).max(STALE);
        self.wheel.len() + self.outboxes.waiting() > STALE
    }

    /// What is done only when there is nothing else to do: memory of a peak goes back.
    fn trim(&mut self, now: Moment) -> bool {
        self.is_trimming = self.is_trimming && self.wheel.give_back(GIVE_BACK);
        let is_looking = self.outboxes.look_through(SWEEP);
        if trim::slice() || self.is_trimming || is_looking {
            return true;
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            return self.outboxes.begin_rounds();
        }
        if self.look_at.is_none() && self.outboxes.is_bloated() {
            self.look_at = Some(now.after(trim::GRACE.saturating_mul(self.outboxes.patience())));
        }
        match self.trim_at {
            Some(at) if at <= now => {
                self.trim_at = None;
                self.ready.shrink();
                self.outboxes.shrink();
                self.given_out.shrink_to(HAND_OVER);
                self.is_trimming = self.wheel.is_bloated();
                trim::begin() || self.is_trimming
            }
            None if trim::watch() || self.wheel.is_bloated() || self.ready.is_bloated() => {
                self.trim_at = Some(now.after(trim::GRACE));
                false
            }
            _ => false,
        }
    }
}

/// What a turn has taken in.
struct TakenIn {
    tasks: usize,
    /// The earliest deadline of it; zero when something is due now.
    earliest: Moment,
}

/// Its deadline, as the bell looks at it: what is due now rings at any threshold.
fn needed_at(entry: Entry) -> Moment {
    if entry.is_due_now() { Moment(0) } else { entry.moment() }
}

/// Whether an entry's task is still to run.
fn is_live(entry: Entry) -> bool {
    holder::pending_word(entry.key()).is_some()
}

/// Files what comes in, some hundred entries at a time. In the meantime a later task may come of the same slot, and then
/// the earlier one is over; and the holders come into the cache.
struct Filing<'a> {
    wheel: &'a mut Buckets<Entry>,
    ready: &'a mut ReadyQueue,
    incoming: &'a mut Vec<Entry>,
    /// Whether to look if a task is still to run.
    looks: bool,
    /// The earliest deadline of all that came.
    earliest: Moment,
}

/// How many entries are filed at a time.
const INCOMING: usize = 512;

impl Filing<'_> {
    #[inline]
    fn add(&mut self, entry: Entry) {
        if self.incoming.len() == INCOMING {
            self.file_all_but(1);
        }
        self.incoming.push(entry);
    }

    /// `kept`: how many stay, for the next ones may say that they are over.
    #[inline(never)]
    fn file_all_but(&mut self, kept: usize) {
        let Filing { wheel, ready, incoming, looks, earliest } = self;
        let count = incoming.len() - kept;
        if *looks {
            incoming.iter().take(AHEAD).for_each(Timed::prefetch);
        }
        for place in 0..count {
            let entry = incoming[place];
            *earliest = (*earliest).min(needed_at(entry));
            if *looks {
                incoming.get(place + AHEAD).inspect(|soon| soon.prefetch());
            }
            let is_over = incoming.get(place + 1).is_some_and(|next| next.follows(entry));
            if !is_over && (!*looks || is_live(entry)) {
                file(wheel, ready, entry);
            }
        }
        incoming.drain(..count);
    }
}

/// Puts an entry where it belongs: what is due now, or whose tick has been given out, in front; the
/// rest into the wheel.
#[inline]
fn file(wheel: &mut Buckets<Entry>, ready: &mut ReadyQueue, entry: Entry) {
    if entry.is_due_now() {
        ready.insert(entry);
    } else if wheel.tick_of(entry.moment().0) > wheel.now() {
        wheel.insert(entry);
    } else if is_live(entry) {
        // It was long on its way, and might have been cancelled by now.
        ready.insert(entry);
    }
}
