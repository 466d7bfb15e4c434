//! Crossed shares where charges are taken back or their answers are lost: only an answered decision that stands reports what it crossed,
//! and lost answers are counted. [al-1] [al-4]

use weir_engine::Role;
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

/// Remembers which shares were reported, with the value of the descriptor, and counts charges whose answers were lost.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<(String, u8)>>>, Arc<AtomicU64>);

impl Reports {
    /// The shares that were reported of a value since the last call.
    fn take(&self, value: &str) -> Vec<u8> {
        let mut reports = self.0.lock();
        let (of_value, others) = reports.drain(..).partition(|(of, _)| of == value);
        *reports = others;
        of_value.into_iter().map(|(_, share): (String, u8)| share).collect()
    }

    fn lost(&self) -> u64 {
        self.1.load(SeqCst)
    }
}

impl Observer for Reports {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }

    fn alerts_lost(&self, charges: u64) {
        self.1.fetch_add(charges, SeqCst);
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

    fn ask(&self, asked: &[(&str, &str, Operation)]) -> Result<bool, StoreError> {
        run(decide(&self.limiter, asked)).map(|answer| answer.denied)
    }

    fn key(&self, key: &str, value: &str) -> String {
        run(self.limiter.show_states("shop", &[Entry { key, value }])).expect("it peeks")[0].key.clone()
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
    assert_eq!(watched.ask(&[("user", "ann", Operation::Consume(2))]), Ok(false));
    for _ in 0..5 {
        // Would be 3 of 5, which is above 50 %.
        assert_eq!(watched.ask(&[("user", "ann", ONE), ("full", &full, ONE)]), Ok(true));
    }
    assert_eq!(watched.reports.take("ann"), NONE);
    assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(false));
    assert_eq!(watched.reports.take("ann"), [50]);
    assert_eq!(watched.ask(&[("user", "ann", Operation::Consume(2))]), Ok(false));
    assert_eq!(watched.reports.take("ann"), [80, 100]);
    assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(true));
    assert_eq!(watched.reports.take("ann"), NONE);
}

#[test]
fn a_denied_request_of_independent_charging_reports_what_it_charged() {
    let watched = Watched::new(Mode::Independent, OnError::Error, 1);
    let full = watched.full_elsewhere("ann");
    assert_eq!(watched.ask(&[("user", "ann", Operation::Consume(4)), ("full", &full, ONE)]), Ok(true));
    assert_eq!(watched.reports.take("ann"), [50, 80]);
    // Above the limit, and counted all the same.
    assert_eq!(watched.ask(&[("user", "ann", Operation::Consume(4))]), Ok(true));
    assert_eq!(watched.reports.take("ann"), [100]);
}

#[test]
fn a_crossing_whose_answer_was_lost_is_not_reported_and_counted() {
    for on_error in [OnError::Error, OnError::Allow, OnError::Deny] {
        let watched = Watched::new(Mode::Atomic, on_error, 1);
        let key = watched.key("user", "ann");
        watched.store.fails(Call::Decide, &key, Fault::AnswerLost);
        assert_eq!(watched.ask(&[("user", "ann", Operation::Consume(4))]).is_err(), on_error == OnError::Error);
        // Neither a limit without alerts nor a peek can cross a share.
        let _ = watched.ask(&[("user", "ann", Operation::Peek)]);
        watched.store.heal();
        assert_eq!(watched.reports.lost(), 1, "{on_error:?}");
        assert_eq!(watched.ask(&[("user", "ann", Operation::Peek)]), Ok(false));
        assert_eq!(watched.reports.take("ann"), NONE, "{on_error:?}");
        // What was certainly not charged is not counted.
        watched.store.fails(Call::Decide, &key, Fault::NotSent);
        let _ = watched.ask(&[("user", "ann", ONE)]);
        watched.store.heal();
        assert_eq!(watched.reports.lost(), 1, "{on_error:?}");
        assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(false));
        assert_eq!(watched.reports.take("ann"), [100], "{on_error:?}");
    }
}

#[test]
fn a_request_that_fails_after_a_part_was_charged_counts_that_part() {
    for (mode, lost) in [(Mode::Independent, 1), (Mode::Atomic, 0)] {
        let watched = Watched::new(mode, OnError::Error, 1);
        let full = watched.full_elsewhere("ann");
        watched.store.fails(Call::Decide, &watched.key("full", &full), Fault::NotSent);
        let asked = [("user", "ann", Operation::Consume(4)), ("full", full.as_str(), Operation::Peek)];
        assert!(watched.ask(&asked).is_err());
        watched.store.heal();
        // With atomic charging the part was taken back.
        assert_eq!((watched.reports.take("ann"), watched.reports.lost()), (NONE.to_vec(), lost), "{mode:?}");
        let report = if mode == Mode::Atomic { NONE.to_vec() } else { vec![100] };
        assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(false));
        assert_eq!(watched.reports.take("ann"), report, "{mode:?}");
    }
}

#[test]
fn a_crossing_whose_caller_is_gone_is_counted() {
    let mut found = 0;
    for seed in 0..20 {
        let watched = Watched::new(Mode::Atomic, OnError::Error, seed);
        {
            let asked = [("user", "ann", Operation::Consume(4))];
            let mut gone = pin!(decide(&watched.limiter, &asked));
            // The call takes effect at one of the polls, and the answer comes at a later one.
            for _ in 0..=seed % 6 {
                if gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
            }
        }
        let (before, lost) = (watched.reports.take("ann"), watched.reports.lost());
        assert_eq!(watched.ask(&[("user", "ann", ONE)]), Ok(false));
        let is_charged = watched.reports.take("ann") == [100];
        assert_eq!(watched.reports.lost(), lost, "seed {seed}");
        match lost {
            0 => assert_eq!(before, if is_charged { &[50, 80][..] } else { &[] }, "seed {seed}"),
            lost => assert_eq!((lost, before), (1, NONE.to_vec()), "seed {seed}"),
        }
        found += u64::from(is_charged) * lost;
    }
    assert!(found > 0, "no call was dropped after it had taken effect");
}

#[test]
fn each_share_is_reported_once_on_every_schedule_without_taking_back() {
    for seed in 0..200 {
        let watched = Watched::new(Mode::Atomic, OnError::Error, seed);
        run(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..6 {
                let limiter = watched.limiter.clone();
                tasks.spawn(async move { decide(&limiter, &[("user", "ann", ONE)]).await.expect("an answer") });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.expect("a task");
            }
        });
        let mut reports = watched.reports.take("ann");
        reports.sort_unstable();
        assert_eq!((reports, watched.reports.lost()), (vec![50, 80, 100], 0), "seed {seed}");
    }
}

/// The roles that alerts show.
#[derive(Clone, Default)]
struct Roles(Arc<Mutex<Vec<Role>>>);

impl Observer for Roles {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }
}

impl Tally for Roles {
    fn crossed(&self, crossed: &Crossed<'_>) {
        self.0.lock().push(crossed.charge.origin.shown_role);
    }
}

/// Alerts of budgets that only settles charge, and of quotas beside an open quota, had the role `shadow`.
#[test]
fn an_alert_shows_the_role_of_its_rule() {
    const POLICY: &str = "\
domain: shop
descriptors:
  - key: tokens
    rate_limits: [{name: minute, rate: 9/day, hold: true}, {name: month, rate: 5/day, post_paid: true, alert_at: [100]}]
  - {key: quota, quota_mode: true, rate_limit: {rate: 2/day, alert_at: [100]}}
  - {key: open, quota_mode: true, shadow_mode: true, rate_limit: {rate: 2/day, alert_at: [100]}}
";
    let roles = Roles::default();
    let limiter = limiter(POLICY, Options { budget: BUDGET, ..Options::new(Slotted::new(1)) }, Arc::new(roles.clone()));
    let settle = || Some(Box::new(Settle { descriptors: 1, holds: Vec::new() }));
    let two = Operation::Consume(2);
    let cases: [(Asked<'_>, _, &[Role]); 3] = [
        (&[("tokens", "a", Operation::Consume(6))], settle(), &[Role::Enforced]),
        (&[("quota", "a", two), ("open", "a", ONE)], None, &[Role::Quota]),
        (&[("open", "a", ONE)], None, &[Role::Shadow]),
    ];
    for (asked, settle, expected) in cases {
        assert!(!run(decide_or_settle(&limiter, asked, settle)).unwrap().denied);
        assert_eq!(std::mem::take(&mut *roles.0.lock()), expected, "{asked:?}");
    }
}
