//! Where weir listens, and the TLS of the gRPC listener.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use weir_tls::server::ClientName;

use super::contradictions::ProblemList;
use super::group::{Entry, Group};
use super::setting::Preset::{Is, Unset};
use super::setting::{CONNECTION_AGE_MAX, Kind, ms};
use super::value::{CLIENT_NAMES_MAX, GRPC_LISTENERS_MAX};
use super::{Merged, Problem, value};

/// The longest path of a Unix socket, in bytes: the system's address has 108 with the byte that ends it.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The name of a listener without one in `listen.grpc`.
const GRPC_LISTENER: &str = "grpc";
/// The name of the listener of `/json`.
pub const HTTP_LISTENER: &str = "http";
/// The longest name of a listener, in bytes.
const LISTENER_NAME_BYTES_MAX: usize = 32;
/// Stands before an address without TLS.
const PLAIN: &str = "plain:";

/// The settings that have no effect without a certificate of the listener.
const TLS_CLIENTS: [&str; 2] = ["listen.tls.client_ca_file", "listen.tls.client_names"];

settings! {
    /// The addresses to listen on; port 0 lets the system choose.
    pub struct Listen {
        /// where gRPC is served: decisions, health, reflection; an address or unix:/path, or several as NAME=ADDRESS
        grpc: Vec<NamedEndpoint> = "listen.grpc", Kind::Endpoints, Is("0.0.0.0:8081"), grpc_listeners;
        /// the permissions of the Unix sockets of listen.grpc
        socket_mode: u32 = "listen.socket_mode", Kind::Permissions, Is("0660"), mode;
        /// TLS of the gRPC listener; cleartext if there is none.
        tls: Option<ListenTls>;
        /// the age at which weir asks the client of a gRPC connection for a new one, plus or minus 10 %; 0s: never
        max_connection_age: Duration = "listen.max_connection_age",
            Kind::duration(Duration::ZERO, CONNECTION_AGE_MAX), Is("0s");
        /// how long requests of such a connection may take after that; then weir closes it
        max_connection_age_grace: Duration = "listen.max_connection_age_grace",
            Kind::duration(ms(1), CONNECTION_AGE_MAX), Is("10s");
        /// where HTTP is served: /json, health, /metrics
        http: SocketAddr = "listen.http", Kind::Address, Is("0.0.0.0:8080");
        /// where the admin endpoints are served: they can reset limits, so keep this private
        admin: SocketAddr = "listen.admin", Kind::Address, Is("127.0.0.1:6070");
        /// where the metrics are served by themselves, besides the other listeners
        metrics: Option<SocketAddr> = "listen.metrics", Kind::Address, Unset;
    }
}

/// The address of a listener: an IP and a port, or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An IP and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// The IP and the port. None for a Unix socket.
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address of `listen.grpc`, with the name by which callers of this listener are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    pub name: String,
    /// Whether it has no TLS, even if `listen.tls` is set.
    pub is_plain: bool,
    pub endpoint: Endpoint,
}

impl fmt::Display for NamedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, is_plain, endpoint } = self;
        if name != GRPC_LISTENER {
            write!(f, "{name}=")?;
        }
        if *is_plain {
            f.write_str(PLAIN)?;
        }
        endpoint.fmt(f)
    }
}

settings! {
    /// TLS of the gRPC listener.
    pub struct ListenTls {
        /// the certificate of the gRPC listener, in PEM, with its intermediates; needs the key
        cert_file: PathBuf = "listen.tls.cert_file", Kind::File, Unset;
        /// the key of that certificate, in PEM
        key_file: PathBuf = "listen.tls.key_file", Kind::File, Unset;
        /// the authorities that must have signed a client's certificate, in PEM; none: clients need no certificate
        client_ca_file: Option<PathBuf> = "listen.tls.client_ca_file", Kind::File, Unset;
        /// names of clients: a certificate must have one of them; DNS names, IPs, URIs, separated by commas; none: any name
        client_names: Vec<ClientName> = "listen.tls.client_names", Kind::ClientNames, Unset, client_names;
    }
}

impl Group for Option<ListenTls> {
    const ENTRIES: &'static [Entry] = ListenTls::ENTRIES;

    fn read(from: &Merged) -> Result<Self, Problem> {
        // One without the other is reported as a contradiction.
        let has_both = from.text("listen.tls.cert_file").is_some() && from.text("listen.tls.key_file").is_some();
        has_both.then(|| ListenTls::read(from)).transpose()
    }
}

impl Listen {
    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, problems: &mut ProblemList<'_>) {
        let grpc = self.grpc.iter().filter_map(|listener| listener.endpoint.tcp());
        let mut listeners: Vec<_> = grpc.map(|address| ("listen.grpc", address)).collect();
        listeners.extend([("listen.http", self.http), ("listen.admin", self.admin)]);
        listeners.extend(self.metrics.map(|address| ("listen.metrics", address)));
        for (index, (name, address)) in listeners.iter().enumerate() {
            for (other, taken) in &listeners[..index] {
                if overlap(address, taken) {
                    let reason = format!("already taken by {other} = {taken}");
                    problems.add_with_value(name, Some(address.to_string()), reason);
                }
            }
        }
        problems.certificate("listen.tls.cert_file", "listen.tls.key_file");
        let [ca, names] = TLS_CLIENTS;
        if self.tls.is_some() {
            if problems.is_given(names) && !problems.is_given(ca) {
                problems.add(names, format!("has no effect without {ca}"));
            }
        } else if !problems.is_given("listen.tls.cert_file") && !problems.is_given("listen.tls.key_file") {
            problems.add_given(TLS_CLIENTS, "has no effect without listen.tls.cert_file");
        }
    }
}

/// One address, or `NAME=ADDRESS` separated by commas.
pub(super) fn grpc_listeners(text: &str) -> Result<Vec<NamedEndpoint>, String> {
    if named_address(text).is_none() {
        let (is_plain, endpoint) = address_of_listener(text)?;
        return Ok(vec![NamedEndpoint { name: GRPC_LISTENER.to_owned(), is_plain, endpoint }]);
    }
    let mut listeners: Vec<NamedEndpoint> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (name, address) = named_address(part).ok_or_else(|| format!("{part:?}: write NAME=ADDRESS"))?;
        if name == HTTP_LISTENER {
            return Err(format!("{HTTP_LISTENER} is the name of the listener of /json: choose another"));
        }
        let (is_plain, endpoint) = address_of_listener(address).map_err(|reason| format!("{name}: {reason}"))?;
        for other in &listeners {
            if other.name == name {
                return Err(format!("two listeners have the name {name}"));
            }
            if other.endpoint == endpoint && endpoint.tcp().is_none_or(|address| address.port() != 0) {
                return Err(format!("{} and {name} have the same address", other.name));
            }
        }
        listeners.push(NamedEndpoint { name: name.to_owned(), is_plain, endpoint });
    }
    if listeners.len() > GRPC_LISTENERS_MAX {
        return Err(format!("{} listeners: at most {GRPC_LISTENERS_MAX}", listeners.len()));
    }
    Ok(listeners)
}

/// The name and the rest of `NAME=ADDRESS`. None if it does not begin with a name.
fn named_address(text: &str) -> Option<(&str, &str)> {
    let (name, address) = text.split_once('=')?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    ((1..=LISTENER_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)).then_some((name, address))
}

/// Whether the address has no TLS, and the address.
fn address_of_listener(text: &str) -> Result<(bool, Endpoint), String> {
    let Some(address) = text.strip_prefix(PLAIN) else { return Ok((false, endpoint(text)?)) };
    let endpoint = endpoint(address)?;
    if endpoint.tcp().is_some_and(|address| !address.ip().is_loopback()) {
        return Err(format!("{endpoint} is neither a loopback address nor a Unix socket, so it cannot be {PLAIN}"));
    }
    Ok((true, endpoint))
}

/// `IP:PORT`, or `unix:/path`.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    let Some(path) = text.strip_prefix("unix:") else {
        return value::address(text).map(Endpoint::Tcp);
    };
    if path.is_empty() {
        return Err("has no path: write unix:/run/weir.sock".to_owned());
    }
    if path.len() > SOCKET_PATH_BYTES_MAX {
        return Err(format!("a path of {} bytes: at most {SOCKET_PATH_BYTES_MAX}", path.len()));
    }
    if path.contains('\0') {
        return Err("a path with a NUL byte".to_owned());
    }
    Ok(Endpoint::Unix(path.into()))
}

/// Permissions in octal digits.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if is_octal && mode <= 0o777 => Ok(mode),
        _ => Err("not permissions in octal digits, such as 0660".to_owned()),
    }
}

/// Names, separated by commas.
pub(super) fn client_names(text: &str) -> Result<Vec<ClientName>, String> {
    let mut names = Vec::new();
    for name in text.split(',').map(str::trim) {
        names.push(ClientName::parse(name).map_err(|reason| format!("{name:?}: {reason}"))?);
    }
    if names.len() > CLIENT_NAMES_MAX {
        return Err(format!("{} names: at most {CLIENT_NAMES_MAX}", names.len()));
    }
    Ok(names)
}

/// Origins of web pages, separated by commas, as browsers send them. Letter case is ignored.
pub(super) fn origins(text: &str) -> Result<Vec<String>, String> {
    let origins = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    (1..)
        .zip(origins)
        .map(|(number, origin)| {
            // Not quoted, because a URL can have a login.
            let not_one = || format!("number {number} is not an origin such as https://console.example");
            let url = value::url(origin).map_err(|_| not_one())?;
            let (scheme, authority) = (url.scheme_str().unwrap_or_default(), url.authority().ok_or_else(not_one)?);
            let origin = origin.to_ascii_lowercase();
            if origin != format!("{scheme}://{authority}").to_ascii_lowercase() {
                return Err(not_one());
            }
            let port = if scheme == "https" { ":443" } else { ":80" };
            if origin.ends_with(port) {
                return Err(format!("number {number}: leave {port} out, as browsers do"));
            }
            Ok(origin)
        })
        .collect()
}

/// Whether one listener prevents the other from binding. `[::]` includes IPv4.
fn overlap(a: &SocketAddr, b: &SocketAddr) -> bool {
    let takes = |all: &SocketAddr, one: &SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || takes(a, b) || takes(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_or_a_socket() {
        assert_eq!(endpoint("127.0.0.1:1"), Ok(Endpoint::Tcp("127.0.0.1:1".parse().unwrap())));
        assert_eq!(endpoint("unix:/run/a.sock"), Ok(Endpoint::Unix("/run/a.sock".into())));
        assert!(endpoint("unix:").is_err());
        assert!(endpoint(&format!("unix:/{}", "a".repeat(SOCKET_PATH_BYTES_MAX))).is_err());
        assert!(endpoint("/run/a.sock").is_err());
    }

    #[test]
    fn an_origin_is_what_browsers_send() {
        assert_eq!(origins(""), Ok(Vec::new()));
        assert_eq!(
            origins("https://A.example:8443, http://[::1]"),
            Ok(vec!["https://a.example:8443".to_owned(), "http://[::1]".to_owned()])
        );
        for bad in
            ["a.example", "https://a.example/", "https://a.example/x", "null", "https://u@a", "https://a,,https://b"]
        {
            assert!(origins(bad).unwrap_err().contains("not an origin"), "{bad}");
        }
        assert!(origins("https://a.example:443").unwrap_err().contains("leave :443 out"));
    }

    #[test]
    fn permissions_are_octal_digits() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("777"), Ok(0o777));
        for bad in ["", "0o660", "0888", "-660", "1777", "66", "+660"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn client_names_are_a_list() {
        let names = client_names("envoy.mesh, 10.0.0.1,spiffe://mesh/ns/a").unwrap();
        assert_eq!(
            names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["envoy.mesh", "10.0.0.1", "spiffe://mesh/ns/a"]
        );
        assert!(client_names("a,,b").is_err());
        assert!(client_names(&vec!["a"; CLIENT_NAMES_MAX + 1].join(",")).is_err());
    }
}
