//! Measures the effect of a load on others: lateness, gaps, memory and processor time. Each scenario runs in a process of its
//! own, so that its figures are its own, and a crash or a hang is one more figure.

#![allow(clippy::cast_precision_loss, reason = "figures are for people")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::alone;
use crate::common::{in_full_form, proc, process_of};

// ----- what the system tells -----------------------------------------------------------------

/// Returns the bytes of memory that the process has, if the system tells.
pub(crate) fn resident() -> Option<usize> {
    let text = fs::read_to_string(proc("self/statm")?).ok()?;
    Some(text.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}

/// Returns the most bytes that the process ever had.
pub(crate) fn peak_resident() -> Option<usize> {
    let text = fs::read_to_string(proc("self/status")?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? * 1024)
}

/// Returns the processor time of the thread of this name, or of all live threads if the name is empty.
pub(crate) fn cpu_of(thread_name: &str) -> Option<Duration> {
    let mut sum = None;
    for thread in fs::read_dir(proc("self/task")?).ok()?.flatten() {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).ok();
        if !thread_name.is_empty() && read("comm").is_none_or(|name| name.trim() != thread_name) {
            continue;
        }
        let nanos = read("schedstat").and_then(|text| text.split(' ').next()?.parse().ok());
        sum = Some(sum.unwrap_or_default() + Duration::from_nanos(nanos?));
    }
    sum
}

pub(crate) fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Waits until something is true, but not for ever. Returns true if it came true.
pub(crate) fn within(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the process has less memory than that, but no longer than the given time. Returns the memory in megabytes.
pub(crate) fn resident_after(limit: Duration, enough: f64) -> f64 {
    let now = || resident().map_or(0.0, megabytes);
    within(limit, || now() < enough);
    now()
}

// ----- lateness --------------------------------------------------------------------------------

const NOT_YET: u64 = u64::MAX;

/// The lateness of each of a number of tasks. Each has a cell of its own, so that a note costs little and allocates nothing.
/// Tasks that run twice or early are counted.
pub(crate) struct Lateness {
    nanos: Vec<AtomicU64>,
    wrong: AtomicUsize,
}

impl Lateness {
    pub(crate) fn new(tasks: usize) -> Arc<Lateness> {
        let nanos = (0..tasks).map(|_| AtomicU64::new(NOT_YET)).collect();
        Arc::new(Lateness { nanos, wrong: AtomicUsize::new(0) })
    }

    pub(crate) fn note(&self, task: usize, due: Instant) {
        let now = Instant::now();
        let late = now.saturating_duration_since(due).as_nanos() as u64;
        let before = self.nanos[task].swap(late, Ordering::Relaxed);
        self.wrong.fetch_add(usize::from(now < due || before != NOT_YET), Ordering::Relaxed);
    }

    /// A task that notes its own lateness.
    pub(crate) fn task(
        self: &Arc<Self>,
        task: usize,
        due: Instant,
    ) -> impl FnOnce() + Send + 'static {
        let lateness = Arc::clone(self);
        move || lateness.note(task, due)
    }

    pub(crate) fn missing(&self, tasks: usize) -> usize {
        self.nanos[..tasks].iter().filter(|late| late.load(Ordering::Relaxed) == NOT_YET).count()
    }

    /// Returns the lateness of the first tasks.
    pub(crate) fn of_first(&self, tasks: usize) -> Late {
        let all = self.nanos[..tasks].iter().map(|late| late.load(Ordering::Relaxed));
        let ran = all.filter(|late| *late != NOT_YET).map(Duration::from_nanos);
        let late = Late::of(ran.collect());
        Late { missing: self.missing(tasks), wrong: self.wrong.load(Ordering::Relaxed), ..late }
    }
}

/// The quantiles of many latenesses, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Late {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) worst: f64,
    /// Tasks that have not run.
    pub(crate) missing: usize,
    /// Runs that were early, or were the second one of a task.
    pub(crate) wrong: usize,
}

impl Late {
    pub(crate) fn of(mut all: Vec<Duration>) -> Late {
        all.sort_unstable();
        let at = |percent: usize| {
            all.get(all.len().saturating_sub(1) * percent / 100).copied().map_or(0.0, millis)
        };
        Late { p50: at(50), p99: at(99), worst: at(100), missing: 0, wrong: 0 }
    }

    /// Writes these as figures whose names begin with this prefix.
    pub(crate) fn tell(&self, name: &str, figures: &mut Figures) {
        figures.set(&format!("{name} p50"), self.p50);
        figures.set(&format!("{name} p99"), self.p99);
        figures.set(&format!("{name} worst"), self.worst);
        figures.set(&format!("{name} missing"), self.missing as f64);
        figures.set(&format!("{name} wrong"), self.wrong as f64);
    }
}

/// The most memory that a scenario may take before its guard ends it, so that code without a bound does not use up the memory
/// of the machine.
const GUARD_BYTES: u64 = 6_000_000_000;

/// Sleeps ten milliseconds again and again, and notes how late the system itself wakes a thread. Sets `stop` if
/// the process has grown beyond all bounds.
pub(crate) fn plain_sleeper(stop: &AtomicBool) -> Late {
    const NAP: Duration = Duration::from_millis(10);
    let mut late = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        thread::sleep(NAP);
        late.push(start.elapsed().saturating_sub(NAP));
        if resident().is_some_and(|bytes| bytes as u64 > GUARD_BYTES) {
            stop.store(true, Ordering::Relaxed);
        }
    }
    Late::of(late)
}

// ----- scenarios in processes of their own -------------------------------------------------------

/// The figures of a scenario, by name.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<String, f64>);

impl Figures {
    pub(crate) fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), value);
    }

    /// Returns a figure. A missing figure is worse than every bound.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::INFINITY)
    }

    /// Prints them for the parent of this process.
    pub(crate) fn print(&self) {
        let mut text = String::from("\n");
        for (name, value) in &self.0 {
            let _ = writeln!(text, "={name}={value}");
        }
        println!("{text}");
    }
}

/// The variable that tells a child which scenario to run.
const SCENARIO: &str = "TICKWHEEL_SCENARIO";

/// Returns the scenario that this process was started for.
pub(crate) fn own_scenario() -> Option<String> {
    env::var(SCENARIO).ok()
}

/// Reads all that a child writes, on a thread of its own.
fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    let mut pipe = pipe.expect("it is piped");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a child process, and kills it if it takes too long.
fn has_succeeded(child: &mut Child, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match child.try_wait().expect("it is ours") {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{status}")),
            None if start.elapsed() > limit => {
                let _ = (child.kill(), child.wait());
                return Err(format!("no end in {limit:?}"));
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Runs a scenario in a process of its own, one at a time. Returns its figures, or why there are none.
pub(crate) fn scenario(name: &str, limit: Duration) -> Result<Figures, String> {
    let _alone = alone();
    let mut child = process_of(super::child_scenario)
        .env(SCENARIO, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (output, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let told = has_succeeded(&mut child, limit);
    let (output, errors) = (output.join().expect("no panic"), errors.join().expect("no panic"));
    told.map_err(|why| format!("{why}\n{output}{errors}"))?;
    let figures = output.lines().filter_map(|line| line.strip_prefix('=')?.split_once('='));
    let figures = figures.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    Ok(Figures(figures.collect()))
}

/// The complaints of a test. The test fails at the end, when all of its scenarios have printed their figures.
#[derive(Default)]
pub(crate) struct Complaints(Vec<String>);

impl Complaints {
    /// Complains if a figure is above its bound.
    pub(crate) fn at_most(&mut self, bound: f64, value: f64, what: &str) {
        if value.is_nan() || value > bound {
            self.0.push(format!("{what}: {value:.1} is more than {bound:.1}"));
        }
    }

    pub(crate) fn add(&mut self, complaint: String) {
        self.0.push(complaint);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn append(&mut self, mut others: Complaints) {
        self.0.append(&mut others.0);
    }

    pub(crate) fn assert_none(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
    }
}

/// Runs a scenario, and judges its figures: first those of time, and then all others. Returns the complaints.
///
/// A short scenario whose times are too high is run again, up to three times in all. A processor that was asleep, busy with other work or
/// taken away for a second costs the median 100 ms of such a scenario and more, and a fault is there in each one. What is lost or kept
/// is forgiven in none.
pub(crate) fn judged(
    name: &str,
    limit: Duration,
    judge: impl Fn(&Figures, &mut Complaints, &mut Complaints),
) -> Complaints {
    let mut complaints = Complaints::default();
    for is_last in [in_full_form(), in_full_form(), true] {
        let mut late = Complaints::default();
        match scenario(name, limit) {
            Ok(figures) => judge(&figures, &mut late, &mut complaints),
            Err(why) => complaints.add(format!("{name}: {why}")),
        }
        if is_last || late.is_empty() || !complaints.is_empty() {
            complaints.append(late);
            break;
        }
    }
    complaints
}
