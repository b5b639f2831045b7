//! Rows of rates, drawn beside each other.

use crate::common::digits;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The medians of what each took, in nanoseconds, as rates; the fastest has the longest bar.
pub(crate) fn draw(title: &str, rows: impl IntoIterator<Item = (&'static str, Vec<f64>)>) {
    println!("{title}");
    let medians: Vec<_> = rows.into_iter().map(|(name, nanos)| (name, median(nanos))).collect();
    let fastest = medians.iter().map(|(_, nanos)| *nanos).fold(f64::MAX, f64::min);
    for (name, nanos) in medians {
        let bar = "█".repeat((40.0 * fastest / nanos).round() as usize);
        let rate = digits((1e9 / nanos) as usize);
        println!("  {name:17}{rate:>12}/s {nanos:6.0} ns  {bar}");
    }
    println!();
}
