//! What a store does with timers, whichever database it is (STORE-1 to STORE-10).

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "common/databases.rs"]
mod databases;
#[path = "common/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use databases::{Database, apart};
use tickwheel_durable::{
    Attempt, Changed, Claim, Claimed, Connection, Error, Existing, Filter, Finish, HistoryFilter,
    LONGEST_ERROR, MOST_BYTES, NewTimer, Outcome, Pace, Purge, Repetition, RunId, SCHEMA_VERSION,
    State, Store, Table, Then, Timer, Timers, When, postgres, postgres::Postgres, sqlite,
    sqlite::Sqlite,
};

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

fn store(database: &Database<'_>) -> Box<dyn Store> {
    match database {
        Database::File(path) => Box::new(Sqlite::new(path)),
        Database::Schema { .. } => Box::new(Postgres::new(&database.url()).expect("an address")),
    }
}

fn connect(database: &Database<'_>) -> Box<dyn Connection> {
    let store = store(database);
    store.migrate().expect("tables");
    store.connect().expect("it connects")
}

fn mail(key: &str, when: impl Into<When>) -> NewTimer {
    NewTimer::new("mail", key, when)
}

fn claim_for(connection: &mut dyn Connection, owner: &str, limit: u32, lease: Duration) -> Claimed {
    connection.claim(&Claim::new("mail", owner).limit(limit).lease(lease)).expect("a claim")
}

fn claim(connection: &mut dyn Connection, limit: u32) -> Claimed {
    claim_for(connection, "me", limit, HOUR)
}

fn keys(claimed: &Claimed) -> Vec<&str> {
    claimed.timers.iter().map(|claimed| claimed.timer.key.as_str()).collect()
}

fn id(claimed: &Claimed, index: usize) -> RunId {
    let timer = &claimed.timers[index].timer;
    timer.run()
}

fn finish(connection: &mut dyn Connection, run: RunId, then: Then) -> bool {
    connection.finish(&[Finish::new(run, 1, then)]).expect("it is written").changed == [run.fence]
}

// ----- users ---------------------------------------------------------------------------------

fn what_goes_in_comes_out(database: &Database<'_>) {
    let timers = database.open();
    let before = timers.now().expect("a time");
    let new = mail("1", HOUR)
        .payload([0, 255, 7])
        .every(Duration::from_millis(1500))
        .max_attempts(7)
        .time_limit(Duration::from_secs(9));
    let scheduled = timers.schedule(&new).expect("it is scheduled");
    assert!(!scheduled.replaced);
    let timer = timers.get("mail", "1").expect("no error").expect("it is there");
    assert_eq!((timer.kind.as_str(), timer.key.as_str()), ("mail", "1"));
    assert_eq!((timer.payload.as_slice(), timer.state), ([0, 255, 7].as_slice(), State::Waiting));
    assert_eq!(timer.repetition, Some(Repetition::Every(Duration::from_millis(1500))));
    assert_eq!((timer.max_attempts, timer.time_limit), (Some(7), Some(Duration::from_secs(9))));
    assert_eq!((timer.attempts, timer.owner, timer.error), (0, None, None));
    assert_eq!((timer.due, timer.wake), (scheduled.due, Some(scheduled.due)));
    assert!(timer.due >= before + HOUR, "a delay is not shortened");
    assert!(timer.due <= timers.now().expect("a time") + HOUR + Duration::from_millis(2));

    let rule = mail("2", SystemTime::UNIX_EPOCH).rule("0 9 * * MON");
    timers.schedule(&rule).expect("it is scheduled");
    let timer = timers.get("mail", "2").expect("no error").expect("it is there");
    assert_eq!(timer.repetition, Some(Repetition::Rule("0 9 * * MON".to_owned())));
    assert_eq!(timer.due, SystemTime::UNIX_EPOCH);
    assert!(timers.get("mail", "3").expect("no error").is_none());
}

fn times_are_rounded_up_and_kept_in_range(database: &Database<'_>) {
    let timers = database.open();
    let odd = SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 1);
    let due = timers.schedule(&mail("odd", odd)).expect("it is scheduled").due;
    assert!(due >= odd && apart(due, odd) <= Duration::from_millis(1), "{due:?}");
    let old = SystemTime::UNIX_EPOCH - HOUR;
    let due = timers.schedule(&mail("old", old)).expect("it is scheduled").due;
    assert_eq!(due, SystemTime::UNIX_EPOCH);
    let far = [
        timers.schedule(&mail("far", Duration::MAX)).expect("it is scheduled"),
        timers
            .schedule(&mail("later", SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)))
            .expect("scheduled"),
    ];
    for scheduled in far {
        assert!(scheduled.due > SystemTime::now() + HOUR * 24 * 365 * 7000, "{:?}", scheduled.due);
    }
    assert_eq!(timers.list(&Filter::new()).expect("a list").len(), 4);
}

fn a_key_is_unique_in_its_kind(database: &Database<'_>) {
    let timers = database.open();
    timers.schedule(&mail("1", HOUR).payload("a")).expect("scheduled");
    timers.schedule(&NewTimer::new("call", "1", HOUR).payload("b")).expect("scheduled");
    assert!(timers.schedule(&mail("1", NOW).payload("c")).expect("scheduled").replaced);
    assert_eq!(timers.get("mail", "1").expect("no error").expect("there").payload, b"c");
    assert_eq!(timers.get("call", "1").expect("no error").expect("there").payload, b"b");
    assert!(timers.schedule_if_absent(&mail("1", HOUR)).expect("no error").is_none());
    assert!(timers.schedule_if_absent(&mail("2", HOUR)).expect("no error").is_some());
    assert_eq!(timers.list(&Filter::new().kind("mail")).expect("a list").len(), 2);
}

fn many_go_in_together_or_not_at_all(database: &Database<'_>) {
    let timers = database.open();
    let mut new: Vec<_> = (0..500).map(|n| mail(&n.to_string(), HOUR)).collect();
    new.push(mail("7", HOUR).payload("again"));
    assert_eq!(timers.schedule_all(&new).expect("they are scheduled").len(), 501);
    assert_eq!(timers.get("mail", "7").expect("no error").expect("there").payload, b"again");
    new.push(mail(&"x".repeat(2000), HOUR));
    new[0] = mail("another", HOUR);
    let error = timers.schedule_all(&new).expect_err("a key is too long");
    assert!(error.to_string().contains("at most 1000 bytes"), "{error}");
    assert!(timers.get("mail", "another").expect("no error").is_none());
    assert_eq!(timers.schedule_all(&[]).expect("nothing"), []);
}

fn impossible_timers_are_refused_with_advice(database: &Database<'_>) {
    let timers = database.open();
    let impossible = [
        NewTimer::new("", "1", NOW),
        NewTimer::new("k".repeat(201), "1", NOW),
        mail("a\0b", NOW),
        mail("1", NOW).every(Duration::from_nanos(1)),
        mail("1", NOW).max_attempts(0),
        mail("1", NOW).time_limit(NOW),
    ];
    for timer in impossible {
        let error = timers.schedule(&timer).expect_err("it is impossible");
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    }
    assert_eq!(timers.list(&Filter::new()).expect("a list"), []);
}

fn reset_moves_what_waits(database: &Database<'_>) {
    let timers = database.open();
    timers.schedule(&mail("1", HOUR)).expect("scheduled");
    assert!(timers.reset("mail", "1", NOW).expect("no error"));
    assert!(!timers.reset("mail", "2", NOW).expect("no error"));
    let mut connection = connect(database);
    let claimed = claim(&mut *connection, 9);
    assert_eq!(keys(&claimed), ["1"]);
    assert!(!timers.reset("mail", "1", HOUR).expect("no error"), "it runs");
    assert!(finish(&mut *connection, id(&claimed, 0), Then::Retry(HOUR, "no".to_owned())));
    assert!(timers.reset("mail", "1", NOW).expect("no error"), "it waits for another attempt");
    let claimed = claim(&mut *connection, 9);
    assert_eq!(
        (keys(&claimed), claimed.timers[0].timer.attempts),
        (vec!["1"], 0),
        "it begins anew"
    );
    assert!(finish(&mut *connection, id(&claimed, 0), Then::Dead("no".to_owned())));
    assert!(!timers.reset("mail", "1", NOW).expect("no error"), "it is dead");
}

fn cancel_tells_what_it_has_removed(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    assert_eq!(timers.cancel("mail", "1").expect("no error"), None);
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    assert_eq!(timers.cancel("mail", "1").expect("no error"), Some(State::Waiting));
    assert_eq!(keys(&claim(&mut *connection, 9)), [""; 0]);
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    assert_eq!(timers.cancel("mail", "1").expect("no error"), Some(State::Running));
    assert!(!finish(&mut *connection, id(&claimed, 0), Then::Retry(NOW, String::new())));
    assert!(timers.get("mail", "1").expect("no error").is_none(), "nothing follows it");
}

fn lists_are_paged(database: &Database<'_>) {
    let timers = database.open();
    let base = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    for n in 0..25_u64 {
        let when = base + Duration::from_secs(100 - n % 5);
        timers.schedule(&mail(&n.to_string(), when)).expect("scheduled");
        timers.schedule(&NewTimer::new("zoo", n.to_string(), when)).expect("scheduled");
    }
    for (key, dead) in [("dead 1", NOW), ("dead 2", NOW)] {
        timers.schedule(&mail(key, dead)).expect("scheduled");
    }
    let mut connection = connect(database);
    for n in [0, 1] {
        let claimed = claim(&mut *connection, 1);
        assert_eq!(claimed.timers.len(), 1, "{n}");
        assert!(finish(&mut *connection, id(&claimed, 0), Then::Dead("no".to_owned())));
    }
    let (mut all, mut filter) = (Vec::new(), Filter::new().limit(7));
    loop {
        let page = timers.list(&filter).expect("a page");
        let Some(last) = page.last() else { break };
        filter = filter.after(last);
        all.extend(page);
    }
    assert_eq!(all.len(), 52);
    let order = |timer: &tickwheel_durable::Timer| {
        (timer.kind.clone(), timer.wake.is_none(), timer.wake, timer.id)
    };
    assert!(all.is_sorted_by_key(order), "{all:?}");
    let until = base + Duration::from_secs(97);
    let early = timers.list(&Filter::new().kind("zoo").until(until)).expect("a list");
    assert_eq!(early.len(), 10);
    let ages = Duration::from_secs(1 << 46); // more microseconds than a number of 64 bits counts
    for (far, count) in [(base + ages, 25), (base - ages, 0)] {
        let up_to = timers.list(&Filter::new().kind("zoo").until(far)).expect("a list");
        assert_eq!(up_to.len(), count);
    }
    let dead = timers.list(&Filter::new().state(State::Dead)).expect("a list");
    assert_eq!(
        dead.iter().map(|timer| timer.key.as_str()).collect::<Vec<_>>(),
        ["dead 1", "dead 2"]
    );
    let counts = timers.counts().expect("counts");
    assert_eq!(
        counts.iter().map(|of| (of.kind.as_str(), of.waiting, of.dead)).collect::<Vec<_>>(),
        [("mail", 25, 2), ("zoo", 25, 0)]
    );
    assert!(counts.iter().all(|of| of.lag.is_zero() && of.running == 0 && of.retrying == 0));
}

fn requeue_brings_the_dead_back(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let new: Vec<_> = (0..4).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    for index in 0..3 {
        assert!(finish(&mut *connection, id(&claimed, index), Then::Dead("why".to_owned())));
    }
    let dead = timers.get("mail", "0").expect("no error").expect("there");
    assert_eq!((dead.state, dead.wake, dead.error.as_deref()), (State::Dead, None, Some("why")));
    assert!(timers.requeue("mail", "0", NOW).expect("no error"));
    assert!(!timers.requeue("mail", "0", NOW).expect("no error"), "it is not dead any more");
    assert!(!timers.requeue("mail", "3", NOW).expect("no error"), "it runs");
    assert_eq!(timers.requeue_all("mail", HOUR).expect("no error"), 2);
    let again = claim(&mut *connection, 9);
    assert_eq!((keys(&again), again.timers[0].timer.attempts), (vec!["0"], 0));
}

// ----- workers -------------------------------------------------------------------------------

fn claims_take_what_is_due_in_order(database: &Database<'_>) {
    let mut connection = connect(database);
    let now = connection.now().expect("a time");
    let at = |seconds| now - Duration::from_secs(seconds);
    let new = [
        mail("a", at(10)),
        mail("b", at(30)),
        mail("c", at(20)),
        mail("d", HOUR),
        mail("e", at(20)),
    ];
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    connection.schedule(&[NewTimer::new("other", "x", NOW)], Existing::Replace).expect("scheduled");
    let first = claim(&mut *connection, 2);
    // Equal ones come in the order in which they were put in, or of their keys within one call.
    assert_eq!(keys(&first), ["b", "c"]);
    assert_eq!(keys(&claim(&mut *connection, 9)), ["e", "a"]);
    assert_eq!(keys(&claim(&mut *connection, 9)), [""; 0]);
    let timer = &first.timers[0].timer;
    assert_eq!(
        (timer.state, timer.attempts, timer.owner.as_deref()),
        (State::Running, 0, Some("me"))
    );
    assert!(timer.wake.expect("a lease") >= first.now + HOUR - Duration::from_millis(1));
    assert!(first.timers[0].woke <= first.now && !first.timers[0].was_running);
}

fn fencing_numbers_only_grow(database: &Database<'_>) {
    let mut connection = connect(database);
    let mut last = 0;
    for round in 0..5 {
        connection
            .schedule(&[mail("1", NOW), mail("2", NOW)], Existing::Replace)
            .expect("scheduled");
        let claimed = claim(&mut *connection, 9);
        assert_eq!(claimed.timers.len(), 2, "{round}");
        let mut fences: Vec<_> = claimed.timers.iter().map(|claimed| claimed.timer.fence).collect();
        fences.sort_unstable();
        assert!(fences[0] > last && fences[1] > fences[0], "{fences:?} after {last}");
        last = fences[1];
        assert!(finish(&mut *connection, id(&claimed, 0), Then::Done));
        connection.cancel("mail", "2").expect("no error");
    }
}

fn a_lease_that_ends_is_taken_over(database: &Database<'_>) {
    let mut connection = connect(database);
    connection.schedule(&[mail("1", NOW)], Existing::Replace).expect("scheduled");
    let short = Duration::from_millis(30);
    let first = claim_for(&mut *connection, "dead", 9, HOUR);
    assert_eq!(keys(&claim(&mut *connection, 9)), [""; 0]);
    assert_eq!(
        connection.extend(&[id(&first, 0)], short).expect("extended").changed,
        [id(&first, 0).fence]
    );
    thread::sleep(short + Duration::from_millis(10)); // the database's clock is a real one
    let second = claim(&mut *connection, 9);
    let timer = &second.timers[0].timer;
    assert!(second.timers[0].was_running);
    assert_eq!((timer.attempts, timer.owner.as_deref()), (0, Some("me")), "it never started");
    assert!(timer.error.as_deref().expect("a reason").contains("worker dead ended"), "{timer:?}");
    // The first worker comes back, and changes nothing.
    assert_eq!(connection.extend(&[id(&first, 0)], HOUR).expect("no error"), Changed::default());
    for then in
        [Then::Done, Then::Release, Then::Dead(String::new()), Then::Retry(NOW, String::new())]
    {
        assert!(!finish(&mut *connection, id(&first, 0), then));
    }
    assert!(finish(&mut *connection, id(&second, 0), Then::Done));
}

fn starts_are_counted_and_claims_are_not(database: &Database<'_>) {
    let mut connection = connect(database);
    connection.schedule(&[mail("1", NOW)], Existing::Replace).expect("scheduled");
    let short = Duration::from_millis(1);
    for starts in 0..4 {
        let claimed = claim_for(&mut *connection, "killed", 9, short);
        assert_eq!((keys(&claimed), claimed.timers[0].timer.attempts), (vec!["1"], starts));
        assert_eq!(claimed.timers[0].was_running, starts > 0);
        // It may be said twice, if the answer to the first was lost.
        for _ in 0..2 {
            assert!(connection.start(id(&claimed, 0), starts + 1).expect("no error"));
        }
        connection.extend(&[id(&claimed, 0)], short).expect("extended");
        thread::sleep(Duration::from_millis(5)); // the database's clock is a real one
    }
    let last = claim(&mut *connection, 9);
    let never_started = Finish::new(id(&last, 0), 3, Then::Release);
    assert_eq!(connection.finish(&[never_started]).expect("written").changed.len(), 1);
    let timer = connection.get("mail", "1").expect("no error").expect("there");
    assert_eq!((timer.state, timer.attempts), (State::Waiting, 3));
    assert!(!connection.start(id(&last, 0), 4).expect("no error"), "it is nobody's");
    // Many at once are as each by itself.
    connection.schedule(&[mail("2", NOW), mail("3", NOW)], Existing::Replace).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    let mut starts: Vec<_> = (0..3).map(|n| (id(&claimed, n), n as u32 + 4)).collect();
    starts.push((id(&last, 0), 99));
    let mut started = connection.start_all(&starts).expect("no error");
    started.changed.sort_unstable();
    assert_eq!(started.changed, [0, 1, 2].map(|n| id(&claimed, n).fence));
    assert!(started.busy.is_empty());
    for (n, key) in keys(&claimed).into_iter().enumerate() {
        let timer = connection.get("mail", key).expect("no error").expect("there");
        assert_eq!(timer.attempts, n as u32 + 4, "{key}");
    }
}

fn a_suspected_timer_is_claimed_by_itself(database: &Database<'_>) {
    let mut connection = connect(database);
    let now = connection.now().expect("a time");
    let at = |seconds| now - Duration::from_secs(seconds);
    let suspected = [mail("s1", at(100)), mail("s2", at(99))];
    connection.schedule(&suspected, Existing::Replace).expect("scheduled");
    let short = Duration::from_millis(1);
    assert_eq!(keys(&claim_for(&mut *connection, "killed", 9, short)), ["s1", "s2"]);
    // Two that came before the end of those leases, and two that come after it.
    let before = [mail("a", at(50)), mail("b", at(40))];
    connection.schedule(&before, Existing::Replace).expect("scheduled");
    thread::sleep(Duration::from_millis(5)); // the database's clock is a real one
    let after = [mail("c", NOW), mail("d", NOW)];
    connection.schedule(&after, Existing::Replace).expect("scheduled");
    for (expected, was_running, more) in [
        (vec!["a", "b"], false, true),
        (vec!["s1"], true, true),
        (vec!["s2"], true, true),
        (vec!["c", "d"], false, false),
        (vec![], false, false),
    ] {
        let claimed = claim(&mut *connection, 9);
        assert_eq!((keys(&claimed), claimed.more), (expected, more));
        assert!(claimed.timers.iter().all(|claimed| claimed.was_running == was_running));
    }
}

fn a_claim_takes_no_more_payload_than_fits(database: &Database<'_>) {
    let mut connection = connect(database);
    let now = connection.now().expect("a time");
    let large = |key: &str, seconds, bytes| {
        mail(key, now - Duration::from_secs(seconds)).payload(vec![7; bytes])
    };
    let third = MOST_BYTES / 3;
    let new = [
        large("a", 90, third),
        large("b", 80, third),
        large("c", 70, third),
        large("d", 60, third),
        large("too large", 50, MOST_BYTES + 1),
        large("e", 40, 0),
    ];
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    for (expected, more) in [
        (vec!["a", "b", "c"], true),
        (vec!["d"], true),
        (vec!["too large"], true),
        (vec!["e"], false),
    ] {
        let claimed = claim(&mut *connection, 9);
        assert_eq!((keys(&claimed), claimed.more), (expected, more));
    }
}

fn a_failed_run_leaves_its_series(database: &Database<'_>) {
    let mut connection = connect(database);
    let day = Duration::from_secs(86_400);
    let new = mail("1", NOW).every(day).payload("p").max_attempts(2).time_limit(HOUR);
    let (tries, fails) = (mail("tries", NOW).every(day), mail("fails", NOW).every(day));
    connection.schedule(&[new, tries, fails], Existing::Replace).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    let next = claimed.now + day;
    let outcomes = claimed.timers.iter().map(|claimed| {
        let Timer { id, fence, ref key, .. } = claimed.timer;
        let retry = (key == "tries").then_some(HOUR);
        // Of one, the key is there already. Its series goes on all the same.
        let key = if key == "fails" { "tries".to_owned() } else { format!("{key}@0") };
        let then = Then::Split { next, key, retry, error: Some("no \0 luck".to_owned()) };
        Finish::new(RunId::new(id, fence), 2, then)
    });
    let outcomes: Vec<_> = outcomes.collect();
    assert_eq!(connection.finish(&outcomes).expect("written").changed.len(), 3);
    assert_eq!(connection.finish(&outcomes).expect("written"), Changed::default(), "each once");
    let mut get = |key| connection.get("mail", key).expect("no error").expect("there");
    let keys = claimed.timers.iter().map(|claimed| claimed.timer.key.as_str());
    for key in keys {
        let series = get(key);
        assert_eq!((series.state, series.attempts), (State::Waiting, 0), "{key}");
        assert_eq!(series.repetition, Some(Repetition::Every(day)), "{key}");
        assert!(apart(series.due, next) <= Duration::from_millis(1), "{key}");
        assert!(series.error.expect("a reason").contains("luck"), "{key}");
    }
    let run = get("1@0");
    assert_eq!((run.state, run.attempts, run.wake, run.repetition), (State::Dead, 2, None, None));
    assert_eq!((run.payload.as_slice(), run.max_attempts), (b"p".as_slice(), Some(2)));
    assert_eq!((run.due, run.time_limit), (claimed.timers[0].timer.due, Some(HOUR)));
    assert!(run.error.expect("a reason").contains("luck"));
    let counts = &connection.counts().expect("counts")[0];
    assert_eq!((counts.waiting, counts.retrying, counts.running, counts.dead), (3, 1, 0, 1));
}

fn each_outcome_leaves_its_state(database: &Database<'_>) {
    let mut connection = connect(database);
    let new: Vec<_> = ["done", "next", "retry", "dead", "back"].map(|key| mail(key, NOW)).into();
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    let next = claimed.now + HOUR;
    let outcomes = claimed.timers.iter().map(|claimed| {
        let then = match claimed.timer.key.as_str() {
            "done" => Then::Done,
            "next" => Then::Next(next),
            "retry" => Then::Retry(HOUR, "no \0 luck".to_owned()),
            "dead" => Then::Dead("no".to_owned()),
            _ => Then::Release,
        };
        Finish::new(claimed.timer.run(), u32::from(claimed.timer.key != "back"), then)
    });
    let outcomes: Vec<_> = outcomes.collect();
    assert_eq!(connection.finish(&outcomes).expect("written").changed.len(), 5);
    assert_eq!(connection.finish(&outcomes).expect("written"), Changed::default(), "each once");
    let mut get = |key| connection.get("mail", key).expect("no error");
    assert!(get("done").is_none());
    let timer = get("next").expect("there");
    assert_eq!((timer.state, timer.attempts, timer.owner.clone()), (State::Waiting, 0, None));
    assert!(apart(timer.due, next) <= Duration::from_millis(1) && timer.wake == Some(timer.due));
    let timer = get("retry").expect("there");
    assert_eq!((timer.state, timer.attempts), (State::Waiting, 1));
    assert!(timer.wake.expect("a time") >= claimed.now + HOUR && timer.due <= claimed.now);
    assert!(timer.error.expect("a reason").contains("luck"));
    let timer = get("dead").expect("there");
    assert_eq!((timer.state, timer.error.as_deref()), (State::Dead, Some("no")));
    let timer = get("back").expect("there");
    assert_eq!((timer.state, timer.attempts, timer.wake), (State::Waiting, 0, Some(timer.due)));
    let counts = &connection.counts().expect("counts")[0];
    assert_eq!((counts.waiting, counts.retrying, counts.running, counts.dead), (2, 1, 0, 1));
}

/// A handler has put them off: one that had failed before, one in its first attempt, and a run that leaves its series.
fn what_is_put_off_keeps_its_error(database: &Database<'_>) {
    let mut connection = connect(database);
    let new = [mail("failed", NOW), mail("series", NOW).every(HOUR)];
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    for claimed in &claimed.timers {
        let run = claimed.timer.run();
        assert!(finish(&mut *connection, run, Then::Retry(NOW, "no luck".to_owned())));
    }
    connection.schedule(&[mail("fresh", NOW)], Existing::Replace).expect("scheduled");
    thread::sleep(Duration::from_millis(5)); // the database's clock is a real one
    let claimed = claim(&mut *connection, 9);
    let next = claimed.now + HOUR;
    let outcomes = claimed.timers.iter().map(|claimed| {
        let key = "series@0".to_owned();
        let then = match claimed.timer.key.as_str() {
            "series" => Then::Split { next, key, retry: Some(HOUR * 2), error: None },
            _ => Then::Snooze(HOUR * 2),
        };
        Finish::new(claimed.timer.run(), claimed.timer.attempts, then)
    });
    let outcomes: Vec<_> = outcomes.collect();
    let runs: Vec<_> = outcomes.iter().map(|outcome| (outcome.run, outcome.attempts + 1)).collect();
    assert_eq!(connection.start_all(&runs).expect("written").changed.len(), 3);
    assert_eq!(connection.finish(&outcomes).expect("written").changed.len(), 3);
    assert_eq!(connection.finish(&outcomes).expect("written"), Changed::default(), "each once");
    assert!(claim(&mut *connection, 9).timers.is_empty());
    let mut get = |key| connection.get("mail", key).expect("no error").expect("there");
    for (key, attempts, error) in
        [("failed", 1, Some("no luck")), ("fresh", 0, None), ("series@0", 1, Some("no luck"))]
    {
        let timer = get(key);
        assert_eq!((timer.state, timer.attempts), (State::Waiting, attempts), "{key}");
        assert_eq!((timer.error.as_deref(), timer.owner), (error, None), "{key}");
        assert!(timer.wake.expect("a time") >= claimed.now + HOUR * 2, "{key}");
        assert!(timer.due <= claimed.now, "{key}");
    }
    let series = get("series");
    assert_eq!((series.attempts, series.error, series.wake), (0, None, Some(series.due)));
    assert!(apart(series.due, next) <= Duration::from_millis(1));
}

/// A rule of the user's is against one of them. An error says that none is written, and otherwise it is told which are.
fn what_is_written_beside_a_refusal_is_told(database: &Database<'_>) {
    let mut connection = connect(database);
    let new = ["done", "dead", "refused"].map(|key| mail(key, NOW).every(HOUR));
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    database.execute(if database.is_sqlite() {
        "CREATE TRIGGER mine BEFORE UPDATE ON tickwheel_timers WHEN OLD.key = 'refused' AND NEW.state = 'waiting'
         BEGIN SELECT RAISE(ABORT, 'no'); END"
    } else {
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF OLD.key = 'refused' AND NEW.state = 'waiting' THEN RAISE 'no'; END IF; RETURN NEW; END $$;
         CREATE TRIGGER mine BEFORE UPDATE ON tickwheel_timers FOR EACH ROW EXECUTE FUNCTION refuse()"
    });
    let claimed = claim(&mut *connection, 9);
    let outcomes = claimed.timers.iter().map(|claimed| {
        let (next, key) = (claimed.timer.due + HOUR, "refused@0".to_owned());
        let then = match claimed.timer.key.as_str() {
            "done" => Then::Done,
            "dead" => Then::Dead("no luck".to_owned()),
            _ => Then::Split { next, key, retry: None, error: Some("no luck".to_owned()) },
        };
        Finish::new(claimed.timer.run(), 1, then)
    });
    let outcomes: Vec<_> = outcomes.collect();
    let runs: Vec<_> = outcomes.iter().map(|outcome| outcome.run).collect();
    let written = connection.finish(&outcomes);
    let running = connection.running(&runs).expect("no error");
    let written = written.unwrap_or_else(|_| Changed::new(Vec::new(), running.clone()));
    assert_eq!(BTreeSet::from_iter(written.busy), BTreeSet::from_iter(running.clone()));
    let fences = runs.iter().map(|run| run.fence).filter(|fence| !running.contains(fence));
    assert_eq!(BTreeSet::from_iter(written.changed), fences.collect());
    let refused: Vec<_> =
        outcomes.into_iter().filter(|of| matches!(of.then, Then::Split { .. })).collect();
    connection.finish(&refused).expect_err("it comes again");
}

/// They were claimed and not started: one that had failed before, one that was put off, and one that was never tried.
fn what_is_given_back_waits_as_before(database: &Database<'_>) {
    let mut connection = connect(database);
    let since = connection.now().expect("a time") - HOUR;
    let new = ["failed", "put off", "untried"].map(|key| mail(key, since));
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    for claimed in claim(&mut *connection, 2).timers {
        let run = claimed.timer.run();
        let then = match claimed.timer.key.as_str() {
            "failed" => Then::Retry(NOW, "no luck".to_owned()),
            _ => Then::Snooze(NOW),
        };
        assert!(finish(&mut *connection, run, then));
    }
    let mut get = || new.each_ref().map(|new| connection.get("mail", &new.key).expect("no error"));
    let before = get().map(|timer| timer.expect("there"));
    assert!(before[0].wake > Some(before[0].due) && before[0].error.is_some());
    assert!(before[1].wake > Some(before[1].due));
    thread::sleep(Duration::from_millis(5)); // the database's clock is a real one
    let claimed = claim(&mut *connection, 9);
    let outcomes = claimed.timers.iter().map(|claimed| {
        let mut finish = Finish::new(claimed.timer.run(), claimed.timer.attempts, Then::Release);
        finish.woke = Some(claimed.woke).filter(|woke| *woke > claimed.timer.due);
        finish
    });
    let outcomes: Vec<_> = outcomes.collect();
    assert_eq!(connection.finish(&outcomes).expect("written").changed.len(), 3);
    for before in before {
        let after = connection.get("mail", &before.key).expect("no error").expect("there");
        let of = |timer: &Timer| {
            (timer.state, timer.due, timer.wake, timer.attempts, timer.error.clone())
        };
        assert_eq!(of(&after), of(&before), "{}", before.key);
    }
}

fn it_is_told_which_runs_are_still_running(database: &Database<'_>) {
    let mut connection = connect(database);
    let all = ["stays", "held", "cancelled", "replaced", "done"].map(|key| mail(key, NOW));
    connection.schedule(&all, Existing::Replace).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    let mut runs: Vec<_> = claimed.timers.iter().map(|claimed| claimed.timer.run()).collect();
    assert_eq!(connection.running(&runs).expect("no error").len(), 5);
    let run = |key| runs[keys(&claimed).iter().position(|other| *other == key).expect("claimed")];
    assert!(finish(&mut *connection, run("done"), Then::Done));
    connection.cancel("mail", "cancelled").expect("no error");
    connection.schedule(&[mail("replaced", NOW)], Existing::Replace).expect("scheduled");
    let again = claim(&mut *connection, 9);
    assert_eq!(keys(&again), ["replaced"]);
    let mut expected = [run("stays"), run("held"), id(&again, 0)].map(|run| run.fence);
    expected.sort_unstable();
    // What is not committed has not happened, and is not waited for.
    let commit =
        database.begin("BEGIN; UPDATE tickwheel_timers SET owner = 'x' WHERE key = 'held'");
    runs.push(id(&again, 0));
    let mut running = connection.running(&runs).expect("no error");
    commit();
    running.sort_unstable();
    assert_eq!(running, expected);
    assert_eq!(connection.running(&[]).expect("no error"), [0; 0]);
}

fn a_look_sees_ahead(database: &Database<'_>) {
    let mut connection = connect(database);
    let now = connection.now().expect("a time");
    let at = |seconds| now + Duration::from_secs(seconds);
    let new = [
        mail("a", at(50)),
        mail("b", at(10)),
        mail("c", at(200)),
        NewTimer::new("call", "d", at(30)),
    ];
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    connection
        .schedule(&[NewTimer::new("unknown", "e", at(3))], Existing::Replace)
        .expect("scheduled");
    let mut look =
        |limit| connection.look(&["call", "none", "mail"], Duration::from_secs(100), limit);
    let seen = look(9).expect("a look");
    let seconds: Vec<_> = seen
        .wakes
        .iter()
        .map(|(kind, wake)| (*kind, apart(*wake, now).as_millis().div_ceil(1000)))
        .collect();
    assert_eq!(seconds, [(0, 30), (2, 10), (2, 50)]);
    assert!(seen.now >= now);
    assert_eq!(look(1).expect("a look").wakes.len(), 2);
}

fn claims_at_the_same_time_never_take_the_same(database: &Database<'_>) {
    let timers = database.open();
    let new: Vec<_> = (0..600).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    let work = || {
        let (mut connection, mut mine) = (connect(database), Vec::new());
        loop {
            let claimed = claim(&mut *connection, 7);
            if claimed.timers.is_empty() && timers.counts().expect("counts").is_empty() {
                return mine;
            }
            for index in 0..claimed.timers.len() {
                assert!(finish(&mut *connection, id(&claimed, index), Then::Done));
            }
            mine.extend(claimed.timers.into_iter().map(|claimed| claimed.timer.key));
        }
    };
    let all = thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(work));
        threads.map(|thread| thread.join().expect("no error")).concat()
    });
    assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<_>>().len()), (600, 600));
}

fn a_replaced_timer_is_not_ended_by_the_old_run(database: &Database<'_>) {
    let mut connection = connect(database);
    connection.schedule(&[mail("1", NOW)], Existing::Replace).expect("scheduled");
    let old = claim(&mut *connection, 9);
    let scheduled = connection
        .schedule(&[mail("1", NOW).payload("new")], Existing::Replace)
        .expect("scheduled");
    assert!(scheduled[0].expect("put in").replaced);
    let timer = connection.get("mail", "1").expect("no error").expect("there");
    assert_eq!((timer.state, timer.attempts, timer.owner), (State::Waiting, 0, None));
    assert!(!finish(&mut *connection, id(&old, 0), Then::Done));
    let new = claim(&mut *connection, 9);
    assert_eq!(
        (keys(&new), new.timers[0].timer.payload.as_slice()),
        (vec!["1"], b"new".as_slice())
    );
    assert_eq!(new.timers[0].timer.attempts, 0);
    assert!(!finish(&mut *connection, id(&old, 0), Then::Done));
    assert!(finish(&mut *connection, id(&new, 0), Then::Done));
}

// ----- tables --------------------------------------------------------------------------------

fn an_insert_by_another_program_is_a_timer(database: &Database<'_>) {
    let timers = database.open();
    database.execute(match database {
        Database::File(_) => {
            "INSERT INTO tickwheel_timers (kind, key, payload, due)
             VALUES ('mail', '1', 'text', 1000 * unixepoch() - 5000);
             INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', '2', 1000 * unixepoch() - 1000)"
        }
        Database::Schema { .. } => {
            "INSERT INTO tickwheel_timers (kind, key, payload, due) VALUES ('mail', '1', 'text', now() - interval '5 s');
             INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', '2', now() - interval '1 s')"
        }
    });
    let mut connection = connect(database);
    let claimed = claim(&mut *connection, 9);
    assert_eq!(keys(&claimed), ["1", "2"]);
    assert_eq!(claimed.timers[0].timer.payload, b"text");
    assert!(timers.get("mail", "2").expect("no error").expect("there").payload.is_empty());
}

/// The first page of the documentation says how another program moves a timer.
fn an_update_by_another_program_moves_what_waits_for_another_attempt(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    let retry = Then::Retry(HOUR, "it failed".to_owned());
    assert!(finish(&mut *connection, id(&claimed, 0), retry));
    let waits = || timers.get("mail", "1").expect("no error").expect("there");
    assert!(waits().wake > Some(waits().due), "{:?}", waits());
    let update = |due: &str| {
        database.execute(&format!(
            "UPDATE tickwheel_timers SET due = {due} WHERE kind = 'mail' AND key = '1' AND state = 'waiting'"
        ));
    };
    let tomorrow = match database {
        Database::File(_) => "1000 * (unixepoch() + 86400)",
        Database::Schema { .. } => "now() + interval '1 day'",
    };
    update("due");
    assert!(waits().wake > Some(waits().due), "an update that moves nothing changes nothing");
    update(tomorrow);
    let moved = waits();
    assert_eq!((moved.wake, moved.attempts, moved.error), (Some(moved.due), 0, None));
    update(tomorrow);
    let now = match database {
        Database::File(_) => "1000 * unixepoch()",
        Database::Schema { .. } => "now()",
    };
    update(now);
    let claimed = claim(&mut *connection, 9);
    assert_eq!((keys(&claimed), claimed.timers[0].timer.attempts), (vec!["1"], 0));
    // The workers' own changes of due times are no moves.
    let due = timers.now().expect("a time") + HOUR;
    assert!(finish(&mut *connection, id(&claimed, 0), Then::Next(due)));
    assert_eq!((waits().wake, waits().attempts), (Some(waits().due), 0));
}

/// The files that are published are enough for an empty database, with the tools that people have.
fn the_published_files_make_the_tables(database: &Database<'_>) {
    let folder = if database.is_sqlite() { "sqlite" } else { "postgres" };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let texts: Vec<_> = files.iter().map(|path| fs::read_to_string(path).expect("text")).collect();
    assert_eq!(texts, migrations(database), "a file is a version");
    for (path, sql) in files.iter().zip(&texts) {
        let (program, output) = match database {
            Database::File(file) => {
                let read = format!(".read '{}'", path.display());
                let mut sqlite = Command::new("sqlite3");
                sqlite.arg("-bail").arg(file).args(["BEGIN IMMEDIATE", &read, "COMMIT"]);
                ("sqlite3", sqlite.output())
            }
            Database::Schema { .. } => {
                let mut psql = Command::new("psql");
                psql.args(["--quiet", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-1", "-f"])
                    .arg(path);
                ("psql", psql.arg(database.url()).output())
            }
        };
        match output {
            Err(error) => {
                databases::say(&format!("store, with {program}: skipped: {error}"));
                database.execute(&format!("BEGIN; {sql}; COMMIT"));
            }
            Ok(output) => assert!(output.status.success(), "{output:?}"),
        }
    }
    let timers = Timers::open_unmigrated(&database.address()).expect("nothing is missing");
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    assert_eq!(keys(&claim(&mut *connect(database), 9)), ["1"]);
}

/// Also without a transaction around it.
fn a_file_that_is_run_out_of_turn_changes_nothing(database: &Database<'_>) {
    let files = migrations(database);
    for version in 1..=files.len() {
        let database = database.another();
        database.execute(&files[..version].concat());
        for (before, file) in files.iter().enumerate().filter(|(before, _)| *before != version) {
            let refused = database.attempt(file).expect_err("it is not its turn");
            assert!(before == 0 || refused.contains("version"), "{refused}");
            let now = database.number("SELECT CAST(sum(version) AS bigint) FROM tickwheel_schema");
            assert_eq!(now, i64::try_from(version).expect("few"), "after file {before}");
        }
    }
}

fn the_whole_definition_is_the_files_one_after_the_other(database: &Database<'_>) {
    let sql = if database.is_sqlite() { sqlite::SCHEMA } else { postgres::SCHEMA };
    database.execute(&format!("BEGIN; {sql} COMMIT"));
    drop(Timers::open_unmigrated(&database.address()).expect("nothing is missing"));
}

/// Sets the state of the timers "dead" and "runs" to what they are called.
fn dead_and_running(database: &Database<'_>) -> Claimed {
    let timers = database.open();
    let mut connection = connect(database);
    timers.schedule(&mail("dead", NOW)).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    assert!(finish(&mut *connection, id(&claimed, 0), Then::Dead("no".to_owned())));
    timers.schedule(&mail("runs", NOW)).expect("scheduled");
    claim(&mut *connection, 9)
}

fn statements_that_would_be_lost_are_refused(database: &Database<'_>) {
    let running = dead_and_running(database);
    let update = |set: &str, key: &str| {
        database.attempt(&format!("UPDATE tickwheel_timers SET {set} WHERE key = '{key}'"))
    };
    let later =
        if database.is_sqlite() { "due = due + 1000" } else { "due = due + interval '1 s'" };
    let refused = update(later, "dead").expect_err("it stays dead");
    assert!(refused.contains("a dead timer that is moved stays dead"), "{refused}");
    for set in [later, "payload = 'new'"] {
        let refused = update(set, "runs").expect_err("the run would remove it");
        assert!(refused.contains("a worker runs"), "{refused}");
    }
    update("payload = 'new'", "dead").expect("it may be mended before it is requeued");
    update("max_attempts = 3", "runs").expect("it counts from the next run on");
    update(&format!("{later}, state = state"), "none").expect("it changes nothing");
    assert!(finish(&mut *connect(database), id(&running, 0), Then::Done));
}

fn a_dead_timer_that_is_set_to_waiting_by_hand_runs(database: &Database<'_>) {
    drop(dead_and_running(database));
    database.execute("UPDATE tickwheel_timers SET state = 'waiting' WHERE key = 'dead'");
    let claimed = claim(&mut *connect(database), 9);
    assert_eq!((keys(&claimed), claimed.timers[0].timer.attempts), (vec!["dead"], 0));
}

/// A row with both would repeat by one of them, and a dead one without the other column would wake without end.
fn columns_that_belong_together_are_set_together(database: &Database<'_>) {
    drop(dead_and_running(database));
    database.open().schedule(&mail("waits", HOUR)).expect("scheduled");
    let (due, never) = if database.is_sqlite() {
        ("1000 * unixepoch()", "9223372036854775807")
    } else {
        ("now()", "'infinity'")
    };
    let insert = |columns: &str, values: &str| {
        database.attempt(&format!(
            "INSERT INTO tickwheel_timers (kind, key, due, {columns}) VALUES ('mail', 'new', {due}, {values})"
        ))
    };
    let update = |set: &str, key: &str| {
        database.attempt(&format!("UPDATE tickwheel_timers SET {set} WHERE key = '{key}'"))
    };
    let park = format!("set held_until = {never}");
    for (refused, advice) in [
        (insert("period_ms, rule", "1000, 'daily'"), "period_ms or rule, not both"),
        (update("period_ms = 1000, rule = 'daily'", "waits"), "period_ms or rule, not both"),
        (insert("state", "'dead'"), &*park),
        (update("state = 'dead'", "waits"), &*park),
        (update("state = 'dead'", "runs"), &*park),
        (update("held_until = NULL", "dead"), &*park),
    ] {
        let refused = refused.expect_err(advice);
        assert!(refused.contains(advice), "{refused}");
    }
    update(&format!("state = 'dead', held_until = {never}"), "waits").expect("it is parked");
    let dead = database.open().get("mail", "waits").expect("no error").expect("there");
    assert_eq!((dead.state, dead.wake), (State::Dead, None));
}

fn rows_that_are_no_timers_are_refused(database: &Database<'_>) {
    let timers = database.open();
    let due = if database.is_sqlite() { "1000 * unixepoch()" } else { "now()" };
    let insert = |columns: &str, values: &str| {
        database.attempt(&format!("INSERT INTO tickwheel_timers ({columns}) VALUES ({values})"))
    };
    let (kind, key) = ("k".repeat(201), "k".repeat(1001));
    let far = if database.is_sqlite() { "253370764800001" } else { "'infinity'" };
    for (values, problem) in [
        (format!("'', '1', {due}"), "a kind has 1 to 200 bytes"),
        (format!("'{kind}', '1', {due}"), "a kind has 1 to 200 bytes"),
        (format!("'mail', '{key}', {due}"), "at most 1000"),
        (format!("'mail', '1', {far}"), "between the years 1970 and 9998"),
    ] {
        let refused = insert("kind, key, due", &values).expect_err("it is impossible");
        assert!(refused.contains(problem), "{refused}");
    }
    insert("kind, key, due", &format!("'mail', '1', {due}")).expect("it is a timer");
    for (set, problem) in [
        (format!("kind = '{kind}'"), "a kind has 1 to 200 bytes"),
        (format!("due = {far}"), "between the years 1970 and 9998"),
    ] {
        let set = database.attempt(&format!("UPDATE tickwheel_timers SET {set}"));
        let refused = set.expect_err("it is impossible");
        assert!(refused.contains(problem), "{refused}");
    }
    assert_eq!(timers.list(&Filter::new()).expect("a list").len(), 1);
}

// ----- what has been -------------------------------------------------------------------------

fn attempt(timer: &Timer, started: SystemTime, outcome: Outcome) -> Attempt {
    let mut attempt =
        Attempt::new(timer.kind.clone(), timer.key.clone(), started, timer.fence, outcome);
    attempt.due = timer.due;
    "me".clone_into(&mut attempt.worker);
    attempt.trace.clone_from(&timer.trace);
    attempt
}

fn outcomes(attempts: &[Attempt]) -> Vec<(&str, Outcome)> {
    attempts.iter().map(|attempt| (attempt.key.as_str(), attempt.outcome)).collect()
}

/// STORE-10, and HISTORY-1.
fn an_outcome_and_its_attempt_are_written_together(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let mut keys = ["done", "next", "retry", "dead", "back", "replaced"];
    let new: Vec<_> = keys.map(|key| mail(key, NOW).trace(format!("of {key}"))).into();
    connection.schedule(&new, Existing::Replace).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    let next = claimed.now + HOUR;
    let hostile = "no \0 luck ".to_owned() + &"ä".repeat(LONGEST_ERROR);
    let finishes: Vec<_> = (claimed.timers.iter().zip(1..))
        .map(|(claimed, number)| {
            let timer = &claimed.timer;
            let (then, outcome) = match timer.key.as_str() {
                "next" => (Then::Next(next), Outcome::Done),
                "retry" => (Then::Retry(HOUR, hostile.clone()), Outcome::Failed),
                "dead" => (Then::Dead("no".to_owned()), Outcome::Dead),
                "back" => (Then::Release, Outcome::Done),
                _ => (Then::Done, Outcome::Done),
            };
            let error = match &then {
                Then::Retry(_, error) | Then::Dead(error) => Some(error.as_str()),
                _ => None,
            };
            let mut record = attempt(timer, claimed.woke + Duration::from_millis(number), outcome);
            record.late = Duration::from_micros(1234);
            record.took = Duration::from_micros(56_789);
            let record = (timer.key != "back").then(|| record.error(error));
            Finish::new(timer.run(), 1, then).record(record)
        })
        .collect();
    connection.schedule(&[mail("replaced", HOUR)], Existing::Replace).expect("replaced");
    assert_eq!(connection.finish(&finishes).expect("written").changed.len(), 5);
    assert_eq!(connection.finish(&finishes).expect("written"), Changed::default(), "each once");
    let past = timers.history(&HistoryFilter::new()).expect("a history");
    keys.sort_unstable();
    let mut outcomes = outcomes(&past);
    outcomes.sort_unstable();
    let (done, failed, dead) = (Outcome::Done, Outcome::Failed, Outcome::Dead);
    assert_eq!(outcomes, [("dead", dead), ("done", done), ("next", done), ("retry", failed)]);
    for attempt in &past {
        let claimed = claimed.timers.iter().find(|of| of.timer.key == attempt.key).expect("there");
        assert_eq!((attempt.fence, attempt.id), (claimed.timer.fence, claimed.timer.fence));
        assert_eq!((attempt.due, attempt.attempt), (claimed.timer.due, 1));
        assert_eq!((attempt.late.as_micros(), attempt.took.as_micros()), (1234, 56_789));
        assert_eq!(attempt.trace, Some(format!("of {}", attempt.key)));
        assert_eq!((attempt.kind.as_str(), attempt.worker.as_str()), ("mail", "me"));
    }
    let of = |key: &str| HistoryFilter::new().kind("mail").key(key);
    let retry = timers.history(&of("retry")).expect("a history").remove(0).error.expect("why");
    assert!(retry.contains("luck") && retry.len() > LONGEST_ERROR - 2, "{}", retry.len());
    assert!(retry.len() <= LONGEST_ERROR, "{}", retry.len());
    let of_timer = timers.get("mail", "retry").expect("no error").expect("there").error;
    assert!(of_timer.expect("why").len() > LONGEST_ERROR, "the timer has it in full");
    // To write a row again changes nothing.
    connection.record(&past).expect("no error");
    assert_eq!(timers.history(&HistoryFilter::new()).expect("a history"), past);
}

/// HISTORY-3.
fn a_run_that_leaves_its_series_takes_its_attempts_along(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let day = Duration::from_secs(86_400);
    connection.schedule(&[mail("1", NOW).every(day)], Existing::Replace).expect("scheduled");
    let mut try_it = |then: Then, key: &str, outcome: Outcome| {
        let claimed = claim(&mut *connection, 9);
        let timer = &claimed.timers[0].timer;
        let mut record = attempt(timer, claimed.now, outcome);
        key.clone_into(&mut record.key);
        let finish = Finish::new(timer.run(), 1, then).record(Some(record));
        assert_eq!(connection.finish(&[finish]).expect("written").changed.len(), 1);
        timer.due
    };
    let yesterday = SystemTime::now() - day;
    timers.reset("mail", "1", yesterday).expect("moved");
    try_it(Then::Next(SystemTime::now() - HOUR), "1", Outcome::Done);
    try_it(Then::Retry(NOW, "no".to_owned()), "1", Outcome::Failed);
    thread::sleep(Duration::from_millis(3)); // SQLite rounds the time of the next attempt up
    let next = SystemTime::now() + day;
    let split =
        Then::Split { next, key: "1@5".to_owned(), retry: None, error: Some("never".to_owned()) };
    try_it(split, "1@5", Outcome::Dead);
    let of = |key: &str| {
        let past = timers.history(&HistoryFilter::new().kind("mail").key(key)).expect("a history");
        past.iter().map(|attempt| attempt.outcome).collect::<Vec<_>>()
    };
    assert_eq!(of("1@5"), [Outcome::Dead, Outcome::Failed], "all its errors");
    assert_eq!(of("1"), [Outcome::Done], "another run's stays");
}

fn histories_are_paged_and_filtered(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let base = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let all = [Outcome::Done, Outcome::Failed, Outcome::Dead, Outcome::Snoozed];
    let attempts: Vec<_> = (0..60)
        .zip(all.iter().cycle())
        .map(|(n, outcome): (i64, _)| {
            let kind = if n % 3 == 0 { "zoo" } else { "mail" };
            let started = base + Duration::from_secs(n.unsigned_abs() / 8);
            Attempt::new(kind, format!("%{}", n % 5), started, n + 1, *outcome)
        })
        .collect();
    connection.record(&attempts).expect("written");
    let pages = |filter: HistoryFilter| {
        let (mut seen, mut filter) = (Vec::new(), filter.limit(7));
        loop {
            let page = timers.history(&filter).expect("a page");
            let Some(last) = page.last() else { break };
            filter = filter.before(last);
            seen.extend(page);
        }
        assert!(seen.is_sorted_by_key(|of| std::cmp::Reverse((of.started, of.id))), "{seen:?}");
        seen
    };
    let mut expected = attempts.clone();
    expected.reverse();
    assert_eq!(pages(HistoryFilter::new()), expected);
    let those = |is: &dyn Fn(&&Attempt) -> bool| -> Vec<_> {
        expected.iter().filter(is).cloned().collect()
    };
    let zoo = HistoryFilter::new().kind("zoo");
    assert_eq!(pages(zoo.clone()), those(&|of| of.kind == "zoo"));
    assert_eq!(pages(zoo.key("%2")), those(&|of| of.kind == "zoo" && of.key == "%2"));
    assert_eq!(pages(HistoryFilter::new().key("%2")), those(&|of| of.key == "%2"));
    for outcome in all {
        let found = pages(HistoryFilter::new().outcome(outcome));
        assert_eq!(found, those(&|of| of.outcome == outcome), "{outcome:?}");
    }
    let since = base + Duration::from_secs(5);
    assert_eq!(pages(HistoryFilter::new().since(since)), those(&|of| of.started >= since));
    assert_eq!(timers.history(&HistoryFilter::new().limit(0)).expect("nothing"), []);
    for far in [SystemTime::UNIX_EPOCH - HOUR, base + Duration::from_secs(1 << 46)] {
        timers.history(&HistoryFilter::new().since(far)).expect("any time is fine");
    }
}

fn what_is_too_old_is_removed_in_batches(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let base = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let at = |n: u64| base + Duration::from_secs(n);
    let attempts: Vec<_> = (0..3000_u64)
        .zip(0..)
        .map(|(n, fence): (u64, i64)| {
            let kind = ["call", "mail", "zoo"][(n % 3) as usize];
            Attempt::new(kind, "1", at(n), fence, Outcome::Done)
        })
        .collect();
    connection.record(&attempts).expect("written");
    let mut purge = Purge::new(Some("mail"), at(1500));
    purge.limit = 120;
    let (mut counts, mut batches) = (0, 0);
    loop {
        let purged = connection.purge_history(&purge).expect("removed");
        assert!(purged.count <= 120, "{purged:?}");
        (counts, batches) = (counts + purged.count, batches + 1);
        purge.from = purged.last;
        if purge.from.is_none() {
            break;
        }
    }
    assert!(counts == 500 && batches >= 5, "{counts} in {batches}");
    let left = |kind: &str| {
        let of = HistoryFilter::new().kind(kind).limit(9000);
        timers.history(&of).expect("a history")
    };
    assert_eq!((left("mail").len(), left("zoo").len()), (500, 1000));
    assert!(left("mail").iter().all(|of| of.started >= at(1500)));
    // With the next call, what came to stand before the end of the last one is found too.
    connection.record(&attempts[..10]).expect("written");
    assert_eq!(timers.purge_history(at(2000)).expect("removed"), 3 + 167 + 666 + 667);
    assert_eq!((left("mail").len(), left("zoo").len(), left("call").len()), (333, 334, 333));
    assert_eq!(timers.purge_history(at(9000)).expect("removed"), 1000);
}

fn the_dead_are_kept_for_as_long_as_is_said(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let die = |connection: &mut dyn Connection| {
        let claimed = claim(connection, 9);
        let count = claimed.timers.len();
        for index in 0..count {
            assert!(finish(connection, id(&claimed, index), Then::Dead("no".to_owned())));
        }
        count
    };
    let new: Vec<_> = (0..5).map(|n| mail(&n.to_string(), NOW)).collect();
    timers.schedule_all(&new).expect("scheduled");
    assert_eq!(die(&mut *connection), 5);
    timers.schedule(&mail("waits", NOW)).expect("scheduled");
    let mut purge = |kind: &str, keep| {
        let (mut removed, mut after) = (0, i64::MIN);
        loop {
            let (count, last) = connection.purge_dead(kind, keep, after, 2).expect("no error");
            removed += count;
            match last {
                Some(last) => after = last,
                None => return removed,
            }
        }
    };
    assert_eq!(purge("mail", NOW), 0, "they are seen dead for the first time");
    assert_eq!((purge("mail", HOUR), purge("other", NOW)), (0, 0));
    // Two are brought back, one of them by a program that knows nothing of this, and die again.
    assert!(timers.requeue("mail", "0", NOW).expect("no error"));
    database.execute("UPDATE tickwheel_timers SET state = 'waiting' WHERE key = '1'");
    assert_eq!(purge("mail", NOW), 3);
    let mut other = connect(database);
    assert_eq!(die(&mut *other), 3);
    assert_eq!(purge("mail", NOW), 0, "they are dead anew");
    assert_eq!(purge("mail", NOW), 3);
    assert_eq!(timers.list(&Filter::new()).expect("a list"), []);
}

fn a_pace_counts_by_kind_and_step(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let step = Duration::from_secs(10);
    let now = connection.now().expect("a time");
    let begin = now.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs() / 10 * 10;
    let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(begin);
    let mut number = 0;
    let mut put = |kind: &str, started: SystemTime, outcome, late: u64| {
        number += 1;
        let mut attempt = Attempt::new(kind, "1", started, number, outcome);
        attempt.late = Duration::from_millis(late);
        connection.record(&[attempt]).expect("written");
    };
    let earlier = begin - step * 3;
    put("mail", earlier, Outcome::Done, 10);
    put("mail", earlier + step - Duration::from_millis(1), Outcome::Failed, 30);
    put("mail", earlier + Duration::from_secs(1), Outcome::Snoozed, 50);
    put("mail", begin - step, Outcome::Dead, 7);
    put("call", begin - step, Outcome::Done, 0);
    put("call", begin - HOUR * 9, Outcome::Done, 0);
    let paces = timers.pace(HOUR, step).expect("a pace");
    let counts: Vec<_> = paces
        .iter()
        .map(|of: &Pace| (of.kind.as_str(), of.at, [of.done, of.failed, of.dead, of.snoozed]))
        .collect();
    assert_eq!(
        counts,
        [
            ("call", begin - step, [1, 0, 0, 0]),
            ("mail", earlier, [1, 1, 0, 1]),
            ("mail", begin - step, [0, 0, 1, 0])
        ]
    );
    let late = |of: &Pace| (of.late.as_millis(), of.max_late.as_millis());
    assert_eq!((late(&paces[1]), late(&paces[2])), ((30, 50), (7, 7)));
    for (span, step) in [(HOUR, NOW), (HOUR, Duration::from_millis(1))] {
        let refused = timers.pace(span, step).expect_err("too many steps");
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    }
}

fn what_a_list_shows_is_cancelled_at_once(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    for key in ["a%b/1", "a%b/2", "axb/1", "a_b\\1", "a_b\\2", "dead 1", "dead 2", "runs", "ä/1"] {
        let when = if key.starts_with("dead") || key == "runs" { NOW } else { HOUR };
        timers.schedule(&mail(key, when)).expect("scheduled");
    }
    timers.schedule(&NewTimer::new("zoo", "a%b/1", HOUR)).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    for (index, claimed_key) in keys(&claimed).iter().enumerate() {
        if claimed_key.starts_with("dead") {
            finish(&mut *connection, id(&claimed, index), Then::Dead("no".to_owned()));
        }
    }
    let keys_of = |filter: &Filter| {
        let mut keys: Vec<_> =
            timers.list(filter).expect("a list").into_iter().map(|timer| timer.key).collect();
        keys.sort();
        keys
    };
    let begins = |prefix: &str| Filter::new().kind("mail").key_prefix(prefix);
    assert_eq!(keys_of(&begins("a%b")), ["a%b/1", "a%b/2"]);
    assert_eq!(keys_of(&begins("a_b\\")), ["a_b\\1", "a_b\\2"]);
    assert_eq!(keys_of(&begins("ä")), ["ä/1"]);
    assert_eq!((keys_of(&begins("")).len(), keys_of(&begins("b")).len()), (9, 0));
    assert_eq!(keys_of(&Filter::new().key_prefix("a%b/1")), ["a%b/1", "a%b/1"]);

    assert_eq!(timers.cancel_all(&begins("a%b").limit(1)).expect("no error"), 1);
    assert_eq!(timers.cancel_all(&begins("a%b")).expect("no error"), 1);
    assert_eq!(timers.cancel_all(&begins("a%b")).expect("no error"), 0);
    let dead = Filter::new().kind("mail").state(State::Dead);
    assert_eq!(timers.cancel_all(&dead).expect("no error"), 2);
    assert_eq!(timers.list(&Filter::new().kind("mail")).expect("a list").len(), 5);
    let first = timers.list(&Filter::new().limit(2)).expect("a list");
    let behind = Filter::new().after(&first[1]);
    assert_eq!(timers.cancel_all(&behind).expect("no error"), 4);
    assert_eq!(timers.list(&Filter::new()).expect("a list"), first);
    // What runs is cancelled as by its name: its outcome does not matter any more.
    assert_eq!(timers.cancel_all(&Filter::new()).expect("no error"), 2);
    let runs = keys(&claimed).iter().position(|key| *key == "runs").expect("it runs");
    assert!(!finish(&mut *connection, id(&claimed, runs), Then::Done));
}

fn a_payload_is_changed_unless_it_runs(database: &Database<'_>) {
    let timers = database.open();
    drop(dead_and_running(database));
    timers.schedule(&mail("waits", HOUR).payload("old")).expect("scheduled");
    for (key, is_changed) in [("dead", true), ("waits", true), ("runs", false), ("none", false)] {
        let changed = timers.set_payload("mail", key, [0, 159, 39]).expect("no error");
        assert_eq!(changed, is_changed, "{key}");
        let payload = timers.get("mail", key).expect("no error").map(|timer| timer.payload);
        assert_eq!(payload == Some(vec![0, 159, 39]), is_changed, "{key}");
    }
    let waits = timers.get("mail", "waits").expect("no error").expect("there");
    assert_eq!((waits.state, waits.wake), (State::Waiting, Some(waits.due)));
}

fn a_trace_goes_with_its_timer(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let trace_of = |key: &str| timers.get("mail", key).expect("no error").expect("there").trace;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let day = Duration::from_secs(86_400);
    timers.schedule(&mail("1", NOW).every(day).trace(parent)).expect("scheduled");
    let claimed = claim(&mut *connection, 9);
    assert_eq!(claimed.timers[0].timer.trace.as_deref(), Some(parent));
    let next = claimed.now;
    let split =
        Then::Split { next, key: "1@1".to_owned(), retry: None, error: Some("no".to_owned()) };
    assert!(finish(&mut *connection, id(&claimed, 0), split));
    assert_eq!(trace_of("1@1").as_deref(), Some(parent), "the run takes it along");
    assert_eq!(trace_of("1").as_deref(), Some(parent), "and the series keeps it");
    let many = [mail("2", HOUR).trace("two"), mail("3", HOUR), mail("1", HOUR)];
    timers.schedule_all(&many).expect("scheduled");
    assert_eq!((trace_of("2").as_deref(), trace_of("3")), (Some("two"), None));
    assert_eq!(trace_of("1"), None, "it was replaced");
    for bad in ["a\0b".to_owned(), "x".repeat(1001)] {
        let refused = timers.schedule(&mail("4", HOUR).trace(bad)).expect_err("no trace");
        assert!(refused.to_string().contains("a trace has at most 1000 bytes"), "{refused}");
    }
    // So it is in SQL. The bytes count, and not the letters.
    let due = if database.is_sqlite() { "1000 * unixepoch()" } else { "now()" };
    let insert = |key: u32, trace: &str| {
        let columns = "INSERT INTO tickwheel_timers (kind, key, due, trace)";
        database.attempt(&format!("{columns} VALUES ('bt', '{key}', {due}, {trace})"))
    };
    let text = |letter: &str, count: usize| format!("'{}'", letter.repeat(count));
    insert(5, &text("x", 1000)).expect("it fits");
    let zero = database.is_sqlite().then(|| "'a' || char(0)".to_owned());
    for bad in [text("x", 1001), text("ä", 501)].into_iter().chain(zero) {
        let set = format!("UPDATE tickwheel_timers SET trace = {bad} WHERE kind = 'bt'");
        for refused in [insert(6, &bad), database.attempt(&set)] {
            let refused = refused.expect_err("no trace");
            assert!(refused.contains("a trace has at most 1000 bytes"), "{refused}");
        }
    }
}

/// In neither database is it an error of its encoding.
fn a_name_with_the_character_0_is_nowhere(database: &Database<'_>) {
    let timers = database.open();
    timers.schedule(&mail("a", HOUR)).expect("scheduled");
    for (kind, key) in [("mail\0", "a"), ("mail", "a\0")] {
        assert_eq!(timers.get(kind, key).expect("no error"), None);
        assert!(!timers.reset(kind, key, NOW).expect("no error"));
        assert_eq!(timers.cancel(kind, key).expect("no error"), None);
        assert!(!timers.requeue(kind, key, NOW).expect("no error"));
        assert!(!timers.set_payload(kind, key, "x").expect("no error"));
        let filter = Filter::new().kind(kind).key_prefix(key);
        assert_eq!(timers.list(&filter).expect("no error"), []);
        assert_eq!(timers.cancel_all(&filter).expect("no error"), 0);
        let past = HistoryFilter::new().kind(kind).key(key);
        assert_eq!(timers.history(&past).expect("no error"), []);
    }
    assert_eq!(timers.requeue_all("mail\0", NOW).expect("no error"), 0);
    assert_eq!(timers.list(&Filter::new()).expect("no error").len(), 1);
}

/// An old setting of a database, by which a backslash in a literal is something else.
fn a_database_may_read_backslashes_in_another_way(database: &Database<'_>) {
    if database.is_sqlite() {
        return;
    }
    let url = database.url(); // it ends with options
    let old = match url.strip_suffix('\'') {
        Some(url) => format!("{url} -c standard_conforming_strings=off'"),
        None => format!("{url}%20-c%20standard_conforming_strings%3Doff"),
    };
    for _ in 0..2 {
        let timers = Timers::open(&old).expect("it opens");
        timers.schedule(&mail("a\\b", HOUR)).expect("scheduled");
        let filter = Filter::new().kind("mail").key_prefix("a\\");
        assert_eq!(timers.list(&filter).expect("no error").len(), 1);
    }
}

/// The files that make the tables, one for each version.
fn migrations(database: &Database<'_>) -> &'static [&'static str] {
    if database.is_sqlite() { sqlite::MIGRATIONS } else { postgres::MIGRATIONS }
}

fn tables_of_earlier_versions_are_brought_up_to_date(database: &Database<'_>) {
    let files = migrations(database);
    assert_eq!(files.len(), SCHEMA_VERSION as usize);
    for version in 0..files.len() {
        let database = database.another();
        database.execute(&files[..version].concat());
        let closed = Timers::open_unmigrated(&database.address()).expect_err("it is too old");
        assert!(
            matches!(closed, Error::Unmigrated(found) if found.unsigned_abs() as usize == version),
            "{closed:?}"
        );
        let first = format!("from {:04} to {SCHEMA_VERSION:04}", version + 1);
        assert!(closed.to_string().contains(&first), "{closed}");
        if version > 0 {
            let due = if database.is_sqlite() { "4102444800000" } else { "'2100-01-01 00:00Z'" };
            database.execute(&format!(
                "INSERT INTO tickwheel_timers (kind, key, due) VALUES ('old', 'timer', {due})"
            ));
        }
        an_update_by_another_program_moves_what_waits_for_another_attempt(&database);
        let is_there = database.open().get("old", "timer").expect("no error").is_some();
        assert_eq!(is_there, version > 0);
        let now = database.number("SELECT CAST(version AS bigint) FROM tickwheel_schema");
        assert_eq!(now, i64::from(SCHEMA_VERSION));
        drop(Timers::open_unmigrated(&database.address()).expect("nothing is missing"));
    }
}

fn tables_are_made_once_by_many(database: &Database<'_>) {
    thread::scope(|scope| {
        for n in 0..6 {
            scope.spawn(move || {
                database.open().schedule(&mail(&n.to_string(), HOUR)).expect("scheduled")
            });
        }
    });
    assert_eq!(database.open().list(&Filter::new()).expect("a list").len(), 6);
}

fn a_later_version_that_allows_it_is_worked_with_and_others_are_refused(database: &Database<'_>) {
    let timers = database.open();
    let later = SCHEMA_VERSION + 1;
    database.execute("ALTER TABLE tickwheel_timers ADD COLUMN colour TEXT");
    database.execute(&format!("UPDATE tickwheel_schema SET version = {later}"));
    timers.schedule(&mail("1", NOW)).expect("scheduled");
    let mut connection = connect(database);
    assert_eq!(keys(&claim(&mut *connection, 9)), ["1"]);

    database.execute(&format!("UPDATE tickwheel_schema SET oldest = {later}"));
    let error = Timers::open(&database.address()).expect_err("it is too new");
    assert!(matches!(error, Error::Schema(version) if version == later), "{error:?}");
    assert!(error.to_string().contains("update tickwheel"), "{error}");
    // A worker that runs already learns of it at its next look.
    let look = connection.look(&["mail"], HOUR, 9);
    assert!(matches!(look, Err(Error::Schema(_))), "{look:?}");
    // And at its next claim, which takes nothing.
    timers.schedule(&mail("2", NOW)).expect("scheduled");
    let claim = Claim::new("mail", "me").limit(9).lease(HOUR);
    let claimed = connection.claim(&claim);
    assert!(matches!(claimed, Err(Error::Schema(version)) if version == later), "{claimed:?}");
    assert_eq!(timers.get("mail", "2").expect("no error").expect("there").state, State::Waiting);
}

on_both! {
    "store":
    what_goes_in_comes_out,
    times_are_rounded_up_and_kept_in_range,
    a_key_is_unique_in_its_kind,
    many_go_in_together_or_not_at_all,
    impossible_timers_are_refused_with_advice,
    reset_moves_what_waits,
    cancel_tells_what_it_has_removed,
    lists_are_paged,
    requeue_brings_the_dead_back,
    claims_take_what_is_due_in_order,
    fencing_numbers_only_grow,
    a_lease_that_ends_is_taken_over,
    starts_are_counted_and_claims_are_not,
    a_suspected_timer_is_claimed_by_itself,
    a_claim_takes_no_more_payload_than_fits,
    a_failed_run_leaves_its_series,
    each_outcome_leaves_its_state,
    what_is_put_off_keeps_its_error,
    what_is_given_back_waits_as_before,
    what_is_written_beside_a_refusal_is_told,
    it_is_told_which_runs_are_still_running,
    a_look_sees_ahead,
    claims_at_the_same_time_never_take_the_same,
    a_replaced_timer_is_not_ended_by_the_old_run,
    an_insert_by_another_program_is_a_timer,
    an_update_by_another_program_moves_what_waits_for_another_attempt,
    the_published_files_make_the_tables,
    a_file_that_is_run_out_of_turn_changes_nothing,
    the_whole_definition_is_the_files_one_after_the_other,
    tables_of_earlier_versions_are_brought_up_to_date,
    statements_that_would_be_lost_are_refused,
    columns_that_belong_together_are_set_together,
    rows_that_are_no_timers_are_refused,
    a_dead_timer_that_is_set_to_waiting_by_hand_runs,
    an_outcome_and_its_attempt_are_written_together,
    a_run_that_leaves_its_series_takes_its_attempts_along,
    histories_are_paged_and_filtered,
    what_is_too_old_is_removed_in_batches,
    the_dead_are_kept_for_as_long_as_is_said,
    a_pace_counts_by_kind_and_step,
    what_a_list_shows_is_cancelled_at_once,
    a_payload_is_changed_unless_it_runs,
    a_trace_goes_with_its_timer,
    a_name_with_the_character_0_is_nowhere,
    a_database_may_read_backslashes_in_another_way,
    tables_are_made_once_by_many,
    a_later_version_that_allows_it_is_worked_with_and_others_are_refused,
}

#[test]
fn what_is_no_address_is_said_to_be_none() {
    for address in ["", "sqlite:", "mysql://x", "postgres://user:secret@host:port/"] {
        let error = Timers::open(address).expect_err("no address");
        assert!(matches!(error, Error::Address(_)), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let missing = env::temp_dir().join("no such folder").join("timers.db");
    let error = Timers::open(&format!("sqlite:{}", missing.display())).expect_err("no folder");
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
}

/// SQLite does not wait by itself when the mode of a file is to be set in which somebody writes.
#[test]
fn a_new_file_may_be_opened_while_another_program_writes_in_it() {
    let database = Database::file();
    let path = database.address();
    let other = rusqlite::Connection::open(path.trim_start_matches("sqlite:")).expect("it opens");
    other.execute_batch("BEGIN IMMEDIATE; CREATE TABLE other (id INTEGER)").expect("valid SQL");
    thread::scope(|scope| {
        let opened = scope.spawn(|| database.open());
        thread::sleep(Duration::from_millis(50)); // real time: it meets the lock
        assert!(!opened.is_finished());
        other.execute_batch("COMMIT").expect("it was free to write");
        drop(opened.join().expect("it opens"));
    });
}

/// SQLite makes a transaction wait that begins with a write. One that has read before fails at once, whatever its timeout.
#[test]
fn a_transaction_of_yours_waits_for_another_process() {
    let database = Database::file();
    let Database::File(path) = &database else { return };
    drop(database.open());
    for (round, in_a_transaction) in [false, true].into_iter().enumerate() {
        let commit = database.begin("BEGIN IMMEDIATE; DELETE FROM tickwheel_timers");
        let scheduled = thread::scope(|scope| {
            let schedule = scope.spawn(|| {
                let mut mine = rusqlite::Connection::open(path).expect("it opens");
                mine.busy_timeout(common::PATIENCE).expect("a timeout");
                let new = [mail(&round.to_string(), NOW)];
                if !in_a_transaction {
                    return sqlite::within(&mine).schedule(&new, Existing::Replace);
                }
                let transaction = mine.transaction().expect("it begins");
                let scheduled = sqlite::within(&transaction).schedule(&new, Existing::Replace);
                transaction.commit().expect("it commits");
                scheduled
            });
            // What fails, does so at once. The other process is a while at it, or there would be nothing to wait for.
            thread::sleep(Duration::from_millis(100));
            commit();
            schedule.join().expect("no panic")
        });
        let scheduled = scheduled.expect("it has waited");
        assert!(scheduled[0].is_some_and(|scheduled| !scheduled.replaced));
    }
}
