"""What the drivers of bench/release, bench/pools and bench/workloads share: building, running, figures, intervals.

Who may import it: those. It deliberately knows no allocator and no shape.

SPDX-License-Identifier: Apache-2.0
"""

import math
import os
import pathlib
import random
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
CC = os.environ.get("CC", "gcc")
FLAGS = ["-O2", "-std=gnu17", "-Wall", "-Wextra", "-Wundef", "-Werror", "-fno-builtin"]
LIBRARIES = ["-pthread", "-lm"]
SHARED = ROOT / "bench/release"  # bench.c, bench.h
TIMEOUT_S = 300
RESAMPLES = 4000


class RunFailed(Exception):
    """A run that says nothing, with the reason in one line."""


def programs_build(names, sources, folder):
    """NAME.c of the folder `sources` with bench.c, into `folder`, where something is newer than the program."""
    folder.mkdir(parents=True, exist_ok=True)
    headers = [*SHARED.glob("*.h"), *sources.glob("*.h"), *(ROOT / "include/weir").glob("*.h")]
    for name in names:
        program, files = folder / name, [sources / f"{name}.c", SHARED / "bench.c"]
        if program.is_file() and program.stat().st_mtime > max(path.stat().st_mtime for path in [*files, *headers]):
            continue
        part = folder / f"{name}.part"
        subprocess.run([CC, *FLAGS, "-I", ROOT / "include", "-I", SHARED, *files, "-o", part, *LIBRARIES], check=True)
        part.rename(program)


def facts_of(text):
    """NAME VALUE lines: numbers where they are, series of numbers as lists."""
    facts = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        try:
            numbers = [float(word) for word in value.split()]
            facts[name] = numbers if len(numbers) > 1 else numbers[0]
        except (ValueError, IndexError):
            facts[name] = value
    return facts


def ran(argv, variables):
    """What a program printed, as facts."""
    try:
        done = subprocess.run([str(word) for word in argv], env={**os.environ, **variables}, capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"did not end within {TIMEOUT_S} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise RunFailed(f"ended with {done.returncode}: {last[0]}")
    return facts_of(done.stdout)


def interval(ratios):
    """(median, low, high): the 95 % interval of the median by bootstrap."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return statistics.median(ratios), medians[int(0.025 * RESAMPLES)], medians[math.ceil(0.975 * RESAMPLES) - 1]


def verdict(good, text):
    return f"  {'reached' if good else 'MISSED '}  {text}"
