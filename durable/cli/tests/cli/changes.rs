//! `schedule`, `reset`, `cancel`, `requeue` and `set-payload`.

use std::fs;
use std::time::Duration;

use tickwheel_durable::NewTimer;

use super::program::{HOUR, Shop};

#[test]
fn a_timer_is_scheduled_replaced_and_kept() {
    let shop = Shop::new();
    let ran = shop.run(&["schedule", "mail", "4711", "--after", "30m"]).ended(0);
    assert!(
        ran.out.starts_with("scheduled mail 4711: due ") && ran.out.ends_with(" (in 30 min)\n")
    );
    let replaced =
        &shop.run(&["schedule", "mail", "4711", "--after", "2h", "--json"]).ended(0).json()[0];
    assert_eq!(replaced["result"], "replaced");
    let kept = &shop.run(&["schedule", "mail", "4711", "--keep", "--json"]).ended(1).json()[0];
    assert_eq!((&kept["result"], &kept["key"]), (&"kept".into(), &"4711".into()));
    let due = |key| shop.run(&["show", "mail", key, "--json"]).json()[0]["due"].clone();
    assert_eq!(due("4711"), replaced["due"]);
    shop.run(&["schedule", "mail", "x", "--keep", "--at", "2099-01-01T00:00:00Z"]).ended(0);
    assert_eq!(due("x"), "2099-01-01T00:00:00.000000Z");
    shop.run(&["schedule", "mail", "--rule", "weekly", "--", "-key"]).ended(0);
    let rule = shop.run(&["show", "mail", "--json", "--", "-key"]).ended(0).json();
    assert_eq!(rule[0]["rule"], "weekly");
}

#[test]
fn a_cron_rule_is_checked_when_it_is_scheduled() {
    let shop = Shop::new();
    let cron = ["schedule", "report", "daily", "--cron", "0 9 * * *", "--zone", "Europe/Berlin"];
    let ran = shop.run(&[&cron[..], &["--missed", "skip"]].concat()).ended(0);
    assert!(ran.out.contains("T07:00:00Z") || ran.out.contains("T08:00:00Z"), "{}", ran.out);
    let timer = &shop.run(&["show", "report", "daily", "--json"]).ended(0).json()[0];
    assert_eq!(timer["rule"], "cron: 0 9 * * *; zone=Europe/Berlin; missed=skip");
    for wrong in [
        &["--cron", "61 9 * * *"][..],
        &["--cron", "0 9 * * *", "--zone", "Europe/Atlantis"],
        &["--cron", "0 9 30 2 *"],
        &["--zone", "Europe/Berlin"],
        &["--cron", "0 9 * * *", "--every", "1h"],
    ] {
        shop.run(&[&["schedule", "report", "weekly"], wrong].concat()).ended(2);
    }
    shop.run(&["show", "report", "weekly"]).ended(1);
}

#[test]
fn a_payload_is_a_text_a_file_or_stdin() {
    let shop = Shop::new();
    fs::write(shop.folder.join("pears"), b"from a file\xff").expect("a file");
    shop.run(&["schedule", "mail", "1", "--after", "1h", "--payload", "a text"]).ended(0);
    shop.run(&["schedule", "mail", "2", "--after", "1h", "--payload-file", "pears"]).ended(0);
    let bytes = |key| shop.timers().get("mail", key).expect("a call").expect("a timer").payload;
    assert_eq!((bytes("1"), bytes("2")), (b"a text".to_vec(), b"from a file\xff".to_vec()));
    shop.run_with(&["set-payload", "mail", "1", "--payload-file", "-"], b"from stdin").ended(0);
    assert_eq!(bytes("1"), b"from stdin");
    let changed =
        &shop.run(&["set-payload", "mail", "2", "--payload", "", "--json"]).ended(0).json()[0];
    assert_eq!((&changed["result"], bytes("2")), (&"changed".into(), Vec::new()));
    let ran = shop.run(&["set-payload", "mail", "3", "--payload", "x"]).ended(1);
    assert!(ran.err.contains("no timer of this name"), "{}", ran.err);
    let ran = shop.run(&["set-payload", "mail", "1"]).ended(2);
    assert!(ran.err.contains("give --payload"), "{}", ran.err);
    let ran = shop.run(&["schedule", "mail", "1", "--payload-file", "missing"]).ended(2);
    assert!(ran.err.contains("missing"), "{}", ran.err);
}

#[test]
fn a_timer_is_moved_and_cancelled() {
    let shop = Shop::new();
    shop.run(&["schedule", "note", "1", "--after", "1h"]).ended(0);
    shop.run(&["reset", "note", "1", "--at", "2099-01-01T00:00Z"]).ended(0);
    let ran = shop.run(&["list"]).ended(0);
    assert!(ran.out.contains("2099-01-01T00:00:00Z"), "{}", ran.out);
    let reset = &shop.run(&["reset", "note", "1", "--json"]).ended(0).json()[0];
    assert_eq!(reset["result"], "reset");
    shop.work("");
    let none = &shop.run(&["reset", "note", "1", "--json"]).ended(1).json()[0];
    assert_eq!(none["result"], "none", "it was due now, and has run");

    shop.run(&["schedule", "note", "2", "--after", "1h"]).ended(0);
    assert_eq!(
        shop.run(&["cancel", "note", "2"]).ended(0).out,
        "cancelled note 2: it was waiting\n"
    );
    let ran = shop.run(&["cancel", "note", "2"]).ended(1);
    assert_eq!(
        (ran.out.as_str(), ran.err.as_str()),
        ("", "tickwheel-durable: there is no timer of this name\n")
    );
}

#[test]
fn many_are_cancelled_by_kind_prefix_and_state() {
    let shop = Shop::new();
    let timers = shop.timers();
    let new = |number: u32| NewTimer::new("note", format!("{}/{number}", number % 2), HOUR);
    timers.schedule_all(&(0..2400).map(new).collect::<Vec<_>>()).expect("they are scheduled");
    timers.schedule(&NewTimer::new("mail", "1/1", Duration::ZERO)).expect("it is scheduled");
    shop.work("it is away");
    let ran = shop.run(&["cancel", "--kind", "note", "--all"]).ended(2);
    assert!(ran.err.contains("give --yes"), "{}", ran.err);
    assert_eq!(timers.counts().expect("counts").len(), 2, "nothing was changed");
    let ran = shop.run(&["cancel", "--kind", "note", "--all", "--prefix", "1/", "--yes"]).ended(0);
    assert_eq!(ran.out, "cancelled 1200\n");
    shop.run(&["cancel", "--kind", "note", "--all", "--state", "dead", "--yes"]).ended(1);
    let rest =
        &shop.run(&["cancel", "--kind", "note", "--all", "--yes", "--json"]).ended(0).json()[0];
    assert_eq!((&rest["result"], &rest["count"]), (&"cancelled".into(), &1200.into()));
    let ran = shop.run(&["list"]).ended(0);
    assert!(ran.out.contains("dead"), "the other kind is left: {}", ran.out);
}

#[test]
fn the_dead_are_requeued() {
    let shop = Shop::new();
    for key in ["1", "2", "3"] {
        shop.run(&["schedule", "mail", key]).ended(0);
    }
    shop.run(&["requeue", "mail", "1"]).ended(1);
    shop.work("it is away");
    assert_eq!(
        shop.run(&["requeue", "mail", "1", "--after", "1h"]).ended(0).out,
        "requeued mail 1\n"
    );
    shop.run(&["requeue", "--kind", "mail", "--all"]).ended(2);
    let ran = shop.run(&["requeue", "--kind", "mail", "--all", "--yes", "--after", "2h"]).ended(0);
    assert_eq!(ran.out, "requeued 2\n");
    shop.run(&["requeue", "--kind", "mail", "--all", "--yes"]).ended(1);
    let ran = shop.run(&["list", "--state", "waiting"]).ended(0);
    assert_eq!((ran.out.matches("in 60 min").count(), ran.out.matches("in 2 h").count()), (1, 2));
}
