#!/usr/bin/env python3
# sample.py: a thousand random programs with one misuse each, or none, with tags compared at once and late,
# judged by the model in sample.c: what must be reported is, what is sound is not, and of what may escape no more
# escapes than it may. The rates are measured again, finely, by the tags themselves.
#
# Run by hand and by CI. Prints a Markdown table. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import math
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import emulator

MODES = ("sync", "async")
JOBS = 2
# The least share that must be noticed: 7 tags less the one before, 8 less the one before, and any two blocks.
RATES = {"even": 5 / 6, "odd": 6 / 7, "wild": 0.93}
DEVIATIONS = 4  # that a measured rate may be off by chance


def run(args, mode, words):
    done = emulator.run(emulator.command(args, [args.bin, *words]), emulator.environment(f"tagging={mode}"), 1500, merged=False)
    if done.returncode != 0 or done.stderr:
        return [], f"{mode} {words}: exit {done.returncode}: {done.stderr[:400]}"
    return done.stdout.splitlines(), None


def too_few(caught, count, rate):
    return count > 0 and caught / count < rate - DEVIATIONS * math.sqrt(rate * (1 - rate) / count)


def judge_programs(mode, lines):
    """(programs that ended as they must, [what is wrong]); prints the table's rows."""
    rows = [line.split(" ", 6) for line in lines]
    wrong, good = [], 0
    for verdict, kind, outcome, seed, *rest in rows:
        is_good = {"must": outcome == "caught", "never": outcome == "silent", "void": True}.get(verdict, outcome in ("caught", "silent"))
        good += is_good
        if not is_good:
            wrong.append(f"{mode}: seed {seed} ({kind}): {verdict} be reported, found {outcome}: {' '.join(rest)}")
    count = Counter((row[1], row[0], row[2]) for row in rows)
    for kind, verdict in sorted({(row[1], row[0]) for row in rows if row[0] != "void"}):
        caught, silent = (count[kind, verdict, outcome] for outcome in ("caught", "silent"))
        print(f"| {kind} | {mode} | {verdict} | {caught + silent} | {caught} |")
    for verdict, rate in RATES.items():
        caught, silent = (sum(count[key] for key in count if key[1:] == (verdict, o)) for o in ("caught", "silent"))
        if too_few(caught, caught + silent, rate):
            wrong.append(f"{mode}: {verdict}: {caught} of {caught + silent} caught, {rate:.3f} expected")
    return good, wrong


def judge_rates(lines):
    good, wrong = 0, []
    for name, count, missed in (line.split() for line in lines):
        count, missed = int(count), int(missed)
        share = 1 - missed / max(count, 1)
        print(f"| {name}, by tags | | {RATES[name]:.3f} | {count} | {share:.4f} |")
        if count == 0 or too_few(count - missed, count, RATES[name]):
            wrong.append(f"{name}: {share:.4f} of {count}, {RATES[name]:.4f} expected")
        else:
            good += 1
    return good, wrong


def main():
    parser = argparse.ArgumentParser(description="random misuse with tagging on")
    emulator.arguments(parser)
    parser.add_argument("--bin", required=True, help="the tagging_sample binary")
    parser.add_argument("--programs", type=int, default=1000, help="of each mode")
    parser.add_argument("--trials", type=int, default=60000, help="of each rate, about")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    args = parser.parse_args()
    parts = [(args.seed + args.programs * i // (4 * JOBS), args.seed + args.programs * (i + 1) // (4 * JOBS)) for i in range(4 * JOBS)]
    print("| misuse | tags compared | must be caught | programs | caught |\n|---|---|---|---:|---:|")
    passed, wrong = 0, []
    with ThreadPoolExecutor(JOBS) as pool:
        rates = pool.submit(run, args, "sync", ["rates", args.trials])
        for mode in MODES:
            done = list(pool.map(lambda p: run(args, mode, ["programs", p[0], p[1] - p[0]]), parts))
            lines = [line for out, _ in done for line in out]
            wrong += [what for _, what in done if what]
            good, bad = judge_programs(mode, lines)
            passed, wrong = passed + good, wrong + bad
        lines, what = rates.result()
        good, bad = judge_rates(lines)
        passed, wrong = passed + good, wrong + bad + ([what] if what else [])
    for what in wrong[:40]:
        print("FAILED  " + what)
    print(f"{passed} passed, {len(wrong)} failed")
    return bool(wrong) or passed == 0


if __name__ == "__main__":
    sys.exit(main())
