//! The wire: the messages of Envoy's rate limit service, and their JSON form.
//!
//! The types are generated from the files in proto/ (tests/repository/generated.rs). These files are weir's own, with
//! only the fields that weir reads or writes. tests/service/grpc/wire.rs compares them with an independent definition
//! of the same API. Not here: decisions, connections and HTTP.

pub mod bounded;
pub mod client_headers;
pub mod configured;
pub mod convert;
pub mod detail;
pub mod json;
pub mod lenient;
mod limit_metadata;
pub mod receipts;
pub mod request;
pub mod rlconfig;
pub mod spelling;

/// The generated types, in modules named like the packages of proto/. The messages of the service are also at the top.
pub mod proto {
    // Generated code is not linted. Its documentation is in proto/.
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

    pub use envoy::config::core::v3::HeaderValue;
    pub use envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
    pub use envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response, rate_limit_service_client, rate_limit_service_server,
    };
    pub use envoy::r#type::v3::RateLimitUnit;

    /// The files of proto/ and their imports, as an encoded `google.protobuf.FileDescriptorSet`. Server reflection
    /// answers from it.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../../proto/generated/descriptors.bin");

    pub mod envoy {
        pub mod config {
            pub mod core {
                pub mod v3 {
                    include!("../../proto/generated/envoy.config.core.v3.rs");
                    include!("../../proto/generated/envoy.config.core.v3.serde.rs");
                }
            }
        }
        pub mod extensions {
            pub mod common {
                pub mod ratelimit {
                    pub mod v3 {
                        include!("../../proto/generated/envoy.extensions.common.ratelimit.v3.rs");
                    }
                }
            }
        }
        pub mod service {
            pub mod ratelimit {
                pub mod v3 {
                    include!("../../proto/generated/envoy.service.ratelimit.v3.rs");
                    include!("../../proto/generated/envoy.service.ratelimit.v3.serde.rs");
                }
            }
        }
        pub mod r#type {
            pub mod v3 {
                include!("../../proto/generated/envoy.r#type.v3.rs");
            }
        }
    }
}
