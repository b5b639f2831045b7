//! The database: how it is opened, and what is said of its address.
//!
//! - SECRET-1 A password is never printed. What is said of an address names the host and the database alone, and an error that
//!   repeats a part of the password is replaced.

use std::path::Path;

use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::{Error, OpenOptions, Store, Timers};

use crate::problem::Problem;

/// The addresses that were given. There is at least one.
pub(crate) struct Addresses<'a>(&'a [String]);

impl<'a> Addresses<'a> {
    pub(crate) fn new(given: &'a [String]) -> Result<Addresses<'a>, Problem> {
        if given.is_empty() {
            let problem = "there is no database: give --database sqlite:path or --database postgres://user@host/database, or set \
                DATABASE_URL";
            return Err(Problem::Usage(problem.to_owned()));
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
                let advice = "the address of the database cannot be read: check it, and write characters such as / ? # @ in its \
                    password as %2F %3F %23 %40";
                Problem::Usage(advice.to_owned())
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
        _ => Postgres::new(address).map_or("a database".to_owned(), |store| store.name()),
    }
}

/// Fails if a SQLite file is not there, because to open it would make it.
pub(crate) fn exists(address: &str) -> Result<(), Problem> {
    let path = address.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path));
    match path {
        Some(path) if !path.is_empty() && path != ":memory:" && !Path::new(path).exists() => {
            Err(Problem::Away(format!(
                "there is no file {path:?}: check the address, or run `tickwheel-durable migrate`, which makes it"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns a text with `***` in place of the passwords in its addresses (SECRET-1): the parser of arguments repeats what is wrong.
pub(crate) fn without_passwords(text: &str) -> String {
    let in_word = |word: &str| {
        let hidden = || {
            let (before, rest) = word.split_once("://")?;
            let (login, host) = rest.rsplit_once('@')?;
            let (user, _) = login.split_once(':')?;
            Some(format!("{before}://{user}:***@{host}"))
        };
        hidden().unwrap_or_else(|| word.to_owned())
    };
    let in_line = |line: &str| -> String {
        // What follows may be in quotes and have spaces, so nothing of the line is repeated.
        let (rest, end) = match line.split_once("password=") {
            Some((before, _)) => (before, "password=***\n"),
            None => (line, ""),
        };
        rest.split_inclusive(char::is_whitespace).map(in_word).collect::<String>() + end
    };
    text.split_inclusive('\n').map(in_line).collect()
}

/// Returns true if a text may have a part of the password of an address, as an error may that says which part of it is wrong.
fn repeats_password(text: &str, address: &str) -> bool {
    if address.contains("password=") {
        return true;
    }
    let login = address.split_once("://").and_then(|(_, rest)| Some(rest.rsplit_once('@')?.0));
    let password = login.and_then(|login| Some(login.split_once(':')?.1));
    let parts = password
        .into_iter()
        .flat_map(|password| password.split(['/', '?', '#', '@', '&', '=', ':']));
    parts.filter(|part| part.len() > 1).any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_repeats_a_password() {
        let address = "postgres://me:se?cret@host/shop";
        assert!(repeats_password("invalid option `cret@host`", address));
        assert!(!repeats_password("the host is away", address));
        assert!(!repeats_password("shop", "postgres://me@host/shop"));
        assert!(repeats_password("no: secret", "host=a password=secret user=b"));
        assert!(repeats_password("no", "postgres://host/shop?password=secret"));
        let complaint = "unexpected argument 'postgres://me:sec@ret@host/shop' found, sqlite://a";
        let clean = "unexpected argument 'postgres://me:***@host/shop' found, sqlite://a";
        assert_eq!(without_passwords(complaint), clean);
        let pairs = without_passwords("no 'postgres://h/s?password=secret' here\nand");
        assert_eq!(pairs, "no 'postgres://h/s?password=***\nand");
        assert_eq!(name("postgres://me:secret@host:5433/shop?schema=x"), "host:5433/shop");
        assert_eq!(name("sqlite:shop.db"), "sqlite:shop.db");
    }
}
