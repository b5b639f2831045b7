//! `Scheduler::dump`, which is hidden: what a person sees of a scheduler that hangs.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::common::driven;
use tickwheel::Scheduler;

/// Returns the line of the dump that begins like this.
fn line(scheduler: &Scheduler, start: &str) -> String {
    let dump = scheduler.dump();
    let line = dump.lines().find(|line| line.starts_with(start));
    line.unwrap_or_else(|| panic!("no line begins with {start:?}:\n{dump}")).to_owned()
}

#[test]
fn the_doorbell_shows_how_long_the_engine_sleeps() {
    let (scheduler, driver) = driven();
    assert_eq!(line(&scheduler, "doorbell"), "doorbell: awake");
    assert_eq!(line(&scheduler, "engine"), "engine: has not slept");

    driver.turn();
    assert_eq!(line(&scheduler, "doorbell"), "doorbell: asleep for ever");
    assert_eq!(line(&scheduler, "engine"), "engine: has last said that it can wait for ever");

    scheduler.schedule_once(Duration::from_millis(5), || ()).expect("open");
    assert_eq!(line(&scheduler, "doorbell"), "doorbell: awake", "the schedule has rung");
    driver.turn();
    let doorbell = line(&scheduler, "doorbell");
    assert!(doorbell.starts_with("doorbell: asleep until "), "{doorbell}");
    assert!(doorbell.ends_with("in 4.000001ms"), "the tick before the deadline rings: {doorbell}");
    let engine = line(&scheduler, "engine");
    assert!(engine.ends_with("in 5ms"), "{engine}");

    driver.advance(Duration::from_millis(5));
    assert_eq!(line(&scheduler, "pending"), "pending: 0, wake-ups: 0");
    assert_eq!(line(&scheduler, "doorbell"), "doorbell: asleep for ever");
}

#[test]
fn a_lane_shows_what_it_has_published_and_whether_it_is_listed() {
    let (scheduler, driver) = driven();
    for _ in 0..3 {
        scheduler.schedule_once(Duration::from_secs(60), || ()).expect("open");
    }
    assert_eq!(line(&scheduler, "ready list"), "ready list: lane 0 is first");
    assert_eq!(line(&scheduler, "lane 0"), "lane 0: 3 published, listed, open");
    assert_eq!(line(&scheduler, "blocks"), "blocks: 0 filled, 0 emptied, after 0 looks");

    driver.turn();
    assert_eq!(line(&scheduler, "ready list"), "ready list: empty");
    assert_eq!(line(&scheduler, "lane 0"), "lane 0: 3 published, not listed, open");
    assert_eq!(line(&scheduler, "pending"), "pending: 3, wake-ups: 0");
    assert_eq!(line(&scheduler, "hints"), "hints: is_late false, many_cancelled false");
}

#[test]
fn the_end_shows_in_flags_and_lanes() {
    let (scheduler, driver) = driven();
    scheduler.schedule_once(Duration::from_secs(60), || ()).expect("open");
    assert_eq!(line(&scheduler, "is closing"), "is closing: false, has ended: false");
    assert_eq!(driver.close().len(), 1);
    assert_eq!(line(&scheduler, "is closing"), "is closing: true, has ended: true");
    assert_eq!(line(&scheduler, "lane 0"), "lane 0: 1 published, listed, closed");
    assert_eq!(line(&scheduler, "doorbell"), "doorbell: awake");
}

#[test]
fn of_many_lanes_only_the_first_are_shown() {
    let (scheduler, _driver) = driven();
    // All threads at a time, because a lane is used again when its thread has ended.
    let barrier = Barrier::new(40);
    thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                scheduler.schedule_once(Duration::from_secs(60), || ()).expect("open");
                barrier.wait();
            });
        }
    });
    assert_eq!(scheduler.dump().matches("1 published").count(), 32);
    assert_eq!(line(&scheduler, "and"), "and 8 more lanes");
    assert_eq!(line(&scheduler, "pending"), "pending: 40, wake-ups: 0");
}
