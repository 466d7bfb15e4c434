//! `/tap`: live requests with their answers, one JSON line each, while the caller reads.
//!
//! Not here: which requests are recorded, and the format of a line (telemetry/tap.rs).

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};
use weir_api::tap::{End, Note};
use weir_engine::PolicySet;
use weir_engine::descriptor::parse_entries;
use weir_lifecycle::{Phase, on_own_thread};
use weir_telemetry::logging::AUDIT;
use weir_telemetry::tap::{
    Filter, Listener, Named, SAMPLE_MAX, TAPS_MAX, TooManyTaps, VERDICTS, header as record_header,
};
use weir_text::nearest;

use super::listener::ReadUntil;
use super::rights::{Caller, Lacking, Right};
use super::streamed::{PIECE_BYTES, made};
use super::token::waited_for_log;
use super::{Site, bad_query, bad_request, json_error};

/// The most taps that are open after a token of some domains has opened one. The rest is for tokens of all domains.
const TAPS_OF_SOME_DOMAINS_MAX: usize = TAPS_MAX - 1;
/// How long records are collected before they are sent.
const GATHER: Duration = Duration::from_millis(50);
/// After this time without a record another line is sent, so that weir detects a caller that has gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The time limit for the last lines after the end of a tap.
const LAST_LINES_MAX: Duration = Duration::from_secs(15);

const PARAMETERS: [&str; 8] = ["domain", "rule", "descriptor", "verdict", "sample", "seconds", "values", "notes"];
/// The words for `values`.
const VALUES: [&str; 2] = ["hidden", "shown"];

#[derive(Debug, PartialEq, Eq)]
struct TapQuery {
    filter: Filter,
    sample: u32,
    seconds: Option<u64>,
    /// Whether values are printed in plain text. None: the server's default.
    shows_values: Option<bool>,
    /// Whether there are notes between the records: an unknown domain, that the tap is open, why it ended.
    has_notes: bool,
}

impl TapQuery {
    /// # Errors
    /// The text of a 400.
    fn read(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let filter = Filter::default();
        let mut wanted = Self { filter, sample: 1, seconds: None, shows_values: None, has_notes: false };
        let mut given: Vec<&str> = Vec::new();
        for (name, value) in pairs {
            let Some(&known) = PARAMETERS.iter().find(|known| **known == name) else {
                return Err(unknown(&name));
            };
            if given.contains(&known) {
                return Err(format!("{known}: given twice"));
            }
            given.push(known);
            let number = |most: u64| match value.parse() {
                Ok(number) if (1..=most).contains(&number) => Ok(number),
                _ => Err(format!("{known} = {value:?}: must be from 1 to {most}")),
            };
            match known {
                "domain" => wanted.filter.domain = Some(value),
                "rule" => wanted.filter.rule = Some(value),
                "descriptor" => {
                    wanted.filter.entries = parse_entries(&value).map_err(|reason| format!("descriptor: {reason}"))?;
                }
                "verdict" => {
                    let verdict = VERDICTS.into_iter().find(|verdict| *verdict == value);
                    let reason = || format!("verdict = {value:?}: must be one of {}", VERDICTS.join(", "));
                    wanted.filter.verdict = Some(verdict.ok_or_else(reason)?);
                }
                "sample" => wanted.sample = u32::try_from(number(u64::from(SAMPLE_MAX))?).unwrap_or(SAMPLE_MAX),
                "values" => {
                    let place = VALUES.iter().position(|word| **word == value);
                    let reason = || format!("values = {value:?}: must be {}", VALUES.join(" or "));
                    wanted.shows_values = Some(place.ok_or_else(reason)? == 1);
                }
                "seconds" => wanted.seconds = Some(number(u64::from(u32::MAX))?),
                _ => {
                    wanted.has_notes =
                        value.parse().map_err(|_| format!("notes = {value:?}: must be true or false"))?;
                }
            }
        }
        Ok(wanted)
    }
}

fn unknown(name: &str) -> String {
    let meant = nearest(name, PARAMETERS).map_or_else(String::new, |meant| format!(", did you mean {meant:?}?"));
    format!("no parameter {name:?}, only {}{meant}", PARAMETERS.join(", "))
}

/// Sends records until the time limit, until weir ends, or until the reader has gone.
pub(super) async fn tap(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(pairs) = query.map_err(|rejection| bad_query(&rejection))?;
    let wanted = TapQuery::read(pairs).map_err(bad_request)?;
    caller.check(wanted.filter.domain.as_deref())?;
    let by_setting = site.metrics.taps().shows_values();
    let shows_values = wanted.shows_values.unwrap_or(by_setting);
    if shows_values && !by_setting && !caller.may(Right::Tap) {
        let reason =
            "values = \"shown\": this needs a token of admin.token_file that has the right tap, or tap.values: shown";
        return Err(Lacking(reason.to_owned()).into());
    }
    if let Some(rule) = &wanted.filter.rule
        && let Err(near) = site.report.has_rule(wanted.filter.domain.as_deref(), rule)
    {
        let meant = near.map_or_else(String::new, |near| format!(", did you mean {near:?}?"));
        let reason =
            format!("rule = {rule:?}: no rule of the policies in force, see \"descriptor\" in /policies{meant}");
        return Err(json_error(StatusCode::NOT_FOUND, reason));
    }
    let unknown_domain =
        wanted.filter.domain.as_deref().and_then(|domain| site.report.has_domain(domain, &caller).err());
    let seconds = wanted.seconds.map_or(site.admin.tap_max, Duration::from_secs);
    if seconds > site.admin.tap_max {
        let reason =
            format!("seconds = {}: at most {} (tap.max_duration)", seconds.as_secs(), site.admin.tap_max.as_secs());
        return Err(bad_request(reason));
    }
    if shows_values {
        waited_for_log(&site, &caller).await?;
    }
    let filter = wanted.filter.clone();
    let most = if caller.has_all_domains() { TAPS_MAX } else { TAPS_OF_SOME_DOMAINS_MAX };
    let listener = site.metrics.taps().listen(filter, wanted.sample, most).map_err(|TooManyTaps| {
        let reason = format!("{most} taps are open, which is the maximum: end one, or try again later");
        json_error(StatusCode::SERVICE_UNAVAILABLE, reason)
    })?;
    let listener = listener.with_values(shows_values);
    if shows_values {
        audit(&site, &caller.name, &wanted, seconds);
    }
    let sent = Instant::now();
    let ends = sent + seconds;
    let (sample, has_notes) = (wanted.sample, wanted.has_notes);
    let (known, step) = (None, Step::Begin);
    let sending = Sending { site, caller, listener, known, unknown_domain, sample, has_notes, ends, sent, step };
    let body = made(stream::unfold(sending, Sending::next).map(Ok));
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    let mut answer = (headers, body).into_response();
    answer.extensions_mut().insert(ReadUntil(ends + LAST_LINES_MAX));
    Ok(answer)
}

/// Logs who can read values of callers, and for how long.
fn audit(site: &Site, by: &str, wanted: &TapQuery, length: Duration) {
    let TapQuery { filter: Filter { domain, rule, entries, verdict }, sample, .. } = wanted;
    tracing::info!(
        target: AUDIT,
        by,
        domain = domain.as_deref(),
        rule = rule.as_deref(),
        descriptor = (!entries.is_empty()).then(|| site.audited(entries)),
        verdict,
        sample,
        seconds = length.as_secs(),
        "a tap with values is open"
    );
}

/// The answer to one caller. Dropping it closes the tap.
struct Sending {
    site: Arc<Site>,
    caller: Arc<Caller>,
    listener: Listener,
    known: Option<Arc<Known>>,
    /// Set if no policy has the requested domain: the domain that was probably meant.
    unknown_domain: Option<Option<String>>,
    sample: u32,
    has_notes: bool,
    ends: Instant,
    /// The time of the last piece.
    sent: Instant,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Live,
    /// The tap has ended for this reason. Waiting records are sent.
    Ending(&'static str),
    Ended,
}

impl Sending {
    /// Makes the next piece. None at the end.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        loop {
            let piece = match self.step {
                Step::Begin => {
                    self.step = Step::Live;
                    let mut piece = record_header(self.sample, self.listener.values());
                    if let Some(nearest) = self.unknown_domain.as_ref().filter(|_| self.has_notes) {
                        piece.extend(note_line(&Note::NoDomain { nearest: nearest.clone() }));
                    }
                    piece
                }
                Step::Live => {
                    self.wait().await;
                    self.records().await
                }
                Step::Ending(reason) => {
                    let mut piece = self.records().await;
                    if piece.is_empty() {
                        self.step = Step::Ended;
                        piece = self.note(Some(reason));
                    }
                    piece
                }
                Step::Ended => return None,
            };
            let piece = if piece.is_empty() && self.sent.elapsed() >= SILENCE_MAX { self.note(None) } else { piece };
            if !piece.is_empty() {
                self.sent = Instant::now();
                return Some((piece.into(), self));
            }
        }
    }

    /// Waits until records must be sent, or until the tap has ended.
    async fn wait(&mut self) {
        tokio::select! {
            () = self.site.life.reached(Phase::Ending) => self.step = Step::Ending("shutdown"),
            () = sleep_until(self.ends) => self.step = Step::Ending("time"),
            () = self.listener.is_filling() => {}
            () = sleep(GATHER) => {}
        }
        if self.site.admin.tokens.as_ref().is_some_and(|tokens| !tokens.still_has(&self.caller)) {
            self.step = Step::Ending("token");
        }
    }

    async fn records(&mut self) -> Vec<u8> {
        if !self.listener.values().is_shown() {
            self.known = Some(self.site.shared.named_values.current(&self.site, self.known.take()).await);
        }
        self.listener.lines(PIECE_BYTES, self.known.as_ref().map(|known| &known.named))
    }

    /// A note. Without notes, an empty line, which readers of JSON lines skip.
    fn note(&self, reason: Option<&str>) -> Vec<u8> {
        if !self.has_notes {
            return if reason.is_none() { b"\n".to_vec() } else { Vec::new() };
        }
        let lost = if reason.is_some() { self.listener.take_lost() } else { 0 };
        let end = End { reason: reason.map(str::to_owned), lost };
        note_line(&if reason.is_none() { Note::Open(end) } else { Note::End(end) })
    }
}

fn note_line(note: &Note) -> Vec<u8> {
    format!("{}\n", json!(note)).into_bytes()
}

/// The values in the policies in force. Taps share them.
#[derive(Default)]
pub(super) struct NamedValues(tokio::sync::Mutex<Weak<Known>>);

struct Known {
    policies: Arc<PolicySet>,
    named: Named,
}

impl NamedValues {
    /// The values in the policies in force. `last` is the previous result.
    async fn current(&self, site: &Site, last: Option<Arc<Known>>) -> Arc<Known> {
        let policies = site.report.policies.lock().policies.clone();
        let is_current = |known: &Arc<Known>| Arc::ptr_eq(&known.policies, &policies);
        if let Some(last) = last.filter(is_current) {
            return last;
        }
        let mut shared = self.0.lock().await;
        if let Some(known) = shared.upgrade().filter(is_current) {
            return known;
        }
        let made = Arc::new(on_own_thread(move || Known { named: Named::of(&policies), policies }).await);
        *shared = Arc::downgrade(&made);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<TapQuery, String> {
        TapQuery::read(pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn a_question_is_read_strictly() {
        let wanted = read(&[
            ("domain", "shop"),
            ("rule", "user"),
            ("descriptor", "user=ann,path=/a\\,b"),
            ("verdict", "over"),
            ("sample", "10"),
            ("seconds", "60"),
            ("values", "shown"),
            ("notes", "true"),
        ]);
        let entries = [("user", "ann"), ("path", "/a,b")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let filter = Filter { domain: Some("shop".into()), rule: Some("user".into()), entries, verdict: Some("over") };
        let expected = TapQuery { filter, sample: 10, seconds: Some(60), shows_values: Some(true), has_notes: true };
        assert_eq!(wanted, Ok(expected));
        for (pair, reason) in [
            (("doman", "shop"), "no parameter \"doman\", only domain, rule,"),
            (("doman", "shop"), "did you mean \"domain\"?"),
            (("verdict", "denied"), "verdict = \"denied\": must be one of ok, over, shadow, error"),
            (("sample", "0"), "sample = \"0\": must be from 1 to 1000000"),
            (("sample", "1000001"), "must be from 1 to 1000000"),
            (("seconds", "-1"), "seconds = \"-1\": must be from 1 to 4294967295"),
            (("descriptor", "user"), "descriptor: \"user\" has no \"=\""),
            (("values", "all"), "values = \"all\": must be hidden or shown"),
            (("notes", "1"), "notes = \"1\": must be true or false"),
        ] {
            let refused = read(&[pair]).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        assert_eq!(read(&[("sample", "2"), ("sample", "3")]).unwrap_err(), "sample: given twice");
    }
}
