//! Which Redis, what it is made of, and who weir is there: the settings that one Redis has and a second one
//! has again, and what is wrong with them together.
//!
//! Not in here: how long, how many and how large, which are the same for both (settings.rs).

use std::path::PathBuf;

use super::value::{RedisUrl, Secret};
use super::{Layer, Merged, Problem, Redis};

/// Where one Redis is and who we are there.
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
    /// What is needed to ask its sentinels: given if, and only if, the topology is theirs.
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

/// Which master to ask for, and who we are at the sentinels.
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

const SERVER: Names = Names {
    url: "redis.url",
    topology: "redis.topology",
    login: LoginNames { username: "redis.username", password: "redis.password", password_file: "redis.password_file" },
    master: "redis.sentinel.master",
    sentinel: LoginNames {
        username: "redis.sentinel.username",
        password: "redis.sentinel.password",
        password_file: "redis.sentinel.password_file",
    },
};

const PER_SECOND: Names = Names {
    url: "redis.per_second.url",
    topology: "redis.per_second.topology",
    login: LoginNames {
        username: "redis.per_second.username",
        password: "redis.per_second.password",
        password_file: "redis.per_second.password_file",
    },
    master: "redis.per_second.sentinel.master",
    sentinel: LoginNames {
        username: "redis.per_second.sentinel.username",
        password: "redis.per_second.sentinel.password",
        password_file: "redis.per_second.sentinel.password_file",
    },
};

const TLS: [&str; 4] = ["redis.tls.ca_file", "redis.tls.cert_file", "redis.tls.key_file", "redis.tls.server_name"];
/// Those of TLS that have a default.
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
        match from.optional(PER_SECOND.url)? {
            Some(_) => Self::named(from, &PER_SECOND, from.value(PER_SECOND.url, str::parse)?).map(Some),
            None => Ok(None),
        }
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
                master: from.optional(names.master)?.unwrap_or_default(),
                username: secret(from, names.sentinel.username)?,
                password: secret(from, names.sentinel.password)?,
                password_file: path(from, names.sentinel.password_file)?,
            }),
            Topology::Single | Topology::Cluster => None,
        };
        Ok(Self {
            url,
            topology,
            username: secret(from, names.login.username)?,
            password: secret(from, names.login.password)?,
            password_file: path(from, names.login.password_file)?,
            sentinel,
        })
    }

    fn contradictions(&self, names: &Names, problems: &mut ProblemList) {
        let hosts = self.url.places(0).len();
        let url = Some(self.url.to_string());
        match self.topology {
            Topology::Single if hosts > 1 => {
                let reason = format!("several hosts: set {} to sentinel or cluster", names.topology);
                problems.problem(names.url, url, reason);
            }
            Topology::Sentinel | Topology::Cluster if hosts == 0 => {
                let reason = format!("a socket, but {} = {} needs hosts", names.topology, self.topology.name());
                problems.problem(names.url, url, reason);
            }
            Topology::Cluster if self.url.database() != 0 => {
                problems.problem(names.url, url, "a cluster has no database but 0".to_owned());
            }
            Topology::Single | Topology::Sentinel | Topology::Cluster => {}
        }
        let has_password = self.url.has_password() || self.password.is_some() || self.password_file.is_some();
        problems.login(&names.login, self.username.is_some(), has_password);
        match &self.sentinel {
            Some(sentinel) => {
                if sentinel.master.is_empty() {
                    let reason = format!("needs the name of the master: set {} too", names.master);
                    problems.problem(names.topology, Some("sentinel".to_owned()), reason);
                }
                let has_password = sentinel.password.is_some() || sentinel.password_file.is_some();
                problems.login(&names.sentinel, sentinel.username.is_some(), has_password);
            }
            None => {
                for name in names.of_sentinels() {
                    if problems.is_given(name) {
                        let reason =
                            format!("only for {} = sentinel, which is {}", names.topology, self.topology.name());
                        problems.problem(name, None, reason);
                    }
                }
            }
        }
    }
}

impl RedisTls {
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        let [ca_file, cert_file, key_file, server_name] = TLS;
        Ok(Self {
            ca_file: path(from, ca_file)?,
            cert_file: path(from, cert_file)?,
            key_file: path(from, key_file)?,
            server_name: from.optional(server_name)?,
            system_store_always: from.value(SYSTEM_STORE, |text| Ok(text == "always"))?,
            skip_hostname_verification: from.value(SKIP_HOSTNAME, super::value::switch)?,
        })
    }
}

impl Redis {
    /// What is legal alone and wrong together.
    pub(super) fn contradictions(&self, layers: &[Layer], problems: &mut Vec<Problem>) {
        let mut problems = ProblemList { layers, problems };
        self.server.contradictions(&SERVER, &mut problems);
        match &self.per_second {
            Some(server) => server.contradictions(&PER_SECOND, &mut problems),
            None => {
                for name in PER_SECOND.around_url() {
                    if problems.is_given(name) {
                        problems.problem(name, None, format!("means nothing without {}", PER_SECOND.url));
                    }
                }
            }
        }
        let [_, cert_file, key_file, _] = TLS;
        match (&self.tls.cert_file, &self.tls.key_file) {
            (Some(_), None) => {
                problems.problem(cert_file, None, format!("a certificate without its key: set {key_file} too"));
            }
            (None, Some(_)) => {
                problems.problem(key_file, None, format!("a key without its certificate: set {cert_file} too"));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        let tls = self.server.url.is_tls() || self.per_second.as_ref().is_some_and(|server| server.url.is_tls());
        if self.tls.skip_hostname_verification && self.tls.server_name.is_some() {
            let reason = "redis.tls.server_name is set too: one of them has to go".to_owned();
            problems.problem(SKIP_HOSTNAME, None, reason);
        }
        for name in TLS.into_iter().chain([SYSTEM_STORE, SKIP_HOSTNAME]) {
            if !tls && problems.is_given(name) {
                problems.problem(name, None, "means nothing without a URL that begins with rediss://".to_owned());
            }
        }
    }
}

/// Collects problems, each with the place of its setting.
struct ProblemList<'a> {
    layers: &'a [Layer],
    problems: &'a mut Vec<Problem>,
}

impl ProblemList<'_> {
    fn origin(&self, name: &str) -> Option<&str> {
        self.layers.iter().rev().find_map(|layer| layer.origin(name))
    }

    fn is_given(&self, name: &str) -> bool {
        self.origin(name).is_some()
    }

    fn problem(&mut self, name: &str, value: Option<String>, reason: String) {
        let origin = self.origin(name).unwrap_or("default").to_owned();
        self.problems.push(Problem { origin, name: Some(name.to_owned()), value, reason });
    }

    fn login(&mut self, names: &LoginNames, has_username: bool, has_password: bool) {
        let LoginNames { username, password, password_file } = names;
        if has_username && !has_password {
            self.problem(username, None, format!("a user without a password: set {password} or {password_file} too"));
        }
        if self.is_given(password) && self.is_given(password_file) {
            self.problem(password_file, None, format!("{password} is set too: one of them has to go"));
        }
    }
}

fn secret(from: &Merged, name: &'static str) -> Result<Option<Secret>, Problem> {
    Ok(from.optional(name)?.as_deref().map(Secret::from))
}

fn path(from: &Merged, name: &'static str) -> Result<Option<PathBuf>, Problem> {
    Ok(from.optional(name)?.map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::super::{Layer, Settings};

    fn policies() -> Layer {
        flags(&["policies.directory=policies"])
    }

    fn flags(assignments: &[&str]) -> Layer {
        let mut layer = Layer::default();
        assignments.iter().for_each(|assignment| layer.set(assignment));
        layer
    }

    fn problems(layers: &[Layer]) -> String {
        match Settings::load(layers) {
            Ok(settings) => panic!("accepted: {settings:?}"),
            Err(problems) => problems.to_string(),
        }
    }

    #[test]
    fn settings_of_redis_that_contradict_each_other_are_refused() {
        let together = |assignments: &[&str]| problems(&[policies(), flags(assignments)]);
        insta::assert_snapshot!(together(&["redis.url=redis://:pw@one,two:7000"]), @r#"--set: redis.url = "redis://***@one,two:7000": several hosts: set redis.topology to sentinel or cluster"#);
        insta::assert_snapshot!(together(&["redis.topology=sentinel"]), @r#"--set: redis.topology = "sentinel": needs the name of the master: set redis.sentinel.master too"#);
        insta::assert_snapshot!(
            together(&["redis.topology=sentinel", "redis.sentinel.master=m", "redis.url=unix:///run/redis.sock"]),
            @r#"--set: redis.url = "unix:///run/redis.sock": a socket, but redis.topology = sentinel needs hosts"#
        );
        insta::assert_snapshot!(together(&["redis.topology=cluster", "redis.url=redis://one,two/1"]), @r#"--set: redis.url = "redis://one,two/1": a cluster has no database but 0"#);
        insta::assert_snapshot!(
            together(&["redis.topology=cluster", "redis.sentinel.master=m", "redis.sentinel.password=p"]),
            @"
        --set: redis.sentinel.master: only for redis.topology = sentinel, which is cluster
        --set: redis.sentinel.password: only for redis.topology = sentinel, which is cluster
        "
        );
        insta::assert_snapshot!(
            together(&["redis.topology=sentinel", "redis.sentinel.master=m", "redis.sentinel.username=me"]),
            @"--set: redis.sentinel.username: a user without a password: set redis.sentinel.password or redis.sentinel.password_file too"
        );
        insta::assert_snapshot!(together(&["redis.password=p", "redis.password_file=/p"]), @"--set: redis.password_file: redis.password is set too: one of them has to go");
        insta::assert_snapshot!(together(&["redis.tls.ca_file=/ca", "redis.tls.server_name=cache"]), @"
        --set: redis.tls.ca_file: means nothing without a URL that begins with rediss://
        --set: redis.tls.server_name: means nothing without a URL that begins with rediss://
        ");
        insta::assert_snapshot!(together(&["redis.url=rediss://cache", "redis.tls.cert_file=/c"]), @"--set: redis.tls.cert_file: a certificate without its key: set redis.tls.key_file too");
        insta::assert_snapshot!(together(&["redis.url=rediss://cache", "redis.tls.key_file=/k"]), @"--set: redis.tls.key_file: a key without its certificate: set redis.tls.cert_file too");
        insta::assert_snapshot!(together(&["redis.url=rediss://cache", "redis.tls.server_name=not a name"]), @r#"--set: redis.tls.server_name = "not a name": neither a DNS name nor an IP"#);
        insta::assert_snapshot!(together(&["redis.sentinel.master="]), @r#"--set: redis.sentinel.master = "": empty: leave it out instead"#);
        insta::assert_snapshot!(
            together(&["redis.per_second.password=p", "redis.per_second.topology=cluster", "redis.per_second.sentinel.master=m"]),
            @"
        --set: redis.per_second.topology: means nothing without redis.per_second.url
        --set: redis.per_second.password: means nothing without redis.per_second.url
        --set: redis.per_second.sentinel.master: means nothing without redis.per_second.url
        "
        );
        insta::assert_snapshot!(
            together(&["redis.per_second.url=redis://one,two/1", "redis.per_second.username=me"]),
            @r#"
        --set: redis.per_second.url = "redis://one,two/1": several hosts: set redis.per_second.topology to sentinel or cluster
        --set: redis.per_second.username: a user without a password: set redis.per_second.password or redis.per_second.password_file too
        "#
        );
        for fine in [
            vec!["redis.url=redis://me:pw@one,two:7000/3", "redis.topology=sentinel", "redis.sentinel.master=m"],
            vec!["redis.url=rediss://one,two:7000", "redis.topology=cluster", "redis.tls.ca_file=/ca"],
            vec!["redis.per_second.url=rediss://one", "redis.tls.cert_file=/c", "redis.tls.key_file=/k"],
        ] {
            assert!(Settings::load(&[policies(), flags(&fine)]).is_ok(), "{fine:?}");
        }
    }
}
