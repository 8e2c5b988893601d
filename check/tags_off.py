#!/usr/bin/env python3
"""check/tags_off.py: heap tagging that is compiled in and switched off costs no instruction.

Builds the library for aarch64 with tags and without (-DWEIR_TAGS=0) and counts what both execute for a lone block and
for sets of 1024 blocks: the difference of two runs that differ in
their rounds alone, so that start-up and exit do not count. The bound is 0.1 %. Needs the cross compiler and
qemu-aarch64. `--self-test` shows that a library whose functions do more fails. Last line:
N passed, N failed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CC = "aarch64-linux-gnu-gcc"
EMULATOR = ["qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"]
FLAGS = ["-O2", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-std=gnu17", "-DWEIR_WEAK_OPERATORS=1", "-shared",
         "-Wl,-z,now", f"-Wl,--version-script={ROOT}/src/weir.map"]
SHAPES = {("set", 16): (3, 9), ("pair", 16): (500, 1500), ("set", 64): (3, 9), ("pair", 1024): (500, 1500)}
BOUND = 0.001


def build(folder, name, *options):
    library = folder / f"{name}.so"
    subprocess.run([CC, *FLAGS, *options, f"-I{ROOT}/src", f"-I{ROOT}/include", ROOT / "src/weir.c", "-o", library],
                   check=True)
    return library


def executed(folder, library, program, shape, size, rounds):
    log = folder / f"{library.stem}.{shape}.{size}.{rounds}"
    subprocess.run([*EMULATOR, "-one-insn-per-tb" if one_insn_known() else "-singlestep", "-d", "exec,nochain", "-D", log,
                    "-E", f"LD_PRELOAD={library}", program, shape, str(size), str(rounds)], check=True)
    with open(log, "rb") as file:
        count = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    log.unlink()
    return count


def one_insn_known():
    return "one-insn-per-tb" in subprocess.run([EMULATOR[0], "--help"], capture_output=True, text=True).stdout


def check(folder, plain, tagged, shapes):
    program = folder / "sets"
    subprocess.run([CC, "-O2", ROOT / "tests/golden/sets.c", "-o", program], check=True)
    passed = failed = 0
    runs = [(library, shape, size, rounds) for (shape, size), both in shapes.items() for rounds in both
            for library in (plain, tagged)]
    with ThreadPoolExecutor(2) as pool:
        counts = dict(zip(runs, pool.map(lambda run: executed(folder, run[0], program, *run[1:]), runs)))
    for (shape, size), (few, many) in shapes.items():
        without, with_tags = (counts[library, shape, size, many] - counts[library, shape, size, few]
                              for library in (plain, tagged))
        good = abs(with_tags - without) <= BOUND * without
        passed, failed = passed + good, failed + (not good)
        blocks = (many - few) * (1024 if shape == "set" else 1)
        print(f"{'ok  ' if good else 'FAIL'} {shape} of {size} bytes: {without / blocks:.3f} instructions a pair without "
              f"tags, {with_tags / blocks:.3f} with: {100 * (with_tags / without - 1):+.4f} %")
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description="heap tagging that is off costs no instruction")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-tags-off.") as name:
        folder = Path(name)
        plain = build(folder, "without", "-DWEIR_TAGS=0")
        if args.self_test:
            broken = build(folder, "broken", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer")
            one = dict([next(iter(SHAPES.items()))])
            failed = check(folder, plain, broken, one)[1] == 0
            passed = not failed
        else:
            passed, failed = check(folder, plain, build(folder, "with"), SHAPES)
    print(f"tags_off: {int(passed)} passed, {int(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
