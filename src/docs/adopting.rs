//! How to take these timers into a program that has others: services, libraries, tests.
//!
//! # A service on tokio
//!
//! One line: `use tickwheel::time;` in place of `use tokio::time;`. The names, the signatures and the behaviour are
//! tokio's: [`sleep`](crate::time::sleep()), [`timeout`](crate::time::timeout()),
//! [`interval`](crate::time::interval()), their `_until` and `_at`, [`Instant`](crate::time::Instant),
//! [`pause`](crate::time::pause()). Sockets, tasks and channels stay with tokio, whose runtime then needs no
//! `enable_time` for this code. [The module](crate::time#where-it-differs-from-tokio) lists what differs.
//!
//! What the compiler then finds: `#[from] tokio::time::error::Elapsed` of an error type becomes
//! [`tickwheel::time::error::Elapsed`](crate::time::error::Elapsed); `at.into()` where a deadline is expected becomes
//! `at`; an interval in an `IntervalStream` is a `Stream` itself, with the feature `futures-core`. Another crate that
//! asks for a `tokio::time::Instant` gets `tokio::time::Instant::from_std(at.into_std())`.
//!
//! To keep the other module out, have clippy refuse it, in `clippy.toml`:
//!
//! ```toml
//! disallowed-methods = [
//!     { path = "tokio::time::sleep", reason = "use tickwheel::time" },
//!     { path = "tokio::time::sleep_until", reason = "use tickwheel::time" },
//!     { path = "tokio::time::timeout", reason = "use tickwheel::time" },
//!     { path = "tokio::time::timeout_at", reason = "use tickwheel::time" },
//!     { path = "tokio::time::interval", reason = "use tickwheel::time" },
//!     { path = "tokio::time::interval_at", reason = "use tickwheel::time" },
//!     { path = "tokio::time::Instant::now", reason = "use tickwheel::time" },
//!     { path = "tokio::time::pause", reason = "use tickwheel::time" },
//!     { path = "tokio::time::advance", reason = "use tickwheel::time" },
//! ]
//! ```
//!
//! All of it runs on [`Scheduler::global`](crate::Scheduler::global). To choose its precision or its clock, call
//! [`Scheduler::set_global`](crate::Scheduler::set_global) at the beginning of `main`. It has one thread, which only wakes
//! tasks. That thread sleeps until the next deadline.
//!
//! In async code, wait with a future of [`time`](crate::time), or set a task with
//! [`call_after`](crate::Scheduler::call_after) if it must run even if nobody waits. The futures never put their thread to
//! sleep. Methods that schedule a closure may do so, under load:
//! see [`schedule_once`](crate::Scheduler::schedule_once).
//!
//! What it is worth depends on the service. In `tokio_service` of the package `tickwheel-demos`, an HTTP server behind
//! a proxy, a request has five timeouts, and pushes four idle timeouts further. They cost 1.3 us of its 38 us of the
//! processor, and 1.9 us with tokio's timers (two workers, two cores of an AMD EPYC). Around a future that is ready at
//! once, 49 million timeouts a second were made, and 25 with tokio's; with futures that are pending once 12.8, and 3.8
//! (rows S4 of `benches/peers`).
//!
//! # A library
//!
//! A library that wants to run anywhere needs no feature and no trait of its own: it depends on this crate without
//! features, and calls `time::sleep`. Under tokio, smol, async-std, a loop of one's own or none, the same code works.
//! Its user decides which scheduler that is, by [`Scheduler::enter`](crate::Scheduler::enter) around the calls that make
//! futures, or [`set_global`](crate::Scheduler::set_global) for the process. In the user's tests the time may be virtual.
//!
//! ```
//! use tickwheel::time::{self, Duration};
//!
//! /// Asks until there is an answer, with growing gaps.
//! pub async fn retry<T>(mut ask: impl FnMut() -> Option<T>) -> T {
//!     let mut gap = Duration::from_secs(1);
//!     loop {
//!         if let Some(answer) = ask() {
//!             return answer;
//!         }
//!         time::sleep(gap).await;
//!         gap *= 2;
//!     }
//! }
//!
//! // In a test of its user:
//! let (_scheduler, driver) = tickwheel::Scheduler::builder().build_driven()?;
//! let mut asked = 0;
//! let answer = driver.block_on(retry(|| {
//!     asked += 1;
//!     (asked == 11).then_some("at last") // after 1023 seconds
//! }))?;
//! assert_eq!(answer, "at last");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A type that keeps a sleep in a field names it [`time::Sleep`](crate::time::Sleep). It is `Send`, `Sync` and `Unpin`, so
//! it needs no box to be [reset](crate::time::Sleep::reset).
//!
//! # Tests
//!
//! | the test | virtual time |
//! | --- | --- |
//! | a plain `#[test]` | [`Driver::block_on`](crate::Driver::block_on): it moves by itself when the future waits |
//! | on a tokio runtime of one thread | [`time::pause`](crate::time::pause()); the runtime is built with `.on_thread_park(tickwheel::time::advance_when_idle)` |
//! | steps by hand | [`time::pause`](crate::time::pause()), [`time::advance`](crate::time::advance()) |
//!
//! `#[tokio::test]` cannot set the hook, so such a test builds its runtime, or moves the time by `advance`. More is on the
//! page [`testing`](crate::testing).
//!
//! # Crates that ask for a timer
//!
//! Most ask for a future with `Output = ()`, which [`Sleep`](crate::time::Sleep) is.
//!
//! | crate | how |
//! | --- | --- |
//! | hyper 1, hyper-util | the feature `hyper`: `builder.timer(scheduler)` |
//! | backon 1 | `.sleep(tickwheel::time::sleep)` |
//! | tower 0.5 | [`time::timeout`](crate::time::timeout()) in a service of one's own; `Sleep` as the `Future` of a `retry::Policy` |
//! | AWS SDK | `impl AsyncSleep`: `Sleep::new(tickwheel::time::sleep(duration))` |
//! | quinn 0.11 | below |
//!
//! Each one is compiled and run as a test of this repository, in `ecosystem`.
//!
//! ```ignore
#![doc = include_str!("quinn.rs")]
//! ```
