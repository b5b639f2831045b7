//! Assertions on what is scheduled, for any store: [`assert_scheduled`] and [`assert_not_scheduled`].

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::clock::{LATEST, from_micros};
use crate::timer::{Filter, Repetition, State, Timer};
use crate::timers::Timers;

/// How far a due time may be from the one that is asserted, by default: a second passes in a test on a real database.
const TOLERANCE: Duration = Duration::from_secs(1);

/// So many timers the message of a failure lists.
const LISTED: u32 = 20;

/// Asserts that a timer waits for its run or for its next attempt, and returns what asserts more of it. Works with any store.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::{NewTimer, testing};
///
/// let timers = testing::open()?;
/// timers.schedule(&NewTimer::new("mail", "4711", Duration::from_secs(1800)).payload("hello"))?;
/// testing::assert_scheduled(&timers, "mail", "4711").due_in(Duration::from_secs(1800)).payload("hello");
/// testing::assert_not_scheduled(&timers, "mail", "4712");
/// # Ok::<(), tickwheel_durable::Error>(())
/// ```
///
/// # Panics
///
/// If there is no such timer, or it runs or is dead, or the database fails. The message lists the timers that there are.
#[track_caller]
pub fn assert_scheduled(timers: &Timers, kind: &str, key: &str) -> ScheduledTimer {
    let now = answered(timers.now());
    match answered(timers.get(kind, key)) {
        Some(timer) if timer.state == State::Waiting => {
            ScheduledTimer { timer, now, tolerance: TOLERANCE }
        }
        Some(timer) => panic!(
            "the timer {kind:?} {key:?} is {}, and does not wait{}",
            timer.state.name(),
            timer.error.map(|error| format!(": {error}")).unwrap_or_default()
        ),
        None => panic!("no timer {kind:?} {key:?} is scheduled. {}", there_are(timers, kind, now)),
    }
}

/// Asserts that no timer with this key waits for its run or for its next attempt. One that runs, or is dead, does not wait.
///
/// # Panics
///
/// If there is one, or the database fails.
#[track_caller]
pub fn assert_not_scheduled(timers: &Timers, kind: &str, key: &str) {
    let now = answered(timers.now());
    let timer = answered(timers.get(kind, key)).filter(|timer| timer.state == State::Waiting);
    assert!(
        timer.is_none(),
        "a timer is scheduled that should not be:{}",
        lines(timer.as_slice(), now)
    );
}

/// A timer that is scheduled, of which more is asserted. From [`assert_scheduled`]. Each method panics if it is not so, and says what
/// is.
#[derive(Clone, Debug)]
pub struct ScheduledTimer {
    timer: Timer,
    now: SystemTime,
    tolerance: Duration,
}

#[expect(clippy::missing_panics_doc, reason = "the type tells of them all")]
impl ScheduledTimer {
    /// Sets how far the due time may be from the one that is asserted next. By default a second. On a virtual clock it may be zero.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> ScheduledTimer {
        self.tolerance = tolerance;
        self
    }

    /// Asserts that it runs, or is tried again, so long after now, by the database's clock. It does so at once if that has passed.
    #[track_caller]
    pub fn due_in(&self, delay: Duration) -> &ScheduledTimer {
        self.due_at(self.now.checked_add(delay).unwrap_or_else(|| from_micros(LATEST)))
    }

    /// Asserts that it runs, or is tried again, at this time. Stores have no time after the year 9998, and keep the end of that instead.
    #[track_caller]
    pub fn due_at(&self, time: SystemTime) -> &ScheduledTimer {
        let time = time.min(from_micros(LATEST));
        let wakes = self.timer.wake.unwrap_or(self.timer.due);
        let apart =
            time.duration_since(wakes).or_else(|_| wakes.duration_since(time)).unwrap_or_default();
        assert!(
            apart <= self.tolerance,
            "it should wake {}, and does {apart:?} {}:{}",
            from(time, self.now),
            if wakes < time { "before" } else { "later" },
            line(&self.timer, self.now)
        );
        self
    }

    /// Asserts what its payload is.
    #[track_caller]
    pub fn payload(&self, payload: impl AsRef<[u8]>) -> &ScheduledTimer {
        let payload = payload.as_ref();
        assert!(
            self.timer.payload == payload,
            "its payload should be {}:{}",
            text(payload),
            line(&self.timer, self.now)
        );
        self
    }

    /// Asserts that its payload is the JSON of an equal value.
    #[cfg(feature = "serde")]
    #[track_caller]
    pub fn json<T>(&self, value: &T) -> &ScheduledTimer
    where
        T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let found: T = match serde_json::from_slice(&self.timer.payload) {
            Ok(found) => found,
            Err(error) => {
                panic!("its payload is no such JSON, {error}:{}", line(&self.timer, self.now))
            }
        };
        assert!(found == *value, "its payload should be {value:?}, and is {found:?}");
        self
    }

    /// Asserts that it is a series with this period.
    #[track_caller]
    pub fn every(&self, period: Duration) -> &ScheduledTimer {
        self.repeats(&Repetition::Every(period))
    }

    /// Asserts that it is a series with this rule.
    #[track_caller]
    pub fn rule(&self, rule: &str) -> &ScheduledTimer {
        self.repeats(&Repetition::Rule(rule.to_owned()))
    }

    #[track_caller]
    fn repeats(&self, repetition: &Repetition) -> &ScheduledTimer {
        assert!(
            self.timer.repetition.as_ref() == Some(repetition),
            "it should be a series by {repetition:?}, and is {:?}:{}",
            self.timer.repetition,
            line(&self.timer, self.now)
        );
        self
    }

    /// Asserts how many attempts have failed.
    #[track_caller]
    pub fn attempts(&self, attempts: u32) -> &ScheduledTimer {
        assert!(
            self.timer.attempts == attempts,
            "{attempts} of its attempts should have failed:{}",
            line(&self.timer, self.now)
        );
        self
    }

    /// Returns the timer, for whatever else is to be asserted.
    pub fn timer(&self) -> &Timer {
        &self.timer
    }
}

#[track_caller]
fn answered<T>(answer: crate::Result<T>) -> T {
    match answer {
        Ok(answer) => answer,
        Err(error) => panic!("what is scheduled cannot be read: {error}"),
    }
}

/// Lists the timers of a kind, or says of which kinds there are others.
#[track_caller]
fn there_are(timers: &Timers, kind: &str, now: SystemTime) -> String {
    let of_kind = answered(timers.list(&Filter::new().kind(kind).limit(LISTED + 1)));
    if !of_kind.is_empty() {
        return format!("Of this kind there are:{}", lines(&of_kind, now));
    }
    let others = answered(timers.counts());
    let others: Vec<_> = others.iter().map(|of| format!("{:?}", of.kind)).collect();
    match &others[..] {
        [] => "There are no timers at all".to_owned(),
        others => format!("There are timers of the kinds {} alone", others.join(", ")),
    }
}

fn lines(timers: &[Timer], now: SystemTime) -> String {
    let mut text = String::new();
    timers.iter().take(LISTED as usize).for_each(|timer| text += &line(timer, now));
    text + if timers.len() > LISTED as usize { "\n  and more" } else { "" }
}

/// A timer as messages show it.
fn line(timer: &Timer, now: SystemTime) -> String {
    let mut line = format!("\n  {:?} {:?} {}", timer.kind, timer.key, timer.state.name());
    if let Some(wake) = timer.wake {
        _ = write!(line, ", wakes {}", from(wake, now)); // a `String` takes all
    }
    if timer.attempts > 0 {
        _ = write!(line, ", {} attempts", timer.attempts);
    }
    if let Some(repetition) = &timer.repetition {
        _ = write!(line, ", {repetition:?}");
    }
    if !timer.payload.is_empty() {
        _ = write!(line, ", payload {}", text(&timer.payload));
    }
    if let Some(error) = &timer.error {
        _ = write!(line, ", error {error:?}");
    }
    line
}

fn from(time: SystemTime, now: SystemTime) -> String {
    match time.duration_since(now) {
        Ok(left) if left.is_zero() => "now".to_owned(),
        Ok(left) => format!("in {left:?}"),
        Err(late) => format!("{:?} ago", late.duration()),
    }
}

/// The begin of a payload, as a text.
fn text(payload: &[u8]) -> String {
    const SHOWN: usize = 200;
    let shown = String::from_utf8_lossy(&payload[..payload.len().min(SHOWN)]);
    format!("{shown:?}{}", if payload.len() > SHOWN { ".." } else { "" })
}
