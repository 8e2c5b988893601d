#!/usr/bin/env python3
"""Runs real programs on the system's malloc and on weir, and compares what they print.

Who may call it: CI, a developer, or `make check`; see README.md in this directory. A program is a *.sh here;
a line `# program: key=value ...` at its top says how to run it, and several such lines are several runs.
Output and exit status must be the same after the filters below; the wire file of include/weir/wire.h must
show that calls reached weir in the programs that the run names; time and peak memory are reported. It
deliberately knows nothing of the programs: that is in their scripts.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import difflib
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import inputs

HERE = pathlib.Path(__file__).resolve().parent

# What may differ between two runs of the same program: (what it is, pattern, replacement).
FILTERS = [
    ("an address", re.compile(rb"0x[0-9a-f]{7,16}"), b"ADDRESS"),
    ("unittest's time", re.compile(rb"^(Ran \d+ tests?) in [0-9.]+s$", re.MULTILINE), rb"\1"),
]

# The keys of a `# program:` line. A value has no blanks; lists take commas.
KEYS = {
    "name": "suffix of the run's name, where a script has several runs",
    "reach": "executables in which calls must have reached weir",
    "needs": "commands or absolute paths, each with its Debian package: path:package",
    "input": "generators of inputs.py whose output the script reads from $INPUT",
    "env": "environment of the run: NAME=value",
    "baseline": "library preloaded in the run to compare with, where the program brings a malloc of its own",
    "timeout": "seconds for one round, 600 unless told",
}

ROUNDS = 3
ROUNDS_MORE = 4          # added before a run is called slower
RATIO_MAX = 1.25         # of wall time; noise on a shared machine stays below it
SLOWER_MIN_S = 0.15      # and a difference that is none
PEAK_RATIO_MAX = 2.0     # of peak resident memory: memory that is stranded, not a matter of size classes
PEAK_MIN_KIB = 32 * 1024 # and a difference that is none

WIRE_MAGIC = 0x3152495745524957
WIRE_HEADER = struct.Struct("<QIIIII36x")
WIRE_SLOT = struct.Struct("<IiiI2Q16Q96x256s")
WIRE_SLOTS = 8192
WIRE_REACHED, WIRE_FORKED, WIRE_ENDED = 2, 3, 4


class Failure(Exception):
    """Why a run is not ok."""


class Run:
    """One way to run one script."""

    def __init__(self, script, keys):
        unknown = set(keys) - set(KEYS)
        if unknown:
            raise SystemExit(f"{script.name}: unknown key in its program line: {', '.join(sorted(unknown))}")
        self.script = script
        self.name = script.stem + ("." + keys["name"] if "name" in keys else "")
        self.reach = keys["reach"].split(",")
        self.needs = [n.rsplit(":", 1) for n in keys.get("needs", "").split(",") if n]
        self.inputs = [n for n in keys.get("input", "").split(",") if n]
        self.env = dict(e.split("=", 1) for e in keys.get("env", "").split(",") if e)
        self.baseline = keys.get("baseline")
        self.timeout = float(keys.get("timeout", "600"))


class Result:
    """What one round gave."""

    def __init__(self, status, output, seconds, peak_kib, slots):
        self.status, self.output, self.seconds, self.peak_kib, self.slots = status, output, seconds, peak_kib, slots


def runs_of(script):
    """The runs that a script's head asks for."""
    lines = re.findall(r"^# program: (.*)$", script.read_text(), re.MULTILINE)
    if not lines:
        raise SystemExit(f"{script.name}: no '# program:' line")
    return [Run(script, dict(item.split("=", 1) for item in line.split())) for line in lines]


def filtered(output):
    for _, pattern, replacement in FILTERS:
        output = pattern.sub(replacement, output)
    return output


def wire_create(path):
    """An empty wire file, as the tool makes it."""
    with open(path, "wb") as file:
        file.write(WIRE_HEADER.pack(WIRE_MAGIC, 1, WIRE_SLOTS, WIRE_SLOT.size, 0, 0))
        file.truncate(WIRE_HEADER.size + WIRE_SLOTS * WIRE_SLOT.size)


def wire_read(path):
    """The claimed slots as (executable's name, calls reached it, blocks given out, reports of misuse)."""
    with open(path, "rb") as file:
        data = file.read()
    claimed, refused = WIRE_HEADER.unpack_from(data)[4:6]
    if refused:
        raise Failure(f"{refused} processes found no free slot in the wire file")
    slots = []
    for i in range(min(claimed, WIRE_SLOTS)):
        fields = WIRE_SLOT.unpack_from(data, WIRE_HEADER.size + i * WIRE_SLOT.size)
        state, alloc_calls, misuse = fields[0], fields[14], fields[21]
        exe = os.path.basename(fields[22].split(b"\0")[0].decode(errors="replace"))
        reached = state in (WIRE_REACHED, WIRE_FORKED) or (state == WIRE_ENDED and alloc_calls > 0)
        slots.append((exe, reached, alloc_calls, misuse))
    return slots


def port_free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def execute(run, input_dir, scale, lib):
    """One round of a run: on the system's malloc where `lib` is None."""
    with tempfile.TemporaryDirectory(prefix="programs.") as scratch:
        work = pathlib.Path(scratch) / "work"
        work.mkdir()
        wire = pathlib.Path(scratch) / "wire"
        # A small environment, the same for everybody: outputs must not depend on who runs this.
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": str(work),
                       "TMPDIR": str(work), "INPUT": str(input_dir), "SCALE": str(scale), "PORT": str(port_free()),
                       "HERE": str(HERE), **run.env}
        if lib:
            wire_create(wire)
            environment.update(LD_PRELOAD=str(lib), WEIR_WIRE=str(wire))
        elif run.baseline:
            environment.update(LD_PRELOAD=run.baseline)
        with tempfile.TemporaryFile("w+b") as output:
            start = time.monotonic()
            child = subprocess.Popen(["/bin/bash", "-eu", "-o", "pipefail", str(run.script)], cwd=work, env=environment,
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            timer = None
            try:
                timer = signal.signal(signal.SIGALRM, lambda *_: os.killpg(child.pid, signal.SIGKILL))
                signal.setitimer(signal.ITIMER_REAL, run.timeout)
                _, status, usage = os.wait4(child.pid, 0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, timer or signal.SIG_DFL)
            seconds = time.monotonic() - start
            child.returncode = os.waitstatus_to_exitcode(status)
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            output.seek(0)
            text = filtered(output.read().replace(str(work).encode(), b"WORK"))
        if seconds >= run.timeout:
            raise Failure(f"still running after {run.timeout:.0f} s\n{tail(text)}")
        return Result(child.returncode, text, seconds, usage.ru_maxrss, wire_read(wire) if lib else None)


def tail(output, lines=12):
    return "\n".join("    " + line for line in output.decode(errors="replace").splitlines()[-lines:])


def expect_same(first, other, what):
    if other.status != first.status:
        raise Failure(f"{what}: exit status {other.status}, not {first.status}\n{tail(other.output)}")
    if other.output != first.output:
        sides = [r.output.decode(errors="replace").splitlines() for r in (first, other)]
        shown = list(difflib.unified_diff(*sides, "system", what, lineterm="", n=1))[:30]
        raise Failure(f"{what}: the output differs\n" + "\n".join("    " + line for line in shown))


def expect_reached(run, result):
    """Calls reached weir where they had to; the number of processes in which they did."""
    reached = {exe for exe, is_reached, _, _ in result.slots if is_reached}
    if not reached:
        raise Failure(f"calls reached the library in no process ({len(result.slots)} loaded it)")
    missing = [exe for exe in run.reach if not any(re.fullmatch(exe, r) for r in reached)]
    if missing:
        raise Failure(f"calls did not reach the library in {', '.join(missing)}; they did in {', '.join(sorted(reached))}")
    accused = sorted({exe for exe, _, _, misuse in result.slots if misuse})
    if accused:
        raise Failure(f"the library reported misuse by {', '.join(accused)}")
    return sum(1 for _, is_reached, _, _ in result.slots if is_reached)


def medians(results):
    return statistics.median(r.seconds for r in results), statistics.median(r.peak_kib for r in results)


def measure(run, input_dir, options):
    """Interleaved rounds of a run; its row of the table, or Failure."""
    for need, package in run.needs:
        if shutil.which(need) is None and not os.path.exists(need):
            raise Failure(f"{need} is missing (Debian: apt-get install {package})")
    scale = 2 if options.bounded else 10
    plain, ours = [], []
    processes = 0

    def rounds(count):
        nonlocal processes
        for _ in range(count):
            plain.append(execute(run, input_dir, scale, None))
            expect_same(plain[0], plain[-1], "the system's malloc, again")
            if plain[0].status != 0:
                raise Failure(f"exit status {plain[0].status} on the system's malloc\n{tail(plain[0].output)}")
            if not plain[0].output.strip():
                raise Failure("printed nothing: nothing to compare")
            ours.append(execute(run, input_dir, scale, options.lib))
            expect_same(plain[0], ours[-1], options.lib.name)
            if not options.any_library:
                processes = expect_reached(run, ours[-1])

    def is_slower():
        (plain_s, _), (ours_s, _) = medians(plain), medians(ours)
        return options.bounded and ours_s > plain_s * RATIO_MAX and ours_s - plain_s > SLOWER_MIN_S

    rounds(options.rounds)
    if is_slower():
        rounds(ROUNDS_MORE)
    (plain_s, plain_kib), (ours_s, ours_kib) = medians(plain), medians(ours)
    row = (f"{run.name:22} {plain_s:8.2f} {ours_s:8.2f} {ours_s / plain_s:6.2f} {plain_kib / 1024:9.1f} {ours_kib / 1024:9.1f} "
           f"{ours_kib / plain_kib:6.2f} {processes:5}")
    if options.bounded and ours_kib > plain_kib * PEAK_RATIO_MAX and ours_kib - plain_kib > PEAK_MIN_KIB:
        raise Failure(f"more than {PEAK_RATIO_MAX} times the system's peak resident memory\n    {row}")
    if is_slower():
        raise Failure(f"slower than {RATIO_MAX} times the system's malloc over {len(ours)} rounds\n    {row}")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True, type=pathlib.Path, help="library to preload")
    parser.add_argument("--bounded", action="store_true",
                        help=f"small inputs; time above {RATIO_MAX} or peak memory above {PEAK_RATIO_MAX} times the system's fails: what CI runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="interleaved rounds; medians are reported")
    parser.add_argument("--only", default="", help="regular expression on the runs' names")
    parser.add_argument("--any-library", action="store_true",
                        help="the library is another malloc: do not ask for proof that calls reached it")
    options = parser.parse_args()
    options.lib = options.lib.resolve()
    if not options.lib.is_file():
        sys.exit(f"run.py: no such library: {options.lib}")

    runs = [r for script in sorted(HERE.glob("*.sh")) for r in runs_of(script) if re.search(options.only, r.name)]
    passed = failed = 0
    print(f"{'':5}{'program':22} {'system s':>8} {'weir s':>8} {'ratio':>6} {'sys MiB':>9} {'weir MiB':>9} {'ratio':>6} {'procs':>5}")
    with tempfile.TemporaryDirectory(prefix="programs-input.") as scratch:
        input_dir = pathlib.Path(scratch)
        made = set()
        for run in runs:
            for name in run.inputs:
                if name not in made:
                    inputs.GENERATORS[name](input_dir, 2 if options.bounded else 10)
                    made.add(name)
            try:
                print("ok   " + measure(run, input_dir, options), flush=True)
                passed += 1
            except Failure as failure:
                print(f"FAIL {run.name}: {failure}", flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
