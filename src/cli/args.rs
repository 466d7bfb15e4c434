//! The arguments of `weir`, in two stages: first the texts as typed, then their meaning.
//!
//! clap reads the texts into [`Arguments`]. [`ServeArguments::settings`] makes the last layer of the settings from flags, so a
//! wrong flag is reported together with a wrong line of the file. Not here: what the commands do.

pub mod overrides;
pub mod rows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use weir_app::COMMIT;
use weir_engine::Window;
use weir_engine::descriptor::{TypedDescriptor, parse_entries};
use weir_lab::testing::Strictness;
use weir_lab::testing::coverage::Percentage;
use weir_policies::parse_rate_of_request;
use weir_policies::schema::Schema;
use weir_settings::otel::{self, TurnsOn};
use weir_settings::{Layer, Problems, Secret, Setting, Settings};
use weir_text::number;

use self::overrides::OverrideArguments;
use self::rows::RowArguments;
use super::admin::{AdminServer, ServerArguments};
use super::ask;
use super::check::CheckFormat;
use super::diff::{DialectArguments, Diff};
use super::simulate::SimulateArguments;
use super::tap::TapArguments;
use super::test::{TestFormat, Tests};
use super::top::TopArguments;

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
    /// and column instead, and exits with 1. A warning marks a valid policy that is probably a mistake. With --server the policies
    /// are those that a running server has in force, and the problems are those of newer policies that it refuses.
    #[command(after_help = "Example:\n  weir check examples/quickstart\n  weir check --server localhost:6070")]
    Check(CheckArguments),
    /// Ask a server whether a request may pass
    ///
    /// The request is charged. The exit code is 0 if it may pass, 1 if it is over a limit, and 2 if there is no
    /// answer.
    #[command(after_help = "Example:\n  weir ask localhost:8081 shop user=ann plan=free,path=/search --hits 2\n  \
                            weir ask unix:/run/weir.sock ai team=search tokens=search --hits 2500000 --hits 8000\n  \
                            weir ask localhost:8081 ai user=ann --settle 1.ASNFZ4mrze8AZICAm4_CwYIDnukc --hits 37")]
    Ask(AskArguments),
    /// Print which rule each descriptor of a request matches, and why
    ///
    /// Nothing is charged and no server is needed. With --server the policies are those that a running server has in force.
    #[command(
        after_help = "Example:\n  weir explain examples/quickstart quickstart user=ann plan=free,path=/search\n  \
                            weir explain --server localhost:6070 quickstart user=ann"
    )]
    Explain(ExplainArguments),
    /// Compare two sets of policies: what changes for whom
    ///
    /// Prints the rules that are new, gone, stricter, looser or renamed, and which states of the store are kept or forgotten. No server is
    /// needed. The exit code is 0 if nothing changes, 1 if something does, and 2 if policies are not valid. With --fail-on it is 1 only
    /// for changes of these kinds.
    #[command(after_help = "Example:\n  weir diff examples/quickstart examples/quickstart --format markdown")]
    Diff(Diff),
    /// Run tests of policies
    ///
    /// Tests are files named *.test.yaml, beside the policies or elsewhere: requests, times and expected answers. No server is
    /// needed and no time passes: the clock goes on as the test says. docs/testing.md has the format. The exit code is 0 if all
    /// tests pass, 1 if some fail or --fail-under is not reached, and 2 if a test or a policy is not valid, or the report cannot be
    /// written.
    #[command(after_help = "Example:\n  weir test examples/quickstart --coverage")]
    Test(TestArguments),
    /// Set, list and delete overrides of a running server: other numbers for one descriptor, until a time
    ///
    /// An override stands in place of the numbers of the descriptor's rule until it ends. With Redis all servers that share it have it
    /// within a second; with the memory store only this server has it, until it ends. docs/overrides.md has the whole. The exit
    /// code is 0 if it is done, 1 if the server refuses or does not answer, and 2 for wrong arguments.
    #[command(
        after_help = "Example:\n  weir override set quickstart user=ann --limit 100/min --for 2h --reason launch\n  \
                            weir override list\n  weir override delete quickstart user=ann"
    )]
    Override(OverrideArguments),
    /// Import, set, list and remove rows of a running server: a plan or other numbers for each customer
    ///
    /// A row is for one descriptor of a rule with rows. With Redis it is in force at the next decision of all servers that share it; with the
    /// memory store only this server has it, until it ends. docs/rows.md has the whole. The exit code is 0 if it is done, 1 if the server
    /// refuses or does not answer, or a line of a file is wrong, and 2 for wrong arguments.
    #[command(
        after_help = "Example:\n  weir rows import customers.csv\n  weir rows set api tenant=acme --plan gold\n  \
                            weir rows list api"
    )]
    Rows(RowArguments),
    /// Send traffic through policies with a simulated clock, and report which requests pass and which are denied
    ///
    /// The traffic comes from sources that a file describes, or from a record. Each of the policies gets the same
    /// requests, and each decision is that of a server with the memory store. docs/simulation.md has the format of
    /// traffic. The exit code is 2 if traffic or policies are not valid, and 130 after Ctrl-C, which leaves no files.
    #[command(
        after_help = "Example:\n  weir simulate --traffic examples/simulate/bursts.traffic.yaml examples/simulate/gcra"
    )]
    Simulate(SimulateArguments),
    /// Show the busiest limits of a running server, the limits that deny most, and whom they deny, or its callers
    ///
    /// Prints a table that refreshes itself, from the server's admin listener. If standard output is not a terminal, prints
    /// tab-separated lines after each interval; docs/admin.md has the columns. The exit code is 0 when you end it, and 1 if the
    /// server does not answer at the start. If the server stops answering later, weir top keeps asking it.
    #[command(after_help = "Example:\n  weir top --server localhost:6070 --sort hits")]
    Top(TopArguments),
    /// Show the requests that a running server decides, as they come, or record them
    ///
    /// Prints a line for each descriptor, from the server's admin listener, until you end it. Values that no policy names are
    /// shown as a hash, unless the server's setting tap.values says otherwise. The server bounds how many requests a second it
    /// shows; what it leaves out is counted. docs/admin.md has the columns. The exit code is 0, or 1 if the server refuses
    /// or ends the tap.
    #[command(after_help = "Example:\n  weir tap --server localhost:6070 --domain shop --verdict over user=ann\n  \
                            weir tap --sample 10 --for 5m --record traffic.jsonl")]
    Tap(TapArguments),
    /// Print a JSON Schema, which an editor uses to complete and check what you write
    ///
    /// Write the line "# yaml-language-server: $schema=PATH" at the top of a file, with the path or URL of the schema.
    #[command(after_help = "Example:\n  weir schema policies")]
    Schema(SchemaArguments),
    /// Print a script that weir runs in Redis
    ///
    /// Line numbers in errors of Redis and in its debugger are those of this text. Without a name, lists the scripts,
    /// each with its SHA-1 in Redis.
    #[command(after_help = "Example:\n  weir lua decide")]
    Lua(LuaArguments),
    /// Print a script by which a shell completes the commands and options of weir
    #[command(after_help = "Example:\n  weir completions bash")]
    Completions(CompletionsArguments),
    /// Print the manual page of weir, or of one of its commands
    #[command(after_help = "Example:\n  weir man check")]
    Man(ManArguments),
}

/// The arguments of `weir serve`. [`ServeArguments::settings`] checks them. No `Debug`, because `--set` may have a password.
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

/// The arguments of `weir check`.
#[derive(Args, Debug)]
pub struct CheckArguments {
    /// The directory of policy files, or one file
    #[arg(value_name = "DIR", required_unless_present_any = ["server", "config"])]
    pub directory: Option<PathBuf>,
    /// Read the policies as weir serve does with this YAML file of settings and this environment
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "compatible", "merge_domains", "overlay"])]
    pub config: Option<PathBuf>,
    /// Check what a running server has in force: its admin listener, HOST:PORT
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["directory", "compatible", "merge_domains", "overlay"])]
    pub server: Option<AdminServer>,
    /// A file with a token of the server's admin.token_file
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,
    /// How the findings are written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = CheckFormat::Text, conflicts_with = "server")]
    pub format: CheckFormat,
    /// How the files are read.
    #[command(flatten)]
    pub dialect: DialectArguments,
}

/// The source of policies.
#[derive(Debug, PartialEq, Eq)]
pub enum Policies {
    /// A directory of files, or one file.
    Files(PathBuf),
    /// A running server.
    Server(ServerArguments),
}

/// The source of policies of `weir check`.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked {
    /// A directory of files, or one file.
    Files(PathBuf),
    /// The policies that a settings file names.
    Settings {
        /// The file of settings.
        config: PathBuf,
        /// The directory that replaces that of the settings.
        directory: Option<PathBuf>,
    },
    /// A running server.
    Server(ServerArguments),
}

impl CheckArguments {
    /// The source of the policies.
    ///
    /// # Errors
    /// If the arguments contradict each other or name no policies.
    pub fn checked(&self) -> Result<Checked, String> {
        match (&self.server, &self.config, &self.directory) {
            (Some(server), ..) => {
                let (server, token_file) = (server.clone(), self.token_file.clone());
                Ok(Checked::Server(ServerArguments { server, token_file }))
            }
            (None, Some(config), directory) => {
                Ok(Checked::Settings { config: config.clone(), directory: directory.clone() })
            }
            (None, None, Some(directory)) => Ok(Checked::Files(directory.clone())),
            (None, None, None) => Err("no policies: write DIR, --config FILE or --server ADDR".to_owned()),
        }
    }

    /// Whether warnings count as errors.
    pub const fn strictness(&self) -> Strictness {
        Strictness::of(self.strict)
    }
}

/// The arguments of `weir ask`.
#[derive(Args, Debug)]
pub struct AskArguments {
    /// The server's gRPC listener: HOST:PORT, https://HOST:PORT if it has TLS, or unix:/PATH
    #[arg(value_name = "ADDR")]
    server: ask::GrpcServer,
    /// The domain of the request
    domain: String,
    /// The descriptors of the request, each its entries in order
    ///
    /// A comma inside a value is written as \, and a backslash as \\
    #[arg(value_name = "K=V[,K=V]", required = true)]
    descriptors: Vec<TypedDescriptor>,
    /// How many hits to charge, 0 to look only; with --settle, how many were used. Repeat it to give each descriptor its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::<u32>(0, u32::MAX.into()))]
    hits: Vec<u32>,
    /// A limit of the request in place of the policies, such as 100/minute. Repeat it to give each descriptor its own
    #[arg(long, value_name = "RATE", value_parser = parse_rate_of_request)]
    limit: Vec<(u32, Window)>,
    /// Settle the holds of an earlier request: the receipt that its answer printed
    ///
    /// The key of its entry is weir.receipt, or the one before the =, if the server has another holds.receipt_key
    #[arg(long, value_name = "[KEY=]RECEIPT", requires = "hits")]
    settle: Option<ask::ReturnedReceipt>,
    /// Exit with 0 only for this answer, with 1 for another one, and with 2 without an answer
    #[arg(long, value_name = "ANSWER")]
    pub expect: Option<ask::Decided>,
    /// Print the response as JSON
    #[arg(long)]
    pub json: bool,
    /// The files for TLS.
    #[command(flatten)]
    tls: ask::TlsArguments,
}

impl AskArguments {
    /// The request that the arguments describe.
    ///
    /// # Errors
    /// If the arguments contradict each other.
    pub fn question(self) -> Result<ask::Question, String> {
        let Self { server, domain, descriptors, hits, limit: limits, settle: receipt, tls, .. } = self;
        let descriptors = descriptors.into_iter().map(|descriptor| descriptor.entries).collect();
        let (address, tls) = tls.with(server)?;
        let question = ask::Question { address, tls, domain, descriptors, hits, limits, receipt };
        question.check().map(|()| question)
    }
}

/// The arguments of `weir explain`. With a server there is no directory, so each argument is one place earlier.
#[derive(Args, Debug)]
#[command(override_usage = "weir explain [OPTIONS] DIR DOMAIN K=V[,K=V]...\n       \
                      weir explain --server ADDR DOMAIN K=V[,K=V]...")]
pub struct ExplainArguments {
    /// The directory of policy files, or one file; not with --server
    #[arg(value_name = "DIR", required = true)]
    first: Option<OsString>,
    /// The domain of the request
    #[arg(value_name = "DOMAIN", required_unless_present = "server")]
    second: Option<String>,
    /// The descriptors of the request, each its entries in order
    ///
    /// A comma inside a value is written as \, and a backslash as \\
    #[arg(value_name = "K=V[,K=V]", required_unless_present = "server")]
    descriptors: Vec<TypedDescriptor>,
    /// Explain what a running server has in force: its admin listener, HOST:PORT
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["compatible", "merge_domains", "overlay"])]
    server: Option<AdminServer>,
    /// Say what this caller may do for the request: its name, a name of its certificate, or its listener; needs --callers
    #[arg(long, value_name = "NAME", requires = "callers")]
    caller: Option<String>,
    /// The file of callers, as with callers.file
    #[arg(long, value_name = "FILE", requires = "caller")]
    callers: Option<PathBuf>,
    /// A file with a token of the server's admin.token_file
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// How the files are read.
    #[command(flatten)]
    pub dialect: DialectArguments,
}

/// The arguments of `weir test`.
#[derive(Args)]
pub struct TestArguments {
    /// Directories with tests, their subdirectories included, and files of tests
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Run only the cases whose name has this text in it
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// How the report is written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = TestFormat::Text)]
    format: TestFormat,
    /// Name the rules that no test meets
    #[arg(long)]
    coverage: bool,
    /// Fail if tests meet less than this part of the rules, in percent
    #[arg(long, value_name = "PERCENT")]
    fail_under: Option<Percentage>,
    /// Fail where a test expects requests to pass that meet no rule
    #[arg(long)]
    strict: bool,
    /// Which store decides
    #[arg(long, value_name = "STORE", value_enum, default_value_t = TestStore::Memory)]
    store: TestStore,
    /// The Redis of --store redis; each case uses its own keys, which are deleted after it
    #[arg(long, value_name = "URL", required_if_eq("store", "redis"))]
    redis_url: Option<Secret>,
}

/// The stores that tests can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TestStore {
    /// In this process.
    Memory,
    /// A real Redis.
    Redis,
}

impl TestArguments {
    /// The tests that the arguments describe.
    pub fn tests(self) -> Tests {
        let redis_url = self.redis_url.filter(|_| self.store == TestStore::Redis);
        let Self { paths, filter, format, coverage, fail_under, strict, .. } = self;
        let strictness = Strictness::of(strict);
        Tests { paths, redis_url, filter, format, coverage, fail_under, strictness }
    }
}

/// The request of `weir explain`.
#[derive(Debug, PartialEq, Eq)]
pub struct Explained {
    /// Where the policies are.
    pub policies: Policies,
    /// The domain.
    pub domain: String,
    /// The descriptors, each its entries in order.
    pub descriptors: Vec<Vec<(String, String)>>,
}

impl ExplainArguments {
    /// The file of callers, and the name of the caller in it.
    pub fn caller(&self) -> Option<(PathBuf, String)> {
        self.callers.clone().zip(self.caller.clone())
    }

    /// The request that the words describe.
    ///
    /// # Errors
    /// If a word is missing or wrong.
    pub fn explained(self) -> Result<Explained, String> {
        let Self { first, second, descriptors, server, token_file, .. } = self;
        let first = first.ok_or("no policies: write DIR or --server ADDR")?;
        let descriptors = descriptors.into_iter().map(|descriptor| descriptor.entries);
        let second = second.ok_or("no descriptor: write K=V[,K=V]")?;
        let Some(server) = server else {
            let policies = Policies::Files(first.into());
            return Ok(Explained { policies, domain: second, descriptors: descriptors.collect() });
        };
        let domain = first.into_string().map_err(|domain| format!("{domain:?}: a domain is UTF-8"))?;
        let leading = parse_entries(&second).map_err(|reason| format!("the descriptor {second:?}: {reason}"))?;
        let descriptors = std::iter::once(leading).chain(descriptors).collect();
        let policies = Policies::Server(ServerArguments { server, token_file });
        Ok(Explained { policies, domain, descriptors })
    }
}

/// The arguments of `weir schema`.
#[derive(Args, Debug)]
pub struct SchemaArguments {
    /// The kind of file
    #[arg(value_name = "WHAT", value_parser = PossibleValuesParser::new(Schema::NAMES).try_map(|name| Schema::named(&name).ok_or("no such schema")))]
    pub of: Schema,
}

/// The arguments of `weir lua`.
#[derive(Args, Debug)]
pub struct LuaArguments {
    /// The script, such as decide
    pub name: Option<String>,
}

/// The arguments of `weir completions`.
#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// The arguments of `weir man`.
#[derive(Args, Debug)]
pub struct ManArguments {
    /// A command, such as check, or a command and its action, such as rows import
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The settings of `weir serve --config` with this file and environment.
///
/// # Errors
/// All problems of both.
pub fn settings_in(
    config: &Path,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Settings, Problems> {
    settings_of(Some(config), environment, Layer::default())
}

/// The layers of a server, from the weakest to the strongest.
fn settings_of(
    config: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    flags: Layer,
) -> Result<Settings, Problems> {
    let environment: Vec<_> = environment.into_iter().collect();
    let standard = otel::read(environment.iter().cloned(), TurnsOn::Yes);
    let file = config.map(Layer::file);
    let layers =
        [Some(standard.settings), file, Some(Layer::environment(environment)), Some(flags), Some(standard.last)];
    Settings::load(&layers.into_iter().flatten().collect::<Vec<_>>())
}

impl ServeArguments {
    /// The settings of this run, from the file, the environment and the flags. `environment` is that of the process:
    /// [`std::env::vars_os`].
    ///
    /// # Errors
    /// Every problem of the file, the environment and the flags.
    pub fn settings(&self, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Settings, Problems> {
        settings_of(self.config.as_deref(), environment, self.flags())
    }

    /// The layer of the command line. A flag and `--set` of the same setting are a problem of the layer.
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

static VERSION: LazyLock<String> = LazyLock::new(|| format!("{} (commit {COMMIT})", env!("CARGO_PKG_VERSION")));

static SERVE_HELP: LazyLock<String> = LazyLock::new(|| {
    format!(
        "Example:\n  weir serve --policies examples/quickstart --set redis.timeout=5ms\n\n\
         Settings, for --set, the file and the environment:\n{}",
        weir_settings::listing()
    )
});

/// The help of a flag, from the table of settings.
fn help(name: &str) -> String {
    Setting::find(name).map(Setting::help).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use weir_engine::Mode;
    use weir_settings::{SETTINGS, StoreKind};

    use std::time::Duration;

    use super::*;
    use crate::top::Sort;

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
        assert_eq!(settings.listen.grpc[0].endpoint.tcp().map(|address| address.port()), Some(1));
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
        --redis-url: redis.url: not a Redis URL: write redis://HOST:PORT, rediss://HOST:PORT for TLS, or redis+unix:///PATH
        --set: redis.timout: no such setting, the nearest is redis.timeout
        --set: an argument without "=": write NAME=VALUE
        --set: store: given twice, before by --store
        --set: redis.username: empty: remove the setting instead
        settings: policies.directory: required: give --policies or WEIR__POLICIES__DIRECTORY
        "#);
    }

    #[test]
    fn a_descriptor_is_read_entry_by_entry() {
        let entries = |text: &str| text.parse::<TypedDescriptor>().map(|typed| typed.entries);
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
            ("k=a\\b", "\\b is not an escape"),
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
        let explained = explain.explained().unwrap();
        assert_eq!((explained.policies, explained.domain.as_str()), (Policies::Files("dir".into()), "shop"));
        assert_eq!(explained.descriptors.len(), 2);
        assert!(refusal(&typed[..4]).contains("K=V"));
        assert!(refusal(&["weir", "explain", "dir", "shop", "a"]).contains("has no \"=\""));
    }

    #[test]
    fn policies_of_a_server_stand_in_place_of_a_directory() {
        let explained = |words: &[&str]| {
            let typed = ["weir", "explain"].iter().chain(words);
            match Arguments::try_parse_from(typed).map(|arguments| arguments.command) {
                Ok(Command::Explain(explain)) => explain.explained(),
                Ok(_) => panic!("another command"),
                Err(error) => Err(error.to_string()),
            }
        };
        let server = ServerArguments { server: "localhost:6070".parse().unwrap(), token_file: None };
        let server = Policies::Server(server);
        let expected = Explained {
            policies: server,
            domain: "shop".to_owned(),
            descriptors: [["a", "1"], ["b", "2"]].map(|[key, value]| vec![(key.to_owned(), value.to_owned())]).into(),
        };
        assert_eq!(explained(&["--server", "localhost", "shop", "a=1", "b=2"]), Ok(expected));
        for (words, reason) in [
            (&["--server=localhost", "shop"][..], "no descriptor: write K=V"),
            (&["--server=localhost"], "required arguments were not provided"),
            (&["--server=localhost", "dir", "shop", "a=1"], "the descriptor \"shop\": \"shop\" has no \"=\""),
            (&["--server=localhost", "--compatible", "shop", "a=1"], "cannot be used with"),
        ] {
            let refused = explained(words).unwrap_err();
            assert!(refused.contains(reason), "{words:?}: {refused}");
        }
        assert!(refusal(&["weir", "check"]).contains("DIR"));
        assert!(refusal(&["weir", "check", "dir", "--server=localhost"]).contains("cannot be used with"));
    }

    #[test]
    fn top_has_defaults_and_bounds() {
        let Ok(Command::Top(top)) = Arguments::try_parse_from(["weir", "top"]).map(|arguments| arguments.command)
        else {
            panic!("top is not parsed");
        };
        assert_eq!((top.server, top.interval), (ServerArguments::default(), Duration::from_secs(1)));
        assert!(!top.once && top.sort == Sort::Denied);
        for (argument, reason) in [
            ("--interval=999ms", "must be from 1s to 30s"),
            ("--interval=31s", "must be from 1s to 30s"),
            ("--interval=x", "invalid value"),
            ("--server=localhost:0", "not an address such as localhost:6070"),
            ("--server=https://localhost", "has no TLS"),
            ("--by=key", "possible values: limit, caller"),
            ("--sort=size", "possible values: denied, hits, name"),
        ] {
            assert!(refusal(&["weir", "top", argument]).contains(reason), "{argument}");
        }
    }

    #[test]
    fn every_example_in_the_help_parses() {
        let mut command = Arguments::command();
        let mut helps = vec![("weir".to_owned(), command.render_long_help().to_string())];
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            helps.push((sub.get_name().to_owned(), sub.render_long_help().to_string()));
        }
        for (name, help) in helps {
            let examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  weir ")).collect();
            assert!(help.contains("Example:") && !examples.is_empty(), "{name} has no example");
            for line in examples {
                assert!(Arguments::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
            }
        }
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
}
