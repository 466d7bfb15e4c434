//! An access log, and the meaning of its fields.

use std::path::Path;

use super::keys::{access_log, file};
use super::{AccessLog, LoggedHits, TimeFormat};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};

/// The keys of a file that only sources use.
const OF_SOURCES: [&str; 3] = [file::DURATION.name, file::START.name, file::SEED.name];

impl FileReader<'_> {
    pub(super) fn access_log(&mut self, top: &Fields, directory: &Path) -> Result<AccessLog, Reported> {
        let mut refused = Ok(());
        for key in OF_SOURCES {
            if let Some(at) = self.given(top, key) {
                refused =
                    Err(self.report(at, format!("{key} has no effect with access_log: the log has its own times")));
            }
        }
        let Some((_, id)) = top.get(file::ACCESS_LOG) else { return Err(Reported) };
        let fields = self.fields(id, &access_log::KIND)?;
        let default = self.default_domain(top);
        let own = self.default_domain(&fields);
        let path = self.read(&fields, access_log::FILE);
        let time = self.read(&fields, access_log::TIME);
        let format = self.read(&fields, access_log::TIME_FORMAT);
        let hits_field = self.hits_field(&fields);
        let asked = match hits_field {
            Ok(None) => self.asked(&fields),
            Ok(Some(_)) => self.asked_for(&fields, Ok(None)),
            Err(Reported) => self.asked_for(&fields, Err(Reported)),
        };
        let Some(path) = path? else {
            return Err(self.report(fields.at, "no file: write the path of the log, relative to this file's directory"));
        };
        let Some(time) = time? else {
            return Err(self.report(fields.at, "no time: write the field of the log that has it, such as start_time"));
        };
        let (descriptors, hits) = asked?;
        if descriptors.is_empty() {
            return Err(self.report(fields.at, "no descriptors: write ask, such as user=<x-user>"));
        }
        let Some(domain) = own.or(default) else {
            return Err(self.report(fields.at, "no domain: give it here or at the top of the file"));
        };
        refused?;
        let hits = hits_field?.map_or(LoggedHits::Same(hits), LoggedHits::Field);
        let format = format?.unwrap_or(TimeFormat::Rfc3339);
        Ok(AccessLog { path: directory.join(path), time, format, domain, descriptors, hits })
    }

    /// The field with the hits. None if `hits` is a number.
    fn hits_field(&mut self, fields: &Fields) -> Read<String> {
        // A text that begins with a digit or a sign is probably a number.
        let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
        let Some(field) = self.read(fields, access_log::HITS)?.filter(|text| !is_number(text)) else {
            return Ok(None);
        };
        if self.read(fields, access_log::LOOK)? {
            return Err(self.report_value(fields, access_log::LOOK, "a look has no hits: leave hits out".to_owned()));
        }
        Ok(Some(field))
    }
}
