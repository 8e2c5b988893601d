//! What the tests of the built tool share: starting it, scratch files, and JSON that a schema describes. It knows nothing of the tool's
//! inside.
//!
//! SPDX-License-Identifier: Apache-2.0

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A directory of one test, removed with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        // Sync: relaxed, only the number matters.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a scratch directory");
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(WEIR);
    for name in ["LD_PRELOAD", "WEIR_OPTIONS", "WEIR_WIRE"] {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

pub fn output(arguments: &[&str]) -> Output {
    tool(arguments).output().expect("the tool starts")
}

/// Runs the tool with a limit of file sizes, in blocks of 512 bytes; what is left in its folder comes too.
pub fn limited(blocks: u32, arguments: &[&str]) -> (Output, Vec<PathBuf>) {
    let scratch = Scratch::new();
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, WEIR]).args(arguments).current_dir(&scratch.0);
    command.env("TMPDIR", &scratch.0).env("XDG_RUNTIME_DIR", &scratch.0);
    let output = command.output().expect("the tool starts");
    let left = fs::read_dir(&scratch.0).expect("the folder").flatten().map(|entry| entry.path());
    (output, left.collect())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn compile(scratch: &Scratch, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (input, program) = (scratch.path(&format!("{name}.c")), scratch.path(name));
    fs::write(&input, source).expect("write");
    let result = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&input).output();
    let result = result.expect("this test needs a C compiler by the name of cc");
    assert!(result.status.success(), "cc {flags:?} failed: {}", text(&result.stderr));
    program
}

/// Checks a value against the part of JSON Schema that the schema uses, and that it has no field that is
/// not described.
pub fn check_schema(value: &Value, schema: &Value, root: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/$defs/").expect("a definition");
        return check_schema(value, &root["$defs"][name], root, at);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |allowed: &Value| allowed == kind || (allowed == "number" && kind == "integer");
    match &schema["type"] {
        Value::Null => assert_eq!(value, &schema["const"], "{at}"),
        Value::Array(kinds) => assert!(kinds.iter().any(is), "{at} is {kind}"),
        allowed => assert!(is(allowed), "{at} is {kind}, not {allowed}"),
    }
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at} is {value}");
    }
    if let (Some(text), Some(longest)) = (value.as_str(), schema["maxLength"].as_u64()) {
        assert!(text.chars().count() as u64 <= longest, "{at} is {text:?}");
    }
    match value {
        Value::Object(fields) if schema["properties"].is_object() => {
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(name.as_str().expect("a name")), "{at} has no {name}");
            }
            for (name, field) in fields {
                let described = &schema["properties"][name];
                assert!(described.is_object(), "{at}.{name} is not in the schema");
                check_schema(field, described, root, &format!("{at}.{name}"));
            }
        }
        Value::Array(items) => {
            for item in items {
                check_schema(item, &schema["items"], root, &format!("{at}[]"));
            }
        }
        _ => {}
    }
}
