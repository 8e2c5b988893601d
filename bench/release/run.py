#!/usr/bin/env python3
"""How soon and how far memory that is free goes back to the kernel, and what that costs: all allocators in the same run.

    bench/release/run.py [SHAPE...] [--allocators A,B] [--rounds N] [--scale S] [--json FILE]
    bench/release/run.py --list | --build-only | --self-test

Who may call it: anybody. Runs each shape under each allocator in rounds whose order rotates, and prints medians, the
ratios that matter with 95 % intervals, and which of the figures to reach were reached. Every run proves that its
allocator served, or counts as failed: the exit status is 1 then. README.md says what the shapes and figures are.
It deliberately knows no allocator but weir by more than its library, its environment and its version.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import redis_server

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common import CC, FLAGS, ROOT, RunFailed, interval, programs_build, ran, verdict  # noqa: E402

PROGRAMS = ["pin", "steady", "waves", "million"]
PERIOD_S = 0.1  # of a round of processes that take turns
WARM_ROUNDS = 10  # of them, before those that count
TRACED = "madvise,process_madvise,munmap,mmap,mprotect,mremap,brk"


# ---- what is compared

class Allocator:
    """A library to preload (None: the C library) with its environment."""

    def __init__(self, name, path, version="", environment=None):
        self.name, self.path, self.version = name, path, version
        self.variables = {**(environment or {}), **({"LD_PRELOAD": str(path)} if path else {})}

    @property
    def expected(self):
        return str(self.path) if self.path else "system"


def c_library():
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if re.search(r"/libc\.so\.6$", line):
            return line.split(None, 5)[5]
    raise SystemExit("run.py: this Python is not linked with libc.so.6")


def says_no_release_option(library, folder):
    """Does the library know release=off? An unknown option is reported on stderr."""
    done = subprocess.run([folder / "million", "--count", "1", "--rest", "0"], capture_output=True, text=True, check=False,
                          env={**os.environ, "LD_PRELOAD": str(library), "WEIR_OPTIONS": "release=off:on_error=report"})
    return "release" in done.stderr


def allocators_of(options, folder):
    """(allocators, system, notes)."""
    notes, found = [], []
    try:
        manifest = json.loads(options.peers.read_text())
    except OSError:
        manifest = {"system": {}, "peers": [], "absent": []}
        notes.append(f"no peers: {options.peers} is not there; bench/peers/build.py makes it")
    found.append(Allocator("system", None, f"glibc {manifest['system'].get('glibc', '')}".strip()))
    if options.weir.is_file():
        weir = options.weir.resolve()
        found.append(Allocator("weir", weir))
        if says_no_release_option(weir, folder):
            notes.append("weir-off is left out: this library has no option release=off")
        else:
            found.append(Allocator("weir-off", weir, "release=off", {"WEIR_OPTIONS": "release=off"}))
    else:
        notes.append(f"no weir: {options.weir} is not there")
    for text in options.extra:
        name, _, rest = text.partition("=")
        path, *variables = rest.split(",")
        pairs = dict(variable.split("=", 1) for variable in variables)
        found.append(Allocator(name, pathlib.Path(path).resolve(), ",".join(variables), pairs))
    for peer in manifest["peers"]:
        path = (options.peers.parent / peer["path"]).resolve()
        found.append(Allocator(peer["name"], path, peer.get("version", ""), peer.get("environment")))
    notes += [f"{peer['name']} is absent: {peer['reason']}" for peer in manifest["absent"]]
    if options.allocators:
        names = options.allocators.split(",")
        unknown = set(names) - {allocator.name for allocator in found}
        if unknown:
            raise SystemExit(f"run.py: no allocator {', '.join(sorted(unknown))}; there are: "
                             + ", ".join(allocator.name for allocator in found))
        found = [allocator for allocator in found if allocator.name in names]
    return found, manifest["system"], notes


# ---- one run

class Program:
    """One of the C programs with arguments."""

    def __init__(self, name, *arguments, counted=False):
        self.name, self.arguments, self.counted = name, arguments, counted

    def run(self, allocator, options):
        argv = [options.build / self.name, *self.arguments, "--scale", options.scale, "--expect", allocator.expected,
                *shlex.split(options.arguments)]
        facts = ran(argv, allocator.variables)
        if (self.counted or options.calls) and shutil.which("strace"):
            facts["system_calls"] = calls_counted(argv, allocator.variables, facts["malloc_in"])
        return facts


def calls_counted(argv, variables, served_by):
    """Memory's system calls between the program's two marks, in a run of its own under strace."""
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        carried = [word for pair in variables.items() for word in ("-E", "=".join(pair))]
        facts = ran(["strace", "-f", "-qq", "-o", trace, "-e", f"trace={TRACED},getpgid", *carried, *argv], {})
        if facts["malloc_in"] != served_by:
            raise RunFailed("under strace another allocator served")
        calls = re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.M)
    marks = [at for at, name in enumerate(calls) if name == "getpgid"]
    if len(marks) != 2:
        raise RunFailed("the program's marks are not in the trace")
    return float(marks[1] - marks[0] - 1)


class Turns:
    """Processes of `steady` that take turns, one step each, so that a pair of times lies milliseconds apart."""

    def __init__(self, steps, *arguments):
        self.steps, self.arguments = steps, arguments

    def start(self, allocator, options):
        argv = [options.build / "steady", "--stepped", "1", *self.arguments, "--scale", options.scale,
                "--expect", allocator.expected, *shlex.split(options.arguments)]
        process = subprocess.Popen([str(word) for word in argv], env={**os.environ, **allocator.variables}, text=True,
                                   bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not process.stdout.readline().startswith("malloc_in "):
            raise RunFailed("is not where its calls arrive")
        return process

    @staticmethod
    def step(process, letter):
        process.stdin.write(letter)
        process.stdin.flush()
        words = process.stdout.readline().split()
        if len(words) != 2:
            raise RunFailed(f"ended with {process.wait()}")
        return float(words[0]), float(words[1])

    def round(self, processes, order, cpu_before):
        """One turn of each step for each; {name: figures}. A round lasts PERIOD_S, or as long as the work."""
        start, facts = time.monotonic(), {name: {"work_s": 0.0} for name in order}
        for number, letter in enumerate(self.steps):
            for name in order:
                work, cpu = self.step(processes[name], letter)
                facts[name]["work_s"] += work
                facts[name]["cpu_s"], facts[name]["cpu_end_s"] = cpu - cpu_before[name], cpu
            left = PERIOD_S * (number + 1) / len(self.steps) - (time.monotonic() - start)
            if len(self.steps) > 1 and left > 0:
                time.sleep(left)
        for name in order:
            facts[name]["period_ms"] = (time.monotonic() - start) * 1000
            cpu_before[name] = facts[name].pop("cpu_end_s")
            facts[name]["work_ms"], facts[name]["cpu_ms"] = facts[name]["work_s"] * 1000, facts[name]["cpu_s"] * 1000
        return facts

    def run_all(self, allocators, options, count, failures, shape_name):
        rounds, processes = {allocator.name: [] for allocator in allocators}, {}
        try:
            for allocator in allocators:
                processes[allocator.name] = self.start(allocator, options)
            cpu_before = {name: 0.0 for name in processes}
            for number in range(WARM_ROUNDS + count):
                turn = number % len(processes)
                facts = self.round(processes, [*processes][turn:] + [*processes][:turn], cpu_before)
                for name in processes if number >= WARM_ROUNDS else []:
                    rounds[name].append(facts[name])
        except (RunFailed, OSError) as failure:
            failures.append(f"{shape_name}: {failure}")
        finally:
            for process in processes.values():
                process.stdin.close()
                process.kill()
                process.wait()
        return rounds


def plausible(facts):
    """A page that a live block touches stays: where less is resident than those pages, the measuring is wrong."""
    for resident, limit in (("after_1s_mib", "limit_mib"), ("rested_last_mib", "limit_last_mib")):
        if isinstance(facts.get(limit), float) and facts.get(resident, math.inf) < facts[limit]:
            raise RunFailed(f"{resident} {facts[resident]} is less than {limit} {facts[limit]}: was memory swapped out?")
    return facts


class Redis:
    """redis-server, filled and emptied; see redis_server.py."""

    def run(self, allocator, options):
        library = allocator.path or c_library()
        try:
            return redis_server.measured(library, {**allocator.variables, "LD_PRELOAD": str(library)}, options.scale)
        except redis_server.ServerFailed as error:
            raise RunFailed(str(error)) from error


# ---- figures to reach: each gives lines "what, reached or missed"

class Results:
    """Figures of one shape: allocator -> rounds; None where a round failed."""

    def __init__(self, allocators, scale, standard):
        self.rounds = {allocator.name: [] for allocator in allocators}
        self.scale, self.is_standard = scale, standard

    def values(self, name, key):
        return [facts[key] for facts in self.rounds.get(name, []) if facts and isinstance(facts.get(key), float)]

    def median(self, name, key):
        values = self.values(name, key)
        return statistics.median(values) if values else None

    def peers(self):
        return [name for name in self.rounds if not name.startswith("weir")]

    def least(self, key):
        """(name, median) of the peer that has the least."""
        found = [(self.median(name, key), name) for name in self.peers() if self.median(name, key) is not None]
        return min(found)[::-1] if found else (None, None)

    def ratio(self, name, other, key):
        """Median of the rounds' ratios with a 95 % interval by bootstrap over the rounds; None without two rounds."""
        pairs = [(mine[key], its[key]) for mine, its in zip(self.rounds.get(name, []), self.rounds.get(other, []))
                 if mine and its and key in mine and its.get(key)]
        if len(pairs) < 2:
            return None
        return interval([mine / its for mine, its in pairs])


def at_most(value, most, what, unit="", places=1):
    if value is None:
        return []
    return [verdict(value <= most, f"{what}: {value:.{places}f}{unit}, at most {most:.{places}f}{unit}")]


def ratio_reached(results, name, other, key, most):
    """Judged by the upper end of the interval."""
    found = results.ratio(name, other, key)
    if not found:
        return []
    middle, low, high = found
    return [verdict(high <= most, f"{key} of {name} against {other}: {middle:.3f} ({low:.3f} to {high:.3f}), at most {most:.2f}")]


def against_off(results, name, keys):
    return [line for key in keys if name == "weir" for line in ratio_reached(results, name, "weir-off", key, 1.03)]


def reached_churn(results, name):
    lines = []
    for key in ("churn_s", "churn_cpu_s"):
        fastest, _ = results.least(key)
        lines += ratio_reached(results, name, fastest, key, 1) if fastest else []
    return lines + against_off(results, name, ["churn_s", "churn_cpu_s"])


def reached_pin(results, name):
    lines = at_most(results.median(name, "after_1s_over_mib"), 0, "after 1 s, over 1.03 of the limit and 6 MiB", " MiB")
    if results.is_standard and results.scale == 1:
        lines += at_most(results.median(name, "after_1s_mib"), 310, "after 1 s", " MiB")
    lines += at_most(results.median(name, "trim_found_mib"), 4, "malloc_trim found", " MiB")
    lines += at_most(results.median(name, "peak_of_live"), 1.06, "peak against live", places=3)
    return lines + reached_churn(results, name)


def reached_steady(results, name):
    return against_off(results, name, ["work_s", "settled_work_s", "cpu_s"])


def reached_turns_steady(results, name):
    return against_off(results, name, ["work_s", "cpu_s"])


def reached_turns_churn(results, name):
    lines = []
    for key in ("work_s", "cpu_s"):
        fastest, _ = results.least(key)
        lines += ratio_reached(results, name, fastest, key, 1) if fastest else []
    return lines + against_off(results, name, ["work_s", "cpu_s"])


def reached_waves(results, name):
    lines = at_most(results.median(name, "worst_over_mib"), 0, "at the worst trough, over 1.03 of the limit and 6 MiB", " MiB")
    best, least = results.least("limit_mean_mib")
    mine = results.median(name, "limit_mean_mib")
    if best and mine is not None:
        lines.append(verdict(mine <= least, f"pages that live blocks touch: {mine:.2f} MiB, at most {least:.2f} ({best})"))
    return lines


def reached_million(results, name):
    return at_most(results.median(name, "system_calls"), 400, "system calls", places=0)


def reached_nothing(results, name):
    """redis: the text sets no figure; against the smallest peer."""
    best, least = results.least("after_2s_mib")
    mine = results.median(name, "after_2s_mib")
    if not best or mine is None:
        return []
    return [f"  after 2 s {mine:.1f} MiB; the smallest peer has {least:.1f} ({best})"]


# ---- shapes: runner, rounds, columns (header, key, decimals), figures to reach

PIN_COLUMNS = [("churn s", "churn_s", 3), ("cpu s", "churn_cpu_s", 3), ("fill s", "fill_s", 3), ("free s", "free_s", 3),
               ("faults k", "faults_k", 1), ("calls", "system_calls", 0), ("peak", "peak_mib", 1), ("/live", "peak_of_live", 3), ("limit", "limit_mib", 1),
               ("freed", "freed_mib", 1), ("0.1 s", "after_0_1s_mib", 1), ("1 s", "after_1s_mib", 1), ("/limit", "after_1s_of_limit", 3),
               ("over", "after_1s_over_mib", 1), ("end", "after_all_mib", 1), ("lazy", "after_1s_lazy_mib", 1),
               ("trim found", "trim_found_mib", 1), ("after it", "after_trim_mib", 1)]
CHURN_COLUMNS = [("churn s", "churn_s", 3), ("cpu s", "churn_cpu_s", 3), ("faults k", "faults_k", 1), ("calls", "system_calls", 0),
                 ("resident", "churned_mib", 1)]
STEADY_COLUMNS = [("work s", "work_s", 3), ("settled s", "settled_work_s", 3), ("round ms", "round_ms", 1), ("cpu s", "cpu_s", 3),
                  ("faults k", "faults_k", 1), ("calls", "system_calls", 0), ("resident", "resident_mib", 1), ("window ms", "weir_window_ms", 0)]
TURNS_COLUMNS = [("work ms", "work_ms", 2), ("cpu ms", "cpu_ms", 2), ("period ms", "period_ms", 0)]
WAVES_COLUMNS = [("work s", "work_s", 3), ("cpu s", "work_cpu_s", 3), ("faults k", "faults_k", 1), ("calls", "system_calls", 0), ("live", "live_last_mib", 1),
                 ("limit", "limit_last_mib", 1), ("mean", "limit_mean_mib", 1), ("at once", "end_last_mib", 1),
                 ("1 s", "rested_last_mib", 1), ("mean", "rested_mean_mib", 1), ("/limit", "rested_of_limit", 3),
                 ("worst over", "worst_over_mib", 1)]
MILLION_COLUMNS = [("calls", "system_calls", 0), ("free s", "free_s", 4), ("full", "full_mib", 1), ("at once", "freed_mib", 1),
                   ("1.5 s", "rested_mib", 1)]
REDIS_COLUMNS = [("fill s", "fill_s", 2), ("delete s", "delete_s", 2), ("cpu s", "cpu_s", 2), ("used", "used_full_mib", 1),
                 ("resident", "full_mib", 1), ("used then", "used_mib", 1), ("at once", "deleted_mib", 1), ("2 s", "after_2s_mib", 1),
                 ("lazy", "after_2s_lazy_mib", 1)]


class Shape:
    def __init__(self, about, runner, rounds, columns, reached, more=False):
        self.about, self.runner, self.rounds, self.columns, self.reached, self.more = about, runner, rounds, columns, reached, more


def pin_shape(about, *arguments, more=True):
    return Shape(f"live blocks that pin garbage{about}", Program("pin", *arguments), 3, PIN_COLUMNS, reached_pin, more)


SHAPES = {
    "pin": pin_shape("", more=False),
    "pin-start": pin_shape("; live blocks come among garbage, then the churn, then the peak", "--when", "start"),
    "pin-churn": pin_shape("; live blocks come within the churn", "--when", "churn"),
    "pin-random": pin_shape("; freed in random order", "--when", "start", "--order", "random"),
    "pin-other": pin_shape("; freed by a neighbour", "--freer", "other"),
    "pin-uniform": pin_shape("; sizes uniform", "--sizes", "uniform"),
    "pin-first": pin_shape("; of short-lived blocks the first bytes alone are written", "--touch", "first"),
    "churn": Shape("the churn of pin alone, for its time", Program("pin", "--live", "1m", "--short", "4m", "--idle", "0.1"), 10,
                   CHURN_COLUMNS, reached_churn, True),
    "churn-first": Shape("the same; the first bytes of each block alone are written",
                         Program("pin", "--live", "1m", "--short", "4m", "--idle", "0.1", "--touch", "first"), 10, CHURN_COLUMNS,
                         reached_churn, True),
    "steady": Shape("everything freed and allocated again in each 100 ms", Program("steady"), 5, STEADY_COLUMNS, reached_steady),
    "steady-64m": Shape("the same with 64 MB", Program("steady", "--total", "64m"), 5, STEADY_COLUMNS, reached_steady, True),
    "steady-1g": Shape("the same with 1 GB", Program("steady", "--total", "1g"), 5, STEADY_COLUMNS, reached_steady, True),
    "turns-steady": Shape("steady with 64 MB, processes that take turns: for weir against weir-off", Turns("fa", "--total", "64m"), 100,
                          TURNS_COLUMNS, reached_turns_steady, True),
    "turns-churn": Shape("the churn in steps of 100 MB, processes that take turns", Turns("c"), 60, TURNS_COLUMNS, reached_turns_churn,
                         True),
    "turns-first": Shape("the same; the first bytes of each block alone are written", Turns("c", "--touch", "first"), 60, TURNS_COLUMNS,
                         reached_turns_churn, True),
    "waves": Shape("a server's days: live memory comes in waves", Program("waves"), 2, WAVES_COLUMNS, reached_waves),
    "fragment": Shape("1 % of the small blocks survive each wave", Program("waves", "--shape", "fragment"), 2, WAVES_COLUMNS,
                      reached_waves),
    "million": Shape("a million frees of 100 bytes", Program("million", counted=True), 1, MILLION_COLUMNS, reached_million),
    "million-random": Shape("the same in random order", Program("million", "--order", "random", counted=True), 1, MILLION_COLUMNS, reached_million, True),
    "redis": Shape("redis filled with mixed values, then 90 % deleted", Redis(), 1, REDIS_COLUMNS, reached_nothing),
}


def derived(facts):
    """Figures that the tables show and the programs do not print."""
    faults = [value for key, value in facts.items() if key == "faults" or key.endswith("_faults")]
    if faults:
        facts["faults_k"] = sum(faults) / 1000
    if "round_s" in facts:
        facts["round_ms"] = facts["round_s"] * 1000
    if isinstance(facts.get("idle_mib"), list):
        facts["after_0_1s_mib"] = facts["idle_mib"][0]
    return facts


def shape_run(name, shape, allocators, options, failures):
    results = Results(allocators, options.scale, name == "pin" and not options.arguments)
    count = options.rounds or shape.rounds
    if isinstance(shape.runner, Turns):
        results.rounds = shape.runner.run_all(allocators, options, count, failures, name)
        return results
    for round_number in range(count):
        turn = round_number % len(allocators)
        for allocator in [*allocators[turn:], *allocators[:turn]]:
            if sys.stderr.isatty():
                print(f"\r{name} {round_number + 1}/{count} {allocator.name:<30}", end="\r", file=sys.stderr)
            try:
                facts = derived(plausible(shape.runner.run(allocator, options)))
            except RunFailed as failure:
                failures.append(f"{name} under {allocator.name}: {failure}")
                facts = None
            results.rounds[allocator.name].append(facts)
    return results


def table(shape, results):
    columns = [column for column in shape.columns
               if any(results.median(name, column[1]) is not None for name in results.rounds)]
    lines = [["allocator"] + [header for header, *_ in columns]]
    for name in results.rounds:
        cells = [(results.median(name, key), places) for _, key, places in columns]
        lines.append([name] + ["-" if value is None else f"{value:.{places}f}" for value, places in cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))).rstrip()
            for line in lines]


def report(name, shape, results, options):
    count = options.rounds or shape.rounds
    print(f"\n{name}: {shape.about} (rounds: {count}, scale: {options.scale:g}{', ' + options.arguments if options.arguments else ''}; MiB)")
    print("\n".join(table(shape, results)))
    for mine in (row for row in results.rounds if row.startswith("weir")):
        lines = shape.reached(results, mine)
        if lines:
            print(f"{mine}:", *lines, sep="\n")
    sys.stdout.flush()


# ---- self-test

def broken(fault, folder):
    library = folder / f"libbroken_{fault}.so"
    subprocess.run([CC, *FLAGS, "-fPIC", "-shared", f"-DFAULT_{fault}=1", HERE / "broken.c", "-o", library], check=True)
    return Allocator(fault, library)


def self_test(options):
    """A sound allocator passes, each broken one is found out, and so is one that is not there."""
    options.scale, options.arguments, options.calls = 0.05, "", False
    folder, pin, passed, failed = options.build, Program("pin", "--idle", "1"), 0, 0
    fleeting = Program("million", "--rest", "0.1", counted=True)

    def judged(good, what, said):
        nonlocal passed, failed
        passed, failed = passed + good, failed + (not good)
        print(f"{'ok     ' if good else 'FAILED '} {what:<18} {said}", flush=True)

    def outcome(runner, allocator):
        try:
            return plausible(runner.run(allocator, options)), ""
        except RunFailed as failure:
            return None, str(failure)

    facts, said = outcome(pin, broken("none", folder))
    judged(facts is not None, "sound", said or "passes")
    for fault, word in (("partial", "different files"), ("forgetful", "lost its contents")):
        facts, said = outcome(pin, broken(fault, folder))
        judged(facts is None and word in said, fault, f"found out: {said}" if facts is None else "passes although it is broken")
    _, said = outcome(pin, Allocator("absent", folder / "libnot_there.so"))
    judged("expected file" in said, "absent", f"found out: {said}" if said else "passes without a library")
    _, said = outcome(Redis(), Allocator("absent", folder / "libnot_there.so"))
    judged("malloc lies in" in said or "not installed" in said, "absent, redis", said or "passes without a library")
    if shutil.which("strace"):
        quiet, eager = outcome(fleeting, broken("none", folder))[0], outcome(fleeting, broken("eager", folder))[0]
        judged(bool(quiet) and quiet["system_calls"] < 1000, "sound, calls", f"{quiet and quiet['system_calls']:.0f} counted")
        judged(bool(eager) and eager["system_calls"] >= 50000, "eager, calls", f"{eager and eager['system_calls']:.0f} counted")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="of --list; none: those without variants; all: all")
    parser.add_argument("--allocators", help="names, separated by commas; all unless told")
    parser.add_argument("--rounds", type=int, help="of each shape; otherwise each has its own number")
    parser.add_argument("--scale", type=float, default=1, help="factor of all amounts of memory (1)")
    parser.add_argument("--args", default="", dest="arguments", help="more arguments for the programs, as one word")
    parser.add_argument("--calls", action="store_true", help="count system calls in all shapes: each run twice, once under strace")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="everything, all rounds")
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / "build/peers/peers.json")
    parser.add_argument("--weir", type=pathlib.Path, default=ROOT / "build/libweir.so.1")
    parser.add_argument("--with", action="append", default=[], dest="extra", metavar="NAME=PATH[,VARIABLE=VALUE...]",
                        help="another library, or the same with other options")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/bench-release", help="where programs are compiled")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--self-test", action="store_true", help="broken allocators: each must be found out")
    parser.add_argument("--list", action="store_true", help="shapes and allocators")
    options = parser.parse_args()
    options.build = options.build.resolve()
    programs_build(PROGRAMS, HERE, options.build)
    if options.build_only:
        return 0
    if options.self_test:
        return self_test(options)
    allocators, system, notes = allocators_of(options, options.build)
    if options.list:
        print(*(f"{name:<16} {shape.about}" for name, shape in SHAPES.items()), "", sep="\n")
        print(*(f"{allocator.name:<24} {allocator.version}" for allocator in allocators), *notes, sep="\n")
        return 0
    chosen = options.shapes or [name for name, shape in SHAPES.items() if not shape.more]
    chosen = list(SHAPES) if chosen == ["all"] else chosen
    unknown = [name for name in chosen if name not in SHAPES]
    if unknown or not allocators:
        parser.error(f"no shape {', '.join(unknown)}; --list shows them" if unknown else "no allocators")
    print("; ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in system.items()))
    print(", ".join(f"{allocator.name} {allocator.version}".strip() for allocator in allocators))
    print(*notes, sep="\n", end="\n" if notes else "")
    failures, everything = [], {}
    for name in chosen:
        results = shape_run(name, SHAPES[name], allocators, options, failures)
        report(name, SHAPES[name], results, options)
        everything[name] = results.rounds
    if options.json:
        versions = {allocator.name: allocator.version for allocator in allocators}
        options.json.write_text(json.dumps({"system": system, "allocators": versions, "notes": notes, "scale": options.scale,
                                            "failures": failures, "shapes": everything}, indent=1) + "\n")
    print(*(f"FAILED  {failure}" for failure in failures), sep="\n", end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
