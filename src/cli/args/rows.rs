//! The arguments of `weir rows`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use weir_engine::Micros;
use weir_engine::descriptor::TypedDescriptor;
use weir_engine::overrides::Numbers;
use weir_policies::row_file;
use weir_text::parse_instant;

use super::overrides::DescriptorArguments;
use crate::admin::ServerArguments;

/// The arguments of `weir rows`.
#[derive(Args)]
pub struct RowArguments {
    /// The action.
    #[command(subcommand)]
    pub action: RowAction,
}

/// The actions of `weir rows`.
#[derive(Subcommand)]
pub enum RowAction {
    /// Set the rows of a file, one in each line
    Import(ImportArguments),
    /// Print the row of one descriptor
    Get(DescriptorArguments),
    /// Set the row of one descriptor
    Set(SetRowArguments),
    /// Remove the row of one descriptor
    Remove(DescriptorArguments),
    /// Print the rows for people
    List(AllArguments),
    /// Print the rows as a file for import
    Export(ExportArguments),
    /// Remove the rows that have ended
    Prune(AllArguments),
}

/// The arguments of `weir rows import`.
#[derive(Args, Debug)]
pub struct ImportArguments {
    /// A CSV file with a header line
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Continue after wrong lines, and list them
    #[arg(long)]
    pub skip: bool,
    /// Remove each row that is not in the file, after the rows of the file are written
    #[arg(long, conflicts_with = "skip")]
    pub replace: bool,
    /// Check the file and change nothing; with --replace also print the rows that would be removed
    #[arg(long, conflicts_with = "skip")]
    pub dry_run: bool,
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `weir rows set`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("content").required(true)))]
pub struct SetRowArguments {
    /// The domain
    pub domain: String,
    /// The descriptor, its entries in order
    #[arg(value_name = "K=V[,K=V]")]
    pub descriptor: TypedDescriptor,
    /// A plan of the rule
    #[arg(long, value_name = "NAME", group = "content")]
    pub plan: Option<String>,
    /// The descriptor's own numbers, such as rpm=500/min; the name of the limit is needed if the rule has several
    #[arg(long, value_name = "[NAME=]RATE[ burst N]", group = "content", value_parser = row_file::numbers)]
    pub limits: Option<Box<[Numbers]>>,
    /// When it ends: 2026-12-01T18:00:00Z, 2026-12-01T18:00[Europe/Berlin], or a date, which begins in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    pub until: Option<Micros>,
    /// A note for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `weir rows export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// Which rows.
    #[command(flatten)]
    pub all: AllArguments,
    /// Add a column with the version of each row: an import of the file replaces no row that has changed since
    #[arg(long)]
    pub versions: bool,
}

/// The rows of one domain, or all rows.
#[derive(Args, Debug)]
pub struct AllArguments {
    /// Only rows of this domain
    pub domain: Option<String>,
    /// Where the server is.
    #[command(flatten)]
    pub server: ServerArguments,
}
