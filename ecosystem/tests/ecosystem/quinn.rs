//! quinn's timers on a scheduler, used as quinn's connections use them: moved with each packet, polled, moved again.
//!
//! They are driven through quinn's traits. A connection would need TLS, which takes longer to build than all of this.

use std::future::poll_fn;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, Runtime};
use tickwheel::Scheduler;
use tickwheel::future::block_on;
use tickwheel_ecosystem::quinn::WheelRuntime;

const SECOND: Duration = Duration::from_secs(1);

async fn expires(timer: &mut Pin<Box<dyn AsyncTimer>>, polls: &mut usize) {
    poll_fn(|context| {
        *polls += 1;
        timer.as_mut().poll(context)
    })
    .await;
}

#[test]
fn a_timer_that_each_packet_moves_expires_when_none_comes() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good settings");
    let runtime: Arc<dyn Runtime> = Arc::new(WheelRuntime(scheduler.clone()));
    assert_eq!(runtime.now(), scheduler.now());
    let mut timer = runtime.new_timer(runtime.now() + SECOND * 30);
    let mut context = Context::from_waker(Waker::noop());
    for _packet in 0..100 {
        assert!(timer.as_mut().poll(&mut context).is_pending());
        driver.advance(SECOND);
        timer.as_mut().reset(runtime.now() + SECOND * 30);
    }
    let (before, mut polls) = (scheduler.now(), 0);
    driver.block_on(expires(&mut timer, &mut polls)).expect("it ends");
    assert_eq!(scheduler.now() - before, SECOND * 30);
    assert!(format!("{timer:?}").contains("is_elapsed: true"));
    // After it has expired, a reset is all that it needs.
    timer.as_mut().reset(runtime.now() + SECOND);
    assert!(timer.as_mut().poll(&mut context).is_pending());
    driver.advance(SECOND);
    assert_eq!(timer.as_mut().poll(&mut context), Poll::Ready(()));
}

/// In real time, because a virtual clock moves its timers with them.
#[test]
fn a_timer_that_each_packet_puts_off_is_one_timer() {
    let scheduler = Scheduler::new();
    let runtime = WheelRuntime(scheduler.clone());
    let mut timer = runtime.new_timer(runtime.now() + SECOND * 3600);
    let mut context = Context::from_waker(Waker::noop());
    for _packet in 0..100 {
        assert!(timer.as_mut().poll(&mut context).is_pending());
        timer.as_mut().reset(runtime.now() + SECOND * 3600);
    }
    assert_eq!(scheduler.stats().scheduled(), 1);
}

/// A connection polls its timer whenever it expires, and then moves it. A timer that is over at once would keep it
/// busy.
#[test]
fn a_closed_scheduler_keeps_no_connection_busy() {
    const STEP: Duration = Duration::from_millis(10);
    let scheduler = Scheduler::new();
    let runtime = WheelRuntime(scheduler.clone());
    let mut timer = runtime.new_timer(runtime.now() + STEP);
    drop(scheduler.close().expect("in time"));
    let (start, mut polls) = (Instant::now(), 0);
    block_on(async {
        for _ in 0..5 {
            timer.as_mut().reset(runtime.now() + STEP);
            expires(&mut timer, &mut polls).await;
        }
    });
    assert!(start.elapsed() >= STEP * 5 && polls <= 15, "{polls} polls in {:?}", start.elapsed());
}

#[test]
fn sockets_and_tasks_are_those_of_tokio() {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("tokio");
    let (runtime, (tell, told)) = (WheelRuntime(Scheduler::new()), mpsc::channel());
    tokio.block_on(async {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_nonblocking(true).expect("a socket");
        let address = socket.local_addr().expect("an address");
        let wrapped = runtime.wrap_udp_socket(socket).expect("tokio takes it");
        assert_eq!(wrapped.local_addr().expect("an address"), address);
        runtime.spawn(Box::pin(async move { tell.send(7).expect("awaited") }));
        tokio::task::yield_now().await;
    });
    assert_eq!(told.try_recv(), Ok(7));
}
