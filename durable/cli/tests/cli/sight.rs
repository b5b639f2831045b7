//! `list`, `show`, `history`, `counts` and `top` without a terminal.

use serde_json::Value;
use tickwheel_durable::NewTimer;

use super::program::{HOUR, Shop};

/// Returns what programs read: the members of an object, in their order.
fn members(of: &Value) -> Vec<&str> {
    of.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_list_says_what_waits_and_when() {
    let shop = Shop::new();
    shop.run(&["schedule", "mail", "4711", "--after", "30m", "--payload", "two pears"]).ended(0);
    shop.run(&["schedule", "mail", "4712", "--at", "2099-01-31T10:00+01:00"]).ended(0);
    shop.run(&["schedule", "report", "daily", "--after", "3d", "--every", "1d"]).ended(0);
    let ran = shop.run(&["list"]).ended(0);
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(lines[0].starts_with("KIND    KEY    STATE    DUE"), "{}", lines[0]);
    assert!(lines[1].starts_with("mail    4711   waiting  ") && lines[1].contains("in 30 min"));
    assert!(lines[2].contains("2099-01-31T09:00:00Z  in 7"), "{}", lines[2]);
    assert_eq!((lines.len(), ran.err.as_str()), (4, ""));
    assert!(lines.iter().all(|line| line.trim_end() == *line), "no spaces at the end");

    let keys = |arguments: &[&str]| {
        let ran = shop.run(&[&["list", "--json"], arguments].concat());
        let keys =
            ran.json().into_iter().map(|timer| timer["key"].as_str().expect("a key").to_owned());
        (ran.code, keys.collect::<Vec<_>>().join(" "))
    };
    let of = |keys: &str| (Some(0), keys.to_owned());
    assert_eq!(keys(&[]), of("4711 4712 daily"));
    assert_eq!(keys(&["--kind", "mail"]), of("4711 4712"));
    assert_eq!(keys(&["--prefix", "47", "--until", "1h"]), of("4711"));
    assert_eq!(keys(&["--prefix", "d"]), of("daily"));
    assert_eq!(
        keys(&["--until", "2099-02-01T00:00Z", "--state", "waiting"]),
        of("4711 4712 daily")
    );
    assert_eq!(keys(&["--state", "dead"]), (Some(1), String::new()));
    assert_eq!(keys(&["--limit", "1"]), of("4711"));
}

#[test]
fn the_json_of_a_timer_has_these_members() {
    let shop = Shop::new();
    shop.run(&["schedule", "mail", "4711", "--after", "1h", "--payload", "two pears"]).ended(0);
    let more = ["--every", "90m", "--max-attempts", "3", "--time-limit", "5s"];
    shop.run_with(
        &[&["schedule", "mail", "b", "--payload-file", "-"], &more[..]].concat(),
        b"\xff\0",
    )
    .ended(0);
    let all = shop.run(&["list", "--json"]).ended(0).json();
    let find = |key: &str| all.iter().find(|timer| timer["key"] == key).expect("it is listed");
    let (plain, series) = (find("4711"), find("b"));
    let mut names = members(plain);
    names.sort_unstable();
    assert_eq!(
        names.join(" "),
        "attempts due error fence id key kind max_attempts owner payload period_ms rule shard state time_limit_ms trace wake"
    );
    assert_eq!(plain["payload"], "two pears");
    assert_eq!(plain["state"], "waiting");
    assert!(plain["due"].as_str().is_some_and(|due| due.len() == 27 && due.ends_with('Z')));
    assert_eq!(plain["due"], plain["wake"]);
    assert_eq!((&plain["period_ms"], &plain["error"]), (&Value::Null, &Value::Null));
    assert_eq!(series["payload_base64"], "/wA=");
    assert_eq!(series["payload"], Value::Null);
    assert_eq!(series["period_ms"], 5_400_000);
    assert_eq!((&series["max_attempts"], &series["time_limit_ms"]), (&3.into(), &5000.into()));
}

#[test]
fn all_pages_are_printed_once() {
    let shop = Shop::new();
    let timers = shop.timers();
    let new = |number: u32| NewTimer::new("mail", format!("{number:04}"), HOUR);
    timers.schedule_all(&(0..2500).map(new).collect::<Vec<_>>()).expect("they are scheduled");
    let ran = shop.run(&["list", "--all", "--json"]).ended(0);
    let mut keys: Vec<_> = ran.json().iter().map(|timer| timer["key"].to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), ran.out.lines().count()), (2500, 2500));
    let ran = shop.run(&["list", "--all"]).ended(0);
    assert_eq!((ran.out.lines().count(), ran.out.matches("KIND").count()), (2501, 1));
    for (limit, lines) in [("1000", 1000), ("1001", 1001), ("2500", 2500), ("9999", 2500)] {
        let ran = shop.run(&["list", "--limit", limit]).ended(0);
        assert_eq!(ran.out.lines().count(), lines + 1, "{limit}");
        assert_eq!(ran.err.contains("There are more"), lines < 2500, "{limit}: {}", ran.err);
    }
}

#[test]
fn one_timer_is_shown_with_its_attempts() {
    let shop = Shop::new();
    shop.run(&["schedule", "mail", "4711", "--payload", "two\npears"]).ended(0);
    shop.run(&["schedule", "note", "done"]).ended(0);
    shop.work("no such mailbox");
    let ran = shop.run(&["show", "mail", "4711"]).ended(0);
    for part in
        ["state     dead", "error     no such mailbox", "payload   9 bytes\n  two\n  pears\n"]
    {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let attempt = ran.out.lines().last().expect("an attempt");
    assert!(attempt.contains("  dead     no such mailbox"), "{attempt}");
    let [object] = &shop.run(&["show", "mail", "4711", "--json"]).ended(0).json()[..] else {
        panic!("one object")
    };
    assert_eq!((&object["state"], &object["wake"]), (&"dead".into(), &Value::Null));
    let attempt = &object["history"][0];
    let mut names = members(attempt);
    names.sort_unstable();
    assert_eq!(
        names.join(" "),
        "attempt due error fence id key kind late_ms outcome shard started took_ms trace worker"
    );
    assert_eq!((&attempt["outcome"], &attempt["attempt"]), (&"dead".into(), &1.into()));
    assert_eq!(shop.run(&["show", "mail", "4711", "--payload"]).ended(0).out, "two\npears");

    // What is done is in the history alone.
    let ran = shop.run(&["show", "note", "done"]).ended(1);
    assert!(ran.out.starts_with("note done is not there") && ran.out.contains("  done"));
    let object = &shop.run(&["show", "note", "done", "--json"]).ended(1).json()[0];
    assert_eq!(
        (&object["state"], &object["history"][0]["outcome"]),
        (&Value::Null, &"done".into())
    );
    shop.run(&["show", "note", "never", "--payload"]).ended(1);
}

#[test]
fn a_payload_that_is_no_text_is_shown_in_hexadecimal() {
    let shop = Shop::new();
    shop.run_with(
        &["schedule", "mail", "b", "--payload-file", "-", "--after", "1h"],
        b"pears\xff\x1b[2J",
    )
    .ended(0);
    let ran = shop.run(&["show", "mail", "b"]).ended(0);
    assert!(ran.out.contains("70 65 61 72 73 ff 1b 5b 32 4a"), "{}", ran.out);
    assert!(ran.out.contains("  pears..[2J"), "{}", ran.out);
    let output = shop.command(&["show", "mail", "b", "--payload"]).output().expect("it runs");
    assert_eq!(output.stdout, b"pears\xff\x1b[2J", "as it is, but for a terminal");
}

#[test]
fn the_history_has_pages_and_filters() {
    let shop = Shop::new();
    for number in 0..5 {
        shop.run(&["schedule", "note", &number.to_string()]).ended(0);
    }
    shop.run(&["schedule", "mail", "4711"]).ended(0);
    shop.work("it is away");
    let count = |arguments: &[&str]| {
        let ran = shop.run(&[&["history", "--json"], arguments].concat());
        (ran.code, ran.out.lines().count())
    };
    assert_eq!(count(&[]), (Some(0), 6));
    assert_eq!(count(&["note"]), (Some(0), 5));
    assert_eq!(count(&["note", "3"]), (Some(0), 1));
    assert_eq!(count(&["--outcome", "dead"]), (Some(0), 1));
    assert_eq!(count(&["--outcome", "snoozed"]), (Some(1), 0));
    assert_eq!(count(&["--since", "1h"]), (Some(0), 6));
    assert_eq!(count(&["--since", "2099-01-01T00:00Z"]), (Some(1), 0));
    assert_eq!(count(&["--limit", "2"]), (Some(0), 2));
    let ran = shop.run(&["history", "--limit", "4"]).ended(0);
    assert!(ran.err.contains("There are more"), "{}", ran.err);
    assert_eq!(ran.out.lines().count(), 5);
    let all = shop.run(&["history", "--all", "--json"]).ended(0).json();
    let times: Vec<_> = all.iter().map(|attempt| attempt["started"].as_str()).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "the newest first: {times:?}");
}

#[test]
fn kinds_are_counted_with_their_pace() {
    let shop = Shop::new();
    shop.run(&["counts"]).ended(1);
    for number in 0..3 {
        shop.run(&["schedule", "note", &number.to_string()]).ended(0);
    }
    shop.run(&["schedule", "mail", "4711"]).ended(0);
    shop.run(&["schedule", "other", "x", "--after", "1h"]).ended(0);
    shop.work("it is away");
    let counts = shop.run(&["counts", "--json"]).ended(0).json();
    let find = |kind: &str| counts.iter().find(|of| of["kind"] == kind).expect("it is counted");
    assert_eq!(find("note")["last_hour"]["runs"], 3, "{counts:?}");
    assert_eq!(
        (&find("mail")["dead"], &find("mail")["last_hour"]["failed"]),
        (&1.into(), &1.into())
    );
    assert_eq!((&find("other")["waiting"], &find("other")["last_hour"]), (&1.into(), &Value::Null));
    let ran = shop.run(&["counts"]).ended(0);
    assert_eq!(ran.out.lines().count(), 4, "{}", ran.out);

    // The same, and what is due next, without a terminal once.
    let ran = shop.run(&["top"]).ended(0);
    assert!(ran.out.contains('█') && ran.out.contains("other  x    waiting"), "{}", ran.out);
    let picture = &shop.run(&["top", "--json"]).ended(0).json()[0];
    assert_eq!(picture["kinds"].as_array().map(Vec::len), Some(3));
    assert_eq!(picture["next"][0]["key"], "x");
}

#[test]
fn a_bench_measures_and_leaves_nothing() {
    let shop = Shop::new();
    let ran =
        shop.run(&["bench", "--timers", "300", "--over", "200ms", "--yes", "--json"]).ended(0);
    let figures = &ran.json()[0];
    assert_eq!((&figures["run"], &figures["removed"]), (&300.into(), &0.into()));
    let late = |name: &str| figures["late_ms"][name].as_f64().expect("a figure");
    assert!(late("p50") <= late("p90") && late("p90") <= late("p99") && late("p99") <= late("max"));
    let kind = figures["kind"].as_str().expect("a kind");
    assert!(ran.err.contains(&format!("cancel --kind {kind} --all")), "{}", ran.err);
    shop.run(&["list"]).ended(1);
    let ran = shop
        .run(&["bench", "--timers", "10", "--over", "0s", "--payload", "100", "--yes"])
        .ended(0);
    assert!(ran.out.contains("late     p50 ") && ran.out.contains("due at once"), "{}", ran.out);
    let ran = shop.run(&["bench"]).ended(2);
    assert!(ran.err.contains("this writes 1000 timers into sqlite:shop.db"), "{}", ran.err);
}
