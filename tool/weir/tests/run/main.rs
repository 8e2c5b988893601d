//! `weir run` as a user sees it: exit codes, signals, stdio, the terminal, and the report. Each test
//! runs the built tool, with the library that WEIR_LIBRARY named when it was built. It knows nothing
//! of the tool's inside.
//!
//! SPDX-License-Identifier: Apache-2.0

#[path = "../common/mod.rs"]
mod common;
mod plot;
mod pools;
mod stats;

use common::{Scratch, WEIR, check_schema, compile, limited, output, text, tool};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Runs a command with --json and gives its output and the JSON.
fn json(command: &[&str]) -> (Output, Value) {
    let scratch = Scratch::new();
    let file = scratch.path("report.json");
    let output = tool(&["run", "--quiet", "--json"])
        .arg(&file)
        .arg("--")
        .args(command)
        .output()
        .expect("the tool starts");
    let json = fs::read_to_string(&file).expect("the JSON was written");
    (output, serde_json::from_str(&json).expect("it is JSON"))
}

fn process<'a>(json: &'a Value, name: &str) -> &'a Value {
    json["processes"]
        .as_array()
        .expect("an array")
        .iter()
        .find(|row| row["exe"].as_str().is_some_and(|exe| exe.ends_with(name)))
        .unwrap_or_else(|| panic!("{name} is not in {json:#}"))
}

/// The path that /proc shows for a program of PATH.
fn real(name: &str) -> String {
    let output = Command::new("sh").args(["-c", &format!("command -v {name}")]).output();
    let path = text(&output.expect("sh").stdout);
    Path::new(path.trim()).canonicalize().expect("it exists").display().to_string()
}

// ---- exit codes and errors -------------------------------------------------------------------

#[test]
fn exit_code_is_kept() {
    for code in [0, 1, 42, 255] {
        let output = output(&["run", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert!(text(&output.stderr).contains(&format!("exit status {code}")));
    }
}

#[test]
fn death_by_signal_is_kept() {
    for signal in [6, 9, 11, 15] {
        let output = output(&["run", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal));
        assert!(!output.status.core_dumped(), "the tool left a core file of its own");
        assert!(text(&output.stderr).contains("killed by SIG"));
    }
}

#[test]
fn own_errors_are_one_line_with_the_usual_code() {
    let scratch = Scratch::new();
    let plain = scratch.path("plain");
    fs::write(&plain, "text").expect("write");
    let bad_script = scratch.path("script");
    fs::write(&bad_script, "#!/no/such/interpreter\n").expect("write");
    fs::set_permissions(&bad_script, PermissionsExt::from_mode(0o755)).expect("chmod");
    let foreign = scratch.path("foreign");
    let mut header = fs::read(WEIR).expect("read");
    header.truncate(4096);
    header[18] ^= 0x80;
    fs::write(&foreign, header).expect("write");
    fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).expect("chmod");
    let foreign = foreign.to_str().expect("UTF-8");
    let plain = plain.to_str().expect("UTF-8");
    let bad_script = bad_script.to_str().expect("UTF-8");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "--", "no-such-program-at-all"], 127, "no such program"),
        (&["run", "--", "/no/such/program"], 127, "no such program"),
        (&["run", "--", ""], 127, "no such program"),
        (&["run", "--", bad_script], 127, "/no/such/interpreter, which does not exist"),
        (&["run", "--", plain], 126, "not executable"),
        (&["run", "--", foreign], 126, "built for another machine"),
        (&["run", "--", "/"], 126, "is a directory"),
        (&["run"], 2, "no command: write"),
        (&["run", "--"], 2, "no command: write"),
        (&[], 2, "nothing to do"),
        (&["run", "--wrong", "true"], 2, "'--wrong'"),
        (&["run", "--quiet", "--report", "x", "true"], 2, "cannot be used with"),
        (
            &["run", "--json", "x", "--report", "./x", "true"],
            2,
            "--json and --report both name ./x",
        ),
        (
            &["run", "--plot", "x", "--plot-data", "x", "true"],
            2,
            "--plot and --plot-data both name x",
        ),
        (&["run", "--json", "-", "--report", "-", "true"], 2, "--json and --report both name -"),
        (&["run", "--options", "on_eror=report", "true"], 2, "did you mean 'on_error'?"),
        (&["run", "--options", "on_error=maybe", "true"], 2, "one of abort, report"),
        (&["run", "--interval", "0", "true"], 2, "'--interval <MS>'"),
        (&["run", "--plot", "/no/such/dir/file", "true"], 125, "cannot write /no/such/dir/file"),
        (&["run", "--json", "/no/such/dir/file", "true"], 125, "cannot write /no/such/dir/file"),
    ];
    for (arguments, code, message) in cases {
        let output = output(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("weir: "), "{stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn arguments_may_be_any_bytes() {
    let strange = OsStr::from_bytes(b"\xff");
    for (before, code) in [(&[][..], 2), (&["stats"], 2), (&["run"], 127), (&["run", "--json"], 2)]
    {
        let output = tool(before).arg(strange).output().expect("the tool starts");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{before:?}: {stderr}");
        assert!(stderr.starts_with("weir: "), "{before:?}: {stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{before:?}: {stderr}");
    }
}

#[test]
fn a_text_without_a_first_line_runs_in_the_shell() {
    let scratch = Scratch::new();
    let script = scratch.path("script");
    fs::write(&script, "exit 5\n").expect("write");
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("chmod");
    assert_eq!(output(&["run", script.to_str().expect("UTF-8")]).status.code(), Some(5));
}

#[test]
fn a_limit_of_file_sizes_is_named_and_leaves_nothing() {
    let (output, left) = limited(0, &["run", "--", "true"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("limit of file sizes (ulimit -f)"), "{stderr}");
    assert_eq!(stderr.matches('\n').count(), 1, "{stderr}");
    assert!(left.is_empty(), "{left:?}");
}

// ---- stdio and environment -------------------------------------------------------------------

#[test]
fn stdio_is_kept() {
    let mut child = tool(&["run", "--quiet", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    let sent: Vec<u8> = (0..1_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
    let mut stdin = child.stdin.take().expect("piped");
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("all was read");
    assert!(output.stdout == sent, "{} of {} bytes came back", output.stdout.len(), sent.len());
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(output.status.success());
}

#[test]
fn closed_descriptors_stay_closed() {
    let which =
        "n=0; for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] || n=$((n * 4 + fd + 1)); done; exit $n";
    for (closed, code) in [("", 0), ("<&-", 1), (">&-", 2), ("2>&-", 3), ("<&- >&- 2>&-", 27)] {
        let script = format!("exec \"$@\" {closed}");
        let run = |before: &[&str]| {
            let words = [&["-c", &script, "sh"], before, &["sh", "-c", which]].concat();
            Command::new("sh").args(words).output().expect("sh").status.code()
        };
        assert_eq!(run(&[]), Some(code), "{closed}");
        assert_eq!(run(&[WEIR, "run", "--quiet", "--"]), Some(code), "{closed}");
    }
}

#[test]
fn a_report_that_has_no_room_goes_to_stderr() {
    let output = output(&["run", "--report", "/dev/full", "--", "sh", "-c", "exit 3"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.contains("cannot write /dev/full: No space left on device; make room"),
        "{stderr}"
    );
    assert!(stderr.contains("1 program: on weir"), "{stderr}");
}

#[test]
fn a_device_takes_several_results() {
    let words = ["run", "--json", "/dev/stdout", "--report", "/dev/stdout", "--", "true"];
    let output = output(&words);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("weir-run/1") && shown.contains("weir: true"), "{shown}");
}

#[test]
fn a_dash_is_stdout_and_comes_after_what_the_command_wrote() {
    let scratch = Scratch::new();
    let here = |options: &[&str]| {
        let mut run = tool(&["run"]);
        run.args(options).args(["--", "sh", "-c", "echo out; exit 3"]);
        let output = run.current_dir(scratch.path("")).output().expect("the tool starts");
        assert_eq!(output.status.code(), Some(3), "{options:?}: {}", text(&output.stderr));
        let all = text(&output.stdout);
        all.strip_prefix("out\n").unwrap_or_else(|| panic!("{options:?}: {all}")).to_owned()
    };
    let json: Value = serde_json::from_str(&here(&["--quiet", "--json", "-"])).expect("JSON");
    assert_eq!(json["schema"], "weir-run/1");
    assert!(here(&["--report", "-"]).starts_with("weir: sh -c"));
    assert!(here(&["--quiet", "--plot", "-"]).contains("<svg"));
    assert!(here(&["--quiet", "--plot-data", "-"]).contains('\t'));
    assert!(!scratch.path("-").exists());

    // A file of that name has a path.
    assert_eq!(here(&["--quiet", "--json", "./-"]), "");
    assert!(scratch.path("-").exists());
}

#[test]
fn the_report_goes_to_stderr_or_a_file() {
    let output = output(&["run", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(text(&output.stdout), "out\n");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("err\nweir: sh -c"), "{stderr}");
    let stderr = text(&self::output(&["run", "--", "ls", "/"]).stderr);
    for word in
        ["resident", "live", "fragmentation", "calls", "system calls", "given back", "last sample"]
    {
        assert!(stderr.contains(word), "{word} is missing: {stderr}");
    }

    let scratch = Scratch::new();
    let file = scratch.path("report");
    let output = tool(&["run", "--report"]).arg(&file).args(["--", "echo"]).output();
    assert!(output.expect("the tool starts").stderr.is_empty());
    assert!(fs::read_to_string(&file).expect("written").starts_with("weir: echo"));
}

#[test]
fn statistics_at_exit_are_as_the_schema_says() {
    let schema =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stats.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("the schema")).expect("it is JSON");
    let scratch = Scratch::new();
    let source = "#include <stdlib.h>\nint main(void) { return malloc(5000) == 0; }";
    let program = compile(&scratch, "small", source, &["-fno-builtin"]);
    let output = tool(&["run", "--quiet", "--options", "stats=exit"]).arg(program).output();
    let json: Value =
        serde_json::from_slice(&output.expect("the tool starts").stderr).expect("nothing but JSON");
    check_schema(&json, &schema, &schema, "document");
    for name in ["refaulted_bytes", "scanned_bytes", "release_calls", "hole_bytes"] {
        assert!(json[name].is_u64(), "{name} is missing: {json:#}");
    }
}

#[test]
fn the_environment_is_extended() {
    let script = "printf '%s\\n' \"$LD_PRELOAD\" \"$WEIR_OPTIONS\"";
    let libc = "libc.so.6";
    let output =
        tool(&["run", "--quiet", "--options", "on_error=report", "--", "sh", "-c", script])
            .env("LD_PRELOAD", libc)
            .env("WEIR_OPTIONS", "checks=full")
            .output()
            .expect("the tool starts");
    let stdout = text(&output.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].ends_with(&format!("libweir.so.1:{libc}")), "{stdout}");
    assert_eq!(lines[1], "checks=full:on_error=report");
    let library = lines[0].split(':').next().expect("a path");
    assert!(!Path::new(library).exists(), "{library} was left behind");
}

#[test]
fn dispositions_are_inherited() {
    let status = "grep SigIgn /proc/self/status";
    let ignore = "trap '' PIPE HUP XFSZ";
    let direct = Command::new("sh").args(["-c", &format!("{ignore}; {status}")]).output();
    let weir = WEIR.to_owned();
    let script = format!("{ignore}; {weir} run --quiet -- sh -c '{status}'");
    let through = Command::new("sh").args(["-c", &script]).output();
    assert_eq!(text(&direct.expect("sh").stdout), text(&through.expect("sh").stdout));
    let plain = Command::new("sh").args(["-c", status]).output().expect("sh");
    let through = output(&["run", "--quiet", "--", "sh", "-c", status]);
    assert_eq!(text(&plain.stdout), text(&through.stdout));
}

// ---- which processes were reached ------------------------------------------------------------

#[test]
fn a_dynamic_program_is_reached() {
    let (output, json) = json(&["ls", "/"]);
    assert!(output.status.success());
    assert_eq!(json["schema"], "weir-run/1");
    let row = process(&json, &real("ls"));
    assert_eq!(row["verdict"], "reached", "{json:#}");
    assert!(row["figures"]["alloc_calls"].as_u64() > Some(0));
    assert!(json["root"]["resident_peak_bytes"].as_u64() > Some(0));
    assert_eq!(json["handshake"]["reached"], 1);
}

#[test]
fn children_are_reached_too() {
    let (_, json) = json(&["sh", "-c", "ls / >/dev/null; ls / >/dev/null; exit 0"]);
    assert_eq!(process(&json, &real("sh"))["verdict"], "reached");
    let ls = real("ls");
    let rows = json["processes"].as_array().expect("an array");
    let rows: Vec<&Value> = rows.iter().filter(|row| row["exe"] == ls.as_str()).collect();
    assert_eq!(rows.len(), 2, "{json:#}");
    assert!(rows.iter().all(|row| row["verdict"] == "reached"), "{json:#}");
    assert_eq!(json["handshake"]["not_reached"], 0, "{json:#}");
}

#[test]
fn a_static_program_is_named() {
    let scratch = Scratch::new();
    let source = "#include <unistd.h>\nint main(void) { usleep(300000); return 4; }";
    let program = compile(&scratch, "fixed", source, &["-static"]);
    let program = program.to_str().expect("UTF-8");
    let (output, report) = json(&[program]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(process(&report, "/fixed")["reason"], "static");

    // As a child, found by looking.
    let (_, report) = json(&["sh", "-c", &format!("{program}; exit 0")]);
    assert_eq!(process(&report, "/fixed")["reason"], "static", "{report:#}");
    assert_eq!(process(&report, &real("sh"))["verdict"], "reached");
}

#[test]
fn a_short_static_root_is_named() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "brief", "int main(void) { return 0; }", &["-static"]);
    let result = output(&["run", program.to_str().expect("UTF-8")]);
    let stderr = text(&result.stderr);
    assert!(stderr.contains("NOT on weir") && stderr.contains("statically linked"), "{stderr}");
}

#[test]
fn a_cleaned_environment_is_named() {
    let (_, json) = json(&["env", "-i", "/bin/sleep", "0.2"]);
    assert_eq!(process(&json, "/sleep")["reason"], "preload_cleared", "{json:#}");
}

#[test]
fn a_run_inside_a_run_takes_its_programs_over() {
    let scratch = Scratch::new();
    let file = scratch.path("inner.json");
    let inner = file.to_str().expect("UTF-8");
    let script = "sleep 0.2; true";
    let (_, outer) = json(&[WEIR, "run", "--quiet", "--json", inner, "--", "sh", "-c", script]);
    for name in [&real("sh"), &real("sleep")] {
        assert_eq!(process(&outer, name)["reason"], "other_run", "{outer:#}");
    }
    assert_eq!(process(&outer, "/weir")["verdict"], "reached", "{outer:#}");

    let inner = fs::read_to_string(&file).expect("the JSON was written");
    let inner: Value = serde_json::from_str(&inner).expect("it is JSON");
    let rows = inner["processes"].as_array().expect("an array");
    assert_eq!(rows.len(), 2, "one for each program: {inner:#}");
    assert!(rows.iter().all(|row| row["verdict"] == "reached"), "{inner:#}");
}

#[test]
fn what_may_have_been_missed_is_said() {
    let (_, one) = json(&["ls", "/"]);
    assert_eq!(one["handshake"]["may_have_missed"], false, "{one:#}");
    let (_, two) = json(&["sh", "-c", "ls / >/dev/null; exit 0"]);
    assert_eq!(two["handshake"]["may_have_missed"], true, "{two:#}");
    // Mostly too short to be seen, and the loader cannot announce it.
    let (_, brief) = json(&["env", "-i", "/bin/true"]);
    let rows = brief["processes"].as_array().expect("an array");
    let seen = rows.iter().any(|row| row["exe"].as_str().is_some_and(|exe| exe.ends_with("/true")));
    assert!(seen || brief["handshake"]["may_have_missed"] == true, "{brief:#}");
}

#[test]
fn a_malloc_of_its_own_is_named() {
    let scratch = Scratch::new();
    let source = "#include <stddef.h>\n\
        static char heap[1 << 20]; static size_t used;\n\
        void* malloc(size_t n) { void* p = heap + used; used += (n + 15) & ~(size_t)15; return p; }\n\
        void free(void* p) { (void)p; }\n\
        int main(void) { volatile char* p = malloc(10); *p = 1; return 0; }";
    let program = compile(&scratch, "own", source, &["-rdynamic", "-fno-builtin"]);
    let (_, json) = json(&[program.to_str().expect("UTF-8")]);
    assert_eq!(process(&json, "/own")["reason"], "own_malloc", "{json:#}");
}

#[test]
fn many_processes_are_grouped() {
    let loop_ = "i=0; while [ $i -lt 20 ]; do ls / >/dev/null; i=$((i+1)); done";
    let stderr = text(&output(&["run", "--", "sh", "-c", loop_]).stderr);
    assert!(stderr.contains("20 x  on weir"), "{stderr}");
    assert!(stderr.lines().count() < 22, "{stderr}");
}

#[test]
fn survivors_keep_their_library() {
    let scratch = Scratch::new();
    let file = scratch.path("report");
    let script = "trap '' HUP; sleep 1 >/dev/null 2>&1 & echo $LD_PRELOAD; exit 0";
    let output = tool(&["run", "--report"])
        .arg(&file)
        .args(["--", "sh", "-c", script])
        .output()
        .expect("the tool starts");
    let library = text(&output.stdout).trim().to_owned();
    assert!(Path::new(&library).exists(), "{library} was taken from a running process");
    let report = fs::read_to_string(&file).expect("written");
    assert!(report.contains("still running"), "{report}");
    let directory = Path::new(&library).parent().expect("a directory");
    fs::remove_dir_all(directory).expect("remove");
}

// ---- signals and the terminal ----------------------------------------------------------------

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// A command that says "ready" and then waits for a signal that it answers.
const ANSWERS: &str = "trap 'echo got; exit 7' INT TERM; echo ready; while :; do sleep 0.05; done";

#[test]
fn a_signal_to_the_tool_is_passed_on() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = tool(&["run", "--quiet", "--", "sh", "-c", ANSWERS])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        kill_process(pid(&child), signal).expect("kill");
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("the rest");
        assert_eq!(rest, "got\n");
        assert_eq!(child.wait().expect("it ends").code(), Some(7));
    }
}

#[test]
fn a_signal_without_handler_ends_both() {
    let signals = [Signal::TERM, Signal::USR2, Signal::VTALARM, Signal::XCPU, Signal::IO];
    for signal in signals {
        let scratch = Scratch::new();
        let mut child = tool(&["run", "--quiet", "--", "sh", "-c", "echo ready; exec sleep 30"])
            .env("TMPDIR", scratch.path(""))
            .env("XDG_RUNTIME_DIR", scratch.path(""))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut String::new()).expect("a line");
        kill_process(pid(&child), signal).expect("kill");
        assert_eq!(child.wait().expect("it ends").signal(), Some(signal.as_raw()));
        assert_eq!(fs::read_dir(scratch.path("")).expect("a folder").count(), 0, "{signal:?}");
    }
}

#[test]
fn an_alarm_set_before_the_tool_is_the_commands() {
    let script = "import os, signal, sys; signal.alarm(1); os.execv(sys.argv[1], sys.argv[1:])";
    let status = Command::new("python3")
        .args(["-c", script, WEIR, "run", "--quiet", "--", "sleep", "10"])
        .status()
        .expect("this test needs python3");
    assert_eq!(status.signal(), Some(Signal::ALARM.as_raw()));
}

#[test]
fn control_c_at_a_terminal_reaches_the_command_once_and_the_tool_reports() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let scratch = Scratch::new();
    let report = scratch.path("report");
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("grantpt");
    unlockpt(&master).expect("unlockpt");
    let name = ptsname(&master, Vec::new()).expect("ptsname");
    let slave = || {
        let path = name.to_str().expect("UTF-8");
        File::options().read(true).write(true).open(path).expect("the other side")
    };
    // A shell would count two signals that arrive together as one.
    let source = "#include <signal.h>\n#include <stdio.h>\n#include <time.h>\n\
        static volatile sig_atomic_t count; static void on(int s) { (void)s; ++count; }\n\
        int main(void) { signal(SIGINT, on); puts(\"ready\"); fflush(stdout);\n\
        for (int i = 0; i < 50; ++i) nanosleep(&(struct timespec){0, 10000000}, 0);\n\
        printf(\"count %d\\n\", (int)count); return 7; }";
    let program = compile(&scratch, "counter", source, &[]);
    let mut command = tool(&["run", "--report"]);
    command.arg(&report).arg("--").arg(program);
    command.stdin(slave()).stdout(slave()).stderr(slave());
    // SAFETY: only system calls are made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(std::io::stdin())?;
            Ok(())
        });
    }
    let mut child = command.spawn().expect("the tool starts");
    drop(command);
    let mut terminal = File::from(master);
    let mut seen = Vec::new();
    let mut sent = false;
    let mut buffer = [0; 256];
    // Reading fails when the last process has closed its side.
    while let Ok(got @ 1..) = terminal.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..got]);
        if !sent && text(&seen).contains("ready") {
            terminal.write_all(b"\x03").expect("write");
            sent = true;
        }
    }
    let seen = text(&seen);
    assert_eq!(child.wait().expect("it ends").code(), Some(7), "{seen}");
    assert!(seen.contains("count 1"), "{seen}");
    let report = fs::read_to_string(&report).expect("the tool reported");
    assert!(report.contains("exit status 7"), "{report}");
}

#[test]
fn the_tool_stops_and_goes_on_with_the_command() {
    let mut child = tool(&["run", "--quiet", "--", "sh", "-c", "kill -STOP $$; exit 3"])
        .spawn()
        .expect("the tool starts");
    // A tool that does not stop must fail the test, not hang it.
    let status = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
        waitpid(Some(pid(&child)), options).expect("waitpid")
    });
    if status.is_none() {
        let _ = child.kill();
    }
    let (_, status) = status.expect("the tool stops");
    assert_eq!(status.stopping_signal(), Some(19));
    kill_process(pid(&child), Signal::CONT).expect("kill");
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
}

// ---- the other commands ----------------------------------------------------------------------

#[test]
fn the_other_commands_print_to_stdout() {
    for (arguments, wanted) in [
        (vec!["options"], "on_error"),
        (vec!["version"], "library"),
        (vec!["completions", "bash"], "--json"),
        (vec!["--help"], "run"),
        (vec!["--version"], "weir "),
        (vec!["run", "--help"], "--options"),
    ] {
        let output = output(&arguments);
        assert!(output.status.success(), "{arguments:?}");
        assert!(text(&output.stdout).contains(wanted), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");

        let full = File::options().write(true).open("/dev/full").expect("the device");
        let output = tool(&arguments).stdout(full).output().expect("the tool starts");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("weir: cannot write to stdout: No space"), "{stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{stderr}");
    }
}
