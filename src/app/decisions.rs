//! From the settings to what a decision and its response depend on, beside policies and stores.

use crate::config::policy_file::Reading;
use crate::config::settings::{self, Settings};
use crate::limiter::Modes;
use crate::rls::convert::{Bounds, Extras, LimitHeaders};

/// What the settings change about every rule.
#[must_use]
pub const fn modes(settings: &Settings) -> Modes {
    Modes {
        shadow: settings.shadow_mode,
        quota: settings.quota_mode,
        metadata: settings.response.limit_metadata,
        limits: settings.response.ietf_headers || settings.response.problem_body,
    }
}

/// How policy files are read.
#[must_use]
pub const fn reading(policies: &settings::Policies) -> Reading {
    Reading { compatible: policies.compatible, merge_domains: policies.merge_domains }
}

/// The most that one request may hold.
#[must_use]
pub const fn bounds(limits: &settings::Limits) -> Bounds {
    Bounds {
        descriptors: limits.descriptors,
        entries: limits.entries,
        domain_bytes: limits.domain_bytes,
        key_bytes: limits.key_bytes,
        value_bytes: limits.value_bytes,
        hits: limits.hits,
    }
}

/// What a response has beyond the answer of envoyproxy/ratelimit.
#[must_use]
pub fn extras(response: &settings::Response) -> Extras {
    Extras {
        dynamic_metadata: response.dynamic_metadata,
        delay_header: response.delay_header,
        limit_metadata: response.limit_metadata,
        ietf_headers: response.ietf_headers,
        problem_body: response.problem_body,
        limit_headers: response.limit_headers.then(|| LimitHeaders {
            limit: response.limit_header.clone(),
            remaining: response.remaining_header.clone(),
            reset: response.reset_header.clone(),
        }),
    }
}
