//! The pictures: runs in each minute of the last hour, and how late they were, as SVG that is drawn here.
//!
//! Each has a title and a description that tell in words what it shows, and each minute says its numbers when the pointer is on it.
//! Colours are classes of `page.css`, for light and dark. They differ in lightness too, for those who see no red or green.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a pixel is coarser than a float, and scales begin at 0"
)]

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use tickwheel_durable::Pace;

use crate::html::{Html, html};
use crate::sight::{HOUR, STEP};
use crate::times::{clock, micros, span};

/// The minutes of an hour: one more than sixty, because it begins and ends in the middle of a minute.
const MINUTES: usize = (HOUR.as_secs() / STEP.as_secs()) as usize + 1;

/// What ran in one minute.
#[derive(Clone, Copy, Default)]
struct Minute {
    done: u64,
    failed: u64,
    dead: u64,
    snoozed: u64,
    late: Duration,
    max_late: Duration,
}

impl Minute {
    fn runs(&self) -> u64 {
        self.done + self.failed + self.dead + self.snoozed
    }

    /// By their classes in the style, from below.
    fn parts(&self) -> [(&'static str, u64); 4] {
        [
            ("done", self.done),
            ("failed", self.failed),
            ("dead", self.dead),
            ("snoozed", self.snoozed),
        ]
    }

    fn add(&mut self, other: &Minute) {
        let runs = self.runs() + other.runs();
        if runs > 0 {
            let sum = |of: &Minute| of.late.as_secs_f64() * of.runs() as f64;
            // The sum of two spans that exist may be longer than any, but their mean is not.
            let mean = (sum(self) + sum(other)) / runs as f64;
            self.late = Duration::try_from_secs_f64(mean).unwrap_or_default();
        }
        self.done += other.done;
        self.failed += other.failed;
        self.dead += other.dead;
        self.snoozed += other.snoozed;
        self.max_late = self.max_late.max(other.max_late);
    }
}

/// The last hour, minute by minute, of one kind or of all.
pub(crate) struct LastHour {
    begin: SystemTime,
    minutes: [Minute; MINUTES],
}

impl LastHour {
    pub(crate) fn of<'a>(pace: impl IntoIterator<Item = &'a Pace>, now: SystemTime) -> LastHour {
        let step = STEP.as_micros() as i64;
        let number = |time: SystemTime| micros(time).div_euclid(step);
        let first = number(now) - i64::try_from(MINUTES - 1).unwrap_or(0);
        let begin = crate::times::from_micros(first * step).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut minutes = [Minute::default(); MINUTES];
        for of in pace {
            let index = usize::try_from(number(of.at) - first).ok();
            let Some(minute) = index.and_then(|index| minutes.get_mut(index)) else { continue };
            minute.add(&Minute {
                done: of.done,
                failed: of.failed,
                dead: of.dead,
                snoozed: of.snoozed,
                late: of.late,
                max_late: of.max_late,
            });
        }
        LastHour { begin, minutes }
    }

    fn sum(&self) -> Minute {
        let mut sum = Minute::default();
        self.minutes.iter().for_each(|minute| sum.add(minute));
        sum
    }

    pub(crate) fn done(&self) -> u64 {
        self.sum().done
    }

    pub(crate) fn failed(&self) -> u64 {
        self.sum().failed + self.sum().dead
    }

    pub(crate) fn runs(&self) -> u64 {
        self.sum().runs()
    }

    pub(crate) fn late(&self) -> Duration {
        self.sum().late
    }

    pub(crate) fn max_late(&self) -> Duration {
        self.sum().max_late
    }

    fn each(&self) -> impl Iterator<Item = (f64, String, &Minute)> {
        self.minutes.iter().enumerate().map(|(index, minute)| {
            let x = LEFT + WIDTH * index as f64 / MINUTES as f64;
            (x, clock(self.begin + STEP * index as u32), minute)
        })
    }
}

// The area of a picture within its view box of 480 by 200.
const LEFT: f64 = 64.0; // for "100 ms" on a phone
const WIDTH: f64 = 408.0;
const TOP: f64 = 10.0;
const HEIGHT: f64 = 160.0;
const BOTTOM: f64 = TOP + HEIGHT;
const BAR: f64 = WIDTH / MINUTES as f64;

/// Draws how many runs ended in each minute: done, failed and dead, one above the other.
pub(crate) fn pace(out: &mut Html, hour: &LastHour) {
    let most = hour.minutes.iter().map(Minute::runs).max().unwrap_or(0);
    let (step, top) = round_steps(most);
    let sum = hour.sum();
    html!(out; r#"<figure><figcaption id="pace-title">Runs per minute</figcaption>"#
        r#"<svg viewBox="0 0 480 200" role="img" aria-labelledby="pace-title pace-words"><desc id="pace-words">"#);
    html!(out; "In the last hour " {sum.done} " runs were done, " {sum.failed} " failed and were tried again, and " {sum.dead}
        " timers died. The most in a minute were " {most} " runs.</desc>");
    let y = |runs: u64| BOTTOM - HEIGHT * runs as f64 / top as f64;
    for line in (0..=top).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        grid(out, y(line), line);
    }
    for (x, time, minute) in hour.each() {
        if minute.runs() == 0 {
            continue;
        }
        html!(out; "<g><title>" {time} ": " {minute.done} " done, " {minute.failed} " failed, " {minute.dead} " died, " {minute.snoozed}
            " put off</title>");
        let mut below = 0;
        for (class, runs) in minute.parts().into_iter().filter(|(_, runs)| *runs > 0) {
            html!(out; r#"<path class=""# [class] r#"" d=""# [bar(x, y(below), y(below + runs))] r#""/>"#);
            below += runs;
        }
        html!(out; "</g>");
    }
    times(out, hour);
    html!(out; r#"</svg><p class="legend">"#);
    for ((class, runs), name) in
        sum.parts().into_iter().zip(["done", "failed, tried again", "died", "put off"])
    {
        if runs > 0 || class == "done" {
            html!(out; r#"<span class=""# [class] r#"">"# {runs} " " {name} "</span>");
        }
    }
    html!(out; "</p></figure>");
}

/// Draws how late the runs of each minute began: the mean as a line, and up to the latest one. The scale is logarithmic, because
/// a millisecond and a minute both matter.
pub(crate) fn lateness(out: &mut Html, hour: &LastHour) {
    let sum = hour.sum();
    html!(out; r#"<figure><figcaption id="late-title">Lateness</figcaption>"#
        r#"<svg viewBox="0 0 480 200" role="img" aria-labelledby="late-title late-words"><desc id="late-words">"#);
    html!(out; "In the last hour, runs began " {span(sum.late)} " late in the mean, and " {span(sum.max_late)} " at most.</desc>");
    // The powers of ten of a microsecond between which all lies: from 1 ms or less to 100 ms or more.
    let power = |late: Duration| (late.as_secs_f64() * 1e6).max(100.0).log10();
    let runs = || hour.minutes.iter().filter(|minute| minute.runs() > 0);
    let lowest = runs().map(|of| power(of.late).floor()).fold(3.0, f64::min);
    let highest = runs().map(|of| power(of.max_late).ceil()).fold(5.0, f64::max);
    let y = |late: Duration| BOTTOM - HEIGHT * (power(late) - lowest) / (highest - lowest);
    let mut line = lowest;
    while line <= highest {
        let name = POWERS.get(line as usize).copied().unwrap_or_default();
        grid(out, BOTTOM - HEIGHT * (line - lowest) / (highest - lowest), name);
        line += 1.0;
    }
    let mut path = String::new();
    for (x, time, minute) in hour.each() {
        if minute.runs() == 0 {
            continue;
        }
        let (mean, max) = (y(minute.late), y(minute.max_late));
        html!(out; r#"<g class="late"><title>"# {time} ": " {span(minute.late)} " in the mean, " {span(minute.max_late)} " at most</title>");
        html!(out; r#"<path class="range" d=""# [bar(x, mean + 1.0, max)] r#""/></g>"#);
        // The first minute has a short line of its own, because it may be the only one.
        let middle = x + BAR / 2.0;
        _ = if path.is_empty() {
            write!(path, "M{:.1} {mean:.1}H{middle:.1}", middle - 4.0)
        } else {
            write!(path, "L{middle:.1} {mean:.1}")
        };
    }
    html!(out; r#"<path class="mean" d=""# [path] r#""/>"#);
    times(out, hour);
    html!(out; r#"</svg><p class="legend"><span class="mean">"# {span(sum.late)} r#" in the mean</span> <span class="range">"#
        {span(sum.max_late)} " at most</span></p></figure>");
}

/// Draws the runs of an hour as a small row of bars, for a table.
pub(crate) fn row_of_bars(out: &mut Html, hour: &LastHour) {
    let most = hour.minutes.iter().map(Minute::runs).max().unwrap_or(0).max(1);
    html!(out; r#"<svg class="row" viewBox="0 0 122 24" role="img" aria-label=""# [hour.runs()] r#" runs in the last hour">"#);
    for (index, minute) in hour.minutes.iter().enumerate().filter(|(_, minute)| minute.runs() > 0) {
        let (x, good) = (2 * index, minute.done as f64 / most as f64);
        let all = minute.runs() as f64 / most as f64;
        let (y, top) = (24.0 - 24.0 * good, 24.0 - 24.0 * all);
        html!(out; r#"<path class="done" d="M"# [x] " 24h1.5V" [format!("{y:.1}")] r#"h-1.5z"/>"#);
        html!(out; r#"<path class="dead" d="M"# [x] " " [format!("{y:.1}")] "h1.5V" [format!("{top:.1}")] r#"h-1.5z"/>"#);
    }
    html!(out; r#"<path class="grid" d="M0 23.5H122"/></svg>"#);
}

const POWERS: [&str; 15] = [
    "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "17 min", "3 h",
    "1 d", "12 d", "116 d", "3 y",
];

fn bar(x: f64, from: f64, to: f64) -> String {
    format!("M{:.1} {from:.1}h{:.1}V{to:.1}h-{:.1}z", x + 0.7, BAR - 1.4, BAR - 1.4)
}

fn grid(out: &mut Html, y: f64, name: impl std::fmt::Display) {
    html!(out; r#"<path class="grid" d="M"# [LEFT] " " [format!("{y:.1}")] "H" [LEFT + WIDTH] r#""/><text class="y" x=""# [LEFT - 6.0]
        r#"" y=""# [format!("{:.1}", y + 4.0)] r#"">"# {name} "</text>");
}

/// The time below each quarter of an hour, and the first one says that it is UTC.
fn times(out: &mut Html, hour: &LastHour) {
    for (index, (x, time, _)) in
        hour.each().enumerate().filter(|(index, _)| index % 15 == 0 && index + 1 < MINUTES)
    {
        html!(out; r#"<text class="x" x=""# [format!("{x:.1}")] r#"" y="190">"# {time});
        if index == 0 {
            html!(out; " UTC");
        }
        html!(out; "</text>");
    }
}

/// Returns the distance of the lines of a scale and its end, which are round numbers: two to five lines.
fn round_steps(most: u64) -> (u64, u64) {
    let most = most.max(4);
    let mut ten = 1;
    let step = loop {
        let found = [1, 2, 5].into_iter().map(|of| of * ten).find(|step| most.div_ceil(*step) <= 5);
        if let Some(step) = found {
            break step;
        }
        ten *= 10;
    };
    (step, most.div_ceil(step) * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_the_begin_of_its_first_minute() {
        let now = crate::times::from_micros(1_795_684_830_000_000).expect("half past a minute");
        let step = STEP.as_micros() as i64;
        let run = |ago: u64| {
            let at = micros(now - Duration::from_secs(ago)).div_euclid(step) * step;
            let mut pace = Pace::new("mail", crate::times::from_micros(at).expect("a time"));
            pace.done = 1;
            pace
        };
        let hour = LastHour::of(&[run(0), run(60), run(3585), run(3600), run(3661)], now);
        assert_eq!(hour.done(), 4);
    }

    #[test]
    fn a_minute_alone_has_a_line() {
        let now = crate::times::from_micros(1_795_684_830_000_000).expect("a time");
        let mut pace = Pace::new("mail", now);
        pace.done = 1;
        let mut out = Html::default();
        lateness(&mut out, &LastHour::of(&[pace], now));
        let out = out.into_string();
        let (_, mean) = out.split_once(r#"class="mean" d="M"#).expect("the mean");
        assert!(mean.split('"').next().is_some_and(|path| path.contains('H')), "{mean}");
    }

    #[test]
    fn scales_are_round() {
        assert_eq!(round_steps(0), (1, 4));
        assert_eq!(round_steps(7), (2, 8));
        assert_eq!(round_steps(24), (5, 25));
        assert_eq!(round_steps(1234), (500, 1500));
        assert!(round_steps(u64::MAX / 10).1 > u64::MAX / 10);
    }
}
