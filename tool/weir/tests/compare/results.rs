//! Where results are written: what is replaced, when, and what happens when it cannot be. It knows nothing of
//! what is in them.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn no_program_is_overwritten() {
    let scratch = Scratch::new();
    let program = scratch.path("run.sh");
    let script = "#!/bin/sh\n\"$@\"\n";
    fs::write(&program, script).expect("write");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = shown(&program);
    // The word after --json is the command.
    let result =
        output(&["compare", "--only", "system", "--rounds", "1", "--json", program, "true"]);
    assert_eq!(fs::read_to_string(program).expect("read"), script);
    let json: Value = serde_json::from_slice(&result.stdout).expect("nothing but JSON");
    assert_eq!(json["command"], Value::from(vec![program, "true"]));
    let (json, plot) = (format!("--json={program}"), format!("--plot={program}"));
    for arguments in [["compare", &json], ["compare", &plot], ["run", &json]] {
        let result = tool(&arguments).args(["--", "true"]).output().expect("the tool starts");
        assert_eq!(status(&result), 2, "{arguments:?}");
        assert!(text(&result.stderr).contains("is a program"), "{}", text(&result.stderr));
        assert_eq!(fs::read_to_string(program).expect("read"), script, "{arguments:?}");
    }
}

#[test]
fn a_file_of_results_is_whole_or_as_it_was() {
    let scratch = Scratch::new();
    let (old, bad) = (scratch.path("old.json"), scratch.path("bad"));
    fs::write(&old, "old").expect("write");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).expect("chmod");
    fs::write(&bad, "#!/no/such/interpreter\n").expect("write");
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o755)).expect("chmod");
    let json = format!("--json={}", shown(&old));
    let new = scratch.path("new.svg");
    let result = tool(&["compare", &json, "--plot", shown(&new), "--", shown(&bad)]).output();
    assert_eq!(status(&result.expect("the tool starts")), 127);
    assert_eq!(fs::read_to_string(&old).expect("read"), "old");
    let names = fs::read_dir(scratch.path("")).expect("a directory").count();
    assert_eq!(names, 2, "nothing else is left");
    let result = tool(&["compare", &json]).args(BOTH).args(["--", "sh", "-c", "true"]).output();
    assert_eq!(status(&result.expect("the tool starts")), 0);
    assert!(fs::read_to_string(&old).expect("read").starts_with('{'));
    assert_eq!(fs::metadata(&old).expect("stat").permissions().mode() & 0o777, 0o640);
    // A link stays one.
    let link = scratch.path("link.json");
    std::os::unix::fs::symlink(&old, &link).expect("a link");
    fs::write(&old, "old").expect("write");
    let json = format!("--json={}", shown(&link));
    let result = tool(&["compare", &json]).args(BOTH).args(["--", "sh", "-c", "true"]).output();
    assert_eq!(status(&result.expect("the tool starts")), 0);
    assert!(fs::symlink_metadata(&link).expect("stat").is_symlink());
    assert!(fs::read_to_string(&old).expect("read").ends_with("}\n"));
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    for more in [&["--json=/dev/full"][..], &["--plot", "/dev/full"], &["--json"], &[]] {
        let mut tool = tool(&["compare"]);
        tool.args(BOTH).args(more).args(["--", "sh", "-c", "true"]).stderr(Stdio::piped());
        tool.stdout(if more.last().is_some_and(|word| word.contains("full")) {
            Stdio::null()
        } else {
            Stdio::from(full())
        });
        let output = tool.output().expect("the tool starts");
        assert_eq!(status(&output), 125, "{more:?}");
        let message = text(&output.stderr);
        assert!(message.contains("cannot write"), "{more:?}: {message}");
    }
}
