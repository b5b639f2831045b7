//! One database, as the page asks it: [`Source`].
//!
//! - SIGHT-3 A visitor waits for no question longer than [`LIMIT`]. A question whose visitor does not wait any more, or has gone away,
//!   cannot be taken back: it keeps a connection until it is answered. So it is left here. While one of them is older than the
//!   limit the database is away, and while [`MOST_LEFT`] are here it is busy: then it is asked nothing, and visitors are told so at once. So
//!   reloads of a page whose database is slow or frozen do not take the connections of the service. A search may read a whole table, so
//!   one that is old says nothing of the database: it counts among those that are here, and no more.
//!
//! What is counted is asked by a thread that no visitor owns, so a visitor who goes away starts no second one (SIGHT-1):
//!
//! ```text
//!             a visitor finds `kept` too old           the thread has an answer, or an error
//! since: None ───────────────────────────────▶ Some(begin) ─────────────────────────────────▶ None, `kept` is new
//! ```

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{AsyncTimers, Error, KindCounts, Pace, Timers};

use crate::sight::{Failed, HOUR, Result, STEP};
use crate::times::span;

/// A visitor waits so long for a question.
const LIMIT: Duration = Duration::from_secs(3);
/// And so long for the first counts of a page, which read whole tables, because there are no older ones to show.
const FIRST: Duration = Duration::from_secs(10);
/// So many questions without a visitor make a database busy.
const MOST_LEFT: usize = 3;
/// An error is told for so long before it is tried again.
const FAILURE: Duration = Duration::from_secs(2);

type Question<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) struct Source {
    pub(crate) timers: AsyncTimers,
    /// Its number, of several.
    number: Option<usize>,
    /// Questions that nobody waits for (SIGHT-3).
    left: Mutex<Vec<Left>>,
    counting: Arc<Mutex<Counting>>,
}

struct Left {
    begin: Instant,
    is_search: bool,
    question: Question<()>,
}

/// What a database has, at a moment.
pub(crate) struct Counted {
    /// The database's time at `read`.
    pub(crate) now: SystemTime,
    pub(crate) counts: Vec<KindCounts>,
    pub(crate) pace: Vec<Pace>,
    pub(crate) read: Instant,
    took: Duration,
}

/// The last answer of the counting thread, and whether it is counting.
#[derive(Default)]
struct Counting {
    kept: Option<(Instant, Result<Arc<Counted>>)>,
    since: Option<Instant>,
    wakers: Vec<Waker>,
}

impl Source {
    pub(crate) fn new(timers: &Timers, number: Option<usize>) -> Source {
        let timers = timers.asynchronous();
        Source { timers, number, left: Mutex::default(), counting: Arc::default() }
    }

    /// Asks a question (SIGHT-3).
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        is_search: bool,
        question: impl Future<Output = tickwheel_durable::Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.look()?;
        let question = Some(Box::pin(question) as Question<tickwheel_durable::Result<T>>);
        let asked = Asked { of: self, begin: Instant::now(), is_search, question };
        match Scheduler::global().timeout(LIMIT, asked).await {
            Ok(answer) => answer.map_err(Failed::from),
            Err(_) if is_search => Err(Failed::away(format!(
                "the search has not ended within {}: give the kind, or more of the key",
                span(LIMIT)
            ))),
            Err(_) => Err(self.silence(LIMIT)),
        }
    }

    /// Fails if the database is away or busy (SIGHT-3).
    pub(crate) fn look(&self) -> Result<()> {
        let mut left = locked(&self.left);
        // Nobody is woken when one is answered: whoever comes next finds it so.
        let mut context = Context::from_waker(Waker::noop());
        left.retain_mut(|of| of.question.as_mut().poll(&mut context).is_pending());
        let is_old = |of: &Left| !of.is_search && of.begin.elapsed() > LIMIT;
        if left.len() < MOST_LEFT && !left.iter().any(is_old) {
            return Ok(());
        }
        let ages = left.iter().map(|of| of.begin.elapsed());
        Err(self.silence(ages.max().unwrap_or_default()))
    }

    fn silence(&self, lasts: Duration) -> Failed {
        let number = self.number.map(|number| format!(" number {number}")).unwrap_or_default();
        let lasts = span(lasts);
        Failed::away(format!(
            "the database{number} is away, frozen or busy: it has not answered a question of this page for {lasts}"
        ))
    }

    /// Returns the counts and the pace, and true if they are older than they should be, because the database does not answer.
    pub(crate) async fn counted(&self, keep: Duration) -> Result<(Arc<Counted>, bool)> {
        let begin = {
            let mut counting = locked(&self.counting);
            if let Some((at, kept)) = &counting.kept {
                let (age, rest) = match kept {
                    // A tenth of a connection (SIGHT-1).
                    Ok(last) => (last.read.elapsed(), keep.max(10 * last.took)),
                    Err(_) => (at.elapsed(), keep.min(FAILURE)),
                };
                // The others take what is there while one waits for what is new, unless it is much too old.
                let is_soon_new = kept.is_ok() && counting.since.is_some() && age < rest + LIMIT;
                if age < rest || is_soon_new {
                    return kept.clone().map(|last| (last, false));
                }
            }
            let begin = match counting.since {
                Some(begin) => begin,
                None => self.count()?,
            };
            counting.since = Some(begin);
            begin
        };
        let is_counted = poll_fn(|context| {
            let mut counting = locked(&self.counting);
            if counting.since != Some(begin) {
                return Poll::Ready(());
            }
            if !counting.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                counting.wakers.push(context.waker().clone());
            }
            Poll::Pending
        });
        let limit = if locked(&self.counting).last().is_some() { LIMIT } else { FIRST };
        let left = limit.saturating_sub(begin.elapsed());
        // Whoever comes later than that leaves no waker here.
        let is_late =
            left.is_zero() || Scheduler::global().timeout(left, is_counted).await.is_err();
        let counting = locked(&self.counting);
        match &counting.kept {
            Some((_, kept)) if !is_late => kept.clone().map(|last| (last, false)),
            Some((_, Ok(last))) => Ok((Arc::clone(last), true)),
            _ => Err(self.silence(begin.elapsed())),
        }
    }

    /// Starts a thread that counts, and returns when that was. The caller has the lock of `counting`, so there is one.
    fn count(&self) -> Result<Instant> {
        let (timers, counting) = (self.timers.blocking().clone(), Arc::clone(&self.counting));
        let count = move || {
            let counting = EndsCounting(counting);
            let counted = Counted::of(&timers).map(Arc::new).map_err(Failed::from);
            locked(&counting.0).kept = Some((Instant::now(), counted));
        };
        let thread = thread::Builder::new().name("tickwheel-page".to_owned()).spawn(count);
        thread.map_err(|error| Failed::away(format!("no thread can be started: {error}")))?;
        Ok(Instant::now())
    }
}

impl Counted {
    fn of(timers: &Timers) -> tickwheel_durable::Result<Counted> {
        let begin = Instant::now();
        let (now, read) = (timers.now()?, Instant::now());
        let (counts, pace) = (timers.counts()?, timers.pace(HOUR, STEP)?);
        Ok(Counted { now, counts, pace, read, took: begin.elapsed() })
    }
}

impl Counting {
    fn last(&self) -> Option<&Arc<Counted>> {
        self.kept.as_ref().and_then(|(_, kept)| kept.as_ref().ok())
    }
}

/// The counting thread ends, also by a panic: those who wait look what there is.
struct EndsCounting(Arc<Mutex<Counting>>);

impl Drop for EndsCounting {
    fn drop(&mut self) {
        let mut counting = locked(&self.0);
        counting.since = None;
        let wakers = std::mem::take(&mut counting.wakers);
        drop(counting);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A question and its visitor. What is not answered when the visitor goes is left behind.
struct Asked<'a, T: Send + 'static> {
    of: &'a Source,
    begin: Instant,
    is_search: bool,
    /// `None`: it is answered.
    question: Option<Question<T>>,
}

impl<T: Send + 'static> Future for Asked<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(question) = &mut self.question else { return Poll::Pending };
        let answer = std::task::ready!(question.as_mut().poll(context));
        self.question = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for Asked<'_, T> {
    fn drop(&mut self) {
        if let Some(question) = self.question.take() {
            let question = Box::pin(async move { drop(question.await) });
            let (begin, is_search) = (self.begin, self.is_search);
            locked(&self.of.left).push(Left { begin, is_search, question });
        }
    }
}

/// Waits for all of them at the same time.
pub(crate) async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.into_iter().map(|of| (Box::pin(of), None)).collect();
    poll_fn(move |context| {
        for (future, answer) in &mut all {
            if answer.is_none() {
                if let Poll::Ready(ready) = future.as_mut().poll(context) {
                    *answer = Some(ready);
                }
            }
        }
        if all.iter().any(|(_, answer)| answer.is_none()) {
            return Poll::Pending;
        }
        Poll::Ready(all.drain(..).filter_map(|(_, answer)| answer).collect())
    })
    .await
}

/// Limits the time of what changes something, which may be long: all dead timers of a kind are requeued in one transaction.
pub(crate) async fn acted<T>(
    action: impl Future<Output = tickwheel_durable::Result<T>>,
) -> tickwheel_durable::Result<T> {
    const LONGEST: Duration = Duration::from_secs(30);
    match Scheduler::global().timeout(LONGEST, action).await {
        Ok(done) => done,
        Err(_) => Err(Error::Unreachable(
            "it has not answered for 30 s. What was asked for may be done, or be done later: look before you repeat it".into(),
        )),
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// A question that is never answered, and whose visitor goes away at once.
    fn leave(source: &Source, is_search: bool) {
        let mut asked = Box::pin(source.ask::<()>(is_search, pending()));
        assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    #[test]
    fn a_long_search_says_nothing_of_the_database() {
        let timers = Timers::open("sqlite::memory:").unwrap();
        let long_ago = || Instant::now().checked_sub(LIMIT * 2).unwrap();
        let grow_old = |source: &Source| {
            locked(&source.left).iter_mut().for_each(|of| of.begin = long_ago());
        };
        let source = Source::new(&timers, None);
        leave(&source, true);
        grow_old(&source);
        assert!(source.look().is_ok());
        leave(&source, false);
        assert!(source.look().is_ok());
        grow_old(&source);
        assert!(source.look().unwrap_err().words.contains("has not answered"));

        // Many of them are too many all the same.
        let source = Source::new(&timers, None);
        for _ in 0..MOST_LEFT {
            assert!(source.look().is_ok());
            leave(&source, true);
        }
        assert!(source.look().is_err());
    }
}
