//! Object pools as a user sees them: in the report, in its JSON, and in the statistics at exit. The figures that
//! a program of a known number of objects must have.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::{Scratch, Value, check_schema, fs, json, text, tool};
use crate::common::compile;
use std::path::PathBuf;

/// The linker does not see the library: hence the weak names.
const HEAD: &str = "#include <fcntl.h>\n#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
    #include <sys/wait.h>\n#include <time.h>\n#include <unistd.h>\n#include \"weir/pool.h\"\n\
    #pragma weak weir_pool_create\n#pragma weak weir_pool_destroy\n#pragma weak weir_pool_alloc\n\
    #pragma weak weir_pool_free\n#pragma weak weir_pool_limit\n#pragma weak weir_pool_reserve\n\
    #pragma weak weir_pool_alloc_slow\n#pragma weak weir_pool_free_slow\n\
    static void* all[4096];\n\
    static void take(struct weir_pool* p, int n) { for (int i = 0; i < n; i++) all[i] = weir_pool_alloc(p); }\n\
    static void give(struct weir_pool* p, int n) { for (int i = 0; i < n; i++) weir_pool_free(p, all[i]); }\n";

pub fn program(scratch: &Scratch, body: &str) -> PathBuf {
    let source = format!("{HEAD}int main(void) {{ {body} return 0; }}");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    compile(scratch, "pools", &source, &[include])
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row:#}"))
}

pub fn pool<'a>(figures: &'a Value, name: &str) -> &'a Value {
    let rows = figures["pools"].as_array().expect("an array");
    rows.iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {figures:#}"))
}

fn names(figures: &Value) -> Vec<&str> {
    let rows = figures["pools"].as_array().expect("an array");
    rows.iter().map(|row| row["name"].as_str().expect("a name")).collect()
}

/// 60 of 100 buffers in use, 5 and 7 of two pools that share memory, one pool that ended.
const KNOWN: &str = "struct weir_pool* b = weir_pool_create(\"buffers\", 16384, 0, WEIR_POOL_NO_MERGE);\
    struct weir_pool* gone = weir_pool_create(\"gone\", 50, 0, 0);\
    struct weir_pool* x = weir_pool_create(\"x\", 200, 0, 0);\
    struct weir_pool* y = weir_pool_create(\"y\", 208, 0, WEIR_POOL_ZERO);\
    struct weir_pool* few = weir_pool_create(\"few\", 64, 0, WEIR_POOL_EXACT);\
    take(b, 100); give(b, 40); take(x, 300); give(x, 295); take(y, 7);\
    weir_pool_limit(few, 2); take(few, 5);\
    weir_pool_free(gone, weir_pool_alloc(gone)); weir_pool_destroy(gone);";

#[test]
fn the_report_has_exact_figures_of_pools_also_of_a_program_that_closed_stderr() {
    let scratch = Scratch::new();
    let program = program(&scratch, &format!("close(1); close(2); {KNOWN}"));
    let report = scratch.path("report");
    let file = scratch.path("json");
    let output = tool(&["run", "--report"])
        .arg(&report)
        .arg("--json")
        .arg(&file)
        .arg(&program)
        .output()
        .expect("the tool starts");
    assert!(output.status.success());
    let json: Value = serde_json::from_str(&fs::read_to_string(file).expect("JSON")).expect("JSON");
    let root = &json["root"];
    assert_eq!(names(root), ["buffers", "x", "y", "few"], "{root:#}");
    assert_eq!((number(root, "pools_made"), number(root, "pools_left_out")), (5, 0));
    assert_eq!(json["processes"][0]["figures"]["pools"], root["pools"]);
    let buffers = pool(root, "buffers");
    assert_eq!((number(buffers, "used"), number(buffers, "object_bytes")), (60, 16384));
    assert_eq!(number(buffers, "allocated"), 60 + number(buffers, "cached"));
    assert_eq!(number(buffers, "users"), 1);
    assert_eq!(buffers["flags"], serde_json::json!(["no_merge"]));
    let (x, y) = (pool(root, "x"), pool(root, "y"));
    assert_eq!((number(x, "used"), number(y, "used")), (5, 7));
    assert_eq!((number(x, "users"), number(y, "users")), (2, 2));
    assert_eq!(x["storage"], y["storage"]);
    assert_eq!(number(x, "allocated"), 5 + 7 + number(x, "cached"));
    assert_eq!(x["allocated"], y["allocated"]);
    assert_eq!(y["flags"], serde_json::json!(["zero"]));
    let few = pool(root, "few");
    assert_eq!((number(few, "used"), number(few, "limit"), number(few, "failed")), (2, 2, 3));

    let report = fs::read_to_string(report).expect("the report");
    let lines: Vec<&str> = report.lines().skip_while(|line| !line.starts_with("  pools")).collect();
    assert!(lines[0].starts_with("  pools           4, "), "{report}");
    assert!(lines[0].ends_with(" in use; 1 more destroyed"), "{report}");
    let head: Vec<&str> = lines[1].split_whitespace().collect();
    let heads = ["name", "size", "users", "allocated", "used", "cached", "needed", "failed"];
    assert_eq!(head, heads, "{report}");
    let rows: Vec<&str> =
        lines[2..6].iter().map(|line| line.split_whitespace().next().expect("a name")).collect();
    assert_eq!(rows, ["buffers", "y", "x", "few"], "{report}");
    assert!(lines[2].starts_with("    buffers  16,384"), "{report}");
}

#[test]
fn a_program_without_pools_has_none_in_its_report() {
    let output = tool(&["run", "--", "ls", "/"]).output().expect("the tool starts");
    assert!(!text(&output.stderr).contains("pools"), "{}", text(&output.stderr));
    let (_, json) = json(&["ls", "/"]);
    assert_eq!(json["root"]["pools"], serde_json::json!([]));
    assert_eq!(json["root"]["pools_made"], 0);
}

#[test]
fn pools_that_find_no_row_are_counted() {
    let scratch = Scratch::new();
    let program = program(
        &scratch,
        "struct weir_pool* p = NULL;\
         for (int i = 0; i < 4096; i++) p = weir_pool_create(\"many\", 64, 0, 0);\
         for (int i = 0; i < 2; i++) { if (fork() == 0) { take(p, 1); exit(0); } wait(NULL); }",
    );
    let report = scratch.path("report");
    let file = scratch.path("json");
    let output =
        tool(&["run", "--report"]).arg(&report).arg("--json").arg(&file).arg(program).output();
    assert!(output.expect("the tool starts").status.success());
    let json: Value = serde_json::from_str(&fs::read_to_string(file).expect("JSON")).expect("JSON");
    let figures: Vec<&Value> =
        json["processes"].as_array().expect("an array").iter().map(|row| &row["figures"]).collect();
    assert_eq!(figures.len(), 3, "{json:#}");
    let rows: usize = figures.iter().map(|f| f["pools"].as_array().expect("an array").len()).sum();
    let left_out: u64 = figures.iter().map(|f| number(f, "pools_left_out")).sum();
    assert_eq!((rows, left_out), (8192, 4096));
    let report = fs::read_to_string(report).expect("the report");
    assert!(report.contains("  pools           12,288, "), "{report}");
    assert!(report.contains("and 8,182 more; --json has them all"), "{report}");
    assert!(report.contains("note: 4,096 pools found no free row"), "{report}");
}

#[test]
fn a_row_is_used_again_by_the_next_pool() {
    let scratch = Scratch::new();
    let body = "for (int i = 0; i < 20000; i++) {\
         struct weir_pool* p = weir_pool_create(\"short\", 100, 0, 0);\
         weir_pool_free(p, weir_pool_alloc(p)); weir_pool_destroy(p); }\
         take(weir_pool_create(\"last\", 100, 0, 0), 3);";
    let program = program(&scratch, body);
    let (output, json) = json(&[program.to_str().expect("UTF-8")]);
    assert!(output.status.success());
    assert_eq!(names(&json["root"]), ["last"]);
    assert_eq!(number(&json["root"], "pools_made"), 20001);
    assert_eq!(number(pool(&json["root"], "last"), "used"), 3);
}

#[test]
fn a_pool_that_ended_has_no_row() {
    let scratch = Scratch::new();
    // Calls that no cache serves, after a pause: the rows are written while all three are there.
    let body = "struct weir_pool* p[3]; for (int i = 0; i < 3; i++) p[i] = weir_pool_create(i == 1 ? \"gone\" : \"stays\", 100, 0, 0);\
         struct timespec pause = {0, 100000000}; nanosleep(&pause, 0); take(p[2], 1000);\
         weir_pool_destroy(p[1]);";
    let program = program(&scratch, body);
    let (_, json) = json(&[program.to_str().expect("UTF-8")]);
    assert_eq!(names(&json["root"]), ["stays", "stays"]);
    assert_eq!(number(&json["root"], "pools_made"), 3);
}

/// Objects come from the shared tier alone, so that malloc's slow paths never run.
#[test]
fn a_program_that_is_killed_leaves_its_last_figures_of_pools() {
    let scratch = Scratch::new();
    let body = "struct weir_pool* p = weir_pool_create(\"p\", 64, 0, 0); weir_pool_reserve(p, 2000);\
         struct timespec pause = {0, 1000000};\
         take(p, 500);\
         for (int i = 0; i < 200; i++) { nanosleep(&pause, 0);\
             for (int k = 500; k < 700; k++) all[k] = weir_pool_alloc(p);\
             for (int k = 500; k < 700; k++) weir_pool_free(p, all[k]); }\
         kill(getpid(), SIGKILL);";
    let program = program(&scratch, body);
    let file = scratch.path("json");
    let output = tool(&["run", "--quiet", "--options", "release=off", "--json"])
        .arg(&file)
        .arg(program)
        .output()
        .expect("the tool starts");
    assert!(!output.status.success());
    let json: Value = serde_json::from_str(&fs::read_to_string(file).expect("JSON")).expect("JSON");
    let figures = &json["processes"][0]["figures"];
    assert_eq!(figures["is_final"], false, "{json:#}");
    let p = pool(figures, "p");
    assert!((500..=700).contains(&number(p, "used")), "{p:#}");
    assert_eq!(number(p, "allocated"), number(p, "used") + number(p, "cached"), "{p:#}");
}

// ---- statistics at exit ----------------------------------------------------------------------

fn at_exit(body: &str, options: &str) -> Value {
    let scratch = Scratch::new();
    let schema =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stats.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("the schema")).expect("it is JSON");
    let program = program(&scratch, body);
    let output = tool(&["run", "--quiet", "--options", options]).arg(program).output();
    let json: Value =
        serde_json::from_slice(&output.expect("the tool starts").stderr).expect("nothing but JSON");
    check_schema(&json, &schema, &schema, "document");
    json
}

#[test]
fn statistics_have_exact_figures_of_pools() {
    let json = at_exit(KNOWN, "stats=exit");
    assert_eq!(names(&json), ["buffers", "x", "y", "few"]);
    let (x, y) = (pool(&json, "x"), pool(&json, "y"));
    assert_eq!(number(x, "allocated"), 5 + 7 + number(x, "cached"));
    assert_eq!((number(x, "used"), number(y, "used"), number(x, "users")), (5, 7, 2));
    assert_eq!(number(x, "cached"), number(x, "held") + number(y, "held") + number(x, "shared"));
    assert_eq!(number(x, "magazine"), 62);
    let few = pool(&json, "few");
    assert_eq!((number(few, "limit"), number(few, "failed")), (2, 3));
    assert_eq!(few["flags"], serde_json::json!(["exact"]));
}

#[test]
fn names_of_pools_are_quoted() {
    let body = r#"static const char* names[] = {"a \"name\" \\ of a pool", "tab\tand\nline\x01\x7f",
        "f\xc3\xbcr \xe2\x82\xac \xf0\x9f\x98\x80", "no\xff UTF-8 \xc3", "", NULL,
        "thirty one bytes, and then cut \xe2\x82\xac", "twenty nine bytes and a euro \xe2\x82\xac"};
        for (int i = 0; i < 8; i++) weir_pool_create(names[i], 100, 0, 0);"#;
    let json = at_exit(body, "stats=exit");
    let wanted = [
        "a \"name\" \\ of a pool",
        "tab\tand\nline\u{1}\u{7f}",
        "für € 😀",
        "no\u{fffd} UTF-8 \u{fffd}",
        "",
        "",
        "thirty one bytes, and then cut ",
        "twenty nine bytes and a euro \u{fffd}\u{fffd}",
    ];
    assert_eq!(names(&json), wanted);
}

#[test]
fn statistics_of_as_many_pools_as_there_can_be() {
    let body = "char name[32]; for (int i = 0; i < 5000; i++) {\
            snprintf(name, sizeof name, \"\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01\\x01%d\", i);\
            struct weir_pool* p = weir_pool_create(name, 64 + i % 7 * 100, 0, 0);\
            if (p != NULL) all[i % 4096] = weir_pool_alloc(p); }";
    let json = at_exit(body, "stats=exit");
    let rows = json["pools"].as_array().expect("an array");
    assert_eq!(rows.len(), 4096);
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row["name"], format!("{}{at}", "\u{1}".repeat(14)));
        assert_eq!(number(row, "used"), 1);
    }
}

#[test]
fn statistics_of_a_pool_that_is_debugged_have_its_flags() {
    let body = "struct weir_pool* p = weir_pool_create(\"p\", 64, 0, WEIR_POOL_EXACT); take(p, 3); give(p, 2);";
    let json = at_exit(body, "stats=exit:pool_debug=tag,poison@p");
    let p = pool(&json, "p");
    let flags: Vec<&str> =
        p["flags"].as_array().expect("an array").iter().filter_map(Value::as_str).collect();
    assert_eq!((flags.len(), number(p, "used"), number(p, "held")), (3, 1, 2), "{p:#}");
    assert!(["exact", "tag", "poison"].iter().all(|flag| flags.contains(flag)), "{p:#}");
}
