//! The commands that look: `list`, `show` and `history`. They change nothing.

use std::time::SystemTime;

use tickwheel_durable::{
    Attempt, Filter, HistoryFilter, Outcome as Ended, Repetition, State, Timer, Timers,
};

use crate::arguments;
use crate::output::{Cell, Column, Look, Object, Output, Style, Table, count, tell};
use crate::problem::{Outcome, Problem};
use crate::text::clean;
use crate::times::{Limit, milliseconds, precise, relative, rfc3339};

/// How many are read at a time.
const PAGE: u32 = 1000;

/// How many attempts `show` shows.
const LAST_ATTEMPTS: u32 = 20;

/// Returns the filter of the options, without a limit.
pub(crate) fn filter(which: arguments::Which, now: SystemTime) -> Filter {
    let mut filter = Filter::new();
    if let Some(kind) = which.kind {
        filter = filter.kind(kind);
    }
    if let Some(state) = which.state {
        filter = filter.state(state.into());
    }
    if let Some(prefix) = which.prefix {
        filter = filter.key_prefix(prefix);
    }
    match which.until {
        Some(Limit::At(time)) => filter.until(time),
        Some(Limit::Away(delay)) => filter.until(now + delay),
        None => filter,
    }
}

/// Gives page after page to `print`, until there is nothing more or the limit is reached. Returns true if there is more.
fn pages<T>(
    pages: &arguments::Pages,
    read: impl Fn(Option<&T>, u32) -> tickwheel_durable::Result<Vec<T>>,
    mut print: impl FnMut(&[T]) -> Outcome,
) -> Result<bool, Problem> {
    let mut left = if pages.all { u64::MAX } else { pages.limit.into() };
    let mut last = None;
    let mut is_first = true;
    loop {
        // One more than is printed tells whether there is more.
        let most = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
        let mut page = read(last.as_ref(), most + 1)?;
        let has_more = page.len() > most as usize;
        page.truncate(most as usize);
        if page.is_empty() {
            return if is_first && !has_more { Err(Problem::Nothing) } else { Ok(has_more) };
        }
        is_first = false;
        print(&page)?;
        left -= page.len() as u64;
        if !has_more || left == 0 {
            return Ok(has_more);
        }
        last = page.pop();
    }
}

/// Tells people whether that was all.
pub(crate) fn tell_of_more(more: Result<bool, Problem>, out: &Output) -> Outcome {
    match &more {
        Ok(true) => tell("There are more: give --all or a larger --limit."),
        Err(Problem::Nothing) if !out.json => tell("There are none."),
        _ => {}
    }
    more.map(|_| ())
}

pub(crate) fn list(timers: &Timers, of: arguments::List, out: &mut Output) -> Outcome {
    let now = timers.now()?;
    let filter = filter(of.which, now);
    let mut table = timers_table();
    let read = |last: Option<&Timer>, limit| {
        let filter = filter.clone().limit(limit);
        timers.list(&last.map_or(filter.clone(), |last| filter.after(last)))
    };
    let more = pages(&of.pages, read, |page| {
        if out.json {
            page.iter().try_for_each(|timer| out.object(timer_object(timer)))?;
        } else {
            page.iter().for_each(|timer| table.add(timer_row(timer, now)));
            out.table(&mut table)?;
        }
        Ok(out.flush()?)
    });
    tell_of_more(more, out)
}

pub(crate) fn timers_table() -> Table {
    Table::new(&[
        Column::flexible("KIND"),
        Column::flexible("KEY"),
        Column::new("STATE"),
        Column::new("DUE"),
        Column::new(""),
        Column::number("TRIES"),
        Column::flexible("ERROR"),
    ])
}

pub(crate) fn timer_row(timer: &Timer, now: SystemTime) -> Vec<Cell> {
    let (state, style) = state_of(timer);
    // A timer that is tried again was due before. When it is tried is what matters then.
    let wake = match timer.state {
        State::Waiting => timer.wake.unwrap_or(timer.due),
        _ => timer.due,
    };
    vec![
        Cell::from(&timer.kind),
        Cell::from(&timer.key),
        Cell::new(state, style),
        Cell::from(rfc3339(wake, 0)),
        Cell::from(relative(wake, now)),
        count(timer.attempts.into(), Style::Plain),
        Cell::from(timer.error.as_deref().unwrap_or_default()),
    ]
}

/// Returns the state in which people count a timer: one that waits for another attempt is retried.
fn state_of(timer: &Timer) -> (&'static str, Style) {
    match timer.state {
        State::Waiting if timer.attempts > 0 => ("retrying", Style::Warning),
        State::Waiting => ("waiting", Style::Plain),
        State::Running => ("running", Style::Good),
        State::Dead => ("dead", Style::Bad),
        other => (other.name(), Style::Plain),
    }
}

pub(crate) fn timer_object(timer: &Timer) -> Object {
    let (period, rule) = match &timer.repetition {
        Some(Repetition::Every(period)) => (Some(period.as_millis()), None),
        Some(Repetition::Rule(rule)) => (None, Some(rule.as_str())),
        _ => (None, None),
    };
    Object::new()
        .text("kind", &*timer.kind)
        .text("key", &*timer.key)
        .text("state", timer.state.name())
        .time("due", timer.due)
        .time("wake", timer.wake)
        .number("attempts", timer.attempts)
        .text("error", timer.error.as_deref())
        .payload("payload", &timer.payload)
        .perhaps("period_ms", period)
        .text("rule", rule)
        .perhaps("max_attempts", timer.max_attempts)
        .perhaps("time_limit_ms", timer.time_limit.map(|limit| limit.as_millis()))
        .text("trace", timer.trace.as_deref())
        .text("owner", timer.owner.as_deref())
        .number("fence", timer.fence)
        .number("shard", timer.shard)
        .number("id", timer.id)
}

pub(crate) fn show(timers: &Timers, of: arguments::Show, out: &mut Output) -> Outcome {
    let arguments::Name { kind, key } = of.name;
    let timer = timers.get(&kind, &key)?;
    if of.payload {
        let timer = timer.ok_or(Problem::Nothing)?;
        return show_bytes(&timer.payload, out);
    }
    let filter = HistoryFilter::new().kind(&*kind).key(&*key).limit(LAST_ATTEMPTS);
    let attempts = timers.history(&filter)?;
    if out.json {
        let object = match &timer {
            Some(timer) => timer_object(timer),
            None => {
                Object::new().text("kind", &*kind).text("key", &*key).text("state", None::<&str>)
            }
        };
        out.object(object.list("history", attempts.iter().map(attempt_object)))?;
    } else {
        let now = timers.now()?;
        match &timer {
            Some(timer) => show_fields(timer, now, out)?,
            None => out.line(&format!(
                "{} {} is not there: it is done, was cancelled, or never was.",
                clean(&kind),
                clean(&key)
            ))?,
        }
        if !attempts.is_empty() {
            out.line("")?;
            let mut table = attempts_table(false);
            attempts.iter().for_each(|attempt| table.add(attempt_row(attempt, now, false)));
            out.table(&mut table)?;
        }
    }
    timer.map(|_| ()).ok_or(Problem::Nothing)
}

/// Prints bytes as they are, but for a terminal, which gets no more than it can show (CLEAN-1).
fn show_bytes(payload: &[u8], out: &mut Output) -> Outcome {
    if !out.is_terminal {
        return Ok(out.bytes(payload)?);
    }
    for line in payload_lines(payload) {
        out.line(&line)?;
    }
    Ok(())
}

fn show_fields(timer: &Timer, now: SystemTime, out: &mut Output) -> Outcome {
    let at = |time| format!("{} ({})", rfc3339(time, 3), relative(time, now));
    let (state, style) = state_of(timer);
    let mut fields = vec![
        ("kind", Cell::from(&timer.kind)),
        ("key", Cell::from(&timer.key)),
        ("state", Cell::new(state, style)),
        ("due", Cell::from(at(timer.due))),
    ];
    let mut add = |name, text: Option<String>| {
        fields.extend(text.map(|text| (name, Cell::from(text))));
    };
    let (wakes, is_other) = match timer.state {
        State::Running => ("lease ends", true),
        _ => ("tried again", timer.wake != Some(timer.due)),
    };
    add(wakes, timer.wake.filter(|_| is_other).map(at));
    add(
        "period",
        match &timer.repetition {
            Some(Repetition::Every(period)) => Some(format!("{period:?}")),
            _ => None,
        },
    );
    add(
        "rule",
        match &timer.repetition {
            Some(Repetition::Rule(rule)) => Some(rule.clone()),
            _ => None,
        },
    );
    let most = timer.max_attempts.map(|most| format!(" of {most}")).unwrap_or_default();
    add("attempts", Some(format!("{}{most}", timer.attempts)));
    add("time limit", timer.time_limit.map(precise));
    add("trace", timer.trace.clone());
    add("worker", timer.owner.clone());
    add("fence", (timer.fence != 0).then(|| timer.fence.to_string()));
    add("shard", (timer.shard != 0).then(|| timer.shard.to_string()));
    add("error", timer.error.clone());
    let count = timer.payload.len();
    add("payload", Some(if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }));
    // A field is not cut, whatever the width is: all of it is what was asked for.
    let look = Look { width: None, ..out.look };
    let mut table = Table::headless(2);
    for (name, cell) in fields {
        table.add(vec![Cell::new(name, Style::Head), cell]);
    }
    table.lines(look).iter().try_for_each(|line| out.line(line))?;
    payload_lines(&timer.payload).iter().try_for_each(|line| out.line(&format!("  {line}")))?;
    Ok(())
}

/// Returns a payload as lines: a text, or what is none as bytes in hexadecimal.
fn payload_lines(payload: &[u8]) -> Vec<String> {
    if let Ok(text) = std::str::from_utf8(payload) {
        return text.lines().map(|line| clean(line).into_owned()).collect();
    }
    let hexadecimal = |bytes: &[u8]| {
        let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = |byte: &u8| {
            let is_shown = byte.is_ascii_graphic() || *byte == b' ';
            if is_shown { char::from(*byte) } else { '.' }
        };
        let text: String = bytes.iter().map(shown).collect();
        format!("{:<47}  {text}", digits.join(" "))
    };
    payload.chunks(16).map(hexadecimal).collect()
}

pub(crate) fn history(timers: &Timers, of: arguments::History, out: &mut Output) -> Outcome {
    let now = timers.now()?;
    let mut filter = HistoryFilter::new();
    if let Some(kind) = of.kind {
        filter = filter.kind(kind);
    }
    if let Some(key) = of.key {
        filter = filter.key(key);
    }
    if let Some(outcome) = of.outcome {
        filter = filter.outcome(match outcome {
            arguments::Outcome::Done => Ended::Done,
            arguments::Outcome::Failed => Ended::Failed,
            arguments::Outcome::Dead => Ended::Dead,
            arguments::Outcome::Snoozed => Ended::Snoozed,
        });
    }
    match of.since {
        Some(Limit::At(time)) => filter = filter.since(time),
        Some(Limit::Away(delay)) => {
            filter = filter.since(now.checked_sub(delay).unwrap_or(SystemTime::UNIX_EPOCH));
        }
        None => {}
    }
    let mut table = attempts_table(true);
    let read = |last: Option<&Attempt>, limit| {
        let filter = filter.clone().limit(limit);
        timers.history(&last.map_or(filter.clone(), |last| filter.before(last)))
    };
    let more = pages(&of.pages, read, |page| {
        if out.json {
            page.iter().try_for_each(|attempt| out.object(attempt_object(attempt)))?;
        } else {
            page.iter().for_each(|attempt| table.add(attempt_row(attempt, now, true)));
            out.table(&mut table)?;
        }
        Ok(out.flush()?)
    });
    tell_of_more(more, out)
}

fn attempts_table(is_named: bool) -> Table {
    let names = [Column::flexible("KIND"), Column::flexible("KEY")];
    let rest = [
        Column::new("BEGAN"),
        Column::new(""),
        Column::number("LATE"),
        Column::number("TOOK"),
        Column::number("TRY"),
        Column::new("OUTCOME"),
        Column::flexible("ERROR"),
    ];
    let names = if is_named { &names[..] } else { &[] };
    Table::new(&[names, &rest].concat())
}

fn attempt_row(attempt: &Attempt, now: SystemTime, is_named: bool) -> Vec<Cell> {
    let style = match attempt.outcome {
        Ended::Done => Style::Good,
        Ended::Failed => Style::Warning,
        Ended::Dead => Style::Bad,
        _ => Style::Plain,
    };
    let names = [Cell::from(&attempt.kind), Cell::from(&attempt.key)];
    let rest = [
        Cell::from(rfc3339(attempt.started, 0)),
        Cell::from(relative(attempt.started, now)),
        Cell::from(precise(attempt.late)),
        Cell::from(precise(attempt.took)),
        Cell::from(attempt.attempt.to_string()),
        Cell::new(attempt.outcome.name(), style),
        Cell::from(attempt.error.as_deref().unwrap_or_default()),
    ];
    let names = names.into_iter().filter(|_| is_named);
    names.chain(rest).collect()
}

fn attempt_object(attempt: &Attempt) -> Object {
    Object::new()
        .text("kind", &*attempt.kind)
        .text("key", &*attempt.key)
        .time("due", attempt.due)
        .time("started", attempt.started)
        .number("late_ms", milliseconds(attempt.late))
        .number("took_ms", milliseconds(attempt.took))
        .number("attempt", attempt.attempt)
        .text("outcome", attempt.outcome.name())
        .text("error", attempt.error.as_deref())
        .text("worker", &*attempt.worker)
        .text("trace", attempt.trace.as_deref())
        .number("fence", attempt.fence)
        .number("shard", attempt.shard)
        .number("id", attempt.id)
}
