//! Several servers as one store (HOME-1 to HOME-5), of which one is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{
    Attempt, Error, Filter, HistoryFilter, NewTimer, OpenOptions, Outcome, State, Store, Timer,
    Timers, Worker, WorkerBuilder, postgres::Postgres,
};

use super::common::{Random, until};
use super::databases::{Database, client, say};
use super::process::signal;
use super::server::Server;

const HOUR: Duration = Duration::from_secs(3600);

/// The first server that is killed. It is neither the first nor the last of the list.
const KILLED: usize = 1;

type Check = (&'static str, fn(&[Server; 3]));

const CHECKS: [Check; 10] = [
    ("homes_in_sql_are_the_same", homes_in_sql_are_the_same),
    ("each_timer_is_on_one_server_and_found_by_its_key", each_timer_is_on_one_server),
    ("lists_and_counts_have_each_timer_once", lists_and_counts_have_each_timer_once),
    ("histories_have_each_attempt_once", histories_have_each_attempt_once),
    ("a_timer_elsewhere_is_found_where_it_is", a_timer_elsewhere_is_found_where_it_is),
    (
        "a_search_waits_for_no_store_that_it_need_not_ask",
        a_search_waits_for_no_store_that_it_need_not_ask,
    ),
    ("a_transaction_is_that_of_the_timers_server", a_transaction_is_that_of_the_timers_server),
    ("a_store_that_does_not_fit_is_named", a_store_that_does_not_fit_is_named),
    (
        "a_server_that_is_silent_or_full_holds_up_no_other",
        a_server_that_is_silent_or_full_holds_up_no_other,
    ),
    ("a_server_that_is_killed_holds_up_no_other", a_server_that_is_killed_holds_up_no_other),
];

pub(crate) fn on_three_servers_of_our_own() {
    let servers: Result<Vec<_>, _> = (0..3).map(|_| Server::private()).collect();
    let servers: [Server; 3] = match servers.map(TryFrom::try_from) {
        Ok(servers) => servers.ok().expect("three"),
        Err(reason) => return say(&format!("several servers: skipped: {reason}")),
    };
    let only = std::env::var("TICKWHEEL_ONLY").unwrap_or_default();
    for (name, check) in CHECKS.iter().filter(|(name, _)| name.contains(&only)) {
        let begin = Instant::now();
        check(&servers);
        println!("{name}: {:?}", begin.elapsed());
    }
}

fn schemas(servers: &[Server; 3]) -> [Database<'_>; 3] {
    [0, 1, 2].map(|number| Database::schema(&servers[number]))
}

fn addresses(databases: &[Database<'_>]) -> Vec<String> {
    databases.iter().map(Database::address).collect()
}

fn open(databases: &[Database<'_>]) -> Timers {
    Timers::sharded(addresses(databases)).expect("it opens")
}

/// The numbers of the shards that an error names.
fn failed<T>(result: Result<T, Error>) -> Vec<usize> {
    match result {
        Err(Error::Shards(of)) => of.iter().map(|one| one.shard).collect(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => Vec::new(),
    }
}

/// A key whose home is this shard.
fn key_at(timers: &Timers, kind: &str, shard: usize, seed: usize) -> String {
    let mut keys = (seed * 1000..).map(|n| n.to_string());
    keys.find(|key| timers.home(kind, key) == shard).expect("a key")
}

// ----- where a timer is ----------------------------------------------------------------------

fn homes_in_sql_are_the_same(servers: &[Server; 3]) {
    let databases = schemas(servers);
    let timers = open(&databases);
    let mut random = Random(38);
    let mut client = client(servers[0].url());
    let of = "SELECT shard FROM generate_series(0, 2) AS shard
        ORDER BY sha256(convert_to(shard || '/' || $1 || '/' || $2, 'UTF8')) DESC LIMIT 1";
    for _ in 0..200 {
        let text = |random: &mut Random| -> String {
            let letters = ['a', '/', 'ä', '日', '0', ' ', '\u{1F600}', '\n'];
            (0..random.below(9)).map(|_| letters[random.below(8) as usize]).collect()
        };
        let (kind, key) = (text(&mut random), text(&mut random));
        let in_sql: i32 = client.query_one(of, &[&kind, &key]).expect("a row").get(0);
        assert_eq!(timers.home(&kind, &key), in_sql.unsigned_abs() as usize, "{kind:?} {key:?}");
    }
}

fn each_timer_is_on_one_server(servers: &[Server; 3]) {
    const COUNT: usize = 60;
    let databases = schemas(servers);
    let timers = open(&databases);
    let new = |n: usize| NewTimer::new("mail", n.to_string(), HOUR).payload(n.to_string());
    let many: Vec<_> = (0..COUNT).map(new).collect();
    assert!(timers.schedule(&many[0]).is_ok_and(|it| !it.replaced));
    let scheduled = timers.schedule_all(&many).expect("scheduled");
    let replaced: Vec<_> = scheduled.iter().map(|it| it.replaced).collect();
    assert!(replaced[0] && !replaced[1..].contains(&true), "in the order of the call");
    assert_eq!(scheduled.len(), COUNT);
    assert_eq!(timers.schedule_if_absent(&many[7]).expect("no error"), None);
    let mut used = BTreeSet::new();
    for n in 0..COUNT {
        let key = n.to_string();
        let home = timers.home("mail", &key);
        used.insert(home);
        for (number, shard) in timers.shards().iter().enumerate() {
            let found = shard.get("mail", &key).expect("no error");
            assert_eq!(found.is_some(), number == home, "{n} on {number}");
        }
        let found = timers.get("mail", &key).expect("no error").expect("it is there");
        assert_eq!((found.shard, found.payload), (home, key.clone().into_bytes()));
        assert!(timers.reset("mail", &key, HOUR * 2).expect("no error"));
        if n % 2 == 0 {
            assert_eq!(timers.cancel("mail", &key).expect("no error"), Some(State::Waiting));
        }
        assert_eq!(timers.get("mail", &key).expect("no error").is_none(), n % 2 == 0);
    }
    assert_eq!(used.len(), 3);
    assert!(timers.now().expect("a time") <= SystemTime::now());
    assert_eq!(timers.counts().expect("counts")[0].waiting, COUNT as u64 / 2);
    assert!(Timers::sharded(Vec::<String>::new()).is_err());
    let invalid = [new(1), NewTimer::new("", "1", HOUR)];
    assert!(matches!(timers.schedule_all(&invalid), Err(Error::Invalid(_))));
}

/// The numbers, and many of the times, are the same on all servers.
fn lists_and_counts_have_each_timer_once(servers: &[Server; 3]) {
    const COUNT: usize = 240;
    let databases = schemas(servers);
    // One has its texts in another order, if it can. The others have that of the bytes.
    let english =
        "CREATE DATABASE english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    let mut addresses = addresses(&databases);
    let mut of_another_order = None;
    if client(servers[0].url()).batch_execute(english).is_ok() {
        addresses[0] =
            servers[0].url().strip_suffix("postgres").expect("a database").to_owned() + "english";
        of_another_order = Some(client(&addresses[0]));
    }
    let timers = Timers::sharded(&addresses).expect("it opens");
    let begin = SystemTime::UNIX_EPOCH + HOUR * 24 * 365 * 80;
    let new = |n: usize| {
        let kind = ["b", "B", "a-b", "ab"][n % 4]; // which are in another order in most languages
        NewTimer::new(kind, n.to_string(), begin + Duration::from_secs(n as u64 % 3))
    };
    timers.schedule_all(&(0..COUNT).map(new).collect::<Vec<_>>()).expect("scheduled");
    for address in &addresses {
        let die = "UPDATE tickwheel_timers SET state = 'dead', held_until = 'infinity' WHERE key LIKE '%7'";
        client(address).batch_execute(die).expect("valid SQL");
    }
    let order = "SELECT 'B' COLLATE \"default\" < 'a-b'";
    let is_other =
        |mut of: postgres::Client| !of.query_one(order, &[]).expect("a row").get::<_, bool>(0);
    assert!(of_another_order.is_none_or(is_other));
    let place = |of: &Timer| (of.kind.clone(), of.wake.is_none(), of.wake, of.id, of.shard);
    for (filter, count) in [
        (Filter::new(), COUNT),
        (Filter::new().kind("B"), COUNT / 4),
        (Filter::new().state(State::Dead), COUNT / 10),
        (Filter::new().state(State::Waiting).until(begin), COUNT / 3 - COUNT / 30),
    ] {
        for limit in [1, 7, 50, 1000] {
            let mut filter = filter.clone().limit(limit);
            let mut seen = Vec::new();
            loop {
                let page = timers.list(&filter).expect("a page");
                let Some(last) = page.last() else { break };
                filter = filter.after(last);
                seen.extend(page);
            }
            let keys: BTreeSet<_> = seen.iter().map(|of| (&of.kind, &of.key)).collect();
            assert_eq!((keys.len(), seen.len()), (count, count), "{filter:?}");
            assert!(seen.iter().map(place).is_sorted_by(|a, b| a < b), "{filter:?}");
        }
    }
    let counts = timers.counts().expect("counts");
    let dead: u64 = counts.iter().map(|of| of.dead).sum();
    let waiting: u64 = counts.iter().map(|of| of.waiting).sum();
    assert_eq!((counts.len(), dead, waiting), (4, COUNT as u64 / 10, COUNT as u64 * 9 / 10));
    let requeued =
        ["b", "B", "a-b", "ab"].map(|kind| timers.requeue_all(kind, HOUR).expect("done"));
    assert_eq!(requeued.iter().sum::<u64>(), dead);
    assert_eq!(timers.list(&Filter::new().state(State::Dead)).expect("a list"), []);
}

/// The starts and the numbers are the same on all servers.
fn histories_have_each_attempt_once(servers: &[Server; 3]) {
    const EACH: u64 = 40;
    let databases = schemas(servers);
    let timers = open(&databases);
    let now = timers.now().expect("a time");
    for (number, database) in databases.iter().enumerate() {
        let store = Postgres::new(&database.address()).expect("an address");
        let attempts = (0..EACH).zip(0..).map(|(n, fence): (u64, i64)| {
            let started = now - Duration::from_secs(60 + n / 4);
            let mut attempt =
                Attempt::new("mail", n.to_string(), started, fence / 2, Outcome::Done);
            attempt.started -= Duration::from_micros(n % 2); // its number and its start are its own
            attempt.late = Duration::from_millis(number as u64);
            attempt
        });
        let attempts: Vec<_> = attempts.collect();
        store.connect().expect("it connects").record(&attempts).expect("written");
    }
    let place = |of: &Attempt| (std::cmp::Reverse((of.started, of.id)), of.shard);
    for limit in [1, 7, 50, 1000] {
        let mut filter = HistoryFilter::new().limit(limit);
        let mut seen = Vec::new();
        loop {
            let page = timers.history(&filter).expect("a page");
            let Some(last) = page.last() else { break };
            filter = filter.before(last);
            seen.extend(page);
        }
        assert_eq!(seen.len() as u64, 3 * EACH, "{limit}");
        assert!(seen.iter().map(place).is_sorted_by(|a, b| a < b), "{limit}");
    }
    let paces = timers.pace(HOUR, HOUR).expect("a pace");
    assert_eq!(paces.iter().map(|of| of.done).sum::<u64>(), 3 * EACH);
    for pace in &paces {
        assert!((pace.late.as_micros(), pace.max_late.as_millis()) == (1000, 2), "{pace:?}");
    }
    assert_eq!(timers.shards()[2].history(&HistoryFilter::new()).expect("one").len() as u64, EACH);
    assert_eq!(timers.purge_history(now).expect("removed"), 3 * EACH);

    let new = |n: u64| NewTimer::new("mail", format!("a/{n}"), HOUR + Duration::from_secs(n));
    timers.schedule_all(&(0..EACH).map(new).collect::<Vec<_>>()).expect("scheduled");
    let first = Filter::new().kind("mail").key_prefix("a/").limit(10);
    let shown = timers.list(&first).expect("a list");
    assert_eq!(timers.cancel_all(&first).expect("no error"), 10);
    let is_gone = |of: &Timer| timers.get(&of.kind, &of.key).expect("no error").is_none();
    assert!(shown.iter().all(is_gone), "what is listed is what is cancelled");
    let on_one = timers.shards()[2].list(&Filter::new()).expect("a list").len() as u64;
    assert_eq!(timers.shards()[2].cancel_all(&Filter::new()).expect("no error"), on_one);
    assert_eq!(timers.cancel_all(&Filter::new()).expect("no error"), EACH - 10 - on_one);
}

/// Because a transaction of its caller chose the server, or the list was shorter when it was scheduled.
fn a_timer_elsewhere_is_found_where_it_is(servers: &[Server; 3]) {
    let databases = schemas(servers);
    let short = open(&databases[..2]);
    let new = |n: usize| NewTimer::new("mail", n.to_string(), HOUR);
    short.schedule_all(&(0..30).map(new).collect::<Vec<_>>()).expect("scheduled");
    let moved: Vec<_> = {
        let timers = open(&databases);
        let has_moved = |n: &usize| timers.home("mail", &n.to_string()) == 2;
        let moved: Vec<_> = (0..30).filter(has_moved).collect();
        let key = moved[0].to_string();
        assert_eq!(timers.get("mail", &key).expect("no error"), None, "it is not looked for");
        moved
    };
    assert!(moved.len() > 3);
    let options = OpenOptions::new().search_all();
    let timers = options.sharded(addresses(&databases)).expect("it opens");
    for n in moved {
        let key = n.to_string();
        let found = timers.get("mail", &key).expect("no error").expect("it is there");
        assert_eq!(found.shard, short.home("mail", &key));
        assert_eq!(timers.schedule_if_absent(&new(n)).expect("no error"), None);
        assert!(timers.schedule(&new(n)).expect("scheduled").replaced, "and stays where it is");
        assert!(timers.reset("mail", &key, HOUR * 2).expect("no error"));
        assert_eq!(timers.cancel("mail", &key).expect("no error"), Some(State::Waiting));
        timers.schedule_all(&[new(n)]).expect("scheduled");
        assert_eq!(timers.get("mail", &key).expect("no error").expect("it is there").shard, 2);
    }
    assert_eq!(timers.list(&Filter::new()).expect("a list").len(), 30);
}

fn a_search_waits_for_no_store_that_it_need_not_ask(servers: &[Server; 3]) {
    let databases = schemas(servers);
    let options = OpenOptions::new().max_connections(3).acquire_timeout(Duration::from_secs(1));
    let timers = options.search_all().sharded(addresses(&databases)).expect("it opens");
    let keys = [0, 1].map(|shard| key_at(&timers, "mail", shard, 1));
    timers.schedule_all(&keys.clone().map(|key| NewTimer::new("mail", key, HOUR))).expect("done");
    let mut holder = client(&databases[1].url());
    let mut held = holder.transaction().expect("it begins");
    held.batch_execute("LOCK TABLE tickwheel_timers").expect("it is held");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
    let runtime = runtime.expect("a runtime");
    let of_held = || {
        let (calls, key) = (timers.asynchronous(), keys[1].clone());
        runtime.spawn(async move { calls.get("mail", &key).await })
    };
    let stuck: Vec<_> = (0..6).map(|_| of_held()).collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    until("as many wait as may", || databases[1].number(waiting) == 3);
    let found = runtime.block_on(timers.asynchronous().get("mail", &keys[0]));
    assert!(found.expect("it is at its home, which is not held").is_some());
    held.rollback().expect("it ends");
    stuck.into_iter().for_each(|call| drop(runtime.block_on(call)));

    // One that is away keeps nothing from being scheduled that need not be looked for there.
    let away = "postgres://me@%2Fnowhere/timers".to_owned();
    let timers = OpenOptions::new().search_all().sharded([databases[0].address(), away]);
    let timers = timers.expect("it opens");
    let known: Vec<_> = (0..40).map(|seed| key_at(&timers, "known", 0, seed)).collect();
    let all = |text: &'static str| -> Vec<_> {
        let of = |key: &String| NewTimer::new("known", key.clone(), HOUR).payload(text);
        known.iter().map(of).collect()
    };
    timers.shards()[0].schedule_all(&all("before")).expect("scheduled");
    let mut both = all("after");
    both.insert(7, NewTimer::new("known", key_at(&timers, "known", 1, 99), HOUR));
    both.insert(9, NewTimer::new("known", key_at(&timers, "known", 0, 99), HOUR));
    assert_eq!(failed(timers.schedule_all(&both)), [1]);
    let there = timers.shards()[0].list(&Filter::new().kind("known")).expect("a list");
    assert_eq!(there.len(), known.len());
    assert!(there.iter().all(|timer| timer.payload == b"after"), "{there:?}");
}

fn a_transaction_is_that_of_the_timers_server(servers: &[Server; 3]) {
    const COUNT: usize = 30;
    let databases = schemas(servers);
    for database in &databases {
        database.execute("CREATE TABLE paid (key text)");
    }
    let timers = open(&databases);
    let worker = timers
        .worker()
        .name("till")
        .handle_in_postgres("pay", |run, transaction| {
            let owner = run.timer().owner.as_deref().unwrap_or_default();
            assert_eq!(owner, format!("till/{}", run.timer().shard));
            transaction.execute("INSERT INTO paid VALUES ($1)", &[&run.key()])?;
            Ok(())
        })
        .start(Scheduler::global())
        .expect("it starts");
    let many = (0..COUNT).map(|n| NewTimer::new("pay", n.to_string(), Duration::ZERO));
    timers.schedule_all(&many.collect::<Vec<_>>()).expect("scheduled");
    until("all are paid", || worker.stats().done == COUNT as u64);
    for (shard, database) in databases.iter().enumerate() {
        let is_here = |n: &usize| timers.home("pay", &n.to_string()) == shard;
        let paid = database.number("SELECT count(*) FROM paid").unsigned_abs();
        assert_eq!(paid, (0..COUNT).filter(is_here).count() as u64);
    }
    assert_eq!(worker.name(), "till");
    assert!(worker.stop(Duration::from_secs(10)) && !worker.is_running());
    assert!(worker.wait(Duration::ZERO).is_some());
}

// ----- a server is gone ----------------------------------------------------------------------

/// What a worker has run: how late each key was, and on which shard.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<String, Vec<Ran>>>>);

/// On which shard, and how late.
type Ran = (usize, Duration);

impl Book {
    fn note_in(&self, worker: WorkerBuilder) -> WorkerBuilder {
        let book = self.clone();
        worker.handle("mail", move |run| {
            let late = SystemTime::now().duration_since(run.due())?;
            let mut lines = book.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.entry(run.key().to_owned()).or_default().push((run.timer().shard, late));
            Ok(())
        })
    }

    fn runs(&self, key: &str) -> Vec<Ran> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.get(key).cloned().unwrap_or_default()
    }
}

fn start(timers: &Timers, book: &Book, told: &Arc<Mutex<Vec<String>>>) -> Worker {
    let told = Arc::clone(told);
    let worker = book.note_in(timers.worker()).lease(Duration::from_secs(5));
    let tell = move |error: &Error| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
    };
    worker.on_error(tell).start(Scheduler::global()).expect("it starts")
}

fn a_server_that_is_killed_holds_up_no_other(servers: &[Server; 3]) {
    const COUNT: usize = 400;
    const SPAN: Duration = Duration::from_secs(4);
    let databases = schemas(servers);
    let timers = open(&databases);
    let (book, told) = (Book::default(), Arc::default());
    let worker = start(&timers, &book, &told);
    let begin = SystemTime::now() + Duration::from_secs(1);
    let due = |n: usize| begin + SPAN * n as u32 / COUNT as u32;
    let many = (0..COUNT).map(|n| NewTimer::new("mail", n.to_string(), due(n)));
    timers.schedule_all(&many.collect::<Vec<_>>()).expect("scheduled");
    until("it is in the middle of it", || worker.stats().done > COUNT as u64 / 4);
    let before = worker.stats().done;
    signal("KILL", servers[KILLED].process());
    let killed_at = SystemTime::now();

    // What the calls say.
    let name = servers[KILLED].socket_folder().display().to_string();
    until("calls say so", || timers.get("mail", &key_at(&timers, "mail", KILLED, 9)).is_err());
    let new = |shard: usize, seed: usize| {
        NewTimer::new("mail", key_at(&timers, "mail", shard, seed), Duration::ZERO)
    };
    let error = timers.schedule(&new(KILLED, 1)).expect_err("it is gone");
    assert!(error.to_string().contains(&name), "{error}");
    let Error::Shards(of) = &error else { panic!("{error:?}") };
    assert!(matches!(of[..], [ref one] if matches!(one.error, Error::Unreachable(_))), "{error:?}");
    assert_eq!(failed(timers.cancel("mail", &key_at(&timers, "mail", KILLED, 1))), [KILLED]);
    assert_eq!(failed(timers.list(&Filter::new())), [KILLED]);
    assert_eq!(failed(timers.counts()), [KILLED]);
    assert_eq!(failed(timers.requeue_all("mail", HOUR)), [KILLED]);
    assert_eq!(failed(timers.now()), [KILLED]);
    let both = [new(0, 2), new(KILLED, 2), new(2, 2)];
    assert_eq!(failed(timers.schedule_all(&both)), [KILLED], "the others have their part");
    timers.schedule_all(&[new(0, 3), new(2, 3)]).expect("none of them is on it");
    timers.schedule(&new(0, 4)).expect("it is on another");
    let left =
        timers.shards().iter().map(|one| one.list(&Filter::new()).is_ok()).collect::<Vec<_>>();
    assert_eq!(left, [true, false, true]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let calls = timers.asynchronous();
        assert_eq!(failed(calls.cancel("mail", &new(KILLED, 1).key).await), [KILLED]);
        assert_eq!(failed(calls.list(&Filter::new()).await), [KILLED]);
        calls.get("mail", &new(2, 1).key).await.expect("it is on another");
    });
    // A service can start, and its worker.
    let opened = Instant::now();
    let again = open(&databases);
    let (second, also_told) = (Book::default(), Arc::default());
    let another = start(&again, &second, &also_told);
    let before_it_is_given_up = Duration::from_secs(20); // a server that does not answer is waited for half a minute
    assert!(opened.elapsed() < before_it_is_given_up, "{:?}", opened.elapsed());
    again.schedule(&new(0, 5)).expect("it is on another");
    let none = Timers::sharded([databases[KILLED].address(), databases[KILLED].address()]);
    assert_eq!(failed(none.map(drop)), [0, 1]);

    // What is on the others runs on time.
    let is_there = |n: &usize| timers.home("mail", &n.to_string()) != KILLED;
    let runs_of =
        |key: &str| -> Vec<_> { book.runs(key).into_iter().chain(second.runs(key)).collect() };
    until("all of the others have run", || {
        (0..COUNT).filter(is_there).all(|n| !runs_of(&n.to_string()).is_empty())
    });
    for (shard, seed) in [(0, 2), (2, 2), (0, 3), (2, 3), (0, 4), (0, 5)] {
        let key = new(shard, seed).key;
        until("what was scheduled in the meantime has run", || !runs_of(&key).is_empty());
    }
    let late = |is_after: bool| -> Vec<Duration> {
        let of = (0..COUNT).filter(is_there).filter(|n| (due(*n) > killed_at) == is_after);
        let mut late: Vec<_> = of.map(|n| runs_of(&n.to_string())[0].1).collect();
        late.sort_unstable();
        late
    };
    let (early, then) = (late(false), late(true));
    let of = |late: &[Duration]| (late[late.len() / 2], late[late.len() - 1]);
    println!("late in the median and at most: before {:?}, after {:?}", of(&early), of(&then));
    assert!(then.len() > COUNT / 6, "{}: it was killed in the middle", then.len());
    assert!(of(&then).0 < Duration::from_millis(100) + 3 * of(&early).0, "{:?}", of(&then));
    assert!(of(&then).1 < Duration::from_secs(2), "{:?}", of(&then));
    for n in (0..COUNT).filter(is_there) {
        let runs = runs_of(&n.to_string());
        assert!(
            runs.len() == 1 && runs[0].0 == timers.home("mail", &n.to_string()),
            "{n}: {runs:?}"
        );
    }
    for told in [&told, &also_told] {
        let told = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(matches!(&told[..], [one] if one.contains(&name)), "once, with its name: {told:?}");
    }
    assert!(worker.is_running() && another.is_running() && worker.stats().done > before);

    // And when it is back, so does what is on it.
    servers[KILLED].come_back();
    until("all have run", || (0..COUNT).all(|n| !runs_of(&n.to_string()).is_empty()));
    timers.schedule(&new(KILLED, 6)).expect("it is back");
    until("it runs", || !runs_of(&new(KILLED, 6).key).is_empty());
    until("all is written", || timers.list(&Filter::new()).is_ok_and(|left| left.is_empty()));
}

/// Its schema was renamed, which is wrong with the store, and not with a call.
fn a_store_that_does_not_fit_is_named(servers: &[Server; 3]) {
    let databases = schemas(servers);
    drop(open(&databases));
    let Database::Schema { name, .. } = &databases[1] else { panic!("a schema") };
    databases[1]
        .execute(&format!("ALTER SCHEMA {name} RENAME TO {name}_other; CREATE SCHEMA {name}"));
    let mut addresses = addresses(&databases);
    addresses[1] += "_other";
    assert!(addresses[1].contains(&format!("{name}_other")), "{}", addresses[1]);
    let error = Timers::sharded(addresses).expect_err("it does not fit");
    let Error::Shards(of) = &error else { panic!("{error:?}") };
    assert!(matches!(&of[..], [one] if one.shard == 1), "{error:?}");
    assert!(matches!(of[0].error, Error::Invalid(_)), "{error:?}");
    databases[1]
        .execute(&format!("DROP SCHEMA {name}; ALTER SCHEMA {name}_other RENAME TO {name}"));
}

/// A process that was halted, and goes on at the latest when this is dropped.
struct Halted(u32);

impl Drop for Halted {
    fn drop(&mut self) {
        signal("CONT", self.0);
    }
}

/// It is halted, so it takes connections and says nothing. Or others have all its connections.
fn a_server_that_is_silent_or_full_holds_up_no_other(servers: &[Server; 3]) {
    const LAST: usize = 2;
    let databases = schemas(servers);
    drop(open(&databases));
    let Database::Schema { name, .. } = &databases[LAST] else { panic!("a schema") };
    let mut addresses = addresses(&databases);
    addresses[LAST] += "&connect_timeout=5";
    let hold_up_nothing =
        |addresses: &[String], seed: usize, is_away: &dyn Fn(), is_back: &dyn Fn()| {
            is_away();
            let begin = Instant::now();
            let timers = Timers::sharded(addresses).expect("it opens");
            let opened = begin.elapsed();
            let (book, told) = (Book::default(), Arc::default());
            let worker = start(&timers, &book, &told);
            println!("opened after {opened:?}, and started after {:?}", begin.elapsed());
            let twice = Duration::from_secs(10); // its time is waited for once
            assert!(begin.elapsed() < twice, "{:?}", begin.elapsed());
            let keys = [0, 1, LAST].map(|shard| key_at(&timers, "mail", shard, seed));
            for key in &keys[..2] {
                timers.schedule(&NewTimer::new("mail", key.clone(), Duration::ZERO)).expect("done");
                until("it runs", || book.runs(key).len() == 1);
            }
            is_back();
            let last = NewTimer::new("mail", keys[LAST].clone(), Duration::ZERO);
            until("it is back", || timers.schedule(&last).is_ok());
            until("it runs", || !book.runs(&keys[LAST]).is_empty());
            assert!(worker.stop(Duration::from_secs(10)));
        };
    let process = servers[LAST].process();
    let guard = Halted(process);
    let halted = || {
        signal("STOP", process);
        let begin = Instant::now();
        let error = Timers::open(&addresses[LAST]).expect_err("it is halted");
        assert!(error.to_string().contains("does not answer"), "{error:?}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    };
    hold_up_nothing(&addresses, 1, &halted, &|| signal("CONT", process));

    drop(guard);
    let room = |connections: i32| {
        databases[LAST].execute(&format!("ALTER ROLE few CONNECTION LIMIT {connections}"));
    };
    let role = format!("CREATE ROLE few LOGIN; GRANT ALL ON SCHEMA {name} TO few;
        GRANT ALL ON ALL TABLES IN SCHEMA {name} TO few; GRANT ALL ON ALL SEQUENCES IN SCHEMA {name} TO few");
    databases[LAST].execute(&role);
    addresses[LAST] = addresses[LAST].replace("postgres@", "few@");
    hold_up_nothing(&addresses, 2, &|| room(0), &|| room(-1));
    databases[LAST].execute("DROP OWNED BY few CASCADE; DROP ROLE few");
}

/// A file has one writer at a time, so several files are written at the same time.
pub(crate) fn files_are_shards_too() {
    let databases = [Database::file(), Database::file()];
    let stores: Vec<Box<dyn Store>> = databases
        .iter()
        .map(|of| Box::new(tickwheel_durable::sqlite::Sqlite::new(&of.address()[7..])) as _)
        .collect();
    let timers = OpenOptions::new().with_stores(stores).expect("it opens");
    let book = Book::default();
    let worker = book.note_in(timers.worker()).start(Scheduler::global()).expect("it starts");
    let many = (0..20).map(|n| NewTimer::new("mail", n.to_string(), Duration::ZERO));
    timers.schedule_all(&many.collect::<Vec<_>>()).expect("scheduled");
    until("all have run", || worker.stats().done == 20);
    for n in 0..20 {
        let runs = book.runs(&n.to_string());
        assert!(runs.len() == 1 && runs[0].0 == timers.home("mail", &n.to_string()), "{runs:?}");
    }
}
