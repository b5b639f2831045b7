//! The tick thread: a loop around [`Engine::turn`], which sleeps between the turns.

use std::io;
use std::sync::Arc;

use super::shared::Shared;
use super::this_thread::TurningMark;
use crate::engine::{Engine, Next};
use crate::observe::Observer;
use crate::platform::panics::quietly;
use crate::platform::sleep::wake_on_time;
use crate::platform::sync;
use crate::time::parking::Sleeper;
use crate::time::tick::Moment;

/// Starts the thread that turns this engine until the scheduler ends.
pub(crate) fn spawn(engine: Engine, sleeper: Sleeper, name: &str) -> io::Result<()> {
    let ticker = Ticker { shared: Arc::clone(engine.shared()), engine, sleeper };
    let run = move || {
        wake_on_time();
        ticker.run();
    };
    let name = name.replace('\0', ""); // std would panic
    sync::spawn(name, run)
}

struct Ticker {
    shared: Arc<Shared>,
    engine: Engine,
    sleeper: Sleeper,
}

impl Ticker {
    fn run(mut self) {
        // What observers and clocks do between the turns is on the tick thread as well (S21).
        let _mark = TurningMark::new(&self.shared);
        loop {
            let cut = self.engine.cut();
            match self.engine.turn(cut) {
                Next::Again => {}
                Next::At(at) => self.sleep(Some(at)),
                Next::Idle => self.sleep(None),
                Next::Ended => break,
            }
        }
    }

    /// Sleeps, unless what has come in since the turn cannot wait: arm, look, sleep, in this order (WAKE-1). What comes
    /// in after the arming rings for itself, so a flow of tasks that are due later does not keep the thread awake
    /// (WAKE-5).
    fn sleep(&mut self, until: Option<Moment>) {
        let until_instant = until.map(|at| self.shared.timeline.instant(at));
        self.shared.hooks.observe(|observer| observer.will_sleep(until_instant));
        let threshold = until.map_or(Moment::NEVER, |at| self.engine.threshold(at));
        self.shared.will_wake_at(until.unwrap_or(Moment::NEVER));
        self.shared.bell.arm(threshold);
        if !self.engine.can_wait(threshold) {
            self.shared.bell.disarm();
            return;
        }
        quietly(|| self.shared.clock.sleep(&self.sleeper, until_instant));
        self.shared.bell.disarm();
        self.shared.wakeups.add(1);
        self.shared.hooks.observe(Observer::woke);
    }
}
