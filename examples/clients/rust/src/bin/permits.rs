//! Runs jobs, at most two of a user at a time: a guard takes a permit, and gives it back when its job ends, fails, or takes too
//! long.
//!
//! `cargo run --bin permits -- [ADDRESS [USER]]`

use std::time::Duration;

use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use messages::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry};
use messages::envoy::service::ratelimit::v3::rate_limit_response::Code as Outcome;
use messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

mod messages {
    tonic::include_proto!("messages");
}

/// The window of the limit: a job that took longer would run without a permit.
const JOB_MAX: Duration = Duration::from_secs(60);

/// Why a job did not end.
#[derive(Debug)]
enum Failed {
    /// The user has as many jobs in flight as it may.
    Denied(&'static str),
    TooLong,
}

/// Takes permits of one user.
#[derive(Clone)]
struct Permits {
    service: RateLimitServiceClient<Channel>,
    user: String,
    /// How long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
    deadline: Duration,
}

/// A permit. Dropped, it is given back: its job has ended, failed, panicked, or was dropped itself.
struct Permit {
    permits: Permits,
    what: &'static str,
    /// None if weir did not answer, and once it was used: a second settle would take out the permit of another job.
    receipt: Option<String>,
}

impl Permits {
    async fn call(&mut self, receipt: Option<String>) -> Result<RateLimitResponse, Status> {
        let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
        let job = std::iter::once(entry("job", self.user.clone()));
        let entries = job.chain(receipt.map(|receipt| entry("weir.receipt", receipt))).collect();
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let mut request = Request::new(RateLimitRequest { domain: "clients".to_owned(), descriptors, hits_addend: 0 });
        request.set_timeout(self.deadline);
        // This includes the time to connect, which the timeout of the request does not.
        match tokio::time::timeout(self.deadline, self.service.should_rate_limit(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        }
    }

    async fn take(&self, what: &'static str) -> Result<Permit, Failed> {
        let mut permits = self.clone();
        let answer = match permits.call(None).await {
            Ok(answer) => answer,
            Err(status) => {
                // The fallback of this program: work goes on without a limit while weir does not answer.
                println!("{what}: no answer ({}), started by the fallback", name(&status));
                return Ok(Permit { permits, what, receipt: None });
            }
        };
        if answer.overall_code() == Outcome::OverLimit {
            return Err(Failed::Denied(what));
        }
        println!("{what}: started, {} free", answer.statuses[0].limit_remaining);
        Ok(Permit { permits, what, receipt: receipt_of(answer) })
    }

    /// Runs a job while it holds a permit.
    async fn run(&self, what: &'static str, job: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
        let mut permit = self.take(what).await?;
        let ended = tokio::time::timeout(JOB_MAX, job).await.unwrap_or(Err(Failed::TooLong));
        // Where there is time to wait for it; if this future is dropped before, the permit's Drop does it.
        if let Some(settled) = permit.settle() {
            settled.await.ok();
        }
        ended
    }
}

impl Permit {
    /// Gives the permit back in a task of its own, once. If that fails the permit ends by itself, when its window is over.
    fn settle(&mut self) -> Option<JoinHandle<()>> {
        let receipt = self.receipt.take()?;
        let (mut permits, what) = (self.permits.clone(), self.what);
        Some(tokio::spawn(async move {
            match permits.call(Some(receipt)).await {
                Ok(answer) => println!("{what}: ended, {} free", answer.statuses[0].limit_remaining),
                Err(status) => println!("{what}: ended, but not settled ({})", name(&status)),
            }
        }))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.settle();
    }
}

fn receipt_of(answer: RateLimitResponse) -> Option<String> {
    use prost_types::value::Kind;
    let mut metadata = answer.dynamic_metadata?.fields;
    let Kind::StructValue(mut ours) = metadata.remove("weir.clients")?.kind? else { return None };
    let Kind::StringValue(receipt) = ours.fields.remove("receipt")?.kind? else { return None };
    Some(receipt)
}

fn name(status: &Status) -> String {
    match status.code() {
        Code::Unavailable => "UNAVAILABLE".to_owned(),
        // CANCELLED is what tonic calls its own timeout.
        Code::DeadlineExceeded | Code::Cancelled => "DEADLINE_EXCEEDED".to_owned(),
        code => format!("{code:?}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "localhost:8081".to_owned());
    let user = arguments.next().unwrap_or_else(|| "ann".to_owned());
    let deadline_ms = std::env::var("DEADLINE_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(100);
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
    let service = RateLimitServiceClient::new(channel);
    let permits = Permits { service, user, deadline: Duration::from_millis(deadline_ms) };

    let jobs = permits.run("job 1", async {
        match permits.run("job 2", permits.run("job 3", async { Ok(()) })).await {
            // The error leaves job 2, whose guard gives its permit back.
            Err(Failed::Denied(what)) => println!("{what}: denied, try again later"),
            ended => ended?,
        }
        permits.run("job 4", async { Ok(()) }).await
    });
    jobs.await.map_err(|failed| format!("{failed:?}").into())
}
