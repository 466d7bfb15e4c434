//! The address, the topology and the login of a Redis: settings that the first Redis has and the second one
//! has again, and contradictions between them.
//!
//! Not in here: how long, how many and how large, which are the same for both (settings.rs).

use std::path::PathBuf;

use super::contradictions::ProblemList;
use super::value::{RedisUrl, Secret};
use super::{Merged, Problem, Redis};

/// The address and the login of one Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// The hosts, or the socket; credentials in it are replaced by the fields below where those are set.
    pub url: RedisUrl,
    /// What the hosts are.
    pub topology: Topology,
    /// The ACL user.
    pub username: Option<Secret>,
    /// The password. Not together with a file.
    pub password: Option<Secret>,
    /// The file that holds the password at any time.
    pub password_file: Option<PathBuf>,
    /// What its sentinels need: given if, and only if, `topology` is `sentinel`.
    pub sentinel: Option<Sentinel>,
}

/// The values of `redis.topology`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// The master that sentinels name.
    Sentinel,
    /// A Redis Cluster.
    Cluster,
}

impl Topology {
    const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

/// The name of the master, and the login at the sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// The name of the master.
    pub master: String,
    /// The ACL user.
    pub username: Option<Secret>,
    /// The password. Not together with a file.
    pub password: Option<Secret>,
    /// The file that holds the password at any time.
    pub password_file: Option<PathBuf>,
}

/// TLS to Redis, for the URLs that ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// The authorities to trust, in place of the public ones.
    pub ca_file: Option<PathBuf>,
    /// Our certificate. Not without the key.
    pub cert_file: Option<PathBuf>,
    /// Its key. Not without the certificate.
    pub key_file: Option<PathBuf>,
    /// The name to find in the server's certificate, in place of the host.
    pub server_name: Option<String>,
    /// Whether the system's authorities are trusted beside those of `ca_file`. They always are without one.
    pub system_store_always: bool,
    /// Whether the server's certificate may have any name.
    pub skip_hostname_verification: bool,
}

/// What the settings of one Redis are called.
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
const SYSTEM_STORE: &str = "redis.tls.system_store";
const SKIP_HOSTNAME: &str = "redis.tls.skip_hostname_verification";

impl Names {
    /// Those that mean nothing without sentinels.
    const fn of_sentinels(&self) -> [&'static str; 4] {
        [self.master, self.sentinel.username, self.sentinel.password, self.sentinel.password_file]
    }

    /// Those that mean nothing without a URL.
    fn around_url(&self) -> impl Iterator<Item = &'static str> {
        let login = [self.topology, self.login.username, self.login.password, self.login.password_file];
        login.into_iter().chain(self.of_sentinels())
    }
}

impl RedisServer {
    /// The Redis for everything.
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        Self::named(from, &SERVER, from.value(SERVER.url, str::parse)?)
    }

    /// The Redis for limits per second, if there is one.
    pub(super) fn read_per_second(from: &Merged) -> Result<Option<Self>, Problem> {
        from.given(PER_SECOND.url, str::parse)?.map(|url| Self::named(from, &PER_SECOND, url)).transpose()
    }

    fn named(from: &Merged, names: &Names, url: RedisUrl) -> Result<Self, Problem> {
        let topology = from.value(names.topology, |text| match text {
            "single" => Ok(Topology::Single),
            "sentinel" => Ok(Topology::Sentinel),
            "cluster" => Ok(Topology::Cluster),
            _ => Err("no such topology".to_owned()),
        })?;
        let sentinel = match topology {
            Topology::Sentinel => Some(Sentinel {
                // Where it is not given, that is among the contradictions.
                master: from.optional(names.master).unwrap_or_default(),
                username: secret(from, names.sentinel.username),
                password: secret(from, names.sentinel.password),
                password_file: from.path(names.sentinel.password_file),
            }),
            Topology::Single | Topology::Cluster => None,
        };
        Ok(Self {
            url,
            topology,
            username: secret(from, names.login.username),
            password: secret(from, names.login.password),
            password_file: from.path(names.login.password_file),
            sentinel,
        })
    }

    fn contradictions(&self, names: &Names, problems: &mut ProblemList<'_>) {
        let hosts = self.url.places(0).len();
        let url = Some(self.url.to_string());
        match self.topology {
            Topology::Single if hosts > 1 => {
                let reason = format!("several hosts: set {} to sentinel or cluster", names.topology);
                problems.add_with_value(names.url, url, reason);
            }
            Topology::Sentinel | Topology::Cluster if hosts == 0 => {
                let reason = format!("a socket, but {} = {} needs hosts", names.topology, self.topology.name());
                problems.add_with_value(names.url, url, reason);
            }
            Topology::Cluster if self.url.database() != 0 => {
                problems.add_with_value(names.url, url, "a cluster has no database but 0".to_owned());
            }
            Topology::Single | Topology::Sentinel | Topology::Cluster => {}
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

impl RedisTls {
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        let [ca_file, cert_file, key_file, server_name] = TLS;
        Ok(Self {
            ca_file: from.path(ca_file),
            cert_file: from.path(cert_file),
            key_file: from.path(key_file),
            server_name: from.optional(server_name),
            system_store_always: from.value(SYSTEM_STORE, |text| Ok(text == "always"))?,
            skip_hostname_verification: from.value(SKIP_HOSTNAME, super::value::switch)?,
        })
    }
}

impl Redis {
    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, problems: &mut ProblemList<'_>) {
        self.server.contradictions(&SERVER, problems);
        match &self.per_second {
            Some(server) => server.contradictions(&PER_SECOND, problems),
            None => {
                let reason = format!("means nothing without {}", PER_SECOND.url);
                problems.add_given(PER_SECOND.around_url(), &reason);
            }
        }
        let [_, cert_file, key_file, _] = TLS;
        problems.certificate(cert_file, key_file);
        let tls = self.server.url.is_tls() || self.per_second.as_ref().is_some_and(|server| server.url.is_tls());
        if self.tls.skip_hostname_verification && self.tls.server_name.is_some() {
            let reason = "redis.tls.server_name is set too: one of them has to go".to_owned();
            problems.add(SKIP_HOSTNAME, reason);
        }
        if !tls {
            let names = TLS.into_iter().chain([SYSTEM_STORE, SKIP_HOSTNAME]);
            problems.add_given(names, "means nothing without a URL that begins with rediss://");
        }
    }
}

/// A login needs a user's password, and one password only.
fn login(problems: &mut ProblemList<'_>, names: &LoginNames, has_username: bool, has_password: bool) {
    let LoginNames { username, password, password_file } = names;
    if has_username && !has_password {
        problems.add(username, format!("a user without a password: set {password} or {password_file} too"));
    }
    if problems.is_given(password) && problems.is_given(password_file) {
        problems.add(password_file, format!("{password} is set too: one of them has to go"));
    }
}

fn secret(from: &Merged, name: &str) -> Option<Secret> {
    from.text(name).as_deref().map(Secret::from)
}
