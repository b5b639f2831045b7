//! What the others notice when somebody is too fast, stuck, sick or gone: floods that outrun the wheel, stalls
//! of the tick thread, executors that refuse, thousands of threads, two faults at a time, and the memory
//! that all of that takes (S2, S6, S9, S17 to S20, S24, S30).
//!
//! Each scenario runs in a process of its own and prints one line of figures. The bounds are relative to a
//! thread that only sleeps, and in the form of every day they are generous, because a test machine may be
//! slow. `TICKWHEEL_FULL=1` makes the long form, in release, as `scripts/storms` does.
//!
//! One scenario alone, with its figures as `=name=value`:
//!
//! ```text
//! TICKWHEEL_SCENARIO='flood churn inline 8' \
//!     cargo test --release --test alone -- --exact overload::child_scenario --nocapture
//! ```

mod crowds;
mod faults;
mod floods;
mod memory;
mod service;
mod sick;
mod stalls;

use service::own_scenario;

/// Not a test by itself: it runs the scenario that the other tests start a process for.
#[test]
fn child_scenario() {
    let Some(scenario) = own_scenario() else { return };
    let words: Vec<_> = scenario.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).expect("a number");
    let figures = match words[0] {
        "flood" => floods::child(words[1], words[2], number(3)),
        "stall" => stalls::child_stall(number(1)),
        "far" => stalls::child_far(),
        "sick" => sick::child_sick(number(1)),
        "bounded" => sick::child_bounded(),
        "refused" => sick::child_refused(),
        "crowd" => crowds::child(number(1)),
        "peak" => memory::child(),
        "fault" => faults::child(words[1]),
        other => panic!("no such scenario: {other}"),
    };
    figures.print();
}
