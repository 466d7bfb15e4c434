//! The arguments of `weir`, in two stages: what the user typed, then what the program means.
//!
//! The first stage is clap's: [`Arguments`] holds the typed texts. The second, [`ServeArguments::settings`],
//! turns flags into the last layer of the settings, so that a bad flag is reported beside a bad line
//! of the file. What the commands do is not here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};

use super::check::Strictness;
use crate::config::otel::{self, TurnsOn};
use crate::config::policy_file::Reading;
use crate::config::settings::{self, Layer, Problems, Secret, Setting, Settings};
use crate::engine::descriptor::parse_entries;

/// `weir` and its arguments.
#[derive(Parser)]
#[command(
    name = "weir",
    version = VERSION.as_str(),
    about = "A rate limit service for Envoy and for the owners of services",
    after_help = "Example:\n  weir serve --policies examples/quickstart",
    arg_required_else_help = true
)]
pub struct Arguments {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Serve decisions until SIGTERM or SIGINT
    ///
    /// Settings come from the defaults, the file, the environment and these flags; a later source wins over an earlier one. In the
    /// environment redis.timeout is WEIR__REDIS__TIMEOUT.
    #[command(
        after_help = "Example:\n  weir serve --policies examples/quickstart --set redis.timeout=5ms",
        after_long_help = SERVE_HELP.as_str()
    )]
    Serve(ServeArguments),
    /// Serve in the place of envoyproxy/ratelimit, set by its environment variables
    ///
    /// A link named ratelimit does the same. WEIR__* variables win over those of envoyproxy/ratelimit; docs/migrating.md
    /// has the table of them.
    #[command(after_help = "Example:\n  weir ratelimit")]
    Ratelimit,
    /// Validate a policy directory and print what it holds
    ///
    /// Prints a tree of domains, rules and limits, and the warnings. If a policy is wrong, prints every problem with its file, line
    /// and column instead, and exits with 1. A warning marks a valid policy that is probably a mistake.
    #[command(after_help = "Example:\n  weir check examples/quickstart")]
    Check(CheckArguments),
    /// Ask a server whether a request may pass
    ///
    /// The request is charged. The exit code is 0 if it may pass, 1 if it is over a limit, and 2 if there is no
    /// answer.
    #[command(after_help = "Example:\n  weir ask localhost:8081 shop user=ann plan=free,path=/search --hits 2")]
    Ask(AskArguments),
    /// Print which rule each descriptor of a request matches, and why
    ///
    /// Nothing is charged and no server is needed.
    #[command(after_help = "Example:\n  weir explain examples/quickstart quickstart user=ann plan=free,path=/search")]
    Explain(ExplainArguments),
    /// Print a script that weir runs in Redis
    ///
    /// Line numbers in errors of Redis and in its debugger are those of this text. Without a name, lists the scripts, each
    /// with the SHA-1 by which Redis knows it.
    #[command(after_help = "Example:\n  weir lua decide")]
    Lua(LuaArguments),
}

/// What the user typed after `weir serve`. Not checked before [`ServeArguments::settings`]; no
/// `Debug`, since `--set` may hold a password.
#[derive(Args)]
pub struct ServeArguments {
    /// a YAML file of settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = help("policies.directory"))]
    policies: Option<String>,
    #[arg(long, value_name = "ADDR", help = help("listen.grpc"))]
    grpc: Option<String>,
    #[arg(long, value_name = "ADDR", help = help("listen.http"))]
    http: Option<String>,
    #[arg(long, value_name = "ADDR", help = help("listen.admin"))]
    admin: Option<String>,
    #[arg(long, value_name = "memory|redis", help = help("store"))]
    store: Option<String>,
    #[arg(long, value_name = "URL", help = help("redis.url"))]
    redis_url: Option<Secret>,
    #[arg(long, value_name = "atomic|independent", help = help("charging"))]
    charging: Option<String>,
    /// any setting, such as redis.timeout=10ms; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<Secret>,
}

/// What the user typed after `weir check`.
#[derive(Args, Debug)]
pub struct CheckArguments {
    /// The directory of policy files, or one file
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,
    /// How the files are read.
    #[command(flatten)]
    pub dialect: DialectArguments,
}

impl CheckArguments {
    /// Whether warnings count as errors.
    #[must_use]
    pub const fn strictness(&self) -> Strictness {
        if self.strict { Strictness::Strict } else { Strictness::Lenient }
    }
}

/// How policy files are read, by commands that load no settings.
#[derive(Args, Debug)]
pub struct DialectArguments {
    /// Read the files as envoyproxy/ratelimit does, as with policies.compatible
    #[arg(long)]
    compatible: bool,
    /// Join files of one domain, as with policies.merge_domains
    #[arg(long)]
    merge_domains: bool,
}

impl DialectArguments {
    /// What the flags mean.
    #[must_use]
    pub const fn reading(&self) -> Reading {
        Reading { compatible: self.compatible, merge_domains: self.merge_domains }
    }
}

/// What the user typed after `weir ask`.
#[derive(Args, Debug)]
pub struct AskArguments {
    /// The server's gRPC listener, HOST:PORT
    #[arg(value_name = "ADDR")]
    pub address: String,
    /// The domain of the request
    pub domain: String,
    /// The descriptors of the request, each its entries in order
    ///
    /// A comma inside a value is written as \, and a backslash as \\
    #[arg(value_name = "K=V[,K=V]", required = true)]
    pub descriptors: Vec<Descriptor>,
    /// How many hits to charge
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hits: u32,
    /// Print the response as JSON
    #[arg(long)]
    pub json: bool,
}

/// What the user typed after `weir explain`.
#[derive(Args, Debug)]
pub struct ExplainArguments {
    /// The directory of policy files, or one file
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The domain of the request
    pub domain: String,
    /// The descriptors of the request, each its entries in order
    ///
    /// A comma inside a value is written as \, and a backslash as \\
    #[arg(value_name = "K=V[,K=V]", required = true)]
    pub descriptors: Vec<Descriptor>,
    /// How the files are read.
    #[command(flatten)]
    pub dialect: DialectArguments,
}

/// What the user typed after `weir lua`.
#[derive(Args, Debug)]
pub struct LuaArguments {
    /// The script, such as decide
    pub name: Option<String>,
}

/// One descriptor as it is typed: `path=/login,client=10.0.0.1`.
///
/// The key ends at the first `=`, so a value may hold more of them; a value may be empty, a key may
/// not. `\,` is a comma and `\\` a backslash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values, in the order typed.
    pub entries: Vec<(String, String)>,
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entries = parse_entries(text)?;
        Ok(Self { entries })
    }
}

impl ServeArguments {
    /// What the flags mean: the settings of this run. The file is read; nothing else is touched.
    ///
    /// `environment` is that of the process, [`std::env::vars_os`].
    ///
    /// # Errors
    ///
    /// Every problem of the file, the environment and the flags together.
    pub fn settings(&self, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Settings, Problems> {
        let environment: Vec<_> = environment.into_iter().collect();
        let standard = otel::read(environment.iter().cloned(), TurnsOn::Yes);
        let mut layers = vec![standard.settings];
        if let Some(path) = &self.config {
            layers.push(Layer::file(path));
        }
        layers.push(Layer::environment(environment));
        layers.push(self.flags());
        layers.push(standard.last);
        Settings::load(&layers)
    }

    /// The layer of the command line. A flag and `--set` of the same setting contradict each other,
    /// which is a problem of the layer.
    #[must_use]
    pub fn flags(&self) -> Layer {
        let mut layer = Layer::default();
        let typed = [
            ("policies.directory", self.policies.as_deref()),
            ("listen.grpc", self.grpc.as_deref()),
            ("listen.http", self.http.as_deref()),
            ("listen.admin", self.admin.as_deref()),
            ("store", self.store.as_deref()),
            ("redis.url", self.redis_url.as_ref().map(Secret::expose)),
            ("charging", self.charging.as_deref()),
        ];
        for (name, text) in typed {
            let flag = Setting::find(name).and_then(Setting::flag);
            if let (Some(flag), Some(text)) = (flag, text) {
                layer.flag(name, text, flag);
            }
        }
        for assignment in &self.set {
            layer.set(assignment.expose());
        }
        layer
    }
}

/// The commit this was built from; `unknown` where the build could not tell.
pub const COMMIT: &str = match option_env!("WEIR_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

static VERSION: LazyLock<String> = LazyLock::new(|| format!("{} (commit {COMMIT})", env!("CARGO_PKG_VERSION")));

static SERVE_HELP: LazyLock<String> = LazyLock::new(|| {
    format!(
        "Example:\n  weir serve --policies examples/quickstart --set redis.timeout=5ms\n\n\
         Settings, for --set, the file and the environment:\n{}",
        settings::listing()
    )
});

/// The table's line for a flag.
fn help(name: &str) -> String {
    Setting::find(name).map(Setting::help).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Mode;
    use clap::CommandFactory;
    use settings::{SETTINGS, StoreKind};

    fn serve(arguments: &[&str]) -> ServeArguments {
        let all = ["weir", "serve"].iter().chain(arguments);
        match Arguments::try_parse_from(all).map(|arguments| arguments.command) {
            Ok(Command::Serve(arguments)) => arguments,
            Ok(_) => panic!("another command"),
            Err(error) => panic!("{error}"),
        }
    }

    fn refusal(arguments: &[&str]) -> String {
        match Arguments::try_parse_from(arguments) {
            Ok(_) => panic!("accepted {arguments:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn each_flag_reaches_its_setting() {
        let arguments = serve(&[
            "--policies=p",
            "--grpc=127.0.0.1:1",
            "--http=127.0.0.1:2",
            "--admin=127.0.0.1:3",
            "--store=redis",
            "--redis-url=redis://cache",
            "--charging=independent",
            "--set",
            "redis.timeout=5s",
            "--set=redis.password=a=b",
        ]);
        let settings = arguments.settings([]).unwrap();
        assert_eq!(settings.policies.directory, PathBuf::from("p"));
        assert_eq!(settings.listen.grpc.tcp().map(|address| address.port()), Some(1));
        assert_eq!(settings.listen.http.port(), 2);
        assert_eq!(settings.listen.admin.port(), 3);
        assert_eq!(settings.store, StoreKind::Redis);
        assert_eq!(settings.redis.server.url.expose(), "redis://cache");
        assert_eq!(settings.charging, Mode::Independent);
        assert_eq!(settings.redis.timeout.as_secs(), 5);
        assert_eq!(settings.redis.server.password.unwrap().expose(), "a=b");
    }

    #[test]
    fn the_table_and_clap_know_the_same_flags() {
        let command = Arguments::command();
        let serve = command.find_subcommand("serve").unwrap();
        let mut of_clap: Vec<String> = serve
            .get_arguments()
            .filter_map(|argument| argument.get_long())
            .filter(|long| !["config", "set", "help"].contains(long))
            .map(|long| format!("--{long}"))
            .collect();
        of_clap.sort();
        let mut of_table: Vec<&str> = SETTINGS.iter().filter_map(Setting::flag).collect();
        of_table.sort_unstable();
        assert_eq!(of_clap, of_table);
    }

    #[test]
    fn problems_of_flags_come_all_at_once_and_hide_secrets() {
        let arguments = serve(&[
            "--store=rediss",
            "--grpc=:8081",
            "--redis-url=redis://:hunter2@host:port",
            "--set=redis.timout=hunter2",
            "--set=hunter2",
            "--set=store=memory",
            "--set=redis.username=",
        ]);
        let problems = arguments.settings([]).unwrap_err().to_string();
        insta::assert_snapshot!(problems, @r#"
        --grpc: listen.grpc = ":8081": has no IP: write 0.0.0.0:8081 for every interface
        --store: store = "rediss": must be memory or redis
        --redis-url: redis.url = "redis://***@host:port": not a Redis URL: write redis://HOST:PORT, rediss://HOST:PORT for TLS, or redis+unix:///PATH
        --set: redis.timout: no such setting, the nearest is redis.timeout
        --set: an argument without "=": write NAME=VALUE
        --set: store: given twice, before by --store
        --set: redis.username: empty: leave it out instead
        settings: policies.directory: required: give --policies or WEIR__POLICIES__DIRECTORY
        "#);
    }

    #[test]
    fn a_descriptor_is_read_entry_by_entry() {
        let entries = |text: &str| text.parse::<Descriptor>().map(|typed| typed.entries);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(entries("k=v"), Ok(vec![pair("k", "v")]));
        assert_eq!(
            entries("path=/a?b=c,client=,x=1\\,2\\\\"),
            Ok(vec![pair("path", "/a?b=c"), pair("client", ""), pair("x", "1,2\\")])
        );
        for (text, why) in [
            ("", "\"\" has no \"=\""),
            ("k", "\"k\" has no \"=\""),
            ("k=v,", "\"\" has no \"=\""),
            ("=v", "has no key"),
            ("k=a\\b", "\\b means nothing"),
            ("k=\\", "a backslash at the end"),
        ] {
            let error = entries(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn explain_takes_several_descriptors_and_needs_one() {
        let typed = ["weir", "explain", "dir", "shop", "a=1,b=2", "c=3"];
        let Ok(Command::Explain(explain)) = Arguments::try_parse_from(typed).map(|arguments| arguments.command) else {
            panic!("explain is not parsed");
        };
        assert_eq!(explain.domain, "shop");
        assert_eq!(explain.descriptors.len(), 2);
        assert!(refusal(&typed[..4]).contains("K=V"));
        assert!(refusal(&["weir", "explain", "dir", "shop", "a"]).contains("has no \"=\""));
    }

    #[test]
    fn every_example_in_the_help_parses() {
        let mut command = Arguments::command();
        let mut examples = 0;
        let mut helps = vec![command.render_long_help().to_string()];
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("Example:"), "{} has no example", sub.get_name());
            helps.push(help);
        }
        for help in helps {
            for line in help.lines().filter(|line| line.starts_with("  weir ")) {
                examples += 1;
                let words: Vec<&str> = line.split_whitespace().collect();
                assert!(Arguments::try_parse_from(&words).is_ok(), "{line}");
            }
        }
        assert_eq!(examples, 7);
    }

    #[test]
    fn the_long_help_lists_every_setting() {
        let mut command = Arguments::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        let help = serve.render_long_help().to_string();
        for setting in SETTINGS {
            assert!(help.contains(&format!("\n  {}\n", setting.name)), "{}", setting.name);
        }
    }

    #[test]
    fn the_version_names_the_commit() {
        let version = refusal(&["weir", "--version"]);
        let expected = format!("weir {} (commit {COMMIT})\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(version, expected);
    }
}
