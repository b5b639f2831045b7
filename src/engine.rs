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

use std::sync::Arc;
use std::task::Waker;

use crate::executor::own::OwnExecutor;
use crate::executor::{DueBatch, DueTask, Executor};
use crate::front::{Entry, Front, Runner};
use crate::hub::{Hub, TurningMark};
use crate::intake::Inlet;
use crate::observe::{WheelView, caught, quietly};
use crate::oneshot::Returned;
use crate::task::holder::Repetition;
use crate::task::{OneShot, Phase, holder, trim};
use crate::tick::{Moment, Tick};
use crate::trace;
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

/// Tasks that an executor would not take.
#[derive(Default)]
struct Refused {
    tasks: Vec<Entry>,
    again_at: Option<Moment>,
}

/// Who takes a batch.
enum Taker {
    Shared,
    Own(Arc<OwnExecutor>),
    TickThread,
}

impl Taker {
    fn runner(&self) -> Runner {
        match self {
            Taker::Shared => Runner::Shared,
            Taker::Own(_) => Runner::Own,
            Taker::TickThread => Runner::TickThread,
        }
    }

    fn is(&self, other: &Taker) -> bool {
        match (self, other) {
            (Taker::Own(one), Taker::Own(other)) => one.number() == other.number(),
            _ => self.runner() == other.runner(),
        }
    }
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

    // ----- hand over -----------------------------------------------------------------------

    /// Brings the refused back, a tick after they were refused (S18).
    fn retry_refused(&mut self, now: Moment) {
        if self.refused.again_at.is_some_and(|at| at <= now) {
            self.refused.again_at = None;
            self.refused.tasks.drain(..).for_each(|entry| self.front.insert(entry));
        }
    }

    /// Hands over what is due, in batches of one executor each; at most [`HAND_OVER`] tasks.
    fn hand_over(&mut self, now: Moment) {
        let mut taker = Taker::Shared;
        for _ in 0..HAND_OVER {
            let Some(entry) = self.front.pop(now) else { break };
            let Some(next) = self.taker_of(entry) else { continue };
            if !next.is(&taker) || self.batch.len() == BATCH {
                self.flush(taker);
                taker = next;
            }
            self.batch.push(entry.due());
        }
        self.flush(taker);
    }

    /// Who takes an entry; `None` when it is stale.
    fn taker_of(&self, entry: Entry) -> Option<Taker> {
        match entry.runner() {
            Runner::Shared => Some(Taker::Shared),
            Runner::TickThread => Some(Taker::TickThread),
            Runner::Own => {
                let word = holder::pending_word(entry.key())?;
                self.hub.own_executors.find(word.executor()).map(Taker::Own)
            }
        }
    }

    /// Hands the batch over.
    fn flush(&mut self, taker: Taker) {
        let tasks = self.batch.len();
        if tasks == 0 {
            return;
        }
        let (hub, batch, wakers) = (&self.hub, &mut self.batch, &mut self.wakers);
        let handed = caught(|| match (&taker, &self.executor) {
            (Taker::TickThread, _) => hub.wake_all(batch, wakers),
            (Taker::Own(own), _) => own.executor().execute_batch(batch),
            (Taker::Shared, Some(executor)) => executor.execute_batch(batch),
            (Taker::Shared, None) => {}
        });
        handed.err().into_iter().for_each(|panic| self.hub.hooks.report(panic)); // S17
        let refused = self.collect_refused(taker.runner());
        self.hub.hooks.observe(|observer| observer.handed_over(tasks.saturating_sub(refused)));
        quietly(|| drop(taker)); // perhaps the last owner of an executor
    }

    /// Keeps what an executor has refused or left.
    fn collect_refused(&mut self, runner: Runner) -> usize {
        let (mut refused, mut strangers) = (Vec::new(), Vec::new());
        self.batch.settle(&mut refused, &mut strangers);
        for stranger in strangers {
            self.adopt(stranger);
        }
        if !refused.is_empty() {
            let tick = self.hub.timeline.tick_nanos().get();
            self.refused.again_at.get_or_insert(self.hub.now().after_nanos(tick));
            let entries = refused.iter().map(|due| Entry::again(*due, runner));
            self.refused.tasks.extend(entries);
            self.hub.rejected.add(refused.len() as u64);
            quietly(|| trace::rejected(refused.len()));
            self.hub.hooks.observe(|observer| observer.rejected(refused.len()));
        }
        refused.len()
    }

    /// An executor gave back a task that is not ours: it becomes one, or nobody would run it.
    fn adopt(&self, task: DueTask) {
        let times = self.hub.at(task.deadline());
        let run = OneShot(move || task.run());
        let admitted = self.hub.admit(times, run, Repetition::NONE, None);
        admitted.err().into_iter().for_each(|(_, refused)| self.hub.drop_refused(refused));
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

    // ----- when to come back ---------------------------------------------------------------

    /// N3.
    fn next(&mut self, now: Moment, cut: u64, is_tidy: bool) -> Next {
        let front = &mut self.front;
        front.skip(|entry| !is_live(entry));
        let is_due = self.front.next().is_some_and(|next| next <= now);
        if is_due || !is_tidy || self.inlet.is_behind(cut) {
            return Next::Again;
        }
        if !self.has_news() && self.trim(now) {
            return Next::Again;
        }
        let trim_at = self.trim_at.filter(|_| self.has_a_thread);
        let times = [self.front.next(), self.wheel_needs(), self.refused.again_at, trim_at];
        match times.into_iter().flatten().min() {
            None | Some(Moment::NEVER) => Next::Idle,
            Some(at) => Next::At(at),
        }
    }

    /// When the wheel has to be advanced for its earliest live entry.
    fn wheel_needs(&mut self) -> Option<Moment> {
        let wheel = &mut self.wheel;
        let first = wheel.first(LOOK_AHEAD, |entry| is_live(*entry))?;
        self.served_at(Moment(first))
    }

    /// When the wheel gives out what has this deadline; `None` for never.
    fn served_at(&self, deadline: Moment) -> Option<Moment> {
        let timeline = &self.hub.timeline;
        match self.precision {
            _ if deadline == Moment::NEVER => None,
            Precision::Tick => Some(timeline.end_of(timeline.covering(deadline))),
            Precision::Exact => Some(deadline),
        }
    }

    /// A thread that was woken for what is cancelled by now sleeps as if it were not. The next one that is
    /// scheduled is likely to be cancelled as soon, and due no earlier; else each of them would wake it
    /// again. This costs at most one wake-up for nothing after such a flow has ended.
    fn no_later_than(&self, news: Moment, next: Next, now: Moment) -> Next {
        let news = self.served_at(news).filter(|at| self.has_a_thread && *at > now);
        match (next, news) {
            (Next::Idle, Some(news)) => Next::At(news),
            (Next::At(at), Some(news)) => Next::At(at.min(news)),
            (next, _) => next,
        }
    }

    /// The sleeper's last look, after it has armed the bell: takes in what is there, and tells
    /// whether all of it would have left the bell alone.
    pub(crate) fn can_wait(&mut self, threshold: Moment) -> bool {
        if self.hub.is_closing() {
            return false;
        }
        if !self.inlet.has_more(&self.hub.intake) {
            return true;
        }
        let cut = self.cut();
        let taken = self.take_in(cut);
        // A clock of coarse steps may stamp at the cut what was published before the arming, and has
        // not rung: so what is held has to be able to wait too.
        let held = self.inlet.held().map(|record| needed_at(Entry::from(*record))).min();
        !self.inlet.is_behind(cut) && taken.min(held.unwrap_or(Moment::NEVER)) >= threshold
    }

    /// Whether something has come in that no turn has taken yet.
    pub(crate) fn has_news(&self) -> bool {
        self.hub.is_closing() || self.inlet.has_more(&self.hub.intake)
    }

    /// A task due before this must wake a sleeper that will wake at `at` anyway.
    pub(crate) fn threshold(&self, at: Moment) -> Moment {
        match self.precision {
            // What is due in the tick that ends at `at` is served then.
            Precision::Tick => {
                Moment(at.0.saturating_sub(self.hub.timeline.tick_nanos().get() - 1))
            }
            Precision::Exact => at,
        }
    }

    // ----- the end -------------------------------------------------------------------------

    /// Closes the intake, collects what is pending, and fulfils the end. Once.
    fn shut_down(&mut self) {
        let Some(executor) = self.executor.take() else { return };
        let (tasks, wakers) = self.collect_pending();
        let mut wakers = self.hub.take_wakers(wakers.into_iter().map(Entry::key));
        let returned = self.give_back(tasks);
        let leftovers = returned.len();
        if self.hub.end.is_wanted() {
            self.hub.end.fulfil(returned);
        } else {
            // S24
            for task in returned {
                self.hub.drop_task(task.key, Phase::Returned);
            }
            self.hub.end.fulfil(Vec::new());
        }
        self.hub.wake(&mut wakers); // they find it closed
        self.hub.hooks.observe(|observer| observer.stopped(leftovers));
        quietly(|| drop(executor));
        quietly(|| self.hub.bell.wakes(None)); // a waker may be a user's, and seats keep the bell
    }

    /// All that is pending, in order of deadlines: tasks, and wakers.
    fn collect_pending(&mut self) -> (Vec<Entry>, Vec<Entry>) {
        let mut entries = Vec::new();
        entries.append(&mut self.refused.tasks);
        self.front.drain(&mut entries);
        self.wheel.drain(&mut entries);
        let records = self.inlet.close(&self.hub.intake);
        entries.extend(records.into_iter().map(Entry::from));
        // Stable: at equal deadlines the refused come first, whose turn it was, then as in N2.
        entries.sort_by_key(|entry| entry.moment());
        entries.into_iter().partition(|entry| entry.runner() != Runner::TickThread)
    }

    /// Marks what is pending as returned.
    fn give_back(&self, pending: Vec<Entry>) -> Vec<Returned> {
        let returned = pending.into_iter().filter_map(|entry| {
            let (key, deadline) = (entry.key(), entry.moment());
            let (kind, period) = self.hub.give_back(key)?;
            Some(Returned { key, deadline, kind, period })
        });
        returned.collect()
    }
}

impl Drop for Engine {
    /// A driver that is dropped ends its scheduler.
    fn drop(&mut self) {
        let _mark = TurningMark::new(&self.hub);
        self.hub.stop();
        self.shut_down();
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
