//! `weir rows`: the rows of a running server, and files of rows.
//!
//! Not here: parsing of arguments (args/rows.rs), lines of files (policies), and the effect of a row (engine, limiter).

mod import;
mod replace;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hyper::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::signal::unix::SignalKind;
use weir_api::rows::{
    AnsweredRow, EndedRows, JsonRow, RowChange, RowOverride, RowPage, RowRemoval, RowResult, RowResults, ShownRow,
    WrongField,
};
use weir_engine::descriptor::spell_pairs;
use weir_engine::rows::{Row, RowContent, RowField};
use weir_engine::words::{counted, printable};
use weir_engine::{Limit, Rule};
use weir_policies::row_file::{self, ROW_HEAD, SeenDescriptors, VERSION_COLUMN};
use weir_store::{Clock as _, SystemClock};

pub use self::import::ImportError;
use self::import::{Import, LineEnd, Pass, RowToSend, import};
use super::admin::{AdminServer, Bounds, Method, NoAnswer, ServerArguments, Unanswered, encoded};
use super::args::overrides::DescriptorArguments;
use super::args::rows::{AllArguments, ExportArguments, ImportArguments, RowAction, SetRowArguments};
use super::shown::{self, kept_text};
use super::signals::Signals;

const PATH: &str = "/rows";
/// The most bytes of the rows of one request, apart from its last row.
const BODY_BYTES: usize = 2 * 1_024 * 1_024;
/// The server writes thousands of rows in one request.
const BOUNDS: Bounds = Bounds { bytes_max: 64 * 1_024 * 1_024, timeout: Duration::from_secs(60) };
/// The most pages of rows. A page of Redis is one SCAN, which reads hundreds of keys.
const PAGES_MAX: u32 = 10_000_000;

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The server gave no usable answer, or rejected the request.
    #[error("{0}")]
    Server(#[from] Unanswered),
    /// The arguments contradict each other, or the settings are wrong.
    #[error("{0}")]
    Usage(String),
    /// A file was not imported.
    #[error("{0}")]
    Import(#[from] ImportError),
    /// The system cannot start a thread or a runtime.
    #[error("cannot start: {0}")]
    Start(io::Error),
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// The server always names a next page.
    #[error("{0} names a next page after {1} pages: it is no weir, or its store does not end")]
    Endless(AdminServer, u32),
}

/// Runs an action.
///
/// # Errors
/// If the server does not execute the action, the file has wrong lines, or the output cannot be
/// written.
pub fn run(action: &RowAction, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    match action {
        RowAction::Import(arguments) => import_file(arguments, out, notes),
        RowAction::Get(DescriptorArguments { domain, descriptor, server }) => {
            let row = ask(server, Method::GET, &one(domain, &descriptor.entries), String::new())?;
            Ok(writeln!(out, "{}", lines(&row))?)
        }
        RowAction::Set(arguments) => set(arguments, out),
        RowAction::Remove(DescriptorArguments { domain, descriptor, server }) => {
            let RowRemoval { removed, left } =
                ask(server, Method::DELETE, &one(domain, &descriptor.entries), String::new())?;
            writeln!(out, "removed   {}", line(&removed))?;
            match left {
                Some(of_file) => writeln!(out, "now       {}, from a file{}", line(&of_file.row), no_effect(&of_file))?,
                None => writeln!(out, "now       no row: the default plan applies")?,
            }
            Ok(())
        }
        RowAction::List(arguments) => each_page(arguments, |page| {
            for row in &page.rows {
                writeln!(out, "{}", lines(row))?;
            }
            for key in &page.foreign {
                writeln!(
                    notes,
                    "weir: the value at {} was not written by weir: the default plan applies",
                    printable(key)
                )?;
            }
            Ok(())
        }),
        RowAction::Export(ExportArguments { all, versions }) => {
            let with_version = |line: &str, version: &dyn Display| match versions {
                true => format!("{line},{version}"),
                false => line.to_owned(),
            };
            writeln!(out, "{}", with_version(ROW_HEAD, &VERSION_COLUMN))?;
            // A row can be in two pages.
            let mut seen = SeenDescriptors::default();
            each_page(all, |page| {
                for ShownRow { row: shown, .. } in &page.rows {
                    let version = shown.version.map(|version| version.to_string()).unwrap_or_default();
                    if *versions && version.is_empty() {
                        writeln!(
                            notes,
                            "weir: the server lists no version of {}: a line without it replaces any row",
                            line(shown)
                        )?;
                    }
                    match shown.clone().row() {
                        Ok(row) if seen.insert(&row, 0).is_err() => {}
                        Ok(row) => writeln!(out, "{}", with_version(&row_file::row_line(&row), &version))?,
                        Err(_) => writeln!(notes, "weir: skipped a row of a newer weir: {}", line(shown))?,
                    }
                }
                Ok(())
            })
        }
        RowAction::Prune(arguments) => prune(arguments, out),
    }
}

fn import_file(arguments: &ImportArguments, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    let ImportArguments { file, skip, replace, dry_run, server } = arguments;
    let interrupted = interrupted().map_err(Failed::Start)?;
    let now = SystemClock.now();
    let order = Import { path: file, skip: *skip, dry_run: *dry_run, interrupted: &interrupted, now };
    let mut unwanted = Vec::new();
    let checked = |seen: SeenDescriptors| {
        if *replace {
            unwanted = replace::unwanted(arguments, seen)?;
        }
        Ok(())
    };
    import(&order, |pass, rows| by_server(server, pass, &rows), checked, out, notes)?;
    if *replace {
        replace::remove(arguments, &unwanted, &interrupted, out, notes)?;
    }
    Ok(())
}

/// Becomes true on SIGINT or SIGTERM, which then does not end the process.
fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _within = runtime.enter();
        Signals::of(&[SignalKind::interrupt(), SignalKind::terminate()])?
    };
    let interrupted = Arc::<AtomicBool>::default();
    let of_thread = interrupted.clone();
    let wait = move || {
        runtime.block_on(signals.any());
        of_thread.store(true, Relaxed);
    };
    std::thread::Builder::new().name("interrupts".to_owned()).spawn(wait)?;
    Ok(interrupted)
}

fn one(domain: &str, entries: &[(String, String)]) -> String {
    format!("{PATH}?domain={}&descriptor={}", encoded(domain), encoded(&spell_pairs(entries)))
}

fn ask<T: DeserializeOwned + Send + 'static>(
    server: &ServerArguments,
    method: Method,
    path: &str,
    body: String,
) -> Result<T, Unanswered> {
    server.request((method, path, body), BOUNDS)
}

fn each_page(arguments: &AllArguments, mut show: impl FnMut(&RowPage) -> Result<(), io::Error>) -> Result<(), Failed> {
    let AllArguments { domain, server } = arguments;
    let mut cursor = PageCursor::default();
    loop {
        let path = page_path(domain.as_deref(), cursor.after.as_deref(), "");
        let page = ask(server, Method::GET, &path, String::new())?;
        show(&page)?;
        if !cursor.moves_to(page.next, &server.server)? {
            return Ok(());
        }
    }
}

/// Which page comes next.
#[derive(Default)]
struct PageCursor {
    /// None for the first page.
    after: Option<String>,
    pages: u32,
}

impl PageCursor {
    /// Goes to the next page, if there is one.
    fn moves_to(&mut self, next: Option<String>, server: &AdminServer) -> Result<bool, Failed> {
        self.pages += 1;
        if next.is_some() && (next == self.after || self.pages >= PAGES_MAX) {
            return Err(Failed::Endless(server.clone(), self.pages));
        }
        self.after = next;
        Ok(self.after.is_some())
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
    let (mut cursor, mut removed) = (PageCursor::default(), 0);
    loop {
        let path = page_path(domain.as_deref(), cursor.after.as_deref(), "ended=true");
        let ended: EndedRows = ask(server, Method::DELETE, &path, String::new())?;
        removed += ended.removed;
        if !cursor.moves_to(ended.next, &server.server)? {
            return Ok(writeln!(out, "removed {}", counted(removed, "row"))?);
        }
    }
}

fn set(arguments: &SetRowArguments, out: &mut dyn Write) -> Result<(), Failed> {
    let SetRowArguments { domain, descriptor, plan, limits, until, note, server } = arguments;
    let content = match (plan, limits) {
        (Some(plan), _) => RowContent::Plan(plan.as_str().into()),
        (None, limits) => RowContent::Own(limits.clone().unwrap_or_default()),
    };
    let entries = descriptor.entries.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
    let row = Row { domain: domain.as_str().into(), entries, content, until: *until, note: note.as_str().into() };
    let change: RowChange = ask(server, Method::PUT, PATH, json!(<JsonRow>::from(&row)).to_string())?;
    writeln!(out, "{}   {}", printable(&change.result), lines(&change.changed))?;
    if let Some(before) = change.before.filter(|_| change.result != "same") {
        writeln!(out, "before    {}", line(&before))?;
    }
    Ok(writeln!(out, "{}", kept_text(&change.kept, "at the next decision of every server that shares it"))?)
}

/// The row of a descriptor on a server, for `weir explain`.
pub(super) enum RowOfServer {
    Absent,
    Row(Box<ShownRow>),
    /// The server gave no usable answer.
    Unknown(Unanswered),
}

/// Asks a server for the row of a descriptor.
pub(super) fn of_server(server: &ServerArguments, domain: &str, entries: &[(String, String)]) -> RowOfServer {
    match server.request((Method::GET, &one(domain, entries), String::new()), BOUNDS) {
        Ok(row) => RowOfServer::Row(Box::new(row)),
        Err(Unanswered::NoAnswer(NoAnswer::Refused(_, _, StatusCode::NOT_FOUND, _))) => RowOfServer::Absent,
        Err(error) => RowOfServer::Unknown(error),
    }
}

impl RowOfServer {
    /// One line for people.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Absent => "none, so the default plan applies".to_owned(),
            Self::Row(row) => line(&row.row),
            Self::Unknown(error) => format!("unknown: {error}"),
        }
    }

    /// Why a row has no effect.
    pub(super) fn unused(&self) -> Option<String> {
        match self {
            Self::Row(row) => row.unused.as_deref().map(printable),
            Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// The limits of a rule under a row. None without a row that has an effect.
    pub(super) fn limits(&self, rule: &Rule) -> Option<Vec<Option<Limit>>> {
        match self {
            Self::Row(row) if row.unused.is_none() => {
                row.row.clone().row().ok()?.content.limits(rule).ok().map(Cow::into_owned)
            }
            Self::Row(_) | Self::Absent | Self::Unknown(_) => None,
        }
    }
}

/// One line for people.
fn line(row: &AnsweredRow) -> String {
    let JsonRow { domain, descriptor, plan, limits, until, note, .. } = row;
    let content = match plan {
        Some(plan) => format!("plan {}", printable(plan)),
        None => shown::text(limits),
    };
    let mut line = format!("{} {}   {content}", printable(domain), printable(descriptor));
    if let Some(until) = until {
        line.push_str(&format!("   until {}", printable(until)));
    }
    if !note.is_empty() {
        line.push_str(&format!("   {}", printable(note)));
    }
    line
}

/// More lines, if the row has no effect, or an override comes before it.
fn no_effect(row: &ShownRow) -> String {
    let mut lines = String::new();
    if let Some(unused) = &row.unused {
        lines.push_str(&format!("\n  not used: {}", printable(unused)));
    }
    if let Some(RowOverride { limits, until }) = &row.overridden {
        let limits: Vec<String> = limits.iter().map(|name| printable(name)).collect();
        lines.push_str(&format!("\n  override of {}   until {}", limits.join(", "), printable(until)));
    }
    lines
}

fn lines(row: &ShownRow) -> String {
    line(&row.row) + &no_effect(row)
}

/// Sends a batch of rows to a running server.
fn by_server(server: &ServerArguments, pass: Pass, rows: &[RowToSend]) -> Result<Vec<LineEnd>, Failed> {
    let path = if pass == Pass::Check { format!("{PATH}?check=true") } else { PATH.to_owned() };
    let end = |result| match result {
        RowResult::Word(word) if word == "written" => LineEnd::Written,
        RowResult::Word(_) => LineEnd::Same,
        RowResult::Refused { refused, is_store: true, .. } => LineEnd::Unconfirmed(refused),
        RowResult::Refused { refused, field, .. } => LineEnd::Refused(field.and_then(field_of_row), refused),
    };
    Ok(post(server, &path, rows)?.into_iter().map(end).collect())
}

/// Sends rows to a running server. Returns one result for each.
fn post(server: &ServerArguments, path: &str, rows: &[RowToSend]) -> Result<Vec<RowResult>, Failed> {
    let (mut results, mut body) = (Vec::with_capacity(rows.len()), String::new());
    for (at, RowToSend { row, over }) in rows.iter().enumerate() {
        body.push_str(&json!(JsonRow { version: *over, ..<JsonRow>::from(row) }).to_string());
        body.push('\n');
        if body.len() >= BODY_BYTES || at + 1 == rows.len() {
            let answer: RowResults = ask(server, Method::POST, path, std::mem::take(&mut body))?;
            results.extend(answer.results);
        }
    }
    Ok(results)
}

fn field_of_row(wrong: WrongField) -> Option<RowField> {
    Some(match wrong {
        WrongField::Domain => RowField::Domain,
        WrongField::Descriptor => RowField::Descriptor,
        WrongField::Entry(position) => RowField::Entry(position),
        WrongField::Content => RowField::Content,
        WrongField::Version => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `weir rows list` and `prune` asked a server that always names a next page for ever.
    #[test]
    fn a_next_page_that_never_ends_is_an_error() {
        let server = AdminServer::default();
        let mut cursor = PageCursor::default();
        for next in ["0-0-5", "0-0-3", "0-1-0"] {
            assert!(cursor.moves_to(Some(next.to_owned()), &server).unwrap());
        }
        let error = cursor.moves_to(Some("0-1-0".to_owned()), &server).unwrap_err().to_string();
        assert!(error.starts_with("127.0.0.1:6070 names a next page after 4 pages"), "{error}");
        let mut cursor = PageCursor { after: None, pages: PAGES_MAX - 1 };
        assert!(!cursor.moves_to(None, &server).unwrap());
        let mut cursor = PageCursor { after: None, pages: PAGES_MAX - 1 };
        assert!(cursor.moves_to(Some("0-0-5".to_owned()), &server).is_err());
    }
}
