//! The overview: pictures of the last hour and a table of the kinds; and the same of one kind, with what it has next.

use std::time::{Duration, SystemTime};

use tickwheel_durable::{Filter, HistoryFilter, KindCounts, State};

use crate::action::Action;
use crate::html::{Html, html};
use crate::link::Query;
use crate::picture::{self, LastHour};
use crate::sight::{Answer, Result, Sight, Whole};
use crate::times::span;
use crate::views::lists::{self, Place};
use crate::views::{Frame, Shown, View, frame};

/// So many timers of each state are on the page of a kind.
const FEW: u32 = 5;

pub(crate) async fn show(frame: &Frame<'_>, sight: &Sight) -> Result<Shown> {
    let whole = sight.whole().await?;
    let (of, now) = (&whole.of, whole.of.now);
    let Some(kind) = frame.query.get("kind") else {
        let mut page = Html::default();
        warning(&mut page, of);
        summary(&mut page, of, None, now);
        let missing = dead(&mut page, frame, sight, of, now).await?;
        kinds(&mut page, of, now);
        age(&mut page, of.age);
        let (title, missing) = ("Overview".to_owned(), whole.missing.or(missing));
        return Ok(Shown { title, page, missing, is_there: true, is_live: true });
    };
    let mut page = Html::default();
    html!(page; "<h2><small>Kind</small> " );
    frame::name(&mut page, kind);
    html!(page; "</h2>");
    warning(&mut page, of);
    summary(&mut page, of, Some(kind), now);
    let all = Filter::new().kind(kind).limit(FEW);
    let mut missing = whole.missing.clone();
    for (view, name, state) in [
        (View::Upcoming, "Upcoming", State::Waiting),
        (View::Running, "Running", State::Running),
        (View::Dead, "Dead", State::Dead),
    ] {
        let timers = sight.list(&lists::in_state(all.clone(), state, now)).await?;
        missing = missing.or(timers.missing);
        title(&mut page, name, view, kind);
        lists::table(&mut page, frame, &timers.of, now, Place::Kind);
        if state == State::Dead && !timers.of.is_empty() {
            html!(page; r#"<p class="do">"#);
            frame.ask_first(&mut page, "Requeue all dead …", &Action::RequeueAll.on_all(kind));
            frame.ask_first(&mut page, "Cancel all dead …", &Action::CancelAll.on_all(kind));
            html!(page; "</p>");
        }
    }
    title(&mut page, "Past", View::Past, kind);
    let past = sight.history(&HistoryFilter::new().kind(kind).limit(FEW)).await?;
    missing = missing.or(past.missing);
    lists::attempts(&mut page, frame, &past.of, now, Place::Kind);
    age(&mut page, of.age);
    Ok(Shown { title: kind.to_owned(), page, missing, is_there: true, is_live: true })
}

/// Writes some of the dead timers, because they wait for an operator. Each kind that has any is asked by itself, so that the index
/// finds them.
async fn dead(
    out: &mut Html,
    frame: &Frame<'_>,
    sight: &Sight,
    whole: &Whole,
    now: SystemTime,
) -> Result<Option<String>> {
    let mut some = Answer { of: Vec::new(), missing: None };
    for counts in whole.counts.iter().filter(|of| of.dead > 0).take(FEW as usize) {
        let limit = FEW.saturating_sub(some.of.len() as u32);
        let filter = Filter::new().kind(&*counts.kind).state(State::Dead).limit(limit);
        let more = sight.list(&filter).await?;
        some.of.extend(more.of);
        some.missing = some.missing.or(more.missing);
    }
    if !some.of.is_empty() {
        html!(out; r#"<h2><a href=""# [Query::new(View::Dead.name()).link()] r#"">Dead</a></h2>"#);
        lists::table(out, frame, &some.of, now, Place::Anywhere);
    }
    Ok(some.missing)
}

fn title(out: &mut Html, name: &'static str, view: View, kind: &str) {
    html!(out; r#"<h2><a href=""# [Query::new(view.name()).with("kind", kind).link()] r#"">"# {name} "</a></h2>");
}

fn age(out: &mut Html, age: Duration) {
    html!(out; r#"<p class="age">Counts and pictures as they were "# {span(age)} " ago.</p>");
}

/// Says that counts are older than they should be (SIGHT-2).
pub(crate) fn warning(out: &mut Html, whole: &Whole) {
    if whole.is_old {
        html!(out; r#"<p class="note" role="alert"><b>These counts are old.</b> They were read "# {span(whole.age)}
            " ago, and the database has not answered since.</p>");
    }
}

/// Writes the numbers and pictures, of all kinds or of one.
fn summary(out: &mut Html, whole: &Whole, kind: Option<&str>, now: SystemTime) {
    let is_of = |of: &str| kind.is_none_or(|kind| kind == of);
    let counts = || whole.counts.iter().filter(|of| is_of(&of.kind));
    let sum = |of: fn(&KindCounts) -> u64| counts().map(of).sum::<u64>();
    let lag = counts().map(|of| of.lag).max().unwrap_or_default();
    let hour = LastHour::of(whole.pace.iter().filter(|of| is_of(&of.kind)), now);
    html!(out; r#"<div class="tiles"><div>Waiting<b>"# {sum(|of| of.waiting)} "</b></div><div>Retrying<b>" {sum(|of| of.retrying)}
        "</b></div><div>Running<b>" {sum(|of| of.running)} "</b></div>");
    let dead = sum(|of| of.dead);
    tile(out, "Dead", dead > 0, dead);
    tile(out, "Lag", lag > Duration::from_secs(10), span(lag));
    if hour.runs() > 0 {
        tile(out, "Done, last hour", false, hour.done());
        tile(out, "Failed, last hour", false, hour.failed());
    }
    html!(out; "</div>");
    if hour.runs() == 0 {
        html!(out; r#"<div class="card"><b>No run of the last hour is in the history.</b> Workers keep one if they are told to, for "#
            "example with <code>timers.worker().history(Duration::from_secs(86_400))</code>: what ran, when, how late and how long. Then "
            "pictures of pace and lateness are here.</div>");
        return;
    }
    html!(out; r#"<div class="pictures">"#);
    picture::pace(out, &hour);
    picture::lateness(out, &hour);
    html!(out; "</div>");
}

fn tile(out: &mut Html, name: &'static str, is_bad: bool, value: impl std::fmt::Display) {
    if is_bad {
        html!(out; r#"<div class="bad">"#);
    } else {
        html!(out; "<div>");
    }
    html!(out; {name} "<b>" {value} "</b></div>");
}

/// Writes the table of the kinds: those that have timers, and those that ran in the last hour.
fn kinds(out: &mut Html, whole: &Whole, now: SystemTime) {
    let mut names: Vec<&str> = whole.counts.iter().map(|of| &*of.kind).collect();
    names.extend(whole.pace.iter().map(|of| &*of.kind));
    names.sort_unstable();
    names.dedup();
    html!(out; "<h2>Kinds</h2>");
    if names.is_empty() {
        html!(out; r#"<div class="card"><p class="none">There is no timer.</p></div>"#);
        return;
    }
    html!(out; r#"<div class="scroll"><table class="cards"><thead><tr><th scope="col">Kind<th scope="col" class="n">Waiting"#
        r#"<th scope="col" class="n">Retrying<th scope="col" class="n">Running<th scope="col" class="n">Dead<th scope="col" class="n">Lag"#
        r#"<th scope="col">Runs of the last hour<th scope="col" class="n">Done<th scope="col" class="n">Failed"#
        r#"<th scope="col" class="n">Late, mean<th scope="col" class="n">Late, at most</tr></thead><tbody>"#);
    for name in names {
        let none = KindCounts::new(name);
        let counts = whole.counts.iter().find(|of| of.kind == name).unwrap_or(&none);
        let hour = LastHour::of(whole.pace.iter().filter(|of| of.kind == name), now);
        html!(out; r#"<tr><th scope="row"><a href=""# [Query::new("").with("kind", name).link()] r#"">"#);
        frame::name(out, name);
        html!(out; "</a></th>");
        let to = |view: View| Query::new(view.name()).with("kind", name).link();
        count(out, "Waiting", counts.waiting, Some(to(View::Upcoming)));
        count(out, "Retrying", counts.retrying, Some(to(View::Upcoming)));
        count(out, "Running", counts.running, Some(to(View::Running)));
        count(out, "Dead", counts.dead, Some(to(View::Dead)));
        html!(out; r#"<td class="n" data-of="Lag">"# {span(counts.lag)} r#"</td><td class="wide">"#);
        picture::row_of_bars(out, &hour);
        html!(out; "</td>");
        count(out, "Done", hour.done(), Some(to(View::Past)));
        count(out, "Failed", hour.failed(), None);
        let of_runs = |late: Duration| if hour.runs() == 0 { "–".to_owned() } else { span(late) };
        html!(out; r#"<td class="n" data-of="Late, mean">"# {of_runs(hour.late())} r#"</td><td class="n" data-of="Late, at most">"#
            {of_runs(hour.max_late())} "</td></tr>");
    }
    html!(out; "</tbody></table></div>");
}

fn count(out: &mut Html, name: &'static str, count: u64, link: Option<String>) {
    match link.filter(|_| count > 0) {
        _ if count == 0 => html!(out; r#"<td class="n zero" data-of=""# [name] r#"">0</td>"#),
        Some(link) => {
            html!(out; r#"<td class="n" data-of=""# [name] r#""><a href=""# [link] r#"">"# {count} "</a></td>");
        }
        None => html!(out; r#"<td class="n" data-of=""# [name] r#"">"# {count} "</td>"),
    }
}
