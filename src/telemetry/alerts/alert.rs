//! One alert: its content, its id, and its log line.
//!
//! Not here: what makes alerts (alerts.rs), and their form for a webhook (message.rs).

use sha2::{Digest as _, Sha256};
use weir_engine::observer::Crossed;
use weir_engine::{Count, Hits, Micros, Rule};
use weir_settings::ShownValues;
use weir_text::{hex, instant_text};

use crate::limited::ShownDescriptor;

/// The whole of a limit, in percent.
const WHOLE: u8 = 100;
/// The beginning of the bytes that are hashed to an id. A change of those bytes needs a new version.
const ID_VERSION: &[u8] = b"weir alert 1";
/// The most bytes of a rule's path in an alert. A policy can have paths of 64 KiB, and thousands of alerts can wait.
const RULE_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// 64 hex digits, the same for the same crossing on every replica and in each delivery.
    pub id: String,
    pub domain: Box<str>,
    /// The path of the rule, cut at 1,024 bytes.
    pub rule: Box<str>,
    /// The name of the limit. Its id if it has none.
    pub limit: Box<str>,
    /// `enforced`, `shadow` or `quota`.
    pub role: &'static str,
    /// Keys and values. The settings determine how values are printed.
    pub entries: Vec<(String, String)>,
    pub descriptor: String,
    pub share: u8,
    /// Hits per window.
    pub requests: Count,
    /// The hits in the window after the decision that crossed the share.
    pub used: Count,
    /// Both in the unit in which people read them, if the limit has one: used, requests.
    pub amounts: Option<[String; 2]>,
    pub window_start: Micros,
    pub window_end: Micros,
    /// When the share was crossed, by the clock of the store.
    pub at: Micros,
}

impl Alert {
    /// The alert of a crossing. `values` determines how values of the descriptor are printed.
    pub(super) fn new(id: &[u8; 32], rule: &Rule, crossed: &Crossed<'_>, values: ShownValues) -> Self {
        let limit = crossed.charge.limit;
        let descriptor = ShownDescriptor::of(crossed.charge.key, values);
        Self {
            id: hex(id),
            domain: rule.domain.clone(),
            rule: cut(&rule.path),
            limit: limit.name.as_deref().unwrap_or(limit.id()).into(),
            role: crossed.charge.origin.shown_role.name(),
            descriptor: descriptor.text(),
            entries: descriptor.entries,
            share: crossed.share,
            requests: limit.requests(),
            used: crossed.window.count,
            amounts: limit
                .amount
                .as_ref()
                .map(|amount| [crossed.window.count, limit.requests()].map(|hits| amount.text(hits))),
            window_start: crossed.window.start,
            window_end: crossed.window.end,
            at: crossed.at,
        }
    }

    pub(super) fn log(&self) {
        let Self { id, domain, rule, limit, role, descriptor, share, requests, used, amounts, .. } = self;
        let amount = amounts.as_ref().map(|[used, requests]| format!("{used} of {requests}"));
        let (window_start, window_end) = (instant_text(self.window_start), instant_text(self.window_end));
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    id, %domain, %rule, %limit, role, key = descriptor, share, used, requests, amount, window_start, window_end,
                    "a key has used a share of its limit"
                )
            };
        }
        if *share < WHOLE { log!(info) } else { log!(warn) }
    }
}

fn cut(path: &str) -> Box<str> {
    match path.len() {
        0..=RULE_BYTES_MAX => path.into(),
        _ => format!("{}\u{2026}", &path[..path.floor_char_boundary(RULE_BYTES_MAX)]).into(),
    }
}

/// The identity of a crossing: the rule, the key of the state, the limit's hits, the window and the share. [al-3]
pub(super) fn id(rule: &str, crossed: &Crossed<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    // Each text follows its length, so that different lists of texts give different bytes.
    for text in [ID_VERSION, rule.as_bytes(), crossed.charge.key.as_bytes()] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    // A limit that 32 bits hold has four bytes, as in versions that know no larger one.
    match Hits::try_from(crossed.charge.limit.requests()) {
        Ok(requests) => hash.update(requests.to_be_bytes()),
        Err(_) => hash.update(crossed.charge.limit.requests().to_be_bytes()),
    }
    hash.update(crossed.window.start.to_be_bytes());
    hash.update([crossed.share]);
    hash.finalize().into()
}
