//! The store behind hyper, on a runtime of tokio with one thread.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::select;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use tickwheel::Scheduler;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::store::{Refusal, Store};

const HELP: &str = "\
POST /login/NAME, /touch/ID, /logout/ID; GET /sessions, /sessions/ID";

/// The time until the next try when no connection can be accepted, for example because too many files are open.
const RETRY: Duration = Duration::from_millis(100);

/// Answers until `stop` is ready, and then closes the store.
pub(crate) fn serve(
    listener: std::net::TcpListener,
    store: &Arc<Store>,
    stop: impl Future,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        select(pin!(accept(listener, store)), pin!(stop)).await;
        // Inside of the runtime, so that requests that wait for the last write get their answer.
        store.close().await;
        Ok(())
    })
}

async fn accept(listener: TcpListener, store: &Arc<Store>) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let store = Arc::clone(store);
                let answer = service_fn(move |request| answer(request, Arc::clone(&store)));
                let connection = http1::Builder::new().serve_connection(Io(stream), answer);
                // A client that breaks off is no concern of the server.
                tokio::spawn(async move { drop(connection.await) });
            }
            Err(error) => {
                eprintln!("no connection: {error}");
                Scheduler::global().sleep(RETRY).await;
            }
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    store: Arc<Store>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path: Vec<_> = request.uri().path().split('/').skip(1).collect();
    let answer = match (request.method(), &path[..]) {
        (&Method::POST, ["login", user]) => store.login(user).await.map(|id| id.to_string()),
        (&Method::POST, ["touch", id]) => store.touch(id).await.map(|()| "touched".to_owned()),
        (&Method::POST, ["logout", id]) => store.logout(id).await.map(|()| "closed".to_owned()),
        (&Method::GET, ["sessions"]) => Ok(format!(r#"{{"pending":{}}}"#, store.pending())),
        (&Method::GET, ["sessions", id]) => store.line_of(id),
        _ => return Ok(response(StatusCode::NOT_FOUND, HELP)),
    };
    Ok(match answer {
        Ok(text) => response(StatusCode::OK, &text),
        Err(Refusal::BadName) => {
            response(StatusCode::BAD_REQUEST, "a name has 1 to 32 letters and digits")
        }
        Err(Refusal::Unknown) => response(StatusCode::NOT_FOUND, "there is no such session"),
        Err(Refusal::NotWritten) => response(
            StatusCode::INTERNAL_SERVER_ERROR,
            "it is done, but a kill would undo it: the file cannot be written",
        ),
        Err(Refusal::Closed) => response(StatusCode::SERVICE_UNAVAILABLE, "the server closes"),
    })
}

fn response(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response
}

/// Adapts a stream of tokio to the traits of hyper.
struct Io(TcpStream);

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let room = into.remaining().min(bytes.len());
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer))?;
        into.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
