#!/usr/bin/env python3
"""check/pool_pair.py: what a pair of alloc and free on a statically declared pool costs when the thread's cache serves it.

Who may call it: anybody, from anywhere; the test command calls it. It compiles tests/golden/pool_pair.c by each compiler for
programs and for shared libraries, and counts the instructions on the way on which no conditional branch is taken, which is
the way through a cache that is neither empty nor full: of a function with two pairs, less those of one with one. It
deliberately knows nothing of what they do.

    check/pool_pair.py              fails above 14 instructions on x86-64 or 23 on aarch64, and where a call is on the way
    check/pool_pair.py --limit N    another limit on x86-64

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import itertools
import re
import sys
import tempfile
from pathlib import Path

import golden

LIMIT = {"x86_64": 14, "aarch64": 23}
COMPILERS = [("x86_64", ["gcc"]), ("x86_64", ["clang-19"]), ("aarch64", ["aarch64-linux-gnu-gcc"]),
             ("aarch64", ["clang-19", "--target=aarch64-linux-gnu"])]
KINDS = {"program": "-fno-pic", "position-independent program": "-fPIE", "shared library": "-fPIC"}
# How the assembly is written down for the assembler.
DIALECTS = {"x86_64": ["att", "intel"], "aarch64": [None]}


def places_of(arch, unit):
    """Where each function of an object file begins."""
    table = golden.run_text([golden.OBJDUMP[arch], "-t", unit])
    return {m[2]: int(m[1], 16) for m in re.finditer(r"^([0-9a-f]+) g +F \.text\s+[0-9a-f]+ (\w+)$", table, re.M)}


def pair_of(arch, cc, flag, dialect, folder):
    """The way's instructions that the second pair adds."""
    unit = folder / "pool_pair.o"
    golden.run_text([*cc, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", flag,
                     *(["-fcf-protection=none", f"-masm={dialect}"] if arch == "x86_64" else []), "-I", golden.ROOT / "include", "-c",
                     golden.ROOT / "tests/golden/pool_pair.c", "-o", unit])
    code, places = golden.disassemble(arch, unit), places_of(arch, unit)
    ways = [golden.straight_path(arch, code, places[name]) for name in ("pairs_one", "pairs_two")]
    for way in ways:
        if any(golden.is_call(arch, code[at]) for at in way) or not golden.RETURN.match(code[way[-1]].mnemonic.split()[-1]):
            raise golden.Failure("the way does not lead straight to the end")
    return len(ways[1]) - len(ways[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, help="the most that is allowed on x86-64")
    options = parser.parse_args()
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="pool-pair.") as scratch:
        for arch, cc in COMPILERS:
            for (kind, flag), dialect in itertools.product(KINDS.items(), DIALECTS[arch]):
                if dialect == "intel":
                    kind += ", Intel's syntax"
                limit = options.limit if options.limit is not None and arch == "x86_64" else LIMIT[arch]
                try:
                    count = pair_of(arch, cc, flag, dialect, Path(scratch))
                except golden.Failure as failure:
                    print(f"FAIL {arch} {cc[0]} {kind}: {failure}")
                    failed += 1
                    continue
                good = 0 < count <= limit
                print(f"{'ok  ' if good else 'FAIL'} {arch:8} {cc[0]:22} {kind:46} {count} instructions, at most {limit}")
                passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
