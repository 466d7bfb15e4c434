//! One source of requests.

use weir_engine::Micros;
use weir_engine::words::counted;
use weir_text::yaml::{NodeId, Value};

use super::keys::{DAILY, SOURCE};
use super::{Arrivals, DURATION_US_MAX, HOURS, KEYS_MAX, PHASES_MAX, SHARE_MAX, Source, ZIPF_MAX};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};
use crate::test_file::{CALLER, Range};
use crate::{NAME_BYTES_MAX, rate};

impl FileReader<'_> {
    pub(super) fn source(&mut self, id: NodeId, duration: Micros, domain: Option<&str>) -> Result<Source, Reported> {
        let fields = self.fields(id, &SOURCE)?;
        let asked = self.asked(&fields);
        let own_domain = self.default_domain(&fields);
        let rate = self.parsed(&fields, "rate", NAME_BYTES_MAX, rate::read);
        let arrivals = self.arrivals(&fields);
        let lasts = self.parsed(&fields, "lasts", NAME_BYTES_MAX, |text| Range::of_lengths(text).and_then(bounded));
        let span = self.span(&fields, duration);
        let phases = self.phases(&fields, duration);
        let keys = self.keys(&fields);
        let daily = self.daily(&fields);
        let (descriptors, hits) = asked?;
        if descriptors.is_empty() && fields.lacks("ask") {
            return Err(self.report(fields.at, "no descriptors: write ask, such as user=u<n>"));
        }
        let Some((requests, period)) = rate? else {
            return Err(self.report(fields.at, "no rate: write how many requests per how long, such as 10/s"));
        };
        if requests == 0 {
            return Err(self.report_value(&fields, "rate", "a source sends at least one request".to_owned()));
        }
        let Some(domain) = own_domain.or_else(|| domain.map(str::to_owned)) else {
            return Err(self.report(fields.at, "no domain: give it here or at the top of the file"));
        };
        let (keys, zipf) = keys?;
        let has_number = descriptors.iter().any(|descriptor| {
            descriptor.entries.iter().any(|(key, value)| key.contains(CALLER) || value.contains(CALLER))
        });
        if keys > 1 && !has_number {
            let message = format!("no {CALLER} in ask: it stands for the number of the key, as in user=u{CALLER}");
            return Err(self.report_value(&fields, "keys", message));
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
            phases: phases?,
            from,
            until,
            keys,
            zipf,
            daily: daily?,
        })
    }

    fn arrivals(&mut self, fields: &Fields) -> Result<Arrivals, Reported> {
        let burst = self.number(fields, "burst")?;
        let named = self.choice(fields, "arrivals", &Arrivals::NAMES)?;
        match (named, burst) {
            (Some("bursts"), Some(0)) => {
                Err(self.report_value(fields, "burst", "a burst has at least one request".to_owned()))
            }
            (Some("bursts"), Some(size)) => Ok(Arrivals::Bursts(size)),
            (Some("bursts"), None) => Err(self.report(fields.at, "bursts need their size: burst: 20")),
            (_, Some(_)) => Err(self.report_value(fields, "burst", "burst is for arrivals: bursts".to_owned())),
            (Some("poisson"), None) => Ok(Arrivals::Poisson),
            (_, None) => Ok(Arrivals::Constant),
        }
    }

    fn span(&mut self, fields: &Fields, duration: Micros) -> Result<(Micros, Micros), Reported> {
        let from = self.length(fields, "from")?.unwrap_or(0);
        let until = self.length(fields, "until")?.unwrap_or(duration);
        if until > duration {
            return Err(self.report_value(fields, "until", "until is past the duration of the traffic".to_owned()));
        }
        if from >= until {
            return Err(self.report_value(fields, "from", "the source ends before it begins".to_owned()));
        }
        Ok((from, until))
    }

    fn phases(&mut self, fields: &Fields, duration: Micros) -> Read<(Micros, Micros)> {
        let on = self.length(fields, "on")?;
        let off = self.length(fields, "off")?;
        match (on, off) {
            (None, None) => Ok(None),
            (Some(on), Some(off)) if on == 0 || off == 0 => {
                Err(self.report_value(fields, "on", "on and off must be longer than 0".to_owned()))
            }
            (Some(on), Some(off)) if duration / on.saturating_add(off) > PHASES_MAX => {
                let message = format!("the source starts more than {PHASES_MAX} times: make on and off longer");
                Err(self.report_value(fields, "on", message))
            }
            (Some(on), Some(off)) => Ok(Some((on, off))),
            _ => Err(self.report(fields.at, "on and off belong together: on: 10s, off: 50s")),
        }
    }

    /// The number of keys, and the exponent of their frequencies.
    fn keys(&mut self, fields: &Fields) -> Result<(u32, Option<f64>), Reported> {
        let keys = self.number(fields, "keys")?.unwrap_or(1);
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(self.report_value(fields, "keys", format!("keys must be from 1 to {KEYS_MAX}, not {keys}")));
        }
        let zipf = self.parsed(fields, "zipf", NAME_BYTES_MAX, |text| match text.parse::<f64>() {
            Ok(exponent) if exponent > 0.0 && exponent <= ZIPF_MAX => Ok(exponent),
            _ => Err(format!("write a number above 0 and up to {ZIPF_MAX}, such as 1.1")),
        })?;
        if zipf.is_some() && keys == 1 {
            return Err(self.report_value(
                fields,
                "zipf",
                "zipf is for a source of several keys: keys: 1000".to_owned(),
            ));
        }
        Ok((keys, zipf))
    }

    /// 24 points, or a peak and a trough.
    fn daily(&mut self, fields: &Fields) -> Read<[u32; HOURS]> {
        let Some((at, id)) = fields.get("daily") else { return Ok(None) };
        let document = self.document;
        match &document.node(id).value {
            _ if document.node(id).is_null() => Ok(None),
            Value::List(items) => self.points(self.value_position(at, id), items).map(Some),
            Value::Mapping(_) => self.curve(id).map(Some),
            Value::Scalar { .. } => {
                let message = "daily must be 24 numbers, or a mapping of peak, trough and low".to_owned();
                Err(self.report_value(fields, "daily", message))
            }
        }
    }

    fn points(&mut self, at: super::Position, items: &[NodeId]) -> Result<[u32; HOURS], Reported> {
        let mut points = Vec::with_capacity(HOURS);
        for &item in items {
            let node = self.document.node(item);
            let number = match &node.value {
                Value::Scalar { text, .. } => text.parse::<u32>().ok().filter(|point| *point <= SHARE_MAX),
                _ => None,
            };
            let Some(number) = number else {
                let (at, described) = (node.position, node.describe());
                return Err(self.report(at, format!("a point is a percentage from 0 to {SHARE_MAX}, not {described}")));
            };
            points.push(number);
        }
        let count = points.len();
        let Ok(points) = <[u32; HOURS]>::try_from(points) else {
            return Err(
                self.report(at, format!("{}: a day has {HOURS}, the first at 00:00 UTC", counted(count, "point")))
            );
        };
        if points.iter().all(|point| *point == 0) {
            return Err(self.report(at, "all points are 0: the source would send nothing"));
        }
        Ok(points)
    }

    fn curve(&mut self, id: NodeId) -> Result<[u32; HOURS], Reported> {
        let fields = self.fields(id, &DAILY)?;
        let peak = self.hour(&fields, "peak");
        let trough = self.hour(&fields, "trough");
        let low = self.number(&fields, "low")?.unwrap_or(0);
        if low > SHARE_MAX {
            return Err(self.report_value(&fields, "low", format!("low is a percentage, at most {SHARE_MAX}")));
        }
        let peak = peak?;
        let Some(peak) = peak else {
            return Err(self.report(fields.at, "no peak: write the hour in UTC with the full rate, such as 14"));
        };
        let trough = trough?.unwrap_or((peak + 12) % HOURS);
        if trough == peak {
            return Err(self.report_value(&fields, "trough", "trough is the hour of the peak".to_owned()));
        }
        Ok(curve(peak, trough, low))
    }

    fn hour(&mut self, fields: &Fields, key: &str) -> Read<usize> {
        self.parsed(fields, key, NAME_BYTES_MAX, |text| {
            let hour = text.parse().ok().filter(|&hour| hour < HOURS);
            hour.ok_or_else(|| "an hour is a number from 0 to 23".to_owned())
        })
    }
}

/// How long requests last: the minimum and the maximum.
fn bounded(lasts: Range) -> Result<(Micros, Micros), String> {
    if lasts.max > DURATION_US_MAX {
        Err("write 5s or 1s..10s, at most 366 days".to_owned())
    } else {
        Ok((lasts.min, lasts.max))
    }
}

/// The percentages of a day that falls linearly from its peak to its trough, and rises linearly back to its peak.
fn curve(peak: usize, trough: usize, low: u32) -> [u32; HOURS] {
    let down = (trough + HOURS - peak) % HOURS;
    let up = HOURS - down;
    std::array::from_fn(|hour| {
        let after_peak = (hour + HOURS - peak) % HOURS;
        // The distance from the trough, and the distance of the peak on the same side.
        let (part, whole) = if after_peak <= down { (down - after_peak, down) } else { (after_peak - down, up) };
        let above = (SHARE_MAX - low) as usize * part / whole;
        low + u32::try_from(above).unwrap_or(SHARE_MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_falls_and_rises_in_straight_lines() {
        let points = curve(14, 2, 40);
        assert_eq!((points[14], points[2], points[20], points[8]), (100, 40, 70, 70));
        let uneven = curve(20, 4, 0);
        assert_eq!((uneven[20], uneven[4], uneven[0], uneven[12]), (100, 0, 50, 50));
    }
}
