//! Several users share one wheel, and the executor of one of them refuses its tasks. The tests look at the lateness of the
//! others and at the fate of the refused tasks (S18, S20, S30).

#![allow(clippy::cast_precision_loss, reason = "figures are for people")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{DueBatch, DueTask, Executor, Inline, Rejected, Scheduler, future};

use super::service::{
    Complaints, Figures, Late, Lateness, cpu_of, judged, millis, plain_sleeper, scenario, within,
};
use crate::common::{Random, Wall, count, in_full_form, length};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Tasks of the healthy tenant.
const HEALTHY: usize = 1_000;

fn inline() -> Scheduler {
    Scheduler::builder().executor(Inline).build().expect("a tick thread")
}

/// Runs the healthy tenant's tasks, spread over a second or so. Returns how late they were.
fn healthy(scheduler: &Scheduler) -> Late {
    let over = length(MILLI * 300, SECOND, SECOND * 3);
    let (lateness, start) = (Lateness::new(HEALTHY), Instant::now() + MILLI * 20);
    for id in 0..HEALTHY {
        let due = start + over * id as u32 / HEALTHY as u32;
        scheduler.schedule_at(due, lateness.task(id, due)).expect("open");
    }
    within(over + SECOND * 10, || lateness.missing(HEALTHY) == 0);
    lateness.of_first(HEALTHY)
}

/// Figures that are measured beside a thread that only sleeps.
fn beside_a_sleeper(measured: impl FnOnce() -> Late) -> (Late, Late) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| plain_sleeper(&stop));
        let measured = measured();
        stop.store(true, Ordering::Relaxed);
        (measured, sleeper.join().expect("no panic"))
    })
}

/// Returns the wake-ups of the tick thread and the processor time for a second in which the program does nothing.
fn cost_of_a_second(scheduler: &Scheduler, figures: &mut Figures) {
    let watched = length(MILLI * 300, SECOND, SECOND * 2);
    let (wakeups, cpu, start) = (scheduler.stats().wakeups(), cpu_of(""), Instant::now());
    thread::sleep(watched);
    let over = start.elapsed().as_secs_f64();
    let used =
        cpu_of("").zip(cpu).map_or(0.0, |(after, before)| millis(after.saturating_sub(before)));
    figures.set("cpu", used / over);
    figures.set("wakeups", (scheduler.stats().wakeups() - wakeups) as f64 / over);
}

/// The most that a second beside a sick tenant may cost: a twentieth of a core, and some tens of wake-ups.
fn judge_cost(name: &str, figures: &Figures, complaints: &mut Complaints) {
    let cpu = if in_full_form() { 50.0 } else { 100.0 };
    complaints.at_most(cpu, figures.get("cpu"), &format!("{name}, ms of CPU in a second"));
    complaints.at_most(60.0, figures.get("wakeups"), &format!("{name}, wake-ups in a second"));
}

/// The milliseconds by which the healthy tasks may be later than alone. The lateness of the plain sleeper is subtracted,
/// because in a short run one hiccup of the machine is more than a hundredth of it.
fn bounds() -> (f64, &'static str) {
    if in_full_form() { (1.0, "sleeper p99") } else { (10.0, "sleeper worst") }
}

/// Tasks of one tenant, and the order in which they ran.
struct Tenant {
    lateness: Arc<Lateness>,
    order: Arc<Mutex<Vec<usize>>>,
    tasks: usize,
}

impl Tenant {
    fn new(tasks: usize) -> Tenant {
        let order = Arc::new(Mutex::new(Vec::with_capacity(tasks)));
        Tenant { lateness: Lateness::new(tasks), order, tasks }
    }

    /// Schedules all of them between two instants, not in the order of their deadlines. Returns true if that was
    /// done before the first was due: only then their order is promised.
    fn schedule(&self, scheduler: &Scheduler, from: Instant, over: Duration) -> bool {
        let mut ids: Vec<usize> = (0..self.tasks).collect();
        let mut random = Random(30);
        (1..self.tasks).rev().for_each(|at| ids.swap(at, random.below(at as u64 + 1) as usize));
        for id in ids {
            let due = from + over * id as u32 / self.tasks as u32;
            let (lateness, order) = (Arc::clone(&self.lateness), Arc::clone(&self.order));
            let task = move || {
                lateness.note(id, due);
                order.lock().expect("no panic").push(id);
            };
            scheduler.schedule_at(due, task).expect("open");
        }
        Instant::now() < from
    }

    fn have_run(&self, limit: Duration) -> bool {
        within(limit, || self.order.lock().expect("no panic").len() >= self.tasks)
    }

    /// Returns the number of tasks that ran after a task with a later deadline.
    fn overtaken(&self) -> usize {
        let order = self.order.lock().expect("no panic");
        order.windows(2).filter(|pair| pair[0] > pair[1]).count()
    }
}

// ----- refuses everything, and then nothing ------------------------------------------------------

struct Sick(AtomicBool);

impl Executor for Sick {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Rejected::new(task));
        }
        task.run();
        Ok(())
    }
}

/// Sleeps for 10 ms again and again. Sleeps that do not end in time are missing in the result.
fn naps(scheduler: &Scheduler) -> Late {
    const NAPS: usize = 20;
    let (woken, wakes) = mpsc::channel();
    let scheduler = scheduler.clone();
    thread::spawn(move || {
        for _ in 0..NAPS {
            let start = Instant::now();
            future::block_on(scheduler.sleep(MILLI * 10));
            if woken.send(start.elapsed().saturating_sub(MILLI * 10)).is_err() {
                return;
            }
        }
    });
    let limit = Instant::now() + SECOND * 5;
    let left = || limit.saturating_duration_since(Instant::now());
    let naps: Vec<_> = (0..NAPS).map_while(|_| wakes.recv_timeout(left()).ok()).collect();
    Late { missing: NAPS - naps.len(), ..Late::of(naps) }
}

pub(crate) fn child_sick(tasks: usize) -> Figures {
    let (scheduler, mut figures) = (inline(), Figures::default());
    beside_a_sleeper(|| healthy(&scheduler)).0.tell("alone", &mut figures);
    let (sick, tenant) = (Arc::new(Sick(AtomicBool::new(true))), Tenant::new(tasks));
    let own = scheduler.with_executor(Arc::clone(&sick));
    let from = Instant::now() + MILLI * 300;
    let in_order = tenant.schedule(&own, from, MILLI * 300);
    thread::sleep((from + MILLI * 200).saturating_duration_since(Instant::now()));
    // The last tasks of the sick tenant come due among the first healthy ones.
    let (beside, sleeper) = beside_a_sleeper(|| healthy(&scheduler));
    beside.tell("beside", &mut figures);
    sleeper.tell("sleeper", &mut figures);
    naps(&scheduler).tell("nap", &mut figures);
    cost_of_a_second(&scheduler, &mut figures);
    figures.set("rejected", scheduler.stats().rejected() as f64);

    let well = Instant::now();
    sick.0.store(false, Ordering::Relaxed);
    tenant.have_run(SECOND * 20);
    figures.set("recovery", millis(well.elapsed()));
    figures.set("overtaken", if in_order { tenant.overtaken() as f64 } else { 0.0 });
    tenant.lateness.of_first(tasks).tell("sick", &mut figures);
    within(SECOND * 20, || scheduler.pending() == 0);
    figures.set("pending", scheduler.pending() as f64);
    figures
}

#[test]
fn s18_s30_a_tenant_whose_executor_refuses_costs_the_others_nothing() {
    let mut complaints = Complaints::default();
    let every_day: &[usize] = &[20_000];
    for tasks in if in_full_form() { &[20_000, 100_000] } else { every_day } {
        let name = format!("sick {tasks}");
        complaints.append(judged(&name, SECOND * 120, |figures, late, complaints| {
            judge_sick(&name, figures, late, complaints);
        }));
    }
    complaints.assert_none();
}

fn judge_sick(name: &str, figures: &Figures, late: &mut Complaints, complaints: &mut Complaints) {
    let get = |figure: &str| figures.get(figure);
    println!(
        "{name:<12} healthy alone p50 {:6.2}, p99 {:6.2} ms late; beside it {:6.2}, {:6.2}; sleeper {:6.2}; a nap {:6.2}; {:5.0} ms CPU/s; {:5.0} wake-ups/s; recovery {:6.0} ms, {} overtaken, {} lost",
        get("alone p50"),
        get("alone p99"),
        get("beside p50"),
        get("beside p99"),
        get("sleeper worst"),
        get("nap p50"),
        get("cpu"),
        get("wakeups"),
        get("recovery"),
        get("overtaken"),
        get("sick missing")
    );
    let (slack, plain) = bounds();
    let mut in_time = |bound: f64, figure: &str| {
        late.at_most(bound, get(figure), &format!("{name}, {figure}"));
    };
    in_time(get("alone p50") + slack, "beside p50");
    in_time(get("alone p99") + slack * 2.0 + get(plain), "beside p99");
    in_time(2.0 + slack + get("sleeper p50"), "nap p50");
    in_time(1_000.0 + get("sleeper worst"), "recovery");
    let mut at_most = |bound: f64, figure: &str| {
        complaints.at_most(bound, get(figure), &format!("{name}, {figure}"));
    };
    at_most(1.0, "overtaken"); // one batch may be under way at the change
    for nothing in
        ["sick missing", "sick wrong", "pending", "beside missing", "beside wrong", "nap missing"]
    {
        at_most(0.0, nothing);
    }
    judge_cost(name, figures, complaints);
}

// ----- a queue with a thousand places -------------------------------------------------------------

const PLACES: usize = 1_000;

#[derive(Default)]
struct Bounded(Mutex<VecDeque<DueTask>>);

impl Executor for Bounded {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let mut queue = self.0.lock().expect("no panic");
        if queue.len() == PLACES {
            return Err(Rejected::new(task));
        }
        queue.push_back(task);
        Ok(())
    }

    /// Leaves the rest of the batch when it is full, so that no task overtakes a refused one.
    fn execute_batch(&self, batch: &mut DueBatch) {
        while let Some(task) = batch.next() {
            if let Err(refused) = self.execute(task) {
                batch.reject(refused);
                return;
            }
        }
    }
}

/// Takes one task a millisecond. Returns how often there was none.
fn serve(queue: &Bounded, tasks: usize) -> usize {
    let (mut served, mut dry, start) = (0, 0, Instant::now());
    while served < tasks && start.elapsed() < SECOND * 60 {
        thread::sleep(MILLI);
        let task = queue.0.lock().expect("no panic").pop_front();
        dry += usize::from(task.is_none());
        served += usize::from(task.is_some());
        task.into_iter().for_each(DueTask::run);
    }
    dry
}

pub(crate) fn child_bounded() -> Figures {
    let tasks = count(2_000, 6_000).max(PLACES + PLACES / 2); // they must fill it
    let (scheduler, mut figures) = (inline(), Figures::default());
    beside_a_sleeper(|| healthy(&scheduler)).0.tell("alone", &mut figures);
    let (queue, tenant) = (Arc::new(Bounded::default()), Tenant::new(tasks));
    let own = scheduler.with_executor(Arc::clone(&queue));
    let from = Instant::now() + MILLI * 100;
    let in_order = tenant.schedule(&own, from, MILLI);
    thread::sleep(from.saturating_duration_since(Instant::now()));
    let start = Instant::now();
    let server = thread::spawn(move || serve(&queue, tasks));
    let (beside, sleeper) = beside_a_sleeper(|| healthy(&scheduler));
    tenant.have_run(SECOND * 60);
    figures.set("served in", millis(start.elapsed()));
    figures.set("dry", server.join().expect("no panic") as f64);
    figures.set("tasks", tasks as f64);
    figures.set("overtaken", if in_order { tenant.overtaken() as f64 } else { 0.0 });
    beside.tell("beside", &mut figures);
    sleeper.tell("sleeper", &mut figures);
    tenant.lateness.of_first(tasks).tell("sick", &mut figures);
    figures
}

#[test]
fn s18_s30_a_bounded_queue_that_is_full_delays_nobody_and_never_runs_dry() {
    judged("bounded", SECOND * 120, judge_bounded).assert_none();
}

fn judge_bounded(figures: &Figures, late: &mut Complaints, complaints: &mut Complaints) {
    let get = |figure: &str| figures.get(figure);
    println!(
        "a queue of {PLACES}, {} tasks: healthy alone p50 {:.2}, p99 {:.2} ms late; beside it {:.2}, {:.2}; sleeper {:.2}; served in {:.0} ms, dry {} times, {} overtaken, {} lost",
        get("tasks"),
        get("alone p50"),
        get("alone p99"),
        get("beside p50"),
        get("beside p99"),
        get("sleeper worst"),
        get("served in"),
        get("dry"),
        get("overtaken"),
        get("sick missing")
    );
    let (slack, plain) = bounds();
    let mut in_time = |bound: f64, figure: &str| late.at_most(bound, get(figure), figure);
    in_time(get("alone p50") + slack, "beside p50");
    in_time(get("alone p99") + slack * 2.0 + get(plain), "beside p99");
    in_time(get("tasks") * (1.5 + get("sleeper p50")) + 2_000.0, "served in");
    in_time(get("tasks") / 20.0, "dry"); // it is empty while the tick thread is held up
    for nothing in ["overtaken", "sick missing", "sick wrong", "beside missing", "beside wrong"] {
        complaints.at_most(0.0, get(nothing), nothing);
    }
}

// ----- one task that nobody takes -----------------------------------------------------------------

pub(crate) fn child_refused() -> Figures {
    let (scheduler, mut figures) = (inline(), Figures::default());
    let own = scheduler.with_executor(Wall);
    let refused = own.schedule_once(MILLI, || ()).expect("open");
    thread::sleep(length(MILLI * 200, MILLI * 400, MILLI * 400));
    cost_of_a_second(&scheduler, &mut figures);
    let before = scheduler.stats().rejected();
    figures.set("asked", before as f64);
    figures.set(
        "still asked",
        f64::from(u8::from(within(SECOND * 20, || scheduler.stats().rejected() > before))),
    );
    figures.set("cancelled", f64::from(u8::from(refused.cancel())));
    thread::sleep(length(MILLI * 150, MILLI * 300, MILLI * 300));
    let before = scheduler.stats().wakeups();
    thread::sleep(length(MILLI * 200, MILLI * 500, MILLI * 500));
    figures.set("wakeups after the cancel", (scheduler.stats().wakeups() - before) as f64);
    figures
}

#[test]
fn s07_s30_one_task_that_is_refused_for_good_costs_few_wake_ups() {
    let figures = scenario("refused", SECOND * 60).expect("figures");
    println!(
        "one refused task: {:.0} wake-ups/s, {:.1} ms CPU/s; {} wake-ups in half a second after its cancel",
        figures.get("wakeups"),
        figures.get("cpu"),
        figures.get("wakeups after the cancel")
    );
    let mut complaints = Complaints::default();
    judge_cost("one refused task", &figures, &mut complaints);
    complaints.at_most(1.0, figures.get("wakeups after the cancel"), "wake-ups after the cancel");
    assert!(figures.get("cancelled") > 0.0, "it is still pending");
    assert!(figures.get("still asked") > 0.0, "its executor is asked again, if seldom");
    complaints.assert_none();
}

// ----- a task that comes back with the batch of another ----------------------------------------------

/// The task that ran, and the executor that ran it.
type Runs = Arc<Mutex<Vec<(usize, &'static str)>>>;

/// Keeps this many tasks, and gives back the tasks of other executors with its next batch.
struct Keeper {
    name: &'static str,
    keeps: AtomicUsize,
    gives: AtomicBool,
    kept: Arc<Mutex<Vec<DueTask>>>,
    inside: Arc<Mutex<&'static str>>,
}

impl Executor for Keeper {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        *self.inside.lock().expect("no panic") = self.name;
        task.run();
        *self.inside.lock().expect("no panic") = "nowhere";
        Ok(())
    }

    fn execute_batch(&self, batch: &mut DueBatch) {
        if self.gives.load(Ordering::Relaxed) {
            let kept = std::mem::take(&mut *self.kept.lock().expect("no panic"));
            kept.into_iter().for_each(|task| batch.reject(Rejected::new(task)));
        }
        while let Some(task) = batch.next() {
            if self.keeps.load(Ordering::Relaxed) > 0 {
                self.keeps.fetch_sub(1, Ordering::Relaxed);
                self.kept.lock().expect("no panic").push(task);
            } else if let Err(refused) = self.execute(task) {
                batch.reject(refused);
            }
        }
    }
}

fn kept_and_given_back(own_one_keeps: bool, tasks: usize) {
    let (kept, inside) = (Arc::default(), Arc::new(Mutex::new("nowhere")));
    let keeper = |name, keeps: usize| {
        let (kept, inside) = (Arc::clone(&kept), Arc::clone(&inside));
        let (keeps, gives) = (AtomicUsize::new(keeps), AtomicBool::new(keeps == 0));
        Arc::new(Keeper { name, keeps, gives, kept, inside })
    };
    let shared = keeper("shared", if own_one_keeps { 0 } else { tasks });
    let own = keeper("own", if own_one_keeps { tasks } else { 0 });
    let panics = Arc::new(AtomicUsize::new(0));
    let hook = Arc::clone(&panics);
    let (scheduler, driver) = Scheduler::builder()
        .executor(shared)
        .on_panic(move |_| _ = hook.fetch_add(1, Ordering::Relaxed))
        .build_driven()
        .expect("the defaults are good");
    let owner = scheduler.with_executor(own);
    let (keeps, gives) = if own_one_keeps { (&owner, &scheduler) } else { (&scheduler, &owner) };
    let names = if own_one_keeps { ["own", "shared"] } else { ["shared", "own"] };
    let runs = Runs::default();
    let task = |id: usize| {
        let (runs, inside) = (Arc::clone(&runs), Arc::clone(&inside));
        move || runs.lock().expect("no panic").push((id, *inside.lock().expect("no panic")))
    };
    for id in 0..tasks {
        keeps.schedule_once(SECOND, task(id)).expect("open");
    }
    driver.advance(SECOND);
    assert_eq!(kept.lock().expect("no panic").len(), tasks, "all are kept");
    assert_eq!((scheduler.pending(), runs.lock().expect("no panic").len()), (tasks, 0));
    gives.schedule_once(SECOND, task(tasks)).expect("open");
    driver.advance(SECOND);
    assert!(kept.lock().expect("no panic").is_empty(), "all are given back");
    driver.advance(SECOND);

    let mut ran = std::mem::take(&mut *runs.lock().expect("no panic"));
    ran.sort_unstable();
    let expected: Vec<_> = (0..=tasks).map(|id| (id, names[usize::from(id == tasks)])).collect();
    assert_eq!(ran, expected, "each task runs once, on the executor that it was scheduled with");
    let stats = scheduler.stats();
    assert_eq!((stats.fired(), stats.dropped(), stats.pending()), (tasks as u64 + 1, 0, 0));
    assert_eq!(panics.load(Ordering::Relaxed), 0);
    assert!(driver.close().is_empty());
    assert_eq!(Arc::strong_count(&runs), 1, "no closure is left behind");
}

#[test]
fn s18_s20_a_shared_task_that_comes_back_with_an_own_batch_runs_on_its_executor_once() {
    [1, 3, 700].into_iter().for_each(|tasks| kept_and_given_back(false, tasks));
}

#[test]
fn s18_s20_an_own_task_that_comes_back_with_a_shared_batch_runs_on_its_executor_once() {
    [1, 3, 700].into_iter().for_each(|tasks| kept_and_given_back(true, tasks));
}
