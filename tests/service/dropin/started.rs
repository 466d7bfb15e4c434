//! weir started as envoyproxy/ratelimit is: by the name `ratelimit`, with environment variables and nothing else.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use weir_settings::envoy_ratelimit::VARIABLES;

use crate::support::http;
use crate::support::process::{LogLine, Process, binary, point};
use crate::support::wait::{PATIENCE, within};

/// A directory that is swapped whole, as a deployment of envoyproxy/ratelimit swaps it: RUNTIME_ROOT is a symlink.
#[derive(Debug)]
pub(crate) struct Runtime {
    root: TempDir,
    generation: u32,
}

/// Where the policies are below RUNTIME_ROOT.
const SUBDIRECTORY: &str = "ratelimit";
const APPDIRECTORY: &str = "config";

impl Runtime {
    /// One with these policy files (name, text).
    pub(crate) fn with<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut runtime = Self { root: TempDir::new().expect("a temporary directory"), generation: 0 };
        runtime.replace(files);
        runtime
    }

    /// Puts these files in the place of all that was there, by one rename.
    pub(crate) fn replace<'a>(&mut self, files: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.generation += 1;
        let generation = format!("generation-{}", self.generation);
        let directory = self.root.path().join(&generation).join(SUBDIRECTORY).join(APPDIRECTORY);
        std::fs::create_dir_all(&directory).expect("a directory for the files");
        for (name, text) in files {
            std::fs::write(directory.join(name), text).expect("a policy file is written");
        }
        point(&self.root.path().join("current"), Path::new(&generation));
    }

    /// The variables that name it.
    pub(crate) fn variables(&self) -> Environment {
        let root = self.root.path().join("current");
        Environment::default()
            .with("RUNTIME_ROOT", root.to_str().expect("a path in UTF-8"))
            .with("RUNTIME_SUBDIRECTORY", SUBDIRECTORY)
            .with("RUNTIME_APPDIRECTORY", APPDIRECTORY)
    }
}

/// Environment variables, each once: a later one replaces an earlier one of its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The same with one more.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, text: &str) -> Self {
        self.0.insert(name.to_owned(), text.to_owned());
        self
    }

    /// The same with all of these.
    #[must_use]
    pub(crate) fn and<'a>(mut self, more: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        self.0.extend(more.into_iter().map(|(name, text)| (name.clone(), text.clone())));
        self
    }
}

impl<'a> IntoIterator for &'a Environment {
    type Item = (&'a String, &'a String);
    type IntoIter = std::collections::btree_map::Iter<'a, String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// A running one.
#[derive(Debug)]
pub(crate) struct Ratelimit {
    pub(crate) process: Process,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) debug: SocketAddr,
}

impl Ratelimit {
    /// Starts one and waits until it is healthy; what went wrong, with all that it wrote.
    pub(crate) fn try_start(environment: &Environment) -> Result<Self, String> {
        let started = Self::listening(environment)?;
        let healthy = within(PATIENCE, || {
            let answer = http::get(started.http, "/healthcheck");
            answer.is_ok_and(|answer| answer.status == 200).then_some(())
        });
        match healthy {
            Some(()) => Ok(started),
            None => Err(format!("it never became healthy\n{}", started.process.written())),
        }
    }

    /// Starts one and waits until it listens; it need not be healthy.
    pub(crate) fn listening(environment: &Environment) -> Result<Self, String> {
        let mut process = launch(environment, &[]);
        Ok(Self {
            grpc: process.address_of("grpc")?,
            http: process.address_of("http")?,
            debug: process.address_of("admin")?,
            process,
        })
    }

    /// Waits until there are more than `before` lines of log that `wanted` accepts; false if it took too long.
    pub(crate) fn wait_for_log(&self, before: usize, timeout: Duration, wanted: impl Fn(&LogLine) -> bool) -> bool {
        self.process.wait_for_log(before, timeout, wanted)
    }
}

/// Starts `ratelimit` with these variables, on free ports unless they name others, and with a log in JSON.
pub(crate) fn launch(environment: &Environment, arguments: &[&str]) -> Process {
    let mut command = program("ratelimit", environment);
    for (name, text) in [
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("USE_STATSD", "false"),
        ("WEIR__LOG__FORMAT", "json"),
    ] {
        if !environment.0.contains_key(name) {
            command.env(name, text);
        }
    }
    command.args(arguments);
    Process::spawn(command)
}

/// The binary by one of its names, with these variables and none of whoever runs the tests.
pub(crate) fn program(name: &str, environment: &Environment) -> Command {
    let mut command = Command::new(link(name));
    for (name, _) in std::env::vars_os() {
        if is_setting(&name) {
            command.env_remove(&name);
        }
    }
    command.envs(&environment.0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("WEIR__")
        || name == "RUST_LOG"
        || ["STATSD_PROTOCOL", "SSL_CERT_FILE", "SSL_CERT_DIR"].contains(&&*name)
        || VARIABLES.iter().any(|variable| variable.name == name)
}

/// A link to the binary with another name, in a directory that lives as long as the tests.
fn link(name: &str) -> PathBuf {
    if name == "weir" {
        return binary();
    }
    static DIRECTORY: std::sync::OnceLock<TempDir> = std::sync::OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = TempDir::new().expect("a temporary directory");
        for name in ["ratelimit", "ratelimit_config_check", "ratelimit_client"] {
            symlink(binary(), directory.path().join(name)).expect("a link to the binary");
        }
        directory
    });
    directory.path().join(name)
}
