//! The address, the topology and the login of each Redis, and contradictions between these settings.
//!
//! Not here: timeouts and sizes, which both Redis share (lib.rs).

use std::path::PathBuf;

use super::contradictions::ProblemList;
use super::group::{Entry, Group};
use super::setting::Preset::{Is, Unset};
use super::setting::{Kind, SYSTEM_STORE};
use super::value::{NAME_BYTES_MAX, RedisUrl, Secret};
use super::{Merged, Problem, Redis};

/// The address and the login of one Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// The hosts, or the socket. The fields below replace credentials in it.
    pub url: RedisUrl,
    /// The role of the hosts.
    pub topology: Topology,
    /// The ACL user.
    pub username: Option<Secret>,
    /// The password. It conflicts with a password file.
    pub password: Option<Secret>,
    /// The file of the password. It may change.
    pub password_file: Option<PathBuf>,
    /// The master and the login at its sentinels, if `topology` is `sentinel`.
    pub sentinel: Option<Sentinel>,
}

choice! {
    /// The values of `redis.topology`.
    pub enum Topology {
        /// One server.
        Single = "single",
        /// The master that sentinels name.
        Sentinel = "sentinel",
        /// A Redis Cluster.
        Cluster = "cluster",
        /// One address in front of a cluster.
        Proxy = "proxy",
    }
}

/// The name of the master, and the login at the sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// The name of the master.
    pub master: String,
    /// The ACL user.
    pub username: Option<Secret>,
    /// The password. It conflicts with a password file.
    pub password: Option<Secret>,
    /// The file of the password. It may change.
    pub password_file: Option<PathBuf>,
}

settings! {
    /// TLS to Redis, for URLs with TLS. Without a `ca_file`, the system's authorities are trusted.
    #[derive(Default)]
    pub struct RedisTls {
        /// the authorities to trust, in PEM, in place of those of the system
        ca_file: Option<PathBuf> = "redis.tls.ca_file", Kind::File, Unset;
        /// the certificate to show to Redis, in PEM, with its intermediates; needs the key
        cert_file: Option<PathBuf> = "redis.tls.cert_file", Kind::File, Unset;
        /// the key of that certificate, in PEM
        key_file: Option<PathBuf> = "redis.tls.key_file", Kind::File, Unset;
        /// the name that the certificate of Redis must have, in place of the host
        server_name: Option<String> = "redis.tls.server_name", Kind::ServerName, Unset;
        /// when the system's authorities are trusted: without redis.tls.ca_file, or always
        system_store_always: bool = "redis.tls.system_store",
            Kind::Choice(SYSTEM_STORE), Is("fallback"), |text| Ok(text == "always");
        /// whether the certificate of Redis may have any name
        skip_hostname_verification: bool = "redis.tls.skip_hostname_verification", Kind::Switch, Is("off");
    }
}

/// The names of the settings of one Redis.
struct Names {
    url: &'static str,
    topology: &'static str,
    login: LoginNames,
    master: &'static str,
    sentinel: LoginNames,
}

struct LoginNames {
    username: &'static str,
    password: &'static str,
    password_file: &'static str,
}

macro_rules! login_names {
    ($group:literal, $below:literal) => {
        LoginNames {
            username: concat!($group, $below, ".username"),
            password: concat!($group, $below, ".password"),
            password_file: concat!($group, $below, ".password_file"),
        }
    };
}

macro_rules! names {
    ($group:literal) => {
        Names {
            url: concat!($group, ".url"),
            topology: concat!($group, ".topology"),
            login: login_names!($group, ""),
            master: concat!($group, ".sentinel.master"),
            sentinel: login_names!($group, ".sentinel"),
        }
    };
}

const SERVER: Names = names!("redis");
const PER_SECOND: Names = names!("redis.per_second");

const TLS: [&str; 4] = ["redis.tls.ca_file", "redis.tls.cert_file", "redis.tls.key_file", "redis.tls.server_name"];
/// The settings of TLS with a default.
const TRUST: &str = "redis.tls.system_store";
const SKIP_HOSTNAME: &str = "redis.tls.skip_hostname_verification";

impl Names {
    /// The names that have no effect without sentinels.
    const fn of_sentinels(&self) -> [&'static str; 4] {
        [self.master, self.sentinel.username, self.sentinel.password, self.sentinel.password_file]
    }

    /// The names that have no effect without a URL.
    fn around_url(&self) -> impl Iterator<Item = &'static str> {
        let login = [self.topology, self.login.username, self.login.password, self.login.password_file];
        login.into_iter().chain(self.of_sentinels())
    }
}

/// The first Redis.
impl Group for RedisServer {
    const ENTRIES: &'static [Entry] = entries! {
        /// the Redis to use: redis://host:port/db, rediss:// for TLS, redis+unix:///path; several hosts separated by commas
        "redis.url", Kind::RedisUrl, Is("redis://127.0.0.1:6379");
        /// what the hosts of redis.url are: the server, its sentinels, nodes of a cluster to begin with, or a proxy in front of one
        "redis.topology", Topology::KIND, Is("single");
        /// the ACL user, in place of one in the URL; needs a password
        "redis.username", Kind::Secret, Unset;
        /// the password, in place of one in the URL
        "redis.password", Kind::Secret, Unset;
        /// a file that holds the password, read again for every new connection
        "redis.password_file", Kind::File, Unset;
        /// the name of the master at the sentinels
        "redis.sentinel.master", Kind::Name { bytes_max: NAME_BYTES_MAX }, Unset;
        /// the ACL user at the sentinels; needs a password
        "redis.sentinel.username", Kind::Secret, Unset;
        /// the password at the sentinels, which do not get that of Redis
        "redis.sentinel.password", Kind::Secret, Unset;
        /// a file that holds it, read again for every new connection
        "redis.sentinel.password_file", Kind::File, Unset;
    };

    fn read(from: &Merged) -> Result<Self, Problem> {
        Self::named(from, &SERVER, from.read(SERVER.url)?)
    }
}

/// The Redis for limits per second, if there is one.
impl Group for Option<RedisServer> {
    const ENTRIES: &'static [Entry] = entries! {
        /// a second Redis, for limits per second; all of them stay on the first without it
        "redis.per_second.url", Kind::RedisUrl, Unset;
        /// what the hosts of its URL are
        "redis.per_second.topology", Topology::KIND, Is("single");
        /// the ACL user there
        "redis.per_second.username", Kind::Secret, Unset;
        /// the password there
        "redis.per_second.password", Kind::Secret, Unset;
        /// a file that holds it, read again for every new connection
        "redis.per_second.password_file", Kind::File, Unset;
        /// the name of the master at its sentinels
        "redis.per_second.sentinel.master", Kind::Name { bytes_max: NAME_BYTES_MAX }, Unset;
        /// the ACL user at its sentinels
        "redis.per_second.sentinel.username", Kind::Secret, Unset;
        /// the password at its sentinels
        "redis.per_second.sentinel.password", Kind::Secret, Unset;
        /// a file that holds it, read again for every new connection
        "redis.per_second.sentinel.password_file", Kind::File, Unset;
    };

    fn read(from: &Merged) -> Result<Self, Problem> {
        let url: Option<RedisUrl> = from.read(PER_SECOND.url)?;
        url.map(|url| RedisServer::named(from, &PER_SECOND, url)).transpose()
    }
}

impl RedisServer {
    fn named(from: &Merged, names: &Names, url: RedisUrl) -> Result<Self, Problem> {
        let topology = from.read(names.topology)?;
        let sentinel = match topology {
            Topology::Sentinel => Some(Sentinel {
                // A missing name is reported as a contradiction.
                master: from.read::<Option<_>>(names.master)?.unwrap_or_default(),
                username: from.read(names.sentinel.username)?,
                password: from.read(names.sentinel.password)?,
                password_file: from.read(names.sentinel.password_file)?,
            }),
            Topology::Single | Topology::Cluster | Topology::Proxy => None,
        };
        Ok(Self {
            url,
            topology,
            username: from.read(names.login.username)?,
            password: from.read(names.login.password)?,
            password_file: from.read(names.login.password_file)?,
            sentinel,
        })
    }

    fn contradictions(&self, names: &Names, problems: &mut ProblemList<'_>) {
        let hosts = self.url.places(0).len();
        match self.topology {
            Topology::Proxy if hosts > 1 => problems.add(names.url, "a proxy has one host".to_owned()),
            Topology::Single if hosts > 1 => {
                let reason = format!("several hosts: set {} to sentinel or cluster", names.topology);
                problems.add(names.url, reason);
            }
            Topology::Sentinel | Topology::Cluster if hosts == 0 => {
                let reason = format!("a socket, but {} = {} needs hosts", names.topology, self.topology.name());
                problems.add(names.url, reason);
            }
            Topology::Cluster if self.url.database() != 0 => {
                problems.add(names.url, "a cluster has no database but 0".to_owned());
            }
            Topology::Single | Topology::Sentinel | Topology::Cluster | Topology::Proxy => {}
        }
        let has_password = self.url.has_password() || self.password.is_some() || self.password_file.is_some();
        login(problems, &names.login, self.username.is_some(), has_password);
        match &self.sentinel {
            Some(sentinel) => {
                if sentinel.master.is_empty() {
                    let reason = format!("needs the name of the master: set {} too", names.master);
                    problems.add_with_value(names.topology, Some("sentinel".to_owned()), reason);
                }
                let has_password = sentinel.password.is_some() || sentinel.password_file.is_some();
                login(problems, &names.sentinel, sentinel.username.is_some(), has_password);
            }
            None => {
                let reason = format!("only for {} = sentinel, which is {}", names.topology, self.topology.name());
                problems.add_given(names.of_sentinels(), &reason);
            }
        }
    }
}

impl Redis {
    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, problems: &mut ProblemList<'_>) {
        self.server.contradictions(&SERVER, problems);
        match &self.per_second {
            Some(server) => server.contradictions(&PER_SECOND, problems),
            None => {
                let reason = format!("has no effect without {}", PER_SECOND.url);
                problems.add_given(PER_SECOND.around_url(), &reason);
            }
        }
        let [_, cert_file, key_file, _] = TLS;
        problems.certificate(cert_file, key_file);
        let tls = self.server.url.is_tls() || self.per_second.as_ref().is_some_and(|server| server.url.is_tls());
        if self.tls.skip_hostname_verification && self.tls.server_name.is_some() {
            let reason = "redis.tls.server_name is set too: remove one of them".to_owned();
            problems.add(SKIP_HOSTNAME, reason);
        }
        if !tls {
            let names = TLS.into_iter().chain([TRUST, SKIP_HOSTNAME]);
            problems.add_given(names, "has no effect without a URL that begins with rediss://");
        }
    }
}

/// Reports a user without a password, and two passwords.
fn login(problems: &mut ProblemList<'_>, names: &LoginNames, has_username: bool, has_password: bool) {
    let LoginNames { username, password, password_file } = names;
    if has_username && !has_password {
        problems.add(username, format!("a user without a password: set {password} or {password_file} too"));
    }
    if problems.is_given(password) && problems.is_given(password_file) {
        problems.add(password_file, format!("{password} is set too: remove one of them"));
    }
}
