#!/usr/bin/env python3
"""What it costs to get an object and to give it back: weir's pools, its malloc, and what a program has otherwise.

    bench/pools/run.py [cells] [burst-memory] [--variants A,B] [--rounds N] [--quick] [--json FILE]
    bench/pools/run.py --list | --build-only | --self-test

Who may call it: anybody. For each pattern, size, number of threads and part of the object that is touched, a process
for each variant; they take turns, one step each, so that the times of a round lie milliseconds apart. Prints a row for
each of these cells, marks those in which the pools are not first, and ends with a verdict. Every process proves which
malloc serves it and looks at each object first, or counts as failed: the exit status is 1 then. README.md says what the
figures are. It deliberately knows no variant by more than its name and its library.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections import namedtuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common import ROOT, RunFailed, interval, programs_build, ran, verdict  # noqa: E402

PROGRAMS = ["pools", "burst"]
SIZES = {"64": 64, "1k": 1024, "16k": 16384, "48k": 49152, "256k": 262144, "2m": 2097152}
THREADS = ["1", "2", "4", "16"]
PATTERNS = ["pairs", "handoff", "bursts"]
TOUCH = ["none", "64", "all"]
BURST_SIZES = ["1k", "16k", "2m"]
STEP_MS = {"1": 16, "2": 16, "4": 16, "16": 48}  # threads that share processors need longer to have had each its turn
QUICK = {"sizes": "64,16k,2m", "threads": "1,2", "touch": "64", "rounds": 3, "milliseconds": 8}
ROUNDS, QUICK_BURST_ROUNDS, BURST_ROUNDS = 7, 1, 3
TEXT_RATIO = 2.6
NEEDED_RATIO = 1.1
SLOW_NS = 2000  # as in variants.h
FAULT_MS = 500  # of a step in which faults show, also where others at work leave two threads few turns

Variant = namedtuple("Variant", "name of_program weir")
VARIANTS = [Variant("none", "none", False), Variant("weir-malloc", "malloc", True), Variant("glibc-malloc", "malloc", False),
            Variant("mutex", "mutex", False), Variant("dwcas", "dwcas", False), Variant("self-locked", "self-locked", False),
            Variant("weir-pool-fn", "weir-pool-fn", True), Variant("weir-pool", "weir-pool", True)]
Cell = namedtuple("Cell", "pattern size threads touch")


# ---- one process

def command(program, variant, options, *arguments):
    """(argv, environment) of a variant's process: which malloc it has, and which one it must prove."""
    expected = str(options.weir) if variant.weir else "system"
    argv = [options.build / program, "--variant", variant.of_program, *arguments, "--expect", expected]
    return [str(word) for word in argv], {"LD_PRELOAD": expected} if variant.weir else {}


class Turn:
    """A process of `pools` that waits for its turns."""

    def __init__(self, variant, cell, options):
        milliseconds = options.milliseconds or STEP_MS.get(cell.threads, 16)
        argv, variables = command("pools", variant, options, "--pattern", cell.pattern, "--size", SIZES[cell.size], "--threads",
                                  cell.threads, "--touch", cell.touch, "--milliseconds", milliseconds)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self.process = subprocess.Popen(argv, env={**environment, **variables}, text=True, bufsize=1, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in self.process.stdout:
            if line.startswith("ready "):
                return
        raise RunFailed(self.last_words())

    def last_words(self):
        _, said = self.process.communicate()
        return f"ended with {self.process.returncode}: {(said.strip().splitlines() or [''])[-1]}"

    def step(self):
        """Nanoseconds for a pair of get and put: of CPU time, by the clock."""
        try:
            self.process.stdin.write("x")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        words = self.process.stdout.readline().split()
        if len(words) != 3:
            raise RunFailed(self.last_words())
        pairs, wall_s, cpu_s = float(words[0]), float(words[1]), float(words[2])
        return {"cpu": cpu_s / pairs * 1e9, "wall": wall_s / pairs * 1e9}

    def end(self):
        self.process.kill()
        self.process.communicate()


def cell_run(cell, variants, options, failures):
    """{variant's name: [figures of each round]}; a variant that failed has none."""
    turns, figures = {}, {variant.name: [] for variant in variants}

    def failed(name, failure):
        failures.append(f"{' '.join(cell)} {name}: {failure}")
        figures[name] = []
        turns.pop(name, None)

    for variant in variants:
        try:
            turns[variant.name] = Turn(variant, cell, options)
        except RunFailed as failure:
            failed(variant.name, failure)
    for number in range(options.rounds):
        names = [*turns]
        first = number % max(len(names), 1)
        for name in [*names[first:], *names[:first]]:
            try:
                figures[name].append(turns[name].step())
            except RunFailed as failure:
                failed(name, failure)
    for turn in turns.values():
        turn.end()
    return figures


# ---- what a cell says

def medians(figures, key):
    return {name: statistics.median(facts[key] for facts in rounds) for name, rounds in figures.items() if rounds}


Standing = namedtuple("Standing", "state other ratio low high")


def standing(figures, mine, key):
    """Where `mine` stands against the best of those that are no pools. None where either is not there."""
    values = medians(figures, key)
    others = {name: value for name, value in values.items() if not name.startswith("weir-pool")}
    if mine not in values or not others:
        return None
    other = min(others, key=others.get)
    ratio, low, high = interval([one[key] / its[key] for one, its in zip(figures[mine], figures[other])])
    state = "first" if ratio <= 1 else "even" if low <= 1 else "behind"
    return Standing(state, other, ratio, low, high)


def row_of(cell, figures, names, key):
    values = medians(figures, key)
    found = standing(figures, "weir-pool", key)
    mark = ""
    if found and found.state != "first":
        mark = f"{found.state}: {found.ratio:.2f} of {found.other} ({found.low:.2f} to {found.high:.2f})"
    return " ".join([f"{cell.pattern:<8}{cell.size:>5}{cell.threads:>8} {cell.touch:<6}"]
                    + [f"{values[name]:>{max(len(name), 9)}.{1 if values[name] < 1000 else 0}f}" if name in values else
                       f"{'-':>{max(len(name), 9)}}" for name in names] + [mark]).rstrip()


def head_of(names):
    return " ".join([f"{'pattern':<8}{'size':>5}{'threads':>8} {'touch':<6}"] + [f"{name:>{max(len(name), 9)}}" for name in names])


def verdict_of(results, mine, key):
    stands = [(standing(figures, mine, key), cell) for cell, figures in results.items()]
    stands = [(found, cell) for found, cell in stands if found]
    if not stands:
        return []
    count = {state: sum(found.state == state for found, _ in stands) for state in ("first", "even", "behind")}
    worst, where = max(stands, key=lambda pair: pair[0].ratio)
    return [f"{mine} by {'CPU time' if key == 'cpu' else 'the clock'}: first in {count['first']} of {len(stands)} cells, even in "
            f"{count['even']}, behind in {count['behind']}; the worst: {worst.ratio:.2f} of {worst.other} ({' '.join(where)})"]


def text_of(results):
    """2 MB, 16 threads, objects not touched but for a part: against no cache and the lock."""
    lines = []
    for key, what in (("wall", "the clock"), ("cpu", "CPU time")):
        for other in ("none", "mutex"):
            found = []
            for cell, figures in results.items():
                values = medians(figures, key)
                if (cell.size, cell.threads) == ("2m", "16") and cell.touch != "all" and {"weir-pool", other} <= values.keys():
                    found.append((values[other] / values["weir-pool"], cell))
            if found:
                least, where = min(found)
                lines.append(verdict(least >= TEXT_RATIO, f"2 MB, 16 threads, not all touched, by {what}: at least {least:.1f} times "
                                     f"{other} ({where.pattern} {where.touch}), at least {TEXT_RATIO:.1f}"))
    return lines


def cells_run(options, variants, failures):
    names = [variant.name for variant in variants]
    cells = [Cell(pattern, size, threads, touch) for pattern in options.patterns for size in options.sizes
             for threads in options.threads for touch in options.touch if not (size == "64" and touch == "all")]
    print(f"\ncells: ns of {'CPU time' if options.by == 'cpu' else 'the clock'} for a pair of get and put; rounds: {options.rounds}")
    print(head_of(names), flush=True)
    results = {}
    for cell in cells:
        results[cell] = cell_run(cell, variants, options, failures)
        print(row_of(cell, results[cell], names, options.by), flush=True)
    print(*text_of(results), sep="\n")
    for key in ("cpu", "wall"):
        for mine in ("weir-pool-fn", "weir-pool"):
            print(*verdict_of(results, mine, key), sep="\n")
    return [{**cell._asdict(), "rounds": figures} for cell, figures in results.items()]


# ---- memory after a burst

def burst_run(options, variants, failures):
    rounds = options.burst_rounds
    print(f"\nburst-memory: MiB; needed is what the threads have in use a second after the burst; rounds: {rounds}")
    print(f"{'variant':<14}{'size':>5}{'peak':>9}{'needed':>9}{'1 s':>9}{'/needed':>9}{'idle':>9}")
    everything, lines = [], []
    for size in options.burst_sizes:
        for variant in variants:
            found = []
            for _ in range(rounds):
                try:
                    found.append(ran(*command("burst", variant, options, "--size", SIZES[size])))
                except RunFailed as failure:
                    failures.append(f"burst-memory {size} {variant.name}: {failure}")
            if not found:
                continue
            mib = {key: statistics.median(facts[key] for facts in found)
                   for key in ("peak_mib", "needed_mib", "after_1s_mib", "after_1s_of_needed", "idle_mib")}
            print(f"{variant.name:<14}{size:>5}{mib['peak_mib']:>9.1f}{mib['needed_mib']:>9.1f}{mib['after_1s_mib']:>9.1f}"
                  f"{mib['after_1s_of_needed']:>9.3f}{mib['idle_mib']:>9.1f}", flush=True)
            if variant.name.startswith("weir-pool"):
                lines.append(verdict(mib["after_1s_of_needed"] <= NEEDED_RATIO, f"{variant.name}, {size}: a second after the burst "
                                     f"{mib['after_1s_of_needed']:.3f} of needed, at most {NEEDED_RATIO:.1f}"))
            everything.append({"size": size, "variant": variant.name, "rounds": found})
    print(*lines, sep="\n")
    return everything


# ---- self-test

def self_test(options):
    """What is sound passes; what is broken, slow, or served by another malloc is found out; all variants run."""
    passed, failed = 0, 0
    cell = Cell("bursts", "1k", "2", "64")

    def judged(good, what, said):
        nonlocal passed, failed
        passed, failed = passed + good, failed + (not good)
        print(f"{'ok     ' if good else 'FAILED '} {what:<34} {said}", flush=True)

    def outcome(variant, pattern="bursts"):
        failures = []
        figures = cell_run(cell._replace(pattern=pattern), [variant], options, failures)
        return medians(figures, "cpu").get(variant.name), "".join(failures)

    short, options.milliseconds = options.milliseconds, FAULT_MS
    options.rounds = 3
    for pattern in PATTERNS:
        for fault, word in (("twice", "somebody else's"), ("lost", "are lost")):
            _, said = outcome(Variant(fault, f"broken-{fault}", False), pattern)
            judged(word in said, f"an object {fault}, {pattern}", said or "passes although it is broken")
    options.milliseconds = short
    both, cell = cell, cell._replace(threads="1")  # nobody waits for a lock
    sound, said = outcome(Variant("mutex", "mutex", False))
    slow, said_slow = outcome(Variant("slow", "broken-slow", False))
    cell = both
    good = bool(sound and slow) and 0.9 * SLOW_NS < slow < 3 * SLOW_NS and sound < 0.5 * SLOW_NS
    judged(good, "what takes longer measures longer", said + said_slow or f"{sound:.0f} ns, and {slow:.0f} with {SLOW_NS} more")
    absent = options.weir.parent / "libnot_there.so"
    for what, library, variant, word in (
            ("a pool without weir", pathlib.Path("system"), Variant("pool", "weir-pool", True), "not lie with malloc"),
            ("a library that is not there", absent, Variant("pool", "weir-pool", True), "expected file"),
            ("a pool's objects of no such size", options.weir, Variant("pool", "weir-pools", True), "no such variant")):
        weir, options.weir = options.weir, library
        _, said = outcome(variant)
        options.weir = weir
        judged(word in said, what, said or "passes")
    os.environ["LD_PRELOAD"] = str(options.weir)
    _, said = outcome(Variant("malloc", "malloc", False))
    del os.environ["LD_PRELOAD"]
    judged(said == "", "a library preloaded from outside", said or "does not reach the variants")
    failures = []
    results = cells_run(options, VARIANTS, failures)
    judged(not failures and len(results) == len(PATTERNS) * len(options.sizes) * len(options.threads),
           "all variants, some cells", "; ".join(failures) or f"{len(results)} cells")
    failures = []
    results = burst_run(options, VARIANTS, failures)
    judged(not failures and len(results) == len(VARIANTS) * len(options.burst_sizes),
           "all variants, memory after a burst", "; ".join(failures) or f"{len(results)} runs")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


# ---- main

def chosen(parser, text, known, what):
    words = text.split(",") if text else list(known)
    unknown = [word for word in words if word not in known]
    if unknown:
        parser.error(f"no {what} {', '.join(unknown)}; there are: {', '.join(known)}")
    return words


def options_read():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="cells, burst-memory; both unless told")
    parser.add_argument("--variants", "--allocators", help="names, separated by commas; all unless told, here and below")
    parser.add_argument("--patterns", help=",".join(PATTERNS))
    parser.add_argument("--sizes", help=",".join(SIZES))
    parser.add_argument("--threads", help=",".join(THREADS))
    parser.add_argument("--touch", help=",".join(TOUCH))
    parser.add_argument("--rounds", type=int, help=f"of each cell ({ROUNDS}), and of burst-memory ({BURST_ROUNDS})")
    parser.add_argument("--milliseconds", type=int, help="of a step (16; with 16 threads 48)")
    parser.add_argument("--by", choices=["cpu", "wall"], default="cpu", help="figure of the table: CPU time, or by the clock (cpu)")
    parser.add_argument("--quick", action="store_true", help="some cells, few rounds: half a minute")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="everything, all rounds")
    parser.add_argument("--weir", type=pathlib.Path, default=ROOT / "build/libweir.so.1")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/bench-pools", help="where programs are compiled")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--self-test", action="store_true", help="broken variants: each must be found out")
    parser.add_argument("--list", action="store_true", help="variants")
    options = parser.parse_args()
    options.burst_rounds = options.rounds or BURST_ROUNDS
    if options.quick or options.self_test:
        for name, value in QUICK.items():
            setattr(options, name, getattr(options, name) or value)
        options.burst_rounds = QUICK_BURST_ROUNDS
    options.rounds = options.rounds or ROUNDS
    options.shapes = chosen(parser, ",".join(options.shapes), ["cells", "burst-memory"], "shape")
    options.names = chosen(parser, options.variants, [variant.name for variant in VARIANTS], "variant")
    for name, known in (("patterns", PATTERNS), ("sizes", SIZES), ("threads", THREADS), ("touch", TOUCH)):
        setattr(options, name, chosen(parser, getattr(options, name), known, name))
    options.burst_sizes = ["16k"] if options.quick or options.self_test else [size for size in BURST_SIZES if size in options.sizes]
    options.build, options.weir = options.build.resolve(), options.weir.resolve()
    if not options.weir.is_file():
        parser.error(f"{options.weir} is not there: cmake --build build makes it")
    return options


def main():
    options = options_read()
    programs_build(PROGRAMS, HERE, options.build)
    if options.build_only:
        return 0
    if options.self_test:
        return self_test(options)
    if options.list:
        print(*(variant.name for variant in VARIANTS), sep="\n")
        return 0
    variants = [variant for variant in VARIANTS if variant.name in options.names]
    print(f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}, {' '.join(platform.libc_ver())}")
    failures, everything = [], {}
    if "cells" in options.shapes:
        everything["cells"] = cells_run(options, variants, failures)
    if "burst-memory" in options.shapes:
        everything["burst-memory"] = burst_run(options, variants, failures)
    if options.json:
        options.json.write_text(json.dumps({"failures": failures, **everything}, indent=1) + "\n")
    print(*(f"FAILED  {failure}" for failure in failures), sep="\n", end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
