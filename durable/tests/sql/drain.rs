//! How many timers a worker runs while it works off what is overdue: the pace does not fall, also beside a long transaction.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;

use super::common::until;
use super::databases::{Database, client, say};

/// Puts in so many timers of the kind `mail`, the first of which was due so long ago, and the others a millisecond later each.
pub(crate) fn put(database: &Database<'_>, name: &str, count: u32, ago: &str) {
    database.execute(&format!(
        "INSERT INTO tickwheel_timers (kind, key, due)
        SELECT 'mail', '{name} ' || n, now() - interval '{ago}' + n * interval '1 millisecond'
        FROM generate_series(1, {count}) n; ANALYZE tickwheel_timers"
    ));
}

/// The size is small, so that the test is quick: `TICKWHEEL_DRAIN=1000000` shows more.
pub(crate) fn a_drain_keeps_its_pace(database: &Database<'_>) {
    let count = env::var("TICKWHEEL_DRAIN").ok().and_then(|count| count.parse().ok());
    let count: u32 = count.unwrap_or(30_000);
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
        let worker = timers.worker().handle("mail", |_| Ok(()));
        let begin = Instant::now();
        let worker = worker.start(&Scheduler::new()).expect("it starts");
        let mut paces = Vec::new();
        let mut done = 0;
        let mut at = begin;
        while done < u64::from(count) {
            thread::sleep(Duration::from_millis(500)); // the pace is the subject, and it takes real time
            let (now, is_done) = (Instant::now(), worker.stats().done);
            let pace = (is_done - done) as f64 / (now - at).as_secs_f64();
            (at, done) = (now, is_done);
            paces.push(pace.round());
        }
        say(&format!(
            "sql, a drain of {count}, beside a long transaction {is_watched}: {:?}, a second: {paces:?}",
            begin.elapsed()
        ));
        worker.stop(super::common::PATIENCE);
        until("all are gone", || {
            database.number("SELECT count(*) FROM tickwheel_timers WHERE due < now()") == 0
        });
        database.execute("DELETE FROM tickwheel_timers");
    }
}
