//! The connections of a store that was opened: how many there are, who gets one, and who waits.
//!
//! A call takes a connection that is idle, or opens one if there are not too many. Otherwise it waits until another call
//! gives one back. The parts of workers, and handlers in transactions, take connections in the same way and never wait, because
//! there are few of them. What opens a store or starts a worker waits for room on the server as long as a call does.
//!
//! PostgreSQL's client waits with a tokio runtime of its own, which panics inside of another one. So where a runtime is in
//! sight, and for futures, a call is a message to one of the pool's threads, which makes it, and answers. No thread is
//! started for a call. A thread, and a connection, that nobody has used for [`IDLE`] ends.
//!
//! - POOL-1 Of the connections that calls have now, there are at most `max_connections`, and as many threads.
//! - POOL-2 A call that gives its connection back wakes one that waits. One that is woken looks before it gives up, even if
//!   its time is over, so no wake-up is lost.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::store::{Connection, Purpose, Store};
use tickwheel::pool::{JoinError, ScheduledFuture, ScheduledThreadPool};

/// A connection that nobody has used for so long is closed, and so ends a thread.
const IDLE: Duration = Duration::from_secs(10);

/// How often the server is asked again that has refused another connection.
const REFUSED: Duration = Duration::from_millis(50);

/// How long a call waits for a thread at least: one that has nothing to do wakes within that.
const HAND_OVER: Duration = Duration::from_millis(100);

/// How many connections calls may have, and how long they wait for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_connections: usize,
    pub(crate) timeout: Duration,
}

impl Limits {
    /// Returns how long a call that was sent to a thread waits until it is taken back.
    pub(crate) fn hand_over(self) -> Duration {
        self.timeout.max(HAND_OVER)
    }

    pub(crate) fn too_many(self) -> Error {
        let Limits { max_connections, timeout } = self;
        Error::TooManyClients(
            format!(
                "all {max_connections} connections of these timers were in use for {timeout:?}: raise \
                 `OpenOptions::max_connections`, or `acquire_timeout`"
            )
            .into(),
        )
    }
}

pub(crate) struct Connections {
    store: Box<dyn Store>,
    limits: Limits,
    places: Mutex<Places>,
    /// A call has given back its connection, or the right to have one.
    has_come_back: Condvar,
    threads: ScheduledThreadPool,
}

#[derive(Default)]
struct Places {
    /// In the order in which they were given back.
    idle: Vec<Idle>,
    /// How many connections calls have now (POOL-1).
    calls: usize,
    /// The server has refused another connection, and is not asked again before this.
    refused_until: Option<Instant>,
    /// A task waits that closes what is idle for too long.
    is_trimming: bool,
}

/// A connection that waits for its next use.
struct Idle {
    connection: Box<dyn Connection>,
    purpose: Purpose,
    since: Instant,
}

impl Places {
    /// Takes the connection that was used last.
    fn pop(&mut self, purpose: Purpose) -> Option<Box<dyn Connection>> {
        let place = self.idle.iter().rposition(|idle| fits(idle.purpose, purpose))?;
        Some(self.idle.remove(place).connection)
    }
}

/// Handlers have connections of their own.
fn fits(one: Purpose, other: Purpose) -> bool {
    let is_handler = |purpose| matches!(purpose, Purpose::Handler(_));
    one == other || !is_handler(one) && !is_handler(other)
}

impl Connections {
    pub(crate) fn new(store: Box<dyn Store>, limits: Limits, threads: ScheduledThreadPool) -> Self {
        let (places, has_come_back) = (Mutex::default(), Condvar::new());
        Connections { store, limits, places, has_come_back, threads }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn threads(&self) -> &ScheduledThreadPool {
        &self.threads
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a connection, which is kept for the next one unless the work has failed. What has ended one connection has
    /// probably ended the idle ones too.
    pub(crate) fn lend<T>(
        self: &Arc<Self>,
        purpose: Purpose,
        work: impl FnOnce(&mut dyn Connection) -> Result<T>,
    ) -> Result<T> {
        let (mut connection, right) = self.take(purpose)?;
        let result = work(&mut *connection);
        let idle = Idle { connection, purpose, since: Instant::now() };
        let mut places = self.places();
        let mut lost = Vec::new();
        if result.is_ok() && !idle.connection.is_lent() {
            places.idle.push(idle);
            self.trim_later(&mut places);
        } else {
            lost.push(idle);
            if matches!(result, Err(Error::Unreachable(_))) {
                let (gone, left): (Vec<_>, _) = std::mem::take(&mut places.idle)
                    .into_iter()
                    .partition(|idle| fits(idle.purpose, purpose));
                lost.extend(gone);
                places.idle = left;
            }
        }
        drop(places);
        drop((lost, right)); // with nothing locked
        result
    }

    /// Lends a connection for a call, where it may wait.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut dyn Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let connections = Arc::clone(self);
        let call = move || connections.lend(Purpose::Call, work);
        if !is_in_a_runtime() {
            return call();
        }
        match send(&self.threads, call)?.join_timeout(self.limits.hand_over()) {
            Ok(answered) => answer(answered),
            // It waits, if it can be taken back. Otherwise it has begun.
            Err(call) if call.cancel() => Err(self.limits.too_many()),
            Err(call) => answer(call.join()),
        }
    }

    /// Takes an idle connection that is open, or opens one.
    fn take(&self, purpose: Purpose) -> Result<(Box<dyn Connection>, Option<Right<'_>>)> {
        let deadline = Instant::now() + self.limits.timeout;
        let mut refused = None;
        loop {
            let (idle, right) = match purpose {
                Purpose::Call => {
                    let (idle, right) = self.await_right(deadline, &mut refused)?;
                    (idle, Some(right))
                }
                Purpose::Worker | Purpose::Handler(_) => (self.pop(purpose), None),
            };
            let popped = idle.into_iter().chain(std::iter::from_fn(|| self.pop(purpose)));
            let open = popped.into_iter().find_map(|mut one| one.is_open().then_some(one));
            if let Some(connection) = open {
                return Ok((connection, right));
            }
            match self.store.connect_for(purpose) {
                Ok(connection) => {
                    self.places().refused_until = None;
                    return Ok((connection, right));
                }
                // Others give theirs back, and so may other programs.
                Err(error @ Error::TooManyClients(_)) if right.is_some() => {
                    self.places().refused_until = Some(Instant::now() + REFUSED);
                    refused = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn pop(&self, purpose: Purpose) -> Option<Box<dyn Connection>> {
        self.places().pop(purpose)
    }

    /// Waits for a connection that is idle, or for the right to open one (POOL-1, POOL-2).
    fn await_right(
        &self,
        deadline: Instant,
        refused: &mut Option<Error>,
    ) -> Result<(Option<Box<dyn Connection>>, Right<'_>)> {
        let mut places = self.places();
        loop {
            let now = Instant::now();
            let next_try = places.refused_until.filter(|until| *until > now);
            if places.calls < self.limits.max_connections {
                let idle = places.pop(Purpose::Call);
                if idle.is_some() || next_try.is_none() {
                    places.calls += 1;
                    if idle.is_none() && places.refused_until.is_some() {
                        places.refused_until = Some(now + REFUSED); // one at a time asks again
                    }
                    return Ok((idle, Right(self)));
                }
            }
            if now >= deadline {
                drop(places);
                return Err(refused.take().unwrap_or_else(|| self.limits.too_many()));
            }
            let until = next_try.map_or(deadline, |next| next.min(deadline));
            let waited = self.has_come_back.wait_timeout(places, until - now);
            places = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Does what opens connections beside those of calls, and waits for room on the server.
    pub(crate) fn with_room<T>(&self, mut work: impl FnMut(&dyn Store) -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + self.limits.timeout;
        loop {
            let worked = work(&*self.store);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !matches!(worked, Err(Error::TooManyClients(_))) {
                return worked;
            }
            std::thread::sleep(REFUSED.min(left)); // nobody tells when another program closes a connection
        }
    }

    /// Closes connections after [`IDLE`], on a thread that may wait.
    fn trim_later(self: &Arc<Self>, places: &mut Places) {
        if places.is_trimming {
            return;
        }
        let connections = Arc::downgrade(self);
        let trim = move || {
            connections.upgrade().into_iter().for_each(|connections| connections.trim());
        };
        let left = places.idle.iter().map(|idle| IDLE.saturating_sub(idle.since.elapsed())).min();
        places.is_trimming = self.threads.schedule(left.unwrap_or(IDLE), trim).is_ok();
    }

    fn trim(self: &Arc<Self>) {
        let mut places = self.places();
        places.is_trimming = false;
        let (closed, left): (Vec<_>, _) = std::mem::take(&mut places.idle)
            .into_iter()
            .partition(|idle| idle.since.elapsed() >= IDLE);
        places.idle = left;
        if !places.idle.is_empty() {
            self.trim_later(&mut places);
        }
        drop(places);
        drop(closed); // with nothing locked
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let places = std::mem::take(self.places.get_mut().unwrap_or_else(PoisonError::into_inner));
        _ = where_it_may_wait(&self.threads, move || {
            drop(places);
            Ok(())
        });
    }
}

/// The right of a call to have a connection (POOL-1). Its `Drop` gives it back, also after a panic.
struct Right<'a>(&'a Connections);

impl Drop for Right<'_> {
    fn drop(&mut self) {
        self.0.places().calls -= 1;
        self.0.has_come_back.notify_one();
    }
}

/// Returns the threads for calls. They start when they are needed.
pub(crate) fn threads_for(limits: Limits) -> Result<ScheduledThreadPool> {
    ScheduledThreadPool::builder()
        .threads(limits.max_connections)
        .keep_alive(IDLE)
        .thread_name("tickwheel-calls")
        .build()
        .map_err(|error| Error::Invalid(format!("`max_connections`: {error}")))
}

/// Sends work to one of the threads. The future has its answer.
pub(crate) fn send<T: Send + 'static>(
    threads: &ScheduledThreadPool,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<ScheduledFuture<Result<T>>> {
    threads.submit(work).map_err(|error| Error::Invalid(format!("the threads for calls: {error}")))
}

/// Returns what a call was answered. Its panic goes on here.
pub(crate) fn answer<T>(joined: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    match joined {
        Ok(result) => result,
        Err(JoinError::Panicked(panic)) => std::panic::resume_unwind(panic.into_inner()),
        Err(error) => Err(Error::Invalid(format!("the threads for calls: {error}"))),
    }
}

/// Does work that may wait for a database: on this thread, or, if a runtime is in sight, on one of the threads, for which
/// this one waits.
pub(crate) fn where_it_may_wait<T: Send + 'static>(
    threads: &ScheduledThreadPool,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if is_in_a_runtime() { answer(send(threads, work)?.join()) } else { work() }
}

fn is_in_a_runtime() -> bool {
    #[cfg(feature = "postgres")]
    if tokio::runtime::Handle::try_current().is_ok() {
        return true;
    }
    false
}
