//! `migrate`: makes the tables, or says what is missing, or prints the SQL for a tool of one's own.

use tickwheel_durable::{Error, SCHEMA_VERSION, Timers, postgres, sqlite};

use crate::arguments;
use crate::database::{Addresses, exists, name};
use crate::output::{Object, Output};
use crate::problem::{Outcome, Problem};
use crate::text::clean;

pub(crate) fn migrate(
    addresses: &Addresses<'_>,
    of: &arguments::Migrate,
    out: &mut Output,
) -> Outcome {
    if of.print {
        return print(&addresses.all()[0], of.from, out);
    }
    let mut missing = Vec::new();
    for address in addresses.all() {
        let before = version(addresses, address, of.check)?;
        if before < SCHEMA_VERSION {
            missing.push((name(address), before));
        }
        if before < SCHEMA_VERSION && !of.check {
            Timers::open(address).map_err(|error| match error {
                // The general advice is to run what was run.
                Error::Unmigrated(_) => Problem::Refused(format!(
                    "{}: this role may not make the tables: use one that owns them, or that may create a schema or tables here",
                    name(address)
                )),
                error => addresses.problem(error),
            })?;
        }
        tell(&name(address), before, of.check, out)?;
    }
    if !of.check || missing.is_empty() {
        return Ok(());
    }
    let missing = missing.iter().map(|(name, before)| {
        let next = before + 1;
        format!("{name} needs the migrations {next:04} to {SCHEMA_VERSION:04}")
    });
    let missing = missing.collect::<Vec<_>>().join("\n");
    Err(Problem::Refused(format!(
        "{missing}\nRun `tickwheel-durable migrate` as the owner of the tables."
    )))
}

/// Returns the version of the tables, or of newer ones the newest that this program knows. Zero: there are none.
fn version(addresses: &Addresses<'_>, address: &str, is_check: bool) -> Result<i32, Problem> {
    if let Err(problem) = exists(address) {
        // To look would make the file.
        return if is_check { Err(problem) } else { Ok(0) };
    }
    match Timers::open_unmigrated(address) {
        Ok(_) => Ok(SCHEMA_VERSION),
        Err(Error::Unmigrated(version)) => Ok(version),
        Err(error) => Err(addresses.problem(error)),
    }
}

fn tell(name: &str, before: i32, is_check: bool, out: &mut Output) -> Outcome {
    let after = if is_check { before } else { SCHEMA_VERSION };
    if out.json {
        let object = Object::new().text("database", name).number("before", before);
        return Ok(out.object(object.number("version", after).number("needed", SCHEMA_VERSION))?);
    }
    let name = clean(name);
    let text = match before {
        before if before >= SCHEMA_VERSION => {
            format!("{name} is up to date: version {after} or newer")
        }
        0 if is_check => format!("{name} has no tables"),
        before if is_check => format!("{name} has tables of version {before}"),
        0 => format!("{name} has tables now: version {after}"),
        before => format!("{name} was brought from version {before} to {after}"),
    };
    Ok(out.line(&text)?)
}

fn print(address: &str, from: usize, out: &mut Output) -> Outcome {
    let is_sqlite = address.starts_with("sqlite:");
    let files = if is_sqlite { sqlite::MIGRATIONS } else { postgres::MIGRATIONS };
    if from > files.len() {
        let newest = files.len();
        return Err(Problem::Usage(format!("there is no version {from}: the newest is {newest}")));
    }
    files[from..].iter().try_for_each(|sql| out.line(sql.trim_end()))?;
    if from == files.len() { Err(Problem::Nothing) } else { Ok(()) }
}
