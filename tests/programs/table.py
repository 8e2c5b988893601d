#!/usr/bin/env python3
"""The programs of this directory under every allocator: measures them by `weir compare`, writes tables in Markdown.

Who may call it: whoever renews docs/compatibility.md.

    table.py measure --tool build/tool/release/weir --peers build/peers/peers.json --json FILE
    table.py write --json FILE [--into docs/compatibility.md]

`measure` runs each program of run.py's lines in interleaved rounds and keeps what `weir compare --json` says of it, in
one file; programs that the file has already are left alone unless named by --only. `write` turns that file into tables
of time and memory relative to glibc, between two marker lines of the document. Whether results are the same is run.py's
business, how anything is measured that of `weir compare`.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import run as programs

GLIBC = "glibc"
SYSTEM = "system"
BEGIN, END = "<!-- table.py: begin -->", "<!-- table.py: end -->"
ROUNDS = 5

# The tables: title, unit of the first column, figure of one round.
MEASURES = [
    ("Time", "s", lambda round_, main: round_["wall_s"]),
    ("Processor time of all processes, load tools included", "s", lambda round_, main: round_["cpu_s"]),
    ("Peak resident memory of the program", "MiB", lambda round_, main: peak_of(round_, main) / 2**20),
]


def peak_of(round_, main):
    """The largest process of the main program; of all, where the run says that it cannot be told."""
    peaks = [e["peak_bytes"] for e in round_["executables"] if re.fullmatch(main, os.path.basename(e["exe"]))]
    return max(peaks, default=0) or round_["peak_process_bytes"]


def libc_path():
    """The file of the C library that this process uses."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split()[-1] for line in maps if re.search(r"/libc(-[\d.]+)?\.so", line))


def packages_twice(manifest):
    """Names under which the tool finds the distribution's packages that the manifest has as `debian-NAME`."""
    names = {peer["name"] for peer in json.loads(manifest.read_text(encoding="utf-8"))["peers"]}
    return sorted(name[len("debian-"):] for name in names if name.startswith("debian-") and name[len("debian-"):] not in names)


def compare(run, places, options):
    """One program under all allocators: what `weir compare` says, without the course of memory over time."""
    with tempfile.TemporaryDirectory(prefix="programs-table.") as scratch:
        os.chmod(scratch, 0o755)
        work, result = pathlib.Path(scratch) / "work", pathlib.Path(scratch) / "result.json"
        environment = programs.environment_of(run, work, places, places.scale)
        command = [str(options.tool.resolve()), "compare", "--quiet", f"--json={result}", "--rounds", str(options.rounds or ROUNDS),
                   "--warmup", "1", "--timeout", f"{run.timeout:.0f}", "--prepare", f"rm -rf '{work}' && mkdir -m 755 '{work}'"]
        for manifest in options.peers:
            command += ["--peers", str(manifest.resolve())]
            command += [f"--without={name}" for name in packages_twice(manifest)]
        if run.baseline:
            command += ["--with", f"{GLIBC}={libc_path()}"]
        for name in options.without:
            command += ["--without", name]
        command += ["--", "/bin/bash", "-c", 'cd "$0" && exec /bin/bash -eu -o pipefail "$1"', str(work), str(run.script)]
        # The tool itself finds allocators and reads versions in its caller's environment.
        done = subprocess.run(command, cwd=scratch, env={**environment, "HOME": scratch}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, check=False)
        if not result.is_file():
            raise programs.Failure(f"weir compare ended with status {done.returncode}\n{programs.tail(done.stderr)}")
        document = json.loads(result.read_text(encoding="utf-8"))
        for allocator in document["allocators"]:
            del allocator["series"]
        return document


def measure(options):
    document = {"scale": None, "runs": {}}
    if options.json.is_file():
        document = json.loads(options.json.read_text(encoding="utf-8"))
    scale = programs.SCALE_BOUNDED if options.bounded else programs.SCALE
    if document["scale"] not in (None, scale):
        sys.exit(f"table.py: {options.json} holds runs of another scale")
    document["scale"] = scale
    runs = programs.runs_all(options.only)
    # Where a script has a run against glibc by name, that one shows the program's own malloc too.
    shown = {run.script for run in runs if run.baseline}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="programs-places.") as top:
        places = programs.Places(top, scale)
        for run in runs:
            if (run.script in shown and not run.baseline) or (run.name in document["runs"] and not options.only):
                continue
            try:
                places.prepare(run)
                document["runs"][run.name] = {"version": places.version(run), "main": run.main, "compare": compare(run, places, options)}
                print(f"{run.name}: {document['runs'][run.name]['compare']['verdict']}", flush=True)
            except programs.Failure as failure:
                print(f"{run.name}: {failure}", flush=True)
                failed += 1
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def reference(allocators):
    """What the others are compared with: glibc by name where it was measured, or the program as it is."""
    return allocators.get(GLIBC) or allocators[SYSTEM]


def cell(allocator, base, main, figure):
    """The ratio of medians; or why there is none."""
    if allocator is None:
        return ""
    if allocator["failure"] or not allocator["rounds"]:
        return "failed"
    if not allocator["proven"]:
        return "not reached"
    ratio = statistics.median(figure(r, main) for r in allocator["rounds"]) / base
    return f"{ratio:.2f}"


def table(document, title, unit, figure):
    """One table: a row for each program, a column for each allocator."""
    names = []
    for entry in document["runs"].values():
        names += [a["name"] for a in entry["compare"]["allocators"] if a["name"] not in names + [SYSTEM, GLIBC]]
    lines = [f"### {title}", "", f"| program | version | glibc, {unit} | " + " | ".join(names) + " | own |", "|---|---|--:|" + "--:|" * (len(names) + 1)]
    for name, entry in sorted(document["runs"].items()):
        main = entry["main"]
        allocators = {a["name"]: a for a in entry["compare"]["allocators"]}
        base = reference(allocators)
        if base["failure"] or not base["rounds"]:
            lines.append(f"| {name} | {entry['version']} | failed |" + " |" * (len(names) + 1))
            continue
        middle = statistics.median(figure(r, main) for r in base["rounds"])
        own = cell(allocators[SYSTEM] if base is not allocators[SYSTEM] else None, middle, main, figure)
        ratios = [cell(allocators.get(n), middle, main, figure) for n in names]
        lines.append(f"| {name} | {entry['version']} | {middle:.2f} | " + " | ".join(ratios) + f" | {own} |")
    return lines


def conditions(document):
    """Under what the figures were taken: machine, allocators with version, compiler and flags."""
    first = next(iter(document["runs"].values()))["compare"]
    machine = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in first["machine"].items() if value not in (None, "", []))
    lines = [f"Taken with: {machine}. Rounds: {len(first['allocators'][0]['rounds'])}; scale {document['scale']}. Ratios of medians to glibc's "
             "malloc; below 1 is better. `own`: the program's own malloc, where it brings one. `failed`: the program did not end well on it; "
             "`not reached`: calls did not arrive in it.", "", "| allocator | version | from | compiler | flags |", "|---|---|---|---|---|"]
    seen = {}
    for entry in document["runs"].values():
        for a in entry["compare"]["allocators"]:
            seen.setdefault(a["name"], a)
    for name, a in seen.items():
        lines.append("| " + " | ".join([name] + [str(a[key] or "").replace("|", "/") for key in ("version", "origin", "compiler", "flags")]) + " |")
    return lines


def failures(document):
    """Each failure by name, so that no hole in a table is left without its reason."""
    lines = []
    for name, entry in sorted(document["runs"].items()):
        for a in entry["compare"]["allocators"]:
            reason = a["failure"] or (None if a["proven"] else a["evidence"])
            if reason:
                lines.append(f"- {name} on {a['name']}: {' '.join(reason.split())}")
    return ["### Failed or not reached", "", *lines] if lines else []


def write(options):
    document = json.loads(options.json.read_text(encoding="utf-8"))
    if not document["runs"]:
        sys.exit(f"table.py: {options.json} holds no runs")
    parts = [conditions(document), *(table(document, *m) for m in MEASURES), failures(document)]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    if not options.into:
        print(text)
        return 0
    page = options.into.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        sys.exit(f"table.py: {options.into} needs one line {BEGIN} and after it one line {END}")
    head, rest = page.split(BEGIN)
    options.into.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure", help="run the programs, add to the file of results")
    measuring.add_argument("--tool", required=True, type=pathlib.Path, help="the weir tool")
    measuring.add_argument("--peers", type=pathlib.Path, action="append", default=[], help="manifest of allocators, as bench/peers writes it")
    measuring.add_argument("--without", action="append", default=[], help="leave an allocator out")
    measuring.add_argument("--only", default="", help="regular expression on the runs' names; those are measured again")
    measuring.add_argument("--rounds", type=int, default=0, help=f"counted rounds, {ROUNDS} unless told")
    measuring.add_argument("--bounded", action="store_true", help="small inputs")
    measuring.add_argument("--json", required=True, type=pathlib.Path, help="file of results")
    measuring.set_defaults(action=measure)
    writing = commands.add_parser("write", help="print the tables, or put them into a document")
    writing.add_argument("--json", required=True, type=pathlib.Path, help="file of results")
    writing.add_argument("--into", type=pathlib.Path, help=f"document with lines {BEGIN} and {END}")
    writing.set_defaults(action=write)
    options = parser.parse_args()
    return options.action(options)


if __name__ == "__main__":
    sys.exit(main())
