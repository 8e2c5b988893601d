//! `weir stats` as a user sees it: the figures of a process that runs, and one line where there are none.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::pools::{pool, program};
use super::{Scratch, Value, WEIR, fs, output, text, tool};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(command: &mut Command) -> Running {
    Running(command.spawn().expect("it starts"))
}

/// A command under `weir run` that ends with its standard input, and the pid that its first line tells.
fn under_run(command: &mut Command) -> (Running, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = started(command);
    let mut line = String::new();
    let mut out = BufReader::new(running.0.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("a line");
    (running, line.trim().to_owned())
}

fn stats_json(pid: &str) -> Value {
    let output = output(&["stats", "--json", pid]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn refused(arguments: &[&str], code: i32, message: &str) {
    let output = output(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(message), "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("weir: ") && stderr.matches('\n').count() == 1, "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_running_process_shows_its_pools() {
    let scratch = Scratch::new();
    // Its figures are written by calls that no cache serves, as all of a pool with a limit are.
    let body = "struct weir_pool* rows = weir_pool_create(\"rows\", 200, 0, 0);\
         struct weir_pool* few = weir_pool_create(\"few\", 64, 0, WEIR_POOL_NO_MERGE); weir_pool_limit(few, 4);\
         take(few, 3); take(rows, 123); printf(\"%d\\n\", (int)getpid()); fflush(stdout);\
         fcntl(0, F_SETFL, O_NONBLOCK); struct timespec pause = {0, 1000000}; char c;\
         while (read(0, &c, 1) < 0) { nanosleep(&pause, 0); weir_pool_free(few, weir_pool_alloc(few)); }";
    let program = program(&scratch, body);
    let (running, pid) = under_run(tool(&["run", "--quiet", "--"]).arg(&program));
    // What it took first may be written with the next refresh.
    let until = Instant::now() + Duration::from_secs(20);
    let json = loop {
        let json = stats_json(&pid);
        let taken =
            json["pools"].as_array().is_some_and(|rows| rows.iter().any(|r| r["used"] == 123));
        assert!(taken || Instant::now() < until, "{json:#}");
        if taken {
            break json;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(json["schema"], "weir-stats/1");
    assert_eq!(json["pid"].to_string(), pid);
    assert_eq!(json["exe"], program.to_str().expect("UTF-8"));
    assert_eq!(json["is_final"], false);
    assert!(json["alloc_calls"].as_u64() > Some(100));
    let rows = pool(&json, "rows");
    assert_eq!(rows["allocated"].as_u64(), rows["cached"].as_u64().map(|cached| cached + 123));
    assert_eq!(pool(&json, "few")["used"], 3);
    assert!(json["running_seconds"].as_f64() >= json["age_seconds"].as_f64());

    let shown = output(&["stats", &pid]);
    let shown = text(&shown.stdout);
    assert!(shown.starts_with(&format!("weir: process {pid}, {}\n", program.display())), "{shown}");
    for word in ["figures", "resident", "live", "calls", "pools           2, ", "\n    rows   200"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    // It writes on: the figures do not grow old.
    assert!(stats_json(&pid)["age_seconds"].as_f64() < Some(5.0));
    drop(running);
}

#[test]
fn a_process_without_figures_is_told_why() {
    refused(&["stats"], 2, "no process: write 'weir stats PID'");
    refused(&["stats", "one"], 2, "'one'");
    refused(&["stats", "0"], 2, "'0'");
    refused(&["stats", "2147483647"], 125, "there is no process 2147483647");

    let mut dead = Command::new("true").spawn().expect("it starts");
    let pid = dead.id().to_string();
    let zombie = |pid: &str| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    };
    while !zombie(&pid) {
        std::thread::sleep(Duration::from_millis(5));
    }
    refused(&["stats", &pid], 125, "has ended");
    dead.wait().expect("it ended");

    let plain = started(Command::new("sleep").arg("60").env_remove("WEIR_WIRE"));
    refused(
        &["stats", &plain.0.id().to_string()],
        125,
        "was not started by 'weir run' and maps no libweir",
    );

    let script = "echo $$; exec env -u WEIR_WIRE sleep 60";
    let (_running, pid) = under_run(&mut tool(&["run", "--quiet", "--", "sh", "-c", script]));
    let until = Instant::now() + Duration::from_secs(20);
    while !fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.starts_with("sleep"))
    {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    refused(&["stats", &pid], 125, "has libweir, but was not started by 'weir run'");
    let _ = Command::new("kill").arg(&pid).status();
}

#[test]
fn a_wire_file_that_cannot_serve_is_told() {
    let scratch = Scratch::new();
    let wire = scratch.path("wire");
    let sleeper = started(Command::new("sleep").arg("60").env("WEIR_WIRE", &wire));
    let pid = sleeper.0.id().to_string();
    let gone = "is gone: 'weir run' was killed, or the file was removed";
    // The environment is the program's once it runs, and until then a copy of this process's.
    let until = Instant::now() + Duration::from_secs(20);
    while !text(&output(&["stats", &pid]).stderr).contains(gone) {
        assert!(Instant::now() < until, "{}", text(&output(&["stats", &pid]).stderr));
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut header = [0u8; 64];
    header[0..8].copy_from_slice(&0x3152_4957_4552_4957u64.to_ne_bytes());
    header[8..12].copy_from_slice(&1u32.to_ne_bytes());
    header[16..20].copy_from_slice(&512u32.to_ne_bytes());
    fs::write(&wire, header).expect("write");
    refused(&["stats", &pid], 125, "is not on weir: it is in none of the slots");
    header[8..12].copy_from_slice(&9u32.to_ne_bytes());
    fs::write(&wire, header).expect("write");
    refused(&["stats", &pid], 125, "the wire file has version 9, this tool reads 1");
    fs::write(&wire, "text").expect("write");
    refused(&["stats", &pid], 125, "the wire file was cut to 4 bytes");
}

/// As root the tool runs as somebody else; anybody else may not look at root's first process.
#[test]
fn another_users_process_is_told() {
    let is_root = fs::metadata("/proc/self").expect("a process").uid() == 0;
    let scratch = Scratch::new();
    let copy = scratch.path("weir");
    fs::copy(WEIR, &copy).expect("copy");
    let mut command = Command::new(&copy);
    command.args(["stats", "1"]);
    if is_root {
        command.uid(65534).gid(65534);
    }
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("weir: may not look at process 1: run this as its user"),
        "{stderr}"
    );
}

#[test]
fn what_another_process_names_is_not_trusted() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let strange = scratch.path("a\u{1b}[31mb\nc");
    fs::write(&strange, "hello").expect("written");
    for (wire, message) in [
        (pipe, "is no file"),
        ("/dev/null".into(), "/dev/null, which its WEIR_WIRE names, is no file"),
        (strange, "a?[31mb?c: the wire file was cut to 5 bytes"),
    ] {
        let sleeping = started(Command::new("sleep").env("WEIR_WIRE", wire).arg("60"));
        refused(&["stats", &sleeping.0.id().to_string()], 125, message);
    }
}
