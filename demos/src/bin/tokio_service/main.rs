//! What do the timeouts of a service on tokio cost, with tokio's timers and with these?
//!
//! ```text
//!   64 clients ──> proxy ──> HTTP server          all on one runtime of two workers, over loopback
//!   a timeout for     an idle timeout for each    a timeout for
//!   each request      direction, pushed further   each handler
//!                     by each packet
//! ```
//!
//! The service (`service.rs`) is compiled three times: with `tickwheel::time`, with `tokio::time`, and with a stand-in whose
//! timeouts do nothing. So the difference to the last is what timeouts cost. The rounds take turns, and the cheapest one of each counts: what else
//! a machine does only makes a round dearer.
//!
//! `cargo run --release -p tickwheel-demos --bin tokio_service`, or `-- ROUNDS`.

use std::error::Error;
use std::future::Future;
use std::io;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

mod with_tickwheel {
    use tickwheel::time;

    include!("service.rs");
}

mod with_tokio {
    use tokio::time;

    include!("service.rs");
}

mod without {
    use super::nothing as time;

    include!("service.rs");
}

/// Timeouts that do nothing, with the names of the others.
mod nothing {
    use std::convert::Infallible;
    use std::future::{Future, Pending, pending};
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    pub(crate) struct Sleep(Pending<()>);

    pub(crate) fn sleep(_: Duration) -> Sleep {
        Sleep(pending())
    }

    impl Sleep {
        #[expect(clippy::unused_self, reason = "as in the others")]
        pub(crate) fn reset(self: Pin<&mut Self>, _: Instant) {}
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            Pin::new(&mut self.get_mut().0).poll(context)
        }
    }

    pub(crate) struct Instant;

    impl Instant {
        pub(crate) fn now() -> Instant {
            Instant
        }
    }

    impl std::ops::Add<Duration> for Instant {
        type Output = Instant;

        fn add(self, _: Duration) -> Instant {
            self
        }
    }

    /// Never happens.
    #[derive(Debug)]
    pub(crate) struct Elapsed(Infallible);

    impl From<Elapsed> for std::io::Error {
        fn from(elapsed: Elapsed) -> std::io::Error {
            match elapsed.0 {}
        }
    }

    pub(crate) async fn timeout<F: Future>(_: Duration, future: F) -> Result<F::Output, Elapsed> {
        Ok(future.await)
    }
}

const WORKERS: usize = 2;
const CLIENTS: usize = 64;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;

/// What a round has shown.
#[derive(Clone, Copy)]
struct Round {
    requests_per_second: f64,
    cpu_per_request: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    println!(
        "{CLIENTS} clients, a proxy and a server on {WORKERS} workers, {rounds} rounds of {ROUND:?} each"
    );
    let mut kinds =
        [("no timeouts", Vec::new()), ("tickwheel::time", Vec::new()), ("tokio::time", Vec::new())];
    for round in 0..rounds {
        kinds[0].1.push(run(without::serve, without::proxy, without::client)?);
        kinds[1].1.push(run(with_tickwheel::serve, with_tickwheel::proxy, with_tickwheel::client)?);
        kinds[2].1.push(run(with_tokio::serve, with_tokio::proxy, with_tokio::client)?);
        print!("\r[{:.<rounds$}]", "#".repeat(round + 1));
        io::stdout().flush()?;
    }
    println!(
        "\n{:>17} {:>12} {:>16} {:>18}",
        "", "requests/s", "CPU of a request", "of it for timeouts"
    );
    let floor = cheapest(&kinds[0].1).cpu_per_request;
    for (name, rounds) in &kinds {
        let Round { requests_per_second, cpu_per_request } = cheapest(rounds);
        let micros = |time: f64| format!("{:.2} us", time * 1e6);
        let cost = cpu_per_request.as_secs_f64();
        let more = micros(cost - floor.as_secs_f64());
        println!("{name:>17} {requests_per_second:>12.0} {:>16} {more:>18}", micros(cost));
    }
    Ok(())
}

fn cheapest(rounds: &[Round]) -> Round {
    *rounds.iter().min_by_key(|round| round.cpu_per_request).expect("a round")
}

/// Runs the service for a round, on a runtime of its own.
fn run<S, P, C>(
    serve: impl FnOnce(TcpListener) -> S,
    proxy: impl FnOnce(TcpListener, SocketAddr) -> P,
    client: impl Fn(SocketAddr, Arc<AtomicBool>) -> C,
) -> Result<Round, Box<dyn Error>>
where
    S: Future<Output = io::Result<()>> + Send + 'static,
    P: Future<Output = io::Result<()>> + Send + 'static,
    C: Future<Output = io::Result<u64>> + Send + 'static,
{
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let (at_server, at_proxy) =
            (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
        let (server_address, proxy_address) = (at_server.local_addr()?, at_proxy.local_addr()?);
        tokio::spawn(serve(at_server));
        tokio::spawn(proxy(at_proxy, server_address));
        let stop = Arc::new(AtomicBool::new(false));
        let start = (Instant::now(), cpu_time());
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| tokio::spawn(client(proxy_address, Arc::clone(&stop)))).collect();
        tokio::time::sleep(ROUND).await;
        stop.store(true, Ordering::Relaxed);
        let mut answered = 0;
        for client in clients {
            answered += client.await??;
        }
        let (wall, cpu) = (start.0.elapsed(), cpu_time().saturating_sub(start.1));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let requests = answered as f64;
        let requests_per_second = requests / wall.as_secs_f64();
        Ok(Round { requests_per_second, cpu_per_request: cpu.div_f64(requests.max(1.0)) })
    })
}

/// Returns the processor time that this process has taken, or zero where the system does not tell.
#[cfg(unix)]
#[expect(unsafe_code, reason = "a call of the system that std does not have")]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } != 0;
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    if failed { Duration::ZERO } else { Duration::new(seconds, nanos) }
}

#[cfg(not(unix))]
fn cpu_time() -> Duration {
    Duration::ZERO
}
