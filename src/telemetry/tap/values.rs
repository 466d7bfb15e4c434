//! How a tap prints the values of requests.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use ring::hmac;
use ring::rand::SystemRandom;
use weir_engine::policy::Level;
use weir_engine::{Matcher, PolicySet};
use weir_text::hex;

const HASH_BYTES: usize = 6;
const HIDDEN: char = '~';

pub struct TapValues {
    /// The key for hashes of values, random in each process. None if values are printed in plain text.
    key: Option<hmac::Key>,
}

impl TapValues {
    pub(super) fn new(is_shown: bool) -> Self {
        Self { key: (!is_shown).then(random_key) }
    }

    /// Whether values are printed in plain text.
    pub const fn is_shown(&self) -> bool {
        self.key.is_none()
    }

    pub const fn name(&self) -> &'static str {
        if self.is_shown() { "shown" } else { "hidden" }
    }

    /// A value for printing. Equal values have equal hashes.
    pub(super) fn show<'v>(&self, named: Option<&Named>, domain: &str, key: &str, value: &'v str) -> Cow<'v, str> {
        let Some(secret) = &self.key else { return Cow::Borrowed(value) };
        if named.is_some_and(|named| named.has(domain, key, value)) {
            return Cow::Borrowed(value);
        }
        let hash = hmac::sign(secret, value.as_bytes());
        Cow::Owned(format!("{HIDDEN}{}", hex(&hash.as_ref()[..HASH_BYTES])))
    }
}

fn random_key() -> hmac::Key {
    match hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()) {
        Ok(key) => key,
        // The system returns no random bytes, so TLS would not work either. The standard library's are enough here.
        Err(ring::error::Unspecified) => {
            let random = [0_u8; 4].map(|_| RandomState::new().hash_one(()));
            hmac::Key::new(hmac::HMAC_SHA256, &random.map(u64::to_be_bytes).concat())
        }
    }
}

/// The values in policies, which are not callers' secrets: a hash of each, with its key and domain.
pub struct Named {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Named {
    /// The values in these policies. It takes milliseconds for many rules, so call it on a thread that makes no
    /// decisions.
    pub fn of(policies: &PolicySet) -> Self {
        let mut named = Self { hasher: RandomState::new(), hashes: HashSet::new() };
        let mut seen = HashSet::new();
        for rule in policies.rules() {
            for level in &rule.levels {
                // Rules of one branch share the levels above them.
                if seen.insert(Arc::as_ptr(level)) {
                    named.add(&rule.domain, level);
                }
            }
            if let Some(weigh) = rule.weigh.as_deref() {
                let hashes = weigh.values().map(|value| named.hasher.hash_one((&*rule.domain, &*weigh.entry, value)));
                let hashes: Vec<u64> = hashes.collect();
                named.hashes.extend(hashes);
            }
        }
        named
    }

    fn add(&mut self, domain: &str, level: &Level) {
        match &level.value {
            Some(Matcher::List(values)) => {
                let hashes = values.iter().map(|value| self.hasher.hash_one((domain, &*level.key, &**value)));
                self.hashes.extend(hashes);
            }
            Some(matcher) => {
                let hash = matcher.exact().map(|value| self.hasher.hash_one((domain, &*level.key, value)));
                self.hashes.extend(hash);
            }
            None => {}
        }
    }

    fn has(&self, domain: &str, key: &str, value: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one((domain, key, value)))
    }
}
