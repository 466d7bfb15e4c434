//! `weir override`: sets, lists and deletes the overrides of a running server.
//!
//! Not here: parsing of arguments (args/overrides.rs), and the effect of an override (engine, limiter).

use std::io::{self, Write};

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_api::numbers::json_numbers;
use weir_api::overrides::{NewOverride, OverrideChange, OverrideList};
use weir_engine::descriptor::spell_pairs;
use weir_engine::overrides::Numbers;
use weir_engine::words::printable;
use weir_text::instant_text;

use super::admin::{Method, NoAnswer, ServerArguments, Unanswered, encoded};
use super::args::overrides::{DescriptorArguments, ListArguments, OverrideAction, SetArguments};
use super::explain;
use super::overridden::{BOUNDS, PATH, line};
use super::shown::kept_text;

/// The maximum age of a list without a note.
const READ_MS_MAX: u64 = 5_000;

#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("{0}")]
    Server(#[from] Unanswered),
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Runs an action.
///
/// # Errors
/// If the server does not execute it, or the output cannot be written.
pub fn run(action: &OverrideAction, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    match action {
        OverrideAction::Set(arguments) => set(arguments, out, notes),
        OverrideAction::List(arguments) => list(arguments, out, notes),
        OverrideAction::Delete(arguments) => delete(arguments, out),
    }
}

fn set(arguments: &SetArguments, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    let SetArguments { domain, descriptor, limit: limits, burst, until, lasts, reason, server } = arguments;
    if burst.is_some() && limits.len() > 1 {
        return Err(Failed::Usage("--burst with several --limit: set one limit at a time".to_owned()));
    }
    let limits: Vec<Numbers> = limits.iter().map(|limit| Numbers { burst: *burst, ..limit.clone() }).collect();
    let body = json!(NewOverride {
        domain: domain.clone(),
        descriptor: spell_pairs(&descriptor.entries),
        limits: json_numbers(&limits),
        until: until.map(instant_text),
        for_us: lasts.map(|lasts| u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX)),
        reason: reason.clone(),
    });
    let changed = match change(server, Method::PUT, PATH, body.to_string()) {
        Ok(changed) => changed,
        Err(error) => {
            if let Unanswered::NoAnswer(NoAnswer::Refused(_, _, StatusCode::NOT_FOUND, _)) = &error {
                // Explain why the descriptor meets no rule. If that fails, only the error is shown.
                let asked = std::slice::from_ref(&descriptor.entries);
                let _ = explain::run_served(server, domain, asked, notes, &mut io::sink());
            }
            return Err(error.into());
        }
    };
    let kept = kept_text(&changed.kept, "on all servers that share it within a second");
    writeln!(out, "set   {}\n{kept}", line(&changed.changed))?;
    if let Some(others) = &changed.shared_with {
        writeln!(out, "also {}: share_threshold gives all of these one state", printable(others))?;
    }
    Ok(())
}

fn delete(arguments: &DescriptorArguments, out: &mut dyn Write) -> Result<(), Failed> {
    let DescriptorArguments { domain, descriptor, server } = arguments;
    let descriptor = encoded(&spell_pairs(&descriptor.entries));
    let path = format!("{PATH}?domain={}&descriptor={descriptor}", encoded(domain));
    let changed = change(server, Method::DELETE, &path, String::new())?;
    writeln!(out, "deleted   {}", line(&changed.changed))?;
    if let Some(others) = &changed.shared_with {
        writeln!(out, "also for  {}", printable(others))?;
    }
    Ok(())
}

fn change(server: &ServerArguments, method: Method, path: &str, body: String) -> Result<OverrideChange, Unanswered> {
    server.request((method, path, body), BOUNDS)
}

fn list(arguments: &ListArguments, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failed> {
    let ListArguments { server, json } = arguments;
    let asked = (Method::GET, PATH, String::new());
    if *json {
        let answer: Value = server.request(asked, BOUNDS)?;
        writeln!(out, "{answer:#}")?;
        return Ok(());
    }
    let OverrideList { read_ms_ago, overrides, .. } = server.request(asked, BOUNDS)?;
    for one in &overrides {
        writeln!(out, "{}   {}", line(one), printable(&one.reason))?;
        if let Some(unused) = &one.unused {
            writeln!(out, "  not used: {}", printable(unused))?;
        }
    }
    let server = &server.server;
    match read_ms_ago {
        None => writeln!(notes, "weir: {server} could not read its store yet: only the policies apply")?,
        Some(ms) if ms > READ_MS_MAX => {
            writeln!(notes, "weir: {server} could not read its store for {} s: newer changes are missing", ms / 1_000)?;
        }
        Some(_) => {}
    }
    Ok(())
}
