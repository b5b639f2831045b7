//! The database: how it is opened, and what is said of its address.
//!
//! - SECRET-1 A password is never printed. What is said of an address names the host and the database alone, and an error that
//!   repeats a part of the password is replaced. An argument that may be an address, or a part of one, is not repeated, because nobody can
//!   tell where a password ends that has spaces or quotes.

use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::{Error, OpenOptions, Store, Timers};

use crate::problem::Problem;

const ADVICE: &str = "the address of the database cannot be read: check it, and write characters such as / ? # @ in its password \
    as %2F %3F %23 %40";

/// The addresses that were given. There is at least one.
pub(crate) struct Addresses<'a>(&'a [String]);

impl<'a> Addresses<'a> {
    pub(crate) fn new(given: &'a [String]) -> Result<Addresses<'a>, Problem> {
        if given.is_empty() {
            let problem = "there is no database: give --database sqlite:path or --database postgres://user@host/database, or set \
                DATABASE_URL";
            return Err(Problem::Usage(problem.to_owned()));
        }
        // A host has no `@`: what is before it is the rest of a password, and would be printed as a part of the name.
        let is_rest = |name: String| name.split('/').next().is_some_and(|host| host.contains('@'));
        if given.iter().any(|address| server(address).is_some_and(is_rest)) {
            return Err(Problem::Usage(ADVICE.to_owned()));
        }
        Ok(Addresses(given))
    }

    pub(crate) fn all(&self) -> &'a [String] {
        self.0
    }

    /// Opens the store, whose tables must be there: a look changes nothing.
    pub(crate) fn open(&self) -> Result<Timers, Problem> {
        self.0.iter().try_for_each(|address| exists(address))?;
        let opened = match self.0 {
            [one] => OpenOptions::new().open_unmigrated(one),
            several => OpenOptions::new().sharded_unmigrated(several),
        };
        opened.map_err(|error| self.problem(error))
    }

    /// Returns what is the matter, without a password (SECRET-1).
    pub(crate) fn problem(&self, error: Error) -> Problem {
        match &error {
            Error::Address(text) if self.0.iter().any(|of| repeats_password(text, of)) => {
                Problem::Usage(ADVICE.to_owned())
            }
            _ => error.into(),
        }
    }

    /// Returns where the timers are, for people.
    pub(crate) fn name(&self) -> String {
        self.0.iter().map(|address| name(address)).collect::<Vec<_>>().join(", ")
    }
}

/// Returns where one database is, without a password (SECRET-1).
pub(crate) fn name(address: &str) -> String {
    match address.split_once(':') {
        Some(("sqlite", _)) => address.to_owned(),
        _ => server(address).unwrap_or_else(|| "a database".to_owned()),
    }
}

fn server(address: &str) -> Option<String> {
    let is_server = !address.starts_with("sqlite:");
    is_server.then(|| Postgres::new(address).ok()).flatten().map(|store| store.name())
}

/// Fails if a SQLite file is not there, because to open it would make it.
pub(crate) fn exists(address: &str) -> Result<(), Problem> {
    let path = address.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path));
    match path {
        Some(path) if !path.is_empty() && path != ":memory:" && !Path::new(path).exists() => {
            Err(Problem::Refused(format!(
                "there is no file {path:?}: check the address, or run `tickwheel-durable migrate`, which makes it"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns an error of the parser of arguments, which repeats what is wrong, without what may have a password (SECRET-1).
pub(crate) fn without_passwords(mut error: clap::Error) -> clap::Error {
    let may_have_one = |value: &ContextValue| {
        let text = value.to_string().to_lowercase();
        text.contains("://") || text.contains('@') || text.contains("password")
    };
    let parts = error.context().filter(|(_, value)| may_have_one(value)).map(|(kind, _)| kind);
    for kind in parts.collect::<Vec<_>>() {
        let hidden = ContextValue::String("(hidden: it may have a password)".to_owned());
        match kind {
            ContextKind::Suggested => error.remove(kind), // a tip how to pass it nevertheless
            _ => error.insert(kind, hidden),
        };
    }
    error
}

/// Returns true if a text may have a part of the password of an address, as an error may that says which part of it is wrong.
fn repeats_password(text: &str, address: &str) -> bool {
    let login = address.split_once("://").and_then(|(_, rest)| Some(rest.rsplit_once('@')?.0));
    let password = login.and_then(|login| Some(login.split_once(':')?.1));
    // The text may have it without its percent signs.
    if address.contains("password") || password.is_some_and(|password| password.contains('%')) {
        return true;
    }
    let parts = password
        .into_iter()
        .flat_map(|password| password.split(['/', '?', '#', '@', '&', '=', ':']));
    parts.filter(|part| part.len() > 1).any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn no_text_repeats_a_password() {
        let address = "postgres://me:se?cret@host/shop";
        assert!(repeats_password("invalid option `cret@host`", address));
        assert!(!repeats_password("the host is away", address));
        assert!(!repeats_password("shop", "postgres://me@host/shop"));
        assert!(repeats_password("no: secret", "host=a password=secret user=b"));
        assert!(repeats_password("no", "postgres://host/shop?password=secret"));
        assert!(repeats_password("no: secret", "host=a password = 'top secret' user=b"));
        assert!(repeats_password("invalid option `bcd@host`", "postgres://me:a?b%63d@host/shop"));
        for argument in [
            "postgres://me:my secret@host/shop",
            "--postgres://me:my secret@host/shop",
            "--json=postgres://me:my\nsecret@host/shop",
            "--limit=host=h password = 'top secret'",
            "secret@host/shop",
        ] {
            let error = Arguments::try_parse_from(["", "list", argument]).err();
            let text = without_passwords(error.expect("it is wrong")).render().to_string();
            assert!(!text.contains("secret") && text.contains("(hidden:"), "{text}");
        }
        let error = Arguments::try_parse_from(["", "lsit"]).err().expect("it is wrong");
        assert!(without_passwords(error).render().to_string().contains("'lsit'"));
        assert!(Addresses::new(&["postgres://me:se@cret@host/shop".to_owned()]).is_err());
        assert!(Addresses::new(&["sqlite:me@home.db".to_owned()]).is_ok());
        assert_eq!(name("postgres://me:secret@host:5433/shop?schema=x"), "host:5433/shop");
        assert_eq!(name("sqlite:shop.db"), "sqlite:shop.db");
    }
}
