//! The page without a browser: what it shows of each database, what it does, and what it refuses.

mod client;
#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/databases.rs"]
mod databases;
#[path = "../../tests/common/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use axum::Router;
use client::{Answer, Client, Form, HOST, TOKEN, links, locked, page_of};
use databases::Database;
use http::{Method, Request, StatusCode};
use tickwheel_durable::postgres::Postgres;
use tickwheel_durable::sqlite::Sqlite;
use tickwheel_durable::{
    Attempt, Claim, Finish, NewTimer, OpenOptions, Outcome, State, Store, Then, Timers,
};
use tickwheel_durable_web::{Page, ShortSecret, Visitor, random_token};

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

/// Texts that do harm where they are not escaped, or are not a part of an address.
const HOSTILE: [&str; 12] = [
    "",
    "<script>window.hacked=1</script>",
    "\"><img src=x onerror=window.hacked=1>",
    "' onmouseover='window.hacked=1",
    "</title></style></textarea><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "a/b/../c?d=e&f=g#h%2F%00",
    "\u{202e}gnp.exe",
    "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{41f}\u{440}\u{438}",
    "line\r\nline\n\ttab \u{8}",
    "&lt;b&gt; &amp; {{7*7}} ${7*7}",
    "  spaces + plus  ",
];

fn store(database: &Database<'_>) -> Box<dyn Store> {
    match database {
        Database::File(path) => Box::new(Sqlite::new(path)),
        Database::Schema { .. } => Box::new(Postgres::new(&database.url()).expect("an address")),
    }
}

/// Has a worker claim what is due of a kind. With an error it dies of it; otherwise it runs on.
fn claim(database: &Database<'_>, kind: &str, error: Option<&str>) {
    let mut connection = store(database).connect().expect("it connects");
    let claim = Claim::new(kind, "a worker").limit(100).lease(HOUR);
    let claimed = connection.claim(&claim).expect("a claim");
    let Some(error) = error else { return };
    let finish = |run| Finish::new(run, 3, Then::Dead(error.to_owned()));
    let runs: Vec<_> = claimed.timers.iter().map(|claimed| finish(claimed.timer.run())).collect();
    connection.finish(&runs).expect("an outcome");
}

fn record(database: &Database<'_>, attempts: &[Attempt]) {
    let mut connection = store(database).connect().expect("it connects");
    connection.record(attempts).expect("they are kept");
}

fn of(kind: &str, key: &str, delay: Duration) -> NewTimer {
    NewTimer::new(kind, key, delay)
}

on_both! { "the page":
    timers_are_shown_in_each_state,
    a_list_goes_on_over_pages,
    what_is_upcoming_is_in_the_order_of_time,
    each_action_does_what_it_says,
    hostile_texts_are_shown_and_do_nothing,
    the_last_hour_is_drawn,
}

fn timers_are_shown_in_each_state(database: &Database<'_>) {
    let timers = database.open();
    let mut client = Client::new(page_of(&timers).build());
    assert!(client.get("").has("There is no timer."));
    for (kind, key) in [("fails", "dead one"), ("works", "running one")] {
        timers.schedule(&of(kind, key, NOW).payload("seven pears")).expect("scheduled");
    }
    claim(database, "fails", Some("no such address"));
    claim(database, "works", None);
    timers.schedule(&of("waits", "waiting one", 3 * HOUR).payload("x")).expect("scheduled");

    let mut client = Client::new(page_of(&timers).build()); // which has counted nothing yet
    let overview = client.get("");
    assert!(overview.has("fails") && overview.has("works") && overview.has("waits"));
    assert!(overview.has("No run of the last hour is in the history."));
    let keys = ["waiting one", "running one", "dead one"];
    for (view, key) in
        keys.iter().enumerate().map(|(i, key)| (["upcoming", "running", "dead"][i], key))
    {
        let list = client.get(&format!("?view={view}"));
        for of in keys {
            assert_eq!(list.has(of), of == *key, "{view}: {of}");
        }
    }
    let kind = client.get("?kind=fails");
    assert!(kind.has("dead one") && kind.has("no such address") && kind.has("Requeue all dead"));
    assert!(!kind.has("running one") && !client.get("?view=dead&kind=works").has("dead one"));
    assert!(client.get("?view=dead&kind=fails").has("dead one"));
    assert!(client.get("?view=running&kind=works").has("running one"));
    let dead = client.get("?view=timer&kind=fails&key=dead+one");
    assert!(dead.has("seven pears") && dead.has("11 bytes of text") && dead.has("no such address"));
    assert!(client.get("?view=timer&kind=waits&key=waiting+one").has("1 byte of text"));
    for (prefix, is_found) in [("dead", true), ("dead+one", true), ("ead", false)] {
        let found = client.get(&format!("?view=find&kind=&prefix={prefix}"));
        assert_eq!(found.has("dead one</bdi></a>"), is_found, "{prefix}: {}", found.body);
        assert!(!found.has("running one</bdi></a>"));
    }
    let missing = client.get("?view=timer&kind=fails&key=another");
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert!(missing.has("There is no timer with this kind and key"));
    assert_eq!(client.get("?view=nonsense").status, StatusCode::NOT_FOUND);
    assert_eq!(client.get("?view=timer&kind=fails").status, StatusCode::BAD_REQUEST);
}

fn a_list_goes_on_over_pages(database: &Database<'_>) {
    let timers = database.open();
    let key = |index: usize| format!("key {index:03}");
    let new = |index| of(if index % 2 == 0 { "a" } else { "b" }, &key(index), HOUR);
    timers.schedule_all(&(0..230).map(new).collect::<Vec<_>>()).expect("scheduled");
    let now = SystemTime::now();
    let attempt = |index: usize| {
        let started = now - Duration::from_secs(index as u64 / 3); // some of them at the same time
        let fence = i64::try_from(index + 1).expect("a small number");
        Attempt::new("a", key(index), started, fence, Outcome::Done)
    };
    record(database, &(0..120).map(attempt).collect::<Vec<_>>());
    let mut client = Client::new(page_of(&timers).build());
    for (view, count) in [
        ("upcoming", 230_usize),
        ("upcoming&kind=b", 115),
        ("find&prefix=key+1", 100),
        ("past", 120),
        ("past&kind=a", 120),
    ] {
        let (pages, seen) = pages_of(&mut client, view);
        assert_eq!(
            (distinct(&seen), seen.len(), pages),
            (count, count, count.div_ceil(50)),
            "{view}"
        );
    }
}

/// Follows a list to its end. Returns how many pages it has, and the links to its timers.
fn pages_of(client: &mut Client, view: &str) -> (usize, Vec<String>) {
    let mut next = Some(format!("?view={view}"));
    let (mut pages, mut seen) = (0, Vec::new());
    while let Some(link) = next {
        let page = client.get(&link);
        let all = links(&page.body);
        seen.extend(all.iter().filter(|link| link.contains("view=timer")).cloned());
        next = all.into_iter().find(|link| link.contains("of=") && link.contains("id="));
        pages += 1;
    }
    (pages, seen)
}

fn distinct(links: &[String]) -> usize {
    links.iter().collect::<BTreeSet<_>>().len()
}

/// What is at the same time, and has the same number, on each of them.
#[test]
fn pages_of_several_databases_leave_nothing_out() {
    let databases = [(); 3].map(|()| Database::file());
    let stores = databases.iter().map(store).collect();
    let all = OpenOptions::new().with_stores(stores).expect("they open");
    let now = SystemTime::now();
    for (database, timers) in databases.iter().zip(all.shards()) {
        let new = |n: i64| NewTimer::new("mail", format!("key {n}"), now + HOUR);
        timers.schedule_all(&(0..40).map(new).collect::<Vec<_>>()).expect("scheduled");
        let attempt = |n: i64| Attempt::new("mail", format!("key {n}"), now, n + 1, Outcome::Done);
        record(database, &(0..40).map(attempt).collect::<Vec<_>>());
    }
    let mut client = Client::new(page_of(&all).build());
    for view in ["past", "past&kind=mail", "upcoming", "upcoming&kind=mail", "find&prefix=key"] {
        let (_, seen) = pages_of(&mut client, view);
        assert_eq!((distinct(&seen), seen.len()), (120, 120), "{view}");
    }
}

fn what_is_upcoming_is_in_the_order_of_time(database: &Database<'_>) {
    let timers = database.open();
    let later: Vec<_> = (0..60).map(|key| of("aaa", &format!("l{key}"), 4000 * HOUR)).collect();
    let soon: Vec<_> = (0..5).map(|key| of("mail", &format!("s{key}"), HOUR)).collect();
    timers.schedule_all(&[later, soon].concat()).expect("scheduled");
    let list = Client::new(page_of(&timers).build()).get("?view=upcoming");
    let keys: Vec<_> =
        links(&list.body).into_iter().filter(|of| of.contains("view=timer")).collect();
    let (first, rest) = keys.split_at(5);
    assert!(first.iter().all(|link| link.contains("&key=s")), "{first:?}");
    assert!(rest.len() == 45 && rest.iter().all(|link| link.contains("&key=l")), "{rest:?}");
}

fn each_action_does_what_it_says(database: &Database<'_>) {
    let timers = database.open();
    let mut client = Client::new(page_of(&timers).build());
    let get = |key: &str| timers.get("mail", key).expect("an answer");
    let on = |action: &str, key: &str| format!("?do={action}&kind=mail&key={key}");

    timers.schedule(&of("mail", "1", HOUR)).expect("scheduled");
    let fields = [("number", "2"), ("unit", "days"), ("back", "?view=upcoming")];
    let done = client.post(&on("reset", "1"), &fields);
    assert_eq!(done.status, StatusCode::SEE_OTHER);
    assert_eq!(done.header("location"), "?view=upcoming&said=moved");
    let due = get("1").expect("it is there").due;
    let ahead = due.duration_since(timers.now().expect("a time")).expect("later");
    assert!(ahead > 47 * HOUR && ahead < 49 * HOUR, "{ahead:?}");
    let negative = client.post(&on("reset", "1"), &[("number", "-2")]);
    assert_eq!(negative.status, StatusCode::BAD_REQUEST);
    assert_eq!(client.said(&on("reset", "1")), "runs");
    assert!(get("1").expect("it is there").due <= timers.now().expect("a time"));
    assert_eq!(client.said(&on("requeue", "1")), "is_waiting");

    claim(database, "mail", None);
    assert_eq!(client.said(&on("reset", "1")), "is_running");
    assert!(client.get("?said=is_running").has("a worker runs the timer at the moment"));
    let confirm = "?view=confirm&do=cancel&kind=mail&key=1";
    assert!(client.get(confirm).has("may go on"));
    assert_eq!(client.said(&on("cancel", "1")), "cancelled_running");
    for action in ["cancel", "reset", "requeue"] {
        assert_eq!(client.said(&on(action, "1")), "gone");
    }
    assert!(client.get(confirm).has("It is not there any more."));

    let new = ["2", "3", "4"].map(|key| of("mail", key, NOW));
    timers.schedule_all(&new).expect("scheduled");
    timers.schedule(&of("other", "2", NOW)).expect("scheduled");
    claim(database, "mail", Some("no"));
    claim(database, "other", Some("no"));
    assert_eq!(client.said(&on("reset", "2")), "is_dead");
    assert_eq!(client.said(&on("requeue", "2")), "requeued");
    assert_eq!(get("2").expect("it is there").state, State::Waiting);
    let all = client.post("?do=requeue_all&kind=mail", &[("back", "?kind=mail")]);
    assert_eq!(all.header("location"), "?kind=mail&said=all&count=2");
    let said = client.get("?kind=mail&said=all&count=2");
    assert!(said.has("Dead timers that were changed: 2"));
    assert_eq!(get("3").expect("it is there").state, State::Waiting);
    claim(database, "mail", Some("no"));
    timers.schedule(&of("mail", "5", HOUR)).expect("scheduled");
    let all = client.post("?do=cancel_all&kind=mail", &[]);
    assert_eq!(all.header("location"), "?said=all&count=3");
    assert!(get("2").is_none() && get("5").is_some());
    let other = timers.get("other", "2").expect("an answer").expect("it is there");
    assert_eq!(other.state, State::Dead);
    assert_eq!(client.said(&on("cancel", "5")), "cancelled");
    for (link, status) in [
        ("?do=nonsense", StatusCode::NOT_FOUND),
        ("", StatusCode::NOT_FOUND),
        ("?do=cancel&kind=mail", StatusCode::BAD_REQUEST),
        ("?do=cancel_all", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(client.post(link, &[]).status, status, "{link}");
    }
}

fn hostile_texts_are_shown_and_do_nothing(database: &Database<'_>) {
    let timers = database.open();
    let mut client = Client::new(page_of(&timers).build());
    for (number, text) in (0..).zip(HOSTILE) {
        let kind = if text.is_empty() { "a kind is not empty" } else { text };
        let new = of(kind, text, NOW).payload(format!("needle {number}. {text}"));
        timers.schedule(&new).expect("scheduled");
        claim(database, kind, Some(text));
        let now = timers.now().expect("a time");
        let attempt = Attempt::new(kind, text, now, 1000 + number, Outcome::Failed);
        record(database, &[attempt.error(Some(text))]);
    }
    let search = "?view=find&kind=%3Cscript%3E&prefix=%22%3E%3Cscript%3E";
    for view in ["", "?view=dead", "?view=past", "?view=find&prefix=", search] {
        client.get(view).assert_harmless();
    }
    // Each is reached by the link of the list, with whatever its key has, and can be changed there.
    let dead = client.get("?view=dead");
    let mut needles: Vec<i64> = (0..).zip(HOSTILE).map(|(number, _)| number).collect();
    for link in links(&dead.body).into_iter().filter(|link| link.starts_with("?view=timer")) {
        let page = client.get(&link);
        page.assert_harmless();
        assert_eq!(page.status, StatusCode::OK);
        needles.retain(|number| !page.has(&format!("needle {number}.")));
        let form = Form::of(&page.body, "do=requeue&").expect("a form to requeue it");
        assert!(client.send(&form).header("location").contains("said=requeued"), "{link}");
        let ask = links(&page.body).into_iter().find(|link| link.contains("view=confirm"));
        let ask = client.get(&ask.expect("a link to cancel it"));
        ask.assert_harmless();
        let form = Form::of(&ask.body, "do=cancel&").expect("a form to cancel it");
        assert!(client.send(&form).header("location").contains("said=cancelled"), "{link}");
    }
    assert!(needles.is_empty(), "not reached: {needles:?}");
    assert_eq!(timers.counts().expect("counts"), []);

    // A link of somebody else says nothing of its own, and a form leads nowhere else.
    let spoofed = client.get("?said=%3Cscript%3Ecall+me%3C%2Fscript%3E&count=%3Cb%3E");
    assert!(!spoofed.has("call me"));
    for back in
        ["https://evil.example/", "//evil.example", "javascript:alert(1)", "?x\r\nSet-Cookie: a=b"]
    {
        let answer = client.post("?do=cancel&kind=a&key=b", &[("back", back)]);
        let location = answer.header("location");
        assert!(location.starts_with('?') && location.is_ascii(), "{location}");
    }

    // Bytes, and a lot of them.
    let big = vec![b'x'; 1 << 20];
    let bytes = [&[0xff, 0xfe, 0, 0x80, b'<', b'b', b'>'][..], &big].concat();
    for (key, payload, words) in [
        ("text", big, "1048576 bytes of text"),
        ("bytes", bytes, "ff fe 00 80 3c 62 3e"),
        ("none", Vec::new(), "none"),
    ] {
        timers.schedule(&of("big", key, HOUR).payload(payload)).expect("scheduled");
        let page = client.get(&format!("?view=timer&kind=big&key={key}"));
        assert!(page.has(words) && page.body.len() < 40_000, "{key}: {} bytes", page.body.len());
        page.assert_harmless();
    }
    assert!(client.get("?view=upcoming").body.len() < 60_000);
}

fn the_last_hour_is_drawn(database: &Database<'_>) {
    let timers = database.open();
    let now = timers.now().expect("a time");
    let attempt = |minutes: u64, number: u32, outcome| {
        let started = now - Duration::from_secs(60 * minutes);
        let mut attempt = Attempt::new("mail", "1", started, number.into(), outcome);
        attempt.late = Duration::from_millis(4) * number;
        attempt.took = Duration::from_millis(30);
        "a <worker>".clone_into(&mut attempt.worker);
        attempt
    };
    record(
        database,
        &[
            attempt(0, 1, Outcome::Done),
            attempt(0, 2, Outcome::Done),
            attempt(20, 3, Outcome::Failed).error(Some("the line was busy")),
            attempt(40, 4, Outcome::Dead).error(Some("nobody is there")),
            attempt(59, 5, Outcome::Snoozed),
            attempt(70, 1000, Outcome::Done),
        ],
    );
    let mut client = Client::new(page_of(&timers).build());
    for view in ["", "?kind=mail"] {
        let page = client.get(view);
        assert!(page.has("2 runs were done, 1 failed and were tried again, and 1 timers died."));
        assert!(page.has("12 ms late in the mean, and 20 ms at most."), "{}", page.body);
        assert!(page.has(": 0 done, 1 failed, 0 died, 0 put off</title>"));
        assert!(page.has("Runs per minute</figcaption>") && page.has("Lateness</figcaption>"));
        page.assert_harmless();
    }
    assert!(client.get("?kind=other").has("No run of the last hour is in the history."));
    let past = client.get("?view=past");
    assert!(past.has("nobody is there") && past.has("a &lt;worker&gt;") && past.has("4.0 s"));
    let failed = client.get("?view=past&outcome=failed");
    assert!(failed.has("the line was busy") && !failed.has("nobody is there"));
    // It is done, and what it was can still be seen.
    let timer = client.get("?view=timer&kind=mail&key=1");
    assert_eq!(timer.status, StatusCode::OK);
    assert!(timer.has("The timer is not there any more") && timer.has("nobody is there"));
}

#[test]
fn a_secret_that_can_be_guessed_makes_no_page() {
    let database = Database::file();
    let timers = database.open();
    let refused = Page::with_token(&timers, "123456789012345").map(drop);
    assert!(matches!(refused, Err(ShortSecret { bytes: 15, .. })));
    assert!(refused.expect_err("too short").to_string().contains("16 or more"));
    assert!(Page::with_token(&timers, "").is_err());
    assert!(Page::with_token(&timers, &" ".repeat(20)).is_err());
    let of_a_file = Page::with_token(&timers, &format!("{TOKEN}\r\n")).expect("long enough");
    let mut client = Client::locked(Router::new().route_service("/", of_a_file.build()), "/");
    assert_eq!(client.bearer(Method::GET, "", TOKEN).status, StatusCode::OK);
    assert!(Page::with_hook(&timers, "short", |_| None).is_err());
    assert_ne!(random_token(), random_token());
    assert_eq!(random_token().len(), 32);
}

/// Beside these, a test in `src/service.rs` tries each view and each action that there is.
#[test]
fn only_the_token_opens_the_page() {
    let database = Database::file();
    let timers = database.open();
    timers.schedule(&of("mail", "needle", HOUR)).expect("scheduled");
    let router = Router::new().route_service("/", page_of(&timers).build());
    let mut client = Client::locked(router.clone(), "/");
    let is_locked = |answer: &Answer| locked(answer) && answer.status == StatusCode::UNAUTHORIZED;
    let asked = client.get("");
    assert!(is_locked(&asked) && asked.has("name=\"token\""));
    assert_eq!(asked.header("www-authenticate"), "Bearer");

    // Wrong ones, and the right one where it does not count: in an address.
    let cancel = "?do=cancel&kind=mail&key=needle";
    for token in ["", "x", &TOKEN[1..], &format!("{TOKEN}x"), &"x".repeat(10_000)] {
        assert!(is_locked(&client.bearer(Method::GET, "?view=upcoming", token)), "{token}");
        assert!(is_locked(&client.bearer(Method::POST, cancel, token)));
        let login = client.post("?do=login", &[("token", token)]);
        assert!(is_locked(&login) && login.has("This is not the token."));
        assert_eq!(login.headers.get("set-cookie"), None);
    }
    let in_address = form_urlencoded::byte_serialize(TOKEN.as_bytes()).collect::<String>();
    assert!(is_locked(&client.get(&format!("?token={in_address}"))));
    assert!(is_locked(&client.post(&format!("?do=login&token={in_address}"), &[])));

    // A wrong one forgets nothing of where somebody wanted to go.
    let wrong = client.post("?do=login", &[("token", "wrong"), ("back", "?view=upcoming")]);
    assert!(links(&wrong.body).contains(&"?view=upcoming".to_owned()));

    // The login is by the form alone, and its cookie is not for scripts, nor for other sites.
    let login = client.post("?do=login", &[("token", TOKEN), ("back", "?view=upcoming")]);
    assert_eq!(login.status, StatusCode::SEE_OTHER);
    assert_eq!(login.header("location"), "?view=upcoming");
    let cookie = login.header("set-cookie").to_owned();
    assert!(cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(TOKEN));
    assert!(client.get("?view=upcoming").has("needle"));

    // Cookies that are not ours.
    let (name, value) = cookie.split(';').next().and_then(|pair| pair.split_once('=')).unwrap();
    let (until, code) = value.split_once('.').expect("a time and its code");
    let later = until.parse::<u64>().expect("a number") + 1;
    let others = Page::with_token(&timers, "another token of 30 characters").expect("long enough");
    let mut other = Client::locked(Router::new().route_service("/", others.build()), "/");
    other.post("?do=login", &[("token", "another token of 30 characters")]);
    let others = other.cookie.as_deref().and_then(|pair| pair.split_once('=')).expect("a pair").1;
    for value in [
        "",
        ".",
        "x.y",
        until,
        others,
        &format!("{later}.{code}"),
        &format!("{until}.{}", &code[2..]),
        &format!("{until}."),
        &format!("{until}.{code}\u{e9}"),
    ] {
        client.cookie = Some(format!("{name}={value}"));
        assert!(is_locked(&client.get("?view=upcoming")), "{value}");
    }
    client.cookie = Some(format!("a=b; {name}={value}; c=d"));
    let of_a_proxy = Request::builder().header("authorization", "Basic YTpi");
    assert!(client.ask(of_a_proxy, "?view=upcoming").has("needle"));
    assert!(client.get("?view=upcoming").has("needle"));

    // It is valid in another process that has the token, and gone from the browser after the logout.
    let another = Router::new().route_service("/", page_of(&timers).build());
    let mut another = Client::locked(another, "/");
    another.cookie = Some(format!("{name}={value}"));
    let page = another.get("?view=upcoming");
    assert!(page.has("needle"));
    let out = another.send(&Form::of(&page.body, "do=logout").expect("a button"));
    assert!(out.header("set-cookie").starts_with(&format!("{name}=; Path=/; Max-Age=0;")));
    assert!(is_locked(&another.get("?view=upcoming")));
    // An action of a page that was still open is not done, which is said, and the login leads back to it.
    let late = another.post(cancel, &[("back", "?view=upcoming")]);
    assert!(is_locked(&late) && late.has("so nothing was changed"));
    assert!(links(&late.body).contains(&"?view=upcoming".to_owned()));

    // A browser that speaks TLS gets a cookie that is for TLS alone.
    let mut secure = Client::locked(router.clone(), "/");
    secure.origin = Some(format!("https://{HOST}"));
    let login = secure.post("?do=login", &[("token", TOKEN)]);
    assert!(login.header("set-cookie").ends_with("; Secure"));

    // A program has the token in its header, and needs no form.
    let mut program = Client::locked(router, "/");
    assert!(program.bearer(Method::GET, "?view=upcoming", TOKEN).has("needle"));
    let cancelled = program.bearer(Method::POST, cancel, TOKEN);
    assert_eq!(cancelled.header("location"), "?said=cancelled");
    assert!(timers.get("mail", "needle").expect("an answer").is_none());
}

#[test]
fn a_form_of_another_site_changes_nothing() {
    let database = Database::file();
    let timers = database.open();
    timers.schedule(&of("mail", "1", HOUR)).expect("scheduled");
    let mut client = Client::new(page_of(&timers).build());
    let cancel = "?do=cancel&kind=mail&key=1";
    let form = client.code.clone().expect("a form has a code");
    let refused = |answer: Answer| {
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert!(timers.get("mail", "1").expect("an answer").is_some());
    };
    // The browser says where the form is from, in one way or the other.
    for origin in [
        None,
        Some("null"),
        Some("http://evil.example"),
        Some("http://shop.example:8080.evil.example"),
        Some("http://shop.example:81"),
        Some(""),
    ] {
        client.origin = origin.map(str::to_owned);
        refused(client.post(cancel, &[]));
        refused(client.post("?do=logout", &[]));
        let mut stranger = Client::locked(client.router.clone(), "/");
        stranger.origin.clone_from(&client.origin);
        refused(stranger.post("?do=login", &[("token", TOKEN)]));
    }
    client.origin = Some(format!("http://{HOST}"));
    for site in ["cross-site", "same-site", "none", ""] {
        client.site = Some(site.to_owned());
        refused(client.post(cancel, &[]));
    }
    // And the form has the code of this login.
    client.site = Some("same-origin".to_owned());
    let (short, other) = (&form[2..], form.replace(['a', 'b', 'c', 'd', 'e', 'f'], "0"));
    for code in [None, Some(""), Some("00"), Some(short), Some(&other), Some("\u{e9}")] {
        client.code = code.map(str::to_owned);
        refused(client.post(cancel, &[]));
    }
    // A read changes nothing, whatever it asks for.
    assert_eq!(client.get(cancel).status, StatusCode::OK);
    assert!(timers.get("mail", "1").expect("an answer").is_some());
    client.code = Some(form);
    assert_eq!(client.said(cancel), "cancelled");
}

#[test]
fn every_answer_has_the_headers() {
    let database = Database::file();
    let timers = database.open();
    let mut client = Client::new(page_of(&timers).build());
    let cancel = "?do=cancel&kind=a&key=b";
    let mut answers = vec![
        client.get(""),
        client.get("?view=nonsense"),
        client.get("?view=timer&kind=a&key=b"),
        client.post(cancel, &[]),
        client.post("?do=cancel", &[]),
        client.ask(Request::builder().method(Method::DELETE), ""),
        client.post(cancel, &[("back", &"x".repeat(70_000))]),
    ];
    assert_eq!(answers[5].header("allow"), "GET, HEAD, POST");
    assert_eq!(answers[6].status, StatusCode::PAYLOAD_TOO_LARGE);
    let head = client.ask(Request::builder().method(Method::HEAD), "");
    assert_eq!((head.status, &*head.body), (StatusCode::OK, ""));
    client.origin = None;
    answers.extend([head, client.post(cancel, &[])]);
    client.cookie = None;
    answers.push(client.get(""));
    for answer in answers {
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("referrer-policy"), "same-origin");
        let policy = answer.header("content-security-policy");
        let begin = "default-src 'none'; style-src 'sha256-";
        let end = "form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
        assert!(policy.starts_with(begin) && policy.ends_with(end), "{policy}");
        assert!(!["unsafe", "*", "http"].iter().any(|of| policy.contains(of)), "{policy}");
    }
}

#[test]
fn a_page_that_is_read_only_changes_nothing() {
    let database = Database::file();
    let timers = database.open();
    timers.schedule_all(&["1", "2"].map(|key| of("mail", key, NOW))).expect("scheduled");
    claim(&database, "mail", Some("no"));
    timers.schedule(&of("mail", "3", HOUR)).expect("scheduled");
    let of_reader = Page::with_hook(&timers, TOKEN, |_| Some(Visitor::reader("Bob")));
    let of_reader = of_reader.expect("long enough").build();
    for (page, forms) in [(page_of(&timers).read_only().build(), 1), (of_reader, 0)] {
        let mut client = Client::new(page);
        for view in [
            "",
            "?kind=mail",
            "?view=upcoming",
            "?view=dead&kind=mail",
            "?view=timer&kind=mail&key=1",
            "?view=timer&kind=mail&key=3",
            "?view=confirm&do=cancel&kind=mail&key=1",
            "?view=confirm&do=requeue_all&kind=mail",
        ] {
            let page = client.get(view);
            assert_eq!(page.status, StatusCode::OK);
            assert!(page.has("read only"));
            let count = page.body.matches("method=\"post\"").count();
            assert_eq!(count, forms, "{view}: the logout alone");
        }
        for action in ["cancel&key=1", "reset&key=3", "requeue&key=1", "requeue_all", "cancel_all"]
        {
            let answer = client.post(&format!("?kind=mail&do={action}"), &[]);
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{action}");
        }
    }
    let counts = timers.counts().expect("counts");
    assert_eq!((counts[0].dead, counts[0].waiting), (2, 1));
}

#[test]
fn your_own_authentication_decides_by_the_request() {
    let database = Database::file();
    let timers = database.open();
    timers.schedule(&of("mail", "1", HOUR)).expect("scheduled");
    let page = Page::with_hook(&timers, TOKEN, |request| {
        Some(match request.headers.get("x-user")?.to_str().ok()? {
            name @ ("ada" | "<Eve>") => Visitor::operator(name),
            name => Visitor::reader(name),
        })
    });
    let router = Router::new().route_service("/", page.expect("long enough").build());
    let mut client = Client::locked(router, "/");
    let reset = "?do=reset&kind=mail&key=1";
    for (user, may_look, may_act) in
        [(None, false, false), (Some("bob"), true, false), (Some("ada"), true, true)]
    {
        client.user = user.map(str::to_owned);
        let shown = client.get("?view=timer&kind=mail&key=1");
        client.code = Client::code_of(&shown.body);
        let status = if may_look { StatusCode::OK } else { StatusCode::FORBIDDEN };
        assert_eq!(shown.status, status);
        assert_eq!(locked(&shown), !may_look);
        assert!(!shown.has("Log out") && !shown.has("name=\"token\""));
        // The secret of the forms opens nothing.
        let login = client.post("?do=login", &[("token", TOKEN)]);
        assert_eq!(login.headers.get("set-cookie"), None);
        let done = client.post(reset, &[("number", "1")]);
        let status = if may_act { StatusCode::SEE_OTHER } else { StatusCode::FORBIDDEN };
        assert_eq!(done.status, status, "{user:?}");
    }
    // A form is of the one to whom it was shown.
    client.user = Some("<Eve>".to_owned());
    assert_eq!(client.post(reset, &[("number", "1")]).status, StatusCode::FORBIDDEN);
    assert!(client.get("").has("&lt;Eve&gt;"));
}

#[test]
fn it_works_below_any_path() {
    let database = Database::file();
    let timers = database.open();
    timers.schedule(&of("mail", "1", HOUR)).expect("scheduled");
    let page = page_of(&timers).build();
    let inner = Router::new().nest_service("/timers", page.clone());
    let inner = inner.route_service("/one", page.clone());
    let router = Router::new().nest("/of the shop", inner.clone()).nest("/a", inner);
    let router = router.route_service("/", page.clone()).fallback_service(page);
    for path in
        ["/", "/a/timers", "/a/timers/", "/a/one", "/of%20the%20shop/timers", "/whatever/else"]
    {
        let mut client = Client::locked(router.clone(), path);
        let login = client.post("?do=login", &[("token", TOKEN)]);
        assert_eq!(login.header("location"), "?", "{path}");
        let mut seen = 0;
        for view in ["", "?view=upcoming", "?kind=mail", "?view=timer&kind=mail&key=1"] {
            let page = client.get(view);
            assert_eq!(page.status, StatusCode::OK, "{path}{view}");
            for link in links(&page.body) {
                assert!(link.starts_with('?') || link == "data:,", "{path}: {link}");
                seen += 1;
            }
        }
        assert!(seen > 20);
        let page = client.get("?view=timer&kind=mail&key=1");
        let done = client.send(&Form::of(&page.body, "do=reset").expect("a form"));
        assert!(done.header("location").starts_with("?view=timer"));
    }
}

#[test]
fn counts_are_asked_once_for_all_and_seldom() {
    let database = Database::file();
    let timers = database.open();
    timers.schedule(&of("mail", "1", HOUR)).expect("scheduled");
    let page = page_of(&timers).counts_every(HOUR).build();
    let (mut one, mut other) = (Client::new(page.clone()), Client::new(page));
    assert!(one.get("").has("Waiting<b>1</b>"));
    timers.schedule(&of("mail", "2", HOUR)).expect("scheduled");
    assert!(one.get("").has("Waiting<b>1</b>") && other.get("").has("Waiting<b>1</b>"));
    assert!(other.get("?view=upcoming").has("key=2"), "a list is of now");
}

/// A run of a series that has failed stays where the series is, which is not always the home of its key.
#[test]
fn a_timer_that_is_not_on_its_home_is_reached_by_its_link() {
    let (first, second) = (Database::file(), Database::file());
    let both =
        OpenOptions::new().with_stores(vec![store(&first), store(&second)]).expect("they open");
    for (shard, one) in both.shards().iter().enumerate() {
        let new: Vec<_> = (0..20).map(|key| of("mail", &format!("{shard}/{key}"), HOUR)).collect();
        one.schedule_all(&new).expect("scheduled");
    }
    let mut client = Client::new(page_of(&both).build());
    let list = client.get("?view=upcoming");
    let timers = links(&list.body).into_iter().filter(|link| link.contains("view=timer"));
    let timers: Vec<_> = timers.collect();
    assert_eq!(timers.len(), 40);
    for link in timers {
        let page = client.get(&link);
        assert_eq!(page.status, StatusCode::OK);
        let moved = client.send(&Form::of(&page.body, "do=reset").expect("a form"));
        assert!(moved.header("location").contains("said=runs"), "{link}");
        let ask = links(&page.body).into_iter().find(|link| link.contains("view=confirm"));
        let ask = client.get(&ask.expect("a link"));
        let gone = client.send(&Form::of(&ask.body, "do=cancel").expect("a form"));
        assert!(gone.header("location").contains("said=cancelled"), "{link}");
    }
    assert_eq!(both.counts().expect("counts"), []);
}

#[test]
fn a_database_that_is_away_is_said_so() {
    let server = match server::Server::private() {
        Ok(server) => server,
        Err(reason) => {
            return databases::say(&format!("the page, without its database: skipped: {reason}"));
        }
    };
    let quick = || OpenOptions::new().acquire_timeout(Duration::from_secs(2));
    let timers = quick().open(server.url()).expect("it opens");
    let file = Database::file();
    let second = Postgres::new(server.url()).expect("an address");
    let both = quick().with_stores(vec![store(&file), Box::new(second)]).expect("they open");
    let keys: Vec<String> = (0..40).map(|key| key.to_string()).collect();
    let new: Vec<_> = keys.iter().map(|key| of("mail", key, HOUR)).collect();
    both.schedule_all(&new).expect("scheduled");
    let on = |shard| keys.iter().filter(|key| both.home("mail", key) == shard).collect::<Vec<_>>();
    let (first, second) = (on(0), on(1));
    let fresh = |timers: &Timers| page_of(timers).counts_every(Duration::ZERO).build();
    let (mut one, mut several) = (Client::new(fresh(&timers)), Client::new(fresh(&both)));
    assert!(one.get("").has(&format!("Waiting<b>{}</b>", second.len())));
    let timer = |key: &str| format!("?view=timer&kind=mail&key={key}");
    assert!(several.get(&timer(second[0])).has("number 1"));

    server.end();
    // What was counted while it was there is shown for as long as counts are.
    common::until("the counts are asked anew", || one.get("").status != StatusCode::OK);
    for view in ["", "?view=upcoming", &timer(second[0])] {
        let answer = one.get(view);
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{view}");
        assert!(answer.has("the database cannot be reached") && answer.has("Try again"));
    }
    let cancel = |key: &str| format!("?do=cancel&kind=mail&key={key}");
    assert_eq!(one.post(&cancel(second[0]), &[]).status, StatusCode::SERVICE_UNAVAILABLE);
    // What the others have is shown, and can be changed.
    let list = several.get("?view=upcoming");
    assert_eq!(list.status, StatusCode::OK);
    assert!(list.has("A part of the timers is missing here."));
    assert!(list.has("the database cannot be reached"));
    for key in &keys {
        let link = format!("{}&shard=0", timer(key));
        assert_eq!(links(&list.body).contains(&link), first.contains(&key), "{key}");
    }
    let rest = format!("Waiting<b>{}</b>", first.len());
    common::until("the others are counted", || several.get("").has(&rest));
    assert_eq!(several.get("?view=past").status, StatusCode::OK);
    assert_eq!(several.said(&cancel(first[0])), "cancelled");
    assert_eq!(several.get(&timer(second[0])).status, StatusCode::SERVICE_UNAVAILABLE);
}

/// A lock of the table stands for a database that is slow, or frozen.
#[test]
fn a_slow_database_keeps_few_connections_busy() {
    let server = match server::Server::find() {
        Ok(server) => server,
        Err(reason) => {
            return databases::say(&format!("the page, with a slow database: skipped: {reason}"));
        }
    };
    let (slow, file) = (Database::schema(&server), Database::file());
    let timers = slow.open();
    let both = OpenOptions::new().with_stores(vec![store(&file), store(&slow)]).expect("they open");
    let new: Vec<_> = (0..40).map(|key| of("mail", &key.to_string(), HOUR)).collect();
    both.schedule_all(&new).expect("scheduled");
    let page = page_of(&timers).counts_every(Duration::ZERO).build();
    let fresh = page_of(&timers).build();
    let mut client = Client::new(page.clone());
    let mut several = Client::new(page_of(&both).build());
    let is_old = |answer: &Answer| answer.has("These counts are old.");
    assert!(!is_old(&client.get("")));

    let end = slow.begin("BEGIN; LOCK TABLE tickwheel_timers");
    let busy = || {
        slow.number(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tickwheel_timers'::regclass",
        )
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ask = |page: &Page, view: &str| {
        let request = Request::builder().uri(format!("/{view}"));
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let page = page.clone();
        async move { page.answer(request).await.status() }
    };
    // Somebody reloads again and again: each visitor goes away before there is an answer.
    let gone = Duration::from_millis(50);
    let reload = || {
        runtime.block_on(async {
            for view in ["", "?view=dead"].into_iter().cycle().take(20) {
                _ = tokio::time::timeout(gone, ask(&page, view)).await;
            }
        });
        busy()
    };
    common::until("the counts wait, and three lists", || reload() == 4);
    assert_eq!(reload(), 4);
    let list = client.get("?view=dead");
    assert_eq!(list.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(list.has("has not answered a question of this page for"));

    // Many come at once to a page that has just started.
    let first: Vec<_> = (0..12).map(|_| runtime.spawn(ask(&fresh, ""))).collect();
    runtime.block_on(async { tokio::time::sleep(gone).await });
    common::until("one counts for all of them", || busy() == 5);

    common::until("it is said that counts are old", || is_old(&client.get("")));
    // Of two, the other one is shown.
    let list = several.get("?view=upcoming&kind=mail");
    assert!(list.status == StatusCode::OK && list.has("the database number 1 is away"));
    assert!(links(&list.body).iter().any(|link| link.contains("shard=0")));

    end();
    for status in first {
        assert_eq!(runtime.block_on(status).expect("it has ended"), StatusCode::OK);
    }
    common::until("it answers again", || {
        client.get("?view=dead").status == StatusCode::OK && !is_old(&client.get(""))
    });
    common::until("all of it", || !several.get("?view=upcoming").has("is missing here"));
}
