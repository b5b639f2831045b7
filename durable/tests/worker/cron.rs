//! Series by cron rules, as workers run them.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::cron::{Cron, Missed};
use tickwheel_durable::{
    Error, Existing, Failure, NewTimer, Repetition, State, Table, Timers, postgres, sqlite,
};

use super::common::{PATIENCE, until};
use super::databases::{Database, client};
use super::{HOUR, Log, NOW, SOON, mail, next, noting, quick};

fn hourly() -> Cron {
    Cron::parse("@hourly").expect("an expression")
}

/// A series whose first run was due some hours ago.
fn missed(key: &str, policy: Missed, since: SystemTime) -> NewTimer {
    mail(key, since).rule(hourly().missed(policy).to_string())
}

fn due(timers: &Timers, key: &str) -> SystemTime {
    timers.get("mail", key).expect("no error").expect("there").due
}

pub(crate) fn a_cron_rule_needs_no_hook(database: &Database<'_>) {
    let timers = database.open();
    let cron = Cron::parse("30 2 * * *").expect("an expression");
    let cron = cron.in_zone("Australia/Lord_Howe").expect("a zone");
    let (worker, seen) = noting(&timers);
    let worker = worker.rules(|rule, after| {
        assert_eq!(rule, "mine", "the others are not for the hook");
        Ok(Some(after + HOUR))
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let now = timers.now().expect("a time");
    let first = timers.schedule(&NewTimer::cron("mail", "1", &cron)).expect("scheduled").due;
    assert_eq!(Some(first), cron.next_after(now));
    // Run now by hand. What follows is at a time of the rule.
    assert!(timers.reset("mail", "1", NOW).expect("no error"));
    let run = next(&seen);
    assert!(run.due < now + HOUR && run.due >= now - SOON, "{run:?}");
    until("it waits again", || due(&timers, "1") == first);
    timers.schedule(&mail("2", NOW).rule("mine")).expect("scheduled");
    assert_eq!(next(&seen).key, "2");
    // In a transaction of the handler's, and in one of the caller's.
    until("both are written", || worker.stats().done == 2);
    assert!(worker.stop(PATIENCE));
    let new = [NewTimer::cron("mail", "3", &cron), mail("4", HOUR)];
    match database {
        Database::File(path) => {
            let mine = rusqlite::Connection::open(path).expect("it opens");
            sqlite::within(&mine).schedule(&new, Existing::Keep).expect("scheduled");
        }
        Database::Schema { .. } => {
            let mut mine = client(&database.url());
            let mut mine = mine.transaction().expect("it begins");
            postgres::within(&mut mine).schedule(&new, Existing::Keep).expect("scheduled");
            mine.commit().expect("it commits");
        }
    }
    assert_eq!(due(&timers, "3"), first);
}

pub(crate) fn what_was_missed_runs_as_the_policy_says(database: &Database<'_>) {
    let timers = database.open();
    let since = timers.now().expect("a time") - HOUR * 5;
    let series = [
        ("all", Missed::All),
        ("once", Missed::Once),
        ("skip", Missed::Skip),
        ("new", Missed::Skip),
        ("by hand", Missed::Skip),
    ];
    let series = series.map(|(key, policy)| missed(key, policy, since));
    timers.schedule_all(&series).expect("scheduled");
    let first = due(&timers, "all");
    assert!(first >= since && first < since + HOUR, "the first time of the rule from then on");
    timers.reset("mail", "new", NOW).expect("no error");
    timers.reset("mail", "by hand", since).expect("no error"); // which has passed, so it is due now
    // An attempt that follows another one is not skipped, and neither is one that was put off.
    for key in ["again", "put off"] {
        timers.schedule(&missed(key, Missed::Skip, since)).expect("scheduled");
    }
    database.execute("UPDATE tickwheel_timers SET attempts = 1 WHERE key = 'again'");
    let hour = if database.is_sqlite() { "3600000" } else { "interval '1 hour'" };
    database.execute(&format!(
        "UPDATE tickwheel_timers SET held_until = due + {hour} WHERE key = 'put off'"
    ));
    let (worker, seen) = noting(&timers);
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let is_late = |key: &str| due(&timers, key) <= timers.now().expect("a time");
    until("all wait for what is to come", || {
        !["all", "once", "skip", "new", "by hand", "again", "put off"].into_iter().any(is_late)
    });
    until("all is written", || worker.stats().running == 0);
    let runs: Vec<_> = seen.try_iter().collect();
    let of = |key: &str| -> Vec<_> {
        runs.iter().filter(|run| run.key == key).map(|run| run.due).collect()
    };
    // An hour may have begun in the meantime.
    let all = of("all");
    assert!(all.len() == 5 || all.len() == 6, "{all:?}");
    let each = (0..).map(|hours| first + HOUR * hours);
    assert_eq!(all, each.take(all.len()).collect::<Vec<_>>());
    assert_eq!(of("once")[0], first);
    assert_eq!((of("again")[0], of("put off")[0]), (first, first));
    assert!(!of("new").is_empty());
    assert!(of("by hand")[0] >= since + HOUR * 5);
    assert!(!of("skip").contains(&first), "its handler is not called");
    assert!(worker.stats().skipped >= 1, "{:?}", worker.stats());
    assert_eq!(worker.stats().done, runs.len() as u64);
    let next_hour = hourly().next_after(timers.now().expect("a time"));
    assert!(Some(due(&timers, "skip")) <= next_hour);
}

pub(crate) fn a_run_that_fails_holds_up_no_missed_one(database: &Database<'_>) {
    let timers = database.open();
    let (log, seen) = Log::new();
    let (tell, told) = mpsc::channel();
    let since = timers.now().expect("a time") - HOUR * 3;
    timers.schedule(&missed("1", Missed::All, since)).expect("scheduled");
    let first = due(&timers, "1");
    let worker = timers
        .worker()
        .handle("mail", move |run| {
            log.add(run);
            if run.due() == first { Err(Failure::new("no luck")) } else { Ok(()) }
        })
        .retry(quick(2))
        .serial_by('@')
        .on_dead(move |timer, _| _ = tell.send(timer.clone()))
        .start(Scheduler::global())
        .expect("it starts");
    let dead = told.recv_timeout(PATIENCE).expect("it is told");
    let millis = first.duration_since(SystemTime::UNIX_EPOCH).expect("later").as_millis();
    assert_eq!((dead.key, dead.due, dead.attempts), (format!("1@{millis}"), first, 2));
    until("the series goes on", || due(&timers, "1") > timers.now().expect("a time"));
    assert!(worker.stop(PATIENCE));
    let runs: Vec<_> = seen.try_iter().collect();
    assert_eq!(runs.iter().filter(|run| run.due == first).count(), 2, "{runs:?}");
    let of_series: Vec<_> = runs.iter().filter(|run| run.key == "1").map(|run| run.due).collect();
    assert!(of_series.len() >= 3 && of_series.is_sorted(), "{of_series:?}");
}

pub(crate) fn a_rule_that_cannot_be_is_refused_or_ends_its_timer(database: &Database<'_>) {
    let timers = database.open();
    for (rule, says) in [
        ("cron: 0 25 * * *", "no cron expression"),
        ("cron: 0 9 * * *; zone=Europe/Berln", "no time zone"),
        ("cron: 0 9 31 2 *", "never comes"),
        ("cron: 0 0 9 1 1 * 2020", "never comes"),
    ] {
        let refused = timers.schedule(&mail("1", NOW).rule(rule)).expect_err("it is refused");
        assert!(matches!(&refused, Error::Invalid(text) if text.contains(says)), "{refused}");
    }
    // What was written by SQL nobody has checked.
    let (now, due) = match database {
        Database::File(_) => ("1000 * unixepoch()", "0"),
        Database::Schema { .. } => ("now()", "'epoch'"),
    };
    let bad = "cron: 0 9 * * *; zone=Europe/Berln";
    for (key, due, rule) in [("1", now, bad), ("2", due, "cron: 0 0 9 1 1 * 2020")] {
        database.execute(&format!(
            "INSERT INTO tickwheel_timers (kind, key, due, rule) VALUES ('mail', '{key}', {due}, '{rule}')"
        ));
    }
    let (worker, seen) = noting(&timers);
    let (tell, told) = mpsc::channel();
    let worker = worker.on_dead(move |timer, why| _ = tell.send((timer.clone(), why.to_owned())));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let (dead, why) = told.recv_timeout(PATIENCE).expect("it is told");
    assert_eq!((dead.key.as_str(), dead.attempts), ("1", 1));
    assert!(why.contains(bad) && why.contains("no time zone \"Europe/Berln\""), "{why}");
    // A series that has an end is over.
    until("it is gone", || timers.get("mail", "2").expect("no error").is_none());
    assert!(worker.stop(PATIENCE));
    assert_eq!(seen.try_iter().count(), 2, "each has run once");
    // A service that starts again, with the right zone, finds its series alive.
    let cron = Cron::parse("0 9 * * *").expect("an expression");
    let cron = cron.in_zone("Europe/Berlin").expect("a zone");
    let series = NewTimer::cron("mail", "1", &cron);
    assert!(timers.keep_series(&series).expect("no error").is_some_and(|kept| kept.replaced));
    let alive = timers.get("mail", "1").expect("no error").expect("there");
    assert_eq!((alive.state, alive.attempts), (State::Waiting, 0));
}

pub(crate) fn a_series_is_kept_unless_it_has_changed(database: &Database<'_>) {
    let timers = database.open();
    let since = timers.now().expect("a time") - HOUR * 5;
    let old = missed("1", Missed::All, since).max_attempts(3).payload("a");
    let old = old.time_limit(Duration::from_micros(1_500));
    let keep = |series: &NewTimer| timers.keep_series(series).expect("no error");
    assert!(keep(&old).is_some_and(|kept| !kept.replaced));
    let first = due(&timers, "1");
    // The same, from now on: it keeps what it has missed.
    let mut same = old.clone();
    same.when = NOW.into();
    assert_eq!((keep(&same), due(&timers, "1")), (None, first));
    let every = mail("2", HOUR).every(Duration::from_micros(60_000_001));
    assert!(keep(&every).is_some() && keep(&every).is_none());
    let forever = mail("3", HOUR).every(Duration::MAX).time_limit(Duration::MAX);
    let forever = forever.max_attempts(u32::MAX);
    assert!(keep(&forever).is_some() && keep(&forever).is_none());
    // Each change counts, and its first run is to come.
    for changed in [
        same.clone().payload("b"),
        same.clone().payload("b").max_attempts(4),
        same.clone().payload("b").max_attempts(4).time_limit(HOUR),
        same.payload("b").max_attempts(4).time_limit(HOUR).rule("cron: 0 9 * * *"),
    ] {
        assert!(keep(&changed).is_some_and(|kept| kept.replaced), "{changed:?}");
        assert!(due(&timers, "1") >= since + HOUR * 5 && keep(&changed).is_none());
    }
    let stands = timers.get("mail", "1").expect("no error").expect("there");
    assert_eq!(stands.repetition, Some(Repetition::Rule("cron: 0 9 * * *".to_owned())));
}

/// Both have seen that it has changed before one of them replaces it. The other one would replace what may run by then.
pub(crate) fn two_services_that_start_at_once_replace_a_series_once(database: &Database<'_>) {
    let old = mail("1", HOUR).rule("cron: 0 9 * * *");
    database.open().keep_series(&old).expect("no error");
    let new = old.payload("new");
    if let Database::File(path) = database {
        return a_file_is_locked_before_a_series_is_compared(path, &new);
    }
    let services = [database.open(), database.open()];
    let commit = database.begin("BEGIN; SELECT FROM tickwheel_timers FOR UPDATE");
    let kept = thread::scope(|scope| {
        let keep = |timers: &Timers| timers.keep_series(&new).expect("no error");
        let calls: Vec<_> =
            services.iter().map(|timers| scope.spawn(move || keep(timers))).collect();
        let waits = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until("both wait", || database.number(waits) == 2);
        commit();
        calls.into_iter().filter_map(|call| call.join().expect("no panic")).count()
    });
    assert_eq!(kept, 1);
    assert_eq!(database.open().keep_series(&new).expect("no error"), None);
}

/// Nothing tells who waits for a file, so no other service is made to wait. The store reads its clock before each look at a timer: once
/// while others may write, which says that the series has changed, and then never again.
fn a_file_is_locked_before_a_series_is_compared(path: &Path, new: &NewTimer) {
    let free = Arc::new(AtomicU32::new(0));
    let (count, file) = (Arc::clone(&free), path.to_owned());
    let clock = move || {
        let other = rusqlite::Connection::open(&file).expect("it opens");
        other.busy_timeout(Duration::ZERO).expect("a timeout");
        let is_free = other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
        count.fetch_add(u32::from(is_free), Ordering::Relaxed);
        SystemTime::now()
    };
    let timers = Timers::with_store(sqlite::Sqlite::with_wall_clock(path, clock));
    let timers = timers.expect("it opens");
    free.store(0, Ordering::Relaxed);
    assert!(timers.keep_series(new).expect("no error").is_some());
    assert_eq!(free.load(Ordering::Relaxed), 1, "another may come in between");
}

pub(crate) fn the_first_time_is_by_the_clock_of_the_database(database: &Database<'_>) {
    // That is three years behind this machine's.
    let behind = HOUR * 24 * 1100;
    let timers = match database {
        Database::File(path) => {
            let store = sqlite::Sqlite::with_wall_clock(path, move || SystemTime::now() - behind);
            Timers::with_store(store).expect("it opens")
        }
        Database::Schema { .. } => {
            let timers = database.open();
            database.execute(
                "CREATE OR REPLACE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE
                 AS $$ SELECT clock_timestamp() - interval '1100 days' $$",
            );
            timers
        }
    };
    let cron = Cron::parse("0 9 * * *").expect("an expression");
    let now = timers.now().expect("a time");
    let first = timers.schedule(&NewTimer::cron("mail", "1", &cron)).expect("scheduled").due;
    assert_eq!(Some(first), cron.next_after(now));
    // From later on.
    let mut later = NewTimer::cron("mail", "2", &cron);
    later.when = (HOUR * 48).into();
    let first = timers.schedule(&later).expect("scheduled").due;
    assert_eq!(Some(first), cron.next_after(now + HOUR * 48));
    // Rules with years are over by that clock, too. The next new year has passed on this machine.
    let yearly = Cron::parse("0 9 1 1 *").expect("an expression");
    let new_year = yearly.next_after(now).expect("a time");
    let summer = new_year + HOUR * 24 * 180;
    let since = summer.duration_since(SystemTime::UNIX_EPOCH).expect("later").as_secs();
    let of_year = |key: &str, year| {
        let cron = Cron::parse(&format!("0 0 9 1 1 * {year}")).expect("an expression");
        NewTimer::cron("mail", key, &cron)
    };
    let year = 1970 + since / 31_556_952;
    let first = timers.schedule(&of_year("3", year)).expect("scheduled").due;
    assert!(first == new_year && first < SystemTime::now());
    let mut never = of_year("4", year);
    never.when = (HOUR * 24 * 800).into();
    for never in [never, of_year("4", year - 1)] {
        for refused in [timers.schedule(&never).map(Some), timers.keep_series(&never)] {
            let refused = refused.expect_err("it has no time from then on");
            let says = "never comes";
            assert!(matches!(&refused, Error::Invalid(text) if text.contains(says)), "{refused}");
        }
    }
    assert!(timers.get("mail", "4").expect("no error").is_none());
}
