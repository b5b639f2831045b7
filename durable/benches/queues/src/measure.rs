//! The measurements, each of which is bounded in time.

use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::engines::{Engine, Place, connect, micros};
use crate::server::Server;
use crate::workers::{Crew, Handler};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// How long calls are repeated.
    pub(crate) calls: Duration,
    /// How many timers are due at once.
    pub(crate) backlog: usize,
    /// The longest time for a backlog.
    pub(crate) patience: Duration,
    /// Over which time due times are spread.
    pub(crate) spread: Duration,
    /// How many due times a second.
    pub(crate) rates: [usize; 2],
    /// How many timers workers run before they are measured.
    pub(crate) warm_up: u32,
    /// No more worker processes than so many.
    pub(crate) processes: usize,
    /// How many timers are overdue in a drain.
    pub(crate) drain: usize,
    /// How long workers that have nothing to do are watched.
    pub(crate) idle: Duration,
}

impl Size {
    pub(crate) const FULL: Size = Size {
        calls: Duration::from_secs(2),
        backlog: 20_000,
        patience: Duration::from_secs(10),
        spread: Duration::from_secs(10),
        rates: [200, 1000],
        warm_up: 500,
        processes: 8,
        drain: 1_000_000,
        idle: Duration::from_secs(10),
    };

    pub(crate) const QUICK: Size = Size {
        calls: Duration::from_millis(100),
        backlog: 500,
        patience: Duration::from_secs(2),
        spread: Duration::from_millis(100),
        rates: [200, 1000],
        warm_up: 20,
        processes: 1,
        drain: 5_000,
        idle: Duration::from_millis(500),
    };

    /// How long calls are repeated before they are measured.
    fn before(&self) -> Duration {
        self.calls / 5
    }

    /// The longest time for a drain.
    pub(crate) fn drain_patience(&self) -> Duration {
        self.patience * 4
    }
}

/// Threads that call at the same time.
pub(crate) const CALLERS: usize = 4;

/// Connections that commit orders at the same time.
pub(crate) const BUYERS: usize = 16;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// What calls cost, in timers each second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// One timer each, due in an hour.
    pub(crate) far: f64,
    /// One timer each, due in a minute.
    pub(crate) near: f64,
    pub(crate) batches_of_100: f64,
    pub(crate) batches_of_1000: f64,
    pub(crate) cancel: f64,
}

pub(crate) fn calls(engine: Engine, server: &Server, size: &Size) -> Calls {
    Calls {
        far: schedule(&Place::new(engine, server), 1, HOUR, size),
        near: schedule(&Place::new(engine, server), 1, MINUTE, size),
        batches_of_100: schedule(&Place::new(engine, server), 100, HOUR, size),
        batches_of_1000: schedule(&Place::new(engine, server), 1000, HOUR, size),
        cancel: cancel(&Place::new(engine, server), size),
    }
}

/// Schedules from several threads for a while. Returns how many timers each second.
fn schedule(place: &Place<'_>, batch: usize, delay: Duration, size: &Size) -> f64 {
    let numbers = AtomicUsize::new(0);
    from_threads(place, size, |caller| {
        let first = numbers.fetch_add(batch, Ordering::Relaxed);
        let due = SystemTime::now() + delay;
        let timers: Vec<_> = (first..first + batch).map(|number| (key(number), due)).collect();
        caller.schedule(&timers);
        batch
    })
}

fn cancel(place: &Place<'_>, size: &Size) -> f64 {
    let due = SystemTime::now() + HOUR;
    let all: Vec<_> = (0..size.backlog).map(|number| (key(number), due)).collect();
    all.chunks(1000).for_each(|some| place.caller().schedule(some));
    let numbers = AtomicUsize::new(0);
    from_threads(place, size, |caller| {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        if number >= size.backlog {
            return 0;
        }
        caller.cancel(&key(number));
        1
    })
}

fn key(number: usize) -> String {
    format!("key-{number:08}")
}

/// Calls from several threads, until the time is over or there is nothing left. Returns how many each second.
fn from_threads(
    place: &Place<'_>,
    size: &Size,
    call: impl Fn(&mut dyn crate::engines::Caller) -> usize + Sync,
) -> f64 {
    let barrier = Barrier::new(CALLERS);
    let done = AtomicUsize::new(0);
    let took = thread::scope(|scope| {
        let threads: Vec<_> = (0..CALLERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut caller = place.caller();
                    let warm = Instant::now() + size.before();
                    while Instant::now() < warm && call(&mut *caller) > 0 {}
                    barrier.wait();
                    let start = Instant::now();
                    while start.elapsed() < size.calls {
                        let count = call(&mut *caller);
                        if count == 0 {
                            break;
                        }
                        done.fetch_add(count, Ordering::Relaxed);
                    }
                    start.elapsed()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).max()
    });
    rate(done.into_inner(), took.unwrap_or_default())
}

fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

/// What a caller's transaction does beside the row that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    pub(crate) name: &'static str,
    engine: Engine,
    /// What is set before.
    setting: &'static str,
    /// The second statement, with the key as its parameter.
    statement: Option<&'static str>,
}

/// The transactions of callers that are compared. All are of PostgreSQL.
pub(crate) const BESIDE: [Beside; 7] = [
    Beside { name: "an order alone", engine: Engine::Postgres, setting: "", statement: None },
    Beside {
        name: "and a row in a table with a primary key",
        engine: Engine::Postgres,
        setting: "CREATE TABLE notes (key text PRIMARY KEY)",
        statement: Some("INSERT INTO notes VALUES ($1)"),
    },
    Beside {
        name: "and `tickwheel_schedule`, in an hour",
        engine: Engine::Postgres,
        setting: "",
        statement: Some("SELECT tickwheel_schedule('bench', $1, after => '1 hour')"),
    },
    Beside {
        name: "and one in a minute, `at once`",
        engine: Engine::Postgres,
        setting: "",
        statement: Some("SELECT tickwheel_schedule('bench', $1, after => '1 minute')"),
    },
    Beside {
        name: "the same, `debounced`",
        engine: Engine::Postgres,
        setting: "SELECT tickwheel_set_notices('debounced')",
        statement: Some("SELECT tickwheel_schedule('bench', $1, after => '1 minute')"),
    },
    Beside {
        name: "the same, `never`",
        engine: Engine::Postgres,
        setting: "SELECT tickwheel_set_notices('never')",
        statement: Some("SELECT tickwheel_schedule('bench', $1, after => '1 minute')"),
    },
    Beside {
        name: "and `graphile_worker.add_job`, in a minute",
        engine: Engine::Graphile,
        setting: "",
        statement: Some(
            "SELECT graphile_worker.add_job('bench', json_build_object('due', 0), run_at => now() + interval '1 minute', job_key => $1)",
        ),
    },
];

/// How many transactions callers commit each second, while a worker runs.
pub(crate) fn transactions(beside: &Beside, server: &Server, size: &Size) -> f64 {
    let place = Place::new(beside.engine, server);
    let mut control = connect(&place.address);
    control.batch_execute("CREATE TABLE orders (key text PRIMARY KEY)").expect("a table");
    control.batch_execute(beside.setting).expect("a setting");
    let crew = Crew::start(&place, 1, Handler::Plain);
    let numbers = AtomicUsize::new(0);
    let barrier = Barrier::new(BUYERS);
    let done = AtomicUsize::new(0);
    let took = thread::scope(|scope| {
        let buyer = || {
            let mut client = connect(&place.address);
            let order = client.prepare("INSERT INTO orders VALUES ($1)").expect("valid SQL");
            let second = beside.statement.map(|sql| client.prepare(sql).expect("valid SQL"));
            let mut buy = || {
                let key = key(numbers.fetch_add(1, Ordering::Relaxed));
                let mut transaction = client.transaction().expect("a transaction");
                transaction.execute(&order, &[&key]).expect("an order");
                if let Some(statement) = &second {
                    transaction.execute(statement, &[&key]).expect("what is beside it");
                }
                transaction.commit().expect("a commit");
            };
            let warm = Instant::now() + size.before();
            while Instant::now() < warm {
                buy();
            }
            barrier.wait();
            let start = Instant::now();
            while start.elapsed() < size.calls * 2 {
                buy();
                done.fetch_add(1, Ordering::Relaxed);
            }
            start.elapsed()
        };
        let buyers: Vec<_> = (0..BUYERS).map(|_| scope.spawn(buyer)).collect();
        buyers.into_iter().map(|thread| thread.join().expect("no panic")).max()
    });
    crew.stop();
    rate(done.into_inner(), took.unwrap_or_default())
}

/// How many timers of a backlog are run each second, until the last one is removed from the store.
pub(crate) fn fire(
    engine: Engine,
    server: &Server,
    processes: usize,
    handler: Handler,
    size: &Size,
) -> f64 {
    // What polls often makes it take longer to put them in.
    let lead = Duration::from_millis(500) + Duration::from_micros(150) * size.backlog as u32;
    let leads = std::iter::successors(Some(lead), |lead| Some(*lead * 2));
    let fired = leads.take(4).find_map(|lead| {
        let place = Place::new(engine, server);
        let crew = Crew::start(&place, processes, handler);
        let fired = fire_after(lead, &place, &crew, size);
        crew.stop();
        fired
    });
    fired.expect("they are put in before they are due")
}

/// `None`: they were due before all of them had been put in.
fn fire_after(lead: Duration, place: &Place<'_>, crew: &Crew, size: &Size) -> Option<f64> {
    warm_up(place, crew, size);
    let warmed = crew.count();
    // All of them become due at once, when they have been put in.
    let due = SystemTime::now() + lead;
    put_in(place, (0..size.backlog).map(|number| (key(number), due)).collect());
    let left = due.duration_since(SystemTime::now()).ok()?;
    thread::sleep(left); // they are due from here on
    let start = Instant::now();
    while crew.count() - warmed < size.backlog && start.elapsed() < size.patience {
        thread::sleep(Duration::from_millis(1)); // the workers report each 5 ms
    }
    let count = crew.count() - warmed;
    while count >= size.backlog && !place.is_empty() && start.elapsed() < size.patience {
        thread::sleep(Duration::from_millis(1)); // the rest is written in a few milliseconds
    }
    Some(rate(count.min(size.backlog), start.elapsed()))
}

/// How fast a large backlog is worked off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// Runs in the first whole second.
    pub(crate) first: f64,
    /// Runs in the slowest whole second.
    pub(crate) slowest: f64,
    /// Runs a second, over all of it.
    pub(crate) mean: f64,
    /// How many were run when the patience ended, of those that were due.
    pub(crate) share: f64,
}

/// Runs timers that were due long ago, beside as many that are due tomorrow.
pub(crate) fn drain(engine: Engine, server: &Server, size: &Size) -> Drain {
    let place = Place::new(engine, server);
    let now = SystemTime::now();
    for (of, due) in [("late", now - HOUR), ("far", now + HOUR * 24)] {
        put_in(&place, (0..size.drain).map(|number| (format!("{of}-{number}"), due)).collect());
    }
    let crew = Crew::start(&place, 1, Handler::Plain);
    while crew.count() == 0 {
        thread::sleep(Duration::from_millis(1)); // the workers report each 5 ms
    }
    let (start, before) = (Instant::now(), crew.count());
    let mut seconds = vec![before];
    while crew.count() < size.drain && start.elapsed() < size.drain_patience() {
        thread::sleep(Duration::from_millis(5));
        if start.elapsed() >= Duration::from_secs(seconds.len() as u64) {
            seconds.push(crew.count());
        }
    }
    let (took, count) = (start.elapsed(), crew.count());
    crew.stop();
    let each: Vec<f64> = seconds.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let mean = rate(count - before, took);
    Drain {
        first: each.first().copied().unwrap_or(mean),
        slowest: each.iter().copied().reduce(f64::min).unwrap_or(mean),
        mean,
        share: count as f64 / size.drain as f64,
    }
}

/// What workers cost that have nothing to do, in milliseconds of processor time for each second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) worker: f64,
    /// `None`: the server is somebody else's, or there is none.
    pub(crate) server: Option<f64>,
}

/// Watches a worker beside timers that are due tomorrow.
pub(crate) fn idle(engine: Engine, server: &Server, size: &Size) -> Idle {
    let place = Place::new(engine, server);
    let due = SystemTime::now() + HOUR * 24;
    put_in(&place, (0..size.drain / 10).map(|number| (key(number), due)).collect());
    let crew = Crew::start(&place, 1, Handler::Plain);
    warm_up(&place, &crew, size);
    thread::sleep(size.patience / 10); // what follows the last run has been written
    // That of a SQLite file is in this process, of which nothing else runs.
    let worker = crew.process().unwrap_or_else(std::process::id);
    let of_server = || match engine {
        Engine::Sqlite => None,
        _ => server.is_private().then(|| processor_time_of_children(server.process())),
    };
    let before = (processor_time(worker), of_server());
    let start = Instant::now();
    thread::sleep(size.idle);
    let per_second = |spent: Duration| spent.as_secs_f64() * 1000.0 / start.elapsed().as_secs_f64();
    let after = (processor_time(worker), of_server());
    let server =
        before.1.zip(after.1).map(|(before, after)| per_second(after.saturating_sub(before)));
    Idle { worker: per_second(after.0.saturating_sub(before.0)), server }
}

/// The processor time of all threads of a process, to the nanosecond. Linux alone tells it so.
fn processor_time(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let spent = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(spent.sum())
}

fn processor_time_of_children(process: u32) -> Duration {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    children.split(' ').filter_map(|child| child.parse().ok()).map(processor_time).sum()
}

fn put_in(place: &Place<'_>, timers: Vec<(String, SystemTime)>) {
    let mut caller = place.caller();
    timers.chunks(1000).for_each(|some| caller.schedule(some));
}

/// Runs some timers, so that connections are open and statements are known.
fn warm_up(place: &Place<'_>, crew: &Crew, size: &Size) {
    let now = SystemTime::now();
    let count = size.warm_up;
    let due = |number: u32| now + Duration::from_millis(200) + Duration::from_millis(1) * number;
    put_in(place, (0..count).map(|number| (format!("warm-{number}"), due(number))).collect());
    let start = Instant::now();
    while crew.count() < count as usize {
        assert!(start.elapsed() < Duration::from_secs(20), "the workers run something");
        thread::sleep(Duration::from_millis(5)); // the workers report each 5 ms
    }
}

/// How late handlers were called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lateness {
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

/// Runs timers with random due times. `None`: it fell behind, and had not run all of them in time.
pub(crate) fn lateness(
    engine: Engine,
    server: &Server,
    processes: usize,
    rate: usize,
    size: &Size,
) -> Option<Lateness> {
    let place = Place::new(engine, server);
    let crew = Crew::start(&place, processes, Handler::Plain);
    warm_up(&place, &crew, size);
    let warmed = crew.count();
    let start = SystemTime::now() + Duration::from_millis(800);
    let spread = size.spread.as_micros() as u64;
    let count = (size.spread.as_secs_f64() * rate as f64) as usize;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let timers =
        (0..count).map(|number| (key(number), start + Duration::from_micros(random() % spread)));
    put_in(&place, timers.collect());
    let end = start + size.spread + size.patience;
    while crew.count() - warmed < count && SystemTime::now() < end {
        thread::sleep(Duration::from_millis(20)); // this process is to take no time from the others
    }
    let mut late: Vec<i64> = crew
        .stop()
        .into_iter()
        .filter(|(due, _)| *due >= micros(start))
        .map(|(_, late)| late)
        .collect();
    assert!(late.iter().all(|late| *late >= 0), "{} is early", engine.name());
    late.sort_unstable();
    if late.len() < count && !engine.is_tickwheel() {
        return None;
    }
    assert_eq!(late.len(), count, "{} has run all of them once", engine.name());
    let at = |share: f64| {
        let index = (late.len() as f64 * share) as usize;
        Duration::from_micros(late[index.min(late.len() - 1)].unsigned_abs())
    };
    Some(Lateness { median: at(0.5), p99: at(0.99), max: at(1.0) })
}
