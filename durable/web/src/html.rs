//! Writes HTML: [`Html`], and the macro `html!` for its calls.
//!
//! - ESCAPE-1 What is not a literal of this crate's source is escaped. `raw` takes a `&'static str`, so a text that comes from a
//!   database or a request cannot be given to it. The two other ways in escape.
//! - ESCAPE-2 An attribute's value stands between double quotes. `value` asserts that its opening quote is there, and escapes
//!   what could end it.
//!
//! Characters that would not be seen, or that change how others are shown, are written as their numbers in texts: a key that has
//! U+202E in it would otherwise look like another key. In values they stay, because a link has to lead to that very key.

use std::fmt::{self, Display, Write};

#[derive(Default)]
pub(crate) struct Html(String);

impl Html {
    /// Adds markup, which can only come from the source (ESCAPE-1).
    pub(crate) fn raw(&mut self, literal: &'static str) {
        self.0.push_str(literal);
    }

    /// Adds a text between tags.
    pub(crate) fn text(&mut self, text: &(impl Display + ?Sized)) {
        _ = write!(Escaped { into: &mut self.0, shows_hidden: true }, "{text}");
    }

    /// Adds the value of an attribute, whose name, `=` and quote have just been added.
    pub(crate) fn value(&mut self, value: &(impl Display + ?Sized)) {
        debug_assert!(self.is_in_quotes(), "a value stands between quotes (ESCAPE-2)");
        _ = write!(Escaped { into: &mut self.0, shows_hidden: false }, "{value}");
    }

    /// Returns true if a tag is open, and in it a quote. What is escaped has neither of the characters.
    fn is_in_quotes(&self) -> bool {
        let tag = self.0.rfind('<').map_or("", |begin| &self.0[begin..]);
        tag.matches('"').count() % 2 == 1
    }

    /// Adds what has been written elsewhere.
    pub(crate) fn append(&mut self, other: &Html) {
        self.0.push_str(&other.0);
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// Writes parts one after the other: a literal is markup, `{text}` is escaped, and so is `[value]`, in an attribute.
macro_rules! html {
    (@ $out:expr, {$text:expr}) => { $out.text(&$text) };
    (@ $out:expr, [$value:expr]) => { $out.value(&$value) };
    (@ $out:expr, $literal:literal) => { $out.raw($literal) };
    ($out:expr; $($part:tt)*) => {{ $($crate::html::html!(@ $out, $part);)* }};
}
pub(crate) use html;

struct Escaped<'a> {
    into: &'a mut String,
    shows_hidden: bool,
}

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.into.push_str("&amp;"),
                '<' => self.into.push_str("&lt;"),
                '>' => self.into.push_str("&gt;"),
                '"' => self.into.push_str("&quot;"),
                '\'' => self.into.push_str("&#39;"),
                c if self.shows_hidden && is_hidden(c) => {
                    write!(self.into, "\u{27e8}U+{:04X}\u{27e9}", u32::from(c))?;
                }
                c => self.into.push(c),
            }
        }
        Ok(())
    }
}

/// Returns true for a character that is not seen, or that changes the order of others. The joiner of emoji is none of them.
fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}' | '\u{200c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_values_are_escaped() {
        let mut out = Html::default();
        let hostile = "<script>\"'&\u{202e}\u{0}";
        html!(out; r#"<a href=""# [hostile] r#"">"# {hostile} "</a>");
        assert_eq!(
            out.into_string(),
            "<a href=\"&lt;script&gt;&quot;&#39;&amp;\u{202e}\u{0}\">\
             &lt;script&gt;&quot;&#39;&amp;\u{27e8}U+202E\u{27e9}\u{27e8}U+0000\u{27e9}</a>"
        );
    }

    #[test]
    #[should_panic(expected = "ESCAPE-2")]
    #[cfg(debug_assertions)]
    fn a_value_without_quotes_is_found_by_any_test_that_shows_it() {
        let mut out = Html::default();
        html!(out; r#"<a class="b" href="# ["x"] ">");
    }

    #[test]
    fn what_is_not_seen_is_a_number() {
        for hidden in "\u{34f}\u{115f}\u{200c}\u{2800}\u{3164}\u{e0101}".chars() {
            let mut out = Html::default();
            html!(out; {hidden});
            assert_eq!(out.into_string(), format!("\u{27e8}U+{:04X}\u{27e9}", u32::from(hidden)));
        }
    }

    #[test]
    fn emoji_stay_whole() {
        let family = "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467}\u{fe0f}";
        let mut out = Html::default();
        html!(out; {family});
        assert_eq!(out.into_string(), family);
    }
}
