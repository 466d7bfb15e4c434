//! An address of Redis with its login and TLS, and how to open a connection to it: TCP, TLS or a Unix socket.
//!
//! Not here: which address of a name is used (tcp.rs), the login (credentials.rs), the commands on a connection
//! (connection.rs), the master among several servers (sentinel.rs), and how certificates and keys are read
//! (src/tls/lib.rs).

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use redis::{ConnectionAddr, IntoConnectionInfo};
use tokio::net::UnixStream;
use weir_tls::files::FileError;
use weir_tls::{Tls, TlsFiles};

use super::connection::Connection;
use super::credentials::Credentials;
pub use super::credentials::PASSWORD_FILE_BYTES_MAX;
use super::handshake::greet;
use super::meter::{Meter, Metered};
use crate::redis::base::dial_error::DialError;
use crate::redis::base::observer::RedisObserver;

/// An address to dial, with its login and TLS. `Display` and `Debug` hide user and password. Cheap to clone: clones
/// share the content of files.
#[derive(Clone)]
pub struct Endpoint {
    address: Address,
    access: Arc<Access>,
}

#[derive(Clone, PartialEq, Eq)]
enum Address {
    Tcp { host: Arc<str>, port: u16 },
    Unix(Arc<Path>),
}

#[derive(Clone)]
struct Access {
    credentials: Credentials,
    tls: Option<Arc<Tls>>,
}

impl Endpoint {
    /// Reads `redis://[user:password@]host[:port][/db]`, or with `rediss://` for TLS, or `redis+unix:///path` or
    /// `unix:///path` (with `?db=`, `?user=` and `?pass=`). User and password are percent-encoded. TLS trusts the usual
    /// public authorities, see [`Endpoint::with_tls`].
    ///
    /// # Errors
    ///
    /// When the URL has another form. The error never shows the URL, because it may contain a password.
    pub fn parse(url: &str) -> Result<Endpoint, EndpointError> {
        let refused = |reason: &str| Err(EndpointError::Url(reason.into()));
        // The parser of redis-rs reads TLS URLs only when built with its own TLS.
        let (plain, tls) = match url.split_once("://") {
            Some(("rediss", rest)) => (format!("redis://{rest}"), true),
            Some(("valkeys", rest)) => (format!("valkey://{rest}"), true),
            _ => (url.to_owned(), false),
        };
        if plain.contains('#') {
            // The parser would ignore everything after the `#`.
            return refused("an unencoded # in it");
        }
        // Only the fixed part of the crate's error is shown: the rest may quote the URL.
        let info = match plain.into_connection_info() {
            Ok(info) => info,
            Err(error) => {
                let text = error.to_string().to_ascii_lowercase();
                return refused(text.split(" - ").next().unwrap_or_default());
            }
        };
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, _) if host.contains(',') => return refused("several hosts"),
            ConnectionAddr::Tcp(host, port) => Address::Tcp { host: host.as_str().into(), port: *port },
            ConnectionAddr::Unix(path) => Address::Unix(path.as_path().into()),
            _ => return refused("an unknown kind of address"),
        };
        let access = Access {
            credentials: Credentials::of(info.redis_settings()),
            tls: tls.then(|| Arc::new(Tls::new(TlsFiles::default()))),
        };
        Ok(Endpoint { address, access: Arc::new(access) })
    }

    /// Another address with the same login, database and TLS.
    pub fn at(&self, host: &str, port: u16) -> Endpoint {
        Endpoint { address: Address::Tcp { host: host.into(), port }, access: self.access.clone() }
    }

    /// The host and port of a TCP address.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match &self.address {
            Address::Tcp { host, port } => Some((host, *port)),
            Address::Unix(_) => None,
        }
    }

    /// The same address with another login. Each given part replaces the URL's.
    pub fn with_login(mut self, username: Option<&str>, password: Option<&str>) -> Endpoint {
        Arc::make_mut(&mut self.access).credentials.replace(username, password);
        self
    }

    /// The same address, without a login and in database 0.
    pub fn without_login(mut self) -> Endpoint {
        Arc::make_mut(&mut self.access).credentials = Credentials::default();
        self
    }

    /// The same address with the password from a file, without its line end. Each dial reads the file: at most
    /// [`PASSWORD_FILE_BYTES_MAX`] bytes.
    pub fn with_password_file(mut self, path: &Path) -> Endpoint {
        Arc::make_mut(&mut self.access).credentials.read_password_from(path);
        self
    }

    /// The same address with these files for TLS. No effect if the URL does not use TLS.
    pub fn with_tls(mut self, files: TlsFiles) -> Endpoint {
        if self.access.tls.is_some() {
            Arc::make_mut(&mut self.access).tls = Some(Arc::new(Tls::new(files)));
        }
        self
    }

    /// The TLS of this address. None if the URL does not use TLS.
    pub fn tls(&self) -> Option<&Tls> {
        self.access.tls.as_deref()
    }

    /// Reads every file that a dial would read.
    ///
    /// # Errors
    ///
    /// With the first unusable file.
    pub fn check(&self) -> Result<(), EndpointError> {
        self.access.credentials.check()?;
        if let Some(tls) = &self.access.tls {
            tls.config(|_| ())?;
        }
        Ok(())
    }

    /// Opens a connection: dials the address, and completes the handshake. The caller sets the time limit.
    ///
    /// # Errors
    ///
    /// When there is no connection, with the reason for people. Never shows a password.
    pub(crate) async fn open(&self, observer: &Arc<dyn RedisObserver>) -> Result<Connection, DialError> {
        let login = self.access.credentials.login(observer).await?;
        let meter = Meter::default();
        let (host, port) = match &self.address {
            Address::Tcp { host, port } => (host, *port),
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                return greet(Metered::new(stream, &meter), meter, &login).await;
            }
        };
        let stream = weir_tls::tcp::connect(host, port).await?;
        let Some(tls) = &self.access.tls else {
            return greet(Metered::new(stream, &meter), meter, &login).await;
        };
        // The meter is below TLS: bytes that have not passed it have not left this process in any form.
        let refused = {
            let observer = observer.clone();
            move |error: &FileError| observer.file_refused(error)
        };
        let stream = tls.clone().handshake(host, Metered::new(stream, &meter), refused).await?;
        let renew_at = stream.renew_after().map(|after| Instant::now() + after);
        let mut connection = greet(stream, meter, &login).await?;
        connection.renew_at(renew_at);
        Ok(connection)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum EndpointError {
    /// The URL has an unknown form.
    #[error(
        "cannot use this redis url: {0} (known: redis://[user:password@]host[:port][/db], rediss:// for tls, \
         redis+unix:///path)"
    )]
    Url(Box<str>),
    #[error(transparent)]
    File(#[from] FileError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_shows_where_and_never_who() {
        let check = |url: &str, expected: &str| {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!(endpoint.to_string(), expected, "{url}");
            assert_eq!(format!("{endpoint:?}"), format!("Endpoint({expected})"));
        };
        check("redis://cache", "cache:6379");
        check("redis://:secret@127.0.0.1:7000/3", "127.0.0.1:7000");
        check("redis://weir:secret@cache:7000", "cache:7000");
        check("rediss://weir:secret@cache:7000", "cache:7000");
        check("redis://:secret@[::1]:7000", "[::1]:7000");
        check("redis+unix:///run/redis.sock", "/run/redis.sock");
        check("unix:///run/redis.sock?pass=secret", "/run/redis.sock");
    }

    async fn login(endpoint: &Endpoint) -> (Option<String>, Option<String>, i64) {
        let observer: Arc<dyn RedisObserver> = Arc::new(());
        let login = endpoint.access.credentials.login(&observer).await.unwrap();
        (login.username.map(String::from), login.password.as_deref().map(str::to_owned), login.database)
    }

    fn is(username: &str, password: &str, database: i64) -> (Option<String>, Option<String>, i64) {
        (Some(username.to_owned()), Some(password.to_owned()), database)
    }

    #[tokio::test]
    async fn a_login_of_its_own_replaces_the_one_in_the_url() {
        let endpoint = Endpoint::parse("redis://weir:secret@cache/3").unwrap();
        assert_eq!(login(&endpoint).await, is("weir", "secret", 3));
        let endpoint = endpoint.with_login(None, Some("other"));
        assert_eq!(login(&endpoint).await, is("weir", "other", 3));
        assert_eq!(login(&endpoint.clone().with_login(Some("ops"), None)).await, is("ops", "other", 3));
        assert_eq!(login(&endpoint.without_login()).await, (None, None, 0));
    }

    #[tokio::test]
    async fn another_place_keeps_login_database_and_tls() {
        let endpoint = Endpoint::parse("rediss://weir:secret@cache/3").unwrap();
        let other = endpoint.at("10.0.0.7", 7001);
        assert_eq!(other.to_string(), "10.0.0.7:7001");
        assert_eq!(login(&other).await, is("weir", "secret", 3));
        assert!(other.access.tls.is_some());
        assert!(Endpoint::parse("redis://cache").unwrap().with_tls(TlsFiles::default()).access.tls.is_none());
    }

    #[tokio::test]
    async fn a_password_file_is_read_again_each_time_and_the_last_good_one_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let endpoint = Endpoint::parse("redis://weir@cache").unwrap().with_password_file(&path);
        let text = endpoint.check().unwrap_err().to_string();
        assert_eq!(text, format!("{}: cannot be opened: No such file or directory (os error 2)", path.display()));
        for (written, expected) in [
            ("first", "first"),
            ("second\n", "second"),
            ("third\r\n", "third"),
            (" with blanks \n\n", " with blanks \n"),
            ("", " with blanks \n"),
            ("\n", " with blanks \n"),
        ] {
            std::fs::write(&path, written).unwrap();
            assert_eq!(login(&endpoint.at("cache", 1)).await, is("weir", expected, 0), "{written:?}");
        }
    }

    #[test]
    fn a_password_file_that_cannot_be_used_is_named_and_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let max = usize::try_from(PASSWORD_FILE_BYTES_MAX).unwrap();
        for (written, reason) in [
            (b"".to_vec(), "contains no password"),
            (b"\n".to_vec(), "contains no password"),
            (b"secret\xff".to_vec(), "not UTF-8"),
            (b"secret".repeat(max), "more than 4096 bytes"),
        ] {
            std::fs::write(&path, written).unwrap();
            let endpoint = Endpoint::parse("redis://cache").unwrap().with_password_file(&path);
            let text = endpoint.check().unwrap_err().to_string();
            assert_eq!(text, format!("{}: {reason}", path.display()));
        }
        std::fs::write(&path, vec![b'x'; max]).unwrap();
        Endpoint::parse("redis://cache").unwrap().with_password_file(&path).check().unwrap();
    }

    #[test]
    fn what_is_no_redis_url_is_refused_without_showing_it() {
        let check = |url: &str, expected: &str| {
            let error = Endpoint::parse(url).map(drop).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        };
        check("", "url: redis url did not parse (");
        check("cache:6379", "url: redis url did not parse (");
        check("http://:secret@cache", "url: redis url did not parse (");
        check("redis://:secret@", "url: redis url did not parse (");
        check("redis://:secret@cache/secret", "url: invalid database number (");
        check("redis://:secret@cache?protocol=secret", "url: invalid protocol version (");
        check("redis://:secret@cache,other", "url: several hosts (");
        check("rediss://:secret@cache/#insecure", "url: an unencoded # in it (");
        check("redis+unix://secret", "url: missing path (");
    }
}
