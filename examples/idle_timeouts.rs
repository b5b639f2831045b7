//! How do I close connections that are idle? An echo server on the loopback interface has one timeout for each
//! connection, and pushes it further with each packet. Its clients talk for a while and fall silent one by one.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{Inline, Scheduler};

const MILLI: Duration = Duration::from_millis(1);

const CLIENTS: u32 = 40;
const IDLE: Duration = Duration::from_millis(250);

/// What the server has done.
#[derive(Default)]
struct Counts {
    packets: AtomicU64,
    closed: AtomicU64,
    early: AtomicU64,
    /// The greatest lateness of a close, in nanoseconds.
    latest: AtomicU64,
}

/// Echoes what comes, until the connection was idle for too long.
fn serve(
    mut stream: TcpStream,
    scheduler: &Scheduler,
    counts: &Arc<Counts>,
) -> Result<(), Box<dyn Error>> {
    let start = scheduler.now();
    // When the timeout was to come, as the last packet has said, in nanoseconds since the start.
    let due = Arc::new(AtomicU64::new(nanos(IDLE)));
    let timeout = {
        let (stream, clock) = (stream.try_clone()?, scheduler.clone());
        let (due, counts) = (Arc::clone(&due), Arc::clone(counts));
        scheduler.schedule_once(IDLE, move || {
            let (now, due) = (nanos(clock.now() - start), due.load(Ordering::Acquire));
            counts.early.fetch_add(u64::from(now < due), Ordering::Relaxed);
            counts.latest.fetch_max(now.saturating_sub(due), Ordering::Relaxed);
            counts.closed.fetch_add(1, Ordering::Relaxed);
            let _ = stream.shutdown(Shutdown::Both); // wakes the thread that reads
        })?
    };
    let mut packet = [0; 64];
    loop {
        let length = stream.read(&mut packet)?;
        let deadline = scheduler.now() + IDLE;
        // An exchange and two stores; the tick thread hears nothing of it. False: the timeout has come.
        if length == 0 || !timeout.reset_at(deadline) {
            break;
        }
        due.store(nanos(deadline - start), Ordering::Release);
        counts.packets.fetch_add(1, Ordering::Relaxed);
        stream.write_all(&packet[..length])?;
    }
    timeout.cancel(); // if the client has gone by itself
    Ok(())
}

/// Talks for a while, waits until it is closed, and returns how long it was silent.
fn talk(server: SocketAddr, number: u32) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let until = Instant::now() + 500 * MILLI + number * 50 * MILLI;
    let mut packet = [7; 64];
    while Instant::now() < until {
        stream.write_all(&packet)?;
        stream.read_exact(&mut packet)?;
        if number % 4 > 0 {
            thread::sleep(number % 4 * MILLI); // some of them talk without a break
        }
    }
    stream.write_all(&packet[..1])?;
    let last = Instant::now();
    stream.read_exact(&mut packet[..1])?;
    match stream.read(&mut packet) {
        Ok(0) => Ok(last.elapsed()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(last.elapsed()),
        answer => Err(format!("not closed, but {answer:?}").into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = Scheduler::builder().executor(Inline).build()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (server, counts) = (listener.local_addr()?, Arc::new(Counts::default()));
    println!("{CLIENTS} connections, each of which is closed when it was idle for {IDLE:?}");

    let (timers, ledger) = (scheduler.clone(), Arc::clone(&counts));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (timers, ledger) = (timers.clone(), Arc::clone(&ledger));
            thread::spawn(move || serve(stream, &timers, &ledger).unwrap_or_default());
        }
    });
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS).map(|n| thread::spawn(move || talk(server, n))).collect();
    let mut before = 0;
    while clients.iter().any(|client| !client.is_finished()) {
        thread::sleep(250 * MILLI);
        let (packets, closed) =
            (counts.packets.load(Ordering::Relaxed), counts.closed.load(Ordering::Relaxed));
        let bar = "#".repeat(closed as usize) + &".".repeat(CLIENTS as usize - closed as usize);
        let resets = (packets - before) * 4;
        println!(
            "{:>5} ms  {resets:>6} packets and resets a second  {bar} closed",
            start.elapsed().as_millis()
        );
        before = packets;
    }
    let mut silent = Duration::MAX;
    for client in clients {
        silent = silent.min(
            client
                .join()
                .map_err(|_| "a client has panicked")?
                .map_err(|error| error.to_string())?,
        );
    }

    let [early, latest, packets] =
        [&counts.early, &counts.latest, &counts.packets].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{packets} packets, as many resets; the tick thread woke up {} times",
        scheduler.stats().wakeups()
    );
    println!(
        "closed early: {early}; at the latest {:?} late, with a tick of 1 ms",
        Duration::from_nanos(latest)
    );
    println!("the shortest silence that a client has seen before it was closed: {silent:?}");
    if early > 0 || silent < IDLE || scheduler.pending() > 0 {
        return Err("a connection was closed early, or a timeout was left behind".into());
    }
    println!("none was closed early");
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
