//! The engine: it takes in what is scheduled, and hands over what is due. The tick thread turns it, or a
//! [`Driver`](crate::Driver).
//!
//! [`Engine::turn`] is the whole data path:
//!
//! ```text
//!   turn:  take in --> advance --> hand over --> retry --> tidy --> when to come back
//!             |           |            |           |         |
//!          intake       wheel     ready queue    retries   sweep, settle
//! ```
//!
//! The engine is the only owner of the wheel, so its own data needs no lock. A turn takes only short locks of shared
//! tables, and no user code runs under them. The constants in `bounds` bound the loops of a turn (S19). If a step leaves
//! something over, the answer is [`Next::Again`], and the next turn does it.
//!
//! Between turns the entry of a pending task is in exactly one of these: a lane, the wheel, the ready queue, a retry
//! queue, or the queue of an executor. A cancelled task leaves a stale entry, and so may one whose deadline was moved
//! (see [`state`](slots::state)). Any step that meets a stale entry drops it.
//!
//! | file | what it is |
//! | --- | --- |
//! | here | the turn, which takes in and advances |
//! | [`dispatch`] | hands over what is due, and retries what was refused |
//! | [`retries`] | what executors have refused, and when it is offered again |
//! | [`next_wakeup`] | the end of a turn: tidies, and says when to turn again |
//! | [`shutdown`] | the last turn |

pub(crate) mod admit;
mod bounds;
mod dispatch;
pub(crate) mod handles;
pub(crate) mod intake;
mod next_wakeup;
pub(crate) mod ready;
mod retries;
mod run;
pub(crate) mod shared;
mod shutdown;
pub(crate) mod slots;
pub(crate) mod termination;
pub(crate) mod this_thread;
pub(crate) mod tick_thread;

use std::sync::Arc;
use std::task::Waker;

use self::bounds::{
    CHECK, INCOMING, LATE_NANOS, MOST_BUCKETS, MOST_CHECKED, MOST_DUE, MOST_LATE, SAMPLE, TAKE_IN,
};
use self::retries::Retries;
use self::shared::Shared;
use crate::clock::tick::{Moment, Tick};
use crate::engine::intake::lane::Record;
use crate::engine::intake::reader::IntakeReader;
use crate::engine::ready::ReadyQueue;
use crate::engine::slots::depot;
use crate::engine::slots::task::is_live;
use crate::engine::slots::trim;
use crate::executor::numbered::NumberedExecutor;
use crate::executor::{DueBatch, Executor};
use crate::observe::WheelView;
use crate::platform::sync::Ordering;
use crate::wheel::Buckets;
use crate::wheel::entry::Entry;

// ----- the engine ------------------------------------------------------------------------

/// How exactly a deadline is met: see [`Builder::precision`](crate::Builder::precision).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// To the tick: what is due within a tick runs together at its end. One wake-up serves them all.
    #[default]
    Tick,
    /// To the deadline: far tasks wait in the wheel, and those of the tick that comes next are served one by one, each
    /// at its own time, as from a heap.
    Exact,
}

/// When to turn again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once: there is more to do than this turn's share.
    Again,
    /// At this time, or when something earlier comes in. At [`Moment::NEVER`]: when something comes in.
    At(Moment),
    /// Never: the scheduler has ended.
    Ended,
}

/// The engine of one scheduler.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    /// The last reading of the clock. If the clock has panicked then, it is the one before (S17).
    now: Moment,
    /// The clock has panicked when it was read last.
    pub(crate) is_blind: bool,
    /// `None` once the scheduler has ended.
    executor: Option<Arc<NumberedExecutor>>,
    precision: Precision,
    reader: IntakeReader,
    wheel: Buckets<Entry>,
    ready: ReadyQueue,
    retries: Retries,
    /// Entries that are about to be filed, and those that the wheel has just given out. Empty between turns, as `batch`
    /// and `wakers` are.
    incoming: Vec<Entry>,
    /// The earliest deadline that came in, and has not passed: of a live entry or of one that was stale.
    earliest: Moment,
    given_out: Vec<Entry>,
    batch: DueBatch,
    wakers: Vec<Waker>,
    tidying: Tidying,
    /// Says that the slots have an engine that trims them.
    trims: Option<Arc<()>>,
    /// How many entries and buckets of the wheel may be checked, for the turns since the last check.
    unchecked: usize,
}

/// Where the tidying stands between turns.
#[derive(Default)]
struct Tidying {
    is_sweeping_wheel: bool,
    is_sweeping_retries: bool,
    /// How many tasks were filed since the engine counted what is pending.
    filed: usize,
    /// The wheel is giving back memory.
    is_trimming: bool,
    /// When memory that stays free until then goes back to the system.
    trim_at: Option<Moment>,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        executor: Box<dyn Executor>,
        precision: Precision,
        wheel_size: usize,
    ) -> Engine {
        let timeline = shared.watch.timeline;
        let now = shared.watch.now();
        let passed = timeline.passed(now);
        let executor = NumberedExecutor::of_scheduler(executor, Arc::clone(&shared.backlog));
        Engine {
            batch: DueBatch::new(Arc::<Shared>::clone(&shared)),
            wheel: Buckets::new(wheel_size.min(MOST_BUCKETS), timeline.tick, passed),
            shared,
            now,
            is_blind: false,
            executor: Some(executor),
            precision,
            reader: IntakeReader::default(),
            ready: ReadyQueue::default(),
            retries: Retries::default(),
            incoming: Vec::with_capacity(INCOMING),
            earliest: Moment::NEVER,
            given_out: Vec::new(),
            wakers: Vec::new(),
            tidying: Tidying::default(),
            trims: Some(Arc::clone(&trim::ENGINES)),
            unchecked: 0,
        }
    }

    /// Reads the clock for the next turn, so that every step of it agrees on what is due. Returns the cut of that turn: see
    /// [`intake`].
    pub(crate) fn read_clock(&mut self) -> u64 {
        // The count comes first, so that nothing before the cut was scheduled after the reading.
        let count = self.shared.intake.count();
        let now = self.shared.try_now();
        self.is_blind = now.is_none();
        self.now = now.unwrap_or(self.now);
        count.unwrap_or(self.now.0)
    }

    /// Does what is due of what was scheduled before the cut, or a bounded share of it. Returns when to turn again. The
    /// caller has [read the clock](Engine::read_clock) and has marked its thread by a
    /// [`TurningMark`](this_thread::TurningMark): also a shutdown runs observers and drops closures, which must not wait for
    /// this engine.
    pub(crate) fn turn(&mut self, cut: u64) -> Next {
        if self.shared.is_closing() {
            self.shut_down();
            return Next::Ended;
        }
        let taken_in = self.take_in(cut);
        if !self.shared.has_a_thread && self.reader.is_behind(cut) {
            return Next::Again; // what has not been taken in may be due first (S3)
        }
        self.advance();
        self.hand_over(taken_in);
        self.retry_refused(); // after `hand_over`, which has put due tasks into the retry queues
        self.retries.tell();
        let is_tidy = self.tidy(taken_in);
        self.shared.hooks.observe(|observer| observer.turned(WheelView(&self.wheel)));
        let next = self.next(cut, is_tidy);
        // Last, so that a fault is found in the turn that has made it.
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        next
    }

    // ----- take in -------------------------------------------------------------------------

    /// Files what was scheduled before the cut, or the first of it. A thread that is far behind hands over what is due
    /// before it has taken in all, because a flood of schedules must not stop the wheel (S19).
    ///
    /// Returns how many tasks came in.
    fn take_in(&mut self, cut: u64) -> usize {
        // If enough is due already, new records stay in their lanes, which holds their producers back.
        let most = if self.shared.has_a_thread && self.is_overdue() { 0 } else { TAKE_IN };
        let mut filing = Filing {
            wheel: &mut self.wheel,
            ready: &mut self.ready,
            incoming: &mut self.incoming,
            looks: false,
            earliest: self.earliest,
        };
        let add = |record: Record, is_stale| filing.add(record.entry, is_stale);
        let tasks = self.reader.take(&self.shared.intake, cut, most, add);
        if tasks == 0 {
            return 0;
        }
        filing.file_all();
        self.earliest = filing.earliest;
        self.tidying.filed += tasks;
        // Here, because only new tasks use up holders, and this thread may wait for the system where a producer should
        // not.
        depot::add_block_ahead();
        self.shared.hooks.observe(|observer| observer.took_in(tasks));
        tasks
    }

    /// Files a task again whose entry has come out too early (RESET-2 in [`deadline`](slots::deadline)).
    fn file_again(&mut self, entry: Entry) {
        // The wheel refuses an entry whose tick it has given out already.
        if entry.is_due_now() || !self.wheel.insert(entry) {
            self.ready.insert(entry);
        }
    }

    /// Returns true if so much is due and not handed over that nothing should be taken in first.
    fn is_overdue(&self) -> bool {
        // With `Precision::Exact` the queue also has entries that are not due. If nothing is due, a turn that takes
        // nothing in would do nothing.
        let Some(next) = self.ready.next().filter(|next| *next <= self.now) else { return false };
        let is_late = next.after_nanos(LATE_NANOS) < self.now;
        self.ready.len() > if is_late { MOST_LATE } else { MOST_DUE }
    }

    // ----- advance -------------------------------------------------------------------------

    /// Moves the wheel to the present, and what it gives out to the ready queue.
    fn advance(&mut self) {
        let timeline = &self.shared.watch.timeline;
        let passed = timeline.passed(self.now);
        let (to, out_until) = match self.precision {
            Precision::Tick => (passed, timeline.end_of(passed)),
            // The tick that is passing too: its entries wait in the ready queue for their own deadlines.
            Precision::Exact => (Tick(passed.0.saturating_add(1)), self.now),
        };
        // A reset that reads this before the wheel has moved is right as well, because this thread moves the wheel
        // before it files anything new. Relaxed: an older value costs a reset one entry more.
        self.shared.out_until.store(out_until.0, Ordering::Relaxed);
        if to > self.wheel.now() {
            let after = timeline.end_of(self.wheel.now());
            self.wheel.advance(to, &mut self.given_out);
            self.ready.append(&mut self.given_out, after);
        }
    }

    // ----- invariants ----------------------------------------------------------------------

    /// Panics with what is broken. In builds with debug assertions each turn ends with this.
    ///
    /// The wheel looks at all its entries and buckets: the less often the more there are, and never if they are very
    /// many. The checks cost the `driver_model` test 0.25 s of 2.05 s, and `storms` nothing that can be measured.
    fn check_invariants(&mut self) {
        let is_idle = self.incoming.is_empty() && self.given_out.is_empty();
        assert!(is_idle && self.batch.is_empty() && self.wakers.is_empty(), "left behind");
        self.ready.check_invariants(|deadline| self.wheel.tick_of(deadline) <= self.wheel.now());
        self.retries.check_invariants();
        let size = self.wheel.len() + self.wheel.buckets();
        self.unchecked += CHECK;
        if self.unchecked >= size && size < MOST_CHECKED {
            self.unchecked = 0;
            self.wheel.check_invariants();
        }
    }
}

/// Files what comes in, up to [`INCOMING`] entries at a time.
struct Filing<'a> {
    wheel: &'a mut Buckets<Entry>,
    ready: &'a mut ReadyQueue,
    incoming: &'a mut Vec<Entry>,
    /// Most of what has come in this turn was stale, so each entry is looked at.
    looks: bool,
    /// As in the engine.
    earliest: Moment,
}

impl Filing<'_> {
    #[inline]
    fn add(&mut self, entry: Entry, is_stale: bool) {
        // Most timeouts are cancelled. If that comes before they are taken in, a look at the holder costs a third of what it
        // costs to file the entry, and to sweep it later. Otherwise a look is wasted, and takes the holder's cache line
        // from its owner.
        if is_stale || self.looks && !is_live(entry) {
            // One that was due at once says nothing of the next ones, and would end what an earlier one says.
            if entry.moment() < self.earliest && !entry.is_due_now() {
                self.earliest = entry.moment();
            }
            return;
        }
        if self.incoming.len() == self.incoming.capacity() {
            self.file_all();
        }
        self.incoming.push(entry);
    }

    /// Records are read from their lane in one go, and then filed. With both in one loop the tick thread took 33 ns a task
    /// instead of 24, because the wheel's cache misses kept it from reading ahead.
    #[inline(never)]
    fn file_all(&mut self) {
        let Filing { wheel, ready, incoming, .. } = self;
        if !self.looks {
            let sample = incoming.chunks_exact(SAMPLE).map(|chunk| chunk[0]);
            let (len, stale) = (sample.len(), sample.filter(|entry| !is_live(*entry)).count());
            self.looks = 2 * stale > len;
            if self.looks {
                incoming.retain(|entry| {
                    let is_live = is_live(*entry);
                    if !is_live && !entry.is_due_now() {
                        self.earliest = self.earliest.min(entry.moment());
                    }
                    is_live
                });
            }
        }
        // They stay there until all are filed, for a shutdown after a fault.
        for entry in incoming.iter().copied() {
            if entry.is_due_now() {
                ready.insert(entry);
                continue;
            }
            self.earliest = self.earliest.min(entry.moment());
            if !wheel.insert(entry) && is_live(entry) {
                // The wheel has given out its tick. The entry has been in its lane for long, and may have become stale.
                ready.insert(entry);
            }
        }
        incoming.clear();
    }
}
