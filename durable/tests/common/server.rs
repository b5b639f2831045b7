//! A PostgreSQL server for a test: the server that `DATABASE_URL` names, or a private one, started from the installed
//! programs. A private server has a folder of its own with its socket in it, and listens on no TCP port.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

/// The reason why there is no server.
pub(crate) type Reason = String;

#[derive(Clone)]
pub(crate) struct Server {
    url: String,
    /// Its `Drop` stops the server.
    private: Option<Arc<Private>>,
}

impl Server {
    /// # Errors
    ///
    /// The reason why no server could be started.
    pub(crate) fn find() -> Result<Server, Reason> {
        if let Ok(url) = env::var("DATABASE_URL") {
            return Ok(Server { url, private: None });
        }
        Server::private()
    }

    /// Starts a server that the caller alone uses, so the caller may do to it what it likes.
    ///
    /// # Errors
    ///
    /// The reason why no server could be started. It is one that `DATABASE_URL` names another server.
    pub(crate) fn private() -> Result<Server, Reason> {
        if env::var("DATABASE_URL").is_ok() {
            return Err("`DATABASE_URL` names a server that is not ours to stop".to_owned());
        }
        let programs = programs().ok_or("no PostgreSQL is installed")?;
        Ok(Server::of(Private::start(programs)?))
    }

    fn of(private: Private) -> Server {
        let folder = private.folder.to_string_lossy().replace('/', "%2F");
        let url = format!("postgres://postgres@{folder}/postgres");
        Server { url, private: Some(Arc::new(private)) }
    }

    /// Returns this private server by way of another database, in which vacuums, notices and sessions are nobody else's.
    pub(crate) fn by_way_of(&self, database: &str) -> Server {
        let (server, _) = self.url.rsplit_once('/').expect("the address of a private server");
        Server { url: format!("{server}/{database}"), private: self.private.clone() }
    }

    /// Makes a private server listen on a TCP port of this machine too, with TLS and a certificate that it has signed itself.
    /// Returns the port, and the path of the certificate.
    ///
    /// # Errors
    ///
    /// The reason why it has none. It is one that `openssl` is not installed.
    pub(crate) fn with_tls(&self) -> Result<(u16, PathBuf), Reason> {
        let private = self.private.as_ref().expect("a private server");
        let (key, certificate) =
            (private.data().join("server.key"), private.data().join("server.crt"));
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
        command.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
        command.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        command.current_dir(&private.folder);
        private.owner.become_in(&mut command);
        let output = command.output().map_err(|error| format!("openssl: {error}"))?;
        if !output.status.success() {
            return Err(format!("openssl: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(|error| format!("a port: {error}"))?.port();
        let settings = format!(
            "listen_addresses = 'localhost'\nport = {port}\nssl = on\nssl_key_file = '{}'\nssl_cert_file = '{}'\n",
            key.display(),
            certificate.display()
        );
        private.add(&settings).map_err(|error| format!("its settings: {error}"))?;
        private.run("pg_ctl", &["stop", "-w", "-m", "fast"])?;
        private.launch()?;
        Ok((port, certificate))
    }

    /// Starts a private server that has a folder on a disk of so many megabytes, which nobody else sees and which is gone with the
    /// server. Returns the folder.
    ///
    /// # Errors
    ///
    /// The reason why there is none. Only root can have one.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_a_small_disk(megabytes: u32) -> Result<(Server, PathBuf), Reason> {
        let server = Server::private()?;
        let private = server.private.as_ref().expect("a private server");
        let Owner::Other { user, group } = private.owner else {
            return Err("only root can mount a disk".to_owned());
        };
        let disk = private.folder.join("disk");
        fs::create_dir(&disk).map_err(|error| format!("{}: {error}", disk.display()))?;
        private.run("pg_ctl", &["stop", "-w", "-m", "fast"])?;
        let script = format!(
            "mount -t tmpfs -o size={megabytes}m,mode=700,uid={user},gid={group} disk {disk} &&
             exec setpriv --reuid={user} --regid={group} --clear-groups {programs}/pg_ctl start -w -D {data} -l {folder}/log",
            disk = disk.display(),
            programs = private.programs.display(),
            data = private.data().display(),
            folder = private.folder.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).current_dir(&private.folder);
        let output = command.output().map_err(|error| format!("unshare: {error}"))?;
        if !output.status.success() {
            return Err(format!("a disk: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok((server, disk))
    }

    /// Ends a private server as a crash would, and starts it again. It recovers from its log.
    pub(crate) fn crash(&self) {
        let private = self.private.as_ref().expect("a private server");
        private.run("pg_ctl", &["stop", "-w", "-m", "immediate"]).expect("it stops");
        private.launch().expect("it starts again");
    }

    /// Stops a private server, which ends all its connections, and starts it again.
    pub(crate) fn restart(&self) {
        let private = self.private.as_ref().expect("a private server");
        private.run("pg_ctl", &["stop", "-w", "-m", "fast"]).expect("it stops");
        private.launch().expect("it starts again");
    }

    /// Ends a private server as a crash would, for good.
    pub(crate) fn end(&self) {
        let private = self.private.as_ref().expect("a private server");
        private.run("pg_ctl", &["stop", "-w", "-m", "immediate"]).expect("it stops");
    }

    /// Starts a private server that follows this private one, by way of another folder of its socket.
    ///
    /// # Errors
    ///
    /// The reason why it could not be started.
    pub(crate) fn replica(&self, through: &Path) -> Result<Server, Reason> {
        let first = self.private.as_ref().expect("a private server");
        let folder = env::temp_dir().join(new_name("pg"));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let owner = Owner::of(&folder)?;
        let private = Private { programs: first.programs.clone(), owner, folder };
        let host = first.folder.to_string_lossy().into_owned();
        let user = ["--host", &host, "--username=postgres", "--no-sync", "--checkpoint=fast"];
        // A folder of links may have a part of the programs.
        let link = private.programs.join("initdb");
        let folder = fs::canonicalize(&link).ok().and_then(|file| Some(file.parent()?.to_owned()));
        let folder = folder.unwrap_or_else(|| private.programs.clone());
        private.run_from(&folder, "pg_basebackup", &user)?;
        private.configure().map_err(|error| format!("its settings: {error}"))?;
        let follows = format!(
            "primary_conninfo = 'host={} user=postgres'\nwal_retrieve_retry_interval = 100\n",
            through.display()
        );
        private.add(&follows).map_err(|error| format!("its settings: {error}"))?;
        fs::write(private.data().join("standby.signal"), "").map_err(|error| error.to_string())?;
        private.launch()?;
        Ok(Server::of(private))
    }

    /// Makes a replica a server of its own.
    pub(crate) fn promote(&self) {
        let private = self.private.as_ref().expect("a private server");
        private.run("pg_ctl", &["promote", "-w"]).expect("it is promoted");
    }

    /// Starts a private server again whose first process was killed, when the others have followed it.
    pub(crate) fn come_back(&self) {
        let private = self.private.as_ref().expect("a private server");
        let mut tries = 0;
        while let Err(reason) = private.launch() {
            tries += 1;
            assert!(tries < 100, "it does not start again: {reason}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    pub(crate) fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Returns the process of a private server from which all its others come.
    pub(crate) fn process(&self) -> u32 {
        let private = self.private.as_ref().expect("a private server");
        let file = fs::read_to_string(private.data().join("postmaster.pid")).expect("it runs");
        file.lines().next().and_then(|line| line.parse().ok()).expect("the number of a process")
    }

    /// Returns the folder of the socket of a private server.
    pub(crate) fn socket_folder(&self) -> &Path {
        &self.private.as_ref().expect("a private server").folder
    }

    /// Returns a command for a program that is to run as the user of a private server.
    pub(crate) fn command(&self, program: &str) -> Command {
        let private = self.private.as_ref().expect("a private server");
        let mut command = Command::new(program);
        command.current_dir(&private.folder);
        private.owner.become_in(&mut command);
        command
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address of one schema of this server.
    #[allow(dead_code, reason = "a bench makes databases instead")]
    pub(crate) fn url_of(&self, schema: &str) -> String {
        let url = &self.url;
        if !url.starts_with("postgres:") && !url.starts_with("postgresql:") {
            return format!("{url} options='-c search_path={schema}'");
        }
        let join = if url.contains('?') { '&' } else { '?' };
        format!("{url}{join}options=-c%20search_path%3D{schema}")
    }
}

/// Returns a name that nothing has yet. It has the time, because numbers of processes come again, and what a process had that
/// was killed is still there. It is short, because the path of a socket may have no more than a hundred characters.
pub(crate) fn new_name(of: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    format!("tickwheel_{of}_{}_{count}_{now:x}", std::process::id())
}

/// Returns the folder of `initdb`: one in the path, or the folder where Debian keeps the programs of a version.
fn programs() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = env::split_paths(&path).collect();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders.into_iter().find(|folder| {
        ["initdb", "pg_ctl"]
            .iter()
            .all(|name| folder.join(name).with_extension(env::consts::EXE_EXTENSION).is_file())
    })
}

/// A server process that ends when this value is dropped.
struct Private {
    programs: PathBuf,
    folder: PathBuf,
    owner: Owner,
}

impl Private {
    fn start(programs: PathBuf) -> Result<Private, Reason> {
        let folder = env::temp_dir().join(new_name("pg"));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        // From here on, the `Drop` of the value clears up.
        let server = Private { programs, owner: Owner::of(&folder)?, folder };
        server.run(
            "initdb",
            &["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"],
        )?;
        server.configure().map_err(|error| format!("its settings: {error}"))?;
        server.launch()?;
        Ok(server)
    }

    fn launch(&self) -> Result<Output, Reason> {
        let log = self.folder.join("log");
        self.run("pg_ctl", &["start", "-w", "-l", &log.to_string_lossy()])
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Options that spare the disk, because the data need not outlast the test.
    fn configure(&self) -> std::io::Result<()> {
        let socket = self.folder.to_string_lossy().replace('\'', "''");
        self.add(&format!(
            "listen_addresses = ''\nunix_socket_directories = '{socket}'\nfsync = off\nmax_prepared_transactions = 9\n"
        ))
    }

    fn add(&self, settings: &str) -> std::io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(self.data().join("postgresql.conf"))?;
        file.write_all(settings.as_bytes())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<Output, Reason> {
        self.run_from(&self.programs, program, arguments)
    }

    fn run_from(&self, folder: &Path, program: &str, arguments: &[&str]) -> Result<Output, Reason> {
        let mut command = Command::new(folder.join(program));
        command.arg("-D").arg(self.data()).args(arguments).current_dir(&self.folder);
        self.owner.become_in(&mut command);
        let output = command.output().map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            return Ok(output);
        }
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        Err(format!("{program}: {}{log}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        _ = self.run("pg_ctl", &["stop", "-w", "-m", "immediate"]);
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// The user that the server runs as. PostgreSQL refuses to run as root, so root starts it as the user `postgres`.
enum Owner {
    Myself,
    #[cfg(unix)]
    Other {
        user: u32,
        group: u32,
    },
}

impl Owner {
    /// Makes that user the owner of the folder.
    #[cfg(unix)]
    fn of(folder: &Path) -> Result<Owner, Reason> {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

        let problem = |error| format!("{}: {error}", folder.display());
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(problem)?;
        if fs::metadata(folder).map_err(problem)?.uid() != 0 {
            return Ok(Owner::Myself);
        }
        let (Some(user), Some(group)) = (id("-u"), id("-g")) else {
            return Err("PostgreSQL does not run as root, and there is no user postgres".to_owned());
        };
        chown(folder, Some(user), Some(group)).map_err(problem)?;
        Ok(Owner::Other { user, group })
    }

    #[cfg(not(unix))]
    fn of(_folder: &Path) -> Result<Owner, Reason> {
        Ok(Owner::Myself)
    }

    fn become_in(&self, command: &mut Command) {
        match self {
            Owner::Myself => {}
            #[cfg(unix)]
            Owner::Other { user, group } => {
                use std::os::unix::process::CommandExt;
                command.uid(*user).gid(*group);
            }
        }
    }
}

#[cfg(unix)]
fn id(which: &str) -> Option<u32> {
    let output = Command::new("id").args([which, "postgres"]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
