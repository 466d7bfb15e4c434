//! What an operator finds by the pages of docs/ at three in the morning: log lines there are those of the code, and links between
//! pages lead to headings that exist. Commands and paths of HTTP have their rows.
//!
//! Not here: its tables (redis/errors.rs, redis/acl.rs), and its queries and alerts (tests/deploy/check.py).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use clap::CommandFactory as _;
use weir_cli::args::Arguments;
use weir_http::{Access, admin_endpoints};

/// Files of the page for browsers, which no caller asks for by hand.
const PAGE_FILES: [&str; 2] = ["/page.css", "/page.js"];
/// The letters that a text of the code must have besides what it fills in, to count as the message of a line.
const LETTERS_MIN: usize = 5;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder whose names end so.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found
}

/// The texts in quotes of a Rust file, each split where a value is filled in.
fn texts(code: &str) -> Vec<Vec<String>> {
    let code = code.replace("'\"'", "''");
    let mut texts = Vec::new();
    let mut rest = code.as_str();
    while let Some((_, after)) = rest.split_once('"') {
        let (mut parts, mut part) = (Vec::new(), String::new());
        let mut letters = after.char_indices();
        let mut depth = 0;
        let mut end = after.len();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    end = at + 1;
                    break;
                }
                // A line that goes on at the first letter of the next.
                '\\' => match letters.next() {
                    Some((_, '\n')) => {
                        let indent = letters.as_str().len() - letters.as_str().trim_start().len();
                        letters.by_ref().take(indent).for_each(drop);
                    }
                    Some((_, escaped)) => part.push(escaped),
                    None => {}
                },
                '{' => {
                    depth += 1;
                    parts.push(std::mem::take(&mut part));
                }
                '}' => depth -= 1,
                _ if depth == 0 => part.push(letter),
                _ => {}
            }
        }
        parts.push(part);
        texts.push(parts);
        rest = &after[end..];
    }
    texts.retain(|parts| parts.concat().trim().len() >= LETTERS_MIN);
    texts
}

/// Whether the message is made of the parts, with anything between them.
fn is_of(message: &str, parts: &[String]) -> bool {
    let (first, others) = parts.split_first().expect("a text has a part");
    let Some(mut rest) = message.strip_prefix(first.as_str()) else { return false };
    let Some((last, between)) = others.split_last() else { return rest.is_empty() };
    for part in between {
        let Some((_, after)) = rest.split_once(part.as_str()) else { return false };
        rest = after;
    }
    rest.ends_with(last.as_str())
}

/// The target and the message of a line of log.
fn logged(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = ["INFO ", "WARN ", "ERROR "].iter().find_map(|level| {
        line.split_once(level)
            .filter(|(before, _)| before.is_empty() || before.ends_with("Z  ") || before.ends_with("Z "))
    })?;
    let (target, rest) = rest.split_once(": ").filter(|(target, _)| target.starts_with("weir_"))?;
    // Fields stand behind the message.
    let fields = rest.match_indices('=').find_map(|(at, _)| rest[..at].rfind(' ')).unwrap_or(rest.len());
    Some((target, &rest[..fields]))
}

#[test]
fn log_lines_on_the_pages_are_those_of_the_code() {
    let all: Vec<_> = files(&root().join("src"), ".rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let all: Vec<_> = all.iter().flat_map(|code| texts(code)).collect();
    let (mut found, mut problems) = (0, Vec::new());
    for path in files(&root().join("docs"), ".md") {
        let page = fs::read_to_string(&path).unwrap();
        for (number, line) in page.lines().enumerate() {
            let Some((target, message)) = logged(line) else { continue };
            found += 1;
            let module = target.trim_start_matches("weir_").replace("::", "/");
            if !root().join("src").join(format!("{module}.rs")).exists() {
                problems.push(format!("{}:{}: no module {target}", path.display(), number + 1));
            }
            if !all.iter().any(|parts| is_of(message, parts)) {
                problems.push(format!("{}:{}: no code logs {message:?}", path.display(), number + 1));
            }
        }
    }
    assert!(found > 15, "{found} lines of log");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What a heading is called in links, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => assert!(plain.pop(), "{path:?} leads out of the repository"),
            part => plain.push(part),
        }
    }
    plain
}

/// Lines outside of code.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    });
    lines.collect()
}

#[test]
fn links_lead_to_headings_that_exist() {
    let mut paths: Vec<_> =
        ["docs", "deploy", "lua", "examples"].iter().flat_map(|folder| files(&root().join(folder), ".md")).collect();
    paths.extend(["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root().join(name)));
    let pages: BTreeMap<PathBuf, String> =
        paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> = pages
        .iter()
        .map(|(path, text)| {
            let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
            (path, headings.map(|(_, line)| anchor(line)).collect())
        })
        .collect();
    let (mut followed, mut problems) = (0, Vec::new());
    for (path, text) in &pages {
        for (number, line) in prose(text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let Some((page, heading)) = link.split_once('#').filter(|_| !link.contains("://")) else { continue };
                let to = if page.is_empty() { path.clone() } else { plain(&path.parent().unwrap().join(page)) };
                let Some(headings) = anchors.get(&to) else { continue };
                followed += 1;
                if !headings.contains(heading) {
                    problems.push(format!("{}:{}: {link} has no heading", path.display(), number + 1));
                }
            }
        }
    }
    assert!(followed > 100, "{followed} links");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The code in the first cell of each row of the first table below a heading.
fn first_cells(page: &str, heading: &str) -> Vec<String> {
    let page = format!("\n{}", fs::read_to_string(root().join(page)).expect("a page"));
    let (_, section) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned));
    rows.collect()
}

#[test]
fn every_command_is_on_the_pages() {
    let arguments = Arguments::command();
    let commands: BTreeSet<_> = arguments.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let rows = first_cells("docs/running.md", "## Commands");
    let on_page =
        rows.iter().filter_map(|row| row.strip_prefix("weir ")?.split(' ').next().map(str::to_owned)).collect();
    assert_eq!(commands, on_page, "docs/running.md, Commands");
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a page");
    let row = architecture.lines().find_map(|line| line.strip_prefix("| `cli` | ")).expect("a row of cli");
    let names = row.split(" | ").next().unwrap_or_default();
    let named = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(commands, named, "ARCHITECTURE.md, the row of cli");
}

/// The response to an unknown path lists the known ones: those are the routes of the listener.
#[test]
fn every_path_of_http_is_listed() {
    for file in ["src/http/public.rs", "src/http/debug.rs"] {
        let code = fs::read_to_string(root().join(file)).expect("a file");
        let routes: BTreeSet<_> = code.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let (_, list) = code.split_once("const PATHS: ").expect("a list of paths");
        let listed: Vec<_> = list.split("];\n").next().unwrap_or_default().split('"').skip(1).step_by(2).collect();
        let paths: BTreeSet<_> = listed
            .iter()
            .filter_map(|text| text.split(' ').find(|word| word.starts_with('/'))?.split('?').next())
            .chain(file.ends_with("debug.rs").then_some("/"))
            .collect();
        assert_eq!(routes, paths, "{file}: routes and PATHS");
    }
    let endpoints = admin_endpoints().filter(|(_, path, _)| !PAGE_FILES.contains(path));
    let of_admin: BTreeSet<_> = endpoints
        .map(|(method, path, access)| {
            let right = match access {
                Access::Open => "none",
                Access::Look => "`look`",
                Access::Change => "`change`",
                Access::Metrics => "[none](#metrics)",
            };
            (format!("{method} {path}"), right.to_owned())
        })
        .collect();
    let page = fs::read_to_string(root().join("docs/admin.md")).expect("a page");
    let rows = page.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    let on_page: BTreeSet<_> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let path = cells.next().and_then(|cell| method_and_path(cell.trim_matches('`'))).expect("a path");
            (path, cells.next().unwrap_or_default().to_owned())
        })
        .collect();
    assert_eq!(of_admin, on_page, "docs/admin.md");
}

/// `GET /top` of `GET /top?minutes=5`.
fn method_and_path(text: &str) -> Option<String> {
    let mut words = text.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    Some(format!("{method} {}", path.split('?').next()?))
}

#[test]
fn texts_of_the_code_are_matched_with_what_they_fill_in() {
    let code = "info!(\"no answer from {address}: {}\", x); let c = '\"'; warn!(\"it is \\\n        open\")";
    let texts = texts(code);
    let says = |message: &str| texts.iter().any(|parts| is_of(message, parts));
    assert!(says("no answer from 10.0.0.1: refused") && says("it is open"));
    assert!(!says("no answer of 10.0.0.1: refused") && !says("it is open now") && !says("open"));
    assert_eq!(logged("WARN weir_a::b: it is open kind=\"x\" count=1"), Some(("weir_a::b", "it is open")));
    assert_eq!(logged("2026-11-21T11:37:59.3Z  INFO weir_a: ready"), Some(("weir_a", "ready")));
    assert_eq!(logged("a WARN weir_a: ready"), None);
}
