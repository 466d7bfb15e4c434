//! `weir schema`: prints a JSON Schema of what operators write.
//!
//! Not here: what the schemas say (policies/schema.rs).

use std::io::{self, Write};

use weir_policies::schema::Schema;

/// Of what the schema is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Of {
    /// Of policy files.
    Policies,
    /// Of the settings file.
    Settings,
    /// Of files of tests.
    Tests,
    /// Of files of traffic.
    Traffic,
}

/// Writes the schema.
///
/// # Errors
/// Those of the writer.
pub fn run(of: Of, out: &mut dyn Write) -> io::Result<()> {
    let schema = match of {
        Of::Policies => Schema::Policies,
        Of::Settings => Schema::Settings,
        Of::Tests => Schema::Tests,
        Of::Traffic => Schema::Traffic,
    };
    writeln!(out, "{:#}", schema.document())
}
