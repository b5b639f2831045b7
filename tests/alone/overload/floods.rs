//! Producers at full speed, and their effect on others: tasks of 10 ms, a series, and the memory (S2, S9, S12, S19, S20).

#![allow(clippy::cast_precision_loss, reason = "figures are for people")]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::message_loop::{LoopThread, TaskRunner};
use tickwheel::pool::ScheduledThreadPool;
use tickwheel::rx::{ExecutorScheduler, Worker};
use tickwheel::{Cancellable, Inline, Repeat, Schedule, ScheduleExt, Scheduler, ThreadPool};

use super::service::{
    Complaints, Figures, Late, Lateness, judged, megabytes, millis, peak_resident, plain_sleeper,
    resident_after, within,
};
use crate::common::{env, in_full_form};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The length of a flood, unless `TICKWHEEL_SECONDS` sets another one.
fn length(place: &str) -> Duration {
    let every_day = if matches!(place, "inline" | "default") { SECOND } else { SECOND / 2 };
    env("TICKWHEEL_SECONDS").map_or_else(
        || crate::common::length(SECOND / 4, every_day, SECOND * 20),
        Duration::from_secs,
    )
}

/// The most time that the remaining tasks may take after the flood.
fn longest_tail() -> Duration {
    SECOND * if in_full_form() { 30 } else { 10 }
}

// ----- where the producers schedule ------------------------------------------------------------

/// The scheduler, or the layer, that a flood goes to.
enum Place {
    Core(Scheduler),
    Worker(Worker, Scheduler),
    Pool(ScheduledThreadPool),
    Loop { runner: TaskRunner, _thread: LoopThread },
}

impl Place {
    fn new(name: &str) -> Place {
        let inline = || Scheduler::builder().executor(Inline).build().expect("a tick thread");
        match name {
            "inline" => Place::Core(inline()),
            "default" => Place::Core(Scheduler::new()),
            "worker" => {
                let scheduler = inline();
                let worker = ExecutorScheduler::new(ThreadPool::new(2), &scheduler).worker();
                Place::Worker(worker, scheduler)
            }
            "pool" => Place::Pool(ScheduledThreadPool::new(2)),
            "loop" => {
                let thread = LoopThread::spawn("flooded").expect("a thread");
                Place::Loop { runner: thread.runner(), _thread: thread }
            }
            other => panic!("no such place: {other}"),
        }
    }

    fn schedule(&self, delay: Duration, task: impl FnOnce() + Send + 'static) -> Cancellable {
        match self {
            Place::Core(scheduler) => scheduler.schedule_once(delay, task).expect("open"),
            Place::Worker(worker, _) => worker.schedule_after(delay, task),
            Place::Pool(pool) => pool.schedule(delay, task).expect("open").handle(),
            Place::Loop { runner, .. } => runner.post_delayed(delay, task).expect("open"),
        }
    }

    fn series<R: Repeat + 'static>(
        &self,
        period: Duration,
        task: impl FnMut() -> R + Send + 'static,
    ) -> Cancellable {
        let kind = tickwheel::Period::fixed_rate(period);
        match self {
            Place::Core(scheduler) => {
                scheduler.schedule_periodic(period, kind, task).expect("open")
            }
            Place::Worker(worker, _) => worker.schedule_periodically(period, period, task),
            Place::Pool(pool) => {
                pool.schedule_at_fixed_rate(period, period, task).expect("open").handle()
            }
            Place::Loop { runner, .. } => {
                let runner: &dyn Schedule = runner;
                runner.schedule_periodic(period, kind, task).expect("open")
            }
        }
    }

    fn core(&self) -> &Scheduler {
        let Place::Core(scheduler) = self else { panic!("sleeps are of the core alone") };
        scheduler
    }

    /// Returns the number of pending tasks, if it is known.
    fn pending(&self) -> usize {
        match self {
            Place::Core(scheduler) => scheduler.pending(),
            Place::Worker(worker, scheduler) => worker.pending() + scheduler.pending(),
            Place::Pool(pool) => pool.pending(),
            Place::Loop { .. } => 0,
        }
    }
}

// ----- the producers ---------------------------------------------------------------------------

/// The counts of one producer.
#[derive(Clone, Copy, Default)]
struct Books {
    scheduled: usize,
    prevented: usize,
}

/// Schedules at full speed until it is told to stop.
struct Producer<'a> {
    place: &'a Place,
    stop: &'a AtomicBool,
    ran: &'static AtomicUsize,
    books: Books,
}

impl Producer<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn schedule(&mut self, delay: Duration) -> Cancellable {
        let ran = self.ran;
        self.books.scheduled += 1;
        self.place.schedule(delay, move || {
            ran.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn cancel(&mut self, handle: &Cancellable) {
        self.books.prevented += usize::from(handle.cancel());
    }

    fn produce(mut self, kind: &str) -> Books {
        match kind {
            "churn" => self.keep(1_000, |producer| producer.schedule(TIMEOUT)),
            "series" => self.keep(100, |producer| {
                producer.books.scheduled += 1;
                producer.place.series(MILLI, || ())
            }),
            "cancel" => {
                while self.goes_on() {
                    let handle = self.schedule(TIMEOUT);
                    self.cancel(&handle);
                }
            }
            "zero" => {
                while self.goes_on() {
                    drop(self.schedule(Duration::ZERO));
                }
            }
            "sleeps" => self.sleep(),
            other => panic!("no such flood: {other}"),
        }
        self.books
    }

    /// Keeps this many tasks pending, and cancels the oldest one for each new one.
    fn keep(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> Cancellable) {
        let mut ring = VecDeque::with_capacity(most + 1);
        while self.goes_on() {
            ring.push_back(make(self));
            if ring.len() > most {
                let oldest = ring.pop_front().expect("there are many");
                self.cancel(&oldest);
            }
        }
        ring.iter().for_each(|handle| self.cancel(handle));
    }

    /// Makes sleeps, polls them once and drops them.
    fn sleep(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while self.goes_on() {
            let sleep = pin!(self.place.core().sleep(TIMEOUT));
            self.books.scheduled += 1;
            self.books.prevented += usize::from(sleep.poll(&mut context).is_pending());
        }
    }
}

// ----- the others ------------------------------------------------------------------------------

/// Schedules a task of 10 ms every 100 ms until the flood is over. Returns their number.
fn victim(place: &Place, lateness: &Arc<Lateness>, most: usize, stop: &AtomicBool) -> usize {
    for id in 0..most {
        if stop.load(Ordering::Relaxed) {
            return id;
        }
        let due = Instant::now() + MILLI * 10;
        drop(place.schedule(MILLI * 10, lateness.task(id, due)));
        thread::sleep(MILLI * 100);
    }
    most
}

/// Notes the longest time between two runs of a series.
struct Gap {
    start: Instant,
    last: AtomicU64,
    longest: AtomicU64,
}

impl Gap {
    fn new() -> Arc<Gap> {
        let (last, longest) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Gap { start: Instant::now(), last, longest })
    }

    fn note(&self) {
        let now = self.start.elapsed().as_nanos() as u64;
        let gap = now.saturating_sub(self.last.swap(now, Ordering::Relaxed));
        self.longest.fetch_max(gap, Ordering::Relaxed);
    }

    fn longest(&self) -> Duration {
        self.note(); // the gap that has not ended
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

fn most_victims(length: Duration) -> usize {
    length.as_millis() as usize / 100
}

/// The figures of one flood.
struct Flooded {
    books: Books,
    victims: usize,
    sleeper: Late,
    gap: Duration,
    lasted: Duration,
}

fn flood(
    place: &Place,
    kind: &str,
    length: Duration,
    lateness: &Arc<Lateness>,
    ran: &'static [AtomicUsize],
) -> Flooded {
    let (stop, gap) = (AtomicBool::new(false), Gap::new());
    let beat = Arc::clone(&gap);
    let series = place.series(MILLI * 10, move || beat.note());
    thread::sleep(MILLI * 50);
    let start = Instant::now();
    let stop = &stop;
    let flooded = thread::scope(|scope| {
        let producers: Vec<_> = ran
            .iter()
            .map(|ran| Producer { place, stop, ran, books: Books::default() })
            .map(|producer| scope.spawn(move || producer.produce(kind)))
            .collect();
        let victim = scope.spawn(move || victim(place, lateness, most_victims(length), stop));
        let sleeper = scope.spawn(move || plain_sleeper(stop));
        within(length, || stop.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        let gap = gap.longest();
        let books = producers.into_iter().map(|producer| producer.join().expect("no panic"));
        let books = books.fold(Books::default(), |sum, one| Books {
            scheduled: sum.scheduled + one.scheduled,
            prevented: sum.prevented + one.prevented,
        });
        let lasted = start.elapsed();
        let (victims, sleeper) = (victim.join(), sleeper.join());
        let (victims, sleeper) = (victims.expect("no panic"), sleeper.expect("no panic"));
        Flooded { books, victims, sleeper, gap, lasted }
    });
    series.cancel();
    flooded
}

/// Returns the megabytes that the process still has after a while. The short form of the test waits only until they are few
/// enough.
fn settled(limit: Duration) -> f64 {
    if !in_full_form() {
        resident_after(limit, bounds(1.0).after);
    }
    resident_after(if in_full_form() { limit } else { MILLI * 200 }, 20.0)
}

pub(crate) fn child(kind: &str, place: &str, producers: usize) -> Figures {
    let (place, length) = (Place::new(place), length(place));
    let lateness = Lateness::new(most_victims(length));
    // They are never freed, so that a task needs no count of owners.
    let ran: &'static [AtomicUsize] =
        (0..producers).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>().leak();
    let flooded = flood(&place, kind, length, &lateness, ran);
    let Flooded { books, victims, sleeper, gap, lasted } = flooded;

    let over = Instant::now();
    let ran = || ran.iter().map(|ran| ran.load(Ordering::Relaxed)).sum::<usize>();
    let lost = || books.scheduled.abs_diff(books.prevented + ran());
    within(longest_tail(), || {
        lateness.missing(victims) == 0 && lost() == 0 && place.pending() == 0
    });
    let mut figures = Figures::default();
    figures.set("tail", millis(over.elapsed()));
    lateness.of_first(victims).tell("victim", &mut figures);
    sleeper.tell("sleeper", &mut figures);
    figures.set("victims", victims as f64);
    figures.set("gap", millis(gap));
    figures.set("lost", lost() as f64);
    figures.set("pending", place.pending() as f64);
    figures.set("ops", books.scheduled as f64 / lasted.as_secs_f64() / 1e6);
    figures.set("peak", peak_resident().map_or(0.0, megabytes));
    figures.set("after", settled(SECOND * 10));
    drop((place, lateness));
    figures.set("dropped", settled(SECOND * 10));
    figures
}

// ----- the judgement ---------------------------------------------------------------------------

/// The bounds for the others.
struct Bounds {
    p50: f64,
    worst: f64,
    gap: f64,
    after: f64,
}

/// Returns the bounds of a flood of so many million tasks a second.
fn bounds(ops: f64) -> Bounds {
    if in_full_form() {
        Bounds { p50: 100.0, worst: 500.0, gap: 1_000.0, after: 100.0 }
    } else {
        // Producers may be 262,144 tasks ahead. Without optimisation, on a slow machine, these take longer than the usual bounds.
        let ahead = (262.144 / ops).clamp(250.0, 4_000.0);
        let worst = ahead.max(1_500.0);
        Bounds { p50: ahead, worst, gap: worst, after: 150.0 }
    }
}

const PEAK_MEGABYTES: f64 = 300.0;

/// Runs floods with more and more producers, and checks each.
fn judge(kind: &str, place: &str, producers: &[usize]) {
    let mut complaints = Complaints::default();
    for producers in producers {
        let name = format!("flood {kind} {place} {producers}");
        let limit = length(place) + longest_tail() + SECOND * 60;
        complaints.append(judged(&name, limit, |figures, late, complaints| {
            judge_one(&name, figures, late, complaints);
        }));
    }
    complaints.assert_none();
}

fn judge_one(name: &str, figures: &Figures, late: &mut Complaints, complaints: &mut Complaints) {
    let get = |figure: &str| figures.get(figure);
    println!(
        "{name:<24} victim p50 {:7.1}, worst {:8.1} ms; series' gap {:7.1}; sleeper {:6.1}; RSS {:6.0} MB, then {:5.0}, dropped {:5.0}; {:6.2} M/s; tail {:6.0} ms; {} lost, {} late for ever",
        get("victim p50"),
        get("victim worst"),
        get("gap"),
        get("sleeper worst"),
        get("peak"),
        get("after"),
        get("dropped"),
        get("ops"),
        get("tail"),
        get("lost"),
        get("victim missing")
    );
    let (bounds, plain) = (bounds(get("ops")), get("sleeper worst"));
    let mut in_time = |bound: f64, figure: &str| {
        late.at_most(bound, get(figure), &format!("{name}, {figure}"));
    };
    in_time(bounds.p50 + get("sleeper p99"), "victim p50");
    in_time(bounds.worst + plain, "victim worst");
    in_time(bounds.gap + plain, "gap");
    let mut at_most = |bound: f64, figure: &str| {
        complaints.at_most(bound, get(figure), &format!("{name}, {figure}"));
    };
    at_most(PEAK_MEGABYTES, "peak");
    at_most(bounds.after, "after");
    at_most(bounds.after, "dropped");
    for nothing in ["victim missing", "victim wrong", "lost", "pending"] {
        at_most(0.0, nothing);
    }
}

/// Returns the numbers of producers: all of them in the full form, and otherwise two in one case and eight in the other.
fn producers(every_day: usize) -> Vec<usize> {
    if in_full_form() { vec![1, 2, 8, 64] } else { vec![every_day] }
}

#[test]
fn s02_s09_s19_a_flood_of_churn_on_the_tick_thread() {
    judge("churn", "inline", &producers(2));
}

#[test]
fn s02_s09_s19_a_flood_of_churn_on_the_default_executor() {
    judge("churn", "default", &producers(8));
}

#[test]
fn s02_s09_s19_a_flood_of_cancels_on_the_tick_thread() {
    judge("cancel", "inline", &producers(8));
}

#[test]
fn s02_s09_s19_a_flood_of_cancels_on_the_default_executor() {
    judge("cancel", "default", &producers(2));
}

#[test]
fn s02_s09_s19_a_flood_of_sleeps_on_the_tick_thread() {
    judge("sleeps", "inline", &producers(2));
}

#[test]
fn s02_s09_s19_a_flood_of_sleeps_on_the_default_executor() {
    judge("sleeps", "default", &producers(8));
}

#[test]
fn s02_s05_s19_a_flood_of_zero_delays_on_the_tick_thread() {
    judge("zero", "inline", &producers(8));
}

#[test]
fn s02_s05_s19_a_flood_of_zero_delays_on_the_default_executor() {
    judge("zero", "default", &producers(2));
}

#[test]
fn s02_s12_s19_a_flood_of_series_on_the_tick_thread() {
    judge("series", "inline", &producers(2));
}

#[test]
fn s02_s12_s19_a_flood_of_series_on_the_default_executor() {
    judge("series", "default", &producers(8));
}

/// Floods of the layers, with fewer producers, because the layers stand on the core or on a heap of their own.
fn judge_layer(place: &str) {
    let few = |every_day| if in_full_form() { vec![2, 8] } else { vec![every_day] };
    judge("churn", place, &few(2));
    judge("cancel", place, &few(8));
}

#[test]
fn s02_s09_s19_floods_of_an_rx_worker() {
    judge_layer("worker");
}

#[test]
fn s02_s09_s19_floods_of_a_scheduled_pool() {
    judge_layer("pool");
}

#[test]
fn s02_s09_s19_floods_of_a_message_loop() {
    judge_layer("loop");
}
