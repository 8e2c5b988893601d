#!/usr/bin/env python3
"""Proves that calls arrive in the peers: in a program of ours, in one with threads, and in python3.

    bench/peers/prove.py [--dir DIR] [--build DIR] [NAME...]      the peers of DIR/peers.json
    bench/peers/prove.py --self-test [--build DIR]                broken allocators: each must be found out

Who may call it: a developer, the stage `peers` of ./test. For each peer:

  entries   the address of every entry point lies in the peer's file, asked of the loader (dladdr) in a program that
            calls through that address; the peer itself calls each block its own, and memory from elsewhere not
  counts    under gdb: each entry point of the peer was entered at least as often as it was called, libc's own never
  threads   both, with blocks that four threads make, pass on and free
  python    under gdb: python3 gives the same result as without the peer, and as above
  state     only where the peer has a function that says so: it runs as it is meant to

Of a row of peers.toml it reads: witness (proof/witness.h); forwarded, entry points that the peer leaves to libc or
libstdc++, which call the peer's others; missing, functions that the peer does not have, so that calls of them stay with libc;
state, a bool function of no arguments.
It deliberately does not know how a peer was built, and trusts nothing that the manifest says but path and environment.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import build

HERE = pathlib.Path(__file__).resolve().parent
PROOF = HERE / "proof"
TIMEOUT_S = 120
WARNINGS = ["-Wall", "-Wextra", "-Wundef", "-Werror"]
# A call and the look at its address use the same word of the program: no stubs, and no calls that the compiler knows.
PROBE_FLAGS = ["-O1", "-fPIE", "-pie", "-fno-plt", "-fno-builtin", "-pthread"]

# Faults of proof/broken.cpp: the check that has to notice each, and a word that its message has.
FAULTS = {
    "silent": ("entries", "lies in"),
    "c_only": ("entries", "_Znwm lies in"),
    "no_calloc": ("entries", "calloc lies in"),
    "yes_man": ("entries", "strangers"),
    "hollow": ("counts", "libc"),
    "asleep": ("state", "says no"),
}


class Failure(Exception):
    """What was not proven, in one line."""


class Proofs:
    """The programs of the proofs, compiled into one folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.witness = folder / "libwitness.so"
        self.probe = folder / "probe"
        compiled(build.CC, "-std=gnu17", "-O1", "-fPIC", "-shared", PROOF / "witness.c", "-o", self.witness)
        compiled(build.CC, "-std=gnu17", "-O1", "-fPIE", "-c", PROOF / "witness.c", "-o", folder / "witness.o")
        compiled(build.CXX, "-std=c++17", *PROBE_FLAGS, PROOF / "probe.cpp", folder / "witness.o", "-o", self.probe)
        self.python_result = python_facts(ran([*self.python("none")], {}))["result"]

    def broken(self, fault):
        library = self.folder / f"libbroken_{fault}.so"
        define = [] if fault == "none" else [f"-DFAULT_{fault}=1"]
        compiled(build.CXX, "-std=c++17", "-O1", "-fno-builtin", "-fPIC", "-shared", *define, PROOF / "broken.cpp", "-o", library)
        return library

    def python(self, witness):
        return [sys.executable, PROOF / "program.py", self.witness, witness]


def compiled(*argv):
    subprocess.run([*argv[:1], *WARNINGS, *argv[1:]], check=True)


def ran(argv, environment):
    """What a program wrote to stdout; it must end with 0."""
    argv = list(map(str, argv))
    try:
        done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S,
                              check=False)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{os.path.basename(argv[0])} did not end within {TIMEOUT_S} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise Failure(f"{os.path.basename(argv[0])} ended with {done.returncode}: {last[0]}")
    return done.stdout


def python_facts(text):
    facts = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    if "result" not in facts or "witness" not in facts:
        raise Failure("the Python program did not reach its end")
    return facts


class Peer:
    """A library with what it claims."""

    def __init__(self, row, path, environment):
        self.name, self.path = row["name"], os.path.realpath(path)
        self.environment = {**environment, "LD_PRELOAD": self.path}
        self.witness, self.state = row["witness"], row.get("state")
        self.forwarded, self.missing = set(row.get("forwarded", [])), row.get("missing", [])

    def probed(self, proofs, mode):
        """Lines of the probe: entry point -> (file, calls, blocks, owned), and what it says about the witness."""
        return probe_facts(ran([proofs.probe, mode, self.witness, *self.missing], self.environment))

    def counted(self, proofs, argv, names):
        """The same program under gdb: hits per library and address."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "count.json"
            text = ran(["gdb", "-batch", "-nx", "-x", PROOF / "count.py", "--args", *argv],
                       {"COUNT_LIBRARY": self.path, "COUNT_NAMES": ",".join(names), "COUNT_OUT": str(out),
                        "COUNT_ENVIRONMENT": json.dumps(self.environment)})
            if not out.is_file():
                raise Failure(f"gdb counted nothing: {text.strip().splitlines()[-1:]}")
            return json.loads(out.read_text())


def probe_facts(text):
    entries, facts = {}, {}
    for line in text.splitlines():
        key, *values = line.split("\t")
        if key == "entry":
            name, file, *numbers = values
            entries[name] = (os.path.realpath(file), *map(int, numbers))
        else:
            facts[key] = values[0]
    if not entries or "strangers" not in facts:
        raise Failure("the probe did not reach its end")
    return entries, facts


# ---- what must hold

def places_hold(peer, entries):
    """Every entry point lies where the peer claims it."""
    for name, (file, *_) in entries.items():
        inside = file == peer.path
        if inside and (name in peer.missing or name in peer.forwarded):
            raise Failure(f"{name} lies in the peer, which is said to have none")
        forwards = os.path.basename(file).startswith(("libstdc++.", "libc."))
        elsewhere = name in peer.missing or (name in peer.forwarded and forwards)
        if not inside and not elsewhere:
            raise Failure(f"{name} lies in {file}")


def witness_holds(peer, entries, facts):
    """The peer calls all blocks its own, and nothing else."""
    if facts["witness"] == "missing":
        raise Failure(f"no function {peer.witness} is there")
    makers = [entry for name, entry in entries.items() if name != "malloc_usable_size"]
    blocks, owned = (sum(entry[column] for entry in makers) for column in (2, 3))
    if not blocks:
        raise Failure("the probe got no block")
    if peer.witness == "none":
        return f"{blocks} blocks, no witness"
    if owned != blocks:
        raise Failure(f"the peer calls {owned} of {blocks} blocks its own")
    if facts["strangers"] != "0":
        raise Failure(f"the peer calls {facts['strangers']} strangers its own")
    return f"{owned} of {blocks} blocks its own"


def counts_hold(peer, counted, called):
    """CALLED: name -> calls. Names that share an address share its hits."""
    if counted["status"] != 0:
        raise Failure(f"under gdb the program ended with {counted['status']}")
    for point in counted["libc"]:
        if point["hits"]:
            raise Failure(f"libc's {'/'.join(point['names'])} was entered {point['hits']} times")
    reached = {name for point in counted["library"] for name in point["names"]}
    for name, calls in called.items():
        if calls and name not in reached and name not in peer.forwarded:
            raise Failure(f"{name} was called {calls} times and is not in the peer")
    for point in counted["library"]:
        calls = sum(called.get(name, 0) for name in point["names"])
        if point["hits"] < calls:
            raise Failure(f"{'/'.join(point['names'])} was entered {point['hits']} times for {calls} calls")
    hits, calls = sum(point["hits"] for point in counted["library"]), sum(called.values())
    if not hits or hits < calls:
        raise Failure(f"{hits} of {calls} calls arrived")
    return f"{hits} calls arrived, none in libc"


# ---- the checks

def check_entries(peer, proofs):
    entries, facts = peer.probed(proofs, "entries")
    places_hold(peer, entries)
    for name, (_, calls, *_rest) in entries.items():
        if not calls and name not in peer.missing:
            raise Failure(f"{name} was not called")
    inside = sum(file == peer.path for file, *_ in entries.values())
    return f"{inside} of {len(entries)} entry points, {witness_holds(peer, entries, facts)}"


def called_by(peer, proofs, mode):
    entries, facts = peer.probed(proofs, mode)
    counted = peer.counted(proofs, [proofs.probe, mode, peer.witness, *peer.missing], entries)
    said = counts_hold(peer, counted, {name: calls for name, (_, calls, *_rest) in entries.items()})
    return entries, facts, said


def check_counts(peer, proofs):
    return called_by(peer, proofs, "entries")[2]


def check_threads(peer, proofs):
    entries, facts, said = called_by(peer, proofs, "threads")
    return f"{said}, {witness_holds(peer, entries, facts)}"


def check_python(peer, proofs):
    facts = python_facts(ran(proofs.python(peer.witness), peer.environment))
    there, blocks, owned = facts["witness"]
    if facts["result"] != proofs.python_result:
        raise Failure("another result than without the peer")
    if there == "missing" or (there == "there" and owned != blocks):
        raise Failure(f"the peer calls {owned} of {blocks} blocks its own")
    names = probe_facts(ran([proofs.probe, "threads", "none"], {}))[0]
    return counts_hold(peer, peer.counted(proofs, proofs.python(peer.witness), names), {"malloc": int(blocks), "free": int(blocks)})


STATE_PROGRAM = """
import ctypes, sys
function = ctypes.CDLL(None)[sys.argv[1]]
function.restype = ctypes.c_bool
print(function())
"""


def check_state(peer, proofs):
    del proofs
    if ran([sys.executable, "-c", STATE_PROGRAM, peer.state], peer.environment).strip() != "True":
        raise Failure(f"{peer.state} says no")
    return f"{peer.state} says yes"


CHECKS = {"entries": check_entries, "counts": check_counts, "threads": check_threads, "python": check_python,
          "state": check_state}


def checks_of(peer):
    return [check for check in CHECKS if check != "state" or peer.state]


def outcome(check, peer, proofs):
    """(True, what was found) or (False, why not)."""
    try:
        return True, CHECKS[check](peer, proofs)
    except Failure as failure:
        return False, str(failure)


def self_test(proofs):
    """The sound allocator passes every check; each fault fails the check that is there for it."""
    passed = failed = 0

    def judged(good, what, said):
        nonlocal passed, failed
        passed, failed = passed + good, failed + (not good)
        print(f"{'ok     ' if good else 'FAILED '} {what:<22} {said}", flush=True)

    row = {"name": "broken", "witness": "owns:broken_owns:1", "state": "broken_awake"}
    sound = Peer(row, proofs.broken("none"), {})
    for check in CHECKS:
        good, said = outcome(check, sound, proofs)
        judged(good, f"sound {check}", said)
    for fault, (check, word) in FAULTS.items():
        good, said = outcome(check, Peer(row, proofs.broken(fault), {}), proofs)
        judged(not good and word in said, f"{fault} {check}", "passes although it is broken" if good else f"found out: {said}")
    absent = Peer(row, proofs.folder / "not_there.so", {})
    good, said = outcome("entries", absent, proofs)
    judged(not good and "lies in" in said, "absent entries", "passes without a library" if good else f"found out: {said}")
    return passed, failed


def proven(proofs, directory, names):
    try:
        manifest = json.loads((directory / "peers.json").read_text())
    except OSError:
        manifest = {"peers": [], "absent": []}
    made = {peer["name"]: peer for peer in manifest["peers"]}
    reasons = {absent["name"]: absent["reason"] for absent in manifest["absent"]}
    passed = failed = 0
    for row in build.table():
        if names and row["name"] not in names:
            continue
        if row["name"] not in made:
            failed += 1
            reason = reasons.get(row["name"], f"not in {directory}/peers.json; build.py makes it")
            print(f"FAILED  {row['name']:<22} absent: {reason}", flush=True)
            continue
        peer = Peer(row, made[row["name"]]["path"], made[row["name"]]["environment"])
        for check in checks_of(peer):
            good, said = outcome(check, peer, proofs)
            passed, failed = passed + good, failed + (not good)
            print(f"{'ok     ' if good else 'FAILED '} {peer.name:<22} {check:<8} {said}", flush=True)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", default=build.ROOT / "build" / "peers", type=pathlib.Path,
                        help="where peers.json is (build/peers)")
    parser.add_argument("--build", type=pathlib.Path, help="where the probe is compiled (DIR/proof)")
    parser.add_argument("--self-test", action="store_true", help="broken allocators instead of the peers")
    parser.add_argument("names", nargs="*", metavar="NAME", help="peers; none means all")
    options = parser.parse_args()
    proofs = Proofs((options.build or options.dir / "proof").resolve())
    passed, failed = self_test(proofs) if options.self_test else proven(proofs, options.dir.resolve(), options.names)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
