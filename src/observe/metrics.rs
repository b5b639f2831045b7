//! A scheduler's counters for the `metrics` facade: feature `metrics`.
//!
//! Nothing in the data path knows of it. A [`MetricsReporter`] takes a snapshot now and then, and passes on what
//! has changed since the last: counters as they stand, the gauge, and of the histogram what each bin has
//! gained.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, Unit};

use crate::{Cancellable, ScheduleError, Scheduler, Stats, WeakScheduler};

/// Passes a scheduler's [`Stats`] on to the recorder of the `metrics` facade.
///
/// | metric | what it is |
/// | --- | --- |
/// | `tickwheel_scheduled_total` | tasks that were accepted; a series counts once |
/// | `tickwheel_fired_total` | runs that were started |
/// | `tickwheel_cancelled_total` | tasks that a cancel has ended |
/// | `tickwheel_rejected_total` | refusals by executors |
/// | `tickwheel_panicked_total` | runs that panicked |
/// | `tickwheel_dropped_total` | tasks that were dropped without a run |
/// | `tickwheel_wakeups_total` | how often the tick thread woke |
/// | `tickwheel_pending` | tasks that wait: a gauge |
/// | `tickwheel_lateness_seconds` | how late runs were started: a histogram, exact within a quarter |
///
/// It keeps nothing alive: once the scheduler is gone it reports no more.
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

/// The counters: what they are called, what they say, and where it stands.
type Counted = (&'static str, &'static str, fn(&Stats) -> u64);

const COUNTED: [Counted; 7] = [
    ("tickwheel_scheduled_total", "tasks that were accepted", Stats::scheduled),
    ("tickwheel_fired_total", "runs that were started", Stats::fired),
    ("tickwheel_cancelled_total", "tasks that a cancel has ended", Stats::cancelled),
    ("tickwheel_rejected_total", "refusals by executors", Stats::rejected),
    ("tickwheel_panicked_total", "runs that panicked", Stats::panicked),
    ("tickwheel_dropped_total", "tasks that were dropped without a run", Stats::dropped),
    ("tickwheel_wakeups_total", "how often the tick thread woke", Stats::wakeups),
];

impl MetricsReporter {
    /// A reporter whose metrics have the label `scheduler` of this value. It takes the recorder that is
    /// installed now, so install yours before.
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

    /// Reports what the scheduler has done since the last report. False when it is gone.
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

    /// Of both snapshots the bins come in the same order, and none ever loses anything.
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

    /// Reports now and then every period, as a task of the scheduler itself, until that is closed or the handle
    /// is cancelled.
    ///
    /// # Errors
    ///
    /// As [`Scheduler::schedule_repeatedly`].
    pub fn every(mut self, period: Duration) -> Result<Cancellable, ScheduleError> {
        let scheduler = self.scheduler.upgrade().ok_or(ScheduleError::Closed)?;
        scheduler.schedule_with_fixed_delay(Duration::ZERO, period, move || {
            if self.report() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    }
}

impl fmt::Debug for MetricsReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsReporter")
            .field("scheduler", &self.scheduler)
            .finish_non_exhaustive()
    }
}
