//! `tickwheel-durable`: durable timers on the command line.
//!
//! A command opens the database, makes calls of [`tickwheel_durable::Timers`], and prints what it got, as a table or as JSON. It
//! uses the public calls alone, so it can do nothing that a program could not, and it never migrates but with `migrate`.
//!
//! `arguments.rs` is what is typed, and one file is each group of commands: `sight.rs` and `kinds.rs` look, `changes.rs` changes, and
//! `migrate.rs`, `top.rs` and `bench.rs` are what they are named after. `output.rs` prints, and `problem.rs` has the exit codes.

#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod changes;
mod database;
mod kinds;
mod migrate;
mod output;
mod problem;
mod sight;
mod terminal;
mod text;
mod times;
mod top;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::arguments::{Arguments, Command};
use crate::database::{Addresses, without_passwords};
use crate::output::{Output, tell};
use crate::problem::Outcome;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            tell(&without_passwords(error).render().to_string());
            return ExitCode::from(2);
        }
        Err(help) => {
            // `--help | head` ends before all is written.
            _ = write!(std::io::stdout(), "{}", help.render());
            return ExitCode::SUCCESS;
        }
    };
    let mut out = Output::new(arguments.json);
    let done = run(arguments, &mut out);
    let done = done.and_then(|()| Ok(out.flush()?)).or_else(|problem| {
        // What was printed before counts too.
        out.flush()?;
        Err(problem)
    });
    let Err(problem) = done else { return ExitCode::SUCCESS };
    if let Some(text) = problem.text() {
        tell(&format!("tickwheel-durable: {text}"));
    }
    ExitCode::from(problem.code())
}

fn run(arguments: Arguments, out: &mut Output) -> Outcome {
    let addresses = || Addresses::new(&arguments.database);
    let open = || addresses()?.open();
    match arguments.command {
        Command::Migrate(of) => migrate::migrate(&addresses()?, &of, out),
        Command::List(of) => sight::list(&open()?, of, out),
        Command::Show(of) => sight::show(&open()?, of, out),
        Command::Schedule(of) => changes::schedule(&open()?, *of, out),
        Command::Reset(of) => changes::reset(&open()?, of, out),
        Command::Cancel(of) => changes::cancel(&open()?, of, out),
        Command::Requeue(of) => changes::requeue(&open()?, of, out),
        Command::SetPayload(of) => changes::set_payload(&open()?, of, out),
        Command::History(of) => sight::history(&open()?, of, out),
        Command::Counts => kinds::counts(&open()?, out),
        Command::Top(of) => top::top(&open()?, &addresses()?.name(), of.every, out),
        Command::Bench(of) => bench::bench(&open()?, &addresses()?.name(), &of, out),
        Command::Completions { shell } => {
            let (mut command, mut script) = (Arguments::command(), Vec::new());
            clap_complete::generate(shell, &mut command, "tickwheel-durable", &mut script);
            Ok(out.bytes(&script)?)
        }
    }
}
