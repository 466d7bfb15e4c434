//! Traffic for simulations, `*.traffic.yaml`: sources of requests, or an access log and the meaning of its fields.
//!
//! docs/simulation.md is the reference of the format. Not here: generating the requests (lab).

mod access_log;
pub(super) mod keys;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use keys::KINDS;
use weir_engine::Micros;
use weir_settings::Settings;
use weir_text::INSTANT_US_MAX;

use self::keys::file;
use super::fields::Fields;
pub use super::single::FILE_BYTES_MAX;
use super::state::{FileReader, Reported};
use super::test_file::{Descriptor, START_US};
use super::{GivenRows, Position, Problems, single};

pub const SOURCES_MAX: usize = 100;
/// The most keys of all sources of one file in total.
pub const KEYS_MAX: u32 = 5_000_000;
pub const ROWS_MAX: usize = 1_000_000;
/// The longest time that sources send, in microseconds: 366 days.
pub const DURATION_US_MAX: Micros = 366 * 86_400 * 1_000_000;

#[derive(Debug)]
pub struct TrafficFile {
    pub name: Arc<str>,
    pub settings: Arc<Settings>,
    /// The rows for all policies; none if the file has no rows.
    pub rows: Option<Arc<GivenRows>>,
    pub origin: Origin,
}

#[derive(Debug)]
pub enum Origin {
    Sources(Sources),
    AccessLog(AccessLog),
}

/// Sources of requests that send at the same time.
#[derive(Debug)]
pub struct Sources {
    /// When they begin.
    pub start: Micros,
    /// How long they send, in microseconds.
    pub duration: Micros,
    pub seed: u64,
    pub sources: Vec<Source>,
}

#[derive(Debug)]
pub struct Source {
    pub position: Position,
    /// The domain of its requests. It can be empty.
    pub domain: String,
    /// The descriptors. `<n>` in keys and values is the number of the key, from 1.
    pub descriptors: Vec<Descriptor>,
    /// The hits of descriptors without their own hits. None if the request sends none.
    pub hits: Option<u32>,
    /// The requests of a period; 1 or more.
    pub requests: u32,
    /// The period, in microseconds.
    pub period: Micros,
    pub arrivals: Arrivals,
    /// After how many microseconds an admitted request settles its holds: uniformly distributed between these two.
    /// None: never.
    pub lasts: Option<(Micros, Micros)>,
    /// The hits of each descriptor that it has used when it settles: uniformly distributed between these two. None: its own.
    pub used: Option<(u32, u32)>,
    /// When it begins, after the start of the traffic.
    pub from: Micros,
    /// When it ends, after the start of the traffic.
    pub until: Micros,
    /// How many keys it has; 1 or more. All are equally frequent.
    pub keys: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal intervals.
    Constant,
    /// Independently of each other.
    Poisson,
    /// Groups of this many at once, at equal intervals.
    Bursts(u32),
}

impl Arrivals {
    pub const NAMES: [&'static str; 3] = ["constant", "poisson", "bursts"];
}

/// A log of JSON lines, and the meaning of its fields. `<field>` in texts is the value of that field.
#[derive(Debug)]
pub struct AccessLog {
    pub path: PathBuf,
    pub time: String,
    pub format: TimeFormat,
    pub domain: String,
    /// The descriptors. A descriptor is left out if the line lacks one of its fields.
    pub descriptors: Vec<Descriptor>,
    /// The hits of descriptors without their own.
    pub hits: LoggedHits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedHits {
    /// The same for each line. None if the request sends no hits.
    Same(Option<u32>),
    /// The value of this field, such as the tokens of an answer.
    Field(String),
}

weir_engine::named! {
    pub enum TimeFormat {
        /// `2026-12-01T10:00:00.123Z`.
        Rfc3339 = "rfc3339",
        /// Seconds since 1970, with or without a fraction.
        Seconds = "unix_s",
        /// Milliseconds since 1970.
        Millis = "unix_ms",
        /// Microseconds since 1970.
        Micros = "unix_us",
    }
}

/// Reads a file of traffic.
///
/// # Errors
/// Every problem of the file, each with its place.
pub fn read(path: &Path) -> Result<TrafficFile, Problems> {
    let (name, text) = single::read(path, single::FILE_BYTES_MAX)?;
    parse(&name, &text, path.parent().unwrap_or(Path::new("")))
}

/// Reads the text of a file of traffic. Paths are relative to `directory`.
///
/// ```
/// use std::path::Path;
/// use weir_policies::traffic_file::parse;
///
/// let text = "duration: 1m\ndomain: shop\nsources: [{ask: user=ann, rate: 10/s, arivals: poisson}]";
/// assert_eq!(
///     parse(&"shop.traffic.yaml".into(), text, Path::new("")).unwrap_err().to_string(),
///     "shop.traffic.yaml:3:39: unknown key \"arivals\" in a source, did you mean \"arrivals\"?"
/// );
/// ```
///
/// # Errors
/// Every problem of the text, each with its place.
pub fn parse(name: &Arc<str>, text: &str, directory: &Path) -> Result<TrafficFile, Problems> {
    single::parse(name, text, crate::Limits::default(), &KINDS, |reader| reader.traffic(directory))
}

impl FileReader<'_> {
    fn traffic(&mut self, directory: &Path) -> Result<TrafficFile, Reported> {
        let Some(root) = self.document.root.filter(|&root| !self.document.node(root).is_null()) else {
            return Err(self.report(Position::START, "empty: a file of traffic has sources or an access_log"));
        };
        let fields = self.fields_of_file(root, &file::KIND)?;
        let given = self.settings_of(&fields, &Vec::new(), directory);
        let settings = match given {
            Ok(given) => self.loaded(fields.key_at(file::SETTINGS).unwrap_or(fields.at), &given),
            Err(reported) => Err(reported),
        };
        let rows = self.given_rows(&fields, directory, ROWS_MAX);
        let origin = match (self.given(&fields, file::SOURCES), self.given(&fields, file::ACCESS_LOG)) {
            (Some(_), Some(at)) => Err(self.report(at, "sources and access_log: give one of them")),
            (None, Some(_)) => self.access_log(&fields, directory).map(Origin::AccessLog),
            (Some(_), None) => self.sources(&fields).map(Origin::Sources),
            // A misspelled key was reported before.
            (None, None) if !fields.lacks(file::SOURCES) || !fields.lacks(file::ACCESS_LOG) => {
                Err(self.report(fields.at, "no sources: a file of traffic has at least one, or an access_log"))
            }
            (None, None) => Err(self.report(fields.at, "a file of traffic has sources or an access_log")),
        };
        Ok(TrafficFile { name: self.file.clone(), settings: settings?, rows: rows?, origin: origin? })
    }

    fn sources(&mut self, fields: &Fields) -> Result<Sources, Reported> {
        let start = self.read(fields, file::START);
        let seed = self.read(fields, file::SEED);
        let domain = self.default_domain(fields);
        let duration = match self.read(fields, file::DURATION)? {
            None => return Err(self.report(fields.at, "no duration: write how long the sources send, such as 10m")),
            Some(length) if !(1..=DURATION_US_MAX).contains(&length) => {
                let message = "duration must be longer than 0 and at most 366 days".to_owned();
                return Err(self.report_value(fields, file::DURATION, message));
            }
            Some(length) => length,
        };
        let start = start?.unwrap_or(START_US);
        if start.saturating_add(duration) > INSTANT_US_MAX {
            return Err(self.report_value(fields, file::DURATION, "the traffic goes on past the year 2100".to_owned()));
        }
        let items = self.read(fields, file::SOURCES)?.unwrap_or_default();
        if items.is_empty() || items.len() > SOURCES_MAX {
            let message = format!("{} sources: a file of traffic has 1 to {SOURCES_MAX}", items.len());
            return Err(self.report_value(fields, file::SOURCES, message));
        }
        let mut sources = Vec::with_capacity(items.len());
        let mut keys = 0_u64;
        for item in items {
            let Ok(source) = self.source(item, duration, domain.as_deref()) else { continue };
            let before = keys;
            keys += u64::from(source.keys);
            if keys > u64::from(KEYS_MAX) && before <= u64::from(KEYS_MAX) {
                let message = format!("the sources up to here have {keys} keys: at most {KEYS_MAX} in one file");
                self.report(source.position, message);
            }
            sources.push(source);
        }
        Ok(Sources { start, duration, seed: u64::from(seed?.unwrap_or(0)), sources })
    }
}
