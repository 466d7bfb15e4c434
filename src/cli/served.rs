//! The policies that a running server has in force, read again by the rules that it read them by.
//!
//! Not here: what is shown of them (check.rs, explain.rs).

use std::io;
use std::time::Duration;

use serde::Deserialize;
use weir_engine::words::printable;
use weir_policies::{Loaded, Problems, Sources, load_sources};

use super::admin::{AdminServer, Bounds, Expected, NoAnswer};

/// Twice what all files together may have: JSON escapes quotes and line ends.
const BOUNDS: Bounds = Bounds { bytes_max: 512 << 20, timeout: Duration::from_secs(60) };
const SOURCE: &str = "/policies/source";

/// Policies of a server.
#[derive(Debug)]
pub struct Served {
    /// What is in force.
    pub loaded: Loaded,
    /// What the server does with a request whose store does not answer, where no policy says so.
    pub on_error: String,
    /// What keeps newer policies from being in force.
    pub problems: Vec<String>,
}

/// Why there are none.
#[derive(Debug, thiserror::Error)]
pub enum NoPolicies {
    /// The server gave no usable answer.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    /// This program does not accept what the server has accepted.
    #[error("{0} has policies in force that this version of weir refuses:\n{1}")]
    Refused(AdminServer, Problems),
    /// This process can start nothing.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

#[derive(Deserialize)]
struct Answer {
    on_error: String,
    problems: Vec<String>,
    policies: Sources,
}

/// Asks a server for its policies.
///
/// # Errors
/// When it gives none that this program can read.
pub fn policies(server: &AdminServer) -> Result<Served, NoPolicies> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(NoPolicies::Start)?;
    let answer = runtime.block_on(server.json(SOURCE, Expected::Ok, BOUNDS));
    // A name server that does not answer must not delay the end.
    runtime.shutdown_background();
    let Answer { on_error, problems, mut policies } = answer?;
    // Names of files are printed as they are.
    policies.rename(printable);
    let loaded = load_sources(policies).map_err(|problems| NoPolicies::Refused(server.clone(), problems))?;
    let problems = problems.iter().map(|problem| printable(problem)).collect();
    Ok(Served { loaded, on_error: printable(&on_error), problems })
}
