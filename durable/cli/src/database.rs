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

/// Returns a text with `***` in place of the passwords in its URLs (SECRET-1): the parser of arguments repeats what is wrong.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut clean = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(|c: char| c.is_whitespace() || c == '\'').unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        clean.push_str(before);
        clean.push_str("://");
        let login =
            url.rsplit_once('@').and_then(|(login, host)| Some((login.split_once(':')?.0, host)));
        match login {
            Some((user, host)) => clean.extend([user, ":***@", host]),
            None => clean.push_str(url),
        }
        rest = behind;
    }
    clean.push_str(rest);
    clean
}

/// Returns true if a text has a part of the password of an address, as an error may that says which part of it is wrong.
fn repeats_password(text: &str, address: &str) -> bool {
    let in_url = || {
        let (_, rest) = address.split_once("://")?;
        let (login, _) = rest.rsplit_once('@')?;
        Some(login.split_once(':')?.1)
    };
    let in_pairs = || address.split_once("password=")?.1.split([' ', '&']).next();
    let parts = [in_url(), in_pairs()].into_iter().flatten();
    let mut parts = parts.flat_map(|password| password.split(['/', '?', '#', '@', '&', '=', ':']));
    parts.any(|part| part.len() > 1 && text.contains(part))
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
        let complaint = "unexpected argument 'postgres://me:sec@ret@host/shop' found, sqlite://a";
        let clean = "unexpected argument 'postgres://me:***@host/shop' found, sqlite://a";
        assert_eq!(without_passwords(complaint), clean);
        assert_eq!(name("postgres://me:secret@host:5433/shop?schema=x"), "host:5433/shop");
        assert_eq!(name("sqlite:shop.db"), "sqlite:shop.db");
    }
}
