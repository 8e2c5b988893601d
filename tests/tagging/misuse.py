#!/usr/bin/env python3
# misuse.py: runs every misuse with tagging on, each in a process of its own, and compares the report with what
# must come: its exact first line, the exact line of the tags behind it, then lines of the known forms alone.
#
#   sync    at an access: the line that the case expects, and SIGSEGV; at a call: the line, and SIGABRT
#   async   at an access: the one line that can be said late, and SIGSEGV, but where a page may not be touched;
#           at a call as above
#   report  sync:on_error=report: the same line, and the program goes on and exits 0
#   late    async:on_error=report: the line of async, and the program goes on
#   history sync:tag_history=20000: as sync, and who allocated the block, and freed it, with stacks
#
# Where a case expects nothing, none of them may say a word. --self-test runs the cases without tags: then those
# that need them must fail. Run by hand and by CI. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import emulator

OPTIONS = {"off": "", "sync": "tagging=sync", "async": "tagging=async", "report": "tagging=sync:on_error=report",
           "late": "tagging=async:on_error=report",
           "history": "tagging=sync:tag_history=20000"}
SHOWN = 20  # failures, in full
UNTAGGED = ("wrong-size", "double-free")  # found without tags as well
LATE = "weir: tag-late: a pointer with a wrong tag was used by this thread, at some place before; see docs/errors/tag-late.md"
DETAIL = re.compile(r"weir:   (access|noticed|called|allocated|freed) by thread [0-9]+|weir:     0x[0-9a-f]+ (/\S+\+0x[0-9a-f]+|\S+)")


def first_line_fits(expected, line):
    """Exactly, but where the case says no more than how it begins, and that the processor may not tell the direction."""
    if not expected.endswith(".md"):
        return line.startswith(expected)
    return line in (expected, re.sub(r": (read|write) ", ": access ", expected))


def judge(mode, ends, done):
    """What is wrong with the end of a case, or None."""
    out = done.stdout.splitlines()
    lines = [line for line in done.stderr.splitlines() if not line.startswith("qemu: uncaught target signal")]
    found = f"found exit {done.returncode}, stdout {out}, stderr {lines}"
    if not out or not out[0].startswith("expect"):
        return "no expectation; " + found
    expected = out[0].removeprefix("expect").strip()
    if mode in ("report", "late") or ends == "none":
        if done.returncode != 0 or out[-1] != "survived":
            return "it did not go on; " + found
    elif done.returncode != -(signal.SIGABRT if ends == "call" else signal.SIGSEGV):
        return f"it should end by {'SIGABRT' if ends == 'call' else 'SIGSEGV'}; {found}"
    if ends == "none":
        return "nothing should be said; " + found if lines else None
    details = [line.removeprefix("detail ") for line in out if line.startswith("detail ")]
    if mode in ("async", "late") and details:
        good, details = lines[:1] == [LATE], []
    else:
        good = bool(lines) and first_line_fits(expected, lines[0])
    if not good or lines[1:1 + len(details)] != details:
        return f"expected {[expected, *details]}; {found}"
    strange = [line for line in lines[1 + len(details):] if not DETAIL.fullmatch(line)]
    return f"lines of another form: {strange}" if strange else None


def self_test_verdict(case, what):
    """The verdict on the verdict."""
    name, ends = case
    needs_tags = ends != "none" and not name.startswith(UNTAGGED)
    if needs_tags and what is None:
        return "found good without tags"
    return what if ends == "none" else None


def judge_history(name, expected, lines):
    """What is wrong with the stacks of a report's block, or None. Pools keep none, nor has a large block."""
    size = re.search(r"@(\d+)", name)
    if name.startswith(("pool-", "untagged-", "foreign-", "wrong-size")) or (size and int(size[1]) > 65536):
        return None
    if not lines or not expected.endswith(".md"):
        return None
    if not any("memory has tag" in line for line in lines) and " in " not in expected:
        return None
    wanted = ["allocated"] if expected.startswith(("weir: tag-overflow", "weir: tag-underflow", "weir: tag-mismatch: write")) else ["allocated", "freed"]
    who = {}
    for line in lines:
        by = re.fullmatch(r"weir:   (\w+) by thread [0-9]+", line)
        if by:
            frames = who.setdefault(by[1], [])
        elif line.startswith("weir:     0x"):
            frames.append(line)
    missing = [word for word in wanted if not who.get(word)]
    return f"no stack of who {' and '.join(missing)} the block: {lines}" if missing else None


def run(args, mode, case):
    name, ends = case
    try:
        done = emulator.run(emulator.command(args, [args.bin, name]), emulator.environment(OPTIONS[mode]), 60, merged=False)
    except (subprocess.TimeoutExpired, emulator.Stuck) as why:
        return str(why)
    wrong = judge(mode, ends, done)
    if wrong or mode != "history":
        return wrong
    expected = done.stdout.splitlines()[0].removeprefix("expect").strip()
    return judge_history(name, expected, done.stderr.splitlines())


def main():
    parser = argparse.ArgumentParser(description="one misuse, one program, with tagging on")
    emulator.arguments(parser)
    parser.add_argument("--bin", required=True, help="the tagging_misuse binary")
    parser.add_argument("--only", default="", help="only cases whose name matches this")
    parser.add_argument("--modes", default="sync,async,report,late,history")
    parser.add_argument("--self-test", action="store_true", help="without tags: what needs them must fail")
    args = parser.parse_args()
    listing = subprocess.run(emulator.command(args, [args.bin, "--list"]), env=emulator.environment(""),
                             capture_output=True, text=True, check=True).stdout
    cases = [tuple(line.split()) for line in listing.splitlines()]
    modes = ["off"] if args.self_test else args.modes.split(",")
    jobs = [(mode, case) for mode in modes for case in cases if re.search(args.only, case[0])]
    with ThreadPoolExecutor(2) as pool:
        wrong = list(pool.map(lambda job: run(args, *job), jobs))
    if args.self_test:
        wrong = [self_test_verdict(case, what) for (_, case), what in zip(jobs, wrong)]
    told = [(mode, name, what) for (mode, (name, _)), what in zip(jobs, wrong) if what]
    for mode, name, what in told[:SHOWN]:
        print(f"FAILED  {mode:6} {name}: {what[:1500]}")
    if len(told) > SHOWN:
        print("FAILED  and", ", ".join(f"{name} ({mode})" for mode, name, _ in told[SHOWN:]))
    print(f"{len(jobs) - len(told)} passed, {len(told)} failed")
    return bool(told) or not jobs


if __name__ == "__main__":
    sys.exit(main())
