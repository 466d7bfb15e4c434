//! An error and its causes as a sentence for the log.

use std::error::Error;

pub fn in_full(error: &(dyn Error + 'static)) -> String {
    let mut text = own_text(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = own_text(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// An error without its causes. The `Display` of a `tonic::Status` would print its cause in `Debug` form.
fn own_text(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<tonic::Status>() {
        Some(status) if status.message().is_empty() => status.code().to_string(),
        Some(status) => format!("{}: {}", status.code(), status.message()),
        None => error.to_string(),
    }
}

/// The last of an error's causes.
pub fn innermost(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Its `Display` is `code: 'Unknown error', message: "...", source: hyper::Error(Body, Error { kind: Io(Custom { ...`.
    #[test]
    fn a_status_is_a_sentence_without_debug_forms() {
        let broken = io::Error::new(io::ErrorKind::BrokenPipe, "the pipe is broken");
        let status = tonic::Status::from_error(Box::new(io::Error::other(broken)));
        let text = in_full(&status);
        assert!(text.contains("the pipe is broken"), "{text}");
        assert!(["code:", "Custom", "{", "\""].iter().all(|form| !text.contains(form)), "{text}");
    }
}
