// An HTTP server, a proxy before it, and clients, with a timeout wherever something may hang. This file is compiled once for
// each `time`, which the module around it names: the import is the only difference.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A client gives a request up after this time.
const REQUEST: Duration = Duration::from_secs(1);
/// A handler has this time for an answer.
const HANDLER: Duration = Duration::from_secs(5);
/// The proxy closes a direction in which nothing has passed for this time.
const IDLE: Duration = Duration::from_secs(30);
/// The proxy waits for this time for a side that takes nothing.
const WRITE: Duration = Duration::from_secs(10);

/// Answers each request with its path.
pub(super) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let answer = |request: Request<Incoming>| async move {
            time::timeout(HANDLER, handle(request)).await.map_err(io::Error::from)
        };
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(socket), service_fn(answer));
        tokio::spawn(connection);
    }
}

async fn handle(request: Request<Incoming>) -> Response<Full<Bytes>> {
    // Stands for a look-up elsewhere, which is not ready at once.
    tokio::task::yield_now().await;
    Response::new(Full::from(request.uri().path().to_owned()))
}

/// Passes each connection on to the server.
pub(super) async fn proxy(listener: TcpListener, server: SocketAddr) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut server = TcpStream::connect(server).await?;
            let mut client = client;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
            tokio::try_join!(copy(from_client, to_server), copy(from_server, to_client))?;
            io::Result::Ok(())
        });
    }
}

/// Copies one direction, until it ends or has been idle for too long. Each packet pushes that time further.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let idle = time::sleep(IDLE);
    tokio::pin!(idle);
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            read = from.read(&mut buffer) => {
                let packet = &buffer[..read?];
                if packet.is_empty() {
                    return to.shutdown().await;
                }
                time::timeout(WRITE, to.write_all(packet)).await??;
                idle.as_mut().reset(time::Instant::now() + IDLE);
            }
            () = &mut idle => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Sends one request after the other until it is told to stop. Returns how many were answered.
pub(super) async fn client(server: SocketAddr, stop: Arc<AtomicBool>) -> io::Result<u64> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    tokio::spawn(connection);
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let ask = async {
            let request = Request::get("/answer").body(Empty::<Bytes>::new()).expect("a good path");
            sender.send_request(request).await?.into_body().collect().await
        };
        let body = time::timeout(REQUEST, ask).await?.map_err(io::Error::other)?;
        assert_eq!(body.to_bytes(), "/answer");
        answered += 1;
    }
    Ok(answered)
}
