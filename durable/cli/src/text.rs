//! Texts that come out of a database, on their way to a terminal or into JSON.
//!
//! Whoever may schedule a timer chooses its kind, key and payload, and a handler's error may repeat what a stranger has sent.
//! An escape sequence in one of them could clear the screen of the one who looks, change the title, or forge a line.
//!
//! - CLEAN-1 Nothing from outside is printed but through [`clean`] or [`quoted`], which write what is no printable character
//!   as an escape: control characters, marks that change the direction of a text, and characters that nobody sees. The bytes of
//!   `show --payload` are the exception, and never go to a terminal as they are.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns the text as it may be printed on one line (CLEAN-1).
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match c {
        c if is_printable(c) => c.to_string(),
        c if is_unseen(c) => c.escape_unicode().to_string(),
        c => c.escape_debug().to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Returns true if std would print the character in the middle of a text that is quoted, and it can be seen. So accents that follow
/// their letter are printed.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut text = String::from('a');
    text.push(c);
    text.escape_debug().nth(1) == Some(c) && !is_unseen(c)
}

/// Returns true if std would print the character and a terminal shows nothing, or a blank: what Unicode calls `Default_Ignorable`, which
/// has fillers, joiners and variation selectors, and the blanks of Braille and of music.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}')
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}')
        || matches!(c, '\u{1bca0}'..='\u{1bca3}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the text as a string of JSON that may be printed to a terminal (CLEAN-1).
pub(crate) fn quoted(text: &str) -> String {
    let mut json = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\n' => json.push_str("\\n"),
            '\t' => json.push_str("\\t"),
            c if is_printable(c) => json.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                _ = write!(json, "\\u{unit:04x}");
            }),
        }
    }
    json.push('"');
    json
}

/// Returns how many columns of a terminal a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Returns the begin of a text that takes no more than so many columns, with `…` if something is missing.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    let mut begin: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        begin.push('…');
    }
    Cow::Owned(begin)
}

/// Returns bytes in base64, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            let is_there = digit <= three.len();
            text.push(if is_there { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        let hostile = "a\u{1b}[2J\u{9b}31m\u{202e}\r\n\u{7}\u{200b}\u{feff}\u{e0041}\u{2028}b";
        let shown = clean(hostile);
        assert_eq!(
            shown,
            "a\\u{1b}[2J\\u{9b}31m\\u{202e}\\r\\n\\u{7}\\u{200b}\\u{feff}\\u{e0041}\\u{2028}b"
        );
        for unseen in
            "\u{34f}\u{115f}\u{200c}\u{2060}\u{2800}\u{3164}\u{fe0f}\u{ffa0}\u{1d159}\u{e0101}"
                .chars()
        {
            assert_eq!(clean(&format!("a{unseen}b")), format!("a{}b", unseen.escape_unicode()));
            assert!(quoted(&format!("a{unseen}")).is_ascii());
        }
        for harmless in ["a \"b\" 'c' \\d", "Käse/7", "ka\u{308}se", "注文", "🍐"] {
            assert_eq!(clean(harmless), harmless);
        }
        assert_eq!(quoted("\"\\\n\u{1b}\u{9b}\u{e0041}é"), r#""\"\\\n\u001b\u009b\udb40\udc41é""#);
    }

    #[test]
    fn a_text_is_cut_by_columns() {
        assert_eq!(cut("pears", 5), "pears");
        assert_eq!(cut("pears", 4), "pea…");
        assert_eq!(cut("注文注文", 6), "注文…");
        assert_eq!(cut("注文注文", 7), "注文注…");
        assert_eq!(cut("pears", 0), "");
        assert_eq!(width("注文"), 4);
    }

    #[test]
    fn bytes_in_base64() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[255, 254, 253]), "//79");
    }
}
