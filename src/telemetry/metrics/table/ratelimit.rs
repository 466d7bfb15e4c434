//! The statistics of envoyproxy/ratelimit, with its names, except those of limits and unknown domains (statistics.rs).
//! docs/telemetry.md says what they count.

use super::{Metric, counter, gauge};

pub(super) const RATELIMIT: &[Metric] = &[
    gauge("ratelimit.localcache.averageAccessTime", &[], "nanoseconds"),
    gauge("ratelimit.localcache.entryCount", &[], "keys"),
    gauge("ratelimit.localcache.evacuateCount", &[], "keys"),
    gauge("ratelimit.localcache.expiredCount", &[], "keys"),
    gauge("ratelimit.localcache.hitCount", &[], "lookups"),
    gauge("ratelimit.localcache.lookupCount", &[], "lookups"),
    gauge("ratelimit.localcache.missCount", &[], "lookups"),
    gauge("ratelimit.localcache.overwriteCount", &[], "keys"),
    gauge("ratelimit.redis_per_second_pool.cx_active", &[], "connections"),
    counter("ratelimit.redis_per_second_pool.cx_local_close", &[], "connections"),
    counter("ratelimit.redis_per_second_pool.cx_total", &[], "connections"),
    gauge("ratelimit.redis_pool.cx_active", &[], "connections"),
    counter("ratelimit.redis_pool.cx_local_close", &[], "connections"),
    counter("ratelimit.redis_pool.cx_total", &[], "connections"),
    counter("ratelimit.service.call.should_rate_limit.redis_error", &[], "requests"),
    counter("ratelimit.service.call.should_rate_limit.service_error", &[], "requests"),
    counter("ratelimit.service.config_load_error", &[], "loads"),
    counter("ratelimit.service.config_load_success", &[], "loads"),
    counter("ratelimit.service.global_shadow_mode", &[], "requests"),
    counter("ratelimit_server.ShouldRateLimit.total_requests", &[], "requests"),
];
