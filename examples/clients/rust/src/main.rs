//! Asks weir about requests, and about work whose cost is known only at its end.
//!
//! `cargo run -- [ADDRESS [USER]]`

use std::time::{Duration, SystemTime};

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use messages::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry};
use messages::envoy::service::ratelimit::v3::rate_limit_response::Code as Outcome;
use messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

mod messages {
    tonic::include_proto!("messages");
}

/// What to do with the hits of a descriptor.
enum Hits {
    Charge(u64),
    Peek,
    GiveBack(u64),
}

/// A connection to weir. Clone it, so that many requests share it.
#[derive(Clone)]
struct Limits {
    service: RateLimitServiceClient<Channel>,
    /// How long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
    deadline: Duration,
}

impl Limits {
    /// One attempt.
    async fn call(&mut self, request: &RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        let mut request = Request::new(request.clone());
        request.set_timeout(self.deadline);
        // This includes the time to connect, which the timeout of the request does not.
        match tokio::time::timeout(self.deadline, self.service.should_rate_limit(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(tonic::Status::deadline_exceeded("no answer")),
        }
    }

    /// Asks about one descriptor, prints the answer, and returns whether the work may go on.
    async fn ask(&mut self, what: &str, key: &str, value: &str, hits: Hits) -> Result<bool, tonic::Status> {
        let (count, is_negative_hits) = match hits {
            Hits::Charge(count) => (count, false),
            Hits::Peek => (0, false),
            Hits::GiveBack(count) => (count, true),
        };
        let descriptor = RateLimitDescriptor {
            entries: vec![Entry { key: key.to_owned(), value: value.to_owned() }],
            hits_addend: Some(count),
            is_negative_hits,
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest { domain: "clients".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };

        let mut attempts = 1;
        let mut answer = self.call(&request).await;
        // weir answers UNAVAILABLE when nothing was charged. After DEADLINE_EXCEEDED a second attempt could charge twice.
        if answer.as_ref().is_err_and(|status| status.code() == Code::Unavailable) {
            tokio::time::sleep(short_pause()).await;
            attempts = 2;
            answer = self.call(&request).await;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(status) => {
                let code = match status.code() {
                    Code::Unavailable => "UNAVAILABLE",
                    // tonic returns CANCELLED for its own timeout.
                    Code::DeadlineExceeded | Code::Cancelled => "DEADLINE_EXCEEDED",
                    // INVALID_ARGUMENT and the like: this program is wrong.
                    _ => return Err(status),
                };
                // The fallback of this program: work goes on without limits while weir does not answer.
                println!("{what}: no answer ({code}), attempts: {attempts}, admitted by the fallback");
                return Ok(true);
            }
        };

        let status = &answer.statuses[0];
        if answer.overall_code() == Outcome::OverLimit {
            let wait = status.duration_until_reset.as_ref().map_or(0, |wait| wait.seconds);
            println!("{what}: denied, try again in {wait} s");
            return Ok(false);
        }
        println!("{what}: admitted, {} left", status.limit_remaining);
        Ok(true)
    }
}

/// 5 to 20 ms, so that callers that failed together do not retry together.
fn short_pause() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(5 + u64::from(now.subsec_micros() % 16))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "localhost:8081".to_owned());
    let user = arguments.next().unwrap_or_else(|| "ann".to_owned());
    let deadline_ms = std::env::var("DEADLINE_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(100);
    // It connects with the first request, and again after the connection broke.
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
    let service = RateLimitServiceClient::new(channel);
    let mut limits = Limits { service, deadline: Duration::from_millis(deadline_ms) };

    for number in 1..=4 {
        limits.ask(&format!("request {number}"), "user", &user, Hits::Charge(1)).await?;
    }
    limits.ask("peek", "user", &user, Hits::Peek).await?;
    limits.ask("refund", "user", &user, Hits::GiveBack(1)).await?;
    limits.ask("peek", "user", &user, Hits::Peek).await?;

    if limits.ask("before the work", "tokens", &user, Hits::Peek).await? {
        limits.ask("report of 1200 tokens", "tokens", &user, Hits::Charge(1200)).await?;
    }
    limits.ask("before more work", "tokens", &user, Hits::Peek).await?;
    Ok(())
}
