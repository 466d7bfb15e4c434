//! What weir would cost if deciding were free: the same tonic, the same allocator, the same kind of runtime, a handler
//! that decodes the request and answers one constant status.
//!
//! `empty-handler CORES` listens on a port of 127.0.0.1 that the system chooses, prints the address and serves until it
//! is killed. Only bench/run uses it.

use std::error::Error;
use std::net::TcpListener;
use std::num::NonZeroUsize;

use pbjson_types::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::proto::envoy::service::ratelimit::v3 as rls;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// The generated types, in modules named as their packages are.
mod proto {
    #![allow(clippy::all)]

    pub mod envoy {
        pub mod config {
            pub mod core {
                pub mod v3 {
                    include!("../../../proto/generated/envoy.config.core.v3.rs");
                }
            }
        }
        pub mod extensions {
            pub mod common {
                pub mod ratelimit {
                    pub mod v3 {
                        include!("../../../proto/generated/envoy.extensions.common.ratelimit.v3.rs");
                    }
                }
            }
        }
        pub mod service {
            pub mod ratelimit {
                pub mod v3 {
                    include!("../../../proto/generated/envoy.service.ratelimit.v3.rs");
                }
            }
        }
        pub mod r#type {
            pub mod v3 {
                include!("../../../proto/generated/envoy.r#type.v3.rs");
            }
        }
    }
}

/// As in weir.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// As many as weir allows.
const STREAMS_MAX: u32 = 1_024;
/// Connections that may wait for their runtime.
const HANDOVER_MAX: usize = 1_024;

fn main() -> Result<(), Box<dyn Error>> {
    let cores: NonZeroUsize = std::env::args().nth(1).ok_or("usage: empty-handler CORES")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut runtimes = Vec::new();
    for _ in 0..cores.get() {
        let (sender, accepted) = mpsc::channel(HANDOVER_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || runtime.block_on(serve(accepted)));
        runtimes.push(sender);
    }
    println!("{}", listener.local_addr()?);
    for (number, stream) in listener.incoming().enumerate() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        runtimes[number % runtimes.len()].blocking_send(stream)?;
    }
    Ok(())
}

/// Serves the connections of one runtime.
async fn serve(accepted: mpsc::Receiver<std::net::TcpStream>) {
    let service = RateLimitServiceServer::new(Constant);
    // No router: there is only one service, and a lookup is not what is to be compared.
    let server = Server::builder().max_concurrent_streams(STREAMS_MAX);
    if let Err(error) = server.serve_with_incoming(service, Handover(accepted).map(TcpStream::from_std)).await {
        eprintln!("empty-handler: {error}");
    }
}

/// Connections as they are handed over.
struct Handover(mpsc::Receiver<std::net::TcpStream>);

impl Stream for Handover {
    type Item = std::net::TcpStream;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Answers every request with the same full status.
struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        request: Request<rls::RateLimitRequest>,
    ) -> Result<Response<rls::RateLimitResponse>, Status> {
        // Decoded, as weir has to, and then dropped.
        let _request = request.into_inner();
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 4_000_000_000,
                unit: Unit::Year.into(),
                name: String::new(),
                unit_multiplier: None,
            }),
            limit_remaining: 3_999_999_999,
            duration_until_reset: Some(Duration { seconds: 31_000_000, nanos: 0 }),
            quota: None,
        };
        Ok(Response::new(rls::RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status],
            ..rls::RateLimitResponse::default()
        }))
    }
}
