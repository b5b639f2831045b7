//! The dispatcher: the thread of a worker that looks for timers, claims them when they wake, and extends their leases.
//!
//! What was claimed leaves entries behind at the front of the database's index, which each claim and each look would walk
//! over. So the dispatcher remembers for each kind the last timer that it has claimed, the floor, and begins behind it.
//!
//! - FLOOR-1 A floor stands for [`FLOOR`], or for ten times as long as the claim took that had none. Then the kind is
//!   looked at and claimed from its beginning. So what comes to stand below a floor, because its lock is gone or its transaction has
//!   taken long, waits no longer than that.
//!   One look at the first timer tells whether there is something to claim. If a claim does not get it, somebody has locked it, and
//!   another look follows each [`AFTER_OTHERS`] until it is claimed or gone.
//! - FLOOR-2 A floor is always [`LAG`] before the database's time, so that a transaction which commits within that is not below it.
//! - FLOOR-3 The dispatcher lowers a floor to each earlier time of which it hears, and drops all floors when it does not
//!   know what it has missed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::limits::{Groups, Shares, Start, at_a_time, spread};
use super::outage::Part;
use super::runner::{self, GIVEN_BACK};
use super::shared::{
    ALONE, ASK, Alone, Cause, GRAIN, Held, Job, LONG_RUN, MOST_STUCK, Shared, Stage, count,
};
use super::turns::{FULL, MARGIN, Turn, Turns};
use crate::clock::{from_micros, micros};
use crate::error::{Error, Result, StopReason};
use crate::failure::Failure;
use crate::handler::{TIME_LIMIT, Tenure};
use crate::sight;
use crate::store::{
    Changed, Claim, Claimed, ClaimedTimer, Connection, Floor, HELD_BACK, RunId, Then,
};

/// How often to look without a reason.
const LOOK: Duration = Duration::from_secs(60);

/// How far a look looks ahead. The triggers of PostgreSQL tell of timers that are due within half a minute more.
pub(super) const HORIZON: Duration = Duration::from_secs(120);

/// How many wake times one look takes in, of each kind. The next ones are seen when these have come.
const WAKES: u32 = 1000;

/// When so many of them have come, the next look is made, if there may be more behind the last one.
const NEARLY_ALL: u32 = 750;

/// The most timers that one claim takes.
const MOST_CLAIMED: u32 = 500;

/// If another worker has taken what was due, a look follows after this time: that worker may die.
const AFTER_OTHERS: Duration = Duration::from_secs(1);

/// If there are more timers than was known, or a clock was set, a look follows after this time, one for all that tell of more in the
/// meantime.
const SOON: Duration = Duration::from_millis(100);

/// For how long a worker is on the list of those that live. It is renewed with a look, which is made once a minute at least.
const LIVES: Duration = Duration::from_secs(150);

/// How often the list is renewed or read, at least and at most.
const RENEWED: (Duration, Duration) = (Duration::from_secs(45), Duration::from_millis(250));

/// When a kind is claimed again at the latest of which the database has refused claims.
const REFUSED: Duration = Duration::from_secs(5);

/// For how long a kind is not claimed from its beginning, at least (FLOOR-1).
const FLOOR: Duration = Duration::from_secs(1);

/// How far floors are behind the database's time, at least (FLOOR-2).
const LAG: Duration = Duration::from_secs(1);

#[expect(clippy::struct_excessive_bools, reason = "each is something to do that is not done yet")]
pub(super) struct Dispatcher<'a> {
    shared: &'a Arc<Shared>,
    connection: Option<Box<dyn Connection>>,
    /// Kinds of which timers may be due (LEASE-6), in the order in which they are served, with the times that woke them.
    to_claim: VecDeque<usize>,
    woken: BTreeMap<usize, Vec<SystemTime>>,
    /// For each kind, where its claims and looks begin.
    floors: Vec<Option<Floor>>,
    shares: Shares,
    /// Of kinds with groups, what is known of those.
    groups: BTreeMap<usize, Groups>,
    /// Kinds of which the limits hold back what is due, or the database refuses the claims.
    held_back: HashSet<usize>,
    /// Kinds of which the database has refused the last claim, which was said, and when each is claimed again.
    refused: HashMap<usize, Duration>,
    must_look: bool,
    must_poll: bool,
    /// A worker that is told at once is to learn the time (DB-CLOCK-4).
    must_ask_time: bool,
    must_extend: bool,
    /// The worker is to ask which runs are still its own, of those that have lasted for so long (CANCEL-1).
    must_ask: Option<Duration>,
    must_attend: bool,
    /// Whose turn it is, and when the list of those that live was renewed last, if this worker is on it.
    turns: Turns,
    attended: Option<Instant>,
    /// For each kind that is to be checked: until when what wakes should have been claimed.
    checks: BTreeMap<usize, SystemTime>,
    /// Of these, the kinds that were left to another worker. After a check, those of which it has found something.
    was_left: HashSet<usize>,
}

pub(super) fn start(shared: &Arc<Shared>, connection: Option<Box<dyn Connection>>) -> Result<()> {
    shared.state().is_dispatching = true;
    let started = shared.spawn("timers", move |shared| {
        let mut dispatcher = Dispatcher::new(shared, connection);
        let end = End(shared);
        dispatcher.run();
        drop(end);
        _ = dispatcher.leave();
        // The others know nothing of what this worker alone has expected. Those of this process are told in SQLite too.
        shared.timers.each_worker(Shared::look_now);
        // This ends the wait of this worker's listener, and makes others look.
        _ = dispatcher.connection().and_then(Connection::announce);
    });
    if started.is_err() {
        shared.end_of_dispatcher();
    }
    started
}

/// The end of the dispatcher, also by a panic.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end_of_dispatcher();
    }
}

impl<'a> Dispatcher<'a> {
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        connection: Option<Box<dyn Connection>>,
    ) -> Dispatcher<'a> {
        Dispatcher {
            shared,
            connection,
            to_claim: VecDeque::new(),
            woken: BTreeMap::new(),
            floors: vec![None; shared.kinds.len()],
            shares: Shares::new(shared.kinds.iter().map(|kind| kind.weight)),
            groups: (0..shared.kinds.len())
                .filter(|kind| shared.kinds[*kind].limits.serial_by.is_some())
                .map(|kind| (kind, Groups::new(shared.scheduler.now())))
                .collect(),
            held_back: HashSet::new(),
            refused: HashMap::new(),
            must_look: true,
            must_poll: shared.poll().is_some(),
            must_ask_time: false,
            must_extend: false,
            must_ask: None,
            must_attend: true,
            turns: Turns::new(
                i64::from_ne_bytes(RandomState::new().hash_one(()).to_ne_bytes()),
                shared.kinds.iter().map(|kind| kind.name.as_str()),
            ),
            attended: None,
            checks: BTreeMap::new(),
            was_left: HashSet::new(),
        }
    }

    fn run(&mut self) {
        loop {
            let left = self.shared.time_to_turn(Part::Dispatcher);
            let mut is_busy = false;
            if left.is_zero() {
                is_busy = self.try_to_work();
            } else {
                self.shared.wake_after(Cause::Again, left);
            }
            if self.is_over() {
                return;
            }
            if !is_busy {
                let Some(cause) = self.shared.causes.recv() else { break };
                self.take_in(cause.key);
            }
            while let Some(cause) = self.shared.causes.try_next() {
                self.take_in(cause.key);
            }
        }
        self.shared.give_up(StopReason::SchedulerClosed);
    }

    /// Works, as far as the database does (OUTAGE-1). Returns true if there is more to do at once.
    fn try_to_work(&mut self) -> bool {
        match self.work() {
            Ok(is_busy) => {
                // After an error there is no connection before it has asked again.
                if self.connection.is_some() {
                    self.shared.has_worked(Part::Dispatcher);
                }
                return is_busy;
            }
            Err(error) => {
                self.connection = None;
                self.look_anew();
                if let Error::Schema(oldest) = error {
                    self.shared.report(&error);
                    self.shared.stop(StopReason::Schema(oldest));
                } else {
                    self.shared.has_failed(Part::Dispatcher, &error);
                    _ = self.shared.causes.insert(Cause::Again, (), Duration::ZERO);
                }
            }
        }
        false
    }

    /// After `stop`, it stays until the last outcome is written, to extend leases and to see time limits.
    fn is_over(&mut self) -> bool {
        let state = self.shared.state();
        state.is_stopping() && (state.runs.is_empty() || !state.is_finishing)
    }

    pub(super) fn take_in(&mut self, cause: Cause) {
        match cause {
            Cause::Due(kind, wake) => self.comes(kind, from_micros(wake)),
            Cause::Mine(kind, wake) => self.wakes(kind, from_micros(wake)),
            Cause::Check(kind, end) => {
                self.was_left.insert(kind);
                self.must_check(kind, from_micros(end));
            }
            Cause::More(kind, until) => self.hears_of_more(kind, from_micros(until)),
            Cause::Attend => self.must_attend = true,
            Cause::Look => self.must_look = true,
            Cause::News => self.look_anew(),
            Cause::Floor(kind) => {
                let now = self.shared.scheduler.now();
                if let Some(groups) = self.groups.get_mut(&kind) {
                    let left = groups.next_pass(FLOOR, now).filter(|left| !left.is_zero());
                    if let Some(left) = left {
                        return self.shared.wake_after(cause, left);
                    }
                    groups.begin_anew(now);
                }
                self.floors[kind] = None;
                self.must_check(kind, SystemTime::UNIX_EPOCH);
                self.is_hungry(kind);
            }
            Cause::HeldBack(kind) => self.may_pass(kind),
            Cause::Freed => self.runs_have_ended(),
            Cause::Clock if self.shared.is_told() => self.must_ask_time = true,
            Cause::Poll | Cause::Clock => self.must_poll = true,
            Cause::Extend => self.must_extend = true,
            Cause::Ask => self.must_ask = self.must_ask.or(Some(LONG_RUN)),
            Cause::Cancelled => self.must_ask = Some(Duration::ZERO),
            Cause::Limit(fence) => self.end_of_time(fence),
            Cause::Room | Cause::Full | Cause::NotAlone | Cause::Again | Cause::Stop => {}
        }
    }

    fn must_check(&mut self, kind: usize, end: SystemTime) {
        self.checks.entry(kind).and_modify(|until| *until = end.max(*until)).or_insert(end);
    }

    /// A timer of this kind wakes at this time, of which all workers know. It is claimed if it is this worker's turn.
    fn comes(&mut self, kind: usize, wake: SystemTime) {
        let shared = self.shared;
        let now = shared.scheduler.now();
        let (Turn::Second(end) | Turn::Later(end)) = self.turns.turn(kind, wake, now) else {
            return self.wakes(kind, wake);
        };
        self.lower_floor(kind, wake);
        // Those before this one may have died (TURN-1).
        let at = shared.clock().instant(end).max(now) + MARGIN;
        _ = shared.causes.insert_at(Cause::Check(kind, micros(end)), (), at);
        // And the one that claims it may die, so the end of its lease must be known.
        shared.wake_after(Cause::Look, AFTER_OTHERS.max(shared.settings.lease / 3));
    }

    /// Until this time more timers of this kind wake than others know of, or than one worker can take.
    fn hears_of_more(&mut self, kind: usize, until: SystemTime) {
        let now = self.shared.scheduler.now();
        if until <= self.shared.clock().latest_time(now) {
            self.turns.open(kind, now);
            self.wakes(kind, until);
        } else {
            // Until the look, the one that has said so claims what it knows of (TURN-2).
            self.shared.wake_after(Cause::Look, SOON);
        }
    }

    /// A timer of this kind wakes at this time, or up to [`GRAIN`] before. A kind that had nothing to claim is served first, before
    /// those that have a backlog. One of which timers wake during each of its claims would stay before the others, so it is served last.
    fn wakes(&mut self, kind: usize, wake: SystemTime) {
        if self.shares.is_active(kind, self.shared.scheduler.now()) {
            self.is_hungry(kind);
        } else if !self.to_claim.contains(&kind) {
            self.to_claim.push_front(kind);
        }
        // A claim takes fewer, so more are not counted. A kind may have no room for a long time.
        let woken = self.woken.entry(kind).or_default();
        if woken.len() < WAKES as usize {
            woken.push(wake);
        }
        self.lower_floor(kind, wake);
    }

    fn lower_floor(&mut self, kind: usize, wake: SystemTime) {
        let first = wake - Duration::from_micros(GRAIN.unsigned_abs());
        if let Some(floor) = &mut self.floors[kind] {
            *floor = (*floor).min((first, 0));
        }
        self.groups.get_mut(&kind).into_iter().for_each(|groups| groups.wakes(first, wake));
    }

    /// The limits of a kind may let something pass again.
    fn may_pass(&mut self, kind: usize) {
        self.held_back.remove(&kind);
        if let Some(groups) = self.groups.get_mut(&kind) {
            groups.try_foreign(&self.shared.groups_of(kind));
        }
        self.is_hungry(kind);
    }

    /// Runs of kinds with limits have ended here, and nothing holds their places any more.
    fn runs_have_ended(&mut self) {
        let freed = std::mem::take(&mut self.shared.state().freed);
        for (kind, group) in freed {
            let groups = self.groups.get_mut(&kind);
            let has_more =
                groups.zip(group).is_some_and(|(groups, group)| groups.has_ended(&group));
            let was_full =
                self.shared.kinds[kind].limits.at_most.is_some() && self.held_back.remove(&kind);
            if has_more || was_full {
                self.is_hungry(kind);
            }
        }
    }

    /// Looks at all there is: what this worker has missed, it does not know (FLOOR-3).
    fn look_anew(&mut self) {
        self.floors.fill(None);
        let now = self.shared.scheduler.now();
        self.groups.values_mut().for_each(|groups| groups.begin_anew(now));
        self.must_look = true;
        self.must_attend = true; // a worker has come or gone, or the connection has
    }

    fn is_hungry(&mut self, kind: usize) {
        if !self.to_claim.contains(&kind) {
            self.to_claim.push_back(kind);
        }
    }

    /// Does what the causes ask for. Returns true if there is more to claim, and room for it. Other causes come first.
    fn work(&mut self) -> Result<bool> {
        self.see_to_runs()?;
        if self.shared.is_stopping() {
            return Ok(false);
        }
        self.attend()?;
        if self.must_poll {
            self.poll()?;
            self.must_poll = false;
        }
        if self.must_ask_time {
            self.ask_time()?; // all workers do so at the same time, so it is no look
            self.must_ask_time = false;
        }
        if self.must_look {
            self.look(WAKES)?;
            self.must_look = false;
        }
        self.check()?;
        let Some(kind) = self.next_to_claim()? else { return Ok(false) };
        let claimed = self.claim(kind, self.room(kind));
        if !matches!(claimed, Ok(false)) {
            self.is_hungry(kind);
        }
        claimed?;
        // Causes come in between two claims, so that what wakes waits for one claim, and not for one of each kind.
        Ok(self.to_claim.iter().any(|kind| self.may_claim(*kind)))
    }

    /// Does what the causes ask for the runs that there are.
    pub(super) fn see_to_runs(&mut self) -> Result<()> {
        if self.must_extend {
            self.extend()?;
            self.must_extend = false;
        }
        if let Some(age) = self.must_ask {
            self.ask(age)?;
            self.must_ask = None;
        }
        Ok(())
    }

    /// The database refuses claims of a kind, for want of rights, say, or by a trigger of the user's. Others go on, and the hook is
    /// told when it begins. What has refused it may be over soon, or with another connection.
    fn is_refused(&mut self, kind: usize, error: &Error) {
        let shared = self.shared;
        shared.has_worked(Part::Dispatcher); // it was reached, and has answered
        self.groups.get_mut(&kind).into_iter().for_each(|of| of.begin_anew(shared.scheduler.now()));
        self.held_back.insert(kind);
        shared.count_error();
        let before = self.refused.get(&kind).copied();
        let again = before.map_or(SOON, |before| (2 * before).min(REFUSED));
        self.refused.insert(kind, again);
        _ = shared.causes.insert(Cause::HeldBack(kind), (), again);
        if before.is_none() {
            (self.connection, self.must_attend) = (None, true); // the list of those that live names the connection
            let name = &shared.kinds[kind].name;
            let text = format!("no timers of the kind {name:?} are claimed: {error}");
            shared.tell(&Error::Refused(text.into()));
        }
    }

    fn may_claim(&self, kind: usize) -> bool {
        !self.held_back.contains(&kind) && self.room(kind) > 0
    }

    /// How many timers of a kind a claim takes.
    fn room(&self, kind: usize) -> u32 {
        let share = self.shares.of(kind, self.shared.scheduler.now());
        self.shared.room(kind, share).min(MOST_CLAIMED).min(at_a_time(share))
    }

    /// Takes out the first kind that has room. The others keep their places.
    fn next_to_claim(&mut self) -> Result<Option<usize>> {
        if self.shared.is_stopping() {
            return Ok(None);
        }
        let place = self.to_claim.iter().position(|kind| self.may_claim(*kind));
        let before = self.to_claim.iter().take(place.unwrap_or(usize::MAX)).copied();
        // What limits hold back, others have no room for either.
        let full: Vec<_> = before.filter(|kind| !self.held_back.contains(kind)).collect();
        for kind in full {
            let woken = self.woken.get(&kind).and_then(|wakes| wakes.first().copied());
            self.fills(kind, woken.or_else(|| self.turns.waits(kind)))?;
        }
        Ok(place.and_then(|place| self.to_claim.remove(place)))
    }

    pub(super) fn connection(&mut self) -> Result<&mut dyn Connection> {
        let connected = self.shared.timers.connected(self.connection.take())?;
        Ok(&mut **self.connection.insert(connected))
    }

    /// Takes in the database's time. If a clock was set, what is expected, and what limits hold back, comes at other instants, so a
    /// look follows (DB-CLOCK-3). Not at once, because the clock of a store may count in seconds. If somebody else wants a look just
    /// then, that may come with this one.
    pub(super) fn learn(&mut self, sent: Instant, now: SystemTime) {
        let shared = self.shared;
        let received = shared.scheduler.now();
        let was_set = shared.clock().learn(sent, received, now);
        if was_set {
            let held_back = self.held_back.iter().map(|kind| Cause::HeldBack(*kind));
            held_back.chain([Cause::News]).for_each(|cause| shared.wake_after(cause, SOON));
        }
    }

    fn next_poll(&self) {
        if let Some(interval) = self.shared.poll() {
            self.shared.wake_after(Cause::Poll, interval);
        }
    }

    /// Looks at the first timer of each kind if another connection may have changed something. The claim at its time leads to
    /// the next one. In any case it learns the database's time: also of a file in which nothing has changed while its machine slept.
    fn poll(&mut self) -> Result<()> {
        if !self.connection()?.has_changed()? {
            self.ask_time()?;
        } else if !self.must_look {
            self.look(1)?;
        }
        self.next_poll();
        Ok(())
    }

    fn ask_time(&mut self) -> Result<()> {
        let sent = self.shared.scheduler.now();
        let now = self.connection()?.now()?;
        self.learn(sent, now);
        Ok(())
    }

    fn look(&mut self, wakes: u32) -> Result<()> {
        let shared = self.shared;
        let names = shared.kinds.iter().map(|kind| kind.name.as_str());
        let kinds: Vec<_> = names.zip(self.floors.iter().copied()).collect();
        let sent = shared.scheduler.now();
        let look = self.connection()?.look_above(&kinds, HORIZON, wakes)?;
        count(&shared.counters.looks, 1);
        self.learn(sent, look.now);
        let mut seen = vec![(0, Duration::ZERO); kinds.len()];
        let mut next_look = LOOK;
        let mut coming = Vec::new();
        for (kind, wake) in look.wakes {
            let (count, most) = &mut seen[kind];
            *count += 1;
            // There may be more behind the last one, and it is known before that one wakes.
            let left = wake.duration_since(look.now).unwrap_or_default();
            match *count {
                NEARLY_ALL => *most = left,
                // What is due is claimed without a look, and leads to what is behind it.
                WAKES if !left.is_zero() => {
                    next_look = next_look.min(if most.is_zero() { left } else { *most });
                }
                _ => {}
            }
            if wake > look.now {
                shared.expect(kind, wake);
            } else if Turns::is_late(wake, look.now) {
                self.wakes(kind, wake);
            } else {
                coming.push((kind, wake));
            }
        }
        if wakes == WAKES {
            _ = shared.causes.insert(Cause::Look, (), next_look);
        }
        // These may want an earlier look.
        coming.into_iter().for_each(|(kind, wake)| self.comes(kind, wake));
        Ok(())
    }

    /// Renews the place of this worker on the list of those that live, and reads who else does, if it is time.
    fn attend(&mut self) -> Result<()> {
        let shared = self.shared;
        let age = self.attended.map(|at| shared.scheduler.now().saturating_duration_since(at));
        if !shared.is_told() {
            return if age.is_some() { self.leave() } else { Ok(()) }; // TURN-2
        }
        let is_old = self.must_look && age.is_none_or(|age| age >= RENEWED.0);
        if !self.must_attend && !is_old {
            return Ok(());
        }
        if let Some(age) = age.filter(|age| *age < RENEWED.1) {
            self.must_attend = false;
            shared.wake_after(Cause::Attend, RENEWED.1.saturating_sub(age));
            return Ok(());
        }
        let (name, me) = (shared.settings.name.as_str(), self.turns.me());
        let kinds: Vec<_> = shared.kinds.iter().map(|kind| kind.name.as_str()).collect();
        let others = match self.connection()?.attend(me, name, &kinds, LIVES) {
            Ok(Some(others)) => others,
            Ok(None) => Vec::new(),
            // The role may lack the right, since it is one of a later version. Then there are no turns.
            Err(error @ Error::Refused(_)) => {
                if self.attended.is_none() {
                    shared.report(&error);
                }
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        self.must_attend = false;
        self.attended = Some(shared.scheduler.now());
        self.turns.set(&others);
        Ok(())
    }

    /// Takes this worker off the list of those that live. From here on it claims whatever is due.
    fn leave(&mut self) -> Result<()> {
        if self.attended.take().is_some() {
            self.turns.set(&[]);
            let me = self.turns.me();
            self.connection()?.leave(me)?;
        }
        Ok(())
    }

    /// Claims, if the worker whose turn it was has not. One look, of the first timer of each kind, is cheaper than a claim.
    fn check(&mut self) -> Result<()> {
        if self.checks.is_empty() {
            return Ok(());
        }
        let (shared, checks) = (self.shared, std::mem::take(&mut self.checks));
        let was_left = std::mem::take(&mut self.was_left);
        // What waits for its group is before where the groups begin, and no worker has left it to another.
        let floor = |kind: &usize| match self.groups.get(kind) {
            Some(groups) => groups.floor(),
            None => self.floors[*kind],
        };
        let kinds: Vec<_> =
            checks.keys().map(|kind| (shared.kinds[*kind].name.as_str(), floor(kind))).collect();
        let sent = shared.scheduler.now();
        let look = self.connection()?.look_above(&kinds, Duration::ZERO, 1)?;
        count(&shared.counters.looks, 1);
        self.learn(sent, look.now);
        let checks: Vec<_> = checks.into_iter().collect();
        for (position, wake) in look.wakes {
            let (kind, until) = checks[position];
            if wake <= until || Turns::is_late(wake, look.now) {
                self.wakes(kind, wake);
                self.was_left.extend(was_left.get(&kind));
            } else if wake <= look.now && !was_left.contains(&kind) {
                self.comes(kind, wake); // it may be the turn of another
            }
        }
        Ok(())
    }

    /// This worker has no room for what has woken of this kind, or has again. If that lasts, all claim it (TURN-3).
    fn fills(&mut self, kind: usize, waits: Option<SystemTime>) -> Result<()> {
        if !self.turns.has_others(kind) {
            return Ok(());
        }
        let now = self.shared.scheduler.now();
        if let Some(wake) = self.turns.fills(kind, waits, now) {
            self.turns.open(kind, now);
            self.tell_of_more(kind, true, wake)?;
        } else if waits.is_some() {
            self.shared.wake_after(Cause::Full, FULL);
        }
        Ok(())
    }

    fn tell_of_more(&mut self, kind: usize, is_due: bool, until: SystemTime) -> Result<()> {
        let shared = self.shared;
        if self.turns.tells(kind, is_due, shared.scheduler.now()) {
            self.connection()?.tell_of_more(&shared.kinds[kind].name, until)?;
        }
        Ok(())
    }

    /// Claims timers of a kind, and queues them. Returns true if more may be due.
    fn claim(&mut self, kind: usize, room: u32) -> Result<bool> {
        if room == 0 {
            return Ok(true); // it has become less since the kind was chosen, and a claim of nothing would tell that nothing is due
        }
        let shared = self.shared;
        let sent = shared.scheduler.now();
        let limits = shared.kinds[kind].limits;
        let start = self.groups.get_mut(&kind).map(Groups::start);
        let except = self.groups.get(&kind).zip(start).map(|(groups, start)| groups.before(start));
        let floor = start.map_or(self.floors[kind], |start| start.floor);
        let except = except.as_deref().unwrap_or_default();
        let claim = Claim { floor, except, ..shared.claim_of(kind, room) };
        let claimed = match self.connection()?.claim(&claim) {
            Err(error @ Error::Refused(_)) => {
                self.is_refused(kind, &error);
                return Ok(true);
            }
            claimed => claimed?,
        };
        self.refused.remove(&kind);
        count(&shared.counters.claims, 1);
        sight::claimed(claim.kind);
        self.learn(sent, claimed.now);
        // A batch, and the server's triggers, tell of the first of their timers only.
        let next = claimed.next.filter(|next| *next <= claimed.now + HORIZON);
        let next = next.filter(|next| !shared.is_expected(kind, *next));
        next.into_iter().for_each(|next| shared.expect_alone(kind, next));
        let mut came = 0;
        for wake in self.woken.remove(&kind).unwrap_or_default() {
            if wake > claimed.now {
                shared.expect_alone(kind, wake); // it was too early
            } else {
                came += 1;
            }
        }
        let is_held_back = claimed.held_back.is_some() || !claimed.passed.is_empty();
        if !claimed.more && claimed.timers.len() < came && !is_held_back {
            shared.wake_after(Cause::Look, AFTER_OTHERS);
        }
        if let Some(again) = claimed.held_back {
            self.held_back.insert(kind);
            let again = shared.clock().instant(again);
            let delay = again.saturating_duration_since(shared.scheduler.now());
            // As many starts as there are workers gather in a bucket that has room for them, and one claim takes them.
            let delay = spread(delay, RandomState::new().hash_one(()) as u8);
            let others = u32::try_from(self.turns.others(kind)).unwrap_or(u32::MAX);
            let gathers = limits.rate.is_some_and(|(starts, _)| starts / 4 > others);
            let gathered = (delay * if gathers { others + 1 } else { 1 }).min(HELD_BACK);
            let delay = delay.max(gathered);
            _ = shared.causes.insert(Cause::HeldBack(kind), (), delay);
        }
        let was_left = self.was_left.remove(&kind);
        let was_left = was_left && !claimed.timers.is_empty();
        self.must_attend |= was_left; // the worker that should have claimed it may have died
        if !claimed.timers.is_empty() {
            self.shares.has_claimed(kind, shared.scheduler.now());
        } else if !claimed.more && !is_held_back {
            self.turns.close(kind);
        }
        if let Some(start) = start {
            self.learn_of_groups(kind, start, &claimed, sent);
        } else if let Some(last) = claimed.timers.last() {
            if self.floors[kind].is_none() {
                let taken = shared.scheduler.now().saturating_duration_since(sent);
                shared.wake_after(Cause::Floor(kind), FLOOR.max(taken * 10));
            }
            self.floors[kind] = Some((last.woke, last.timer.id).min((claimed.now - LAG, 0)));
        }
        let is_hungry = self.groups.get(&kind).map_or(claimed.more, Groups::is_hungry);
        let last = claimed.timers.last().map(|last| last.woke);
        self.queue(kind, claimed.timers, sent + shared.settings.lease);
        let is_full = claimed.more && claimed.held_back.is_none();
        self.fills(kind, last.filter(|_| is_full))?;
        // Others need not know of the next one either, and the one that has left something may not have known of it (TURN-2).
        if (next.is_some() || was_left) && self.turns.has_others(kind) {
            self.tell_of_more(kind, false, claimed.now + HORIZON)?;
        }
        Ok(is_hungry)
    }

    fn learn_of_groups(&mut self, kind: usize, start: Start, claimed: &Claimed, sent: Instant) {
        let shared = self.shared;
        let Some(groups) = self.groups.get_mut(&kind) else { return };
        if claimed.held_back.is_some() && claimed.timers.is_empty() {
            return groups.put_back(start); // it has looked at nothing
        }
        let now = shared.scheduler.now();
        let took = now.saturating_duration_since(sent);
        groups.learn(start, claimed, shared.kinds[kind].limits, took);
        if let Some(pause) = groups.next_pass(FLOOR, now) {
            shared.wake_after(Cause::Floor(kind), pause);
            shared.wake_after(Cause::HeldBack(kind), HELD_BACK);
        } else if !claimed.timers.is_empty() {
            shared.wake_after(Cause::Floor(kind), FLOOR);
        }
    }

    /// Queues what was claimed, and counts each attempt in its timer as if it had started.
    pub(super) fn queue(&mut self, kind: usize, timers: Vec<ClaimedTimer>, lease_ends: Instant) {
        if timers.is_empty() {
            return;
        }
        let shared = self.shared;
        count(&shared.counters.claimed, timers.len() as u64);
        let taken_over = timers.iter().filter(|claimed| claimed.was_running).count();
        count(&shared.counters.taken_over, taken_over as u64);
        let mut jobs = Vec::with_capacity(timers.len());
        for ClaimedTimer { mut timer, woke, was_running } in timers {
            let tenure = Tenure::new(&shared.scheduler, lease_ends, woke, was_running);
            // Its rule is the user's, so nothing is locked here.
            let end = shared.instead(kind, &timer, woke, was_running);
            timer.attempts = timer.attempts.saturating_add(u32::from(end.is_none()));
            timer.shard = shared.timers.number();
            let timer = Arc::new(timer);
            jobs.push((Job { kind, timer, tenure }, end));
        }
        let mut state = shared.state();
        let mut new = 0;
        for (job, end) in jobs {
            let (timer, tenure) = (Arc::clone(&job.timer), Arc::clone(&job.tenure));
            let fence = timer.fence;
            let mut held = Held { kind, timer, tenure, stage: Stage::Queued };
            if let Some(then) = end {
                held.stage = Stage::Settled;
                let finish = shared.finish(&held, then);
                shared.settle(&mut state, finish);
            } else {
                if job.tenure.is_suspected {
                    state.alone = Some(Alone { fence, until: shared.scheduler.now() + ALONE });
                    _ = shared.causes.insert(Cause::NotAlone, (), ALONE);
                }
                state.lines[kind].jobs.push_back(job);
                new += 1;
            }
            state.runs.insert(fence, held);
        }
        let line = &state.lines[kind];
        let stuck = line.stuck.min(MOST_STUCK);
        let startable = (shared.threads_of(kind) + stuck).saturating_sub(line.handlers);
        let missing = line.jobs.len().saturating_sub(line.idle).min(startable).min(new);
        let is_stopping = state.is_stopping();
        drop(state);
        if is_stopping {
            shared.release_queued(kind);
        } else {
            (0..missing).for_each(|_| runner::start_another(shared, kind));
        }
        shared.has_jobs[kind].notify_all();
        shared.wake_after(Cause::Extend, shared.settings.lease / 3);
        shared.wake_after(Cause::Ask, ASK);
    }

    /// Asks which runs are still this worker's, of those that have lasted for so long, and ends the tenure of the others (CANCEL-1).
    fn ask(&mut self, age: Duration) -> Result<()> {
        let shared = self.shared;
        let is_asked = |held: &&Held| {
            let holds_it = shared.kinds[held.kind].handler.is_transactional();
            let is_started = held.stage == Stage::Started && !holds_it;
            is_started && !held.tenure.has_completion() && held.tenure.age() >= age
        };
        let state = shared.state();
        let runs: Vec<RunId> =
            state.runs.values().filter(is_asked).map(|held| held.timer.run()).collect();
        if !state.runs.is_empty() {
            shared.wake_after(Cause::Ask, ASK);
        }
        drop(state);
        if runs.is_empty() {
            return Ok(());
        }
        let running: HashSet<i64> = self.connection()?.running(&runs)?.into_iter().collect();
        let state = shared.state();
        let gone = runs.iter().filter(|run| !running.contains(&run.fence));
        let gone = gone.filter_map(|run| state.runs.get(&run.fence)).filter(is_asked);
        let gone: Vec<_> = gone.map(|held| Arc::clone(&held.tenure)).collect();
        drop(state);
        gone.iter().for_each(|tenure| tenure.end()); // it wakes the user's futures, so nothing is locked
        Ok(())
    }

    /// Extends the leases of all runs (LEASE-1), but of those that are known to be lost.
    fn extend(&mut self) -> Result<()> {
        let shared = self.shared;
        let in_transaction = |held: &Held| {
            held.stage == Stage::Started && shared.kinds[held.kind].handler.is_transactional()
        };
        let is_lost = |held: &Held| {
            matches!(held.stage, Stage::Queued | Stage::Started) && held.tenure.is_over()
        };
        let runs: Vec<RunId> = {
            let state = shared.state();
            state
                .runs
                .values()
                .filter(|held| !in_transaction(held) && !is_lost(held))
                .map(|held| held.timer.run())
                .collect()
        };
        if shared.state().runs.is_empty() {
            return Ok(());
        }
        let sent = shared.scheduler.now();
        let extended = match &runs[..] {
            [] => Changed::default(),
            runs => self.connection()?.extend(runs, shared.settings.lease)?,
        };
        // After the leases in the database, and before those that handlers see, so no hold ends before its lease (LIMIT-1).
        let lost = self.extend_holds()?;
        shared.wake_after(Cause::Extend, shared.settings.lease / 3);
        let changed: HashSet<i64> = extended.changed.into_iter().collect();
        let state = shared.state();
        let held = lost.iter().filter_map(|fence| state.runs.get(fence));
        let mut ended: Vec<_> = held.map(|held| Arc::clone(&held.tenure)).collect();
        for run in runs {
            match state.runs.get(&run.fence) {
                Some(held) if in_transaction(held) => {} // it has started in the meantime
                Some(held) if changed.contains(&run.fence) && !lost.contains(&run.fence) => {
                    held.tenure.extend(sent + shared.settings.lease);
                }
                Some(_) if extended.busy.contains(&run.fence) => {}
                Some(held) if held.tenure.has_completion() => {} // it may have ended its timer (CANCEL-1)
                Some(held) => ended.push(Arc::clone(&held.tenure)),
                None => {} // written in the meantime
            }
        }
        drop(state);
        ended.iter().for_each(|tenure| tenure.end()); // it wakes the user's futures, so nothing is locked
        Ok(())
    }

    /// Extends what runs of kinds with limits hold, also that of cancelled ones, whose handlers go on (LIMIT-1). Returns the fencing
    /// numbers of those that hold nothing any more.
    fn extend_holds(&mut self) -> Result<HashSet<i64>> {
        let shared = self.shared;
        let has_limits = |held: &&Held| shared.kinds[held.kind].has_limits();
        let fences: Vec<i64> = {
            let state = shared.state();
            state.runs.values().filter(has_limits).map(|held| held.timer.fence).collect()
        };
        if fences.is_empty() { Ok(HashSet::new()) } else { self.hold(fences) }
    }

    fn hold(&mut self, fences: Vec<i64>) -> Result<HashSet<i64>> {
        let shared = self.shared;
        let held = self.connection()?.hold(&fences, shared.settings.lease)?;
        let held: HashSet<i64> = held.into_iter().collect();
        let mut gone = held.clone();
        gone.retain(|fence| !shared.state().runs.contains_key(fence));
        if !gone.is_empty() {
            // The finisher was faster. What a run that was given back holds is not to last for a lease (LIMIT-1).
            self.connection()?.hold(&gone.into_iter().collect::<Vec<_>>(), GIVEN_BACK)?;
        }
        Ok(fences.into_iter().filter(|fence| !held.contains(fence)).collect())
    }

    /// A handler has taken too long (LEASE-2).
    fn end_of_time(&mut self, fence: i64) {
        let shared = self.shared;
        let mut state = shared.state();
        let Some(held) = state.runs.get_mut(&fence) else { return };
        if held.stage != Stage::Started {
            return;
        }
        let (kind, timer, tenure) = (held.kind, Arc::clone(&held.timer), Arc::clone(&held.tenure));
        let is_async = shared.kinds[kind].handler.is_async();
        let has_to_wait = is_async || shared.kinds[kind].handler.is_transactional();
        let was_called = !has_to_wait || tenure.began().is_some();
        // It was called a short while ago (FLIGHT-4, ATTEMPT-7).
        if has_to_wait && !tenure.is_late() {
            drop(state);
            _ = shared.causes.insert(Cause::Limit(fence), (), tenure.left());
            return;
        }
        held.stage = Stage::Settled;
        state.lines[kind].stuck += 1;
        let is_alive = shared.width_of(kind, &state.lines[kind]) > 0;
        let is_replaced = is_alive && !is_async && !state.is_stopping();
        drop(state);
        let then = if was_called {
            count(&shared.counters.timed_out, 1);
            sight::timed_out(&timer);
            // Its rule is the user's, so it is asked while nothing is locked.
            shared.after_failure(kind, &timer, &Failure::new(TIME_LIMIT))
        } else {
            Then::Release
        };
        shared.tell_of_failure(&timer, &then);
        let is_forgotten = !was_called && tenure.is_suspected;
        if is_forgotten {
            runner::uncount_beside(shared, &timer);
        }
        let mut state = shared.state();
        // A transaction of the handler's locks the row. So the outcome is written when that was undone. If it commits in spite
        // of this, the timer does not run any more, and the outcome changes nothing (STORE-3).
        if is_forgotten {
            shared.leave_suspected(&mut state, kind, fence);
        } else if let Some(held) = state.runs.get(&fence) {
            let finish = shared.finish(held, then);
            shared.settle(&mut state, finish);
        }
        drop(state);
        tenure.cut();
        shared.outage.wake(); // in which it may wait for its transaction
        if is_replaced {
            runner::start_another(shared, kind);
        }
        if is_async {
            shared.has_jobs[kind].notify_all(); // there is room for one that waits
        }
        if was_called {
            shared.tell_of_time_limit(kind, &timer, None);
        } else {
            shared.tell_of_no_call(kind, &timer, &tenure);
        }
        if !is_alive {
            shared.report(&Error::Stuck(shared.kinds[kind].name.clone()));
            shared.release_queued(kind);
        }
    }
}
