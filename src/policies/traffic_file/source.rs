//! One source of requests.

use weir_engine::Micros;
use weir_text::yaml::NodeId;

use super::keys::source;
use super::{Arrivals, KEYS_MAX, Source};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};
use crate::test_file::CALLER;

impl FileReader<'_> {
    pub(super) fn source(&mut self, id: NodeId, duration: Micros, domain: Option<&str>) -> Result<Source, Reported> {
        let fields = self.fields(id, &source::KIND)?;
        let asked = self.asked(&fields);
        let own_domain = self.default_domain(&fields);
        let rate = self.read(&fields, source::RATE);
        let arrivals = self.arrivals(&fields);
        let lasts = self.read(&fields, source::LASTS);
        let used = self.used_by_source(&fields);
        let span = self.span(&fields, duration);
        let keys = self.source_keys(&fields);
        let (descriptors, hits) = asked?;
        if descriptors.is_empty() && fields.lacks(source::ASK) {
            return Err(self.report(fields.at, "no descriptors: write ask, such as user=u<n>"));
        }
        let Some((requests, period)) = rate? else {
            return Err(self.report(fields.at, "no rate: write how many requests per how long, such as 10/s"));
        };
        if requests == 0 {
            return Err(self.report_value(&fields, source::RATE, "a source sends at least one request".to_owned()));
        }
        let Some(domain) = own_domain.or_else(|| domain.map(str::to_owned)) else {
            return Err(self.report(fields.at, "no domain: give it here or at the top of the file"));
        };
        let keys = keys?;
        let has_number = descriptors.iter().any(|descriptor| {
            descriptor.entries.iter().any(|(key, value)| key.contains(CALLER) || value.contains(CALLER))
        });
        if keys > 1 && !has_number {
            let message = format!("no {CALLER} in ask: it stands for the number of the key, as in user=u{CALLER}");
            return Err(self.report_value(&fields, source::KEYS, message));
        }
        let (from, until) = span?;
        Ok(Source {
            position: fields.at,
            domain,
            descriptors,
            hits,
            requests,
            period: period.window.us(),
            arrivals: arrivals?,
            lasts: lasts?,
            used: used?,
            from,
            until,
            keys,
        })
    }

    fn arrivals(&mut self, fields: &Fields) -> Result<Arrivals, Reported> {
        let burst = self.read(fields, source::BURST)?;
        let named = self.read(fields, source::ARRIVALS)?;
        match (named, burst) {
            (Some("bursts"), Some(0)) => {
                Err(self.report_value(fields, source::BURST, "a burst has at least one request".to_owned()))
            }
            (Some("bursts"), Some(size)) => Ok(Arrivals::Bursts(size)),
            (Some("bursts"), None) => Err(self.report(fields.at, "bursts need their size: burst: 20")),
            (_, Some(_)) => Err(self.report_value(fields, source::BURST, "burst is for arrivals: bursts".to_owned())),
            (Some("poisson"), None) => Ok(Arrivals::Poisson),
            (_, None) => Ok(Arrivals::Constant),
        }
    }

    /// The fewest and the most hits that a request has used when it ends.
    fn used_by_source(&mut self, fields: &Fields) -> Read<(u32, u32)> {
        if let Some(at) = fields.key_at(source::USED).filter(|_| fields.lacks(source::LASTS)) {
            return Err(self.report(at, "used needs lasts: when the request ends, and settles"));
        }
        self.read(fields, source::USED)
    }

    fn span(&mut self, fields: &Fields, duration: Micros) -> Result<(Micros, Micros), Reported> {
        let from = self.read(fields, source::FROM)?.unwrap_or(0);
        let until = self.read(fields, source::UNTIL)?.unwrap_or(duration);
        if until > duration {
            return Err(self.report_value(
                fields,
                source::UNTIL,
                "until is past the duration of the traffic".to_owned(),
            ));
        }
        if from >= until {
            return Err(self.report_value(fields, source::FROM, "the source ends before it begins".to_owned()));
        }
        Ok((from, until))
    }

    fn source_keys(&mut self, fields: &Fields) -> Result<u32, Reported> {
        let keys = self.read(fields, source::KEYS)?.unwrap_or(1);
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(self.report_value(
                fields,
                source::KEYS,
                format!("keys must be from 1 to {KEYS_MAX}, not {keys}"),
            ));
        }
        Ok(keys)
    }
}
