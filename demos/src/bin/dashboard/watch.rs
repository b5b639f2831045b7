//! Reads the scheduler: its counters from outside, its wheel through an observer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tickwheel::{Observer, Scheduler, Stats, WheelView};

/// The number of columns that the buckets are gathered in.
pub(crate) const COLUMNS: usize = 64;
/// The number of past values that are kept.
const PAST: usize = 48;
/// The time between two looks at the wheel.
const LOOK: Duration = Duration::from_millis(20);

/// The wheel, as it was when it was last looked at.
#[derive(Clone, Default)]
pub(crate) struct Wheel {
    pub(crate) buckets: usize,
    pub(crate) hand: usize,
    /// The number of tasks in the buckets of each column.
    pub(crate) columns: Vec<usize>,
    pub(crate) far: usize,
    looked_at: Option<Instant>,
}

/// The observer. It is called on the tick thread, so it looks rarely and keeps little.
#[derive(Clone, Default)]
pub(crate) struct Watcher(Arc<Mutex<Wheel>>);

impl Watcher {
    fn wheel(&self) -> Wheel {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Observer for Watcher {
    fn turned(&self, view: WheelView<'_>) {
        let mut wheel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wheel.looked_at.is_some_and(|last| last.elapsed() < LOOK) {
            return;
        }
        let wide = view.buckets().div_ceil(COLUMNS);
        let column =
            |n: usize| (n * wide..(n + 1) * wide).map(|bucket| view.waiting_in(bucket)).sum();
        *wheel = Wheel {
            buckets: view.buckets(),
            hand: view.hand(),
            columns: (0..COLUMNS).map(column).collect(),
            far: view.waiting_far(),
            looked_at: Some(Instant::now()),
        };
    }
}

/// Rates per second.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rates {
    pub(crate) scheduled: f64,
    pub(crate) fired: f64,
    pub(crate) cancelled: f64,
    pub(crate) wakeups: f64,
}

pub(crate) struct Watch {
    scheduler: Scheduler,
    watcher: Watcher,
    pub(crate) wheel: Wheel,
    pub(crate) stats: Stats,
    pub(crate) rates: Rates,
    /// Runs per second, the latest last.
    pub(crate) fired: VecDeque<f64>,
}

impl Watch {
    pub(crate) fn new(scheduler: Scheduler, watcher: Watcher) -> Watch {
        let (wheel, stats, rates) = (Wheel::default(), Stats::default(), Rates::default());
        Watch { scheduler, watcher, wheel, stats, rates, fired: VecDeque::new() }
    }

    pub(crate) fn look(&mut self, since_last: Duration) {
        let (now, last) = (self.scheduler.stats(), &self.stats);
        let rate = |value: fn(&Stats) -> u64| {
            (value(&now) - value(last)) as f64 / since_last.as_secs_f64().max(1e-6)
        };
        let fresh = Rates {
            scheduled: rate(Stats::scheduled),
            fired: rate(Stats::fired),
            cancelled: rate(Stats::cancelled),
            wakeups: rate(Stats::wakeups),
        };
        self.fired.push_back(fresh.fired);
        if self.fired.len() > PAST {
            self.fired.pop_front();
        }
        // Smoothed, so that the eye can follow: a fifth of the new value, the rest of the old.
        let blend = |old: f64, new: f64| if old == 0.0 { new } else { old + (new - old) / 5.0 };
        self.rates = Rates {
            scheduled: blend(self.rates.scheduled, fresh.scheduled),
            fired: blend(self.rates.fired, fresh.fired),
            cancelled: blend(self.rates.cancelled, fresh.cancelled),
            wakeups: blend(self.rates.wakeups, fresh.wakeups),
        };
        self.stats = now;
        self.wheel = self.watcher.wheel();
    }
}
