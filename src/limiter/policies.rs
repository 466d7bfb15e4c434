//! The policies in force, with the overrides that apply to them: one set that is replaced as a whole, and replaced sets
//! until no request uses them.
//!
//! Not here: where policies come from (policies, xds) and overrides (overrides.rs), and the decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use weir_engine::observer::{Observer, Tally};
use weir_engine::{Override, Overrides, PolicySet};

/// The policies in force, shared by all runtimes and replaced as a whole.
pub struct Policies {
    pub(super) current: ArcSwap<InForce>,
    /// Whether any domain in force has holds: one flag for requests without holds.
    have_holds: AtomicBool,
    observer: Arc<dyn Observer>,
    /// The overrides that operators have set. Locked while a set is made, so that no change of policies or overrides is
    /// lost.
    overrides: Mutex<Arc<[Override]>>,
    /// Replaced sets that requests in flight may still use.
    retired: Mutex<Vec<Arc<InForce>>>,
}

/// The most replaced sets that wait for [`Policies::free_unused`]. Beyond that, the last request that uses the oldest
/// set frees it.
const RETIRED_MAX: usize = 16;

pub(super) struct InForce {
    pub(super) policies: Arc<PolicySet>,
    pub(super) tally: Arc<dyn Tally>,
    /// The overrides that have an effect. None if there are none.
    pub(super) overrides: Option<Arc<Overrides>>,
    /// Whether these policies were loaded. If not, they are a placeholder.
    pub(super) is_loaded: bool,
}

impl Policies {
    /// Starts with the first policies.
    pub fn new(policies: impl Into<Arc<PolicySet>>, observer: Arc<dyn Observer>) -> Self {
        let first = InForce::of(policies.into(), &*observer);
        let have_holds = AtomicBool::new(first.has_holds());
        let current = ArcSwap::from_pointee(first);
        Self { current, have_holds, observer, overrides: Mutex::default(), retired: Mutex::default() }
    }

    /// Starts without policies: until some are loaded, decisions fail with
    /// [`Undecided::NoPolicies`](super::Undecided::NoPolicies).
    pub fn none_yet(observer: Arc<dyn Observer>) -> Self {
        let none = InForce { is_loaded: false, ..InForce::of(Arc::default(), &*observer) };
        let current = ArcSwap::from_pointee(none);
        Self {
            current,
            have_holds: AtomicBool::default(),
            observer,
            overrides: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    /// Replaces the policies. Requests in flight finish under the policies that they began with. The cost grows with
    /// the number of rules.
    pub fn replace(&self, policies: impl Into<Arc<PolicySet>>) {
        let given = self.overrides.lock();
        let new = InForce::of(policies.into(), &*self.observer);
        let overrides = fitted(&new.policies, &given);
        self.put_in_force(InForce { overrides, ..new });
    }

    /// Replaces the overrides, with the same policies. The cost grows with the number of rules and overrides.
    pub(super) fn set_overrides(&self, overrides: Arc<[Override]>) {
        let mut given = self.overrides.lock();
        *given = overrides;
        let now = self.current.load();
        let (policies, tally) = (now.policies.clone(), now.tally.clone());
        let overrides = fitted(&policies, &given);
        self.put_in_force(InForce { policies, tally, overrides, is_loaded: now.is_loaded });
    }

    /// Whether some domain in force has holds.
    pub(super) fn have_holds(&self) -> bool {
        self.have_holds.load(Relaxed)
    }

    /// The policies in force, and their overrides if any has an effect.
    pub(super) fn snapshot(&self) -> Arc<InForce> {
        self.current.load_full()
    }

    fn put_in_force(&self, new: InForce) {
        let have_holds = new.has_holds();
        let old = self.current.swap(Arc::new(new));
        self.have_holds.store(have_holds, Relaxed);
        let mut retired = self.retired.lock();
        let oldest = if retired.len() == RETIRED_MAX { Some(retired.remove(0)) } else { None };
        retired.push(old);
        drop(retired);
        drop(oldest);
    }

    /// Frees the replaced sets that no request uses any more. Freeing a set of many rules takes milliseconds, so call
    /// this periodically on a thread that makes no decisions. Without a call they are kept.
    pub fn free_unused(&self) {
        // A set that is not in force cannot get new users, so a set without another user stays without.
        let mut unused = Vec::new();
        self.retired.lock().retain(|set| {
            let is_used = Arc::strong_count(set) > 1;
            if !is_used {
                unused.push(set.clone());
            }
            is_used
        });
        drop(unused);
    }

    pub fn current(&self) -> Arc<PolicySet> {
        self.current.load().policies.clone()
    }
}

impl InForce {
    fn of(policies: Arc<PolicySet>, observer: &dyn Observer) -> Self {
        let tally = observer.loaded(&policies);
        Self { policies, tally, overrides: None, is_loaded: true }
    }

    fn has_holds(&self) -> bool {
        self.policies.domains().any(|domain| domain.has_holds)
    }
}

fn fitted(policies: &PolicySet, given: &[Override]) -> Option<Arc<Overrides>> {
    let fitted = if given.is_empty() { Overrides::default() } else { Overrides::of(policies, given) };
    (!fitted.is_empty()).then(|| Arc::new(fitted))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use weir_engine::observer::Tally;

    use super::*;

    /// Counts the sets that were freed.
    #[derive(Default)]
    struct Freed(Arc<AtomicUsize>);

    struct OfSet(Arc<AtomicUsize>);

    impl Observer for Freed {
        fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
            Arc::new(OfSet(self.0.clone()))
        }
    }

    impl Tally for OfSet {}

    impl Drop for OfSet {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn the_last_request_that_uses_a_replaced_set_does_not_free_it() {
        let freed = Arc::new(AtomicUsize::new(0));
        let policies = Policies::new(PolicySet::default(), Arc::new(Freed(freed.clone())));
        let request = policies.current.load_full();
        policies.replace(PolicySet::default());
        policies.free_unused();
        assert_eq!(freed.load(SeqCst), 0, "a request uses it");
        drop(request);
        assert_eq!(freed.load(SeqCst), 0, "the request freed it");
        policies.free_unused();
        assert_eq!(freed.load(SeqCst), 1);
    }

    #[test]
    fn the_sets_that_wait_to_be_freed_are_bounded() {
        let freed = Arc::new(AtomicUsize::new(0));
        let policies = Policies::new(PolicySet::default(), Arc::new(Freed(freed.clone())));
        for _ in 0..RETIRED_MAX + 3 {
            policies.replace(PolicySet::default());
        }
        assert_eq!((policies.retired.lock().len(), freed.load(SeqCst)), (RETIRED_MAX, 3));
    }
}
