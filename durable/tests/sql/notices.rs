//! The three ways in which commits tell the workers of their timers, and what each costs and gives.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use postgres::fallible_iterator::FallibleIterator;
use tickwheel::Scheduler;
use tickwheel_durable::{Timers, Worker};

use super::common::PATIENCE;
use super::databases::{Database, client, refusal, say};

/// Before this has passed, no poll and no look without a reason has helped.
const BEFORE_A_POLL: Duration = Duration::from_millis(900);

fn set(database: &Database<'_>, way: &str) {
    database.execute(&format!("SELECT tickwheel_set_notices('{way}')"));
}

/// A worker of the kind, and how late its handler was called for each key.
fn worker(timers: &Timers, poll: Duration) -> (Worker, mpsc::Receiver<(String, Duration)>) {
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("mail", move |run| {
        let late = SystemTime::now().duration_since(run.due()).unwrap_or_default();
        Ok(tell.send((run.key().to_owned(), late))?)
    });
    (worker.poll_every(poll).start(Scheduler::global()).expect("it starts"), told)
}

fn lateness(told: &mpsc::Receiver<(String, Duration)>) -> Duration {
    told.recv_timeout(PATIENCE).expect("it runs").1
}

pub(crate) fn two_phases_work_without_notices(database: &Database<'_>) {
    let timers = database.open();
    let mut mine = client(&database.url());
    let most: String =
        mine.query_one("SHOW max_prepared_transactions", &[]).expect("a number").get(0);
    if most == "0" {
        return say("sql, with two phases: skipped: `max_prepared_transactions` is 0");
    }
    let mut prepare = |name: &str| {
        let sql = format!(
            "BEGIN; SELECT tickwheel_schedule('mail', '{name}'); PREPARE TRANSACTION '{name}'"
        );
        let prepared = mine.batch_execute(&sql).map_err(|error| refusal(&error));
        if prepared.is_err() {
            mine.batch_execute("ROLLBACK").expect("it ends");
        }
        prepared
    };
    let refused = prepare("told").expect_err("a notice cannot be prepared");
    assert!(refused.contains("NOTIFY"), "{refused}");
    set(database, "never");
    let (worker, told) = worker(&timers, Duration::from_millis(5));
    prepare("first phase").expect("nothing is told");
    thread::sleep(Duration::from_millis(50)); // nothing is to happen, and that takes real time
    assert!(told.try_recv().is_err(), "it is not committed");
    client(&database.url())
        .batch_execute("COMMIT PREPARED 'first phase'")
        .expect("the second phase");
    assert_eq!(told.recv_timeout(PATIENCE).expect("it runs").0, "first phase");
    assert!(worker.stop(PATIENCE));
}

pub(crate) fn another_way_than_the_three_is_refused(database: &Database<'_>) {
    drop(database.open());
    for (way, name) in [("'always'", "'always'"), ("NULL", "NULL")] {
        let refused = database.attempt(&format!("SELECT tickwheel_set_notices({way})"));
        let all = format!("no way {name} to tell workers: Give 'at once', 'debounced' or 'never'.");
        let refused = refused.expect_err("there are three");
        assert!(refused.contains(&all), "{refused}");
    }
}

/// The worker learns of another way while it runs.
pub(crate) fn the_way_may_change_at_any_time(database: &Database<'_>) {
    let timers = database.open();
    let (worker, told) = worker(&timers, PATIENCE);
    let mut mine = client(&database.url());
    let mut schedule = |kind: &str| {
        mine.query("SELECT tickwheel_schedule($1, '1')", &[&kind]).expect("scheduled");
    };
    // To change the way makes workers look, so something is to happen after that look.
    let other = timers.worker().handle("other", |_| Ok(())).start(Scheduler::global());
    let other = other.expect("it starts");
    for way in ["at once", "never", "debounced", "at once"] {
        let before = other.stats();
        set(database, way);
        super::common::until("it has looked", || other.stats().looks > before.looks);
        if way == "never" {
            // The default is to poll once a second then.
            schedule("other");
            super::common::until("it has polled", || other.stats().done > before.done);
        } else {
            // A busy machine may be late, but not each time.
            let mut is_told = || {
                schedule("mail");
                lateness(&told) < BEFORE_A_POLL
            };
            assert!((0..3).any(|_| is_told()), "{way}");
        }
    }
    let refused =
        database.attempt("UPDATE tickwheel_schema SET notices = 'sometimes'").expect_err("no way");
    assert!(refused.contains("tickwheel_notices"), "{refused}");
    assert!(worker.stop(PATIENCE));
}

/// Callers at full speed, for some seconds. Returns how many notices there were, and of how many commits.
fn notices(database: &Database<'_>, told: &mpsc::Receiver<(String, Duration)>) -> (usize, usize) {
    let mut ear = client(&database.url());
    ear.batch_execute("LISTEN tickwheel_timers").expect("it listens");
    let begin = Instant::now();
    let count = thread::scope(|scope| {
        let callers = [0, 1].map(|caller| {
            scope.spawn(move || {
                let mut mine = client(&database.url());
                let mut count = 0;
                while begin.elapsed() < Duration::from_secs(3) {
                    let key = format!("{caller} {count}");
                    mine.query("SELECT tickwheel_schedule('mail', $1)", &[&key])
                        .expect("scheduled");
                    count += 1;
                    thread::sleep(Duration::from_millis(1)); // so that the worker keeps up
                }
                count
            })
        });
        callers.map(|caller| caller.join().expect("no error")).iter().sum::<usize>()
    });
    let mut late: Vec<_> = (0..count).map(|_| lateness(told)).collect();
    late.sort();
    let at = |share: usize| late[(count - 1) * share / 100];
    println!("  {count} timers: late by {:?}, p99 {:?}, at most {:?}", at(50), at(99), at(100));
    assert!(at(90) < BEFORE_A_POLL, "they need not wait for a poll: {:?}", at(90));
    let mut heard = ear.notifications();
    let heard = heard.timeout_iter(Duration::from_millis(300)).count(); // they come in real time
    (heard.expect("notices"), count)
}

pub(crate) fn many_commits_are_told_once(database: &Database<'_>) {
    let timers = database.open();
    let (worker, told) = worker(&timers, PATIENCE);
    let (all, count) = notices(database, &told);
    assert!(all >= count / 2, "{all} of {count}"); // a moment's commits may be of the same wake time
    set(database, "debounced");
    let (few, count) = notices(database, &told);
    println!("  notices: {all}, and debounced {few} of {count}");
    assert!(few > 0 && few < count / 4, "{few} of {count}");
    assert!(worker.stop(PATIENCE));
    set(database, "never");
    let (worker, told) = self::worker(&timers, Duration::from_millis(10));
    assert_eq!(notices(database, &told).0, 0);
    assert!(worker.stop(PATIENCE));
}

/// What was decided long before the commit is told at its end.
pub(crate) fn a_long_transaction_tells_although_the_workers_were_awake(database: &Database<'_>) {
    let timers = database.open();
    set(database, "debounced");
    database.execute("INSERT INTO tickwheel_awake VALUES ('mail', now() + interval '1 hour')");
    let mut ear = client(&database.url());
    ear.batch_execute("LISTEN tickwheel_timers").expect("it listens");
    let mut schedule = |pause: &str, moved: bool| {
        let what = if moved { "reset" } else { "schedule" };
        database.execute(&format!(
            "BEGIN; SELECT tickwheel_{what}('mail', '1', after => '10 s'); SELECT pg_sleep({pause}); COMMIT"
        ));
        let mut heard = ear.notifications();
        heard.timeout_iter(Duration::from_millis(300)).count().expect("notices") // they come in real time
    };
    assert_eq!(schedule("0", false), 0);
    assert_eq!(schedule("1.1", true), 1);
    assert_eq!(
        timers.cancel("mail", "1").expect("no error"),
        Some(tickwheel_durable::State::Waiting)
    );
    assert_eq!(schedule("1.1", false), 1);
}
