//! A scheduler's counters for the `metrics` facade (feature `metrics`).
//!
//! The scheduler does not know of it. A [`MetricsReporter`] takes a snapshot of the counters now and then, and passes
//! it on: the counters and the gauge as they are, and for each bin of the histogram the runs that are new since the
//! last snapshot.

use std::ops::ControlFlow;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, Unit};

use crate::platform::impls::impl_debug;
use crate::{Cancellable, ScheduleError, Scheduler, Stats, WeakScheduler};

/// Passes a scheduler's [`Stats`] on to the recorder of the `metrics` facade.
///
/// | metric | what it is |
/// | --- | --- |
/// | `tickwheel_scheduled_total` | tasks that were accepted; a series counts once |
/// | `tickwheel_fired_total` | runs that were started |
/// | `tickwheel_cancelled_total` | tasks that were ended by a cancel |
/// | `tickwheel_rejected_total` | refusals by executors |
/// | `tickwheel_panicked_total` | runs that panicked |
/// | `tickwheel_dropped_total` | tasks that were dropped without a run |
/// | `tickwheel_wakeups_total` | how often the tick thread woke |
/// | `tickwheel_pending` | a gauge: tasks that wait for their run |
/// | `tickwheel_lateness_seconds` | a histogram, exact within a quarter: how late runs were started |
///
/// The reporter does not keep the scheduler alive. Once the scheduler is gone, it reports no more.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{MetricsReporter, Scheduler};
///
/// let scheduler = Scheduler::new();
/// // Under the name `requests`, every ten seconds:
/// MetricsReporter::new(&scheduler, "requests").every(Duration::from_secs(10))?;
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[must_use = "it reports nothing until `report` or `every`"]
pub struct MetricsReporter {
    scheduler: WeakScheduler,
    counters: [Counter; 7],
    pending: Gauge,
    lateness: Histogram,
    last: Stats,
}

/// A counter: its name, its description, and its value in a snapshot.
type Counted = (&'static str, &'static str, fn(&Stats) -> u64);

const COUNTED: [Counted; 7] = [
    ("tickwheel_scheduled_total", "tasks that were accepted", Stats::scheduled),
    ("tickwheel_fired_total", "runs that were started", Stats::fired),
    ("tickwheel_cancelled_total", "tasks that were ended by a cancel", Stats::cancelled),
    ("tickwheel_rejected_total", "refusals by executors", Stats::rejected),
    ("tickwheel_panicked_total", "runs that panicked", Stats::panicked),
    ("tickwheel_dropped_total", "tasks that were dropped without a run", Stats::dropped),
    ("tickwheel_wakeups_total", "how often the tick thread woke", Stats::wakeups),
];

impl MetricsReporter {
    /// Makes a reporter whose metrics have the label `scheduler` with the value `name`. It uses the recorder that is
    /// installed at this time, so install yours before.
    pub fn new(scheduler: &Scheduler, name: impl Into<String>) -> MetricsReporter {
        let labels = vec![Label::new("scheduler", name.into())];
        let counters = COUNTED.map(|(name, what, _)| {
            metrics::describe_counter!(name, what);
            metrics::counter!(name, labels.clone())
        });
        metrics::describe_gauge!("tickwheel_pending", "tasks that wait");
        metrics::describe_histogram!(
            "tickwheel_lateness_seconds",
            Unit::Seconds,
            "how late runs were started"
        );
        MetricsReporter {
            scheduler: scheduler.downgrade(),
            counters,
            pending: metrics::gauge!("tickwheel_pending", labels.clone()),
            lateness: metrics::histogram!("tickwheel_lateness_seconds", labels),
            last: Stats::default(),
        }
    }

    /// Reports what the scheduler has done since the last report. Returns false if the scheduler is gone.
    pub fn report(&mut self) -> bool {
        let Some(scheduler) = self.scheduler.upgrade() else { return false };
        let stats = scheduler.stats();
        drop(scheduler);
        for (counter, (.., value)) in self.counters.iter().zip(COUNTED) {
            counter.absolute(value(&stats));
        }
        #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact beyond 2^53")]
        self.pending.set(stats.pending() as f64);
        self.report_lateness(&stats);
        self.last = stats;
        true
    }

    /// Both snapshots have their bins in the same order, and no bin ever loses a run.
    fn report_lateness(&self, stats: &Stats) {
        let mut before = self.last.lateness().bins().peekable();
        for (late, runs) in stats.lateness().bins() {
            let known = before.next_if(|(bin, _)| *bin == late).map_or(0, |(_, runs)| runs);
            let gained = usize::try_from(runs.saturating_sub(known)).unwrap_or(usize::MAX);
            if gained > 0 {
                self.lateness.record_many(late.as_secs_f64(), gained);
            }
        }
    }

    /// Reports at once and after each `period`, as a task of the scheduler itself, until the scheduler is closed or the
    /// returned handle is cancelled.
    ///
    /// # Errors
    ///
    /// The errors of [`Scheduler::schedule_repeatedly`].
    pub fn every(mut self, period: Duration) -> Result<Cancellable, ScheduleError> {
        let scheduler = self.scheduler.upgrade().ok_or(ScheduleError::Closed)?;
        scheduler.schedule_with_fixed_delay(Duration::ZERO, period, move || {
            if self.report() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    }
}

impl_debug!(MetricsReporter, self, scheduler: self.scheduler);
