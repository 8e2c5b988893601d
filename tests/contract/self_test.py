#!/usr/bin/env python3
"""Shows that every contract program can fail: each must fail under an allocator that breaks its rule.

Who may call it: CI, a developer, or `make check`. Builds self_test/broken.c, preloads it with one fault at a
time, and expects the runs named below to fail; without a fault all of them must pass, where glibc's malloc
does. Fault `hollow` is broken.c without one, but with self_test/hollow.c. A contract program that no fault is
known to break is an error.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import copy
import os
import pathlib
import re
import subprocess
import sys

import run as contract

# The fault of self_test/ under which each run must fail.
FAULTS = {
    "aligned": "alignment", "atfork.mt": "lock_atfork", "atfork.single": "lock_atfork", "calloc": "dirty",
    "counts": "hollow", "dlopen_new": "no_null", "early": "early", "errno": "errno", "exit_setgid": "signals",
    "exit_signal": "takes", "fiber": "remote", "fiber_handler": "no_null", "foreign": "realloc",
    "fork_idle": "twice", "fork_signal.mt": "lock_atfork", "fork_signal.single": "lock_atfork",
    "fork_step": "lock_atfork", "fork_streams": "lock_atfork", "fork_threads": "lock", "fortify": "usable",
    "guard_stats": "hollow", "guard_stats.off": "hollow", "handler_first.sigaction": "handlers",
    "handler_first.signal": "handlers", "handlers.off": "handlers", "handlers.watched": "handlers",
    "huge_realloc": "copy", "idle": "hollow", "introspect": "blind", "isolate.inherited": "helper",
    "isolate.prctl": "prctl", "isolate.sandbox": "helper", "isolate.setns": "helper", "isolate.strict": "files",
    "isolate.unshare": "helper", "lifetime": "early", "limit_exec.large": "no_null",
    "limit_exec.medium": "no_null", "limit_exec.small": "no_null", "limit_lowered.heap": "no_null",
    "limit_lowered.others": "reserve", "mappings": "mappings", "medium": "remote", "new_handler": "no_null",
    "release_idle.off": "blind", "release_trim.others": "blind", "remote": "remote",
    "replaced_operators": "hollow", "sized": "sized", "spawn": "process", "spawn.helper": "process",
    "stats_sizes": "usable", "thread_churn": "leak_thread", "thread_exit": "thread_end",
    "thread_local": "thread_end", "usable": "usable", "zero": "zero_null",
    # There are no pools in it.
    **{f"pool{run}": "none" for run in (
        "", "_library", "_calls", "_tsan", "_cxx", "_burst.large_idle", "_burst.large_busy", "_burst.medium_idle",
        "_burst.medium_busy", "_burst.small_idle")},
    # glibc's malloc, without a fault, gives too little back for any of these.
    **{f"release_{run}": "none" for run in (
        "idle.single", "idle.small", "idle.large", "idle.threads", "idle.others", "idle.fork", "idle.gone",
        "trim.small", "trim.large", "trim.calls", "where.sandbox", "where.sandbox_raw", "where.locked",
        "where.nproc", "where.user", "where.changes")},
    # These look for names that only a whole malloc has: they fail under broken.c whatever its fault.
    "aliases": "none", "new_delete": "none",
}
WHOLE_ONLY = {"aliases", "new_delete"}
DEADLOCK_S = 15  # after which a run counts as blocked under a fault that blocks


def outcome(run, argv, directory, fault):
    """Why the run fails under a fault, in one line; None: it passes."""
    run = copy.copy(run)
    run.env = {**run.env, "BROKEN": fault}
    if fault.startswith("lock"):
        run.timeout = DEADLOCK_S
    try:
        contract.execute(run, argv, directory / ("libhollow.so" if fault == "hollow" else "libbroken.so"))
        return None
    except contract.Failure as failure:
        return " ".join(str(failure).split("\n", 2)[:2])


def one(run, argv, directory):
    """Whether a run fails where it must, and a line about it."""
    fault = FAULTS.get(run.name)
    if fault is None:
        return False, f"FAIL {run.name}: no fault is known to break it"
    if run.on_glibc and run.name not in WHOLE_ONLY:
        sound = outcome(run, argv, directory, "none")
        if sound is not None:
            return False, f"FAIL {run.name}: fails without a fault: {sound}"
    broken = outcome(run, argv, directory, fault)
    if broken is None:
        return False, f"FAIL {run.name} [{fault}] passes although the allocator is broken"
    return True, f"ok   {run.name} [{fault}] {broken}"


def libraries_build(compiler, directory):
    sources = contract.HERE / "self_test"
    flags = ["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-ftls-model=initial-exec",
             "-fno-builtin", "-pthread"]
    for name, parts in (("broken", ["broken.c"]), ("hollow", ["broken.c", "hollow.c"])):
        subprocess.run([compiler, *flags, "-o", str(directory / f"lib{name}.so"), *(str(sources / p) for p in parts)],
                       check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="directory for the compiled programs")
    parser.add_argument("--only", default="", help="regular expression on the runs' names")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once")
    options = parser.parse_args()
    compilers = (os.environ.get("CC", "cc"), os.environ.get("CXX", "c++"))
    directory = pathlib.Path(options.build).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    libraries_build(compilers[0], directory)
    runs = contract.runs_all()
    results = [(False, f"FAIL {name}: there is no such run") for name in FAULTS.keys() - {run.name for run in runs}]
    # Runs of one program share its binary: all are built first.
    chosen = [(run, contract.build(run, compilers, directory)) for run in runs if re.search(options.only, run.name)]
    chosen.sort(key=lambda pair: -pair[0].timeout)
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, options.jobs)) as pool:
        for result in pool.map(lambda pair: one(*pair, directory), chosen):
            print(result[1], flush=True)
            results.append(result)
    failed = [line for ok, line in results if not ok]
    if failed:
        print(*failed, sep="\n")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
