//! Links of the page, and what they ask for: [`Query`].
//!
//! - QUERY-1 Every link and every form leads to the address of the page itself, with a query, such as `?view=timer&kind=mail&key=4711`.
//!   So the page works below whatever path it is mounted, also behind a proxy that changes the path, and nobody has to tell it
//!   the path. Kinds and keys are free texts: in a query none is a path, whatever `/`, `..`, `?` or `#` it has.
//! - QUERY-2 The kind and the key of a form are in its address too, and not in a hidden field, because browsers change line ends
//!   in fields.

use std::fmt::Display;
use std::time::SystemTime;

use tickwheel_durable::{Attempt, Outcome, Timer};

use crate::times::{from_micros, micros};

/// The pairs of a query, or of a form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &[u8]) -> Query {
        Query(form_urlencoded::parse(text).into_owned().collect())
    }

    pub(crate) fn new(view: &str) -> Query {
        Query::default().with("view", view)
    }

    /// Sets a pair. An empty text is one too: a key may be empty.
    pub(crate) fn with(mut self, name: &str, value: impl Display) -> Query {
        self.0.retain(|(of, _)| of != name);
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn with_some(self, name: &str, value: Option<impl Display>) -> Query {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(crate) fn without(mut self, names: &[&str]) -> Query {
        self.0.retain(|(of, _)| !names.contains(&of.as_str()));
        self
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// Returns a value of a choice or of a search, where an empty one means all.
    pub(crate) fn chosen(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.get(name)?.parse().ok()
    }

    pub(crate) fn time(&self, name: &str) -> Option<SystemTime> {
        self.number(name).and_then(from_micros)
    }

    /// Returns the link: it begins with `?`, so it leads nowhere else (QUERY-1).
    pub(crate) fn link(&self) -> String {
        format!(
            "?{}",
            form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.0).finish()
        )
    }
}

/// The page of one timer. Of several databases the link has the number, because a timer is not always on its home.
pub(crate) fn to_timer(kind: &str, key: &str, shard: Option<usize>) -> Query {
    Query::new("timer").with("kind", kind).with("key", key).with_some("shard", shard)
}

/// The place in a list of timers behind which the next page begins.
pub(crate) fn behind_timer(query: Query, last: &Timer) -> Query {
    query
        .with("of", &last.kind)
        .with_some("wake", last.wake.map(micros))
        .with("id", last.id)
        .with("shard", last.shard)
}

/// The timer that stands for such a place.
pub(crate) fn timer_behind(query: &Query) -> Option<Timer> {
    let wake = query.time("wake");
    let mut timer = Timer::new(
        query.number("id")?,
        query.get("of")?,
        "",
        wake.unwrap_or(SystemTime::UNIX_EPOCH),
    );
    timer.wake = wake;
    timer.shard = query.number("shard").unwrap_or(0);
    Some(timer)
}

/// The place in a list of attempts behind which the next page begins.
pub(crate) fn behind_attempt(query: Query, last: &Attempt) -> Query {
    query
        .with("of", &last.kind)
        .with("began", micros(last.started))
        .with("id", last.id)
        .with("shard", last.shard)
}

/// The attempt that stands for such a place.
pub(crate) fn attempt_behind(query: &Query) -> Option<Attempt> {
    let (kind, began, id) = (query.get("of")?, query.time("began")?, query.number("id")?);
    let mut attempt = Attempt::new(kind, "", began, id, Outcome::Done);
    attempt.shard = query.number("shard").unwrap_or(0);
    Some(attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_from_its_link() {
        for key in [
            "",
            "/",
            "../..",
            "a?b#c&d=e%41+ f",
            "\r\n\t\u{0}",
            "\u{1f469}\u{200d}\u{1f467}",
            "\u{202e}\"'<>",
            "+",
            "%",
        ] {
            let link = to_timer("k/ä", key, None).link();
            assert!(link.starts_with("?view=timer&kind=") && link.is_ascii(), "{link}");
            assert!(!link[1..].contains(['?', '#', '"', '\'', '<', '>', '/', ' ', '\n']), "{link}");
            let query = Query::parse(&link.as_bytes()[1..]);
            assert_eq!((query.get("kind"), query.get("key")), (Some("k/ä"), Some(key)));
        }
    }

    #[test]
    fn a_place_in_a_list_comes_back_too() {
        let mut timer =
            Timer::new(7, "mail", "", from_micros(1_795_684_839_123_456).expect("a time"));
        timer.shard = 2;
        for wake in [timer.wake, None] {
            timer.wake = wake;
            let query = behind_timer(Query::new("dead"), &timer);
            let place = timer_behind(&query).expect("a place");
            assert_eq!((place.id, &*place.kind, place.wake, place.shard), (7, "mail", wake, 2));
        }
        assert_eq!(timer_behind(&Query::new("dead")), None);
    }
}
