//! The end of a run: one of the ways to close, the leftovers, and the ledger.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tickwheel::{Driver, Leftovers, PendingTask, Scheduler, Stopping};

use super::plan::{End, NEVER, State};
use super::world::World;

/// Ends a run whose scheduler may have been closed before.
pub(crate) fn end(world: &Arc<World>, driver: Driver) {
    world.calm_down(&driver);
    let scheduler = world.scheduler(false);
    match (world.draw(|random| random.below(8)), scheduler) {
        (0, Some(scheduler)) => by_scheduler(world, &driver, &scheduler),
        (1, Some(scheduler)) => by_stop(world, driver, &scheduler),
        (2, Some(scheduler)) => by_close_and_run(world, &scheduler),
        (3, Some(scheduler)) => by_dropping_the_driver(world, driver, &scheduler),
        (4, Some(scheduler)) => by_dropping_the_handles(world, driver, scheduler),
        (5, Some(scheduler)) => by_forgetting(world, driver, scheduler),
        _ => by_driver(world, driver),
    }
}

// ----- ways to close -----------------------------------------------------------------------

fn by_driver(world: &Arc<World>, driver: Driver) {
    world.model().close(true);
    settle(world, driver.close());
}

fn by_scheduler(world: &Arc<World>, driver: &Driver, scheduler: &Scheduler) {
    world.model().close(true);
    let leftovers = scheduler.close().expect("nobody turns it");
    assert_eq!(driver.turn(), None);
    assert!(scheduler.close().expect("closed before").is_empty());
    settle(world, leftovers);
}

fn by_stop(world: &Arc<World>, driver: Driver, scheduler: &Scheduler) {
    world.model().close(true);
    let last = scheduler.stop();
    let stopping = world.stopping().unwrap_or(last);
    if world.draw(|random| random.one_in(2)) {
        assert_eq!(driver.turn(), None);
    } else {
        drop(driver);
    }
    settle(world, wait(world, stopping));
}

fn wait(world: &World, stopping: Stopping) -> Leftovers {
    if world.draw(|random| random.one_in(2)) {
        return stopping.wait();
    }
    stopping.wait_timeout(Duration::ZERO).expect("the end has come")
}

fn by_close_and_run(world: &World, scheduler: &Scheduler) {
    world.model().close(true);
    run_all(world, || scheduler.close_and_run().expect("nobody turns it"));
}

/// Nobody wants the leftovers (S24), unless the scheduler was stopped before.
fn by_dropping_the_driver(world: &Arc<World>, driver: Driver, scheduler: &Scheduler) {
    world.model().close(false);
    world.model().shut_down();
    drop(driver);
    settle(world, scheduler.close().expect("ended"));
}

/// S24
fn by_dropping_the_handles(world: &Arc<World>, driver: Driver, scheduler: Scheduler) {
    drop(scheduler);
    world.abandon();
    world.model().shut_down();
    assert_eq!(driver.turn(), None);
    let stopping = world.stopping();
    drop(driver);
    stopping.into_iter().for_each(|stopping| settle(world, wait(world, stopping)));
}

/// The end comes, and the leftovers that somebody wanted are never taken. They go with the last `Stopping`.
fn by_forgetting(world: &Arc<World>, driver: Driver, scheduler: Scheduler) {
    world.model().close(true);
    let last = scheduler.stop();
    assert_eq!(driver.turn(), None);
    assert_eq!(world.reports.unheard(), 0, "panics that nobody was told of");
    world.model().ending.drops = true;
    drop((last, world.stopping(), scheduler, driver));
    world.abandon();
    world.reports.is_over();
}

// ----- leftovers ---------------------------------------------------------------------------

/// Brings each leftover to one of its ends.
fn settle(world: &Arc<World>, leftovers: Leftovers) {
    let expected = world.model().expected_leftovers();
    assert_eq!(leftovers.len(), expected.len(), "how many are left over");
    // Only their order tells which is which (MODEL-2).
    let is_exact = world.ask(|model| model.is_exact && model.order_tells(expected.iter().copied()));
    match world.draw(|random| random.below(4)) {
        0 => {
            world.model().ending.drops = true;
            drop(leftovers);
        }
        1 => run_all(world, || leftovers.run_all()),
        _ if !is_exact => run_all(world, || leftovers.run_all()),
        _ => one_by_one(world, leftovers, &expected),
    }
}

fn run_all(world: &World, run: impl FnOnce() -> usize) {
    let before = {
        let model = &mut *world.model();
        let expected = model.expected_leftovers();
        model.begin_by_hand(expected);
        model.counts.ran
    };
    let runs = run();
    let mut model = world.model();
    model.end();
    assert_eq!(runs as u64, model.counts.ran - before, "how many leftovers were run");
}

fn one_by_one(world: &Arc<World>, leftovers: Leftovers, expected: &[usize]) {
    let (second, driver) = second_scheduler(world);
    let mut moved = Vec::new();
    for (task, id) in leftovers.into_iter().zip(expected.iter().copied()) {
        check_what_it_says(world, &task, id);
        match world.draw(|random| random.below(4)) {
            0 => drop_it(world, task, id),
            1 => {
                let foreseen = world.model().call_off(id);
                assert_eq!(task.cancel(), foreseen, "the cancel of leftover {id}");
            }
            2 => {
                world.model().begin_by_hand(vec![id]);
                task.run();
                world.model().end();
            }
            _ => moved.extend(move_it(world, task, id, &second)),
        }
    }
    // S29: their handles go on working, so some may be cancelled by now.
    let is_there = |id: &usize| world.model().tasks[*id].state == State::Moved;
    moved.retain(is_there);
    // A leftover that was moved after it was returned has another place there.
    let due_there = |id: &usize| world.ask(|model| model.tasks[*id].deadline.max(model.now));
    moved.sort_by_key(due_there);
    assert_eq!(second.pending(), moved.len());
    let mut dropped = 0;
    let order_tells = world.ask(|model| model.order_tells(moved.iter().copied()));
    for (task, id) in driver.close().into_iter().zip(moved.iter().copied()) {
        if is_there(&id) {
            if order_tells {
                check_what_it_says(world, &task, id);
            }
            world.model().leave_there(id);
            dropped += 1;
        }
        drop(task);
        assert!(!order_tells || !world.model().tasks[id].has_closure, "task {id}, dropped there");
    }
    assert!(!moved.iter().any(|id| world.model().tasks[*id].has_closure), "all are dropped there");
    let stats = second.stats();
    let cancelled = world.model().count(State::Over(End::CancelledThere)) as u64;
    assert_eq!((stats.dropped(), stats.cancelled(), stats.pending()), (dropped, cancelled, 0));
    assert_eq!(stats.scheduled(), dropped + cancelled, "each has one end there");
}

const ROOM: usize = 5;

/// Builds another scheduler, with room for a few tasks.
fn second_scheduler(world: &World) -> (Scheduler, Driver) {
    let ears = Arc::clone(&world.reports);
    let builder = Scheduler::builder().on_panic(move |panic| ears.hear(panic.payload()));
    builder.max_pending(ROOM).build_driven().expect("good settings")
}

fn check_what_it_says(world: &World, task: &PendingTask, id: usize) {
    let model = world.model();
    let expected = &model.tasks[id];
    let remaining = match expected.deadline {
        NEVER => Duration::MAX,
        deadline => Duration::from_nanos(deadline.saturating_sub(model.now)),
    };
    // One that was moved and then cancelled shows the deadline that it had at the close.
    if matches!(expected.state, State::Returned | State::Moved) {
        assert_eq!(task.remaining(), remaining, "leftover {id}: {expected:?}");
    }
    let period = expected.plan.repeats.period().map(Duration::from_nanos);
    assert_eq!(task.period(), period, "leftover {id}: {expected:?}");
}

/// Returns true if a leftover has not been cancelled in the meantime.
fn is_live(world: &World, id: usize) -> bool {
    world.model().tasks[id].state == State::Returned
}

fn drop_it(world: &World, task: PendingTask, id: usize) {
    if is_live(world, id) {
        world.model().leave(id, End::Dropped);
    }
    drop(task);
    assert!(!world.model().tasks[id].has_closure, "leftover {id}, dropped");
}

/// Moves a leftover, and returns its name if it was accepted. A refused one comes back, or is dropped (S20, S29).
fn move_it(world: &World, task: PendingTask, id: usize, to: &Scheduler) -> Option<usize> {
    if !is_live(world, id) {
        let handle = task.reschedule(to).expect("nothing is scheduled");
        assert!(handle.is_cancelled(), "leftover {id}");
        return None;
    }
    let has_room = to.pending() < ROOM;
    let comes_back = world.draw(|random| random.one_in(2));
    match (has_room, comes_back) {
        (true, _) => world.model().moves(id),
        (false, true) => {}
        (false, false) => world.model().leave(id, End::Dropped),
    }
    let moved = if comes_back {
        task.try_reschedule(to).map_err(|refused| drop_it(world, refused.into_task(), id)).ok()
    } else {
        task.reschedule(to).ok()
    };
    assert_eq!(moved.is_some(), has_room, "leftover {id}: {moved:?}");
    assert!(moved.is_none_or(|handle| !handle.is_done()));
    has_room.then_some(id)
}

// ----- the ledger --------------------------------------------------------------------------

/// Each task has taken one way out, each closure is gone, each panic was heard, and nothing is kept
/// alive (S20).
pub(crate) fn check_the_ledger(world: &Arc<World>) {
    world.check_counts();
    for (id, task) in world.model().tasks.iter().enumerate() {
        assert!(matches!(task.state, State::Over(_)) && !task.has_closure, "task {id}: {task:?}");
    }
    for (id, handle) in world.take_handles() {
        assert!(handle.is_done() && !handle.cancel(), "task {id}");
        world.check_handle(id, &handle);
    }
    let told = [&world.signs.ends, &world.signs.stopped].map(|sign| sign.load(Ordering::Relaxed));
    let leftovers = world.ask(|model| model.ending.leftovers.iter().flatten().count());
    assert_eq!(told, [1, leftovers], "what the observer was told");
    assert_eq!(world.reports.unheard(), 0, "panics that nobody was told of");
    world.abandon();
    drop(world.stopping());
    assert_eq!(Arc::strong_count(world), 1, "something keeps the world alive");
}
