//! What the views ask of the databases: [`Sight`].
//!
//! - SIGHT-1 Looking is cheap, however many look. Counts and pace read whole tables, so all visitors share one answer of each
//!   database, which is used for as long as the setting says, and for ten times as long as it took. One thread asks for it, and never a
//!   second one. So these questions take at most a tenth of the time of one connection. Everything else is a page of an index.
//! - SIGHT-2 Each database is asked by itself, all at the same time. If some of several are away, what the others have is shown, with
//!   the reason why a part is missing. What is asked of one that is away fails. Numbers that are older than they should be, because
//!   a database does not answer, are shown with a warning.
//!
//! `source.rs` is one of the databases, and how long it is waited for (SIGHT-3).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::link::Query;
use crate::source::{Counted, Source, together};
use tickwheel_durable::{
    AsyncTimers, Attempt, Error, Filter, HistoryFilter, KindCounts, Pace, Timer, Timers,
};

/// The pictures show so much.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// In steps of this length.
pub(crate) const STEP: Duration = Duration::from_secs(60);

/// Why there is no answer. Unlike an error of the database, all who wait for the answer can have it.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    /// The request was wrong, and not the database.
    pub(crate) is_invalid: bool,
    pub(crate) words: String,
}

impl Failed {
    pub(crate) fn away(words: String) -> Failed {
        Failed { is_invalid: false, words }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { is_invalid: matches!(error, Error::Invalid(_)), words: error.to_string() }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failed>;

/// An answer, and why a part of it is missing (SIGHT-2).
#[derive(Clone)]
pub(crate) struct Answer<T> {
    pub(crate) of: T,
    pub(crate) missing: Option<String>,
}

impl<T> Answer<Vec<T>> {
    /// Puts the answers of all databases together.
    fn of_all(answers: Vec<Result<T>>) -> Result<Answer<Vec<T>>> {
        let (mut of, mut failed) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(answer) => of.push(answer),
                Err(error) => failed.push(error),
            }
        }
        let is_invalid = failed.iter().any(|of| of.is_invalid);
        let missing = (!failed.is_empty())
            .then(|| failed.into_iter().map(|of| of.words).collect::<Vec<_>>().join("; "));
        match missing {
            Some(words) if of.is_empty() => Err(Failed { is_invalid, words }),
            missing => Ok(Answer { of, missing }),
        }
    }
}

/// The whole at a moment, of all databases.
pub(crate) struct Whole {
    /// By the databases' clocks.
    pub(crate) now: SystemTime,
    pub(crate) counts: Vec<KindCounts>,
    pub(crate) pace: Vec<Pace>,
    /// Of the oldest part.
    pub(crate) age: Duration,
    /// It is older than it should be (SIGHT-2).
    pub(crate) is_old: bool,
}

pub(crate) struct Sight {
    all: AsyncTimers,
    each: Vec<Source>,
    keep: Duration,
}

impl Sight {
    pub(crate) fn new(timers: &Timers) -> Sight {
        let shards = timers.shards();
        let number = |number| (shards.len() > 1).then_some(number);
        let each = shards.iter().enumerate();
        let each = each.map(|(of, timers)| Source::new(timers, number(of))).collect();
        Sight { all: timers.asynchronous(), each, keep: Duration::from_secs(2) }
    }

    pub(crate) fn keep(&mut self, keep: Duration) {
        self.keep = keep;
    }

    /// Returns the database that a link names, or all, where the home of a timer is asked. It fails if it is away.
    pub(crate) fn timers_of(&self, query: &Query) -> Result<&AsyncTimers> {
        let (source, timers) = self.source_of(query);
        if query.get("key").is_some() {
            source.look()?; // what is of a whole kind is done where it can be
        }
        Ok(timers)
    }

    /// Returns the timer that a link names.
    pub(crate) async fn get(&self, query: &Query, kind: &str, key: &str) -> Result<Option<Timer>> {
        let (source, timers) = self.source_of(query);
        let (timers, kind, key) = (timers.clone(), kind.to_owned(), key.to_owned());
        source.ask(false, async move { timers.get(&kind, &key).await }).await
    }

    fn source_of(&self, query: &Query) -> (&Source, &AsyncTimers) {
        if let Some(one) = query.number("shard").and_then(|shard: usize| self.each.get(shard)) {
            return (one, &one.timers);
        }
        let name = |of| query.get(of).unwrap_or_default();
        let home = self.all.blocking().home(name("kind"), name("key"));
        (&self.each[home], &self.all)
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.each.len() > 1
    }

    /// Asks each database, all at the same time (SIGHT-2).
    async fn ask<T, F>(
        &self,
        is_search: bool,
        question: impl Fn(AsyncTimers) -> F,
    ) -> Result<Answer<Vec<T>>>
    where
        T: Send + 'static,
        F: Future<Output = tickwheel_durable::Result<T>> + Send + 'static,
    {
        let asked = self.each.iter().map(|of| of.ask(is_search, question(of.timers.clone())));
        Answer::of_all(together(asked).await)
    }

    /// Returns the database's time.
    pub(crate) async fn now(&self) -> Result<Answer<SystemTime>> {
        let Answer { of, missing } =
            self.ask(false, |timers| async move { timers.now().await }).await?;
        Ok(Answer { of: of.into_iter().min().unwrap_or_else(SystemTime::now), missing })
    }

    /// Returns the counts and the pace of the last hour, as they were a moment ago (SIGHT-1).
    pub(crate) async fn whole(&self) -> Result<Answer<Whole>> {
        let parts = together(self.each.iter().map(|of| of.counted(self.keep))).await;
        let Answer { of: parts, missing } = Answer::of_all(parts)?;
        let is_old = parts.iter().any(|(_, is_old)| *is_old);
        let parts: Vec<Arc<Counted>> = parts.into_iter().map(|(part, _)| part).collect();
        let age = |of: &Arc<Counted>| of.read.elapsed();
        let now = parts.iter().map(|of| of.now + age(of)).min();
        let whole = Whole {
            now: now.unwrap_or_else(SystemTime::now),
            counts: KindCounts::summed(parts.iter().flat_map(|of| of.counts.iter().cloned())),
            pace: parts.iter().flat_map(|of| of.pace.iter().cloned()).collect(),
            age: parts.iter().map(age).max().unwrap_or_default(),
            is_old,
        };
        Ok(Answer { of: whole, missing })
    }

    /// Returns timers in the order of the list, and the next page if there is one.
    pub(crate) async fn list(&self, filter: &Filter) -> Result<Answer<Vec<Timer>>> {
        let question = |timers: AsyncTimers| {
            let filter = filter.clone();
            async move { timers.list(&filter).await }
        };
        let Answer { of, missing } = self.ask(filter.key_prefix.is_some(), question).await?;
        Ok(Answer { of: filter.merged(of), missing })
    }

    /// Returns attempts, the newest first.
    pub(crate) async fn history(&self, filter: &HistoryFilter) -> Result<Answer<Vec<Attempt>>> {
        let question = |timers: AsyncTimers| {
            let filter = filter.clone();
            async move { timers.history(&filter).await }
        };
        let Answer { of, missing } = self.ask(false, question).await?;
        Ok(Answer { of: filter.merged(of), missing })
    }
}

impl fmt::Debug for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
    }
}
