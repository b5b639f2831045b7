//! The table of the module, the texts, and rules at random beside a clock that is read minute by minute.

use std::env;
use std::time::SystemTime;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use super::{Cron, Missed};

const MINUTE: SignedDuration = SignedDuration::from_secs(60);

fn cron(rule: &str, zone: &str) -> Cron {
    Cron::parse(rule).expect("an expression").in_zone(zone).expect("a zone")
}

/// The first times of a rule after this one, as the clock shows them, with its distance from UTC.
fn times(zone: &str, rule: &str, after: &str, count: usize) -> Vec<String> {
    let cron = cron(rule, zone);
    let after: Zoned = format!("{after}[{zone}]").parse().expect("a time");
    let mut last = SystemTime::from(after.timestamp());
    (0..count)
        .map_while(|_| {
            last = cron.next_after(last)?;
            let time = Timestamp::try_from(last).expect("in range").in_tz(zone).expect("a zone");
            Some(time.strftime("%m-%d %H:%M %z").to_string())
        })
        .collect()
}

#[test]
fn a_fixed_time_that_is_left_out_runs_when_the_clock_is_set() {
    let berlin = |rule, count| times("Europe/Berlin", rule, "2026-03-28T12:00", count);
    assert_eq!(berlin("30 2 * * *", 2), ["03-29 03:00 +0200", "03-30 02:30 +0200"]);
    assert_eq!(
        berlin("0,30 2,3 * * *", 3),
        ["03-29 03:00 +0200", "03-29 03:30 +0200", "03-30 02:00 +0200"]
    );
    assert_eq!(
        times("America/New_York", "0 2 8 3 *", "2026-03-01T00:00", 2),
        ["03-08 03:00 -0400", "03-08 02:00 -0500"]
    );
    assert_eq!(
        times("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00", 2),
        ["10-04 02:30 +1100", "10-05 02:15 +1100"]
    );
    // A whole day is left out, and the run of Friday is not lost with it.
    for rule in ["0 9 30 12 *", "0 9 * * FRI"] {
        let first = times("Pacific/Apia", rule, "2011-12-29T12:00", 1);
        assert_eq!(first, ["12-31 00:00 +1400"], "{rule}");
    }
    // At midnight.
    assert_eq!(
        times("Africa/Cairo", "0 0 * * *", "2024-04-25T12:00", 2),
        ["04-26 01:00 +0300", "04-27 00:00 +0300"]
    );
}

#[test]
fn a_fixed_time_that_comes_twice_runs_the_first_time() {
    assert_eq!(
        times("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", 2),
        ["10-25 02:30 +0200", "10-26 02:30 +0100"]
    );
    assert_eq!(
        times("America/New_York", "30 1 * * *", "2026-10-31T12:00", 2),
        ["11-01 01:30 -0400", "11-02 01:30 -0500"]
    );
    assert_eq!(
        times("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00", 2),
        ["04-05 01:45 +1100", "04-06 01:45 +1030"]
    );
    // After the change, while the clock shows again what it has shown.
    for after in ["2026-10-25T02:00+01:00", "2026-10-25T02:10+01:00", "2026-10-25T02:59+01:00"] {
        let next = times("Europe/Berlin", "0,30 2,3 * * *", after, 2);
        assert_eq!(next, ["10-25 03:00 +0100", "10-25 03:30 +0100"], "{after}");
    }
}

#[test]
fn an_interval_runs_whenever_the_clock_shows_it() {
    let berlin = |rule, after, count| times("Europe/Berlin", rule, after, count);
    assert_eq!(
        berlin("*/15 * * * *", "2026-03-29T01:44", 3),
        ["03-29 01:45 +0100", "03-29 03:00 +0200", "03-29 03:15 +0200"]
    );
    assert_eq!(
        berlin("*/30 2 * * *", "2026-03-28T12:00", 2),
        ["03-30 02:00 +0200", "03-30 02:30 +0200"]
    );
    assert_eq!(
        berlin("*/30 2 * * *", "2026-10-25T01:00", 5),
        [
            "10-25 02:00 +0200",
            "10-25 02:30 +0200",
            "10-25 02:00 +0100",
            "10-25 02:30 +0100",
            "10-26 02:00 +0100"
        ]
    );
    assert_eq!(
        times("Australia/Lord_Howe", "*/15 * * * *", "2026-04-05T01:29", 5),
        [
            "04-05 01:30 +1100",
            "04-05 01:45 +1100",
            "04-05 01:30 +1030",
            "04-05 01:45 +1030",
            "04-05 02:00 +1030"
        ]
    );
    // Its gaps are the same all day long.
    let hours = times("Europe/Berlin", "@hourly", "2026-10-25T00:00", 4);
    let expected =
        ["10-25 01:00 +0200", "10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100"];
    assert_eq!(hours, expected);
}

#[test]
fn a_zone_whose_clock_is_never_set_runs_what_it_shows() {
    assert_eq!(
        times("Asia/Kolkata", "30 2 * * *", "2026-03-28T12:00", 2),
        ["03-29 02:30 +0530", "03-30 02:30 +0530"]
    );
    assert_eq!(times("UTC", "*/30 2 29 3 *", "2026-03-01T00:00", 1), ["03-29 02:00 +0000"]);
}

#[test]
fn years_far_away_and_leap_days() {
    let next = |rule: &str, zone: &str, after: &str| {
        let after = SystemTime::from(after.parse::<Timestamp>().expect("a time"));
        let next = cron(rule, zone).next_after(after)?;
        Some(Timestamp::try_from(next).expect("in range").to_string())
    };
    let is = |time: &str| Some(time.to_owned());
    assert_eq!(next("0 0 29 2 *", "UTC", "2024-02-29T00:00:00Z"), is("2028-02-29T00:00:00Z"));
    assert_eq!(next("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z"), is("2104-02-29T00:00:00Z"));
    // A Monday, which comes after 28 years.
    let monday = next("0 9 29 2 +MON", "Europe/Berlin", "2024-02-29T00:00:00Z");
    assert_eq!(monday, is("2044-02-29T08:00:00Z"));
    let summer = next("0 0 9 1 7 * 3000", "Europe/Berlin", "2024-02-29T00:00:00Z");
    assert_eq!(summer, is("3000-07-01T07:00:00Z"));
    assert_eq!(next("0 0 31 2 *", "Europe/Berlin", "2024-02-29T00:00:00Z"), None);
    assert_eq!(next("0 0 9 1 7 * 2020", "UTC", "2024-02-29T00:00:00Z"), None);
    assert_eq!(next("* * * * *", "UTC", "9999-01-01T00:00:00Z"), None);
    // Before 1970, parts of a second, and seconds.
    assert_eq!(next("0 0 1 1 *", "UTC", "1960-06-01T00:00:00Z"), is("1961-01-01T00:00:00Z"));
    assert_eq!(next("* * * * *", "UTC", "2026-01-01T00:00:59.999Z"), is("2026-01-01T00:01:00Z"));
    assert_eq!(next("* * * * *", "UTC", "2026-01-01T00:01:00Z"), is("2026-01-01T00:02:00Z"));
    assert_eq!(next("*/20 * * * * *", "UTC", "2026-01-01T00:00:01Z"), is("2026-01-01T00:00:20Z"));
}

#[test]
fn days_are_those_that_the_page_says() {
    let days = |rule, count| times("UTC", rule, "2026-01-01T00:00", count);
    let at = |days: [&str; 3]| days.map(|day| format!("{day} 09:00 +0000"));
    assert_eq!(days("0 9 * * MON-FRI", 3), at(["01-01", "01-02", "01-05"]));
    assert_eq!(days("0 9 L * *", 3), at(["01-31", "02-28", "03-31"]));
    assert_eq!(days("0 9 15W * *", 3), at(["01-15", "02-16", "03-16"]));
    assert_eq!(days("0 9 * * FRI#2", 3), at(["01-09", "02-13", "03-13"]));
    assert_eq!(days("0 9 * * FRI#L", 3), at(["01-30", "02-27", "03-27"]));
    assert_eq!(days("0 9 13 * FRI", 3), at(["01-02", "01-09", "01-13"]));
    assert_eq!(days("0 9 13 * +FRI", 3), at(["02-13", "03-13", "11-13"]));
    assert_eq!(days("0 9 * * 7", 3), days("0 9 * * SUN", 3));
    assert_eq!(days("@daily", 1), ["01-02 00:00 +0000"]);
}

#[test]
fn a_rule_is_a_text_and_back() {
    let full = cron("  0   9 * * mon-fri", "europe/berlin").missed(Missed::All);
    let text = "cron: 0 9 * * mon-fri; zone=Europe/Berlin; missed=all";
    assert_eq!(full.to_string(), text);
    assert_eq!(text.parse::<Cron>().expect("a rule"), full);
    let plain: Cron = "cron:@daily".parse().expect("a rule");
    assert_eq!(plain.to_string(), "cron: @daily; zone=UTC; missed=once");
    assert_eq!("cron: @daily ;missed = once;zone= UTC".parse::<Cron>().expect("a rule"), plain);
    for (wrong, says) in [
        ("0 9 * * *", "it begins with `cron:`"),
        ("cron: 0 9 * *", "is no cron expression"),
        ("cron: 0 25 * * *", "is no cron expression"),
        ("cron: 0 9 * * *; zone=Europe/Berln", "there is no time zone \"Europe/Berln\""),
        ("cron: 0 9 * * *; zone", "there is no time zone"),
        ("cron: 0 9 * * *; missed=never", "`missed` is `skip`, `once` or `all`"),
        ("cron: 0 9 * * *; tz=UTC", "\"tz\" is neither `zone` nor `missed`"),
        ("cron: 0 9 * * *;", "\"\" is neither `zone` nor `missed`"),
    ] {
        let error = wrong.parse::<Cron>().expect_err(wrong).to_string();
        assert!(error.contains(says) && error.contains(wrong), "{error}");
    }
}

#[test]
fn what_was_missed_is_made_up_for_as_the_policy_says() {
    let at = |text: &str| SystemTime::from(text.parse::<Timestamp>().expect("a time"));
    let (due, now) = (at("2026-01-05T09:00:00Z"), at("2026-01-08T12:00:00Z"));
    let next = |missed| {
        let next = cron("0 9 * * *", "UTC").missed(missed).next_due(due, now);
        Timestamp::try_from(next.expect("a time")).expect("in range").to_string()
    };
    assert_eq!(next(Missed::Once), "2026-01-09T09:00:00Z");
    assert_eq!(next(Missed::Skip), "2026-01-09T09:00:00Z");
    assert_eq!(next(Missed::All), "2026-01-06T09:00:00Z");
    let skips = |missed, now| cron("0 9 * * *", "UTC").missed(missed).skips(due, now);
    assert!(skips(Missed::Skip, now) && !skips(Missed::Once, now) && !skips(Missed::All, now));
    assert!(!skips(Missed::Skip, at("2026-01-05T09:01:00Z")), "within the grace");
    assert!(skips(Missed::Skip, at("2026-01-05T09:01:00.001Z")));
    assert!(!skips(Missed::Skip, at("2026-01-05T08:00:00Z")), "early");
}

// ----- beside a clock that is read minute by minute ------------------------------------------

/// A field: its text, and the values that it has.
struct Field {
    text: String,
    has: u64,
}

/// Numbers at random, the same for each seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    fn field(&mut self, low: u64, high: u64, stars: u64) -> Field {
        let bits = |first: u64, last: u64, step: u64| {
            (first..=last).step_by(step as usize).fold(0, |has, value| has | 1 << value)
        };
        if self.below(100) < stars {
            return Field { text: "*".to_owned(), has: bits(low, high, 1) };
        }
        let first = self.within(low, high);
        let last = self.within(first, high);
        let step = self.within(1, 1 + (high - low) / 2);
        let (text, has) = match self.below(5) {
            0 => (format!("*/{step}"), bits(low, high, step)),
            1 => (format!("{first}-{last}"), bits(first, last, 1)),
            2 => (format!("{first}-{last}/{step}"), bits(first, last, step)),
            3 => (format!("{first},{last}"), 1 << first | 1 << last),
            _ => (first.to_string(), 1 << first),
        };
        Field { text, has }
    }
}

struct Slow {
    fields: [Field; 5],
    zone: TimeZone,
}

impl Slow {
    fn is_shown(&self, clock: DateTime) -> bool {
        let has = |field: usize, value: i8| self.fields[field].has >> value & 1 == 1;
        let is_star = |field: usize| self.fields[field].text == "*";
        let (day, weekday) = (has(2, clock.day()), has(4, clock.weekday().to_sunday_zero_offset()));
        let is_day = if is_star(2) || is_star(4) { day && weekday } else { day || weekday };
        is_day && has(0, clock.minute()) && has(1, clock.hour()) && has(3, clock.month())
    }

    /// Reads the clock in each minute, from two days before, and returns the times at which the rule runs.
    fn times(&self, begin: Timestamp, minutes: i32) -> Vec<Timestamp> {
        let is_interval = self.fields[..2].iter().any(|field| field.text.contains('*'));
        let before = 2 * 24 * 60;
        let mut is_new = self.zone.to_datetime(begin - MINUTE * before);
        let mut times = Vec::new();
        for minute in -before..minutes {
            let at = begin + MINUTE * minute;
            let clock = self.zone.to_datetime(at);
            let mut runs = self.is_shown(clock);
            if !is_interval {
                // Nothing that was shown before, and whatever was left out.
                runs &= clock >= is_new;
                while is_new < clock {
                    runs |= self.is_shown(is_new);
                    is_new += MINUTE;
                }
                is_new = is_new.max(clock + MINUTE);
            }
            if runs && minute >= 0 {
                times.push(at);
            }
        }
        times
    }
}

#[test]
fn any_rule_runs_when_a_clock_that_is_read_each_minute_says() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("TICKWHEEL_SEED").unwrap_or(0x0005_eed0_fc40);
    let mut random = Random(seed.max(1));
    let zones = [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
        "Pacific/Apia",
        "Pacific/Kwajalein",
        "Africa/Cairo",
        "Africa/Casablanca",
        "America/Sao_Paulo",
        "America/St_Johns",
        "America/Caracas",
        "Antarctica/Troll",
        "Asia/Pyongyang",
        "Europe/Dublin",
        "UTC",
    ];
    let (mut changes, mut runs) = (0, 0);
    for round in 0..number("TICKWHEEL_RUNS").unwrap_or(300) {
        // Clocks are mostly set in the first hours of a day.
        let hours = match random.below(6) {
            early @ 0..3 => Field { text: early.to_string(), has: 1 << early },
            _ => random.field(0, 23, 30),
        };
        let fields = [
            random.field(0, 59, 10),
            hours,
            random.field(1, 31, 70),
            random.field(1, 12, 90),
            random.field(0, 6, 70),
        ];
        let name = zones[random.below(zones.len() as u64) as usize];
        let slow = Slow { fields, zone: TimeZone::get(name).expect("a zone") };
        let rule = slow.fields.each_ref().map(|field| field.text.as_str()).join(" ");
        // Around a change of the clock between 1990 and 2060, if there is one.
        let year = random.within(1990, 2060) as i16;
        let some_day = jiff::civil::date(year, random.within(1, 12) as i8, 1).at(0, 0, 0, 0);
        let some_day = TimeZone::UTC.to_timestamp(some_day).expect("a time");
        let change = slow.zone.following(some_day).next().map(|change| change.timestamp());
        changes += u32::from(change.is_some());
        // Some data have a change of nothing at the last second that fits in 32 bits.
        let minute = change.unwrap_or(some_day).as_second() / 60 * 60;
        let change = Timestamp::from_second(minute).expect("in range");
        let before = random.within(30, 3 * 24 * 60) as i32;
        let begin = change - MINUTE * before;
        let minutes: i32 = 4 * 24 * 60;
        let expected = slow.times(begin, minutes);
        let cron = cron(&rule, name);
        let end = SystemTime::from(begin + MINUTE * minutes);
        let mut last = SystemTime::from(begin - SignedDuration::from_millis(1));
        let mut times = Vec::new();
        while let Some(next) = cron.next_after(last).filter(|next| *next < end) {
            assert!(next > last, "{rule:?} in {name}: {next:?} is not after {last:?}");
            times.push(Timestamp::try_from(next).expect("in range"));
            last = next;
        }
        assert_eq!(times, expected, "seed {seed}, round {round}: {rule:?} in {name} from {begin}");
        // From any other moment too, such as one while the clock shows again what it has shown.
        for _ in 0..20 {
            let from = begin + MINUTE * (before - 30 + random.within(0, 180) as i32);
            let next = expected.iter().copied().find(|time| *time > from);
            let found = cron.next_after(SystemTime::from(from)).filter(|next| *next < end);
            let next = next.map(SystemTime::from);
            assert_eq!(found, next, "seed {seed}, round {round}: {rule:?} in {name} after {from}");
        }
        runs += times.len();
    }
    assert!(changes > 0 && runs > 1000, "{changes} changes, {runs} runs");
}
