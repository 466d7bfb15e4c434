//! The arguments of `weir override`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use weir_engine::Micros;
use weir_policies::parse_rate;
use weir_text::parse_instant;

use crate::admin::AdminServer;
use crate::descriptor::Descriptor;
use crate::numbers::number;

/// The arguments of `weir override`.
#[derive(Args, Debug)]
pub struct OverrideArguments {
    /// The action.
    #[command(subcommand)]
    pub action: OverrideAction,
}

/// The actions of `weir override`.
#[derive(Subcommand, Debug)]
pub enum OverrideAction {
    /// Set numbers for one descriptor, in place of the current ones
    Set(SetArguments),
    /// List the overrides of a server
    List(ListArguments),
    /// Delete the override of one descriptor
    Delete(DescriptorArguments),
}

/// The arguments of `weir override set`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("end").required(true)))]
pub struct SetArguments {
    /// The domain
    pub domain: String,
    /// The descriptor, its entries in order
    ///
    /// A comma inside a value is written as \, and a backslash as \\
    #[arg(value_name = "K=V[,K=V]")]
    pub descriptor: Descriptor,
    /// Hits per unit or length, such as 1000/h; with a name if the rule has several limits
    #[arg(long, value_name = "[NAME=]RATE", required = true, value_parser = named_rate)]
    pub limit: Vec<NamedRate>,
    /// The most hits at one instant, for a limit with a burst; without it, the burst keeps its ratio to the hits
    #[arg(long, value_name = "N", value_parser = number::<u32>(0, u32::MAX.into()))]
    pub burst: Option<u32>,
    /// When it ends: 2026-12-01T18:00:00Z, 2026-12-01T18:00[Europe/Berlin], or a date, which begins in UTC
    #[arg(long, value_name = "TIME", group = "end", value_parser = parse_instant)]
    pub until: Option<Micros>,
    /// How long it lasts, such as 2h
    #[arg(long = "for", id = "lasts", value_name = "DURATION", value_parser = weir_text::duration, group = "end")]
    pub lasts: Option<Duration>,
    /// The reason, for the log and the list
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `weir override list`.
#[derive(Args, Debug)]
pub struct ListArguments {
    /// The server's admin listener, HOST:PORT
    #[arg(long, value_name = "ADDR", default_value_t)]
    pub server: AdminServer,
    /// Print the server's answer
    #[arg(long)]
    pub json: bool,
}

/// One descriptor.
#[derive(Args, Debug)]
pub struct DescriptorArguments {
    /// The domain
    pub domain: String,
    /// The descriptor, its entries in order
    #[arg(value_name = "K=V[,K=V]")]
    pub descriptor: Descriptor,
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The server, and the token for changes.
#[derive(Args, Debug)]
pub struct ServerArguments {
    /// The server's admin listener, HOST:PORT
    #[arg(long, value_name = "ADDR", default_value_t)]
    pub server: AdminServer,
    /// A file with a token of the server's admin.token_file
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// `1000/h`, or `NAME=1000/h`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRate {
    /// The name of the limit.
    pub name: Option<String>,
    /// Hits per window.
    pub requests: u32,
    /// The window in microseconds.
    pub window_us: u64,
}

/// A rate contains no `=`, so the last `=` ends the name.
fn named_rate(text: &str) -> Result<NamedRate, String> {
    let (name, rate) = match text.rsplit_once('=') {
        Some(("", _)) => return Err(format!("{text:?} has no name before the \"=\"")),
        Some((name, rate)) => (Some(name.to_owned()), rate),
        None => (None, text),
    };
    let (requests, window) = parse_rate(rate)?;
    Ok(NamedRate { name, requests, window_us: window.us() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_with_its_name() {
        let rate = |name: Option<&str>, requests, seconds: u64| {
            Ok(NamedRate { name: name.map(str::to_owned), requests, window_us: seconds * 1_000_000 })
        };
        assert_eq!(named_rate("1000/h"), rate(None, 1_000, 3_600));
        assert_eq!(named_rate("a=b=5/90s"), rate(Some("a=b"), 5, 90));
        for (text, reason) in [("=1/s", "no name"), ("x=", "no rate"), ("10", "write 10/s"), ("1/fortnight", "no unit")]
        {
            let refused = named_rate(text).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }
}
