//! Crossed shares where charges are taken back or their answers are lost: each is reported at least once, and no more often than that
//! has to be. [al-1] [al-4]

use weir_engine::observer::Crossed;

use super::*;

const WATCHED: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {rate: 5/day, alert_at: [50, 80, 100]}
  - key: full
    rate_limit: {rate: 0/day}
";

const NONE: [u8; 0] = [];

/// Remembers which shares were reported, with the value of the descriptor.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<(String, u8)>>>);

impl Reports {
    /// The shares that were reported of a value since the last call.
    fn take(&self, value: &str) -> Vec<u8> {
        let mut reports = self.0.lock();
        let (of_value, others) = reports.drain(..).partition(|(of, _)| of == value);
        *reports = others;
        of_value.into_iter().map(|(_, share): (String, u8)| share).collect()
    }
}

impl Observer for Reports {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }
}

impl Tally for Reports {
    fn crossed(&self, crossed: &Crossed<'_>) {
        let (_, value) = crossed.charge.key.split_once('=').expect("a descriptor");
        let (value, _) = value.split_once('}').expect("a tag");
        self.0.lock().push((value.to_owned(), crossed.share));
    }
}

struct Watched {
    store: Arc<Slotted>,
    limiter: Arc<Limiter>,
    reports: Reports,
}

impl Watched {
    fn new(mode: Mode, on_error: OnError, seed: u64) -> Self {
        let store = Slotted::new(seed);
        let options = Options { mode, on_error, budget: BUDGET, ..Options::new(store.clone()) };
        let reports = Reports::default();
        let limiter = Arc::new(limiter(WATCHED, options, Arc::new(reports.clone())));
        Self { store, limiter, reports }
    }

    fn ask(&self, asked: &[(&str, &str, Take)]) -> Result<bool, StoreError> {
        run(decide(&self.limiter, asked)).map(|answer| answer.denied)
    }

    fn key(&self, key: &str, value: &str) -> String {
        run(self.limiter.peek("shop", &[Entry { key, value }])).expect("it peeks")[0].key.clone()
    }

    /// A value of `full` in another slot than this user.
    fn full_elsewhere(&self, user: &str) -> String {
        let slot = slot_of(&self.key("user", user));
        let mut values = (0..).map(|i| format!("f{i}"));
        values.find(|value| slot_of(&self.key("full", value)) != slot).expect("there is no end of values")
    }
}

#[test]
fn a_charge_that_is_taken_back_is_not_reported_and_one_that_stands_is() {
    let watched = Watched::new(Mode::Atomic, OnError::Error, 1);
    let full = watched.full_elsewhere("ann");
    assert_eq!(watched.ask(&[("user", "ann", Take::Consume(2))]), Ok(false));
    for _ in 0..5 {
        // Would be 3 of 5, which is above 50 %.
        assert_eq!(watched.ask(&[("user", "ann", ONE), ("full", &full, ONE)]), Ok(true));
    }
    assert_eq!(watched.reports.take("ann"), NONE);
    assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(false));
    assert_eq!(watched.reports.take("ann"), [50]);
    assert_eq!(watched.ask(&[("user", "ann", Take::Consume(2))]), Ok(false));
    assert_eq!(watched.reports.take("ann"), [80, 100]);
    assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(true));
    assert_eq!(watched.reports.take("ann"), NONE);
}

#[test]
fn a_denied_request_of_independent_charging_reports_what_it_charged() {
    let watched = Watched::new(Mode::Independent, OnError::Error, 1);
    let full = watched.full_elsewhere("ann");
    assert_eq!(watched.ask(&[("user", "ann", Take::Consume(4)), ("full", &full, ONE)]), Ok(true));
    assert_eq!(watched.reports.take("ann"), [50, 80]);
    // Above the limit, and counted all the same.
    assert_eq!(watched.ask(&[("user", "ann", Take::Consume(4))]), Ok(true));
    assert_eq!(watched.reports.take("ann"), [100]);
}

#[test]
fn a_crossing_whose_answer_was_lost_is_reported_by_the_next_decision() {
    for on_error in [OnError::Error, OnError::Allow, OnError::Deny] {
        let watched = Watched::new(Mode::Atomic, on_error, 1);
        let key = watched.key("user", "ann");
        watched.store.fails(Call::Decide, &key, Fault::AnswerLost);
        assert_eq!(watched.ask(&[("user", "ann", Take::Consume(4))]).is_err(), on_error == OnError::Error);
        watched.store.heal();
        assert_eq!(watched.reports.take("ann"), NONE);
        assert_eq!(watched.ask(&[("user", "ann", Take::Peek)]), Ok(false));
        assert_eq!(watched.reports.take("ann"), [50, 80], "{on_error:?}");
        assert_eq!(watched.ask(&[("user", "ann", Take::Peek)]), Ok(false));
        assert_eq!(watched.reports.take("ann"), NONE, "{on_error:?}");
        // What was certainly not charged leaves nothing to report.
        watched.store.fails(Call::Decide, &key, Fault::NotSent);
        let _ = watched.ask(&[("user", "ann", ONE)]);
        watched.store.heal();
        assert_eq!(watched.ask(&[("user", "ann", Take::Peek)]), Ok(false));
        assert_eq!(watched.reports.take("ann"), NONE, "{on_error:?}");
    }
}

#[test]
fn a_crossing_whose_caller_is_gone_is_reported_by_the_next_decision() {
    let mut found = 0;
    for seed in 0..20 {
        let watched = Watched::new(Mode::Atomic, OnError::Error, seed);
        {
            let asked = [("user", "ann", Take::Consume(4))];
            let mut gone = pin!(decide(&watched.limiter, &asked));
            // The call takes effect at one of the polls, and the answer comes at a later one.
            for _ in 0..=seed % 6 {
                if gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
            }
        }
        let before = watched.reports.take("ann");
        assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(false));
        let after = watched.reports.take("ann");
        let used = run(watched.limiter.peek("shop", &[Entry { key: "user", value: "ann" }])).unwrap()[0].remaining;
        let expected: &[u8] = if used == 0 { &[50, 80, 100] } else { &[] };
        assert_eq!([before.clone(), after].concat(), expected, "seed {seed}");
        found += usize::from(used == 0 && before.is_empty());
    }
    assert!(found > 0, "no call was dropped after it had taken effect");
}

/// However takings-back interleave with other charges, a share that the count has reached was reported.
#[test]
fn no_schedule_hides_a_crossing() {
    for seed in 0..200 {
        let watched = Watched::new(Mode::Atomic, OnError::Error, seed);
        let full = watched.full_elsewhere("ann");
        run(async {
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..6 {
                let (limiter, full) = (watched.limiter.clone(), full.clone());
                tasks.spawn(async move {
                    let one = [("user", "ann", ONE), ("full", full.as_str(), ONE)];
                    // Every second task is denied elsewhere, and its charge is taken back.
                    let asked = if task % 2 == 0 { &one[..1] } else { &one[..] };
                    decide(&limiter, asked).await.expect("an answer");
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.expect("a task");
            }
        });
        assert_eq!(watched.ask(&[("user", "ann", Take::Peek)]), Ok(false));
        let left = run(watched.limiter.peek("shop", &[Entry { key: "user", value: "ann" }])).unwrap()[0].remaining;
        let reports = watched.reports.take("ann");
        for (share, hits) in [(50, 3), (80, 4), (100, 5)] {
            if 5 - left >= hits {
                assert!(reports.contains(&share), "seed {seed}: {share} % in {reports:?}, {left} left");
            }
        }
    }
}
