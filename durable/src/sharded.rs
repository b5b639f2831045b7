//! Several stores as one: which of them a timer is on, how their answers become one, and what their errors say.
//!
//! The stores have a fixed order, and a timer's **home** is the one that [`home`] chooses by the timer's kind and key. Nothing is
//! agreed upon between the stores, and none of them knows of the others. Each has connections, threads and a worker of its own,
//! so one that is away holds up nothing of the others.
//!
//! - HOME-1 The home depends on the number of stores, the kind and the key alone, and never changes with versions of this crate.
//!   So processes and languages that have the same list of stores agree.
//! - HOME-2 A call by key uses the store that has the timer and no other, or with
//!   [`search_all`](crate::OpenOptions::search_all) the first that has it, beginning at the home.
//! - HOME-3 A call over all stores makes its call on each of them, whatever becomes of the others, and fails if one has failed.
//! - HOME-4 A list is in the order of kind, `wake`, number and store. So each timer has a place of its own in it, also if two
//!   stores have the same number, and a page goes on behind that place.
//!   The same goes for a history, which is in the order of start and number, the last first, and of the store.
//! - HOME-5 A store is prepared, which means migrated or checked, before it is used. One that is away when it is opened is
//!   prepared when it is used first.
//! - HOME-6 What opens the stores, or starts a worker, ends a second after the first of them has answered. The others count as
//!   away then, whether they are silent or full, and their parts of the worker go on by themselves.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::history::{Attempt, HistoryFilter, Pace};
use crate::store::{Connection, Finish, Listener, Purpose, Store, Transactions};
use crate::timer::{Filter, Timer};

/// Returns the home of a timer (HOME-1): of so many stores the one whose number has the highest hash with its name.
pub(crate) fn home(stores: usize, kind: &str, key: &str) -> usize {
    #[cfg(feature = "postgres")]
    if stores > 1 {
        use sha2::{Digest, Sha256};
        let hash = |store: &usize| Sha256::digest(format!("{store}/{kind}/{key}"));
        return (0..stores).max_by_key(hash).unwrap_or(0);
    }
    _ = (stores, kind, key);
    0
}

/// A store's place among others.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) number: usize,
    pub(crate) name: String,
}

impl Place {
    /// Names the store in an error of it. What is wrong with the call itself is no matter of the store.
    pub(crate) fn named(&self, error: Error) -> Error {
        match error {
            Error::Invalid(_) | Error::Shards(_) => error,
            error => self.failed(error),
        }
    }

    fn failed(&self, error: Error) -> Error {
        let (shard, name) = (self.number, self.name.clone());
        Error::Shards(vec![ShardError { shard, name, error }])
    }
}

/// The error of one of several stores, which were opened with `Timers::sharded`.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShardError {
    /// Its position in the list.
    pub shard: usize,
    /// Where it is, without a password: [`Store::name`].
    pub name: String,
    /// What is the matter with it.
    pub error: Error,
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShardError { shard, name, error } = self;
        write!(f, "the shard {shard} ({name}): {error}")
    }
}

impl std::error::Error for ShardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Returns the answers of all, or the errors of all that have failed (HOME-3).
pub(crate) fn all<T>(answers: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(answer) => done.push(answer),
            Err(Error::Shards(of)) => {
                // A store that was asked twice is named once.
                let is_named =
                    |one: &ShardError| failed.iter().any(|of: &ShardError| of.shard == one.shard);
                let new: Vec<_> = of.into_iter().filter(|one| !is_named(one)).collect();
                failed.extend(new);
            }
            Err(error) => return Err(error),
        }
    }
    if failed.is_empty() { Ok(done) } else { Err(Error::Shards(failed)) }
}

/// Returns the part of a filter that is for one of the stores (HOME-4).
pub(crate) fn part_of(filter: &Filter, number: usize) -> Filter {
    let mut part = filter.clone();
    if let Some(last) = part.after.as_mut().filter(|last| last.shard < number) {
        last.id = last.id.saturating_sub(1); // one with the same number comes behind it
    }
    part
}

impl Filter {
    /// Makes one list of those that several stores have returned for this filter, in the order in which
    /// [`Timers::list`](crate::Timers::list) returns it: for those who ask each of the [shards](crate::Timers::shards) by itself.
    pub fn merged(&self, lists: impl IntoIterator<Item = Vec<Timer>>) -> Vec<Timer> {
        let mut all: Vec<_> = lists.into_iter().flatten().collect();
        // HOME-4. Those that wake never are dead, and come last.
        all.sort_by(|a, b| {
            let place = |timer: &Timer| (timer.wake.is_none(), timer.wake, timer.id, timer.shard);
            a.kind.cmp(&b.kind).then_with(|| place(a).cmp(&place(b)))
        });
        all.truncate(self.limit as usize);
        all
    }
}

/// Returns the part of a filter of attempts that is for one of the stores (HOME-4).
pub(crate) fn part_of_history(filter: &HistoryFilter, number: usize) -> HistoryFilter {
    let mut part = filter.clone();
    if let Some(last) = part.before.as_mut().filter(|last| last.shard < number) {
        last.id = last.id.saturating_add(1); // one with the same number comes behind it
    }
    part
}

impl HistoryFilter {
    /// Makes one history of those that several stores have returned for this filter, in the order in which
    /// [`Timers::history`](crate::Timers::history) returns it: for those who ask each of the [shards](crate::Timers::shards) by itself.
    pub fn merged(&self, lists: impl IntoIterator<Item = Vec<Attempt>>) -> Vec<Attempt> {
        let mut all: Vec<_> = lists.into_iter().flatten().collect();
        all.sort_by_key(|of| (Reverse((of.started, of.id)), of.shard)); // HOME-4
        all.truncate(self.limit as usize);
        all
    }
}

/// Returns the paces of all stores together.
pub(crate) fn added(paces: Vec<Vec<Pace>>) -> Vec<Pace> {
    let mut steps = BTreeMap::<(String, SystemTime), Pace>::new();
    for pace in paces.into_iter().flatten() {
        let step = steps.entry((pace.kind.clone(), pace.at));
        step.and_modify(|sum| sum.add(&pace)).or_insert(pace);
    }
    steps.into_values().collect()
}

/// What makes a store ready for use: `Store::migrate` or `Store::check`.
pub(crate) type Prepare = fn(&dyn Store) -> Result<()>;

/// A store that is prepared when it is used first (HOME-5).
pub(crate) struct Prepared {
    store: Box<dyn Store>,
    place: Option<Place>,
    prepare: Prepare,
    /// It orders nothing: to prepare it twice does no harm. So its accesses are Relaxed.
    is_ready: AtomicBool,
}

impl Prepared {
    pub(crate) fn new(store: Box<dyn Store>, place: Option<Place>, prepare: Prepare) -> Prepared {
        Prepared { store, place, prepare, is_ready: AtomicBool::new(false) }
    }

    fn ready(&self) -> Result<&dyn Store> {
        if !self.is_ready.load(Ordering::Relaxed) {
            (self.prepare)(&*self.store).map_err(|error| match (&self.place, error) {
                // It is the store that is invalid here, and not a call.
                (Some(place), error @ Error::Invalid(_)) => place.failed(error),
                (_, error) => error,
            })?;
            self.is_ready.store(true, Ordering::Relaxed);
        }
        Ok(&*self.store)
    }
}

impl Store for Prepared {
    fn name(&self) -> String {
        self.store.name()
    }

    fn connect(&self) -> Result<Box<dyn Connection>> {
        self.ready()?.connect()
    }

    fn connect_for(&self, purpose: Purpose) -> Result<Box<dyn Connection>> {
        self.ready()?.connect_for(purpose)
    }

    fn migrate(&self) -> Result<()> {
        self.ready().map(drop)
    }

    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        self.ready()?.listen()
    }

    fn completion(&self, finish: &Finish) -> Option<String> {
        self.store.completion(finish)
    }

    fn has_limits(&self) -> bool {
        self.store.has_limits()
    }

    fn transactions(&self) -> Transactions {
        self.store.transactions()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The table on the first page of the documentation.
    #[cfg(feature = "postgres")]
    #[test]
    fn homes_are_as_documented() {
        for (kind, key, homes) in [
            ("mail", "1", [0, 0, 6]),
            ("mail", "2", [1, 1, 3]),
            ("mail", "", [1, 2, 6]),
            ("cancel order", "4711", [1, 2, 3]),
            ("Zahlung", "Käse/7", [0, 0, 0]),
            ("a/b", "c", [1, 2, 6]),
        ] {
            assert_eq!([2, 3, 8].map(|stores| home(stores, kind, key)), homes, "{kind} {key}");
            assert_eq!(home(1, kind, key), 0);
        }
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn homes_are_spread_evenly_and_stay_when_a_store_is_added() {
        const KEYS: usize = 4000;
        for stores in [2, 3, 16] {
            let mut counts = vec![0_usize; stores];
            let mut moved = 0;
            for key in 0..KEYS {
                let key = key.to_string();
                let at = home(stores, "mail", &key);
                counts[at] += 1;
                let after = home(stores + 1, "mail", &key);
                assert!(after == at || after == stores, "it moves to the new one alone");
                moved += usize::from(after != at);
            }
            // Five standard deviations of what is drawn at random are less.
            let is_near = |count: usize, share: usize| count.abs_diff(share) < 5 * share.isqrt();
            assert!(counts.iter().all(|count| is_near(*count, KEYS / stores)), "{counts:?}");
            assert!(is_near(moved, KEYS / (stores + 1)), "{stores}: {moved}");
        }
    }

    fn timer(kind: &str, wake: Option<u64>, id: i64, shard: usize) -> Timer {
        let wake = wake.map(|wake| SystemTime::UNIX_EPOCH + Duration::from_secs(wake));
        Timer { wake, shard, ..Timer::new(id, kind, "", SystemTime::UNIX_EPOCH) }
    }

    #[test]
    fn pages_leave_out_no_timer_and_repeat_none() {
        // Equal times and numbers on all stores, and dead ones.
        let mut stores: Vec<Vec<Timer>> = (0..3)
            .map(|shard| {
                let of = |kind, wake| (1..4).map(move |id| timer(kind, wake, id, shard));
                of("a", Some(1)).chain(of("a", None)).chain(of("b", Some(0))).collect()
            })
            .collect();
        stores[1].remove(1);
        let total: usize = stores.iter().map(Vec::len).sum();
        let place = |of: &Timer| (of.kind.clone(), of.wake.is_none(), of.wake, of.id);
        let on_shard = |filter: &Filter, shard: usize| -> Vec<Timer> {
            let part = part_of(filter, shard);
            let is_behind =
                |of: &&Timer| part.after.as_ref().is_none_or(|last| place(of) > place(last));
            stores[shard].iter().filter(is_behind).take(part.limit as usize).cloned().collect()
        };
        for limit in 1..=5 {
            let mut filter = Filter::new().limit(limit);
            let mut seen = Vec::new();
            loop {
                let page = filter.merged((0..3).map(|shard| on_shard(&filter, shard)));
                let Some(last) = page.last() else { break };
                filter = filter.after(last);
                seen.extend(page);
            }
            let places: Vec<_> = seen.iter().map(|of| (place(of), of.shard)).collect();
            assert!(places.is_sorted_by(|a, b| a < b), "{limit}: {places:?}");
            assert_eq!(seen.len(), total, "{limit}");
        }
    }
}
