use sqlx::{AssertSqlSafe, Executor, PgPool, query};
use tickwheel_durable::{AsyncTimers, HandlerResult, Run};

async fn cancel(run: Run<'static>, shop: PgPool) -> HandlerResult {
    let mut tx = shop.begin().await?; // the work and the end of its timer, or neither: exactly once
    tx.execute(query("UPDATE orders SET state='cancelled' WHERE id=$1").bind(run.key())).await?;
    tx.execute(AssertSqlSafe(run.completion()?)).await?;
    Ok(tx.commit().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?; // postgres://user@host/shop
    let (shop, timers) = (PgPool::connect(&url).await?, AsyncTimers::open(&url).await?);
    let (runtime, pool) = (tokio::runtime::Handle::current(), shop.clone());
    let worker = timers.worker().spawn_with(move |run| drop(runtime.spawn(run)));
    let worker = worker.handle_async("cancel order", move |run| cancel(run, pool.clone()));
    let worker = worker.start(tickwheel::Scheduler::global())?;
    let mut tx = shop.begin().await?; // the order and its timer, or neither
    tx.execute("INSERT INTO orders VALUES ('4711', 'unpaid')").await?;
    tx.execute("SELECT tickwheel_schedule('cancel order', '4711', after => '30 minutes')").await?;
    tx.commit().await?;
    let mut told = tokio::signal::unix::signal(15.into())?; // SIGTERM: systemd, Docker, Kubernetes
    tokio::select! { _ = tokio::signal::ctrl_c() => {} _ = told.recv() => {} }
    worker.stop(std::time::Duration::from_secs(5)); // what has not started is others' at once
    Ok(())
}
