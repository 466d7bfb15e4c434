//! The numbers of limits: in rows and overrides, in requests, answers and stores.

use serde::{Deserialize, Serialize};
use weir_engine::overrides::Numbers;
use weir_engine::{COUNT_MAX, Count, Denomination, Window};

use super::Answered;

/// The unit in which people read the hits of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonAmount {
    #[serde(rename = "in")]
    pub unit: String,
    /// The hits of one unit.
    pub scale: Count,
}

impl From<&Denomination> for JsonAmount {
    fn from(denomination: &Denomination) -> Self {
        Self { unit: denomination.unit().to_owned(), scale: denomination.scale() }
    }
}

/// The numbers of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the numbers of a limit")]
pub struct JsonNumbers {
    pub name: Option<Box<str>>,
    pub requests: Count,
    pub window_us: u64,
    pub burst: Option<u32>,
}

impl From<&Numbers> for JsonNumbers {
    fn from(Numbers { name, requests, window, burst }: &Numbers) -> Self {
        Self { name: name.clone(), requests: *requests, window_us: window.us(), burst: *burst }
    }
}

impl From<&Numbers> for Answered<JsonNumbers> {
    fn from(numbers: &Numbers) -> Self {
        Self { content: numbers.into() }
    }
}

impl From<Answered<JsonNumbers>> for JsonNumbers {
    fn from(numbers: Answered<JsonNumbers>) -> Self {
        numbers.content
    }
}

pub fn json_numbers<N: for<'n> From<&'n Numbers>>(numbers: &[Numbers]) -> Vec<N> {
    numbers.iter().map(N::from).collect()
}

/// # Errors
/// Requests above their bound, or a window that is none.
pub fn numbers_of(limits: Vec<impl Into<JsonNumbers>>) -> Result<Box<[Numbers]>, String> {
    let one = |JsonNumbers { name, requests, window_us, burst }| {
        if requests > COUNT_MAX {
            return Err(format!("requests: {requests} is more than {COUNT_MAX}"));
        }
        let window = Window::from_micros(window_us).map_err(|error| format!("window_us: {error}"))?;
        Ok(Numbers { name, requests, window, burst })
    };
    limits.into_iter().map(Into::into).map(one).collect()
}
