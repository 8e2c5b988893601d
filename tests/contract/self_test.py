#!/usr/bin/env python3
"""Shows that every contract program can fail: each must fail under an allocator that breaks its rule.

Who may call it: CI, a developer, or `make check`. Builds self_test/broken.c, preloads it with one fault at a
time, and expects the runs named below to fail; without a fault all of them must pass. A contract program
that no fault is known to break is an error.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import os
import pathlib
import subprocess
import sys

import run as contract

# The fault of self_test/broken.c under which each run must fail.
FAULTS = {
    "aligned": "alignment", "atfork.mt": "lock_atfork", "atfork.single": "lock_atfork", "calloc": "dirty",
    "dlopen_new": "no_null", "errno": "errno", "exit_setgid": "signals", "fiber": "remote", "fiber_handler": "no_null", "foreign": "realloc", "fork_signal.mt": "lock_atfork",
    "fork_signal.single": "lock_atfork", "fork_step": "lock_atfork", "fork_threads": "lock", "fortify": "usable", "huge_realloc": "copy",
    "introspect": "blind", "lifetime": "early", "limit_exec.large": "no_null", "limit_exec.medium": "no_null",
    "limit_exec.small": "no_null", "limit_lowered.heap": "no_null", "limit_lowered.others": "reserve",
    "mappings": "mappings", "medium": "remote", "remote": "remote", "new_handler": "no_null", "sized": "sized", "spawn": "process", "spawn.helper": "process",
    "stats_sizes": "usable",
    "thread_churn": "leak_thread", "thread_exit": "thread_end", "thread_local": "thread_end", "usable": "usable",
    "zero": "zero_null", "handlers.off": "handlers", "handlers.watched": "handlers",
    "handler_first.sigaction": "handlers", "handler_first.signal": "handlers",
    "release_idle.off": "blind",
    # There are no pools in it.
    "pool": "none", "pool_library": "none", "pool_calls": "none", "pool_tsan": "none", **{f"pool_burst.{run}": "none" for run in ("large_idle", "large_busy", "medium_idle", "medium_busy", "small_idle")}, "pool_cxx": "none",
    # glibc's malloc, without a fault, gives too little back for any of these.
    **{f"release_{run}": "none" for run in (
        "idle.single", "idle.small", "idle.large", "idle.threads", "idle.others", "idle.fork", "idle.gone", "trim.small",
        "trim.large", "trim.calls", "trim.others", "where.sandbox", "where.sandbox_raw", "where.locked", "where.nproc", "where.user")},
}
# These look for names that only a whole malloc has: they fail under broken.c whatever its fault.
NAMES = {"aliases", "new_delete"}
DEADLOCK_S = 15  # after which a run under a lock fault counts as blocked


def outcome(run, argv, lib, fault):
    os.environ["BROKEN"] = fault
    try:
        contract.execute(run, argv, lib)
        return None
    except contract.Failure as failure:
        return str(failure).splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="directory for the compiled programs")
    parser.add_argument("--only", default="", help="text in the runs' names")
    options = parser.parse_args()
    compilers = (os.environ.get("CC", "cc"), os.environ.get("CXX", "c++"))
    directory = pathlib.Path(options.build).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    lib = directory / "libbroken.so"
    subprocess.run([compilers[0], "-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-ftls-model=initial-exec",
                    "-fno-builtin", "-pthread", "-o", str(lib), str(contract.HERE / "self_test" / "broken.c")], check=True)
    passed = failed = 0
    for run in contract.runs_all():
        if options.only not in run.name:
            continue
        argv = contract.build(run, compilers, directory)
        fault = "none" if run.name in NAMES else FAULTS.get(run.name)
        if fault is None:
            print(f"FAIL {run.name}: no fault is known to break it")
            failed += 1
            continue
        if run.on_glibc and run.name not in NAMES:
            sound = outcome(run, argv, lib, "none")
            if sound is not None:
                print(f"FAIL {run.name}: fails without a fault: {sound}")
                failed += 1
                continue
        if fault.startswith("lock"):
            run.timeout = DEADLOCK_S
        broken = outcome(run, argv, lib, fault)
        print(f"{'FAIL' if broken is None else 'ok  '} {run.name} [{fault}] {broken or 'passes although the allocator is broken'}", flush=True)
        failed += broken is None
        passed += broken is not None
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
