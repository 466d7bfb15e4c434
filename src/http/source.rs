//! `/policies/source`: the files of the policies in force, for other programs.
//!
//! The texts are stored in gzip, and decompressed in pieces as the caller reads. A caller of some domains gets the files
//! of these. Not here: what is stored (policies).

use std::io::{self, BufRead, BufReader, Cursor, Read as _};
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use flate2::read::GzDecoder;
use weir_api::PolicySource;

use super::rights::{Caller, Lacking};
use super::streamed::{PIECE_BYTES, pieces};
use super::{Site, json_error};

/// The files of the policies in force.
#[derive(Clone, Debug)]
pub struct KeptFiles {
    /// JSON in gzip: a line for what is before the files, one for each file, and one for the end. Each file but the first
    /// has a comma before it.
    pub packed: Arc<[u8]>,
    /// The domain of each file.
    pub domains: Arc<[Arc<str>]>,
    /// Whether there are overlays, which concern any domain.
    pub has_overlays: bool,
}

/// The server's `on_error`, the problems of what it refuses, the domains of the caller, and the files.
pub(super) async fn source(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
) -> Result<Response, Response> {
    let (kept, problems) = {
        let shown = site.report.policies.lock();
        (shown.source.clone(), shown.problems.clone())
    };
    let Some(KeptFiles { packed, domains, has_overlays }) = kept else {
        let reason = "the source of the policies in force is not kept: there are none yet, or they are too large";
        return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, reason));
    };
    if has_overlays && !caller.has_all_domains() {
        // Without them, the files would show other limits than those in force.
        let reason = "the server has overlays, which concern any domain: this needs a token for all domains";
        return Err(Lacking(reason.to_owned()).into());
    }
    let problems = match problems.count {
        // The texts can quote files of other domains.
        1.. if !caller.has_all_domains() => vec!["newer policies: ask with a token for all domains".to_owned()],
        _ => problems.lines(),
    };
    let other_problems = match caller.has_all_domains() {
        true => site.other_inputs().into_iter().flat_map(|input| input.problems).collect(),
        false => Vec::new(),
    };
    let on_error = site.admin.on_error.name().to_owned();
    let head = PolicySource { on_error, problems, other_problems, domains: caller.domains(), policies: () };
    // The files are written after the rest.
    let head = serde_json::to_string(&head).unwrap_or_default().trim_end_matches("null}").to_owned();
    let files: Box<dyn io::Read + Send> = match GzDecoder::new(Cursor::new(packed)) {
        all if caller.has_all_domains() => Box::new(all),
        all => Box::new(OwnFiles::new(BufReader::new(all), domains, caller)),
    };
    let mut parts = Cursor::new(head).chain(files).chain(&b"}"[..]);
    let body = pieces(move || match next(&mut parts) {
        Ok(piece) => (!piece.is_empty()).then(|| piece.into()),
        Err(error) => unreachable!("what weir has packed can be unpacked: {error}"),
    });
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

/// The next piece. Empty at the end.
fn next(from: &mut impl io::Read) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    from.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// The lines of [`KeptFiles`] without those of files of other domains.
struct OwnFiles<R> {
    lines: R,
    domains: Arc<[Arc<str>]>,
    caller: Arc<Caller>,
    /// The number of the next line.
    next: usize,
    /// Whether the caller gets the current line. None between two lines.
    is_own: Option<bool>,
    has_file: bool,
}

impl<R> OwnFiles<R> {
    const fn new(lines: R, domains: Arc<[Arc<str>]>, caller: Arc<Caller>) -> Self {
        Self { lines, domains, caller, next: 0, is_own: None, has_file: false }
    }

    /// Begins a line. Returns whether the caller gets it, and whether that is its first file.
    fn begin(&mut self) -> (bool, bool) {
        // The first line and the last are of no file.
        let domain = self.next.checked_sub(1).and_then(|file| self.domains.get(file));
        self.next += 1;
        let is_own = domain.is_none_or(|domain| self.caller.has(domain));
        self.is_own = Some(is_own);
        let is_first = domain.is_some() && is_own && !self.has_file;
        self.has_file |= is_first;
        (is_own, is_first)
    }
}

impl<R: BufRead> io::Read for OwnFiles<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(&first) = self.lines.fill_buf()?.first() else { return Ok(0) };
            let is_own = match self.is_own {
                Some(is_own) => is_own,
                None => match self.begin() {
                    // No file is before it.
                    (_, true) if first == b',' => {
                        self.lines.consume(1);
                        continue;
                    }
                    (is_own, _) => is_own,
                },
            };
            let found = self.lines.fill_buf()?;
            let end = found.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let of_line = end.unwrap_or(found.len());
            let taken = if is_own { of_line.min(into.len()) } else { of_line };
            if is_own {
                into[..taken].copy_from_slice(&found[..taken]);
            }
            if end == Some(taken) {
                self.is_own = None;
            }
            self.lines.consume(taken);
            if is_own {
                return Ok(taken);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rights;
    use super::*;

    #[test]
    fn a_caller_of_some_domains_reads_their_files_in_pieces_of_any_size() {
        let lines = "{\"files\":[\n{\"a\":1}\n,{\"b\":2}\n,{\"a\":\"3,\\n\"}\n,{\"c\":4}\n]}";
        let domains: Arc<[Arc<str>]> = ["team-a/x", "b", "team-a/y", "c"].map(Arc::from).into();
        for (of, expected) in [
            ("team-a/*", "{\"files\":[\n{\"a\":1}\n,{\"a\":\"3,\\n\"}\n]}"),
            ("b", "{\"files\":[\n{\"b\":2}\n]}"),
            ("c,team-a/y", "{\"files\":[\n{\"a\":\"3,\\n\"}\n,{\"c\":4}\n]}"),
            ("nothing", "{\"files\":[\n]}"),
            ("*", lines),
        ] {
            let line = format!("ann 0123456789abcdef look {of}");
            let caller = Arc::new(rights::parse(line.as_bytes()).unwrap().unwrap());
            for bytes in [1, 2, 3, 7, 1_000] {
                let buffered = BufReader::with_capacity(bytes, lines.as_bytes());
                let mut own = OwnFiles::new(buffered, domains.clone(), caller.clone());
                let (mut read, mut piece) = (Vec::new(), vec![0; bytes]);
                while let count @ 1.. = own.read(&mut piece).unwrap() {
                    read.extend(&piece[..count]);
                }
                assert_eq!(String::from_utf8(read).unwrap(), expected, "{of}, {bytes} bytes");
            }
        }
    }
}
