//! Pseudo-random numbers: the same seed gives the same numbers on every machine.
//!
//! The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), which
//! passes BigCrush and needs one word of state. The logarithm is computed here by operations that IEEE 754
//! defines exactly, because those of system libraries differ. Not for secrets.

#![expect(clippy::float_arithmetic, reason = "the distribution is computed in floats")]

/// The increment of the state: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// 2^-53: the distance between the floats of [`Random::unit`].
const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0;
/// Terms of the series of the logarithm; the next one would be below the last bit.
const LN_TERMS: u32 = 12;

#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed.wrapping_add(GOLDEN)) ^ mix(stream.wrapping_mul(GOLDEN).wrapping_add(1)))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `end`, which is 1 or more. All are equally likely within 2^-32.
    #[expect(clippy::cast_possible_truncation, reason = "the product of a fraction below 1 and 32 bits")]
    pub(super) fn below(&mut self, end: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u32
    }

    /// A number from 0 to `most`, which is below 2^64 - 1.
    pub(super) fn up_to(&mut self, most: u64) -> u64 {
        ((u128::from(self.bits()) * (u128::from(most) + 1)) >> 64) as u64
    }

    /// A number above 0, up to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 * UNIT
    }

    /// An exponentially distributed number with this mean, rounded.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and rounded")]
    pub(super) fn exponential(&mut self, mean: f64) -> u64 {
        (-ln(self.unit()) * mean + 0.5) as u64
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn ln(x: f64) -> f64 {
    const SQRT_2: f64 = std::f64::consts::SQRT_2;
    let bits = x.to_bits();
    let mut exponent = i32::try_from((bits >> 52) & 0x7ff).unwrap_or(0) - 1_023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), where the quotient is at most 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for term in (0..LN_TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    2.0 * s * sum + f64::from(exponent) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_a_seed_are_always_the_same() {
        // Other values would change every simulation.
        let mut random = Random(1_234_567);
        assert_eq!(
            [random.bits(), random.bits(), random.bits()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert_ne!(Random::new(1, 0).bits(), Random::new(1, 1).bits());
        assert_ne!(Random::new(1, 0).bits(), Random::new(0, 0).bits());
    }

    #[test]
    fn the_logarithm_is_that_of_the_library() {
        for x in [UNIT, 1e-9, 0.1, 0.5, 0.707, 0.99, 1.0, 1.5, 2.0, 3.0, 1e6, 5e6] {
            assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "ln {x}: {} {}", ln(x), x.ln());
        }
    }

    #[test]
    fn exponential_numbers_have_their_mean_and_deviation() {
        let mut random = Random::new(7, 0);
        let numbers: Vec<f64> = (0..100_000).map(|_| random.exponential(1e6) as f64).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let deviation = (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 1e5).sqrt();
        assert!((mean - 1e6).abs() < 2e4, "{mean}");
        assert!((deviation - 1e6).abs() < 3e4, "{deviation}");
    }

    #[test]
    fn numbers_below_an_end_are_equally_likely() {
        let mut random = Random::new(7, 0);
        let mut counts = [0_u32; 7];
        (0..70_000).for_each(|_| counts[random.below(7) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
