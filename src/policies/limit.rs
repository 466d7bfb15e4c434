//! Reads one limit: its numbers, its algorithm with its parameters, and what it replaces.
//!
//! A parameter that the algorithm does not have is refused, because it would have no effect. Not here: the rule of the limit
//! (reader.rs), and what the limit decides (the engine).

use std::sync::Arc;

use weir_engine::algorithm::parameters::Parameters;
use weir_engine::denomination::{DenominationError, SCALE_MAX};
use weir_engine::descriptor::saturated;
use weir_engine::limit::COUNTS;
use weir_engine::words::printable;
use weir_engine::{
    Algorithm, Anchor, CalendarUnit, Count, Denomination, Limit, LimitError, Precision, Property, Refill, Shares, Unit,
    exclusion,
};
use weir_text::yaml::{Node, NodeId, Value};
use weir_text::{duration, quoted, zone};

use super::fields::{Fields, Read};
use super::rate::{self, Period};
use super::scalar::whole_number;
use super::state::{FileReader, Reported};
use super::tables::{ANCHOR, REFILL, amount, hold, limit, replaced};
use super::warning::Code;
use super::{NAME_BYTES_MAX, Position, instead};

/// The keys of an unlimited rate limit. envoyproxy/ratelimit accepts and ignores a number of hits there.
const WITH_UNLIMITED: [&str; 4] =
    [limit::UNLIMITED.name, limit::NAME.name, limit::REPLACES.name, limit::REQUESTS_PER_UNIT.name];

/// One limit, and its keys that apply to the whole rule.
pub(super) struct ReadLimit {
    pub(super) at: Position,
    /// None if the rule is unlimited.
    pub(super) limit: Option<Limit>,
    pub(super) name: Option<Box<str>>,
    pub(super) replaces: Vec<(Position, String)>,
}

/// A number of hits and a period, with the keys that set them, for messages.
struct Amount {
    requests: Count,
    period: Period,
    requests_key: &'static str,
}

impl FileReader<'_> {
    /// One limit, under `rate_limit` or in the list of `rate_limits`: a mapping, or a text such as `10/s`.
    pub(super) fn limit(&mut self, at: Position, id: NodeId) -> Result<ReadLimit, Reported> {
        let document = self.document;
        let node = document.node(id);
        if node.is_null() {
            return Err(self.report(at, "an empty rate limit: give it unit and requests_per_unit, or remove it"));
        }
        if let Value::Scalar { text, .. } = &node.value {
            let at = self.value_position(at, id);
            let limit = rate::parse(text).and_then(|(requests, period)| {
                Limit::new(requests, period.window, Algorithm::FIXED_WINDOW).map_err(|error| error.to_string())
            });
            return match limit {
                Ok(limit) => {
                    self.warn_of_rate(at, text);
                    if let Ok((requests, period)) = rate::parse(text) {
                        self.warn_of_no_calendar(at, requests, period);
                    }
                    self.plans.push(Vec::new());
                    Ok(ReadLimit { at, limit: Some(limit), name: None, replaces: Vec::new() })
                }
                Err(message) => Err(self.report(at, message)),
            };
        }
        if matches!(node.value, Value::List(_)) {
            let message = "a rate limit must be a mapping of keys and values, not a list: the key for a list is called rate_limits";
            return Err(self.report(node.position, message));
        }
        let fields = self.fields(id, &limit::KIND)?;
        self.warn_of_no_values(&fields);
        let name = self.read(&fields, limit::NAME);
        let replaces = self.replaces(&fields);
        let unlimited = self.read(&fields, limit::UNLIMITED);
        let limit = match unlimited {
            Ok(true) => self.nothing_but_unlimited(&fields).map(|()| None),
            Ok(false) => self.counted(&fields).map(Some),
            Err(told) => Err(told),
        };
        let (mut limit, name, replaces) = (limit?, name?.map(String::into_boxed_str), replaces?);
        if let Some(limit) = &mut limit {
            limit.name.clone_from(&name);
            let reason = match limit {
                Limit { shadow: true, .. } => Some("shadow: true: a limit on trial replaces no other limit"),
                Limit { term: Some(_), .. } => {
                    Some("from, until or during: outside of its term the limit would still replace others")
                }
                _ => None,
            };
            if let (Some((at, _)), Some(reason)) = (replaces.first(), reason) {
                return Err(self.report(*at, format!("replaces with {reason}")));
            }
        }
        Ok(ReadLimit { at, limit, name, replaces })
    }

    /// Checks each key of a limit by itself, for a mapping that may lack others.
    pub(super) fn check_keys(&mut self, fields: &Fields) {
        for check in limit::CHECKS {
            // A problem is reported already.
            let _ = check(self, fields);
        }
        if fields.get(limit::RATE).is_some() {
            let _ = self.rate(fields);
        } else if fields.get(limit::UNIT).is_some() {
            let _ = self.period(fields);
        }
        let _ = self.replaces(fields);
    }

    fn nothing_but_unlimited(&mut self, fields: &Fields) -> Result<(), Reported> {
        let mut result = Ok(());
        for key in limit::KIND.names().filter(|key| !WITH_UNLIMITED.contains(key)) {
            if let Some(at) = fields.key_at(key) {
                if key == limit::UNIT.name && self.is_compatible() && !self.is_unit(fields) {
                    self.warn(at, Code::IgnoredKey, "unit with unlimited: true has no effect");
                    continue;
                }
                result = Err(self.report(at, format!("{key} with unlimited: true, which has no limit")));
            }
        }
        result
    }

    fn is_unit(&self, fields: &Fields) -> bool {
        let value = fields.get(limit::UNIT).map(|(_, id)| &self.document.node(id).value);
        matches!(value, Some(Value::Scalar { text, .. }) if Unit::from_name(text).is_some())
    }

    fn counted(&mut self, fields: &Fields) -> Result<Limit, Reported> {
        let amount = self.hits_and_period(fields);
        let shadow = self.read(fields, limit::SHADOW);
        let term = self.term(fields);
        let counts = self.read(fields, limit::COUNTS);
        let drain = self.read(fields, limit::DRAIN);
        let post_paid = self.read(fields, limit::POST_PAID);
        let hold = self.read(fields, limit::HOLD);
        let plans = self.read(fields, limit::PLANS);
        let burst = self.read(fields, limit::BURST);
        let precision = self.read(fields, limit::PRECISION);
        let refill = self.read(fields, limit::REFILL);
        let calendar = self.read(fields, limit::CALENDAR);
        let anchor = self.read(fields, limit::ANCHOR);
        let zone = self.read(fields, limit::TIMEZONE);
        let alert_at = self.read(fields, limit::ALERT_AT);
        let shown_in = self.read(fields, limit::AMOUNT);
        let lease = self.read(fields, limit::LEASE);
        let algorithm = self.read(fields, limit::ALGORITHM)?.unwrap_or(Algorithm::FIXED_WINDOW.name());

        self.refuse_misfits(fields, algorithm)?;
        let (calendar, anchor) = (calendar?, anchor?);
        let anchor = match &amount {
            Ok(amount) => self.anchor(fields, calendar, anchor, &amount.period)?,
            // With a wrong `calendar`, `timezone` can still be checked.
            Err(Reported) => self.anchor(fields, calendar, anchor, &Unit::Day.into())?,
        };
        let (amount, burst, precision, refill, zone) = (amount?, burst?, precision?, refill?, zone?);

        let mut anchor = anchor;
        let is_plain = algorithm == Algorithm::FIXED_WINDOW.name()
            && [limit::CALENDAR.name, limit::ANCHOR.name].iter().all(|key| self.given(fields, *key).is_none());
        if is_plain && self.has_calendar_months() && amount.period.unit == Some(Unit::Month) {
            anchor = Anchor::Calendar(CalendarUnit::Month);
        } else if is_plain {
            let key = if fields.get(limit::RATE).is_some() { limit::RATE.name } else { limit::UNIT.name };
            let at = fields.get(key).map_or(fields.at, |(at, id)| self.value_position(at, id));
            self.warn_of_no_calendar(at, amount.requests, amount.period);
        }
        let window = amount.period.window;
        // A limit of 0 admits nothing, with any burst.
        let burst = burst.unwrap_or(saturated(amount.requests.max(1)));
        let precision = precision.unwrap_or_else(|| Algorithm::default_precision(window));
        let refill = if refill == Some(REFILL[1]) { Refill::Interval } else { Refill::Continuous };
        let all = Algorithm::all(&Parameters { anchor, precision, burst, refill });
        let Some(algorithm) = all.into_iter().find(|known| known.name() == algorithm) else {
            unreachable!("{algorithm} is one of their names");
        };
        let mut limit = match Limit::new(amount.requests, window, algorithm) {
            Ok(limit) => limit,
            Err(error) => {
                let key = match error {
                    LimitError::BurstZero | LimitError::BurstTooLong { .. } => limit::BURST.name,
                    LimitError::Precision { .. } => limit::PRECISION.name,
                    LimitError::LogTooLong { .. } | LimitError::TooMany { .. } => amount.requests_key,
                    LimitError::PermitWindow { .. } => limit::WINDOW.name,
                };
                return Err(self.report_value(fields, key, error.to_string()));
            }
        };
        if let Some(zone) = zone {
            limit = limit.in_zone(&zone);
        }
        if counts? == Some(COUNTS[1]) {
            limit = limit.counting_requests();
        }
        limit.shadow = shadow?;
        limit.term = term?.map(Box::new);
        limit.drain = drain?;
        limit.alert_at = alert_at?;
        limit.amount = shown_in?;
        limit.set_post_paid(post_paid?);
        if let Some(at_least) = hold? {
            (limit.hold, limit.at_least) = (true, at_least);
        }
        let plans = plans?;
        self.plans.push(plans);
        if limit.hold {
            self.check_hold(fields, &limit)?;
        }
        limit.lease = lease?;
        self.check_lease(fields, &limit)?;
        Ok(limit)
    }

    /// Whether a limit is a hold: then the hits that a settle leaves charged, 0 without a minimum. [hd-10]
    pub(super) fn hold(&mut self, fields: &Fields, key: &'static str) -> Read<u32> {
        let Some((at, id)) = fields.get(key).filter(|_| self.given(fields, key).is_some()) else { return Ok(None) };
        let node = self.document.node(id);
        if !matches!(node.value, Value::Mapping(_)) {
            return match self.flag_given(fields, key) {
                Some(is_hold) => Ok(is_hold.then_some(0)),
                None => {
                    let message = format!(
                        "hold must be true, false or a mapping such as {{at_least: 100}}, not {}",
                        node.describe()
                    );
                    Err(self.report(self.value_position(at, id), message))
                }
            };
        }
        let of_hold = self.fields(id, &hold::KIND)?;
        match self.read(&of_hold, hold::AT_LEAST)? {
            Some(0) => {
                let message = "at_least: 0 keeps nothing of a hold, write hold: true";
                Err(self.report_value(&of_hold, hold::AT_LEAST, message.to_owned()))
            }
            None if of_hold.lacks(hold::AT_LEAST) => {
                Err(self.report(at, "hold without at_least: give it a number of hits, or write hold: true"))
            }
            None => Err(Reported),
            at_least => Ok(at_least),
        }
    }

    /// The unit in which people read the hits of a limit. [lm-9]
    pub(super) fn amount(&mut self, fields: &Fields, key: &'static str) -> Read<Arc<Denomination>> {
        let Some((at, id)) = fields.get(key).filter(|_| self.given(fields, key).is_some()) else { return Ok(None) };
        let of_amount = self.fields(id, &amount::KIND)?;
        let (unit, scale) = (self.read(&of_amount, amount::IN), self.read(&of_amount, amount::SCALE));
        let (Some(unit), Some(scale)) = (unit?, scale?) else {
            return Err(self.report(at, "amount needs in and scale, such as {in: usd, scale: 1000000}"));
        };
        match Denomination::new(&unit, scale.into()) {
            Ok(denomination) => Ok(Some(Arc::new(denomination))),
            Err(error) => {
                let key = match error {
                    DenominationError::Unit => amount::IN.name,
                    DenominationError::Scale(_) => amount::SCALE.name,
                };
                Err(self.report_value(&of_amount, key, format!("{key}: {error}")))
            }
        }
    }

    /// The hits of one unit.
    pub(super) fn scale(&mut self, fields: &Fields, key: &'static str) -> Read<u32> {
        let Some((at, node)) = self.value(fields, key) else { return Ok(None) };
        let scale = match &node.value {
            Value::Scalar { text, plain: true } => whole_number(text, SCALE_MAX).ok(),
            _ => None,
        };
        match scale.filter(|scale: &u32| Denomination::decimals(Count::from(*scale)).is_some()) {
            Some(scale) => Ok(Some(scale)),
            None => {
                let what = node.describe();
                Err(self.report(at, format!("{key} must be a power of ten from 1 to {SCALE_MAX}, not {what}")))
            }
        }
    }

    /// Refuses keys that contradict a hold, and stores its place: quotas and `charging` are checked later. [hd-1]
    fn check_hold(&mut self, fields: &Fields, limit: &Limit) -> Result<(), Reported> {
        let mut result = Ok(());
        for other in limit.properties() {
            if let Some(excluded) = exclusion(Property::Hold, other)
                && let Some(at) = self.given(fields, other.name())
            {
                result = Err(self.report(at, format!("{} with hold: true: {}", other.name(), excluded.reason)));
            }
        }
        let requests = limit.requests();
        if limit.at_least > 0 && limit.counts_requests() {
            let message = "at_least with counts: requests: a settle gives no request back, write hold: true";
            result = Err(self.report_value(fields, limit::HOLD, message.to_owned()));
        } else if Count::from(limit.at_least) > requests && requests > 0 {
            let message =
                format!("at_least {} of a limit of {requests}: a settle would give nothing back", limit.at_least);
            result = Err(self.report_value(fields, limit::HOLD, message));
        }
        let hold = limit::HOLD.name;
        let (key, word) = if limit.algorithm().counts_permits() {
            (limit::ALGORITHM.name, limit.algorithm().name())
        } else {
            (hold, hold)
        };
        self.holds.extend(fields.key_at(key).map(|at| (at, word)));
        result
    }

    /// The shares at which the use of a limit is reported: whole numbers of percent.
    pub(super) fn shares(&mut self, fields: &Fields, key: &'static str) -> Result<Shares, Reported> {
        const EXAMPLE: &str = "such as alert_at: [80, 100]";
        let document = self.document;
        if let Some((at, Node { value: Value::Scalar { text, plain: true }, .. })) = self.value(fields, key) {
            let share = whole_number::<u32>(text.trim_end_matches('%').trim_end(), 100).ok();
            let remedy = share.map_or_else(|| format!("a list, {EXAMPLE}"), |share| format!("a list: write [{share}]"));
            return Err(self.report(at, format!("alert_at must be {remedy}")));
        }
        let mut shares = Vec::new();
        for id in self.list(fields, key)?.unwrap_or_default() {
            let node = document.node(id);
            let share = match &node.value {
                Value::Scalar { text, plain: true } => whole_number(text, u32::MAX.into()).ok(),
                _ => None,
            };
            let Some(share) = share else {
                let message =
                    format!("a share is a whole number of percent from 1 to 100, not {}, {EXAMPLE}", node.describe());
                return Err(self.report(node.position, message));
            };
            shares.push(share);
        }
        Shares::new(&shares).map_err(|error| self.report_value(fields, key, format!("{error}, {EXAMPLE}")))
    }

    /// Refuses keys that the algorithm does not accept. The message names the algorithms that accept them.
    fn refuse_misfits(&mut self, fields: &Fields, algorithm: &str) -> Result<(), Reported> {
        let mut result = Ok(());
        for key in limit::KIND.keys {
            let Some(only) = key.only.as_ref().filter(|only| !only.algorithms().any(|name| name == algorithm)) else {
                continue;
            };
            let Some(at) = self.given(fields, key.name).filter(|_| !self.is_off(fields, key.name)) else {
                continue;
            };
            let default = if fields.get(limit::ALGORITHM).is_none() { ", the default" } else { "" };
            result = Err(self.report(at, format!("{} on {algorithm}{default}: {}", key.name, only.reason)));
        }
        result
    }

    /// Whether the value of a key is a flag that is off or an empty list, which have no effect.
    fn is_off(&self, fields: &Fields, key: &'static str) -> bool {
        let is_empty = |(_, node): (Position, &Node<'_>)| matches!(&node.value, Value::List(items) if items.is_empty());
        self.flag_given(fields, key) == Some(false) || self.value(fields, key).is_some_and(is_empty)
    }

    /// The hits and their period, from `rate` or from the keys that it replaces.
    fn hits_and_period(&mut self, fields: &Fields) -> Result<Amount, Reported> {
        if fields.get(limit::RATE).is_some() {
            return self.rate(fields);
        }
        if !fields.lacks(limit::RATE) {
            return Err(Reported);
        }
        let requests = match self.given(fields, limit::REQUESTS_PER_UNIT) {
            Some(_) => self.read(fields, limit::REQUESTS_PER_UNIT).map(Option::unwrap_or_default),
            None if fields.key_at(limit::REQUESTS_PER_UNIT).is_some() || fields.lacks(limit::REQUESTS_PER_UNIT) => {
                self.warn(fields.at, Code::NoRequests, "no requests_per_unit, which is 0: everything is denied");
                Ok(0)
            }
            None => Err(Reported),
        };
        let period = self.period(fields);
        Ok(Amount { requests: requests?, period: period?, requests_key: limit::REQUESTS_PER_UNIT.name })
    }

    fn rate(&mut self, fields: &Fields) -> Result<Amount, Reported> {
        let mut result = Ok(());
        for key in [limit::UNIT.name, limit::WINDOW.name, limit::REQUESTS_PER_UNIT.name] {
            if let Some(at) = fields.key_at(key) {
                result = Err(self.report(at, format!("{key} with rate, which sets hits and window")));
            }
        }
        let text = self.read(fields, limit::RATE)?.unwrap_or_default();
        match rate::parse(&text) {
            Ok((requests, period)) => {
                let at = fields.get(limit::RATE).map_or(fields.at, |(at, id)| self.value_position(at, id));
                self.warn_of_rate(at, &text);
                result.map(|()| Amount { requests, period, requests_key: limit::RATE.name })
            }
            Err(message) => Err(self.report_value(fields, limit::RATE, message)),
        }
    }

    /// Warns about a rate per `m`, which is a minute.
    pub(super) fn warn_of_rate(&mut self, at: Position, text: &str) {
        if let Some(number) = text.strip_suffix("/m").filter(|_| self.is_of_weir()) {
            let message =
                format!("{text} is {number} per minute: write {number}/min, or {number}/month if that is meant");
            self.warn(at, Code::MinuteOrMonth, message);
        }
    }

    /// Warns about windows of a long unit that the author probably means by the calendar.
    fn warn_of_no_calendar(&mut self, at: Position, requests: Count, period: Period) {
        let Some(unit @ (Unit::Week | Unit::Month | Unit::Year)) = period.unit else { return };
        if requests > 0 && self.is_of_weir() {
            let days = period.window.us() / Unit::Day.window().us();
            let message = format!(
                "a {} is {days} days here, counted from 1970-01-01: write calendar: true, or calendar: false if that is meant",
                unit.name()
            );
            self.warn(at, Code::NoCalendar, message);
        }
    }

    /// The period: a unit or a length of time.
    fn period(&mut self, fields: &Fields) -> Result<Period, Reported> {
        match (fields.get(limit::UNIT), fields.get(limit::WINDOW)) {
            (Some((unit, _)), Some((window, _))) => {
                Err(self.report(unit.max(window), "unit and window together: give one of them"))
            }
            (None, None) if fields.lacks(limit::UNIT) && fields.lacks(limit::WINDOW) => {
                if let Some((at, algorithm)) = self.value(fields, limit::ALGORITHM)
                    && matches!(&algorithm.value, Value::Scalar { text, .. } if text == Algorithm::Concurrency.name())
                {
                    let message = "concurrency without window: write the longest time that one request may take, such as window: 30s";
                    return Err(self.report(at, message));
                }
                Err(self.report(fields.at, "a rate limit without unit: give one, or a window such as 90s"))
            }
            (None, None) => Err(Reported),
            (Some((at, _)), None) => {
                let names = Unit::ALL.map(Unit::name);
                let Some(name) = self.read(fields, limit::UNIT)? else {
                    return Err(self.report(at, format!("unit is empty: {}", names.join(", "))));
                };
                match Unit::from_name(&name) {
                    Some(unit) => Ok(unit.into()),
                    None => {
                        let message = format!("no unit {}{}", quoted(&name), instead(&name, &names));
                        Err(self.report_value(fields, limit::UNIT, message))
                    }
                }
            }
            (None, Some((at, _))) => {
                let period = self.read(fields, limit::WINDOW)?;
                period.ok_or_else(|| self.report(at, "window is empty: write a length such as 90s"))
            }
        }
    }

    /// The length of a sliding window's sub-buckets.
    pub(super) fn precision(&mut self, fields: &Fields, key: &'static str) -> Read<Precision> {
        self.parsed(fields, key, NAME_BYTES_MAX, |text| {
            let micros = u64::try_from(duration(text)?.as_micros()).unwrap_or(u64::MAX);
            Precision::new(micros).ok_or_else(|| "a sub-bucket has a length above 0".to_owned())
        })
    }

    /// Where the windows begin. Reports contradictions.
    fn anchor(
        &mut self,
        fields: &Fields,
        calendar: bool,
        anchor: Option<&str>,
        period: &Period,
    ) -> Result<Anchor, Reported> {
        let Some(at) = self.given(fields, limit::CALENDAR).filter(|_| calendar) else {
            if let Some(at) = self.given(fields, limit::TIMEZONE) {
                return Err(
                    self.report(at, "timezone without calendar: true: other windows do not depend on a time zone")
                );
            }
            return Ok(if anchor == Some(ANCHOR[1]) { Anchor::FirstHit } else { Anchor::Clock });
        };
        if anchor.is_some() {
            let at = fields.key_at(limit::ANCHOR).unwrap_or(at);
            return Err(self.report(at, "anchor with calendar: true, whose windows begin at the calendar's boundaries"));
        }
        let unit = match period.unit {
            Some(Unit::Day) => CalendarUnit::Day,
            Some(Unit::Week) => CalendarUnit::Week,
            Some(Unit::Month) => CalendarUnit::Month,
            Some(Unit::Year) => CalendarUnit::Year,
            Some(unit) => {
                let name = unit.name();
                let message = format!("calendar with unit {name}: only day, week, month and year follow a calendar");
                return Err(self.report(at, message));
            }
            None => {
                let message = "calendar with a window: give it the unit day, week, month or year";
                return Err(self.report(at, message));
            }
        };
        Ok(Anchor::Calendar(unit))
    }

    /// The time zone of a calendar as the database spells it. None for UTC, the default.
    pub(super) fn zone(&mut self, fields: &Fields, key: &'static str) -> Read<String> {
        let Some(name) = self.text(fields, key, NAME_BYTES_MAX)? else {
            return Ok(None);
        };
        let found = zone::zone(&name);
        if let Some(known) = found.as_ref().and_then(|zone| zone.iana_name()) {
            return Ok(Some(known.to_owned()).filter(|known| known != "UTC"));
        }
        // A comparison with all zones is slow, and this problem will not be shown.
        let hint = if self.is_full() { zone::HOW.to_owned() } else { zone::hint(&name) };
        Err(self.report_value(fields, key, format!("no time zone {}{hint}", quoted(&name))))
    }

    fn replaces(&mut self, fields: &Fields) -> Result<Vec<(Position, String)>, Reported> {
        let Some(items) = self.read(fields, limit::REPLACES)? else {
            return Ok(Vec::new());
        };
        let most = self.bounds().replaces;
        if items.len() > most {
            let message = format!("replaces has {} names: at most {most}", items.len());
            return Err(self.report_value(fields, limit::REPLACES, message));
        }
        let mut names = Vec::new();
        let mut result = Ok(());
        for item in items {
            if let Node { position, value: Value::Scalar { text, .. } } = self.document.node(item) {
                let message = format!("an entry of replaces is a mapping: write {{name: {}}}", printable(text));
                result = Err(self.report(*position, message));
                continue;
            }
            let Ok(entry) = self.fields(item, &replaced::KIND) else {
                result = Err(Reported);
                continue;
            };
            match self.read(&entry, replaced::NAME) {
                Ok(Some(name)) => names.push((entry.at, name)),
                Ok(None) if entry.lacks(replaced::NAME) || entry.get(replaced::NAME).is_some() => {
                    result =
                        Err(self.report(entry.at, "replaces without a name: write the name of another rate limit"));
                }
                Ok(None) | Err(Reported) => result = Err(Reported),
            }
        }
        result.map(|()| names)
    }
}
