//! `lease`: for how long a process may admit requests from hits that it charged ahead, and with which keys that
//! conflicts.
//!
//! Not here: the number of hits (the engine), and which keys are hot (the limiter).

use weir_engine::lease::LIMIT_MIN;
use weir_engine::{Lease, Limit, Mode, Role};
use weir_text::{duration, quoted};

use super::NAME_BYTES_MAX;
use super::fields::{Fields, Read};
use super::state::{FileReader, Reported};

impl FileReader<'_> {
    pub(super) fn lease(&mut self, fields: &Fields) -> Read<Lease> {
        let Some(text) = self.text(fields, "lease", NAME_BYTES_MAX)? else { return Ok(None) };
        let reason = match duration(&text) {
            Ok(length) => match u64::try_from(length.as_micros()).ok().and_then(Lease::from_micros) {
                Some(lease) => return Ok(Some(lease)),
                None => "a lease is 10ms to 1s".to_owned(),
            },
            Err(reason) => reason,
        };
        Err(self.report_value(fields, "lease", format!("lease {}: {reason}", quoted(&text))))
    }

    /// Refuses a lease with conflicting keys, and one without effect. [ls-1]
    pub(super) fn check_lease(&mut self, fields: &Fields, limit: &Limit) -> Result<(), Reported> {
        if limit.lease.is_none() {
            return Ok(());
        }
        let beside = [
            (limit.shadow, "shadow", "a limit on trial denies nothing, and the store counts it with the other limits"),
            (limit.term.is_some(), "from or until", "replicas cannot end a limit at an exact microsecond"),
            (limit.hold, "hold", "its receipt must name the charge of its own request"),
            (limit.drain, "drain", "a denied request drains the store, but not the hits that replicas hold"),
            (limit.post_paid(), "post_paid", "usage is charged when it is reported, not ahead"),
        ];
        if let Some((_, key, reason)) = beside.into_iter().find(|(is_there, ..)| *is_there) {
            return Err(self.report_key(fields, "lease", format!("lease with {key}: {reason}")));
        }
        if self.mode == Some(Mode::Independent) {
            let message = "lease in a domain with charging: independent: the store counts denied hits there";
            return Err(self.report_key(fields, "lease", message.to_owned()));
        }
        if limit.requests() < LIMIT_MIN {
            let message =
                format!("lease on a limit of {}: below {LIMIT_MIN} no hits are charged ahead", limit.requests());
            return Err(self.report_key(fields, "lease", message));
        }
        Ok(())
    }

    /// Refuses leases of a rule that is in shadow mode or a quota.
    pub(super) fn check_leases(&mut self, fields: &Fields, limits: &[Limit], role: Role) {
        let (key, reason) = match role {
            Role::Enforced => return,
            Role::Shadow => ("shadow_mode", "the limits deny nothing, so a lease saves no call"),
            Role::Quota => ("quota_mode", "the store decides all quotas together"),
        };
        if limits.iter().any(|limit| limit.lease.is_some()) {
            self.report_key(fields, key, format!("{key} with a lease: {reason}"));
        }
    }
}
