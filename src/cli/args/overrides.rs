//! The arguments of `weir override`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use weir_engine::Micros;
use weir_engine::descriptor::TypedDescriptor;
use weir_engine::overrides::Numbers;
use weir_policies::parse_named_rate;
use weir_text::{number, parse_instant};

use crate::admin::ServerArguments;

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
    pub descriptor: TypedDescriptor,
    /// Hits per unit or length, such as 1000/h; with a name if the rule has several limits
    #[arg(long, value_name = "[NAME=]RATE", required = true, value_parser = parse_named_rate)]
    pub limit: Vec<Numbers>,
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
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
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
    pub descriptor: TypedDescriptor,
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
}
