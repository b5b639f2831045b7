//! A store that lets its calls wait at a [`Gate`], so that a test can kill the process just there.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tickwheel_durable::{
    Attempt, Changed, Claim, Claimed, Connection, Existing, Filter, Finish, Listener, Look,
    NewTimer, Result, RunId, Scheduled, State, Store, Table, Timer, Transacted, Transactions, When,
    Work,
};

use super::process::{Gate, Point};

pub(crate) struct Holding {
    store: Box<dyn Store>,
    gate: Arc<Gate>,
}

impl Holding {
    pub(crate) fn new(store: Box<dyn Store>, gate: Arc<Gate>) -> Holding {
        Holding { store, gate }
    }
}

impl Store for Holding {
    fn connect(&self) -> Result<Box<dyn Connection>> {
        let (inner, gate) = (self.store.connect()?, Arc::clone(&self.gate));
        Ok(Box::new(Held { inner, gate }))
    }

    fn migrate(&self) -> Result<()> {
        self.store.migrate()
    }

    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        self.store.listen()
    }

    fn transactions(&self) -> Transactions {
        self.store.transactions()
    }
}

struct Held {
    inner: Box<dyn Connection>,
    gate: Arc<Gate>,
}

impl Table for Held {
    fn schedule(
        &mut self,
        timers: &[NewTimer],
        existing: Existing,
    ) -> Result<Vec<Option<Scheduled>>> {
        self.inner.schedule(timers, existing)
    }

    fn reset(&mut self, kind: &str, key: &str, when: When) -> Result<Option<SystemTime>> {
        self.inner.reset(kind, key, when)
    }

    fn cancel(&mut self, kind: &str, key: &str) -> Result<Option<State>> {
        self.inner.cancel(kind, key)
    }

    fn get(&mut self, kind: &str, key: &str) -> Result<Option<Timer>> {
        self.inner.get(kind, key)
    }

    fn list(&mut self, filter: &Filter) -> Result<Vec<Timer>> {
        self.inner.list(filter)
    }

    fn requeue(&mut self, kind: &str, key: Option<&str>, when: When) -> Result<u64> {
        self.inner.requeue(kind, key, when)
    }
}

impl Connection for Held {
    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn announce(&mut self) -> Result<()> {
        self.inner.announce()
    }

    fn has_changed(&mut self) -> Result<bool> {
        self.inner.has_changed()
    }

    fn now(&mut self) -> Result<SystemTime> {
        self.inner.now()
    }

    fn look(&mut self, kinds: &[&str], horizon: Duration, limit: u32) -> Result<Look> {
        self.inner.look(kinds, horizon, limit)
    }

    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed> {
        assert!(!self.gate.is_at(Point::Panic), "as it was told");
        self.gate.pass(Point::BeforeClaim);
        let claimed = self.inner.claim(claim)?;
        if !claimed.timers.is_empty() {
            self.gate.pass(Point::AfterClaim);
        }
        Ok(claimed)
    }

    fn start(&mut self, run: RunId, attempts: u32) -> Result<bool> {
        let started = self.inner.start(run, attempts)?;
        self.gate.pass(Point::AfterStart);
        Ok(started)
    }

    fn extend(&mut self, runs: &[RunId], lease: Duration) -> Result<Changed> {
        self.inner.extend(runs, lease)
    }

    fn finish(&mut self, runs: &[Finish]) -> Result<Changed> {
        self.gate.pass(Point::BeforeFinish);
        let kept = self.inner.finish(runs)?;
        self.gate.pass(Point::AfterFinish);
        Ok(kept)
    }

    fn transact(
        &mut self,
        finish: &Finish,
        limit: Duration,
        work: &mut Work<'_>,
    ) -> Result<Transacted> {
        let transacted = self.inner.transact(finish, limit, work)?;
        if transacted == Transacted::Committed {
            self.gate.pass(Point::AfterCommit);
        }
        Ok(transacted)
    }

    fn record(&mut self, attempts: &[Attempt]) -> Result<()> {
        self.inner.record(attempts)
    }

    fn counts(&mut self) -> Result<Vec<tickwheel_durable::KindCounts>> {
        self.inner.counts()
    }
}
