//! What the compiler cannot hold: who may use whom, what the engine must not know, and that pages and code agree.
//!
//! The sources are read as text: comments and strings are told from code, and paths are followed through groups and
//! `super`. What a macro makes and what a `use` renames beyond its own line is not seen. Style that rustfmt and clippy
//! hold is not repeated here.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::Path;

use source::{Source, circles, is_float, paths, paths_below, tokens};
use weir::store::redis::ScriptText;

/// Each module, and what it may use of the others: a whole module, or one item of it. ARCHITECTURE.md draws the same.
const MAY_USE: &[(&str, &[&str])] = &[
    ("engine", &[]),
    ("tls", &[]),
    ("store", &["engine", "tls"]),
    ("limiter", &["engine", "store"]),
    ("protobuf", &[]),
    ("rls", &["engine", "limiter", "protobuf"]),
    ("config", &["engine", "tls"]),
    ("xds", &["engine", "tls", "config", "protobuf"]),
    ("telemetry", &["engine", "tls"]),
    ("grpc", &["rls", "limiter", "telemetry", "lifecycle", "tls", "protobuf"]),
    ("http", &["rls", "limiter", "telemetry", "lifecycle", "config::instant", "config::nearest"]),
    ("lifecycle", &[]),
    ("fuzz", &["store", "limiter", "rls", "config", "grpc", "simulation", "telemetry", "xds"]),
    ("app", &["engine", "tls", "xds", "store", "limiter", "rls", "config", "telemetry", "grpc", "http", "lifecycle"]),
    ("simulation", &["engine", "store", "limiter", "rls", "config", "app"]),
    ("comparison", &["app", "engine", "limiter", "simulation"]),
    ("testing", &["engine", "store", "limiter", "rls", "config", "app", "simulation"]),
    ("cli", &["app", "comparison", "config", "engine", "rls", "simulation", "testing", "tls"]),
    ("main", &["cli"]),
];

/// Parts of a module, and what each may use of the others.
type Floors = &'static [(&'static str, &'static [&'static str])];

/// The floors inside of some modules: each folder or file there, and which of its neighbours it may use. The file of the
/// module itself stands above them and may use all; none of them takes anything from it.
const FLOORS: &[(&str, Floors)] = &[
    (
        "engine",
        &[
            (
                "classes",
                &["automaton", "branch", "descriptor", "limit", "matcher", "network", "pattern", "policy", "time"],
            ),
            ("observer", &["algorithm", "charge", "decision", "descriptor", "policy", "time"]),
            ("overrides", &["algorithm", "descriptor", "key", "limit", "pattern", "policy", "time"]),
            ("crossing", &["algorithm", "charge", "decision", "descriptor"]),
            ("decision", &["algorithm", "charge", "descriptor", "time"]),
            ("weight", &["algorithm", "charge", "limit", "time"]),
            (
                "policy",
                &[
                    "automaton",
                    "branch",
                    "charge",
                    "descriptor",
                    "key",
                    "limit",
                    "matcher",
                    "metadata",
                    "network",
                    "pattern",
                    "time",
                ],
            ),
            ("key", &["descriptor", "escape", "limit", "pattern", "time"]),
            ("branch", &["automaton", "matcher", "network", "pattern"]),
            ("matcher", &["automaton", "network", "pattern"]),
            ("automaton", &["pattern"]),
            ("network", &[]),
            ("charge", &["descriptor", "limit", "time"]),
            ("limit", &["algorithm", "escape", "share", "time"]),
            ("algorithm", &["arith", "descriptor", "time"]),
            ("words", &[]),
            ("pattern", &[]),
            ("metadata", &[]),
            ("share", &["descriptor"]),
            ("escape", &[]),
            ("descriptor", &[]),
            ("time", &[]),
            ("arith", &[]),
        ],
    ),
    (
        "store::redis",
        &[
            ("failure", &["transport", "base"]),
            ("checks", &["transport", "base"]),
            ("routing", &["transport", "dial", "base"]),
            ("scripts", &["transport"]),
            ("transport", &["dial", "base"]),
            ("dial", &["base"]),
            ("base", &[]),
        ],
    ),
];

/// The crates that the engine is made with: data structures, a hash, and automata of regular expressions.
const ENGINE_CRATES: &[&str] = &["hashbrown", "regex_automata", "regex_syntax", "sha2", "smallvec"];

/// Words that have no place in the engine: waiting, clocks, I/O, serialisation, floats, time zones.
const NOT_IN_ENGINE: &[&str] = &[
    "async",
    "await",
    "tokio",
    "Instant",
    "SystemTime",
    "UNIX_EPOCH",
    "serde",
    "serde_json",
    "f32",
    "f64",
    "chrono",
    "chrono_tz",
    "jiff",
    "tracing",
    "println",
    "eprintln",
    "dbg",
    "unsafe",
];

/// Parts of the standard library that have no place in the engine. Of `std::time` it may have `Duration`, and of `std::net` the
/// addresses.
const STD_NOT_IN_ENGINE: &[&str] = &["env", "fs", "io", "os", "process", "thread"];
const ADDRESSES: &[&str] = &["IpAddr", "Ipv4Addr", "Ipv6Addr"];

/// A source file is at most so many lines long, its own test module not counted.
const FILE_LINES_MAX: usize = 800;
/// A table of rows, which is read row by row, may be longer.
const TABLE: (&str, usize) = ("src/config/settings/table.rs", 1_400);

/// ARCHITECTURE.md is at most so many lines long.
const ARCHITECTURE_LINES_MAX: usize = 200;

#[test]
fn dependencies_point_one_way() {
    let mut problems = Problems::default();
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for source in rust_sources("src") {
        let own = source.module.first().map_or("lib", String::as_str);
        let Some(allowed) = table.get(own) else {
            if own != "lib" {
                problems.add(&source.path, 1, format!("module {own} is not in the table of tests/engine/tidy.rs"));
            }
            continue;
        };
        for (line, path) in paths(&source, if own == "main" { "weir" } else { "crate" }) {
            let Some(used) = path.first().filter(|used| *used != own) else { continue };
            let may = allowed.iter().any(|entry| {
                let entry: Vec<&str> = entry.split("::").collect();
                path.len() >= entry.len() && path.iter().zip(&entry).all(|(a, b)| a == b)
            });
            if !may {
                problems.add(&source.path, line, format!("{own} may not use {}", path.join("::")));
            } else if !table.contains_key(used.as_str()) {
                problems.add(&source.path, line, format!("{used} is not in the table of tests/engine/tidy.rs"));
            }
        }
    }
    problems.report();
}

#[test]
fn floors_use_only_those_below() {
    let mut problems = Problems::default();
    let sources = rust_sources("src");
    for (parent, floors) in FLOORS {
        let parent: Vec<&str> = parent.split("::").collect();
        let table: BTreeMap<&str, &[&str]> = floors.iter().copied().collect();
        let below = |path: &[String]| path.len() > parent.len() && path.iter().zip(&parent).all(|(a, b)| a == b);
        let mut seen = BTreeSet::new();
        for source in sources.iter().filter(|source| below(&source.module)) {
            let own = source.module[parent.len()].as_str();
            let Some(allowed) = table.get(own) else {
                problems.add(&source.path, 1, format!("{own} is not in the table of tests/engine/tidy.rs"));
                continue;
            };
            seen.insert(own);
            for (line, path) in paths(source, "crate").into_iter().filter(|(_, path)| below(path)) {
                let used = path[parent.len()].as_str();
                if !table.contains_key(used) {
                    problems.add(&source.path, line, format!("{own} takes {} from above", path.join("::")));
                } else if used != own && !allowed.contains(&used) {
                    problems.add(&source.path, line, format!("{own} may not use {}", path.join("::")));
                }
            }
        }
        let listed: BTreeSet<&str> = table.keys().copied().collect();
        assert_eq!(seen, listed, "the floors of {}", parent.join("::"));
    }
    problems.report();
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let sources = rust_sources("src");
    let mut problems = Problems::default();
    for circle in circles(&sources) {
        problems.add(circle[0], 1, format!("is in a circle with {}", circle[1..].join(", ")));
    }
    problems.report();
}

#[test]
fn the_table_names_the_modules_that_exist() {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let declared: BTreeSet<&str> =
        lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let listed: BTreeSet<&str> = MAY_USE.iter().map(|(module, _)| *module).filter(|module| *module != "main").collect();
    assert_eq!(declared, listed);
}

#[test]
fn the_engine_is_pure() {
    let mut problems = Problems::default();
    for source in rust_sources("src").iter().filter(|source| source.module.first().is_some_and(|top| top == "engine")) {
        let tokens = tokens(&source.code);
        let mut inner: BTreeSet<&str> =
            tokens.windows(2).filter(|pair| pair[0].text == "mod").map(|pair| pair[1].text).collect();
        inner.extend(tokens.windows(3).filter(|three| three[0].text == "macro_rules").map(|three| three[2].text));
        for (i, token) in tokens.iter().enumerate() {
            if NOT_IN_ENGINE.contains(&token.text) {
                problems.add(&source.path, token.line, format!("{} has no place in the engine", token.text));
            }
            if is_float(&tokens, i) {
                problems.add(&source.path, token.line, format!("{} is a float", token.text));
            }
            let head = tokens.get(i + 1).filter(|_| token.text == "use").map_or("", |head| head.text);
            let local = ["", "crate", "self", "super", "std", "core"].contains(&head) || inner.contains(head);
            if !local && !ENGINE_CRATES.contains(&head) {
                problems.add(&source.path, token.line, format!("crate {head} is not one that the engine is made with"));
            }
        }
        for root in ["std", "core"] {
            for (line, path) in paths_below(&tokens, root) {
                let bad = match path.first().map(String::as_str) {
                    Some("time") => path.get(1).is_none_or(|item| item != "Duration"),
                    Some("net") => path.get(1).is_none_or(|item| !ADDRESSES.contains(&item.as_str())),
                    Some(part) => STD_NOT_IN_ENGINE.contains(&part),
                    None => false,
                };
                if bad {
                    problems.add(&source.path, line, format!("{root}::{} has no place in the engine", path.join("::")));
                }
            }
        }
    }
    problems.report();
}

#[test]
fn only_main_ends_the_process() {
    let mut problems = Problems::default();
    for source in rust_sources("src").iter().filter(|source| source.path != "src/main.rs") {
        let tokens = tokens(&source.code);
        let mut found = paths_below(&tokens, "process");
        found.extend(
            paths_below(&tokens, "std")
                .into_iter()
                .filter_map(|(line, mut path)| (path.first()? == "process").then(|| (line, path.split_off(1)))),
        );
        found.retain(|(_, path)| path.first().is_some_and(|item| item == "exit" || item == "abort"));
        found.dedup();
        for (line, path) in found {
            problems.add(&source.path, line, format!("process::{} belongs to src/main.rs", path.join("::")));
        }
    }
    problems.report();
}

#[test]
fn files_say_what_they_are_for_and_stay_short() {
    let mut problems = Problems::default();
    for source in rust_sources("src").iter().chain(&rust_sources("tests")) {
        if !source.text.starts_with("//! ") {
            problems.add(&source.path, 1, "does not open with a //! comment that says what it is for");
        }
        let own = source.text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        let max = if source.path == TABLE.0 { TABLE.1 } else { FILE_LINES_MAX };
        if own > max {
            problems.add(&source.path, own, format!("{own} lines without its tests: at most {max}"));
        }
    }
    for ScriptText { name: path, text, .. } in weir::store::redis::scripts() {
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
        for part in ["KEYS", "ARGV", "reply"] {
            if !head.iter().any(|line| line.trim_start_matches(['-', ' ']).starts_with(part)) {
                problems.add(path, 1, format!("its opening comment does not explain {part}"));
            }
        }
    }
    problems.report();
}

#[test]
fn no_tabs_and_no_trailing_spaces() {
    let mut problems = Problems::default();
    let kinds = &["rs", "lua", "proto", "md", "toml", "yaml", "yml", "sh", "py", "json"];
    let mut all = Vec::new();
    for folder in ["src", "lua", "proto", "docs", "deploy", "examples", "bench"] {
        all.extend(texts(folder, kinds));
    }
    // As the generators write it.
    all.retain(|(path, _)| !path.starts_with("proto/generated"));
    all.extend(texts("tests", &["rs", "py"]));
    all.extend(texts_here(&["rs", "md", "toml"]));
    for (path, text) in all {
        for (number, line) in text.lines().enumerate() {
            if line.contains('\t') {
                problems.add(&path, number + 1, "has a tab");
            }
            if line.ends_with(' ') {
                problems.add(&path, number + 1, "ends in a space");
            }
        }
        if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
            problems.add(&path, text.lines().count(), "does not end with exactly one line break");
        }
    }
    problems.report();
}

/// The vectors cite rules too; tests/store/conformance.rs holds those against what the code cites.
#[test]
fn every_rule_cited_exists_and_every_rule_is_cited() {
    let mut problems = Problems::default();
    let page = "docs/semantics.md";
    let rules = rules(page, &fs::read_to_string(root().join(page)).unwrap(), &mut problems);
    let mut cited = BTreeSet::new();
    let mut cite = |path: &str, text: &str, problems: &mut Problems| {
        for (number, line) in text.lines().enumerate() {
            for rule in citations(line) {
                if !rules.contains_key(rule) {
                    problems.add(path, number + 1, format!("[{rule}] is no rule of {page}"));
                }
                cited.insert(rule.to_owned());
            }
        }
    };
    for source in rust_sources("src").iter().chain(&rust_sources("tests")) {
        cite(&source.path, &source.comments, &mut problems);
    }
    for (path, text) in texts("lua", &["lua"]) {
        cite(&path, &text, &mut problems);
    }
    for (rule, line) in &rules {
        if !cited.contains(rule) {
            problems.add(page, *line, format!("[{rule}] is cited nowhere"));
        }
    }
    assert!(!rules.is_empty(), "no rule was found on {page}");
    problems.report();
}

#[test]
fn the_architecture_page_is_short_and_names_tests_that_exist() {
    let mut problems = Problems::default();
    let page = "ARCHITECTURE.md";
    let text = fs::read_to_string(root().join(page)).unwrap();
    let lines = text.lines().count();
    if lines > ARCHITECTURE_LINES_MAX {
        problems.add(page, lines, format!("{lines} lines: at most {ARCHITECTURE_LINES_MAX}"));
    }
    let mut named = 0;
    for (number, line) in text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let words: Vec<&str> = quoted.split("::").collect();
            let (file, function) = match words.split_last() {
                Some((function, [binary, modules @ ..])) if !modules.is_empty() && words.iter().all(|w| is_word(w)) => {
                    (format!("tests/{binary}/{}.rs", modules.join("/")), *function)
                }
                _ if quoted.starts_with("tests/") && quoted.ends_with(".rs") => (quoted.to_owned(), ""),
                _ => continue,
            };
            named += 1;
            match fs::read_to_string(root().join(&file)) {
                Err(_) => problems.add(page, number + 1, format!("there is no {file}")),
                Ok(code) if !code.contains(&format!("fn {function}")) => {
                    problems.add(page, number + 1, format!("{file} has no test {function}"));
                }
                Ok(_) => {}
            }
        }
    }
    assert!(named > 0, "no test was found on {page}");
    problems.report();
}

/// Recipes that name a file which has moved send the reader nowhere.
#[test]
fn the_pages_for_contributors_name_files_that_exist() {
    const FOLDERS: [&str; 9] =
        ["bench/", "docs/", "examples/", "fuzz/", "lua/", "proto/", "scripts/", "src/", "tests/"];
    let mut problems = Problems::default();
    for page in ["ARCHITECTURE.md", "docs/contributing.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mut named = 0;
        for (number, line) in text.lines().enumerate() {
            for quoted in line.split('`').skip(1).step_by(2) {
                if FOLDERS.iter().any(|folder| quoted.starts_with(folder)) {
                    named += 1;
                    if !root().join(quoted).exists() {
                        problems.add(page, number + 1, format!("there is no {quoted}"));
                    }
                }
            }
        }
        assert!(named > 0, "no file was found on {page}");
    }
    problems.report();
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut problems = Problems::default();
    for (path, text) in pages() {
        let folder = Path::new(&path).parent().unwrap();
        for (number, line) in text.lines().enumerate() {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = link.split('#').next().unwrap_or("");
                let elsewhere = target.is_empty() || target.contains("://");
                if !elsewhere && !root().join(folder).join(target).exists() {
                    problems.add(&path, number + 1, format!("{link} leads nowhere"));
                }
            }
        }
    }
    problems.report();
}

/// The page is itself checked against the code, by tests/engine/settings.rs.
#[test]
fn settings_used_in_deploy_and_readme_are_on_the_configuration_page() {
    let mut problems = Problems::default();
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut all = texts("deploy", &["yaml", "yml", "md"]);
    for path in ["README.md", "Dockerfile"] {
        all.push((path.to_owned(), fs::read_to_string(root().join(path)).unwrap()));
    }
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c))).map(str::to_owned).collect()
    };
    let mut used = 0;
    for (path, text) in all {
        for (number, line) in text.lines().enumerate() {
            let flags = line.split_once("serve").map_or(Vec::new(), |(_, arguments)| words(arguments));
            let flags =
                flags.iter().filter(|word| word.starts_with("--")).map(|flag| (flag.clone(), format!("`{flag} ")));
            let names = words(line).into_iter().filter(|word| word.starts_with("WEIR__"));
            for (name, quoted) in names.map(|name| (name.clone(), format!("`{name}`"))).chain(flags) {
                used += 1;
                if !page.contains(&quoted) {
                    problems.add(&path, number + 1, format!("docs/configuration.md does not know {name}"));
                }
            }
        }
    }
    assert!(used > 0, "no setting was found");
    problems.report();
}

#[test]
fn yaml_of_deploy_parses() {
    let mut problems = Problems::default();
    for (path, text) in texts("deploy", &["yaml", "yml"]) {
        // Templates of the chart become YAML when helm renders them; scripts/check-deploy looks at the result.
        if path.contains("/templates/") {
            continue;
        }
        for event in saphyr_parser::Parser::new_from_str(&text) {
            if let Err(error) = event {
                problems.add(&path, error.marker().line(), error.info());
                break;
            }
        }
    }
    problems.report();
}

/// The numbered rules of a page and their lines. Each has a title and an example, and each letter counts up from 1.
fn rules(page: &str, text: &str, problems: &mut Problems) -> BTreeMap<String, usize> {
    let mut rules = BTreeMap::new();
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    let mut open: Option<(usize, &str)> = None;
    for (number, line) in text.lines().chain(["#"]).enumerate() {
        let heading = line.starts_with('#');
        let rule = line.strip_prefix("**[").and_then(|rest| rest.split(']').next());
        if (heading || rule.is_some())
            && let Some((line, rule)) = open.take()
        {
            problems.add(page, line, format!("[{rule}] has no example"));
        }
        if line.starts_with("Example: ") {
            open = None;
        }
        let Some(rule) = rule else { continue };
        open = Some((number + 1, rule));
        let (letters, place) = rule.split_once('-').unwrap_or((rule, ""));
        let expected = last.get(letters).map_or(1, |last| last + 1);
        if place != expected.to_string() {
            problems.add(page, number + 1, format!("[{rule}] should be [{letters}-{expected}]"));
        }
        last.insert(letters, expected);
        rules.insert(rule.to_owned(), number + 1);
    }
    rules
}

/// The rules that a line cites: two letters, a hyphen and a number, in brackets.
fn citations(line: &str) -> impl Iterator<Item = &str> {
    line.split('[').skip(1).filter_map(|rest| {
        let (rule, _) = rest.split_once(']')?;
        let (letters, number) = rule.split_once('-')?;
        let is_rule = letters.len() == 2
            && letters.bytes().all(|b| b.is_ascii_lowercase())
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit());
        is_rule.then_some(rule)
    })
}

/// What is wrong, and where.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, path: &str, line: usize, problem: impl Display) {
        self.0.push(format!("{path}:{line}: {problem}"));
    }

    fn report(self) {
        assert!(self.0.is_empty(), "\n{}\n", self.0.join("\n"));
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_sources(folder: &str) -> Vec<Source> {
    let sources: Vec<Source> =
        texts(folder, &["rs"]).into_iter().map(|(path, text)| Source::new(&path, text)).collect();
    assert!(!sources.is_empty(), "no source was found in {folder}");
    sources
}

fn pages() -> Vec<(String, String)> {
    let mut pages = texts_here(&["md"]);
    for folder in ["docs", "lua", "deploy", "proto", "bench", "examples", "tests"] {
        pages.extend(texts(folder, &["md"]));
    }
    pages
}

/// The files of the root folder with one of these extensions.
fn texts_here(extensions: &[&str]) -> Vec<(String, String)> {
    texts_in("", extensions, false)
}

/// The files below a folder with one of these extensions, by path from the root. None where there is no such folder.
fn texts(folder: &str, extensions: &[&str]) -> Vec<(String, String)> {
    texts_in(folder, extensions, true)
}

fn texts_in(folder: &str, extensions: &[&str], below: bool) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(root().join(folder)) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        let full = root().join(&path);
        let generated = path.ends_with("/target") || path.ends_with("__pycache__");
        if full.is_dir() && below && !generated {
            found.extend(texts_in(&path, extensions, true));
        } else if full.is_file() && full.extension().is_some_and(|kind| extensions.iter().any(|wanted| kind == *wanted))
        {
            let text = fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path}: {error}"));
            found.push((path, text));
        }
    }
    found
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// The checks above find what they look for.
mod self_checks {
    use super::*;

    fn used(path: &str, code: &str) -> Vec<String> {
        let source = Source::new(path, code.to_owned());
        paths(&source, "crate").into_iter().map(|(line, path)| format!("{line}:{}", path.join("::"))).collect()
    }

    #[test]
    fn paths_are_followed_through_groups_and_super() {
        assert_eq!(
            used(
                "src/store/redis.rs",
                "use crate::{engine::{Limit, key}, http};\nlet x = super::super::grpc::Y::new();"
            ),
            ["1:engine::Limit", "1:engine::key", "1:http", "2:grpc::Y::new"]
        );
        assert_eq!(
            used(
                "src/limiter.rs",
                "use super::app;\nmod tests {\n use super::*;\n use super::super::cli;\n}\nsuper::rls::X"
            ),
            ["1:app", "3:limiter", "4:cli", "6:rls::X"]
        );
        assert_eq!(
            used("src/a/b.rs", "use self::c::{self, d as e, f::*};"),
            ["1:a::b::c", "1:a::b::c::d", "1:a::b::c::f"]
        );
    }

    #[test]
    fn paths_begin_at_files_below_too() {
        assert_eq!(
            used("src/a.rs", "mod b;\npub use self::b::C;\nfn f() { b::g(); c::h() }\nmod tests { b::i(); }"),
            ["2:a::b::C", "3:a::b::g"]
        );
    }

    #[test]
    fn circles_are_found_whole() {
        let source = |path: &str, code: &str| Source::new(path, code.to_owned());
        let sources = [
            source("src/a.rs", "mod b; mod f;\nuse self::b::B;"),
            source("src/a/b.rs", "use crate::c::d::D; use super::A;"),
            source("src/a/f.rs", "use super::A; use crate::e::E;"),
            source("src/c.rs", "pub mod d;"),
            source("src/c/d.rs", "use crate::a::A; use crate::e::E;"),
            source("src/e.rs", "use super::c::C;"),
        ];
        assert_eq!(circles(&sources), [["src/a.rs", "src/a/b.rs", "src/c/d.rs"]]);
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let code = "a // crate::http\n/* crate::x /* */ crate::y */ let s = \"crate::\\\"z\"; let c = '\"'; 'l: loop {}\n\
                    let r = r#\"crate::\"w\"#; crate::app::run()";
        assert_eq!(used("src/grpc.rs", code), ["3:app::run"]);
        let source = Source::new("src/grpc.rs", "let a = b[dc-1]; // [fw-3]".to_owned());
        assert_eq!(source.comments.trim(), "// [fw-3]");
    }

    #[test]
    fn floats_are_told_from_indices_and_ranges() {
        for (code, expected) in [("1.5", true), ("x.0.1", false), ("0..9", false), ("1_000", false), ("(2.0, 1)", true)]
        {
            let tokens = tokens(code);
            assert_eq!((0..tokens.len()).any(|i| is_float(&tokens, i)), expected, "{code}");
        }
    }

    #[test]
    fn citations_are_two_letters_and_a_number() {
        let line = "see [fw-3], [pc-10]; not [at], [a-1], [fwx-1], [fw-] or [fw-3a]";
        assert_eq!(citations(line).collect::<Vec<_>>(), ["fw-3", "pc-10"]);
    }

    #[test]
    fn rules_need_an_example_and_their_place() {
        let mut problems = Problems::default();
        let text = "**[ab-1] A.** x\n\nExample: y\n\n**[ab-3] B.** x\n\n## C\n";
        let rules = rules("page", text, &mut problems);
        assert_eq!(rules.into_iter().collect::<Vec<_>>(), [("ab-1".to_owned(), 1), ("ab-3".to_owned(), 5)]);
        assert_eq!(problems.0, ["page:5: [ab-3] should be [ab-2]", "page:5: [ab-3] has no example"]);
    }
}
