//! Delays in a program that has closed the global scheduler. A test program of its own, because nothing opens it again.

mod common;

use std::time::{Duration, Instant};

use common::told::Poller;
use common::{driven, until};
use tickwheel::Scheduler;

/// What is left of a delay. It passes in real time, because that is what a delay falls back on.
const REST: Duration = Duration::from_millis(30);
const HOUR: Duration = Duration::from_secs(3600);

/// One test, because the order matters.
#[test]
fn a_delay_outlives_its_scheduler_and_the_global_one() {
    let (scheduler, _driver) = driven();
    assert!(scheduler.close().expect("nobody turns it").is_empty());

    // It waits on the global scheduler, which is closed in the meantime.
    let (task, start) = (Poller::new(), Instant::now());
    let (mut delay, mut far) = (scheduler.delay(REST), scheduler.delay(HOUR));
    assert!(task.poll(&mut delay).is_pending() && task.poll(&mut far).is_pending());
    assert_eq!(Scheduler::global().pending(), 2);
    drop(Scheduler::global().close().expect("in time"));
    until("the close has woken them", || task.woken() == 2);
    assert!(task.poll(&mut far).is_pending());
    let polls = task.polls_until_ready(&mut delay);
    assert!(start.elapsed() >= REST && polls <= 2, "{polls} polls in {:?}", start.elapsed());
    assert!(task.poll(&mut far).is_pending());

    // What is made now finds both closed; and the global scheduler may be its own.
    for scheduler in [&scheduler, Scheduler::global()] {
        let (task, start) = (Poller::new(), Instant::now());
        let mut delay = scheduler.delay(HOUR);
        assert!(task.poll(&mut delay).is_pending());
        delay.reset_after(REST);
        until("it is woken", || task.woken() == 1);
        assert!(start.elapsed() >= REST && task.poll(&mut delay).is_ready());
        assert_eq!(task.wakers(), 0);
    }
}
