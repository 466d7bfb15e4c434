//! `weir check`: validates policies and prints them.

mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_engine::callers::Callers;
use weir_engine::limit::COUNTS;
use weir_engine::network::Network;
use weir_engine::overrides::Numbers;
use weir_engine::plans::{PlanLimits, Plans};
use weir_engine::words::{counted, printable};
use weir_engine::{Domain, KeyValue, Limit, Matcher, Mode, PolicySet, Rule};
use weir_lab::testing::Strictness;
use weir_limiter::rows::{ROWS_OF_PROCESS_MAX, RowRefused, check_of_file};
use weir_policies::files::{Source, is_callers, is_overlay, is_test, is_traffic, row_files};
use weir_policies::traffic_file::{self, Origin, Sources};
use weir_policies::{
    Dialect, DomainOutline, Loaded, Outline, OverlayFile, PROBLEMS_MAX, Problems, RowsBeside, check_warnings,
    check_warnings_with, load, read_callers, test_file,
};
use weir_settings::{PolicySource, Settings, StoreKind};
use weir_text::{amount, instant_text, nearest, parameters, spell};

pub use report::{CheckFormat, report, report_settings};

use super::admin::ServerArguments;
use super::served::{self, NoPolicies, Served};

/// The largest width of the column of descriptors, in characters. A longer descriptor moves its limits to the right.
const LABEL_CHARS_MAX: usize = 60;
/// Replaces a value of the settings, which these commands do not load.
pub(super) const THE_SERVERS: &str = "the server's";
/// The most names of a kind that are listed.
const NAMED_MAX: usize = 8;
const INDENT: &str = "  ";

#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The policies are wrong; one line for each problem.
    #[error("{0}")]
    Policies(Problems),
    /// The files of rows beside them are wrong; one line for each problem.
    #[error("{}", .0.join("\n"))]
    Rows(Vec<String>),
    #[error("{0}")]
    Server(#[from] NoPolicies),
    /// A file with which the server does not start.
    #[error("{0}")]
    File(String),
    #[error("{0} is a file of tokens: write it in admin.token_file, and weir check --config FILE checks it")]
    Tokens(String),
    /// The file of callers has no such caller.
    #[error("{0}")]
    Caller(String),
    /// A server refuses newer policies and keeps its old ones.
    #[error("these policies are in force, and newer ones are refused:\n{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// A server refuses newer rows, callers or tokens.
    #[error("these policies are in force, and newer rows, callers or tokens are refused:\n{}", .0.join("\n"))]
    OthersRefused(Vec<String>),
    /// A token cannot see the domain.
    #[error("the token is only for {0}: it cannot see whether the server limits the domain {1:?}")]
    Unseen(String, String),
    /// The number of warnings, which count as errors.
    #[error("{}, which --strict makes {}", counted(.0, "warning"), if *.0 == 1 { "an error" } else { "errors" })]
    Warnings(usize),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Validates policies and writes a tree of their domains, descriptors and limits, then the warnings and totals. A single
/// file can also be one of tests, traffic, overlays or callers.
///
/// # Errors
/// When policies are wrong; then nothing is written. When writing fails, or when there are warnings that count
/// as errors.
pub fn run(
    source: impl Into<Source>,
    dialect: Dialect,
    strictness: Strictness,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let source = source.into();
    if let Some(other) = other_file(&source.directory) {
        return other(&source.directory, out);
    }
    let loaded = load(&source, dialect).map_err(|problems| no_policies(&source.directory, problems))?;
    checked(loaded, &source, None, &[], strictness, out)
}

/// Why a path has no valid policies.
fn no_policies(path: &Path, problems: Problems) -> Failed {
    if path.is_file() && weir_app::check_tokens(path).is_ok() {
        return Failed::Tokens(printable(&path.display().to_string()));
    }
    Failed::Policies(problems)
}

type Check = fn(&Path, &mut dyn Write) -> Result<(), Failed>;

/// How a file is checked that has no policies, by its name.
fn other_file(path: &Path) -> Option<Check> {
    let check: Check = match path {
        _ if is_test(path) => tests,
        _ if is_traffic(path) => traffic,
        _ if is_overlay(path) => overlays,
        _ if is_callers(path) => callers,
        _ => return None,
    };
    path.is_file().then_some(check)
}

/// As [`run`], for the policies that `weir serve` reads with these settings, or for `directory` in place of theirs.
///
/// # Errors
/// As [`run`].
pub fn run_settings(
    settings: &Settings,
    directory: Option<PathBuf>,
    strictness: Strictness,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let beside = Beside::read(settings)?;
    let Some((loaded, source)) = read_by_settings(settings, directory)? else {
        writeln!(out, "policies.source is xds: a control plane has the policies, so there are no files to check")?;
        beside.write(&beside.warnings, out)?;
        settings.policies.overlay.as_deref().map_or(Ok(()), |path| overlays(path, out))?;
        return judged(beside.warnings.len(), strictness);
    };
    let warnings = beside.warnings_with(&loaded);
    if beside.write(&warnings, out)? {
        writeln!(out)?;
    }
    checked(loaded, &source, Some(settings), &warnings, strictness, out)
}

/// What `weir serve` reads by its settings beside policies and rows.
struct Beside {
    callers: Option<(PathBuf, Callers)>,
    absent: Vec<PathBuf>,
    warnings: Vec<String>,
}

impl Beside {
    fn read(settings: &Settings) -> Result<Self, Failed> {
        let listening = weir_app::listening(&settings.listen);
        let read = |path: &PathBuf| read_callers(path, Some(&listening)).map(|callers| (path.clone(), callers));
        let callers = settings.callers_file.as_ref().map(read).transpose().map_err(Failed::Policies)?;
        let files = weir_app::check_files(settings).map_err(|error| Failed::File(printable(&error.to_string())))?;
        let warnings = files.warnings.iter().map(|warning| printable(warning)).collect();
        Ok(Self { callers, absent: files.absent, warnings })
    }

    /// Also the domains of callers that no domain of these policies meets.
    fn warnings_with(&self, loaded: &Loaded) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        let Some((path, callers)) = &self.callers else { return warnings };
        let names = || loaded.policies.domains().map(|domain| &*domain.name);
        let unmet = callers.list().iter().flat_map(|caller| {
            let unmet = caller.domains.texts().filter(|text| match text.strip_suffix('*') {
                Some(beginning) => !names().any(|name| name.starts_with(beginning)),
                None => loaded.policies.domain(text).is_none(),
            });
            unmet.map(|text| (&caller.name, text))
        });
        let file = printable(&path.display().to_string());
        warnings.extend(unmet.take(NAMED_MAX).map(|(caller, text)| {
            let near = nearest(text.trim_end_matches('*'), names());
            let near = near.map_or_else(String::new, |near| format!(", the nearest is {near:?}"));
            format!("{file}: the caller {caller} has the domain {text:?}, which meets no domain of the policies{near}")
        }));
        warnings
    }

    /// Writes the totals and warnings. Returns whether there are any.
    fn write(&self, warnings: &[String], out: &mut dyn Write) -> io::Result<bool> {
        if let Some((path, callers)) = &self.callers {
            writeln!(out, "{}", total_of_callers(path, callers))?;
        }
        for path in &self.absent {
            writeln!(
                out,
                "{}: not checked, because it is not on this machine",
                printable(&path.display().to_string())
            )?;
        }
        for warning in warnings {
            writeln!(out, "warning: {warning}")?;
        }
        Ok(self.callers.is_some() || !self.absent.is_empty() || !warnings.is_empty())
    }
}

/// The policies that `weir serve` reads with these settings, or those of a directory. None if a control plane has them.
fn read_by_settings(settings: &Settings, directory: Option<PathBuf>) -> Result<Option<(Loaded, Source)>, Failed> {
    if settings.policies.source == PolicySource::Xds && directory.is_none() {
        let overlay = settings.policies.overlay.as_deref().map(OverlayFile::read).transpose();
        return overlay.map(|_| None).map_err(Failed::Policies);
    }
    let of_settings = weir_app::source(&settings.policies, u64::MAX);
    let source = Source { directory: directory.unwrap_or_else(|| of_settings.directory.clone()), ..of_settings };
    let loaded = load(&source, weir_policies::Dialect::of(&settings.policies)).map_err(Failed::Policies)?;
    Ok(Some((loaded, source)))
}

/// Adds the warnings to policies, and reads the files of rows beside them. Returns the totals of the rows, if there are any.
fn prepared(
    mut loaded: Loaded,
    source: &Source,
    settings: Option<&Settings>,
) -> Result<(Loaded, Option<String>), Failed> {
    let rows = rows_beside(source, &loaded, settings.map(|settings| settings.store))?;
    check_warnings_with(&mut loaded, settings.map(|settings| settings.response.delay_header));
    Ok((loaded, rows))
}

fn checked(
    loaded: Loaded,
    source: &Source,
    settings: Option<&Settings>,
    more_warnings: &[String],
    strictness: Strictness,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let (loaded, rows) = prepared(loaded, source, settings)?;
    let on_error = settings.map_or_else(|| THE_SERVERS.to_owned(), |settings| of_server(settings.on_error.name()));
    write(&loaded, &on_error, out)?;
    if let Some(rows) = rows {
        writeln!(out, "{rows}")?;
    }
    judged(loaded.warnings.count() + more_warnings.len(), strictness)
}

/// Checks the files of rows beside the policies, and returns their totals, and whether this store uses them.
fn rows_beside(source: &Source, loaded: &Loaded, store: Option<StoreKind>) -> Result<Option<String>, Failed> {
    let files = row_files(source.clone()).map_err(|error| Failed::Rows(vec![error.to_string()]))?;
    let beside = RowsBeside::read(&files, ROWS_OF_PROCESS_MAX, PROBLEMS_MAX).map_err(Failed::Rows)?;
    let (rows, places) = beside.into_parts();
    let checked = rows.iter().map(|row| check_of_file(&loaded.policies, row)).enumerate();
    let problem = |(at, refused): (usize, RowRefused)| places.problem(at, refused.field(), &refused);
    let wrong = checked.filter_map(|(at, row)| Some((at, row.err()?)));
    let problems: Vec<String> = wrong.take(PROBLEMS_MAX).map(problem).collect();
    if !problems.is_empty() {
        return Err(Failed::Rows(problems));
    }
    let effect = match store {
        Some(StoreKind::Memory) => "",
        Some(StoreKind::Redis) => ": ignored with Redis, weir rows import writes them",
        None => ": in force with the memory store, ignored with Redis",
    };
    let total = || format!("{} in {}{effect}", counted(rows.len(), "row"), counted(files.len(), "file"));
    Ok((!files.is_empty()).then(total))
}

/// As [`run`], for the policies in force on a running server. Also writes the problems of what the server refuses.
///
/// # Errors
/// As [`run`]; also when the server returns no policies, or refuses newer ones.
pub fn run_served(server: &ServerArguments, strictness: Strictness, out: &mut dyn Write) -> Result<(), Failed> {
    let Served { mut loaded, on_error, problems, other_problems, domains } = served::policies(server)?;
    check_warnings(&mut loaded);
    write(&loaded, &of_server(&on_error), out)?;
    if let Some(domains) = domains {
        writeln!(out, "a part of the policies: the token is only for {}", printable(&domains.to_string()))?;
    }
    if !problems.is_empty() {
        return Err(Failed::Refused([problems, other_problems].concat()));
    }
    if !other_problems.is_empty() {
        return Err(Failed::OthersRefused(other_problems));
    }
    judged(loaded.warnings.count(), strictness)
}

/// For a value that no policy sets: the server's value.
pub(super) fn of_server(on_error: &str) -> String {
    format!("{on_error}, from the server")
}

fn judged(warnings: usize, strictness: Strictness) -> Result<(), Failed> {
    if strictness == Strictness::Strict && warnings > 0 { Err(Failed::Warnings(warnings)) } else { Ok(()) }
}

/// Validates a file of tests and writes its totals.
fn tests(path: &Path, out: &mut dyn Write) -> Result<(), Failed> {
    let file = test_file::read(path).map_err(Failed::Policies)?;
    let asks = file.cases.iter().map(|case| case.asks).sum::<u64>();
    let asks = counted(asks, "request");
    writeln!(out, "{}: {}, {asks}", file.name, counted(file.cases.len(), "test case"))?;
    Ok(())
}

/// Validates a file of traffic and writes its totals.
fn traffic(path: &Path, out: &mut dyn Write) -> Result<(), Failed> {
    let file = traffic_file::read(path).map_err(Failed::Policies)?;
    match file.origin {
        Origin::Sources(Sources { sources, duration, .. }) => {
            let sources = counted(sources.len(), "source");
            writeln!(out, "{}: {sources} of traffic over {}", file.name, spell(Duration::from_micros(duration)))?;
        }
        Origin::AccessLog(log) => {
            writeln!(out, "{}: an access log, {}", file.name, printable(&log.path.display().to_string()))?;
        }
    }
    Ok(())
}

/// Validates a file of overlays by itself and writes its totals.
fn overlays(path: &Path, out: &mut dyn Write) -> Result<(), Failed> {
    let file = OverlayFile::read(path).map_err(Failed::Policies)?;
    let (name, overlays) = (printable(&path.display().to_string()), counted(file.count(), "overlay"));
    writeln!(out, "{name}: {overlays}; --overlay adds them to policies")?;
    Ok(())
}

/// Validates a file of callers by itself and writes its total.
fn callers(path: &Path, out: &mut dyn Write) -> Result<(), Failed> {
    let callers = read_callers(path, None).map_err(Failed::Policies)?;
    writeln!(out, "{}", total_of_callers(path, &callers))?;
    Ok(())
}

fn total_of_callers(path: &Path, callers: &Callers) -> String {
    format!("{}: {}", printable(&path.display().to_string()), counted(callers.list().len(), "caller"))
}

/// Writes policies: the tree, the warnings, then totals. `servers` is the `on_error` of the server.
pub(super) fn write(loaded: &Loaded, servers: &str, out: &mut dyn Write) -> io::Result<()> {
    for domain in &loaded.domains {
        write_domain(&loaded.policies, domain, servers, out)?;
        writeln!(out)?;
    }
    if loaded.warnings.count() > 0 {
        writeln!(out, "{}\n", loaded.warnings)?;
    }
    writeln!(out, "{}", totals(loaded))
}

fn write_domain(policies: &PolicySet, domain: &DomainOutline, servers: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = Vec::new();
    for outline in &domain.descriptors {
        add_lines(policies, outline, 1, &mut lines);
    }
    let found = policies.domain(&domain.name);
    writeln!(
        out,
        "domain {}   {}{}",
        printable(&domain.name),
        domain.place,
        found.map_or_else(String::new, |domain| domain_wide(domain, servers))
    )?;
    if lines.is_empty() {
        writeln!(out, "{INDENT}no descriptors: everything passes")?;
    }
    // The widths of the columns, without descriptors that are too long.
    let mut widths = [0; 2];
    for line in &lines {
        for (width, text) in widths.iter_mut().zip([&line.label, &line.limit]) {
            let chars = text.chars().count();
            if chars <= LABEL_CHARS_MAX {
                *width = chars.max(*width);
            }
        }
    }
    for TreeLine { label, limit, details } in &lines {
        let line = format!("{label:0$}   {limit:1$}   {details}", widths[0], widths[1]);
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// The properties of a domain, for the end of its line.
pub(super) fn domain_wide(domain: &Domain, servers: &str) -> String {
    let charging = match domain.mode {
        None => "",
        Some(Mode::Atomic) => "   charging atomic",
        Some(Mode::Independent) => "   charging independent",
    };
    let on_error: &str = match domain.on_error {
        Some(on_error) => on_error.name(),
        None => servers,
    };
    format!("{charging}   on_error {on_error}")
}

/// One line of the tree: a descriptor and its first limit, or a further limit.
struct TreeLine {
    label: String,
    limit: String,
    details: String,
}

fn add_lines(policies: &PolicySet, outline: &Outline, level: usize, lines: &mut Vec<TreeLine>) {
    let shared = if outline.share_threshold { " (all as one)" } else { "" };
    let label = format!("{}{}{shared}", INDENT.repeat(level), label(outline));
    let rule = outline.note.rule.and_then(|id| policies.rules().get(id as usize));
    let limits = match rule {
        Some(rule) => describe(rule),
        None if outline.descriptors.is_empty() => vec![("no limit".to_owned(), String::new())],
        // A level without a rule.
        None => vec![(String::new(), String::new())],
    };
    for (i, (limit, mut details)) in limits.into_iter().enumerate() {
        let label = if i == 0 { label.clone() } else { String::new() };
        if let Some(on_error) = rule.and_then(|rule| rule.on_error) {
            details.push_str(&format!(", on_error {}", on_error.name()));
        }
        lines.push(TreeLine { label, limit, details });
    }
    for below in &outline.descriptors {
        add_lines(policies, below, level + 1, lines);
    }
}

/// The descriptor as written: `key=value`, `key=[value, value]`, `key=~regex`, or the key alone.
pub(super) fn label(outline: &Outline) -> String {
    let value = match &outline.value {
        None => return printable(&outline.key),
        Some(Matcher::List(values)) => some_in_brackets(values.iter().map(|value| printable(value))),
        Some(Matcher::Networks(networks)) => some_in_brackets(networks.iter().map(Network::to_string)),
        Some(one) => printable(&one.name()),
    };
    format!("{}={value}", printable(&outline.key))
}

fn some_in_brackets(items: impl ExactSizeIterator<Item = String>) -> String {
    if items.len() == 1 { items.collect() } else { format!("[{}]", some_of(items)) }
}

/// A few names, and how many more there are.
pub(super) fn some_of(mut names: impl Iterator<Item = String>) -> String {
    let mut text = names.by_ref().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// The limits of a rule, each as its amount and its algorithm; one line for an unlimited rule. Without `on_error`.
pub(super) fn describe(rule: &Rule) -> Vec<(String, String)> {
    let of_rule: Vec<String> = rule.keys().into_iter().filter_map(|(key, value)| key_of_rule(key, value)).collect();
    if rule.unlimited {
        return vec![("unlimited".to_owned(), of_rule.join(", "))];
    }
    let mut lines = Vec::new();
    for (at, limit) in rule.limits.iter().enumerate() {
        let mut details = details(limit);
        details.extend(of_rule.iter().cloned());
        details.extend(rule.rows.as_deref().and_then(|plans| numbers_of_plans(plans, at)));
        lines.push((amount(limit), details.join(", ")));
    }
    lines
}

/// A key of a descriptor with its value. None if it has no effect, or if it is shown elsewhere.
fn key_of_rule(key: &str, value: KeyValue<'_>) -> Option<String> {
    match (key, value) {
        ("unlimited" | "on_error", _) => None,
        ("shadow_mode", KeyValue::Flag(true)) => Some("shadow: never denies".to_owned()),
        ("quota_mode", KeyValue::Flag(true)) => {
            Some("quota: denies when all quotas of the request are over".to_owned())
        }
        ("rows", KeyValue::Text(Some(plan))) => Some(format!("rows: default {}", printable(plan))),
        (key, value) => in_words(key, value),
    }
}

/// A key with its value. None if it has no effect.
fn in_words(key: &str, value: KeyValue<'_>) -> Option<String> {
    Some(match value {
        KeyValue::Flag(true) | KeyValue::Metadata(Some(_)) => key.to_owned(),
        KeyValue::Length(Some(us)) => format!("{key} {}", spell(Duration::from_micros(us))),
        KeyValue::Number(Some(number)) => format!("{} {number}", key.replace('_', " ")),
        KeyValue::Word(word) if word != COUNTS[0] => format!("{key} {word}"),
        KeyValue::Spans(Some(during)) => format!("{key} {during}"),
        KeyValue::Amount(Some(amount)) => format!("{} hits are 1 {}", amount.scale(), amount.unit()),
        KeyValue::Instant(Some(at)) if at > 0 => format!("{key} {}", instant_text(at)),
        KeyValue::Percents(shares) if !shares.is_empty() => {
            let shares: Vec<String> = shares.iter().map(|share| share.to_string()).collect();
            format!("{key} {} %", shares.join(", "))
        }
        KeyValue::Text(Some(text)) => format!("{key} {}", printable(text)),
        KeyValue::Names(names) if !names.is_empty() => {
            let names: Vec<_> = names.iter().map(|name| printable(name)).collect();
            format!("{key} {}", names.join(" "))
        }
        _ => return None,
    })
}

/// The amount and the algorithm of a limit, in one line.
pub(super) fn limit_in_words(limit: &Limit) -> String {
    format!("{}, {}", amount(limit), details(limit).join(", "))
}

/// The algorithm and its parameters, as in a policy: `token_bucket burst 20 refill interval`.
fn algorithm(limit: &Limit) -> String {
    [limit.algorithm().name(), &parameters(limit)].join(" ").trim_end().to_owned()
}

/// The numbers of the limit at this position under each plan except the default. None if there are no other plans.
fn numbers_of_plans(plans: &Plans, at: usize) -> Option<String> {
    let under = |(plan, limits): (&str, &PlanLimits)| {
        let plan = printable(plan);
        match &limits[at] {
            Some(limit) => {
                if limit.algorithm().counts_permits() || limit.amount.is_some() {
                    return format!("{plan}={}", amount(limit));
                }
                let (requests, window) = (limit.requests(), limit.window());
                Numbers { name: Some(plan.into()), requests, window, burst: None }.to_string()
            }
            None => format!("{plan}=unlimited"),
        }
    };
    let all: Vec<String> = plans.iter().skip(1).map(under).collect();
    (!all.is_empty()).then(|| format!("plans {}", all.join("; ")))
}

pub(super) fn describe_limit(limit: &Limit) -> String {
    format!("{}   {}", amount(limit), details(limit).join(", "))
}

fn details(limit: &Limit) -> Vec<String> {
    let mut details = vec![algorithm(limit)];
    if let Some(name) = &limit.name {
        details.push(format!("name {}", printable(name)));
    }
    if limit.requests() == 0 {
        details.push("denies everything".to_owned());
    }
    for (key, value) in limit.keys() {
        match value {
            // Permits are always held.
            KeyValue::Flag(true) if key == "hold" && limit.algorithm().counts_permits() => {}
            KeyValue::Flag(true) if key == "shadow" => {
                details.push("on trial: never denies, and is not shown to callers".to_owned());
            }
            value => details.extend(in_words(key, value)),
        }
    }
    details
}

fn totals(loaded: &Loaded) -> String {
    let rules = loaded.policies.rules();
    let limits: usize = rules.iter().map(|rule| rule.limits.len()).sum();
    let overlays = loaded.overlays.as_ref().map(|used| format!(", with {}", counted(used.count, "overlay")));
    format!(
        "{}, {}, {} in {}{}",
        counted(loaded.domains.len(), "domain"),
        counted(rules.len(), "rule"),
        counted(limits, "limit"),
        counted(loaded.files, "file"),
        overlays.unwrap_or_default()
    )
}
