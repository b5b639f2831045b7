//! Writes all mutants of a tree into one program, each behind a switch.
//!
//!     tickwheel-mutants LIST FROM TO LEFT_OUT
//!
//! LIST is what `cargo mutants --list --json` says of the tree FROM; a mutant's number is its place there, from 1.
//! The files that have mutants are written to the tree TO, in which `switch.rs` says at run time which one is on.
//! LEFT_OUT has the numbers of those that are not wanted, because with them it did not compile. Printed are the
//! numbers of those that no switch can reach, as they are in constants.
//!
//! `a < b` becomes `match (&a, &b) { (l, r) => if on(7) { l > r } else { l < r } }`, a function begins with
//! `if on(8) { return true; }`, and so on: a place of the source, the operands that stay in it as they are, with
//! places of their own inside, and what stands around them. Comments mark the lines that one mutant alone needs
//! (`/*M7*/`), and where a place begins and ends (`/*B*/`, `/*E*/`): so an error of the compiler says whom it
//! is about.

mod places;
mod render;

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::path::Path;
use std::{env, fs};

use serde::Deserialize;

use crate::places::Places;

/// What `cargo mutants` says of one.
#[derive(Deserialize)]
struct Listed {
    file: String,
    genre: String,
    replacement: String,
    span: Range,
}

#[derive(Deserialize)]
struct Range {
    start: Position,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

/// One that is to be written.
#[derive(Clone)]
struct Mutant {
    number: usize,
    genre: String,
    replacement: String,
    at: Position,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [list, from, to, left_out] = &arguments[..] else {
        return Err("usage: tickwheel-mutants LIST FROM TO LEFT_OUT".into());
    };
    let list: Vec<Listed> = serde_json::from_str(&fs::read_to_string(list)?)?;
    let left_out: HashSet<usize> = fs::read_to_string(left_out)?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;

    let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
    for (place, Listed { file, genre, replacement, span }) in list.into_iter().enumerate() {
        if !left_out.contains(&(place + 1)) {
            files.entry(file).or_default().push(Mutant {
                number: place + 1,
                genre,
                replacement,
                at: span.start,
            });
        }
    }
    for (file, mutants) in files {
        let text = fs::read_to_string(Path::new(from).join(&file))?;
        let places = Places::find(&text, &mutants)?;
        mutants
            .iter()
            .filter(|one| !places.reached.contains(&one.number))
            .for_each(|one| println!("{}", one.number));
        fs::write(Path::new(to).join(&file), render::render(&text, &places.all))?;
    }
    Ok(())
}
