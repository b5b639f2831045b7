//! The client of hyper-util, whose pool closes idle connections by a timer that is a scheduler: open, closed and full.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::Response;
use hyper::body::Bytes;
use hyper::rt::{Sleep, Timer};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tickwheel::Scheduler;
use tokio::net::TcpListener;

/// The shortest time after which the pool looks.
const IDLE: Duration = Duration::from_millis(90);

/// A timer that counts the polls of its sleeps.
#[derive(Clone)]
struct Counting(Scheduler, Arc<AtomicUsize>);

struct Counted(Pin<Box<dyn Sleep>>, Arc<AtomicUsize>);

impl Future for Counted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.as_mut().poll(context)
    }
}

impl Sleep for Counted {}

impl Timer for Counting {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(Counted(Timer::sleep(&self.0, duration), Arc::clone(&self.1)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Counted(Timer::sleep_until(&self.0, deadline), Arc::clone(&self.1)))
    }

    fn now(&self) -> Instant {
        Timer::now(&self.0)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        let counted = sleep.as_mut().downcast_mut_pin::<Counted>().expect("one of these");
        self.0.reset(&mut counted.get_mut().0, deadline);
    }
}

/// Makes a request, and waits until the pool has closed the connection behind it. Returns how long that took, and how
/// often the pool's sleeps were polled.
fn closes_an_idle_connection(scheduler: &Scheduler) -> (Duration, usize) {
    let timer = Counting(scheduler.clone(), Arc::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let idle = runtime.expect("tokio").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let answer = hyper::service::service_fn(|_| async {
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            });
            // It ends when the client closes the connection.
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            served.expect("the client leaves in good order");
        });
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new())
            .pool_timer(timer.clone())
            .pool_idle_timeout(IDLE)
            .build_http();
        let address = format!("http://{address}/").parse().expect("good");
        let response = client.get(address).await.expect("an answer");
        response.into_body().collect().await.expect("an empty body");
        let start = Instant::now();
        let closed = tokio::time::timeout(Duration::from_secs(60), server).await;
        closed.expect("the pool does not hang").expect("no panic");
        start.elapsed()
    });
    (idle, timer.1.load(Ordering::Relaxed))
}

fn check(scheduler: &Scheduler) {
    let (idle, polls) = closes_an_idle_connection(scheduler);
    assert!(idle >= IDLE / 2, "the pool has not waited: {idle:?}");
    // Two polls for each time that it looks, which it does every 90 ms, and a few for other wake-ups of its task.
    let most = 10 + 4 * idle.as_millis() / IDLE.as_millis();
    assert!(polls as u128 <= most, "{polls} polls in {idle:?}");
}

#[test]
fn on_an_open_scheduler() {
    check(&Scheduler::new());
}

#[test]
fn on_a_closed_scheduler_the_pool_neither_spins_nor_hangs() {
    let scheduler = Scheduler::new();
    drop(scheduler.close().expect("in time"));
    check(&scheduler);
}

#[test]
fn on_a_full_scheduler_the_pool_neither_spins_nor_hangs() {
    let scheduler = Scheduler::builder().max_pending(1).build().expect("good settings");
    let _held = scheduler.schedule_once(Duration::from_secs(3600), || ()).expect("the first");
    check(&scheduler);
}
