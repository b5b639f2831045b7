//! The address of a server: what `postgres` knows of it, and what is this crate's: the pooler, our settings, and what is
//! verified of a TLS certificate.

use std::str::FromStr;
use std::time::Duration;

use postgres::Config;
use postgres::config::{Host, SslMode};

use super::PATIENCE;
use crate::error::{Error, Result, with_causes};

/// How our own connections are set, unless each transaction is (PG-4).
const SETTINGS: &str =
    "-c lock_timeout=10s -c jit=off -c default_transaction_isolation=read\\ committed";

/// How long the making of a connection may take for each host, unless the address says so with `connect_timeout`.
const CONNECTING: Duration = Duration::from_secs(10);

pub(super) struct Address {
    /// Hosts, ports and the database, for errors.
    pub(super) name: String,
    pub(super) config: Config,
    /// For the whole of an attempt to connect.
    pub(super) timeout: Duration,
    /// The same, for the other client.
    #[cfg(feature = "tokio-postgres")]
    pub(super) tokio: tokio_postgres::Config,
    pub(super) is_pooled: bool,
    /// The schema of the tables.
    pub(super) schema: Option<String>,
    pub(super) verify: Verify,
}

/// What is verified of a certificate, with libpq's meanings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verify {
    /// What follows `sslmode=verify-`: `ca` or `full`.
    mode: Option<String>,
    root: Option<String>,
}

/// Both clients have the same settings, and a type of their own for them.
macro_rules! configured {
    ($config:ty, $address:ident, $mode:ident, $is_pooled:ident) => {{
        let mut config = <$config>::from_str(&$address)
            .map_err(|error| Error::Address(format!("{} is no address", with_causes(&error))))?;
        if $mode.is_some() {
            config.ssl_mode(SslMode::Require);
        }
        if config.get_application_name().is_none() {
            config.application_name("tickwheel");
        }
        let timeout = config.get_connect_timeout().copied().unwrap_or(CONNECTING);
        // The half of it, so that a name whose first address is dead comes to its second one.
        config.connect_timeout(timeout / 2);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(PATIENCE).keepalives_idle(PATIENCE);
        }
        if !$is_pooled {
            // What the user sets comes last, and counts.
            let options = [SETTINGS, config.get_options().unwrap_or_default()].join(" ");
            config.options(&options);
        }
        let hosts = u32::try_from(config.get_hosts().len().max(1)).unwrap_or(u32::MAX);
        (config, timeout.saturating_mul(hosts))
    }};
}

impl Address {
    /// # Errors
    ///
    /// [`Error::Address`] if this is no address.
    pub(super) fn parse(address: &str) -> Result<Address> {
        let (address, is_pooled) = taken(address, "pgbouncer", |value| value == "true");
        let (address, schema) = taken(&address, "schema", |_| true);
        let (address, root) = taken(&address, "sslrootcert", |_| true);
        let is_verified = |value: &str| ["verify-ca", "verify-full"].contains(&value);
        let (address, mode) = taken(&address, "sslmode", is_verified);
        let is_pooled = is_pooled.is_some();
        let (config, timeout) = configured!(Config, address, mode, is_pooled);
        #[cfg(feature = "tokio-postgres")]
        let (tokio, _) = configured!(tokio_postgres::Config, address, mode, is_pooled);
        let mode = mode.map(|mode| mode.trim_start_matches("verify-").to_owned());
        Ok(Address {
            name: name_of(&config),
            config,
            timeout,
            #[cfg(feature = "tokio-postgres")]
            tokio,
            is_pooled,
            schema,
            verify: Verify { mode, root },
        })
    }
}

fn name_of(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(number, host)| {
        let host = match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(folder) => folder.display().to_string(),
        };
        let port = ports.get(number).or(ports.first()).map(|port| format!(":{port}"));
        host + &port.unwrap_or_default()
    });
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{}/{database}", hosts.collect::<Vec<_>>().join(","))
}

/// Returns the address without a parameter that has such a value, and the value.
fn taken(address: &str, name: &str, is_ours: impl Fn(&str) -> bool) -> (String, Option<String>) {
    let Some((before, parameters)) = address.split_once('?') else {
        return (address.to_owned(), None);
    };
    let mut found = None;
    let mut others = Vec::new();
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some((key, value)) if key == name && is_ours(value) => found = Some(decoded(value)),
            _ => others.push(parameter),
        }
    }
    let join = if others.is_empty() { "" } else { "?" };
    (format!("{before}{join}{}", others.join("&")), found)
}

/// Returns a value of a URL without its percent signs.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(feature = "native-tls")]
impl Verify {
    /// # Errors
    ///
    /// [`Error::Address`] if the root cannot be read, or the system has no TLS.
    pub(super) fn connector(&self) -> Result<postgres_native_tls::MakeTlsConnector> {
        let no = |error: &(dyn std::error::Error + 'static)| {
            Error::Address(format!("TLS: {}", with_causes(error)))
        };
        let mut builder = native_tls::TlsConnector::builder();
        if let Some(root) = &self.root {
            let pem = std::fs::read(root)
                .map_err(|error| Error::Address(format!("the `sslrootcert` {root:?}: {error}")))?;
            let root = native_tls::Certificate::from_pem(&pem).map_err(|error| no(&error))?;
            builder.add_root_certificate(root).disable_built_in_roots(true);
        }
        // As with libpq, a root is there to be used, also without `verify-ca`.
        let is_verified = self.mode.is_some() || self.root.is_some();
        let is_host_verified = self.mode.as_deref() == Some("full");
        builder.danger_accept_invalid_certs(!is_verified);
        builder.danger_accept_invalid_hostnames(!is_host_verified);
        let connector = builder.build().map_err(|error| no(&error))?;
        Ok(postgres_native_tls::MakeTlsConnector::new(connector))
    }
}

#[cfg(not(feature = "native-tls"))]
impl Verify {
    /// # Errors
    ///
    /// [`Error::Address`] if something is to be verified.
    pub(super) fn none(&self) -> Result<postgres::NoTls> {
        if *self == Verify::default() {
            return Ok(postgres::NoTls);
        }
        Err(Error::Address(
            "`sslrootcert` and `sslmode=verify-full` need the feature `native-tls`, or \
             `Postgres::with_tls`"
                .to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_taken_out_of_an_address() {
        let ours = "postgres://me@host/shop?sslmode=verify-full&a=b&sslrootcert=%2Fetc%2Froot%zz.pem&pgbouncer=true";
        let (left, root) = taken(ours, "sslrootcert", |_| true);
        assert_eq!(left, "postgres://me@host/shop?sslmode=verify-full&a=b&pgbouncer=true");
        assert_eq!(root.as_deref(), Some("/etc/root%zz.pem"));
        let address = Address::parse("postgres://me@host/shop?sslmode=verify-full&pgbouncer=true");
        let address = address.expect("an address");
        assert!(address.is_pooled && address.config.get_options().is_none());
        assert_eq!(address.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(address.name, "host:5432/shop");
        let secret = Address::parse("postgres://me:secret@a:5433,b:5434/shop").expect("an address");
        assert_eq!(secret.name, "a:5433,b:5434/shop");
        assert_eq!(address.verify.mode.as_deref(), Some("full"));
        let plain = Address::parse("postgres://me@host/shop?sslmode=require").expect("an address");
        assert_eq!((plain.verify, plain.is_pooled), (Verify::default(), false));
        assert_eq!(plain.config.get_application_name(), Some("tickwheel"));
        assert!(Address::parse("postgres://me@host/shop?sslmode=perhaps").is_err());
        assert_eq!((plain.timeout, secret.timeout), (CONNECTING, CONNECTING * 2));
        let hasty = Address::parse("postgres://me@host/shop?connect_timeout=2");
        assert_eq!(hasty.expect("an address").timeout, Duration::from_secs(2));
    }
}
