#!/usr/bin/env python3
# rates.py: measures how surely and how late each kind of misuse is noticed, by random programs with one
# misuse each, and fails when a rate has dropped below the committed one.
#
# Run by hand and by CI; --update rewrites the golden file. It knows the modes and what `misuse rates`
# prints. Prints a Markdown table, fit for the documentation. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MODES = {"late": "", "late, past check_first": "check_first=0", "late, past check_first, reuse=late": "check_first=0:reuse=late", "late, check_every=1": "check_every=1", "full": "checks=full"}
CLEAN = "none"  # the kind without a misuse: nothing may be reported
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rates.golden")


class Result:
    """What became of the rounds of one kind in one mode; void rounds are not counted."""

    def __init__(self, lines):
        rows = [line.split() for line in lines if not line.startswith("void ")]
        self.rounds = len(rows)
        self.count = {}
        for row in rows:
            self.count[row[0]] = self.count.get(row[0], 0) + 1
        latencies = [int(row[1]) for row in rows if row[0] == "caught"]
        self.latency = int(statistics.median(latencies)) if latencies else None
        self.at_call = max(latencies, default=1) == 0
        self.codes = sorted({row[2] for row in rows if row[0] == "caught"})

    def share(self, *outcomes):
        return sum(self.count.get(o, 0) for o in outcomes) / self.rounds if self.rounds else 0.0


def measure(args, mode, kind):
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
    if args.lib:
        env["LD_PRELOAD"] = os.path.abspath(args.lib)
    if MODES[mode]:
        env["WEIR_OPTIONS"] = MODES[mode]
    command = [args.bin, "rates", "--kind", kind, "--seed", str(args.seed), "--rounds", str(args.rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0 or done.stderr:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
    return Result(done.stdout.splitlines())


def golden_read():
    """{(kind, mode): lowest rate allowed, in percent}"""
    rows = {}
    if os.path.exists(GOLDEN):
        with open(GOLDEN) as f:
            for line in f:
                if line.strip() and not line.startswith("#"):
                    kind, mode, rate = (part.strip() for part in line.split("|"))
                    rows[kind, mode] = float(rate)
    return rows


def floor_of(result):
    """The rate to demand from now on: what was caught at the call each time has to stay so; what was
    caught later gets three standard errors of leeway, or as much as a few unlucky rounds are worth."""
    p = result.share("caught")
    if p == 1.0 and result.at_call:
        return 100.0
    return max(0.0, 100 * (p - 3 * math.sqrt(p * (1 - p) / result.rounds) - 5 / result.rounds))


def golden_write(results):
    with open(GOLDEN, "w") as f:
        f.write("# rates.golden: for each kind of misuse and mode, the lowest share in percent that must be\n"
                "# caught. Written by rates.py --update, read by rates.py; knows nothing of latencies.\n#\n"
                "# SPDX-License-Identifier: Apache-2.0\n")
        for (kind, mode), result in results.items():
            if kind != CLEAN:
                f.write(f"{kind:26} | {mode:19} | {floor_of(result):.1f}\n")


def percent(share):
    return f"{100 * share:.1f} %" if share else "-"


def table_print(results):
    print("| misuse | mode | caught | silent | crashed | median latency | reported as |")
    print("|---|---|---:|---:|---:|---:|---|")
    for (kind, mode), r in results.items():
        silent = percent(r.share("silent", "damaged"))
        if r.share("damaged"):
            silent += f" (data changed: {percent(r.share('damaged'))})"
        latency = "-" if r.latency is None else str(r.latency)
        print(f"| {kind} | {mode} | {percent(r.share('caught'))} | {silent} "
              f"| {percent(r.share('crashed', 'hung'))} | {latency} | {', '.join(r.codes) or '-'} |")


def judge(kind, mode, result, golden):
    """What is wrong with this result, or None."""
    if result.rounds == 0:
        return "no round counted"
    if kind == CLEAN:
        return None if result.share("silent") == 1.0 else f"a sound program did not end well: {result.count}"
    if (kind, mode) not in golden:
        return "not in rates.golden; --update adds it"
    rate, lowest = 100 * result.share("caught"), golden[kind, mode]
    return None if rate >= lowest - 0.05 else f"caught {rate:.1f} %, at least {lowest:.1f} % expected: {result.count}"


def main():
    parser = argparse.ArgumentParser(description="how surely and how late misuse is caught")
    parser.add_argument("--bin", required=True, help="the misuse binary")
    parser.add_argument("--lib", help="the allocator to preload")
    parser.add_argument("--rounds", type=int, default=1000, help="random programs of each kind and mode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--update", action="store_true", help="rewrite rates.golden from this run")
    args = parser.parse_args()
    listing = subprocess.run([args.bin, "rates", "--list"], capture_output=True, text=True, check=True).stdout
    jobs = [(kind, mode) for kind in listing.split() if args.only in kind for mode in MODES]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(jobs, pool.map(lambda job: measure(args, job[1], job[0]), jobs)))
    table_print(results)
    if args.update and not args.only:
        golden_write(results)
    golden = golden_read()
    passed = failed = 0
    for (kind, mode), result in results.items():
        wrong = judge(kind, mode, result, golden)
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"FAILED  {kind} ({mode}): {wrong}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
