#!/usr/bin/env python3
# model.py: the model test (tests/model) with tagging on, several streams of calls, each with tags compared at once
# and late.
#
# Run by hand and by CI. It knows of the model test how it says that it lost nothing. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import subprocess
import sys

import emulator

MODES = {"sync": "tagging=sync", "async": "tagging=async", "auto": "tagging=auto",
         "sync, checks=full": "tagging=sync:checks=full", "sync, small": "tagging=sync:preset=small"}
STREAMS = {
    "small": ["--ops", "400000", "--forks", "4"],
    "mixed": ["--ops", "60000", "--mix", "mixed", "--size-max", "1m", "--live-max", "32m", "--forks", "2"],
}


def run(args, options, words):
    """What is wrong with one run, or None."""
    try:
        done = emulator.run(emulator.command(args, [args.bin, *words]), emulator.environment(options), 400)
    except (subprocess.TimeoutExpired, emulator.Stuck) as why:
        return str(why)
    lines = done.stdout.splitlines()
    print("\n".join(lines), flush=True)
    if done.returncode != 0 or not lines or not lines[-1].endswith("lost: 0"):
        return f"exit {done.returncode}"
    return "it said something" if len(lines) != 1 else None


def main():
    parser = argparse.ArgumentParser(description="the model test with tagging on")
    emulator.arguments(parser)
    parser.add_argument("--bin", required=True, help="the model test for aarch64")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    passed = failed = 0
    for number, (mode, options) in enumerate(MODES.items()):
        for stream, words in STREAMS.items():
            wrong = run(args, options, ["--seed", str(args.seed + number), *words])
            passed += wrong is None
            failed += wrong is not None
            print(f"{'ok     ' if wrong is None else 'FAILED '} {mode}, {stream}{': ' + wrong if wrong else ''}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
