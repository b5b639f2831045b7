//! The whole engine on virtual time against a model: random runs that print their seed.
//!
//! Each run makes a scheduler with its driver and random settings, and a model that predicts what it will do. Then random
//! events happen. Tasks and series of all kinds are scheduled and cancelled, from outside, from tasks, and from the `Drop` of
//! captured values. The time moves step by step, or jumps. Executors refuse, tasks panic, and in the middle of it the scheduler
//! is stopped. Virtual time is exact, so the model knows to the nanosecond when each task runs, and which task runs next.
//!
//! | file | what it is |
//! | --- | --- |
//! | `plan.rs` | the plan of a task, and its state |
//! | `model.rs`, `turns.rs`, `moves.rs` | the model |
//! | `world.rs` | the parts of a run |
//! | `calls.rs` | calls to the scheduler |
//! | `time.rs` | turns, moves, stalls |
//! | `tasks.rs` | the actions of tasks |
//! | `end.rs` | the ways to close, the leftovers, the ledger |
//! | `reports.rs` | intended panics, and others |
//!
//! `TICKWHEEL_SEED=n` repeats the run of that seed; `TICKWHEEL_RUNS=n` makes so many of them,
//! `TICKWHEEL_FIRST=n` from that seed on. `scripts/soak` makes millions.

mod calls;
mod end;
mod model;
mod moves;
mod plan;
mod reports;
mod tasks;
mod time;
mod turns;
mod world;

use std::sync::Arc;

use tickwheel::Driver;

use crate::common::{Random, for_each_seed};
use world::World;

fn step(world: &Arc<World>, driver: &Driver) {
    match world.draw(|random| random.below(32)) {
        0..10 => world.schedule_once(),
        10..12 => world.schedule_crowd(),
        12..15 => world.schedule_series(),
        15..17 => world.cancel_one(),
        17..19 => world.reset_one(),
        19..24 => world.advance(driver),
        24..29 => world.stall_and_turn(driver),
        29 => world.turn_until_quiet(driver),
        30 => world.change_mood(driver),
        _ if world.draw(|random| random.one_in(30)) => world.abandon(),
        _ if world.draw(|random| random.one_in(20)) => world.stop(),
        _ => {}
    }
    world.check_pending();
    world.check_counts();
    world.model().check_that_all_is_quiet();
}

/// Makes one run. Returns what is wrong, if something is.
fn run(seed: u64) -> Result<(), String> {
    let (world, driver) = World::new(Random(seed));
    let complaint = || world.reports.complaint().map_or(Ok(()), Err);
    for _ in 0..world.draw(|random| 10 + random.below(60)) {
        world.reports.noting(|| step(&world, &driver));
        complaint()?;
        if world.model().ending.is_closed && world.draw(|random| random.one_in(4)) {
            break;
        }
    }
    world.reports.noting(|| end::end(&world, driver));
    complaint()?;
    world.reports.noting(|| end::check_the_ledger(&world));
    complaint()
}

#[test]
fn the_engine_does_what_a_sorted_map_does() {
    reports::silence_blasts();
    for_each_seed(1_500, 1, |seed| run(seed).unwrap_or_else(|complaint| panic!("{complaint}")));
}
