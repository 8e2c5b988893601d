#!/usr/bin/env python3
# guarded.py: runs every misuse of a guarded block on its own, and compares the report with what must come: the exact
# first line, then threads and stacks that name the program.
#
#   abort   guard_rate=1: the report, and the signal that the case names
#   report  guard_rate=1:on_error=report: the report, and the program goes on and exits 0
#
# Run by hand and by CI. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import re
import signal
import subprocess
import sys

OPTIONS = {"abort": "guard_rate=1", "report": "guard_rate=1:on_error=report"}
FRAME = re.compile(r"weir:     0x[0-9a-f]+ (/\S+\+0x[0-9a-f]+)")
WHO = re.compile(r"weir:   (access|called|allocated|freed) by thread [0-9]+")


def judge_details(lines, name, binary):
    """What is wrong with the lines behind the first one, or None."""
    who = [m.group(1) for m in map(WHO.fullmatch, lines) if m]
    frames = [m.group(1) for m in map(FRAME.fullmatch, lines) if m]
    if len(who) + len(frames) != len(lines):
        return f"a line of another form: {lines}"
    freed = "freed" in name or name in ("double-free", "overflow-within-granule", "underflow-found-late")
    if "allocated" not in who or freed != ("freed" in who):
        return f"wrong stacks: {who}"
    if sum(f.startswith(os.path.realpath(binary) + "+") for f in frames) < len(who):
        return f"a stack does not name the program: {frames}"
    return None


def run(args, mode, name, ends):
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
    env["LD_PRELOAD"] = os.path.abspath(args.lib)
    env["WEIR_OPTIONS"] = OPTIONS[mode]
    done = subprocess.run([args.bin, name], env=env, capture_output=True, text=True, timeout=60)
    out = done.stdout.splitlines()
    found = f"found exit {done.returncode}, stdout {out}, stderr {done.stderr!r}"
    lines = done.stderr.splitlines()
    if not out or not out[0].startswith("expect"):
        return "no expectation; " + found
    expected = out[0].removeprefix("expect").strip()
    if mode == "report" or ends == "none":
        if done.returncode != 0 or out[-1] != "survived":
            return "it did not go on; " + found
    elif done.returncode != -getattr(signal, ends):
        return f"expected {ends}; {found}"
    if expected == "":
        return "expected no word; " + found if lines else None
    if lines[:1] != [expected]:
        return f"expected {expected!r}; {found}"
    return judge_details(lines[1:], name, args.bin)


def main():
    parser = argparse.ArgumentParser(description="reports of guarded blocks")
    parser.add_argument("--bin", required=True, help="the misuse_guarded binary")
    parser.add_argument("--lib", required=True, help="the allocator to preload")
    args = parser.parse_args()
    listing = subprocess.run([args.bin, "--list"], capture_output=True, text=True, check=True).stdout
    passed = failed = 0
    for mode in OPTIONS:
        for case in listing.splitlines():
            name, ends = case.split()
            wrong = run(args, mode, name, ends)
            passed += wrong is None
            failed += wrong is not None
            if wrong:
                print(f"FAILED  {mode:6} {name}: {wrong}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
