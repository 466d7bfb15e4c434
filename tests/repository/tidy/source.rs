//! The sources as text: comments and strings told from code, paths followed through groups and `super`, and which files
//! use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

/// One file of Rust, taken apart.
pub(super) struct Source {
    pub(super) path: String,
    /// Its place among the modules, from its package on: `["store", "redis"]`; `["store"]` for the package's lib.rs.
    pub(super) module: Vec<String>,
    pub(super) text: String,
    /// The text with comments and the inside of strings blanked; lines stay where they are.
    pub(super) code: String,
    /// The text with all but comments blanked.
    pub(super) comments: String,
}

impl Source {
    pub(super) fn new(path: &str, text: String) -> Self {
        let inner = path.split_once('/').map_or(path, |(_, rest)| rest).trim_end_matches(".rs");
        let module = inner.trim_end_matches("/lib").split('/').map(str::to_owned).collect();
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
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// From 1.
    pub(super) line: usize,
}

pub(super) fn tokens(code: &str) -> Vec<Token<'_>> {
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

/// The paths in a file that start at `crate`, at `super`, at `self` or at a file below, from the package on, and the line of
/// each one's end.
pub(super) fn paths(source: &Source) -> Vec<(usize, Vec<String>)> {
    let tokens = tokens(&source.code);
    let mut found = Vec::new();
    let children: BTreeSet<&str> = tokens
        .windows(3)
        .filter(|three| three[0].text == "mod" && three[2].text == ";")
        .map(|three| three[1].text)
        .collect();
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
                if head == "crate" {
                    base.truncate(1);
                } else if head == "super" {
                    base.pop();
                    while tokens.get(at + 2).is_some_and(|next| next.text == "super") {
                        base.pop();
                        at += 2;
                    }
                } else if children.contains(head) && inner.is_empty() {
                    base.push(head.to_owned());
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

/// The circles of files that use each other, each in the order of paths. What a file takes from the module that it is
/// part of draws no arrow.
pub(super) fn circles(sources: &[Source]) -> Vec<Vec<&str>> {
    let files: BTreeMap<&[String], &str> =
        sources.iter().map(|source| (&source.module[..], source.path.as_str())).collect();
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        let used = uses.entry(&source.path).or_default();
        for (_, path) in paths(source) {
            // The longest beginning that is a file: what follows is in that file.
            let file = (1..=path.len()).rev().find_map(|length| files.get_key_value(&path[..length]));
            if let Some((module, file)) = file
                && !source.module.starts_with(module)
            {
                used.insert(*file);
            }
        }
    }
    let reachable = |from: &str| {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        let mut next: Vec<&str> = uses[from].iter().copied().collect();
        while let Some(file) = next.pop() {
            if found.insert(file) {
                next.extend(&uses[file]);
            }
        }
        found
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|file| (*file, reachable(file))).collect();
    let mut circles: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (file, others) in &reach {
        let circle: Vec<&str> = others.iter().copied().filter(|other| reach[other].contains(file)).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
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

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}
