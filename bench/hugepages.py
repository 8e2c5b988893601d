#!/usr/bin/env python3
"""bench/hugepages.py: what huge pages bring and cost: option hugepages=never|auto|always, and the C library, on a heap whose
walk misses the TLB, in rounds that alternate.

    bench/hugepages.py [--rounds N] [--mib N] [--settle S] [--shapes chase,table,tree] [--weir LIB]
    bench/hugepages.py --system always ...   the same with the system's setting changed (root; put back afterwards)
    bench/hugepages.py --scans               what was freed, before and after khugepaged looked at it twice (root)

Who may call it: anybody; --system and --scans change the whole machine meanwhile. Prints medians of processor time per
step, resident memory, how much of it is huge, and the ratio to `never` of the same round with its 95 % interval (order
statistics; the extremes where there are fewer than six rounds). With --scans the exit status is 1 when memory that weir
had given back was resident again under never or auto. Otherwise it judges nothing.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
THP = Path("/sys/kernel/mm/transparent_hugepage")
QUICK = {"khugepaged/scan_sleep_millisecs": "10", "khugepaged/alloc_sleep_millisecs": "10", "khugepaged/pages_to_scan": "65536"}
REFILLED_MIB = 4


def setting(name):
    """The word in brackets where there is a choice."""
    text = (THP / name).read_text().strip()
    return text.split("[")[1].split("]")[0] if "[" in text else text


@contextlib.contextmanager
def system(wanted):
    """Settings of the machine, put back however it ends."""
    before = {name: setting(name) for name in wanted}
    try:
        for name, value in wanted.items():
            (THP / name).write_text(value)
        yield
    finally:
        for name, value in before.items():
            (THP / name).write_text(value)


def build(folder):
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "hugepages"
    subprocess.run(["cc", "-std=c17", "-O2", HERE / "hugepages.c", "-o", program], check=True)
    return program


def run(program, name, weir, words):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_") and k != "LD_PRELOAD"}
    if name != "system":
        environment |= {"LD_PRELOAD": str(weir), "WEIR_HUGEPAGES": name}
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0 or done.stderr:
        sys.exit(f"hugepages.py: {name} {' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def interval(values):
    """The narrowest interval of order statistics that covers the median with at least 95 %."""
    values, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + math.comb(n, rank) / 2 ** n <= 0.025:
        below += math.comb(n, rank) / 2 ** n
        rank += 1
    number = max(rank, 1)
    return values[number - 1], values[n - number]


def compare(program, options):
    for shape in options.shapes.split(","):
        rows = {name: [] for name in options.names}
        words = [shape, "--mib", options.mib, "--settle", options.settle, "--steps", options.steps, "--free", options.free]
        for index in range(options.rounds):
            for name in options.names[index % len(options.names):] + options.names[:index % len(options.names)]:
                rows[name].append(run(program, name, options.weir, [str(w) for w in words]))
        print(f"\n{shape}, {options.mib} MiB, {options.rounds} rounds, system: {setting('enabled')}")
        print(f"{'':8} {'ns/step':>9} {'to never':>22} {'build ns':>9} {'settle CPU s':>13} {'resident':>9} {'huge':>7} {'freed: resident':>16} {'huge':>7}  MiB")
        for name, runs in rows.items():
            def middle(key):
                return statistics.median(r[key] for r in runs)
            ratios = [r["step_ns"] / n["step_ns"] for r, n in zip(runs, rows.get("never", runs))]
            low, high = interval(ratios)
            ratio = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
            print(f"{name:8} {middle('step_ns'):9.1f} {ratio:>22} {middle('build_ns'):9.1f} {middle('settle_cpu_s'):13.3f} "
                  f"{middle('settled_mib'):9.1f} {middle('settled_huge_mib'):7.0f} {middle('freed_mib'):16.1f} {middle('freed_huge_mib'):7.0f}",
                  flush=True)


def scans(program, options):
    """Memory that was given back, under a kernel that makes everything huge and is in a hurry."""
    refilled = False
    words = ["pages", "--mib", "256", "--settle", "2", "--free", "0.8", "--idle", "2", "--scans", "2"]
    with system({"enabled": "always"} | QUICK):
        print(f"{'':8} {'full':>9} {'huge':>7} {'freed':>9} {'huge':>7} {'two scans later':>16} {'huge':>7}  MiB resident")
        for name in options.names:
            r = run(program, name, options.weir, words)
            print(f"{name:8} {r['settled_mib']:9.1f} {r['settled_huge_mib']:7.0f} {r['freed_mib']:9.1f} {r['freed_huge_mib']:7.0f} "
                  f"{r['scanned_mib']:16.1f} {r['scanned_huge_mib']:7.0f}", flush=True)
            # Freed is 80 %: what is resident after that is at most half of what was.
            if name in ("never", "auto"):
                refilled |= r["scanned_mib"] > r["freed_mib"] + REFILLED_MIB or r["freed_mib"] > r["settled_mib"] / 2
    if refilled:
        print("hugepages.py: memory that was given back is resident again")
    return 1 if refilled else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--settle", type=float, default=8)
    parser.add_argument("--steps", default="4e6")
    parser.add_argument("--free", default="0.02", help="part of the blocks that is freed after the walk")
    parser.add_argument("--shapes", default="chase,table,tree")
    parser.add_argument("--names", default="never,auto,always,system", help="option values, and `system` for the C library")
    parser.add_argument("--system", choices=("always", "madvise", "never"))
    parser.add_argument("--scans", action="store_true")
    parser.add_argument("--weir", type=Path, default=ROOT / "build/libweir.so.1")
    parser.add_argument("--build", type=Path, default=ROOT / "build/bench-hugepages")
    options = parser.parse_args()
    options.names = options.names.split(",")
    options.weir = options.weir.resolve()
    if not options.weir.exists():
        sys.exit(f"hugepages.py: there is no {options.weir}")
    program = build(options.build)
    if options.scans:
        return scans(program, options)
    with system({"enabled": options.system} if options.system else {}):
        compare(program, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
