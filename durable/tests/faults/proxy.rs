//! A proxy between a worker and the server, which holds up what flows in one direction, slows it down, or cuts connections.
//! It may lead to another server later, as the address of a service does.
//!
//! A network whose packets are lost does the same: what was sent stays under way, and comes when the network is mended.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::server::{Server, new_name};

/// The name that PostgreSQL gives to its socket.
const SOCKET: &str = ".s.PGSQL.5432";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

pub(crate) struct Proxy {
    folder: PathBuf,
    /// The folder of the first server's socket, by which its address is known.
    server: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What flows this way is held up.
    held: Mutex<Option<Way>>,
    flows: Condvar,
    /// How long each piece takes, in both directions.
    delay: Mutex<Duration>,
    /// The folder of the socket to which new connections lead.
    leads_to: Mutex<PathBuf>,
    connections: Mutex<Vec<Connection>>,
    is_over: AtomicBool,
}

struct Connection {
    client: UnixStream,
    server: UnixStream,
    /// The server is not told that the client is gone.
    hides_end: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn before(server: &Server) -> Proxy {
        let folder = std::env::temp_dir().join(new_name("proxy"));
        fs::create_dir(&folder).expect("a new folder");
        let listener = UnixListener::bind(folder.join(SOCKET)).expect("it binds");
        let server = server.socket_folder().to_path_buf();
        let leads_to = Mutex::new(server.clone());
        fs::set_permissions(folder.join(SOCKET), fs::Permissions::from_mode(0o777))
            .expect("open to all");
        let shared = Arc::new(Shared { leads_to, ..Shared::default() });
        let proxy = Proxy { folder, server, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                // The server may be down. Then the client sees that its connection ends.
                let server = shared.leads_to.lock().expect("no panic").join(SOCKET);
                if let Ok(server) = UnixStream::connect(server) {
                    shared.connect(client, server);
                }
            }
        });
        proxy
    }

    /// Returns the address of the server as seen through this proxy.
    pub(crate) fn address_of(&self, address: &str) -> String {
        let encoded = |folder: &Path| folder.to_string_lossy().replace('/', "%2F");
        let through = address.replace(&encoded(&self.server), &encoded(&self.folder));
        assert_ne!(through, address, "it names the folder of the server's socket");
        through
    }

    /// Holds up what flows this way, until `flow`.
    pub(crate) fn hold(&self, way: Way) {
        *self.shared.held.lock().expect("no panic") = Some(way);
    }

    /// Delivers what was held up.
    pub(crate) fn flow(&self) {
        *self.shared.held.lock().expect("no panic") = None;
        self.shared.flows.notify_all();
    }

    /// Lets each piece of what flows take so long from now on.
    pub(crate) fn slow_down(&self, delay: Duration) {
        *self.shared.delay.lock().expect("no panic") = delay;
    }

    /// Leads to another server from now on. Connections to the one before stay.
    pub(crate) fn lead_to(&self, server: &Server) {
        *self.shared.leads_to.lock().expect("no panic") = server.socket_folder().to_path_buf();
    }

    /// Returns the folder of its socket.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends all connections on the client's side. The server does not hear of it before `tell_server`.
    pub(crate) fn cut_clients(&self) {
        let mut connections = self.shared.connections.lock().expect("no panic");
        for connection in &mut *connections {
            connection.hides_end.store(true, Ordering::Relaxed);
            _ = connection.client.shutdown(Shutdown::Both);
        }
    }

    /// Ends the connections whose clients were cut on the server's side too.
    pub(crate) fn tell_server(&self) {
        let connections = self.shared.connections.lock().expect("no panic");
        for connection in connections.iter().filter(|one| one.hides_end.load(Ordering::Relaxed)) {
            _ = connection.server.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.flow();
        self.cut_clients();
        self.tell_server();
        _ = UnixStream::connect(self.folder.join(SOCKET)); // wakes the thread that accepts
        _ = fs::remove_dir_all(&self.folder);
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: UnixStream, server: UnixStream) {
        let again = |end: &UnixStream| end.try_clone().expect("another handle");
        let (up, down) = ((again(&client), again(&server)), (again(&server), again(&client)));
        let hides_end = Arc::new(AtomicBool::new(false));
        for (way, (from, to)) in [(Way::ToServer, up), (Way::ToClient, down)] {
            let (shared, hides_end) = (Arc::clone(self), Arc::clone(&hides_end));
            thread::spawn(move || {
                shared.pump(way, from, &to);
                if way == Way::ToClient || !hides_end.load(Ordering::Relaxed) {
                    _ = to.shutdown(Shutdown::Both);
                }
            });
        }
        let mut connections = self.connections.lock().expect("no panic");
        connections.retain(|one| Arc::strong_count(&one.hides_end) > 1); // those whose threads have not both ended
        connections.push(Connection { client, server, hides_end });
    }

    /// Copies until one of the ends is gone.
    fn pump(&self, way: Way, mut from: UnixStream, mut to: &UnixStream) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut held = self.held.lock().expect("no panic");
            while *held == Some(way) {
                held = self.flows.wait(held).expect("no panic");
            }
            drop(held);
            let delay = *self.delay.lock().expect("no panic");
            if !delay.is_zero() {
                thread::sleep(delay); // a slow network is the subject
            }
            if to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    }
}
