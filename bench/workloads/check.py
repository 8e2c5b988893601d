#!/usr/bin/env python3
"""Runs every workload with little work: under the system's malloc and the library it must end well, on an allocator
that gives blocks twice it must not.

    bench/workloads/check.py --bin build/weir-workload --lib build/libweir.so.1

Who may call it: anybody; the test command does. It deliberately measures nothing.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import functools
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common import CC, FLAGS, facts_of  # noqa: E402

SCALE_PERCENT = "2"
# With fewer buffers none may fit into the one before.
SCALE_OF = {"big/pages": "20"}
LOST = 3  # the status of a workload whose block has lost its content
TIMEOUT_S = 120
DRIFT_PHASES = 24  # as in churn.c


def libraries(folder):
    """The two allocators of broken.c."""
    for fault in ("none", "twice"):
        path = folder / f"lib{fault}.so"
        subprocess.run([CC, *FLAGS, "-shared", "-fPIC", f"-DFAULT_{fault}=1", HERE / "broken.c", "-o", path], check=True)
        yield path


def run(program, name, library):
    argv = [program, name, "--scale", SCALE_OF.get(name, SCALE_PERCENT), "--rest", "0"]
    environment = {**os.environ, "LD_PRELOAD": str(library or "")}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def wrong_in_good(done, library, told):
    """Why a run that should be good is not, or None."""
    facts = facts_of(done.stdout)
    if done.returncode:
        return f"ended with {done.returncode}: {done.stderr.strip()}"
    if library and facts.get("malloc_in") != str(library.resolve()):
        return f"malloc lies in {facts.get('malloc_in')}"
    if told and not facts.get("time_s", 0) > 0:
        return "told no time"
    if told and not facts.get("resident_bytes", 0) > 0:
        return "told no memory"
    return None if facts.get("operations", 0) > 0 else "did no work"


def wrong_in_broken(done):
    return None if done.returncode == LOST else f"ended with {done.returncode} and had to be told of a lost block"


def wrong_in_drift(program, name):
    """All sizes have to come up, with the work that is measured."""
    done = subprocess.run([program, name, "--rest", "0"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    phases = facts_of(done.stdout).get("phases", 0)
    needed = DRIFT_PHASES * (10 if name.endswith("/long") else 1)
    return None if phases >= needed else f"{phases} phases of {needed}"


def wrong_in_touch(program):
    """It has to have used all of the memory, and to say so where there is not as much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    status = subprocess.run([program, "--touch", "256"]).returncode
    used_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if status != 0 or before >= 256 << 10 or used_kib < 256 << 10:
        return f"ended with {status}, {before} KiB before and {used_kib} after"
    little = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (128 << 20, 128 << 20))
    done = subprocess.run([program, "--touch", "256"], capture_output=True, text=True, preexec_fn=little)
    return None if done.returncode != 0 and "memory" in done.stderr else f"no memory: {done}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--lib", type=pathlib.Path, required=True)
    options = parser.parse_args()
    program = options.bin.resolve()
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in listed.splitlines()]
    wrong = wrong_in_touch(program)
    passed, failed = int(not wrong), int(bool(wrong))
    if wrong:
        print(f"FAILED  --touch: {wrong}")
    for name in [row[0] for row in rows if row[0].startswith("drift/")]:
        wrong = wrong_in_drift(program, name)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print(f"FAILED  {name}: {wrong}")
    with tempfile.TemporaryDirectory() as folder:
        good, twice = libraries(pathlib.Path(folder))
        for name, _, _, time, content, _ in rows:
            for library in (None, options.lib, good, twice):
                done = run(program, name, library)
                if library != twice:
                    wrong = wrong_in_good(done, library, time == "told")
                else:
                    wrong = wrong_in_broken(done) if content == "checked" else None
                passed, failed = passed + (not wrong), failed + bool(wrong)
                if wrong:
                    print(f"FAILED  {name} on {library.name if library else 'system'}: {wrong}")
    print(f"workloads: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
