//! A client as small as can be: one request on each connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a request such as `POST /login/ann`. Returns the status and the text of the answer.
pub(crate) fn send(server: SocketAddr, request: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // In one piece, because the server may answer and close after the first one.
    let head = format!("{request} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parts = answer.split_once("\r\n\r\n").and_then(|(head, text)| {
        Some((head.split(' ').nth(1)?.parse().ok()?, text.trim_end().to_owned()))
    });
    parts.ok_or_else(|| io::Error::other(format!("no answer to {request}: {answer:?}")))
}
