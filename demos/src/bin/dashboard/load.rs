//! The load of the scheduler: timeouts, most of which are cancelled. Keys change it.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use ratatui::crossterm::event::KeyCode;
use tickwheel::{Cancellable, Scheduler};

/// The longest timeout, in milliseconds: some turns of the wheel.
const LONGEST: u64 = 4_000;
const BURST: usize = 50_000;
const RATES: [u32; 7] = [0, 100, 1_000, 10_000, 50_000, 200_000, 500_000];

pub(crate) struct Load {
    scheduler: Scheduler,
    /// An index of [`RATES`].
    rate: usize,
    /// The percentage that is cancelled before its time.
    cancelled: u32,
    /// The timeouts that will be cancelled.
    doomed: VecDeque<Cancellable>,
    random: u64,
    /// The fraction of a schedule that is left over from the frames so far.
    left: f64,
    series: Vec<Cancellable>,
}

impl Load {
    pub(crate) fn new(scheduler: Scheduler) -> Load {
        let (doomed, series) = (VecDeque::new(), Vec::new());
        Load { scheduler, rate: 3, cancelled: 80, doomed, random: 1, left: 0.0, series }
    }

    /// Returns the schedules per second.
    pub(crate) fn rate(&self) -> u32 {
        RATES[self.rate]
    }

    pub(crate) fn cancelled(&self) -> u32 {
        self.cancelled
    }

    pub(crate) fn series(&self) -> usize {
        self.series.len()
    }

    pub(crate) fn key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('+' | '=') | KeyCode::Up => {
                self.rate = (self.rate + 1).min(RATES.len() - 1);
            }
            KeyCode::Char('-') | KeyCode::Down => self.rate = self.rate.saturating_sub(1),
            KeyCode::Right => self.cancelled = (self.cancelled + 10).min(100),
            KeyCode::Left => self.cancelled = self.cancelled.saturating_sub(10),
            KeyCode::Char('b') => (0..BURST).for_each(|_| self.schedule()),
            KeyCode::Char('s') => self.add_series(),
            KeyCode::Char('c') => {
                self.doomed.clear();
                self.series.drain(..).for_each(|series| _ = series.cancel());
            }
            // Shows that the terminal survives a panic.
            KeyCode::Char('p') => panic!("the key p was pressed"),
            _ => {}
        }
    }

    /// Schedules and cancels as much as belongs into this stretch of time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let wanted = f64::from(self.rate()) * time.as_secs_f64().min(0.5) + self.left;
        let schedules = wanted as usize;
        self.left = wanted.fract();
        for _ in 0..schedules {
            self.schedule();
        }
        // The timeouts that are to be cancelled live for a tenth of a second.
        let alive = (self.rate() / 10) as usize;
        while self.doomed.len() > alive {
            self.doomed.pop_front().iter().for_each(|handle| _ = handle.cancel());
        }
    }

    fn schedule(&mut self) {
        let delay = Duration::from_micros(self.random() % (LONGEST * 1_000));
        let is_doomed = self.random() % 100 < u64::from(self.cancelled);
        // A closed scheduler means that the program ends. It is no error.
        let Ok(handle) = self.scheduler.schedule_once(delay, || _ = black_box(7)) else { return };
        if is_doomed {
            self.doomed.push_back(handle);
        }
    }

    /// Adds a task that repeats every 20 to 100 milliseconds.
    fn add_series(&mut self) {
        let period = Duration::from_millis(20 + self.random() % 80);
        let series = self.scheduler.schedule_repeatedly(period, period, || _ = black_box(7));
        self.series.extend(series);
    }

    /// Splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 31)
    }
}
