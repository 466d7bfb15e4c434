//! What the compiler cannot hold: files that use each other in a circle, and pages that do not agree with the code.
//!
//! The sources are read as text: comments and strings are told from code, and paths are followed through groups and
//! `super`. What a macro makes and what a `use` renames beyond its own line is not seen. What cargo, rustfmt and clippy
//! hold is not repeated here.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::Path;

use source::{Source, circles};
use weir_store::redis::ScriptText;

/// A source file is at most so many lines long, its own test module not counted.
const FILE_LINES_MAX: usize = 800;

/// ARCHITECTURE.md is at most so many lines long.
const ARCHITECTURE_LINES_MAX: usize = 150;

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
fn files_say_what_they_are_for_and_stay_short() {
    let mut problems = Problems::default();
    for source in rust_sources("src").iter().chain(&rust_sources("tests")) {
        if !source.text.starts_with("//! ") {
            problems.add(&source.path, 1, "does not open with a //! comment that says what it is for");
        }
        let own = source.text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        if own > FILE_LINES_MAX {
            problems.add(&source.path, own, format!("{own} lines without its tests: at most {FILE_LINES_MAX}"));
        }
    }
    for ScriptText { name: path, text, .. } in weir_store::redis::scripts() {
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
fn the_architecture_page_is_short() {
    let lines = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap().lines().count();
    assert!(lines <= ARCHITECTURE_LINES_MAX, "{lines} lines: at most {ARCHITECTURE_LINES_MAX}");
}

#[test]
fn the_map_of_tests_names_tests_that_exist() {
    let mut problems = Problems::default();
    let page = "tests/README.md";
    let text = fs::read_to_string(root().join(page)).unwrap();
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

/// The page is itself checked against the code, by tests/settings/all.rs.
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
        source::paths(&source).into_iter().map(|(line, path)| format!("{line}:{}", path.join("::"))).collect()
    }

    #[test]
    fn paths_are_followed_through_groups_and_super() {
        assert_eq!(
            used(
                "src/store/redis/dial.rs",
                "use crate::{memory::{Shard, key}, sync};\nlet x = super::super::memory::Y::new();"
            ),
            ["1:store::memory::Shard", "1:store::memory::key", "1:store::sync", "2:store::memory::Y::new"]
        );
        assert_eq!(
            used(
                "src/limiter/matched.rs",
                "use super::app;\nmod tests {\n use super::*;\n use super::super::ask;\n}\nsuper::count::X"
            ),
            ["1:limiter::app", "3:limiter::matched", "4:limiter::ask", "6:limiter::count::X"]
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
            source("src/p/lib.rs", "mod a; mod c; mod e;"),
            source("src/p/a.rs", "mod b; mod f;\nuse self::b::B;"),
            source("src/p/a/b.rs", "use crate::c::d::D; use super::A;"),
            source("src/p/a/f.rs", "use super::A; use crate::e::E;"),
            source("src/p/c.rs", "pub mod d;"),
            source("src/p/c/d.rs", "use crate::a::A; use crate::e::E;"),
            source("src/p/e.rs", "use super::c::C;"),
        ];
        assert_eq!(circles(&sources), [["src/p/a.rs", "src/p/a/b.rs", "src/p/c/d.rs"]]);
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let code = "a // crate::http\n/* crate::x /* */ crate::y */ let s = \"crate::\\\"z\"; let c = '\"'; 'l: loop {}\n\
                    let r = r#\"crate::\"w\"#; crate::app::run()";
        assert_eq!(used("src/grpc/unary.rs", code), ["3:grpc::app::run"]);
        let source = Source::new("src/grpc.rs", "let a = b[dc-1]; // [fw-3]".to_owned());
        assert_eq!(source.comments.trim(), "// [fw-3]");
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
