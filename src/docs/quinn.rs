//! A runtime for quinn 0.11 whose timers are those of a scheduler. Sockets and tasks stay with tokio.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tickwheel::Scheduler;
use tickwheel::time::Sleep;

/// `Endpoint::new(config, server, socket, Arc::new(WheelRuntime(scheduler)))`
#[derive(Clone, Debug)]
pub struct WheelRuntime(pub Scheduler);

impl Runtime for WheelRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(self.0.sleep_until(at)))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    /// Deadlines are instants of this clock, so the timers need the same one.
    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// quinn moves its timer with nearly every packet. Putting off a `Sleep` costs next to nothing.
#[derive(Debug)]
struct Timer(Sleep);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        Pin::new(&mut self.0).reset(at);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}
