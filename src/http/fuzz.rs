//! Fuzz targets for the bodies that set overrides and rows.

use weir_engine::descriptor::{entries_of, spell_pairs};

use super::{overrides, rows};

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

/// The body of `PUT /rows`, and a line of `POST /rows`.
/// Panics if a row is shown as another row.
pub fn row_body(data: &[u8]) {
    let Ok((row, _)) = rows::row_of(data) else { return };
    let again = rows::row_of(serde_json::json!(rows::versioned(&row)).to_string().as_bytes());
    assert_eq!(again.map(|(row, _)| row), Ok(row));
}
