//! The run-time options of the library: their table, the check of what a user wrote, and the listing.
//! The table is generated from `src/core/options.def` when the tool is built. It does not know what
//! an option does; the library parses the text again and has the last word.
//!
//! SPDX-License-Identifier: Apache-2.0

use anyhow::{Result, bail};
use std::fmt::Write;

#[derive(Debug)]
pub enum Kind {
    Size {
        default: u64,
        min: u64,
        max: u64,
    },
    Count {
        default: u64,
        min: u64,
        max: u64,
    },
    Word {
        default: usize,
        words: &'static [&'static str],
    },
    /// Any text; the library reads it.
    Text {
        form: &'static str,
    },
}

#[derive(Debug)]
pub struct Opt {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

/// What a preset puts in the place of an option's default.
#[derive(Debug)]
pub struct Preset {
    pub preset: &'static str,
    pub option: &'static str,
    pub value: u64,
}

include!(concat!(env!("OUT_DIR"), "/options.rs"));

/// Checks `K=V:K=V...`; the message names what is wrong and what would be right.
pub fn check(text: &str) -> Result<()> {
    check_against(OPTIONS, text)
}

fn check_against(table: &[Opt], text: &str) -> Result<()> {
    for pair in text.split(':').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name.is_empty() {
            bail!("option '{pair}' has no name: write NAME=VALUE");
        }
        let Some(option) = table.iter().find(|option| option.name == name) else {
            match nearest(table, name) {
                Some(near) => bail!("unknown option '{name}': did you mean '{near}'?"),
                None => bail!("unknown option '{name}': 'weir options' lists all of them"),
            }
        };
        if !pair.contains('=') {
            bail!("option '{name}' has no value: write {name}={}", example(&option.kind));
        }
        check_value(option, value)?;
    }
    Ok(())
}

fn check_value(option: &Opt, value: &str) -> Result<()> {
    let name = option.name;
    let (parsed, min, max, hint) = match &option.kind {
        Kind::Word { words, .. } => {
            if words.contains(&value) {
                return Ok(());
            }
            bail!("option '{name}' cannot be '{value}': use one of {}", words.join(", "));
        }
        Kind::Text { .. } => return Ok(()),
        Kind::Size { min, max, .. } => (size(value), *min, *max, "bytes, or with k, m, g or t"),
        Kind::Count { min, max, .. } => (value.parse().ok(), *min, *max, "a plain number"),
    };
    match parsed {
        None => bail!("option '{name}' cannot be '{value}': give {hint}"),
        Some(number) if number < min || number > max => bail!(
            "option '{name}' cannot be {value}: the range is {} to {}",
            quantity(&option.kind, min),
            quantity(&option.kind, max)
        ),
        Some(_) => Ok(()),
    }
}

/// A number with an optional k, m, g or t, as the library reads it.
fn size(text: &str) -> Option<u64> {
    let shift = match text.chars().next_back()?.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => return text.parse().ok(),
    };
    // The suffix is ASCII: one byte.
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A value as a user would write it: 32m, not 33554432.
fn quantity(kind: &Kind, value: u64) -> String {
    if !matches!(kind, Kind::Size { .. }) || value == 0 {
        return value.to_string();
    }
    for (shift, suffix) in [(40, 't'), (30, 'g'), (20, 'm'), (10, 'k')] {
        if value % (1 << shift) == 0 {
            return format!("{}{suffix}", value >> shift);
        }
    }
    value.to_string()
}

fn example(kind: &Kind) -> String {
    match kind {
        Kind::Size { default, .. } | Kind::Count { default, .. } => quantity(kind, *default),
        Kind::Word { words, .. } => words.join("|"),
        Kind::Text { form } => (*form).to_owned(),
    }
}

fn nearest(table: &[Opt], name: &str) -> Option<&'static str> {
    table
        .iter()
        .map(|option| (distance(option.name, name), option.name))
        .min()
        // Farther than half of the name is a guess, not help.
        .filter(|(steps, near)| *steps <= near.len().max(name.len()) / 2)
        .map(|(_, near)| near)
}

/// Levenshtein distance in characters.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, r) in right.iter().enumerate() {
            let change = diagonal + usize::from(l != *r);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

/// The table for `weir options`.
pub fn listing() -> String {
    let mut rows = vec![["option", "default", "values", "meaning"].map(str::to_owned)];
    for option in OPTIONS {
        let (default, values) = match &option.kind {
            Kind::Size { default, min, max } | Kind::Count { default, min, max } => (
                quantity(&option.kind, *default),
                format!("{}..{}", quantity(&option.kind, *min), quantity(&option.kind, *max)),
            ),
            Kind::Word { default, words } => (words[*default].to_owned(), words.join("|")),
            Kind::Text { form } => (String::new(), (*form).to_owned()),
        };
        rows.push([option.name.to_owned(), default, values, option.help.to_owned()]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, default, values) = (width(0), width(1), width(2));
    let mut out = String::new();
    for row in &rows {
        let _ =
            writeln!(out, "{:name$}  {:default$}  {:values$}  {}", row[0], row[1], row[2], row[3]);
    }
    out.push_str(&presets_listing(OPTIONS, PRESETS));
    out.push_str(
        "\nUse them as --options NAME=VALUE:NAME=VALUE or in the environment variable WEIR_OPTIONS.\n",
    );
    out
}

/// What each preset changes, in a line for each.
fn presets_listing(options: &[Opt], presets: &[Preset]) -> String {
    let mut out = String::new();
    let words = options.iter().find_map(|option| match &option.kind {
        Kind::Word { words, .. } if option.name == "preset" => Some(*words),
        _ => None,
    });
    for word in words.unwrap_or_default() {
        let values: Vec<String> = presets
            .iter()
            .filter(|row| row.preset == *word)
            .filter_map(|row| {
                let option = options.iter().find(|option| option.name == row.option)?;
                let value = match &option.kind {
                    Kind::Word { words, .. } => (*words.get(row.value as usize)?).to_owned(),
                    kind => quantity(kind, row.value),
                };
                Some(format!("{}={value}", row.option))
            })
            .collect();
        let values = if values.is_empty() { "the defaults".to_owned() } else { values.join(":") };
        let _ = writeln!(out, "preset={word}: {values}");
    }
    if !out.is_empty() {
        out.insert(0, '\n');
        out.push_str("An option that is given beats the preset, in whatever order and source.\n");
    }
    out
}

#[cfg(test)]
#[path = "../build/options_def.rs"]
mod options_def;

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Opt] = &[
        Opt { name: "dirty_max", kind: Kind::Size { default: 0, min: 0, max: 1 << 40 }, help: "" },
        Opt { name: "check_every", kind: Kind::Count { default: 8, min: 1, max: 100 }, help: "" },
        Opt {
            name: "on_error",
            kind: Kind::Word { default: 0, words: &["abort", "report"] },
            help: "",
        },
    ];

    fn error(text: &str) -> String {
        match check_against(TABLE, text) {
            Ok(()) => panic!("{text} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn good_options_pass() {
        for text in
            ["", "dirty_max=4m", "dirty_max=0:on_error=report:", "dirty_max=1T", "check_every=100"]
        {
            check_against(TABLE, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        assert_eq!(error("=full"), "option '=full' has no name: write NAME=VALUE");
        assert_eq!(error("dirty_mx=1"), "unknown option 'dirty_mx': did you mean 'dirty_max'?");
        assert_eq!(error("on-error=x"), "unknown option 'on-error': did you mean 'on_error'?");
        assert!(error("zzzzzzzzzzzzzzzz=1").contains("'weir options' lists"));
    }

    #[test]
    fn bad_values_are_named() {
        assert!(error("dirty_max").contains("has no value"));
        assert!(error("dirty_max=much").contains("give bytes"));
        assert!(error("dirty_max=2048g").contains("the range is 0 to 1t"));
        assert!(error("dirty_max=99999999999999999999").contains("give bytes"));
        assert!(error("dirty_max=99999999999g").contains("give bytes"));
        assert!(error("dirty_max=\u{fc}").contains("give bytes"));
        assert!(error("check_every=0").contains("the range is 1 to 100"));
        assert!(error("on_error=stop").contains("use one of abort, report"));
    }

    #[test]
    fn the_real_table_is_there() {
        assert!(OPTIONS.iter().any(|option| option.name == "on_error"));
        assert!(listing().contains("on_error"));
        assert!(listing().contains("\npreset=balanced: the defaults\n"));
        assert!(listing().contains("\npreset=small: release_delay="));
    }

    #[test]
    fn presets_are_listed_with_their_values() {
        let options = [
            Opt {
                name: "preset",
                kind: Kind::Word { default: 0, words: &["plain", "small"] },
                help: "",
            },
            Opt { name: "kept", kind: Kind::Size { default: 0, min: 0, max: 1 << 40 }, help: "" },
            Opt { name: "mode", kind: Kind::Word { default: 0, words: &["a", "b"] }, help: "" },
        ];
        let presets = [
            Preset { preset: "small", option: "kept", value: 4 << 20 },
            Preset { preset: "small", option: "mode", value: 1 },
        ];
        assert_eq!(
            presets_listing(&options, &presets),
            "\npreset=plain: the defaults\npreset=small: kept=4m:mode=b\n\
             An option that is given beats the preset, in whatever order and source.\n"
        );
        assert_eq!(presets_listing(TABLE, &[]), "");
    }

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn the_table_parser_reads_every_shape() {
        let table = options_def::parse(
            "/* WEIR_OPTION(no) */\nWEIR_OPTION(a, SIZE, 32ull << 20, 0x10, UINT64_MAX, \"x, (y)\" \"z\")\n\
             // no\nWEIR_OPTION_ENUM(preset, 1, \"no|yes\", \"say \\\"hi\\\"\")\n\
             WEIR_PRESET(no, a, 16)\nWEIR_PRESET(yes, a, 1ull << 20)",
        )
        .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(
            table.options,
            [
                options_def::Def {
                    name: "a".into(),
                    kind: options_def::Kind::Size { default: 32 << 20, min: 16, max: u64::MAX },
                    help: "x, (y)z".into()
                },
                options_def::Def {
                    name: "preset".into(),
                    kind: options_def::Kind::Word {
                        default: 1,
                        words: vec!["no".into(), "yes".into()]
                    },
                    help: "say \"hi\"".into()
                },
            ]
        );
        let preset = |preset: &str, value| options_def::Preset {
            preset: preset.into(),
            option: "a".into(),
            value,
        };
        assert_eq!(table.presets, [preset("no", 16), preset("yes", 1 << 20)]);
    }

    #[test]
    fn the_table_parser_names_what_is_wrong() {
        for (text, wanted) in [
            ("", "no options"),
            ("WEIR_OPTION(a, SIZE, 1", "line 1: the closing parenthesis"),
            ("\n\nWEIR_OPTION(a, SIZE, 1)", "line 3: WEIR_OPTION with 3 fields"),
            ("WEIR_OPTION(a, FLAG, 1, 0, 2, \"\")", "unknown type FLAG"),
            ("WEIR_OPTION(a, COUNT, 9, 0, 2, \"\")", "range is wrong"),
            ("WEIR_OPTION(a, COUNT, N, 0, 2, \"\")", "N is not a constant"),
            ("WEIR_OPTION(a, COUNT, 1 << 64, 0, 2, \"\")", "not a constant"),
            ("WEIR_OPTION_ENUM(a, 2, \"x|y\", \"\")", "none of the words"),
            ("WEIR_OTHER(a)", "unknown macro WEIR_OTHER"),
            ("WEIR_PRESET(x, a, 1)", "without an option named preset"),
            (
                "WEIR_OPTION_ENUM(preset, 0, \"x|y\", \"\")\nWEIR_PRESET(z, a, 1)",
                "line 2: z: no such preset",
            ),
            (
                "WEIR_OPTION_ENUM(preset, 0, \"x|y\", \"\")\nWEIR_PRESET(x, a, 1)",
                "a: no such option",
            ),
            (
                "WEIR_OPTION_ENUM(preset, 0, \"x|y\", \"\")\nWEIR_PRESET(x, preset, 2)",
                "out of its range",
            ),
            (
                "WEIR_OPTION_ENUM(preset, 0, \"x|y\", \"\")\nWEIR_OPTION(a, COUNT, 1, 1, 2, \"\")\n\
                 WEIR_PRESET(x, a, 3)",
                "line 3: a: out of its range",
            ),
            ("WEIR_PRESET(x, a)", "WEIR_PRESET with 2 fields"),
        ] {
            match options_def::parse(text) {
                Ok(_) => panic!("{text} was accepted"),
                Err(why) => assert!(why.contains(wanted), "{text}: {why}"),
            }
        }
    }
}
