//! docs/policies.md and the examples that it names, held to the code: defaults, bounds, every example, and what each algorithm
//! admits of the same traffic.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use weir_engine::algorithm::counting::DEBT_US_MAX;
use weir_engine::algorithm::sliding_window::BUCKETS_MAX;
use weir_engine::algorithm::sliding_window_log::REQUESTS_MAX;
use weir_engine::automaton::{PATTERNS_MAX, REGEX_BYTES_MAX};
use weir_engine::decision::decide;
use weir_engine::policy::LIMITS_PER_RULE_MAX;
use weir_engine::time::{WINDOW_US_MAX, WINDOW_US_MIN};
use weir_engine::weigh::{FACTORS_MAX, WEIGHING_ENTRIES_MAX};
use weir_engine::wildcards::{INNER_MAX, STEPS_MAX};
use weir_engine::{Algorithm, COUNT_MAX, Charge, Limit, Mode, OnError, Operation, State, Unit};
use weir_policies::{
    DEPTH_MAX, DESCRIPTORS_MAX, DOMAIN_BYTES_MAX, FILE_BYTES_MAX, KEY_BYTES_MAX, KINDS, LEVELS_MAX, NAME_BYTES_MAX,
    NODES_MAX, OverlayFile, PROBLEMS_MAX, REGEXES_MAX, REPLACES_MAX, Row, SHORT_UNITS, VALUE_BYTES_MAX, VALUES_MAX,
    load_dir, parse,
};

const SECOND: u64 = 1_000_000;
/// A minute of the clock in 2041.
const START: u64 = 37_400_000 * 60 * SECOND;

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policies.md")).unwrap()
}

/// What stands below a heading, up to the next of any kind.
fn section(heading: &str) -> String {
    let page = page();
    let start = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading} on the page"));
    let text = &page[start + heading.len() + 2..];
    text[..text.find("\n##").unwrap_or(text.len())].to_owned()
}

/// The rows of the table below a heading, without its head.
fn table(heading: &str) -> Vec<Vec<String>> {
    let section = section(heading);
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<_> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "no table below {heading}");
    rows
}

/// A cell that is one piece of code.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|code| !code.contains('`'))
}

/// All pieces of code in a text.
fn codes(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The limits of a policy of one rule.
fn limits_of(limit: &str) -> Vec<Limit> {
    let text = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {limit}}}]\n");
    match parse(&[("p.yaml", &text)]) {
        Ok(loaded) => loaded.policies.rules()[0].limits.to_vec(),
        Err(problems) => panic!("{limit}: {problems}"),
    }
}

/// An example uses its key, and is a part of a policy that loads.
#[test]
fn the_example_of_each_key_loads() {
    for kind in KINDS {
        for Row { name, example, .. } in kind.keys {
            assert!(example.contains(&format!("{name}: ")), "{example} does not use {name}");
            let rows = if *name == "plans" { ", rows: {default: free}" } else { "" };
            let text = match kind.name {
                "a policy file" => (*example).to_owned(),
                "a descriptor" => format!("domain: d\ndescriptors: [{example}]\n"),
                "a rate limit" => format!("domain: d\ndescriptors: [{{key: k{rows}, rate_limit: {example}}}]\n"),
                "a hold" => {
                    format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{rate: 200/s, hold: {example}}}}}]\n")
                }
                "weigh" => format!("domain: d\ndescriptors: [{{key: k, weigh: {example}, rate_limit: 1/s}}]\n"),
                "request_limit" => format!(
                    "domain: d\ndescriptors: [{{key: k, request_limit: {example}, rate_limit: {{rate: 1/s, name: rpm}}}}]\n"
                ),
                "an amount" => {
                    format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{rate: 9/s, amount: {example}}}}}]\n")
                }
                "rows" => format!("domain: d\ndescriptors: [{{key: k, rows: {example}, rate_limit: 1/s}}]\n"),
                _ => {
                    format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{rate: 1/s, replaces: [{example}]}}}}]\n")
                }
            };
            if let Err(problems) = parse(&[("p.yaml", &text)]) {
                panic!("{example}: {problems}");
            }
        }
    }
}

#[test]
fn the_default_of_a_key_is_what_a_limit_without_it_has() {
    let mut defaults = 0;
    for Row { name, default, only, .. } in KINDS[2].keys {
        let Some(default) = code(default) else { continue };
        defaults += 1;
        let algorithm = only.as_ref().and_then(|only| only.algorithms().last()).unwrap_or("fixed_window");
        let base = match *name {
            "timezone" => "rate: 5/month, calendar: true".to_owned(),
            "algorithm" | "unlimited" => "rate: 5/month".to_owned(),
            _ => format!("rate: 5/month, algorithm: {algorithm}"),
        };
        let (without, with) = (format!("{{{base}}}"), format!("{{{base}, {name}: {default}}}"));
        assert_eq!(limits_of(&without), limits_of(&with), "{with}");
    }
    assert!(defaults >= 8, "{defaults} keys have a default");
}

#[test]
fn the_page_lists_the_short_words_for_units() {
    let rows = table("### Short forms");
    assert_eq!(rows.len(), Unit::ALL.len());
    for (row, unit) in rows.iter().zip(Unit::ALL) {
        let mut words: BTreeSet<_> =
            SHORT_UNITS.iter().filter(|(_, short)| *short == unit).map(|(word, _)| *word).collect();
        words.insert(unit.name());
        assert_eq!(codes(&row[0]), words);
        let seconds = unit.window().us() / SECOND;
        assert_eq!(row[1], format!("{seconds} s"), "{}", unit.name());
    }
}

#[test]
fn the_page_tells_the_bounds_of_the_code() {
    let days = |us: u64| us / (86_400 * SECOND);
    let expected = [
        ("size of a file", format!("{} MiB, or `policies.file_bytes` if this is less", FILE_BYTES_MAX >> 20)),
        ("values in a file, including keys and expanded aliases", NODES_MAX.to_string()),
        ("levels of nested lists and mappings", DEPTH_MAX.to_string()),
        ("descriptors in all files", format!("{DESCRIPTORS_MAX}; `policies.total_bytes` can allow fewer")),
        ("items of `values` and `cidr` in all files", VALUES_MAX.to_string()),
        ("regular expressions in all files", REGEXES_MAX.to_string()),
        ("wildcards and regular expressions for one key at one level", PATTERNS_MAX.to_string()),
        ("steps to compare one value with the wildcards for one key at one level", STEPS_MAX.to_string()),
        (
            "texts between two `*` of which each ends with the next one, such as `cba`, `ba` and `a`, for one key at one level",
            INNER_MAX.to_string(),
        ),
        ("regular expression", format!("{REGEX_BYTES_MAX} bytes")),
        ("levels of descriptors", LEVELS_MAX.to_string()),
        ("domain", format!("{DOMAIN_BYTES_MAX} bytes")),
        ("key of a descriptor", format!("{KEY_BYTES_MAX} bytes")),
        ("value of a descriptor", format!("{VALUE_BYTES_MAX} bytes")),
        ("name of a limit", format!("{NAME_BYTES_MAX} bytes")),
        ("limits of one rule", LIMITS_PER_RULE_MAX.to_string()),
        ("values under `by` of one `weigh`", FACTORS_MAX.to_string()),
        ("different values of `entry`, in all `weigh` of one domain", WEIGHING_ENTRIES_MAX.to_string()),
        ("names that one limit replaces", REPLACES_MAX.to_string()),
        ("requests_per_unit of a `fixed_window` with `calendar: true` or `anchor: first_hit`", COUNT_MAX.to_string()),
        ("requests_per_unit of every other limit; every burst", u32::MAX.to_string()),
        ("window", format!("{} ms to {} days", WINDOW_US_MIN / 1_000, days(WINDOW_US_MAX))),
        ("sub-buckets of a sliding_window", BUCKETS_MAX.to_string()),
        ("hits of a sliding_window_log", REQUESTS_MAX.to_string()),
        ("window of concurrency", "1 s to 1 h, in whole milliseconds".to_owned()),
        ("time in which a full burst drains", format!("2^{} us, 8.9 years", DEBT_US_MAX.trailing_zeros())),
        ("problems that are shown", PROBLEMS_MAX.to_string()),
    ];
    let told: Vec<_> = table("## Bounds").into_iter().map(|row| (row[0].clone(), row[1].replace(',', ""))).collect();
    let expected: Vec<_> = expected.map(|(what, bound)| (what.to_owned(), bound.replace(',', ""))).into();
    assert_eq!(told, expected);
}

#[test]
fn every_policy_on_the_page_loads() {
    let page = page();
    let mut policies = 0;
    for block in page.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let read = match text.starts_with("overlays:") {
            true => OverlayFile::of("page.yaml", text).map(drop),
            false => parse(&[("page.yaml", text)]).map(drop),
        };
        if let Err(problems) = read {
            panic!("{text}\n{problems}");
        }
        policies += 1;
    }
    assert!(policies > 2, "{policies}");
}

#[test]
fn there_is_an_example_of_each_algorithm() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/algorithms");
    let loaded = load_dir(&directory).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(loaded.files, Algorithm::NAMES.len());
    for domain in &loaded.domains {
        let file = Path::new(&*domain.place.file).file_stem().unwrap().to_str().unwrap();
        assert_eq!(domain.name, file, "a file is named for its domain");
        let rules = loaded.policies.rules().iter().filter(|rule| *rule.domain == *domain.name);
        let mut limits = rules.flat_map(|rule| &rule.limits);
        assert!(limits.any(|limit| limit.algorithm().name() == file), "{file} has no limit of that algorithm");
    }
    let named: BTreeSet<_> = loaded.domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(named, Algorithm::NAMES.into_iter().collect());
    let rows = table("## Which algorithm");
    let on_the_page: BTreeSet<_> =
        rows.iter().flat_map(|row| codes(&row[0])).filter(|code| !code.contains(':')).collect();
    assert_eq!(on_the_page, named);
}

#[test]
fn the_page_and_an_example_have_every_word_of_on_error() {
    let rows = table("## When the store does not answer");
    let told: Vec<_> = rows.iter().filter_map(|row| code(&row[0])).collect();
    assert_eq!(told, OnError::NAMES);

    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/on_error");
    let loaded = load_dir(&directory).unwrap_or_else(|problems| panic!("{problems}"));
    let domain = loaded.policies.domain("shop").unwrap();
    let said = loaded.policies.rules().iter().filter_map(|rule| domain.on_error_of(Some(rule)));
    let words: BTreeSet<_> = said.map(|(on_error, _)| on_error.name()).collect();
    assert_eq!(words, OnError::NAMES.into_iter().collect());
}

/// One limit on one key, by the engine alone.
struct Counter {
    limit: Limit,
    state: Option<State>,
    /// When each hit was admitted.
    admitted: Vec<u64>,
}

impl Counter {
    fn new(limit: Limit) -> Self {
        Self { limit, state: None, admitted: Vec::new() }
    }

    /// Asks for one hit so many times at one instant; how many are admitted.
    fn ask(&mut self, now: u64, times: usize) -> usize {
        let before = self.admitted.len();
        for _ in 0..times {
            let (key, operation) = ("k", Operation::Consume(1));
            let charge = Charge::alone(key, &self.limit, operation);
            let decision = decide(&[charge], &[0], std::slice::from_mut(&mut self.state), Mode::Atomic, now).unwrap();
            if !decision.denied {
                self.admitted.push(now);
            }
        }
        self.admitted.len() - before
    }

    /// The most hits that were admitted within one minute, wherever it begins.
    fn most_in_a_minute(&self) -> usize {
        let within = |from: u64| self.admitted.iter().filter(|&&at| (from..from + 60 * SECOND).contains(&at)).count();
        self.admitted.iter().map(|&from| within(from)).max().unwrap_or(0)
    }
}

/// The first column of the page's table says what the limit is; the engine says what the others are.
#[test]
fn the_page_shows_what_each_algorithm_admits_of_the_same_traffic() {
    // A single hit at second 20, then rushes of fifteen.
    let rushes = [(20, 1), (50, 15), (60, 15), (90, 15), (110, 15), (120, 15)];
    let mut differing = String::new();
    let mut algorithms = BTreeSet::new();
    for row in table("### The same traffic") {
        let parameters = code(&row[0]).unwrap();
        let amount = if parameters.contains("window: ") { "requests_per_unit: 10" } else { "rate: 10/min" };
        let limit = limits_of(&format!("{{{amount}, {parameters}}}")).remove(0);
        algorithms.insert(limit.algorithm().name());
        let mut cells = vec![row[0].clone()];
        let mut rushed = Counter::new(limit.clone());
        for (second, hits) in rushes {
            cells.push(rushed.ask(START + second * SECOND, hits).to_string());
        }
        cells.push(rushed.most_in_a_minute().to_string());
        // A request at each of so many seconds, for an hour.
        for every in [6, 1] {
            let mut even = Counter::new(limit.clone());
            for second in (0..3600).step_by(every) {
                even.ask(START + second * SECOND, 1);
            }
            cells.push(even.admitted.len().to_string());
        }
        if cells != row {
            writeln!(differing, "| {} |", cells.join(" | ")).unwrap();
        }
    }
    assert!(differing.is_empty(), "these rows are:\n{differing}");
    assert_eq!(algorithms, Algorithm::NAMES.into_iter().collect());
}
