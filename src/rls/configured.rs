//! The parts of the settings that affect decisions and responses. Each field of `limits` and `response` is named, so that
//! the compiler reports a new one.

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
    // The listeners have the bound on bytes.
    let &weir_settings::Limits { descriptors, entries, domain_bytes, key_bytes, value_bytes, request_bytes: _, hits } =
        limits;
    Bounds { descriptors, entries, domain_bytes, key_bytes, value_bytes, hits }
}

pub fn extras(response: &weir_settings::Response) -> Extras {
    let weir_settings::Response {
        dynamic_metadata,
        delay_header,
        limit_metadata,
        ietf_headers,
        problem_body,
        limit_headers,
        limit_header,
        remaining_header,
        reset_header,
        unit_multiplier,
    } = response;
    Extras {
        dynamic_metadata: *dynamic_metadata,
        delay_header: *delay_header,
        limit_metadata: *limit_metadata,
        ietf_headers: *ietf_headers,
        problem_body: *problem_body,
        limit_headers: limit_headers.then(|| LimitHeaders {
            limit: limit_header.clone(),
            remaining: remaining_header.clone(),
            reset: reset_header.clone(),
        }),
        unit_multiplier: *unit_multiplier,
    }
}
