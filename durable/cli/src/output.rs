//! What is printed: tables for people, and JSON for programs.
//!
//! A table is aligned by the widths of all rows so far. On a terminal, its flexible columns give way until it fits. Anywhere else
//! nothing is cut. Colours are for terminals, and only without `NO_COLOR`.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::SystemTime;
use std::{env, iter};

use crate::terminal;
use crate::text::{base64, clean, cut, quoted, width};
use crate::times::rfc3339;

/// The narrowest that a flexible column becomes.
const NARROWEST: usize = 8;

/// Tells people something at stderr, without what a terminal would obey (CLEAN-1). It does not matter if nobody reads it.
pub(crate) fn tell(text: &str) {
    let lines: Vec<_> = text.trim_end().lines().map(clean).collect();
    _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

/// Where a command prints.
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
    pub(crate) json: bool,
    pub(crate) is_terminal: bool,
    pub(crate) look: Look,
}

/// How a table is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) colours: bool,
    /// The width of the terminal. `None`: it is none.
    pub(crate) width: Option<usize>,
}

impl Output {
    pub(crate) fn new(json: bool) -> Output {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let look = Look {
            colours: is_terminal && !is_set("NO_COLOR") && !is_dumb,
            width: is_terminal.then(|| usize::from(terminal::size().columns)),
        };
        Output { out: BufWriter::new(stdout.lock()), json, is_terminal, look }
    }

    /// Prints one line, which is clean already.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints an object on a line of its own.
    pub(crate) fn object(&mut self, object: Object) -> io::Result<()> {
        writeln!(self.out, "{}", object.end())
    }

    /// Prints bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Prints the rows of a table that were not printed yet.
    pub(crate) fn table(&mut self, table: &mut Table) -> io::Result<()> {
        table.lines(self.look).iter().try_for_each(|line| self.line(line))
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// How a cell looks on a terminal with colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Head,
    Faint,
    Good,
    Warning,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Head => "1",
            Style::Faint => "2",
            Style::Good => "32",
            Style::Warning => "33",
            Style::Bad => "31",
        }
    }

    /// Returns a text in this style.
    pub(crate) fn paint(self, text: &str, look: Look) -> String {
        if look.colours && self != Style::Plain && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", self.code())
        } else {
            text.to_owned()
        }
    }
}

/// A text in a table. It is clean (CLEAN-1).
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: &str, style: Style) -> Cell {
        Cell { text: clean(text).into_owned(), style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::new(text.as_ref(), Style::Plain)
    }
}

/// Returns a count as a cell, in a style if it is not zero.
pub(crate) fn count(number: u64, style: Style) -> Cell {
    let style = if number == 0 { Style::Faint } else { style };
    Cell::new(&number.to_string(), style)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    is_number: bool,
    is_flexible: bool,
}

impl Column {
    pub(crate) const fn new(name: &'static str) -> Column {
        Column { name, is_number: false, is_flexible: false }
    }

    /// Aligned to the right.
    pub(crate) const fn number(name: &'static str) -> Column {
        Column { is_number: true, ..Column::new(name) }
    }

    /// Is cut if the terminal is too narrow.
    pub(crate) const fn flexible(name: &'static str) -> Column {
        Column { is_flexible: true, ..Column::new(name) }
    }
}

pub(crate) struct Table {
    columns: Vec<Column>,
    /// Those that were not drawn yet.
    rows: Vec<Vec<Cell>>,
    /// The widths of all rows so far, so that pages stand below one another.
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Table {
        let head = columns.iter().map(|column| Cell::new(column.name, Style::Head)).collect();
        let widths = vec![0; columns.len()];
        let mut table = Table { columns: columns.to_vec(), rows: Vec::new(), widths };
        table.add(head);
        table
    }

    /// A table of so many columns that have no names.
    pub(crate) fn headless(columns: usize) -> Table {
        let columns = vec![Column::new(""); columns];
        Table { widths: vec![0; columns.len()], columns, rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: Vec<Cell>) {
        for (widest, cell) in self.widths.iter_mut().zip(&row) {
            *widest = width(&cell.text).max(*widest);
        }
        self.rows.push(row);
    }

    /// Returns the rows that were not drawn yet as lines.
    pub(crate) fn lines(&mut self, look: Look) -> Vec<String> {
        let widths = self.fitting(look.width);
        let rows = std::mem::take(&mut self.rows);
        rows.iter().map(|row| self.drawn(row, &widths, look)).collect()
    }

    /// Returns the widths with which the table fits, as far as its flexible columns give way: the widest first.
    fn fitting(&self, most: Option<usize>) -> Vec<usize> {
        let mut widths = self.widths.clone();
        let gaps = 2 * widths.len().saturating_sub(1);
        let Some(most) = most else { return widths };
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(most);
        while excess > 0 {
            let flexible = widths.iter_mut().zip(&self.columns);
            let flexible = flexible.filter(|(width, of)| of.is_flexible && **width > NARROWEST);
            let Some((widest, _)) = flexible.max_by_key(|(width, _)| **width) else { break };
            *widest -= 1;
            excess -= 1;
        }
        widths
    }

    fn drawn(&self, row: &[Cell], widths: &[usize], look: Look) -> String {
        let mut line = String::new();
        let mut spaces = 0; // before the next text, so that no line ends with some
        for ((cell, column), most) in row.iter().zip(&self.columns).zip(widths) {
            let text = cut(&cell.text, *most);
            let padding = most - width(&text);
            if column.is_number {
                spaces += padding;
            }
            if !text.is_empty() {
                line.extend(iter::repeat_n(' ', spaces));
                line.push_str(&cell.style.paint(&text, look));
                spaces = 0;
            }
            spaces += if column.is_number { 2 } else { 2 + padding };
        }
        line
    }
}

/// An object of JSON, whose members stay in their order.
pub(crate) struct Object {
    text: String,
}

impl Object {
    pub(crate) fn new() -> Object {
        Object { text: "{".to_owned() }
    }

    fn member(mut self, name: &str, value: &str) -> Object {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push_str(&quoted(name));
        self.text.push(':');
        self.text.push_str(value);
        self
    }

    /// Adds a text, or null.
    pub(crate) fn text<'t>(self, name: &str, value: impl Into<Option<&'t str>>) -> Object {
        self.member(name, &value.into().map_or("null".to_owned(), quoted))
    }

    #[expect(clippy::needless_pass_by_value, reason = "a number is copied")]
    pub(crate) fn number(self, name: &str, value: impl ToString) -> Object {
        self.member(name, &value.to_string())
    }

    /// Adds a number, or null.
    pub(crate) fn perhaps(self, name: &str, value: Option<impl ToString>) -> Object {
        self.member(name, &value.map_or("null".to_owned(), |value| value.to_string()))
    }

    /// Adds a time, or null.
    pub(crate) fn time(self, name: &str, value: impl Into<Option<SystemTime>>) -> Object {
        self.text(name, value.into().map(|time| rfc3339(time, 6)).as_deref())
    }

    /// Adds `name` if the bytes are a text, and otherwise `name_base64`.
    pub(crate) fn payload(self, name: &str, bytes: &[u8]) -> Object {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.text(name, text),
            Err(_) => self.text(&format!("{name}_base64"), &*base64(bytes)),
        }
    }

    pub(crate) fn object(self, name: &str, value: Option<Object>) -> Object {
        self.member(name, &value.map_or("null".to_owned(), Object::end))
    }

    pub(crate) fn list(self, name: &str, values: impl IntoIterator<Item = Object>) -> Object {
        let values: Vec<_> = values.into_iter().map(Object::end).collect();
        self.member(name, &format!("[{}]", values.join(",")))
    }

    fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look { colours: false, width: None };

    fn table() -> Table {
        let mut table = Table::new(&[
            Column::new("KIND"),
            Column::flexible("KEY"),
            Column::number("TRIES"),
            Column::flexible("ERROR"),
        ]);
        table.add(vec!["mail".into(), "注文/4711".into(), count(3, Style::Plain), "".into()]);
        table.add(vec![
            Cell::new("x", Style::Bad),
            "a\nb".into(),
            count(0, Style::Plain),
            "it is away".into(),
        ]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        let lines = table().lines(PLAIN);
        assert_eq!(
            lines,
            [
                "KIND  KEY        TRIES  ERROR",
                "mail  注文/4711      3",
                "x     a\\nb           0  it is away",
            ]
        );
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let lines = table().lines(Look { width: Some(30), colours: false });
        assert_eq!(
            lines,
            [
                "KIND  KEY       TRIES  ERROR",
                "mail  注文/47…      3",
                "x     a\\nb          0  it is a…"
            ]
        );
        let narrow = table().lines(Look { width: Some(5), colours: false });
        assert_eq!(narrow, lines, "no narrower than that");
    }

    #[test]
    fn colours_take_no_room() {
        let lines = table().lines(Look { colours: true, width: None });
        assert_eq!(
            lines[2],
            "\u{1b}[31mx\u{1b}[0m     a\\nb           \u{1b}[2m0\u{1b}[0m  it is away"
        );
    }

    #[test]
    fn an_object_keeps_its_order() {
        let object = Object::new()
            .text("b", "x\u{1b}")
            .number("a", 1)
            .perhaps("none", None::<u32>)
            .time("at", SystemTime::UNIX_EPOCH)
            .payload("payload", b"\xff")
            .list("of", [Object::new().payload("payload", b"{}")]);
        let json = r#"{"b":"x\u001b","a":1,"none":null,"at":"1970-01-01T00:00:00.000000Z","payload_base64":"/w==","of":[{"payload":"{}"}]}"#;
        assert_eq!(object.end(), json);
    }
}
