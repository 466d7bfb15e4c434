//! `lease`: for how long a process may admit requests from hits that it charged ahead, and with which keys that
//! conflicts.
//!
//! Not here: the number of hits (the engine), and which keys are hot (the limiter).

use weir_engine::lease::LIMIT_MIN;
use weir_engine::{Lease, Limit, Mode, Property, Role, exclusion};
use weir_text::{duration, quoted};

use super::NAME_BYTES_MAX;
use super::fields::{Fields, Read};
use super::state::{FileReader, Reported};
use super::tables::limit;

impl FileReader<'_> {
    pub(super) fn lease(&mut self, fields: &Fields, key: &'static str) -> Read<Lease> {
        let Some(text) = self.text(fields, key, NAME_BYTES_MAX)? else { return Ok(None) };
        let reason = match duration(&text) {
            Ok(length) => match u64::try_from(length.as_micros()).ok().and_then(Lease::from_micros) {
                Some(lease) => return Ok(Some(lease)),
                None => "a lease is 10ms to 1s".to_owned(),
            },
            Err(reason) => reason,
        };
        Err(self.report_value(fields, key, format!("lease {}: {reason}", quoted(&text))))
    }

    /// Refuses a lease with conflicting keys, and one without effect. [ls-1]
    pub(super) fn check_lease(&mut self, fields: &Fields, limit: &Limit) -> Result<(), Reported> {
        if limit.lease.is_none() {
            return Ok(());
        }
        let found = limit.properties().find_map(|other| Some((other, exclusion(Property::Lease, other)?)));
        if let Some((other, excluded)) = found {
            let message = format!("lease with {}: {}", other.name(), excluded.reason);
            return Err(self.report_key(fields, limit::LEASE, message));
        }
        if self.mode == Some(Mode::Independent)
            && let Some(excluded) = exclusion(Property::Lease, Property::Independent)
        {
            let message = format!("lease in a domain with {}: {}", Property::Independent.name(), excluded.reason);
            return Err(self.report_key(fields, limit::LEASE, message));
        }
        if limit.requests() < LIMIT_MIN {
            let message =
                format!("lease on a limit of {}: below {LIMIT_MIN} no hits are charged ahead", limit.requests());
            return Err(self.report_key(fields, limit::LEASE, message));
        }
        Ok(())
    }

    /// Refuses leases of a rule that is in shadow mode or a quota.
    pub(super) fn check_leases(&mut self, fields: &Fields, limits: &[Limit], role: Role) {
        let property = match role {
            Role::Enforced => return,
            Role::Shadow => Property::ShadowMode,
            Role::Quota => Property::QuotaMode,
        };
        if let Some(excluded) = exclusion(Property::Lease, property)
            && limits.iter().any(|limit| limit.lease.is_some())
        {
            let key = property.name();
            self.report_key(fields, key, format!("{key} with a lease: {}", excluded.reason));
        }
    }
}
