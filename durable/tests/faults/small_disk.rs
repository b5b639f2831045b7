//! A server whose disk is full, for real: the tables of the timers are on a disk of some megabytes, which somebody else fills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use postgres::error::SqlState;
use tickwheel::Scheduler;
use tickwheel_durable::{Error, Filter};

use super::common::{PATIENCE, until};
use super::databases::{Database, client, say};
use super::handlers::{KINDS, Place, Role, equipped, new, nothing_was_early};
use super::server::Server;

const HALF: i64 = 400;
const COUNT: usize = 2 * HALF as usize;

pub(crate) fn a_server_whose_disk_is_full_loses_nothing() {
    let (server, disk) = match Server::with_a_small_disk(24) {
        Ok(found) => found,
        Err(reason) => return say(&format!("a server on a small disk: skipped: {reason}")),
    };
    let mut mine = client(server.url());
    mine.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.display()))
        .expect("created");
    mine.batch_execute("ALTER DATABASE postgres SET default_tablespace = small").expect("set");
    let database = Database::schema(&server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let told = Arc::new(AtomicU32::new(0));
    let worker = {
        let told = Arc::clone(&told);
        equipped(&timers, &place, &Role::Survivor).on_error(move |error| {
            assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
            told.fetch_add(1, Ordering::Relaxed);
        })
    };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    let all: Vec<_> = (0..COUNT)
        .map(|n| new(KINDS[n % 2], &n.to_string(), PAUSE * (n as u32)).payload("x".repeat(500)))
        .collect();
    timers.schedule_all(&all).expect("scheduled");
    until("it is in the middle of it", || worker.stats().done > 20);
    let mut other = client(&database.url());
    other
        .batch_execute(
            "CREATE TABLE filler (bytes text); ALTER TABLE filler ALTER bytes SET STORAGE PLAIN",
        )
        .expect("created");
    for size in [7000, 10] {
        // The pages run out, and then the room in them.
        let fill = format!(
            "INSERT INTO filler SELECT repeat('x', {size}) FROM generate_series(1, $1::int)"
        );
        for rows in [500, 10] {
            until("it is full", || match other.execute(&fill, &[&rows]) {
                Ok(_) => false,
                Err(error) => {
                    assert_eq!(error.code(), Some(&SqlState::DISK_FULL), "{error}");
                    true
                }
            });
        }
    }
    let (mut refused, mut accepted) = (0, 0);
    until("the worker says so, and callers are refused", || {
        // Also where there is some room left in a page.
        match timers.schedule(
            &new("plain", &format!("more {accepted}"), PATIENCE * 10).payload("y".repeat(900)),
        ) {
            Ok(_) => accepted += 1,
            Err(error) => {
                assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
                refused += 1;
            }
        }
        told.load(Ordering::Relaxed) > 0 && refused > 3
    });
    other.batch_execute("DROP TABLE filler").expect("dropped");
    let left = || timers.list(&Filter::new().limit(10_000)).map_or(usize::MAX, |left| left.len());
    until("all are done but those for later", || left() == accepted);
    assert!(worker.stop(PATIENCE));
    assert_eq!(worker.stats().dead, 0);
    let tx = database.number("SELECT count(*) FROM effects WHERE kind = 'tx'");
    let plain = database.number("SELECT count(DISTINCT key) FROM effects WHERE kind = 'plain'");
    let keys = database.number("SELECT count(DISTINCT key) FROM effects WHERE kind = 'tx'");
    assert_eq!((tx, keys, plain), (HALF, HALF, HALF));
    nothing_was_early(&database);
}

/// Between two timers, so that some are due at any time.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(3);
