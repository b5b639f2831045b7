//! The page in a real browser, Chromium without a window, on the example service: what an operator does, and what hostile timers
//! must not do.
//!
//! Where no browser is installed it says so and passes, but not with `CI` in the environment. With `TICKWHEEL_PICTURE=1` it also
//! draws `page.png` anew, which the README of durable timers shows.

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/databases.rs"]
mod databases;
mod driver;
#[path = "../../tests/common/example.rs"]
mod example;
#[path = "../../tests/common/server.rs"]
mod server;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use common::{Random, until};
use databases::Database;
use driver::{Browser, Service, missing, request};
use tickwheel_durable::{
    Attempt, Claim, Finish, NewTimer, Outcome, State, Store, Then, Timers, sqlite::Sqlite,
};

/// Each would set `window.hacked`, or load something, where it came into the page unescaped.
const HOSTILE: [&str; 6] = [
    "<script>window.hacked='script'</script>",
    "\"><img src=\"http://evil.invalid/x.png\" onerror=\"window.hacked='img'\">",
    "'-alert(1)-'",
    "</pre></bdi></table></style></script><svg onload=\"window.hacked='svg'\"><style>*{display:none}</style>",
    "<meta http-equiv=refresh content=\"0;url=http://evil.invalid/\"><base href=\"http://evil.invalid/\">",
    "javascript:window.hacked='link'//\u{202e}\u{1f469}\u{200d}\u{1f467}/..?#%",
];

fn path(database: &Database<'_>) -> String {
    database.address().trim_start_matches("sqlite:").to_owned()
}

fn logged_in(browser: &Browser, service: &Service) {
    logged_in_at(browser, service, &service.page());
}

fn logged_in_at(browser: &Browser, service: &Service, page: &str) {
    browser.open(page);
    browser.write("#token", &service.token);
    browser.click("button.strong");
    until("it is logged in", || browser.count("nav[aria-label=Views]") == 1);
}

/// Has a timer die of an error, with its attempt in the history.
fn die(path: &str, timers: &Timers, kind: &str, key: &str, error: &str) {
    let payload = format!("payload of {key}");
    timers.schedule(&NewTimer::new(kind, key, Duration::ZERO).payload(payload)).expect("scheduled");
    let mut connection = Sqlite::new(path).connect().expect("it connects");
    let claimed = connection.claim(&Claim::new(kind, error).limit(1)).expect("a claim");
    let run = claimed.timers[0].timer.run();
    let attempt = Attempt::new(kind, key, timers.now().expect("a time"), run.fence, Outcome::Dead);
    let finish = Finish::new(run, 3, Then::Dead(error.to_owned()));
    connection.finish(&[finish.record(Some(attempt.error(Some(error))))]).expect("an outcome");
}

#[test]
fn an_operator_uses_the_page_in_a_browser() {
    if let Some(reason) = missing() {
        assert!(std::env::var_os("CI").is_none(), "CI tests the page in a browser: {reason}");
        return databases::say(&format!("the page in a browser: skipped: {reason}"));
    }
    let browser = Browser::start();
    timers_come_and_one_is_requeued(&browser);
    hostile_timers_do_nothing(&browser);
    read_only_has_no_buttons(&browser);
    without_tls_the_origin_tells(&browser);
    if std::env::var_os("TICKWHEEL_PICTURE").is_some() {
        draw(&browser);
    }
}

fn timers_come_and_one_is_requeued(browser: &Browser) {
    let database = Database::file();
    let service = Service::start(&path(&database), &[]);
    let timers = database.open();

    // A wrong token, and then the right one.
    browser.open(&format!("{}?view=dead", service.page()));
    browser.write("#token", "not the token");
    browser.click("button.strong");
    until("it is refused", || browser.text().contains("This is not the token."));
    assert_eq!(browser.count("nav, table, svg"), 0);
    browser.write("#token", &service.token);
    browser.click("button.strong");
    until("it leads to what was asked for", || browser.address().ends_with("?view=dead"));

    // The page follows by itself what the service does.
    browser.open(&service.page());
    browser.run("window.stayed = true");
    until("kinds come, run and are drawn", || {
        ["charge", "mail", "report"].iter().all(|kind| browser.text().contains(kind))
            && browser.count("svg .done") > 0
            && browser.run("return window.stayed") == true
    });
    until("a card is declined", || browser.text().contains("died"));
    assert_eq!(browser.run("return window.stayed"), true, "without a reload");

    // One that is dead is requeued by a click, runs, and is done.
    browser.open(&format!("{}?view=dead&kind=charge", service.page()));
    until("a timer is dead", || browser.count("table.cards tbody tr") > 0);
    browser.open(&browser.address()); // what the script puts in may come in the middle of a click
    let key = browser.run("return document.querySelector('tbody th bdi').textContent");
    let key = key.as_str().expect("a key").to_owned();
    assert!(browser.text().contains("402, the card was declined"));
    browser.click("tbody tr:first-child .do button");
    until("it is said", || browser.text().contains("The timer waits again"));
    until("a reload does not say it", || !browser.address().contains("said="));
    until("it is done", || timers.get("charge", &key).expect("an answer").is_none());
    browser.open(&format!("{}?view=past&kind=charge&outcome=done", service.page()));
    until("it is in the history", || browser.text().contains(&key));

    // Another one is found by its key, moved, and cancelled, which asks first.
    timers
        .schedule(&NewTimer::new("remind", "a/b ?#%\u{1f980}", Duration::from_secs(9000)))
        .expect("scheduled");
    browser.write("input[name=prefix]", "a/b ?");
    browser.write("input[name=kind]", "remind");
    browser.click(".find button");
    until("it is found", || browser.count("tbody th a") == 1);
    browser.click("tbody th a");
    until("it is shown", || browser.text().contains("Move it to"));
    browser.write("#number", "7");
    browser.click("option:nth-child(4)");
    browser.run("document.querySelector('#number').form.requestSubmit()");
    until("it is moved", || browser.text().contains("in 6 d 23 h"));
    browser.click("a.grave");
    until("it asks", || browser.text().contains("Cancel this timer?"));
    browser.click("button.strong");
    until("it is cancelled", || {
        browser.text().contains("The timer is cancelled: it will not run.")
    });
    assert_eq!(
        timers
            .list(&tickwheel_durable::Filter::new().kind("remind").key_prefix("a/b"))
            .expect("a list"),
        []
    );

    // On a phone nothing is cut off, and the way to the views is one line.
    browser.look(390, 844, "light");
    for view in ["", "?kind=charge", "?view=dead", "?view=past", "?view=find&prefix="] {
        browser.open(&format!("{}{view}", service.page()));
        let fits = "return innerWidth === 390 && document.documentElement.scrollWidth <= 390 && document.querySelector('nav').offsetHeight < 40
            && [...document.querySelectorAll('a, button, input, td, svg')].every(of => of.getBoundingClientRect().right <= 390)";
        assert_eq!(browser.run(fits), true, "{view}");
    }
    browser.look(1240, 1004, "light");

    // All of it without scripts.
    browser.scripts(false);
    browser.open(&format!("{}?kind=charge", service.page()));
    until("it is shown", || browser.count("figure svg") == 2 && browser.count("h2 a") == 4);
    browser.scripts(true);

    browser.click(".visitor button");
    until("it is logged out", || browser.count("#token") == 1);
    let mut complaints = browser.complaints();
    complaints.retain(|text| !text.contains("401")); // it asked for the token
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(service.interrupt(), "it ends well");
}

fn hostile_timers_do_nothing(browser: &Browser) {
    let database = Database::file();
    let service = Service::start(&path(&database), &[]);
    let timers = database.open();
    for text in HOSTILE {
        die(&path(&database), &timers, text, text, text);
    }
    logged_in(browser, &service);
    _ = (browser.requests(), browser.complaints());
    let mut pages: Vec<String> =
        ["", "?view=dead", "?view=past", "?view=find&prefix=", "?view=upcoming"]
            .map(str::to_owned)
            .into();
    browser.open(&format!("{}?view=dead", service.page()));
    let links = browser.run(
        "return [...document.querySelectorAll('main a, form')].map(of => of.href || of.action)",
    );
    let links: Vec<_> =
        links.as_array().expect("a list").iter().filter_map(|link| link.as_str()).collect();
    assert!(links.iter().all(|link| link.starts_with(&service.page())), "{links:?}");
    let own = links.into_iter().filter(|link| link.contains('?') && !link.contains("do=logout"));
    pages.extend(own.map(|link| link.trim_start_matches(&service.page()).to_owned()));
    assert!(pages.len() > 4 * HOSTILE.len());
    let mut seen = 0;
    for page in pages {
        // A machine that is busy for too long has Chromium show a page of its own.
        let is_shown = || {
            browser.open(&format!("{}{page}", service.page()));
            assert!(!browser.has_dialog(), "{page}");
            browser.count("main") == 1
        };
        assert!((0..3).any(|_| is_shown()), "{page}: {}", browser.text());
        let is_whole = "return window.hacked === undefined && document.querySelectorAll('main img, main script, main style, main base, \
            main meta').length === 0 && getComputedStyle(document.querySelector('main')).display !== 'none' \
            && document.querySelectorAll('footer').length === 1";
        assert_eq!(browser.run(is_whole), true, "{page}");
        assert!(browser.address().starts_with(&service.page()), "{page}");
        seen += usize::from(browser.text().contains("window.hacked='script'"));
    }
    assert!(seen > 5, "they are shown as texts");
    let away: Vec<_> = browser
        .requests()
        .into_iter()
        .filter(|of| !of.starts_with(&service.page()) && of != "data:,")
        .collect();
    assert!(away.is_empty(), "nothing is loaded from elsewhere: {away:?}");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "the policy had nothing to stop: {complaints:?}");

    // The policy would stop a script and a style that came in unescaped.
    let put_in = "const of = document.createElement('script'); of.textContent = 'window.hacked = 1'; document.body.append(of);
        const style = document.createElement('style'); style.textContent = 'main{display:none}'; document.head.append(style);
        return window.hacked === undefined && getComputedStyle(document.querySelector('main')).display !== 'none'";
    assert_eq!(browser.run(put_in), true);
    assert_eq!(
        browser.complaints().iter().filter(|text| text.contains("Content Security Policy")).count(),
        2
    );
}

fn read_only_has_no_buttons(browser: &Browser) {
    let database = Database::file();
    let service = Service::start(&path(&database), &["--read-only"]);
    let timers = database.open();
    die(&path(&database), &timers, "charged", "1", "the card was declined");
    logged_in(browser, &service);
    for view in ["", "?kind=charged", "?view=dead", "?view=timer&kind=charged&key=1"] {
        browser.open(&format!("{}{view}", service.page()));
        assert_eq!(browser.count("main form, main button"), 0, "{view}");
        assert!(browser.text().contains("read only"));
    }
    let ask = "const answer = new XMLHttpRequest(); answer.open('POST', '?do=requeue&kind=charged&key=1', false);
        answer.setRequestHeader('content-type', 'application/x-www-form-urlencoded');
        answer.send('form=' + document.querySelector('input[name=form]').value); return answer.status";
    assert_eq!(browser.run(ask), 403);
    // Nor without a login.
    let (status, _) = request(service.port, "POST", "/?do=requeue&kind=charged&key=1", &[], "")
        .expect("an answer");
    assert_eq!(status, 401);
    let bearer = format!("Bearer {}", service.token);
    let (status, body) =
        request(service.port, "GET", "/?view=dead", &[("Authorization", &bearer)], "")
            .expect("an answer");
    assert!(status == 200 && String::from_utf8_lossy(&body).contains("the card was declined"));
}

/// To another machine without TLS, browsers send no `Sec-Fetch-Site`. Then `Origin` says where a form comes from.
fn without_tls_the_origin_tells(browser: &Browser) {
    let database = Database::file();
    let service = Service::start(&path(&database), &[]);
    let timers = database.open();
    die(&path(&database), &timers, "charged", "1", "the card was declined");
    let page = format!("http://shop.test:{}/", service.port);
    logged_in_at(browser, &service, &page);
    assert_eq!(browser.run("return isSecureContext"), false);
    browser.open(&format!("{page}?view=dead&kind=charged"));
    browser.click("tbody .do button");
    until("it is requeued", || browser.text().contains("The timer waits again"));
    let timer = timers.get("charged", "1").expect("an answer").expect("it is there");
    assert_eq!(timer.state, State::Waiting);
}

/// Draws the page with an hour that is made up, beside what the service does.
fn draw(browser: &Browser) {
    let database = Database::file();
    let timers = database.open();
    let mut connection = Sqlite::new(path(&database)).connect().expect("it connects");
    let now = timers.now().expect("a time");
    let mut random = Random(1);
    let (mut attempts, mut fence) = (Vec::new(), 0);
    for second in 1..3600_u64 {
        let minute = second / 60;
        // A mail server that did not answer half an hour ago, and a wave of orders.
        let is_away = (28..34).contains(&minute);
        let wave = 30 + 6 * (minute % 44).abs_diff(22); // percent
        for (kind, each) in [("mail", 60), ("charge", 65), ("thumbnail", 25), ("report", 6)] {
            if random.below(10_000) >= each * wave {
                continue;
            }
            let fails = match kind {
                "mail" => random.below(100) < if is_away { 70 } else { 3 },
                "charge" => random.below(100) < 6,
                _ => false,
            };
            let outcome = match kind {
                _ if !fails => Outcome::Done,
                "charge" if random.one_in(4) => Outcome::Dead,
                _ => Outcome::Failed,
            };
            let (key, started) = (format!("order {second}"), now - Duration::from_secs(second));
            fence += 1;
            let mut attempt = Attempt::new(kind, key, started, fence, outcome);
            let usual = 300 + random.below(2500);
            attempt.late = Duration::from_micros(match kind {
                "thumbnail" => usual * (1 + random.below(60)),
                "mail" if is_away => usual * 900,
                _ => usual,
            });
            attempt.took = Duration::from_millis(20 + random.below(60));
            attempts.push(attempt);
        }
    }
    connection.record(&attempts).expect("they are kept");
    let service = Service::start(&path(&database), &[]);
    logged_in(browser, &service);
    browser.look(1240, 1004, "light");
    let begin = SystemTime::now();
    until("some are dead", || {
        timers
            .list(&tickwheel_durable::Filter::new().state(State::Dead))
            .is_ok_and(|dead| dead.len() > 2)
    });
    browser.open(&service.page());
    let picture = browser.picture();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("page.png");
    assert!(picture.len() < 200_000, "{} bytes", picture.len());
    fs::write(&path, picture).expect("it is written");
    databases::say(&format!(
        "{} is new, after {:?}",
        path.display(),
        begin.elapsed().unwrap_or_default()
    ));
}
