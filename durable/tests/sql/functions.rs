//! The functions, from the clients that people have.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use postgres::types::ToSql;
use tickwheel_durable::{
    Claim, Connection, Existing, Finish, NewTimer, Repetition, State, Store, Table, Then, When,
    postgres::{Postgres, within},
};

use super::databases::{Database, apart, client, refusal, say};

const HOUR: Duration = Duration::from_secs(3600);

fn connect(database: &Database<'_>) -> Box<dyn Connection> {
    Postgres::new(&database.url()).expect("an address").connect().expect("it connects")
}

/// A second order with the number of another one does not abort the transaction.
pub(crate) fn an_order_and_its_timer_are_one_transaction(database: &Database<'_>) {
    let timers = database.open();
    let mut mine = client(&database.url());
    mine.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY)").expect("a table");
    let schedule = "SELECT due, replaced FROM tickwheel_schedule('unpaid', $1, after => interval '30 minutes', keep => $2)";
    for (keep, is_committed, rows) in [
        (false, false, vec![false]),
        (false, true, vec![false]),
        (false, true, vec![true]),
        (true, true, vec![]),
    ] {
        let mut order = mine.transaction().expect("a transaction");
        order
            .execute("INSERT INTO orders VALUES (4711) ON CONFLICT DO NOTHING", &[])
            .expect("an order");
        let answer = order.query(schedule, &[&"4711", &keep]).expect("no error");
        assert_eq!(answer.iter().map(|row| row.get::<_, bool>(1)).collect::<Vec<_>>(), rows);
        order
            .execute("INSERT INTO orders VALUES (1) ON CONFLICT DO NOTHING", &[])
            .expect("it goes on");
        if is_committed { order.commit() } else { order.rollback() }.expect("it ends");
        let timer = timers.get("unpaid", "4711").expect("no error");
        assert_eq!(timer.is_some(), is_committed);
        if let (Some(timer), Some(row)) = (timer, answer.first()) {
            assert_eq!((timer.due, timer.state), (row.get::<_, SystemTime>(0), State::Waiting));
        }
    }
}

/// The same functions, from a client of a runtime.
pub(crate) fn an_async_client_schedules(database: &Database<'_>) {
    let timers = database.open();
    let url = database.url();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (mut mine, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("it connects");
        tokio::spawn(connection);
        let order = mine.transaction().await.expect("a transaction");
        let payload: &[u8] = b"two pears";
        let row = order
            .query_one(
                "SELECT replaced FROM tickwheel_schedule('unpaid', '1', $1, at => $2)",
                &[&payload, &(SystemTime::now() + HOUR)],
            )
            .await
            .expect("scheduled");
        assert!(!row.get::<_, bool>(0));
        // The statement of the documentation, with a payload that is text, and would be something else as an untyped one.
        let sql = "SELECT due FROM tickwheel_schedule('unpaid', $1, convert_to($2::text, 'UTF8'), after => $3 * interval '1 second')";
        assert_eq!(include_str!("../../src/lib.rs").matches(sql).count(), 2);
        let (id, json) = ("3", r#"{"pears": "\\ü"}"#);
        let row = order.query_opt(sql, &[&id, &json, &1800_f64]).await.expect("scheduled");
        assert!(row.is_some());
        let row = order.query_one("SELECT tickwheel_cancel('unpaid', '2')", &[]).await;
        assert_eq!(row.expect("no error").get::<_, Option<&str>>(0), None);
        order.commit().await.expect("it commits");
    });
    let timer = timers.get("unpaid", "1").expect("no error").expect("there");
    assert_eq!(timer.payload, b"two pears");
    let timer = timers.get("unpaid", "3").expect("no error").expect("there");
    assert_eq!(timer.payload, r#"{"pears": "\\ü"}"#.as_bytes());
    let left = timer.due.duration_since(SystemTime::now()).expect("it is later");
    assert!(left > Duration::from_secs(1700) && left < Duration::from_secs(1900), "{left:?}");
}

pub(crate) fn psql_schedules(database: &Database<'_>) {
    drop(database.open());
    let script = "BEGIN;
        SELECT replaced FROM tickwheel_schedule('mail', '1', 'hello', after => '3 days');
        SELECT replaced FROM tickwheel_schedule('mail', '1', 'hello again', now() + interval '1 day');
        SELECT count(*) FROM tickwheel_schedule('mail', '1', keep => true);
        COMMIT;
        SELECT tickwheel_reset('mail', '1', after => '1 hour') BETWEEN now() + interval '59 min' AND now() + interval '61 min';
        SELECT tickwheel_reset('mail', '2', after => '1 hour') IS NULL;
        SELECT convert_from(payload, 'UTF8'), state FROM tickwheel_get('mail', '1');
        SELECT tickwheel_cancel('mail', '1');
        SELECT tickwheel_cancel('mail', '1') IS NULL";
    let mut psql = Command::new("psql");
    psql.args(["--quiet", "--no-psqlrc", "-At", "-v", "ON_ERROR_STOP=1", "-c", script]);
    match psql.arg(database.url()).output() {
        Err(error) => say(&format!("sql, with psql: skipped: {error}")),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(
                text.split_whitespace().collect::<Vec<_>>().join(" "),
                "f t 0 t t hello again|waiting waiting t"
            );
        }
    }
}

/// With psycopg 3 or psycopg2, whichever is installed.
pub(crate) fn python_schedules(database: &Database<'_>) {
    let timers = database.open();
    let script = "
import datetime, json, sys
try:
    import psycopg
except ImportError:
    try:
        import psycopg2 as psycopg
    except ImportError:
        sys.exit(77)
connection = psycopg.connect(sys.argv[1])
cursor = connection.cursor()
cursor.execute('CREATE TABLE orders (id text)')
cursor.execute('INSERT INTO orders VALUES (%s)', ('4711',))
for replaced in (False, True):
    cursor.execute('SELECT due, replaced FROM tickwheel_schedule(%s, %s, %s, after => %s)',
        ('unpaid', '4711', json.dumps({'pears': 2}).encode(), datetime.timedelta(minutes=30)))
    assert cursor.fetchone()[1] == replaced
keys = [str(number) for number in range(100)]
cursor.execute('SELECT count(*) FROM tickwheel_schedule_many(%s, %s, after => %s)',
    (['unpaid'] * 100, keys, [datetime.timedelta(minutes=number) for number in range(100)]))
assert cursor.fetchone()[0] == 100
text = '{\"pears\": \"\\\\\\\\\"}'
cursor.execute(\"SELECT due FROM tickwheel_schedule('unpaid', %s, convert_to(%s::text, 'UTF8'), after => %s)\",
    ('text', text, datetime.timedelta(minutes=30)))
cursor.execute('SELECT payload FROM tickwheel_get(%s, %s)', ('unpaid', 'text'))
assert bytes(cursor.fetchone()[0]) == text.encode()
cursor.execute('SELECT tickwheel_cancel(%s, %s)', ('unpaid', 'text'))
connection.commit()
cursor.execute('SELECT tickwheel_cancel(%s, %s)', ('unpaid', '99'))
assert cursor.fetchone()[0] == 'waiting'
connection.commit()
";
    let python = Command::new("python3").args(["-c", script, &database.url()]).output();
    let skipped = |reason: &str| say(&format!("sql, with Python: skipped: {reason}"));
    match python {
        Err(error) => return skipped(&error.to_string()),
        Ok(output) if output.status.code() == Some(77) => {
            return skipped("neither psycopg nor psycopg2 is installed");
        }
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
    assert_eq!(timers.counts().expect("counts")[0].waiting, 100);
    let timer = timers.get("unpaid", "4711").expect("no error").expect("there");
    assert_eq!(timer.payload, b"{\"pears\": 2}");
}

pub(crate) fn many_are_scheduled_at_once(database: &Database<'_>) {
    let timers = database.open();
    let mut mine = client(&database.url());
    let mut rows = |arguments: &str| {
        let sql = format!("SELECT kind, key, replaced FROM tickwheel_schedule_many({arguments})");
        let rows = mine.query(&sql, &[]).map_err(|error| refusal(&error))?;
        Ok::<_, String>(
            rows.iter().map(|row| (row.get(1), row.get(2))).collect::<Vec<(String, bool)>>(),
        )
    };
    let named = |names: &[(&str, bool)]| {
        names.iter().map(|(name, replaced)| ((*name).to_owned(), *replaced)).collect::<Vec<_>>()
    };
    // Without the other lists: due now, without a payload.
    let all = rows("ARRAY['mail', 'mail'], ARRAY['b', 'a']").expect("scheduled");
    assert_eq!(all, named(&[("a", false), ("b", false)]));
    // Of those with the same name the last counts, or the first.
    let twice = "ARRAY['mail', 'mail', 'mail'], ARRAY['b', 'c', 'b'], ARRAY['1', '2', '3']::bytea[],
        after => ARRAY[interval '1 hour', '2 hours', '3 hours'], period_ms => ARRAY[NULL, 1500, NULL]";
    let payload = |key| timers.get("mail", key).expect("no error").expect("there").payload;
    assert_eq!(rows(&format!("{twice}, keep => true")).expect("scheduled"), named(&[("c", false)]));
    assert_eq!((payload("b"), payload("c")), (b"".to_vec(), b"2".to_vec()));
    assert_eq!(rows(twice).expect("scheduled"), named(&[("b", true), ("c", true)]));
    assert_eq!(payload("b"), b"3");
    let series = timers.get("mail", "c").expect("no error").expect("there");
    assert_eq!(series.repetition, Some(Repetition::Every(Duration::from_millis(1500))));
    // All or none.
    let refused = rows("ARRAY['mail', ''], ARRAY['d', 'e']").expect_err("a kind is empty");
    assert!(refused.contains("1 to 200 bytes"), "{refused}");
    assert!(timers.get("mail", "d").expect("no error").is_none());
    let refused = rows("ARRAY['mail'], ARRAY['d'], rules => ARRAY['daily'], period_ms => ARRAY[1]");
    assert!(refused.expect_err("it has both").contains("Give `period_ms` or `rule`"));
    let refused = rows("ARRAY['mail', 'mail'], ARRAY['d', NULL]").expect_err("a key is NULL");
    assert!(refused.contains("null value in column \"key\" is none: Give both"), "{refused}");
    let refused = rows("ARRAY['mail', 'mail'], ARRAY['d']").expect_err("a key is missing");
    assert!(refused.contains("different lengths"), "{refused}");
    assert_eq!(rows("ARRAY[]::text[], ARRAY[]::text[]").expect("nothing"), named(&[]));
}

/// Calls that change the same timers at the same time, in other orders, by several ways.
pub(crate) fn many_callers_do_not_wait_in_a_circle(database: &Database<'_>) {
    const ROUNDS: usize = 150;
    let timers = database.open();
    thread::scope(|scope| {
        for caller in 0..4 {
            let timers = timers.clone();
            scope.spawn(move || {
                let mut mine = client(&database.url());
                let mut keys: Vec<_> =
                    (0..50).map(|n| (n * (7 + 6 * caller) % 50).to_string()).collect();
                for round in 0..ROUNDS {
                    keys.rotate_left(round % 7);
                    let kinds = vec!["mail"; keys.len()];
                    let values: &[&(dyn ToSql + Sync)] = &[&kinds, &keys];
                    if caller % 2 == 0 {
                        mine.query("SELECT tickwheel_schedule_many($1, $2)", values)
                            .expect("no deadlock");
                    } else {
                        let new: Vec<_> =
                            keys.iter().map(|key| NewTimer::new("mail", key, HOUR)).collect();
                        timers.schedule_all(&new).expect("no deadlock");
                    }
                    timers.cancel("mail", &keys[round % 50]).expect("no deadlock");
                }
            });
        }
    });
}

pub(crate) fn functions_see_all_states(database: &Database<'_>) {
    let timers = database.open();
    let mut connection = connect(database);
    let mut mine = client(&database.url());
    let mut ask = |call: &str| {
        mine.query_one(&format!("SELECT ({call})::text"), &[])
            .expect("no error")
            .get::<_, Option<String>>(0)
    };
    timers.schedule(&NewTimer::new("mail", "1", Duration::ZERO)).expect("scheduled");
    let claim = |connection: &mut dyn Connection| {
        let claim = Claim::new("mail", "me").limit(9).lease(HOUR);
        connection.claim(&claim).expect("a claim").timers.remove(0).timer
    };
    let finish = |connection: &mut dyn Connection, run, then| {
        connection.finish(&[Finish::new(run, 1, then)]).expect("written").changed.len()
    };
    let running = claim(&mut *connection);
    assert_eq!(ask("tickwheel_reset('mail', '1')"), None, "it runs");
    assert_eq!(ask("tickwheel_requeue('mail')").as_deref(), Some("0"));
    // What is replaced while it runs is not ended by its run.
    assert_eq!(
        ask("SELECT replaced FROM tickwheel_schedule('mail', '1')").as_deref(),
        Some("true")
    );
    assert_eq!(finish(&mut *connection, running.run(), Then::Done), 0);
    let again = claim(&mut *connection);
    assert_eq!(finish(&mut *connection, again.run(), Then::Retry(HOUR, "no".to_owned())), 1);
    assert!(ask("tickwheel_reset('mail', '1')").is_some(), "it waits for another attempt");
    let anew = claim(&mut *connection);
    assert_eq!(anew.attempts, 0, "it begins anew");
    assert_eq!(finish(&mut *connection, anew.run(), Then::Dead("no".to_owned())), 1);
    assert_eq!(ask("tickwheel_reset('mail', '1')"), None, "it is dead");
    assert_eq!(ask("SELECT error FROM tickwheel_get('mail', '1')").as_deref(), Some("no"));
    assert_eq!(ask("tickwheel_requeue('mail', '1', after => '1 hour')").as_deref(), Some("1"));
    assert_eq!(timers.get("mail", "1").expect("no error").expect("there").state, State::Waiting);
    assert!(ask("tickwheel_reset('mail', '1')").is_some());
    claim(&mut *connection);
    assert_eq!(ask("tickwheel_cancel('mail', '1')").as_deref(), Some("running"));
    assert_eq!(ask("SELECT count(*) FROM tickwheel_get('mail', '1')").as_deref(), Some("0"));
}

pub(crate) fn what_cannot_be_is_refused_with_advice(database: &Database<'_>) {
    drop(database.open());
    let mut mine = client(&database.url());
    let long = "k".repeat(1001);
    for (arguments, problem) in [
        ("'', '1'", "a kind has 1 to 200 bytes"),
        (
            "NULL, '1'",
            "a timer has a kind and a key, and null value in column \"kind\" is none: Give both",
        ),
        (&format!("'{long}', '1'"), "a kind has 1 to 200 bytes"),
        (&format!("'mail', '{long}'"), "a key has at most 1000 bytes"),
        (
            "'mail', NULL",
            "a timer has a kind and a key, and null value in column \"key\" is none: Give both",
        ),
        ("'mail', '1', at => 'infinity'", "cannot be due at infinity: Give a time that comes"),
        ("'mail', '1', at => '-infinity'", "cannot be due at -infinity: Give a time that comes"),
        ("'mail', '1', at => now(), after => '1 s'", "this one has both: Give `at` or `after`"),
        ("'mail', '1', period_ms => 0", "period_ms is 1 or more, or NULL"),
        (
            "'mail', '1', period_ms => 1000, rule => 'daily'",
            "this one has both: Give `period_ms` or `rule`",
        ),
        ("'mail', '1', max_attempts => 0", "max_attempts is 1 or more, or NULL"),
        ("'mail', '1', time_limit_ms => -1", "time_limit_ms is 1 or more, or NULL"),
    ] {
        for keep in ["", ", keep => true"] {
            let sql = format!("SELECT * FROM tickwheel_schedule({arguments}{keep})");
            let refused = refusal(&mine.query(&sql, &[]).expect_err(arguments));
            assert!(refused.contains(problem), "{arguments}: {refused}");
        }
    }
    let refused = mine.query("SELECT tickwheel_reset('mail', '1', 'infinity')", &[]);
    assert!(refused.expect("there is none to refuse it for").len() == 1);
    assert_eq!(database.number("SELECT count(*) FROM tickwheel_timers"), 0);
}

pub(crate) fn times_are_kept_in_range(database: &Database<'_>) {
    let timers = database.open();
    let mut mine = client(&database.url());
    for (time, year) in [
        ("at => '0044-03-15 BC'", 1970),
        ("at => '20000-01-01'", 9998),
        ("after => '9000 years'", 9998),
        ("after => '900000 years'", 9998),
        ("after => '-900000 years'", 1970),
        ("after => '178000000 years'", 9998),
        ("after => '-2000000000 days'", 1970),
    ] {
        let sql = format!(
            "SELECT extract(year FROM due AT TIME ZONE 'UTC')::int FROM tickwheel_schedule('mail', '1', {time})"
        );
        assert_eq!(mine.query_one(&sql, &[]).expect("scheduled").get::<_, i32>(0), year, "{time}");
    }
    // What is over is due now, and a delay counts from the call, not from the begin of the transaction.
    let mut transaction = mine.transaction().expect("a transaction");
    transaction.batch_execute("SELECT pg_sleep(0.2)").expect("it sleeps");
    let mut table = within(&mut transaction);
    let new = NewTimer::new("mail", "2", When::After(Duration::from_millis(1500)));
    table.schedule(&[new], Existing::Replace).expect("scheduled");
    let sql = "SELECT tickwheel_schedule('mail', '3', after => '1500 ms')";
    transaction.batch_execute(sql).expect("scheduled");
    transaction.commit().expect("it commits");
    let due = |key| timers.get("mail", key).expect("no error").expect("there").due;
    let now = timers.now().expect("a time");
    assert!(apart(due("2"), due("3")) < Duration::from_secs(1), "{:?}", apart(due("2"), due("3")));
    assert!(due("2") <= now + Duration::from_millis(1500) && due("3") > due("2"));
}

/// A session that has known the table when it was empty does not read all of it when it is large. The caller's texts have
/// another collation than the table's.
pub(crate) fn calls_are_quick_after_the_table_has_grown(database: &Database<'_>) {
    const ROWS: usize = 40_000;
    drop(database.open());
    let mut mine = client(&database.url());
    let calls = [
        "tickwheel_schedule('mail', $1 COLLATE \"C\", after => '1 hour')",
        "tickwheel_schedule_many(ARRAY['mail'], ARRAY[$1], after => ARRAY[interval '1 hour'])",
        "tickwheel_reset('mail', $1 COLLATE \"C\", after => '1 hour')",
        "tickwheel_get('mail', $1 COLLATE \"C\")",
        "tickwheel_cancel('mail', $1 COLLATE \"C\")",
    ];
    let calls = calls.map(|call| mine.prepare(&format!("SELECT * FROM {call}")).expect("prepared"));
    let mut all = |count: usize| {
        let begin = Instant::now();
        for n in 0..count {
            for call in &calls {
                mine.query(call, &[&format!("{n}")]).expect("no error");
            }
        }
        begin.elapsed() / u32::try_from(count * calls.len()).expect("few")
    };
    all(10);
    database.execute(&format!(
        "INSERT INTO tickwheel_timers (kind, key, due)
         SELECT 'mail', 'more ' || n, now() + interval '1 hour' FROM generate_series(1, {ROWS}) n"
    ));
    // One that reads the table takes some ten milliseconds, each time.
    let mut tries = (0..3).map(|_| all(40)).inspect(|each| println!("  {each:?} each"));
    assert!(tries.any(|each| each < Duration::from_millis(5)), "they read the table");
}
