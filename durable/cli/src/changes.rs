//! The commands that change timers: `schedule`, `reset`, `cancel`, `requeue` and `set-payload`.
//!
//! Each says in one line, or in one object, what it has done. A call that has changed nothing ends with exit code 1, and one that
//! changes many asks first.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use tickwheel_durable::cron::{Cron, Missed};
use tickwheel_durable::{Filter, NewTimer, State, Timers, When};

use crate::arguments;
use crate::output::{Object, Output, tell};
use crate::problem::{Outcome, Problem};
use crate::text::clean;
use crate::times::{relative, rfc3339};

/// How many are cancelled in one transaction, so that none takes long.
const BATCH: u32 = 1000;

pub(crate) fn schedule(timers: &Timers, of: arguments::Schedule, out: &mut Output) -> Outcome {
    let arguments::Name { kind, key } = of.name;
    let mut timer = NewTimer::new(kind, key, of.when);
    if let Some(payload) = bytes(of.payload)? {
        timer = timer.payload(payload);
    }
    if let Some(period) = of.every {
        timer = timer.every(period);
    }
    if let Some(expression) = of.cron {
        let mut cron = Cron::parse(&expression)?;
        if let Some(zone) = of.zone {
            cron = cron.in_zone(&zone)?;
        }
        if let Some(policy) = of.missed {
            cron = cron.missed(match policy {
                arguments::Missed::Skip => Missed::Skip,
                arguments::Missed::Once => Missed::Once,
                arguments::Missed::All => Missed::All,
            });
        }
        timer = timer.rule(cron.to_string());
    }
    if let Some(rule) = of.rule {
        timer = timer.rule(rule);
    }
    if let Some(trace) = of.trace {
        timer = timer.trace(trace);
    }
    timer.max_attempts = of.max_attempts;
    timer.time_limit = of.time_limit;
    let scheduled =
        if of.keep { timers.schedule_if_absent(&timer)? } else { Some(timers.schedule(&timer)?) };
    let Some(scheduled) = scheduled else {
        say(out, "kept", &timer.kind, &timer.key, "it is there already", |object| object)?;
        return Err(Problem::Nothing);
    };
    let result = if scheduled.replaced { "replaced" } else { "scheduled" };
    let due = scheduled.due;
    let when = format!("due {} ({})", rfc3339(due, 0), relative(due, timers.now()?));
    say(out, result, &timer.kind, &timer.key, &when, |object| object.time("due", due))
}

pub(crate) fn reset(timers: &Timers, of: arguments::Reset, out: &mut Output) -> Outcome {
    let arguments::Name { kind, key } = of.name;
    if !timers.reset(&kind, &key, of.when)? {
        return none(out, &kind, &key, "no timer of this name waits");
    }
    say(out, "reset", &kind, &key, "", |object| object)
}

pub(crate) fn set_payload(timers: &Timers, of: arguments::SetPayload, out: &mut Output) -> Outcome {
    let arguments::Name { kind, key } = of.name;
    let Some(payload) = bytes(of.payload)? else {
        return Err(Problem::Usage("give --payload TEXT or --payload-file PATH".to_owned()));
    };
    if !timers.set_payload(&kind, &key, payload)? {
        return none(out, &kind, &key, "no timer of this name waits or is dead");
    }
    say(out, "changed", &kind, &key, "", |object| object)
}

pub(crate) fn cancel(timers: &Timers, of: arguments::Cancel, out: &mut Output) -> Outcome {
    let arguments::OneOrAll { of: one, key, kind, yes, .. } = of.which;
    if let (Some(kind), Some(key)) = (&one, &key) {
        return match timers.cancel(kind, key)? {
            Some(state) => {
                let text = format!("it was {}", state.name());
                say(out, "cancelled", kind, key, &text, |object| object.text("was", state.name()))
            }
            None => none(out, kind, key, "there is no timer of this name"),
        };
    }
    let which = arguments::Which { kind, state: of.state, prefix: of.prefix, until: None };
    let filter = crate::sight::filter(which, timers.now()?);
    confirm(timers, "Cancel", &filter, yes)?;
    let batch = filter.limit(BATCH);
    let mut count = 0;
    loop {
        let cancelled = timers.cancel_all(&batch)?;
        count += cancelled;
        if cancelled < BATCH.into() {
            return many(out, "cancelled", count);
        }
    }
}

pub(crate) fn requeue(timers: &Timers, of: arguments::Requeue, out: &mut Output) -> Outcome {
    let when = When::from(of.when);
    let arguments::OneOrAll { of: one, key, kind, yes, .. } = of.which;
    if let (Some(kind), Some(key)) = (&one, &key) {
        if !timers.requeue(kind, key, when)? {
            return none(out, kind, key, "no timer of this name is dead");
        }
        return say(out, "requeued", kind, key, "", |object| object);
    }
    let kind = kind.unwrap_or_default();
    confirm(timers, "Requeue", &Filter::new().kind(&*kind).state(State::Dead), yes)?;
    many(out, "requeued", timers.requeue_all(&kind, when)?)
}

/// Returns the payload that was given.
fn bytes(of: arguments::Payload) -> Result<Option<Vec<u8>>, Problem> {
    let Some(path) = of.payload_file else { return Ok(of.payload.map(String::into_bytes)) };
    let read = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(&path)
    };
    read.map(Some)
        .map_err(|error| Problem::Usage(format!("the payload of {}: {error}", path.display())))
}

/// Asks before many timers are changed, and says how many.
fn confirm(timers: &Timers, verb: &str, filter: &Filter, yes: bool) -> Outcome {
    if yes {
        return Ok(());
    }
    must_ask("this changes many timers")?;
    let count = timers.list(&filter.clone().limit(BATCH + 1))?.len();
    let more = count > BATCH as usize;
    let count = if more { format!("more than {BATCH}") } else { count.to_string() };
    ask(&format!("{verb} {count} timers?"))
}

/// Fails if there is nobody to ask.
pub(crate) fn must_ask(about: &str) -> Outcome {
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        return Ok(());
    }
    Err(Problem::Usage(format!("{about}, and nobody is there to be asked: give --yes")))
}

/// Fails if the answer is not yes.
pub(crate) fn ask(question: &str) -> Outcome {
    // It has no line's end, so that the answer stands behind it.
    _ = write!(io::stderr(), "{} [y/N] ", clean(question));
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    if read.is_ok() && ["y", "yes"].contains(&&*answer.trim().to_lowercase()) {
        return Ok(());
    }
    tell("Nothing was changed.");
    Err(Problem::Nothing)
}

/// Says what was done with one timer.
fn say(
    out: &mut Output,
    result: &str,
    kind: &str,
    key: &str,
    more: &str,
    members: impl FnOnce(Object) -> Object,
) -> Outcome {
    if out.json {
        let object = Object::new().text("result", result).text("kind", kind).text("key", key);
        return Ok(out.object(members(object))?);
    }
    let more = if more.is_empty() { String::new() } else { format!(": {more}") };
    Ok(out.line(&format!("{result} {} {}{more}", clean(kind), clean(key)))?)
}

/// Says that nothing was changed.
fn none(out: &mut Output, kind: &str, key: &str, why: &str) -> Outcome {
    if out.json {
        say(out, "none", kind, key, "", |object| object)?;
    } else {
        tell(&format!("tickwheel-durable: {why}"));
    }
    Err(Problem::Nothing)
}

/// Says how many were changed.
fn many(out: &mut Output, result: &str, count: u64) -> Outcome {
    if out.json {
        out.object(Object::new().text("result", result).number("count", count))?;
    } else {
        out.line(&format!("{result} {count}"))?;
    }
    if count == 0 { Err(Problem::Nothing) } else { Ok(()) }
}
