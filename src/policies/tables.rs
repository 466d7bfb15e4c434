//! The keys of policy files.
//!
//! Not here: what the values mean (reader.rs, limit.rs).

use std::sync::Arc;

use serde_json::json;
use weir_engine::automaton::REGEX_BYTES_MAX;
use weir_engine::denomination::{SCALE_MAX, UNIT_BYTES_MAX};
use weir_engine::limit::COUNTS;
use weir_engine::network::Network;
use weir_engine::policy::LIMITS_PER_RULE_MAX;
use weir_engine::request_limit::RequestLimit;
use weir_engine::weigh::{FACTORS_MAX, Weigh};
use weir_engine::{
    Algorithm, COUNT_MAX, Count, Denomination, During, Lease, Micros, Mode, OnError, Precision, SHARES_MAX, SPANS_MAX,
    Shares, metadata,
};
use weir_text::yaml::NodeId;

use super::form::{FLAG, Form, ON_ERROR, POSITIVE, form, list, mapping, method, node, only, short_text};
use super::keys::{Kind, Needs};
use super::rate::Period;
use super::schema::fragments::{
    allowed_warnings, bounded_list, bounded_text, flag, instant, length, list as list_of, number, rate, reference,
    span, text, unit, words,
};
use super::state::PlanAt;
use super::{
    Code, DOMAIN_BYTES_MAX, KEY_BYTES_MAX, Location, NAME_BYTES_MAX, Position, REPLACES_MAX, VALUE_BYTES_MAX,
    VALUES_MAX,
};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 9] = [
    &file::KIND,
    &descriptor::KIND,
    &limit::KIND,
    &replaced::KIND,
    &rows::KIND,
    &hold::KIND,
    &numbers::KIND,
    &weigh::KIND,
    &amount::KIND,
];
/// The keys for values. A descriptor has at most one of them.
pub(super) const FORMS: [&str; 4] =
    [descriptor::VALUE.name, descriptor::VALUES.name, descriptor::CIDR.name, descriptor::REGEX.name];
/// The words of `refill` and of `anchor`.
pub(super) const REFILL: [&str; 2] = ["continuous", "interval"];
pub(super) const ANCHOR: [&str; 2] = ["clock", "first_hit"];

pub(crate) const ALLOWED: Form<Vec<(Code, Location)>> =
    form(allowed_warnings, |reader, fields, key| Ok(reader.allowed_in(fields, key)));
pub(crate) const METADATA: Form<Option<Arc<metadata::Fields>>> =
    form(|| json!({ "type": "object" }), method!(metadata));
const DESCRIPTORS: Form<Option<Vec<NodeId>>> = list(|| list_of(&reference("descriptor")));
const HITS: Form<Option<Count>> = form(|| number(0, COUNT_MAX), method!(hits_of_limit));
const PLAN_NAME: Form<Option<String>> = short_text(|| bounded_text(1, NAME_BYTES_MAX));
pub(crate) const WEIGH: Form<Option<Arc<Weigh>>> = form(|| reference("weigh"), method!(weigh));
pub(crate) const REQUEST_LIMIT: Form<Option<(&'static str, Option<String>)>> =
    form(|| json!({ "anyOf": [words(&RequestLimit::NAMES), reference("request_numbers")] }), method!(request_limit));
const INSTANT: Form<Option<Micros>> = form(instant, method!(instant));

mapping! {
    pub(crate) mod file = "a policy file" ignores "name" {
        /// text; the name that requests use
        DOMAIN: Option<String> = "domain", form(|| bounded_text(1, DOMAIN_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().domain_bytes)
        }), "required", "domain: shop";
        /// `atomic`: weir charges a denied request to no limit; `independent`: weir decides and charges each limit separately
        CHARGING: Option<Mode> = "charging", form(|| words(&Mode::NAMES), |reader, fields, key| {
            Ok(reader.choice(fields, key, &Mode::NAMES)?.and_then(Mode::named))
        }), "the setting `charging`", "{domain: shop, charging: independent}";
        /// `error`, `allow`, `deny` or `local`: what happens to requests [when the store does not answer](#when-the-store-does-not-answer)
        ON_ERROR: Option<OnError> = "on_error", super::ON_ERROR, "the setting `on_error`", "{domain: shop, on_error: local}";
        /// mapping of [warnings](#warnings) about the file and its domain to reasons
        ALLOW_WARNINGS = "allow_warnings", ALLOWED, "none", "{domain: shop, allow_warnings: {alike_domain: the old name of chop}}";
        /// list of descriptors
        DESCRIPTORS = "descriptors", super::DESCRIPTORS, "none", "{domain: shop, descriptors: [{key: user, rate_limit: 10/s}]}";
    }
}

mapping! {
    pub(crate) mod descriptor = "a descriptor" {
        /// text
        KEY: Option<String> = "key", form(|| bounded_text(1, KEY_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().key_bytes)
        }), "required", "{key: user, rate_limit: 10/s}";
        /// text; a `*` in it matches any text
        VALUE: Option<String> = "value", form(|| bounded_text(0, VALUE_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().value_bytes)
        }), "any value", "{key: path, value: /pay/*, rate_limit: 10/s}";
        /// list of texts; the descriptor matches if the value of the entry is one of these texts
        VALUES: Option<Vec<Box<str>>> = "values", form(values, method!(values)), "any value",
            "{key: plan, values: [gold, silver], rate_limit: 10/s}";
        /// a network, or a list of networks, of IPv4 or IPv6
        CIDR: Option<Vec<Network>> = "cidr", form(networks, method!(networks)), "any value",
            "{key: client, cidr: [10.0.0.0/8, 2001:db8::/32], rate_limit: 10/s}";
        /// [regular expression](#lists-networks-and-regular-expressions) that the whole value matches
        REGEX: Option<String> = "regex", form(|| bounded_text(1, REGEX_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().value_bytes)
        }), "any value", "{key: path, regex: '/v[0-9]+/pay', rate_limit: 10/s}";
        /// one limit: a mapping, or a [short form](#short-forms)
        RATE_LIMIT: Option<(Position, NodeId)> = "rate_limit", node(|| reference("limit")), "none",
            "{key: user, rate_limit: {unit: hour, requests_per_unit: 3}}";
        /// list of limits; all of them apply
        RATE_LIMITS: Option<(Position, NodeId)> = "rate_limits", node(|| bounded_list(&reference("limit"), 1, LIMITS_PER_RULE_MAX)), "none",
            "{key: user, rate_limits: [10/s, 120/min, 240/h]}";
        /// true or false; if true, the limits count and report, and never deny
        SHADOW_MODE: bool = "shadow_mode", FLAG, "`false`", "{key: user, shadow_mode: true, rate_limit: 10/s}";
        /// true or false; if true, the limits are [quotas](#quotas): weir denies a request when all of its quotas are exceeded
        QUOTA_MODE: bool = "quota_mode", FLAG, "`false`", "{key: user, quota_mode: true, rate_limit: 10/s}";
        /// `error`, `allow`, `deny` or `local`: what happens to requests for these limits
        /// [when the store does not answer](#when-the-store-does-not-answer)
        ON_ERROR: Option<OnError> = "on_error", super::ON_ERROR, "that of the domain", "{key: user, on_error: local, rate_limit: 10/s}";
        /// true or false; if true, all values that match this descriptor share one state
        SHARE_THRESHOLD: bool = "share_threshold", FLAG, "`false`", "{key: path, value: /img/*, share_threshold: true, rate_limit: 10/s}";
        /// true or false; if true, the values of the request become part of the names of the statistics of this rule
        DETAILED_METRIC: bool = "detailed_metric", FLAG, "`false`", "{key: user, detailed_metric: true, rate_limit: 10/s}";
        /// true or false; if true, in the names of statistics, the request's value replaces the rule's value, for this rule
        /// and the rules below
        VALUE_TO_METRIC: bool = "value_to_metric", FLAG, "`false`", "{key: user, value_to_metric: true, rate_limit: 10/s}";
        /// mapping; what the response metadata contains for this rule, see [Metadata](#metadata)
        METADATA: Option<Arc<metadata::Fields>> = "metadata", super::METADATA, "none",
            "{key: user, metadata: {plan: gold}, rate_limit: 10/s}";
        /// mapping; each descriptor can have [a row](#rows) with a plan, or its own numbers
        ROWS: Option<(Position, NodeId)> = "rows", node(|| reference("rows")), "none",
            "{key: tenant, rows: {default: free}, rate_limit: 10/s}";
        /// `replaces`, `ignored`, `numbers`, or [a mapping](#limits-of-the-request) with the name of a limit: what weir does with a limit that a
        /// request contains
        REQUEST_LIMIT: Option<(&'static str, Option<String>)> = "request_limit", super::REQUEST_LIMIT, "`replaces`",
            "{key: user, request_limit: numbers, rate_limit: 10/s}";
        /// mapping; hits are [multiplied](#weighed-hits) by a factor, which the value of an entry selects
        WEIGH: Option<Arc<Weigh>> = "weigh", super::WEIGH, "none",
            "{key: team, weigh: {entry: model, by: {large: 30}, default: 1}, rate_limit: 1000/h}";
        /// mapping of [warnings](#allowed-warnings) about this descriptor to reasons
        ALLOW_WARNINGS: Vec<(Code, Location)> = "allow_warnings", ALLOWED, "none",
            "{key: user, allow_warnings: {no_reason: staff}, rate_limit: {unlimited: true}}";
        /// list of descriptors for the next entry of the request
        DESCRIPTORS: Option<Vec<NodeId>> = "descriptors", super::DESCRIPTORS, "none",
            "{key: user, descriptors: [{key: path, rate_limit: 10/s}]}";
    }
}

fn values() -> serde_json::Value {
    let mut value = bounded_text(0, VALUE_BYTES_MAX);
    // A wildcard needs its own descriptor.
    value["pattern"] = "^[^*]*$".into();
    bounded_list(&value, 1, VALUES_MAX)
}

fn networks() -> serde_json::Value {
    let one = json!({ "type": "string", "minLength": 1 });
    json!({ "anyOf": [one, bounded_list(&one, 1, VALUES_MAX)] })
}

mapping! {
    pub(crate) mod rows = "rows" {
        /// the name of the default plan
        DEFAULT: Option<String> = "default", PLAN_NAME, "required", "{default: free}";
    }
}

/// A limit on requests in flight has this in place of a rate.
const IN_FLIGHT: &str =
    "requests in flight have no rate, write requests_per_unit and window, the longest time that one may take";
const CALENDAR: &str = "only the windows of fixed_window can follow a calendar";

mapping! {
    pub(crate) mod limit = "a rate limit" {
        /// `second`, `minute`, `hour`, `day`, `week`, `month` or `year`, in upper or lower case
        UNIT: Option<String> = "unit", short_text(unit), "none", "{unit: hour, requests_per_unit: 100}", Needs::Hits, IN_FLIGHT;
        /// whole number; 0 denies each request. If the key is absent, weir also denies each request, and warns
        REQUESTS_PER_UNIT: Option<Count> = "requests_per_unit", HITS, "none", "{unit: day, requests_per_unit: 1_000}";
        /// length such as `90s` or `1m30s`, in place of `unit`
        WINDOW: Option<Period> = "window", form(length, |reader, fields, key| {
            reader.parsed(fields, key, NAME_BYTES_MAX, Period::of_length)
        }), "none", "{window: 90s, requests_per_unit: 5}";
        /// [short form](#short-forms), in place of `requests_per_unit` and `unit` or `window`
        RATE: Option<String> = "rate", short_text(rate), "none", "{rate: 10/s, name: peak}", Needs::Hits, IN_FLIGHT;
        /// one of [the algorithms](#which-algorithm)
        ALGORITHM: Option<&'static str> = "algorithm", form(|| words(&Algorithm::NAMES), |reader, fields, key| {
            reader.choice(fields, key, &Algorithm::NAMES)
        }), "`fixed_window`", "{rate: 10/s, algorithm: gcra}";
        /// whole number from 1; the largest number of hits that can pass at one instant
        BURST: Option<u32> = "burst", POSITIVE, "as many as `requests_per_unit`",
            "{rate: 10/s, algorithm: token_bucket, burst: 50}", Needs::Parameter("burst"),
            "a window admits all of its hits at once, only token_bucket, leaky_bucket and gcra have a burst";
        /// `continuous`: hits come back at a steady rate; `interval`: all hits of a period come back at its end
        REFILL: Option<&'static str> = "refill", form(|| words(&super::REFILL), |reader, fields, key| {
            reader.choice(fields, key, &super::REFILL)
        }), "`continuous`", "{rate: 100/h, algorithm: token_bucket, refill: interval}", Needs::Parameter("refill"),
            "only token_bucket can be refilled by interval";
        /// length of a sub-bucket; divides the window
        PRECISION: Option<Precision> = "precision", form(length, method!(precision)),
            "a 60th of the window. If this is no whole number of microseconds, weir divides the window by the largest number below 60 that gives one",
            "{rate: 600/min, algorithm: sliding_window, precision: 500ms}", Needs::Parameter("precision"),
            "only sliding_window counts in sub-buckets";
        /// `clock`: windows at multiples of their length since 1970; `first_hit`: a window begins at its first hit
        ANCHOR: Option<&'static str> = "anchor", form(|| words(&super::ANCHOR), |reader, fields, key| {
            reader.choice(fields, key, &super::ANCHOR)
        }), "`clock`", "{rate: 20/5m, anchor: first_hit}", Needs::Parameter("anchor"),
            "only the windows of fixed_window can begin with the first hit";
        /// true or false; if true, windows are days, weeks from Monday, months or years of the time zone
        CALENDAR: bool = "calendar", FLAG, "`false`", "{rate: 1000/month, calendar: true}", Needs::Parameter("anchor"), super::CALENDAR;
        /// IANA name of the calendar's time zone, in upper or lower case
        TIMEZONE: Option<String> = "timezone", form(text, method!(zone)), "`UTC`",
            "{rate: 1000/month, calendar: true, timezone: Europe/Berlin}", Needs::Parameter("anchor"), super::CALENDAR;
        /// true or false; if true, the limit is [on trial](#limits-on-trial): it counts and reports, never denies, and callers do not see it
        SHADOW: bool = "shadow", FLAG, "`false`", "{rate: 5/s, shadow: true}";
        /// [instant](#terms) at which the limit begins
        FROM: Option<Micros> = "from", INSTANT, "it has always begun", "{rate: 5/s, from: 2040-12-01}";
        /// [instant](#terms) at which the limit ends
        UNTIL: Option<Micros> = "until", INSTANT, "it never ends", "{rate: 5/s, until: \"2040-12-24T18:00:00+01:00\"}";
        /// a [span of the week](#recurring-terms), or a list of at most 16 spans; the limit applies only in these spans
        DURING: Option<Arc<During>> = "during", form(spans, method!(during)), "at all times",
            "{rate: 5/s, during: Sun 02:00-06:00 Europe/Berlin}";
        /// `hits`, or [`requests`](#count-requests): each request counts 1, regardless of its number of hits
        COUNTS: Option<&'static str> = "counts", form(|| words(&super::COUNTS), |reader, fields, key| {
            reader.choice(fields, key, &super::COUNTS)
        }), "`hits`", "{rate: 60/min, counts: requests}", Needs::Hits, "it counts permits, one for each request";
        /// true or false; if true, a denied request consumes what is left
        DRAIN: bool = "drain", FLAG, "`false`", "{rate: 10/s, drain: true}", Needs::Hits,
            "a denied request does not run, so it holds no permit";
        /// true or false; if true, hits are usage that has already happened, and weir always charges them
        POST_PAID: bool = "post_paid", FLAG, "`false`", "{rate: 200_000/min, post_paid: true}", Needs::Reports,
            "a log would grow without a bound, and a permit is consumed before the request runs, all other algorithms \
             support it";
        /// true, false, or [a mapping](#keep-a-part-of-each-hold); hits are an estimate, which the caller settles by its receipt
        HOLD: Option<u32> = "hold", form(flag_or_hold, method!(hold)), "`false`", "{rate: 200_000/min, hold: true}", Needs::Holds,
            "only counting windows can give back part of a charge, use sliding_window, sliding_window_counter or fixed_window \
             (concurrency always holds permits)";
        /// list of percents from 1 to 100, rising, at most 8; see [Alerts](#alerts)
        ALERT_AT: Shares = "alert_at", form(|| {
            bounded_list(&json!({ "type": "integer", "minimum": 1, "maximum": 100 }), 0, SHARES_MAX)
        }, method!(shares)), "none", "{rate: 1000/day, alert_at: [80, 100]}", Needs::Windows,
            "only fixed_window has separate windows, each of which can cross a share once";
        /// [mapping](#amounts); the unit in which people read the hits
        AMOUNT: Option<Arc<Denomination>> = "amount", form(|| reference("amount"), method!(amount)), "shown as hits",
            "{rate: 10_000_000/day, amount: {in: usd, scale: 1_000_000}}", Needs::Hits, "it counts permits, which are no amount";
        /// length from `10ms` to `1s`: for a [hot key](#leases), a replica charges hits in advance. The replica then admits requests with these hits, without asking Redis
        LEASE: Option<Lease> = "lease", form(length, method!(lease)),
            "none: weir asks Redis for each request", "{rate: 100_000/min, lease: 100ms}", Needs::Steps,
            "only fixed_window and sliding_window count in steps, so only they can charge hits ahead";
        /// mapping of the names of plans to a rate, or to `unlimited`; needs [`rows`](#rows) beside the limit
        PLANS: Vec<PlanAt> = "plans", form(|| {
            json!({ "type": "object", "additionalProperties": { "anyOf": [words(&["unlimited"]), rate()] } })
        }, method!(plans)), "none", "{rate: 100/min, plans: {gold: 1000/min, partner: unlimited}}";
        /// true or false; if true, all requests pass, and weir counts nothing. The only other keys may be `name`, `replaces` and
        /// `requests_per_unit`, and weir ignores `requests_per_unit`
        UNLIMITED: bool = "unlimited", FLAG, "`false`", "{unlimited: true}";
        /// text; for people, for `replaces`, and to distinguish limits of one list
        NAME: Option<String> = "name", form(|| bounded_text(0, NAME_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().name_bytes)
        }), "none", "{rate: 10/s, name: basic}";
        /// list of names; see [Replaces](#replaces)
        REPLACES: Option<Vec<NodeId>> = "replaces", list(|| bounded_list(&reference("replaced"), 0, REPLACES_MAX)), "none",
            "{rate: 99/s, replaces: [{name: basic}]}";
    }
}

fn spans() -> serde_json::Value {
    let one = span();
    json!({ "anyOf": [one, bounded_list(&one, 1, SPANS_MAX)] })
}

fn flag_or_hold() -> serde_json::Value {
    let mut schema = flag();
    schema["anyOf"].as_array_mut().expect("its choices").push(reference("hold"));
    schema
}

mapping! {
    pub(crate) mod hold = "a hold" {
        /// whole number from 1 to the hits of the limit; a settle leaves at least this many of the held hits charged
        AT_LEAST: Option<u32> = "at_least", form(|| number(1, u32::MAX.into()), |reader, fields, key| reader.number(fields, key, 1)), "required", "{at_least: 100}";
    }
}

mapping! {
    pub(crate) mod weigh = "weigh" {
        /// the key of an entry; weir removes the entry before it matches the descriptor
        ENTRY: Option<String> = "entry", form(|| bounded_text(1, KEY_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().key_bytes)
        }), "required", "{entry: model, by: {large: 30, small: 1}, default: 10}";
        /// mapping of values to factors. At most 1,024 values, without wildcards. A factor is a whole number, at least 1
        BY: Option<Vec<(Box<str>, u32)>> = "by", form(|| json!({
            "type": "object", "minProperties": 1, "maxProperties": FACTORS_MAX,
            "additionalProperties": number(1, u32::MAX.into()),
        }), method!(factors)), "required", "{entry: size, by: {big: 5}, default: 1}";
        /// the factor for all other values, and for descriptors without the entry
        DEFAULT: Option<u32> = "default", form(|| number(1, u32::MAX.into()), |reader, fields, key| reader.number(fields, key, 1)),
            "required", "{entry: size, by: {big: 5}, default: 1}";
    }
}

mapping! {
    pub(crate) mod numbers = "request_limit" {
        /// the name of a limit of the rule; it gets the numbers of the request
        NUMBERS: Option<String> = "numbers", PLAN_NAME, "required", "{numbers: rpm}";
    }
}

mapping! {
    pub(crate) mod amount = "an amount" {
        /// text of 1 to 16 letters, digits, `-` and `_`; the name of the unit
        IN: Option<String> = "in", short_text(unit_name), "required", "{in: usd, scale: 1_000_000}";
        /// power of ten from 1 to 1,000,000,000; the number of hits in one unit
        SCALE: Option<u32> = "scale", form(|| number(1, SCALE_MAX),
            method!(scale)), "required", "{in: eur, scale: 100}";
    }
}

fn unit_name() -> serde_json::Value {
    let mut name = bounded_text(1, UNIT_BYTES_MAX);
    name["pattern"] = "^[-_a-zA-Z0-9]*$".into();
    name
}

mapping! {
    pub(crate) mod replaced = "an entry of replaces" {
        /// the name of a limit of any rule of the domain
        NAME: Option<String> = "name", form(|| bounded_text(1, NAME_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, reader.bounds().name_bytes)
        }), "required", "{name: basic}";
    }
}
