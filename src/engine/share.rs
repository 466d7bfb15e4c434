//! Shares of a limit, in percent. weir reports a decision that crosses one.
//!
//! Not here: which decision crossed a share (crossing.rs).

use super::descriptor::Count;

/// The most shares of one limit.
pub const SHARES_MAX: usize = 8;
/// The whole of a limit, in percent.
const WHOLE: u8 = 100;

/// Percentages of a limit from 1 to 100, at most [`SHARES_MAX`], in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(Box<[u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharesError {
    #[error("{0} shares: at most {SHARES_MAX}")]
    TooMany(usize),
    #[error("a share is a whole number of percent from 1 to {WHOLE}, not {0}")]
    OutOfRange(u32),
    #[error("{1} after {0}: each share is larger than the one before")]
    NotRising(u32, u32),
}

impl Shares {
    /// Makes shares from these percentages.
    ///
    /// # Errors
    /// When there are too many, or one is out of range, or they are not in ascending order.
    pub fn new(percent: &[u32]) -> Result<Self, SharesError> {
        if percent.len() > SHARES_MAX {
            return Err(SharesError::TooMany(percent.len()));
        }
        let mut shares = Vec::with_capacity(percent.len());
        for &share in percent {
            match u8::try_from(share) {
                Ok(small @ 1..=WHOLE) => shares.push(small),
                _ => return Err(SharesError::OutOfRange(share)),
            }
        }
        if let Some(pair) = percent.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(SharesError::NotRising(pair[0], pair[1]));
        }
        Ok(Self(shares.into()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each share, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        self.0.iter().copied()
    }

    /// The shares that a count crosses when it rises from `from` to `to`, for a limit of `requests` hits. [al-1] A
    /// limit of 0 has no shares.
    pub fn crossed(&self, requests: Count, from: Count, to: Count) -> impl Iterator<Item = u8> {
        self.iter().filter(move |&share| requests > 0 && (from..to).contains(&(hits_of(share, requests) - 1)))
    }
}

/// The smallest number of hits that is at least this share of `requests`, which is not 0: rounded up, so 1 or more.
/// [al-1]
fn hits_of(share: u8, requests: Count) -> Count {
    // At most 100 times 10^15, which 64 bits hold.
    (u64::from(share) * requests).div_ceil(u64::from(WHOLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::COUNT_MAX;

    const NONE: [u8; 0] = [];

    fn crossed(shares: &[u32], requests: Count, from: Count, to: Count) -> Vec<u8> {
        Shares::new(shares).unwrap().crossed(requests, from, to).collect()
    }

    #[test]
    fn a_share_is_crossed_by_the_hit_that_reaches_it() {
        assert_eq!(crossed(&[80, 100], 10, 7, 8), [80]);
        assert_eq!(crossed(&[80, 100], 10, 8, 9), NONE);
        assert_eq!(crossed(&[80, 100], 10, 9, 14), [100]);
        assert_eq!(crossed(&[80, 100], 10, 0, 10), [80, 100]);
        assert_eq!(crossed(&[80, 100], 10, 10, 11), NONE);
        // 80 % of 7 are 5.6: the sixth hit.
        assert_eq!((crossed(&[80], 7, 4, 5), crossed(&[80], 7, 5, 6)), (vec![], vec![80]));
        assert_eq!(crossed(&[1, 50, 100], 1, 0, 1), [1, 50, 100]);
        assert_eq!(crossed(&[100], COUNT_MAX, COUNT_MAX - 1, COUNT_MAX), [100]);
        // 99 % of 10^15 - 1, rounded up.
        assert_eq!(crossed(&[99, 100], COUNT_MAX, 989_999_999_999_999, 990_000_000_000_000), [99]);
        assert_eq!(crossed(&[99, 100], COUNT_MAX, 0, 989_999_999_999_999), NONE);
        assert_eq!((crossed(&[80], 10, 9, 8), crossed(&[80], 10, 8, 8)), (vec![], vec![]));
        assert_eq!(crossed(&[100], 0, 0, 5), NONE);
    }

    #[test]
    fn shares_are_bounded_and_rise() {
        assert_eq!(Shares::new(&[]).unwrap(), Shares::default());
        assert_eq!(Shares::new(&[1, 2, 3, 4, 5, 6, 7, 100]).unwrap().iter().last(), Some(100));
        for (wrong, error) in [
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9][..], SharesError::TooMany(9)),
            (&[0], SharesError::OutOfRange(0)),
            (&[101], SharesError::OutOfRange(101)),
            (&[300], SharesError::OutOfRange(300)),
            (&[80, 80], SharesError::NotRising(80, 80)),
            (&[100, 80], SharesError::NotRising(100, 80)),
        ] {
            assert_eq!(Shares::new(wrong), Err(error));
        }
    }
}
