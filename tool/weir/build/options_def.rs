//! Parses the option table `src/core/options.def`. Used by the build script, and by the tool's unit
//! tests, which feed it broken tables. It does not know what an option does, only its row's shape:
//! a macro call per option, and per value of a preset, whose numbers are constants with an optional shift.
//!
//! SPDX-License-Identifier: Apache-2.0

#[derive(Debug, PartialEq, Eq)]
pub struct Def {
    pub name: String,
    pub kind: Kind,
    pub help: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    Size { default: u64, min: u64, max: u64 },
    Count { default: u64, min: u64, max: u64 },
    Word { default: usize, words: Vec<String> },
    Text { form: String },
}

/// What a preset puts in the place of an option's default.
#[derive(Debug, PartialEq, Eq)]
pub struct Preset {
    pub preset: String,
    pub option: String,
    pub value: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub options: Vec<Def>,
    pub presets: Vec<Preset>,
}

enum Row {
    Option(Def),
    Preset(Preset),
}

/// All rows of the table in its order, or what is wrong and in which line.
pub fn parse(text: &str) -> Result<Table, String> {
    let text = without_comments(text);
    let mut table = Table::default();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
        let line = 1 + text[..text.len() - rest.len() + start].matches('\n').count();
        let at_line = |why| format!("line {line}: {why}");
        let (row, after) = call(&rest[start..]).map_err(at_line)?;
        match row {
            Row::Option(def) => table.options.push(def),
            Row::Preset(preset) => {
                preset_fits(&table.options, &preset).map_err(at_line)?;
                table.presets.push(preset);
            }
        }
        rest = after;
    }
    if table.options.is_empty() {
        return Err("the table has no options".to_owned());
    }
    Ok(table)
}

/// A preset's row comes after the rows that it speaks of.
fn preset_fits(options: &[Def], row: &Preset) -> Result<(), String> {
    let find = |name: &str| options.iter().find(|def| def.name == name);
    let Some(Def { kind: Kind::Word { words, .. }, .. }) = find("preset") else {
        return Err("WEIR_PRESET without an option named preset".to_owned());
    };
    if !words.contains(&row.preset) {
        return Err(format!("{}: no such preset", row.preset));
    }
    let fits = match find(&row.option).map(|def| &def.kind) {
        None => return Err(format!("{}: no such option", row.option)),
        Some(Kind::Size { min, max, .. } | Kind::Count { min, max, .. }) => {
            (*min..=*max).contains(&row.value)
        }
        Some(Kind::Word { words, .. }) => row.value < words.len() as u64,
        Some(Kind::Text { .. }) => false,
    };
    if fits { Ok(()) } else { Err(format!("{}: out of its range in a preset", row.option)) }
}

/// Comments become blanks, so that line numbers stay.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        if quoted && c == '\\' {
            out.push(c);
            out.extend(chars.next());
        } else if c == '"' {
            quoted = !quoted;
            out.push(c);
        } else if !quoted && c == '/' && chars.peek() == Some(&'*') {
            chars.next();
            let mut last = ' ';
            for c in chars.by_ref() {
                if c == '\n' {
                    out.push('\n');
                }
                if last == '*' && c == '/' {
                    break;
                }
                last = c;
            }
        } else if !quoted && c == '/' && chars.peek() == Some(&'/') {
            for c in chars.by_ref() {
                if c == '\n' {
                    out.push('\n');
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// One macro call at the start of `text`; the rest of the text comes back with it.
fn call(text: &str) -> Result<(Row, &str), String> {
    let open = text.find('(').ok_or("expected WEIR_OPTION(...)")?;
    let (fields, after) = arguments(&text[open + 1..])?;
    let row = match (text[..open].trim(), fields.as_slice()) {
        ("WEIR_OPTION", [name, kind, default, min, max, help]) => {
            let (default, min, max) = (number(default)?, number(min)?, number(max)?);
            if min > max || default < min || default > max {
                return Err(format!("{name}: the default or the range is wrong"));
            }
            let kind = match kind.as_str() {
                "SIZE" => Kind::Size { default, min, max },
                "COUNT" => Kind::Count { default, min, max },
                other => return Err(format!("{name}: unknown type {other}")),
            };
            Row::Option(Def { name: name.clone(), kind, help: string(help)? })
        }
        ("WEIR_OPTION_ENUM", [name, default, words, help]) => {
            let words: Vec<String> = string(words)?.split('|').map(str::to_owned).collect();
            let default = number(default)? as usize;
            if default >= words.len() {
                return Err(format!("{name}: the default is none of the words"));
            }
            let kind = Kind::Word { default, words };
            Row::Option(Def { name: name.clone(), kind, help: string(help)? })
        }
        ("WEIR_OPTION_TEXT", [name, form, help]) => Row::Option(Def {
            name: name.clone(),
            kind: Kind::Text { form: string(form)? },
            help: string(help)?,
        }),
        ("WEIR_PRESET", [preset, option, value]) => Row::Preset(Preset {
            preset: preset.clone(),
            option: option.clone(),
            value: number(value)?,
        }),
        (
            name @ ("WEIR_OPTION" | "WEIR_OPTION_ENUM" | "WEIR_OPTION_TEXT" | "WEIR_PRESET"),
            fields,
        ) => {
            return Err(format!("{name} with {} fields", fields.len()));
        }
        (other, _) => return Err(format!("unknown macro {other}")),
    };
    Ok((row, after))
}

/// The comma-separated fields up to the closing parenthesis.
fn arguments(text: &str) -> Result<(Vec<String>, &str), String> {
    let mut fields = vec![String::new()];
    let mut depth = 0;
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            ')' => {
                let fields = fields.iter().map(|field| field.trim().to_owned()).collect();
                return Ok((fields, &text[at + 1..]));
            }
            ',' if depth == 0 => {
                fields.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(field) = fields.last_mut() {
            field.push(c);
        }
    }
    Err("the closing parenthesis is missing".to_owned())
}

/// `12`, `0x10`, `1ull << 46`, `(1u << 20)`, `UINT32_MAX`.
fn number(text: &str) -> Result<u64, String> {
    let bad = || format!("{text} is not a constant that this parser knows");
    let text = text.trim();
    let inner =
        text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text).trim();
    match inner.split_once("<<") {
        None => literal(inner).ok_or_else(bad),
        Some((left, right)) => {
            let value = literal(left.trim()).ok_or_else(bad)?;
            let shift = literal(right.trim()).filter(|shift| *shift < 64).ok_or_else(bad)?;
            value.checked_mul(1 << shift).ok_or_else(bad)
        }
    }
}

fn literal(text: &str) -> Option<u64> {
    match text {
        "INT32_MAX" => return Some(i32::MAX as u64),
        "UINT32_MAX" => return Some(u64::from(u32::MAX)),
        "INT64_MAX" => return Some(i64::MAX as u64),
        "UINT64_MAX" | "SIZE_MAX" => return Some(u64::MAX),
        _ => {}
    }
    let digits = text.trim_end_matches(['u', 'l', 'U', 'L']);
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// Adjacent C string literals, joined.
fn string(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut quoted = false;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => out.extend(chars.next()),
            _ if quoted => out.push(c),
            _ if c.is_whitespace() => {}
            _ => return Err(format!("{text} is not a string literal")),
        }
    }
    if quoted {
        return Err(format!("{text} has no closing quote"));
    }
    Ok(out)
}
