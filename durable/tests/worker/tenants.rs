//! Kinds side by side: one that floods leaves the others on time, weights share the claims, and limits hold in all processes.
//!
//! Other processes are this program, started again as the test `tenant_process`, which does nothing by itself.
//! `TICKWHEEL_FLOOD=300000` makes the floods longer, `TICKWHEEL_STORM=10` the kills more.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ::postgres::fallible_iterator::FallibleIterator;
use tickwheel::Scheduler;
use tickwheel_durable::{
    Claim, Error, Limits, NewTimer, Retry, Store, Timers, Worker, WorkerBuilder, WorkerStats,
    postgres, sqlite,
};

use super::common::{self, PATIENCE, Random, until};
use super::databases::{Database, client, say};
use super::{HOUR, LEASE, NOW};

const GAP: Duration = Duration::from_millis(20);

fn start(worker: WorkerBuilder) -> Worker {
    worker.start(&Scheduler::new()).expect("it starts")
}

/// Puts in timers that were due an hour ago, one each millisecond.
fn put(database: &Database<'_>, kind: &str, before: &str, count: u64) {
    database.execute(&if database.is_sqlite() {
        format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT {count})
            INSERT INTO tickwheel_timers (kind, key, due)
            SELECT '{kind}', '{before}' || n, 1000 * (unixepoch() - 3600) + n FROM n"
        )
    } else {
        format!(
            "INSERT INTO tickwheel_timers (kind, key, due)
            SELECT '{kind}', '{before}' || n, now() - interval '1 hour' + n * interval '1 millisecond'
            FROM generate_series(1, {count}) n; ANALYZE tickwheel_timers"
        )
    });
}

fn flood() -> u64 {
    common::env("TICKWHEEL_FLOOD").unwrap_or(30_000)
}

/// The median, the 99th of a hundred, and the largest.
fn shares(mut all: Vec<Duration>) -> [Duration; 3] {
    all.sort();
    [50, 99, 100].map(|share| all[(all.len() - 1) * share / 100])
}

fn late(run: &tickwheel_durable::Run<'_>) -> Duration {
    SystemTime::now().duration_since(run.due()).unwrap_or_default()
}

// ----- a flood, and weights ------------------------------------------------------------------

pub(crate) fn a_flood_leaves_the_others_on_time(database: &Database<'_>) {
    let timers = database.open();
    put(database, "flood", "", flood());
    let (tell, told) = mpsc::channel();
    let begin = Instant::now();
    let flooded = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&flooded);
    let worker = timers.worker().handle("flood", move |_| {
        count.fetch_add(1, Ordering::Relaxed); // it orders nothing
        Ok(())
    });
    let worker = start(worker.handle("steady", move |run| {
        tell.send(late(run))?;
        Ok(())
    }));
    // From the start on, because the start takes a while.
    let first = SystemTime::now() + Duration::from_millis(100);
    let steady: Vec<_> =
        (0..300).map(|n| NewTimer::new("steady", n.to_string(), first + GAP * n)).collect();
    timers.schedule_all(&steady).expect("scheduled");
    let mut lates = Vec::new();
    while lates.len() < steady.len() && (flooded.load(Ordering::Relaxed) as u64) < flood() {
        lates.push(told.recv_timeout(PATIENCE).expect("it comes"));
    }
    let pace = flooded.load(Ordering::Relaxed) as u128 * 1000 / begin.elapsed().as_millis();
    let shares = shares(lates);
    say(&format!(
        "beside a flood, others are late by {shares:?} at p50, p99 and most; the flood runs {pace} a second"
    ));
    // They wait for what has been claimed before them, and not for the end of the flood, which is 30 times as long.
    let thousand = Duration::from_secs(1000) / u32::try_from(pace.max(1)).expect("few");
    assert!(shares[0] < Duration::from_millis(250).max(thousand), "{shares:?}");
    assert!(worker.stop(PATIENCE));
}

pub(crate) fn weights_share_the_claims(database: &Database<'_>) {
    let timers = database.open();
    put(database, "heavy", "", 8000);
    put(database, "light", "", 8000);
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let counting = |of: usize| {
        let counts = Arc::clone(&counts);
        move |_: &tickwheel_durable::Run<'_>| {
            counts[of].fetch_add(1, Ordering::Relaxed); // it orders nothing, here and below
            Ok(())
        }
    };
    let worker = timers.worker().handle("light", counting(1)).weight(1);
    let worker = start(worker.handle("heavy", counting(0)).weight(4));
    until("most of one are done", || counts[0].load(Ordering::Relaxed) >= 6000);
    let light = counts[1].load(Ordering::Relaxed);
    assert!(worker.stop(PATIENCE));
    println!("weights 4 and 1: 6000 and {light}");
    assert!(light > 0 && light < 3500, "{light} beside 6000");
}

// ----- limits --------------------------------------------------------------------------------

/// How many are in the handler now, and how many there were at most.
#[derive(Clone, Default)]
struct Inside(Arc<Mutex<(usize, usize)>>);

impl Inside {
    fn while_in<T>(&self, body: impl FnOnce() -> T) -> T {
        {
            let mut inside = self.0.lock().expect("no panic");
            inside.0 += 1;
            inside.1 = inside.1.max(inside.0);
        }
        let result = body();
        self.0.lock().expect("no panic").0 -= 1;
        result
    }

    fn most(&self) -> usize {
        self.0.lock().expect("no panic").1
    }
}

pub(crate) fn a_kind_has_a_bound_of_its_own_in_a_process(database: &Database<'_>) {
    let timers = database.open();
    let (few, many) = (Inside::default(), Inside::default());
    let taking = |inside: &Inside| {
        let inside = inside.clone();
        move |_: &tickwheel_durable::Run<'_>| {
            inside.while_in(|| thread::sleep(Duration::from_millis(120))); // the work
            Ok(())
        }
    };
    let worker = timers.worker().threads(3).handle("few", taking(&few)).at_most(2);
    let worker = start(worker.handle("many", taking(&many)).at_most(7));
    put(database, "few", "", 12);
    put(database, "many", "", 28);
    until("all are done", || worker.stats().done == 40);
    assert_eq!((few.most(), many.most()), (2, 7));
    assert!(worker.stop(PATIENCE));
}

pub(crate) fn no_more_run_at_once_than_the_limit_of_all(database: &Database<'_>) {
    let inside = Inside::default();
    let (tell, told) = mpsc::channel();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (inside, tell) = (inside.clone(), tell.clone());
            let worker = database.open().worker().handle("capped", move |_| {
                inside.while_in(|| thread::sleep(Duration::from_millis(15))); // the work
                Ok(())
            });
            let worker = worker.at_most_in_all(3).poll_every(GAP);
            start(worker.handle("free", move |run| {
                tell.send(late(run))?;
                Ok(())
            }))
        })
        .collect();
    put(database, "capped", "", 90);
    let timers = database.open();
    let begin = Instant::now();
    let done = || workers.iter().map(|worker| worker.stats().done).sum::<u64>();
    // What is held back does not hold up others.
    let free: Vec<_> = (0..10).map(|n| NewTimer::new("free", n.to_string(), GAP * n)).collect();
    timers.schedule_all(&free).expect("scheduled");
    let lates = free.iter().map(|_| told.recv_timeout(PATIENCE).expect("it comes")).collect();
    until("all are done", || done() == 100);
    println!(
        "90 runs of 15 ms, three at a time: {:?}; others late by {:?}",
        begin.elapsed(),
        shares(lates)
    );
    assert_eq!(inside.most(), 3);
    let claims = sum(&workers, |stats| stats.claims);
    assert!(claims < 1500, "{claims} claims for 100 timers");
    until("all is let go", || database.number("SELECT count(*) FROM tickwheel_holds") == 0);
    workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
}

/// Calls the function, and returns for how long a thread of this process was held up at most in the meantime.
fn held_up_while(body: impl FnOnce()) -> Duration {
    let (end, is_over) = mpsc::channel::<()>();
    let sleeps = thread::spawn(move || {
        let (pause, mut most) = (Duration::from_millis(1), Duration::ZERO);
        loop {
            let begin = Instant::now();
            if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return most;
            }
            most = most.max(begin.elapsed().saturating_sub(pause));
        }
    });
    body();
    drop(end);
    sleeps.join().expect("no panic")
}

pub(crate) fn a_rate_holds_over_all_workers(database: &Database<'_>) {
    put_tables(database);
    in_three_attempts(|| a_rate_holds(database));
}

fn a_rate_holds(database: &Database<'_>) -> Result<(), String> {
    const RUNS: u32 = 20;
    let per = Duration::from_millis(500);
    let starts = Arc::new(Mutex::new(Vec::new()));
    put(database, "paced", "", 70);
    let begin = Instant::now();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let starts = Arc::clone(&starts);
            let worker = database.open().worker().handle("paced", move |_| {
                starts.lock().expect("no panic").push(Instant::now());
                Ok(())
            });
            start(worker.rate(RUNS, per))
        })
        .collect();
    let starts = || starts.lock().expect("no panic").clone();
    let held_up = held_up_while(|| until("all have run", || starts().len() == 70));
    // 20 at once, and the others in a second and a quarter.
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(1200), "{took:?}");
    let claims = sum(&workers, |stats| stats.claims);
    println!("70 runs, 20 each half second: {took:?}, {claims} claims");
    workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
    if claims >= 1000 {
        return Err(format!("{claims} claims"));
    }
    // In any time there start no more than the bucket holds, and what comes into it. A start is a little after its claim, and on a busy
    // machine it is held up.
    let late = Duration::from_millis(100) + held_up;
    let starts = starts();
    for (first, from) in starts.iter().enumerate().step_by(7) {
        for (last, to) in starts.iter().enumerate().skip(first) {
            let time = to.saturating_duration_since(*from) + late;
            let most = f64::from(RUNS) * (1.0 + time.as_secs_f64() / per.as_secs_f64());
            let count = u32::try_from(last - first + 1).expect("few");
            if f64::from(count) > most {
                return Err(format!("{count} in {time:?}, held up for {held_up:?}"));
            }
        }
    }
    Ok(())
}

/// Makes an attempt up to three times, until it is well. A machine that holds threads up makes more claims, and more calls for help,
/// and starts that gather, all of which is right. What a fault does, it does each time.
fn in_three_attempts(attempt: impl Fn() -> Result<(), String>) {
    let mut said = String::new();
    let is_well = (0..3).any(|_| attempt().map_err(|problem| said = problem).is_ok());
    assert!(is_well, "three times: {said}");
}

fn sum(workers: &[Worker], of: fn(&WorkerStats) -> u64) -> u64 {
    workers.iter().map(|worker| of(&worker.stats())).sum()
}

/// What a rate holds back, no worker calls others for: otherwise there were 9 to 13 calls. And starts gather for one claim, so four
/// workers claim little more often than one: otherwise there were 800 claims and more.
pub(crate) fn what_limits_hold_back_calls_for_no_help(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // its workers have no turns
    }
    put_tables(database);
    in_three_attempts(|| {
        put(database, "paced", "", 150);
        let mut ear = client(&database.url());
        ear.batch_execute("LISTEN tickwheel_timers").expect("it listens");
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let worker = database.open().worker().handle("paced", |_| Ok(()));
                start(worker.rate(25, Duration::from_millis(500)))
            })
            .collect();
        until("all have run", || sum(&workers, |stats| stats.done) == 150);
        let claims = sum(&workers, |stats| stats.claims);
        workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
        let mut heard = ear.notifications();
        let heard = heard.timeout_iter(Duration::from_millis(300)); // they come in real time
        let calls = heard.filter(|heard| Ok(heard.payload().starts_with('+')));
        let calls = calls.count().expect("notices");
        let said = format!("150 runs with a rate, four workers: {claims} claims, {calls} calls");
        say(&said);
        if claims < 380 && calls < 4 { Ok(()) } else { Err(said) }
    });
}

/// A group is held for long. The checks of those who leave timers to others do not find what waits for it, which would make 490
/// claims and more.
pub(crate) fn what_waits_for_its_group_is_not_checked(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // its workers have no turns
    }
    let timers = database.open();
    in_three_attempts(|| {
        put(database, "serial", "big/", 2);
        let (go, gone) = mpsc::channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let gone = Arc::clone(&gone);
                let worker = database.open().worker().handle("serial", move |run| {
                    if run.key() == "big/1" {
                        _ = gone.lock().expect("no panic").recv(); // until the sender is gone
                    }
                    Ok(())
                });
                start(worker.serial_by('/'))
            })
            .collect();
        until("it runs", || sum(&workers, |stats| stats.running) == 1);
        let first = SystemTime::now() + Duration::from_millis(200);
        let others = (0..120).map(|n| NewTimer::new("serial", n.to_string(), first + GAP * n));
        timers.schedule_all(&others.collect::<Vec<_>>()).expect("scheduled");
        until("the others have run", || sum(&workers, |stats| stats.done) == 120);
        drop(go);
        until("all have run", || sum(&workers, |stats| stats.done) == 122);
        let claims = sum(&workers, |stats| stats.claims);
        workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
        let said = format!("122 runs beside a group that is held, three workers: {claims} claims");
        say(&said);
        if claims < 400 { Ok(()) } else { Err(said) }
    });
}

fn put_tables(database: &Database<'_>) {
    drop(database.open());
}

// ----- groups --------------------------------------------------------------------------------

/// Three workers. In each group, each timer runs after the one that was due before it, and not beside it.
pub(crate) fn groups_run_one_at_a_time_and_in_order(database: &Database<'_>) {
    let (inside, log) = (Inside::default(), Arc::new(Mutex::new(Vec::new())));
    let timers = database.open();
    let long_ago = SystemTime::now() - HOUR;
    let mut random = Random(7);
    // The keys of a group are in no order.
    let new: Vec<_> = (0..120)
        .map(|n| {
            let key = format!("{}/{}", n % 6, random.next());
            NewTimer::new("serial", key, long_ago + Duration::from_millis(n))
        })
        .collect();
    timers.schedule_all(&new).expect("scheduled");
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (inside, log) = (inside.clone(), Arc::clone(&log));
            let worker = database.open().worker().handle("serial", move |run| {
                let group = run.key().split('/').next().unwrap_or_default().to_owned();
                let begin = Instant::now();
                inside.while_in(|| thread::sleep(Duration::from_millis(3))); // the work
                log.lock().expect("no panic").push((group, run.due(), begin, Instant::now()));
                Ok(())
            });
            start(worker.serial_by('/'))
        })
        .collect();
    until("all have run", || log.lock().expect("no panic").len() == new.len());
    let mut log = log.lock().expect("no panic").clone();
    log.sort_by_key(|(_, _, begin, _)| *begin);
    for group in 0..6 {
        let runs: Vec<_> = log.iter().filter(|run| run.0 == group.to_string()).collect();
        assert_eq!(runs.len(), 20);
        for two in runs.windows(2) {
            assert!(two[0].1 < two[1].1, "group {group}: not in order");
            assert!(two[0].3 <= two[1].2, "group {group}: two at once");
        }
    }
    assert!(inside.most() > 1, "the groups run beside each other");
    workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
}

/// One group has more due than a claim looks at. The others are found behind it.
pub(crate) fn a_group_that_floods_leaves_the_others_on_time(database: &Database<'_>) {
    let timers = database.open();
    put(database, "serial", "big/", 3000);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("serial", move |run| {
        if run.key().starts_with("big/") {
            thread::sleep(Duration::from_millis(1)); // the work
        } else {
            tell.send(late(run))?;
        }
        Ok(())
    });
    let worker = start(worker.serial_by('/'));
    until("it is at work", || worker.stats().done > 3);
    // On a machine that stands still for a while all are late, but not each time.
    let are_on_time = (0..3).any(|_| {
        let before = worker.stats().done;
        let first = SystemTime::now() + Duration::from_millis(100);
        // Each is a group by itself, so that none waits for another.
        let others = (0..20).map(|n| NewTimer::new("serial", n.to_string(), first + GAP * 3 * n));
        timers.schedule_all(&others.collect::<Vec<_>>()).expect("scheduled");
        let late = || told.recv_timeout(PATIENCE).expect("it comes");
        let shares = shares((0..20).map(|_| late()).collect());
        let done = worker.stats().done;
        println!("beside a group that floods, others are late by {shares:?}; {done} are done");
        assert!(done < 3000, "it waits for the end of the flood: {shares:?}");
        until("its flood goes on", || worker.stats().done > before + 24);
        shares[0] < Duration::from_millis(400)
    });
    assert!(are_on_time, "each time");
    assert!(worker.stop(PATIENCE));
}

/// A timer that is replaced while it runs is its group, and so the new one waits for the handler of the old one.
pub(crate) fn a_run_whose_timer_is_gone_holds_its_group(database: &Database<'_>) {
    let timers = database.open();
    let inside = Inside::default();
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let gone = Mutex::new(gone);
    let worker = {
        let inside = inside.clone();
        timers.worker().lease(LEASE).handle("serial", move |run| {
            inside.while_in(|| {
                tell.send(run.payload().to_vec())?;
                _ = gone.lock().expect("no panic").recv();
                Ok(())
            })
        })
    };
    let worker = start(worker.serial_by('/'));
    timers.schedule(&NewTimer::new("serial", "1", NOW).payload("old")).expect("scheduled");
    assert_eq!(told.recv_timeout(PATIENCE).expect("it runs"), b"old");
    timers.schedule(&NewTimer::new("serial", "1", NOW).payload("new")).expect("scheduled");
    // Longer than a lease, which the worker extends, and than it takes until the worker looks at all that was passed over.
    assert!(told.recv_timeout(LEASE * 4 / 3).is_err(), "beside the old one");
    go.send(()).expect("it listens");
    assert_eq!(told.recv_timeout(PATIENCE).expect("it runs"), b"new");
    go.send(()).expect("it listens");
    until("it is done", || worker.stats().running == 0);
    assert_eq!((inside.most(), worker.stats().lost), (1, 1));
    assert!(worker.stop(PATIENCE));
}

pub(crate) fn what_limits_cannot_be_is_said(database: &Database<'_>) {
    let timers = database.open();
    let refused = |worker: WorkerBuilder| {
        let error = worker.start(&Scheduler::new()).expect_err("it cannot start");
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        error.to_string()
    };
    assert!(
        refused(timers.worker().at_most_in_all(3).handle("mail", |_| Ok(())))
            .contains("at_most_in_all")
    );
    let mail = |timers: &Timers| timers.worker().handle("mail", |_| Ok(()));
    assert!(refused(mail(&timers).serial_by('\0')).contains("character 0"));
    for nothing in [
        mail(&timers).at_most(0),
        mail(&timers).weight(0),
        mail(&timers).at_most_in_all(0),
        mail(&timers).rate(0, HOUR),
        mail(&timers).rate(1, NOW),
    ] {
        assert!(refused(nothing).contains("0, so no handler would run"));
    }
    let other = database.another();
    let many = Timers::sharded(&[database.address(), other.address()]).expect("they open");
    assert!(refused(mail(&many).serial_by('/')).contains("several databases"));
    drop(many);
}

fn store_of(database: &Database<'_>) -> Box<dyn Store> {
    match database {
        Database::File(path) => Box::new(sqlite::Sqlite::new(path)),
        Database::Schema { .. } => {
            Box::new(postgres::Postgres::new(&database.url()).expect("an address"))
        }
    }
}

/// A claim with limits does what any claim does: it passes over what is locked, and takes nothing from tables that are too new.
pub(crate) fn a_claim_with_limits_is_a_claim(database: &Database<'_>) {
    _ = database.open();
    put(database, "mail", "", 9);
    let mut connection = store_of(database).connect().expect("it connects");
    let mut limits = Limits::default();
    limits.at_most = Some(2);
    let mut claim = |limits| {
        let claim = Claim::new("mail", "me").limit(9).lease(HOUR).limits(Some(limits));
        connection.claim(&claim)
    };
    let mut taken = Vec::new();
    let mut take = |limits| {
        until("nobody else claims", || {
            let claimed = claim(limits).expect("a claim").timers;
            taken.extend(claimed.into_iter().map(|claimed| claimed.timer.key));
            !taken.is_empty()
        });
        std::mem::take(&mut taken)
    };
    if database.is_sqlite() {
        assert_eq!(take(limits), ["1", "2"]);
    } else {
        let commit = database
            .begin("BEGIN; SELECT FROM tickwheel_timers WHERE key IN ('1', '2') FOR UPDATE");
        assert_eq!(take(limits), ["3", "4"]);
        commit();
    }
    // A bucket is full for the first one that has a rate.
    let mut rate = Limits::default();
    rate.rate = Some((3, HOUR));
    assert_eq!(take(rate).len(), 3);
    database.execute("UPDATE tickwheel_schema SET version = 99, oldest = 99");
    let error = claim(Limits::default()).expect_err("the tables are too new");
    assert!(matches!(error, Error::Schema(99)), "{error:?}");
    let running = "SELECT count(*) FROM tickwheel_timers WHERE state = 'running'";
    assert_eq!(database.number(running), 5);
}

/// What is claimed may start at once, so no starts are gathered for later.
pub(crate) fn a_rate_lets_no_starts_gather(database: &Database<'_>) {
    let timers = database.open();
    put(database, "mail", "", 20);
    let (gate, closed) = mpsc::channel::<()>();
    let closed = Mutex::new(closed);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().threads(1).handle("mail", move |run| {
        tell.send(run.key().to_owned())?;
        if run.key() == "20" {
            _ = closed.lock().expect("no panic").recv(); // until the sender is gone
        }
        Ok(())
    });
    let (other_ran, others) = mpsc::channel();
    let worker = worker.rate(1000, Duration::from_secs(1));
    let worker = start(worker.handle("other", move |_| Ok(other_ran.send(())?)));
    until("the last one runs", || told.try_iter().any(|key| key == "20"));
    put(database, "mail", "more ", 500);
    timers.tell("mail");
    // Meanwhile the bucket fills up.
    let later = Duration::from_millis(300);
    timers.schedule(&NewTimer::new("other", "1", later)).expect("scheduled");
    others.recv_timeout(PATIENCE).expect("it runs");
    let running = "SELECT count(*) FROM tickwheel_timers WHERE kind = 'mail' AND state = 'running'";
    assert_eq!(database.number(running), 1);
    drop(gate);
    assert!(worker.stop(PATIENCE));
}

/// A claim of a worker that has died holds its place until its lease ends, whatever becomes of the timer.
pub(crate) fn a_hold_lasts_as_long_as_its_lease(database: &Database<'_>) {
    let store = store_of(database);
    let timers = database.open();
    put(database, "mail", "a/", 2);
    put(database, "mail", "b/", 2);
    let mut connection = store.connect().expect("it connects");
    let mut limits = Limits::default();
    limits.serial_by = Some('/');
    let claim = |lease| Claim::new("mail", "me").limit(9).lease(lease).limits(Some(limits));
    let mut claimed = Vec::new();
    until("nobody else claims", || {
        claimed = connection.claim(&claim(Duration::from_secs(2))).expect("a claim").timers;
        !claimed.is_empty()
    });
    let keys: Vec<_> = claimed.iter().map(|claimed| claimed.timer.key.as_str()).collect();
    assert_eq!(keys, ["a/1", "b/1"]);
    timers.cancel("mail", "a/1").expect("cancelled");
    connection.let_go(&[claimed[1].timer.fence]).expect("let go");
    let again = connection.claim(&claim(HOUR)).expect("a claim");
    assert_eq!(again.timers.iter().map(|of| of.timer.key.as_str()).collect::<Vec<_>>(), ["b/2"]);
    assert_eq!(again.passed.iter().map(|of| of.group.as_str()).collect::<Vec<_>>(), ["a"]);
    let (begin, lease) = (Instant::now(), Duration::from_millis(500));
    assert!(connection.hold(&[claimed[0].timer.fence], lease).expect("held").len() == 1);
    until("the lease has ended", || {
        !connection.claim(&claim(HOUR)).expect("a claim").timers.is_empty()
    });
    assert!(begin.elapsed() >= lease, "{:?}", begin.elapsed());
    assert!(connection.hold(&[claimed[0].timer.fence], lease).expect("no error").is_empty());
}

/// The database refuses to let holds go. Outcomes do not wait for that, and the holds end with their leases.
pub(crate) fn outcomes_do_not_wait_for_holds_that_stay(database: &Database<'_>) {
    let timers = database.open();
    database.execute(if database.is_sqlite() {
        "CREATE TRIGGER stays BEFORE DELETE ON tickwheel_holds BEGIN SELECT RAISE(ABORT, 'it stays'); END"
    } else {
        "CREATE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'it stays'; END $$;
        CREATE TRIGGER stays BEFORE DELETE ON tickwheel_holds FOR EACH ROW EXECUTE FUNCTION stays()"
    });
    let (complain, complaints) = mpsc::channel();
    let worker = timers.worker().handle("capped", |_| Ok(())).at_most_in_all(100);
    let worker = start(worker.on_error(move |error| _ = complain.send(error.to_string())));
    for n in 1..=4 {
        timers.schedule(&NewTimer::new("capped", n.to_string(), NOW)).expect("scheduled");
        until("its outcome is written", || worker.stats().done == n);
    }
    assert!(worker.stop(PATIENCE));
    let complaints: Vec<_> = complaints.try_iter().collect();
    assert!(complaints.len() == 1 && complaints[0].contains("it stays"), "{complaints:?}");
}

/// A hold is extended after the lease that it belongs to, so it does not end before.
pub(crate) fn a_hold_does_not_end_before_its_lease(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // its times are milliseconds, and often equal
    }
    let timers = database.open();
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let worker = timers.worker().lease(LEASE).handle("capped", move |_| {
        _ = gone.lock().expect("no panic").recv();
        Ok(())
    });
    let worker = start(worker.at_most_in_all(3));
    timers.schedule(&NewTimer::new("capped", "1", NOW)).expect("scheduled");
    until("it runs", || worker.stats().running == 1);
    let both = "FROM tickwheel_timers t JOIN tickwheel_holds h USING (fence)";
    let first = database.number(
        "SELECT (extract(epoch FROM min(held_until)) * 1000000)::bigint FROM tickwheel_timers",
    );
    let later = format!("extract(epoch FROM t.held_until) * 1000000 > {first}");
    until("the lease was extended", || {
        database.number(&format!("SELECT count(*) {both} WHERE {later}")) == 1
    });
    let lasts =
        || database.number(&format!("SELECT count(*) {both} WHERE h.until >= t.held_until")) == 1;
    // Between the two, the hold ends first, and no handler knows of the new lease.
    let lasting = (0..20).filter(|_| {
        thread::sleep(LEASE / 50); // over another extension
        lasts()
    });
    let lasting = lasting.count();
    assert!(lasting > 10, "{lasting} of 20");
    drop(go);
    assert!(worker.stop(PATIENCE));
}

/// A suspected timer that somebody holds when it is to start is not given back, so its next claim suspects it too.
pub(crate) fn what_is_suspected_and_cannot_start_stays_suspected(database: &Database<'_>) {
    let Database::Schema { .. } = database else { return }; // nothing there holds one timer
    let timers = database.open();
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let worker = timers.worker().lease(LEASE).handle("mail", move |run| {
        if run.key() == "long" {
            _ = gone.lock().expect("no panic").recv();
        }
        Ok(())
    });
    let worker = start(worker);
    timers.schedule(&NewTimer::new("mail", "long", NOW)).expect("scheduled");
    until("it runs", || worker.stats().running == 1);
    // The lease of a dead worker has ended.
    database.execute(
        "INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', 'suspected', now() + interval '1 hour');
        UPDATE tickwheel_timers SET state = 'running', fence = 1, owner = 'dead', held_until = now() WHERE key = 'suspected'",
    );
    until("it is taken over, and waits", || worker.stats().taken_over == 1);
    let mut holds = client(&database.url());
    let mut transaction = holds.transaction().expect("it begins");
    transaction
        .execute("SELECT FROM tickwheel_timers WHERE key = 'suspected' FOR UPDATE", &[])
        .expect("it is held");
    go.send(()).expect("it listens");
    until("it could not start", || worker.stats().running == 0 || worker.stats().released > 0);
    transaction.commit().expect("it ends");
    until("both are done", || worker.stats().done == 2);
    let stats = worker.stats();
    assert_eq!((stats.taken_over, stats.released), (2, 0), "{stats:?}");
    assert!(worker.stop(PATIENCE));
}

// ----- other processes -----------------------------------------------------------------------

/// A database as another process may find it, used directly.
struct Direct(String);

impl Direct {
    fn of(database: &Database<'_>) -> Direct {
        Direct(match database {
            Database::File(path) => path.display().to_string(),
            Database::Schema { .. } => database.url(),
        })
    }

    fn is_url(&self) -> bool {
        self.0.starts_with("postgres")
    }

    /// Executes statements, and returns the number that the last one selects.
    fn run(&self, statements: &str, last: &str) -> i64 {
        if self.is_url() {
            let mut client = client(&self.0);
            client.batch_execute(statements).expect("valid SQL");
            return client.query_one(last, &[]).expect("valid SQL").get(0);
        }
        let client = rusqlite::Connection::open(&self.0).expect("it opens");
        client.busy_timeout(PATIENCE).expect("a timeout");
        client.execute_batch(statements).expect("valid SQL");
        client.query_row(last, [], |row| row.get(0)).expect("valid SQL")
    }
}

struct Process(Child);

impl Process {
    fn start(part: &str, database: &Database<'_>) -> Process {
        let child = Command::new(env::current_exe().expect("a path"))
            .args(["--exact", "tenants::tenant_process", "--nocapture"])
            .env(
                "TICKWHEEL_TENANT",
                format!("{part}\n{}\n{}", database.address(), Direct::of(database).0),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Process(child.expect("it starts"))
    }

    /// Returns what the process says.
    fn says(&mut self) -> String {
        let output = BufReader::new(self.0.stdout.as_mut().expect("piped"));
        let line = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split_once('@').map(|(_, said)| said.to_owned()));
        line.expect("it says something")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Does nothing, unless it was started by one of the others.
#[test]
fn tenant_process() {
    let Ok(settings) = env::var("TICKWHEEL_TENANT") else { return };
    let settings: Vec<_> = settings.split('\n').collect();
    let [part, address, direct] = settings[..] else { panic!("three settings") };
    let direct = Direct(direct.to_owned());
    match part {
        "work" => work(address, &Arc::new(direct)),
        "schedule" => schedule(|mut n| {
            let timers = Timers::open(address).expect("it opens");
            move || {
                let new = NewTimer::new("other", n().to_string(), HOUR);
                timers.schedule(&new).expect("scheduled");
            }
        }),
        "insert" => schedule(|mut n| {
            let client = rusqlite::Connection::open(&direct.0).expect("it opens");
            client.busy_timeout(Duration::from_secs(9)).expect("a timeout");
            move || {
                let sql = "INSERT INTO tickwheel_timers (kind, key, due) VALUES ('other', ?1, 4102444800000)";
                client.execute(sql, [n().to_string()]).expect("it is put in");
            }
        }),
        other => panic!("{other}"),
    }
}

/// Works until its input ends. Its handlers write down what runs beside them.
fn work(address: &str, direct: &Arc<Direct>) {
    let booking = |kind: &'static str, most: i64| {
        let direct = Arc::clone(direct);
        let me = std::process::id();
        move |run: &tickwheel_durable::Run<'_>| {
            let group = run.key().split('/').next().unwrap_or_default();
            let beside = format!("SELECT count(*) FROM book WHERE kind = '{kind}' AND is_on = 1");
            let beside =
                if kind == "serial" { format!("{beside} AND grp = '{group}'") } else { beside };
            let id = run.fence();
            let on = format!(
                "INSERT INTO book (id, process, kind, grp, is_on) VALUES ({id}, {me}, '{kind}', '{group}', 1)"
            );
            if direct.run(&on, &beside) > most {
                direct.run(
                    &format!("INSERT INTO broken VALUES ('{kind}')"),
                    "SELECT CAST(1 AS BIGINT)",
                );
            }
            thread::sleep(Duration::from_millis(4)); // the work
            direct.run(
                &format!("UPDATE book SET is_on = 0 WHERE id = {id}"),
                "SELECT CAST(1 AS BIGINT)",
            );
            Ok(())
        }
    };
    let timers = Timers::open(address).expect("it opens");
    let retry = Retry::attempts(1000);
    let worker = timers.worker().retry(retry).lease(LONG_LEASE).poll_every(GAP);
    let worker = worker.handle("capped", booking("capped", 3)).at_most_in_all(3);
    let worker = worker.handle("serial", booking("serial", 1)).serial_by('/').at_most(6);
    let _worker = start(worker.on_error(|_| {}));
    println!("@ready");
    std::io::stdin().lines().for_each(drop);
}

/// Longer than a process is held up on a busy machine: a run whose lease has ended does not count.
const LONG_LEASE: Duration = Duration::from_secs(3);

/// Three worker processes, one of which is killed now and then. What a dead one has held counts until its lease ends.
pub(crate) fn limits_hold_while_workers_are_killed(database: &Database<'_>) {
    let seed = common::env("TICKWHEEL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("TICKWHEEL_SEED={seed}");
    let mut random = Random(seed);
    put_tables(database);
    database.execute(
        "CREATE TABLE book (id BIGINT PRIMARY KEY, process BIGINT NOT NULL, kind TEXT NOT NULL, grp TEXT NOT NULL, is_on BIGINT NOT NULL);
        CREATE TABLE broken (kind TEXT NOT NULL)",
    );
    put(database, "capped", "", 120);
    for group in 0..5 {
        put(database, "serial", &format!("{group}/"), 24);
    }
    let direct = Direct::of(database);
    let mut processes: Vec<_> = (0..3).map(|_| Process::start("work", database)).collect();
    processes.iter_mut().for_each(|process| assert_eq!(process.says(), "ready"));
    let kills = common::count(16, 200);
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(50 + random.below(300))); // the load of the kills
        let place = random.below(3) as usize;
        let process = processes[place].0.id();
        processes[place] = Process::start("work", database); // the drop of the old one kills it
        // No lease of its can have ended by now.
        direct.run(
            &format!("UPDATE book SET is_on = 0 WHERE process = {process}"),
            "SELECT CAST(1 AS BIGINT)",
        );
    }
    until("all are done", || database.number("SELECT count(*) FROM tickwheel_timers") == 0);
    drop(processes);
    for kind in ["capped", "serial"] {
        let broken = format!("SELECT count(*) FROM broken WHERE kind = '{kind}'");
        assert_eq!(database.number(&broken), 0, "{kind}, seed {seed}");
    }
    let runs = database.number("SELECT count(*) FROM book");
    assert!(runs >= 240, "{runs}");
    say(&format!(
        "limits, {kills} kills, 240 timers: {runs} runs, never more at once than the limits"
    ));
}

/// Says how long each of some calls takes.
fn schedule<C: FnMut()>(open: impl FnOnce(Box<dyn FnMut() -> usize>) -> C) {
    let mut n = 0;
    let mut call = open(Box::new(move || {
        n += 1;
        n
    }));
    let mut took = Vec::new();
    for _ in 0..150 {
        let begin = Instant::now();
        call();
        took.push(begin.elapsed());
        thread::sleep(Duration::from_millis(5)); // others work in between
    }
    took.sort();
    let [median, p90, most] = [74, 134, 149].map(|n| took[n].as_micros());
    println!("@{median} {p90} {most}");
}

/// Another process schedules in a file in which a worker works off a flood.
pub(crate) fn another_process_schedules_beside_a_drain(database: &Database<'_>) {
    if !database.is_sqlite() {
        return; // there, nobody waits for others to write
    }
    for part in ["schedule", "insert"] {
        let timers = database.open();
        put(database, "flood", part, flood() * 4);
        let worker = start(timers.worker().handle("flood", |_| Ok(())));
        until("it is at work", || worker.stats().done > 0);
        let said = Process::start(part, database).says();
        let done = worker.stats().done;
        let took: Vec<u64> =
            said.split(' ').map(|micros| micros.parse().expect("a number")).collect();
        let is_over = done >= flood() * 4;
        say(&format!(
            "beside a drain, {part} of another process takes {took:?} us at p50, p90 and most; it is over: {is_over}"
        ));
        // A busy machine holds up some of the calls. A drain that leaves no room for others holds up a tenth of them for 330 ms and more.
        assert!(took[1] < 150_000, "{took:?}");
        assert!(worker.stop(PATIENCE));
        database.execute("DELETE FROM tickwheel_timers");
    }
}
