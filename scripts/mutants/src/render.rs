//! The source with its places rewritten.

use std::cmp::Reverse;
use std::ops::Range;

use crate::Mutant;
use crate::places::{Place, What};

pub fn render(text: &str, places: &[Place]) -> String {
    let mut all: Vec<&Place> = places.iter().collect();
    // The outer before the inner. A body that is one expression begins and ends with it, and is found before it;
    // the sort keeps that order.
    all.sort_by_key(|place| (place.range.start, Reverse(place.range.end)));
    part(text, &all, 0..text.len())
}

/// A part of the text, with those of the sorted places that are in it.
fn part(text: &str, places: &[&Place], range: Range<usize>) -> String {
    let mut out = String::new();
    let mut at = range.start;
    for (index, place) in places.iter().enumerate() {
        if place.range.start >= at && place.range.end <= range.end {
            out += &text[at..place.range.start];
            let inside = &places[index + 1..];
            let inner: Vec<String> =
                place.inner.iter().map(|range| part(text, inside, range.clone())).collect();
            out += &format!("/*B*/{}/*E*/", rewritten(place, &inner));
            at = place.range.end;
        }
    }
    out + &text[at..range.end]
}

fn on(mutant: &Mutant) -> String {
    format!("crate::__mutants::on({})", mutant.number)
}

fn rewritten(Place { what, mutants, .. }: &Place, inner: &[String]) -> String {
    match what {
        What::Body => {
            let ways_out: String = mutants
                .iter()
                .map(|one| {
                    format!(
                        "\nif {} {{ return {}; /*M{}*/ }}\n",
                        on(one),
                        one.replacement,
                        one.number
                    )
                })
                .collect();
            ways_out + &inner[0]
        }
        What::Comparison(operator) => format!(
            "(match (&({}), &({})) {{ (__l, __r) => {} }})",
            inner[0],
            inner[1],
            choice(mutants, operator, |operator| format!("*__l {operator} *__r")),
        ),
        What::Arithmetic(operator) => format!(
            "(match ({}, {}) {{ (__l, __r) => {} }})",
            inner[0],
            inner[1],
            choice(mutants, operator, |operator| format!("__l {operator} __r")),
        ),
        What::Assignment(operator) => format!(
            "{{ let __r = {}; {} }}",
            inner[1],
            choice(mutants, operator, |operator| format!("{} {operator} __r;", inner[0])),
        ),
        What::Unary(operator) => format!(
            "(match {} {{ __l => {} }})",
            inner[0],
            choice(mutants, operator, |operator| format!("{operator}__l")),
        ),
        // The right side stands there once. With `&&` it counts if the left one is true, with `||` if it is not.
        What::Lazy(operator) => format!(
            "\n({{ let __l: bool = {}; if __l {} {} {{ {} }} else {{ __l }} }}) /*M{}*/\n",
            inner[0],
            if operator == "&&" { "!=" } else { "==" },
            on(&mutants[0]),
            inner[1],
            mutants[0].number,
        ),
        What::Guard => mutants.iter().fold(format!("({})", inner[0]), |guard, one| {
            if one.replacement == "true" {
                format!("({} || {guard}) /*M{}*/", on(one), one.number)
            } else {
                format!("(!{} && {guard}) /*M{}*/", on(one), one.number)
            }
        }),
        What::Arm => format!(" if !{} /*M{}*/ ", on(&mutants[0]), mutants[0].number),
        What::Field(name) => format!(
            "\n{name}: if {} {{ ({}).{name} /*M{}*/ }} else {{ {} }}\n",
            on(&mutants[0]),
            inner[1],
            mutants[0].number,
            inner[0],
        ),
    }
}

/// The operator's own expression, or that of the one that is on; each on a line of its own.
fn choice(mutants: &[Mutant], operator: &str, expression: impl Fn(&str) -> String) -> String {
    let others: String = mutants
        .iter()
        .map(|one| {
            format!(
                "\nif {} {{ {} /*M{}*/ }} else",
                on(one),
                expression(&one.replacement),
                one.number
            )
        })
        .collect();
    format!("{{{others}\n{{ {} }} }}", expression(operator))
}
