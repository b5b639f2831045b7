//! One timer with all that is known of it, and the page that asks before something is done for good.

use std::fmt::Write;

use tickwheel_durable::{Error, HistoryFilter, Repetition, State, Timer};

use crate::action::{Action, SAID};
use crate::html::{Html, html};
use crate::link::Query;
use crate::sight::{Answer, Result, Sight};
use crate::times::span;
use crate::views::lists::{self, Place};
use crate::views::{Frame, Shown, frame, overview};

/// So many of a timer's attempts are shown.
const ATTEMPTS: u32 = 100;
/// So many characters of a payload that is text, or of an error.
const MOST_TEXT: usize = 4096;
/// So many bytes of one that is not.
const MOST_BYTES: usize = 1024;

pub(crate) async fn show(frame: &Frame<'_>, sight: &Sight) -> Result<Shown> {
    let query = frame.query;
    let (kind, key) = named(query)?;
    let Answer { of: now, missing } = sight.now().await?;
    let timer = sight.get(query, kind, key).await?;
    let past = sight.history(&HistoryFilter::new().kind(kind).key(key).limit(ATTEMPTS)).await?;
    let mut page = Html::default();
    html!(page; r#"<h2><small><a href=""# [Query::new("").with("kind", kind).link()] r#"">"#);
    frame::name(&mut page, kind);
    html!(page; "</a></small> ");
    frame::name(&mut page, key);
    html!(page; "</h2>");
    let is_there = timer.is_some() || !past.of.is_empty();
    match &timer {
        Some(timer) => {
            html!(page; r#"<div class="card"><dl><dt>State</dt><dd>"#);
            lists::state(&mut page, timer);
            html!(page; "</dd><dt>Due</dt><dd>");
            lists::time(&mut page, timer.due, now);
            html!(page; " · " {crate::times::utc(timer.due)} "</dd>");
            if let Some(wake) = timer.wake.filter(|wake| *wake != timer.due) {
                let name =
                    if timer.state == State::Running { "Lease ends" } else { "Next attempt" };
                html!(page; "<dt>" {name} "</dt><dd>");
                lists::time(&mut page, wake, now);
                html!(page; "</dd>");
            }
            html!(page; "<dt>Attempts</dt><dd>" {timer.attempts});
            if let Some(most) = timer.max_attempts {
                html!(page; " of " {most});
            }
            html!(page; "</dd>");
            match &timer.repetition {
                Some(Repetition::Every(period)) => {
                    html!(page; "<dt>Series</dt><dd>every " {span(*period)} "</dd>");
                }
                Some(Repetition::Rule(rule)) => {
                    html!(page; "<dt>Series</dt><dd><bdi>");
                    frame::short(&mut page, rule, MOST_TEXT);
                    html!(page; "</bdi></dd>");
                }
                _ => {}
            }
            if let Some(limit) = timer.time_limit {
                html!(page; "<dt>Time limit</dt><dd>" {span(limit)} "</dd>");
            }
            if let Some(owner) = &timer.owner {
                html!(page; "<dt>Worker</dt><dd><bdi>" {owner} "</bdi></dd>");
            }
            if let Some(trace) = &timer.trace {
                html!(page; "<dt>Trace</dt><dd><bdi>" {trace} "</bdi></dd>");
            }
            html!(page; "<dt>Fence</dt><dd>" {timer.fence} "</dd>");
            if frame.is_sharded {
                html!(page; "<dt>Database</dt><dd>number " {timer.shard} "</dd>");
            }
            if let Some(error) = &timer.error {
                html!(page; r#"<dt>Last error</dt><dd class="error"><pre><bdi>"#);
                frame::short(&mut page, error, MOST_TEXT);
                html!(page; "</bdi></pre></dd>");
            }
            html!(page; "<dt>Payload</dt><dd>");
            payload(&mut page, &timer.payload);
            html!(page; "</dd></dl></div>");
            lists::actions(&mut page, frame, timer);
            if timer.state == State::Waiting && frame.may_act {
                reset(&mut page, frame, timer);
            }
        }
        None if is_there => {
            html!(page; r#"<p class="note">The timer is not there any more: it is done, or somebody has cancelled it.</p>"#);
        }
        None => {
            html!(page; r#"<p class="note">There is no timer with this kind and key, and none is in the history.</p>"#);
        }
    }
    html!(page; "<h2>Attempts</h2>");
    lists::attempts(&mut page, frame, &past.of, now, Place::Timer);
    // The form to move it has a field, so this view stays as it is while somebody fills it in; the script sees to that.
    Ok(Shown {
        title: key.to_owned(),
        page,
        missing: missing.or(past.missing),
        is_there,
        is_live: true,
    })
}

fn named(query: &Query) -> Result<(&str, &str)> {
    let of = |name: &str| {
        query.get(name).ok_or_else(|| Error::Invalid(format!("the link names no {name}")))
    };
    Ok((of("kind")?, of("key")?))
}

fn reset(out: &mut Html, frame: &Frame<'_>, timer: &Timer) {
    let action = Action::Reset.on(&timer.kind, &timer.key, frame.shard(timer.shard));
    frame.form(out, &action, &frame.here(), |out| {
        html!(out; r#"<p class="do"><label for="number">Move it to</label><input id="number" name="number" inputmode="numeric" pattern=" *[0-9]+ *" size="6" required>"#
            r#"<select name="unit" aria-label="Unit"><option>seconds<option selected>minutes<option>hours<option>days</select> from now "#
            "<button>Move</button></p>");
    });
}

/// Writes a payload: as text if it is one, otherwise as bytes.
fn payload(out: &mut Html, payload: &[u8]) {
    let text = std::str::from_utf8(payload).ok();
    let text = text.filter(|text| !text.contains(|c: char| c.is_control() && !c.is_whitespace()));
    let count = |bytes: usize| format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" });
    let shown = match text {
        _ if payload.is_empty() => return html!(out; "none"),
        Some(text) => {
            html!(out; {count(payload.len())} " of text<pre><bdi>");
            let end = text.char_indices().nth(MOST_TEXT).map_or(text.len(), |(end, _)| end);
            html!(out; {&text[..end]});
            end
        }
        None => {
            html!(out; {count(payload.len())} "<pre>");
            let end = payload.len().min(MOST_BYTES);
            html!(out; {dump(&payload[..end])});
            end
        }
    };
    if text.is_some() {
        html!(out; "</bdi>");
    }
    html!(out; "</pre>");
    if shown < payload.len() {
        html!(out; r#"<p class="none">That is the begin. The rest is not shown: "# {count(payload.len() - shown)} ".</p>");
    }
}

/// Sixteen bytes a line, as numbers and as characters.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, line) in bytes.chunks(16).enumerate() {
        _ = write!(text, "{:06x} ", 16 * index);
        line.iter().for_each(|byte| _ = write!(text, " {byte:02x}"));
        let printable =
            |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '.' };
        _ = writeln!(
            text,
            "{:pad$}  {}",
            "",
            line.iter().map(printable).collect::<String>(),
            pad = 3 * (16 - line.len())
        );
    }
    text
}

/// Asks whether it is really to be done.
pub(crate) async fn confirm(frame: &Frame<'_>, sight: &Sight) -> Result<Shown> {
    let invalid = || Error::Invalid("the link names nothing to do".to_owned());
    let query = frame.query;
    let action = query.get("do").and_then(Action::of).ok_or_else(invalid)?;
    let kind = query.get("kind").ok_or_else(invalid)?;
    let back =
        Query::parse(query.get("back").unwrap_or_default().trim_start_matches('?').as_bytes())
            .without(&SAID);
    let mut page = Html::default();
    html!(page; r#"<div class="card narrow">"#);
    let (mut is_there, mut missing) = (true, None);
    let action = match action {
        Action::Cancel => {
            let (kind, key) = named(query)?;
            let timer = sight.get(query, kind, key).await?;
            is_there = timer.is_some();
            html!(page; "<h2>Cancel this timer?</h2><p><b>");
            frame::name(&mut page, kind);
            html!(page; "</b> ");
            frame::name(&mut page, key);
            html!(page; "</p>");
            match timer.map(|timer| (timer.state, timer.repetition.is_some())) {
                None => html!(page; "<p>It is not there any more.</p>"),
                Some((State::Running, _)) => {
                    html!(page; "<p>Its handler runs at the moment, and may go on. Nothing follows it.</p>");
                }
                Some((_, true)) => html!(page; "<p>It is removed, and the series ends.</p>"),
                Some(_) => html!(page; "<p>It is removed, and will not run.</p>"),
            }
            Some(action.on(kind, key, query.number("shard")))
        }
        Action::RequeueAll | Action::CancelAll => {
            let whole = sight.whole().await?;
            let dead = whole.of.counts.iter().find(|of| of.kind == kind).map_or(0, |of| of.dead);
            overview::warning(&mut page, &whole.of);
            missing = whole.missing;
            match action {
                Action::RequeueAll => html!(page; "<h2>Requeue all dead timers of this kind?</h2>"),
                _ => html!(page; "<h2>Cancel all dead timers of this kind?</h2>"),
            }
            html!(page; "<p><b>");
            frame::name(&mut page, kind);
            html!(page; "</b> has " {dead} " dead timers. ");
            match action {
                Action::RequeueAll => {
                    html!(page; "All of them are due at once, with all their attempts.</p>");
                }
                _ => html!(page; "They are removed, with their errors.</p>"),
            }
            Some(action.on_all(kind))
        }
        _ => return Err(invalid().into()),
    };
    html!(page; r#"<div class="do">"#);
    if let Some(action) = action.filter(|_| is_there && frame.may_act) {
        frame.form(
            &mut page,
            &action,
            &back,
            |out| html!(out; r#"<button class="strong">Yes</button>"#),
        );
    }
    html!(page; r#"<a class="button" href=""# [back.link()] r#"">Back</a></div></div>"#);
    Ok(Shown { title: "Sure?".to_owned(), page, missing, is_there: true, is_live: false })
}
