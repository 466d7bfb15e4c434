//! The keys of files of tests.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_engine::words::IN_FLIGHT;
use weir_engine::{Algorithm, Micros, Window};
use weir_text::yaml::NodeId;

use super::values::{NONE, Range, amount, or_none};
use super::{ASKS_MAX, CALLERS_MAX, CASES_MAX, ExpectedHeader, ExpectedLimit, Positioned, STEPS_MAX, Verdict};
use crate::form::{FLAG, Form, NUMBER, form, list, mapping, method, node, only, short_text};
use crate::keys::Kind;
use crate::schema::fragments::{
    any_instant, bounded_list, bounded_text, length, list as list_of, number, rate, reference, short_form, text, words,
};
use crate::{FILE_BYTES_MAX, NAME_BYTES_MAX, Position, instead};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 7] =
    [&file::KIND, &case::KIND, &step::KIND, &descriptor::KIND, &entry::KIND, &expectation::KIND, &status::KIND];

/// What happens to states on a swap.
pub(super) const STATE: [&str; 2] = ["kept", "forgotten"];

type Node = Option<(Position, NodeId)>;
type Written<T> = Option<Positioned<T>>;

pub(crate) const ASK: Form<Node> =
    node(|| json!({ "anyOf": [reference("descriptor"), list_of(&reference("descriptor"))] }));
pub(crate) const DOMAIN: Form<Option<String>> = form(text, method!(domain_of));
pub(crate) const LENGTH: Form<Option<Micros>> = form(length, method!(length));
pub(crate) const INSTANT: Form<Option<Micros>> = form(any_instant, method!(instant));
pub(crate) const SETTINGS: Form<Node> = node(|| reference("settings"));
pub(crate) const ROWS: Form<Node> = node(text);
pub(crate) const LIMIT: Form<Option<(u32, Window)>> = form(rate, method!(limit_of_request));
const POLICIES: Form<Node> = node(|| reference("policies"));
const SHORT: Form<Option<String>> = form(short_form, |reader, fields, key| reader.text(fields, key, FILE_BYTES_MAX));
const TEXT: Form<Option<String>> = form(text, |reader, fields, key| reader.text(fields, key, FILE_BYTES_MAX));

mapping! {
    pub(crate) mod file = "a file of tests" {
        /// a path relative to the directory of the file, or [texts](#policies-in-a-test)
        POLICIES: Node = "policies", super::POLICIES, "the directory of the file", "policies: ../policies";
        /// the domain of requests without `domain`
        DOMAIN: Option<String> = "domain", super::DOMAIN, "none", "domain: shop";
        /// [settings](#settings) that can change answers
        SETTINGS: Node = "settings", super::SETTINGS, "the defaults", "settings: {charging: independent}";
        /// the [rows](#rows-in-a-test) of customers at the start of each case
        ROWS: Node = "rows", super::ROWS, "none", "rows: customers.csv";
        /// list of [cases](#cases)
        CASES: Option<Vec<NodeId>> = "cases", list(|| bounded_list(&reference("case"), 1, CASES_MAX)), "required",
            "cases: [{name: a, domain: shop, steps: [{ask: user=ann}]}]";
    }
}

mapping! {
    pub(crate) mod case = "a case" {
        /// text; different for each case of a file
        NAME: Option<String> = "name", short_text(|| bounded_text(1, NAME_BYTES_MAX)), "required", "name: three an hour";
        /// as in the file, for this case. A case adds its settings to the settings of the file
        POLICIES: Node = "policies", super::POLICIES, "those of the file", "domain: shop";
        /// as in the file, for this case. A case adds its settings to the settings of the file
        DOMAIN = "domain", super::DOMAIN, "those of the file", "";
        /// as in the file, for this case. A case adds its settings to the settings of the file
        SETTINGS: Node = "settings", super::SETTINGS, "those of the file", "";
        /// as in the file, for this case. A case adds its settings to the settings of the file
        ROWS = "rows", super::ROWS, "those of the file", "";
        /// the [instant](#time) at which the case begins
        AT: Option<Micros> = "at", INSTANT, "`2040-01-02T00:00:00Z`, a Monday", "at: 2040-03-25T00:30[Europe/Berlin]";
        /// list of [steps](#steps); the store is empty before the first one
        STEPS: Option<Vec<NodeId>> = "steps", list(|| bounded_list(&reference("step"), 1, STEPS_MAX)), "required",
            "steps: [{ask: user=ann, expect: ok}]";
    }
}

mapping! {
    pub(crate) mod step = "a step" {
        /// a [descriptor](#descriptors), or a list of them
        ASK: Node = "ask", super::ASK, "none", "{ask: [user=ann, \"plan=free,path=/search\"]}";
        /// the domain of the request
        DOMAIN = "domain", super::DOMAIN, "that of the case", "{ask: user=ann, domain: shop}";
        /// how many hits the request costs
        HITS: Option<u32> = "hits", NUMBER, "1", "{ask: user=ann, hits: 5}";
        /// true or false; if true, the hits are given back
        REFUND: bool = "refund", FLAG, "`false`", "{ask: user=ann, hits: 5, refund: true}";
        /// true or false; if true, the request is a [peek](protocol.md#peek) and costs nothing
        LOOK: bool = "look", FLAG, "`false`", "{ask: user=ann, look: true}";
        /// a [limit of the request](protocol.md#limit-of-the-request). It replaces the rule, unless the [`request_limit`](policies.md#limits-of-the-request)
        /// of the rule says otherwise
        LIMIT: Option<(u32, Window)> = "limit", super::LIMIT, "none", "{ask: user=ann, limit: 10/minute}";
        /// how often weir sends the request, at one instant
        TIMES: u32 = "times", form(|| number(1, ASKS_MAX), |reader, fields, key| {
            reader.count(fields, key, u32::try_from(ASKS_MAX).unwrap_or(u32::MAX))
        }), "`1`", "{ask: user=ann, times: 100}";
        /// how many callers send the request. Each caller sends it `times` times. `<n>` in a key or value is the number of the caller, from 1
        CALLERS: u32 = "callers", form(|| number(1, CALLERS_MAX.into()), |reader, fields, key| {
            reader.count(fields, key, CALLERS_MAX)
        }), "`1`", "{ask: user=u<n>, callers: 3}";
        /// repeats the step: `every: 1s, for: 10m` is 600 rounds. Afterwards the clock is 10 minutes later
        EVERY: Option<Micros> = "every", LENGTH, "one round", "{ask: user=ann, every: 1s, for: 10m}";
        /// repeats the step: `every: 1s, for: 10m` is 600 rounds. Afterwards the clock is 10 minutes later
        FOR: Option<Micros> = "for", LENGTH, "one round", "";
        /// how long an admitted request takes. At the end, the request settles its [holds and permits](semantics.md#holds-hd).
        /// If `used` is not set, the hits of the request are the used hits
        LASTS: Option<Micros> = "lasts", LENGTH, "the request never settles", "{ask: user=ann, lasts: 5s}";
        /// only with `lasts` or `settle`: the used hits of each descriptor at the settle
        USED: Option<u32> = "used", NUMBER, "the hits of the descriptor", "{ask: user=ann, hits: 2000, lasts: 5s, used: 37}";
        /// a name for the receipt, which a later step can [settle](#receipts). If the step sends several requests, this is
        /// the receipt of the last admitted request
        RECEIPT: Option<String> = "receipt", short_text(|| bounded_text(1, NAME_BYTES_MAX)), "none",
            "{ask: user=ann, hits: 2000, receipt: first}";
        /// the name of the receipt that the request [settles](#receipts). `none`: the caller has no receipt
        SETTLE: Option<String> = "settle", short_text(|| bounded_text(1, NAME_BYTES_MAX)), "none", "{ask: user=ann, settle: none, used: 37}";
        /// what the answers must be, see [expectations](#expectations). With a `swap`, `refused` means that weir must refuse the policies
        EXPECT: Node = "expect", node(expect), "anything", "{ask: user=ann, expect: ok}";
        /// a length of time that passes
        WAIT: Option<Micros> = "wait", LENGTH, "none", "{wait: 59m59s}";
        /// an instant to which the clock is set, not earlier than now
        AT: Option<Micros> = "at", INSTANT, "none", "{at: \"2040-03-25T03:00[Europe/Berlin]\"}";
        /// policies that replace those in force, in the form of `policies`
        SWAP: Node = "swap", super::POLICIES, "none", "{swap: ../next}";
        /// [rows](#rows-in-a-test) that are set
        ROWS: Node = "rows", super::ROWS, "none", "{rows: upgraded.csv}";
        /// `kept`: states stay, as on a reload; `forgotten`: states are lost, as after a restart with the memory store
        STATE: Option<&'static str> = "state", form(|| words(&super::STATE), |reader, fields, key| {
            reader.choice(fields, key, &super::STATE)
        }), "`kept`", "{swap: ../next, state: forgotten}";
    }
}

fn expect() -> Value {
    let [ok, over] = Verdict::NAMES;
    json!({ "anyOf": [words(&[ok, over, "refused"]), reference("expectation")] })
}

mapping! {
    pub(crate) mod descriptor = "a descriptor" {
        /// the short form
        DESCRIPTOR: Option<String> = "descriptor", SHORT, "none", "{descriptor: user=ann, hits: 3}";
        /// in place of `descriptor`, a list of entries with `key` and `value`
        ENTRIES: Option<Vec<NodeId>> = "entries", list(|| list_of(&reference("entry"))), "none", "{entries: [{key: user, value: ann}]}";
        /// as in the step, for this descriptor
        HITS = "hits", NUMBER, "those of the step", "{descriptor: user=ann, limit: 3/day}";
        /// as in the step, for this descriptor
        REFUND = "refund", FLAG, "those of the step", "";
        /// as in the step, for this descriptor
        LOOK = "look", FLAG, "those of the step", "";
        /// as in the step, for this descriptor
        LIMIT = "limit", super::LIMIT, "those of the step", "";
    }
}

mapping! {
    pub(crate) mod entry = "an entry" {
        /// text
        KEY: Option<String> = "key", TEXT, "empty", "";
        /// text
        VALUE: Option<String> = "value", TEXT, "empty", "";
    }
}

const RANGE: Form<Written<Range>> =
    form(|| reference("range"), |reader, fields, key| reader.written(fields, key, NAME_BYTES_MAX, Range::of_numbers));
const WAIT: Form<Written<Option<Range>>> = form(
    || reference("lengths"),
    |reader, fields, key| reader.written(fields, key, NAME_BYTES_MAX, or_none(Range::of_lengths)),
);
const HEADERS: Form<Vec<ExpectedHeader>> =
    form(|| json!({ "type": "object", "additionalProperties": text() }), method!(headers_of));
const VERDICT: Form<Written<Verdict>> = form(
    || words(&Verdict::NAMES),
    |reader, fields, key| {
        let Some(word) = reader.choice(fields, key, &Verdict::NAMES)? else { return Ok(None) };
        Ok(reader.at_key(fields, key, Verdict::named(word)))
    },
);
const RULE: Form<Written<Option<String>>> =
    form(text, |reader, fields, key| reader.written(fields, key, FILE_BYTES_MAX, or_none(|text| Ok(text.to_owned()))));
const NAME: Form<Written<Option<String>>> =
    form(text, |reader, fields, key| reader.written(fields, key, NAME_BYTES_MAX, or_none(|text| Ok(text.to_owned()))));
const EXPECTED_LIMIT: Form<Written<Option<ExpectedLimit>>> = form(
    || {
        let in_flight = json!({ "type": "string", "pattern": format!("^[0-9]+ *{IN_FLIGHT}$") });
        json!({ "anyOf": [rate(), in_flight, words(&[NONE])] })
    },
    |reader, fields, key| reader.written(fields, key, NAME_BYTES_MAX, or_none(amount)),
);
const ALGORITHM: Form<Written<String>> = form(
    || words(&Algorithm::NAMES),
    |reader, fields, key| {
        reader.written(fields, key, NAME_BYTES_MAX, |text| match Algorithm::NAMES.contains(&text) {
            true => Ok(text.to_owned()),
            false => Err(format!("no algorithm{}", instead(text, &Algorithm::NAMES))),
        })
    },
);
const TRIAL: [&str; 3] = [Verdict::NAMES[0], Verdict::NAMES[1], NONE];

mapping! {
    pub(crate) mod expectation = "what is expected" {
        /// `ok` or `over`
        ANSWER: Written<Verdict> = "answer", VERDICT, "none", "{answer: over}";
        /// the message that the request gets in place of an answer
        ERROR: Written<String> = "error", form(text, |reader, fields, key| {
            reader.written(fields, key, FILE_BYTES_MAX, |text| Ok(text.to_owned()))
        }), "none", "{error: rate limit domain must not be empty}";
        /// how many requests of the step pass
        PASSED: Written<Range> = "passed", RANGE, "none", "{passed: <= 30}";
        /// how many requests of the step are denied
        DENIED: Written<Range> = "denied", RANGE, "none", "{denied: 1}";
        /// the time until the denied request would pass; `none` if no wait helps
        RETRY_AFTER: Written<Option<Range>> = "retry_after", super::WAIT, "none", "{retry_after: 59m..1h}";
        /// how long an admitted request waits for its turn (`leaky_bucket`)
        DELAY: Written<Range> = "delay", form(|| reference("lengths"), |reader, fields, key| {
            reader.written(fields, key, NAME_BYTES_MAX, Range::of_lengths)
        }), "none", "{delay: 100ms}";
        /// headers for the client, as names with values. The value `none`: the header must be absent
        HEADERS: Vec<ExpectedHeader> = "headers", super::HEADERS, "none", "{headers: {Retry-After: \"60\"}}";
        /// headers that Envoy adds to the request, in the same form
        REQUEST_HEADERS: Vec<ExpectedHeader> = "request_headers", super::HEADERS, "none",
            "{request_headers: {x-envoy-fault-delay-request: \"100\"}}";
        /// `over` if a limit [on trial](policies.md#limits-on-trial) would deny the request, otherwise `ok`; `none` if no
        /// such limit applies
        TRIAL: Written<Option<Verdict>> = "trial", form(|| words(&super::TRIAL), |reader, fields, key| {
            let Some(word) = reader.choice(fields, key, &super::TRIAL)? else { return Ok(None) };
            Ok(reader.at_key(fields, key, (word != NONE).then(|| Verdict::named(word))))
        }), "none", "{answer: ok, trial: over}";
        /// the whole dynamic metadata of the response
        METADATA: Written<Arc<weir_engine::metadata::Fields>> = "metadata", form(|| json!({ "type": "object" }), |reader, fields, key| {
            let metadata = reader.metadata(fields, key)?;
            Ok(metadata.and_then(|metadata| reader.at_key(fields, key, metadata)))
        }), "none", "{metadata: {domain: shop, descriptors: [{entries: [user=ann]}]}}";
        /// the path of the rule that the descriptor matches, as `weir explain` prints it; `none` for no rule
        RULE = "rule", super::RULE, "none", "{rule: plan=free|path=/search}";
        /// the limit that the status shows, in the short form of policies or as `3 in flight`; `none` for no limit
        LIMIT = "limit", EXPECTED_LIMIT, "none", "{limit: 3/hour}";
        /// the name of the shown limit in the response, or `none`
        NAME = "name", super::NAME, "none", "{name: basic}";
        /// the algorithm of the shown limit
        ALGORITHM = "algorithm", super::ALGORITHM, "none", "{algorithm: gcra}";
        /// how many hits the shown limit would admit now
        REMAINING = "remaining", RANGE, "none", "{remaining: 2}";
        /// the time until the request would fit; if the limit is not exceeded, the time until the state is empty
        RESET = "reset", super::WAIT, "none", "{reset: <= 1h}";
        /// a list with one status for each descriptor, in order. A status is `ok`, `over`, or a mapping that can contain `answer`,
        /// `rule`, `limit`, `name`, `algorithm`, `remaining` and `reset`
        STATUSES: Option<Vec<NodeId>> = "statuses", list(|| list_of(&reference("status"))), "none",
            "{statuses: [ok, {answer: over, rule: card}]}";
    }
}

mapping! {
    pub(crate) mod status = "a status" {
        /// `ok` or `over`
        ANSWER: Written<Verdict> = "answer", VERDICT, "none", "";
        /// as in a mapping with `statuses`
        RULE: Written<Option<String>> = "rule", super::RULE, "none", "";
        /// as in a mapping with `statuses`
        LIMIT: Written<Option<ExpectedLimit>> = "limit", EXPECTED_LIMIT, "none", "";
        /// as in a mapping with `statuses`
        NAME: Written<Option<String>> = "name", super::NAME, "none", "";
        /// as in a mapping with `statuses`
        ALGORITHM: Written<String> = "algorithm", super::ALGORITHM, "none", "";
        /// as in a mapping with `statuses`
        REMAINING: Written<Range> = "remaining", RANGE, "none", "";
        /// as in a mapping with `statuses`
        RESET: Written<Option<Range>> = "reset", super::WAIT, "none", "";
    }
}
