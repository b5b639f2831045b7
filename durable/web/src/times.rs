//! Times and spans as people read them. All times are UTC, because the operators of one service sit in several places.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// A span with at most two units, such as `1.5 ms`, `42 s`, `3 min 10 s` or `2 d 5 h`.
pub(crate) fn span(span: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let seconds = span.as_secs();
    if span.is_zero() {
        return "0 s".to_owned();
    }
    if span < Duration::from_micros(950) {
        return format!("{} us", span.as_micros());
    }
    if span < Duration::from_millis(10) {
        return format!("{:.1} ms", span.as_secs_f64() * 1000.0);
    }
    if span < Duration::from_secs(1) {
        return format!("{} ms", span.as_millis());
    }
    if seconds < 10 {
        return format!("{:.1} s", span.as_secs_f64());
    }
    let largest = UNITS.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(3);
    let (name, unit) = UNITS[largest];
    let mut text = format!("{} {name}", seconds / unit);
    if let Some((next, of)) = UNITS.get(largest + 1).filter(|(_, of)| seconds % unit / of > 0) {
        _ = write!(text, " {} {next}", seconds % unit / of);
    }
    text
}

/// A time beside another one: `in 5 min`, `12 s ago` or `now`.
pub(crate) fn beside(time: SystemTime, now: SystemTime) -> String {
    match time.duration_since(now) {
        Ok(left) if left < Duration::from_secs(1) => "now".to_owned(),
        Ok(left) => format!("in {}", span(left)),
        Err(past) if past.duration() < Duration::from_secs(1) => "now".to_owned(),
        Err(past) => format!("{} ago", span(past.duration())),
    }
}

/// A time as `2026-11-26 09:20:39 UTC`.
pub(crate) fn utc(time: SystemTime) -> String {
    let (year, month, day, second) = civil(time);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

/// The hour and minute of a time, in UTC.
pub(crate) fn clock(time: SystemTime) -> String {
    let (.., second) = civil(time);
    format!("{:02}:{:02}", second / 3600, second / 60 % 60)
}

/// Microseconds since 1970, for links.
pub(crate) fn micros(time: SystemTime) -> i64 {
    let of = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    time.duration_since(SystemTime::UNIX_EPOCH).map_or_else(|before| -of(before.duration()), of)
}

/// The time of microseconds since 1970. `None`: there is no such time on this system.
pub(crate) fn from_micros(micros: i64) -> Option<SystemTime> {
    let span = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(span)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(span)
    }
}

/// Year, month, day, and second of the day. The days are counted in eras of 400 years, which begin on the first of March, so that
/// the leap day is the last one of a year (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(time: SystemTime) -> (i64, i64, i64, i64) {
    let seconds = micros(time).div_euclid(1_000_000);
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day, seconds.rem_euclid(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        let of = |millis: u64| span(Duration::from_millis(millis));
        assert_eq!(span(Duration::ZERO), "0 s");
        assert_eq!(span(Duration::from_micros(120)), "120 us");
        assert_eq!([of(1), of(42), of(999)], ["1.0 ms", "42 ms", "999 ms"]);
        assert_eq!([of(1500), of(59_000), of(60_000)], ["1.5 s", "59 s", "1 min"]);
        assert_eq!(
            [of(190_000), of(7_500_000), of(266_400_000)],
            ["3 min 10 s", "2 h 5 min", "3 d 2 h"]
        );
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: i64| utc(from_micros(seconds * 1_000_000).expect("a time"));
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(-1), "1969-12-31 23:59:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_795_684_839), "2026-11-26 09:20:39 UTC");
        assert_eq!(at(4_107_542_399), "2100-02-28 23:59:59 UTC");
        assert_eq!(clock(from_micros(1_795_684_839_000_000).expect("a time")), "09:20");
        assert_eq!(
            [micros(SystemTime::UNIX_EPOCH), micros(from_micros(-7).expect("a time"))],
            [0, -7]
        );
    }

    #[test]
    fn a_time_is_told_beside_another() {
        let now = from_micros(1_000_000_000_000).expect("a time");
        assert_eq!(beside(now + Duration::from_secs(300), now), "in 5 min");
        assert_eq!(beside(now - Duration::from_secs(12), now), "12 s ago");
        assert_eq!(beside(now, now), "now");
    }
}
