//! Servers under `weir compare`: ready, loaded, measured, stopped, and what fails on the way. It knows nothing of
//! other commands.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::*;

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_server_is_loaded_measured_and_stopped() {
    let port = free_port().to_string();
    let load = format!(
        "python3 -c \"import urllib.request as r; [r.urlopen('http://127.0.0.1:{port}/').read() for i in range(20)]\""
    );
    let options = [
        "--only",
        "system,weir",
        "--rounds",
        "1",
        "--until",
        &load,
        "--port",
        &port,
        "--settle",
        "0.1",
    ];
    let server = ["python3", "-m", "http.server", "--bind", "127.0.0.1", &port];
    let (output, json) = compare(&options, &server);
    assert_eq!(status(&output), 0, "{json:#}");
    assert_proven(&json, "weir", "libweir.so.1");
    assert_eq!(allocator(&json, "weir")["status"], "stopped");
    let round = &allocator(&json, "weir")["rounds"][0];
    assert!(round["final_bytes"].as_u64().is_some_and(|bytes| bytes > 4 << 20), "{round:#}");
    // Without a test of readiness the load is tried again until it succeeds.
    let options = ["--only", "weir", "--rounds", "1", "--until", &load, "--settle", "0"];
    let (output, _) = compare(&options, &server);
    assert_eq!(status(&output), 0);
    assert_gone(&format!("127.0.0.1 {port}"));
}

#[test]
fn a_server_in_the_background_is_found_and_stopped() {
    let options = ["--only", "weir", "--rounds", "1", "--until", "sleep 0.3", "--settle", "0"];
    let (output, json) = compare(&options, &["sh", "-c", "sleep 77.25 & exit 0"]);
    assert_eq!(status(&output), 0, "{json:#}");
    assert_gone("sleep 77.25");
}

#[test]
fn a_server_that_goes_on_in_another_process_is_not_gone() {
    // Each process starts the next one and ends, which is what a look through /proc can miss.
    let hand_over = "import os, time\n\
        end = time.monotonic() + 1\n\
        while time.monotonic() < end:\n    if os.fork(): os._exit(0)\n\
        time.sleep(66.25)";
    let options = ["--only", "weir", "--rounds", "1", "--until", "sleep 1", "--settle", "0"];
    let (output, json) = compare(&options, &["python3", "-c", hand_over]);
    assert_eq!(status(&output), 0, "{json:#}");
    assert_gone("sleep(66.25)");
}

#[test]
fn a_server_that_grows_in_a_copy_is_proven() {
    // Forked twice and handed over, as daemons do: the copy makes no first call and does not exit.
    let scratch = Scratch::new();
    let grown = scratch.path("grown");
    let daemon = format!(
        "import os, time\n\
        for i in range(2):\n    if os.fork(): os._exit(0)\n\
        block = b'x' * (32 << 20)\nopen({:?}, 'w')\ntime.sleep(66.75)",
        shown(&grown)
    );
    let ready = format!("test -e {}", shown(&grown));
    let options = ["--only", "weir", "--rounds", "1", "--until", "sleep 1", "--settle", "0"];
    let (output, json) =
        compare(&[&options[..], &["--ready", &ready]].concat(), &["python3", "-c", &daemon]);
    assert_eq!(status(&output), 0, "{json:#}");
    assert_proven(&json, "weir", "libweir.so.1");
    let executables = &allocator(&json, "weir")["rounds"][0]["executables"];
    let most =
        executables.as_array().expect("programs").iter().map(|one| one["peak_bytes"].as_u64());
    assert!(most.max().flatten().is_some_and(|bytes| bytes > 32 << 20), "{executables:#}");
    assert_gone("sleep(66.75)");
}

#[test]
fn servers_that_fail_say_how() {
    let failure = |options: &[&str], command: &[&str]| {
        let fixed = ["--only", "weir", "--rounds", "1", "--settle", "0", "--stop-timeout", "0.5"];
        let (output, json) = compare(&[&fixed, options].concat(), command);
        assert_eq!(status(&output), 3, "{json:#}");
        allocator(&json, "weir")["failure"].as_str().expect("a reason").to_owned()
    };
    let sleep: &[&str] = &["sleep", "55.75"];
    let text = failure(&["--until", "true", "--ready", "exit 1", "--ready-timeout", "0.2"], sleep);
    assert!(text.contains("not ready after 0.2 s; --ready-timeout"), "{text}");
    let text = failure(&["--until", "echo broken; exit 3", "--ready", "true"], sleep);
    assert!(text.contains("the load ended with exit status: 3: broken"), "{text}");
    let text = failure(&["--until", "sleep 5"], &["sh", "-c", "sleep 0.1; exit 6"]);
    assert!(text.contains("the server ended under its load: exit status 6"), "{text}");
    let text = failure(&["--until", "true", "--ready", "sleep 0.1; false"], &["false"]);
    assert!(text.contains("the server ended before it was ready: exit status 1"), "{text}");
    let text =
        failure(&["--until", "sleep 0.1"], &["sh", "-c", "trap '' TERM; sleep 55.75; sleep 55.75"]);
    assert!(text.contains("did not stop"), "{text}");
    assert_gone("sleep 55.75");
}

#[test]
fn a_test_of_readiness_that_hangs_is_ended() {
    let fixed = ["--only", "weir", "--rounds", "1", "--until", "true", "--ready-timeout", "0.3"];
    let began = Instant::now();
    let (output, json) =
        compare(&[&fixed[..], &["--ready", "sleep 58.125; true"]].concat(), &["sleep", "58.375"]);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(status(&output), 3, "{json:#}");
    let failure = allocator(&json, "weir")["failure"].as_str().expect("a reason");
    assert!(failure.contains("not ready after 0.3 s"), "{failure}");
    assert_gone("sleep 58.125");
    assert_gone("sleep 58.375");
}

#[test]
fn what_a_load_leaves_behind_is_stopped() {
    let load = "sleep 77.125 & setsid sleep 77.375 & true";
    let options = ["--only", "weir", "--rounds", "1", "--until", load, "--settle", "0"];
    let ready = ["--ready", "setsid sleep 77.625 & true"];
    // What --prepare started stays for the runs, and is its own.
    let kept = ["--prepare", "sleep 6.0625 2>/dev/null &"];
    let (output, json) =
        compare(&[&options[..], &ready, &kept].concat(), &["sh", "-c", "sleep 77.875; true"]);
    assert_eq!(status(&output), 0, "{json:#}");
    for word in ["sleep 77.125", "sleep 77.375", "sleep 77.625", "sleep 77.875"] {
        assert_gone(word);
    }
    let kept = fs::read_dir("/proc").expect("/proc").flatten().any(|entry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| text(&line).replace('\0', " ").contains("sleep 6.0625"))
    });
    assert!(kept, "what --prepare left was stopped");
    assert_gone_after("sleep 6.0625", Duration::from_secs(10));
}

#[test]
fn another_server_at_the_port_is_noticed_first() {
    let other = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = other.local_addr().expect("an address").port().to_string();
    let scratch = Scratch::new();
    let started = scratch.path("started");
    let server = format!("touch {}; sleep 62.125", shown(&started));
    let options = ["--only", "weir", "--rounds", "1", "--until", "true", "--port", &port];
    let output = tool(&["compare"])
        .args(options)
        .args(["--quiet", "--", "sh", "-c", &server])
        .output()
        .expect("the tool starts");
    assert_eq!(status(&output), 125, "{}", text(&output.stderr));
    let message = text(&output.stderr);
    assert!(message.contains(&format!("port {port} is in use")), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!started.exists());
}
