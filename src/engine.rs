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
//! - N1 A task's entry is in exactly one of: a lane, the wheel, the front, the refused, an
//!   executor's queue. A cancelled task leaves its entry behind, stale; whoever meets it drops it.
//! - N2 What is due is handed over by deadline, and at equal deadlines by the order of scheduling
//!   (S3): the intake gives records in that order, the wheel keeps it, the front sorts stably.
//! - N3 A turn never answers with a time later than the earliest live deadline needs.
//!
//! | file | what it is |
//! | --- | --- |
//! | here | the turn; taking in, advancing, tidying |
//! | [`hand_over`] | what is due, to whom it goes, and what comes back |
//! | [`coming_back`] | when to turn again |
//! | [`ending`] | the last turn |

mod coming_back;
mod ending;
mod hand_over;

use std::sync::Arc;
use std::task::Waker;

use self::hand_over::Refused;
use crate::executor::{DueBatch, Executor};
use crate::front::{Entry, Front};
use crate::hub::{Hub, TurningMark};
use crate::intake::Inlet;
use crate::observe::WheelView;
use crate::task::{holder, trim};
use crate::tick::{Moment, Tick};
use crate::wheel::Buckets;

/// How many tasks are handed over at once.
const BATCH: usize = 256;
/// How many tasks a turn hands over, before it looks at the intake again.
const HAND_OVER: usize = 4 * BATCH;
/// How many tasks are taken in ahead of a hand-over at most; some ten milliseconds of work. The tick
/// thread is so much behind only after a stall.
const AHEAD: usize = 256 * 1024;
/// How many entries a turn looks at in a sweep.
const SWEEP: usize = 2048;
/// How many entries a turn moves ahead of their time.
const SETTLE: usize = 2048;
/// How many entries a turn looks at to find the next live one; beyond that it may come back early.
/// With 4096 a churn of timeouts, whose earliest is always the one that was just cancelled, cost the
/// tick thread 60 ns more per task.
const LOOK_AHEAD: usize = 256;
/// How many blocks of the wheel a turn gives back.
const GIVE_BACK: usize = 1024;
/// More buckets than that serve nobody.
const MOST_BUCKETS: usize = 1 << 22;
/// So many stale entries are no reason for a sweep.
const STALE: usize = 4096;

/// How exactly a deadline is met: see [`Builder::precision`](crate::Builder::precision).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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

/// The engine of one scheduler.
pub(crate) struct Engine {
    hub: Arc<Hub>,
    /// `None` once the scheduler has ended.
    executor: Option<Box<dyn Executor>>,
    precision: Precision,
    inlet: Inlet,
    wheel: Buckets<Entry>,
    front: Front,
    /// What the wheel has just given out.
    given_out: Vec<Entry>,
    batch: DueBatch,
    /// Room for wakers that are about to be woken.
    wakers: Vec<Waker>,
    refused: Refused,
    is_sweeping: bool,
    /// The wheel is giving back what it does not need.
    is_trimming: bool,
    /// When memory that has stayed free until then goes back.
    trim_at: Option<Moment>,
    /// Up to where tasks were taken in.
    last_cut: u64,
    /// How many tasks have been taken in since something was handed over.
    ahead: usize,
    /// Nobody else turns it, and everybody schedules: so it may ask to be woken for a trim, and what is
    /// due does not wait for more than [`AHEAD`] tasks that come in. A driven engine asks for nothing,
    /// or a peak somewhere in the process would show in its virtual time.
    has_a_thread: bool,
}

impl Engine {
    pub(crate) fn new(
        hub: Arc<Hub>,
        executor: Box<dyn Executor>,
        precision: Precision,
        wheel_size: usize,
    ) -> Engine {
        let timeline = hub.timeline;
        let now = timeline.passed(hub.now());
        Engine {
            batch: DueBatch::new(Arc::<Hub>::clone(&hub)),
            wheel: Buckets::new(wheel_size.min(MOST_BUCKETS), timeline.tick_nanos(), now),
            hub,
            executor: Some(executor),
            precision,
            inlet: Inlet::new(),
            front: Front::new(),
            given_out: Vec::new(),
            wakers: Vec::new(),
            refused: Refused::default(),
            is_sweeping: false,
            is_trimming: false,
            trim_at: None,
            last_cut: 0,
            ahead: 0,
            has_a_thread: false,
        }
    }

    /// It is turned by a thread that has nothing else to do.
    pub(crate) fn has_a_thread(&mut self) {
        self.has_a_thread = true;
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The cut of a turn that begins now; see [`intake`](crate::intake).
    pub(crate) fn cut(&self) -> u64 {
        self.hub.intake.cut(self.hub.now().0)
    }

    /// The cut of the next turn of a thread: the last one, if not all that was before it is in.
    pub(crate) fn next_cut(&self) -> u64 {
        if self.must_take_in_more(self.last_cut) { self.last_cut } else { self.cut() }
    }

    /// One turn: does what is due of what was scheduled before the cut, or a bounded share of it,
    /// and says when to come back.
    pub(crate) fn turn(&mut self, cut: u64) -> Next {
        let _mark = TurningMark::new(&self.hub);
        if self.hub.is_closing() {
            self.shut_down();
            return Next::Ended;
        }
        let now = self.hub.now();
        let taken_in = self.take_in(cut);
        if self.must_take_in_more(cut) {
            return Next::Again;
        }
        self.ahead = 0;
        self.advance(now);
        self.retry_refused(now);
        self.hand_over(now);
        let is_tidy = self.tidy();
        self.hub.hooks.observe(|observer| observer.turned(WheelView::of(&self.wheel)));
        match self.next(now, cut, is_tidy) {
            next @ (Next::At(_) | Next::Idle) => self.no_later_than(taken_in, next, now),
            next => next,
        }
    }

    // ----- take in -------------------------------------------------------------------------

    /// Files what was scheduled before the cut. The earliest deadline of it; zero when something is
    /// due now.
    fn take_in(&mut self, cut: u64) -> Moment {
        self.last_cut = cut;
        let (mut tasks, mut earliest) = (0, Moment::NEVER);
        let mut records = self.inlet.gather(&self.hub.intake, cut).map(Entry::from).peekable();
        while let Some(entry) = records.next() {
            tasks += 1;
            earliest = earliest.min(needed_at(entry));
            if records.peek().is_none_or(|next| !next.follows(entry)) {
                file(&mut self.wheel, &mut self.front, entry);
            }
        }
        drop(records);
        if tasks > 0 {
            self.ahead += tasks;
            self.hub.hooks.observe(|observer| observer.took_in(tasks));
        }
        earliest
    }

    /// Whether something was scheduled before the cut that is not filed yet. It may be due first (S3);
    /// but a flood of schedules must not keep what is due for ever (S19).
    fn must_take_in_more(&self, cut: u64) -> bool {
        self.inlet.is_behind(cut) && (self.ahead < AHEAD || !self.has_a_thread)
    }

    // ----- advance -------------------------------------------------------------------------

    /// Moves the wheel to the present, and what it gives out to the front.
    fn advance(&mut self, now: Moment) {
        let passed = self.hub.timeline.passed(now);
        let to = match self.precision {
            Precision::Tick => passed,
            // The bucket of the tick that is passing: its entries wait in the front for their own
            // deadlines.
            Precision::Exact => Tick(passed.0.saturating_add(1)),
        };
        if to > self.wheel.now() {
            self.wheel.advance(to, &mut self.given_out);
            self.front.append(&mut self.given_out);
        }
    }

    // ----- tidy ----------------------------------------------------------------------------

    /// Sweeps stale entries when they outnumber the live ones, and moves some far entries near. A
    /// bounded share; true when there is nothing left to do.
    fn tidy(&mut self) -> bool {
        if self.wheel.len() > STALE && !self.is_sweeping {
            self.is_sweeping = self.wheel.len() - STALE > 2 * self.hub.pending();
        }
        if self.is_sweeping {
            let wheel = &mut self.wheel;
            let is_done = wheel.sweep(SWEEP, |entry| is_live(*entry));
            self.is_sweeping = !is_done;
        }
        self.wheel.settle(SETTLE) && !self.is_sweeping
    }

    /// What is done only when there is nothing else to do: memory of a peak goes back.
    fn trim(&mut self, now: Moment) -> bool {
        self.is_trimming = self.is_trimming && self.wheel.give_back(GIVE_BACK);
        if trim::slice() || self.is_trimming {
            return true;
        }
        match self.trim_at {
            Some(at) if at <= now => {
                self.trim_at = None;
                self.front.shrink();
                self.given_out.shrink_to(HAND_OVER);
                self.is_trimming = self.wheel.is_bloated();
                trim::begin() || self.is_trimming
            }
            None if trim::watch() || self.wheel.is_bloated() || self.front.is_bloated() => {
                self.trim_at = Some(now.after(trim::GRACE));
                false
            }
            _ => false,
        }
    }
}

/// Its deadline, as the bell looks at it: what is due now rings at any threshold.
fn needed_at(entry: Entry) -> Moment {
    if entry.is_due_now() { Moment(0) } else { entry.moment() }
}

/// Whether an entry's task is still to run.
fn is_live(entry: Entry) -> bool {
    holder::pending_word(entry.key()).is_some()
}

/// Puts an entry where it belongs: what is due now, or whose tick has been given out, in front; the
/// rest into the wheel.
fn file(wheel: &mut Buckets<Entry>, front: &mut Front, entry: Entry) {
    if entry.is_due_now() || wheel.tick_of(entry.moment().0) <= wheel.now() {
        front.insert(entry);
    } else {
        wheel.insert(entry);
    }
}
