//! The messages of xDS that weir reads and writes.
//!
//! The types are generated from the files in proto/ (tests/repository/generated.rs). tests/repository/api.rs compares the files
//! with Envoy's.

// Generated code is not linted. Its documentation is in proto/.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

pub use envoy::config::core::v3::Node;
pub use envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
pub use google::rpc::Status;
pub use ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};

pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!("../../proto/generated/xds/envoy.config.core.v3.rs");
            }
        }
    }
    pub mod service {
        pub mod discovery {
            pub mod v3 {
                include!("../../proto/generated/xds/envoy.service.discovery.v3.rs");
            }
        }
    }
}
pub mod google {
    pub mod rpc {
        include!("../../proto/generated/xds/google.rpc.rs");
    }
}
pub mod ratelimit {
    pub mod config {
        pub mod ratelimit {
            pub mod v3 {
                include!("../../proto/generated/xds/ratelimit.config.ratelimit.v3.rs");
            }
        }
    }
}
