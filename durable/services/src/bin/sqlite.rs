use std::time::Duration;

use tickwheel_durable::{Existing, NewTimer, Table, Timers, sqlite};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let timers = Timers::open("sqlite:shop.db")?;
    let mut shop = rusqlite::Connection::open("shop.db")?;
    shop.execute_batch("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")?;
    let worker = timers.worker().handle_in_sqlite("cancel order", |run, tx| {
        // The work and the end of its timer are in one transaction, so it runs exactly once.
        tx.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?1", [run.key()])?;
        Ok(())
    });
    let worker = worker.start(tickwheel::Scheduler::global())?;
    let tx = shop.transaction()?; // the order and its timer, or neither
    tx.execute("INSERT INTO orders VALUES ('4711', 'unpaid')", [])?;
    let unpaid = NewTimer::new("cancel order", "4711", Duration::from_secs(1800));
    sqlite::within(&tx).schedule(&[unpaid], Existing::Replace)?;
    tx.commit()?;
    timers.tell("cancel order");
    let (tell, told) = std::sync::mpsc::channel();
    ctrlc::set_handler(move || _ = tell.send(()))?; // SIGTERM too: systemd, Docker, Kubernetes
    told.recv()?;
    worker.stop(Duration::from_secs(5)); // what has not started is others' at once
    Ok(())
}
