//! Prints the public API that a rustdoc JSON file describes, an item a line.

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
            print!("{api}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
