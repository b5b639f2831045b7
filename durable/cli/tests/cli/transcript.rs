//! The README shows what the program prints. Each of its blocks that begin with `$` is run here, in their order.

use std::fs;
use std::path::Path;

use super::program::Shop;

/// Returns the words of a command line, of which some are in single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        if number % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Returns a text with `0` in place of what differs between two runs: times, and of what was measured all numbers, bars and gaps.
fn masked(text: &str, is_measured: bool) -> String {
    let mut lines = Vec::new();
    for line in text.trim_end().lines() {
        let word = |word: &str| {
            if is_measured && ["µs", "ms", "s"].contains(&word.trim_end_matches(':')) {
                return "ms".to_owned();
            }
            if word.starts_with("tickwheel-bench-") {
                return "tickwheel-bench-0".to_owned();
            }
            let is_time = word.len() > 18 && word.contains('T') && word.contains('Z');
            let digits =
                if is_measured { "0123456789.·▁▂▃▄▅▆▇█" } else { "0123456789" };
            let digits = if is_time || is_measured { digits } else { "" };
            let mut masked = String::new();
            for c in word.chars() {
                let c = if digits.contains(c) { '0' } else { c };
                if !(is_measured && c == '0' && masked.ends_with('0')) {
                    masked.push(c);
                }
            }
            masked
        };
        let words: Vec<_> = if is_measured {
            line.split_whitespace().map(word).collect()
        } else {
            line.split(' ').map(word).collect()
        };
        lines.push(words.join(" ").replace("0 ms ago", "now"));
    }
    lines.join("\n")
}

#[test]
fn the_readme_shows_what_is_printed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(path).expect("a README");
    let shop = Shop::empty();
    let (mut count, mut differ) = (0, Vec::new());
    for block in readme.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("an end");
        for step in block.split("$ ").skip(1) {
            let (line, expected) = step.split_once('\n').unwrap_or((step, ""));
            count += 1;
            let words = words(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (is_measured, printed) = match &words[..] {
                ["export", assignment] => {
                    assert_eq!(*assignment, format!("DATABASE_URL={}", shop.url));
                    (false, String::new())
                }
                ["echo", "$?"] => continue, // is checked below
                ["my-worker", "&"] => {
                    shop.work("no such mailbox");
                    (false, String::new())
                }
                ["tickwheel-durable", arguments @ ..] => {
                    let ran = shop.run(arguments);
                    if let Some((_, rest)) = block.split_once(&format!("{step}$ echo $?\n")) {
                        let code = rest.lines().next().and_then(|code| code.parse().ok());
                        assert_eq!(ran.code, code, "{line}");
                    } else {
                        assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
                    }
                    let looks = ["bench", "counts", "history", "list", "show", "top"];
                    (looks.contains(&arguments[0]), ran.err + &ran.out)
                }
                other => panic!("{other:?} is unknown"),
            };
            if masked(&printed, is_measured) != masked(expected, is_measured) {
                differ.push(format!(
                    "$ {line}
{printed}"
                ));
            }
        }
    }
    assert!(differ.is_empty(), "the README shows something else than\n{}", differ.join("\n"));
    assert!(count > 10, "it has found the blocks");
}
