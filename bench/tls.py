#!/usr/bin/env python3
"""bench/tls.py: what it costs in time to read the thread word afresh: malloc(1) and free, pinned to a core, against a plain
thread-local variable, in rounds that alternate.

    bench/tls.py [--rounds N] [--pairs N] [--build DIR]

Who may call it: anybody, on a quiet machine. Each way of linking is built twice, the second time with
-DWEIR_TLS=naive in the same TLS model. Prints medians, and the median of the rounds' ratios with its 95 % interval (order
statistics: ranks of the binomial distribution). It deliberately judges nothing: check/tls_counts.py does, by counting.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import math
import os
import statistics
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

NAIVE = ["-DWEIR_TLS=naive", "-ftls-model=initial-exec"]
# name, compiler, flags of everything, whether the library is preloaded instead of melted in
WAYS = [
    ("shared, gcc", "gcc", [], True),
    ("shared, clang", "clang-19", [], True),
    ("LTO, gcc", "gcc", ["-flto"], False),
    ("ThinLTO, clang", "clang-19", ["-flto=thin", "-fuse-ld=lld-19"], False),
    ("full LTO, clang", "clang-19", ["-flto", "-fuse-ld=lld-19"], False),
]


def run(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, **more).stdout


def build(folder, name, compiler, flags, preloaded, more):
    """(command's program, library to preload or None)."""
    folder = folder / (name.replace(" ", "").replace(",", "-") + ("-naive" if more else ""))
    folder.mkdir(parents=True, exist_ok=True)
    program, unit = folder / "pair", ROOT / "src/weir.c"
    weir = ["-O2", "-std=gnu17", "-fexceptions", "-fvisibility=hidden", "-I", ROOT / "include", "-I", ROOT / "src", *more]
    if preloaded:
        library = folder / "libweir.so"
        run(compiler, *weir, "-fPIC", "-shared", unit, "-o", library)
        run(compiler, "-O2", "-fno-builtin", HERE / "tls_pair.c", "-o", program)
        return program, library
    quiet = ["-Wno-unused-command-line-argument"]
    run(compiler, *weir, *flags, *quiet, "-fPIE", "-c", unit, "-o", folder / "weir.o")
    run(compiler, "-O2", *flags, *quiet, "-fPIE", "-fno-builtin", "-c", HERE / "tls_pair.c", "-o", folder / "pair.o")
    run(compiler, "-O2", *flags, "-pie", folder / "pair.o", folder / "weir.o", "-o", program, "-pthread", "-ldl")
    return program, None


def interval(values):
    """The narrowest interval of order statistics that covers the median with at least 95 %: from the value with
    number r (of 1 to n) up, where P(binomial(n, 1/2) < r) is within 2.5 %. The extremes where there are too few."""
    values, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + math.comb(n, rank) / 2 ** n <= 0.025:
        below += math.comb(n, rank) / 2 ** n
        rank += 1
    number = max(rank, 1)
    return values[number - 1], values[n - number]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--pairs", type=int, default=20000000)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="core to pin to; the last unless told")
    parser.add_argument("--build", type=Path, default=ROOT / "build/bench-tls")
    options = parser.parse_args()
    for compiler in ("gcc", "clang-19"):
        print(run(compiler, "--version").splitlines()[0])
    built = [(way[0], build(options.build, *way, []), build(options.build, *way, NAIVE)) for way in WAYS]
    times = {way[0]: ([], []) for way in WAYS}
    for index in range(options.rounds):
        for name, real, plain in built:
            order = [(0, real), (1, plain)]
            for which, (program, library) in order if index % 2 == 0 else reversed(order):
                environment = {"LD_PRELOAD": str(library)} if library else {}
                times[name][which].append(float(run(program, options.pairs, options.cpu, env=environment)))
    print(f"{'ns per malloc(1) and free':26} {'weir':>7} {'plain':>7} {'ratio':>7}  95 % interval")
    for name, (real, plain) in times.items():
        ratios = [r / p for r, p in zip(real, plain)]
        low, high = interval(ratios)
        print(f"{name:26} {statistics.median(real):7.3f} {statistics.median(plain):7.3f} {statistics.median(ratios):7.3f}"
              f"  {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
