//! Rows on a Redis in trouble: a cluster whose slots move, and a server that is killed and starts again from what it persisted.
//!
//! Not here: rows of a healthy Redis (store/rows.rs), and three servers under load (service/operator/rows_under_load.rs).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;
use weir_engine::observer::Silent;
use weir_engine::overrides::Numbers;
use weir_engine::{Entry, OnError, Operation, Row, RowContent, Unit};
use weir_limiter::rows::known::KnownRows;
use weir_limiter::rows::{RowRefused, RowTable, WriteResult};
use weir_limiter::{Answer, DescriptorRequest, Limiter, Options, Policies, Query, Undecided};
use weir_store::redis::pipeline::Options as Pipeline;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{Deciding as _, Store, SystemClock};

use crate::support::cluster::{Plan, RedisCluster};
use crate::support::clustered::store;
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, eventually};

const POLICY: &str = "\
domain: api
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 3/day, anchor: first_hit, plans: {gold: 7/day, max: unlimited}}
";
const ROW_KEY: &str = "w1:{api|tenant=a}row";
/// A call to a slot on the move is tried until then.
const BUDGET: Duration = Duration::from_millis(200);

/// One process: its limiter, and its table of rows.
struct Replica {
    limiter: Limiter,
    table: RowTable,
}

impl Replica {
    fn new(store: Arc<dyn Store>, budget: Duration) -> Self {
        let policies = weir_policies::parse(&[("api.yaml", POLICY)]).expect("policies").policies;
        let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
        let (known, clock) = (Arc::new(KnownRows::of(&*store)), Arc::new(SystemClock));
        let table = RowTable::new(store.clone(), policies.clone(), known.clone(), clock, Arc::new(Silent));
        let options = Options { rows: known, budget, on_error: OnError::Error, ..Options::new(store) };
        Self { limiter: Limiter::new(policies, options, Arc::new(Silent)), table }
    }

    async fn ask(&self, tenant: &str, operation: Operation) -> Result<Answer, Undecided> {
        let entries = [Entry { key: "tenant", value: tenant }];
        let descriptors = [DescriptorRequest { entries: &entries, operation, limit: None }].into_iter().collect();
        let query = Query { domain: "api", caller: None, descriptors, settle: None };
        self.limiter.decide(&query, Instant::now(), None, None).await
    }
}

fn row(tenant: &str, content: RowContent) -> Row {
    let entries = Box::new([("tenant".into(), tenant.into())]);
    Row { domain: "api".into(), entries, content, until: None, note: "".into() }
}

fn plan(name: &str) -> RowContent {
    RowContent::Plan(name.into())
}

fn number(requests: u64) -> RowContent {
    RowContent::Own(Box::new([Numbers { name: None, requests, window: Unit::Day.window(), burst: None }]))
}

/// What callers and the operator have seen so far.
#[derive(Default)]
struct Seen {
    /// The newest number that a change was begun for, and the newest that was confirmed.
    begun: Cell<u64>,
    confirmed: Cell<u64>,
    asked: Cell<u64>,
    admitted: Cell<u64>,
    /// Requests without an answer that may be charged.
    unknown: Cell<u64>,
    is_over: Cell<bool>,
}

impl Seen {
    /// Waits for this number of further requests. Ends early when all is over, because no task asks then.
    async fn more(&self, requests: u64) {
        let end = self.asked.get() + requests;
        eventually("more requests", PATIENCE, async || self.asked.get() >= end || self.is_over.get()).await;
    }

    /// Changes the row until all is over. Each number is higher than those before.
    async fn change(&self, replica: &Replica) {
        while !self.is_over.get() {
            let next = self.begun.get() + 3;
            self.begun.set(next);
            loop {
                match replica.table.write(vec![row("a", number(next))]).await.remove(0) {
                    Ok(_) => break,
                    // While its slot moves a call can fail.
                    Err(RowRefused::Store(_) | RowRefused::Unread(_)) => tokio::task::yield_now().await,
                    Err(refused) => panic!("{refused}"),
                }
            }
            self.confirmed.set(next);
            self.more(5).await;
        }
    }

    /// Asks until all is over, and checks each answer.
    async fn ask(&self, replica: &Replica) {
        while !self.is_over.get() {
            let (confirmed, admitted) = (self.confirmed.get(), self.admitted.get());
            match replica.ask("a", Operation::Consume(1)).await {
                Ok(answer) => {
                    let used = answer.statuses[0].limit.as_ref().expect("a limit").requests;
                    let begun = self.begun.get();
                    assert!(
                        (confirmed..=begun).contains(&used),
                        "{used}, after {confirmed} was confirmed, {begun} begun"
                    );
                    if !answer.denied {
                        assert!(admitted < used, "{admitted} hits came before a hit under {used}");
                        self.admitted.set(self.admitted.get() + 1);
                    }
                }
                Err(Undecided::Store(weir_store::StoreError::Unknown(_))) => self.unknown.set(self.unknown.get() + 1),
                Err(_) => {}
            }
            self.asked.set(self.asked.get() + 1);
            tokio::task::yield_now().await;
        }
    }
}

/// While a slot moves, decisions on it can fail, because state and row are on two nodes. None uses numbers that were replaced.
#[tokio::test]
async fn no_decision_uses_replaced_numbers_while_the_slot_of_the_row_moves() {
    let cluster = RedisCluster::start(&Plan::of(3));
    let stores = [(); 3].map(|()| Arc::new(store(&cluster)));
    let replicas: Vec<_> = stores.iter().map(|store| Rc::new(Replica::new(store.clone(), BUDGET))).collect();
    let slot = stores[0].slot_of(ROW_KEY);
    let (home, other) = (cluster.master_of(slot), (cluster.master_of(slot) + 1) % 3);
    let seen = Rc::new(Seen::default());
    seen.begun.set(10);
    replicas[0].table.write(vec![row("a", number(10))]).await.remove(0).expect("written");
    seen.confirmed.set(10);
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for at in 0..6 {
        let (seen, replica) = (seen.clone(), replicas[at % 3].clone());
        tasks.push(local.spawn_local(async move { seen.ask(&replica).await }));
    }
    let (seen_by_writer, writer) = (seen.clone(), replicas[1].clone());
    tasks.push(local.spawn_local(async move { seen_by_writer.change(&writer).await }));
    local
        .run_until(async {
            seen.more(200).await;
            for (from, to) in [(home, other), (other, home)] {
                let before = seen.confirmed.get();
                cluster.begin_move(slot, from, to);
                seen.more(100).await;
                let mut source = cluster.connect(from);
                loop {
                    let left = cluster.keys_in(slot, &mut source);
                    let Some(key) = left.first() else { break };
                    cluster.move_key(key, &mut source, to);
                    seen.more(50).await;
                }
                cluster.end_move(slot, from, to);
                eventually("a change after the move", PATIENCE, async || seen.confirmed.get() > before + 30).await;
                seen.more(200).await;
            }
            seen.is_over.set(true);
            for task in tasks {
                task.await.expect("no task panics");
            }
        })
        .await;
    assert!(cluster.nodes[other].runs("asking") > 0, "some calls were redirected in the middle of the move");
    // A process that knows nothing finds the last row, and each admitted request charged once.
    let late = Replica::new(Arc::new(store(&cluster)), PATIENCE);
    late.table.write(vec![row("a", number(1_000_000))]).await.remove(0).expect("written");
    let left = late.ask("a", Operation::Peek).await.expect("a decision").statuses[0].remaining;
    let (admitted, unknown) = (seen.admitted.get(), seen.unknown.get());
    println!(
        "{} requests, {admitted} admitted, {unknown} unknown, last number {}",
        seen.asked.get(),
        seen.confirmed.get()
    );
    assert!((admitted..=admitted + unknown).contains(&(1_000_000 - left)), "{admitted}, {unknown}, {left}");
    assert!(admitted > 100);
}

/// An operator whose Redis persists each write has all rows again, and imports only what Redis has lost.
#[tokio::test]
async fn a_redis_that_is_killed_and_persists_has_all_rows_again() {
    const ROWS: usize = 300;
    let mut server = RedisServer::start_with(None, &["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    let open = |budget| {
        let options = Pipeline::new(Endpoint::parse(&url).expect("its url"));
        Replica::new(Arc::new(Redis::start(options, "a:")), budget)
    };
    let (first, second) = (open(BUDGET), open(BUDGET));
    let rows: Vec<Row> = (0..ROWS).map(|n| row(&format!("t{n}"), plan(["gold", "max"][n % 2]))).collect();
    assert!(first.table.write(rows.clone()).await.iter().all(Result::is_ok));
    assert_eq!(second.ask("t0", Operation::Peek).await.expect("a decision").statuses[0].remaining, 7);
    // Confirmed just before the end.
    first.table.write(vec![row("t0", number(99))]).await.remove(0).expect("written");
    server.kill();
    assert!(second.ask("t0", Operation::Peek).await.is_err(), "no decision without the row");
    server.restart();
    eventually("a decision by the new redis", PATIENCE, async || second.ask("t1", Operation::Peek).await.is_ok()).await;
    for replica in [&second, &open(PATIENCE)] {
        let left =
            async |tenant: &str| replica.ask(tenant, Operation::Peek).await.expect("a decision").statuses[0].remaining;
        assert_eq!((left("t0").await, left("t2").await, left("new").await), (99, 7, 3));
    }
    let (mut listed, mut after) = (0, None);
    loop {
        let page = second.table.page(None, after.as_deref()).await.expect("a page");
        listed += page.rows.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed, ROWS);
    // What Redis has lost, a second import writes, and nothing else.
    for lost in [1, 2] {
        server.command(&["DEL", &format!("a:w1:{{api|tenant=t{lost}}}row")]).expect("deleted");
    }
    let written = second.table.write(rows).await;
    let changed: Vec<usize> =
        (0..ROWS).filter(|&at| written[at].as_ref().expect("written").result != WriteResult::Same).collect();
    assert_eq!(changed, [0, 1, 2]);
}
