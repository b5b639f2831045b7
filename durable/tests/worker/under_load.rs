//! What limits and kinds side by side promise when there is much to do, or when a worker stops in the middle of it.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{
    NewTimer, OpenOptions, Timers, Worker, WorkerBuilder, WorkerStats, postgres,
};

use super::common::{PATIENCE, until};
use super::databases::{Database, client, say};
use super::{HOUR, NOW, teach};

fn start(worker: WorkerBuilder) -> Worker {
    worker.start(&Scheduler::new()).expect("it starts")
}

/// One group has 3000 due, and its first one does not end. While the two workers are told of new timers all the time, each look of
/// theirs tells of a thousand of them. Another group goes on, and the claims do not look at each of the 3000 again and again.
pub(crate) fn a_group_that_is_held_holds_up_no_other(database: &Database<'_>) {
    const OTHERS: u32 = 20;
    let timers = database.open();
    let long_ago = SystemTime::now() - HOUR;
    let big = |n: u32| long_ago + Duration::from_millis(n.into());
    let big: Vec<_> =
        (0..3000).map(|n| NewTimer::new("serial", format!("big/{n}"), big(n))).collect();
    timers.schedule_all(&big).expect("scheduled");
    let (go, gone) = mpsc::channel::<()>();
    let gone = Arc::new(Mutex::new(gone));
    let log = Arc::new(Mutex::new(Vec::new()));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (gone, log) = (Arc::clone(&gone), Arc::clone(&log));
            let worker = database.open().worker().handle("serial", move |run| {
                if run.key().starts_with("big/") {
                    _ = gone.lock().expect("no panic").recv(); // until the sender is gone
                } else {
                    log.lock().expect("no panic").push(run.key().to_owned());
                }
                Ok(())
            });
            start(worker.serial_by('/'))
        })
        .collect();
    let sum = |of: fn(&WorkerStats) -> u64| workers.iter().map(|one| of(&one.stats())).sum::<u64>();
    until("the first one runs", || sum(|stats| stats.running) == 1);
    let first = SystemTime::now() + Duration::from_secs(1);
    let others = (0..OTHERS).map(|n| {
        NewTimer::new("serial", format!("group/{n:02}"), first + Duration::from_millis(n.into()))
    });
    timers.schedule_all(&others.collect::<Vec<_>>()).expect("scheduled");
    let begin = Instant::now();
    let before = sum(|stats| stats.claims);
    let of_group = || {
        let log = log.lock().expect("no panic");
        log.iter().filter(|key| key.starts_with("group/")).cloned().collect::<Vec<_>>()
    };
    let mut single = 0;
    while of_group().len() < OTHERS as usize || begin.elapsed() < Duration::from_secs(3) {
        assert!(begin.elapsed() < PATIENCE, "{:?} have run", of_group());
        let new = NewTimer::new("serial", single.to_string(), Duration::from_millis(700));
        timers.schedule(&new).expect("scheduled");
        single += 1;
        thread::sleep(Duration::from_millis(150)); // the stream of new timers
    }
    let (claims, took) = (sum(|stats| stats.claims) - before, begin.elapsed());
    let in_order: Vec<_> = (0..OTHERS).map(|n| format!("group/{n:02}")).collect();
    assert_eq!(of_group(), in_order);
    say(&format!("beside a group of 3000 that is held: {claims} claims in {took:?}"));
    // Some places of groups that others hold are looked at ten times a second by each worker, and each timer is claimed.
    assert!(u128::from(claims) < 60 * took.as_millis() / 1000 + 100, "{claims} claims");
    drop(go);
    workers.iter().for_each(|worker| assert!(worker.stop(PATIENCE)));
}

/// A worker has claimed the first of a group ahead, and stops. Another one has passed over the second of the group.
pub(crate) fn what_is_given_back_stays_first_in_its_group(database: &Database<'_>) {
    let (go, gone) = mpsc::channel::<()>();
    let gone = Arc::new(Mutex::new(gone));
    let (tell, told) = mpsc::channel();
    let handling = || {
        let (gone, tell) = (Arc::clone(&gone), tell.clone());
        let worker = database.open().worker().threads(1).handle("serial", move |run| {
            if run.key().starts_with("slow") {
                _ = gone.lock().expect("no panic").recv(); // until the sender is gone
            }
            Ok(tell.send(run.key().to_owned())?)
        });
        start(worker.serial_by('/'))
    };
    let timers = database.open();
    let first = handling();
    teach(&timers, &first, "serial");
    _ = told.try_iter().count();
    let long_ago = SystemTime::now() - HOUR;
    let new = ["slow/1", "group/1", "group/2", "group/3"].into_iter().zip(0..);
    let new = new.map(|(key, n)| NewTimer::new("serial", key, long_ago + Duration::from_millis(n)));
    timers.schedule_all(&new.collect::<Vec<_>>()).expect("scheduled");
    until("two are claimed", || first.stats().running == 2);
    let second = handling();
    until("it has passed over the next one", || second.stats().claims > 2);
    assert!(!first.stop(NOW), "it runs");
    let ran: Vec<_> = (0..3).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    assert_eq!(ran, ["group/1", "group/2", "group/3"]);
    drop(go);
    assert!(first.stop(PATIENCE) && second.stop(PATIENCE));
    assert_eq!(first.stats().released, 1);
}

/// Of one kind, timers wake during each of its claims. Those of another kind do not wait for the end of the stream.
pub(crate) fn a_stream_leaves_the_others_on_time(database: &Database<'_>) {
    const STREAM: u32 = 1000;
    if database.is_sqlite() {
        return; // nothing there makes a claim slow
    }
    let timers = database.open();
    database.execute(
        "CREATE FUNCTION is_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF EXISTS (SELECT FROM new_rows WHERE state = 'running' AND attempts = 0) THEN PERFORM pg_sleep(0.02); END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER is_slow AFTER UPDATE ON tickwheel_timers REFERENCING NEW TABLE AS new_rows
            FOR EACH STATEMENT EXECUTE FUNCTION is_slow()",
    );
    let streamed = Arc::new(Mutex::new(0));
    let counting = Arc::clone(&streamed);
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("stream", move |_| {
        *counting.lock().expect("no panic") += 1;
        Ok(())
    });
    let counted = Arc::clone(&streamed);
    let worker =
        start(worker.handle("single", move |_| Ok(tell.send(*counted.lock().expect("no panic"))?)));
    until("it has looked", || worker.stats().looks > 0);
    let first = SystemTime::now() + Duration::from_millis(300);
    let stream: Vec<_> = (0..STREAM)
        .map(|n| NewTimer::new("stream", n.to_string(), first + Duration::from_millis(4) * n))
        .collect();
    timers.schedule_all(&stream).expect("scheduled");
    // A second of the stream has passed by then.
    let single: Vec<_> = (0..5)
        .map(|n| {
            let later = Duration::from_secs(1) + Duration::from_millis(100) * n;
            NewTimer::new("single", n.to_string(), first + later)
        })
        .collect();
    timers.schedule_all(&single).expect("scheduled");
    let done: Vec<u32> = (0..5).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    println!("of a stream of {STREAM} there had run {done:?} before each of five others");
    assert!(done.iter().all(|done| *done < STREAM * 3 / 4), "{done:?}");
    assert!(worker.stop(PATIENCE));
}

/// A suspected run that does not start although its start was written is suspected by the next worker, and counts no attempt.
pub(crate) fn what_is_suspected_stays_so_if_its_worker_stops(database: &Database<'_>) {
    if database.is_sqlite() {
        return; // nothing there makes a statement slow
    }
    let timers = database.open();
    // The lease of a dead worker has ended.
    database.execute(
        "INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', 'suspected', now());
        UPDATE tickwheel_timers SET state = 'running', fence = 1, attempts = 1, owner = 'dead', held_until = now();
        CREATE FUNCTION is_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.attempts = 2 AND OLD.attempts = 1 THEN PERFORM pg_sleep(1); END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER is_slow BEFORE UPDATE ON tickwheel_timers FOR EACH ROW EXECUTE FUNCTION is_slow()",
    );
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("mail", move |_| Ok(tell.send(())?));
    let worker = start(worker);
    let sleeping = "SELECT count(*) FROM pg_stat_activity
        WHERE wait_event = 'PgSleep' AND datname = current_database()";
    until("its start is being written", || database.number(sleeping) > 0);
    assert!(worker.stop(PATIENCE));
    assert!(told.try_recv().is_err(), "it was not called");
    let stats = worker.stats();
    assert_eq!((stats.taken_over, stats.released), (1, 0), "{stats:?}");
    let suspected = "SELECT attempts::bigint FROM tickwheel_timers WHERE state = 'running'";
    assert_eq!(database.number(suspected), 1);
}

/// Through a pooler, a claim is a transaction of several statements. If its process is halted in between, the server ends it.
pub(crate) fn what_is_halted_in_a_claim_is_ended(database: &Database<'_>) {
    let Database::Schema { .. } = database else { return };
    drop(database.open());
    database.execute(
        "CREATE TABLE seen (timeout text);
        CREATE FUNCTION sees() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO seen VALUES (current_setting('idle_in_transaction_session_timeout'));
            RETURN NEW;
        END $$;
        CREATE TRIGGER sees BEFORE UPDATE ON tickwheel_timers FOR EACH ROW EXECUTE FUNCTION sees()",
    );
    let url = database.url();
    let store = postgres::Postgres::new(&url).expect("an address").pooled();
    let timers = Timers::with_store(store).expect("it opens");
    let worker = start(timers.worker().handle("mail", |_| Ok(())).at_most_in_all(3));
    timers.schedule(&NewTimer::new("mail", "1", NOW)).expect("scheduled");
    until("it is done", || worker.stats().done == 1);
    assert!(worker.stop(PATIENCE));
    let seen = client(&url).query("SELECT DISTINCT timeout FROM seen", &[]).expect("valid SQL");
    let seen: Vec<String> = seen.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["10s"]);
}

pub(crate) fn a_width_may_be_as_large_as_can_be(database: &Database<'_>) {
    for (kind, most) in [("all", usize::MAX), ("many", 1 << 32), ("some", 1 << 26)] {
        let timers = database.open();
        let (tell, told) = mpsc::channel();
        let worker = timers.worker().async_runs(most).handle(kind, move |_| Ok(tell.send(())?));
        let worker = start(worker.at_most(most));
        timers.schedule(&NewTimer::new(kind, "1", NOW)).expect("scheduled");
        told.recv_timeout(PATIENCE).expect("it runs");
        assert!(worker.stop(PATIENCE));
    }
}

/// Without a wait for connections, a call that another thread makes has one while there are some.
pub(crate) fn a_call_that_may_not_wait_is_made(database: &Database<'_>) {
    let options = OpenOptions::new().acquire_timeout(Duration::ZERO);
    let timers = options.open(&database.address()).expect("it opens").asynchronous();
    for _ in 0..50 {
        tickwheel::future::block_on(timers.now()).expect("nobody has the connections");
    }
}

/// A rate lets as many start as it says: it is not slower by much either.
pub(crate) fn a_rate_is_made_use_of(database: &Database<'_>) {
    let timers = database.open();
    let new = (0..16).map(|n| NewTimer::new("paced", n.to_string(), NOW));
    timers.schedule_all(&new.collect::<Vec<_>>()).expect("scheduled");
    let begin = Instant::now();
    let worker = timers.worker().handle("paced", |_| Ok(()));
    let worker = start(worker.rate(1, Duration::from_millis(100)));
    until("all are done", || worker.stats().done == 16);
    let took = begin.elapsed();
    println!("16 runs, one each 0.1 s: {took:?}");
    assert!(took >= Duration::from_millis(1450), "{took:?}");
    assert!(took < Duration::from_millis(1500) * 2 + Duration::from_secs(1), "{took:?}");
    assert!(worker.stop(PATIENCE));
}
