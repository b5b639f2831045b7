//! Calls from async code: as futures, with a bound on the connections, and dropped in the middle.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, SystemTime};

use tickwheel::future::block_on;
use tickwheel_durable::{
    AsyncTimers, Error, Filter, OpenOptions, Scheduled, State, Timers, sqlite,
};

use super::common::{PATIENCE, until};
use super::databases::Database;
use super::{HOUR, NOW, mail, next, noting};
use tickwheel::Scheduler;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime")
}

pub(super) fn futures_do_what_the_calls_do(database: &Database<'_>) {
    let address = database.address();
    // The first needs no runtime, the second is polled by one.
    let all = async move |kind: &str| {
        let timers = AsyncTimers::open(&address).await.expect("it opens");
        let new = |key: &str| tickwheel_durable::NewTimer::new(kind, key, HOUR);
        assert!(!timers.schedule(&new("1")).await.expect("scheduled").replaced);
        assert_eq!(timers.schedule_if_absent(&new("1")).await.expect("no error"), None);
        let two: Vec<Scheduled> =
            timers.schedule_all(&[new("2"), new("3")]).await.expect("scheduled");
        assert_eq!(two.len(), 2);
        assert!(timers.reset(kind, "1", HOUR * 2).await.expect("no error"));
        assert_eq!(timers.cancel(kind, "2").await.expect("no error"), Some(State::Waiting));
        assert_eq!(timers.get(kind, "2").await.expect("no error"), None);
        let left = timers.list(&Filter::new().kind(kind)).await.expect("a list");
        assert_eq!(left.len(), 2);
        assert!(!timers.requeue(kind, "1", NOW).await.expect("no error"), "it is not dead");
        assert_eq!(timers.requeue_all(kind, NOW).await.expect("no error"), 0);
        let counts = timers.counts().await.expect("counts");
        assert!(counts.iter().any(|of| of.kind == kind && of.waiting == 2));
        assert_eq!(timers.blocking().get(kind, "2").expect("no error"), None);
        timers.now().await.expect("a time")
    };
    block_on(all("without"));
    runtime().block_on(all("with"));
}

pub(super) fn what_a_future_schedules_comes_on_time(database: &Database<'_>) {
    let timers = database.open().asynchronous();
    let (worker, seen) = noting(timers.blocking());
    let worker = worker.poll_every(HOUR).start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    block_on(timers.schedule(&mail("1", NOW))).expect("scheduled");
    assert_eq!(next(&seen).key, "1");
}

/// A clock that says on which threads it was read, and stands in the way where it is told to.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, BTreeSet<String>, u32)>,
    has_changed: Condvar,
}

impl Gate {
    fn timers(self: &Arc<Self>, database: &Database<'_>, options: OpenOptions) -> Timers {
        let Database::File(path) = database else { panic!("a file") };
        let gate = Arc::clone(self);
        let store = sqlite::Sqlite::with_wall_clock(path, move || gate.pass());
        options.with_store(store).expect("it opens")
    }

    fn pass(&self) -> SystemTime {
        let mut state = self.state.lock().expect("no panic");
        state.1.insert(format!("{:?}", thread::current().id()));
        state.2 += 1;
        drop(self.has_changed.wait_while(state, |state| state.0).expect("no panic"));
        SystemTime::now()
    }

    fn set_closed(&self, is_closed: bool) {
        self.state.lock().expect("no panic").0 = is_closed;
        self.has_changed.notify_all();
    }

    fn passes(&self) -> u32 {
        self.state.lock().expect("no panic").2
    }
}

#[test]
fn calls_inside_of_a_runtime_start_no_threads() {
    const CALLS: u32 = 200;
    let (gate, database) = (Arc::new(Gate::default()), Database::file());
    let timers = gate.timers(&database, OpenOptions::new().max_connections(3));
    runtime().block_on(async {
        let calls = timers.asynchronous();
        for _ in 0..CALLS {
            timers.now().expect("a time");
            calls.now().await.expect("a time");
        }
    });
    let threads = gate.state.lock().expect("no panic").1.len();
    assert!((1..=3).contains(&threads), "{threads} threads");
}

/// Polls a future once.
fn begin<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    block_on(poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    }))
}

#[test]
fn a_dropped_future_takes_its_call_back_or_leaves_it_whole() {
    let (gate, database) = (Arc::new(Gate::default()), Database::file());
    let timers = gate.timers(&database, OpenOptions::new().max_connections(1)).asynchronous();
    let [unpolled, begun, waiting] = ["unpolled", "begun", "waiting"].map(|key| mail(key, HOUR));
    gate.set_closed(true);
    let before = gate.passes();
    {
        let _unpolled = timers.schedule(&unpolled);
        let mut first = pin!(timers.schedule(&begun));
        assert!(begin(first.as_mut()).is_none());
        until("it is in its transaction", || gate.passes() > before);
        let mut second = pin!(timers.schedule(&waiting));
        assert!(begin(second.as_mut()).is_none());
    }
    gate.set_closed(false);
    let left = block_on(timers.list(&Filter::new())).expect("a list");
    assert_eq!(left.iter().map(|timer| timer.key.as_str()).collect::<Vec<_>>(), ["begun"]);
}

#[test]
fn a_call_waits_for_a_connection_and_says_so_when_none_is_free_in_time() {
    let (gate, database) = (Arc::new(Gate::default()), Database::file());
    let options = OpenOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(100));
    let timers = gate.timers(&database, options);
    let is_refused = |result: tickwheel_durable::Result<SystemTime>| {
        let error = result.expect_err("all are in use");
        assert!(matches!(error, Error::TooManyClients(_)), "{error:?}");
        assert!(error.to_string().contains("too many clients"), "{error}");
    };
    gate.set_closed(true);
    let before = gate.passes();
    thread::scope(|scope| {
        let first = scope.spawn(|| timers.now());
        until("it has the connection", || gate.passes() > before);
        is_refused(timers.now());
        is_refused(block_on(timers.asynchronous().now()));
        gate.set_closed(false);
        first.join().expect("no panic").expect("a time");
    });
    // And so says a future whose thread is busy.
    gate.set_closed(true);
    let calls = timers.asynchronous();
    let before = gate.passes();
    let mut first = pin!(calls.now());
    assert!(begin(first.as_mut()).is_none());
    until("it has begun", || gate.passes() > before);
    is_refused(block_on(calls.now()));
    // So does a call that waits inside of a runtime.
    is_refused(runtime().block_on(async { timers.now() }));
    gate.set_closed(false);
    block_on(first).expect("a call that has begun is not given up");
}

#[test]
fn a_call_that_waits_gets_the_connection_of_another() {
    const CALLERS: u32 = 50;
    let database = Database::file();
    let options = OpenOptions::new().max_connections(2).acquire_timeout(PATIENCE);
    let timers = options.open(&database.address()).expect("it opens");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let timers = &timers;
            scope.spawn(move || {
                for n in 0..10 {
                    timers.schedule(&mail(&format!("{caller} {n}"), HOUR)).expect("scheduled");
                }
            });
        }
    });
    assert_eq!(timers.counts().expect("counts")[0].waiting, u64::from(CALLERS) * 10);
}
