//! Many timers: a worker does not walk over what it has done, misses nothing for that, and no statement reads the whole table.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{
    Attempt, Claim, ClaimedTimer, Connection, Existing, Filter, Finish, HistoryFilter, Limits,
    NewTimer, Outcome, Purge, State, Store, Then, Timers, When, Worker, postgres::Postgres,
};

use super::common::{PATIENCE, until};
use super::databases::{Database, client, say};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Puts in timers of the kind `mail`, of which one is due each millisecond from so long ago on.
fn put(database: &Database<'_>, name: &str, count: u32, ago: &str) {
    database.execute(&format!(
        "INSERT INTO tickwheel_timers (kind, key, due)
        SELECT 'mail', '{name} ' || n, now() - interval '{ago}' + n * interval '1 millisecond'
        FROM generate_series(1, {count}) n; ANALYZE tickwheel_timers"
    ));
}

/// Puts in as many attempts, of which each three hundredth has failed.
fn put_past(database: &Database<'_>, name: &str, count: u32, ago: &str) {
    database.execute(&format!(
        "INSERT INTO tickwheel_history (kind, key, due, started, late_us, took_us, attempt, fence, outcome, worker)
        SELECT 'mail', '{name} ' || n % 1000, now(), now() - interval '{ago}' + n * interval '1 millisecond', 0, 0, 1, n,
            CASE n % 300 WHEN 0 THEN 'failed' ELSE 'done' END, 'me'
        FROM generate_series(1, {count}) n; ANALYZE tickwheel_history"
    ));
}

// ----- what is overdue -----------------------------------------------------------------------

/// The worst case: a transaction that is open all the time, so that the server can remove nothing. The size is small, so that
/// the test is quick; `TICKWHEEL_DRAIN=1000000` shows more.
pub(crate) fn a_drain_does_not_walk_over_what_is_done(database: &Database<'_>) {
    let count: u32 =
        env::var("TICKWHEEL_DRAIN").map_or(30_000, |count| count.parse().expect("a number"));
    for is_watched in [false, true] {
        let timers = database.open();
        put(database, "overdue", count, "1 day");
        put(database, "pending", count, "-1 day");
        let mut report = client(&database.url());
        if is_watched {
            let begin =
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tickwheel_timers";
            report.batch_execute(begin).expect("it reads");
        }
        let entries = "SELECT idx_tup_read::bigint FROM pg_stat_user_indexes
            WHERE indexrelid = 'tickwheel_timers_wake'::regclass";
        let before = database.number(entries);
        let begin = Instant::now();
        let worker = timers.worker().handle("mail", |_| Ok(()));
        let worker = worker.start(&Scheduler::new()).expect("it starts");
        let (mut done, mut at, mut paces) = (0, begin, Vec::new());
        while done < u64::from(count) {
            thread::sleep(Duration::from_millis(250)); // the pace is shown, which takes real time
            let (now, is_done) = (Instant::now(), worker.stats().done);
            let millis = u64::try_from((now - at).as_millis()).expect("few");
            paces.push((is_done - done) * 1000 / millis.max(1));
            (at, done) = (now, is_done);
        }
        let seconds = i64::try_from(begin.elapsed().as_secs()).expect("few");
        assert!(worker.stop(PATIENCE));
        drop((worker, timers));
        until_sessions_have_ended(database);
        let read = database.number(entries) - before;
        say(&format!(
            "sql, {count} overdue, beside a long transaction {is_watched}: {read} entries read, {paces:?} a second"
        ));
        // Each entry once, and in each second all of them by a look at the first one, and by the claim that follows it. Without floors
        // it is thirty times and more.
        let most = i64::from(count) * (4 + 3 * seconds);
        assert!(read > i64::from(count) && read < most, "{read} entries, at most {most}");
        drop(report);
        database.execute("DELETE FROM tickwheel_timers; ANALYZE tickwheel_timers");
    }
}

/// A session of ours that has ended has said what it has read.
fn until_sessions_have_ended(database: &Database<'_>) {
    until("the sessions have ended", || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tickwheel'
            AND datname = current_database()";
        database.number(sessions) == 0
    });
}

/// The server has vacuumed the table while it was empty, and believes that it is. What comes then is claimed and written about as fast
/// as what the server knows. Most of what is in the table is not due yet.
pub(crate) fn a_burst_into_a_table_that_was_empty_is_quick(database: &Database<'_>) {
    const ROWS: u32 = 7000;
    drop(database.open());
    let store = Postgres::new(&database.url()).expect("an address");
    database.execute("ALTER TABLE tickwheel_timers SET (autovacuum_enabled = off)");
    // The server has never looked at what is in the columns either.
    database.execute(
        "INSERT INTO tickwheel_timers (kind, key, due)
        SELECT 'mail', n, now() + interval '1 day' FROM generate_series(1, 200) n",
    );
    let took = |is_known: bool| {
        // One statement by itself, because it cannot be in a transaction.
        database.execute("DELETE FROM tickwheel_timers");
        database.execute("VACUUM (TRUNCATE OFF) tickwheel_timers");
        let counted = "SELECT (reltuples + relpages * 1000000)::bigint FROM pg_class WHERE oid = 'tickwheel_timers'::regclass";
        let counted = database.number(counted);
        assert!(counted > 0 && counted % 1_000_000 == 0, "some pages and no rows: {counted}");
        database.execute(&format!(
            "INSERT INTO tickwheel_timers (kind, key, due)
            SELECT 'mail', n, now() + CASE n % 10 WHEN 0 THEN interval '-1 hour' ELSE interval '1 day' END
            FROM generate_series(1, {ROWS}) n"
        ));
        if is_known {
            database.execute("ANALYZE tickwheel_timers");
        }
        let mut connection = store.connect().expect("it connects");
        [0; 3].map(|_| {
            let begin = Instant::now();
            let claim = Claim::new("mail", "me").limit(128).lease(HOUR);
            let claimed = connection.claim(&claim).expect("a claim").timers;
            let claim = begin.elapsed();
            let finish = |of: &ClaimedTimer, then| Finish::new(of.timer.run(), 1, then);
            let (done, failed) = claimed.split_at(64);
            let done = done.iter().map(|of| finish(of, Then::Done));
            let failed = failed.iter().map(|of| finish(of, Then::Retry(HOUR, "no".into())));
            let finishes: Vec<_> = done.chain(failed).collect();
            let begin = Instant::now();
            let changed = connection.finish(&finishes).expect("no error").changed;
            assert_eq!((claimed.len(), changed.len()), (128, 128));
            (claim, begin.elapsed())
        })
    };
    let (unknown, known) = (took(false), took(true)); // its indexes are small at first
    say(&format!(
        "sql, 128 are claimed and written: {known:?}, and {unknown:?} after a vacuum of the empty table"
    ));
    // Each row was compared with each that was locked, which took fifty times as long. The shortest, because the machine may be busy.
    let shortest = |all: &[(Duration, Duration)], of: fn(&(Duration, Duration)) -> Duration| {
        all.iter().map(of).min().expect("some")
    };
    let claims: fn(&(Duration, Duration)) -> Duration = |took| took.0;
    for of in [claims, |took| took.1] {
        let most = shortest(&known, of) * 10 + Duration::from_millis(20);
        assert!(shortest(&unknown, of) < most, "{known:?}, {unknown:?}");
    }
}

/// The server has not counted a backlog yet. A claim takes the first of it from the index, and does not sort all of it.
pub(crate) fn a_backlog_that_is_not_counted_is_not_sorted(database: &Database<'_>) {
    drop(database.open());
    database.execute("ALTER TABLE tickwheel_timers SET (autovacuum_enabled = off)");
    database.execute(
        "INSERT INTO tickwheel_timers (kind, key, due)
        SELECT 'mail', n, now() - interval '1 hour' + n * interval '1 millisecond' FROM generate_series(1, 20000) n",
    );
    let store = Postgres::new(&database.url()).expect("an address");
    let mut connection = store.connect().expect("it connects");
    let claim = Claim::new("mail", "me").limit(100).lease(HOUR);
    assert_eq!(connection.claim(&claim).expect("a claim").timers.len(), 100);
    drop(connection);
    until_sessions_have_ended(database);
    let entries = "SELECT idx_tup_read::bigint FROM pg_stat_user_indexes
        WHERE indexrelid = 'tickwheel_timers_wake'::regclass";
    let read = database.number(entries);
    say(&format!("sql, 100 of 20000 that are not counted: {read} entries read"));
    assert!((100..1000).contains(&read), "{read} entries");
}

// ----- what comes below the floor ------------------------------------------------------------

/// A worker that always has something to claim, so that it has a floor, and how late others than these ran, by its clock.
struct Busy {
    worker: Worker,
    late: mpsc::Receiver<(String, Instant)>,
}

fn busy(timers: &Timers) -> Busy {
    let (tell, late) = mpsc::channel();
    let worker = timers.worker().poll_every(Duration::from_millis(5)).handle("mail", move |run| {
        if !run.key().starts_with("stream") {
            tell.send((run.key().to_owned(), Instant::now()))?;
        }
        Ok(())
    });
    Busy { worker: worker.start(&Scheduler::new()).expect("it starts"), late }
}

impl Busy {
    fn ran(&self, key: &str) -> Instant {
        let (ran, at) = self.late.recv_timeout(PATIENCE).expect("nothing is lost");
        assert_eq!(ran, key);
        at
    }
}

/// Calls the function while a timer comes due each few milliseconds.
fn in_a_stream(database: &Database<'_>, body: impl FnOnce()) {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed); // it orders nothing
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = client(&database.url());
            for n in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let sql = "INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', 'stream ' || $1::text, clock_timestamp())";
                stream.execute(sql, &[&format!("{n}")]).expect("it is put in");
                thread::sleep(Duration::from_millis(3));
            }
        });
        let _end = End(&is_over);
        thread::sleep(Duration::from_millis(200)); // so that there is a floor, as time passes
        body();
    });
}

/// The middle one of some tries. Of those that wait for a floor to end, it is half a second.
fn middle(tries: impl Iterator<Item = Duration>) -> Duration {
    let mut all: Vec<_> = tries.collect();
    all.sort();
    println!("  {all:?}");
    all[all.len() / 2]
}

/// Nobody tells of them. What was due long ago waits for the end of the floor, and what commits within a second does not.
pub(crate) fn what_commits_late_is_not_missed(database: &Database<'_>) {
    let timers = database.open();
    database.execute("SELECT tickwheel_set_notices('never')");
    let busy = busy(&timers);
    in_a_stream(database, || {
        let commit_late = |key: &str, due: &str, taking: u64| {
            let commit = database.begin(&format!(
                "BEGIN; INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', '{key}', {due})"
            ));
            thread::sleep(Duration::from_millis(taking)); // the floor rises, as time passes
            commit();
            let committed = Instant::now();
            busy.ran(key).saturating_duration_since(committed)
        };
        for n in 0..3 {
            let late = commit_late(&format!("old {n}"), "now() - interval '1 day'", 50);
            assert!(late < Duration::from_secs(5), "{late:?} late");
        }
        let tries = (0..7).map(|n| commit_late(&format!("new {n}"), "clock_timestamp()", 370));
        assert!(middle(tries) < Duration::from_millis(200), "it waits for the end of a floor");
    });
    assert!(busy.worker.stop(PATIENCE));
}

/// Another process moves a timer to a time that the floor has passed. It is told of that.
pub(crate) fn what_is_moved_below_the_floor_comes_at_once(database: &Database<'_>) {
    let (timers, other) = (database.open(), database.open());
    let busy = busy(&timers);
    in_a_stream(database, || {
        let tries = (0..7).map(|n| {
            let key = format!("moved {n}");
            other.schedule(&NewTimer::new("mail", key.as_str(), HOUR)).expect("scheduled");
            thread::sleep(Duration::from_millis(170)); // at another place of the second each time
            let moved = Instant::now();
            let long_ago = SystemTime::now() - DAY * (n + 1);
            assert!(other.reset("mail", &key, long_ago).expect("no error"));
            busy.ran(&key).saturating_duration_since(moved)
        });
        assert!(middle(tries) < Duration::from_millis(200), "it waits for the end of a floor");
    });
    assert!(busy.worker.stop(PATIENCE));
}

/// Two workers pass over a timer that somebody holds, and over one that a worker has that is dead.
pub(crate) fn what_was_held_below_the_floor_is_not_missed(database: &Database<'_>) {
    let timers = database.open();
    let mut dead =
        Postgres::new(&database.url()).expect("an address").connect().expect("it connects");
    let due = |key: &str| NewTimer::new("mail", key, SystemTime::now() - HOUR);
    dead.schedule(&[due("leased")], Existing::Replace).expect("scheduled");
    let lease = Duration::from_millis(700);
    let ends = Instant::now() + lease; // or a little later
    let claimed = dead.claim(&Claim::new("mail", "dead").lease(lease)).expect("a claim");
    assert_eq!(claimed.timers.len(), 1);
    dead.schedule(&[due("held")], Existing::Replace).expect("scheduled");
    let let_go =
        database.begin("BEGIN; SELECT * FROM tickwheel_timers WHERE key = 'held' FOR UPDATE");
    let (one, two) = (busy(&timers), busy(&timers));
    in_a_stream(database, || {
        let ran = || {
            let mut ran = None;
            until("nothing is lost", || {
                ran = one.late.try_recv().or_else(|_| two.late.try_recv()).ok();
                ran.is_some()
            });
            ran.expect("it ran")
        };
        let (key, at) = ran();
        assert_eq!(key, "leased");
        assert!(at + Duration::from_millis(50) > ends, "before the end of the lease");
        assert!(at.saturating_duration_since(ends) < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(300)); // the floors rise, as time passes
        let_go();
        let free = Instant::now();
        let (key, at) = ran();
        assert_eq!(key, "held");
        assert!(at.saturating_duration_since(free) < Duration::from_secs(5));
    });
    assert!(one.worker.stop(PATIENCE) && two.worker.stop(PATIENCE));
    assert_eq!(one.worker.stats().taken_over + two.worker.stats().taken_over, 1);
}

/// Many timers are due at the same microsecond, so the floor counts them by their numbers.
pub(crate) fn a_floor_leaves_out_what_is_below_it_alone(database: &Database<'_>) {
    let store = Postgres::new(&database.url()).expect("an address");
    store.migrate().expect("tables");
    let mut connection = store.connect().expect("it connects");
    let due = SystemTime::now() - HOUR;
    let new: Vec<_> = (0..20).map(|n| NewTimer::new("mail", format!("{n:02}"), due)).collect();
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    let (mut floor, mut keys) = (None, Vec::new());
    for _ in 0..5 {
        let look = connection.look_above(&[("mail", floor)], HOUR, 100).expect("a look");
        assert!(look.wakes.len() >= 20 - keys.len());
        let claim = Claim::new("mail", "me").limit(4).lease(HOUR * 2).floor(floor);
        let claimed = connection.claim(&claim).expect("a claim");
        floor = claimed.timers.last().map(|last| (last.woke, last.timer.id));
        keys.extend(claimed.timers.into_iter().map(|claimed| claimed.timer.key));
    }
    assert_eq!(keys, new.iter().map(|new| new.key.clone()).collect::<Vec<_>>());
    // What is below is left out, and there without a floor.
    connection
        .schedule(&[NewTimer::new("mail", "low", due - HOUR)], Existing::Replace)
        .expect("scheduled");
    let claim = Claim::new("mail", "me").floor(floor);
    assert!(connection.claim(&claim).expect("a claim").timers.is_empty());
    assert!(connection.look_above(&[("mail", floor)], HOUR, 9).expect("a look").wakes.is_empty());
    assert_eq!(connection.claim(&claim.floor(None)).expect("a claim").timers.len(), 1);
}

// ----- what the statements read --------------------------------------------------------------

type Statement = (&'static str, i64, Box<dyn FnMut(&mut dyn Connection)>);

/// What workers and calls do, how many pages each may read, and the doing of it.
fn statements() -> Vec<Statement> {
    let claim = |of: &mut dyn Connection, limit: u32| {
        let claim = Claim::new("mail", "me").limit(limit).lease(HOUR * 9);
        let claimed = of.claim(&claim).expect("a claim").timers;
        claimed.into_iter().map(|claimed| claimed.timer.run()).collect::<Vec<_>>()
    };
    let finish = move |of: &mut dyn Connection, then: Then| {
        let runs = claim(of, 10);
        let finishes: Vec<_> = runs.iter().map(|run| Finish::new(*run, 1, then.clone())).collect();
        assert_eq!(of.finish(&finishes).expect("no error").changed.len(), runs.len());
    };
    let later = || Then::Next(SystemTime::now() + HOUR * 24 * 365);
    let mut n = 0;
    let mut key = move || {
        n += 1;
        format!("new {n}")
    };
    vec![
        ("claim and done", 500, Box::new(move |of| finish(of, Then::Done))),
        (
            "claim with limits, hold and let go",
            500,
            Box::new(|of| {
                let mut limits = Limits::default();
                limits.at_most = Some(1_000_000);
                limits.rate = Some((1_000_000, HOUR));
                let claim = Claim::new("mail", "me").limit(10).lease(HOUR * 9);
                let claimed = of.claim(&claim.limits(Some(limits))).expect("a claim");
                limits.serial_by = Some(' ');
                let passed = of.claim(&claim.limits(Some(limits))).expect("a claim");
                assert!(passed.timers.len() <= 10);
                let fences: Vec<_> = claimed.timers.iter().map(|of| of.timer.fence).collect();
                of.hold(&fences, HOUR).expect("no error");
                of.let_go(&fences).expect("no error");
            }),
        ),
        (
            "claim and retry",
            700,
            Box::new(move |of| finish(of, Then::Retry(HOUR * 99, "x".into()))),
        ),
        ("claim and next", 700, Box::new(move |of| finish(of, later()))),
        ("claim and dead", 700, Box::new(move |of| finish(of, Then::Dead("x".into())))),
        (
            "claim, start and extend",
            200,
            Box::new(move |of| {
                let runs = claim(of, 1);
                runs.iter().for_each(|run| assert!(of.start(*run, 1).expect("no error")));
                of.extend(&runs, HOUR * 9).expect("no error");
            }),
        ),
        (
            "look",
            100,
            Box::new(|of| {
                let look = of.look(&["mail", "none"], HOUR, 100).expect("a look");
                assert!(!look.wakes.is_empty());
            }),
        ),
        (
            "schedule, reset, get and cancel",
            200,
            Box::new(move |of| {
                let key = key();
                let new = NewTimer::new("mail", key.as_str(), HOUR);
                of.schedule(std::slice::from_ref(&new), Existing::Replace).expect("scheduled");
                of.schedule(&[new.clone(), new], Existing::Replace).expect("scheduled");
                assert!(of.reset("mail", &key, When::After(HOUR * 2)).expect("no error").is_some());
                assert!(of.get("mail", &key).expect("no error").is_some());
                assert!(of.cancel("mail", &key).expect("no error").is_some());
            }),
        ),
        (
            "list of the next, of what is due, and a page",
            200,
            Box::new(|of| {
                let filter = Filter::new().kind("mail").limit(20);
                let page = of.list(&filter).expect("a list");
                of.list(&filter.clone().until(SystemTime::now())).expect("a list");
                assert_eq!(of.list(&filter.after(&page[19])).expect("a list").len(), 20);
            }),
        ),
        (
            "list of the dead, and to requeue them",
            2500,
            Box::new(|of| {
                let dead = Filter::new().state(State::Dead).limit(50);
                of.list(&dead.clone().kind("mail")).expect("a list");
                of.list(&dead).expect("a list");
                of.requeue("mail", Some("of another"), When::After(HOUR)).expect("no error");
                of.requeue("mail", None, When::After(HOUR * 9)).expect("no error");
            }),
        ),
    ]
}

/// The same of what is about the past, and of many timers.
fn statements_about_the_past() -> Vec<Statement> {
    vec![
        (
            "claim, and each outcome with its attempt",
            900,
            Box::new(move |of| {
                let claim = Claim::new("mail", "me").limit(4).lease(HOUR * 9);
                let claimed = of.claim(&claim).expect("a claim");
                let (retry, error, key) =
                    (None, Some("x".to_owned()), format!("{:?}@", claimed.now));
                let thens = [
                    Then::Done,
                    Then::Retry(HOUR * 99, "x".to_owned()),
                    Then::Split { next: SystemTime::now() + HOUR, key, retry, error },
                    Then::Dead("x".to_owned()),
                ];
                let finishes = claimed.timers.iter().zip(thens).map(|(of, then)| {
                    let (of, started) = (&of.timer, claimed.now);
                    let record =
                        Attempt::new("mail", of.key.clone(), started, of.fence, Outcome::Done);
                    Finish::new(of.run(), 1, then).record(Some(record))
                });
                let finishes: Vec<_> = finishes.collect();
                assert_eq!(of.finish(&finishes).expect("written").changed.len(), finishes.len());
            }),
        ),
        (
            "to change a payload, and to cancel a page",
            400,
            Box::new(|of| {
                let page = of.list(&Filter::new().kind("mail").limit(20)).expect("a list");
                let key = &page[10].key;
                _ = of.set_payload("mail", key, b"new").expect("no error");
                let few = Filter::new().kind("mail").state(State::Waiting).limit(3);
                assert_eq!(of.cancel_all(&few).expect("no error"), 3);
                of.cancel_all(&few.state(State::Dead)).expect("no error");
            }),
        ),
        (
            "history of all, of a timer, of failures, and a page",
            400,
            Box::new(|of| {
                let all = HistoryFilter::new().limit(20);
                let page = of.history(&all).expect("a history");
                assert_eq!(of.history(&all.clone().before(&page[19])).expect("a page").len(), 20);
                let of_timer = all.clone().kind("mail").key(page[0].key.as_str());
                assert!(!of.history(&of_timer).expect("a history").is_empty());
                let failed = all.clone().outcome(Outcome::Failed);
                assert!(!of.history(&failed).expect("a history").is_empty());
                of.history(&failed.kind("mail")).expect("a history");
                of.history(&all.since(SystemTime::now())).expect("a history");
                of.pace(Duration::from_secs(1), HOUR).expect("a pace");
            }),
        ),
        (
            "to remove a batch of the oldest attempts, and of the dead",
            2500,
            Box::new(|of| {
                let before = SystemTime::now() - HOUR;
                let mut purge = Purge::new(Some("mail"), before);
                purge.limit = 100;
                of.purge_history(&purge).expect("no error");
                purge.kind = None;
                of.purge_history(&purge).expect("no error");
                of.purge_dead("mail", HOUR, i64::MIN, 100).expect("no error");
            }),
        ),
    ]
}

/// Each statement, on a connection that has known the table when it was empty, reads a few pages of a table that has grown.
pub(crate) fn no_statement_reads_the_whole_table(database: &Database<'_>) {
    const TIMES: i64 = 8;
    drop(database.open());
    let mut config: ::postgres::Config = database.url().parse().expect("an address");
    config.application_name("tickwheel");
    let store = Postgres::with_connector(move || config.connect(::postgres::NoTls));
    let mut statements = statements();
    statements.extend(statements_about_the_past());
    let read = "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint
        FROM pg_statio_user_tables WHERE relid IN ('tickwheel_timers'::regclass, 'tickwheel_history'::regclass)";
    let whole = "SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables
        WHERE relid IN ('tickwheel_timers'::regclass, 'tickwheel_history'::regclass)";
    let mut connections: Vec<_> =
        statements.iter().map(|_| store.connect().expect("it connects")).collect();
    put(database, "small", 300, "1 day");
    put_past(database, "small", 300, "1 day");
    for (connection, (_, _, statement)) in connections.iter_mut().zip(&mut statements) {
        (0..6).for_each(|_| statement(&mut **connection));
    }
    // The statistics are the server's business, and stay as they were for a small table.
    database.execute("ALTER TABLE tickwheel_timers SET (autovacuum_enabled = off)");
    put(database, "overdue", 50_000, "2 days");
    put(database, "pending", 50_000, "-1 day");
    database.execute("ALTER TABLE tickwheel_history SET (autovacuum_enabled = off)");
    put_past(database, "large", 100_000, "2 days");
    drop(connections);
    until_sessions_have_ended(database);
    for (name, most, statement) in &mut statements {
        let mut connection = store.connect().expect("it connects");
        let before = (database.number(read), database.number(whole));
        (0..TIMES).for_each(|_| statement(&mut *connection));
        drop(connection);
        until_sessions_have_ended(database);
        let pages = (database.number(read) - before.0) / TIMES;
        println!("  {name}: {pages} pages");
        assert_eq!(database.number(whole), before.1, "{name}: the whole table is read");
        assert!(pages > 0 && pages <= *most, "{name}: {pages} pages");
    }
}

/// Somebody locks a timer until long after it is due. It runs soon after that, and does not wait for a look without a reason.
pub(crate) fn what_was_locked_for_long_comes_soon(database: &Database<'_>) {
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("mail", move |run| Ok(tell.send(run.key().to_owned())?));
    let worker = worker.start(&Scheduler::new()).expect("it starts");
    let soon = Duration::from_millis(2500); // it is locked by then, also on a busy machine
    let batch = ["1", "2", "locked"].map(|key| NewTimer::new("mail", key, soon));
    timers.schedule_all(&batch).expect("scheduled");
    let let_go =
        database.begin("BEGIN; SELECT * FROM tickwheel_timers WHERE key = 'locked' FOR UPDATE");
    let mut others: Vec<_> =
        (0..2).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    others.sort();
    assert_eq!(others, ["1", "2"]);
    thread::sleep(Duration::from_millis(3500)); // the lock, in real time
    let looks = worker.stats().looks;
    assert!(looks < 20, "{looks} looks");
    let_go();
    assert_eq!(told.recv_timeout(Duration::from_secs(10)).expect("a look was near"), "locked");
    until("it is done", || worker.stats().done == 3);
    let looks = || worker.stats().looks + worker.stats().claims;
    let before = looks();
    thread::sleep(Duration::from_millis(3500)); // nothing is due, so the looks end
    assert!(looks() - before <= 4, "{before}, {}", looks());
    assert!(worker.stop(PATIENCE));
}
