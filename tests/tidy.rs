//! What the compiler cannot hold: who may use whom, what the engine must not know, and that pages and code agree.
//!
//! The sources are read as text: comments and strings are told from code, and paths are followed through groups and
//! `super`. What a macro makes and what a `use` renames beyond its own line is not seen. Style that rustfmt and clippy
//! hold is not repeated here.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::Path;

/// Each module, and what it may use of the others: a whole module, or one item of it. ARCHITECTURE.md draws the same.
const MAY_USE: &[(&str, &[&str])] = &[
    ("engine", &[]),
    ("tls", &[]),
    ("store", &["engine", "tls"]),
    ("limiter", &["engine", "store"]),
    ("rls", &["engine", "limiter"]),
    ("config", &["engine", "tls"]),
    ("xds", &["engine", "tls", "config"]),
    ("telemetry", &["engine"]),
    ("grpc", &["rls", "limiter", "telemetry", "lifecycle", "tls"]),
    ("http", &["rls", "limiter", "telemetry", "lifecycle"]),
    ("lifecycle", &[]),
    ("app", &["engine", "tls", "xds", "store", "limiter", "rls", "config", "telemetry", "grpc", "http", "lifecycle"]),
    ("cli", &["app", "config", "engine", "rls"]),
    ("main", &["cli"]),
];

/// The crates that the engine is made with: data structures and a hash.
const ENGINE_CRATES: &[&str] = &["hashbrown", "sha2", "smallvec"];

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

/// Parts of the standard library that have no place in the engine. Of `std::time` it may have `Duration`.
const STD_NOT_IN_ENGINE: &[&str] = &["env", "fs", "io", "net", "os", "process", "thread"];

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
                problems.add(&source.path, 1, format!("module {own} is not in the table of tests/tidy.rs"));
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
                problems.add(&source.path, line, format!("{used} is not in the table of tests/tidy.rs"));
            }
        }
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
        let inner: BTreeSet<&str> =
            tokens.windows(2).filter(|pair| pair[0].text == "mod").map(|pair| pair[1].text).collect();
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
    for (path, text) in texts("lua", &["lua"]) {
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
        for part in ["KEYS", "ARGV", "reply"] {
            if !head.iter().any(|line| line.trim_start_matches(['-', ' ']).starts_with(part)) {
                problems.add(&path, 1, format!("its opening comment does not explain {part}"));
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
    for folder in ["src", "lua", "proto", "docs", "deploy", "examples", "benches", "bench"] {
        all.extend(texts(folder, kinds));
    }
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

/// The vectors cite rules too; tests/conformance.rs holds those against what the code cites.
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
            let (file, function) = match quoted.split_once("::") {
                Some((file, function)) if is_word(file) && is_word(function) => (format!("tests/{file}.rs"), function),
                None if quoted.starts_with("tests/") && quoted.ends_with(".rs") => (quoted.to_owned(), ""),
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

/// The page is itself checked against the code, by tests/settings.rs.
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

/// One file of Rust, taken apart.
struct Source {
    path: String,
    /// Its place among the modules: `["store", "redis"]`; empty for lib.rs.
    module: Vec<String>,
    text: String,
    /// The text with comments and the inside of strings blanked; lines stay where they are.
    code: String,
    /// The text with all but comments blanked.
    comments: String,
}

impl Source {
    fn new(path: &str, text: String) -> Self {
        let inner = path.split_once('/').map_or(path, |(_, rest)| rest).trim_end_matches(".rs");
        let module = if inner == "lib" { Vec::new() } else { inner.split('/').map(str::to_owned).collect() };
        let (code, comments) = taken_apart(&text);
        Self { path: path.to_owned(), module, text, code, comments }
    }
}

/// Code and comments of a text, each with the other blanked.
fn taken_apart(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut code = String::new();
    let mut comments = String::new();
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        let (is_comment, is_text) = match (at(i), at(i + 1)) {
            ('/', '/') => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
                (true, false)
            }
            ('/', '*') => {
                let mut depth = 0;
                while i < chars.len() {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 1),
                        ('*', '/') => (depth, i) = (depth - 1, i + 1),
                        _ => {}
                    }
                    i += 1;
                    if depth == 0 {
                        break;
                    }
                }
                (true, false)
            }
            ('r', '"' | '#') if start == 0 || !is_word_char(at(start - 1)) || "bc".contains(at(start - 1)) => {
                let mut hashes = 0;
                while at(i + 1 + hashes) == '#' {
                    hashes += 1;
                }
                i += 1;
                if at(i + hashes) == '"' {
                    i += hashes + 1;
                    while i < chars.len() && !(at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#')) {
                        i += 1;
                    }
                    i += hashes + 1;
                    (false, true)
                } else {
                    (false, false)
                }
            }
            ('"', _) => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
                (false, true)
            }
            ('\'', '\\') => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
                (false, true)
            }
            ('\'', _) if at(i + 2) == '\'' => {
                i += 3;
                (false, true)
            }
            _ => {
                i += 1;
                (false, false)
            }
        };
        for &c in &chars[start..i.min(chars.len())] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            code.push(if is_comment || is_text { blank } else { c });
            comments.push(if is_comment { c } else { blank });
        }
    }
    (code, comments)
}

/// A word, a number, `::` or one other character of code.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    /// From 1.
    line: usize,
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word_char(first) {
                let word = rest.find(|c: char| !is_word_char(c)).unwrap_or(rest.len());
                let after = rest[word..].strip_prefix('.').and_then(|after| after.chars().next());
                match after {
                    Some(digit) if first.is_ascii_digit() && digit.is_ascii_digit() => {
                        let fraction = &rest[word + 1..];
                        word + 1 + fraction.find(|c: char| !is_word_char(c)).unwrap_or(fraction.len())
                    }
                    _ => word,
                }
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(Token { text: &rest[..length], line: number + 1 });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// Whether a token is a number with a fraction, and not the two indices of `pair.0.1`.
fn is_float(tokens: &[Token<'_>], i: usize) -> bool {
    let text = tokens[i].text;
    text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.') && (i == 0 || tokens[i - 1].text != ".")
}

/// The paths in a file that start at the crate (called `crate_name`), at `super` or at `self`, from the crate's root on,
/// and the line of each one's end.
fn paths(source: &Source, crate_name: &str) -> Vec<(usize, Vec<String>)> {
    let tokens = tokens(&source.code);
    let mut found = Vec::new();
    // Modules within the file, by the depth of braces at which each opened.
    let mut inner: Vec<(usize, String)> = Vec::new();
    let mut depth = 0;
    for i in 0..tokens.len() {
        let before = i.checked_sub(1).map_or("", |before| tokens[before].text);
        match tokens[i].text {
            "{" => {
                if i >= 2 && tokens[i - 2].text == "mod" {
                    inner.push((depth, before.to_owned()));
                }
                depth += 1;
            }
            "}" => {
                depth -= 1;
                inner.retain(|(opened, _)| *opened < depth);
            }
            head if before != "::" && tokens.get(i + 1).is_some_and(|next| next.text == "::") => {
                let mut base: Vec<String> = source.module.clone();
                base.extend(inner.iter().map(|(_, name)| name.clone()));
                let mut at = i;
                if head == crate_name {
                    base.clear();
                } else if head == "super" {
                    base.pop();
                    while tokens.get(at + 2).is_some_and(|next| next.text == "super") {
                        base.pop();
                        at += 2;
                    }
                } else if head != "self" {
                    continue;
                }
                follow(&tokens, at + 1, base, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// The paths that start at `root`, without it.
fn paths_below(tokens: &[Token<'_>], root: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for i in 0..tokens.len() {
        let starts = tokens[i].text == root && (i == 0 || tokens[i - 1].text != "::" || root == "process");
        if starts && tokens.get(i + 1).is_some_and(|next| next.text == "::") {
            follow(tokens, i + 1, Vec::new(), &mut found);
        }
    }
    found
}

/// Follows a path on from the `::` at `at`, into every branch of a group. Returns where it ended.
fn follow(tokens: &[Token<'_>], mut at: usize, mut path: Vec<String>, found: &mut Vec<(usize, Vec<String>)>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    while text(at) == "::" {
        let next = text(at + 1);
        if next == "{" {
            at += 2;
            while !["}", ""].contains(&text(at)) {
                if text(at) == "," {
                    at += 1;
                    continue;
                }
                let mut branch = path.clone();
                if !["self", "*"].contains(&text(at)) {
                    branch.push(text(at).to_owned());
                }
                at = follow(tokens, at + 1, branch, found);
                while ![",", "}", ""].contains(&text(at)) {
                    at += 1;
                }
            }
            return at + 1;
        }
        if !next.starts_with(|c: char| is_word_char(c)) {
            break;
        }
        path.push(next.to_owned());
        at += 2;
    }
    let line = tokens.get(at.saturating_sub(1)).map_or(0, |token| token.line);
    found.push((line, path));
    at
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
    for folder in ["docs", "lua", "deploy", "proto", "bench", "examples"] {
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

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
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
