#!/usr/bin/env python3
# selfcheck.py: shows that the model test notices faults: it runs it on a malloc that is broken in one
# way after another (broken.c) and wants the right failure each time, and none from the sound one.
#
# Run by hand and by CI; knows the texts of the model's failures. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import re
import subprocess
import sys

# fault -> what the model must say
FAULTS = {
    "overlap": r"FAILED: overlap: .* is in a live block",
    "content": r"FAILED: content: block .* expected word .*, found",
    "realloc": r"FAILED: content: block .*; in realloc",
    "zero": r"FAILED: zeroes: block .* expected 0x00, found 0x01; in calloc",
    "align": r"FAILED: alignment: .* expected a multiple of",
    "errno": r"FAILED: errno: .* expected errno to stay \d+, found 5",
    "null": r"FAILED: no memory: [a-z_]+ of .* found NULL with error 12",
    "refuse": r"FAILED: refused: .* expected NULL and ENOMEM",
    "einval": r"FAILED: refused: case 5",
    "usable-small": r"FAILED: usable size: .* found 0",
    # bytes that are not the block's: the neighbour's claim or its content tells, or the next true answer
    "usable-large": r"FAILED: (overlap|content|usable size: .* expected at least \d+ as before)",
    "fork": r"FAILED: (no memory: .* \(child of a fork\)|fork: the child ended)",
    "fork-hang": r"FAILED: fork: the child ended with status 0xe \(it hung\)",
    "hang": r"FAILED: stalled: no progress for 2 seconds",
}

TRIES = 6  # of usable-large 2 of 100 end before the model speaks, on a loaded machine


def main():
    parser = argparse.ArgumentParser(description="show that the model test notices faults")
    parser.add_argument("--model", required=True, help="the model binary")
    parser.add_argument("--broken", required=True, help="libmodel_broken.so, from broken.c")
    args = parser.parse_args()
    passed = failed = 0
    for fault, expected in [("", None), *FAULTS.items()]:
        env = dict(os.environ, LD_PRELOAD=os.path.abspath(args.broken), BROKEN=fault)
        for seed in range(1, TRIES + 1):
            command = [args.model, "--seed", str(seed), "--ops", "1000000", "--threads", "2", "--forks", "4",
                       "--stall", "2" if "hang" in fault else "60"]
            run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
            # Where what the fault overwrote ended the allocator below before the model came to look: again.
            if expected is None or run.returncode >= 0 or "FAILED: " in run.stderr:
                break
        if expected is None:
            good = run.returncode == 0 and " lost: 0" in run.stdout
        else:
            good = run.returncode != 0 and re.search(expected, run.stderr)
        said = (run.stderr or run.stdout).splitlines() or [f"nothing; ended with {run.returncode}"]
        print(f"{'ok' if good else 'FAILED':7} {fault or '(sound)':13} {said[0][:150]}")
        if good:
            passed += 1
        else:
            failed += 1
            print(f"        expected {expected}, found exit {run.returncode}:\n{run.stderr}", file=sys.stderr)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
