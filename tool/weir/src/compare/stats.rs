//! Medians and their confidence intervals. Pure functions of numbers; used by the report of `weir compare`.
//! It does not know what was measured.
//!
//! The interval of a median is the one of order statistics: for values of any distribution, the median
//! lies between the k-th smallest and the k-th largest of n with a probability that the binomial
//! distribution gives exactly, 1 - 2 P(B(n, 1/2) < k). k is the largest for which that is at least 95 %.
//! (W. J. Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2.) Below six values
//! there is none: the widest interval, from the smallest to the largest of five, has 93.75 %.
//!
//! SPDX-License-Identifier: Apache-2.0

/// The confidence that an interval has at least.
pub const LEVEL: f64 = 0.95;
/// The smallest number of values that has an interval.
pub const VALUES_MIN: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub median: f64,
    pub interval: Option<Interval>,
}

/// The median and its interval; None for no values.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let (low, high) = (sorted.get(count.checked_sub(1)? / 2)?, sorted.get(count / 2)?);
    let interval = rank(count).map(|k| Interval { low: sorted[k - 1], high: sorted[count - k] });
    Some(Estimate { median: (low + high) / 2.0, interval })
}

/// The ratio of pairs, `values[i] / bases[i]`: what the rounds have in common cancels out. A base of zero
/// has a ratio only if the value is zero too.
pub fn ratio(values: &[f64], bases: &[f64]) -> Option<Estimate> {
    let mut ratios = Vec::with_capacity(values.len());
    for (value, base) in values.iter().zip(bases) {
        if *base > 0.0 {
            ratios.push(value / base);
        } else if *value == 0.0 {
            ratios.push(1.0);
        } else {
            return None;
        }
    }
    estimate(&ratios)
}

/// The largest k whose interval has the confidence.
fn rank(count: usize) -> Option<usize> {
    // The sum below P(B < k), from logarithms so that a large count does not underflow.
    let mut log_binomial = -(count as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut found = None;
    for k in 1..=count / 2 {
        below += log_binomial.exp();
        if 1.0 - 2.0 * below < LEVEL {
            break;
        }
        found = Some(k);
        log_binomial += ((count - k + 1) as f64 / k as f64).ln();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator, so that the test needs none (xorshift64*, S. Vigna 2016).
    fn random(state: &mut u64) -> f64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    #[test]
    fn ranks_are_those_of_the_table() {
        // Tables of the sign test at 5 %, two-sided, give these.
        let table =
            [(5, None), (6, Some(1)), (8, Some(1)), (9, Some(2)), (11, Some(2)), (12, Some(3))];
        for (count, k) in table {
            assert_eq!(rank(count), k, "{count}");
        }
        assert_eq!(rank(20), Some(6));
        assert_eq!(rank(100), Some(40));
        assert!(rank(5000).is_some_and(|k| (2400..2450).contains(&k)));
    }

    #[test]
    fn medians() {
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[3.0]), Some(Estimate { median: 3.0, interval: None }));
        assert_eq!(estimate(&[4.0, 1.0]).map(|e| e.median), Some(2.5));
        let six = estimate(&[6.0, 1.0, 5.0, 2.0, 4.0, 3.0]).expect("values");
        assert_eq!(six.median, 3.5);
        assert_eq!(six.interval, Some(Interval { low: 1.0, high: 6.0 }));
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(
            estimate(&nine).and_then(|e| e.interval),
            Some(Interval { low: 2.0, high: 8.0 })
        );
    }

    #[test]
    fn ratios_are_paired() {
        let bases = [10.0, 20.0, 40.0, 10.0, 20.0, 40.0];
        let values: Vec<f64> = bases.iter().map(|base| base * 0.9).collect();
        let ratio = super::ratio(&values, &bases).expect("a ratio");
        assert!((ratio.median - 0.9).abs() < 1e-12);
        let interval = ratio.interval.expect("six pairs");
        assert!(interval.high - interval.low < 1e-12);
        assert_eq!(super::ratio(&[0.0], &[0.0]).map(|e| e.median), Some(1.0));
        assert_eq!(super::ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn intervals_cover_the_median_as_often_as_they_promise() {
        let mut state = 42;
        for count in [6, 9, 12, 25] {
            let covered = (0..4000)
                .filter(|_| {
                    // A skewed distribution with median 0.25.
                    let values: Vec<f64> = (0..count).map(|_| random(&mut state).powi(2)).collect();
                    let interval = estimate(&values).and_then(|e| e.interval).expect("an interval");
                    interval.low <= 0.25 && 0.25 <= interval.high
                })
                .count();
            assert!(covered >= 3760, "{count} values: {covered} of 4000");
        }
    }
}
