//! The tables are brought up to date while workers of versions 2 and 6 are at work. Those are here as their statements, which are in
//! `version_2.sql` and `version_6.sql` as those versions had them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{HistoryFilter, NewTimer, Outcome, Timers, postgres::MIGRATIONS};

use ::postgres::error::SqlState;

use super::common::{PATIENCE, until};
use super::databases::{Database, client};

/// How many timers each older caller puts in.
const EACH: usize = 400;

/// All of them: those of two older callers, and as many of a newer one.
const ALL: i64 = 1600;

/// When the tables are brought up to date: about in the middle.
const BEFORE: usize = 500;

/// The statements of version 2, by their names.
fn statements() -> HashMap<&'static str, &'static str> {
    named(include_str!("version_2.sql"))
}

fn named(statements: &'static str) -> HashMap<&'static str, &'static str> {
    let parts = statements.split("-- statement ").skip(1);
    parts.map(|part| part.split_once('\n').expect("a name and SQL")).collect()
}

/// Ends the older workers, also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn workers_of_both_versions_live_through_an_upgrade(database: &Database<'_>) {
    database.execute(&MIGRATIONS[..2].concat());
    database.execute("CREATE TABLE ledger (key text NOT NULL, version integer NOT NULL)");
    let (scheduled, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let timers = thread::scope(|scope| {
        let end = End(&done);
        for worker in 0..2 {
            let done = &done;
            scope.spawn(move || work_as_version_2(database, worker, done));
        }
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                let scheduled = &scheduled;
                scope.spawn(move || schedule_as_version_2(database, caller, scheduled))
            })
            .collect();
        until("it is in the middle of it", || scheduled.load(Ordering::Relaxed) > BEFORE);
        let timers = Timers::open(&database.address()).expect("it is brought up to date");
        let _worker = timers
            .worker()
            .handle_in_postgres("mail", |run, transaction| {
                transaction.execute("INSERT INTO ledger VALUES ($1, 3)", &[&run.key()])?;
                Ok(())
            })
            .poll_every(PATIENCE)
            .start(Scheduler::global())
            .expect("it starts");
        let mut mine = client(&database.url());
        for n in 0..2 * EACH {
            let key = format!("new {n}");
            mine.query("SELECT tickwheel_schedule('mail', $1)", &[&key]).expect("scheduled");
        }
        for caller in callers {
            caller.join().expect("its statements work before, during and after the upgrade");
        }
        until("all have run", || {
            database.number("SELECT count(*) FROM tickwheel_timers WHERE kind = 'mail'") == 0
        });
        drop(end);
        timers
    });
    let count = |of: &str| database.number(&format!("SELECT count(*) FROM ledger WHERE {of}"));
    assert_eq!(
        (count("true"), database.number("SELECT count(DISTINCT key) FROM ledger")),
        (ALL, ALL)
    );
    assert!(count("version = 2 AND key LIKE 'new %'") > 0, "an older worker runs new timers");
    assert!(count("version = 3 AND key LIKE 'old %'") > 0, "a newer worker runs old timers");
    assert_eq!(timers.counts().expect("counts").iter().map(|of| of.dead).sum::<u64>(), 0);
}

fn schedule_as_version_2(database: &Database<'_>, caller: usize, scheduled: &AtomicUsize) {
    let statements = statements();
    let mut client = client(&database.url());
    for n in 0..EACH {
        let key = format!("old {caller} {n}");
        let put_in = client.query(
            statements["schedule"],
            &[
                &vec!["mail"],
                &vec![key.as_str()],
                &vec![b"payload".as_slice()],
                &vec![None::<SystemTime>],
                &vec![Some(0_f64)],
                &vec![None::<i64>],
                &vec![None::<&str>],
                &vec![None::<i32>],
                &vec![None::<i64>],
            ],
        );
        assert_eq!(put_in.expect("scheduled").len(), 1);
        let later = format!("{key} later");
        client.query(statements["insert"], &[&later]).expect("put in");
        client
            .query(statements["reset"], &[&"later", &later, &None::<SystemTime>, &Some(9e6)])
            .expect("moved");
        client.query(statements["cancel"], &[&"later", &later]).expect("cancelled");
        scheduled.fetch_add(1, Ordering::Relaxed);
    }
}

fn work_as_version_2(database: &Database<'_>, worker: usize, done: &AtomicBool) {
    let statements = statements();
    let mut client = client(&database.url());
    let owner = format!("version 2, {worker}");
    while !done.load(Ordering::Relaxed) {
        let looked = client.query(statements["look"], &[&vec!["mail"], &120_000_f64, &1000_i64]);
        assert!(!looked.expect("a look").is_empty());
        let claim = client.query(
            statements["claim"],
            &[&"mail", &7_i64, &owner, &60_000_f64, &2_i32, &(16_i64 << 20)],
        );
        let claimed: Vec<(i64, i64, String)> = claim
            .expect("a claim")
            .iter()
            .filter(|row| row.get::<_, Option<&str>>("before").is_some())
            .map(|row| (row.get("id"), row.get("fence"), row.get("key")))
            .collect();
        if claimed.is_empty() {
            thread::sleep(Duration::from_millis(1)); // it polls
        }
        let (ids, fences): (Vec<_>, Vec<_>) =
            claimed.iter().map(|(id, fence, _)| (*id, *fence)).unzip();
        client.query(statements["extend"], &[&ids, &fences, &60_000_f64]).expect("extended");
        for (n, (id, fence, key)) in claimed.iter().enumerate() {
            // A claim of another worker may look at the row for a moment. So each outcome is tried until it is written.
            let mut is_written = false;
            while !is_written {
                // Each third run fails first, and is tried again at once.
                let mut transaction = client.transaction().expect("a transaction");
                let written = if n % 3 == 2 {
                    let (due, gap, key) =
                        (vec![None::<SystemTime>], vec![Some(0_f64)], vec![None::<&str>]);
                    let (states, error) = (vec!["waiting"], vec![Some("no")]);
                    transaction.query(
                        statements["change"],
                        &[&vec![id], &vec![fence], &states, &due, &gap, &error, &vec![1_i32], &key],
                    )
                } else {
                    transaction.query(statements["done"], &[id, fence])
                };
                is_written = written.expect("no error").len() == 1;
                if is_written && n % 3 != 2 {
                    transaction
                        .execute("INSERT INTO ledger VALUES ($1, 2)", &[key])
                        .expect("written");
                }
                transaction.commit().expect("it commits");
            }
        }
    }
}

/// Workers and callers of version 6, whose statements the server knows already, go on beside those of this version, which keep a
/// history and traces.
pub(crate) fn workers_of_version_6_live_through_an_upgrade(database: &Database<'_>) {
    database.execute(&MIGRATIONS[..6].concat());
    database.execute("CREATE TABLE ledger (key text NOT NULL, version integer NOT NULL)");
    let (scheduled, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let is_up = AtomicBool::new(false);
    let timers = thread::scope(|scope| {
        let end = End(&done);
        for worker in 0..2 {
            let done = &done;
            scope.spawn(move || work_as_version_6(database, worker, done));
        }
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                let (scheduled, is_up) = (&scheduled, &is_up);
                scope.spawn(move || schedule_as_version_6(database, caller, scheduled, is_up))
            })
            .collect();
        until("it is in the middle of it", || scheduled.load(Ordering::Relaxed) > BEFORE);
        let timers = Timers::open(&database.address()).expect("it is brought up to date");
        let worker = timers.worker().history(PATIENCE).keep_dead(PATIENCE);
        let _worker = worker
            .handle_in_postgres("mail", |run, transaction| {
                transaction.execute("INSERT INTO ledger VALUES ($1, 7)", &[&run.key()])?;
                Ok(())
            })
            .poll_every(PATIENCE)
            .start(Scheduler::global())
            .expect("it starts");
        is_up.store(true, Ordering::Relaxed);
        for n in 0..2 * EACH {
            let new = NewTimer::new("mail", format!("new {n}"), Duration::ZERO).trace("t");
            timers.schedule(&new).expect("scheduled");
        }
        for caller in callers {
            caller.join().expect("its statements work before, during and after the upgrade");
        }
        until("all have run", || {
            database.number("SELECT count(*) FROM tickwheel_timers WHERE kind = 'mail'") == 0
        });
        drop(end);
        timers
    });
    let count = |of: &str| database.number(&format!("SELECT count(*) FROM ledger WHERE {of}"));
    assert_eq!(
        (count("true"), database.number("SELECT count(DISTINCT key) FROM ledger")),
        (ALL, ALL)
    );
    assert!(count("version = 6 AND key LIKE 'new %'") > 0, "an older worker runs new timers");
    assert!(count("version = 7 AND key LIKE 'old %'") > 0, "a newer worker runs old timers");
    let past = timers.history(&HistoryFilter::new().limit(9999)).expect("a history");
    assert!(past.iter().all(|of| of.outcome == Outcome::Done));
    let of_newer = i64::try_from(past.len()).expect("few");
    assert_eq!(of_newer, count("version = 7"), "of the newer workers alone");
    let is_traced = |key: &str| key.starts_with("new ");
    assert!(past.iter().all(|of| of.trace.is_some() == is_traced(&of.key)));
    assert_eq!(timers.counts().expect("counts").iter().map(|of| of.dead).sum::<u64>(), 0);
}

/// The last quarter comes when a worker of this version runs, or it may be too late for those.
fn schedule_as_version_6(
    database: &Database<'_>,
    caller: usize,
    scheduled: &AtomicUsize,
    is_up: &AtomicBool,
) {
    let statements = named(include_str!("version_6.sql"));
    let mut client = client(&database.url());
    let mut prepare = |name: &str| client.prepare(statements[name]).expect("it is prepared");
    let [one, many, get] = ["schedule", "schedule many", "get"].map(&mut prepare);
    for n in 0..EACH {
        if n == EACH / 4 * 3 {
            until("a newer worker runs", || is_up.load(Ordering::Relaxed));
        }
        let key = format!("old {caller} {n}");
        let payload = b"payload".as_slice();
        let put_in = if n % 2 == 0 {
            client.query(&one, &[&"mail", &key, &payload, &false])
        } else {
            client.query(&many, &[&vec!["mail"], &vec![&key], &vec![payload], &false])
        };
        assert_eq!(put_in.expect("scheduled").len(), 1);
        // One that waits while the table gets another column knows the old ones. The next one does not.
        if let Err(error) = client.query(&get, &[&"mail", &key]) {
            assert_eq!(error.code(), Some(&SqlState::DATATYPE_MISMATCH), "{error}");
            client.query(&get, &[&"mail", &key]).expect("it is there, or has run");
        }
        scheduled.fetch_add(1, Ordering::Relaxed);
    }
}

fn work_as_version_6(database: &Database<'_>, worker: usize, done: &AtomicBool) {
    let statements = named(include_str!("version_6.sql"));
    let mut client = client(&database.url());
    let owner = format!("version 6, {worker}");
    let names = ["claim", "claim within limits", "let go", "change", "done"];
    let [claim, claim_within, let_go, change, end] =
        names.map(|name| client.prepare(statements[name]).expect("it is prepared"));
    let none = (None::<SystemTime>, None::<i64>);
    let mut round = 0;
    while !done.load(Ordering::Relaxed) {
        round += 1;
        let claimed = if round % 2 == 0 {
            let bytes = 16_i64 << 20;
            client.query(
                &claim,
                &[&"mail", &7_i64, &owner, &60_000_f64, &6_i32, &bytes, &none.0, &none.1],
            )
        } else {
            client.query(&claim_within, &[&"mail", &7_i32, &owner, &60_000_f64, &6_i32])
        };
        let claimed: Vec<(i64, i64, String)> = claimed
            .expect("a claim")
            .iter()
            .filter(|row| row.get::<_, Option<&str>>("before").is_some())
            .map(|row| (row.get("id"), row.get("fence"), row.get("key")))
            .collect();
        if claimed.is_empty() {
            thread::sleep(Duration::from_millis(1)); // it polls
        }
        for (n, (id, fence, key)) in claimed.iter().enumerate() {
            // A claim of another worker may look at the row for a moment. So each outcome is tried until it is written.
            let mut is_written = false;
            while !is_written {
                // Each third run fails first, and is tried again at once.
                let mut transaction = client.transaction().expect("a transaction");
                let written = if n % 3 == 2 {
                    let (due, gap, key) =
                        (vec![None::<SystemTime>], vec![Some(0_f64)], vec![None::<&str>]);
                    let (states, error) = (vec!["waiting"], vec![Some("no")]);
                    transaction.query(
                        &change,
                        &[&vec![id], &vec![fence], &states, &due, &gap, &error, &vec![1_i32], &key],
                    )
                } else {
                    transaction.query(&end, &[id, fence])
                };
                is_written = written.expect("no error").len() == 1;
                if is_written && n % 3 != 2 {
                    transaction
                        .execute("INSERT INTO ledger VALUES ($1, 6)", &[key])
                        .expect("written");
                }
                transaction.commit().expect("it commits");
            }
        }
        let fences: Vec<_> = claimed.iter().map(|(_, fence, _)| *fence).collect();
        client.execute(&let_go, &[&fences]).expect("no error");
    }
}
