//! `weir compare` as a user sees it: proof per allocator, conditions, what goes wrong, and that nothing
//! stays behind. Each test runs the built tool. It knows nothing of the tool's inside.
//!
//! SPDX-License-Identifier: Apache-2.0

#[path = "../common/mod.rs"]
mod common;
mod results;
mod servers;

use common::{Scratch, check_schema, compile, limited, output, text, tool};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// Touches as many MiB as its argument says, through malloc.
const TOUCH: &str = r#"
#include <stdlib.h>
#include <string.h>
int main(int count, char** words) {
    size_t bytes = (count > 1 ? strtoul(words[1], NULL, 10) : 1) << 20;
    char* block = malloc(bytes);
    if (!block) return 1;
    memset(block, 1, bytes);
    return !bytes || block[bytes / 2] == 1 ? 0 : 2;
}
"#;

/// An allocator that gives and never takes back.
const BUMP: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
static _Atomic(size_t) used;
static char* room(void) {
    static _Atomic(char*) base;
    char* at = base;
    if (!at) {
        at = mmap(NULL, (size_t)1 << 36, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        char* none = NULL;
        if (!atomic_compare_exchange_strong(&base, &none, at)) at = none;
    }
    return at;
}
void* aligned_alloc(size_t alignment, size_t bytes) {
    if (alignment < 16) alignment = 16;
    size_t whole = (bytes + 31 + alignment) & ~(size_t)15;
    char* at = room() + atomic_fetch_add(&used, whole);
    at = (char*)(((size_t)at + 16 + alignment - 1) & ~(alignment - 1));
    ((size_t*)at)[-1] = bytes;
    return at;
}
void* memalign(size_t alignment, size_t bytes) { return aligned_alloc(alignment, bytes); }
void* malloc(size_t bytes) { return aligned_alloc(16, bytes); }
void* calloc(size_t count, size_t bytes) { return malloc(count * bytes); }
void free(void* block) { (void)block; }
int posix_memalign(void** out, size_t alignment, size_t bytes) { *out = aligned_alloc(alignment, bytes); return 0; }
void* realloc(void* old, size_t bytes) {
    void* block = malloc(bytes);
    size_t before = old ? ((size_t*)old)[-1] : 0;
    if (old) memcpy(block, old, before < bytes ? before : bytes);
    return block;
}
"#;

fn shown(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn library(scratch: &Scratch, name: &str, source: &str) -> PathBuf {
    compile(scratch, name, source, &["-shared", "-fPIC", "-O2", "-fno-builtin"])
}

/// Runs `weir compare` quietly with --json and gives its output and the JSON.
fn compare(options: &[&str], command: &[&str]) -> (Output, Value) {
    let scratch = Scratch::new();
    let file = scratch.path("compare.json");
    let output = tool(&["compare", &format!("--json={}", shown(&file))])
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .expect("the tool starts");
    let json = fs::read_to_string(&file).unwrap_or_default();
    let json = serde_json::from_str(&json).unwrap_or_else(|error| {
        panic!("no JSON ({error}); stderr: {}", text(&output.stderr));
    });
    (output, json)
}

fn allocator<'a>(json: &'a Value, name: &str) -> &'a Value {
    json["allocators"]
        .as_array()
        .expect("an array")
        .iter()
        .find(|entry| entry["name"] == name)
        .unwrap_or_else(|| panic!("{name} is not in {json:#}"))
}

fn assert_proven(json: &Value, name: &str, target: &str) {
    let entry = allocator(json, name);
    assert_eq!(entry["proven"], true, "{name}: {entry:#}");
    let rounds = entry["rounds"].as_array().expect("rounds");
    assert!(!rounds.is_empty(), "{name}: {entry:#}");
    for round in rounds {
        let found = round["executables"].as_array().expect("executables").iter();
        let reached =
            found.filter(|exe| exe["target"].as_str().is_some_and(|path| path.contains(target)));
        assert!(reached.count() > 0, "{name}: no call reached {target}: {round:#}");
    }
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("no exit status: {:?}", output.status))
}

/// Nothing of these tests may stay behind: no directory, no process with this word in its command.
fn assert_gone(word: &str) {
    assert_gone_after(word, Duration::from_secs(5));
}

fn assert_gone_after(word: &str, time: Duration) {
    let until = Instant::now() + time;
    loop {
        let running = fs::read_dir("/proc").expect("/proc").flatten().find(|entry| {
            fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| text(&line).replace('\0', " ").contains(word))
        });
        match running {
            None => return,
            Some(entry) if Instant::now() > until => panic!("{:?} is still running", entry.path()),
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

const BOTH: &[&str] = &["--only", "system,weir", "--rounds", "1"];

// ---- proof -----------------------------------------------------------------------------------

#[test]
fn every_allocator_that_is_there_is_reached() {
    let scratch = Scratch::new();
    let bump = library(&scratch, "libbump.so", BUMP);
    let program = compile(&scratch, "touch", TOUCH, &["-O1", "-fno-builtin"]);
    let with = format!("bump={}", shown(&bump));
    let (output, json) = compare(&["--rounds", "6", "--with", &with], &[shown(&program), "3"]);
    assert_eq!(status(&output), 0, "{}", text(&output.stdout));
    assert_proven(&json, "system", "libc.so");
    assert_proven(&json, "weir", "libweir.so.1");
    assert_proven(&json, "bump", shown(&bump));
    // Debian's packages, which the tests have installed.
    for (name, target) in
        [("jemalloc", "libjemalloc"), ("mimalloc", "libmimalloc"), ("tcmalloc", "libtcmalloc")]
    {
        assert_proven(&json, name, target);
        assert!(allocator(&json, name)["origin"].as_str().is_some_and(|o| o.contains("package")));
    }
    let table = text(&output.stdout);
    let long = ["/", "weir against", "  flags: "];
    for line in table.lines().filter(|line| !long.iter().any(|part| line.contains(part))) {
        assert!(line.chars().count() <= 80, "wider than 80 columns: {line}");
    }
}

#[test]
fn calls_are_seen_however_the_program_was_linked() {
    let scratch = Scratch::new();
    let kinds: &[&[&str]] = &[
        &["-O1", "-fno-builtin", "-Wl,-z,lazy"],
        &["-O1", "-fno-builtin", "-Wl,-z,now"],
        &["-O1", "-fno-builtin", "-fno-plt"],
        &["-O1", "-fno-builtin", "-no-pie", "-fno-pie", "-Wl,-z,lazy"],
        &["-O1", "-fno-builtin", "-no-pie", "-fno-pie", "-Wl,-z,norelro"],
    ];
    for (at, flags) in kinds.iter().enumerate() {
        let program = compile(&scratch, &format!("linked{at}"), TOUCH, flags);
        let (output, json) = compare(BOTH, &[shown(&program)]);
        assert_eq!(status(&output), 0, "{flags:?}: {}", text(&output.stdout));
        assert_proven(&json, "weir", "libweir.so.1");
        let evidence = allocator(&json, "weir")["evidence"].as_str().expect("text").to_owned();
        let wanted = format!("malloc by linked{at} reached libweir.so.1");
        assert!(evidence.starts_with(&wanted), "{flags:?}: {evidence}");
    }
}

#[test]
fn cpp_threads_forks_and_what_is_executed_are_seen() {
    let scratch = Scratch::new();
    let source = r#"
        #include <pthread.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/wait.h>
        #include <unistd.h>
        void* _Znwm(size_t);
        static void* work(void* unused) {
            for (int i = 0; i < 2000; i++) { char* p = malloc(100); memset(p, 1, 100); free(p); free(calloc(3, 5)); }
            return unused;
        }
        int main(int count, char** words) {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, NULL);
            for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
            for (int i = 0; i < 3; i++) {
                if (fork() == 0) { work(NULL); exit(0); }
            }
            while (wait(NULL) > 0) continue;
            free(_Znwm(20));
            if (count == 1) { execl(words[0], words[0], "again", NULL); return 1; }
            return 0;
        }
    "#;
    let program = compile(
        &scratch,
        "busy",
        source,
        &["-O1", "-fno-builtin", "-pthread", "-lstdc++", "-Wl,--no-as-needed", "-lstdc++"],
    );
    let (output, json) =
        compare(BOTH, &["sh", "-c", &format!("{} && {}", shown(&program), shown(&program))]);
    assert_eq!(status(&output), 0, "{}", text(&output.stdout));
    assert_proven(&json, "weir", "libweir.so.1");
    let round = &allocator(&json, "weir")["rounds"][0];
    let busy = round["executables"].as_array().expect("executables").iter();
    let busy = busy.filter(|exe| exe["exe"] == shown(&program)).collect::<Vec<_>>();
    assert_eq!(busy.len(), 1, "all went to one place: {round:#}");
    // Two programs, each executed twice, with three children that end by exit.
    assert_eq!(busy[0]["processes"], 16, "{round:#}");
}

#[test]
fn the_pointers_are_as_they_were_after_the_first_call() {
    let scratch = Scratch::new();
    // Its pointers to functions are read-only again, and the witness's stubs are in none of them.
    let source = r#"
        #define _GNU_SOURCE
        #include <link.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        static unsigned long start, end, stubs, stubs_end;
        static int find(struct dl_phdr_info* info, size_t bytes, void* unused) {
            (void)bytes, (void)unused;
            int program = info->dlpi_name[0] == 0, witness = strstr(info->dlpi_name, "libweir-witness") != NULL;
            for (int i = 0; i < info->dlpi_phnum; i++) {
                const ElfW(Phdr)* p = &info->dlpi_phdr[i];
                unsigned long at = info->dlpi_addr + p->p_vaddr;
                if (program && p->p_type == PT_GNU_RELRO) start = at, end = at + p->p_memsz;
                if (witness && p->p_type == PT_LOAD && p->p_flags & PF_X) stubs = at, stubs_end = at + p->p_memsz;
            }
            return 0;
        }
        int main(void) {
            free(malloc(10));
            dl_iterate_phdr(find, NULL);
            if (!start || !stubs) return 3;
            for (unsigned long at = start; at + 8 <= end; at += 8) {
                unsigned long value = *(unsigned long*)at;
                if (value >= stubs && value < stubs_end) return 4;
            }
            FILE* maps = fopen("/proc/self/maps", "r");
            char line[512];
            while (fgets(line, sizeof line, maps)) {
                unsigned long from, to;
                char flags[5];
                sscanf(line, "%lx-%lx %4s", &from, &to, flags);
                if (from <= start && start < to && flags[1] == 'w') return 5;
            }
            return 0;
        }
    "#;
    let program = compile(
        &scratch,
        "pointers",
        source,
        &["-O1", "-fno-builtin", "-Wl,-z,now", "-Wl,-z,relro"],
    );
    let (_, json) = compare(BOTH, &[shown(&program)]);
    for name in ["system", "weir"] {
        assert_eq!(allocator(&json, name)["status"], "exit status 0", "{json:#}");
        assert_eq!(allocator(&json, name)["proven"], true);
    }
}

#[test]
fn a_library_without_malloc_is_not_in_place() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "touch", TOUCH, &["-O1", "-fno-builtin"]);
    let nothing = library(&scratch, "libnothing.so", "int nothing;");
    let with = format!("nothing={}", shown(&nothing));
    let options = ["--only", "system,weir,nothing", "--rounds", "1", "--with", &with];
    let (output, json) = compare(&options, &[shown(&program)]);
    assert_eq!(status(&output), 3);
    let entry = allocator(&json, "nothing");
    assert_eq!((&entry["proven"], &entry["median"]["time"]), (&Value::Bool(false), &Value::Null));
    let failure = entry["failure"].as_str().expect("a reason");
    assert!(
        failure.contains("not in place: touch: malloc went to") && failure.contains("libc.so"),
        "{failure}"
    );
    assert_proven(&json, "weir", "libweir.so.1");
    assert!(json["verdict"].as_str().is_some_and(|verdict| verdict.contains("left out: nothing")));
}

#[test]
fn programs_that_cannot_be_reached_say_why() {
    let scratch = Scratch::new();
    let fixed = compile(&scratch, "fixed", TOUCH, &["-O1", "-fno-builtin", "-static"]);
    let own = |name: &str, call: &str| {
        let touch = TOUCH.replace("int main", "int touch");
        let main = format!("int main(int n, char** w) {{ {call}; return touch(n, w); }}");
        let source = format!("#include <stdio.h>\n{BUMP}\n{touch}\n{main}");
        compile(&scratch, name, &source, &["-O1", "-fno-builtin", "-rdynamic"])
    };
    let (output, json) = compare(BOTH, &[shown(&fixed)]);
    assert_eq!(status(&output), 3);
    for name in ["system", "weir"] {
        let failure = allocator(&json, name)["failure"].as_str().expect("a reason");
        assert!(failure.contains("fixed: statically linked"), "{failure}");
    }
    // As the largest program of a script too.
    let (output, json) = compare(BOTH, &["sh", "-c", &format!("{} 60; true", shown(&fixed))]);
    assert_eq!(status(&output), 3, "{json:#}");
    // A malloc in the program comes before every preloaded one. Calls inside it cannot be seen, those that
    // the C library makes for it can.
    let silent = own("silent", "");
    let (output, json) = compare(BOTH, &[shown(&silent), "2"]);
    assert_eq!(status(&output), 3);
    let failure = allocator(&json, "weir")["failure"].as_str().expect("a reason");
    assert!(failure.contains("silent: has a malloc of its own linked in"), "{failure}");
    let heard = own("heard", r#"fclose(fopen("/dev/null", "r"))"#);
    let (output, json) = compare(BOTH, &[shown(&heard), "2"]);
    assert_eq!(status(&output), 3);
    assert_proven(&json, "system", shown(&heard));
    let failure = allocator(&json, "weir")["failure"].as_str().expect("a reason");
    assert!(failure.contains("went to") && failure.contains("/heard"), "{failure}");
    let asan = compile(&scratch, "asan", TOUCH, &["-O1", "-fsanitize=address"]);
    let (output, json) = compare(BOTH, &[shown(&asan)]);
    assert_eq!(status(&output), 3);
    let failure = allocator(&json, "system")["failure"].as_str().expect("a reason");
    assert!(failure.contains("asan: built with AddressSanitizer"), "{failure}");
    // A parent that takes LD_PRELOAD away.
    let program = compile(&scratch, "touch", TOUCH, &["-O1", "-fno-builtin"]);
    let script = format!("unset LD_PRELOAD; {} 200 && sleep 0.3", shown(&program));
    let (output, json) = compare(BOTH, &["sh", "-c", &script]);
    assert_eq!(status(&output), 3, "{json:#}");
    let failure = allocator(&json, "weir")["failure"].as_str().expect("a reason");
    assert!(failure.contains("took the preloaded libraries out of LD_PRELOAD"), "{failure}");
}

// ---- figures ---------------------------------------------------------------------------------

#[test]
fn memory_is_that_of_the_program_and_not_of_the_tool() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "touch", TOUCH, &["-O1", "-fno-builtin"]);
    let mib = |json: &Value, field: &str| {
        allocator(json, "system")["rounds"][0][field].as_f64().expect("a number") / 1048576.0
    };
    let (_, small) = compare(BOTH, &[shown(&program), "0"]);
    assert!((0.5..4.0).contains(&mib(&small, "peak_process_bytes")), "{small:#}");
    let (_, large) = compare(BOTH, &[shown(&program), "64"]);
    assert!((64.5..68.0).contains(&mib(&large, "peak_process_bytes")), "{large:#}");
    assert!((64.5..68.0).contains(&mib(&large, "final_bytes")), "{large:#}");
    let faults =
        allocator(&large, "system")["rounds"][0]["minor_faults"].as_u64().expect("a count");
    assert!(faults > 64 * 256 / 2, "{faults}");
    // Two at once count together.
    let slow = TOUCH.replace("return !bytes", "usleep(400000); return !bytes");
    let slow = format!("#include <unistd.h>\n{slow}");
    let slow = compile(&scratch, "slow", &slow, &["-O1", "-fno-builtin"]);
    let together = format!("{0} 64 & {0} 64; wait", shown(&slow));
    let (_, both) = compare(BOTH, &["sh", "-c", &together]);
    assert!((129.0..140.0).contains(&mib(&both, "peak_bytes")), "{both:#}");
    assert!((64.5..68.0).contains(&mib(&both, "peak_process_bytes")), "{both:#}");
}

#[test]
fn time_is_that_of_the_program() {
    let (_, json) = compare(BOTH, &["sleep", "0.3"]);
    let round = &allocator(&json, "weir")["rounds"][0];
    let seconds = |field: &str| round[field].as_f64().expect("a number");
    assert!((0.3..2.0).contains(&seconds("wall_s")) && seconds("cpu_s") < 0.2, "{round:#}");
    let line = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    let (_, json) = compare(BOTH, &["sh", "-c", line]);
    let round = &allocator(&json, "weir")["rounds"][0];
    assert!(round["cpu_s"].as_f64().is_some_and(|cpu| cpu > 0.01), "{round:#}");
}

#[test]
fn json_is_as_the_schema_says() {
    let schema =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compare.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("the schema")).expect("it is JSON");
    let options = ["--only", "system,weir,jemalloc", "--rounds", "6", "--fail-if", "time>900%"];
    let (output, json) = compare(&options, &["sh", "-c", "true"]);
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    check_schema(&json, &schema, &schema, "document");
    assert_eq!(json["conditions"][0]["result"], "not met");
    let weir = allocator(&json, "weir");
    assert_eq!(weir["rounds"].as_array().map(Vec::len), Some(6));
    let interval = weir["ratio_to_system"]["time"]["interval"].as_array().expect("six rounds");
    let median = weir["ratio_to_system"]["time"]["median"].as_f64().expect("a number");
    assert!(
        interval[0].as_f64().expect("low") <= median
            && median <= interval[1].as_f64().expect("high")
    );
    assert_eq!(allocator(&json, "system")["ratio_to_system"]["time"]["median"], 1.0);
    // The part of a failure too.
    let (_, json) = compare(BOTH, &["sh", "-c", "case $LD_PRELOAD in *libweir.so*) exit 4; esac"]);
    check_schema(&json, &schema, &schema, "document");
    // To stdout, alone.
    let output = common::output(&[
        "compare",
        "--json",
        "--only",
        "system,weir",
        "--rounds",
        "1",
        "--",
        "true",
    ]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    check_schema(&json, &schema, &schema, "document");
}

#[test]
fn the_plot_names_what_it_shows() {
    let scratch = Scratch::new();
    let file = scratch.path("plot.svg");
    let program = compile(&scratch, "touch", TOUCH, &["-O1", "-fno-builtin"]);
    let output = tool(&["compare", "--rounds", "1", "--only", "system,weir", "--plot"])
        .args([shown(&file), "--", shown(&program), "100"])
        .output()
        .expect("the tool starts");
    assert_eq!(status(&output), 0);
    let svg = fs::read_to_string(&file).expect("the plot");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for part in [
        "Resident memory of: ",
        "touch 100",
        "\nsystem\n",
        "\nweir\n",
        "peak 10",
        "MiB",
        "seconds",
        "<polyline",
    ] {
        assert!(svg.contains(part), "no {part:?} in the plot");
    }
}

// ---- conditions and differences --------------------------------------------------------------

#[test]
fn conditions_decide_the_exit_status() {
    let six = |condition: &str| {
        let options = ["--only", "system,weir,jemalloc", "--rounds", "6", "--fail-if", condition];
        compare(&options, &["sh", "-c", "true"])
    };
    let (output, json) = six("time>-99%");
    assert_eq!((status(&output), &json["conditions"][0]["result"]), (1, &Value::from("met")));
    assert!(text(&output.stdout).contains("--fail-if 'time>-99%': met"));
    let (output, _) = six("peak>+900% vs jemalloc");
    assert_eq!(status(&output), 0);
}

#[test]
fn a_difference_between_allocators_is_a_failure() {
    let crash = "case $LD_PRELOAD in *libweir.so*) kill -SEGV $$; esac";
    let (output, json) = compare(BOTH, &["sh", "-c", crash]);
    assert_eq!(status(&output), 3);
    let failure = allocator(&json, "weir")["failure"].as_str().expect("a reason");
    assert_eq!(failure, "killed by SIGSEGV, while the first run: exit status 0");
    assert!(
        json["verdict"]
            .as_str()
            .is_some_and(|verdict| verdict.starts_with("weir: no comparison: killed"))
    );
    let print = "case $LD_PRELOAD in *libweir.so*) echo b;; *) echo a; esac";
    let (output, json) = compare(BOTH, &["sh", "-c", print]);
    assert_eq!(status(&output), 0);
    assert!(json["notes"].to_string().contains("differs under weir"), "{}", json["notes"]);
    let (output, json) = compare(&[BOTH, &["--same-output"]].concat(), &["sh", "-c", print]);
    assert_eq!(status(&output), 3);
    assert!(allocator(&json, "weir")["failure"].to_string().contains("stdout differs"));
}

#[test]
fn a_command_that_fails_everywhere_is_a_failure() {
    let seven: &[&str] = &["sh", "-c", "echo why >&2; exit 7"];
    let six = ["--only", "system,weir", "--rounds", "6", "--fail-if", "time>+900%"];
    let (output, json) = compare(&six, seven);
    assert_eq!(status(&output), 3, "{}", text(&output.stdout));
    assert_eq!(
        json["verdict"],
        "no comparison: the command failed under every allocator: exit status 7 (its last words: why)"
    );
    let (output, json) = compare(&[&six[..], &["--expect-status", "7"]].concat(), seven);
    assert_eq!(status(&output), 0, "{json:#}");
    let (output, json) = compare(&[BOTH, &["--expect-status", "7"]].concat(), &["true"]);
    assert_eq!(status(&output), 3, "{json:#}");
    let (output, json) = compare(&[&six[..], &["--ignore-failure"]].concat(), seven);
    assert_eq!(status(&output), 0, "{json:#}");
    let notes = json["notes"].to_string();
    assert!(notes.contains("exit status 7 (its last words: why)"), "{notes}");
}

#[test]
fn a_crash_of_the_system_is_the_systems() {
    let crash = "case $LD_PRELOAD in *libweir.so*) exit 0;; *) kill -ABRT $$;; esac";
    for more in [&[][..], &["--ignore-failure"]] {
        let (output, json) = compare(&[BOTH, more].concat(), &["sh", "-c", crash]);
        assert_eq!(status(&output), 3, "{more:?}");
        assert_eq!(allocator(&json, "weir")["failure"], Value::Null, "{more:?}");
        assert!(allocator(&json, "weir")["median"]["time"].is_number(), "{more:?}");
        let failure = allocator(&json, "system")["failure"].as_str().expect("a reason");
        assert!(failure.starts_with("killed by SIGABRT"), "{more:?}: {failure}");
        let verdict = json["verdict"].as_str().expect("a verdict");
        assert!(verdict.starts_with("system failed: killed by SIGABRT"), "{more:?}: {verdict}");
        assert!(verdict.ends_with("weir did not; left out: system"), "{more:?}: {verdict}");
    }
}

#[test]
fn input_output_preparation_and_limits() {
    let scratch = Scratch::new();
    let (file, count) = (scratch.path("input"), scratch.path("count"));
    fs::write(&file, "hello\n").expect("write");
    let prepare = format!("echo x >> {}", shown(&count));
    let result = tool(&["compare", "--only", "system,weir", "--rounds", "2", "--show-output"])
        .args(["--input", shown(&file), "--prepare", &prepare, "--", "cat"])
        .output()
        .expect("the tool starts");
    assert_eq!(status(&result), 0, "{}", text(&result.stderr));
    assert!(text(&result.stdout).starts_with("hello\nweir compare: cat\n"));
    // A warm-up and two rounds of two allocators.
    assert_eq!(fs::read_to_string(&count).expect("it ran"), "x\n".repeat(6));
    let output = output(&["compare", "--prepare", "exit 9", "--", "true"]);
    assert_eq!(status(&output), 125);
    let options = ["--only", "weir", "--rounds", "1", "--timeout", "0.2"];
    let (output, json) = compare(&options, &["sleep", "41.5"]);
    assert_eq!(status(&output), 3);
    assert!(allocator(&json, "weir")["failure"].to_string().contains("timed out"));
    assert_gone("sleep 41.5");
}

#[test]
fn a_manifest_brings_its_facts_and_its_environment() {
    let scratch = Scratch::new();
    library(&scratch, "libbump.so", BUMP);
    let manifest = scratch.path("peers.json");
    let text = r#"{"peers": [{"name": "bump", "path": "libbump.so", "version": "9.9", "origin": "here",
        "compiler": "cc 1", "flags": "-O2", "environment": {"BUMP_X": "7"}, "note": "never frees"}]}"#;
    fs::write(&manifest, text).expect("write");
    let options = ["--only", "system,bump", "--rounds", "1", "--peers", shown(&manifest)];
    let script = r#"[ "${BUMP_X:-0}" = 7 ]; test $? = 0 && echo yes; true"#;
    let (output, json) = compare(&options, &["sh", "-c", script]);
    assert_eq!(status(&output), 0, "{json:#}");
    assert_proven(&json, "bump", "libbump.so");
    let bump = allocator(&json, "bump");
    for (field, value) in [
        ("version", "9.9"),
        ("origin", "here"),
        ("compiler", "cc 1"),
        ("flags", "-O2"),
        ("note", "never frees"),
    ] {
        assert_eq!(bump[field], value);
    }
    assert_eq!(bump["environment"]["BUMP_X"], "7");
    // Only the peer saw the variable, so only its output differs.
    assert!(json["notes"].to_string().contains("differs under bump"), "{}", json["notes"]);
}

// ---- what goes wrong -------------------------------------------------------------------------

#[test]
fn own_errors_are_one_line_with_the_usual_code() {
    let scratch = Scratch::new();
    let foreign = library(&scratch, "libforeign.so", "int x;");
    let mut bytes = fs::read(&foreign).expect("read");
    bytes[18] ^= 0x80;
    fs::write(&foreign, &bytes).expect("write");
    let plain = compile(&scratch, "program", TOUCH, &["-no-pie", "-fno-pie"]);
    let blank = scratch.path("a b.so");
    fs::copy(library(&scratch, "libx.so", "int x;"), &blank).expect("copy");
    let (foreign, plain, blank) = (
        format!("a={}", shown(&foreign)),
        format!("a={}", shown(&plain)),
        format!("a={}", shown(&blank)),
    );
    let broken = scratch.path("broken.json");
    fs::write(&broken, r#"{"peers": [{"name": "x", "path": "nowhere.so"}]}"#).expect("write");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--", "./no-such-program"], 127, "check the path after '--'"),
        (&["--", "/etc/passwd"], 126, "cannot execute"),
        (&[], 2, "no command: write 'weir compare -- PROGRAM"),
        (&["--with", "a", "--", "true"], 2, "write --with NAME=PATH"),
        (&["--with", "a=/no/such.so", "--", "true"], 2, "/no/such.so: No such file"),
        (&["--with", "a=/etc/passwd", "--", "true"], 2, "not an ELF file"),
        (&["--with", &foreign, "--", "true"], 2, "built for another machine"),
        (&["--with", &plain, "--", "true"], 2, "not a shared library"),
        (&["--with", &blank, "--", "true"], 2, "LD_PRELOAD cannot hold"),
        (&["--with", "weir=/x", "--", "true"], 2, "is taken"),
        (&["--peers", "/no/such.json", "--", "true"], 2, "cannot read the manifest"),
        (&["--peers", "/etc/passwd", "--", "true"], 2, "is no manifest"),
        (&["--peers", shown(&broken), "--", "true"], 2, "nowhere.so"),
        (
            &["--only", "nobody", "--", "true"],
            2,
            "no allocator 'nobody' here: there are system, weir",
        ),
        (&["--without", "weir", "--", "true"], 2, "only --only can leave it out"),
        (&["--fail-if", "time", "--", "true"], 2, "there is no '>'"),
        (&["--fail-if", "time>3% vs nobody", "--", "true"], 2, "needs the allocator 'nobody'"),
        (&["--fail-if", "time>3%", "--rounds", "5", "--", "true"], 2, "at least 6 rounds"),
        (&["--rounds", "0", "--", "true"], 2, "--rounds"),
        (&["--time-budget", "x", "--", "true"], 2, "number of seconds"),
        (&["--port", "80", "--", "true"], 2, "--until"),
        (&["--until", "true", "--stop-signal", "NOPE", "--", "true"], 2, "use one of TERM"),
        (&["--input", "/no/such", "--", "true"], 2, "cannot read /no/such: No such file"),
        (&["--input", "/tmp", "--", "true"], 2, "cannot read /tmp: is a directory"),
        (&["--json=/no/such/x", "--", "true"], 125, "cannot write"),
        (&["--json", "out.json", "--", "true"], 2, "write --json=FILE"),
        (&["--plot", "/no/such/x", "--", "true"], 125, "cannot write"),
        (&["--plot", "x", "--json=x", "--", "true"], 2, "--json and --plot both name x"),
        (&["--plot", "-", "--json", "--", "true"], 2, "--json and --plot both name -"),
    ];
    for (arguments, code, part) in cases {
        let output = tool(&["compare"]).args(*arguments).output().expect("the tool starts");
        let message = text(&output.stderr);
        assert_eq!(status(&output), *code, "{arguments:?}: {message}");
        assert!(message.contains(part), "{arguments:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{arguments:?}: {message}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_plot_for_stdout_stands_alone_there() {
    let scratch = Scratch::new();
    let words = ["--only", "weir", "--rounds", "1", "--warmup", "0", "--plot", "-", "--", "true"];
    let mut run = tool(&["compare"]);
    let output = run.args(words).current_dir(scratch.path("")).output().expect("the tool starts");
    let shown = text(&output.stdout);
    assert!(shown.starts_with('<') && shown.trim_end().ends_with("</svg>"), "{shown}");
    assert!(!scratch.path("-").exists());
}

#[test]
fn a_limit_of_file_sizes_is_named_and_leaves_nothing() {
    // Too little for the library, and for the witness's file.
    for blocks in [0, 8000] {
        let words = ["compare", "--only", "weir", "--rounds", "1", "--json=out", "--", "true"];
        let (output, left) = limited(blocks, &words);
        let message = text(&output.stderr);
        assert_eq!(status(&output), 125, "{message}");
        assert!(message.contains("limit of file sizes (ulimit -f)"), "{message}");
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn an_interrupt_shows_what_there_is_and_leaves_nothing() {
    let scratch = Scratch::new();
    let json = scratch.path("out.json");
    let child = tool(&["compare", "--only", "system,weir", "--rounds", "1000"])
        .arg(format!("--json={}", shown(&json)))
        .args(["--", "sh", "-c", "sleep 0.0625; true"])
        .env("TMPDIR", scratch.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    std::thread::sleep(Duration::from_millis(1500));
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("kill");
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.status.signal(), Some(2), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("interrupted") && shown.contains("weir against system"), "{shown}");
    let json: Value =
        serde_json::from_str(&fs::read_to_string(&json).expect("JSON")).expect("JSON");
    assert_eq!(json["interrupted"], true);
    assert_gone("sleep 0.0625");
    let left: Vec<_> = fs::read_dir(scratch.path("")).expect("a directory").flatten().collect();
    assert_eq!(left.len(), 1, "only the JSON stays: {left:?}");
}

#[test]
fn any_signal_that_ends_a_process_is_an_interrupt() {
    let signals =
        [Signal::TERM, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::PROF, Signal::IO];
    for signal in signals {
        let scratch = Scratch::new();
        let child = tool(&["compare", "--only", "weir", "--rounds", "1", "--", "sleep", "92.625"])
            .env("TMPDIR", scratch.path(""))
            .env("XDG_RUNTIME_DIR", scratch.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        std::thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), signal).expect("kill");
        let output = child.wait_with_output().expect("wait");
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("it did not run"), "{signal:?}");
        assert_gone("sleep 92.625");
        assert_eq!(fs::read_dir(scratch.path("")).expect("a folder").count(), 0, "{signal:?}");
    }
}

#[test]
fn a_killed_tool_takes_the_command_along() {
    let scratch = Scratch::new();
    let mut child = tool(&["compare", "--only", "weir", "--rounds", "1", "--", "sleep", "93.125"])
        .env("TMPDIR", scratch.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the tool starts");
    std::thread::sleep(Duration::from_millis(700));
    kill_process(Pid::from_child(&child), Signal::KILL).expect("kill");
    child.wait().expect("wait");
    assert_gone("sleep 93.125");
}

#[test]
fn processes_that_stay_are_stopped_and_named() {
    let (output, json) = compare(BOTH, &["sh", "-c", "sleep 66.375 & true"]);
    assert_eq!(status(&output), 0, "{json:#}");
    let notes = allocator(&json, "weir")["notes"].to_string();
    assert!(notes.contains("1 process was still running"), "{notes}");
    assert_gone("sleep 66.375");
}

#[test]
fn an_interrupt_before_all_have_run_says_so() {
    let child =
        tool(&["compare", "--only", "system,weir", "--rounds", "1", "--", "sleep", "91.125"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool starts");
    std::thread::sleep(Duration::from_millis(700));
    kill_process(Pid::from_child(&child), Signal::INT).expect("kill");
    let output = child.wait_with_output().expect("wait");
    let shown = text(&output.stdout);
    assert!(shown.contains("\n  it did not run\n") && !shown.contains("in place"), "{shown}");
    assert_gone("sleep 91.125");
}

// ---- texts -----------------------------------------------------------------------------------

#[test]
fn a_ratio_is_announced_only_where_there_is_one() {
    for (only, announced) in [("system,weir", true), ("weir,jemalloc", false)] {
        let shown = output(&["compare", "--only", only, "--rounds", "6", "--", "sh", "-c", "true"]);
        let shown = text(&shown.stdout);
        assert_eq!(shown.contains("ratio to system"), announced, "{shown}");
        assert!(shown.contains("medians of 6 interleaved rounds"), "{shown}");
    }
}

/// What the tool writes to a terminal of that kind.
fn on_terminal(kind: Option<&str>, arguments: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("grantpt");
    unlockpt(&master).expect("unlockpt");
    let name = ptsname(&master, Vec::new()).expect("ptsname");
    let path = name.to_str().expect("UTF-8");
    let slave = File::options().read(true).write(true).open(path).expect("the other side");
    let mut command = tool(arguments);
    match kind {
        Some(kind) => command.env("TERM", kind),
        None => command.env_remove("TERM"),
    };
    let mut child = command.stdout(Stdio::null()).stderr(slave).spawn().expect("the tool starts");
    drop(command);
    let (mut terminal, mut seen, mut buffer) = (File::from(master), Vec::new(), [0; 256]);
    // Reading fails when the last process has closed its side.
    while let Ok(got @ 1..) = terminal.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..got]);
    }
    assert!(child.wait().expect("it ends").success(), "{}", text(&seen));
    text(&seen)
}

#[test]
fn a_bar_is_drawn_where_the_terminal_can() {
    let words = ["compare", "--only", "system", "--rounds", "2", "--", "sleep", "0.1"];
    for (kind, drawn) in
        [(Some("xterm"), true), (Some(""), false), (Some("dumb"), false), (None, false)]
    {
        let seen = on_terminal(kind, &words);
        assert_eq!(seen.contains('\x1b'), drawn, "{kind:?}: {seen:?}");
        assert_eq!(seen.contains("weir: warm-up, system"), !drawn, "{kind:?}: {seen:?}");
    }
}

#[test]
fn man_pages_and_completions_know_every_command() {
    let scratch = Scratch::new();
    let result = tool(&["man", shown(&scratch.path(""))]).output().expect("the tool starts");
    assert_eq!(status(&result), 0);
    for page in ["weir.1", "weir-run.1", "weir-compare.1", "weir-bench.1", "weir-options.1"] {
        let page = fs::read_to_string(scratch.path(page)).expect(page);
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
    }
    let page = fs::read_to_string(scratch.path("weir-compare.1")).expect("the page");
    assert!(page.contains("fail") && page.contains("until"));
    assert!(text(&output(&["man"]).stdout).contains(".TH weir 1"));
    assert_eq!(status(&output(&["man", "/no/such/folder"])), 125);
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&output(&["completions", shell]).stdout);
        assert!(script.contains("compare") && script.contains("fail-if"), "{shell}");
    }
}
