//! Kinds, keys, payloads and errors of a stranger: nothing of them reaches a terminal raw (CLEAN-1).

use std::time::Duration;

use tickwheel::Scheduler;
use tickwheel_durable::{Failure, NewTimer};

use super::program::{HOUR, Shop};

/// Clears the screen, in seven and in eight bits; sets the title; begins a line; turns the direction of the text; is invisible.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{1b}]0;title\u{7}\r\n\u{8}\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}\u{34f}\u{115f}\u{3164}\u{2800}\u{e0101}\u{7f}end";

/// Returns the characters that a terminal would obey, or nobody would see.
pub(crate) fn dangers(text: &str) -> Vec<char> {
    let is_dangerous = |c: &char| {
        (c.is_control() && *c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            || matches!(c, '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
            || matches!(c, '\u{34f}' | '\u{115f}' | '\u{2800}' | '\u{3164}')
    };
    text.chars().filter(is_dangerous).collect()
}

/// Returns a shop where everything that a stranger chooses is hostile.
pub(crate) fn shop() -> Shop {
    let shop = Shop::new();
    let (kind, timers) = (format!("kind{HOSTILE}"), shop.timers());
    let new = |key: &str| NewTimer::new(&*kind, format!("{key}{HOSTILE}"), HOUR).payload(HOSTILE);
    timers.schedule(&new("waits").rule(HOSTILE).trace("a trace")).expect("it is scheduled");
    let mut fails = new("fails");
    fails.when = Duration::ZERO.into();
    timers.schedule(&fails).expect("it is scheduled");
    let worker = timers
        .worker()
        .name(format!("worker{HOSTILE}"))
        .history(HOUR)
        .handle(&*kind, |_| Err(Failure::for_good(format!("error{HOSTILE}"))))
        .start(Scheduler::global())
        .expect("it starts");
    while timers.counts().expect("counts")[0].dead == 0 {
        std::thread::sleep(Duration::from_millis(5)); // a worker runs in real time
    }
    worker.stop(Duration::from_secs(10));
    shop
}

#[test]
fn nothing_is_printed_raw() {
    let shop = shop();
    let (kind, key) = (format!("kind{HOSTILE}"), format!("fails{HOSTILE}"));
    let (kind, key) = (&*kind, &*key);
    let waits = format!("waits{HOSTILE}");
    let commands: &[&[&str]] = &[
        &["list"],
        &["show", kind, key],
        &["show", kind, &waits],
        &["show", kind, HOSTILE],
        &["history"],
        &["counts"],
        &["top"],
        &["schedule", kind, "new", "--after", "1h"],
        &["schedule", kind, key, "--keep"],
        &["schedule", kind, HOSTILE, "--every", "0s"],
        &["schedule", kind, HOSTILE, "--after", HOSTILE],
        &["reset", kind, "new"],
        &["set-payload", kind, "new", "--payload", HOSTILE],
        &["requeue", kind, HOSTILE],
        &["cancel", kind, HOSTILE],
        &["cancel", "--kind", kind, "--all"],
        &[HOSTILE],
        &["list", "--database", HOSTILE],
        &["list", "--database", &format!("sqlite:{HOSTILE}")],
        &["list", "--database", &format!("postgres://{HOSTILE}")],
    ];
    for command in commands {
        for json in [&[][..], &["--json"]] {
            let ran = shop.run(&[command, json].concat());
            assert_eq!(dangers(&ran.out), [], "{command:?}: {ran:?}");
            assert_eq!(dangers(&ran.err), [], "{command:?}: {ran:?}");
        }
    }
}

#[test]
fn json_tells_hostile_texts_as_they_are() {
    let shop = shop();
    let all = shop.run(&["list", "--json"]).ended(0).json();
    let dead = all.iter().find(|timer| timer["state"] == "dead").expect("a dead one");
    assert_eq!(dead["kind"], format!("kind{HOSTILE}"));
    assert_eq!(dead["key"], format!("fails{HOSTILE}"));
    assert_eq!(dead["error"], format!("error{HOSTILE}"));
    assert_eq!(dead["payload"], HOSTILE);
}

#[test]
fn one_line_is_one_timer() {
    let shop = shop();
    let ran = shop.run(&["list"]).ended(0);
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    assert!(ran.out.contains("fails\\u{1b}[2J\\u{9b}2J"), "{}", ran.out);
}
