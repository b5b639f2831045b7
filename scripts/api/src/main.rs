//! Prints the public API that a rustdoc JSON file describes, an item a line, in an order that does not
//! change when code moves between files.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = env::args().nth(1) else {
        eprintln!("usage: api PATH_OF_THE_JSON_FILE");
        return ExitCode::FAILURE;
    };
    let builder = public_api::Builder::from_rustdoc_json(path)
        .omit_auto_derived_impls(true)
        .omit_auto_trait_impls(true)
        .omit_blanket_impls(true);
    match builder.build() {
        Ok(api) => {
            // Which block of a type a method stands in is nobody's business.
            let is_block = |line: &str| line.starts_with("impl") && !line.contains(" for ");
            // The layout of fields that are private is no promise, and rustdoc does not show it.
            let line = |item: &public_api::PublicItem| item.to_string().replace("#[repr(C)] ", "");
            let mut lines: Vec<String> = api.items().map(line).collect();
            lines.retain(|line| !is_block(line));
            lines.sort();
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
