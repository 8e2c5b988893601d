//! `--fail-if`: conditions on the comparison, for people's automatic builds. It parses them and says which
//! are met. It does not know how a measure is taken.
//!
//!     time>+3%            weir takes over 3 % more time than the system's malloc
//!     peak>=10% vs jemalloc
//!
//! A condition is met when the whole confidence interval of the ratio lies beyond the limit: in rounds that were
//! interleaved, noise alone meets one condition in one case of forty at most (`bench --against` compares rounds of two
//! hours, of which it knows what the other allocators' times say). A median beyond the limit whose interval is not is
//! reported as uncertain.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::allocators::SYSTEM;
use super::measure::{MEASURES, Measure};
use super::stats::Estimate;

#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    pub text: String,
    pub measure: Measure,
    or_equal: bool,
    /// The ratio that must not be exceeded: 1.03 for `+3%`.
    limit: f64,
    pub base: String,
    /// `vs` was written: the base is not the default.
    pub names_base: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Met,
    NotMet,
    /// The median is beyond the limit and the interval is not, or there is none.
    Uncertain,
}

impl Condition {
    /// The condition that `text` says; the error says what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Condition, String> {
        let help = "write MEASURE>PERCENT%, as in 'time>+3%' or 'peak>=10% vs jemalloc'";
        let fail = |why: String| format!("--fail-if '{text}': {why}; {help}");
        let Some((name, rest)) = text.split_once('>') else {
            return Err(fail("there is no '>'".to_owned()));
        };
        let name = name.trim();
        let Some(measure) = MEASURES.into_iter().find(|measure| measure.name() == name) else {
            let names = MEASURES.map(Measure::name).join(", ");
            return Err(fail(format!("no measure '{name}', there are {names}")));
        };
        let (or_equal, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let Some((number, rest)) = rest.split_once('%') else {
            return Err(fail("the limit is no percentage".to_owned()));
        };
        let percent = number.trim().parse::<f64>().ok().filter(|percent| percent.is_finite());
        let Some(percent) = percent.filter(|percent| *percent > -100.0) else {
            return Err(fail(format!("'{}' is no number above -100", number.trim())));
        };
        let rest = rest.trim();
        let base = match rest {
            "" => SYSTEM.to_owned(),
            rest => match rest.strip_prefix("vs").map(str::trim).filter(|name| !name.is_empty()) {
                Some(name) if rest[2..].starts_with(char::is_whitespace) => name.to_owned(),
                _ => return Err(fail(format!("'{rest}' is not 'vs NAME'"))),
            },
        };
        let limit = 1.0 + percent / 100.0;
        let (text, names_base) = (text.to_owned(), !rest.is_empty());
        Ok(Condition { text, measure, or_equal, limit, base, names_base })
    }

    pub fn answer(&self, ratio: &Estimate) -> Answer {
        let beyond = |value: f64| value > self.limit || self.or_equal && value >= self.limit;
        match ratio.interval {
            Some(interval) if beyond(interval.low) => Answer::Met,
            _ if beyond(ratio.median) => Answer::Uncertain,
            _ => Answer::NotMet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::Interval;
    use super::*;

    fn ratio(median: f64, low: f64, high: f64) -> Estimate {
        Estimate { median, interval: Some(Interval { low, high }) }
    }

    #[test]
    fn good_conditions() {
        let condition = Condition::parse("time>+3%").expect("good");
        assert_eq!((condition.measure, condition.or_equal), (Measure::Time, false));
        assert!((condition.limit - 1.03).abs() < 1e-12);
        assert_eq!(condition.base, "system");
        let condition = Condition::parse(" peak >= 10 %  vs  jemalloc ").expect("good");
        assert_eq!((condition.measure, condition.or_equal), (Measure::Peak, true));
        assert_eq!((condition.base.as_str(), condition.limit), ("jemalloc", 1.1));
        assert_eq!(Condition::parse("faults>-5.5%").expect("good").limit, 0.945);
    }

    #[test]
    fn a_named_base_is_known_as_one() {
        for text in ["time>3% vs system", "time>3%vs system", "time>3%\tvs\tsystem"] {
            assert!(Condition::parse(text).expect("good").names_base, "{text}");
        }
        assert!(!Condition::parse("time>3% ").expect("good").names_base);
    }

    #[test]
    fn bad_conditions_say_what_is_wrong() {
        let cases = [
            ("", "no '>'"),
            ("time", "no '>'"),
            ("speed>3%", "no measure 'speed', there are time, cpu, peak, final, faults"),
            ("time>3", "no percentage"),
            ("time>%", "no number"),
            ("time>nan%", "no number"),
            ("time>inf%", "no number"),
            ("time>-100%", "above -100"),
            ("time>3%jemalloc", "not 'vs NAME'"),
            ("time>3% vs", "not 'vs NAME'"),
            ("time>3% vsx", "not 'vs NAME'"),
            ("time>>3%", "no number"),
        ];
        for (text, part) in cases {
            let error = Condition::parse(text).expect_err(text);
            assert!(error.contains(part) && error.contains("write MEASURE"), "{text}: {error}");
        }
    }

    #[test]
    fn only_the_whole_interval_fails() {
        let condition = Condition::parse("time>+3%").expect("good");
        assert_eq!(condition.answer(&ratio(1.05, 1.04, 1.06)), Answer::Met);
        assert_eq!(condition.answer(&ratio(1.05, 1.02, 1.08)), Answer::Uncertain);
        assert_eq!(condition.answer(&ratio(1.02, 0.9, 1.2)), Answer::NotMet);
        assert_eq!(condition.answer(&ratio(1.03, 1.03, 1.03)), Answer::NotMet);
        let alone = Estimate { median: 2.0, interval: None };
        assert_eq!(condition.answer(&alone), Answer::Uncertain);
        let condition = Condition::parse("time>=0%").expect("good");
        assert_eq!(condition.answer(&ratio(1.0, 1.0, 1.0)), Answer::Met);
    }
}
