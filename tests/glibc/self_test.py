#!/usr/bin/env python3
"""Shows that run.py can go red: on an allocator that breaks a rule, and on a table that is wrong.

Who may call it: the test command, a developer. It preloads tests/contract/self_test/broken.c with one fault at a
time into tests that must notice it, and runs a few tests under rows that were changed so that each kind of
disagreement comes up once. It knows tests by name, unlike run.py.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import copy
import os
import pathlib
import re
import subprocess
import sys

import run
import source

BROKEN = run.ROOT / "tests" / "contract" / "self_test" / "broken.c"
BROKEN_FLAGS = ["-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-ftls-model=initial-exec", "-fno-builtin",
                "-pthread"]

# A fault of broken.c and a test that must fail under it, and must pass without it.
FAULTS = {
    "alignment": "malloc/tst-memalign", "blind": "malloc/tst-mallinfo2", "dirty": "malloc/tst-calloc",
    "errno": "malloc/tst-free-errno",
    "lock_atfork": "malloc/tst-malloc-fork-deadlock", "no_null": "malloc/tst-malloc-too-large", "realloc": "malloc/tst-realloc",
    "zero_null": "malloc/tst-malloc",
}

# name -> (row to change, the fields to change in it, mode, what the line must say)
WRONG_ROWS = {
    "a failure where a pass is expected": ("malloc/tst-safe-linking", {"weir": "pass"}, "preload", r"^FAIL .* fails"),
    "a pass where a failure is expected": ("malloc/tst-valloc", {"weir": "fails ."}, "preload", r"^FAIL .* passes, although"),
    "a failure in another way": ("malloc/tst-safe-linking", {"weir": "fails no such words"}, "preload", r"^FAIL .* in another way"),
    "a test that builds after all": ("malloc/tst-valloc", {"weir": "nobuild ."}, "preload", r"^FAIL .* builds, although"),
    "a test that does not build": ("malloc/tst-scratch_buffer", {"recipe": {}}, "preload", r"^FAIL .* does not build"),
    "the shim is wrong: the control fails": ("malloc/tst-malloc-usable", {"recipe": {}}, "system", r"^FAIL .* \[system\] fails"),
    "a program that brings its own malloc": ("malloc/tst-interpose-nothread", {"recipe": {"with": "malloc/tst-interpose-aux-nothread.c"}},
                                             "preload", r"^FAIL .* no proof"),
    "a program that does not": ("malloc/tst-valloc", {"recipe": {"own": ""}}, "preload", r"^FAIL .* no proof"),
    "a trace of nothing": ("malloc/tst-mtrace", {"recipe": {"mtrace": ""}}, "system", r"^FAIL .* fails"),
}


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def say(self, good, text):
        print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)
        self.passed += good
        self.failed += not good


def row_with(row, changes):
    changed = copy.copy(row)
    for key, value in changes.items():
        setattr(changed, key, value)
    changed.name = f"{row.name}:changed"
    return changed


def check_faults(suite, rows, tally):
    """Each fault must be noticed; without one, the same library must pass."""
    library = suite.build / "libbroken.so"
    subprocess.run([suite.cc, *BROKEN_FLAGS, "-o", str(library), str(BROKEN)], check=True)
    for fault, name in FAULTS.items():
        row = row_with(rows[name], {})
        base = suite.build / f"fault.{fault}"
        objects, complaint = suite.objects(row, base)
        program, link_complaint = (None, complaint) if complaint else suite.link(row, objects, base, "system")
        if link_complaint:
            tally.say(False, f"{name} does not build: {link_complaint}")
            continue
        sound = suite.execute(row, program, [str(library)], ["BROKEN=none"])
        broken = suite.execute(row, program, [str(library)], [f"BROKEN={fault}"])
        tally.say(sound.ok, f"{name} on the sound library" + ("" if sound.ok else "\n" + sound.shown()))
        tally.say(not broken.ok, f"{name} under the fault {fault}: {'passes' if broken.ok else 'fails'}")


def check_rows(suite, rows, tally):
    """Each wrong row must be called wrong."""
    for what, (name, changes, mode, wanted) in WRONG_ROWS.items():
        lines = [line for _, m, line in suite.run(row_with(rows[name], changes)) if m == mode]
        good = any(re.search(wanted, line) for line in lines)
        tally.say(good, f"{what}" + ("" if good else f": /{wanted}/ is not in {lines}"))


def check_table(suite, rows, version, tally):
    """A file without a row, a row without a file, a row of a later glibc, a piece of nothing."""
    every = list(rows.values())
    without = [row for row in every if row.test != "malloc/tst-calloc"]
    _, wrong, _ = run.check_presence(without, suite.sources, version)
    tally.say(wrong == ["FAIL malloc/tst-calloc.c has no row in expected.tsv"], f"a test without a row: {wrong}")
    _, wrong, _ = run.check_presence([*every, run.Row("malloc/tst-none", "2.1", "-", "pass", "pass", "-")], suite.sources, version)
    tally.say(len(wrong) == 1 and "no such test" in wrong[0], f"a row without a test: {wrong}")
    _, wrong, later = run.check_presence([*every, run.Row("malloc/tst-none", "9.1", "-", "pass", "pass", "-")], suite.sources, version)
    tally.say(wrong == [] and any("tst-none comes with glibc 9.1" in line for line in later), "a row of a later glibc")
    used, _ = run.check_piece(run.Row("malloc/tst-calloc", "2.1", "-", "piece", "piece", "why"), run.Suite(
        suite.sources, suite.build, suite.library, suite.object, suite.cc, 1))
    tally.say(not used, "a piece of nothing")
    for what, fields in {"an unknown recipe": ("a", "2.1", "nonsense", "pass", "pass", "-"),
                         "an unknown end": ("a", "2.1", "-", "pass", "maybe", "-"),
                         "a failure without a reason": ("a", "2.1", "-", "pass", "fails .", "-")}.items():
        try:
            run.Row(*fields)
            tally.say(False, f"{what} is taken")
        except SystemExit as refusal:
            tally.say(True, f"{what} is refused: {refusal}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True, help="libweir.so.1; weir.o is looked for beside it")
    parser.add_argument("--build", required=True, help="folder for the compiled tests")
    parser.add_argument("--source", default=str(run.ROOT / "build" / "glibc-src"), help="folder that keeps the fetched tests")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    options = parser.parse_args()
    every = run.table_read(run.HERE / "expected.tsv")
    try:
        sources, version = source.source_get(options.source, run.patterns_of(every))
    except source.NoSource as failure:
        print(f"FAIL the tests could not be fetched: {failure}\n0 passed, 1 failed")
        return 1
    library = pathlib.Path(options.lib).resolve()
    suite = run.Suite(sources, pathlib.Path(options.build).resolve(), library, library.parent / "weir.o", options.cc, 1)
    suite.prepare()
    rows = {row.name: row for row in every}
    tally = Tally()
    check_faults(suite, rows, tally)
    check_rows(suite, rows, tally)
    check_table(suite, rows, version, tally)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
