//! What is due goes to whoever runs it: in batches, each to one taker.
//!
//! A taker is an executor, the scheduler's or a task's own. What it refuses or leaves waits in the line of its
//! [`Outbox`] (S18, S30); a panic of it is caught and reported (S17). Wakers go to nobody: the tick thread wakes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use super::outbox::{LONGEST_PAUSE, Outbox};
use super::{BATCH, Engine, HAND_OVER, SHARE, TAKE_IN};
use crate::engine::ready::{Entry, Runner};
use crate::engine::slots::holder::Repetition;
use crate::engine::slots::{OneShot, holder};
use crate::executor::DueTask;
use crate::executor::backpressure::Backlog;
use crate::executor::own_executor::OwnExecutor;
use crate::observe::trace;
use crate::platform::panics::{caught, quietly};
use crate::time::tick::Moment;

/// Who takes a batch.
enum Taker {
    Default,
    Own(Arc<OwnExecutor>),
    /// It keeps no batch.
    TickThread,
}

impl Taker {
    /// The number of the executor: 0 for the scheduler's own.
    fn number(&self) -> u32 {
        if let Taker::Own(own) = self { own.number() } else { 0 }
    }

    fn is(&self, other: &Taker) -> bool {
        let is_thread = |taker: &Taker| matches!(taker, Taker::TickThread);
        self.number() == other.number() && is_thread(self) == is_thread(other)
    }
}

/// An executor of some tasks, as the engine remembers it. It does not keep the executor alive.
struct OwnOutbox {
    of: Weak<OwnExecutor>,
    backlog: Arc<Backlog>,
    outbox: Outbox,
}

/// The last run of each series that an executor has taken: series may be handed over a thousand times before they are
/// over, so they stand here by slot.
#[derive(Default)]
pub(super) struct HandedSeries {
    runs: HashMap<u32, (u64, Entry)>,
    /// How many runs there were: each is numbered, because leftovers come in this order.
    count: u64,
    /// With so many it is looked which ones are over.
    look_at: usize,
}

impl HandedSeries {
    fn remember(&mut self, entry: Entry) {
        self.count += 1;
        self.runs.insert(entry.key().slot, (self.count, entry));
        if self.runs.len() > self.look_at {
            self.forget_over();
        }
    }

    fn forget_over(&mut self) {
        self.runs.retain(|_, (_, entry)| !holder::is_over(entry.key()));
        self.look_at = 2 * self.runs.len() + BATCH;
        self.runs.shrink_to(self.look_at);
    }
}

/// The outboxes of all executors. The scheduler's own executor has the number 0.
pub(super) struct Outboxes {
    shared: Outbox,
    /// Of executors that have something in theirs, by number. A number is used again when its executor is gone, and then
    /// nothing that is in the outbox is still to run: each task keeps its executor.
    own: BTreeMap<u32, OwnOutbox>,
    series: HandedSeries,
    /// Those of `own` that may be refusing.
    refusing: BTreeSet<u32>,
    /// How many turns have passed since `own` was looked through.
    turns: usize,
    /// The one that was asked again last; the next turn goes on behind it.
    asked: u32,
    /// Where a sweep of the lines goes on.
    swept_to: u32,
    /// How much was remembered when the last rounds began, and how often that was about as much as the time before.
    remembered_then: usize,
    in_vain: u32,
}

/// So much is remembered without a reason only until the engine has nothing else to do.
const MUCH: usize = 16 * 1024;

/// So many outboxes are looked through in each turn.
const FEW_OWN: usize = 64;

impl Outboxes {
    pub(super) fn new() -> Outboxes {
        let (own, refusing) = (BTreeMap::new(), BTreeSet::new());
        let (shared, series) = (Outbox::new(), HandedSeries::default());
        let (remembered_then, in_vain) = (0, 0);
        let (turns, asked, swept_to) = (0, 0, 0);
        Outboxes { shared, own, series, refusing, turns, asked, swept_to, remembered_then, in_vain }
    }

    fn of(&mut self, taker: &Taker) -> &mut Outbox {
        let Taker::Own(own) = taker else { return &mut self.shared };
        let fresh = || OwnOutbox {
            of: Arc::downgrade(own),
            backlog: Arc::clone(own.backlog()),
            outbox: Outbox::new(),
        };
        let entry = self.own.entry(own.number()).or_insert_with(fresh);
        if entry.of.strong_count() == 0 {
            *entry = fresh();
        }
        &mut entry.outbox
    }

    fn of_number(&mut self, number: u32) -> Option<&mut Outbox> {
        match number {
            0 => Some(&mut self.shared),
            _ => self.own.get_mut(&number).map(|own| &mut own.outbox),
        }
    }

    fn is_refusing(&self, taker: &Taker) -> bool {
        match taker {
            Taker::Default => self.shared.is_refusing(),
            Taker::TickThread => false,
            Taker::Own(own) => self
                .own
                .get(&own.number())
                .is_some_and(|own| own.outbox.is_refusing() && own.of.strong_count() > 0),
        }
    }

    /// When the next executor is to be asked again.
    #[inline]
    pub(super) fn again_at(&mut self) -> Option<Moment> {
        if self.refusing.is_empty() {
            return self.shared.again_at();
        }
        let own = &self.own;
        let is_refusing = |own: &OwnOutbox| own.outbox.is_refusing() && own.of.strong_count() > 0;
        self.refusing.retain(|number| own.get(number).is_some_and(is_refusing));
        let refusing = self.refusing.iter().filter_map(|number| own.get(number));
        refusing.map(|own| &own.outbox).chain([&self.shared]).filter_map(Outbox::again_at).min()
    }

    /// The executors that are to be asked again by now, or soon: if one of them wakes the thread the others come along, so
    /// that many of them cost few wake-ups. They take turns at being the first.
    fn takers_to_ask(&mut self, now: Moment) -> Vec<Taker> {
        let shared = self.shared.is_to_be_asked(now).then_some(Taker::Default);
        let own = self.refusing.iter().filter_map(|number| self.own.get(number));
        let own =
            own.filter(|own| own.outbox.is_to_be_asked(now)).filter_map(|own| own.of.upgrade());
        let mut takers: Vec<_> = shared.into_iter().chain(own.map(Taker::Own)).collect();
        let first = takers.iter().position(|taker| taker.number() > self.asked);
        takers.rotate_left(first.unwrap_or(0));
        takers
    }

    /// Forgets tasks that are over, and tells producers how far each executor is behind.
    pub(super) fn forget_over(&mut self, shared: &Backlog) {
        self.shared.forget_over(0);
        shared.tell(self.shared.flow());
        if self.own.is_empty() {
            return;
        }
        self.turns += 1;
        if self.turns < self.own.len() / FEW_OWN {
            return; // with very many executors not in each turn
        }
        self.turns = 0;
        self.own.retain(|_, own| {
            own.outbox.forget_over(0);
            own.backlog.tell(own.outbox.flow());
            own.of.strong_count() > 0 && !own.outbox.is_idle()
        });
    }

    /// Returns true if much is remembered of tasks that were handed over, most of which may be over.
    pub(super) fn is_bloated(&self) -> bool {
        self.all().any(|outbox| outbox.remembered() > MUCH)
    }

    /// How long to wait before that is looked at again, in units: twice as long each time when that has brought little.
    /// An executor may keep a million tasks for a day, and that should cost few wake-ups (S7).
    pub(super) fn patience(&self) -> u32 {
        1 << self.in_vain.min(16)
    }

    /// Has all of it looked at, in slices: see [`Outboxes::look_through`].
    pub(super) fn begin_rounds(&mut self) -> bool {
        let remembered = self.all().map(Outbox::remembered).sum::<usize>();
        let is_as_before =
            remembered > self.remembered_then / 2 && remembered / 2 < self.remembered_then;
        self.in_vain = if is_as_before { self.in_vain + 1 } else { 0 };
        self.remembered_then = remembered;
        self.series.forget_over();
        self.all_mut().filter_map(|outbox| outbox.begin_round().then_some(())).count() > 0
    }

    /// Goes on with the rounds that have begun, and looks at so many tasks of each. False: they have ended.
    pub(super) fn look_through(&mut self, tasks: usize) -> bool {
        let mut is_on = false;
        for outbox in self.all_mut().filter(|outbox| outbox.is_in_round()) {
            outbox.forget_over(tasks);
            is_on |= outbox.is_in_round();
        }
        is_on
    }

    fn all(&self) -> impl Iterator<Item = &Outbox> {
        self.own.values().map(|own| &own.outbox).chain([&self.shared])
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Outbox> {
        self.own.values_mut().map(|own| &mut own.outbox).chain([&mut self.shared])
    }

    /// Takes out all that executors have, as far as the engine knows: one-shots into the list, and series.
    pub(super) fn drain_handed(&mut self, into: &mut Vec<Entry>) -> Vec<Entry> {
        self.all_mut().for_each(|outbox| outbox.drain_handed(into));
        let mut series: Vec<_> = std::mem::take(&mut self.series).runs.into_values().collect();
        series.sort_unstable_by_key(|(number, _)| *number);
        series.into_iter().map(|(_, entry)| entry).collect()
    }

    /// How many entries wait in all lines.
    pub(super) fn waiting(&self) -> usize {
        let refusing = self.refusing.iter().filter_map(|number| self.own.get(number));
        self.shared.waiting() + refusing.map(|own| own.outbox.waiting()).sum::<usize>()
    }

    /// Drops entries of cancelled tasks from the lines, and looks at so many of them. Returns true at the end of a round.
    pub(super) fn sweep(&mut self, mut budget: usize) -> bool {
        let all = [0].into_iter().chain(self.refusing.iter().copied());
        let left: Vec<_> = all.filter(|number| *number >= self.swept_to).collect();
        for number in left {
            self.swept_to = number;
            let is_done = self.of_number(number).is_none_or(|outbox| outbox.sweep(&mut budget));
            if !is_done || budget == 0 {
                return false;
            }
        }
        self.swept_to = 0;
        true
    }

    pub(super) fn drain_lines(&mut self, into: &mut Vec<Entry>) {
        self.all_mut().for_each(|outbox| outbox.drain_line(into));
    }

    pub(super) fn shrink(&mut self) {
        self.all_mut().for_each(Outbox::shrink);
    }
}

impl Engine {
    /// Asks executors again that have refused tasks: at least one, and as many as there is time for.
    pub(super) fn ask_again(&mut self, now: Moment) {
        if self.outboxes.again_at().is_none_or(|at| at > now) {
            return;
        }
        let (mut has_asked, takers) = (false, self.outboxes.takers_to_ask(now));
        for taker in takers {
            if !has_asked || !self.has_taken_long(now) {
                has_asked = true;
                self.outboxes.asked = taker.number();
                self.ask(&taker, now);
            }
            self.let_go(taker);
        }
    }

    /// Offers an executor one task, then two, four and so on while it takes them all. If it takes only some it is offered
    /// one again. If it refuses the first one, or a later one twice, it gets a pause. OUTBOX-2.
    fn ask(&mut self, taker: &Taker, now: Moment) {
        let (mut offer, mut took, mut is_second_try, mut tasks) = (1, 0, false, Vec::new());
        while took < TAKE_IN && (took < HAND_OVER || !self.has_taken_long(now)) {
            self.outboxes.of(taker).next_of_line(offer, &mut tasks);
            let offered = tasks.len();
            if offered == 0 {
                return;
            }
            tasks.drain(..).for_each(|entry| self.batch.push(entry));
            let refused = self.flush(taker).min(offered);
            took += offered - refused;
            if offered == 1 && refused == 1 && (took == 0 || is_second_try) {
                let first_pause = self.first_pause();
                return self.outboxes.of(taker).rest(took, now, first_pause);
            }
            is_second_try = offered == 1 && refused == 1;
            offer = if refused > 0 { 1 } else { 2 * offer };
        }
        self.outboxes.of(taker).ask_soon(now);
    }

    fn first_pause(&self) -> u64 {
        self.shared.tick.min(LONGEST_PAUSE)
    }

    /// Hands over what is due, in batches of one executor each: at least [`HAND_OVER`] tasks, and as many as have just
    /// been taken in if that does not take longer than [`SHARE`]. So a flood of tasks that are due at once does not pile
    /// up here.
    pub(super) fn hand_over(&mut self, now: Moment, taken_in: usize) {
        let (mut taker, mut left, mut more) = (Taker::Default, HAND_OVER, taken_in);
        let mut is_refusing = self.outboxes.is_refusing(&taker);
        loop {
            if left == 0 {
                left = more.min(BATCH);
                more -= left;
                if left == 0 || self.has_taken_long(now) {
                    break;
                }
            }
            let Some(entry) = self.ready.pop(now) else { break };
            left -= 1;
            let goes_on = match (&taker, entry.runner()) {
                (Taker::Default, Runner::Default) => true,
                (Taker::Own(own), Runner::Own) => {
                    self.ready.fetch_ahead();
                    let Some(word) = holder::pending_word(entry.key()) else { continue };
                    word.executor() == own.number()
                }
                _ => false,
            };
            if !goes_on || self.batch.len() == BATCH {
                let Some(next) = self.taker_of(entry) else { continue };
                if !next.is(&taker) || self.batch.len() == BATCH {
                    self.flush(&taker);
                    self.let_go(std::mem::replace(&mut taker, next));
                    is_refusing = self.outboxes.is_refusing(&taker);
                }
            }
            match taker {
                _ if is_refusing => self.outboxes.of(&taker).line_up(entry),
                Taker::TickThread => left -= self.wake(entry, now, left.min(BATCH - 1)),
                _ => self.batch.push(entry),
            }
        }
        self.flush(&taker);
        self.let_go(taker);
    }

    /// It may be the last owner of an executor.
    fn let_go(&self, taker: Taker) {
        if let Taker::Own(own) = taker {
            caught(|| drop(own))
                .err()
                .into_iter()
                .for_each(|panic| self.shared.hooks.report(panic));
        }
    }

    /// Returns true if this turn has had its share of time. A clock that panics says no.
    fn has_taken_long(&self, since: Moment) -> bool {
        caught(|| self.shared.now()).is_ok_and(|now| now > since.after_nanos(SHARE))
    }

    /// Who takes an entry; `None` when it is stale.
    fn taker_of(&self, entry: Entry) -> Option<Taker> {
        match entry.runner() {
            Runner::Default => Some(Taker::Default),
            Runner::TickThread => Some(Taker::TickThread),
            Runner::Own => {
                let number = holder::pending_word(entry.key())?.executor();
                self.shared.own_executors.find(number).map(Taker::Own)
            }
        }
    }

    /// Wakes this waker and so many of those that follow, while there are no tasks between them. How many
    /// followed.
    fn wake(&mut self, first: Entry, now: Moment, most: usize) -> usize {
        let (ready, mut followed) = (&mut self.ready, 0);
        let others =
            std::iter::from_fn(|| ready.pop_waker(now)).take(most).inspect(|_| followed += 1);
        self.shared.wake_all(std::iter::once(first).chain(others), now, &mut self.wakers);
        self.shared.hooks.observe(|observer| observer.handed_over(1 + followed));
        followed
    }

    /// Hands the batch over. How many tasks came back.
    fn flush(&mut self, taker: &Taker) -> usize {
        let tasks = self.batch.len();
        if tasks == 0 {
            return 0;
        }
        let batch = &mut self.batch;
        let handed = caught(|| match (taker, &self.executor) {
            (Taker::Own(own), _) => own.executor().execute_batch(batch),
            (Taker::Default, Some(executor)) => executor.execute_batch(batch),
            (Taker::Default, None) | (Taker::TickThread, _) => {}
        });
        handed.err().into_iter().for_each(|panic| self.shared.hooks.report(panic)); // S17
        let (mut refused, mut strangers) = (Vec::new(), Vec::new());
        self.batch.settle(&mut refused, &mut strangers);
        strangers.into_iter().for_each(|stranger| quietly(|| self.adopt(stranger)));
        self.remember(taker, &refused);
        self.batch.clear();
        let refused = self.line_up_refused(taker, refused);
        self.shared.hooks.observe(|observer| observer.handed_over(tasks.saturating_sub(refused)));
        refused
    }

    /// Remembers what an executor has taken, so that a close can claim it back (S29), and tells producers how far the
    /// executor is behind.
    fn remember(&mut self, taker: &Taker, refused: &[(Entry, bool)]) {
        let entries = self.batch.entries();
        let mut back: Vec<_> = refused.iter().map(|(entry, _)| entry.key()).collect();
        back.sort_unstable();
        // What comes back may be of an earlier batch.
        let is_taken =
            |entry: &&Entry| back.is_empty() || back.binary_search(&entry.key()).is_err();
        let count =
            if back.is_empty() { entries.len() } else { entries.iter().filter(is_taken).count() };
        if self.batch.was_run_here() {
            if let Taker::Own(own) = taker {
                if !self.outboxes.own.contains_key(&own.number()) {
                    return; // an executor that runs all at once is never behind
                }
            }
            self.outboxes.of(taker).run_at_once(count);
        } else if count > 0 {
            let is_simple = refused.is_empty() && !entries.iter().any(|entry| entry.is_series());
            if is_simple {
                self.outboxes.of(taker).taken(entries);
            } else {
                for entry in entries.iter().filter(is_taken) {
                    if entry.is_series() {
                        self.outboxes.series.remember(*entry);
                    } else {
                        self.outboxes.of(taker).taken(std::slice::from_ref(entry));
                    }
                }
            }
        }
        let outbox = self.outboxes.of(taker);
        outbox.forget_over(count);
        match taker {
            Taker::Own(own) => own.backlog().tell(outbox.flow()),
            _ => self.shared.backlog.tell(outbox.flow()),
        }
    }

    /// Puts what an executor has refused or left into its line. How many tasks those are.
    fn line_up_refused(&mut self, taker: &Taker, refused: Vec<(Entry, bool)>) -> usize {
        if refused.is_empty() {
            return 0;
        }
        let count = refused.len();
        let mut entries = Vec::new();
        for (entry, for_good) in refused {
            // By the task and not by the batch: an executor may give back now what it was handed before, or what
            // somebody else was handed. What has been cancelled meanwhile is nobody's.
            let Some(word) = holder::pending_word(entry.key()) else { continue };
            entries.push((word.executor(), entry.due_now(), for_good));
        }
        entries.sort_by_key(|(number, ..)| *number); // stable
        for of_one in entries.chunk_by(|one, other| one.0 == other.0) {
            let refused: Vec<_> = of_one.iter().map(|(_, entry, _)| *entry).collect();
            let for_good = of_one.iter().any(|(.., for_good)| *for_good);
            let owner = match of_one[0].0 {
                0 => Some(Taker::Default),
                number if number == taker.number() => None,
                number => self.shared.own_executors.find(number).map(Taker::Own),
            };
            let first_pause = self.first_pause();
            let outbox = self.outboxes.of(owner.as_ref().unwrap_or(taker));
            outbox.refused(&refused, self.now, first_pause);
            if for_good {
                outbox.refused_for_good();
            }
            if of_one[0].0 > 0 {
                self.outboxes.refusing.insert(of_one[0].0);
            }
            owner.into_iter().for_each(|owner| self.let_go(owner));
        }
        self.shared.rejected.add(count as u64);
        quietly(|| trace::rejected(count));
        self.shared.hooks.observe(|observer| observer.rejected(count));
        count
    }

    /// An executor gave back a task that is not ours: it becomes one, or nobody would run it. When there is no room it is
    /// dropped, and counted by the scheduler that it came from.
    fn adopt(&self, task: DueTask) {
        let times = self.shared.at(task.deadline());
        let run = OneShot(move || task.run());
        let admitted = self.shared.admit(times, run, Repetition::NONE, None);
        quietly(|| drop(admitted));
    }
}
