#!/usr/bin/env python3
"""check/tls_counts.py: that reading the thread word afresh costs nothing: instructions on the fast path of malloc and free,
with the thread word as weir reads it and as a plain thread-local variable of the same model.

Who may call it: anybody; the test command calls it. It builds each way twice, the second time with -DWEIR_TLS=naive, and
counts by check/golden.py's tracing. More than one instruction a call above the plain variable's fails; three where the unit
is compiled with -fPIC and melted into an executable at link time: the plain variable's way is then chosen by
the compiler, when it knows that it makes an executable, that of the assembly was chosen before. It deliberately does not know
whether the plain variable is right: tests/fiber shows that it is not.

    check/tls_counts.py [--measured FILE]     FILE: what check/golden.py --save wrote for this tree; not measured again

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import sys
from pathlib import Path

import golden

STEP = 64  # of the sizes; for the emulator 128
SLACK = 1
SLACK_PIC = 3
PIC = "-fPIC"
CALLS = {"pair_malloc_free": 2, "pair_new_delete": 2}  # how many are counted together; else one
NAIVE = ("-DWEIR_TLS=naive", "-ftls-model=initial-exec")
WAYS = [
    golden.Flavour("x86_64/shared-gcc", "x86_64", "shared", "gcc", STEP),
    golden.Flavour("x86_64/shared-clang", "x86_64", "shared", "clang-19", STEP),
    golden.Flavour("x86_64/lto-gcc", "x86_64", "lto", "gcc", STEP),
    golden.Flavour("x86_64/lto-clang", "x86_64", "lto", "clang-19", STEP),
    golden.Flavour("x86_64/lto-clang-thin", "x86_64", "lto", "clang-19", STEP, ("-flto=thin",)),
    golden.Flavour("x86_64/lto-gcc-pic", "x86_64", "lto", "gcc", STEP, (PIC,)),
    golden.Flavour("x86_64/lto-clang-pic", "x86_64", "lto", "clang-19", STEP, (PIC,)),
    golden.Flavour("x86_64/lto-clang-thin-pic", "x86_64", "lto", "clang-19", STEP, ("-flto=thin", PIC)),
    golden.Flavour("aarch64/shared-gcc", "aarch64", "shared", "aarch64-linux-gnu-gcc", 2 * STEP),
]


def main():
    parser = argparse.ArgumentParser(description="instructions with the thread word as weir reads it, and as compilers do")
    parser.add_argument("--measured", type=Path, help="what check/golden.py --save wrote")
    arguments = parser.parse_args()
    known = json.loads(arguments.measured.read_text()) if arguments.measured else {}
    known = {flavour.name: known[flavour.name] for flavour in golden.FLAVOURS
             if flavour.name in known and any(flavour._replace(step=way.step) == way for way in WAYS)}
    plain = {way.name: way._replace(name=f"{way.name}-naive", more=way.more + NAIVE) for way in WAYS}
    ways = [way for way in WAYS if way.name not in known] + list(plain.values())
    measured, failures = golden.measure_all(ways, None)
    measured |= {way.name: known[way.name] for way in WAYS if way.name in known}
    for _, why in failures:
        print(f"FAIL {why}")
    passed, failed = 0, len(failures)
    print(f"{'instructions':24} {'function':18} {'weir':>5} {'plain':>6}")
    for way in WAYS:
        figures = [measured.get(way.name), measured.get(plain[way.name].name)]
        if None in figures:
            continue
        ours, theirs = (kind["functions"] for kind in figures)
        slack = SLACK_PIC if PIC in way.more else SLACK
        for name in ours:
            count, most = ours[name]["instructions_max"], theirs[name]["instructions_max"]
            good = 0 < count <= most + slack * CALLS.get(name, 1)
            print(f"{way.name:24} {name:18} {count:5} {most:6}{'' if good else '   FAIL'}")
            passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
