//! `weir rows`: the rows of a running server, and files of rows.
//!
//! Not here: parsing of arguments (args/rows.rs), lines of files (policies), and the effect of a row (engine, limiter).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek as _, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_engine::Window;
use weir_engine::descriptor::{parse_entries, spell_entries, spell_pairs};
use weir_engine::overrides::Numbers;
use weir_engine::rows::{Row, RowTerms};
use weir_engine::words::{counted, printable};
use weir_policies::row_file::{self, ROW_HEAD, ROW_LINE_BYTES_MAX, RowHead};
use weir_text::{instant_text, parse_instant};

use super::admin::{AdminServer, Bounds, Expected, Method, NoAnswer, Sent, encoded};
use super::args::overrides::ServerArguments;
use super::args::rows::{AllArguments, ImportArguments, OneArguments, RowAction, SetRowArguments};
use super::overridden::{Unanswered, send};
use super::runtime::block_on;
use super::token::Token;

const PATH: &str = "/rows";
/// The most rows of one request.
const BATCH: usize = 2_000;
/// The most bytes of one request.
const BATCH_BYTES: usize = 2 * 1_024 * 1_024;
/// The most wrong lines that are listed.
const LISTED_MAX: usize = 100;
/// How often the progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// One request writes thousands of rows.
const BOUNDS: Bounds = Bounds { bytes_max: 64 * 1_024 * 1_024, timeout: Duration::from_secs(60) };

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The server gave no usable answer, or refused.
    #[error("{0}")]
    Server(#[from] Unanswered),
    /// The arguments contradict each other, or name a file that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The file has wrong lines.
    #[error("{0}")]
    Lines(String),
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// A row in an answer.
#[derive(Deserialize)]
struct ShownRow {
    domain: String,
    descriptor: String,
    plan: Option<String>,
    #[serde(default)]
    limits: Vec<ShownNumbers>,
    until: Option<String>,
    #[serde(default)]
    note: String,
    unused: Option<String>,
}

#[derive(Deserialize)]
struct ShownNumbers {
    name: Option<String>,
    requests: u32,
    window_us: u64,
    burst: Option<u32>,
}

#[derive(Deserialize)]
struct Changed {
    store: String,
    result: String,
    before: Option<ShownRow>,
    #[serde(flatten)]
    row: ShownRow,
}

#[derive(Deserialize)]
struct Page {
    rows: Vec<ShownRow>,
    foreign: Vec<String>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Pruned {
    removed: usize,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Results {
    results: Vec<LineResult>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum LineResult {
    Word(String),
    Refused { refused: String, is_store: bool },
}

/// Runs an action.
///
/// # Errors
/// If the server does not execute it, the file has wrong lines, or the output cannot be written.
pub fn run(action: &RowAction, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    match action {
        RowAction::Import(arguments) => import(arguments, out, notes),
        RowAction::Get(OneArguments { domain, descriptor, server }) => {
            let row: ShownRow = ask(server, Method::GET, &one(domain, &descriptor.entries), String::new())?;
            Ok(writeln!(out, "{}", row.line())?)
        }
        RowAction::Set(arguments) => set(arguments, out),
        RowAction::Remove(OneArguments { domain, descriptor, server }) => {
            let row: ShownRow = ask(server, Method::DELETE, &one(domain, &descriptor.entries), String::new())?;
            Ok(writeln!(out, "removed   {}", row.line())?)
        }
        RowAction::List(arguments) => each_page(arguments, |page| {
            for row in &page.rows {
                writeln!(out, "{}", row.line())?;
                if let Some(unused) = &row.unused {
                    writeln!(out, "  not used: {}", printable(unused))?;
                }
            }
            for key in &page.foreign {
                writeln!(
                    notes,
                    "weir: the value at {} was not written by weir: the default plan counts",
                    printable(key)
                )?;
            }
            Ok(())
        }),
        RowAction::Export(arguments) => {
            writeln!(out, "{ROW_HEAD}")?;
            each_page(arguments, |page| {
                for shown in &page.rows {
                    match shown.row() {
                        Some(row) => writeln!(out, "{}", row_file::row_line(&row))?,
                        None => writeln!(notes, "weir: skipped a row of a newer weir: {}", shown.line())?,
                    }
                }
                Ok(())
            })
        }
        RowAction::Prune(arguments) => prune(arguments, out),
    }
}

fn one(domain: &str, entries: &[(String, String)]) -> String {
    format!("{PATH}?domain={}&descriptor={}", encoded(domain), encoded(&spell_pairs(entries)))
}

fn ask<T: DeserializeOwned>(server: &ServerArguments, method: Method, path: &str, body: String) -> Result<T, Failed> {
    let token = Token::of_file(server.token_file.as_deref()).map_err(Failed::Usage)?;
    let sent = Sent { method, path, body, token: Some(&token) };
    let asked = block_on(server.server.ask(&sent, Expected::Ok, BOUNDS)).map_err(Unanswered::Start)?;
    Ok(asked.map_err(Unanswered::NoAnswer)?)
}

fn each_page(arguments: &AllArguments, mut show: impl FnMut(&Page) -> Result<(), io::Error>) -> Result<(), Failed> {
    let AllArguments { domain, server } = arguments;
    let mut after = None;
    loop {
        let page: Page = ask(server, Method::GET, &page_path(domain.as_deref(), after.as_deref(), ""), String::new())?;
        show(&page)?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

fn page_path(domain: Option<&str>, after: Option<&str>, more: &str) -> String {
    let domain = domain.map(|domain| format!("&domain={}", encoded(domain))).unwrap_or_default();
    let after = after.map(|after| format!("&after={}", encoded(after))).unwrap_or_default();
    let query = format!("{more}{domain}{after}");
    format!("{PATH}?{}", query.trim_start_matches('&'))
}

fn prune(arguments: &AllArguments, out: &mut dyn Write) -> Result<(), Failed> {
    let AllArguments { domain, server } = arguments;
    let (mut after, mut removed) = (None, 0);
    loop {
        let path = page_path(domain.as_deref(), after.as_deref(), "ended=true");
        let pruned: Pruned = ask(server, Method::DELETE, &path, String::new())?;
        removed += pruned.removed;
        after = pruned.next;
        if after.is_none() {
            return Ok(writeln!(out, "removed {}", counted(removed, "row"))?);
        }
    }
}

fn set(arguments: &SetRowArguments, out: &mut dyn Write) -> Result<(), Failed> {
    let SetRowArguments { domain, descriptor, plan, limits, until, note, server } = arguments;
    let terms = match (plan, limits) {
        (Some(plan), _) => RowTerms::Plan(plan.as_str().into()),
        (None, limits) => {
            let text = limits.as_deref().unwrap_or_default();
            RowTerms::Own(
                row_file::numbers(text).map_err(|reason| Failed::Usage(format!("--limits {text:?}: {reason}")))?,
            )
        }
    };
    let entries = descriptor.entries.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
    let row = Row { domain: domain.as_str().into(), entries, terms, until: *until, note: note.as_str().into() };
    let changed: Changed = ask(server, Method::PUT, PATH, as_json(&row).to_string())?;
    writeln!(out, "{}   {}", printable(&changed.result), changed.row.line())?;
    if let Some(before) = changed.before.filter(|_| changed.result != "same") {
        writeln!(out, "before    {}", before.line())?;
    }
    match changed.store.as_str() {
        "memory" => writeln!(out, "kept in the memory of this server: lost when it ends, and no other has it")?,
        store => {
            let store = printable(store);
            writeln!(out, "kept in {store}: in force at the next decision of every server that shares it")?;
        }
    }
    Ok(())
}

/// The row of a descriptor in words, for `weir explain`.
pub(super) fn of_server(server: &AdminServer, domain: &str, entries: &[(String, String)]) -> String {
    match send::<ShownRow>(server, Method::GET, &one(domain, entries), String::new(), None) {
        Ok(row) => row.line(),
        Err(Unanswered::NoAnswer(NoAnswer::Refused(_, _, StatusCode::NOT_FOUND, _))) => {
            "none, so the default plan counts".to_owned()
        }
        Err(error) => format!("not known: {error}"),
    }
}

/// A row as a server reads it.
fn as_json(row: &Row) -> Value {
    let mut body = json!({
        "domain": row.domain,
        "descriptor": spell_entries(row.descriptor()),
        "until": row.until.map(instant_text),
        "note": row.note,
    });
    match &row.terms {
        RowTerms::Plan(plan) => body["plan"] = json!(plan),
        RowTerms::Own(numbers) => {
            let one = |Numbers { name, requests, window, burst }: &Numbers| json!({ "name": name, "requests": requests, "window_us": window.us(), "burst": burst });
            body["limits"] = numbers.iter().map(one).collect();
        }
    }
    body
}

impl ShownRow {
    /// The row; none if the server's answer has what this program does not know.
    fn row(&self) -> Option<Row> {
        let entries = parse_entries(&self.descriptor).ok()?;
        let terms = match &self.plan {
            Some(plan) => RowTerms::Plan(plan.as_str().into()),
            None => {
                let numbers = self.limits.iter().map(|limit| {
                    let window = Window::from_micros(limit.window_us).ok()?;
                    let name = limit.name.as_deref().map(Into::into);
                    Some(Numbers { name, requests: limit.requests, window, burst: limit.burst })
                });
                RowTerms::Own(numbers.collect::<Option<_>>()?)
            }
        };
        let until = match &self.until {
            Some(text) => Some(parse_instant(text).ok()?),
            None => None,
        };
        Some(Row {
            domain: self.domain.as_str().into(),
            entries: entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            terms,
            until,
            note: self.note.as_str().into(),
        })
    }

    /// One line for people.
    fn line(&self) -> String {
        let terms = match self.row().map(|row| row.terms) {
            Some(RowTerms::Own(numbers)) => row_file::numbers_text(&numbers),
            Some(plan @ RowTerms::Plan(_)) => plan.to_string(),
            None => "?".to_owned(),
        };
        let mut line = format!("{} {}   {}", printable(&self.domain), printable(&self.descriptor), printable(&terms));
        if let Some(until) = &self.until {
            line.push_str(&format!("   until {}", printable(until)));
        }
        if !self.note.is_empty() {
            line.push_str(&format!("   {}", printable(&self.note)));
        }
        line
    }
}

/// The results of the lines of an import.
#[derive(Default)]
struct Tally {
    written: usize,
    same: usize,
    wrong: usize,
    /// The first wrong lines: number, column and reason.
    listed: Vec<String>,
}

/// Imports the rows of a file: first checks all lines, then writes them. With `--skip`, writes the lines as it reads
/// them.
fn import(arguments: &ImportArguments, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    let ImportArguments { file: path, skip, server } = arguments;
    let mut tally = Tally::default();
    if !skip {
        let mut checked = Tally::default();
        pass(path, server, true, &mut checked, notes)?;
        if checked.wrong > 0 {
            return Err(Failed::Lines(wrong(&checked, "nothing was written")));
        }
    }
    pass(path, server, false, &mut tally, notes)?;
    writeln!(out, "{} written, {} were the same, {} wrong", counted(tally.written, "row"), tally.same, tally.wrong)?;
    if tally.wrong > 0 { Err(Failed::Lines(wrong(&tally, "the other lines are written"))) } else { Ok(()) }
}

fn wrong(tally: &Tally, what: &str) -> String {
    let mut text = format!("{}, {what}:", counted(tally.wrong, "wrong line"));
    for line in &tally.listed {
        text.push('\n');
        text.push_str(line);
    }
    if tally.wrong > tally.listed.len() {
        text.push_str(&format!("\nand {} more", tally.wrong - tally.listed.len()));
    }
    text
}

impl Tally {
    fn refuse(&mut self, line: String) {
        self.wrong += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(line);
        }
    }
}

/// Reads the file once, with bounded memory, and sends its lines.
fn pass(
    path: &Path,
    server: &ServerArguments,
    is_check: bool,
    tally: &mut Tally,
    notes: &mut dyn Write,
) -> Result<(), Failed> {
    let unusable = |error: io::Error| Failed::Usage(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(unusable)?;
    let bytes = file.metadata().map_err(unusable)?.len();
    let mut reader = BufReader::new(file);
    let mut buffer = Vec::new();
    let at = |line: usize, problem: &dyn std::fmt::Display| format!("{}:{line}: {problem}", path.display());
    let (mut head, mut line, mut shown) = (None, 0, Instant::now());
    let (mut batch, mut lines) = (String::new(), Vec::new());
    loop {
        buffer.clear();
        let is_whole = read_line(&mut reader, &mut buffer).map_err(unusable)?;
        let is_end = buffer.is_empty() && is_whole == LineEnd::File;
        if !is_end {
            line += 1;
            let text = match (is_whole, std::str::from_utf8(&buffer)) {
                (LineEnd::TooLong, _) => Err(format!("a line has at most {ROW_LINE_BYTES_MAX} bytes")),
                (_, Ok(text)) => Ok(text),
                (_, Err(error)) => Err(format!("column {}: not UTF-8", error.valid_up_to() + 1)),
            };
            match (&head, text) {
                (None, Ok(text)) => {
                    let parsed = RowHead::parse(text.trim_start_matches('\u{feff}'));
                    head = Some(parsed.map_err(|error| Failed::Lines(at(line, &error)))?);
                }
                (None, Err(reason)) => return Err(Failed::Lines(at(line, &reason))),
                (Some(_), Ok(text)) if text.trim().is_empty() => {}
                (Some(head), Ok(text)) => match head.row(text) {
                    Ok(row) => {
                        batch.push_str(&as_json(&row).to_string());
                        batch.push('\n');
                        lines.push(line);
                    }
                    Err(error) => tally.refuse(at(line, &error)),
                },
                (Some(_), Err(reason)) => tally.refuse(at(line, &reason)),
            }
        }
        if lines.len() >= BATCH || batch.len() >= BATCH_BYTES || (is_end && !lines.is_empty()) {
            let query = if is_check { "?check=true" } else { "" };
            let sent = std::mem::take(&mut batch);
            let answer: Results = ask(server, Method::POST, &format!("{PATH}{query}"), sent)?;
            for (line, result) in lines.drain(..).zip(answer.results) {
                match result {
                    LineResult::Word(word) if word == "same" => tally.same += 1,
                    LineResult::Word(_) => tally.written += 1,
                    LineResult::Refused { refused, is_store: true } => {
                        return Err(Failed::Lines(format!(
                            "{}\n{} written before it: import the file again",
                            at(line, &refused),
                            counted(tally.written, "row")
                        )));
                    }
                    LineResult::Refused { refused, is_store: false } => {
                        tally.refuse(at(line, &format!("column 1: {refused}")));
                    }
                }
            }
            if shown.elapsed() >= PROGRESS_EVERY {
                shown = Instant::now();
                let done = reader.stream_position().map_err(unusable)?;
                let percent = (done * 100).checked_div(bytes).unwrap_or(100).min(100);
                let what = if is_check { "checked" } else { "imported" };
                writeln!(notes, "{what} {line} lines, {percent} %")?;
            }
        }
        if is_end {
            return match head {
                Some(_) => Ok(()),
                None => Err(Failed::Lines(at(1, &"empty: the first line has the names of the columns"))),
            };
        }
    }
}

/// How a line ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Line,
    File,
    /// The line is longer than the bound, and incomplete.
    TooLong,
}

/// Reads a line without its end, at most [`ROW_LINE_BYTES_MAX`] bytes of it.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<LineEnd> {
    let mut is_too_long = false;
    loop {
        let available = reader.fill_buf()?;
        if available.is_empty() {
            return Ok(if is_too_long { LineEnd::TooLong } else { LineEnd::File });
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        let room = ROW_LINE_BYTES_MAX.saturating_sub(line.len());
        is_too_long |= part.len() > room;
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(part.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return Ok(if is_too_long { LineEnd::TooLong } else { LineEnd::Line });
        }
    }
}
