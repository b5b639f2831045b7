//! The dispatcher beside the other threads, step by step: the worker here has no threads, and its clock stands still. What could
//! happen between two steps of a thread happens there, because the test does it at that moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock};

use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::super::WorkerBuilder;
use super::*;
use crate::failure::Retry;
use crate::handler::Completes;
use crate::store::Finish;
use crate::testing::{self, VirtualClock, clock_of};
use crate::timer::NewTimer;
use crate::timers::Timers;

const SECOND: Duration = Duration::from_secs(1);

/// A worker without threads, and the clock of its store.
struct Still {
    timers: Timers,
    clock: Arc<VirtualClock>,
    shared: Arc<Shared>,
}

impl Still {
    fn new(build: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Still {
        let timers = testing::open().expect("it opens");
        let store = Arc::clone(&timers.stores()[0]);
        let clock = clock_of(&store.store().name()).expect("it is virtual");
        let WorkerBuilder { kinds, settings, .. } = build(timers.worker());
        let shared = Shared::new(store, kinds.into(), Arc::new(settings), &clock.scheduler, true);
        let mut state = shared.state();
        // As if all its threads were there, so none is started.
        (0..shared.kinds.len())
            .for_each(|kind| state.lines[kind].handlers = shared.threads_of(kind));
        drop(state);
        Still { timers, clock, shared: Arc::new(shared) }
    }

    /// The same, and what its hook for errors is told.
    fn telling(build: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> (Still, Receiver<String>) {
        let (tell, told) = mpsc::channel();
        let hook = move |error: &Error| _ = tell.send(error.to_string());
        (Still::new(|worker| build(worker.on_error(hook))), told)
    }

    fn schedule(&self, kind: &str, key: &str) {
        self.timers.schedule(&NewTimer::new(kind, key, Duration::ZERO)).expect("scheduled");
    }

    /// Has another worker claim what is due of a kind, and die.
    fn lose(&self, kind: &str) {
        let lease = Duration::from_millis(1);
        let mut connection = self.shared.timers.store().connect().expect("it connects");
        let claim = Claim::new(kind, "dead").lease(lease).limit(9);
        assert!(!connection.claim(&claim).expect("a claim").timers.is_empty());
        self.clock.advance_to(self.clock.now() + lease);
    }

    /// Has the database refuse to end a timer with success.
    fn refuse_to_delete(&self) {
        let name = self.shared.timers.store().name();
        let mine = rusqlite::Connection::open(name).expect("it opens");
        let refuse = "CREATE TRIGGER mine BEFORE DELETE ON tickwheel_timers BEGIN SELECT RAISE(ABORT, 'no'); END";
        mine.execute_batch(refuse).expect("valid SQL");
    }

    /// Takes the first job of a kind, as a thread does.
    fn take_job(&self, kind: usize) -> Job {
        self.shared.state().lines[kind].jobs.pop_front().expect("it was claimed")
    }
}

/// Returns true if this worker claims whatever is due of a kind, in each of many slots (TURN-3).
fn claims_all(dispatcher: &Dispatcher<'_>, kind: usize) -> bool {
    let now = dispatcher.shared.scheduler.now();
    let mut turns =
        (0..100).map(|slot| dispatcher.turns.turn(kind, from_micros(slot * 20_000), now));
    turns.all(|turn| turn == Turn::Mine)
}

#[test]
fn a_claim_that_finds_nothing_ends_the_help_of_its_worker() {
    let still = Still::new(|worker| {
        let worker = worker.handle("mail", |_| Ok(()));
        worker.handle("one", |_| Ok(())).at_most_in_all(1)
    });
    let mut dispatcher = Dispatcher::new(&still.shared, None);
    let other = dispatcher.turns.me() ^ 1;
    dispatcher.turns.set(&[(0, other), (1, other)]);
    assert!(!claims_all(&dispatcher, 0), "there are turns");
    let now = still.shared.scheduler.now();
    dispatcher.turns.open(0, now);
    dispatcher.turns.open(1, now);
    still.schedule("mail", "1");
    dispatcher.claim(0, 4).expect("a claim");
    assert!(claims_all(&dispatcher, 0), "it has found something");
    dispatcher.claim(0, 4).expect("a claim");
    assert!(!claims_all(&dispatcher, 0), "the backlog is over");
    // What the limits hold back is due all the same.
    still.schedule("one", "1");
    still.schedule("one", "2");
    for _ in 0..2 {
        dispatcher.claim(1, 4).expect("a claim");
        assert!(claims_all(&dispatcher, 1));
    }
    assert_eq!(still.shared.stats().claimed, 2);
}

/// Calls the test when an attempt is told to have failed: its thread has settled the run by then, and not pushed the outcome.
struct AsItFails<F>(Mutex<Option<F>>);

impl<S: tracing::Subscriber, F: FnOnce() + Send + 'static> Layer<S> for AsItFails<F> {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let is_failure = event.metadata().fields().field("reason").is_some();
        let once = self.0.lock().expect("no panic").take_if(|_| is_failure);
        once.into_iter().for_each(|then| then());
    }
}

#[test]
fn a_run_that_returns_as_its_time_limit_ends_is_settled_once() {
    let still = Still::new(|worker| {
        worker.retry(Retry::attempts(9)).handle("mail", |_| Err(Failure::new("no luck")))
    });
    let shared = &still.shared;
    still.schedule("mail", "1");
    let mut dispatcher = Dispatcher::new(shared, None);
    dispatcher.claim(0, 1).expect("a claim");
    let job = still.take_job(0);
    let fence = job.timer.fence;
    let other = Arc::clone(shared);
    // The dispatcher has taken the cause out before the handler returned, and comes to the run only now.
    let end_of_time = move || Dispatcher::new(&other, None).take_in(Cause::Limit(fence));
    let layer = AsItFails(Mutex::new(Some(end_of_time)));
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(subscriber, || runner::run_all(shared, 0, vec![job]));
    let outcomes = std::mem::take(&mut shared.state().outcomes);
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    let stats = shared.stats();
    assert_eq!((stats.failed, stats.timed_out, stats.stuck), (1, 0, 0));
}

#[test]
fn a_rule_that_takes_long_makes_no_run_late() {
    let clock = Arc::new(Mutex::new(None::<Arc<VirtualClock>>));
    let of_rule = Arc::clone(&clock);
    let (tell, told) = std::sync::mpsc::channel();
    let still = Still::new(|worker| {
        let worker = worker.on_error(move |error| _ = tell.send(error.to_string()));
        worker.handle("mail", |_| Ok(())).time_limit(SECOND).rules(move |_, after| {
            let clock = of_rule.lock().expect("no panic");
            let clock = clock.as_ref().expect("it is set");
            clock.advance_to(clock.now() + SECOND * 2);
            Ok(Some(after + SECOND * 60))
        })
    });
    *clock.lock().expect("no panic") = Some(Arc::clone(&still.clock));
    let new = NewTimer::new("mail", "1", Duration::ZERO).rule("each minute");
    still.timers.schedule(&new).expect("scheduled");
    Dispatcher::new(&still.shared, None).claim(0, 1).expect("a claim");
    runner::run_all(&still.shared, 0, vec![still.take_job(0)]);
    let outcomes = std::mem::take(&mut still.shared.state().outcomes);
    assert!(matches!(outcomes[..], [Finish { then: Then::Next(_), .. }]), "{outcomes:?}");
    assert_eq!(still.shared.stats().timed_out, 0);
    assert!(told.try_recv().is_err());
}

/// A thread that never comes keeps a suspected run from its start, and must not keep all kinds from theirs.
#[test]
fn a_suspected_run_that_waits_for_a_thread_holds_up_no_other_kind_for_long() {
    let seen = Arc::new(OnceLock::<(Arc<Shared>, Arc<VirtualClock>)>::new());
    let of_handler = Arc::clone(&seen);
    let still = Still::new(|worker| {
        let worker = worker.handle("other", |_| Ok(())).handle("slow", move |_| {
            let (shared, clock) = of_handler.get().expect("it is set");
            // The others wait for it anew from its start on.
            clock.advance_to(clock.now() + ALONE - SECOND);
            assert_eq!(shared.room(0, None), 0);
            clock.advance_to(clock.now() + SECOND);
            assert!(shared.room(0, None) > 0 && is_told(shared));
            Ok(())
        });
        worker.at_most(1)
    });
    let shared = &still.shared;
    assert!(seen.set((Arc::clone(shared), Arc::clone(&still.clock))).is_ok());
    still.schedule("slow", "runs");
    let mut dispatcher = Dispatcher::new(shared, None);
    dispatcher.claim(1, 1).expect("a claim");
    still.take_job(1); // its handler runs, and does not return
    still.schedule("slow", "suspected");
    still.lose("slow");
    dispatcher.claim(1, 1).expect("a claim");
    assert_eq!((shared.stats().taken_over, shared.room(0, None)), (1, 0), "it is to run alone");
    still.clock.advance_to(still.clock.now() + ALONE);
    assert!(shared.room(0, None) > 0 && is_told(shared));
    runner::run_all(shared, 1, vec![still.take_job(1)]);
    assert_eq!(shared.stats().failed, 0, "{:?}", shared.state().outcomes);
}

/// Returns true if the dispatcher is told that others may start beside a suspected run.
fn is_told(shared: &Shared) -> bool {
    std::iter::from_fn(|| shared.causes.try_next()).any(|cause| cause.key == Cause::NotAlone)
}

/// A look tells again of what this worker alone knows, as it does of all that it sees.
#[test]
fn what_a_worker_knows_alone_follows_a_clock_that_is_set() {
    let still = Still::new(|worker| worker.handle("mail", |_| Ok(())));
    let (shared, now) = (&still.shared, still.clock.now());
    Dispatcher::new(shared, None).look(WAKES).expect("a look");
    let wake = now + SECOND * 60;
    shared.expect_alone(0, wake);
    let here = shared.scheduler.now();
    let ahead = SECOND * 50;
    assert!(shared.clock().learn(here, here, now + ahead), "the database's clock was set");
    shared.expect(0, wake);
    let causes: Vec<_> = std::iter::from_fn(|| shared.causes.try_next()).collect();
    assert!(causes.iter().all(|cause| matches!(cause.key, Cause::Look)), "not early");
    still.clock.advance_to(now + SECOND * 10);
    let causes: Vec<_> = std::iter::from_fn(|| shared.causes.try_next()).collect();
    let mine = Cause::Mine(0, micros(wake));
    assert_eq!(causes.iter().map(|cause| cause.key).collect::<Vec<_>>(), [mine]);
}

/// The answer to any question may be the first to show that. What is expected of a kind that the question was not about comes
/// earlier then, and so does what was put in while the question was under way, of which its answer knows nothing.
#[test]
fn a_clock_that_is_set_is_noticed_by_every_answer() {
    let ahead = SECOND * 50;
    for notice in
        ["a look", "a poll", "a poll of a file that has not changed", "a check", "a claim"]
    {
        let still = Still::new(|worker| {
            let worker = worker.handle("mail", |_| Ok(())).handle("bill", |_| Ok(()));
            worker.handle("slow", |_| Ok(())).rate(1, SECOND * 60)
        });
        let (shared, now) = (&still.shared, still.clock.now());
        let mut dispatcher = Dispatcher::new(shared, None);
        let here = shared.scheduler.now();
        shared.clock().learn(here, here, now - ahead); // before the database's clock was set
        let wake = now + SECOND * 60;
        still.timers.schedule(&NewTimer::new("bill", "1", SECOND * 60)).expect("scheduled");
        shared.expect(1, wake);
        dispatcher.held_back.insert(2); // as its rate says by the old time
        shared.wake_after(Cause::HeldBack(2), SECOND * 90);
        match notice {
            "a look" => dispatcher.look(WAKES).expect("a look"),
            "a poll" => dispatcher.look(1).expect("a look"),
            "a poll of a file that has not changed" => {
                dispatcher.must_look = false;
                dispatcher.connection().and_then(Connection::has_changed).expect("no error");
                dispatcher.poll().expect("a poll");
            }
            "a check" => {
                dispatcher.must_check(0, now);
                dispatcher.check().expect("a look");
            }
            _ => assert!(!dispatcher.claim(0, 1).expect("a claim")),
        }
        still.clock.advance_to(now + SECOND);
        let causes = std::iter::from_fn(|| shared.causes.try_next());
        let causes: HashSet<_> = causes.map(|cause| cause.key).collect();
        assert_eq!(causes, HashSet::from([Cause::News, Cause::HeldBack(2)]), "{notice}");
        causes.into_iter().for_each(|cause| dispatcher.take_in(cause));
        assert!(dispatcher.must_look && dispatcher.held_back.is_empty(), "{notice}");
        dispatcher.look(WAKES).expect("a look");
        let due = Cause::Due(1, micros(wake));
        assert_eq!(shared.causes.deadline(&due), Some(here + SECOND * 60), "{notice}");
        still.clock.advance_to(now + SECOND * 2);
        assert!(shared.causes.try_next().is_none(), "{notice}: it was noticed once");
    }
}

/// By the time that the worker knows, it comes later. In a minute there are few answers that would show better.
#[test]
fn a_timer_that_others_tell_of_may_be_the_first_sign_that_a_clock_was_set() {
    let still = Still::new(|worker| worker.handle("mail", |_| Ok(())));
    let (shared, now) = (&still.shared, still.clock.now());
    shared.timers.add(shared); // so it is told of what is scheduled, as a listener tells it
    let mut dispatcher = Dispatcher::new(shared, None);
    dispatcher.work().expect("a look");
    for passed in [Duration::ZERO, SECOND * 30] {
        still.clock.advance_to(still.clock.now() + passed);
        let here = shared.scheduler.now();
        shared.clock().learn(here, here, still.clock.now() - SECOND * 50); // and then it was set
        still.schedule("mail", "1");
        still.clock.advance_to(still.clock.now() + SECOND);
        while let Some(cause) = shared.causes.try_next() {
            dispatcher.take_in(cause.key);
        }
        dispatcher.work().expect("a poll");
        still.clock.advance_to(still.clock.now() + SOON);
        while let Some(cause) = shared.causes.try_next() {
            dispatcher.take_in(cause.key);
        }
        dispatcher.work().expect("a claim");
        assert_eq!(still.take_job(0).timer.key, "1", "{:?} after {now:?}", still.clock.now());
    }
}

/// What a worker knows alone, such as when it tries a timer again, nobody knows once it has stopped. A file tells of nothing that the
/// same process has written.
#[test]
fn a_worker_that_stops_makes_the_others_of_its_process_look() {
    let still = Still::new(|worker| worker.handle("mail", |_| Ok(())));
    let shared = &still.shared;
    let (timers, kinds, settings) = (&shared.timers, &shared.kinds, &shared.settings);
    let (kinds, settings) = (Arc::clone(kinds), Arc::clone(settings));
    let other = Shared::new(Arc::clone(timers), kinds, settings, &shared.scheduler, false);
    let other = Arc::new(other);
    timers.add(&other);
    start(shared, None).expect("a thread");
    shared.stop(StopReason::Stopped);
    assert!(shared.await_end(SECOND * 60));
    assert!(matches!(other.causes.try_next(), Some(cause) if cause.key == Cause::News));
}

/// A rule of the user's, or a right that is missing, is against the timers of one kind.
#[test]
fn a_kind_whose_claims_are_refused_holds_up_no_other() {
    let (still, told) = Still::telling(|worker| {
        worker.handle("bad", |_| Ok(())).handle("mail", |_| Ok(())).at_most(9)
    });
    let shared = &still.shared;
    let mine = rusqlite::Connection::open(shared.timers.store().name()).expect("it opens");
    let refuse = "CREATE TRIGGER mine BEFORE UPDATE ON tickwheel_timers WHEN NEW.kind = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END";
    mine.execute_batch(refuse).expect("valid SQL");
    let mut dispatcher = Dispatcher::new(shared, None);
    let mut work = || {
        while dispatcher.try_to_work() {}
        assert_eq!(shared.time_to_try_again(Part::Dispatcher), None, "it goes on at once");
        while let Some(cause) = shared.causes.try_next() {
            dispatcher.take_in(cause.key);
        }
    };
    for times in 1..=9 {
        still.schedule("bad", &times.to_string());
        still.schedule("mail", &times.to_string());
        still.clock.advance_to(still.clock.now() + SECOND);
        shared.look_now();
        (0..3).for_each(|_| work());
        assert_eq!(shared.stats().claimed, times);
    }
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("\"bad\""), "{told:?}");
    mine.execute_batch("DROP TRIGGER mine").expect("valid SQL");
    still.clock.advance_to(still.clock.now() + REFUSED);
    (0..3).for_each(|_| work());
    assert!(shared.stats().claimed > 9, "it may be claimed again");
}

/// The hold of a run is extended while the run is given back, after which its group is to be free soon.
#[test]
fn a_group_of_a_run_that_is_given_back_is_not_held_for_a_lease() {
    let still = Still::new(|worker| worker.handle("mail", |_| Ok(())).serial_by('/'));
    let shared = &still.shared;
    still.schedule("mail", "a/1");
    let mut dispatcher = Dispatcher::new(shared, None);
    assert!(!dispatcher.claim(0, 1).expect("a claim"));
    let fences: Vec<i64> = shared.state().runs.keys().copied().collect();
    assert_eq!(fences.len(), 1);
    // The dispatcher knows what it extends, and the finisher is faster.
    shared.release_queued(0);
    let mut finisher = runner::Finisher::new(shared);
    let outcomes = std::mem::take(&mut shared.state().outcomes);
    finisher.turn(outcomes);
    dispatcher.hold(fences).expect("no error");
    finisher.turn(Vec::new());
    still.clock.advance_to(still.clock.now() + SECOND * 3);
    dispatcher.look_anew();
    dispatcher.claim(0, 1).expect("a claim");
    assert_eq!(still.take_job(0).timer.key, "a/1");
}

/// A timer may be committed a while after its due time. Others that are due later have come by then, and the worker is told of both.
#[test]
fn a_group_runs_in_order_also_if_the_first_was_committed_late() {
    let still = Still::new(|worker| worker.handle("mail", |_| Ok(())).serial_by('/').threads(9));
    let (shared, begin) = (&still.shared, still.clock.now());
    let mut dispatcher = Dispatcher::new(shared, None);
    let at = |millis| begin + Duration::from_millis(millis);
    still.clock.advance_to(at(1000));
    let put_in = |dispatcher: &mut Dispatcher<'_>, key: &str, wake| {
        still.timers.schedule(&NewTimer::new("mail", key, wake)).expect("scheduled");
        dispatcher.wakes(0, wake);
    };
    put_in(&mut dispatcher, "x/1", at(500)); // all before that was seen
    dispatcher.claim(0, 9).expect("a claim");
    for (late, next) in [(100, 600), (200, 700), (300, 800)] {
        let (first, second) = (format!("{late}/1"), format!("{late}/2"));
        // Another one that is late alone, or none: claims begin here and there by turns.
        if late != 100 {
            put_in(&mut dispatcher, &format!("alone {late}"), at(late - 1));
            while dispatcher.claim(0, 9).expect("a claim") {}
        }
        put_in(&mut dispatcher, &first, at(late));
        put_in(&mut dispatcher, &second, at(next));
        while dispatcher.claim(0, 9).expect("a claim") {}
        let state = shared.state();
        let mut held: Vec<_> = state.runs.values().map(|held| held.timer.key.clone()).collect();
        held.sort_unstable();
        assert!(held.contains(&first) && !held.contains(&second), "{held:?}");
    }
}

/// Panics whenever it is called, as one that prints to a stderr that nobody reads may do.
struct Panics;

impl<S: tracing::Subscriber> Layer<S> for Panics {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        panic!("a new span");
    }

    fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
        panic!("an event");
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        panic!("it is entered");
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        panic!("it is left");
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        panic!("it is closed");
    }
}

#[test]
fn a_subscriber_that_panics_ends_no_thread_of_a_worker() {
    let still = Still::new(|worker| {
        let worker = worker.on_error(|_| {});
        worker.handle("mail", |run| match run.key() {
            "fails" => Err(Failure::new("no luck")),
            _ => Ok(()),
        })
    });
    still.schedule("mail", "fails");
    still.schedule("mail", "is done");
    let subscriber = tracing_subscriber::registry().with(Panics);
    tracing::subscriber::with_default(subscriber, || {
        Dispatcher::new(&still.shared, None).claim(0, 2).expect("a claim");
        let jobs = vec![still.take_job(0), still.take_job(0)];
        runner::run_all(&still.shared, 0, jobs);
        still.shared.report(&Error::Busy);
        still.shared.tell_of_recovery(SECOND);
    });
    assert_eq!(still.shared.state().outcomes.len(), 2);
}

/// Its handlers hang, say, while others go on scheduling.
#[test]
fn a_kind_that_has_no_room_gathers_no_wakes_for_ever() {
    let still = Still::new(|worker| worker.handle("mail", |_| Ok(())));
    let mut dispatcher = Dispatcher::new(&still.shared, None);
    let first = micros(still.clock.now());
    (0..100_000).for_each(|wake| dispatcher.take_in(Cause::Mine(0, first + wake * GRAIN)));
    let woken = &dispatcher.woken[&0];
    assert!(woken.len() <= WAKES as usize, "{}", woken.len());
    assert_eq!(woken.first(), Some(&from_micros(first)), "since when it is full");
}

/// Whether a handler was called is decided once. A thread that comes to its transaction just then must not call it any more.
#[test]
fn a_run_whose_time_was_over_before_its_call_is_not_called() {
    let (still, told) = Still::telling(|worker| worker.handle_in_sqlite("mail", |_, _| Ok(())));
    let shared = &still.shared;
    still.schedule("mail", "1");
    let mut dispatcher = Dispatcher::new(shared, None);
    dispatcher.claim(0, 1).expect("a claim");
    let (job, limit) = runner::begin(shared, 0, vec![still.take_job(0)]).pop().expect("it begins");
    // The thread has its transaction, and has asked whether its run is current. It was.
    still.clock.advance_to(still.clock.now() + limit);
    dispatcher.take_in(Cause::Limit(job.timer.fence));
    assert!(!shared.begins(&job.timer, &job.tenure));
    assert!(job.tenure.began().is_none(), "it would come back from a call that nobody has counted");
    runner::end(shared, &job, runner::Ended::NotCalled, limit);
    let outcomes = std::mem::take(&mut shared.state().outcomes);
    assert!(matches!(outcomes[..], [Finish { then: Then::Release, .. }]), "{outcomes:?}");
    let stats = shared.stats();
    assert_eq!((stats.failed, stats.timed_out, stats.stuck), (0, 0, 0), "{stats:?}");
    // It comes again as often as that happens, so somebody has to learn of it.
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("was not called with the timer \"1\""), "{told:?}");
}

/// Its handler may have killed a process, and still may: it waits for a transaction or for its runtime now, for too long.
#[test]
fn a_suspected_run_that_is_not_called_in_time_stays_suspected() {
    for is_async in [false, true] {
        let (still, told) = Still::telling(|worker| {
            if is_async {
                worker.handle_async("mail", async |_| Ok(()))
            } else {
                worker.handle_in_sqlite("mail", |_, _| Ok(()))
            }
        });
        let shared = &still.shared;
        still.schedule("mail", "1");
        still.lose("mail");
        let mut dispatcher = Dispatcher::new(shared, None);
        for times in 1..=2 {
            dispatcher.claim(0, 1).expect("a claim");
            assert_eq!(shared.stats().taken_over, times, "it is suspected");
            let job = still.take_job(0);
            let (job, limit) = runner::begin(shared, 0, vec![job]).pop().expect("it begins");
            still.clock.advance_to(still.clock.now() + limit);
            dispatcher.take_in(Cause::Limit(job.timer.fence));
            assert_eq!(told.try_iter().count(), 1);
            assert!(!shared.begins(&job.timer, &job.tenure), "it is another's");
            runner::end(shared, &job, runner::Ended::NotCalled, limit);
            let state = shared.state();
            assert!(state.runs.is_empty() && state.alone.is_none());
            assert!(state.outcomes.is_empty(), "{:?}", state.outcomes);
            drop(state);
            while shared.state().threads > 0 {
                std::thread::yield_now(); // one that sets the number back
            }
            let timer = still.timers.get("mail", "1").expect("no error").expect("it is there");
            assert_eq!(timer.attempts, 0, "it was not called");
            still.clock.advance_to(still.clock.now() + SECOND * 31);
            let mut causes = std::iter::from_fn(|| shared.causes.try_next());
            assert!(causes.any(|cause| matches!(cause.key, Cause::Mine(0, _))), "its lease ends");
        }
    }
}

/// The thread may notice before the dispatcher does. And an outage, which is told of by itself, is no reason to tell of each run.
#[test]
fn a_call_that_was_not_made_in_time_is_told_of_once_and_not_in_an_outage() {
    let (still, told) = Still::telling(|worker| worker.handle_in_sqlite("mail", |_, _| Ok(())));
    let shared = &still.shared;
    let mut dispatcher = Dispatcher::new(shared, None);
    let mut not_called = |key| {
        still.schedule("mail", key);
        dispatcher.claim(0, 1).expect("a claim");
        let (job, limit) =
            runner::begin(shared, 0, vec![still.take_job(0)]).pop().expect("it begins");
        still.clock.advance_to(still.clock.now() + limit);
        runner::end(shared, &job, runner::Ended::NotCalled, limit);
    };
    not_called("1");
    assert_eq!(told.try_iter().count(), 1);
    shared.has_failed(Part::Listener, &Error::Busy);
    not_called("2");
    shared.has_worked(Part::Listener);
    not_called("3"); // it has waited in the outage
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told, [Error::Busy.to_string()], "the outage alone");
}

/// The database has refused the transaction of a run, after a wait for longer than the run may take. The hook stands for that wait here.
#[test]
fn a_transaction_that_is_refused_too_late_uses_up_no_attempt() {
    let clock = Arc::new(OnceLock::<Arc<VirtualClock>>::new());
    let of_hook = Arc::clone(&clock);
    let still = Still::new(|worker| {
        let worker = worker.retry(Retry::attempts(1)).time_limit(SECOND);
        let worker = worker.on_error(move |error| {
            if matches!(error, Error::Refused(_)) {
                let clock = of_hook.get().expect("it is set");
                clock.advance_to(clock.now() + SECOND);
            }
        });
        worker.handle_in_sqlite("mail", |_, _| Ok(()))
    });
    assert!(clock.set(Arc::clone(&still.clock)).is_ok());
    let shared = &still.shared;
    still.refuse_to_delete();
    still.schedule("mail", "1");
    Dispatcher::new(shared, None).claim(0, 1).expect("a claim");
    runner::run_all(shared, 0, vec![still.take_job(0)]);
    let outcomes = std::mem::take(&mut shared.state().outcomes);
    let [Finish { attempts: 0, then: Then::Release, .. }] = outcomes[..] else {
        panic!("{outcomes:?}")
    };
    let stats = shared.stats();
    assert_eq!((stats.failed, stats.timed_out, stats.stuck), (0, 0, 0), "{stats:?}");
}

/// A rule of the user's is against an outcome. So the database was reached, and that the outcome is given up is another matter.
#[test]
fn an_outage_ends_when_the_database_refuses_an_outcome() {
    let (tell, told) = mpsc::channel();
    let (still, errors) = Still::telling(|worker| {
        worker.on_recovery(move |_| _ = tell.send(())).handle("mail", |_| Ok(()))
    });
    let shared = &still.shared;
    still.refuse_to_delete();
    still.schedule("mail", "1");
    Dispatcher::new(shared, None).claim(0, 1).expect("a claim");
    runner::run_all(shared, 0, vec![still.take_job(0)]);
    shared.has_failed(Part::Finisher, &Error::Busy);
    let outcomes = std::mem::take(&mut shared.state().outcomes);
    runner::Finisher::new(shared).turn(outcomes);
    assert_eq!((shared.stats().lost, told.try_iter().count()), (1, 1));
    assert_eq!(errors.try_iter().count(), 2, "the outage, and the refusal");
}

/// A run that its rule leaves out if it is late has begun once it was put off, also if a worker has had it in the meantime.
#[cfg(feature = "cron")]
#[test]
fn a_run_that_was_put_off_is_not_skipped_after_it_was_given_back() {
    const LATE: Duration = Duration::from_secs(600);
    let still = Still::new(|worker| {
        worker.handle("mail", |_| Err(Failure::snooze(Duration::from_secs(120))))
    });
    let shared = &still.shared;
    let new = NewTimer::new("mail", "1", Duration::ZERO).rule("cron: @hourly; missed=skip");
    let due = still.timers.schedule(&new).expect("scheduled").due;
    still.clock.advance_to(due);
    let mut dispatcher = Dispatcher::new(shared, None);
    let mut finisher = runner::Finisher::new(shared);
    let mut write = || {
        let outcomes = std::mem::take(&mut shared.state().outcomes);
        finisher.turn(outcomes);
    };
    dispatcher.claim(0, 1).expect("a claim");
    runner::run_all(shared, 0, vec![still.take_job(0)]);
    write();
    assert_eq!(shared.stats().snoozed, 1);
    still.clock.advance_to(due + LATE);
    for times in 1..=2 {
        dispatcher.claim(0, 1).expect("a claim");
        assert_eq!(shared.state().lines[0].jobs.len(), 1, "it is to run");
        shared.release_queued(0);
        write();
        assert_eq!((shared.stats().released, shared.stats().skipped), (times, 0));
    }
}

/// The time limit counts from the call, and so does the time by which a handler has exceeded it.
#[test]
fn the_wait_for_a_transaction_is_no_time_of_a_handler_that_comes_back() {
    let seen = Arc::new(OnceLock::<(Arc<Shared>, Arc<VirtualClock>)>::new());
    let (of_handler, of_rule) = (Arc::clone(&seen), Arc::clone(&seen));
    let is_asked = AtomicBool::new(false);
    let (still, told) = Still::telling(|worker| {
        let worker = worker.rules(move |_, after| {
            // It is asked before the transaction begins, and stands for all that takes time there.
            let (_, clock) = of_rule.get().expect("it is set");
            if !is_asked.swap(true, Ordering::Relaxed) {
                clock.advance_to(clock.now() + SECOND * 9 / 10);
            }
            Ok(Some(after + SECOND * 60))
        });
        let worker = worker.handle_in_sqlite("mail", move |run, _| {
            let (shared, clock) = of_handler.get().expect("it is set");
            clock.advance_to(clock.now() + SECOND);
            Dispatcher::new(shared, None).take_in(Cause::Limit(run.fence()));
            Ok(())
        });
        worker.time_limit(SECOND)
    });
    let shared = &still.shared;
    assert!(seen.set((Arc::clone(shared), Arc::clone(&still.clock))).is_ok());
    let new = NewTimer::new("mail", "1", Duration::ZERO).rule("each minute");
    still.timers.schedule(&new).expect("scheduled");
    Dispatcher::new(shared, None).claim(0, 1).expect("a claim");
    runner::run_all(shared, 0, vec![still.take_job(0)]);
    let stats = shared.stats();
    assert_eq!((stats.failed, stats.timed_out, stats.stuck), (1, 1, 0), "{stats:?}");
    assert_eq!(told.try_iter().count(), 1, "at the time limit, and not as one that had hung");
    shared.stop(StopReason::Stopped); // the thread that has stood in for this one
    assert!(shared.await_end(SECOND * 60));
}
