//! Host and port of a server, as sentinels and cluster nodes return them.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    /// A name or an IP address.
    pub(crate) host: Box<str>,
    /// The port for clients.
    pub(crate) port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
