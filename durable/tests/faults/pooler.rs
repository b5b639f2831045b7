//! `PgBouncer` in transaction mode before a server: each transaction may get another connection of the server's.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use super::common::until;
use super::server::Server;

/// Few, so that they are shared.
const CONNECTIONS: usize = 3;

pub(crate) struct Pooler {
    process: Child,
    folder: String,
}

impl Pooler {
    /// Starts it for one role.
    ///
    /// # Errors
    ///
    /// The program is not installed.
    pub(crate) fn before(server: &Server, role: &str) -> io::Result<Pooler> {
        let folder = server.socket_folder();
        let roles = folder.join("roles");
        fs::write(&roles, format!("\"{role}\" \"\"\n")).expect("written");
        let (_, name) = server.url().rsplit_once('/').expect("the name of a database");
        let settings = format!(
            "[databases]\npostgres = host={folder} port=5432 dbname={name}\n[pgbouncer]\n\
             unix_socket_dir = {folder}\nlisten_port = 6432\nauth_type = trust\nauth_file = {roles}\n\
             pool_mode = transaction\ndefault_pool_size = {CONNECTIONS}\n\
             ignore_startup_parameters = extra_float_digits, options\n",
            folder = folder.display(),
            roles = roles.display(),
        );
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, settings).expect("written");
        let mut command = server.command("pgbouncer");
        command.arg("-q").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.stderr(Stdio::null()).spawn()?;
        let socket = folder.join(".s.PGSQL.6432");
        let folder = folder.to_string_lossy().replace('/', "%2F");
        let pooler = Pooler { process, folder };
        until("it listens", || UnixStream::connect(&socket).is_ok());
        Ok(pooler)
    }

    /// Returns the address of the server through it.
    pub(crate) fn address_for(&self, role: &str) -> String {
        format!("postgres://{role}@{}:6432/postgres", self.folder)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
