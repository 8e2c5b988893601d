#!/usr/bin/env python3
"""tests/packaging/run.py: weir as other people's projects get it: installed, moved, linked in each way,
vendored, as a crate, as Debian packages.

Who may call it: anybody; the test command does. It builds and installs below --build alone. Every program
that it links has to say, from weir's own count, that its heap is weir's; that it links is not enough.

    tests/packaging/run.py --build build/packaging [--jobs 2] [--only GROUP...]

--list names the groups. It deliberately knows weir as a stranger would: by what is installed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import consumers
import crate
import debian
import texts
from bench import Bench, Failure

# In the order in which they begin; each works in folders of its own.
GROUPS = {
    "layout": consumers.layout,
    "cmake": consumers.cmake_packages,
    "example": consumers.example,
    "lto": consumers.lto,
    "partial": consumers.partial,
    "vendored": consumers.vendored,
    "pkgconfig": consumers.pkgconfig,
    "hpp": consumers.header,
    "manual": texts.manual,
    "crate": crate.packaged,
    "debian": debian.packages,
}


def run_group(bench, name):
    begun = time.monotonic()
    try:
        GROUPS[name](bench)
    except Failure as why:
        bench.check(f"{name}: goes on", False, str(why))
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description="weir as other people's projects get it")
    parser.add_argument("--build", type=Path, required=True, help="folder to work in; emptied first")
    parser.add_argument("--cargo-target", type=Path, help="cargo's folder for the tool, to build on what is there")
    parser.add_argument("--jobs", type=int, default=2, help="groups that run at once")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="these groups alone")
    parser.add_argument("--list", action="store_true", help="name the groups")
    if "--list" in sys.argv:
        print("\n".join(GROUPS))
        return 0
    arguments = parser.parse_args()
    shutil.rmtree(arguments.build, ignore_errors=True)
    bench = Bench(arguments.build.resolve(), arguments.cargo_target)
    try:
        bench.install()
    except Failure as why:
        bench.check("builds and installs", False, str(why))
    else:
        with ThreadPoolExecutor(max_workers=max(1, arguments.jobs)) as pool:
            list(pool.map(lambda name: run_group(bench, name), arguments.only))
    print(f"packaging: {bench.passed} passed, {bench.failed} failed")
    return 0 if bench.failed == 0 and bench.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
