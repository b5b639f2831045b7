//! What the views ask of the databases: [`Sight`].
//!
//! - SIGHT-1 Looking is cheap, however many look. Counts and pace read whole tables, so all visitors share one answer, which is
//!   used for as long as the setting says, and for ten times as long as it took. So these questions take at most a tenth of the
//!   time of one connection. Everything else is a page of an index.
//! - SIGHT-2 If some of several databases are away, what the others have is shown, with the reason why a part is missing. What is
//!   asked of one that is away fails.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::link::Query;
use tickwheel_durable::{
    AsyncTimers, Attempt, Error, Filter, HistoryFilter, KindCounts, Pace, Result, Timer, Timers,
};

/// The pictures show so much.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// In steps of this length.
pub(crate) const STEP: Duration = Duration::from_secs(60);

/// An answer, and why a part of it is missing (SIGHT-2).
#[derive(Clone)]
pub(crate) struct Answer<T> {
    pub(crate) of: T,
    pub(crate) missing: Option<String>,
}

/// The whole at a moment.
pub(crate) struct Whole {
    /// By the database's clock, when it was read.
    now: SystemTime,
    pub(crate) counts: Vec<KindCounts>,
    pub(crate) pace: Vec<Pace>,
    read: Instant,
    took: Duration,
}

impl Whole {
    /// Returns the database's time now.
    pub(crate) fn now(&self) -> SystemTime {
        self.now + self.age()
    }

    pub(crate) fn age(&self) -> Duration {
        self.read.elapsed()
    }
}

pub(crate) struct Sight {
    all: AsyncTimers,
    each: Vec<AsyncTimers>,
    keep: Duration,
    whole: Mutex<Cached>,
}

#[derive(Default)]
struct Cached {
    last: Option<Answer<Arc<Whole>>>,
    is_asked: bool,
}

impl Sight {
    pub(crate) fn new(timers: &Timers) -> Sight {
        let each = timers.shards().iter().map(Timers::asynchronous).collect();
        let keep = Duration::from_secs(2);
        Sight { all: timers.asynchronous(), each, keep, whole: Mutex::default() }
    }

    pub(crate) fn keep(&mut self, keep: Duration) {
        self.keep = keep;
    }

    /// Returns the database that a link names, or all, where the home of a timer is asked.
    pub(crate) fn timers_of(&self, query: &Query) -> &AsyncTimers {
        let one = query.number("shard").and_then(|shard: usize| self.each.get(shard));
        one.unwrap_or(&self.all)
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.each.len() > 1
    }

    /// Asks all databases in one call, and if some of them are away, each of the others by itself.
    async fn ask<T, F: Future<Output = Result<T>>>(
        &self,
        question: impl Fn(AsyncTimers) -> F,
    ) -> Result<Answer<Vec<T>>> {
        let error = match question(self.all.clone()).await {
            Ok(one) => return Ok(Answer { of: vec![one], missing: None }),
            Err(error) => error,
        };
        let Error::Shards(failed) = &error else { return Err(error) };
        let mut of = Vec::new();
        for (number, one) in self.each.iter().enumerate() {
            if failed.iter().all(|failed| failed.shard != number) {
                of.extend(question(one.clone()).await);
            }
        }
        if of.is_empty() { Err(error) } else { Ok(Answer { of, missing: Some(error.to_string()) }) }
    }

    /// Returns the database's time.
    pub(crate) async fn now(&self) -> Result<Answer<SystemTime>> {
        let Answer { of, missing } = self.ask(|timers| async move { timers.now().await }).await?;
        Ok(Answer { of: of.into_iter().min().unwrap_or_else(SystemTime::now), missing })
    }

    /// Returns the counts and the pace of the last hour, as they were a moment ago (SIGHT-1).
    pub(crate) async fn whole(&self) -> Result<Answer<Arc<Whole>>> {
        // One visitor asks anew, and the others take what is there in the meantime.
        let _asked = match self.last_or_ask() {
            Ok(last) => return Ok(last),
            Err(asked) => asked,
        };
        let begin = Instant::now();
        let now = self.now().await?;
        let counts = self.ask(|timers| async move { timers.counts().await }).await?;
        let pace = self.ask(|timers| async move { timers.pace(HOUR, STEP).await }).await?;
        let missing = now.missing.or(counts.missing).or(pace.missing);
        let whole = Whole {
            now: now.of,
            counts: summed(counts.of),
            pace: pace.of.into_iter().flatten().collect(),
            read: Instant::now(),
            took: begin.elapsed(),
        };
        let answer = Answer { of: Arc::new(whole), missing };
        self.cached().last = Some(answer.clone());
        Ok(answer)
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last answer if it is still good, or somebody asks already. Otherwise the caller has to ask.
    fn last_or_ask(&self) -> std::result::Result<Answer<Arc<Whole>>, Asked<'_>> {
        let mut cached = self.cached();
        let is_good = |last: &Answer<Arc<Whole>>| {
            // One that waited for a database that is away has not kept the others busy, and is to end when that one is back.
            let rest = if last.missing.is_none() { 10 * last.of.took } else { Duration::ZERO };
            last.of.age() < self.keep.max(rest)
        };
        if let Some(last) = cached.last.as_ref().filter(|last| cached.is_asked || is_good(last)) {
            return Ok(last.clone());
        }
        cached.is_asked = true;
        Err(Asked(self))
    }

    /// Returns timers in the order of the list, and the next page if there is one.
    pub(crate) async fn list(&self, filter: &Filter) -> Result<Answer<Vec<Timer>>> {
        let limit = filter.limit as usize;
        let question = |timers: AsyncTimers| async move { timers.list(filter).await };
        let Answer { of, missing } = self.ask(question).await?;
        let is_in_order = of.len() == 1;
        let mut of: Vec<Timer> = of.into_iter().flatten().collect();
        if !is_in_order {
            let place = |of: &Timer| (of.kind.clone(), of.wake.is_none(), of.wake, of.id, of.shard);
            of.sort_by_cached_key(place);
            of.truncate(limit);
        }
        Ok(Answer { of, missing })
    }

    /// Returns attempts, the newest first.
    pub(crate) async fn history(&self, filter: &HistoryFilter) -> Result<Answer<Vec<Attempt>>> {
        let limit = filter.limit as usize;
        let question = |timers: AsyncTimers| async move { timers.history(filter).await };
        let Answer { of, missing } = self.ask(question).await?;
        let is_in_order = of.len() == 1;
        let mut of: Vec<Attempt> = of.into_iter().flatten().collect();
        if !is_in_order {
            of.sort_by_key(|of| std::cmp::Reverse((of.started, of.id, of.shard)));
            of.truncate(limit);
        }
        Ok(Answer { of, missing })
    }
}

impl fmt::Debug for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
    }
}

/// A visitor asks for the whole. Its end says that nobody does, also if the visitor has gone away in the middle.
struct Asked<'a>(&'a Sight);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.cached().is_asked = false;
    }
}

fn summed(counts: Vec<Vec<KindCounts>>) -> Vec<KindCounts> {
    let mut kinds = BTreeMap::<String, KindCounts>::new();
    for of in counts.into_iter().flatten() {
        let sum = kinds.entry(of.kind.clone()).or_insert_with(|| KindCounts::new(&*of.kind));
        sum.waiting += of.waiting;
        sum.retrying += of.retrying;
        sum.running += of.running;
        sum.dead += of.dead;
        sum.lag = sum.lag.max(of.lag);
    }
    kinds.into_values().collect()
}
