//! The number of rows in a store that processes share, counted in small steps over all its keys.
//!
//! Not here: how often a step is made (app), and the number of rows in this process (known.rs).

use weir_engine::key;
use weir_store::{ScanPosition, StoreError};

use super::RowTable;

/// A count that is going on. The default begins with the first key.
#[derive(Debug, Default)]
pub struct RowCount {
    at: ScanPosition,
    found: u64,
}

impl RowTable {
    /// Looks at about 5,000 keys of the store. Returns the number of its rows when the last key was reached: the next step then
    /// begins a new count. A row that exists the whole time is counted, rarely twice. After an error the same keys come next.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn count_some(&self, count: &mut RowCount) -> Result<Option<u64>, StoreError> {
        let (keys, next) = self.place().keys(&key::domain_prefix(None), count.at).await?;
        count.found += keys.len() as u64;
        match next {
            Some(at) => {
                count.at = at;
                Ok(None)
            }
            None => Ok(Some(std::mem::take(count).found)),
        }
    }

    /// Whether a rule of the policies in force has rows.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.policies().rules().iter().any(|rule| rule.rows.is_some())
    }
}
