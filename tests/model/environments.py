#!/usr/bin/env python3
# environments.py: runs the model test in every environment that an allocator must cope with: limits on
# address space and mappings, strict overcommit, small stacks, small reserves, and each option.
#
# Run by hand and by CI. Two environments change a setting of the whole machine (vm.overcommit_memory,
# vm.max_map_count): they are marked `machine-wide`, need root, last seconds, and put the old value back;
# --no-machine-wide leaves them out, and says so. It knows the model's command line and the option
# names, nothing of the allocator. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

MIB = 1 << 20
GIB = 1 << 30

SMALL = ["--mix", "small"]
MIXED = ["--mix", "mixed", "--size-max", "4m", "--live-max", "64m"]
LARGE = ["--mix", "large", "--size-max", "8m", "--live-max", "300m"]


class Environment:
    """One run: its name, the model's arguments, and what is different about the world.

    limits: {RLIMIT_*: bytes}; options: WEIR_OPTIONS; sysctl: {name: value}, machine-wide;
    ops: calls relative to --ops; runs: number of runs, each with its own seed; says: what the allocator
    must say on stderr, exactly.
    """

    def __init__(self, name, model, limits=None, options="", sysctl=None, ops=1.0, runs=1, says=""):
        self.name, self.model, self.limits = name, model, limits or {}
        self.options, self.sysctl, self.ops, self.runs = options, sysctl or {}, ops, runs
        self.says = says


def says_of_tags():
    """What is said of the option tagging: nothing, on a processor that has tags."""
    with open("/proc/cpuinfo") as f:
        features = [line.split() for line in f if line.startswith("Features")]
    if any("mte" in words for words in features):
        return ""
    return "weir: option 'tagging' has no effect: this processor, kernel or build has no memory tags\n"


AS = resource.RLIMIT_AS
# All memory may be promised, so that what else runs does not decide.
STRICT = {"vm/overcommit_ratio": "100", "vm/overcommit_memory": "2"}
DATA = resource.RLIMIT_DATA
# Every free is looked at for whole pages, and those go after a millisecond.
AT_ONCE = "release_delay=1:release_window=1:release_delay_max=1:release_floor=0:thread_free_max=0"
ENVIRONMENTS = [
    Environment("plain, small", SMALL),
    Environment("plain, mixed", MIXED),
    Environment("plain, large", LARGE, ops=0.02),
    Environment("RLIMIT_AS 512 MiB", MIXED, {AS: 512 * MIB}),
    Environment("RLIMIT_AS 4 GiB", MIXED, {AS: 4 * GIB}),
    Environment("RLIMIT_AS 4 GiB, large", LARGE, {AS: 4 * GIB}, ops=0.02),
    Environment("RLIMIT_AS lowered after start", [*MIXED, "--limit-as-after", "256m", "--nomem-ok"]),
    Environment("RLIMIT_AS lowered after start, large",
                [*LARGE, "--limit-as-after", "256m", "--nomem-ok"], ops=0.05, runs=3),
    Environment("RLIMIT_AS exhausted: 384 MiB, live 1 GiB", [*LARGE, "--live-max", "1g", "--nomem-ok"],
                {AS: 384 * MIB}, ops=0.05),
    Environment("RLIMIT_DATA lowered after start", [*MIXED, "--limit-data-after", "256m", "--nomem-ok"]),
    Environment("RLIMIT_DATA lowered after start, large",
                [*LARGE, "--limit-data-after", "256m", "--nomem-ok"], ops=0.05, runs=3),
    Environment("RLIMIT_DATA exhausted: 300 MiB, live 1 GiB", [*LARGE, "--live-max", "1g", "--nomem-ok"],
                {DATA: 300 * MIB}, ops=0.05),
    Environment("small stacks", [*MIXED, "--stack", "32k"], {resource.RLIMIT_STACK: 128 * 1024}),
    Environment("many short threads", [*SMALL, "--life", "200", "--threads", "8"], ops=0.2),
    Environment("machine-wide: vm.overcommit_memory=2", MIXED, sysctl=STRICT),
    Environment("machine-wide: vm.overcommit_memory=2, large", LARGE, ops=0.02,
                sysctl=STRICT),
    Environment("machine-wide: vm.max_map_count=512", MIXED, sysctl={"vm/max_map_count": "512"}),
    Environment("machine-wide: vm.max_map_count=512, large", LARGE, ops=0.02,
                sysctl={"vm/max_map_count": "512"}),
    Environment("small address space: reserve=256m, RLIMIT_AS 512 MiB", MIXED, {AS: 512 * MIB},
                "reserve=256m"),
    Environment("exhausted reserve: reserve=64m, live 300 MiB", LARGE, options="reserve=64m", ops=0.02),
    Environment("exhausted reserve: reserve=64m, mixed", [*MIXED, "--live-max", "300m", "--slots", "32768"],
                options="reserve=64m"),
    Environment("checks=full", MIXED, options="checks=full"),
    Environment("checks=full, small", SMALL, options="checks=full"),
    Environment("check_every=1", MIXED, options="check_every=1"),
    Environment("check_every=1, small", SMALL, options="check_every=1"),
    Environment("guard_rate=1, small", SMALL, options="guard_rate=1", ops=0.1),
    Environment("guard_rate=1, a block for each slot", [*MIXED, "--live-max", "4m"],
                options="guard_rate=1:guard_slots=16384", ops=0.1),
    Environment("guard_rate=2", MIXED, options="guard_rate=2:guard_slots=64", ops=0.1),
    Environment("guard_rate=3, short threads", [*SMALL, "--life", "200", "--threads", "8"],
                options="guard_rate=3", ops=0.05),
    Environment("guard_rate=2: RLIMIT_AS 512 MiB", MIXED, {AS: 512 * MIB}, "guard_rate=2", ops=0.1),
    Environment("guard_rate=2: checks=full", MIXED, options="guard_rate=2:checks=full", ops=0.1),
    Environment("guard_rate=100: memory goes back at once", MIXED, options=AT_ONCE + ":guard_rate=100", ops=0.5),
    Environment("machine-wide: vm.max_map_count=512, guard_rate=2", SMALL, options="guard_rate=2",
                sysctl={"vm/max_map_count": "512"}, ops=0.1, runs=5),
    Environment("machine-wide: vm.max_map_count=512, guard_rate=1, mixed", MIXED, options="guard_rate=1",
                sysctl={"vm/max_map_count": "512"}, ops=0.1, runs=5),
    Environment("machine-wide: vm.overcommit_memory=2, guard_rate=2", SMALL, options="guard_rate=2",
                sysctl=STRICT, ops=0.1),
    Environment("trust_size=yes", MIXED, options="trust_size=yes"),
    Environment("dirty_max=0", MIXED, options="dirty_max=0"),
    Environment("dirty_max=0, large", LARGE, options="dirty_max=0", ops=0.02),
    Environment("memory goes back at once, small", SMALL, options=AT_ONCE, ops=0.3),
    Environment("memory goes back at once, mixed", MIXED, options=AT_ONCE),
    Environment("memory goes back at once, large", LARGE, options=AT_ONCE, ops=0.02),
    Environment("memory goes back at once, short threads", [*SMALL, "--life", "200", "--threads", "8"],
                options=AT_ONCE, ops=0.1),
    Environment("memory goes back at once: checks=full", MIXED, options=AT_ONCE + ":checks=full"),
    Environment("memory goes back at once: reserve=64m", [*MIXED, "--live-max", "300m", "--slots", "32768"],
                options=AT_ONCE + ":reserve=64m"),
    Environment("map_count_max=16, large", LARGE, options="map_count_max=16", ops=0.02),
    Environment("tagging=sync, asked for where it cannot be had", MIXED, options="tagging=sync:tag_history=1000",
                says=says_of_tags()),
    Environment("tagging=auto, asked for where it cannot be had, small", SMALL, options="tagging=auto",
                says=says_of_tags()),
]


@contextmanager
def machine_setting(name, value):
    """Set /proc/sys/NAME to VALUE while the body runs; the old value comes back whatever happens."""
    path = "/proc/sys/" + name
    with open(path) as f:
        old = f.read()

    def interrupted(number, frame):
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupted)
    try:
        with open(path, "w") as f:
            f.write(value)
        yield
    finally:
        with open(path, "w") as f:
            f.write(old)
        signal.signal(signal.SIGTERM, handler)


def run(args, environment, seed):
    """Returns (why it failed or None, the model's last line, the command)."""
    command = [args.model, "--seed", str(seed), "--ops", str(int(args.ops * environment.ops)),
               "--forks", "8", *environment.model]
    env = dict(os.environ)
    prefix = ""
    if args.lib:
        env["LD_PRELOAD"] = os.path.abspath(args.lib)
        prefix = "LD_PRELOAD=" + env["LD_PRELOAD"] + " "
    env.pop("WEIR_OPTIONS", None)
    if environment.options:
        env["WEIR_OPTIONS"] = environment.options
        prefix += "WEIR_OPTIONS=" + environment.options + " "

    def limit():
        for which, value in environment.limits.items():
            resource.setrlimit(which, (value, value))

    shown = prefix + " ".join(command)
    for which, value in environment.limits.items():
        flag = {AS: "-v", DATA: "-d"}.get(which, "-s")
        shown = f"ulimit {flag} {value // 1024}; {shown}"
    try:
        with ExitStack() as settings:
            for setting in environment.sysctl.items():
                settings.enter_context(machine_setting(*setting))
            done = subprocess.run(command, env=env, preexec_fn=limit, capture_output=True, text=True,
                                  timeout=args.timeout)
    except OSError as error:
        return f"cannot set it up: {error}", "", shown
    except subprocess.TimeoutExpired:
        return f"no end within {args.timeout} s", "", shown
    line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr.strip()}", line, shown
    # Anything else on stderr counts: a library that could not be preloaded says so there, too.
    if done.stderr != environment.says:
        return f"expected {environment.says!r} on stderr, found {done.stderr!r}", line, shown
    if not line.endswith("lost: 0"):
        return f"expected a line that ends in 'lost: 0', found {line!r}", line, shown
    return None, line, shown


def main():
    parser = argparse.ArgumentParser(description="run the model test in every environment")
    parser.add_argument("--model", required=True, help="the model binary")
    parser.add_argument("--lib", help="the allocator to preload; without it, libc's")
    parser.add_argument("--ops", type=int, default=2000000, help="calls in a run of small blocks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one environment")
    parser.add_argument("--only", default="", help="run only environments whose name contains this")
    parser.add_argument("--no-machine-wide", action="store_true",
                        help="leave out what changes a setting of the whole machine")
    args = parser.parse_args()
    passed = failed = left_out = 0
    for environment in ENVIRONMENTS:
        if args.only not in environment.name:
            continue
        if environment.sysctl and args.no_machine_wide:
            print(f"left out  {environment.name}")
            left_out += 1
            continue
        start = time.monotonic()
        for i in range(environment.runs):
            why, line, shown = run(args, environment, args.seed + i)
            if why:
                break
        seconds = time.monotonic() - start
        detail = line.partition("handed over")[2].partition("no memory:")[2].split()
        print(f"{'FAILED' if why else 'ok':9} {environment.name}  ({seconds:.1f} s"
              f"{', no memory: ' + detail[0] if detail and detail[0] != '0' else ''})", flush=True)
        if why:
            failed += 1
            print(f"          {why}\n          {shown}", flush=True)
        else:
            passed += 1
    if left_out:
        print(f"{left_out} left out")
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
