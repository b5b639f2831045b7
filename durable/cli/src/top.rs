//! `top`: kinds with their pace and lateness, and what is due next, again and again.
//!
//! A thread looks and sends what it has seen, so that a database that is slow or away holds up no key. It rests so long between two
//! looks that the database spends no more than a twentieth of its time on them, because a look counts the whole table.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tickwheel_durable::{Filter, Pace, State, Timer, Timers};

use crate::kinds::{Kind, SPAN, STEPS, kind_object, kind_row, kinds_table, runs};
use crate::output::{Cell, Column, Look, Object, Output, Style, Table};
use crate::problem::{Outcome, Problem};
use crate::sight::{timer_object, timer_row, timers_table};
use crate::terminal::{self, Screen, Size};
use crate::text::clean;
use crate::times::{precise, rfc3339, rough};

/// How many of those that are due next are read.
const NEXT: u32 = 20;

/// A look costs at most this part of the time.
const PART: u32 = 20;

/// The key Ctrl-C, which is no signal here (SCREEN-1).
const CTRL_C: u8 = 3;

/// How soon a key is noticed.
const PATIENCE: Duration = Duration::from_millis(100);

pub(crate) fn top(timers: &Timers, name: &str, every: Duration, out: &mut Output) -> Outcome {
    let first = Picture::take(timers)?;
    if out.json {
        return Ok(out.object(first.object())?);
    }
    if !out.is_terminal {
        let lines = first.lines(name, None, out.look, None);
        return lines.iter().try_for_each(|line| Ok(out.line(line)?));
    }
    terminal::catch_interrupts();
    let pictures = looks(timers.clone(), every, first.cost);
    let screen = Screen::enter()?;
    watch(&screen, name, first, &pictures, out.look)?;
    Ok(())
}

/// Shows pictures until somebody leaves (SCREEN-1).
fn watch(
    screen: &Screen,
    name: &str,
    first: Picture,
    pictures: &Receiver<Result<Picture, Problem>>,
    look: Look,
) -> io::Result<()> {
    let (mut picture, mut problem) = (first, None);
    let mut drawn: Option<(Instant, Size)> = None;
    loop {
        let mut is_new = false;
        for next in pictures.try_iter() {
            is_new = true;
            match next {
                Ok(next) => (picture, problem) = (next, None),
                Err(error) => problem = error.text(),
            }
        }
        let size = terminal::size();
        let is_old =
            |(at, of): (Instant, Size)| at.elapsed() > Duration::from_secs(1) || of != size;
        if is_new || drawn.is_none_or(is_old) {
            let look = Look { width: Some(size.columns.into()), ..look };
            screen.show(&picture.lines(name, problem.as_deref(), look, Some(size.rows.into())))?;
            drawn = Some((Instant::now(), size));
        }
        let key = screen.key(PATIENCE);
        if terminal::is_interrupted() || matches!(key, Some(b'q' | b'Q' | CTRL_C)) {
            return Ok(());
        }
    }
}

/// Looks again and again, until nobody takes what it has seen.
fn looks(
    timers: Timers,
    every: Duration,
    mut cost: Duration,
) -> Receiver<Result<Picture, Problem>> {
    let (send, pictures) = channel();
    thread::spawn(move || {
        loop {
            thread::sleep(every.max(PATIENCE).max(cost * PART));
            let picture = Picture::take(&timers);
            if let Ok(picture) = &picture {
                cost = picture.cost;
            }
            if send.send(picture).is_err() {
                return;
            }
        }
    });
    pictures
}

/// What one look has seen.
struct Picture {
    /// The database's time.
    now: SystemTime,
    taken: Instant,
    /// How long the look took.
    cost: Duration,
    kinds: Vec<Kind>,
    /// Those that wait, the next one first.
    next: Vec<Timer>,
}

impl Picture {
    fn take(timers: &Timers) -> Result<Picture, Problem> {
        let begin = Instant::now();
        let now = timers.now()?;
        let kinds = Kind::all(timers)?;
        let mut next = Vec::new();
        // A list is in the order of kinds, so the next ones of all are among the next of each.
        for kind in kinds.iter().filter(|kind| kind.counts.waiting + kind.counts.retrying > 0) {
            let filter = Filter::new().kind(&*kind.counts.kind).state(State::Waiting).limit(NEXT);
            next.extend(timers.list(&filter)?);
        }
        next.sort_by_key(|timer| timer.wake);
        next.truncate(NEXT as usize);
        let taken = Instant::now();
        Ok(Picture { now, taken, cost: taken - begin, kinds, next })
    }

    fn object(self) -> Object {
        Object::new()
            .time("at", self.now)
            .list("kinds", self.kinds.iter().map(kind_object))
            .list("next", self.next.iter().map(timer_object))
    }

    /// Returns it as lines, of which there are no more than `rows`.
    fn lines(
        &self,
        name: &str,
        problem: Option<&str>,
        look: Look,
        rows: Option<usize>,
    ) -> Vec<String> {
        let rows = rows.unwrap_or(usize::MAX);
        let now = self.now + self.taken.elapsed();
        let title = format!(
            "{}  {}  looked {} ago, in {}",
            clean(name),
            rfc3339(now, 0),
            rough(self.taken.elapsed()),
            precise(self.cost)
        );
        let leave = if rows == usize::MAX { "" } else { "  q leaves" };
        let mut lines = vec![Style::Head.paint(&title, look) + &Style::Faint.paint(leave, look)];
        if let Some(problem) = problem {
            let first = problem.lines().next().unwrap_or_default();
            lines.push(Style::Bad.paint(&clean(first), look));
        }
        lines.push(String::new());
        let mut table = kinds_table(&[Column::new("PACE, 1 H"), Column::new("LATENESS, 1 H")]);
        let most = (rows / 2).max(4);
        for kind in self.kinds.iter().take(most) {
            table.add(kind_row(kind, bars(kind, self.now).map(Cell::from)));
        }
        lines.extend(table.lines(look));
        if let Some(hidden) = self.kinds.len().checked_sub(most).filter(|hidden| *hidden > 0) {
            lines.push(Style::Faint.paint(&format!("and {hidden} more"), look));
        }
        lines.push(String::new());
        lines.extend(self.next_lines(now, look));
        lines.truncate(rows);
        lines
    }

    fn next_lines(&self, now: SystemTime, look: Look) -> Vec<String> {
        if self.next.is_empty() {
            return vec!["Nothing waits.".to_owned()];
        }
        let mut table: Table = timers_table();
        self.next.iter().for_each(|timer| table.add(timer_row(timer, now)));
        table.lines(look)
    }
}

/// Returns the runs of the last hour as small bars, and their longest lateness.
fn bars(kind: &Kind, now: SystemTime) -> [String; 2] {
    let step = SPAN / STEPS;
    let of = |value: &dyn Fn(&Pace) -> u64| {
        let mut heights = [0; STEPS as usize];
        for pace in &kind.pace {
            let age =
                now.duration_since(pace.at).unwrap_or_default().as_millis() / step.as_millis();
            let place = usize::try_from(age).unwrap_or(usize::MAX);
            if let Some(height) = heights.iter_mut().rev().nth(place) {
                *height = value(pace).max(*height);
            }
        }
        drawn(&heights)
    };
    [of(&runs), of(&|pace| u64::try_from(pace.max_late.as_micros()).unwrap_or(u64::MAX))]
}

/// Draws numbers as bars, of which the highest has the height of the line.
fn drawn(heights: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = heights.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return String::new();
    }
    let bar = |height: &u64| match (u128::from(*height) * 8).div_ceil(u128::from(most)) {
        0 => '·',
        eighths => BARS[eighths as usize - 1],
    };
    heights.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use tickwheel_durable::KindCounts;

    use super::*;

    #[test]
    fn bars_have_the_heights_of_their_numbers() {
        assert_eq!(drawn(&[0, 0]), "");
        assert_eq!(drawn(&[0, 1, 50, 100]), "·▁▄█");
        assert_eq!(drawn(&[u64::MAX, 1, 7]), "█▁▁");
    }

    #[test]
    fn a_step_of_the_last_hour_has_its_place() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let steps = [(0, 8), (299, 8), (301, 4), (3599, 2), (3601, 1)];
        let step = |(ago, done): &(u64, u64)| {
            let mut pace = Pace::new("mail", now - Duration::from_secs(*ago));
            pace.done = *done;
            pace
        };
        let pace = steps.iter().map(step).collect();
        let kind = Kind { counts: KindCounts::new("mail"), pace };
        assert_eq!(bars(&kind, now)[0], "▂·········▄█");
    }
}
