#!/usr/bin/env python3
# units.py: the unit tests for aarch64 with tagging on, in a few processes, but for those that units.txt names.
# What is about tags runs in each mode; the others in one, in turn: the heap does not know when the processor compares.
#
# Run by hand and by CI. A process that dies counts as one failed test, the one that it was in; the tests behind it
# are run again without it. A test in which the emulator locks itself out is run again. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import fnmatch
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import emulator

CPUS = os.cpu_count() or 1
SHARDS, JOBS, LIMIT_S = 8, CPUS + (CPUS + 1) // 2, 900  # many tests wait: more of them than processors
ABOUT_TAGS = re.compile(r"(Tag|Retag|Fence|Report)")
HERE = os.path.dirname(os.path.abspath(__file__))


def excepted():
    """Tests that are left out: a name, or a pattern, and a reason in each line."""
    with open(os.path.join(HERE, "units.txt"), encoding="utf-8") as file:
        rows = [line.split(None, 1) for line in file if line.strip() and not line.startswith("#")]
    for row in rows:
        if len(row) != 2:
            sys.exit(f"units.txt: no reason for {row[0]}")
    return [name for name, _ in rows]


def listed(args):
    tests, suite = [], ""
    done = subprocess.run(emulator.command(args, [args.bin, "--gtest_list_tests"]), env=emulator.environment(""),
                          capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        words = line.split("#")[0].rstrip()
        if words and not line.startswith(" "):
            suite = words
        elif words:
            tests.append(suite + words.strip())
    return [t for t in tests if t.endswith(".") is False and "." in t]


def dealt(tests, modes):
    """The tests of each mode."""
    both = [t for t in tests if ABOUT_TAGS.match(t)]
    others = [t for t in tests if not ABOUT_TAGS.match(t)]
    return [both + others[i::modes] for i in range(modes)]


def output_of(words, mode):
    """(what the tests said, how they ended, whether the emulator got stuck)."""
    try:
        done = emulator.run_once(words, emulator.environment("", WEIR_TAGGING=mode), LIMIT_S)
        output, ended, stuck = done.stdout, f"exit {done.returncode}", False
    except subprocess.TimeoutExpired as expired:
        output, ended, stuck = expired.output, f"no end within {LIMIT_S} s", False
    except emulator.Stuck as expired:
        output, ended, stuck = expired.output, str(expired), True
    return output.decode(errors="replace"), ended, stuck


def run(args, mode, tests):
    """{test: what is wrong, or None} of those that ran, {test: milliseconds}, {test: how often the emulator got stuck
    in it}. Each fork may get it stuck, whatever the test: the limit is a test's, not the shard's."""
    verdicts, took, stuck = {}, {}, {}
    while tests:
        words = [args.bin, "--gtest_brief=0", "--gtest_color=no", "--gtest_filter=" + ":".join(tests)]
        text, ended, is_stuck = output_of(emulator.command(args, words), mode)
        begun = None
        for part in re.split(r"^\[ RUN      \] ", text, flags=re.MULTILINE)[1:]:
            begun, _, rest = part.partition("\n")
            good = re.search(r"^\[       OK \] .*\(([0-9]+) ms\)|^\[  SKIPPED \]", rest, flags=re.MULTILINE)
            if good:
                verdicts[begun] = None
                took[begun] = int(good[1] or 0)
            else:
                verdicts[begun] = rest[:2500] if re.search(r"^\[  FAILED  \]", rest, flags=re.MULTILINE) else f"{ended}\n{rest[-2500:]}"
        if begun is None:
            return dict.fromkeys(tests, f"nothing ran: {ended}\n{text[-1500:]}"), took, stuck
        if is_stuck:
            stuck[begun] = stuck.get(begun, 0) + 1
            if stuck[begun] < emulator.STARTS:
                del verdicts[begun]  # it runs again
        tests = [t for t in tests if t not in verdicts]
    return verdicts, took, stuck


def main():
    parser = argparse.ArgumentParser(description="unit tests with tagging on")
    emulator.arguments(parser)
    parser.add_argument("--bin", required=True, help="the unit tests for aarch64")
    parser.add_argument("--modes", default="sync,async")
    parser.add_argument("--only", default="", help="only tests whose name matches this")
    args = parser.parse_args()
    everything, left_out = listed(args), excepted()
    unknown = [name for name in left_out if not fnmatch.filter(everything, name)]
    left_out = [t for t in everything if any(fnmatch.fnmatchcase(t, name) for name in left_out)]
    tests = [t for t in everything if t not in left_out and re.search(args.only, t)]
    modes = args.modes.split(",")
    jobs = [(mode, chosen[i::SHARDS]) for mode, chosen in zip(modes, dealt(tests, len(modes))) for i in range(SHARDS)]
    with ThreadPoolExecutor(JOBS) as pool:
        done = list(pool.map(lambda job: run(args, *job), jobs))
    passed, failed, slow, stuck = 0, 0, [], []
    for (mode, _), (verdicts, took, times) in zip(jobs, done):
        stuck += [f"{test} ({mode}, {n})" for test, n in times.items()]
        slow += [(ms, f"{test} ({mode})") for test, ms in took.items()]
        for test, wrong in verdicts.items():
            passed += wrong is None
            failed += wrong is not None
            if wrong is not None:
                print(f"FAILED  {mode:5} {test}: {wrong}")
    for name in unknown:
        failed += 1
        print(f"FAILED  units.txt names {name}, which is no test")
    print("longest: " + ", ".join(f"{name} {ms / 1000:.1f} s" for ms, name in sorted(slow, reverse=True)[:12]))
    if stuck:
        print("the emulator got stuck, and how often: " + ", ".join(stuck))
    print(f"{len(left_out)} of {len(everything)} tests left out\n{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
