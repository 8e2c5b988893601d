#!/usr/bin/env python3
# run.py: runs every misuse case on its own, in three modes, and compares what the allocator says with the
# exact line that must come.
#
#   full    checks=full: the line, alone on stderr, and SIGABRT, at the call
#   report  checks=full:on_error=report: the line, and the program goes on and exits 0
#   late    the default: as `misuse --list` says of the case: at the call (the exact line), soon (some
#           report in the right form, and SIGABRT), maybe (a report, or nothing at all); never a crash
#
# Run by hand and by CI. It knows the form of the report; the lines come from the cases. Last line:
# N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

FORM = re.compile(r"weir: (invalid-free|double-free|wrong-size|corrupt-list): .+ 0x[0-9a-f]+ in [a-z_ ]+; "
                  r"see docs/errors/\1\.md\n")
OPTIONS = {"full": "checks=full", "report": "checks=full:on_error=report", "late": ""}
LACKS = 77  # the case's entry point does not exist here


def run(args, mode, case):
    """(name, what went wrong or None)"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
    if args.lib:
        env["LD_PRELOAD"] = os.path.abspath(args.lib)
    if OPTIONS[mode]:
        env["WEIR_OPTIONS"] = OPTIONS[mode]
    name, late = case
    try:
        done = subprocess.run([args.bin, name], env=env, capture_output=True, text=True, errors="replace",
                              timeout=60)
    except subprocess.TimeoutExpired:
        return "no end within 60 s"
    if done.returncode == LACKS:
        return "the entry point is missing"
    out = done.stdout.splitlines()
    if not out or not out[0].startswith("expect "):
        return f"no expectation on stdout (exit {done.returncode}): {done.stdout}{done.stderr}"
    expected = out[0].removeprefix("expect ") + "\n"
    survived = done.returncode == 0 and out[-1] == "survived"
    aborted = done.returncode == -signal.SIGABRT
    found = f"found exit {done.returncode}, stderr {done.stderr!r}"
    if mode == "report":
        return None if survived and done.stderr == expected else f"expected exit 0 and {expected!r}, {found}"
    if mode == "full" or late == "call":
        return None if aborted and done.stderr == expected else f"expected abort and {expected!r}, {found}"
    # Late: the message may name another call, and the list that shows the damage may not be the one
    # that was damaged; the form stays.
    if aborted and FORM.fullmatch(done.stderr):
        return None
    if late == "maybe" and survived and done.stderr == "":
        return None
    return f"expected a report{' or nothing' if late == 'maybe' else ''} ({expected!r}), {found}"


def main():
    parser = argparse.ArgumentParser(description="exact texts of misuse reports")
    parser.add_argument("--bin", required=True, help="the misuse binary")
    parser.add_argument("--lib", help="the allocator to preload")
    parser.add_argument("--mode", choices=OPTIONS, action="append", help="default: all")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    listing = subprocess.run([args.bin, "--list"], capture_output=True, text=True, check=True).stdout
    cases = [tuple(line.split()) for line in listing.splitlines()]
    jobs = [(mode, case) for mode in args.mode or OPTIONS for case in cases if args.only in case[0]]
    passed = failed = 0
    with ThreadPoolExecutor(2) as pool:
        for (mode, case), wrong in zip(jobs, pool.map(lambda job: run(args, *job), jobs)):
            if wrong is None:
                passed += 1
                if args.verbose:
                    print(f"ok      {mode:6} {case[0]}")
            else:
                failed += 1
                print(f"FAILED  {mode:6} {case[0]}: {wrong}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
