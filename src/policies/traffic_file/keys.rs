//! The keys of files of traffic.

use serde_json::{Value, json};
use weir_engine::Micros;
use weir_text::yaml::NodeId;

use super::{Arrivals, DURATION_US_MAX, KEYS_MAX, SOURCES_MAX, TimeFormat};
use crate::form::{FLAG, NUMBER, form, list, mapping, node, only, short_text};
use crate::keys::Kind;
use crate::rate::{self, Period};
use crate::schema::fragments::{bounded_list, length_pattern, number, rate as rate_schema, reference, text, words};
use crate::test_file::Range;
use crate::test_file::keys::{ASK, DOMAIN, INSTANT, LENGTH, LIMIT, ROWS, SETTINGS, descriptor, entry};
use crate::{NAME_BYTES_MAX, Position, VALUE_BYTES_MAX};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 5] = [&file::KIND, &source::KIND, &access_log::KIND, &descriptor::KIND, &entry::KIND];

type Node = Option<(Position, NodeId)>;

mapping! {
    pub(crate) mod file = "a file of traffic" {
        /// how long the sources send, at most 366 days; required with `sources`
        DURATION: Option<Micros> = "duration", LENGTH, "none", "duration: 10m";
        /// the instant at which the sources begin
        START: Option<Micros> = "start", INSTANT, "`2040-01-02T00:00:00Z`, a Monday", "start: 2040-03-25T00:30[Europe/Berlin]";
        /// the seed of all random numbers. One seed gives the same results, to the byte, on every machine
        SEED: Option<u32> = "seed", NUMBER, "`0`", "seed: 7";
        /// the domain of requests without `domain`
        DOMAIN = "domain", super::DOMAIN, "none", "domain: shop";
        /// settings for all policies, [as in tests](testing.md#settings)
        SETTINGS: Node = "settings", super::SETTINGS, "the defaults", "settings: {charging: independent}";
        /// the [rows](rows.md) of customers, at most 1,000,000: the path of a [file of rows](rows.md#files), relative to the
        /// directory of the file of traffic, or the lines of a file of rows after a `|`. The rows apply to all policies. If a
        /// row does not fit the policies, weir warns, and the customer of this row has the default plan
        ROWS = "rows", super::ROWS, "none", "rows: \"domain,user,plan\\nshop,ann,gold\\n\"";
        /// list of sources, at most 100
        SOURCES: Option<Vec<NodeId>> = "sources", list(|| bounded_list(&reference("source"), 1, SOURCES_MAX)), "none",
            "sources: [{ask: user=ann, rate: 1/s}]";
        /// in place of `sources`: where the [log of JSON lines](#envoys-access-log) is, and what its fields mean
        ACCESS_LOG: Node = "access_log", node(|| reference("access_log")), "none",
            "access_log: {file: access.log, time: start_time, domain: shop, ask: user=<x-user>}";
    }
}

mapping! {
    pub(crate) mod source = "a source" {
        /// a [descriptor](testing.md#descriptors), or a list of them. weir replaces `<n>` in a descriptor with a number from 1
        /// to `keys`
        ASK: Node = "ask", super::ASK, "required", "{ask: user=u<n>, keys: 10, rate: 1/s}";
        /// as in a [step](testing.md#steps) of a test
        DOMAIN = "domain", super::DOMAIN, "as there", "{ask: user=ann, hits: 5, rate: 1/s}";
        /// as in a [step](testing.md#steps) of a test
        HITS = "hits", NUMBER, "as there", "";
        /// as in a [step](testing.md#steps) of a test
        REFUND = "refund", FLAG, "as there", "";
        /// as in a [step](testing.md#steps) of a test
        LOOK = "look", FLAG, "as there", "";
        /// as in a [step](testing.md#steps) of a test
        LIMIT = "limit", super::LIMIT, "as there", "";
        /// requests per time
        RATE: Option<(u32, Period)> = "rate", form(rate_schema, |reader, fields, key| {
            reader.parsed(fields, key, NAME_BYTES_MAX, |text| rate::read(text).and_then(rate::small))
        }), "required", "{ask: user=ann, rate: 90/min}";
        /// `constant`: at equal intervals; `poisson`: independently of each other; `bursts`: at equal intervals, as many
        /// requests at once as `burst` says
        ARRIVALS: Option<&'static str> = "arrivals", form(|| words(&Arrivals::NAMES), |reader, fields, key| {
            reader.choice(fields, key, &Arrivals::NAMES)
        }), "`constant`", "{ask: user=ann, rate: 1/s, arrivals: poisson}";
        /// the requests of a burst
        BURST: Option<u32> = "burst", NUMBER, "none", "{ask: user=ann, rate: 1/s, arrivals: bursts, burst: 20}";
        /// how long an admitted request takes: a time, or a range in which all times are equally likely. At the end, the
        /// request settles its [holds and permits](semantics.md#holds-hd)
        LASTS: Option<Spread> = "lasts", form(spread, |reader, fields, key| {
            reader.parsed(fields, key, NAME_BYTES_MAX, spread_of)
        }), "the request never settles", "{ask: user=ann, rate: 1/s, lasts: 1s..10s}";
        /// only with `lasts`: the used hits of each descriptor at the settle: a number, or a range in which all numbers are
        /// equally likely
        USED: Option<(u32, u32)> = "used", form(|| reference("range"), |reader, fields, key| {
            reader.parsed(fields, key, NAME_BYTES_MAX, used)
        }), "the hits of the descriptor", "{ask: user=ann, hits: 2000, rate: 1/s, lasts: 5s, used: 10..500}";
        /// when the source begins and ends, counted from the start
        FROM: Option<Micros> = "from", LENGTH, "all of `duration`", "{ask: user=ann, rate: 1/s, from: 5m}";
        /// when the source begins and ends, counted from the start
        UNTIL: Option<Micros> = "until", LENGTH, "all of `duration`", "";
        /// how many keys the source has. All keys are equally frequent. All sources of a file together can have at most 5,000,000 keys
        KEYS: Option<u32> = "keys", form(|| number(1, KEYS_MAX.into()), |reader, fields, key| reader.number(fields, key, 1)), "`1`", "{ask: user=u<n>, keys: 10, rate: 1/s}";
    }
}

/// One length, or the shortest and the longest.
fn spread() -> Value {
    let one = length_pattern();
    json!({ "type": "string", "pattern": format!("^{one}( *\\.\\. *{one})?$"), "examples": ["5s", "1s..10s"] })
}

/// How long requests last: the minimum and the maximum.
type Spread = (Micros, Micros);

fn spread_of(text: &str) -> Result<Spread, String> {
    let lasts = Range::of_lengths(text)?;
    if lasts.max > DURATION_US_MAX {
        Err("write 5s or 1s..10s, at most 366 days".to_owned())
    } else {
        Ok((lasts.min, lasts.max))
    }
}

/// How many hits requests use: the minimum and the maximum.
fn used(text: &str) -> Result<(u32, u32), String> {
    let Range { min, max } = Range::of_numbers(text)?;
    let hits = u32::try_from(min).ok().zip(u32::try_from(max).ok());
    hits.ok_or_else(|| format!("write 37 or 10..500, at most {}", u32::MAX))
}

mapping! {
    pub(crate) mod access_log = "an access log" {
        /// the path of the log, relative to the directory of the file of traffic
        FILE: Option<String> = "file", form(text, |reader, fields, key| reader.text(fields, key, VALUE_BYTES_MAX)), "required", "";
        /// the field of the time
        TIME: Option<String> = "time", short_text(text), "required", "";
        /// `rfc3339`, as `%START_TIME%` writes it; `unix_s`, `unix_ms` or `unix_us`, with a fraction or without
        TIME_FORMAT: Option<TimeFormat> = "time_format", form(|| words(&TimeFormat::NAMES), |reader, fields, key| {
            Ok(reader.choice(fields, key, &TimeFormat::NAMES)?.and_then(TimeFormat::named))
        }), "`rfc3339`", "";
        /// the domain. `<field>` stands for the value of a field, as in `ask`
        DOMAIN = "domain", super::DOMAIN, "the `domain` of the file of traffic", "";
        /// the descriptors. `<field>` stands for the value of a field, `<a.b>` for the value of `b` in the object `a`
        ASK = "ask", super::ASK, "required", "";
        /// how many hits each request costs: a number, or the name of a field, such as `tokens` or `usage.total`. The field has
        /// whole numbers up to 4,294,967,295; with 0 the request costs nothing
        HITS: Option<String> = "hits", short_text(|| {
            json!({ "anyOf": [number(1, u32::MAX.into()), { "type": "string", "pattern": "^[^-+.0-9]" }] })
        }), "1", "";
        /// as in a [step](testing.md#steps) of a test
        REFUND = "refund", FLAG, "as there", "";
        /// as in a [step](testing.md#steps) of a test
        LOOK: bool = "look", FLAG, "as there", "";
        /// as in a [step](testing.md#steps) of a test
        LIMIT = "limit", super::LIMIT, "as there", "";
    }
}
