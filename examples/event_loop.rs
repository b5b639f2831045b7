//! How do I use timers in an event loop of my own? The driver has no thread. It tells the loop when to come back, and
//! the loop waits for its socket until then.
//!
//! A server on 127.0.0.1 answers datagrams, and forgets a client that has been silent for 300 ms. Everything except the
//! client happens on one thread, so no waker is needed. A loop into which other threads schedule would set one with
//! `Driver::wake_with`.

use std::collections::HashMap;
use std::error::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Cancellable, Scheduler, SystemClock};

const SILENCE: Duration = Duration::from_millis(300);

fn main() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let client = talk(socket.local_addr()?);

    let (scheduler, driver) = Scheduler::builder().clock(SystemClock).build_driven()?;
    let (forget, forgotten) = mpsc::channel::<SocketAddr>();
    let mut clients: HashMap<SocketAddr, Cancellable> = HashMap::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    scheduler.schedule_once(Duration::from_secs(2), move || over.store(true, Ordering::Relaxed))?;

    let mut datagram = [0; 64];
    loop {
        // Tasks that are due run here. The answer says when to come back.
        let come_back = driver.turn();
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        for silent in forgotten.try_iter() {
            clients.remove(&silent);
            println!(
                "{:>4} ms  silent, forgotten; {} clients",
                start.elapsed().as_millis(),
                clients.len()
            );
        }
        // Then wait for the socket until that time (some systems round the timeout up).
        let left = come_back.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            continue; // a task is due already, and a socket takes no timeout of zero
        }
        socket.set_read_timeout(left)?;
        let (len, from) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        socket.send_to(&datagram[..len], from)?;
        println!(
            "{:>4} ms  answered {:?}",
            start.elapsed().as_millis(),
            String::from_utf8_lossy(&datagram[..len])
        );
        let forget = forget.clone();
        let silence = scheduler.schedule_once(SILENCE, move || {
            let _ = forget.send(from); // an error means that the loop has ended
        })?;
        if let Some(before) = clients.insert(from, silence) {
            before.cancel(); // the client has sent something in time
        }
    }
    println!("{:>4} ms  two seconds are over", start.elapsed().as_millis());
    client.join().expect("the client does not panic")?;
    Ok(())
}

/// Sends six datagrams within a second, and then none.
fn talk(server: SocketAddr) -> thread::JoinHandle<std::io::Result<()>> {
    thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        for word in ["are", "you", "there", "?", "good", "bye"] {
            socket.send_to(word.as_bytes(), server)?;
            thread::sleep(Duration::from_millis(150));
        }
        Ok(())
    })
}
