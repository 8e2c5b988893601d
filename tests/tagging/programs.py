#!/usr/bin/env python3
# programs.py: real programs for aarch64 with tagging on: what they print and how they end must be the same as
# without the library, and each of their processes must have run with tags. Each program runs in one mode, in turn,
# unless --each: the heap does not know when the processor compares.
#
# The scripts are those of tests/programs, which say `perl` and mean whatever comes first on PATH: here a small
# wrapper that starts the emulator; python3.sh beside this file is another. It deliberately knows nothing of what
# the programs do. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import difflib
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE.parent / "programs"
sys.path.append(str(SCRIPTS))
import emulator  # noqa: E402
import inputs  # noqa: E402

# What may differ between two runs of the same program, as tests/programs/run.py has it.
FILTERS = [
    (re.compile(rb"0x[0-9a-f]{7,16}"), b"ADDRESS"),
    (re.compile(rb"^(Ran \d+ tests?) in [0-9.]+s$", re.MULTILINE), rb"\1"),
]
# Redis asks the kernel by ways that an emulator does not have, and takes the answer for a known defect.
EXTRA = {"redis-server": ["--ignore-warnings", "ARM64-COW-BUG"]}
LIMIT_S = 900


class Program:
    """A script, what it reads, and the programs that it may call; the first is the one that matters."""

    def __init__(self, script, scale, commands, generators=()):
        self.script, self.scale, self.commands, self.generators = script, scale, commands, generators
        self.name = script.stem


PROGRAMS = [
    Program(HERE / "python3.sh", 1, ["python3"]),
    Program(SCRIPTS / "perl.sh", 1, ["perl"]),
    Program(SCRIPTS / "sqlite3.sh", 1, ["sqlite3"], [inputs.table]),
    Program(SCRIPTS / "redis.sh", 1, ["redis-server", "redis-cli", "redis-benchmark"], [inputs.commands]),
]


class Failure(Exception):
    """Why a program is not ok."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wrappers_write(folder, args, preload):
    """In `folder`: a script for each program, which runs it under the emulator."""
    folder.mkdir()
    for name in sorted({c for p in PROGRAMS for c in p.commands}):
        real = args.root / "usr/bin" / name
        if not real.exists():
            raise Failure(f"there is no {real}")
        command = [args.emulator, "-cpu", "max", "-L", args.root, "-0", name]
        if preload:
            command += ["-E", "LD_PRELOAD=" + ":".join(str(p) for p in preload)]
        words = " ".join(shlex.quote(str(c)) for c in [*command, real, *EXTRA.get(name, [])])
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        wrapper.chmod(0o755)


def execute(program, args, mode, top, data):
    """(status, output, seconds, [line of the witness]) of one run; mode None: without the library."""
    for start in range(emulator.STARTS):
        try:
            return execute_in(top / f"{mode or 'plain'}.{start}", program, args, mode, data)
        except subprocess.TimeoutExpired as why:
            raise Failure(f"{mode or 'plain'}: {why}") from None
        except emulator.Stuck as why:
            print(f"once more: {why}", flush=True)
    raise Failure(f"{mode or 'plain'}: the emulator got stuck {emulator.STARTS} times")


def execute_in(place, program, args, mode, data):
    """The same, with all its files below `place`."""
    work = place / "work"
    place.mkdir()
    work.mkdir()
    preload = [args.lib, args.witness] if mode else [args.witness]
    wrappers_write(place / "bin", args, preload)
    options = f"tagging={mode}" if mode not in (None, "off") else ""
    env = emulator.environment(options, SCALE=str(program.scale), INPUT=str(data), LC_ALL="C", PORT=str(free_port()),
                               TAGGING_WITNESS=str(place / "witness"))
    env["PATH"] = f"{place / 'bin'}:{env['PATH']}"
    begun = time.monotonic()
    done = emulator.run_once(["bash", "-eu", "-o", "pipefail", program.script], env, LIMIT_S, cwd=work)
    seconds = time.monotonic() - begun
    output = done.stdout.replace(str(work).encode(), b"WORK")
    for pattern, replacement in FILTERS:
        output = pattern.sub(replacement, output)
    witness = place / "witness"
    return done.returncode, output, seconds, witness.read_text().splitlines() if witness.exists() else []


def witness_judge(program, lines, args, mode):
    """Each process had the library and tags; the script's main program is among them."""
    seen = set()
    for line in lines:
        name, library, thread, tag = line.rsplit(" ", 3)
        seen.add(name)
        if library != args.lib.name:
            raise Failure(f"{mode}: malloc of {name} is {library}'s")
        if mode != "off" and (thread != mode or tag == "0"):
            raise Failure(f"{mode}: {name} ran with tags {thread}, and a block of tag {tag}")
    missing = [c for c in program.commands if c not in seen]
    if missing:
        raise Failure(f"{mode}: nothing is known of {', '.join(missing)}")


def measure(program, args, modes):
    """The seconds of each mode, or Failure."""
    with tempfile.TemporaryDirectory(prefix="tagging-programs.") as name:
        top = pathlib.Path(name)
        data = top / "input"
        data.mkdir()
        for generator in program.generators:
            generator(data, program.scale)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = {mode: pool.submit(execute, program, args, mode, top, data) for mode in (*modes, None)}
        plain_status, plain, seconds, _ = runs[None].result()
        if plain_status != 0 or not plain.strip():
            raise Failure(f"without the library: status {plain_status}\n" + plain.decode(errors="replace")[-2000:])
        told = [f"plain {seconds:.1f} s"]
        for mode in modes:
            status, output, seconds, lines = runs[mode].result()
            if (status, output) != (plain_status, plain):
                sides = [o.decode(errors="replace").splitlines() for o in (plain, output)]
                shown = list(difflib.unified_diff(*sides, "plain", mode, lineterm="", n=1))[:40]
                raise Failure(f"{mode}: status {status}; the output differs\n" + "\n".join(shown))
            witness_judge(program, lines, args, mode)
            told.append(f"{mode} {seconds:.1f} s")
        return ", ".join(told)


def main():
    parser = argparse.ArgumentParser(description="real programs with tagging on")
    emulator.arguments(parser)
    parser.add_argument("--witness", required=True, help="libtagging_witness.so")
    parser.add_argument("--modes", default="sync,async", help="of off, sync, async")
    parser.add_argument("--each", action="store_true", help="each program in each mode")
    parser.add_argument("--only", default="", help="only programs whose name contains this")
    args = parser.parse_args()
    for name in ("emulator", "root", "lib", "witness"):
        setattr(args, name, pathlib.Path(getattr(args, name)).absolute())
    modes = args.modes.split(",")
    chosen = [(program, modes if args.each else [modes[turn % len(modes)]])
              for turn, program in enumerate(PROGRAMS) if args.only in program.name]

    def told(program, its):
        try:
            line, good = f"ok      {program.name}: {measure(program, args, its)}", True
        except Failure as failure:
            line, good = f"FAILED  {program.name}: {failure}", False
        print(line, flush=True)
        return good

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        good = list(pool.map(lambda one: told(*one), chosen))
    passed, failed = sum(good), len(good) - sum(good)
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
