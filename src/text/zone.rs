//! Time zones by their IANA names, from the database in the program.

use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::nearest;

/// A zone's name is not suggested for one that is longer or shorter by more than this, in bytes.
const BYTES_OFF_MAX: usize = 3;

/// The zone of a name.
#[must_use]
pub fn zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

/// What a message adds about a name that no zone has: the zone that was probably meant.
#[must_use]
pub fn hint(name: &str) -> String {
    match nearest_zone(name) {
        Some(near) => format!(", did you mean {near:?}?"),
        None => HOW.to_owned(),
    }
}

/// How a zone is written.
pub const HOW: &str = ": write an IANA name such as Europe/Berlin";

/// The zone that was probably meant: one of that city, or one that is spelled nearly so.
fn nearest_zone(name: &str) -> Option<String> {
    let zones = TimeZoneDatabase::bundled();
    let known: Vec<String> = zones.available().map(|zone| zone.as_str().to_owned()).collect();
    let is_of_city = |zone: &str| zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name));
    if let Some(zone) = known.iter().find(|zone| is_of_city(zone)) {
        return Some(zone.clone());
    }
    let of_length = known.iter().filter(|zone| zone.len().abs_diff(name.len()) <= BYTES_OFF_MAX);
    nearest(name, of_length.map(String::as_str)).map(str::to_owned)
}
