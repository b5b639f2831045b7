//! Memory goes back to the system although no scheduler is alive any more (S9, S24).

use std::time::Duration;

use tickwheel::{Inline, Scheduler};

use super::service::{
    Complaints, Figures, megabytes, peak_resident, resident, resident_after, scenario,
};
use crate::common::{Random, count, digits, in_full_form};

const SECOND: Duration = Duration::from_secs(1);

fn tasks() -> usize {
    count(1_000_000, 10_000_000)
}

pub(crate) fn child() -> Figures {
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let mut random = Random(7);
    for _ in 0..tasks() {
        scheduler
            .schedule_once(Duration::from_secs(3_600) + random.timeout(), || ())
            .expect("open");
    }
    let leftovers = scheduler.close().expect("in time");
    assert_eq!(leftovers.len(), tasks(), "all come back");
    drop((leftovers, scheduler));
    let mut figures = Figures::default();
    figures.set("peak", peak_resident().map_or(0.0, megabytes));
    figures.set("at once", resident().map_or(0.0, megabytes));
    figures.set("after", resident_after(SECOND * 10, 30.0));
    figures
}

#[test]
fn s09_s24_after_a_peak_and_a_close_memory_goes_back_though_no_scheduler_lives() {
    let figures = scenario("peak", SECOND * 180).expect("figures");
    println!(
        "{} timeouts, closed and dropped: {:.0} MB at the peak, {:.0} at once, then {:.0}",
        digits(tasks()),
        figures.get("peak"),
        figures.get("at once"),
        figures.get("after")
    );
    let mut complaints = Complaints::default();
    // The holders are gone. glibc keeps some memory of the wheel's blocks in the arena of a thread that has ended, for
    // the next thread.
    // What a process has anyway is some 20 MB.
    let most = (figures.get("peak") / if in_full_form() { 5.0 } else { 3.0 }).max(40.0);
    complaints.at_most(most, figures.get("after"), "MB ten seconds later");
    complaints.assert_none();
}
