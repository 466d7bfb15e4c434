//! The parts of the settings that affect decisions and responses.

use weir_limiter::Modes;
use weir_settings::Settings;

use crate::convert::{Bounds, Extras, LimitHeaders};

/// The modes of the settings, which apply to every rule.
pub const fn modes(settings: &Settings) -> Modes {
    Modes {
        shadow: settings.shadow_mode,
        quota: settings.quota_mode,
        metadata: settings.response.limit_metadata,
        limits: settings.response.ietf_headers || settings.response.problem_body,
    }
}

pub const fn bounds(limits: &weir_settings::Limits) -> Bounds {
    Bounds {
        descriptors: limits.descriptors,
        entries: limits.entries,
        domain_bytes: limits.domain_bytes,
        key_bytes: limits.key_bytes,
        value_bytes: limits.value_bytes,
        hits: limits.hits,
    }
}

pub fn extras(response: &weir_settings::Response) -> Extras {
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
