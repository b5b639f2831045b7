//! Lists of timers and of attempts, page by page.

use std::cmp::Ordering;
use std::time::{Duration, SystemTime};

use tickwheel_durable::{Attempt, Filter, HistoryFilter, Outcome, State, Timer};

use crate::action::{Action, SAID};
use crate::html::{Html, html};
use crate::link::{self, Query};
use crate::sight::{Answer, Result, Sight};
use crate::times::{beside, span, utc};
use crate::views::{Frame, Shown, View, frame};

/// So many are on one page.
const PAGE: u32 = 50;

/// Leases are shorter than this, so what runs wakes within it.
const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

/// What a table need not say in each row, because all of it stands below one title.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Anywhere,
    Kind,
    Timer,
}

impl Place {
    fn of(kind: Option<&str>) -> Place {
        if kind.is_some() { Place::Kind } else { Place::Anywhere }
    }
}

/// Names those in a state. One that runs wakes at the end of its lease, so the index need not be read behind that.
pub(crate) fn in_state(filter: Filter, state: State, now: SystemTime) -> Filter {
    let filter = filter.state(state);
    if state == State::Running { filter.until(now + LONGEST_LEASE) } else { filter }
}

/// Writes a list of timers.
pub(crate) async fn show(view: View, frame: &Frame<'_>, sight: &Sight) -> Result<Shown> {
    let query = frame.query;
    let Answer { of: now, missing } = sight.now().await?;
    let kind = query.chosen("kind");
    let mut filter = Filter::new().limit(PAGE + 1); // one more tells whether there is another page
    if let Some(kind) = kind {
        filter = filter.kind(kind);
    }
    let (name, filter) = match view {
        View::Running => ("Running", in_state(filter, State::Running, now)),
        View::Dead => ("Dead", in_state(filter, State::Dead, now)),
        View::Find => ("Found", filter.key_prefix(query.get("prefix").unwrap_or_default())),
        _ => ("Upcoming", in_state(filter, State::Waiting, now)),
    };
    let filter = match link::timer_behind(query) {
        Some(last) => filter.after(&last),
        None => filter,
    };
    let mut timers = match kind {
        None if view == View::Upcoming => upcoming(sight, link::timer_behind(query), now).await?,
        _ => sight.list(&filter).await?,
    };
    let has_more = timers.of.len() > PAGE as usize;
    timers.of.truncate(PAGE as usize);
    let mut page = Html::default();
    title(&mut page, name, kind);
    if let Some(prefix) = query.chosen("prefix") {
        html!(page; "<p>Keys that begin with <b><bdi>" {prefix} "</bdi></b></p>");
    }
    table(&mut page, frame, &timers.of, now, Place::of(kind));
    html!(page; r#"<p class="do">"#);
    if let Some(last) = timers.of.last().filter(|_| has_more) {
        let next = link::behind_timer(query.clone().without(&["wake"]).without(&SAID), last);
        html!(page; r#"<a class="button" rel="next" href=""# [next.link()] r#"">Next page</a>"#);
    }
    if let Some(kind) = kind.filter(|_| view == View::Dead && !timers.of.is_empty()) {
        frame.ask_first(&mut page, "Requeue all dead …", &Action::RequeueAll.on_all(kind));
        frame.ask_first(&mut page, "Cancel all dead …", &Action::CancelAll.on_all(kind));
    }
    html!(page; "</p>");
    let (title, missing) = (name.to_owned(), missing.or(timers.missing));
    Ok(Shown { title, page, missing, is_there: true, is_live: true })
}

/// Returns the timers of all kinds that wake next, or those that follow one. A list is in the order of kinds, so the next ones of all
/// are among the next ones of each. A kind is known as soon as its timers are counted.
async fn upcoming(
    sight: &Sight,
    last: Option<Timer>,
    now: SystemTime,
) -> Result<Answer<Vec<Timer>>> {
    let Answer { of: whole, missing } = sight.whole().await?;
    let mut next = Answer { of: Vec::new(), missing };
    for counts in whole.counts.iter().filter(|of| of.waiting + of.retrying > 0) {
        let filter = Filter::new().kind(&*counts.kind).limit(PAGE + 1);
        let filter = in_state(filter, State::Waiting, now);
        let more = match last.clone() {
            None => sight.list(&filter).await?,
            Some(mut place) => {
                // Of those that wake at the same time, the kinds before that of the last one have been shown.
                place.id = match counts.kind.cmp(&place.kind) {
                    Ordering::Less => i64::MAX,
                    Ordering::Equal => place.id,
                    Ordering::Greater => i64::MIN,
                };
                place.kind.clone_from(&counts.kind);
                sight.list(&filter.after(&place)).await?
            }
        };
        next.missing = next.missing.or(more.missing);
        next.of.extend(more.of);
        next.of.sort_by_cached_key(|of| (of.wake, of.kind.clone(), of.id, of.shard));
        next.of.truncate(PAGE as usize + 1);
    }
    Ok(next)
}

/// Writes a list of attempts.
pub(crate) async fn past(frame: &Frame<'_>, sight: &Sight) -> Result<Shown> {
    let query = frame.query;
    let Answer { of: now, missing } = sight.now().await?;
    let kind = query.chosen("kind");
    let outcome = query.chosen("outcome").and_then(Outcome::of);
    let mut filter = HistoryFilter::new().limit(PAGE + 1);
    if let Some(kind) = kind {
        filter = filter.kind(kind);
    }
    if let Some(outcome) = outcome {
        filter = filter.outcome(outcome);
    }
    if let Some(last) = link::attempt_behind(query) {
        filter = filter.before(&last);
    }
    let mut past = sight.history(&filter).await?;
    let has_more = past.of.len() > PAGE as usize;
    past.of.truncate(PAGE as usize);
    let mut page = Html::default();
    title(&mut page, "Past", kind);
    html!(page; r#"<nav aria-label="Outcomes">"#);
    let plain = Query::new("past").with_some("kind", kind);
    for (of, name) in [
        (None, "All"),
        (Some(Outcome::Done), "Done"),
        (Some(Outcome::Failed), "Failed"),
        (Some(Outcome::Dead), "Died"),
        (Some(Outcome::Snoozed), "Snoozed"),
    ] {
        html!(page; r#"<a href=""# [plain.clone().with_some("outcome", of.map(Outcome::name)).link()] r#"""#);
        if of == outcome {
            html!(page; r#" aria-current="true""#);
        }
        html!(page; ">" {name} "</a>");
    }
    html!(page; "</nav>");
    attempts(&mut page, frame, &past.of, now, Place::of(kind));
    if let Some(last) = past.of.last().filter(|_| has_more) {
        let next = link::behind_attempt(query.clone().without(&SAID), last);
        html!(page; r#"<p><a class="button" rel="next" href=""# [next.link()] r#"">Earlier</a></p>"#);
    }
    let (title, missing) = ("Past".to_owned(), missing.or(past.missing));
    Ok(Shown { title, page, missing, is_there: true, is_live: true })
}

fn title(out: &mut Html, name: &'static str, kind: Option<&str>) {
    html!(out; "<h2>" {name});
    if let Some(kind) = kind {
        html!(out; r#" <small>of <a href=""# [Query::new("").with("kind", kind).link()] r#"">"#);
        frame::name(out, kind);
        html!(out; "</a></small>");
    }
    html!(out; "</h2>");
}

/// Writes timers, a row each.
pub(crate) fn table(
    out: &mut Html,
    frame: &Frame<'_>,
    timers: &[Timer],
    now: SystemTime,
    place: Place,
) {
    if timers.is_empty() {
        html!(out; r#"<div class="card"><p class="none">None.</p></div>"#);
        return;
    }
    html!(out; r#"<div class="scroll"><table class="cards"><thead><tr>"#);
    if place == Place::Anywhere {
        html!(out; r#"<th scope="col">Kind"#);
    }
    html!(out; r#"<th scope="col">Key<th scope="col">State<th scope="col">Due<th scope="col" class="n">Attempts<th scope="col">Last error<th scope="col">"#
        "</tr></thead><tbody>");
    for timer in timers {
        html!(out; "<tr>");
        if place == Place::Anywhere {
            html!(out; r#"<td data-of="Kind"><a href=""# [Query::new("").with("kind", &timer.kind).link()] r#"">"#);
            frame::name(out, &timer.kind);
            html!(out; "</a></td>");
        }
        html!(out; r#"<th scope="row"><a href=""# [link::to_timer(&timer.kind, &timer.key, frame.shard(timer.shard)).link()] r#"">"#);
        frame::name(out, &timer.key);
        html!(out; "</a></th><td>");
        state(out, timer);
        html!(out; r#"</td><td class="t" data-of="Due">"#);
        time(out, timer.due, now);
        html!(out; r#"</td><td class="n" data-of="Attempts">"# {timer.attempts} r#"</td><td class="wide error">"#);
        if let Some(error) = &timer.error {
            html!(out; "<bdi>");
            frame::short(out, error, 120);
            html!(out; "</bdi>");
        }
        html!(out; r#"</td><td class="wide">"#);
        actions(out, frame, timer);
        html!(out; "</td></tr>");
    }
    html!(out; "</tbody></table></div>");
}

/// Writes what can be done with a timer as it is now.
pub(crate) fn actions(out: &mut Html, frame: &Frame<'_>, timer: &Timer) {
    let on = |action: Action| action.on(&timer.kind, &timer.key, frame.shard(timer.shard));
    html!(out; r#"<div class="do">"#);
    match timer.state {
        State::Waiting => frame.button(out, "Run now", &on(Action::Reset)),
        State::Dead => frame.button(out, "Requeue", &on(Action::Requeue)),
        _ => {}
    }
    frame.ask_first(out, "Cancel …", &on(Action::Cancel));
    html!(out; "</div>");
}

/// Writes the state of a timer. One that waits for another attempt says when that is.
pub(crate) fn state(out: &mut Html, timer: &Timer) {
    let name = match timer.state {
        State::Waiting if timer.attempts > 0 => "retrying",
        state => state.name(),
    };
    html!(out; r#"<span class="state "# [name] r#"">"# {name} "</span>");
}

/// Writes a time, which the pointer shows in full.
pub(crate) fn time(out: &mut Html, time: SystemTime, now: SystemTime) {
    html!(out; r#"<time title=""# [utc(time)] r#"">"# {beside(time, now)} "</time>");
}

/// Writes attempts, a row each.
pub(crate) fn attempts(
    out: &mut Html,
    frame: &Frame<'_>,
    attempts: &[Attempt],
    now: SystemTime,
    place: Place,
) {
    if attempts.is_empty() {
        html!(out; r#"<div class="card"><p class="none">None is in the history.</p></div>"#);
        return;
    }
    html!(out; r#"<div class="scroll"><table class="cards"><thead><tr>"#);
    if place == Place::Anywhere {
        html!(out; r#"<th scope="col">Kind"#);
    }
    if place != Place::Timer {
        html!(out; r#"<th scope="col">Key"#);
    }
    html!(out; r#"<th scope="col">Outcome<th scope="col">Began<th scope="col" class="n">Late by<th scope="col" class="n">Took"#
        r#"<th scope="col" class="n">Attempt<th scope="col">Error<th scope="col">Worker</tr></thead><tbody>"#);
    for of in attempts {
        html!(out; "<tr>");
        if place == Place::Anywhere {
            html!(out; r#"<td data-of="Kind"><a href=""# [Query::new("").with("kind", &of.kind).link()] r#"">"#);
            frame::name(out, &of.kind);
            html!(out; "</a></td>");
        }
        if place != Place::Timer {
            html!(out; r#"<th scope="row"><a href=""# [link::to_timer(&of.kind, &of.key, frame.shard(of.shard)).link()] r#"">"#);
            frame::name(out, &of.key);
            html!(out; "</a></th>");
        }
        html!(out; r#"<td><span class="state "# [of.outcome.name()] r#"">"# {of.outcome.name()} r#"</span></td><td class="t">"#);
        time(out, of.started, now);
        html!(out; r#"</td><td class="n" data-of="Late by">"# {span(of.late)} r#"</td><td class="n" data-of="Took">"# {span(of.took)}
            r#"</td><td class="n" data-of="Attempt">"# {of.attempt} r#"</td><td class="wide error">"#);
        if let Some(error) = &of.error {
            html!(out; "<bdi>");
            frame::short(out, error, if place == Place::Timer { 2000 } else { 120 });
            html!(out; "</bdi>");
        }
        html!(out; r#"</td><td class="wide" data-of="Worker"><bdi>"#);
        frame::short(out, &of.worker, 60);
        html!(out; "</bdi></td></tr>");
    }
    html!(out; "</tbody></table></div>");
}
