//! The server dies, and a replica that lagged behind takes its place under the same address. What was committed and had not
//! come to the replica is lost: PostgreSQL's asynchronous replication promises no more. The rest is kept.
//!
//! | on the replica, the timer | becomes |
//! | --- | --- |
//! | runs, as it does on the first server | goes on, because its worker still has its lease and its number |
//! | waits, and was claimed after that | runs again, and what the first run says of it is void |
//! | waits, and was done after that | runs again; in a transaction, what it did there is lost with the rest |
//! | is not there | is lost |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tickwheel::Scheduler;
use tickwheel_durable::{Filter, Retry, State, Timers, Worker};

use super::common::{PATIENCE, until};
use super::databases::{Database, client, say};
use super::handlers::{Effects, KINDS, new};
use super::proxy::{Proxy, Way};
use super::server::{Reason, Server, new_name};

const NOW: Duration = Duration::ZERO;
/// Longer than the failover takes on a busy machine: a run whose claim the replica has is not taken over.
const LEASE: Duration = Duration::from_secs(60);

/// Long enough that the replica has a timer before it is due.
const SOON: Duration = Duration::from_secs(2);

/// How many timers each group has. A sequence is logged for 32 numbers ahead, and this is more.
const MANY: usize = 150;

/// What handlers note of a start, and where they wait.
#[derive(Default)]
struct Book {
    /// The key, the number of the timer and its fencing number.
    starts: Mutex<Vec<(String, i64, i64)>>,
    /// The starts that may end, by key and how many were before.
    open: Mutex<BTreeSet<(String, usize)>>,
    has_opened: Condvar,
}

impl Book {
    fn count(&self, key: &str) -> usize {
        self.starts.lock().expect("no panic").iter().filter(|start| start.0 == key).count()
    }

    fn open(&self, key: &str, start: usize) {
        self.open.lock().expect("no panic").insert((key.to_owned(), start));
        self.has_opened.notify_all();
    }

    fn start(&self, run: &tickwheel_durable::Run<'_>) {
        let before = self.count(run.key());
        let start = (run.key().to_owned(), run.timer().id, run.fence());
        self.starts.lock().expect("no panic").push(start);
        if run.payload() != b"hold" {
            return;
        }
        let name = (run.key().to_owned(), before);
        let mut open = self.open.lock().expect("no panic");
        while !open.contains(&name) {
            open = self.has_opened.wait_timeout(open, PATIENCE).expect("no panic").0;
        }
    }
}

fn worker(timers: &Timers, book: &Arc<Book>) -> Worker {
    let (plain, tx) = (Arc::clone(book), Arc::clone(book));
    let gap = Duration::from_millis(5);
    timers
        .worker()
        .retry(Retry::attempts(10_000).gaps(gap, 1.0, gap))
        .lease(LEASE)
        .on_error(|_| {})
        .handle("plain", move |run| {
            plain.start(run);
            Ok(())
        })
        .handle_in_postgres("tx", move |run, transaction| {
            tx.start(run);
            let sql = "INSERT INTO effects (kind, key, due, at) VALUES ('tx', $1, 0, 0)";
            transaction.execute(sql, &[&run.key()])?;
            Ok(())
        })
        .start(Scheduler::global())
        .expect("it starts")
}

fn many(group: &str, delay: Duration) -> Vec<tickwheel_durable::NewTimer> {
    let of = |n: usize| new(KINDS[n % 2], &format!("{group} {n}"), delay);
    (0..MANY).map(of).collect()
}

pub(crate) fn what_a_replica_has_is_kept() {
    if let Err(reason) = fail_over() {
        say(&format!("a failover: skipped: {reason}"));
    }
}

fn fail_over() -> Result<(), Reason> {
    let first = Server::private()?;
    let (address, wire) = (Proxy::before(&first), Proxy::before(&first));
    let name = new_name("test");
    client(first.url()).batch_execute(&format!("CREATE SCHEMA {name}")).expect("created");
    let replica = first.replica(wire.folder())?;
    let timers = Timers::open(&address.address_of(&first.url_of(&name))).expect("it opens");
    client(&first.url_of(&name))
        .batch_execute("CREATE TABLE effects (kind TEXT, key TEXT, due BIGINT, at BIGINT)")
        .expect("created");
    let book = Arc::new(Book::default());
    let old = worker(&timers, &book);

    timers.schedule(&new("plain", "known", NOW).payload("hold")).expect("scheduled");
    until("it runs", || book.count("known") == 1);
    timers.schedule_all(&many("again", SOON)).expect("scheduled");
    timers.schedule(&new("plain", "claimed", SOON).payload("hold")).expect("scheduled");
    let mut behind = client(&replica.url_of(&name));
    until("the replica has them", || {
        let count = "SELECT count(*) FROM tickwheel_timers";
        behind
            .query_one(count, &[])
            .is_ok_and(|row| usize::try_from(row.get::<_, i64>(0)) == Ok(MANY + 2))
    });
    wire.hold(Way::ToClient);
    until("they have run", || {
        timers.list(&Filter::new()).expect("a list").len() == 2 && book.count("claimed") == 1
    });
    // All this is lost.
    timers.schedule_all(&many("lost", NOW)).expect("scheduled");
    until("they have run", || timers.list(&Filter::new()).expect("a list").len() == 2);
    let lost_ids = book.starts.lock().expect("no panic").len();

    first.end();
    replica.promote();
    let count: i64 =
        behind.query_one("SELECT count(*) FROM tickwheel_timers", &[]).expect("a row").get(0);
    assert_eq!(usize::try_from(count), Ok(MANY + 2), "what the replica has");
    address.lead_to(&replica);
    address.cut_clients();
    let database = Database::Schema { server: &replica, name };
    let timers = database.open();
    let other = worker(&timers, &book);
    // These get the numbers that were given away before, of timers and of runs.
    timers.schedule_all(&many("new", NOW)).expect("scheduled");
    let get = |key: &str| timers.get("plain", key).expect("no error");
    until("what had been claimed is claimed again", || book.count("claimed") == 2);
    book.open("claimed", 0);
    // Not by `lost`: it was sent to the lost server first, so it may have been written there.
    until("the outcome of the first run was sent, and two runs are left", || {
        old.stats().running + other.stats().running == 2
    });
    let claimed = get("claimed").expect("its second run is in progress");
    assert_eq!(claimed.state, State::Running);
    book.open("claimed", 1);
    book.open("known", 0);
    until("all are done", || timers.list(&Filter::new()).expect("a list").is_empty());
    assert!(old.stop(PATIENCE) && other.stop(PATIENCE));

    assert_eq!(book.count("known"), 1, "it was its worker's all the time");
    let effects = Effects::in_book(&database);
    for n in 0..MANY {
        let (again, new) = (format!("again {n}"), format!("new {n}"));
        assert_eq!((book.count(&again), book.count(&new)), (2, 1), "{n}");
        if n % 2 == 1 {
            assert_eq!(effects.of("tx", &again), 1, "{n}");
            assert_eq!(effects.of("tx", &new), 1, "{n}");
        }
        assert_eq!(book.count(&format!("lost {n}")), 1, "{n}");
    }
    let starts = book.starts.lock().expect("no panic");
    let mut of: BTreeMap<i64, Vec<&(String, i64, i64)>> = BTreeMap::new();
    starts.iter().for_each(|start| of.entry(start.2).or_default().push(start));
    let twice: Vec<_> = of.values().filter(|starts| starts.len() > 1).collect();
    assert!(twice.is_empty(), "{} runs have the number of another: {:?}", twice.len(), twice[0]);
    // This is what the numbers are for: the same timer's number was given away twice.
    let ids =
        |part: &[(String, i64, i64)]| part.iter().map(|start| start.1).collect::<BTreeSet<_>>();
    let (before, after) = starts.split_at(lost_ids);
    let lost: Vec<_> = before.iter().filter(|start| start.0.starts_with("lost")).cloned().collect();
    assert!(!ids(&lost).is_disjoint(&ids(after)));
    Ok(())
}
