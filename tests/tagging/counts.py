#!/usr/bin/env python3
# counts.py: instructions that a malloc and a free take together, with tagging off and on, of weir, glibc and
# scudo: a Markdown table, and weir's bounds.
#
# The emulator writes a line for each instruction; the difference of two runs that differ in the number of pairs
# alone is exact, less the loop around them. Run by hand and by CI. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import glob
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import emulator

ROWS = [("pair", 16), ("pair", 64), ("pair", 256), ("pair", 1024), ("set", 16)]
FEW, MANY = 1000, 3000  # pairs; what is done at first is in both
# Bounds on weir's pairs with tagging on: times off, plus the least stores that tag a block (32 bytes each).
BOUNDS = {16: 1.5, 64: 2, 256: 2, 1024: 2}
TAGGED = ["-E", "GLIBC_TUNABLES=glibc.mem.tagging=3"]


class Allocator:
    """What a column measures: library, options of the emulator, environment; whether blocks must have tags."""

    def __init__(self, name, lib, tagged, options=(), environment="", cpu="max"):
        self.name, self.lib, self.tagged, self.options = name, lib, tagged, options
        self.environment, self.cpu = environment, cpu


def allocators(args):
    scudo = glob.glob(f"{args.root}/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.scudo_standalone-aarch64.so")
    found = [Allocator("weir, off", args.lib, False), Allocator("weir, on", args.lib, True, environment="tagging=sync")]
    if not args.peers:
        return found
    # scudo tags where the processor has tags and libc has switched them on; it runs well with both or neither.
    return found + [Allocator("glibc, off", None, False), Allocator("glibc, on", None, True, TAGGED),
                    Allocator("scudo, off", scudo[0], False, cpu="neoverse-n1"), Allocator("scudo, on", scudo[0], True, TAGGED)]


def start(args, allocator, words, options=()):
    line = [args.emulator, "-cpu", allocator.cpu, "-L", args.root, *allocator.options, *options]
    if allocator.lib:
        line += ["-E", f"LD_PRELOAD={os.path.abspath(allocator.lib)}"]
    done = subprocess.run([str(w) for w in [*line, args.bin, *words]], env=emulator.environment(allocator.environment),
                          capture_output=True, text=True, timeout=600)
    if done.returncode != 0 or done.stderr:
        sys.exit(f"{allocator.name}: {words}: exit {done.returncode}: {done.stderr}")
    return done.stdout.strip()


def instructions(args, allocator, shape, size, pairs):
    """All instructions of one run."""
    with tempfile.NamedTemporaryFile(prefix="counts.") as log:
        start(args, allocator, [shape, size, pairs], ["-one-insn-per-tb", "-d", "exec,nochain", "-D", log.name])
        with open(log.name, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def pair_count(args, allocator, shape, size):
    few, many = (instructions(args, allocator, shape, size, n) for n in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def main():
    parser = argparse.ArgumentParser(description="instructions per malloc and free")
    emulator.arguments(parser)
    parser.add_argument("--bin", required=True, help="the tagging_counts binary")
    parser.add_argument("--peers", action="store_true", help="glibc and scudo as well")
    args = parser.parse_args()
    columns = allocators(args)
    for column in columns:
        tag = start(args, column, ["tag"])
        if (tag != "0") != column.tagged:
            print(f"FAILED  {column.name}: a block has tag {tag}\n0 passed, 1 failed")
            return 1
    jobs = [(column, shape, size) for shape, size in ROWS for column in columns]
    with ThreadPoolExecutor(2) as pool:
        loop = pool.submit(pair_count, args, columns[0], "loop", 0)
        counts = dict(zip(jobs, pool.map(lambda job: pair_count(args, *job), jobs)))
    counts = {job: count - loop.result() for job, count in counts.items()}
    print("| instructions | " + " | ".join(c.name for c in columns) + " |\n|---|" + "---:|" * len(columns))
    failed = 0
    for shape, size in ROWS:
        row = [counts[column, shape, size] for column in columns]
        print(f"| {shape}, {size} B | " + " | ".join(f"{count:.1f}" for count in row) + " |")
        bound = BOUNDS[size] * row[0] + size // 32
        if shape == "pair" and row[1] > bound:
            failed += 1
            print(f"FAILED  {size} B: {row[1]:.1f} instructions with tagging on, at most {bound:.1f} expected")
    print(f"{len(BOUNDS) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
