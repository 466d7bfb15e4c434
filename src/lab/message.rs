//! The messages of callers, from the descriptors of files.

use weir_engine::{Unit, Window};
use weir_policies::test_file::Descriptor;
use weir_rls::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{self, RateLimitOverride};
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};

pub(crate) fn message(domain: &str, descriptors: &[Descriptor], hits: Option<u32>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(of_descriptor).collect(),
        hits_addend: hits.unwrap_or(0),
    }
}

/// Sets the hits that each descriptor of a settle has used.
pub(crate) fn set_used(settle: &mut RateLimitRequest, used: u32) {
    for descriptor in &mut settle.descriptors {
        descriptor.hits_addend = Some(u64::from(used).into());
    }
}

fn of_descriptor(descriptor: &Descriptor) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(String, String)| rate_limit_descriptor::Entry { key: key.clone(), value: value.clone() };
    RateLimitDescriptor {
        entries: descriptor.entries.iter().map(entry).collect(),
        hits_addend: descriptor.hits.map(|hits| u64::from(hits).into()),
        is_negative_hits: descriptor.refund,
        limit: descriptor.limit.and_then(limit_of_request),
    }
}

/// A limit of the request on the wire. None if its window is not whole seconds.
pub fn limit_of_request((requests, window): (u32, Window)) -> Option<RateLimitOverride> {
    let (count, unit) = window.in_units(&Unit::OF_REQUESTS)?;
    Some(limit(requests, unit, (count > 1).then_some(count)))
}

/// The limit of the request. A unit that the wire does not have becomes UNKNOWN, which is refused as on the wire.
pub(crate) fn limit(requests_per_unit: u32, unit: Unit, unit_multiplier: Option<u32>) -> RateLimitOverride {
    let unit = RateLimitUnit::from_str_name(&unit.name().to_uppercase()).unwrap_or_default();
    RateLimitOverride { requests_per_unit, unit: unit.into(), unit_multiplier: unit_multiplier.map(Into::into) }
}
