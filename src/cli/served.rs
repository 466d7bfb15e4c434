//! The policies in force on a running server, read in the same dialect as there.

use std::time::Duration;

use weir_api::PolicySource;
use weir_engine::callers::Domains;
use weir_engine::words::printable;
use weir_policies::{Loaded, Problems, Sources, load_sources};

use super::admin::{AdminServer, Bounds, Method, ServerArguments, Unanswered};

/// Twice the bound of all files together: JSON escapes quotes and line ends.
const BOUNDS: Bounds = Bounds { bytes_max: 512 << 20, timeout: Duration::from_secs(60) };
const SOURCE: &str = "/policies/source";

#[derive(Debug)]
pub struct Served {
    pub loaded: Loaded,
    /// The server's setting `on_error`.
    pub on_error: String,
    /// The problems of newer policies that the server refuses.
    pub problems: Vec<String>,
    /// The problems of rows, callers and tokens that the server refuses.
    pub other_problems: Vec<String>,
    /// The domains of the token, if these are not all: the policies of other domains are missing.
    pub domains: Option<Domains>,
}

#[derive(Debug, thiserror::Error)]
pub enum NoPolicies {
    #[error("{0}")]
    NoAnswer(#[from] Unanswered),
    #[error("{0} has policies in force that this version of weir refuses:\n{1}")]
    Refused(AdminServer, Problems),
}

/// Asks a server for its policies.
///
/// # Errors
/// If it returns no policies that this program can read.
pub fn policies(arguments: &ServerArguments) -> Result<Served, NoPolicies> {
    let PolicySource::<Sources> { on_error, problems, other_problems, domains, mut policies } =
        arguments.request((Method::GET, SOURCE, String::new()), BOUNDS)?;
    // Names of files will be printed.
    policies.rename(printable);
    let loaded = load_sources(policies).map_err(|problems| NoPolicies::Refused(arguments.server.clone(), problems))?;
    let [problems, other_problems] =
        [problems, other_problems].map(|problems| problems.iter().map(|problem| printable(problem)).collect());
    // The server has read them in the same way.
    let domains = domains.map(|texts| Domains::new(texts.iter().map(String::as_str)).unwrap_or_default());
    Ok(Served { loaded, on_error: printable(&on_error), problems, other_problems, domains })
}
