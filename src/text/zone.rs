//! Time zones by their IANA names, from the database in the program.

use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::nearest_within;

/// A suggested name differs by at most this many letters: many names have common parts.
const LETTERS_OFF_MAX: usize = 2;

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

pub const HOW: &str =
    ": write an IANA name such as Europe/Berlin, https://data.iana.org/time-zones/tzdb/zone.tab lists them";

/// The probable zone: the zone of that city, or one with a similar name.
fn nearest_zone(name: &str) -> Option<String> {
    let zones = TimeZoneDatabase::bundled();
    let known: Vec<String> = zones.available().map(|zone| zone.as_str().to_owned()).collect();
    let is_of_city = |zone: &str| zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name));
    if let Some(zone) = known.iter().find(|zone| is_of_city(zone)) {
        return Some(zone.clone());
    }
    // Europe/Munich is only two letters from Europe/Zurich.
    let initial =
        |zone: &str| zone.rsplit('/').next().and_then(|city| city.chars().next()).map(|c| c.to_ascii_lowercase());
    let alike = known
        .iter()
        .filter(|zone| zone.len().abs_diff(name.len()) <= LETTERS_OFF_MAX && initial(zone) == initial(name));
    nearest_within(name, alike.map(String::as_str), LETTERS_OFF_MAX).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{HOW, hint, zone};

    #[test]
    fn a_zone_is_suggested_for_a_city_or_for_two_wrong_letters() {
        assert_eq!(hint("Europe/Berlni"), ", did you mean \"Europe/Berlin\"?");
        assert_eq!(hint("berlin"), ", did you mean \"Europe/Berlin\"?");
        assert_eq!(hint("Europe/Munich"), HOW);
    }

    /// Release 2026f of the time zone database: earlier ones had Havana at -05:00 from 2026-11-01 on.
    #[test]
    fn the_time_zones_are_those_of_2026f() {
        let winter: Timestamp = "2026-12-01T12:00:00Z".parse().unwrap();
        let hours = zone("America/Havana").unwrap().to_offset(winter).seconds() / 3_600;
        assert_eq!(hours, -4);
    }
}
