//! A store of another crate, with a type of transaction that this one has never heard of: a list of lines, kept or not.

use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{
    Changed, Claim, Claimed, Connection, Error, Existing, Failure, Filter, Finish, KindCounts,
    Look, NewTimer, Result, RunId, Scheduled, State, StopReason, Store, Table, Then, Timer, Timers,
    Transacted, TransactionType, Transactions, When, Work, Worker, sqlite,
};

use super::common::{PATIENCE, process_of, until};
use super::{LEASE, NOW, mail, quick};

/// What its handlers work in. It borrows, as transactions do.
struct Lines<'a>(&'a mut Vec<String>);

impl TransactionType for Lines<'static> {
    type Transaction<'a> = Lines<'a>;
}

type Kept = Arc<Mutex<Vec<String>>>;

struct Foreign {
    timers: sqlite::Sqlite,
    kept: Kept,
    /// No transaction of a handler can begin.
    is_away: Arc<AtomicBool>,
    /// Starts are written, and nobody hears of that.
    loses_starts: Arc<AtomicBool>,
    /// How it writes outcomes, if it does not do so as others do.
    finishes: Option<Arc<Finishes>>,
}

/// Writes outcomes by this connection, in its way.
type Finishes = dyn Fn(&mut dyn Connection, &[Finish]) -> Result<Changed> + Send + Sync;

fn foreign() -> Foreign {
    let timers = sqlite::Sqlite::new(":memory:");
    let (is_away, loses_starts) = (Arc::default(), Arc::default());
    Foreign { timers, kept: Kept::default(), is_away, loses_starts, finishes: None }
}

impl Store for Foreign {
    fn connect(&self) -> Result<Box<dyn Connection>> {
        let (kept, is_away) = (Arc::clone(&self.kept), Arc::clone(&self.is_away));
        let (loses_starts, finishes) = (Arc::clone(&self.loses_starts), self.finishes.clone());
        let timers = self.timers.connect()?;
        Ok(Box::new(Link { timers, kept, is_away, loses_starts, finishes }))
    }

    fn migrate(&self) -> Result<()> {
        self.timers.migrate()
    }

    fn transactions(&self) -> Transactions {
        Transactions::of::<Lines<'static>>()
    }
}

struct Link {
    timers: Box<dyn Connection>,
    kept: Kept,
    is_away: Arc<AtomicBool>,
    loses_starts: Arc<AtomicBool>,
    finishes: Option<Arc<Finishes>>,
}

/// What is as in the other store.
macro_rules! delegate {
    ($(fn $name:ident(&mut self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => { $(
        fn $name(&mut self $(, $argument: $type)*) -> $result {
            self.timers.$name($($argument),*)
        }
    )* };
}

impl Table for Link {
    delegate! {
        fn schedule(&mut self, timers: &[NewTimer], existing: Existing) -> Result<Vec<Option<Scheduled>>>;
        fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>>;
        fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>>;
        fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>>;
        fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>>;
        fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64>;
    }
}

impl Connection for Link {
    delegate! {
        fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look>;
        fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed>;
        fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed>;
        fn counts(&mut self) -> Result<Vec<KindCounts>>;
    }

    fn now(&mut self) -> Result<SystemTime> {
        let is_away = self.is_away.load(Ordering::Relaxed);
        if is_away { Err(Error::unreachable("it is away")) } else { self.timers.now() }
    }

    fn start(&mut self, run: RunId, attempts: u32) -> Result<bool> {
        let started = self.timers.start(run, attempts)?;
        let is_lost = self.loses_starts.load(Ordering::Relaxed);
        if is_lost { Err(Error::unreachable("it was lost")) } else { Ok(started) }
    }

    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        match &self.finishes {
            Some(finishes) => finishes(&mut *self.timers, runs),
            None => self.timers.finish(runs),
        }
    }

    fn transact(
        &mut self,
        finish: &Finish,
        _: Duration,
        work: &mut Work<'_>,
    ) -> Result<Transacted> {
        if let Some(attempts) = work.start() {
            self.timers.start(finish.run, attempts)?;
        }
        if self.is_away.load(Ordering::Relaxed) {
            return Err(Error::unreachable("it is away"));
        }
        let mut lines = Vec::new();
        if !work.within::<Lines<'static>>(&mut Lines(&mut lines)) {
            return Ok(Transacted::Undone);
        }
        self.timers.finish(std::slice::from_ref(finish))?;
        self.kept.lock().expect("no panic").append(&mut lines);
        Ok(Transacted::Committed)
    }
}

/// Its connections do not tell which runs are still running, so the extension of the lease does.
#[test]
fn a_run_of_a_store_that_cannot_be_asked_learns_that_its_timer_is_gone() {
    let timers = Timers::with_store(foreign()).expect("it opens");
    let (begun, has_begun) = mpsc::channel();
    let worker = timers.worker().lease(LEASE).handle("mail", move |run| {
        _ = begun.send(());
        until("it is told", || !run.is_current());
        Ok(())
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    has_begun.recv_timeout(PATIENCE).expect("it runs");
    assert_eq!(timers.cancel("mail", "1").expect("no error"), Some(State::Running));
    until("it has ended", || worker.stats().lost == 1);
}

#[test]
fn a_foreign_type_of_transaction_needs_nothing_of_this_crate() {
    let kept = Kept::default();
    let store = Foreign { kept: Arc::clone(&kept), ..foreign() };
    let timers = Timers::with_store(store).expect("it opens");
    let worker =
        timers.worker().retry(quick(3)).handle_in::<Lines<'static>>("mail", |run, lines| {
            lines.0.push(format!("{} {}", run.key(), run.attempt()));
            if run.attempt() < 3 {
                Err("not yet".parse::<u8>().unwrap_err().into())
            } else {
                Ok(())
            }
        });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is done", || worker.stats().done == 1);
    assert_eq!(*kept.lock().expect("no panic"), ["1 3"]);
    assert!(worker.stop(PATIENCE));
    let worker = timers.worker().handle_in_sqlite("mail", |_, _| Ok(()));
    worker.start(Scheduler::global()).expect_err("this store has no such transactions");
    for limited in [
        timers.worker().handle("mail", |_| Ok(())).at_most_in_all(1),
        timers.worker().handle("mail", |_| Ok(())).rate(1, PATIENCE),
        timers.worker().handle("mail", |_| Ok(())).serial_by('/'),
    ] {
        let error = limited.start(Scheduler::global()).expect_err("this store keeps no limits");
        assert!(error.to_string().contains("Store::has_limits"), "{error}");
    }
    let worker = timers.worker().handle("mail", |_| Ok(())).history(PATIENCE);
    let error = worker.start(Scheduler::global()).expect_err("this store keeps no history");
    assert!(error.to_string().contains("keeps no history"), "{error}");
}

/// An attempt is a start of the handler. While the transaction cannot begin, no handler is called, however long that lasts.
#[test]
fn what_waits_for_its_transaction_beyond_its_time_limit_uses_up_no_attempt() {
    let (kept, is_away) = (Kept::default(), Arc::new(AtomicBool::new(true)));
    let store = Foreign { kept: Arc::clone(&kept), is_away: Arc::clone(&is_away), ..foreign() };
    let timers = Timers::with_store(store).expect("it opens");
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().retry(quick(1)).time_limit(Duration::from_millis(30));
    let worker = worker.on_error(move |error| _ = tell.send(error.to_string()));
    let worker = worker.handle_in::<Lines<'static>>("mail", |run, lines| {
        lines.0.push(format!("{} {}", run.key(), run.attempt()));
        Ok(())
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let mut stuck = 0;
    until("its time is over, again and again", || {
        stuck = worker.stats().stuck.max(stuck);
        worker.stats().released > 25 || worker.stats().dead > 0
    });
    // A thread whose run is over does not wait for the database any more, with the turn of another one.
    assert!(stuck <= 4, "{stuck}");
    is_away.store(false, Ordering::Relaxed);
    until("it is over", || worker.stats().done + worker.stats().dead > 0);
    assert_eq!(*kept.lock().expect("no panic"), ["1 1"]);
    let stats = worker.stats();
    assert_eq!((stats.done, stats.failed, stats.timed_out), (1, 0, 0), "{stats:?}");
    until("the others have come back", || worker.stats().stuck == 0);
    assert!(worker.stop(PATIENCE));
    let alarms: Vec<_> = told.try_iter().filter(|error| error.contains("time limit")).collect();
    assert!(alarms.is_empty(), "{alarms:?}");
}

/// The runs that have waited in an outage are gone. Nobody waits for its end any more, and it is told all the same, as is the next one.
#[test]
fn an_outage_in_which_all_runs_give_up_is_over_when_it_is() {
    let is_away = Arc::new(AtomicBool::new(false));
    let store = Foreign { is_away: Arc::clone(&is_away), ..foreign() };
    let timers = Timers::with_store(store).expect("it opens");
    let (tell, told) = mpsc::channel();
    let tell_of_end = tell.clone();
    let worker = timers.worker().time_limit(Duration::from_millis(30));
    let worker = worker.on_error(move |error| {
        // On a busy machine, the time of a run may be over before its first try.
        if matches!(error, Error::Unreachable(_)) {
            _ = tell.send("out");
        }
    });
    let worker = worker.on_recovery(move |_| _ = tell_of_end.send("over"));
    let worker = worker.handle_in::<Lines<'static>>("mail", |_, _| Ok(()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    for times in 1..=3 {
        is_away.store(true, Ordering::Relaxed);
        timers.schedule(&mail("1", NOW)).expect("scheduled");
        assert_eq!(told.recv_timeout(PATIENCE), Ok("out"), "{times}");
        timers.cancel("mail", "1").expect("no error");
        until("no run is left", || worker.stats().running + worker.stats().stuck == 0);
        is_away.store(false, Ordering::Relaxed);
        assert_eq!(told.recv_timeout(PATIENCE), Ok("over"), "{times}");
    }
    assert!(worker.stop(PATIENCE));
}

/// A pool for handlers in transactions is away, say. Others of the worker use the database in the meantime.
#[test]
fn an_outage_of_some_handlers_lasts_while_others_work() {
    let is_away = Arc::new(AtomicBool::new(true));
    let store = Foreign { is_away: Arc::clone(&is_away), ..foreign() };
    let timers = Timers::with_store(store).expect("it opens");
    let (tell, told) = mpsc::channel();
    let tell_of_end = tell.clone();
    let worker = timers.worker().on_error(move |error| _ = tell.send(error.to_string()));
    let worker = worker.on_recovery(move |_| _ = tell_of_end.send("over".to_owned()));
    let worker = worker.handle_in::<Lines<'static>>("mail", |_, _| Ok(()));
    let worker = worker.handle("plain", |_| Ok(())).retry(quick(1)); // each start is written
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let out = told.recv_timeout(PATIENCE).expect("it is told");
    for times in 1..=3 {
        timers.schedule(&NewTimer::new("plain", "1", NOW)).expect("scheduled");
        until("others work", || worker.stats().done == times);
    }
    is_away.store(false, Ordering::Relaxed);
    until("it is done", || worker.stats().done == 4);
    assert!(worker.stop(PATIENCE));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["over"], "{out}");
}

/// What is suspected is not given back, so that the next worker suspects it too. Its start was written, and did not happen.
#[test]
fn a_suspected_run_that_had_no_transaction_before_a_stop_uses_up_no_attempt() {
    let store = Foreign { is_away: Arc::new(AtomicBool::new(true)), ..foreign() };
    let mut dead = store.connect().expect("it connects");
    let timers = Timers::with_store(store).expect("it opens");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let claim = Claim::new("mail", "dead").lease(Duration::from_millis(1));
    assert_eq!(dead.claim(&claim).expect("a claim").timers.len(), 1);
    let worker = timers.worker().retry(quick(1)).on_error(|_| {});
    let worker = worker.handle_in::<Lines<'static>>("mail", |_, _| Ok(()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("it has tried", || worker.stats().taken_over == 1 && worker.stats().errors > 0);
    let attempts = || timers.get("mail", "1").expect("no error").expect("it is there").attempts;
    assert_eq!(attempts(), 1);
    assert!(worker.stop(PATIENCE));
    assert_eq!(attempts(), 0);
}

/// The same when a connection was lost that has written the start, so that nobody knows whether it has.
#[test]
fn a_suspected_run_whose_start_may_be_written_before_a_stop_uses_up_no_attempt() {
    let store = Foreign { loses_starts: Arc::new(AtomicBool::new(true)), ..foreign() };
    let loses_starts = Arc::clone(&store.loses_starts);
    let mut dead = store.connect().expect("it connects");
    let timers = Timers::with_store(store).expect("it opens");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let claim = Claim::new("mail", "dead").lease(Duration::from_millis(1));
    assert_eq!(dead.claim(&claim).expect("a claim").timers.len(), 1);
    // It is told by the thread that has lost the answer, before that waits for its next try.
    let (give, given) = mpsc::channel::<Worker>();
    let given = Mutex::new(given);
    let (tell, told) = mpsc::channel();
    let attempts_in =
        |timers: &Timers| timers.get("mail", "1").expect("no error").expect("it is there").attempts;
    let of_hook = timers.clone();
    let worker = timers.worker().retry(quick(1)).on_error(move |_| {
        let worker = given.lock().expect("no panic").recv().expect("it has started");
        assert_eq!(attempts_in(&of_hook), 1);
        loses_starts.store(false, Ordering::Relaxed);
        worker.stop(Duration::ZERO);
        _ = tell.send(worker);
    });
    let worker = worker.handle("mail", |_| Ok(())).start(Scheduler::global()).expect("it starts");
    _ = give.send(worker);
    let worker = told.recv_timeout(PATIENCE).expect("an answer was lost");
    assert!(worker.stop(PATIENCE));
    assert_eq!((attempts_in(&timers), worker.stats().taken_over), (0, 1));
}

/// Its outcomes are not written any more, so it must not keep its timers either.
#[test]
fn a_worker_that_can_write_no_outcome_leaves_its_timers_to_others() {
    let panics = AtomicBool::new(true);
    let finishes: Arc<Finishes> = Arc::new(move |timers, runs| {
        assert!(!panics.swap(false, Ordering::Relaxed), "a fault of the store");
        timers.finish(runs)
    });
    let store = Foreign { finishes: Some(finishes), ..foreign() };
    let timers = Timers::with_store(store).expect("it opens");
    let worker = || timers.worker().lease(Duration::from_millis(200)).handle("mail", |_| Ok(()));
    let first = worker().on_error(|_| {}).start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it has stopped", || first.stop_reason() == Some(StopReason::Panicked));
    let second = worker().start(Scheduler::global()).expect("it starts");
    until("the other has run it", || second.stats().done == 1);
    assert_eq!(first.wait(PATIENCE), Some(StopReason::Panicked));
    assert!(second.stop(PATIENCE));
}

/// A connection is lost when its outcomes are committed. They are sent again, and refused together, so each is sent by itself then.
#[test]
fn deaths_that_are_written_and_then_refused_are_told() {
    let step = AtomicU32::new(0);
    let finishes: Arc<Finishes> = Arc::new(move |timers, runs| {
        let is_over = step.load(Ordering::Relaxed) >= 2;
        if !is_over && runs.len() < 2 {
            return Ok(Changed::new(Vec::new(), runs.iter().map(|of| of.run.fence).collect()));
        }
        let written = timers.finish(runs)?;
        match step.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::unreachable("it was lost")),
            1 => Err(Error::refused("no")),
            _ => Ok(written),
        }
    });
    let timers = Timers::with_store(Foreign { finishes: Some(finishes), ..foreign() });
    let timers = timers.expect("it opens");
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().on_error(|_| {}).retry(quick(1));
    let worker = worker.on_dead(move |timer, _| _ = tell.send(timer.key.clone()));
    let worker = worker.handle("mail", |_| Err(Failure::new("no luck")));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule_all(&[mail("1", NOW), mail("2", NOW)]).expect("scheduled");
    let mut dead = [(); 2].map(|()| told.recv_timeout(PATIENCE).expect("it is told"));
    dead.sort_unstable();
    assert_eq!(dead, ["1", "2"]);
    assert!(worker.stop(PATIENCE));
    assert_eq!((worker.stats().dead, worker.stats().lost), (2, 0));
}

/// Two that are refused together are written by themselves, however many others there are each time.
#[test]
fn outcomes_that_are_refused_together_do_not_wait_for_an_end_of_the_others() {
    let finishes: Arc<Finishes> = Arc::new(|timers, runs| {
        let (dead, done): (Vec<_>, Vec<_>) =
            runs.iter().cloned().partition(|of| matches!(of.then, Then::Dead(_)));
        let mut written = timers.finish(&done)?;
        match dead.len() {
            1 => written.changed.extend(timers.finish(&dead)?.changed),
            0 => {}
            _ if written.changed.is_empty() => return Err(Error::refused("not together")),
            _ => written.busy.extend(dead.iter().map(|of| of.run.fence)),
        }
        Ok(written)
    });
    let timers = Timers::with_store(Foreign { finishes: Some(finishes), ..foreign() });
    let timers = timers.expect("it opens");
    let worker = timers.worker().on_error(|_| {}).retry(quick(1)).threads(8);
    let worker = worker.handle("mail", |_| Err(Failure::new("no luck")));
    let of_handler = timers.clone();
    let worker = worker.handle("chain", move |run| {
        let next = NewTimer::new("chain", run.fence().to_string(), NOW);
        of_handler.schedule(&next).map(drop).map_err(Into::into)
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let chains = (0..8).map(|n| NewTimer::new("chain", format!("{n} of all"), NOW));
    timers.schedule_all(&chains.collect::<Vec<_>>()).expect("scheduled");
    until("they follow each other", || worker.stats().done > 50);
    let dead: Vec<_> = (0..8).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&dead).expect("scheduled");
    until("all are dead", || worker.stats().dead == 8);
    assert!(worker.stop(PATIENCE));
}

/// Whoever has read the errors of a service may have gone: a collector of logs, or the other end of a pipe.
#[test]
fn errors_that_nobody_can_read_stop_no_worker() {
    const OWN: &str = "TICKWHEEL_NO_STDERR";
    if std::env::var_os(OWN).is_none() {
        let mut child = process_of(errors_that_nobody_can_read_stop_no_worker);
        child.env(OWN, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().expect("it starts");
        drop(child.stderr.take()); // before the child goes on, because its stdin has not ended
        let child = child.wait_with_output().expect("it ends");
        assert!(child.status.success(), "{:?}: {:?}", child.status, child.stdout);
        return;
    }
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    let is_away = Arc::new(AtomicBool::new(true));
    let store = Foreign { is_away: Arc::clone(&is_away), ..foreign() };
    let timers = Timers::with_store(store).expect("it opens");
    // Without a hook, errors are printed.
    let worker = timers.worker().handle_in::<Lines<'static>>("mail", |_, _| Ok(()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    until("it is told", || worker.stats().errors > 0);
    is_away.store(false, Ordering::Relaxed);
    until("it is done", || worker.stats().done == 1);
    assert!(worker.stop(PATIENCE));
}
