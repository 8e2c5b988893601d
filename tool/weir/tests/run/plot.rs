//! `weir run --plot` and --plot-data: what the samples show of programs that grow, shrink, fork, execute others
//! and are killed. It knows nothing of the tool's inside.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::*;

/// `grow MB MS THEN [SIZE]`: takes memory in small blocks (or of SIZE bytes), stays, and then `frees` and stays four times as
/// long, `ends`, is `killed`, or `executes` a program without the library. Long blocks are also freed little by little.
const GROW: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static void stay(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, 0); }
int main(int argc, char** argv) {
    if (argc < 4) return 2;
    size_t size = argc > 4 ? strtoul(argv[4], 0, 10) : 1000;
    size_t count = strtoul(argv[1], 0, 10) * 1000000 / size;
    char** blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) {
        memset(blocks[i] = malloc(size), 1, size);
        if (i % (count / 8) == 0) stay(40);
    }
    stay(atol(argv[2]));
    if (strcmp(argv[3], "kill") == 0) raise(SIGKILL);
    if (strcmp(argv[3], "execute") == 0) execle("/bin/sleep", "sleep", "0.3", (char*)0, (char*[]){0});
    if (strcmp(argv[3], "free") == 0) {
        for (size_t i = 0; i < count; i++) {
            free(blocks[i]);
            if (size > 65536 && i % (count / 8) == 0) stay(40);
        }
        free(blocks);
        stay(4 * atol(argv[2]));
    }
    return 0;
}
"#;
const MB: u64 = 1_000_000;

struct Sample {
    seconds: f64,
    resident: u64,
    live: u64,
    processes: u64,
}

struct Plotted {
    output: Output,
    svg: String,
    json: Value,
    samples: Vec<Sample>,
}

impl Plotted {
    fn largest(&self, value: fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(value).max().unwrap_or(0)
    }

    fn last(&self) -> &Sample {
        self.samples.last().expect("a sample")
    }
}

/// Runs a command with a plot, its data and JSON.
fn plotted(options: &[&str], command: &[&str]) -> Plotted {
    let scratch = Scratch::new();
    let (svg, data) = (scratch.path("memory.svg"), scratch.path("memory.tsv"));
    let json = scratch.path("report.json");
    let output = tool(&["run", "--quiet"])
        .args(options)
        .arg("--plot")
        .arg(&svg)
        .arg("--plot-data")
        .arg(&data)
        .arg("--json")
        .arg(&json)
        .arg("--")
        .args(command)
        .output()
        .expect("the tool starts");
    let read = |file| fs::read_to_string(file).expect("it was written");
    let (svg, data) = (read(svg), read(data));
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let mut rows = data.lines();
    assert_eq!(rows.next(), Some("seconds\tresident_bytes\tlive_bytes\tprocesses"));
    let samples: Vec<Sample> = rows
        .map(|row| {
            let fields: Vec<&str> = row.split('\t').collect();
            let number = |at: usize| fields[at].parse::<u64>().expect("a number");
            Sample {
                seconds: fields[0].parse().expect("a time"),
                resident: number(1),
                live: number(2),
                processes: number(3),
            }
        })
        .collect();
    assert!(samples.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds), "{data}");
    let json: Value = serde_json::from_str(&read(json)).expect("it is JSON");
    assert_eq!(json["memory"]["samples"].as_u64(), Some(samples.len() as u64));
    Plotted { output, svg, json, samples }
}

fn grow(scratch: &Scratch) -> String {
    let program = compile(scratch, "grow", GROW, &["-O1", "-fno-builtin"]);
    program.to_str().expect("UTF-8").to_owned()
}

#[test]
fn long_blocks_are_live_when_they_come_and_go() {
    let scratch = Scratch::new();
    // Nothing but long blocks, and no helper: their own calls are all that tells.
    let arguments = ["64", "300", "free", "200000"];
    let run = plotted(
        &["--options", "release=off"],
        &[&[grow(&scratch).as_str()], &arguments[..]].concat(),
    );
    assert!(run.output.status.success());
    let live = run.largest(|s| s.live);
    assert!((40 * MB..72 * MB).contains(&live), "{live}");
    let part = |s: &Sample| (live / 8..live / 8 * 7).contains(&s.live);
    let top = run.samples.iter().position(|s| s.live == live).expect("the largest");
    assert!(run.samples[..top].iter().any(part), "live jumped up");
    assert!(run.samples[top..].iter().any(part), "live jumped down");
}

#[test]
fn memory_rises_and_falls() {
    let scratch = Scratch::new();
    let run = plotted(&[], &[&grow(&scratch), "64", "300", "free"]);
    assert!(run.output.status.success());
    // 320 ms of growth and 1500 ms of rest, every 50 ms; a machine that is busy may miss some.
    assert!((10..60).contains(&run.samples.len()), "{} samples", run.samples.len());
    let (resident, live) = (run.largest(|s| s.resident), run.largest(|s| s.live));
    assert!((40 * MB..72 * MB).contains(&live), "{live}");
    assert!((64 * MB..100 * MB).contains(&resident), "{resident}");
    let first = &run.samples[0];
    assert!(first.live < live / 4 && first.resident < resident / 4);
    let between = run.samples.iter().any(|s| (live / 8..live / 8 * 7).contains(&s.live));
    assert!(between, "live jumped");
    assert!(run.last().live < MB && run.last().resident < resident / 2);
    // Not only at the end: the library's helper says what is live when it has given memory back.
    let idle = run.samples.iter().skip_while(|s| s.live < live);
    let idle: Vec<&Sample> = idle.filter(|s| s.seconds + 0.1 < run.last().seconds).collect();
    assert!(idle.iter().any(|s| s.live < MB && s.resident < resident / 2), "not while it idled");
    assert_eq!(run.json["memory"]["peak"]["resident_bytes"].as_u64(), Some(resident));
    assert_eq!(run.json["memory"]["last"]["live_bytes"].as_u64(), Some(run.last().live));
    assert_eq!(run.json["memory"]["interval_ms"], 50.0);
    let total = &run.json["total"];
    assert!(total["purged_bytes"].as_u64() > Some(50 * MB), "{total:#}");
    assert!((1..1000).contains(&total["release_calls"].as_u64().unwrap_or(0)), "{total:#}");
    for part in [
        "Resident and live memory of: ",
        "grow 64 300 free",
        "\nresident\n",
        "\nlive\n",
        "(MiB)",
        "<polyline",
        "<circle",
        "\npeak ",
        "\nend ",
    ] {
        assert!(run.svg.contains(part), "no {part:?} in the plot");
    }
}

#[test]
fn a_killed_program_shows_what_was_seen_last() {
    let scratch = Scratch::new();
    let run = plotted(&[], &[&grow(&scratch), "32", "200", "kill"]);
    assert_eq!(run.output.status.signal(), Some(9));
    let last = run.last();
    assert!(last.live > 20 * MB && last.resident > 32 * MB, "{} {}", last.live, last.resident);
}

#[test]
fn a_program_without_the_library_has_nothing_live() {
    let scratch = Scratch::new();
    let run = plotted(&[], &[&grow(&scratch), "32", "200", "execute"]);
    assert!(run.output.status.success());
    assert!(run.largest(|s| s.live) > 20 * MB);
    assert_eq!(run.last().live, 0);
    assert!(run.last().resident < 10 * MB);
}

#[test]
fn processes_are_added_up() {
    let scratch = Scratch::new();
    let script = format!("{0} 16 300 end & {0} 16 300 end & wait; exit 0", grow(&scratch));
    let run = plotted(&[], &["sh", "-c", &script]);
    assert!(run.output.status.success());
    assert!(run.largest(|s| s.processes) >= 3);
    assert!(run.largest(|s| s.live) > 20 * MB && run.largest(|s| s.resident) > 32 * MB);
}

#[test]
fn a_child_of_fork_has_its_parents_blocks_from_the_start() {
    let scratch = Scratch::new();
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
        int main(void) { for (int i = 0; i < 20000; i++) {\n\
        memset(malloc(1000), 1, 1000); if (i % 2500 == 0) usleep(40000); }\n\
        if (fork() == 0) { usleep(200000); _exit(0); }\n\
        wait(0); return 0; }";
    let program = compile(&scratch, "twice", source, &["-O1", "-fno-builtin"]);
    let run = plotted(&[], &[program.to_str().expect("UTF-8")]);
    let both: Vec<&Sample> = run.samples.iter().filter(|s| s.processes == 2).collect();
    assert!(!both.is_empty());
    assert!(both.iter().any(|s| s.live > 30 * MB), "{}", run.largest(|s| s.live));
}

#[test]
fn the_shortest_program_has_a_plot() {
    let run = plotted(&[], &["true"]);
    assert!(run.output.status.success());
    // What the process wrote at its end, if no look was quick enough.
    assert!(!run.samples.is_empty() && run.last().resident > 0);
    let scratch = Scratch::new();
    let program = compile(&scratch, "brief", "int main(void) { return 3; }", &["-static"]);
    let run = plotted(&[], &[program.to_str().expect("UTF-8")]);
    assert_eq!(run.output.status.code(), Some(3));
    assert!(run.samples.iter().all(|sample| sample.live == 0));
}

#[test]
fn the_interval_is_the_users() {
    let short = plotted(&["--interval", "10"], &["sleep", "0.4"]);
    let long = plotted(&["--interval", "200"], &["sleep", "0.4"]);
    assert_eq!(long.json["memory"]["interval_ms"], 200.0);
    assert!(long.samples.len() <= 6, "{}", long.samples.len());
    assert!(short.samples.len() > 2 * long.samples.len(), "{}", short.samples.len());
}
