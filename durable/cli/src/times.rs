//! Times and durations, as they are typed and as they are shown.

use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp};

/// Reads a duration such as `30m`, `1h 30m`, `3 days` or `PT30M`. A day has 24 hours.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    let advice = "give a number with a unit, such as 90s, 30m, 2h or 3d";
    let span: Span = text.parse().map_err(|_| advice.to_owned())?;
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours());
    let exact = exact.map_err(|_| format!("months and years differ in length: {advice}"))?;
    exact.try_into().map_err(|_| format!("it is below zero: {advice}"))
}

/// Reads a time of RFC 3339, with its offset from UTC.
pub(crate) fn moment(text: &str) -> Result<SystemTime, String> {
    let advice =
        "give a time with its offset, such as 2030-01-31T09:00:00Z or 2030-01-31T10:00+01:00";
    text.parse::<Timestamp>().map(SystemTime::from).map_err(|_| advice.to_owned())
}

/// Reads the time at which a timer is due. One before 1970 was mistyped, and the timer would run at once.
pub(crate) fn due(text: &str) -> Result<SystemTime, String> {
    let time = moment(text)?;
    let is_past = time < SystemTime::UNIX_EPOCH;
    if is_past { Err("it is before 1970: for now, leave it out".to_owned()) } else { Ok(time) }
}

/// A time, or so long before or after now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    At(SystemTime),
    Away(Duration),
}

/// Reads a time or a duration.
pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    let at = moment(text).map(Limit::At);
    at.or_else(|advice| delay(text).map(Limit::Away).map_err(|or| format!("{advice}; or {or}")))
}

/// Returns a time in UTC as RFC 3339 with so many digits behind the second. One that RFC 3339 cannot write, because it is after the
/// year 9999, is the last that it can.
pub(crate) fn rfc3339(time: SystemTime, digits: u8) -> String {
    let last = if time > SystemTime::UNIX_EPOCH { Timestamp::MAX } else { Timestamp::MIN };
    let time = Timestamp::try_from(time).unwrap_or(last);
    format!("{time:.*}", usize::from(digits))
}

/// Returns how far away a time is: `in 3 h`, `5 min ago`, `now`.
pub(crate) fn relative(time: SystemTime, now: SystemTime) -> String {
    match time.duration_since(now) {
        Ok(left) if left.as_millis() < 500 => "now".to_owned(),
        Ok(left) => format!("in {}", rough(left)),
        Err(past) if past.duration().as_millis() < 500 => "now".to_owned(),
        Err(past) => format!("{} ago", rough(past.duration())),
    }
}

/// Returns a duration in whole units, of which there are two or more.
pub(crate) fn rough(duration: Duration) -> String {
    let seconds = (duration.as_millis() + 500) / 1000;
    let (unit, size) = match seconds {
        0..120 => ("s", 1),
        120..7200 => ("min", 60),
        7200..172_800 => ("h", 3600),
        172_800..63_072_000 => ("d", 86_400),
        _ => ("y", 31_557_600),
    };
    format!("{} {unit}", (seconds + size / 2) / size)
}

/// Returns a duration with three digits or so: how late, and how long a run took.
pub(crate) fn precise(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration.as_micros() {
        0 => "0 ms".to_owned(),
        micros @ 1..100 => format!("{micros} µs"),
        100..100_000 => format!("{:.1} ms", seconds * 1e3),
        100_000..1_000_000 => format!("{:.0} ms", seconds * 1e3),
        1_000_000..10_000_000 => format!("{seconds:.1} s"),
        _ => rough(duration),
    }
}

/// Returns a duration in milliseconds, with three digits behind the point.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn durations_are_read() {
        for (text, length) in [
            ("90s", 90),
            ("30m", 1800),
            ("1h 30m", 5400),
            ("3 days", 259_200),
            ("PT5M", 300),
            ("0s", 0),
        ] {
            assert_eq!(delay(text), Ok(seconds(length)), "{text}");
        }
        assert_eq!(delay("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "90", "soon", "-5m", "5m ago", "2 months", "1y"] {
            assert!(delay(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_read_and_written() {
        let nine = moment("2030-01-31T10:00+01:00").expect("a time");
        assert_eq!(rfc3339(nine, 0), "2030-01-31T09:00:00Z");
        assert_eq!(rfc3339(nine + Duration::from_millis(1), 6), "2030-01-31T09:00:00.001000Z");
        for wrong in ["2030-01-31", "2030-01-31T10:00", "10:00", "2030-02-31T10:00Z"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
        let never = SystemTime::UNIX_EPOCH + seconds(1 << 40);
        assert!(rfc3339(never, 0).starts_with("9999-12-"), "{}", rfc3339(never, 0));
    }

    #[test]
    fn durations_are_shown() {
        let now = SystemTime::UNIX_EPOCH + seconds(1 << 30);
        assert_eq!(relative(now + Duration::from_millis(1_799_900), now), "in 30 min");
        assert_eq!(relative(now - seconds(5), now), "5 s ago");
        assert_eq!(relative(now, now), "now");
        for (length, text) in [
            (119, "119 s"),
            (120, "2 min"),
            (7199, "120 min"),
            (7200, "2 h"),
            (259_200, "3 d"),
            (100_000_000, "3 y"),
        ] {
            assert_eq!(rough(seconds(length)), text);
        }
        assert_eq!(precise(Duration::from_micros(1540)), "1.5 ms");
        assert_eq!(precise(Duration::from_nanos(45_600)), "45 µs");
        assert_eq!(precise(Duration::from_millis(250)), "250 ms");
        assert_eq!(precise(Duration::from_millis(2500)), "2.5 s");
        assert_eq!(precise(seconds(600)), "10 min");
    }
}
