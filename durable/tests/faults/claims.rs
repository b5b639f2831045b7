//! Far more workers than timers, all of which claim at the same time.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tickwheel_durable::{Claim, Finish, RunId, Then};

use super::common;
use super::databases::Database;
use super::handlers::{Place, new};

const WORKERS: usize = 1000;
const TIMERS: usize = 10;

/// A server has a hundred connections by default, so each of these claims for many workers in turn.
const CONNECTIONS: usize = 40;

pub(crate) fn a_thousand_workers_claim_ten_timers_once(database: &Database<'_>) {
    let place = Place::with_book(database);
    let timers = database.open();
    let connect = || place.store().connect().expect("it connects");
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    for round in 0..common::count(3, 30) {
        let due: Vec<_> =
            (0..TIMERS).map(|n| new("plain", &n.to_string(), Duration::ZERO)).collect();
        timers.schedule_all(&due).expect("scheduled");
        let together = Barrier::new(CONNECTIONS);
        let claimed: Vec<RunId> = thread::scope(|scope| {
            let claims = connections.iter_mut().enumerate().map(|(number, connection)| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    let mut mine = Vec::new();
                    for worker in (number..WORKERS).step_by(CONNECTIONS) {
                        let worker = worker.to_string();
                        let claim = Claim::new("plain", &worker).lease(Duration::from_secs(3600));
                        let claimed = connection.claim(&claim).expect("a claim").timers;
                        mine.extend(claimed.into_iter().map(|claimed| {
                            assert!(!claimed.was_running);
                            claimed.timer.run()
                        }));
                    }
                    mine
                })
            });
            let claims: Vec<_> = claims.collect();
            claims.into_iter().flat_map(|claim| claim.join().expect("no panic")).collect()
        });
        let ids: BTreeSet<_> = claimed.iter().map(|run| run.id).collect();
        let fences: BTreeSet<_> = claimed.iter().map(|run| run.fence).collect();
        assert_eq!((claimed.len(), ids.len(), fences.len()), (TIMERS, TIMERS, TIMERS), "{round}");
        let done: Vec<_> = claimed.iter().map(|run| Finish::new(*run, 1, Then::Done)).collect();
        assert_eq!(connections[0].finish(&done).expect("written").changed.len(), TIMERS);
    }
}
