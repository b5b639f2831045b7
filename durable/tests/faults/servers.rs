//! Servers that crash, hang and refuse, and connections that are cut or held up.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::Scheduler;
use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::{
    Connection, Error, Failure, Filter, Listener, OpenOptions, Result, State, Store, Timers,
    Worker, WorkerStats,
};

use super::common::{PATIENCE, until};
use super::databases::{Database, client, one_by_one, say, side_by_side};
use super::handlers::{Effects, KINDS, Place, Role, effects, equipped, new, nothing_was_early};
use super::pooler::Pooler;
use super::process::{Point, Process, signal};
use super::proxy::{Proxy, Way};
use super::server::{Server, new_name};

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_millis(300);

/// Before this has passed, no look without a reason has helped.
const BEFORE_A_LOOK: Duration = Duration::from_secs(30);

type Check = (&'static str, fn(&Server));

/// What happens to connections. The longest are first.
const OF_CONNECTIONS: [Check; 16] = [
    ("a_server_that_falls_silent_is_noticed", a_server_that_falls_silent_is_noticed),
    ("cut_connections_lose_nothing", cut_connections_lose_nothing),
    (
        "an_outage_is_told_once_and_costs_few_connections",
        an_outage_is_told_once_and_costs_few_connections,
    ),
    ("a_worker_that_is_not_told_asks", a_worker_that_is_not_told_asks),
    ("a_pooler_is_shared_with_others", a_pooler_is_shared_with_others),
    ("a_lost_connection_is_no_attempt", a_lost_connection_is_no_attempt),
    (
        "a_connection_that_the_server_has_ended_is_not_used_again",
        a_connection_that_the_server_has_ended_is_not_used_again,
    ),
    ("an_outcome_from_behind_a_partition_is_void", an_outcome_from_behind_a_partition_is_void),
    ("a_lock_that_nobody_holds_ends_no_lease", a_lock_that_nobody_holds_ends_no_lease),
    ("a_server_without_room_loses_no_outcome", a_server_without_room_loses_no_outcome),
    ("what_cannot_be_reached_says_why", what_cannot_be_reached_says_why),
    ("callers_wait_for_a_server_that_has_no_room", callers_wait_for_a_server_that_has_no_room),
    ("opening_and_starting_wait_for_room", opening_and_starting_wait_for_room),
    ("a_socket_whose_queue_is_full_has_no_room", a_socket_whose_queue_is_full_has_no_room),
    ("a_pool_of_the_service_lends_its_connections", a_pool_of_the_service_lends_its_connections),
    ("as_many_connections_are_kept_as_are_used", as_many_connections_are_kept_as_are_used),
];

/// What happens to the whole server, so these are checked one after another.
const OF_THE_SERVER: [Check; 4] = [
    ("crashes_lose_nothing", crashes_lose_nothing),
    ("a_crash_in_a_transaction_undoes_it", a_crash_in_a_transaction_undoes_it),
    ("servers_that_hang_lose_nothing", servers_that_hang_lose_nothing),
    ("a_server_that_refuses_to_write_loses_nothing", a_server_that_refuses_to_write_loses_nothing),
];

fn own() -> Option<Server> {
    let server = Server::private();
    server.map_err(|reason| say(&format!("faults of a server: skipped: {reason}"))).ok()
}

pub(crate) fn of_connections() {
    let Some(server) = own() else { return };
    side_by_side(&server, &OF_CONNECTIONS, |server, check| check(server));
}

pub(crate) fn of_the_server() {
    let Some(server) = own() else { return };
    one_by_one(&server, &OF_THE_SERVER, |server, check| check(server));
}

/// The database under a name by which its connections can be told from others.
fn as_client(database: &Database<'_>, name: &str) -> Timers {
    let address = format!("{}&application_name={name}", database.address());
    Timers::open(&address).expect("it opens")
}

/// The processes of the server that serve the connections of a name.
fn backends(server: &Server, name: &str) -> Vec<u32> {
    let of = "SELECT pid FROM pg_stat_activity
        WHERE application_name = $1 AND datname = current_database()";
    let rows = client(server.url()).query(of, &[&name]).expect("rows");
    rows.iter().map(|row| row.get::<_, i32>(0).unsigned_abs()).collect()
}

/// A worker that is only told of new timers, and never asks.
fn listening(timers: &Timers, place: &Place, lease: Duration) -> Worker {
    equipped(timers, place, &Role::Survivor)
        .lease(lease)
        .poll_every(HOUR)
        .on_error(|_| {})
        .start(Scheduler::global())
        .expect("it starts")
}

/// Repeats a call until the database can be reached. Returns true if it had to.
fn insist(mut call: impl FnMut() -> Result<()>) -> bool {
    let mut failures = 0;
    until("the database can be reached", || match call() {
        Ok(()) => true,
        Err(Error::Unreachable(_)) => {
            failures += 1;
            false
        }
        Err(error) => panic!("{error:?}"),
    });
    failures > 0
}

fn is_empty(timers: &Timers) -> bool {
    timers.list(&Filter::new()).is_ok_and(|left| left.is_empty())
}

/// Each timer has run, and in a transaction exactly once, unless it may have been scheduled twice.
fn all_ran(database: &Database<'_>, count: usize, unsure: &BTreeSet<usize>) {
    let effects = Effects::in_book(database);
    for n in 0..count {
        let kind = KINDS[n % KINDS.len()];
        let times = effects.of(kind, &n.to_string());
        let is_exact = kind == "tx" && !unsure.contains(&n);
        assert!(times == 1 || times > 1 && !is_exact, "{kind} {n}: {times}");
    }
    nothing_was_early(database);
}

fn some(from: usize, count: usize, payload: &str) -> Vec<tickwheel_durable::NewTimer> {
    (from..from + count)
        .map(|n| new(KINDS[n % KINDS.len()], &n.to_string(), NOW).payload(payload))
        .collect()
}

// ----- the server crashes --------------------------------------------------------------------

fn crashes_lose_nothing(server: &Server) {
    const ROUNDS: usize = 3;
    const EACH: usize = 150;
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let worker = listening(&timers, &place, LEASE);
    let mut unsure = BTreeSet::new();
    let mut count = 0;
    for round in 0..ROUNDS {
        // The first crash comes while nothing happens, the others during a backlog and while timers are scheduled.
        let is_idle = round == 0;
        if !is_idle {
            insist(|| timers.schedule_all(&some(count, EACH, "")).map(drop));
            count += EACH;
        }
        let before = worker.stats().done;
        until("it is in the middle of it", || is_idle || worker.stats().done > before + 5);
        let is_up = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                server.crash();
                is_up.store(true, Ordering::Relaxed);
            });
            while !is_idle && !is_up.load(Ordering::Relaxed) {
                let timer = some(count, 1, "");
                if insist(|| timers.schedule_all(&timer).map(drop)) {
                    unsure.insert(count);
                }
                count += 1;
            }
        });
        // The worker hears of others' timers again.
        let begin = Instant::now();
        let other = database.open();
        other.schedule_all(&some(count, 2, "")).expect("scheduled");
        count += 2;
        until("all is done", || is_empty(&other));
        assert!(begin.elapsed() < BEFORE_A_LOOK, "{:?}", begin.elapsed());
    }
    // It hears of them at once, now that all is quiet.
    let begin = Instant::now();
    database.open().schedule_all(&some(count, 2, "")).expect("scheduled");
    count += 2;
    until("it is done", || is_empty(&timers));
    assert!(begin.elapsed() < BEFORE_A_LOOK, "{:?}", begin.elapsed());
    assert!(worker.stats().errors > 0 && worker.stats().dead == 0);
    all_ran(&database, count, &unsure);
}

fn a_crash_in_a_transaction_undoes_it(server: &Server) {
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let mut process = Process::start(&place, Point::InHandler, LEASE);
    process.await_line("ready");
    timers.schedule(&new("tx", "1", NOW).payload("hold")).expect("scheduled");
    process.await_line("held");
    server.crash();
    assert_eq!(effects(&database, "tx", "1"), 0, "it is undone");
    process.say("go");
    until("it is done by the same process", || is_empty(&timers));
    assert_eq!(effects(&database, "tx", "1"), 1);
}

// ----- the server hangs ----------------------------------------------------------------------

fn servers_that_hang_lose_nothing(server: &Server) {
    const COUNT: usize = 300;
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let workers = ["first", "second"].map(|name| {
        let timers = as_client(&database, name);
        equipped(&timers, &place, &Role::Survivor)
            .lease(LEASE)
            .start(Scheduler::global())
            .expect("it starts")
    });
    timers.schedule_all(&some(0, COUNT, "slow")).expect("scheduled");
    let done = || workers.iter().map(|worker| worker.stats().done).sum::<u64>();
    for round in 1..=3 {
        until("they are in the middle of it", || done() > round * 20);
        // One worker's connections, and then the whole server.
        let mut halted = backends(server, "first");
        if round == 3 {
            halted.extend(backends(server, "second"));
            halted.push(server.process());
        }
        halted.iter().for_each(|process| signal("STOP", *process));
        thread::sleep(LEASE * 2); // longer than a lease is the subject
        halted.iter().rev().for_each(|process| signal("CONT", *process));
    }
    until("all are done", || is_empty(&timers));
    all_ran(&database, COUNT, &BTreeSet::new());
    // The one whose connections hung goes on as well.
    let [first, second] = workers;
    assert!(second.stop(PATIENCE));
    timers.schedule_all(&some(COUNT, 2, "")).expect("scheduled");
    until("they are done", || is_empty(&timers));
    assert!(first.stop(PATIENCE));
    all_ran(&database, COUNT + 2, &BTreeSet::new());
}

/// The socket stays, so nothing but a question finds out. Its answer is awaited for half a minute, and not at the end of the
/// connection again.
fn a_server_that_falls_silent_is_noticed(server: &Server) {
    let database = Database::schema(server);
    let timers = database.open();
    let proxy = Proxy::before(server);
    let store = Postgres::new(&proxy.address_of(&database.url())).expect("an address");
    let mut connection = store.connect().expect("it connects");
    let mut listener = store.listen().expect("it connects").expect("it hears");
    let mut wait = move || listener.wait(Duration::from_millis(20)); // without news, the server is asked
    wait().expect("the server answers");
    timers.schedule(&new("plain", "1", NOW)).expect("scheduled");
    until("it is told", || !wait().expect("the server answers").is_empty());
    thread::sleep(Duration::from_millis(1100)); // what was used a second ago is not asked
    assert!(connection.is_open());
    thread::sleep(Duration::from_millis(1100));
    proxy.hold(Way::ToClient);
    let (tell, told) = mpsc::channel();
    let heard = tell.clone();
    thread::spawn(move || {
        let error = wait().expect_err("the server is silent");
        drop(wait);
        heard.send(matches!(error, Error::Unreachable(_)))
    });
    thread::spawn(move || {
        let is_open = connection.is_open();
        drop(connection);
        tell.send(!is_open)
    });
    for _ in 0..2 {
        assert!(told.recv_timeout(PATIENCE).expect("it is not awaited for ever"));
    }
}

// ----- connections are cut -------------------------------------------------------------------

fn cut(server: &Server, name: &str) {
    let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = $1 AND datname = current_database()";
    client(server.url()).query(all, &[&name]).expect("they are cut");
}

fn cut_connections_lose_nothing(server: &Server) {
    const COUNT: usize = 250;
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let worker = listening(&as_client(&database, "cut"), &place, LEASE);
    timers.schedule_all(&some(0, COUNT, "slow")).expect("scheduled");
    for _ in 0..30 {
        cut(server, "cut");
        thread::sleep(Duration::from_millis(30)); // some work gets done between the cuts
    }
    let begin = Instant::now();
    until("all are done", || is_empty(&timers));
    assert!(begin.elapsed() < BEFORE_A_LOOK, "{:?}", begin.elapsed());
    assert!(worker.stats().errors > 0 && worker.stats().dead == 0);
    all_ran(&database, COUNT, &BTreeSet::new());
}

/// A connection that was lost while nobody used it costs a timer none of its attempts.
fn a_lost_connection_is_no_attempt(server: &Server) {
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let lease = Duration::from_secs(2); // its end would cost the only attempt
    let worker = listening(&as_client(&database, "cut"), &place, lease);
    for round in 0..5 {
        // Several at a time, so that each handler thread has a connection to lose.
        let several = some(round * 8, 8, "slow").into_iter().map(|timer| timer.max_attempts(1));
        timers.schedule_all(&several.collect::<Vec<_>>()).expect("scheduled");
        let is_quiet = || {
            let left = timers.list(&Filter::new()).expect("a list");
            left.iter().all(|timer| timer.state == State::Dead) && worker.stats().running == 0
        };
        until("it is quiet", is_quiet);
        cut(server, "cut");
    }
    let dead = timers.list(&Filter::new()).expect("a list");
    assert!(dead.is_empty(), "{dead:?}");
    all_ran(&database, 40, &BTreeSet::new());
}

/// The server ends a transaction that takes too long, and with it the connection, which nobody gets after that.
fn a_connection_that_the_server_has_ended_is_not_used_again(server: &Server) {
    let database = Database::schema(server);
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let limit = Duration::from_millis(1500); // enough for the second attempt, also on a busy machine
    let worker = timers.worker().handle_in_postgres("tx", move |run, _| {
        if run.attempt() == 1 {
            thread::sleep(limit * 3 / 2); // longer than its time is the subject
        }
        _ = tell.send(run.attempt());
        Ok(())
    });
    let worker = worker.time_limit(limit).lease(LEASE).on_error(|_| {});
    let worker = worker.poll_every(Duration::from_millis(20)).start(Scheduler::global());
    let worker = worker.expect("it starts");
    timers.schedule(&new("tx", "1", NOW)).expect("scheduled");
    // The second attempt may come to its end while the first one still sleeps.
    let attempts: BTreeSet<_> =
        [(); 2].map(|()| told.recv_timeout(PATIENCE).expect("it runs")).into_iter().collect();
    assert!(attempts.into_iter().eq([1, 2]));
    until("its thread has come back", || worker.stats().stuck == 0 && worker.stats().done == 1);
    let later = ["2", "3", "4"].map(|key| new("tx", key, HOUR));
    thread::scope(|scope| {
        // At the same time, so that each takes another connection.
        for timer in &later {
            scope.spawn(|| timers.schedule(timer).expect("scheduled"));
        }
    });
}

fn an_outcome_from_behind_a_partition_is_void(server: &Server) {
    for way in [Way::ToServer, Way::ToClient] {
        let database = Database::schema(server);
        let proxy = Proxy::before(server);
        let timers = database.open();
        let behind = Timers::open(&proxy.address_of(&database.address())).expect("it opens");
        let may_end = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let first = {
            let may_end = Arc::clone(&may_end);
            behind.worker().handle("plain", move |run| {
                _ = tell.send("it has started");
                until("it is told", || !run.is_current());
                _ = tell.send("it knows that its lease has ended");
                until("it may end", || may_end.load(Ordering::Relaxed));
                Err(Failure::for_good("from behind the partition"))
            })
        };
        let poll = Duration::from_millis(20);
        let first = first.lease(LEASE).poll_every(poll).start(Scheduler::global());
        let first = first.expect("it starts");
        let expect = |what: &str| assert_eq!(told.recv_timeout(PATIENCE).expect("in time"), what);
        timers.schedule(&new("plain", "1", NOW).every(HOUR)).expect("scheduled");
        expect("it has started");
        proxy.hold(way);
        expect("it knows that its lease has ended");
        let second = timers.worker().handle("plain", |_| Ok(()));
        let second = second.lease(LEASE).poll_every(poll).start(Scheduler::global());
        let second = second.expect("it starts");
        until("another one has done it", || second.stats().done == 1);
        let after = timers.get("plain", "1").expect("no error").expect("there");
        assert_eq!((after.state, second.stats().taken_over), (State::Waiting, 1));
        may_end.store(true, Ordering::Relaxed);
        proxy.flow();
        until("its outcome is void", || first.stats().lost == 1);
        assert_eq!(timers.get("plain", "1").expect("no error").expect("there"), after);
        assert!(first.stop(PATIENCE) && second.stop(PATIENCE), "{way:?}");
    }
}

/// A connection has ended, and the server does not know it yet. So the transaction of that connection still locks its
/// timer. The worker's other runs keep their leases in the meantime.
fn a_lock_that_nobody_holds_ends_no_lease(server: &Server) {
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let proxy = Proxy::before(server);
    let timers = database.open();
    let behind = Timers::open(&proxy.address_of(&database.address())).expect("it opens");
    let (started, is_cut) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let may_end = Arc::new(AtomicBool::new(false));
    let worker = {
        let (started, is_cut) = (Arc::clone(&started), Arc::clone(&is_cut));
        let (others, may_end) = (Arc::clone(&started), Arc::clone(&may_end));
        behind
            .worker()
            .handle_in_postgres("tx", move |run, transaction| {
                started.fetch_add(1, Ordering::Relaxed);
                transaction
                    .execute("INSERT INTO effects VALUES ('tx', $1, 0, 0)", &[&run.key()])?;
                until("its connection is cut", || is_cut.load(Ordering::Relaxed));
                Ok(())
            })
            .handle("plain", move |run| {
                others.fetch_add(1, Ordering::Relaxed);
                until("it may end", || may_end.load(Ordering::Relaxed));
                if run.is_current() {
                    Ok(())
                } else {
                    Err(Failure::for_good("its lease has ended"))
                }
            })
    };
    let lease = Duration::from_secs(2); // it is extended in time, also on a busy machine
    let worker = worker.lease(lease).on_error(|_| {}).start(Scheduler::global());
    let worker = worker.expect("it starts");
    // The one in the transaction has the lower number, so a statement that changes both would come to it first (PG-2).
    timers.schedule(&new("tx", "1", NOW)).expect("scheduled");
    timers.schedule(&new("plain", "0", NOW)).expect("scheduled");
    until("both run", || started.load(Ordering::Relaxed) == 2);
    proxy.cut_clients();
    is_cut.store(true, Ordering::Relaxed);
    until("the handler in the transaction has failed", || worker.stats().failed == 1);
    // Nobody else takes the other run over, for several times its lease.
    let other = equipped(&timers, &place, &Role::Survivor).lease(lease);
    let other = other.start(Scheduler::global()).expect("it starts");
    thread::sleep(lease * 3); // longer than a lease is the subject
    assert_eq!(
        effects(&database, "plain", "0"),
        0,
        "another worker has taken over a run that lives"
    );
    may_end.store(true, Ordering::Relaxed);
    proxy.tell_server();
    until("both are done", || is_empty(&timers));
    assert_eq!(effects(&database, "plain", "0"), 0);
    assert_eq!(effects(&database, "tx", "1"), 1);
    assert!(worker.stop(PATIENCE) && other.stop(PATIENCE));
}

// ----- the server refuses --------------------------------------------------------------------

/// Makes the whole server read-only, or mends it.
fn read_only(server: &Server, is_on: bool) {
    let value = if is_on { "on" } else { "off" };
    let mut client = client(server.url());
    client.batch_execute("SET default_transaction_read_only = off").expect("set");
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
    client.batch_execute(&set).expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reloaded");
    let seen = || {
        let show = "SELECT current_setting('default_transaction_read_only')";
        super::databases::client(server.url())
            .query_one(show, &[])
            .expect("a row")
            .get::<_, String>(0)
    };
    until("new connections have it", || seen() == value);
}

fn a_server_that_refuses_to_write_loses_nothing(server: &Server) {
    const COUNT: usize = 200;
    let database = Database::schema(server);
    let place = Place::with_book(&database);
    let timers = database.open();
    let told = Arc::new(AtomicU32::new(0));
    let worker = {
        let told = Arc::clone(&told);
        equipped(&timers, &place, &Role::Survivor).lease(LEASE).on_error(move |error| {
            assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
            told.fetch_add(1, Ordering::Relaxed);
        })
    };
    let worker = worker.start(Scheduler::global()).expect("it starts");
    timers.schedule_all(&some(0, COUNT, "slow")).expect("scheduled");
    until("it is in the middle of it", || worker.stats().done > 20);
    read_only(server, true);
    until("it says so", || told.load(Ordering::Relaxed) > 0 && worker.stats().errors > 3);
    let done = worker.stats().done;
    assert!(timers.schedule(&new("plain", "refused", NOW)).is_err());
    read_only(server, false);
    until("all are done", || is_empty(&timers));
    assert!(done < worker.stats().done && worker.stats().dead == 0);
    all_ran(&database, COUNT, &BTreeSet::new());
    assert_eq!(effects(&database, "plain", "refused"), 0);
}

/// An outcome that one table or trigger is against is given up after some tries. A disk that is full is none of these.
fn a_server_without_room_loses_no_outcome(server: &Server) {
    let database = Database::schema(server);
    let timers = database.open();
    database.execute(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
         CREATE TRIGGER no_room BEFORE DELETE ON tickwheel_timers FOR EACH ROW EXECUTE FUNCTION no_room()",
    );
    let runs = Arc::new(AtomicU32::new(0));
    let worker = {
        let runs = Arc::clone(&runs);
        timers.worker().handle("plain", move |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    };
    let worker = worker.on_error(|_| {}).start(Scheduler::global()).expect("it starts");
    timers.schedule(&new("plain", "1", NOW)).expect("scheduled");
    until("it was tried many times", || worker.stats().errors > 6);
    database.execute("DROP TRIGGER no_room ON tickwheel_timers");
    until("it is written", || is_empty(&timers));
    until("it is counted", || worker.stats().done == 1);
    assert_eq!((runs.load(Ordering::Relaxed), worker.stats().lost), (1, 0));
    assert!(worker.stop(PATIENCE));
}

fn an_outage_is_told_once_and_costs_few_connections(server: &Server) {
    const COUNT: usize = 300;
    const LASTS: Duration = Duration::from_secs(3);
    let database = Database::schema(server);
    let timers = database.open();
    let (is_out, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let store = {
        let (is_out, tries) = (Arc::clone(&is_out), Arc::clone(&tries));
        let url = format!("{}&application_name=cut", database.url());
        Postgres::with_connector(move || {
            tries.fetch_add(1, Ordering::Relaxed);
            let is_out = is_out.load(Ordering::Relaxed);
            let url = if is_out { "postgres://nobody@%2Fnowhere/nothing" } else { &url };
            postgres::Client::connect(url, postgres::NoTls)
        })
    };
    // The worker knows of all of them when the server goes. They come due one by one while it is gone.
    let all: Vec<_> = (0..COUNT)
        .map(|n| new(KINDS[n % 2], &n.to_string(), Duration::from_millis(1000 + n as u64 * 10)))
        .collect();
    timers.schedule_all(&all).expect("scheduled");
    let (lost, back) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let worker = Timers::with_store(store).expect("it opens").worker();
    let worker = {
        let (lost, back) = (Arc::clone(&lost), Arc::clone(&back));
        worker
            .threads(8)
            .handle("plain", |_| Ok(()))
            .handle_in_postgres("tx", |_, _| Ok(()))
            .on_error(move |_| _ = lost.fetch_add(1, Ordering::Relaxed))
            .on_recovery(move |_| _ = back.fetch_add(1, Ordering::Relaxed))
            .start(Scheduler::global())
            .expect("it starts")
    };
    until("it has looked", || worker.stats().looks > 0);
    is_out.store(true, Ordering::Relaxed);
    cut(server, "cut");
    let before = tries.load(Ordering::Relaxed);
    thread::sleep(LASTS); // the outage is the subject
    let during = tries.load(Ordering::Relaxed) - before;
    assert!((2..30).contains(&during), "{during} tries");
    assert_eq!((lost.load(Ordering::Relaxed), back.load(Ordering::Relaxed)), (1, 0));
    is_out.store(false, Ordering::Relaxed);
    until("all are done", || is_empty(&timers));
    until("it says so", || back.load(Ordering::Relaxed) == 1);
    assert_eq!(lost.load(Ordering::Relaxed), 1);
    assert!(worker.stats().errors > 1);
    // A stop need not wait for the next try.
    is_out.store(true, Ordering::Relaxed);
    cut(server, "cut");
    timers.schedule(&new("tx", "last", NOW)).expect("scheduled");
    until("it is told again", || lost.load(Ordering::Relaxed) == 2);
    assert!(worker.stop(PATIENCE));
}

// ----- a pooler ------------------------------------------------------------------------------

fn a_pooler_is_shared_with_others(server: &Server) {
    const COUNT: usize = 200;
    let database = Database::schema(server);
    let Database::Schema { name, .. } = &database else { panic!("a schema") };
    // What other programs expect of their connections.
    database.execute(&format!(
        "CREATE ROLE pooled LOGIN SUPERUSER; ALTER ROLE pooled SET search_path = {name};
         ALTER ROLE pooled SET default_transaction_isolation = 'serializable';
         ALTER ROLE pooled SET lock_timeout = '77s'"
    ));
    let pooler = match Pooler::before(server, "pooled") {
        Ok(pooler) => pooler,
        Err(error) => return super::databases::say(&format!("with PgBouncer: skipped: {error}")),
    };
    let plain = pooler.address_for("pooled");
    let address = format!("{plain}?pgbouncer=true");
    // Each of them is another process to the pooler.
    let users = [(); 3].map(|()| Timers::open(&address).expect("it opens"));
    database.execute("CREATE TABLE effects (key text NOT NULL)");
    let errors = Arc::new(Mutex::new(Vec::new()));
    let workers = [0, 1].map(|n| {
        let errors = Arc::clone(&errors);
        let worker = users[n].worker().handle("plain", |_| Ok(())).handle("long", |run| {
            until("it is cancelled", || !run.is_current());
            Ok(())
        });
        let worker = worker.handle_in_postgres("tx", |run, transaction| {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&run.key()])?;
            let isolation = transaction.query_one("SHOW transaction_isolation", &[])?;
            assert_eq!(isolation.get::<_, &str>(0), "read committed");
            Ok(())
        });
        let worker = worker.on_error(move |error| {
            errors.lock().expect("no panic").push(error.to_string());
        });
        worker.start(Scheduler::global()).expect("it starts")
    });
    let begin = Instant::now();
    thread::scope(|scope| {
        for user in &users {
            scope.spawn(|| {
                for n in 0..COUNT {
                    user.schedule(&new(KINDS[n % 2], &n.to_string(), NOW)).expect("scheduled");
                    user.reset("plain", &n.to_string(), NOW).expect("no error");
                }
            });
        }
    });
    let left = || users[2].list(&Filter::new()).expect("a list");
    until("all are done", || left().is_empty());
    assert!(begin.elapsed() < BEFORE_A_LOOK, "{:?}", begin.elapsed());
    users[2].schedule(&new("plain", "later", HOUR)).expect("scheduled");
    assert_eq!(users[2].counts().expect("counts").len(), 1);
    assert_eq!(users[2].cancel("plain", "later").expect("no error"), Some(State::Waiting));
    // Long before its lease is extended, which would tell it too.
    users[2].schedule(&new("long", "1", NOW)).expect("scheduled");
    let sum = |of: fn(&WorkerStats) -> u64| workers.iter().map(|one| of(&one.stats())).sum::<u64>();
    until("it runs", || sum(|stats| stats.running) == 1);
    let lost = sum(|stats| stats.lost); // of timers that were scheduled again while they ran
    thread::sleep(Duration::from_millis(20)); // its handler is being called
    let cancelled = Instant::now();
    assert_eq!(users[2].cancel("long", "1").expect("no error"), Some(State::Running));
    until("its run knows", || sum(|stats| stats.lost) == lost + 1);
    assert!(cancelled.elapsed() < Duration::from_secs(5), "{:?}", cancelled.elapsed());
    assert!(workers.iter().all(|worker| worker.stop(PATIENCE)));
    assert_eq!(*errors.lock().expect("no panic"), Vec::<String>::new());
    let failed: u64 = workers.iter().map(|worker| worker.stats().failed).sum();
    assert_eq!(failed, 0);
    // At the same time, so that they meet all connections.
    let mut others = [(); 3].map(|()| client(&plain));
    for other in &mut others {
        other.batch_execute("BEGIN").expect("a transaction");
        for (setting, expected) in
            [("lock_timeout", "77s"), ("default_transaction_isolation", "serializable")]
        {
            let met = other.simple_query(&format!("SHOW {setting}")).expect("a row");
            let met = met.iter().find_map(|message| match message {
                postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            assert_eq!(met, Some(expected), "{setting}");
        }
    }
    drop(others); // they have all connections
    // Without the parameter, it is noticed that nothing is heard.
    let deaf = Postgres::new(&plain).expect("an address").listen().expect("it connects");
    assert!(deaf.is_none());
    let hears = Postgres::new(&database.url()).expect("an address").listen();
    assert!(hears.expect("it connects").is_some());
    drop((pooler, users, workers));
    database.execute("DROP OWNED BY pooled CASCADE; DROP ROLE pooled");
}

/// While the connection is gone that is told of new timers, the worker asks for them.
fn a_worker_that_is_not_told_asks(server: &Server) {
    let database = Database::schema(server);
    let timers = database.open();
    let listens = Arc::new(AtomicBool::new(true));
    let store = Deaf { store: Postgres::new(&database.url()).expect("an address"), listens };
    let listens = Arc::clone(&store.listens);
    let worker = Timers::with_store(store).expect("it opens").worker();
    let worker = worker.handle("plain", |_| Ok(())).on_error(|_| {});
    let worker = worker.start(Scheduler::global()).expect("it starts");
    until("it has looked", || worker.stats().looks > 0);
    listens.store(false, Ordering::Relaxed);
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE query LIKE 'SELECT nspname%' AND datname = current_database()";
    client(server.url()).execute(cut, &[]).expect("it is cut");
    until("it knows", || worker.stats().errors > 1);
    let begin = Instant::now();
    timers.schedule(&new("plain", "1", NOW)).expect("scheduled");
    until("it is done", || worker.stats().done == 1);
    assert!(begin.elapsed() < BEFORE_A_LOOK, "{:?}", begin.elapsed());
    listens.store(true, Ordering::Relaxed);
    // Once it hears again, it does not ask any more.
    until("it asks no more", || {
        let looks = worker.stats().looks;
        thread::sleep(Duration::from_millis(2500)); // some times as long as between two questions
        worker.stats().looks == looks
    });
    assert!(worker.stop(PATIENCE));
}

/// A store that cannot listen for a while.
struct Deaf {
    store: Postgres,
    listens: Arc<AtomicBool>,
}

impl Store for Deaf {
    fn connect(&self) -> Result<Box<dyn Connection>> {
        self.store.connect()
    }

    fn migrate(&self) -> Result<()> {
        self.store.migrate()
    }

    fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        if self.listens.load(Ordering::Relaxed) {
            return self.store.listen();
        }
        Err(Error::unreachable("it cannot listen"))
    }
}

fn what_cannot_be_reached_says_why(server: &Server) {
    let role = "CREATE ROLE crowded LOGIN CONNECTION LIMIT 0";
    client(server.url()).batch_execute(role).expect("it is created");
    let with = |from: &str, to: &str| {
        let (before, after) = server.url().rsplit_once(from).expect("it has this part");
        format!("{before}{to}{after}")
    };
    let (_, name) = server.url().rsplit_once('/').expect("the name of a database");
    let cases = [
        (with(name, "missing"), "database \"missing\" does not exist"),
        (with("postgres@", "nobody@"), "role \"nobody\" does not exist"),
        (with(name, &format!("{name}?sslmode=require")), "TLS"),
        (with("%2F", "%2Fmissing"), "No such file"),
        (
            with("postgres@", "crowded@"),
            "too many clients: no connection is free: db error: FATAL: too many connections",
        ),
    ];
    for (url, cause) in cases {
        let at_once = OpenOptions::new().acquire_timeout(Duration::ZERO);
        let error = at_once.open(&url).expect_err("it cannot be reached");
        let is_crowded = matches!(error, Error::TooManyClients(_));
        assert!(matches!(error, Error::Unreachable(_)) || is_crowded, "{error:?}");
        assert_eq!(is_crowded, url.contains("crowded"), "{error:?}");
        assert!(error.to_string().contains(cause), "{cause}: {error}");
    }
    client(server.url()).batch_execute("DROP ROLE crowded").expect("it is dropped");
}

/// The server lets a role have four connections, and sixty callers share them.
fn callers_wait_for_a_server_that_has_no_room(server: &Server) {
    const CALLERS: usize = 60;
    let database = Database::schema(server);
    let Database::Schema { name, .. } = &database else { panic!("a schema") };
    database.execute(&format!(
        "CREATE ROLE few LOGIN CONNECTION LIMIT 4; GRANT ALL ON SCHEMA {name} TO few"
    ));
    let url = database.url().replace("postgres@", "few@");
    let open =
        |timeout| OpenOptions::new().max_connections(200).acquire_timeout(timeout).open(&url);
    let timers = open(PATIENCE).expect("it opens");
    let impatient = open(Duration::from_millis(200)).expect("it opens");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let timers = &timers;
            scope.spawn(move || {
                for n in 0..10 {
                    timers
                        .schedule(&new("plain", &format!("{caller} {n}"), HOUR))
                        .expect("scheduled");
                }
            });
        }
    });
    assert_eq!(timers.counts().expect("counts")[0].waiting as usize, CALLERS * 10);
    // When others have them all and keep them, the call says so.
    database.execute("ALTER ROLE few CONNECTION LIMIT 0");
    let error = impatient.now().expect_err("there is no room");
    assert!(matches!(error, Error::TooManyClients(_)), "{error:?}");
    assert!(error.to_string().contains("too many clients"), "{error}");
    drop((timers, impatient));
    database.execute("DROP OWNED BY few CASCADE; DROP ROLE few");
}

/// Another program has all connections, and gives them back after a while.
fn opening_and_starting_wait_for_room(server: &Server) {
    let database = Database::schema(server);
    let Database::Schema { name, .. } = &database else { panic!("a schema") };
    let room = |connections: u32| {
        database.execute(&format!("ALTER ROLE late CONNECTION LIMIT {connections}"));
    };
    database.execute(&format!("CREATE ROLE late LOGIN; GRANT ALL ON SCHEMA {name} TO late"));
    let url = database.url().replace("postgres@", "late@");
    let patient = OpenOptions::new().acquire_timeout(PATIENCE);
    let impatient = OpenOptions::new().acquire_timeout(Duration::from_millis(120));
    let worker_of = |timers: &Timers| timers.worker().handle("plain", |_| Ok(()));
    let is_refused = |error: Error, begin: Instant| {
        assert!(matches!(error, Error::TooManyClients(_)), "{error:?}");
        assert!(begin.elapsed() >= Duration::from_millis(120), "{:?}", begin.elapsed());
    };
    room(0);
    let begin = Instant::now();
    is_refused(impatient.clone().open(&url).expect_err("there is no room"), begin);
    let timers = thread::scope(|scope| {
        let opens = scope.spawn(|| patient.open(&url));
        thread::sleep(Duration::from_millis(100)); // it waits, as time passes
        assert!(!opens.is_finished(), "it has given up");
        room(9);
        opens.join().expect("no panic").expect("it opens")
    });
    let hasty = impatient.open(&url).expect("it opens");
    room(0);
    let begin = Instant::now();
    is_refused(worker_of(&hasty).start(Scheduler::global()).expect_err("no room"), begin);
    let worker = thread::scope(|scope| {
        let starts = scope.spawn(|| worker_of(&timers).start(Scheduler::global()));
        thread::sleep(Duration::from_millis(100)); // it waits, as time passes
        assert!(!starts.is_finished(), "it has given up");
        room(9);
        starts.join().expect("no panic").expect("it starts")
    });
    assert!(worker.stop(PATIENCE));
    drop((worker, timers, hasty));
    database.execute("DROP OWNED BY late CASCADE; DROP ROLE late");
}

/// More clients wait for the server than fit into the queue of its socket.
fn a_socket_whose_queue_is_full_has_no_room(server: &Server) {
    const SOCKET: &str = ".s.PGSQL.5432";
    let folder = std::env::temp_dir().join(new_name("full"));
    std::fs::create_dir(&folder).expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.expect("a runtime");
    // Nobody accepts them.
    let crowd = runtime.block_on(async {
        let listener = tokio::net::UnixSocket::new_stream().expect("a socket");
        listener.bind(folder.join(SOCKET)).expect("an address");
        let listener = listener.listen(1).expect("it listens");
        let mut waiting = Vec::new();
        while let Ok(one) = tokio::net::UnixStream::connect(folder.join(SOCKET)).await {
            waiting.push(one);
        }
        (listener, waiting)
    });
    let of = |folder: &Path| folder.to_string_lossy().replace('/', "%2F");
    let url = server.url().replace(&of(server.socket_folder()), &of(&folder));
    let open = |timeout| OpenOptions::new().acquire_timeout(timeout).open(&url);
    let error = open(Duration::from_millis(120)).expect_err("the queue is full");
    assert!(matches!(error, Error::TooManyClients(_)), "{error:?}");
    let opened = thread::scope(|scope| {
        let opens = scope.spawn(|| open(PATIENCE));
        thread::sleep(Duration::from_millis(100)); // it waits, as time passes
        assert!(!opens.is_finished(), "it has given up");
        // The server is there again.
        std::fs::remove_file(folder.join(SOCKET)).expect("it is gone");
        let real = server.socket_folder().join(SOCKET);
        std::os::unix::fs::symlink(real, folder.join(SOCKET)).expect("a link");
        opens.join().expect("no panic")
    });
    opened.expect("it opens").now().expect("a time");
    drop(crowd);
    std::fs::remove_dir_all(&folder).expect("it is gone");
}

/// A pool such as a service has.
#[derive(Clone)]
struct Pool {
    url: String,
    clients: Arc<Mutex<Vec<postgres::Client>>>,
    opened: Arc<AtomicU32>,
}

struct Pooled(Option<postgres::Client>, Pool);

impl Pool {
    fn get(&self) -> std::result::Result<Pooled, postgres::Error> {
        let free = self.clients.lock().expect("no panic").pop();
        let client = free.map_or_else(
            || {
                self.opened.fetch_add(1, Ordering::Relaxed);
                postgres::Client::connect(&self.url, postgres::NoTls)
            },
            Ok,
        );
        Ok(Pooled(Some(client?), self.clone()))
    }
}

impl Deref for Pooled {
    type Target = postgres::Client;

    fn deref(&self) -> &postgres::Client {
        self.0.as_ref().expect("it has one")
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut postgres::Client {
        self.0.as_mut().expect("it has one")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.1.clients.lock().expect("no panic").extend(self.0.take());
    }
}

fn a_pool_of_the_service_lends_its_connections(server: &Server) {
    const COUNT: u32 = 40;
    let database = Database::schema(server);
    let url = format!("{}&application_name=service", database.url());
    let pool = Pool { url, clients: Arc::default(), opened: Arc::default() };
    let own = format!("{}&application_name=own", database.url());
    let lend = pool.clone();
    let store = Postgres::new(&own).expect("an address").with_pool(move || lend.get());
    let timers = OpenOptions::new().max_connections(3).with_store(store).expect("it opens");
    database.execute("CREATE TABLE effects (key text NOT NULL)");
    let worker = timers.worker().threads(2).handle("plain", |_| Ok(()));
    let worker = worker.handle_in_postgres("tx", |run, transaction| {
        let name = transaction.query_one("SELECT current_setting('application_name')", &[])?;
        assert_eq!(name.get::<_, &str>(0), "service");
        transaction.execute("INSERT INTO effects VALUES ($1)", &[&run.key()])?;
        Ok(())
    });
    let worker = worker.poll_every(HOUR).start(Scheduler::global()).expect("it starts");
    thread::scope(|scope| {
        for caller in 0..8 {
            let timers = &timers;
            scope.spawn(move || {
                for n in 0..COUNT / 8 {
                    let key = format!("{caller} {n}");
                    timers.schedule(&new("tx", &key, NOW)).expect("scheduled");
                    timers.schedule(&new("plain", &key, NOW)).expect("scheduled");
                }
            });
        }
    });
    until("all are done", || worker.stats().done == u64::from(COUNT) * 2);
    assert_eq!(database.number("SELECT count(*) FROM effects"), i64::from(COUNT));
    // Three for calls and two for handlers, and they are all back, as they came.
    let opened = pool.opened.load(Ordering::Relaxed);
    assert!((1..=5).contains(&opened), "{opened}");
    let back = || pool.clients.lock().expect("no panic").len() == opened as usize;
    until("they are back", back);
    for client in &mut *pool.clients.lock().expect("no panic") {
        let row = client.query_one(
            "SELECT current_setting('lock_timeout'), (SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql)",
            &[],
        );
        let row = row.expect("a row");
        // The question itself is prepared by its client.
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), ("0", 1));
    }
    until("an idle worker has two of its own", || backends(server, "own").len() == 2);
    assert!(worker.stop(PATIENCE));
}

fn as_many_connections_are_kept_as_are_used(server: &Server) {
    const THREADS: usize = 24;
    const COUNT: usize = 20 * THREADS;
    let database = Database::schema(server);
    let opened = Arc::new(AtomicU32::new(0));
    let store = {
        let url = format!("{}&application_name=idle", database.url());
        let opened = Arc::clone(&opened);
        Postgres::with_connector(move || {
            opened.fetch_add(1, Ordering::Relaxed);
            postgres::Client::connect(&url, postgres::NoTls)
        })
    };
    let timers = Timers::with_store(store).expect("it opens");
    let worker = timers.worker().threads(THREADS).handle_in_postgres("tx", |_, transaction| {
        transaction.batch_execute("SELECT pg_sleep(0.002)")?; // so that all threads are busy
        Ok(())
    });
    let worker = worker.start(Scheduler::global()).expect("it starts");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let timers = &timers;
            scope.spawn(move || {
                for n in 0..COUNT / THREADS {
                    let key = format!("{thread} {n}");
                    timers.schedule(&new("tx", &key, NOW)).expect("scheduled");
                }
            });
        }
    });
    until("all are done", || worker.stats().done == COUNT as u64);
    // Each thread that runs has one, calls have ten, and the worker has some.
    let opened = opened.load(Ordering::Relaxed) as usize;
    assert!(opened <= THREADS + 10 + 8, "{opened} connections");
    // The listener and the dispatcher keep theirs.
    until("an idle worker has two", || backends(server, "idle").len() == 2);
    assert!(worker.stop(PATIENCE));
}
