//! Fuzz targets for the bodies that set overrides and rows, and for the file of tokens.

use std::collections::HashSet;

use weir_engine::descriptor::{entries_of, spell_pairs};

use super::{overrides, rows, token};

/// The arrival time of bodies.
const NOW: u64 = 2_000_000_000_000_000;

/// The body of `PUT /overrides`.
/// Panics if an override without limits or a reason is accepted, or the text of a descriptor is read as another
/// descriptor.
pub fn override_body(data: &[u8]) {
    let Ok(one) = overrides::wanted(data, "fuzz", NOW) else { return };
    assert!(!one.set.numbers.is_empty() && !one.reason.is_empty());
    assert_eq!(entries_of(&spell_pairs(&one.set.entries)), Ok(one.set.entries));
}

/// A file of tokens.
/// Panics if two tokens are one, or if a file that was cut gives a token that the whole file does not give.
pub fn tokens(data: &[u8]) {
    const CUTS_MAX: usize = 60;
    let Ok(all) = token::parse(data) else { return };
    assert_eq!(all.iter().map(|caller| &caller.name).collect::<HashSet<_>>().len(), all.len());
    assert_eq!(all.iter().map(|caller| caller.hash).collect::<HashSet<_>>().len(), all.len());
    for end in data.len().saturating_sub(CUTS_MAX)..data.len() {
        if let Ok(cut) = token::parse(&data[..end]) {
            assert!(all.starts_with(&cut));
        }
    }
}

/// The body of `PUT /rows`, and a line of `POST /rows`.
/// Panics if a row is shown as another row.
pub fn row_body(data: &[u8]) {
    let Ok((row, _)) = rows::row_of(data) else { return };
    let again = rows::row_of(serde_json::json!(rows::versioned(&row)).to_string().as_bytes());
    assert_eq!(again.map(|(row, _)| row), Ok(row));
}
