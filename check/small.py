#!/usr/bin/env python3
"""check/small.py: what a small process carries for the library. Runs tests/golden/small.c with the library
preloaded, adds up what of the library's file and of written memory is resident beside the same process without it,
and compares with limits; and looks which functions ran, all of which are to lie at the code's end, behind its
last 64 KiB boundary, where src/weir.ld gathers what every process runs, and nothing that it does not name. What it names
first, which larger processes come to run, is to fit into the code's first 64 KiB.

Who may call it: anybody, from anywhere; the test command calls it. gcc's library of this machine alone.

    check/small.py --lib FILE     what is carried; fails over a limit, and on functions that lie elsewhere
    check/small.py --self-test    the readers of smaps and of callgrind's files against known text

What it deliberately does not know: which functions there are, and what libc's own pages are: as the kernel maps
around what is touched, they change with every address.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "golden" / "small.c"
PLACES = ROOT / "src" / "weir.ld"

# KiB at the most, of a process that is as small as processes are.
LIMITS = {"file": 68, "anonymous": 132}
WHAT = {"file": "pages of the library's file", "anonymous": "written memory, beside a process on libc's malloc"}
RUNS = 5
MAPPED_AT_ONCE = 65536  # around a page that is touched, of a file
OTHERS_AT_END = {"__popcountdi2", "weir_signal_return"}  # the compiler's, and what is in no section of its own


def mappings(text):
    """(name, KiB resident, KiB of those anonymous) of each mapping in smaps' text."""
    found = []
    for line in text.splitlines():
        head = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)", line)
        if head:
            found.append([head[1], 0, 0])
        elif line.startswith("Rss:"):
            found[-1][1] = int(line.split()[1])
        elif line.startswith("Anonymous:"):
            found[-1][2] = int(line.split()[1])
    return found


def carried(text, library):
    """KiB of each kind of LIMITS."""
    kib = {"file": 0, "anonymous": 0}
    for name, resident, anonymous in mappings(text):
        kib["anonymous"] += anonymous
        if library and os.path.basename(name) == library:
            kib["file"] += resident - anonymous
    return kib


def functions(text, library):
    """Names of the functions of the library that ran, in a callgrind file's text."""
    names, objects, ran, here = {}, {}, set(), None
    for line in text.splitlines():
        m = re.match(r"(c?)(ob|fn)=\((\d+)\)(?: (.*))?$", line)
        if not m:
            continue
        table = objects if m[2] == "ob" else names
        if m[4]:
            table[m[3]] = m[4]
        if m[2] == "ob" and not m[1]:
            here = os.path.basename(objects[m[3]])
        elif m[2] == "fn" and not m[1] and here == library:
            ran.add(names[m[3]].split("'")[0])
    return ran


def at_end(lib, symbols):
    """Functions that lie behind the last boundary in the library's code, each with all its names, and all others."""
    end = None
    headers = subprocess.run(["readelf", "-lW", lib], check=True, capture_output=True, text=True).stdout
    for line in headers.splitlines():
        m = re.match(r" *LOAD +\S+ (0x\S+) \S+ \S+ (0x\S+) R E", line)
        if m:
            end = int(m[1], 16) + int(m[2], 16)
    if end is None:
        raise SystemExit(f"{lib} has no segment of code")
    boundary = (end - 1) // MAPPED_AT_ONCE * MAPPED_AT_ONCE
    near, others = {}, set()
    for line in symbols.splitlines():
        m = re.match(r"([0-9a-f]+) [0-9a-f]+ [tTwW] (\S+)$", line)
        if m:
            if int(m[1], 16) >= boundary:
                near.setdefault(m[1], set()).add(m[2])
            else:
                others.add(m[2])
    return list(near.values()), others


def named(script):
    """Beginnings of sections' names that the linker's script puts behind its boundary, in its text."""
    return re.findall(r" \*?\(?\.text\.(?:unlikely\.)?([\w.]+?)(?:\.\*)?(?=[ )])", script.split("ALIGN(0x10000);")[1])


def first(script):
    """Names of functions that the linker's script puts into the code's first window, in its text."""
    start = re.search(r"\*\((.*?)\)", script, re.S)
    return set(re.findall(r"\.text\.(?!unlikely\.)(\w+)", start[1])) if start else set()


def behind_first(symbols, names):
    """Those of the names that do not lie in the code's first window, though the library has them, in nm's text. Cold
    parts lie elsewhere."""
    found = [(int(m[1], 16), m[2]) for m in re.finditer(r"^([0-9a-f]+) [0-9a-f]+ [tTwW] (\S+)$", symbols, re.M)]
    start = min((at for at, name in found if name.split(".")[0] in names), default=0)
    window = start // MAPPED_AT_ONCE * MAPPED_AT_ONCE + MAPPED_AT_ONCE
    return sorted(name for at, name in found
                  if name.split(".")[0] in names and not name.endswith(".cold") and at >= window)


def run(program, lib, before=()):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("WEIR_", "LD_"))}
    if lib:
        environment["LD_PRELOAD"] = lib
    return subprocess.run([*before, program], env=environment, check=True, capture_output=True, text=True).stdout


def check(lib, build):
    program = f"{build}/small"
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", program, PROGRAM], check=True)
    lib = os.path.realpath(lib)
    library = os.path.basename(lib)
    failures = 0
    # Addresses are drawn anew for each process, and what the kernel maps around a page with them.
    runs = [carried(run(program, lib), library) for _ in range(RUNS)]
    plain = carried(run(program, None), None)
    for kind, limit in LIMITS.items():
        kib = max(r[kind] for r in runs) - plain[kind]
        bad = kib > limit
        failures += bad
        print(f"{kib:5} KiB, limit {limit:4}  {WHAT[kind]}{'  FAILED' if bad else ''}")
    out = f"{build}/callgrind"
    run(program, lib, ["valgrind", "-q", "--tool=callgrind", "--soname-synonyms=somalloc=nouserintercepts",
                       f"--callgrind-out-file={out}"])
    ran = functions(Path(out).read_text(encoding="utf-8"), library)
    if "malloc" not in ran or len(ran) < 30:
        print(f"only {len(ran)} functions ran, malloc among them: {'malloc' in ran}  FAILED")
        failures += 1
    symbols = subprocess.run(["nm", "-S", lib], check=True, capture_output=True, text=True).stdout
    near, others = at_end(lib, symbols)
    elsewhere = sorted(ran & others)
    for name in elsewhere:
        print(f"{name} runs in a plain process: src/weir.ld is to name it among those at the end  FAILED")
    failures += bool(elsewhere)
    known = set(named(PLACES.read_text(encoding="utf-8"))) | OTHERS_AT_END
    strange = sorted(min(n) for n in near if not ({name.split(".")[0] for name in n} & known))
    for name in strange:
        print(f"{name} lies at the code's end, where every process carries it: src/weir.ld is to name it  FAILED")
    failures += bool(strange)
    late = behind_first(symbols, first(PLACES.read_text(encoding="utf-8")))
    for name in late:
        print(f"{name} does not fit into the code's first 64 KiB: what fewer run goes to src/weir.ld's second list  FAILED")
    failures += bool(late)
    print(f"small: {len(LIMITS) + 4 - failures} passed, {failures} failed")
    return failures


def self_test():
    text = ("1000-3000 r-xp 00000000 fe:00 7    /a/libx.so.1\nRss: 8 kB\nAnonymous: 0 kB\n"
            "3000-4000 rw-p 00002000 fe:00 7    /a/libx.so.1\nRss: 4 kB\nAnonymous: 4 kB\n"
            "4000-9000 rw-p 00000000 00:00 0 \nRss: 12 kB\nAnonymous: 12 kB\n"
            "b000-c000 rw-p 00000000 00:00 0    [heap]\nRss: 4 kB\nAnonymous: 4 kB\n")
    grind = ("ob=(1) /a/libx.so.1\nfl=(1) ???\nfn=(1) malloc\n1 1\ncob=(2) /b/libc.so\ncfn=(2) mmap\ncalls=1 1\n1 1\n"
             "ob=(2)\nfn=(2)\n1 1\nob=(1)\nfn=(3) malloc_slow'2\n1 1\n")
    places = "{ /* first (of all) */\n *(.text.one .text.one.* .text.two\n .text.two.* .text.unlikely.three.*)\n *(.text.four)"
    cases = [
        (carried(text, "libx.so.1"), {"file": 8, "anonymous": 20}),
        (carried(text, None), {"file": 0, "anonymous": 20}),
        (functions(grind, "libx.so.1"), {"malloc", "malloc_slow"}),
        (first(places), {"one", "two"}),
        (behind_first("010010 8 t one\n01fff0 8 t two\n020010 8 t one.cold\n030000 8 T other\n", {"one", "two"}), []),
        (behind_first("010010 8 t one\n020000 8 t two.part.0\n", {"one", "two"}), ["two.part.0"]),
    ]
    failures = 0
    for got, wanted in cases:
        if got != wanted:
            print(f"got {got}, wanted {wanted}  FAILED")
            failures += 1
    print(f"small self-test: {len(cases) - failures} passed, {failures} failed")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--lib")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test() != 0
    if not options.lib:
        parser.error("--lib is needed")
    with tempfile.TemporaryDirectory() as build:
        return check(options.lib, build) != 0


if __name__ == "__main__":
    sys.exit(main())
