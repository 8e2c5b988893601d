#!/usr/bin/env python3
"""Runs real programs on the system's malloc and on weir, and compares what they print.

Who may call it: CI, a developer, or `make check`; see README.md in this directory. A program is a *.sh here;
a line `# program: key=value ...` at its top says how to run it, and several such lines are several runs.
Output and exit status must be the same after the filters below; the wire file of include/weir/wire.h must
show that calls reached weir in the programs that the run names, and the witness (tool/native/witness.h) which
library served them in the run to compare with; it also tells what memory the run's main program took. table.py
uses these runs too. It deliberately knows nothing of the programs: that is in their scripts.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import difflib
import glob
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
    "main": "the executable whose memory is reported, the first of `reach` unless told; -: the largest process of all, where "
            "those that matter end by _exit, which no library sees",
    "needs": "commands or absolute paths (with wildcards), each with its Debian package: path:package",
    "input": "generators of inputs.py whose output the script reads from $INPUT",
    "setup": "yes: the script is run once as `SCRIPT setup`, untimed; what it leaves in $SETUP is there in each round",
    "env": "environment of the run: NAME=value",
    "served": "the library that must have served the main program in the run to compare with, libc.so.6 unless told",
    "baseline": "library preloaded in the run to compare with, where the program brings a malloc of its own",
    "rounds": "interleaved rounds where one is long, instead of ROUNDS; one with --bounded",
    "ratio_max": "the bound on its time, instead of RATIO_MAX, where the script says why",
    "timeout": "seconds for one round, 600 unless told",
}

ROUNDS = 2
ROUNDS_MORE = 4          # added, one by one, before a run is called slower
RATIO_MAX = 1.5          # of the shortest rounds' time: trips on a fault, not on the noise of a shared machine
SLOWER_MIN_S = 0.3       # and a difference that is none
HANGS_RATIO, HANGS_MIN_S = 5, 20  # of any round: no noise is like that
PEAK_RATIO_MAX = 2.0     # of peak resident memory: memory that is stranded, not a matter of size classes
PEAK_MIN_KIB = 32 * 1024 # and a difference that is none
SCALE, SCALE_BOUNDED = 10, 2

WIRE_MAGIC = 0x3152495745524957
WIRE_HEADER = struct.Struct("<QIIIII36x")
WIRE_SLOT = struct.Struct("<IiiI2Q16Q96x256s")
WIRE_SLOTS = 8192
WIRE_REACHED, WIRE_FORKED, WIRE_ENDED = 2, 3, 4

WITNESS_MAGIC = 0x3153454E54495745
WITNESS_HEADER = struct.Struct("<QIIIII36x")
WITNESS_SLOT = struct.Struct("<IiiI6Q3I20x256s")
WITNESS_CALL = struct.Struct("<II128s256s")
WITNESS_SLOT_BYTES, WITNESS_CALLS = 2048, 4
WITNESS_SLOTS = 16384
WITNESS_ENDED = 3


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
        self.main = keys.get("main", self.reach[0])
        self.served = keys.get("served", "libc.so.6")
        self.needs = [n.rsplit(":", 1) for n in keys.get("needs", "").split(",") if n]
        self.inputs = [n for n in keys.get("input", "").split(",") if n]
        self.env = dict(e.split("=", 1) for e in keys.get("env", "").split(",") if e)
        self.baseline = keys.get("baseline")
        self.timeout = float(keys.get("timeout", "600"))
        self.rounds = int(keys.get("rounds", ROUNDS))
        self.ratio_max = float(keys.get("ratio_max", RATIO_MAX))
        self.setup = keys.get("setup") == "yes"
        version = re.search(r"^# version: (.*)$", script.read_text(), re.MULTILINE)
        self.version_command = version.group(1) if version else None


class Result:
    """What one round gave; `main` is what the witness saw of the main program."""

    def __init__(self, status, output, seconds, main, slots):
        self.status, self.output, self.seconds, self.main, self.slots = status, output, seconds, main, slots


class Main:
    """The largest process of a run's main program: its memory in KiB, and the libraries that served calls (None: unknown)."""

    def __init__(self, peak_kib, final_kib, served):
        self.peak_kib, self.final_kib, self.served = peak_kib, final_kib, served


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
    path.chmod(0o666)  # a server may have given up its user


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
        exe = os.path.basename(text_of(fields[22]))
        reached = state in (WIRE_REACHED, WIRE_FORKED) or (state == WIRE_ENDED and alloc_calls > 0)
        slots.append((exe, reached, alloc_calls, misuse))
    return slots


def witness_create(path):
    """An empty file of the witness, as `weir compare` makes it."""
    with open(path, "wb") as file:
        file.write(WITNESS_HEADER.pack(WITNESS_MAGIC, 1, WITNESS_SLOTS, WITNESS_SLOT_BYTES, 0, 0))
        file.truncate(WITNESS_HEADER.size + WITNESS_SLOTS * WITNESS_SLOT_BYTES)
    path.chmod(0o666)


def text_of(field):
    return field.split(b"\0")[0].decode(errors="replace")


def witness_read(path, main):
    """What the witness saw of the processes that ran the executable `main` to its end; None where there are none."""
    largest, served = None, set()
    with open(path, "rb") as file:
        claimed, refused = WITNESS_HEADER.unpack(file.read(WITNESS_HEADER.size))[4:6]
        if refused:
            raise Failure(f"{refused} processes found no free slot in the witness's file")
        for _ in range(min(claimed, WITNESS_SLOTS)):
            slot = file.read(WITNESS_SLOT_BYTES)
            fields = WITNESS_SLOT.unpack_from(slot)
            if not re.fullmatch(main, os.path.basename(text_of(fields[13]))):
                continue
            for number in range(min(fields[3], WITNESS_CALLS)):
                called, _, _, target = WITNESS_CALL.unpack_from(slot, WITNESS_SLOT.size + number * WITNESS_CALL.size)
                if called:
                    served.add(os.path.basename(text_of(target)))
            if fields[0] == WITNESS_ENDED and (not largest or fields[6] > largest[0]):
                largest = fields[6:8]
    return Main(largest[0] // 1024, largest[1] // 1024, served) if largest else None


def port_free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment_of(run, work, places, scale):
    """A small environment, the same for everybody: outputs must not depend on who runs this."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": str(work),
            "TMPDIR": str(work), "SCALE": str(scale), "PORT": str(port_free()), "HERE": str(HERE), **places.environment(run), **run.env}


class Places:
    """Directories that outlive a round: the input, what scripts set up, and a copy of the libraries that every user can
    read, whatever directory the tree lies in."""

    def __init__(self, top, scale):
        self.top, self.scale = pathlib.Path(top), scale
        self.input = self.top / "input"
        self.input.mkdir()
        self.top.chmod(0o755)
        self.made = set()
        self.set_up = {}

    def environment(self, run):
        return {"INPUT": str(self.input), "SETUP": str(self.top / "setup" / run.script.stem)}

    def library(self, path):
        copy = self.top / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o755)
        return copy

    def prepare(self, run):
        """Makes input and set-up of a run, once each."""
        for need, package in run.needs:
            if shutil.which(need) is None and not glob.glob(need):
                raise Failure(f"{need} is missing (Debian: apt-get install {package})")
        for name in run.inputs:
            if name not in self.made:
                inputs.GENERATORS[name](self.input, self.scale)
                self.made.add(name)
        if run.setup and run.script not in self.set_up:
            self.set_up[run.script] = self.setup(run)
        if self.set_up.get(run.script):
            raise Failure(self.set_up[run.script])

    def setup(self, run):
        """Runs a script's set-up in the caller's environment, which knows the way to package registries; why it failed, or None."""
        environment = {**os.environ, **self.environment(run), "SCALE": str(self.scale), "HERE": str(HERE)}
        environment.pop("LD_PRELOAD", None)
        folder = pathlib.Path(environment["SETUP"])
        folder.mkdir(parents=True)
        try:
            done = subprocess.run(["/bin/bash", "-eu", "-o", "pipefail", str(run.script), "setup"], cwd=folder, env=environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=run.timeout)
        except subprocess.TimeoutExpired as expired:
            return f"set-up is still running after {run.timeout:.0f} s\n{tail(expired.stdout or b'')}"
        return f"set-up ended with status {done.returncode}\n{tail(done.stdout)}" if done.returncode else None

    def version(self, run):
        """What the script's version command says, reduced to the number; a dash where there is none."""
        if not run.version_command:
            return "-"
        done = subprocess.run(["/bin/bash", "-c", run.version_command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=environment_of(run, self.top, self, self.scale), timeout=60)
        number = re.search(rb"\d+(\.\d+)+[-+~.\w]*", done.stdout)
        if not number:
            raise Failure(f"no version in what this prints: {run.version_command}\n{tail(done.stdout)}")
        return number.group().decode()


def execute(run, places, witness, lib):
    """One round of a run: on the system's malloc where `lib` is None."""
    with tempfile.TemporaryDirectory(prefix="programs.") as scratch:
        os.chmod(scratch, 0o755)
        work = pathlib.Path(scratch) / "work"
        work.mkdir()
        wire, seen = pathlib.Path(scratch) / "wire", pathlib.Path(scratch) / "witness"
        environment = environment_of(run, work, places, places.scale)
        first = lib or run.baseline
        environment.update(LD_PRELOAD=f"{first}:{witness}" if first else str(witness), WITNESS_FILE=str(seen))
        witness_create(seen)
        if lib:
            wire_create(wire)
            environment.update(WEIR_WIRE=str(wire))
        with tempfile.TemporaryFile("w+b") as output:
            start = time.monotonic()
            child = subprocess.Popen(["/bin/bash", "-eu", "-o", "pipefail", str(run.script)], cwd=work, env=environment,
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            timer = signal.signal(signal.SIGALRM, lambda *_: os.killpg(child.pid, signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, run.timeout)
            try:
                _, ended, usage = os.wait4(child.pid, 0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, timer)
            seconds = time.monotonic() - start
            child.returncode = status = os.waitstatus_to_exitcode(ended)
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            output.seek(0)
            text = filtered(output.read().replace(str(work).encode(), b"WORK"))
        if seconds >= run.timeout:
            raise Failure(f"still running after {run.timeout:.0f} s\n{tail(text)}")
        main = Main(usage.ru_maxrss, None, None) if run.main == "-" else witness_read(seen, run.main)
        return Result(status, text, seconds, main, wire_read(wire) if lib else None)


def tail(output, lines=12):
    return "\n".join("    " + line for line in output.decode(errors="replace").splitlines()[-lines:])


def expect_same(first, other, what):
    if other.status != first.status:
        raise Failure(f"{what}: exit status {other.status}, not {first.status}\n{tail(other.output)}")
    if other.output != first.output:
        sides = [r.output.decode(errors="replace").splitlines() for r in (first, other)]
        shown = list(difflib.unified_diff(*sides, "system", what, lineterm="", n=1))[:30]
        raise Failure(f"{what}: the output differs\n" + "\n".join("    " + line for line in shown))


def expect_main(run, result, library, what):
    """The main program ran to its end, and `library` served it."""
    if result.main is None:
        raise Failure(f"{what}: no process of {run.main} ran to its end: nothing is known of its memory")
    if result.main.served is not None and library not in result.main.served:
        raise Failure(f"{what}: calls of {run.main} went to {', '.join(sorted(result.main.served)) or 'nobody'}, not to {library}")


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
    """Of seconds, peak and final KiB; None where a figure is not known."""
    columns = zip(*((r.seconds, r.main.peak_kib, r.main.final_kib) for r in results))
    return [None if None in column else statistics.median(column) for column in columns]


def mebibytes(kib):
    return f"{kib / 1024:8.1f}" if kib is not None else f"{'-':>8}"


def measure(run, places, options):
    """Interleaved rounds of a run; its row of the table, or Failure."""
    places.prepare(run)
    version = places.version(run)
    plain, ours = [], []
    processes = 0

    def rounds(count):
        nonlocal processes
        for _ in range(count):
            plain.append(execute(run, places, options.witness, None))
            expect_same(plain[0], plain[-1], "the system's malloc, again")
            if plain[0].status != 0:
                raise Failure(f"exit status {plain[0].status} on the system's malloc\n{tail(plain[0].output)}")
            if not plain[0].output.strip():
                raise Failure("printed nothing: nothing to compare")
            expect_main(run, plain[-1], run.served, "the run to compare with")
            ours.append(execute(run, places, options.witness, options.lib))
            expect_same(plain[0], ours[-1], options.lib.name)
            expect_main(run, ours[-1], options.lib.name, options.lib.name)
            if not options.any_library:
                processes = expect_reached(run, ours[-1])

    def is_slower():
        plain_s, ours_s = min(r.seconds for r in plain), min(r.seconds for r in ours)
        if max(r.seconds for r in ours) > max(max(r.seconds for r in plain) * HANGS_RATIO, HANGS_MIN_S):
            return options.bounded
        return options.bounded and ours_s > plain_s * run.ratio_max and ours_s - plain_s > SLOWER_MIN_S

    rounds(options.rounds or (1 if options.bounded else run.rounds))
    for _ in range(ROUNDS_MORE):
        if is_slower():
            rounds(1)
    (plain_s, plain_kib, plain_end), (ours_s, ours_kib, ours_end) = medians(plain), medians(ours)
    row = (f"{run.name:22} {version:16.16} {plain_s:7.2f} {ours_s:7.2f} {ours_s / plain_s:5.2f} {mebibytes(plain_kib)} "
           f"{mebibytes(ours_kib)} {ours_kib / plain_kib:5.2f} {mebibytes(plain_end)} {mebibytes(ours_end)} {processes:5}")
    if options.bounded and ours_kib > plain_kib * PEAK_RATIO_MAX and ours_kib - plain_kib > PEAK_MIN_KIB:
        raise Failure(f"more than {PEAK_RATIO_MAX} times the system's peak resident memory\n    {row}")
    if is_slower():
        raise Failure(f"slower than {run.ratio_max} times the system's malloc over {len(ours)} rounds\n    {row}")
    return row


def runs_all(only):
    """The runs whose names match."""
    return [r for script in sorted(HERE.glob("*.sh")) for r in runs_of(script) if re.search(only, r.name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True, type=pathlib.Path, help="library to preload")
    parser.add_argument("--witness", type=pathlib.Path,
                        help="libweir-witness.so; unless told, the one beside the library, where the build leaves it")
    parser.add_argument("--bounded", action="store_true",
                        help=f"small inputs; time above {RATIO_MAX} or peak memory above {PEAK_RATIO_MAX} times the system's fails: what CI runs")
    parser.add_argument("--rounds", type=int, default=0, help="interleaved rounds of every run; medians are reported")
    parser.add_argument("--only", default="", help="regular expression on the runs' names")
    parser.add_argument("--any-library", action="store_true",
                        help="the library is another malloc, without a wire file: the witness alone proves that calls reached it")
    options = parser.parse_args()
    options.witness = options.witness or options.lib.parent / "libweir-witness.so"
    for path in (options.lib, options.witness):
        if not path.is_file():
            sys.exit(f"run.py: no such library: {path}")

    passed = failed = 0
    print(f"{'':5}{'':38} {'seconds':^21} {'peak MiB':^23} {'MiB at the end':^17}\n"
          f"{'':5}{'program':22} {'version':16} {'system':>7} {'weir':>7} {'ratio':>5} {'system':>8} {'weir':>8} {'ratio':>5} {'system':>8} "
          f"{'weir':>8} {'procs':>5}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="programs-places.") as top:
        places = Places(top, SCALE_BOUNDED if options.bounded else SCALE)
        options.lib, options.witness = places.library(options.lib), places.library(options.witness)
        for run in runs_all(options.only):
            try:
                print("ok   " + measure(run, places, options), flush=True)
                passed += 1
            except Failure as failure:
                print(f"FAIL {run.name}: {failure}", flush=True)
                failed += 1
    print(f"{time.monotonic() - begun:.0f} s\n{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
