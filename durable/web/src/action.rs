//! What an operator can do: [`Action`], and what it has done: [`Said`].

use std::time::Duration;

use tickwheel_durable::{AsyncTimers, Error, Filter, Result, State};

use crate::link::Query;
use crate::source::acted;

/// What a form asks for. All but the first need a login (ACCESS-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Login,
    Logout,
    /// Removes a timer.
    Cancel,
    /// Moves one that waits: to now, or by so much.
    Reset,
    /// Makes a dead one wait again, due now.
    Requeue,
    /// The same with all dead ones of a kind.
    RequeueAll,
    /// Removes all dead ones of a kind.
    CancelAll,
}

impl Action {
    pub(crate) const ALL: [Action; 7] = [
        Action::Login,
        Action::Logout,
        Action::Cancel,
        Action::Reset,
        Action::Requeue,
        Action::RequeueAll,
        Action::CancelAll,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Login => "login",
            Action::Logout => "logout",
            Action::Cancel => "cancel",
            Action::Reset => "reset",
            Action::Requeue => "requeue",
            Action::RequeueAll => "requeue_all",
            Action::CancelAll => "cancel_all",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }

    /// The address of a form that does it, with the timer (QUERY-2).
    pub(crate) fn on(self, kind: &str, key: &str, shard: Option<usize>) -> Query {
        self.on_all(kind).with("key", key).with_some("shard", shard)
    }

    /// The same for all of a kind.
    pub(crate) fn on_all(self, kind: &str) -> Query {
        Query::default().with("do", self.name()).with("kind", kind)
    }

    pub(crate) async fn run(
        self,
        timers: &AsyncTimers,
        query: &Query,
        form: &Query,
    ) -> Result<Said> {
        let of = |name: &str| {
            query.get(name).ok_or_else(|| Error::Invalid(format!("the form has no {name}")))
        };
        let kind = of("kind")?;
        Ok(match self {
            Action::Cancel => match acted(timers.cancel(kind, of("key")?)).await? {
                Some(State::Running) => Said::one("cancelled_running"),
                Some(_) => Said::one("cancelled"),
                None => Said::one("gone"),
            },
            Action::Reset => {
                let (key, delay) = (of("key")?, delay(form)?);
                match acted(timers.reset(kind, key, delay)).await? {
                    true if delay.is_zero() => Said::one("runs"),
                    true => Said::one("moved"),
                    false => Said::why_not(timers, kind, key).await?,
                }
            }
            Action::Requeue => {
                let key = of("key")?;
                if acted(timers.requeue(kind, key, Duration::ZERO)).await? {
                    Said::one("requeued")
                } else {
                    Said::why_not(timers, kind, key).await?
                }
            }
            Action::RequeueAll => Said::all(acted(timers.requeue_all(kind, Duration::ZERO)).await?),
            Action::CancelAll => {
                // In parts, so that no transaction is long.
                let dead = Filter::new().kind(kind).state(State::Dead);
                let mut count = 0;
                loop {
                    let part = acted(timers.cancel_all(&dead)).await?;
                    count += part;
                    if part < u64::from(dead.limit) {
                        break Said::all(count);
                    }
                }
            }
            Action::Login | Action::Logout => {
                return Err(Error::Invalid("it has no timer".to_owned()));
            }
        })
    }
}

/// The delay of a form: a number and its unit. Without them it is none.
fn delay(form: &Query) -> Result<Duration> {
    let Some(number) = form.get("number") else { return Ok(Duration::ZERO) };
    let unit = match form.get("unit") {
        Some("minutes") => 60,
        Some("hours") => 3600,
        Some("days") => 86_400,
        _ => 1,
    };
    let wrong = || Error::Invalid("give the delay as a whole number, such as 15".to_owned());
    let number: u32 = number.trim().parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(number) * unit))
}

/// What an action has done, for the line above the next view: one of `WORDS`, and of how many timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) name: &'static str,
    pub(crate) count: Option<u64>,
}

/// The pairs of a link by which it says so. The script takes them out of the address, so that a reload does not say it again.
pub(crate) const SAID: [&str; 2] = ["said", "count"];

/// What a view's link may say, and no other words than these.
const WORDS: [(&str, &str); 10] = [
    ("cancelled", "The timer is cancelled: it will not run."),
    (
        "cancelled_running",
        "The timer is cancelled. Its handler was running: it goes on unless it asks, and nothing follows it.",
    ),
    (
        "gone",
        "Nothing was changed: the timer is not there any more. It is done, or somebody has cancelled it.",
    ),
    ("runs", "The timer is due now."),
    ("moved", "The timer has a new time."),
    ("requeued", "The timer waits again, with all its attempts, and is due now."),
    ("is_running", "Nothing was changed: a worker runs the timer at the moment."),
    ("is_dead", "Nothing was changed: the timer is dead. Requeue it."),
    ("is_waiting", "Nothing was changed: the timer waits, and is not dead."),
    ("all", "Dead timers that were changed: "),
];

impl Said {
    fn one(name: &'static str) -> Said {
        debug_assert!(WORDS.iter().any(|(of, _)| *of == name));
        Said { name, count: None }
    }

    fn all(count: u64) -> Said {
        Said { count: Some(count), ..Said::one("all") }
    }

    /// Says why a timer was not moved or requeued, from how it is now.
    async fn why_not(timers: &AsyncTimers, kind: &str, key: &str) -> Result<Said> {
        Ok(Said::one(match acted(timers.get(kind, key)).await?.map(|timer| timer.state) {
            None => "gone",
            Some(State::Running) => "is_running",
            Some(State::Dead) => "is_dead",
            Some(_) => "is_waiting",
        }))
    }

    /// Returns what a link says.
    pub(crate) fn words(query: &Query) -> Option<(&'static str, Option<u64>)> {
        let name = query.get("said")?;
        let (_, words) = WORDS.iter().find(|(of, _)| *of == name)?;
        Some((words, query.number("count")))
    }
}
