//! `weir schema`: prints a JSON Schema.
//!
//! Not here: the schemas (policies/schema.rs).

use std::io::{self, Write};

use weir_policies::schema::Schema;

/// The kinds of files with a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Of {
    /// Policy files.
    Policies,
    /// The settings file.
    Settings,
    /// Files of tests.
    Tests,
    /// Files of traffic.
    Traffic,
}

/// Writes the schema.
pub fn run(of: Of, out: &mut dyn Write) -> io::Result<()> {
    let schema = match of {
        Of::Policies => Schema::Policies,
        Of::Settings => Schema::Settings,
        Of::Tests => Schema::Tests,
        Of::Traffic => Schema::Traffic,
    };
    writeln!(out, "{:#}", schema.document())
}
