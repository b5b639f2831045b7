//! The lives of a scheduler: in real time on its tick thread, and in virtual time, where other threads act while the driver
//! turns. (`driver_model` has one thread, small crowds, and knows each run to the nanosecond.)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use tickwheel::{
    Builder, Clock, Driver, Inline, Leftovers, ManualClock, Precision, Scheduler, SystemClock,
    ThreadPool,
};

use crate::book::{Book, Kind};
use crate::common::{PATIENCE, Random, panic_on_purpose, until};
use crate::life::{Extra, Habits, Life, Moody};
use crate::lives;

struct World {
    life: Arc<Life>,
    scheduler: Scheduler,
    book: Arc<Book>,
    moody: Moody,
    random: Random,
    /// How many leftovers were cancelled as such.
    called_off: usize,
}

/// Settings that both kinds of life draw.
fn some_builder(random: &mut Random, book: &Arc<Book>, moody: &Moody, habits: Habits) -> Builder {
    let (ears, hook_panics) = (Arc::clone(book), habits.panics && random.one_in(2));
    let mut builder = Scheduler::builder()
        .tick(Duration::from_micros([1, 50, 1_000, 7_000][random.below(4) as usize]))
        .wheel_size(1 << random.below(11))
        .precision([Precision::Tick, Precision::Exact][random.below(2) as usize])
        .shutdown_timeout(PATIENCE)
        .on_panic(move |panic| {
            ears.hear(&panic);
            if hook_panics {
                panic_on_purpose();
            }
        });
    if random.one_in(3) {
        builder = builder.max_pending(1 + random.below(2 * habits.crowd) as usize);
    }
    match random.below(4) {
        0 => builder.executor(Inline),
        1 => builder.executor(ThreadPool::new(1 + random.below(3) as usize)),
        _ => builder.executor(moody.clone()),
    }
}

impl World {
    fn new(
        seed: u64,
        scheduler: Scheduler,
        clock: impl Clock,
        made: (Habits, Arc<Book>, Moody),
    ) -> World {
        let (habits, book, moody) = made;
        let moods = moody.clone();
        let extra: Extra = Box::new(move |random| moods.change(random));
        let life = Life::new(seed, habits, clock, scheduler.clone(), &book, extra);
        World { life, scheduler, book, moody, random: Random(!seed), called_off: 0 }
    }

    /// Each leftover meets one of the ends that it can have.
    fn take_leftovers(&mut self, leftovers: Leftovers) {
        // They came in order. A run that is still in progress may have moved them since.
        until("the last run", || self.scheduler.await_termination(Duration::from_millis(5)));
        self.book.forget_time();
        for task in leftovers {
            match self.random.below(3) {
                0 => task.run(),
                1 => self.called_off += usize::from(task.cancel()),
                _ => drop(task),
            }
        }
    }

    /// Checks what is left when all is over, and the statistics against the book.
    fn check(self) {
        let World { life, scheduler, book, moody, called_off, .. } = self;
        moody.calm_down();
        life.let_go();
        until("the end of the last run", || scheduler.await_termination(Duration::from_millis(5)));
        assert_eq!(scheduler.pending(), 0, "pending after the end");
        let handles = life.take_handles();
        let count = |what: fn(&crate::book::Record) -> bool| book.count(what) as u64;
        let accepted = count(|record| !record.is_refused());
        until("the drop of each closure", || book.alive.load(SeqCst) == 0 || book.has_faults());
        let cancelled = count(crate::book::Record::is_cancelled);
        // A leftover of a series runs once, and is neither dropped nor at the end of its series.
        let dropped = count(|record| record.was_dropped_early() && record.kind == Kind::Once);
        let series = count(|record| record.was_dropped_early() && record.kind == Kind::Series);
        let runs = count(|record| record.kind == Kind::Once && record.runs() > 0);
        book.settle(&handles);
        let stats = scheduler.stats();
        assert_eq!(stats.scheduled(), accepted, "scheduled: {stats:?}");
        assert!(stats.fired() >= runs, "fired");
        assert_eq!(stats.cancelled(), cancelled + called_off as u64, "cancelled: {stats:?}");
        let given_up = stats.dropped() + called_off as u64;
        assert!((dropped..=dropped + series).contains(&given_up), "dropped {dropped}: {stats:?}");
        assert_eq!(stats.pending(), 0, "pending: {stats:?}");
    }
}

// ----- in real time ------------------------------------------------------------------------

fn in_real_time(seed: u64) {
    let mut random = Random(seed);
    let (habits, book, moody) = (Habits::draw(&mut random), Arc::default(), Moody::default());
    let builder = some_builder(&mut random, &book, &moody, habits);
    let scheduler = builder.build().expect("a thread");
    let mut world = World::new(seed, scheduler.clone(), SystemClock, (habits, book, moody.clone()));
    let life = Arc::clone(&world.life);
    // In the middle of it, or after the actors.
    let end = random.below(6);
    if random.one_in(2) {
        let (turns, left) = (random.below(40), AtomicUsize::new(0));
        let mut leftovers = None;
        life.go_on(|| {
            thread::sleep(Duration::from_micros(500));
            if left.fetch_add(1, SeqCst) as u64 == turns {
                leftovers = end_by(end, &scheduler, &life.book);
                life.call_it_a_day();
            }
        });
        life.call_it_a_day();
        if let Some(leftovers) = leftovers {
            world.take_leftovers(leftovers);
        }
    } else {
        life.go_on(|| thread::sleep(Duration::from_micros(500)));
        moody.calm_down();
        if random.one_in(2) {
            life.drain(|| scheduler.pending(), || moody.calm_down());
        }
    }
    life.call_it_a_day();
    if !scheduler.is_closed() {
        if let Some(leftovers) = end_by(end, &scheduler, &life.book) {
            world.take_leftovers(leftovers);
        }
    }
    // What a `stop` has left behind.
    moody.calm_down();
    let rest = scheduler.close().expect("in time");
    world.take_leftovers(rest);
    world.check();
}

fn end_by(end: u64, scheduler: &Scheduler, book: &Book) -> Option<Leftovers> {
    match end {
        0 => {
            book.forget_time();
            scheduler.close_and_run().expect("in time");
        }
        1 => return Some(scheduler.stop().wait()),
        2 => drop(scheduler.stop()),
        _ => return Some(scheduler.close().expect("in time")),
    }
    None
}

#[test]
fn core_in_real_time() {
    lives("core_in_real_time", in_real_time);
}

// ----- in virtual time ---------------------------------------------------------------------

fn in_virtual_time(seed: u64) {
    let mut random = Random(seed);
    let (habits, book, moody) = (Habits::draw(&mut random), Arc::default(), Moody::default());
    let clock = ManualClock::new();
    let builder = some_builder(&mut random, &book, &moody, habits).clock(clock.clone());
    let (scheduler, driver) = builder.build_driven().expect("good settings");
    let mut world =
        World::new(seed, scheduler.clone(), clock.clone(), (habits, book, moody.clone()));
    let life = Arc::clone(&world.life);
    let (stops_at, mut turns) = (random.one_in(3).then(|| random.below(300)), 0);
    life.go_on(|| {
        turn(&driver, &clock, habits, &mut random);
        turns += 1;
        if Some(turns) == stops_at {
            life.call_it_a_day();
            drop(scheduler.stop());
        }
    });
    if !scheduler.is_closed() && random.one_in(2) {
        let far = Duration::from_secs(10);
        life.drain(
            || scheduler.pending(),
            || {
                moody.calm_down();
                driver.advance(far);
            },
        );
        assert_eq!(driver.next_deadline(), None, "with nothing pending");
    }
    life.call_it_a_day();
    moody.calm_down();
    if random.one_in(3) {
        drop(driver);
    } else {
        let leftovers = driver.close();
        world.take_leftovers(leftovers);
    }
    world.check();
}

fn turn(driver: &Driver, clock: &ManualClock, habits: Habits, random: &mut Random) {
    let step = Duration::from_nanos(random.below(1 + habits.delay.as_nanos() as u64));
    match random.below(8) {
        0 => _ = driver.advance(step),
        1 if random.one_in(100) => _ = driver.advance(Duration::from_secs(random.below(8_000))),
        1 => clock.advance(step * 100),
        2 => clock.advance(step),
        3 => _ = driver.next_deadline(),
        4 => thread::sleep(Duration::from_micros(100)),
        _ => {
            let (now, next) = (driver.now(), driver.turn());
            assert!(next.is_none_or(|next| next > now) || driver.now() >= now);
        }
    }
}

#[test]
fn core_in_virtual_time() {
    lives("core_in_virtual_time", in_virtual_time);
}
