//! Workers in virtual time, as the helpers of the feature `testing` have them.
//!
//! Nothing here sleeps. What takes real time is the real worker beside a test worker, for which the test waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::testing::{self, TestWorker};
use tickwheel_durable::{
    Attempt, Error, Existing, Failure, HistoryFilter, NewTimer, Outcome, Retry, State, Table,
    Timers, WorkerBuilder, sqlite,
};

use super::common::{PATIENCE, until};
use super::databases::{self, Database};
use super::{HOUR, NOW, mail};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn open() -> Timers {
    testing::open().expect("a store in memory opens")
}

/// A test worker whose handler of "mail" succeeds.
fn good(timers: &Timers) -> TestWorker {
    timers.worker().handle("mail", |_| Ok(())).test().expect("it is made")
}

fn keys(ran: &[Attempt]) -> Vec<&str> {
    ran.iter().map(|run| run.key.as_str()).collect()
}

/// What ran, as an attempt, what became of it, and how long after `begin` it started.
fn attempts(ran: &[Attempt], begin: SystemTime) -> Vec<(u32, Outcome, Duration)> {
    let since = |run: &Attempt| run.started.duration_since(begin).expect("later");
    ran.iter().map(|run| (run.attempt, run.outcome, since(run))).collect()
}

#[test]
fn time_stands_still_until_it_is_moved_and_what_is_due_runs_in_order() {
    let timers = open();
    let mut worker = good(&timers);
    let begin = worker.now();
    for (key, delay) in
        [("c", 3 * DAY), ("a", HOUR), ("b", HOUR + MINUTE), ("late", 3 * DAY + SECOND)]
    {
        timers.schedule(&mail(key, delay)).expect("scheduled");
    }
    timers.schedule(&mail("now", NOW)).expect("scheduled");
    thread::yield_now();
    assert_eq!((timers.now().expect("it tells"), worker.now()), (begin, begin));
    assert_eq!(keys(&worker.drain().expect("it runs")), ["now"]);
    assert!(worker.advance(Duration::from_millis(3_599_999)).expect("it runs").is_empty());
    let ran = worker.advance_to(begin + 3 * DAY).expect("it runs");
    assert_eq!(keys(&ran), ["a", "b", "c"]);
    assert!(ran.iter().all(|run| run.started == run.due && run.outcome == Outcome::Done));
    assert_eq!((worker.now(), timers.now().expect("it tells")), (begin + 3 * DAY, begin + 3 * DAY));
    assert_eq!(keys(&worker.advance_to(begin + 4 * DAY).expect("it runs")), ["late"]);
}

#[test]
fn a_handler_sees_its_time_and_what_it_schedules_runs_in_the_same_call() {
    let timers = open();
    let (own, begin) = (timers.clone(), timers.now().expect("it tells"));
    let worker = timers.worker().handle("mail", move |run| {
        assert_eq!(own.now()?, run.due(), "the time is that of the run");
        let left: u32 = std::str::from_utf8(run.payload())?.parse()?;
        if left > 0 {
            let next =
                NewTimer::new("mail", format!("{left}"), HOUR).payload((left - 1).to_string());
            own.schedule(&next)?;
        }
        Ok(())
    });
    let mut worker = worker.test().expect("it is made");
    timers.schedule(&mail("first", MINUTE).payload("3")).expect("scheduled");
    let ran = worker.advance(DAY).expect("it runs");
    assert_eq!(keys(&ran), ["first", "3", "2", "1"]);
    let hours = |hours| (1, Outcome::Done, MINUTE + hours * HOUR);
    assert_eq!(attempts(&ran, begin), [hours(0), hours(1), hours(2), hours(3)]);
}

#[test]
fn three_days_of_a_timer_each_minute_take_moments() {
    let timers = open();
    let mut worker = good(&timers);
    timers.schedule(&mail("each minute", MINUTE).every(MINUTE)).expect("scheduled");
    let start = Instant::now();
    let ran = worker.advance(3 * DAY).expect("it runs");
    let took = start.elapsed();
    println!("{} runs in three days took {took:.2?}", ran.len());
    assert_eq!(ran.len(), 3 * 24 * 60);
    assert!(ran.iter().all(|run| run.started == run.due));
    // No poll, and no look without a reason: a look and a claim for each run, and a look at the end.
    let stats = worker.stats();
    assert_eq!(
        (stats.done, stats.claims, stats.looks),
        (3 * 24 * 60, 3 * 24 * 60, 3 * 24 * 60 + 1)
    );
}

#[test]
fn what_fails_is_tried_again_after_gaps_that_are_always_the_same() {
    let timers = open();
    let begin = timers.now().expect("it tells");
    let dead = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&dead);
    let worker = timers
        .worker()
        .on_dead(move |timer, reason| {
            log.lock().unwrap().push(format!("{} {reason}", timer.key));
        })
        .handle("mail", |_| Err(Failure::new("no")))
        .retry(Retry::attempts(3).gaps(MINUTE, 10.0, HOUR))
        .handle("later", |run| {
            if run.attempt() < 3 { Err(Failure::new("no").retry_after(DAY)) } else { Ok(()) }
        })
        .handle("never", |_| Err(Failure::for_good("no such address")))
        .handle("panics", |_| panic!("oh"))
        .retry(Retry::attempts(1));
    let mut worker = worker.test().expect("it is made");
    for kind in ["mail", "later", "never", "panics"] {
        timers.schedule(&NewTimer::new(kind, "1", NOW)).expect("scheduled");
    }
    let ran = worker.advance(7 * DAY).expect("it runs");
    let of = |kind: &str| -> Vec<Attempt> {
        ran.iter().filter(|run| run.kind == kind).cloned().collect()
    };
    let (failed, died, done) = (Outcome::Failed, Outcome::Dead, Outcome::Done);
    let mails = [(1, failed, NOW), (2, failed, MINUTE), (3, died, 11 * MINUTE)];
    assert_eq!(attempts(&of("mail"), begin), mails);
    assert_eq!(of("mail")[2].error.as_deref(), Some("no"));
    let later = [(1, failed, NOW), (2, failed, DAY), (3, done, 2 * DAY)];
    assert_eq!(attempts(&of("later"), begin), later);
    assert_eq!(attempts(&of("never"), begin), [(1, died, NOW)]);
    assert_eq!(of("panics")[0].error.as_deref(), Some("panicked: oh"));
    let dead = dead.lock().unwrap();
    assert_eq!(dead[..], ["1 no such address", "1 panicked: oh", "1 no"]);
    assert_eq!(timers.get("mail", "1").expect("no error").expect("it stays").state, State::Dead);
    assert_eq!(worker.stats().dead, 3);
}

#[test]
fn what_ran_is_what_the_history_has() {
    let timers = open();
    let worker = timers
        .worker()
        .history(7 * DAY)
        .handle("mail", |run| if run.attempt() == 1 { Err(Failure::new("no")) } else { Ok(()) })
        .handle_in_sqlite("order", |_, _| Ok(()))
        .handle_async("slow", |_| async {
            tickwheel::time::sleep(3 * SECOND).await;
            Ok(())
        });
    let mut worker = worker.test().expect("it is made");
    for (n, kind) in ["mail", "order", "slow"].into_iter().enumerate() {
        timers
            .schedule(&NewTimer::new(kind, "1", HOUR * n as u32).trace("00-trace"))
            .expect("scheduled");
    }
    let ran = worker.advance(DAY).expect("it runs");
    let mut history = timers.history(&HistoryFilter::new()).expect("it is read");
    history.reverse();
    assert_eq!((ran.len(), &ran), (4, &history));
    let slow = ran.iter().find(|run| run.kind == "slow").expect("it ran");
    assert_eq!((slow.took, slow.late, slow.trace.as_deref()), (3 * SECOND, NOW, Some("00-trace")));
}

/// A run whose timer was cancelled or replaced has no outcome, and is in no history.
#[test]
fn what_was_not_written_is_not_returned() {
    let timers = open();
    let (cancels, replaces) = (timers.clone(), timers.clone());
    let is_first = AtomicBool::new(true);
    let worker = timers
        .worker()
        .history(7 * DAY)
        .handle("cancels", move |run| {
            cancels.cancel(run.kind(), run.key())?;
            Ok(())
        })
        .handle("replaces", move |run| {
            if !is_first.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            replaces.schedule(&NewTimer::new(run.kind(), run.key(), HOUR))?;
            Err(Failure::new("no"))
        })
        .retry(Retry::attempts(1));
    let mut worker = worker.test().expect("it is made");
    for kind in ["cancels", "replaces"] {
        timers.schedule(&NewTimer::new(kind, "1", NOW)).expect("scheduled");
    }
    let ran = worker.advance(DAY).expect("it runs");
    assert_eq!(attempts(&ran, ran[0].due - HOUR), [(1, Outcome::Done, HOUR)]);
    assert_eq!(ran, timers.history(&HistoryFilter::new()).expect("it is read"));
    assert_eq!((worker.stats().lost, worker.stats().done), (2, 1));
}

#[test]
fn a_series_and_a_rule_go_on_and_a_run_that_fails_leaves_its_series() {
    let timers = open();
    let begin = timers.now().expect("it tells");
    let worker = timers
        .worker()
        .rules(|rule, after| Ok((rule == "daily").then_some(after + DAY)))
        .handle("report", |_| Ok(()))
        .handle("flaky", |run| if run.attempt() == 1 { Err(Failure::new("no")) } else { Ok(()) })
        .retry(Retry::default().gaps(90 * MINUTE, 1.0, DAY));
    let mut worker = worker.test().expect("it is made");
    timers.schedule(&NewTimer::new("report", "daily", HOUR).rule("daily")).expect("scheduled");
    timers.schedule(&NewTimer::new("flaky", "hourly", HOUR).every(HOUR)).expect("scheduled");
    let ran = worker.advance(2 * DAY).expect("it runs");
    let reports: Vec<_> = ran.iter().filter(|run| run.kind == "report").cloned().collect();
    let done = |after| (1, Outcome::Done, after);
    assert_eq!(attempts(&reports, begin), [done(HOUR), done(DAY + HOUR)]);
    let first: Vec<_> = ran.iter().filter(|run| run.kind == "flaky" && run.attempt == 1).collect();
    assert_eq!(first.len(), 48, "each run of the series");
    let second: Vec<_> = ran.iter().filter(|run| run.kind == "flaky" && run.attempt == 2).collect();
    assert_eq!(
        second.len(),
        46,
        "one and a half hours later, and so those of the last two are not yet"
    );
    assert!(
        second.iter().all(|run| run.key.starts_with("hourly@") && run.outcome == Outcome::Done)
    );
}

#[test]
fn drain_runs_what_is_due_now_and_ends() {
    let timers = open();
    let own = timers.clone();
    let worker = timers
        .worker()
        .handle("chain", move |run| {
            let left: u32 = run.key().parse()?;
            if left > 0 {
                own.schedule(&NewTimer::new("chain", (left - 1).to_string(), NOW))?;
            }
            Ok(())
        })
        .handle("again", |_| Err(Failure::new("no").retry_after(NOW)))
        .retry(Retry::attempts(u32::MAX));
    let mut worker = worker.test().expect("it is made").most_at_once(500);
    timers.schedule(&NewTimer::new("chain", "400", NOW)).expect("scheduled");
    timers.schedule(&NewTimer::new("chain", "later", HOUR)).expect("scheduled");
    assert_eq!(worker.drain().expect("it runs").len(), 401);
    timers.schedule(&NewTimer::new("again", "1", NOW)).expect("scheduled");
    let before = worker.now();
    match worker.drain() {
        Err(Error::Invalid(said)) => assert!(said.contains("500 runs at one moment"), "{said}"),
        other => panic!("an endless chain is an error, and not {other:?}"),
    }
    assert_eq!(worker.now(), before);
    timers.cancel("again", "1").expect("no error");
    assert!(worker.drain().expect("it goes on").is_empty());
    assert_eq!(testing::MOST_AT_ONCE, 10_000);
}

/// Many kinds of things at once: what fails, series, limits, equal times.
fn program() -> Vec<Attempt> {
    let timers = open();
    let own = timers.clone();
    let worker = timers
        .worker()
        .retry(Retry::attempts(4).gaps(SECOND, 3.0, HOUR))
        .handle("a", |run| if run.fence() % 3 == 0 { Err(Failure::new("no")) } else { Ok(()) })
        .rate(2, SECOND)
        .handle("b", move |run| {
            own.schedule(&NewTimer::new("a", run.key(), 7 * SECOND))?;
            Ok(())
        })
        .handle_async("c", |run| async move {
            tickwheel::time::sleep(Duration::from_millis(run.key().len() as u64)).await;
            Ok(())
        });
    let mut worker = worker.test().expect("it is made");
    for n in 0..30 {
        let kind = ["a", "b", "c"][n % 3];
        timers.schedule(&NewTimer::new(kind, format!("{n}"), SECOND * (n as u32 / 10))).unwrap();
    }
    timers.schedule(&NewTimer::new("b", "series", SECOND).every(5 * MINUTE)).expect("scheduled");
    worker.advance(HOUR).expect("it runs")
}

#[test]
fn the_same_program_gives_the_same_runs_each_time() {
    let first = program();
    assert!(first.len() > 60 && first.iter().any(|run| run.outcome == Outcome::Failed));
    for _ in 0..3 {
        assert_eq!(program(), first);
    }
}

#[test]
fn limits_hold_in_virtual_time() {
    let timers = open();
    let begin = timers.now().expect("it tells");
    let worker =
        timers.worker().handle("charge", |_| Ok(())).rate(100, SECOND).handle("other", |_| Ok(()));
    let mut worker = worker.test().expect("it is made");
    for n in 0..1000 {
        timers.schedule(&NewTimer::new("charge", format!("{n}"), NOW)).expect("scheduled");
    }
    timers.schedule(&NewTimer::new("other", "1", 5 * SECOND)).expect("scheduled");
    let ran = worker.drain().expect("it runs");
    assert_eq!(ran.len(), 100, "the bucket is full at first, and the rest is left for later");
    let ran = worker.advance(20 * SECOND).expect("it runs");
    assert_eq!(ran.len(), 901);
    let other = ran.iter().find(|run| run.kind == "other").expect("it ran");
    assert_eq!(other.started, begin + 5 * SECOND, "it waits for no other kind");
    let last = ran.last().expect("there are").started.duration_since(begin).expect("later");
    assert!(last >= 9 * SECOND && last < 9 * SECOND + Duration::from_millis(20), "{last:?}");
    for window in ran.iter().filter(|run| run.kind == "charge").collect::<Vec<_>>().windows(101) {
        assert!(
            window[100].started.duration_since(window[0].started).expect("later")
                >= SECOND * 99 / 100
        );
    }
}

#[test]
fn groups_run_in_order_and_a_hold_of_another_worker_is_waited_for() {
    let timers = open();
    let with = |timers: &Timers| {
        let worker = timers.worker().handle("mail", |_| Ok(())).serial_by('/').at_most_in_all(2);
        worker.test().expect("it is made")
    };
    let mut worker = with(&timers);
    for (key, at) in [("b/2", 2), ("a/1", 0), ("b/1", 1), ("a/2", 3)] {
        timers.schedule(&mail(key, SECOND * at)).expect("scheduled");
    }
    assert_eq!(keys(&worker.advance(MINUTE).expect("it runs")), ["a/1", "b/1", "b/2", "a/2"]);
    // A worker of another process has a run of the group, for half a minute more.
    let held = testing::connection(&timers).expect("it opens");
    let until = "INSERT INTO tickwheel_holds (fence, kind, of_group, until)
        SELECT 9999, 'mail', 'a', 1000 * (1893456000 + 60 + 30)";
    held.execute(until, []).expect("it is held");
    for key in ["a/3", "b/3"] {
        timers.schedule(&mail(key, NOW)).expect("scheduled");
    }
    assert_eq!(keys(&worker.drain().expect("it runs")), ["b/3"]);
    let ran = worker.advance(MINUTE).expect("it runs");
    assert_eq!(keys(&ran), ["a/3"]);
    let late = ran[0].started.duration_since(ran[0].due).expect("later");
    assert!(late >= 30 * SECOND && late < 31 * SECOND, "{late:?}");
}

#[test]
fn handlers_in_a_transaction_write_with_their_timers_or_not_at_all() {
    let timers = open();
    let mut shop = testing::connection(&timers).expect("it opens");
    shop.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)").expect("made");
    let begin = timers.now().expect("it tells");
    let worker = timers
        .worker()
        .handle_in_sqlite("cancel", |run, shop| {
            shop.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?1", [run.key()])?;
            let tell = NewTimer::new("mail", run.key(), HOUR);
            sqlite::within(shop).schedule(&[tell], Existing::Keep)?;
            if run.attempt() == 1 { Err(Failure::new("no").retry_after(MINUTE)) } else { Ok(()) }
        })
        .handle("mail", |_| Ok(()));
    let mut worker = worker.test().expect("it is made");
    // A transaction of the user's, on a connection of the user's, goes by the virtual clock too.
    let order = shop.transaction().expect("it begins");
    order.execute("INSERT INTO orders VALUES ('4711', 'unpaid')", []).expect("put in");
    let cancel = NewTimer::new("cancel", "4711", DAY);
    let scheduled =
        sqlite::within(&order).schedule(&[cancel], Existing::Replace).expect("scheduled");
    assert_eq!(scheduled[0].expect("it is new").due, begin + DAY);
    order.commit().expect("committed");
    let state = || -> String {
        shop.query_row("SELECT state FROM orders", [], |row| row.get(0)).expect("it is there")
    };
    let ran = worker.advance(DAY).expect("it runs");
    assert_eq!(attempts(&ran, begin), [(1, Outcome::Failed, DAY)]);
    assert_eq!(state(), "unpaid", "undone with the failure");
    testing::assert_not_scheduled(&timers, "mail", "4711");
    let ran = worker.advance(2 * HOUR).expect("it runs");
    let (done, second) = (Outcome::Done, DAY + MINUTE);
    assert_eq!(attempts(&ran, begin), [(2, done, second), (1, done, second + HOUR)]);
    assert_eq!((state(), worker.stats().done), ("cancelled".to_owned(), 2));
}

#[test]
fn async_handlers_sleep_in_virtual_time_up_to_their_limits() {
    let timers = open();
    let begin = timers.now().expect("it tells");
    let is_current = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_current);
    let worker = timers
        .worker()
        .retry(Retry::attempts(1))
        .lease(SECOND)
        .handle_async("slow", move |run| {
            let seen = Arc::clone(&seen);
            async move {
                tickwheel::time::sleep(50 * SECOND).await;
                // Its lease of a second was extended.
                seen.store(run.is_current(), Ordering::Relaxed);
                Ok(())
            }
        })
        .handle_async("hangs", |_| async { std::future::pending().await })
        .time_limit(10 * MINUTE)
        .handle_async("panics", |_| async { panic!("oh") });
    let mut worker = worker.test().expect("it is made").patience(NOW);
    for (kind, delay) in [("slow", HOUR), ("hangs", 2 * HOUR), ("panics", 3 * HOUR)] {
        timers.schedule(&NewTimer::new(kind, "1", delay)).expect("scheduled");
    }
    let start = Instant::now();
    let ran = worker.advance(DAY).expect("it runs");
    assert!(start.elapsed() < PATIENCE);
    let (done, dead) = (Outcome::Done, Outcome::Dead);
    let expected = [(1, done, HOUR), (1, dead, 2 * HOUR), (1, dead, 3 * HOUR)];
    assert_eq!(attempts(&ran, begin), expected);
    assert!(is_current.load(Ordering::Relaxed));
    let errors: Vec<_> = ran.iter().filter_map(|run| run.error.as_deref()).collect();
    assert_eq!(errors, ["it took longer than its time limit", "panicked: oh"]);
    assert_eq!((worker.stats().timed_out, worker.stats().stuck), (1, 0));
    // A handler that sleeps beyond the end moves the time there.
    timers.schedule(&NewTimer::new("slow", "2", SECOND)).expect("scheduled");
    assert_eq!(worker.advance(SECOND).expect("it runs").len(), 1);
    assert_eq!(worker.now(), begin + DAY + 51 * SECOND);
}

#[test]
fn virtual_time_waits_while_an_async_handler_waits_for_another_thread() {
    let answer = || {
        let (tell, told) = tokio::sync::oneshot::channel();
        thread::spawn(move || tell.send(()));
        told
    };
    let timers = open();
    let worker = timers
        .worker()
        .retry(Retry::attempts(1))
        .handle_async("io", move |_| async move { Ok(answer().await?) })
        .handle_async("in time", move |_| async move {
            Ok(tickwheel::time::timeout(30 * SECOND, answer()).await??)
        })
        .handle_async("never", |_| async {
            Ok(tickwheel::time::timeout(30 * SECOND, std::future::pending()).await?)
        })
        .handle_async("sleeps", |_| async {
            tickwheel::time::sleep(30 * SECOND).await;
            Ok(())
        });
    let mut worker = worker.test().expect("it is made");
    let run = |worker: &mut TestWorker, kind: &str| {
        timers.schedule(&NewTimer::new(kind, "1", NOW)).expect("scheduled");
        let before = worker.now();
        let ran = worker.drain().expect("it runs");
        (ran[0].outcome, worker.now().duration_since(before).expect("later"))
    };
    assert_eq!(run(&mut worker, "io"), (Outcome::Done, NOW));
    let start = Instant::now();
    assert_eq!(run(&mut worker, "sleeps"), (Outcome::Done, 30 * SECOND));
    assert_eq!(run(&mut worker, "never"), (Outcome::Dead, 30 * SECOND));
    assert!(start.elapsed() < 4 * SECOND, "what is due in virtual time is not waited for");
    let mut worker = worker.patience(PATIENCE);
    assert_eq!(run(&mut worker, "in time"), (Outcome::Done, NOW));
}

/// A test that is async itself: the handler's future is polled on this thread, in sight of the test's runtime.
#[test]
fn a_test_worker_works_inside_of_a_runtime() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let ran = runtime.expect("it starts").block_on(async {
        let timers = open().asynchronous();
        let own = timers.clone();
        let worker =
            timers.worker().spawn_with(|_| panic!("it is not asked")).handle_async("io", {
                move |run| {
                    let own = own.clone();
                    async move {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        let next = NewTimer::new("then", run.key(), HOUR);
                        own.schedule(&next).await?;
                        tokio::spawn(async {}).await?;
                        Ok(())
                    }
                }
            });
        let mut worker = worker.handle("then", |_| Ok(())).test().expect("it is made");
        timers.schedule(&NewTimer::new("io", "1", DAY)).await.expect("scheduled");
        worker.advance(2 * DAY).expect("it runs")
    });
    let seen: Vec<_> = ran.iter().map(|run| (run.kind.as_str(), run.outcome)).collect();
    assert_eq!(seen, [("io", Outcome::Done), ("then", Outcome::Done)]);
    assert_eq!(ran[1].started, ran[0].started + HOUR);
}

#[test]
fn tasks_of_the_virtual_scheduler_run_in_between() {
    let timers = open();
    let mut worker = good(&timers);
    let own = timers.clone();
    timers.schedule(&mail("day", DAY)).expect("scheduled");
    let schedule = move || _ = own.schedule(&mail("from a task", HOUR)).expect("scheduled");
    worker.scheduler().schedule_once(HOUR, schedule).expect("it is open");
    assert_eq!(keys(&worker.advance(DAY).expect("it runs")), ["from a task", "day"]);
}

#[test]
fn time_does_not_go_back_nor_for_ever() {
    let timers = open();
    let mut worker = good(&timers);
    let begin = worker.now();
    worker.advance(HOUR).expect("it runs");
    let refused =
        [worker.advance_to(begin), worker.advance(Duration::MAX), worker.advance(1_000_000 * DAY)];
    for refused in refused {
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    assert_eq!(worker.now(), begin + HOUR);
    worker.advance(50 * 365 * DAY).expect("half a century is fine");
    let old = testing::open_at(SystemTime::UNIX_EPOCH + HOUR).expect("it opens");
    assert_eq!(old.now().expect("it tells"), SystemTime::UNIX_EPOCH + HOUR);
    // A time that no store can keep, or from which the clock would come to one.
    for begin in [SystemTime::UNIX_EPOCH - SECOND, begin + 9000 * 365 * DAY] {
        let refused = testing::open_at(begin);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{begin:?}");
    }
    let late = testing::open_at(begin + 7700 * 365 * DAY).expect("it opens");
    late.schedule(&mail("1", 199 * 365 * DAY)).expect("scheduled");
    assert_eq!(good(&late).advance(199 * 365 * DAY).expect("it runs").len(), 1);
}

#[test]
fn a_test_worker_wants_a_virtual_clock_and_what_each_worker_wants() {
    let elsewhere = Timers::open("sqlite::memory:").expect("it opens");
    assert!(matches!(elsewhere.worker().handle("mail", |_| Ok(())).test(), Err(Error::Invalid(_))));
    assert!(matches!(testing::connection(&elsewhere), Err(Error::Invalid(_))));
    let timers = open();
    assert!(matches!(timers.worker().test(), Err(Error::Invalid(_))), "no handler");
    let twice = timers.worker().handle("mail", |_| Ok(())).handle("mail", |_| Ok(()));
    assert!(matches!(twice.test(), Err(Error::Invalid(_))));
}

#[test]
fn two_test_workers_share_a_store_and_its_time() {
    let timers = open();
    let mut mails = good(&timers);
    let mut others = timers.worker().handle("other", |_| Ok(())).test().expect("it is made");
    let mut again = good(&timers);
    for n in 1..=4 {
        timers.schedule(&mail(&n.to_string(), n * HOUR)).expect("scheduled");
        timers.schedule(&NewTimer::new("other", n.to_string(), n * HOUR)).expect("scheduled");
    }
    assert_eq!(keys(&mails.advance(2 * HOUR).expect("it runs")), ["1", "2"]);
    let late = others.drain().expect("it runs");
    assert_eq!((keys(&late), late[0].started), (vec!["1", "2"], late[1].due));
    assert_eq!(keys(&again.advance(HOUR).expect("it runs")), ["3"]);
    assert_eq!(others.now(), mails.now());
    assert_eq!(keys(&others.advance(HOUR).expect("it runs")), ["3", "4"]);
    assert_eq!(keys(&mails.drain().expect("it runs")), ["4"]);
    // Another test has another store.
    assert!(good(&open()).advance(DAY).expect("it runs").is_empty());
}

#[test]
fn a_real_worker_beside_a_test_worker_runs_what_is_due_too() {
    let timers = open();
    let runs: Arc<Mutex<Vec<String>>> = Arc::default();
    let with = |worker: WorkerBuilder| {
        let runs = Arc::clone(&runs);
        worker.handle("mail", move |run| {
            runs.lock().unwrap().push(run.key().to_owned());
            Ok(())
        })
    };
    let mut test = with(timers.worker()).test().expect("it is made");
    let scheduler = Scheduler::new();
    // Hours pass in the moment in which it runs a handler, and its leases are to outlast them.
    let real = with(timers.worker())
        .lease(DAY)
        .poll_every(Duration::from_millis(1))
        .start(&scheduler)
        .expect("it starts");
    let all: Vec<NewTimer> = (0..300).map(|n| mail(&format!("{n:03}"), n * MINUTE)).collect();
    timers.schedule_all(&all).expect("scheduled");
    for _ in 0..300 {
        test.advance(MINUTE).expect("it runs");
    }
    until("all have run", || {
        timers.list(&tickwheel_durable::Filter::new()).expect("no error").is_empty()
    });
    assert!(real.stop(PATIENCE));
    let mut runs = runs.lock().unwrap().clone();
    runs.sort();
    let each: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
    assert_eq!(runs, each, "each once");
    assert_eq!(real.stats().done + test.stats().done, 300);
}

/// A worker looks each minute by itself.
#[test]
fn a_real_worker_is_told_that_the_time_was_moved() {
    let timers = open();
    let mut test = good(&timers);
    let real = timers.worker().handle("other", |_| Ok(())).lease(DAY);
    let real = real.start(&Scheduler::new()).expect("it starts");
    timers.schedule(&NewTimer::new("other", "1", DAY)).expect("scheduled");
    let start = Instant::now();
    assert!(test.advance(DAY).expect("it runs").is_empty());
    until("it has run", || real.stats().done == 1);
    assert!(start.elapsed() < 30 * SECOND, "it took {:?}", start.elapsed());
    assert!(real.stop(PATIENCE));
}

#[test]
fn what_a_dead_worker_has_left_is_taken_over_when_its_lease_ends() {
    let timers = open();
    let mut worker =
        timers.worker().handle("mail", |_| Ok(())).retry(Retry::attempts(2)).test().unwrap();
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    timers.schedule(&mail("2", NOW)).expect("scheduled");
    let elsewhere = testing::connection(&timers).expect("it opens");
    let claimed = "UPDATE tickwheel_timers SET state = 'running', fence = 1, owner = 'gone',
        attempts = CASE key WHEN '1' THEN 1 ELSE 2 END, held_until = 1000 * (1893456000 + 30)";
    elsewhere.execute(claimed, []).expect("claimed");
    assert!(worker.advance(29 * SECOND).expect("it runs").is_empty());
    let ran = worker.advance(SECOND).expect("it runs");
    let seen: Vec<_> = ran.iter().map(|run| (run.key.as_str(), run.attempt, run.outcome)).collect();
    assert_eq!(seen, [("1", 2, Outcome::Done), ("2", 2, Outcome::Dead)]);
    assert!(ran[1].error.as_deref().is_some_and(|error| error.contains("gone")));
}

#[test]
fn a_delay_is_neither_shorter_nor_longer_than_it_must_be() {
    let timers = open();
    let mut worker = good(&timers);
    let begin = worker.now();
    worker.advance(Duration::from_micros(1500)).expect("it runs");
    let due = |key: &str, delay| timers.schedule(&mail(key, delay)).expect("scheduled").due;
    let millis = Duration::from_millis;
    // A store of SQLite counts milliseconds.
    assert_eq!(timers.now().expect("it tells"), begin + millis(1));
    assert_eq!(due("now", NOW), begin + millis(1));
    assert_eq!(due("one", millis(1)), begin + millis(3));
    assert_eq!(due("half", Duration::from_micros(500)), begin + millis(2));
    assert_eq!(
        keys(&worker.advance(Duration::from_micros(500)).expect("it runs")),
        ["now", "half"]
    );
}

/// What the documentation says of PostgreSQL.
#[test]
fn the_time_of_a_schema_can_be_the_tests_own() {
    let of_a_schema = |database: &Database<'_>| {
        let Database::Schema { name, .. } = database else { return };
        let timers = database.open();
        // What the documentation has, but for the name of the schema.
        let docs = include_str!("../../src/testing/mod.rs");
        let (_, sql) = docs.split_once("//! ```sql").expect("it has SQL");
        let (sql, _) = sql.split_once("//! ```").expect("it ends");
        let sql = sql.replace("//!", "").replace("of_tests", name);
        assert!(sql.contains("2030-01-04"));
        database.execute(&sql.replace("2030-01-04", "2030-01-01"));
        let begin = timers.now().expect("it tells");
        assert_eq!(begin, testing::open().expect("it opens").now().expect("it tells"));
        let (log, seen) = super::Log::new();
        let worker = timers.worker().handle("mail", move |run| {
            log.add(run);
            Ok(())
        });
        let worker = worker.start(&Scheduler::new()).expect("it starts");
        timers.schedule(&mail("1", 3 * DAY)).expect("scheduled");
        testing::assert_scheduled(&timers, "mail", "1").tolerance(NOW).due_in(3 * DAY);
        let (_, step) = sql.split_once("SELECT setval").expect("it moves the time");
        database.execute(&format!("SELECT setval{step}"));
        timers.tell("mail");
        assert_eq!(super::next(&seen).due, begin + 3 * DAY);
        assert!(worker.stop(PATIENCE));
    };
    databases::on_a_server("virtual time", &[("the_time_of_a_schema", of_a_schema)], &[]);
}

#[test]
fn a_run_is_built_for_a_unit_test() {
    let due = SystemTime::UNIX_EPOCH + DAY;
    let timer = mail("4711", due).payload("hello").max_attempts(3).every(HOUR);
    let run = testing::run(timer.clone()).build();
    assert_eq!((run.kind(), run.key(), run.payload()), ("mail", "4711", &b"hello"[..]));
    assert_eq!((run.attempt(), run.due(), run.is_current()), (1, due, true));
    assert!(!run.is_last_attempt() && run.completion().is_err());
    let of = testing::run(timer).attempt(3).fence(77).due(due + HOUR).error("before");
    let (run, cancel) = of.cancellable();
    assert_eq!((run.attempt(), run.fence(), run.due()), (3, 77, due + HOUR));
    assert!(run.is_last_attempt() && run.is_current());
    assert_eq!(run.timer().error.as_deref(), Some("before"));
    cancel.cancel();
    assert!(!run.is_current());
    // As it stands in a store: the next attempt.
    let timers = open();
    timers.schedule(&mail("1", HOUR)).expect("scheduled");
    let timer = timers.get("mail", "1").expect("no error").expect("it is there");
    let run = testing::run_of(timer.clone()).build();
    assert_eq!((run.attempt(), run.fence(), run.due()), (1, 1, timer.due));
    assert_eq!(run.timer().state, State::Running);
    assert!(
        testing::run(mail("x", NOW)).attempt(20).build().is_last_attempt(),
        "as `Retry` has it"
    );
}

/// Returns what an assertion says that fails.
fn said(assertion: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(assertion)).expect_err("it fails");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn assertions_say_what_is_there() {
    let timers = open();
    let nothing = said(|| _ = testing::assert_scheduled(&timers, "mail", "1"));
    assert_eq!(nothing, "no timer \"mail\" \"1\" is scheduled. There are no timers at all");
    timers.schedule(&mail("2", 30 * MINUTE).payload("two pears").every(DAY)).expect("scheduled");
    timers.schedule(&NewTimer::new("other", "1", NOW)).expect("scheduled");
    let second = || testing::assert_scheduled(&timers, "mail", "2");
    second().due_in(30 * MINUTE).payload("two pears").every(DAY).attempts(0);
    let due = second().timer().due;
    second().tolerance(NOW).due_in(30 * MINUTE).due_at(due);
    second().due_in(30 * MINUTE + SECOND);
    testing::assert_not_scheduled(&timers, "mail", "1");
    let there = "\n  \"mail\" \"2\" waiting, wakes in 1800s, Every(86400s), payload \"two pears\"";
    let missing = said(|| _ = testing::assert_scheduled(&timers, "mail", "1"));
    assert_eq!(
        missing,
        format!("no timer \"mail\" \"1\" is scheduled. Of this kind there are:{there}")
    );
    let kinds = said(|| _ = testing::assert_scheduled(&timers, "none", "1"));
    assert!(kinds.ends_with("There are timers of the kinds \"mail\", \"other\" alone"), "{kinds}");
    let wrong: [(&str, String); 7] = [
        ("should not be", said(|| testing::assert_not_scheduled(&timers, "mail", "2"))),
        ("wake in 3600s, and does 1800s before", said(|| _ = second().due_in(HOUR))),
        (
            "does 1ms later",
            said(|| _ = second().tolerance(NOW).due_in(Duration::from_millis(1_799_999))),
        ),
        ("should be \"apples\"", said(|| _ = second().payload("apples"))),
        ("should be a series by Every(1s)", said(|| _ = second().every(SECOND))),
        ("should be a series by Rule(\"daily\")", said(|| _ = second().rule("daily"))),
        ("1 of its attempts", said(|| _ = second().attempts(1))),
    ];
    for (part, message) in wrong {
        assert!(message.contains(part) && message.ends_with(there), "{message}");
    }
    // One that is dead is not scheduled.
    let worker = timers.worker().handle("other", |_| Err(Failure::for_good("no such address")));
    worker.test().expect("it is made").drain().expect("it runs");
    testing::assert_not_scheduled(&timers, "other", "1");
    let dead = said(|| _ = testing::assert_scheduled(&timers, "other", "1"));
    assert_eq!(dead, "the timer \"other\" \"1\" is dead, and does not wait: no such address");
    for n in 0..30 {
        timers.schedule(&NewTimer::new("many", n.to_string(), NOW)).expect("scheduled");
    }
    let many = said(|| _ = testing::assert_scheduled(&timers, "many", "x"));
    assert!(many.lines().count() == 22 && many.ends_with("\n  and more"), "{many}");
}

#[test]
fn what_is_due_later_than_all_times_is_asserted_too() {
    let timers = open();
    for (key, delay) in [("never", Duration::MAX), ("hardly", 9000 * 365 * DAY)] {
        timers.schedule(&mail(key, delay)).expect("scheduled");
        testing::assert_scheduled(&timers, "mail", key).due_in(delay);
    }
    let early = said(|| _ = testing::assert_scheduled(&timers, "mail", "never").due_in(DAY));
    assert!(early.contains("it should wake in 86400s, and does"), "{early}");
}

#[test]
fn json_is_asserted_as_a_value() {
    let timers = open();
    let pears =
        NewTimer::new("mail", "1", NOW).json(&(2, "pears".to_owned())).expect("it has JSON");
    timers.schedule(&pears).expect("scheduled");
    let scheduled = testing::assert_scheduled(&timers, "mail", "1");
    scheduled.json(&(2, "pears".to_owned()));
    let wrong = said(|| _ = scheduled.json(&(3, "pears".to_owned())));
    assert_eq!(wrong, "its payload should be (3, \"pears\"), and is (2, \"pears\")");
}

/// A handler of a service may be called while others use the same store from other threads.
#[test]
fn calls_from_other_threads_go_by_the_same_time() {
    let timers = open();
    let mut worker = good(&timers);
    let scheduled = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (timers, scheduled) = (timers.clone(), &scheduled);
            scope.spawn(move || {
                for n in 0..50 {
                    timers.schedule(&mail(&format!("{thread} {n}"), MINUTE)).expect("scheduled");
                    scheduled.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(worker.advance(MINUTE).expect("it runs").len() as u32, scheduled.into_inner());
}
