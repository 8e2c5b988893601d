//! `weir bench` as a user sees it: what it lists, what it finds, what it keeps and compares with. Each test runs the
//! built tool. It knows nothing of the tool's inside.
//!
//! SPDX-License-Identifier: Apache-2.0

#[path = "../common/mod.rs"]
mod common;

use common::{Scratch, check_schema, compile, limited, output, text, tool};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

/// The C library's malloc, with a rest in each call.
const SLOW: &str = r#"
#include <stddef.h>
#include <time.h>
extern void* __libc_malloc(size_t bytes);
extern void __libc_free(void* block);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* block, size_t bytes);
void* malloc(size_t bytes) {
    struct timespec rest = {0, 30000000};
    nanosleep(&rest, NULL);
    return __libc_malloc(bytes);
}
void free(void* block) { __libc_free(block); }
void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* block, size_t bytes) { return __libc_realloc(block, bytes); }
"#;

/// The C library's malloc, and 64 MiB that it has until exit.
const HELD: &str = r#"
#include <stddef.h>
#include <sys/mman.h>
extern void* __libc_malloc(size_t bytes);
extern void __libc_free(void* block);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* block, size_t bytes);
static void* held;
enum { BYTES = 64 << 20, READ_WRITE = PROT_READ | PROT_WRITE };
__attribute__((constructor)) static void take(void) {
    held = mmap(NULL, BYTES, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}
__attribute__((destructor)) static void give(void) { munmap(held, BYTES); }
void* malloc(size_t bytes) { return __libc_malloc(bytes); }
void free(void* block) { __libc_free(block); }
void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* block, size_t bytes) { return __libc_realloc(block, bytes); }
"#;

/// The C library's malloc, for a process that has no options of allocators.
const ASKS: &str = r#"
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
extern void* __libc_malloc(size_t bytes);
extern void __libc_free(void* block);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* block, size_t bytes);
__attribute__((constructor)) static void ask(void) {
    if (getenv("WEIR_OPTIONS") || getenv("GLIBC_TUNABLES")) _exit(9);
}
void* malloc(size_t bytes) { return __libc_malloc(bytes); }
void free(void* block) { __libc_free(block); }
void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* block, size_t bytes) { return __libc_realloc(block, bytes); }
"#;

/// The C library's malloc; writes its name and the command of each process that loads it to a file.
const TELLS: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
extern void* __libc_malloc(size_t bytes);
extern void __libc_free(void* block);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* block, size_t bytes);
__attribute__((constructor)) static void tell(int argc, char** argv) {
    const char* path = getenv("TELLS_FILE");
    FILE* file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fputs(NAME, file);
    for (int i = 0; i < argc; i++) fprintf(file, " %s", argv[i]);
    fputc('\n', file);
    fclose(file);
}
void* malloc(size_t bytes) { return __libc_malloc(bytes); }
void free(void* block) { __libc_free(block); }
void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* block, size_t bytes) { return __libc_realloc(block, bytes); }
"#;

/// Gives blocks that are in use.
const TWICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/workloads/broken.c");

/// A workload of some milliseconds.
const SHORT: &[&str] = &["--only", "start/one"];

fn shown(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn bench(scratch: &Scratch, options: &[&str]) -> (Output, Value) {
    let file = scratch.path("bench.json");
    let output = tool(&["bench", &format!("--json={}", shown(&file))])
        .args(options)
        .output()
        .expect("the tool starts");
    let json = fs::read_to_string(&file).unwrap_or_default();
    let json = serde_json::from_str(&json)
        .unwrap_or_else(|error| panic!("no JSON ({error}); stderr: {}", text(&output.stderr)));
    (output, json)
}

fn named<'a>(rows: &'a Value, field: &str, name: &str) -> &'a Value {
    let mut rows = rows.as_array().expect("an array").iter();
    rows.find(|row| row[field] == name).unwrap_or_else(|| panic!("there is no {name}"))
}

#[test]
fn what_there_is_and_what_is_not_installed_is_listed() {
    let scratch = Scratch::new();
    let listed = text(&output(&["bench", "--list"]).stdout);
    for name in ["churn/lifo/tiny ", "server/t64 ", "pair/1m ", "start/one "] {
        assert!(listed.contains(name), "{name} is not in {listed}");
    }
    let listed = tool(&["bench", "--list"])
        .env("PATH", scratch.path("nowhere"))
        .output()
        .expect("the tool starts");
    for name in
        ["redis", "memcached", "sqlite", "python", "c++", "ghostscript", "z3", "java", "node"]
    {
        let line = format!("program/{name}: not installed: it needs ");
        assert!(text(&listed.stdout).contains(&line), "{line}");
    }
    let mut run = tool(&["bench", "--only", "program/z3", "--allocators", "system"]);
    let run = run.env("PATH", scratch.path("nowhere")).output().expect("the tool starts");
    let run = text(&run.stdout);
    assert!(run.contains("program/z3: not installed: it needs z3"), "{run}");
}

#[test]
fn memory_at_the_end_is_of_before_exit() {
    let scratch = Scratch::new();
    let held = compile(&scratch, "held", HELD, &["-shared", "-fPIC", "-O1", "-fno-builtin"]);
    let with = format!("held={}", shown(&held));
    let rows = ["--quick", "--only", "pair/16", "--only", "start/one"];
    let (run, json) = bench(
        &scratch,
        &[&rows[..], &["--allocators", "system,weir,held", "--with", &with]].concat(),
    );
    assert_eq!(run.status.code(), Some(0), "{json:#}");
    let last = |row: &str, name: &str| {
        let entry = named(&json["workloads"], "name", row);
        let result = named(&entry["results"], "allocator", name);
        (entry["rested"] == true, result["median"]["final"].as_f64().expect("bytes"))
    };
    let mib = f64::from(1 << 20);
    let (rested, bytes) = last("pair/16", "held");
    assert!(rested && bytes > 64.0 * mib, "{bytes}");
    assert!(!last("start/one", "held").0);
    let ratio = last("pair/16", "weir").1 / last("pair/16", "system").1;
    let summary = &named(&json["summary"], "allocator", "weir")["final"];
    assert!((summary.as_f64().expect("a ratio") - ratio).abs() < 1e-9, "{summary} {ratio}");
}

#[test]
fn only_rounds_that_rest_tell_the_end() {
    let scratch = Scratch::new();
    let options = ["--only", "pair/16", "--allocators", "weir", "--warmup", "0"];
    let (run, json) = bench(&scratch, &[&options[..], &["--rests", "2"]].concat());
    assert_eq!(run.status.code(), Some(0), "{json:#}");
    let result = &json["workloads"][0]["results"][0];
    let of = |part: &str, measure: &str| result[part][measure].clone();
    for measure in ["time", "peak", "faults"] {
        assert!(of("interval", measure).is_array(), "{measure}: {result:#}");
    }
    for measure in ["final", "cpu"] {
        assert!(
            of("median", measure).is_f64() && of("interval", measure).is_null(),
            "{measure}: {result:#}"
        );
    }
    assert_eq!((&result["rounds"], &result["rounds_rested"]), (&6.into(), &2.into()));
    let notes = json["notes"].to_string();
    assert!(notes.contains("of the first 2 rounds"), "{notes}");
    // No condition on memory at the end can be judged by it, though other rows may have intervals.
    let before = scratch.path("before.json");
    let mut exit = json.clone();
    let mut other = json["workloads"][0].clone();
    (other["name"], other["rested"]) = ("program/x".into(), false.into());
    other["results"][0]["interval"]["final"] = serde_json::json!([1.0, 2.0]);
    exit["workloads"].as_array_mut().expect("an array").push(other);
    fs::write(&before, exit.to_string()).expect("write");
    let judge = ["--against", shown(&before), "--fail-if", "final>0%"];
    let run = tool(&["bench"]).args(options).args(judge).output().expect("the tool starts");
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("all of which rest"), "{}", text(&run.stderr));
    // It takes the place of no result that says more.
    fs::create_dir_all(scratch.path("bench/results")).expect("a folder");
    let mut more = json.clone();
    more["workloads"][0]["results"][0]["interval"]["final"] = serde_json::json!([1.0, 2.0]);
    fs::write(scratch.path("bench/results/here.json"), more.to_string()).expect("write");
    let mut save = tool(&["bench", "--rests", "2", "--save", "here"]);
    let run = save.current_dir(scratch.path(".")).output().expect("the tool starts");
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("less than 6 --rests"), "{}", text(&run.stderr));
}

#[test]
fn rounds_that_do_not_rest_take_less_time() {
    let scratch = Scratch::new();
    let options = ["--only", "pair/16", "--allocators", "weir", "--rounds", "4", "--warmup", "0"];
    let took = |more: &[&str]| {
        let begun = std::time::Instant::now();
        let (run, json) = bench(&scratch, &[&options[..], more].concat());
        assert_eq!(run.status.code(), Some(0), "{json:#}");
        begun.elapsed().as_secs_f64()
    };
    let (all, one) = (took(&[]), took(&["--rests", "1"]));
    assert!(all - one > 2.0, "three rests less: {all} s, {one} s");
}

#[test]
fn a_result_follows_the_schema_and_a_slow_allocator_is_seen() {
    let scratch = Scratch::new();
    let slow = compile(&scratch, "slow", SLOW, &["-shared", "-fPIC", "-O1", "-fno-builtin"]);
    let with = format!("slow={}", shown(&slow));
    let page = scratch.path("page.html");
    let options = ["--allocators", "system,weir,slow", "--with", &with, "--html", shown(&page)];
    let (run, json) = bench(&scratch, &[SHORT, &options].concat());
    assert_eq!(run.status.code(), Some(0), "{json:#}");
    let schema =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("the schema")).expect("JSON");
    check_schema(&json, &schema, &schema, "bench");

    let entry = named(&json["workloads"], "name", "start/one");
    let medians = |name: &str| {
        named(&entry["results"], "allocator", name)["median"]["time"].as_f64().expect("a time")
    };
    assert!(
        medians("slow") > 0.06 && medians("slow") > medians("system"),
        "two calls of 30 ms: {entry:#}"
    );
    for name in ["system", "weir", "slow"] {
        let result = named(&entry["results"], "allocator", name);
        assert!(
            result["proven"] == true
                && result["rounds"] == 6
                && result["interval"]["time"].is_array(),
            "{result:#}"
        );
    }
    let weir = named(&json["allocators"], "name", "weir");
    assert!(weir["flags"].as_str().expect("flags").contains("-O"), "{weir}");
    let worst = named(&json["summary"], "allocator", "slow");
    assert!(
        worst["time"].as_f64() > named(&json["summary"], "allocator", "system")["time"].as_f64()
    );
    assert_eq!(worst["worst_time"]["workload"], "start/one");
    let shown = text(&run.stdout);
    assert!(shown.contains("start/one: ") && shown.contains("to the best peer"), "{shown}");

    let page = fs::read_to_string(&page).expect("a page");
    assert_eq!(page.matches("<svg").count(), 5, "all plots are in it");
    assert!(!page.contains("src=") && !page.contains("href="), "it needs nothing else");
    assert!(
        page.contains("Where weir loses") && page.contains("start/one") && page.contains("slow")
    );
}

#[test]
fn a_lost_block_is_found() {
    let scratch = Scratch::new();
    let source = fs::read_to_string(TWICE).expect("the broken allocator");
    let flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-DFAULT_twice=1"];
    let twice = compile(&scratch, "twice", &source, &flags);
    let with = format!("twice={}", shown(&twice));
    let options =
        ["--quick", "--only", "churn/random/tiny", "--allocators", "system,twice", "--with", &with];
    let (run, json) = bench(&scratch, &options);
    assert_eq!(run.status.code(), Some(3));
    let entry = named(&json["workloads"], "name", "churn/random/tiny");
    let failure =
        named(&entry["results"], "allocator", "twice")["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("a block has lost its content"), "{failure}");
    assert!(named(&entry["results"], "allocator", "system")["failure"].is_null());
    assert!(named(&json["summary"], "allocator", "twice")["time"].is_null(), "it has no figures");
    // A result that lacks something is kept beside the whole one.
    fs::create_dir_all(scratch.path("bench/results")).expect("a folder");
    let mut save = tool(&["bench", "--quiet", "--save", "here"]);
    let save = save.args(options).current_dir(scratch.path(".")).output();
    assert_eq!(save.expect("the tool starts").status.code(), Some(3));
    let there = |name: &str| scratch.path("bench/results").join(name).exists();
    assert_eq!((there("here.json"), there("here.partial.json")), (false, true));
}

/// Gives weir's figures of a result another size.
fn scaled(json: &Value, factor: f64) -> Value {
    let mut json = json.clone();
    let times = |value: &mut Value| *value = (value.as_f64().expect("a number") * factor).into();
    for entry in json["workloads"].as_array_mut().expect("an array") {
        let results = entry["results"].as_array_mut().expect("an array").iter_mut();
        for result in results.filter(|result| result["allocator"] == "weir") {
            times(&mut result["median"]["time"]);
            result["interval"]["time"]
                .as_array_mut()
                .expect("an interval")
                .iter_mut()
                .for_each(times);
        }
    }
    json
}

#[test]
fn a_change_is_found_and_an_equal_result_is_not_one() {
    let scratch = Scratch::new();
    let both = ["--allocators", "system,weir"];
    let (_, json) = bench(&scratch, &[SHORT, &both].concat());
    let before = scratch.path("before.json");
    let against = |earlier: &Value, condition: &str| {
        fs::write(&before, earlier.to_string()).expect("write");
        let options = ["--against", shown(&before), "--fail-if", condition];
        bench(&scratch, &[SHORT, &both, &options].concat())
    };
    // As if it had taken next to nothing: now it takes much more, whatever the machine does.
    let (run, worse) = against(&scaled(&json, 0.0001), "time>+300%");
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stdout));
    assert_eq!(worse["against"]["conditions"][0]["met"], serde_json::json!(["start/one"]));
    assert_eq!(worse["against"]["changes"][0]["allocator"], "weir");
    assert!(text(&run.stdout).contains("--fail-if 'time>+300%': met in start/one"));

    let (run, equal) = against(&json, "time>+300%");
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stdout));
    assert_eq!(equal["against"]["conditions"][0]["met"], serde_json::json!([]));
    let schema =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("the schema")).expect("JSON");
    check_schema(&worse, &schema, &schema, "bench");
}

#[test]
fn wrong_usage_is_told() {
    let scratch = Scratch::new();
    let text_file = scratch.path("text");
    fs::write(&text_file, "no result").expect("write");
    let few_rests = ["--rests", "5", "--against", shown(&text_file), "--fail-if", "final>0%"];
    let unlike = |condition| ["--against", shown(&text_file), "--fail-if", condition];
    let (close, tabs) = (unlike("time>3%vs jemalloc"), unlike("time>3%\tvs\tsystem"));
    let cases: [(&[&str], &str); 12] = [
        (&few_rests, "at least 6 --rests"),
        (&close, "leave 'vs' out"),
        (&tabs, "leave 'vs' out"),
        (&["--only", "nothing"], "no workload has that in its name"),
        (&["--fail-if", "time>+3%"], "--against"),
        (&["--against", shown(&text_file)], "no result of 'weir bench"),
        (&["--quick", "--rounds", "3"], "cannot be used with"),
        (&["--save", "a/b"], "a name, not a path"),
        (&["--json=x", "--html", "x"], "--json and --html both name x"),
        (&["--json", "--html", "-"], "--json and --html both name -"),
        (&["--allocators", "nobody"], "no allocator 'nobody' here"),
        (&["--without", "weir"], "only --allocators can leave it out"),
    ];
    for (options, part) in cases {
        let run = tool(&["bench"]).args(options).output().expect("the tool starts");
        let said = text(&run.stderr);
        assert!(
            run.status.code() == Some(2) && said.contains(part),
            "{options:?}: {:?}: {said}",
            run.status
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_result_is_kept_by_name() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("bench/results")).expect("a folder");
    let quick = [
        "bench",
        "--only",
        "start/one",
        "--quick",
        "--allocators",
        "weir",
        "--quiet",
        "--save",
        "here",
    ];
    let save = || tool(&quick).current_dir(scratch.path(".")).output().expect("the tool starts");
    let run = save();
    assert!(run.status.success() && run.stdout.is_empty(), "{}", text(&run.stderr));
    let kept = fs::read_to_string(scratch.path("bench/results/here.json")).expect("a result");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(
        (&kept["quick"], &kept["allocators"][0]["name"]),
        (&Value::Bool(true), &Value::from("weir"))
    );
    let again = save();
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("would replace"), "{}", text(&again.stderr));
    // All workloads in enough rounds, but an allocator is not among them.
    let other = ["bench", "--allocators", "system", "--quiet", "--save", "here"];
    let mut other = tool(&other);
    let other = other.current_dir(scratch.path(".")).output().expect("the tool starts");
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("a result with weir"), "{}", text(&other.stderr));
}

/// What replaces a kept result is of the same processors, has all of its workloads, and can read it.
#[test]
fn a_kept_result_is_not_replaced_by_less() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("bench/results")).expect("a folder");
    let (_, json) = bench(&scratch, &[SHORT, &["--quick", "--allocators", "weir"]].concat());
    let with = |change: &dyn Fn(&mut Value)| {
        let mut json = json.clone();
        change(&mut json);
        json.to_string()
    };
    let gone = |json: &mut Value| json["workloads"][0]["name"] = "program/gone".into();
    let moved = |json: &mut Value| json["machine"]["model"] = "another".into();
    let cases = [
        (with(&gone), "a result with program/gone"),
        (with(&moved), "of another machine (processor another"),
        ("{".to_owned(), "no result of 'weir bench"),
    ];
    let kept = scratch.path("bench/results/here.json");
    for (text_there, part) in cases {
        fs::write(&kept, &text_there).expect("write");
        let mut save = tool(&["bench", "--allocators", "weir", "--save", "here"]);
        let save = save.current_dir(scratch.path(".")).output().expect("the tool starts");
        assert_eq!(save.status.code(), Some(2), "{part}");
        assert!(text(&save.stderr).contains(part), "{}", text(&save.stderr));
        assert_eq!(fs::read_to_string(&kept).expect("kept"), text_there);
    }
}

/// A program with an allocator of its own is under `system` none of the C library's.
#[test]
fn an_allocator_that_the_program_brings_is_not_the_c_librarys() {
    let scratch = Scratch::new();
    let library = compile(&scratch, "own", HELD, &["-shared", "-fPIC", "-O1", "-fno-builtin"]);
    let main = "#include <stdlib.h>\nint main(void) { free(malloc(100)); return 0; }\n";
    let main = |name: &str, more: &[&str]| {
        compile(&scratch, name, main, &[&["-O0", "-fno-builtin"], more].concat())
    };
    let rpath = format!("-Wl,-rpath,{}", scratch.path(".").display());
    let program = scratch.path("sqlite3");
    let path = format!("{}:/usr/bin:/bin", scratch.path(".").display());
    let judged = |from: PathBuf| {
        fs::copy(from, &program).expect("a program");
        let file = scratch.path("own.json");
        let run = tool(&["bench", "--quick", "--only", "program/sqlite"])
            .args(["--allocators", "system,weir", &format!("--json={}", shown(&file))])
            .env("PATH", &path)
            .output()
            .expect("the tool starts");
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        let json = fs::read_to_string(&file).expect("kept");
        let json: Value = serde_json::from_str(&json).expect("JSON");
        (text(&run.stdout).to_owned(), json)
    };
    let linked = ["-Wl,--no-as-needed", shown(&library), &rpath];
    let (told, json) = judged(main("with", &linked));
    let own = library.file_name().expect("a name").to_string_lossy().into_owned();
    let system = named(&json["workloads"][0]["results"], "allocator", "system");
    assert_eq!(system["brought"], Value::from(own.as_str()), "{system:#}");
    assert!(
        told.contains(&format!(
            "system: LEFT OUT: the program brings an allocator of its own, {own}"
        )),
        "{told}"
    );
    assert!(named(&json["summary"], "allocator", "system")["time"].is_null());
    assert!(named(&json["workloads"][0]["results"], "allocator", "weir")["brought"].is_null());

    let (told, json) = judged(main("without", &[]));
    assert!(!told.contains("LEFT OUT"), "{told}");
    assert!(named(&json["summary"], "allocator", "system")["time"].is_number());
}

#[test]
fn options_of_allocators_are_left_out() {
    let scratch = Scratch::new();
    let json = scratch.path("asks.json");
    let library = compile(&scratch, "asks", ASKS, &["-shared", "-fPIC", "-O1", "-fno-builtin"]);
    let run = tool(&["bench", "--quick", "--quiet", "--allocators", "asks"])
        .args(SHORT)
        .arg("--with")
        .arg(format!("asks={}", shown(&library)))
        .arg(format!("--json={}", shown(&json)))
        .envs([("WEIR_OPTIONS", "stats=exit"), ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")])
        .output()
        .expect("the tool starts");
    assert!(run.status.success(), "{}", text(&run.stderr));
    let kept = fs::read_to_string(&json).expect("kept");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    let notes = kept["notes"].to_string();
    assert!(notes.contains("WEIR_OPTIONS") && notes.contains("GLIBC_TUNABLES"), "{notes}");
}

fn tells(scratch: &Scratch, name: &str) -> PathBuf {
    let define = format!("-DNAME=\"{name}\"");
    compile(scratch, name, TELLS, &["-shared", "-fPIC", "-O1", "-fno-builtin", &define])
}

#[test]
fn what_is_preloaded_already_reaches_no_run() {
    let scratch = Scratch::new();
    let (json, log) = (scratch.path("preload.json"), scratch.path("log"));
    let bench = |preload: &Path| {
        tool(&["bench", "--quick", "--quiet", "--allocators", "system,weir"])
            .args(SHORT)
            .arg(format!("--json={}", shown(&json)))
            .env("LD_PRELOAD", preload)
            .env("TELLS_FILE", &log)
            .output()
            .expect("the tool starts")
    };
    let run = bench(&tells(&scratch, "inherited"));
    let said = text(&run.stderr);
    assert!(run.status.success(), "{said}");
    assert!(said.lines().count() == 1 && said.contains("LD_PRELOAD is set"), "{said}");
    let log = fs::read_to_string(&log).expect("the tool itself loads it");
    assert!(log.contains(" bench "), "{log}");
    // Neither the runs nor the shell line before each of them.
    assert!(!log.contains("--scale") && !log.contains("--touch"), "{log}");
    let kept = fs::read_to_string(&json).expect("kept");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert!(kept["notes"].to_string().contains("LD_PRELOAD"), "{kept:#}");
    let run = bench(Path::new(""));
    assert!(run.status.success() && run.stderr.is_empty(), "{}", text(&run.stderr));
}

#[test]
fn a_workload_tells_its_revision() {
    let scratch = Scratch::new();
    let says = r#"
#include <unistd.h>
__attribute__((constructor)) static void say(void) { (void)!write(1, "revision 7\n", 11); }
"#;
    let flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-DNAME=\"says\""];
    let says = compile(&scratch, "says", &format!("{TELLS}{says}"), &flags);
    let with = format!("says={}", shown(&says));
    for (name, revision) in [("says", Value::from(7)), ("system", Value::Null)] {
        let only = ["--quick", "--only", "pair/16", "--with", &with, "--allocators", name];
        let (run, json) = bench(&scratch, &only);
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert_eq!(json["workloads"][0]["revision"], revision, "{json:#}");
    }
}

#[test]
fn workloads_take_turns_in_who_begins() {
    let scratch = Scratch::new();
    let log = scratch.path("log");
    let (one, two) = (tells(&scratch, "one"), tells(&scratch, "two"));
    let run = tool(&["bench", "--quick", "--quiet", "--only", "pair/16,pair/1m"])
        .args(["--allocators", "one,two"])
        .args(["--with", &format!("one={}", shown(&one))])
        .args(["--with", &format!("two={}", shown(&two))])
        .env("TELLS_FILE", &log)
        .output()
        .expect("the tool starts");
    assert!(run.status.success(), "{}", text(&run.stderr));
    let log = fs::read_to_string(&log).expect("runs load it");
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let runs: Vec<_> =
        log.lines().map(words).map(|words| (words[2].clone(), words[0].clone())).collect();
    assert_eq!(runs.len(), 4, "{log}");
    assert!(runs[0].0 == runs[1].0 && runs[2].0 == runs[3].0 && runs[0].0 != runs[2].0, "{log}");
    let who: Vec<&str> = runs.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(who, ["one", "two", "two", "one"], "{log}");
}

/// The earlier result can have no interval: its conditions are refused before any work. One item that cannot be run
/// leaves the others' figures, and what ends the run early too.
#[test]
fn what_cannot_be_judged_or_run_loses_nothing() {
    let scratch = Scratch::new();
    let (quick, json) = (scratch.path("quick.json"), scratch.path("some.json"));
    let to = |path: &Path| format!("--json={}", shown(path));
    let run = tool(&["bench", "--quick", "--quiet", "--allocators", "weir"])
        .args(SHORT)
        .arg(to(&quick))
        .output();
    assert!(run.expect("the tool starts").status.success());
    let judge = ["bench", "--rounds", "6", "--against", shown(&quick), "--fail-if", "time>+3%"];
    for (allocators, part) in [("weir,system", "no confidence interval"), ("system", "leaves out")]
    {
        if allocators == "system" {
            let mut document: Value =
                serde_json::from_str(&fs::read_to_string(&quick).expect("read")).expect("JSON");
            document["workloads"][0]["results"][0]["interval"]["time"] =
                serde_json::json!([1.0, 2.0]);
            fs::write(&quick, document.to_string()).expect("write");
        }
        let run = tool(&judge)
            .args(SHORT)
            .args(["--allocators", allocators])
            .output()
            .expect("the tool starts");
        assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
        assert!(text(&run.stderr).contains(part), "{}", text(&run.stderr));
    }
    // Nothing can be written to stdout: the file is there all the same.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let mut command = tool(&["bench", "--quick", "--allocators", "weir"]);
    let status = command
        .args(SHORT)
        .arg(to(&json))
        .stdout(full)
        .stderr(std::process::Stdio::null())
        .status();
    assert!(!status.expect("the tool starts").success());
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(&json).expect("kept")).expect("JSON");
    assert_eq!(kept["interrupted"], true);
}

#[test]
fn a_limit_of_file_sizes_is_named_and_leaves_nothing() {
    let (output, left) = limited(0, &["bench", "--quick", "--only", "start/one", "--json=out"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.contains("limit of file sizes (ulimit -f)"), "{message}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn words_that_find_no_room_end_nothing() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("the device");
    let status = tool(&["bench", "--quick", "--only", "start/one", "--allocators", "system"])
        .env("LD_PRELOAD", "libc.so.6")
        .stdout(Stdio::null())
        .stderr(full)
        .status();
    assert_eq!(status.expect("the tool starts").code(), Some(0));
}
