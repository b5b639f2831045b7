//! The picture. Everything can be read without colours.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use crate::load::Load;
use crate::watch::{COLUMNS, Watch};

const BARS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The lines that the wheel takes.
const HEIGHT: usize = 6;

pub(crate) fn draw(frame: &mut Frame<'_>, watch: &Watch, load: &Load) {
    let area = frame.area();
    if area.width < 80 || area.height < 24 {
        let text = "The dashboard needs 80 columns and 24 lines: enlarge the terminal, or press q.";
        return frame.render_widget(Paragraph::new(text), area);
    }
    let [title, wheel, middle, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(HEIGHT as u16 + 5),
        Constraint::Min(10),
        Constraint::Length(1),
    ])
    .areas(area);
    let [rates, lateness] =
        Layout::horizontal([Constraint::Length(38), Constraint::Min(40)]).areas(middle);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(" tickwheel: a scheduler at work", bold), title);
    draw_wheel(frame, wheel, watch);
    draw_rates(frame, rates, watch, load);
    draw_lateness(frame, lateness, watch);
    let help = " +/- rate   ←/→ cancelled   b burst   s series   c cancel all   p panic   q quit";
    frame.render_widget(Line::styled(help, Style::new().add_modifier(Modifier::REVERSED)), keys);
}

/// Draws the buckets, gathered in columns, and the hand of the wheel below them.
fn draw_wheel(frame: &mut Frame<'_>, area: Rect, watch: &Watch) {
    let wheel = &watch.wheel;
    let block = Block::bordered().title(format!(
        " the wheel: {} buckets of a tick, {} to a column ",
        wheel.buckets,
        wheel.buckets / COLUMNS
    ));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let most = wheel.columns.iter().copied().max().unwrap_or(0).max(1);
    let mut lines: Vec<_> = (0..HEIGHT)
        .rev()
        .map(|level| {
            let bar = |waiting: &usize| BARS[eighths(*waiting, most, level)];
            let text: String = wheel.columns.iter().map(bar).collect();
            Line::from(vec![label(level, most), Span::styled(text, Style::new().fg(Color::Cyan))])
        })
        .collect();
    let hand = wheel.hand * COLUMNS / wheel.buckets.max(1);
    lines.push(Line::raw(format!("{:>9} {:>hand$}▲", "", "")));
    let near: usize = wheel.columns.iter().sum();
    lines.push(Line::raw(format!(
        "        in the buckets {:>7}   on later turns {:>9}   pending {:>9}",
        number(near as f64),
        number(wheel.far as f64),
        number(watch.stats.pending() as f64),
    )));
    frame.render_widget(Paragraph::new(lines), inside);
}

/// Returns how much of a character cell a bar fills, in eighths.
fn eighths(value: usize, most: usize, level: usize) -> usize {
    let filled = (value * HEIGHT * 8).div_ceil(most);
    filled.saturating_sub(level * 8).min(8)
}

fn label(level: usize, most: usize) -> Span<'static> {
    let text = if level + 1 == HEIGHT { number(most as f64) } else { String::new() };
    Span::raw(format!("{text:>9} "))
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, watch: &Watch, load: &Load) {
    let block = Block::bordered().title(" a second ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let rates = watch.rates;
    let row = |name: &str, value: f64| Line::raw(format!(" {name:<12}{:>12}", number(value)));
    let most = watch.fired.iter().copied().fold(1.0, f64::max);
    let width = usize::from(inside.width) - 2;
    let past: String = watch
        .fired
        .iter()
        .skip(watch.fired.len().saturating_sub(width))
        .map(|fired| BARS[((fired / most * 8.0).round() as usize).min(8)])
        .collect();
    let lines = vec![
        row("scheduled", rates.scheduled),
        row("fired", rates.fired),
        row("cancelled", rates.cancelled),
        row("wake-ups", rates.wakeups),
        Line::raw(""),
        Line::styled(format!(" {past}"), Style::new().fg(Color::Green)),
        Line::raw(format!(" load {}/s, {} series", number(load.rate().into()), load.series())),
        Line::raw(format!(" {} % cancelled before their time", load.cancelled())),
    ];
    frame.render_widget(Paragraph::new(lines), inside);
}

/// Draws a bar for each range of lateness; most ranges double.
fn draw_lateness(frame: &mut Frame<'_>, area: Rect, watch: &Watch) {
    let lateness = watch.stats.lateness();
    let block = Block::bordered().title(" how late ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let edges = [16, 64, 125, 250, 500, 1_000, 2_000, 1_000_000].map(Duration::from_micros);
    let mut counts = [0; 8];
    for (late, runs) in lateness.bins() {
        counts[edges.iter().position(|edge| late <= *edge).unwrap_or(7)] += runs;
    }
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let first = Line::raw(format!(
        " median {}, p99 {}, max {}",
        time(lateness.quantile(0.5)),
        time(lateness.quantile(0.99)),
        time(lateness.max())
    ));
    let width = f64::from(inside.width) - 20.0;
    let lines = counts.iter().zip(edges).enumerate().map(|(n, (count, edge))| {
        let share = *count as f64 / all;
        let name = if n == 7 { "more".into() } else { format!("< {}", time(edge)) };
        let bar = "█".repeat((share * width).round() as usize);
        Line::from(vec![
            Span::raw(format!(" {name:>8} {:>5.1} % ", share * 100.0)),
            Span::styled(bar, Style::new().fg(Color::Yellow)),
        ])
    });
    frame.render_widget(
        Paragraph::new(std::iter::once(first).chain(lines).collect::<Vec<_>>()),
        inside,
    );
}

/// Formats 12345 as 12,345.
fn number(value: f64) -> String {
    let digits = format!("{value:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn time(duration: Duration) -> String {
    match duration.as_micros() {
        micros @ 0..1_000 => format!("{micros} us"),
        micros @ 1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        micros => format!("{} ms", micros / 1_000),
    }
}
