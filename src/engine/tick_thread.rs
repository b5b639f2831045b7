//! The tick thread: a loop around [`Engine::turn`], which sleeps between the turns.

use std::io;
use std::time::Duration;

use super::this_thread::TurningMark;
use crate::clock::parking::Sleeper;
use crate::clock::tick::Moment;
use crate::engine::{Engine, Next};
use crate::observe::Observer;
use crate::platform::panics::caught;
use crate::platform::sleep::wake_on_time;
use crate::platform::sync;

/// How long the thread rests instead of a sleep if the clock has panicked. It is asked again after that (S17).
const NAP: Duration = Duration::from_millis(20);

/// Starts the thread that turns this engine until the scheduler ends.
pub(crate) fn spawn(mut engine: Engine, sleeper: Sleeper, name: &str) -> io::Result<()> {
    let run = move || {
        // By default the system may delay the wake-ups of a thread, to save power.
        wake_on_time();
        // Observers and clocks run on the tick thread between the turns, too (S21).
        let _mark = TurningMark::new(engine.shared.id);
        let turn = || loop {
            let cut = engine.read_clock();
            match engine.turn(cut) {
                Next::Again => {}
                Next::At(at) => sleep(&mut engine, &sleeper, at),
                Next::Ended => break,
            }
        };
        // User code does not unwind to here (S17), so a panic is a fault of ours.
        if let Err(fault) = caught(turn) {
            engine.fail(fault);
        }
        // Closures that nobody takes are dropped here, and not by a caller that only drops its last handle (S24).
        engine.shared.drop_leftovers(engine.shared.termination.attend());
    };
    let name = name.replace('\0', ""); // std would panic
    sync::spawn(name, run)
}

/// Sleeps until then, unless what has come in since the turn cannot wait.
fn sleep(engine: &mut Engine, sleeper: &Sleeper, until: Moment) {
    // The clock has panicked before the turn, so nothing is known about when to wake. A stop ends the nap, because the sleeper
    // keeps the token of its ring.
    if engine.is_blind {
        return sleeper.sleep_for(NAP);
    }
    let instant = engine.shared.watch.timeline.instant_if_any(until);
    engine.shared.hooks.observe(|observer| observer.will_sleep(instant));
    // Arm, look, sleep, in this order (WAKE-1). A task that comes in after the arming rings by itself, so a flow of tasks
    // that are due later does not keep the thread awake (WAKE-5).
    let threshold = engine.arm(until);
    if !engine.can_wait(threshold) {
        engine.shared.bell.disarm();
        return;
    }
    let slept = engine.shared.ask_clock(|clock| clock.sleep(sleeper, instant));
    engine.shared.bell.disarm();
    if slept.is_none() {
        sleeper.sleep_for(NAP);
    }
    engine.shared.wakeups.add(1);
    engine.shared.hooks.observe(Observer::woke);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::task::Waker;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::clock::clocks::SystemClock;
    use crate::clock::clocks::Watch;
    use crate::clock::timeline::Timeline;
    use crate::engine::Precision;
    use crate::engine::shared::Shared;
    use crate::error::ScheduleError;
    use crate::executor::Inline;
    use crate::observe::{Hooks, PanicHook};
    use crate::wake::doorbell::Doorbell;
    use crate::wheel::entry::{Entry, Runner};

    type Report = (&'static str, Option<String>);

    /// Returns an engine whose first turn ends with a fault, and where this is told. A turn that leaves a waker behind is a
    /// fault that the checks at its end find.
    fn faulty() -> (Engine, Sleeper, mpsc::Receiver<Report>) {
        let (report, reports) = mpsc::channel();
        let mut hooks = Hooks::default();
        hooks.on_panic = PanicHook::new(move |panic| {
            drop(report.send((panic.name(), panic.message().map(str::to_owned))));
        });
        let sleeper = Sleeper::new();
        let bell = Doorbell::new(Some(sleeper.waker()));
        let tick = Duration::from_millis(1);
        let timeline = Timeline::new(Instant::now(), tick).expect("above zero");
        let (is_in_real_time, has_system_clock) = (true, true);
        let (clock, tick) = (Box::new(SystemClock), timeline.tick.get());
        let watch = Watch { clock, timeline, is_in_real_time, has_system_clock, tick };
        let shared = Shared::new(watch, hooks, bell, None, Duration::from_secs(60), true);
        let mut engine = Engine::new(Arc::clone(&shared), Box::new(Inline), Precision::Tick, 64);
        (1..=3).for_each(|delay| schedule(&shared, delay * 1_000).expect("open"));
        engine.wakers.push(Waker::noop().clone());
        (engine, sleeper, reports)
    }

    fn schedule(shared: &Arc<Shared>, seconds: u64) -> Result<(), ScheduleError> {
        let times = shared.watch.after(Duration::from_secs(seconds));
        let admitted = shared.admit(times, || (), None, None);
        admitted.map(|_| ()).map_err(|(reason, _)| reason)
    }

    #[test]
    fn s17_a_fault_of_ours_is_told_once_closes_the_scheduler_and_loses_nothing() {
        if !cfg!(debug_assertions) {
            return; // the checks are not there
        }
        let (engine, sleeper, reports) = faulty();
        let shared = Arc::clone(&engine.shared);
        spawn(engine, sleeper, "faulty").expect("a thread");

        let leftovers = shared.termination.wait(Duration::MAX).expect("it comes to its end");
        assert_eq!(leftovers.len(), 3);
        assert!(matches!(schedule(&shared, 1), Err(ScheduleError::Closed)));
        let (name, message) = reports.recv().expect("it is told");
        let message = message.expect("a text");
        assert!(
            name.contains("tick thread") && message.contains("left behind"),
            "{name}: {message}"
        );
        leftovers.into_iter().for_each(|task| shared.drop_leftover(task.key));
        assert_eq!(reports.try_iter().count(), 0, "once");
    }

    /// A shutdown that was broken off is not begun again. Nobody waits in vain for its end.
    #[test]
    fn s17_a_fault_of_ours_in_the_shutdown_itself_ends_the_scheduler() {
        if !cfg!(debug_assertions) {
            return; // the checks are not there
        }
        let (mut engine, sleeper, reports) = faulty();
        let shared = Arc::clone(&engine.shared);
        engine.executor = None; // as a shutdown that was broken off leaves it
        spawn(engine, sleeper, "faulty").expect("a thread");

        let leftovers = shared.termination.wait(Duration::from_secs(60));
        assert_eq!(leftovers.expect("it comes to its end").len(), 3);
        assert!(matches!(schedule(&shared, 1), Err(ScheduleError::Closed)));
        reports.recv().expect("it is told");
    }

    /// The shutdown that follows a fault finds another one: an entry that says that a closure is a waker.
    #[test]
    fn s17_a_second_fault_in_the_shutdown_after_the_first_ends_the_scheduler() {
        if !cfg!(debug_assertions) {
            return; // the checks are not there
        }
        let (mut engine, sleeper, reports) = faulty();
        let shared = Arc::clone(&engine.shared);
        let times = shared.watch.after(Duration::from_secs(1_000));
        let key = shared.admit(times, || (), None, None).map_err(|(reason, _)| reason);
        let key = key.expect("open");
        let (deadline, runner) = (times.deadline, Runner::TickThread);
        engine.incoming.push(Entry::new(key.slot, key.birth(), deadline, false, runner, false));
        spawn(engine, sleeper, "faulty").expect("a thread");

        let leftovers = shared.termination.wait(Duration::from_secs(60));
        assert_eq!(leftovers.expect("it comes to its end").len(), 3);
        let (name, message) = reports.recv().expect("it is told");
        assert!(name.contains("tick thread") && message.is_some_and(|it| it.contains("left")));
        assert_eq!(reports.try_iter().count(), 0, "the first fault alone");
    }
}
