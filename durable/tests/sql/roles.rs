//! A schema of one's choice, and roles: one that migrates, one that works, one that only schedules.

use std::sync::mpsc;
use std::time::Duration;

use tickwheel::Scheduler;
use tickwheel_durable::{
    Error, Existing, HistoryFilter, NewTimer, Table, Timers, postgres::within,
};

use super::common::{PATIENCE, until};
use super::databases::{Database, client};
use super::server::new_name;

const NOW: Duration = Duration::ZERO;

/// The address of the server for another role.
fn url_for(server: &str, role: &str) -> String {
    match server.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.split_once('@').map_or(rest, |(_, host)| host);
            format!("{scheme}://{role}@{host}")
        }
        None => format!("{server} user={role}"),
    }
}

pub(crate) fn a_schema_of_ones_choice(database: &Database<'_>) {
    let Database::Schema { server, .. } = database else { panic!("a server") };
    let name = new_name("chosen");
    let join = if server.url().contains('?') { '&' } else { '?' };
    let address = format!("{}{join}schema={name}", server.url());
    let missing = Timers::open_unmigrated(&address).expect_err("there is nothing");
    assert!(matches!(missing, Error::Unmigrated(0)), "{missing:?}");
    let timers = Timers::open(&address).expect("it makes the schema");
    let (tell, told) = mpsc::channel();
    let worker = timers
        .worker()
        .handle_in_postgres("mail", move |run, transaction| {
            // The search path of the connection leads elsewhere.
            let next = NewTimer::new("next", run.key(), NOW);
            within(transaction)
                .in_schema(std::str::from_utf8(run.payload())?)?
                .schedule(&[next], Existing::Keep)?;
            Ok(())
        })
        .handle("next", move |run| Ok(tell.send(run.key().to_owned())?))
        .poll_every(PATIENCE)
        .start(Scheduler::global())
        .expect("it starts");
    timers.schedule(&NewTimer::new("mail", "1", NOW).payload(name.clone())).expect("scheduled");
    // The functions work from any search path, and so do the calls in a transaction of one's own.
    let mut mine = client(&database.url());
    let mut transaction = mine.transaction().expect("a transaction");
    let call = format!("SELECT {name}.tickwheel_schedule('mail', '2', '{name}')");
    transaction.batch_execute(&call).expect("scheduled");
    let mut table = within(&mut transaction).in_schema(&name).expect("a name");
    let third = NewTimer::new("mail", "3", NOW).payload(name.clone());
    table.schedule(std::slice::from_ref(&third), Existing::Keep).expect("scheduled");
    assert_eq!(table.schedule(&[third], Existing::Keep).expect("it is there"), [None]);
    assert!(table.reset("mail", "3", NOW.into()).expect("no error").is_some());
    transaction.commit().expect("it commits");
    let mut keys: Vec<_> = (0..3).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    keys.sort();
    assert_eq!(keys, ["1", "2", "3"]);
    assert!(worker.stop(PATIENCE));
    for bad in ["", "a b", "a\"; DROP TABLE orders", "a.b"] {
        let refused = within(&mut client(server.url())).in_schema(bad).map(drop);
        assert!(matches!(refused, Err(Error::Address(_))), "{bad}");
    }
    mine.batch_execute(&format!("DROP SCHEMA {name} CASCADE")).expect("it is gone");
}

/// The statements that mend it are those of the documentation's first page.
pub(crate) fn a_schema_that_was_renamed_is_noticed_and_mended(database: &Database<'_>) {
    let Database::Schema { server, .. } = database else { panic!("a server") };
    let (old, new) = (new_name("old"), new_name("new"));
    let join = if server.url().contains('?') { '&' } else { '?' };
    let address = |schema: &str| format!("{}{join}schema={schema}", server.url());
    drop(Timers::open(&address(&old)).expect("it makes the schema"));
    let mut owner = client(server.url());
    let documented = include_str!("../../src/lib.rs").split("-- To rename the schema").nth(1);
    let documented = documented.and_then(|text| text.split("```").next()).expect("it ends");
    let documented = documented.replace("//!", "").replace("clocks", &new);
    let documented = documented.replace("SCHEMA timers", &format!("SCHEMA {old}"));
    let documented = documented.replace("]timers(", &format!("]{old}("));
    let (rename, mend) = documented.split_once(';').expect("it has two statements");

    owner.batch_execute(rename).expect("it is renamed");
    for noticed in [Timers::open(&address(&new)), Timers::open_unmigrated(&address(&new))] {
        let noticed = noticed.expect_err("its functions name another");
        assert!(matches!(noticed, Error::Invalid(_)), "{noticed:?}");
        let said = noticed.to_string();
        let is_told =
            [&old, &new, "`To rename the schema`"].iter().all(|part| said.contains(*part));
        assert!(is_told, "{said}");
    }
    owner.batch_execute(mend).expect("it is mended");
    let timers = Timers::open(&address(&new)).expect("it opens");
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("mail", move |run| Ok(tell.send(run.key().to_owned())?));
    let worker = worker.poll_every(PATIENCE).start(Scheduler::global()).expect("it starts");
    // Through each function that has the name in its text, or in its search path.
    owner
        .batch_execute(&format!(
            "SELECT {new}.tickwheel_schedule_many(ARRAY['mail'], ARRAY['1'], after => ARRAY[interval '1 hour']);
             SELECT {new}.tickwheel_reset('mail', '1'); SELECT {new}.tickwheel_requeue('mail');
             SELECT {new}.tickwheel_get('mail', '1'); SELECT {new}.tickwheel_cancel('mail', '2')"
        ))
        .expect("the functions find the tables");
    let debounced = format!("SELECT {new}.tickwheel_set_notices('debounced')");
    owner.batch_execute(&debounced).expect("it finds the tables");
    assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok("1"));
    timers.schedule(&NewTimer::new("mail", "2", NOW)).expect("scheduled");
    assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok("2"));
    assert!(worker.stop(PATIENCE));
    let names = format!(
        "SELECT count(*) FROM pg_proc WHERE pronamespace = '{new}'::regnamespace AND pg_get_functiondef(oid) LIKE '%{old}%'"
    );
    assert_eq!(database.number(&names), 0, "none is left");
    owner.batch_execute(&format!("DROP SCHEMA {new} CASCADE")).expect("it is gone");
}

/// The grants are those of the documentation's first page.
pub(crate) fn roles_have_what_they_need_and_no_more(database: &Database<'_>) {
    let Database::Schema { server, name } = database else { panic!("a server") };
    let mut owner = client(server.url());
    let [migrates, works, schedules] = ["migrates", "works", "schedules"].map(new_name);
    let grants = include_str!("../../src/lib.rs");
    let grants = grants.split("-- The roles").nth(1).expect("it is documented");
    let grants = grants.split("```").next().expect("it ends").replace("//!", "");
    let grants = grants
        .replace("works", &works)
        .replace("schedules", &schedules)
        .replace("SCHEMA timers", &format!("SCHEMA {name}"))
        .replace("timers.", &format!("{name}."));
    let roles = [&migrates, &works, &schedules].map(|role| format!("CREATE ROLE {role} LOGIN;"));
    owner.batch_execute(&roles.concat()).expect("roles");
    owner.batch_execute(&format!("GRANT ALL ON SCHEMA {name} TO {migrates}")).expect("a grant");
    let join = if server.url().contains('?') { '&' } else { '?' };
    let url = |role: &str| {
        format!("{}{join}options=-c%20search_path%3D{name}", url_for(server.url(), role))
    };

    owner.batch_execute(&format!("GRANT USAGE ON SCHEMA {name} TO {works}")).expect("a grant");
    let refused = Timers::open(&url(&works)).expect_err("it may not make tables");
    assert!(matches!(refused, Error::Unmigrated(0)), "{refused:?}");
    drop(Timers::open(&url(&migrates)).expect("it makes them"));
    let lacks = Timers::open_unmigrated(&url(&works)).expect_err("it may not read them");
    let lacks = lacks.to_string();
    assert!(lacks.contains("`The roles`") && lacks.contains("permission denied"), "{lacks}");
    // With whatever search path: the owner's does not lead to the tables.
    owner.batch_execute(&grants).expect("the grants are SQL");
    let timers = Timers::open_unmigrated(&url(&works)).expect("nothing is missing");
    drop(Timers::open(&url(&works)).expect("there is nothing to do"));
    let (tell, told) = mpsc::channel();
    let worker = timers.worker().handle("mail", move |run| Ok(tell.send(run.key().to_owned())?));
    let worker = worker.at_most_in_all(2).rate(100, Duration::from_secs(1)).serial_by('/');
    let worker = worker.history(PATIENCE).keep_dead(PATIENCE);
    let worker = worker.poll_every(PATIENCE).start(Scheduler::global()).expect("it starts");
    let mut other = client(&url(&schedules));
    other
        .batch_execute(
            "SELECT tickwheel_schedule('mail', '1', trace => 'from SQL'); SELECT tickwheel_schedule('mail', '2', after => '1 hour');
             SELECT tickwheel_schedule('mail', '2'); SELECT tickwheel_reset('mail', '2', after => '1 hour');
             SELECT tickwheel_get('mail', '2'); SELECT tickwheel_cancel('mail', '2');
             SELECT tickwheel_schedule_many(ARRAY['mail'], ARRAY['3'])",
        )
        .expect("it may schedule");
    let mut keys: Vec<_> = (0..2).map(|_| told.recv_timeout(PATIENCE).expect("it runs")).collect();
    keys.sort();
    // Timer 2 may have run before it was moved.
    keys.retain(|key| key != "2");
    assert!(keys.iter().all(|key| key == "1" || key == "3"), "{keys:?}");
    for (role, forbidden) in [
        (&schedules, "SELECT nextval('tickwheel_fence')"),
        (&schedules, "UPDATE tickwheel_schema SET version = 9"),
        (&schedules, "TRUNCATE tickwheel_timers"),
        (&schedules, "SELECT FROM tickwheel_history"),
        (&works, "UPDATE tickwheel_schema SET version = 9"),
        (&works, "DROP TABLE tickwheel_timers"),
        (
            &works,
            "CREATE OR REPLACE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
        ),
    ] {
        let refused = client(&url(role)).batch_execute(forbidden).expect_err(forbidden);
        assert_eq!(
            refused.code().map(|code| code.code().to_owned()).as_deref(),
            Some("42501"),
            "{forbidden}"
        );
    }
    let past = || timers.history(&HistoryFilter::new().kind("mail").key("1")).expect("a history");
    until("it is in the history", || !past().is_empty());
    assert_eq!(past()[0].trace.as_deref(), Some("from SQL"));
    assert!(worker.stop(PATIENCE));
    // One that is to keep a history, and may not, says so at once.
    let of_history = format!("ALL ON {name}.tickwheel_history");
    owner.batch_execute(&format!("REVOKE {of_history} FROM {works}")).expect("revoked");
    let worker = timers.worker().handle("mail", |_| Ok(())).history(PATIENCE);
    let refused = worker.start(Scheduler::global()).expect_err("it lacks a right").to_string();
    assert!(refused.contains("`The roles`") && refused.contains("history"), "{refused}");
    owner.batch_execute(&format!("GRANT {of_history} TO {works}")).expect("granted");
    // A role that has not got the rights of a later version works without turns, and says so.
    owner
        .batch_execute(&format!("REVOKE ALL ON {name}.tickwheel_workers FROM {works}"))
        .expect("revoked");
    let ((tell, told), (complain, complaints)) = (mpsc::channel(), mpsc::channel());
    let worker = timers.worker().handle("mail", move |run| Ok(tell.send(run.key().to_owned())?));
    let worker = worker.on_error(move |error| _ = complain.send(error.to_string()));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    other.batch_execute("SELECT tickwheel_schedule('mail', '4')").expect("scheduled");
    while told.recv_timeout(PATIENCE).expect("it runs") != "4" {}
    assert!(worker.stop(PATIENCE));
    let complaints: Vec<_> = complaints.try_iter().collect();
    assert!(complaints.len() == 1 && complaints[0].contains("`The roles`"), "{complaints:?}");
    a_kind_without_rights_is_said_once(&timers, &mut owner, &mut other, [name, &works]);
    drop((worker, timers, other));
    let drops = [&migrates, &works, &schedules]
        .map(|role| format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role};"));
    owner.batch_execute(&drops.concat()).expect("they are gone");
}

/// One kind has limits, and the role no rights on their table. It is not claimed, which is said once and with its name, and others go on.
fn a_kind_without_rights_is_said_once(
    timers: &Timers,
    owner: &mut ::postgres::Client,
    other: &mut ::postgres::Client,
    [name, works]: [&String; 2],
) {
    owner
        .batch_execute(&format!("REVOKE ALL ON {name}.tickwheel_limits FROM {works}; GRANT ALL ON {name}.tickwheel_workers TO {works}"))
        .expect("revoked");
    let ((tell, told), (complain, complaints)) = (mpsc::channel(), mpsc::channel());
    let worker = timers.worker().handle("capped", |_| Ok(())).at_most_in_all(2);
    let worker = worker.handle("mail", move |run| Ok(tell.send(run.key().to_owned())?));
    let (recover, recovered) = mpsc::channel();
    let worker = worker.on_error(move |error| _ = complain.send(error.to_string()));
    let worker = worker.on_recovery(move |after| _ = recover.send(after));
    let worker = worker.start(Scheduler::global()).expect("it starts");
    other
        .batch_execute(
            "SELECT tickwheel_schedule('capped', '1'); SELECT tickwheel_schedule('mail', '5')",
        )
        .expect("scheduled");
    while told.recv_timeout(PATIENCE).expect("it runs") != "5" {}
    let first = complaints.recv_timeout(PATIENCE).expect("it is said");
    assert!(first.contains("\"capped\"") && first.contains("permission denied"), "{first}");
    std::thread::sleep(Duration::from_secs(1)); // in which it was said again and again
    assert!(complaints.try_recv().is_err() && recovered.try_recv().is_err());
    owner
        .batch_execute(&format!("GRANT ALL ON {name}.tickwheel_limits TO {works}"))
        .expect("granted");
    until("it is claimed again", || worker.stats().done == 2);
    assert!(worker.stop(PATIENCE));
}
