//! What a run holds under limits over all processes, and what becomes of a run whose hold has ended before it: its worker was halted,
//! or had no database, for longer than a lease.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, SystemTime};

use tickwheel::Scheduler;
use tickwheel_durable::{NewTimer, Run, Store, Worker, WorkerBuilder, postgres};

use super::common::{PATIENCE, until};
use super::databases::Database;
use super::{HOUR, NOW, SOON};

/// The lease is so long that nothing is extended while a test lasts, as if the worker were halted. While its only thread is busy, it
/// claims nothing.
fn halted(database: &Database<'_>) -> WorkerBuilder {
    database.open().worker().lease(HOUR).threads(1)
}

fn in_transaction(
    worker: WorkerBuilder,
    database: &Database<'_>,
    handle: impl Fn(&Run<'_>) -> tickwheel_durable::HandlerResult + Send + Sync + 'static,
) -> WorkerBuilder {
    if database.is_sqlite() {
        worker.handle_in_sqlite("serial", move |run, _| handle(run))
    } else {
        worker.handle_in_postgres("serial", move |run, _| handle(run))
    }
}

fn start(worker: WorkerBuilder) -> Worker {
    worker.serial_by('/').start(&Scheduler::new()).expect("it starts")
}

/// Another worker of the kind. It tells of each run, which lasts until it is told to go on.
fn another(database: &Database<'_>) -> (Worker, mpsc::Receiver<String>, mpsc::Sender<()>) {
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let gone = Mutex::new(gone);
    let worker = database.open().worker().handle("serial", move |run| {
        tell.send(run.key().to_owned())?;
        _ = gone.lock().expect("no panic").recv();
        Ok(())
    });
    (start(worker.rules(|_, _| Ok(None))), told, go)
}

/// The leases of all runs, and their holds, end now.
fn end_leases(database: &Database<'_>) {
    database.execute(if database.is_sqlite() {
        "UPDATE tickwheel_holds SET until = 1;
        UPDATE tickwheel_timers SET held_until = 1000 * unixepoch() WHERE state = 'running'"
    } else {
        "UPDATE tickwheel_holds SET until = now();
        UPDATE tickwheel_timers SET held_until = now() WHERE state = 'running'"
    });
}

/// Its worker is halted between the claim and the transaction. The next one of its group runs meanwhile.
pub(crate) fn a_run_whose_hold_has_ended_gets_no_transaction(database: &Database<'_>) {
    let (asked, is_asked) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let (tell, told) = mpsc::channel();
    let worker = in_transaction(halted(database), database, move |run| {
        Ok(tell.send((run.key().to_owned(), run.attempt()))?)
    });
    // A rule is asked before the transaction begins.
    let first = start(worker.rules(move |_, _| {
        _ = asked.send(());
        _ = gone.lock().expect("no panic").recv();
        Ok(None)
    }));
    let timers = database.open();
    let series = NewTimer::new("serial", "a/1", NOW).rule("once").max_attempts(1);
    timers.schedule(&series).expect("scheduled");
    is_asked.recv_timeout(PATIENCE).expect("it has begun");
    let next = NewTimer::new("serial", "a/2", SystemTime::now() - HOUR);
    timers.schedule(&next).expect("scheduled");
    end_leases(database);
    let (second, seconds, go_on) = another(database);
    assert_eq!(seconds.recv_timeout(PATIENCE).expect("it runs"), "a/2");
    drop(go);
    until("it is lost", || first.stats().lost + first.stats().done > 0);
    assert!(told.try_recv().is_err(), "two of a group at once");
    // The start was not counted, or it would be dead.
    drop(go_on);
    until("both are done", || first.stats().done + second.stats().done == 2);
    assert!(first.stop(PATIENCE) && second.stop(PATIENCE));
}

/// Its worker is halted in the transaction, which holds the timer, and so has to hold what the limits count.
pub(crate) fn a_transaction_keeps_its_hold(database: &Database<'_>) {
    let Database::Schema { .. } = database else { return }; // nobody else can claim meanwhile
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let first = start(in_transaction(halted(database), database, move |_| {
        tell.send(())?;
        _ = gone.lock().expect("no panic").recv();
        Ok(())
    }));
    let timers = database.open();
    timers.schedule(&NewTimer::new("serial", "a/1", NOW)).expect("scheduled");
    told.recv_timeout(PATIENCE).expect("it runs");
    // A dispatcher that extends it does not wait for the transaction either, or other leases would end.
    let store = postgres::Postgres::new(&database.url()).expect("an address");
    let mut connection = store.connect().expect("it connects");
    let fence = database.number("SELECT fence FROM tickwheel_holds");
    assert_eq!(connection.hold(&[fence], NOW).expect("nothing is awaited"), [fence]);
    let next = NewTimer::new("serial", "a/2", SystemTime::now() - HOUR);
    timers.schedule(&next).expect("scheduled");
    let (second, seconds, go_on) = another(database);
    until("it has looked at all that is due, again and again", || {
        seconds.try_recv().inspect(|key| panic!("{key}: two of a group at once")).ok();
        second.stats().claims >= 5
    });
    drop((go, go_on));
    until("both are done", || first.stats().done + second.stats().done == 2);
    assert!(first.stop(PATIENCE) && second.stop(PATIENCE));
}

/// The transaction in which a handler completes its run is its own. For the limits it is like that of a worker.
pub(crate) fn what_completes_a_run_needs_and_keeps_its_hold(database: &Database<'_>) {
    let Database::Schema { .. } = database else { return }; // it has no completions
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let (gone, url) = (Mutex::new(gone), database.url());
    let first = start(halted(database).handle("serial", move |run| {
        let go_on = || _ = gone.lock().expect("no panic").recv();
        let mut client = super::client(&url);
        tell.send(String::new())?;
        go_on();
        let mut transaction = client.transaction()?;
        let completed = transaction.batch_execute(&run.completion()?);
        let code = completed.as_ref().err().and_then(|error| error.code());
        tell.send(code.map_or("", |code| code.code()).to_owned())?;
        go_on();
        completed?;
        Ok(transaction.commit()?)
    }));
    let timers = database.open();
    let told = || told.recv_timeout(PATIENCE).expect("it goes on");
    // It is halted before that. The next one of its group runs meanwhile.
    timers.schedule(&NewTimer::new("serial", "a/1", NOW).max_attempts(1)).expect("scheduled");
    told();
    let next = |key| NewTimer::new("serial", key, SystemTime::now() - HOUR);
    timers.schedule(&next("a/2")).expect("scheduled");
    end_leases(database);
    let (second, seconds, go_on_there) = another(database);
    assert_eq!(seconds.recv_timeout(PATIENCE).expect("it runs"), "a/2");
    go.send(()).expect("it waits");
    assert_eq!(told(), "TW001", "two of a group at once");
    go.send(()).expect("it waits");
    go_on_there.send(()).expect("it waits");
    until("both have ended", || first.stats().failed == 1 && second.stats().done == 1);
    assert!(second.stop(PATIENCE));
    // It is halted behind that, and its transaction is not committed yet.
    timers.schedule(&NewTimer::new("serial", "b/1", NOW)).expect("scheduled");
    told();
    go.send(()).expect("it waits");
    assert_eq!(told(), "", "it is complete");
    database.execute("UPDATE tickwheel_holds SET until = now()");
    timers.schedule(&next("b/2")).expect("scheduled");
    let (second, seconds, go_on_there) = another(database);
    until("it has looked at all that is due, again and again", || {
        seconds.try_recv().inspect(|key| panic!("{key}: two of a group at once")).ok();
        second.stats().claims >= 5
    });
    drop((go, go_on_there));
    until("both are done", || first.stats().done + second.stats().done == 2);
    assert!(first.stop(PATIENCE) && second.stop(PATIENCE));
}

/// A worker whose hold has ended does not keep the timer either: what has a lease counts for the limits.
pub(crate) fn a_run_whose_hold_has_ended_loses_its_lease(database: &Database<'_>) {
    let timers = database.open();
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let (gone, calls) = (Mutex::new(gone), AtomicUsize::new(0));
    let worker = timers.worker().lease(Duration::from_secs(1)).poll_every(SOON).handle(
        "serial",
        move |_| {
            tell.send(())?;
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                _ = gone.lock().expect("no panic").recv();
            }
            Ok(())
        },
    );
    let worker = start(worker);
    timers.schedule(&NewTimer::new("serial", "a/1", NOW)).expect("scheduled");
    told.recv_timeout(PATIENCE).expect("it runs");
    database.execute("DELETE FROM tickwheel_holds");
    told.recv_timeout(PATIENCE).expect("it is taken over");
    drop(go);
    until("one is done, and one is lost", || worker.stats().done == 1 && worker.stats().lost > 0);
    assert!(worker.stop(PATIENCE));
}
