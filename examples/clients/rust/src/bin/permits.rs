//! Runs jobs, at most two of a user at a time, and answers whose cost is known at their end: a guard takes a permit, or an
//! estimate of tokens, and settles it when its work ends, fails, or takes too long.
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

/// Why work did not end.
#[derive(Debug)]
enum Failed {
    /// The user has as many jobs in flight as it may, or fewer tokens left than the estimate.
    Denied(&'static str),
    TooLong,
}

/// Takes permits and estimates of one user.
#[derive(Clone)]
struct Permits {
    service: RateLimitServiceClient<Channel>,
    user: String,
    /// How long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
    deadline: Duration,
}

/// A permit or an estimate. Dropped, it is settled: its work has ended, failed, panicked, or was dropped itself.
struct Guard {
    permits: Permits,
    what: &'static str,
    /// None if weir did not answer, and once it was used: a second settle would give back what others hold.
    receipt: Option<String>,
    /// The tokens that the work has used: the estimate until it is known. None for a permit.
    used: Option<u64>,
}

impl Permits {
    /// With hits it is about an estimate, and without about a permit.
    async fn call(&mut self, receipt: Option<String>, hits: Option<u64>) -> Result<RateLimitResponse, Status> {
        let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
        let first = std::iter::once(entry(if hits.is_some() { "budget" } else { "job" }, self.user.clone()));
        let entries = first.chain(receipt.map(|receipt| entry("weir.receipt", receipt))).collect();
        let descriptors = vec![RateLimitDescriptor { entries, hits_addend: hits, ..RateLimitDescriptor::default() }];
        let mut request = Request::new(RateLimitRequest { domain: "clients".to_owned(), descriptors, hits_addend: 0 });
        request.set_timeout(self.deadline);
        // This includes the time to connect, which the timeout of the request does not.
        match tokio::time::timeout(self.deadline, self.service.should_rate_limit(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        }
    }

    /// Takes the hits of an estimate, or a permit.
    async fn take(&self, what: &'static str, estimate: Option<u64>) -> Result<Guard, Failed> {
        let mut permits = self.clone();
        let used = estimate;
        let answer = match permits.call(None, estimate).await {
            Ok(answer) => answer,
            Err(status) => {
                // The fallback of this program: work goes on without a limit while weir does not answer.
                println!("{what}: no answer ({}), started by the fallback", name(&status));
                return Ok(Guard { permits, what, receipt: None, used });
            }
        };
        if answer.overall_code() == Outcome::OverLimit {
            return Err(Failed::Denied(what));
        }
        let left = answer.statuses[0].limit_remaining;
        match estimate {
            None => println!("{what}: started, {left} free"),
            Some(estimate) => println!("{what}: holds {estimate}, {left} left"),
        }
        Ok(Guard { permits, what, receipt: receipt_of(answer), used })
    }

    /// Runs a job while it holds a permit.
    async fn run(&self, what: &'static str, job: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
        let mut permit = self.take(what, None).await?;
        let ended = tokio::time::timeout(JOB_MAX, job).await.unwrap_or(Err(Failed::TooLong));
        permit.end().await;
        ended
    }

    /// Does work that holds an estimate of tokens. The work returns how many it has used; the others go back.
    async fn answer(&self, what: &'static str, estimate: u64, work: impl Future<Output = u64>) -> Result<(), Failed> {
        let mut held = self.take(what, Some(estimate)).await?;
        held.used = Some(work.await);
        held.end().await;
        Ok(())
    }
}

impl Guard {
    /// Settles where there is time to wait for it. If the future of the work is dropped before, `drop` settles.
    async fn end(&mut self) {
        if let Some(settled) = self.settle() {
            settled.await.ok();
        }
    }

    /// Settles in a task of its own, once. If that fails the permit or the estimate ends by itself, when its window is over.
    fn settle(&mut self) -> Option<JoinHandle<()>> {
        let receipt = self.receipt.take()?;
        let (mut permits, what, used) = (self.permits.clone(), self.what, self.used);
        Some(tokio::spawn(async move {
            match (permits.call(Some(receipt), used).await, used) {
                (Ok(answer), None) => println!("{what}: ended, {} free", answer.statuses[0].limit_remaining),
                (Ok(answer), Some(used)) => println!("{what}: used {used}, {} left", answer.statuses[0].limit_remaining),
                (Err(status), _) => println!("{what}: ended, but not settled ({})", name(&status)),
            }
        }))
    }
}

impl Drop for Guard {
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
    let answers = async {
        permits.answer("answer 1", 400, async { 37 }).await?;
        // More than the estimate is charged all the same.
        permits.answer("answer 2", 400, async { 500 }).await
    };
    let ended = async {
        jobs.await?;
        answers.await
    };
    ended.await.map_err(|failed| format!("{failed:?}").into())
}
