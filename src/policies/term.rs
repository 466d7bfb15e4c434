//! When a limit applies: `from` and `until`.

use jiff::Timestamp;
use weir_engine::{Micros, Term};
use weir_text::{instant_text, parse_instant};

use super::NAME_BYTES_MAX;
use super::fields::{Fields, Read};
use super::state::FileReader;
use super::tables::limit;
use super::warning::Code;

impl FileReader<'_> {
    /// The term of a limit. None if it always applies.
    pub(super) fn term(&mut self, fields: &Fields) -> Read<Term> {
        let (from, until) = (self.read(fields, limit::FROM), self.read(fields, limit::UNTIL));
        let (from, until) = (from?, until?);
        if from.is_none() && until.is_none() {
            return Ok(None);
        }
        if let Some(until) = until.filter(|until| *until <= now()) {
            let message = format!("the limit has ended at {}: it applies to no request", instant_text(until));
            let at = fields.key_at(limit::UNTIL).unwrap_or(fields.at);
            self.warn(at, Code::Ended, message);
        }
        match Term::new(from.unwrap_or(0), until.unwrap_or(Term::NO_END)) {
            Some(term) => Ok(Some(term)),
            None => {
                let from = instant_text(from.unwrap_or(0));
                Err(self.report_value(fields, limit::UNTIL, format!("until must be later than from, which is {from}")))
            }
        }
    }

    pub(super) fn instant(&mut self, fields: &Fields, key: &'static str) -> Read<Micros> {
        self.parsed(fields, key, NAME_BYTES_MAX, parse_instant)
    }
}

/// The time of this machine's clock.
pub(super) fn now() -> Micros {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default()
}
