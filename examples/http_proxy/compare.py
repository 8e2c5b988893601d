#!/usr/bin/env python3
"""The proxy on pools, on weir's malloc and on others: requests, CPU time and resident memory.

Who may call it: a person, on a machine that does nothing else. In each round every variant has one fresh proxy, in
turn, before one server that stays the same; the figures are medians over the rounds. CPU time is the proxy's
own, from the kernel's count; resident memory its high-water mark, and what it has one second after the load.

    examples/http_proxy/compare.py --bin build [--peers build/peers/peers.json] [--rounds 5] [--only NAME...]

--instructions, in place of all that: the user instructions that one request spends in taking and giving back its buffers
and its journal line, counted by valgrind, so that other work on the machine does not matter.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = ("jemalloc", "mimalloc3", "snmalloc", "tcmalloc", "rpmalloc")
SIZES = {"16k": 8192, "256k": 131072, "2m": 1048576}  # buffer, body of an answer
# What a load is: options of http_load for each of its bursts, and how many bursts.
LOADS = {
    "steady": (["--connections", 64], 1),
    "come and go": (["--connections", 256, "--requests", 4, "--slow", 4, "--vanish", 50], 2),
    "come and go, few": (["--connections", 64, "--requests", 4, "--slow", 4, "--vanish", 50], 2),
}
FIELDS = (("req/s", 0), ("p99 ms", 1), ("CPU s / 100k", 2), ("faults / 100", 1), ("peak MiB", 1), ("MiB 1 s later", 1))


def start(*command, env=None):
    child = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    said = child.stdout.readline()
    if "port " not in said:
        raise ChildProcessError(f"{' '.join(map(str, command))} does not start")
    return child, int(said.split()[-1])


def stop(child):
    child.send_signal(signal.SIGTERM)
    if child.wait(timeout=20) != 0:
        sys.exit("a proxy did not give all back")


def spent(child):
    """(seconds of CPU, page faults) of a process so far."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[7])


def resident_mib(child, field):
    for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"the kernel does not say {field}")


def maps_name(child, path):
    return os.path.realpath(path) in Path(f"/proc/{child.pid}/maps").read_text()


def load_run(plan, port, size, options):
    done = subprocess.run([plan.bin / "http_load", "--port", str(port), "--bytes", str(SIZES[size]), "--ms", str(plan.ms),
                           *map(str, options)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"http_load {options}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def measure(plan, variant, size, load, server_port):
    program, options, env = variant
    child, port = start(plan.bin / program, "--listen", "127.0.0.1:0", "--backend", f"127.0.0.1:{server_port}", "--buffer", size,
                        "--journal", "/dev/null", *options, env=env)
    if env and not maps_name(child, env["LD_PRELOAD"]):
        sys.exit(f"{env['LD_PRELOAD']} is not loaded")
    options, bursts = LOADS[load]
    (cpu, faults), requests, rates, late = spent(child), 0, [], []
    for burst in range(bursts):
        time.sleep(0.3 if burst else 0)
        figures = load_run(plan, port, size, options)
        requests += figures["requests"]
        rates.append(figures["rps"])
        late.append(figures["p99_us"] / 1000)
    cpu_after, faults_after = spent(child)
    time.sleep(1)
    row = (statistics.mean(rates), max(late), (cpu_after - cpu) / requests * 1e5, (faults_after - faults) / requests * 100,
           resident_mib(child, "VmHWM"), resident_mib(child, "VmRSS"))
    stop(child)
    return row


def instructions(plan, variant, size, server_port):
    """Per request, in memory_buffer, memory_line and their counterparts, with all that they call."""
    program, options, env = variant
    with tempfile.NamedTemporaryFile() as counts:
        child, port = start("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={counts.name}", plan.bin / program,
                            "--listen", "127.0.0.1:0", "--backend", f"127.0.0.1:{server_port}", "--buffer", size, "--journal",
                            "/dev/null", *options, env=env)
        requests = load_run(plan, port, size, ["--connections", 16])["requests"]
        stop(child)
        text = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", counts.name], capture_output=True,
                              text=True, check=True).stdout
    found = re.findall(r"^ *([\d,]+).*:memory_(?:buffer|line)(?:_free)?(?: |$)", text, re.M)
    return sum(int(count.replace(",", "")) for count in found) / requests


def variants_of(plan):
    variants = {"pools": ("http_proxy", [], None),
                "pools with limits": ("http_proxy", ["--buffers", 4096, "--connections", 4096], None), "weir's malloc": ("http_proxy", ["--malloc"], None),
                "glibc": ("http_proxy_plain", ["--malloc"], None)}
    if plan.peers:
        for peer in json.loads(plan.peers.read_text())["peers"]:
            if peer["name"] in PEERS:
                name = f"{peer['name']} {peer['version']}"
                variants[name] = ("http_proxy_plain", ["--malloc"], {"LD_PRELOAD": peer["path"], **peer["environment"]})
    return {n: v for n, v in variants.items() if not plan.only or n in plan.only or n.split()[0] in plan.only}


def table(rows):
    print("| | " + " | ".join(name for name, _ in FIELDS) + " |\n" + "|---" * (len(FIELDS) + 1) + "|")
    for name, samples in rows.items():
        medians = [statistics.median(column) for column in zip(*samples)]
        print(f"| {name} | " + " | ".join(f"{m:,.{digits}f}" for m, (_, digits) in zip(medians, FIELDS)) + " |")


def main():
    parser = argparse.ArgumentParser(description="the proxy on pools and on mallocs")
    parser.add_argument("--bin", type=Path, required=True, help="folder with http_proxy, http_proxy_plain, http_load")
    parser.add_argument("--peers", type=Path, help="what bench/peers/build.py wrote")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=int, default=1500, help="length of each burst")
    parser.add_argument("--only", nargs="+", help="these variants: pools, weir's, glibc, jemalloc ...")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--instructions", action="store_true", help="count them, and measure nothing else")
    plan = parser.parse_args()
    plan.bin = plan.bin.resolve()
    variants = variants_of(plan)
    server, server_port = start(plan.bin / "http_proxy_plain", "--listen", "127.0.0.1:0", "--malloc", "--respond", 0)
    if plan.instructions:
        print("| | " + " | ".join(plan.sizes) + " |\n" + "|---" * (len(plan.sizes) + 1) + "|")
        for name, variant in variants.items():
            try:
                counts = [f"{instructions(plan, variant, size, server_port):,.0f}" for size in plan.sizes]
            except ChildProcessError:  # an allocator that cannot have its memory there
                counts = ["does not start under valgrind"]
            print(f"| {name} | " + " | ".join(counts) + " |", flush=True)
    for load in [] if plan.instructions else plan.loads:
        for size in plan.sizes:
            rows = {name: [] for name in variants}
            for turn in range(plan.rounds):
                # Each round begins with another one, so that nobody always follows the same.
                names = list(variants)
                for name in names[turn % len(names):] + names[:turn % len(names)]:
                    rows[name].append(measure(plan, variants[name], size, load, server_port))
            print(f"\n### {load}, buffers of {size}, bodies of {SIZES[size]:,} bytes\n", flush=True)
            table(rows)
    stop(server)


if __name__ == "__main__":
    main()
