//! Time zones by their IANA names, from the database in the program.

use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::nearest;

/// A suggested name differs in length by at most this many bytes.
const BYTES_OFF_MAX: usize = 3;

pub fn zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

/// The end of a message about an unknown zone: the probable zone.
pub fn hint(name: &str) -> String {
    match nearest_zone(name) {
        Some(near) => format!(", did you mean {near:?}?"),
        None => HOW.to_owned(),
    }
}

pub const HOW: &str = ": write an IANA name such as Europe/Berlin";

/// The probable zone: the zone of that city, or one with a similar name.
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::zone;

    /// Release 2026f of the time zone database: earlier ones had Havana at -05:00 from 2026-11-01 on.
    #[test]
    fn the_time_zones_are_those_of_2026f() {
        let winter: Timestamp = "2026-12-01T12:00:00Z".parse().unwrap();
        let hours = zone("America/Havana").unwrap().to_offset(winter).seconds() / 3_600;
        assert_eq!(hours, -4);
    }
}
