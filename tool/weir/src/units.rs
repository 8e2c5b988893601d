//! Writes quantities and commands for people. Pure functions for the reports. It does not
//! know what is measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

/// `0 B`, `512 B`, `1.50 KiB`, `34.1 MiB`, `110 GiB`: three digits that mean something.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1024.0;
    let mut unit = 0;
    // 999.5 would be written as four digits.
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = if scaled < 9.995 {
        2
    } else if scaled < 99.95 {
        1
    } else {
        0
    };
    format!("{scaled:.digits$} {}", UNITS[unit])
}

/// `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 call`, `2 calls`.
pub fn plural(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(value), if value == 1 { one } else { many })
}

/// `850 us`, `12.3 ms`, `4.21 s`, `2 min 03.1 s`, `3 h 02 min 11 s`.
pub fn duration(value: Duration) -> String {
    let seconds = value.as_secs_f64();
    let whole = value.as_secs();
    if seconds < 0.0009995 {
        format!("{} us", value.as_micros())
    } else if seconds < 0.09995 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 0.9995 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 59.95 {
        format!("{seconds:.2} s")
    } else if seconds < 3600.0 {
        // Tenths are cut, not rounded, or 59.96 would become 60.0.
        format!("{} min {:02}.{} s", whole / 60, whole % 60, value.subsec_millis() / 100)
    } else {
        format!("{} h {:02} min {:02} s", whole / 3600, whole / 60 % 60, whole % 60)
    }
}

pub fn percent(value: f64) -> String {
    if value >= 9.95 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

/// Names, paths and arguments may hold control characters, which a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The command as one would type it.
pub fn quoted(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let words = command.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            return word.clone();
        }
        format!("'{}'", word.replace('\'', "'\\''").replace(char::is_control, " "))
    });
    words.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(1_023_900), "0.98 MiB");
        assert_eq!(bytes(35_756_441), "34.1 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(plural(1, "call", "calls"), "1 call");
    }

    #[test]
    fn durations_change_unit() {
        assert_eq!(duration(Duration::from_micros(850)), "850 us");
        assert_eq!(duration(Duration::from_micros(12_300)), "12.3 ms");
        assert_eq!(duration(Duration::from_millis(421)), "421 ms");
        assert_eq!(duration(Duration::from_millis(4210)), "4.21 s");
        assert_eq!(duration(Duration::from_millis(123_190)), "2 min 03.1 s");
        assert_eq!(duration(Duration::from_secs(10_931)), "3 h 02 min 11 s");
    }

    #[test]
    fn percents() {
        assert_eq!(percent(1.26), "1.3 %");
        assert_eq!(percent(64.2), "64 %");
    }

    #[test]
    fn commands_can_be_typed_again() {
        let words = ["a b", "", "it's", "-x=1"].map(str::to_owned);
        assert_eq!(quoted(&words), r"'a b' '' 'it'\''s' -x=1");
    }
}
