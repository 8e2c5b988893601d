"""bench.py: what the groups of packaging tests share: running commands, verdicts, the installed tree.

Who may import it: the other files of this folder. It builds weir once, installs it and moves the tree
that came of it, so that nothing finds its way by the first prefix. It deliberately does not know what is
linked.

SPDX-License-Identifier: Apache-2.0
"""
import os
import re
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONSUMER = Path(__file__).resolve().parent / "consumer"
LIBDIR = "lib"
# No command of these tests takes longer unless it hangs.
COMMAND_SECONDS = 300
# The probes allocate twice this many blocks.
PROBE_BLOCKS = 1000


class Failure(Exception):
    """A step without which the group cannot go on."""


class Bench:
    """Verdicts, and where things are. Sync: the counts are under the lock; the rest is set before threads."""

    def __init__(self, build, cargo_target):
        self.build = build
        self.cargo_target = cargo_target
        self.moved = build / "moved to here"
        self.library = build / "weir" / "libweir.so.1"
        self.passed = 0
        self.failed = 0
        self.lock = threading.Lock()

    def check(self, what, good, detail=""):
        with self.lock:
            if good:
                self.passed += 1
            else:
                self.failed += 1
                print(f"FAILED  {what}\n{str(detail)[-3000:]}", flush=True)
        return good

    def run(self, *command, cwd=None, env=None):
        """(status, stdout, stderr), texts."""
        full = {**os.environ, **(env or {})}
        full.pop("LD_PRELOAD", None)
        try:
            done = subprocess.run([str(c) for c in command], cwd=cwd, env=full, capture_output=True, text=True,
                                  errors="replace", stdin=subprocess.DEVNULL, timeout=COMMAND_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return 124, "", f"stopped after {COMMAND_SECONDS} s: {command}"
        except OSError as error:
            return 127, "", str(error)
        return done.returncode, done.stdout, done.stderr

    def must(self, *command, cwd=None, env=None):
        """stdout of a command that works."""
        status, out, error = self.run(*command, cwd=cwd, env=env)
        if status != 0:
            raise Failure(f"{' '.join(str(c) for c in command)}: {status}\n{out[-1500:]}\n{error[-1500:]}")
        return out

    def build_weir(self, name, *options):
        """Configure and build weir below the build folder; its tests and its tool stay out."""
        folder = self.build / name
        self.must("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DWEIR_TESTS=OFF",
                  f"-DCMAKE_INSTALL_LIBDIR={LIBDIR}", *options)
        self.must("cmake", "--build", folder, "--", "-j2")
        return folder

    def install(self):
        folder = self.build_weir("weir", f"-DCMAKE_INSTALL_PREFIX={self.build / 'first'}")
        self.must("cmake", "--install", folder)
        (self.build / "first").rename(self.moved)

    def installed(self, name, *options):
        """A second build with other options, installed and moved: its new prefix."""
        prefix = self.build / f"{name}-first"
        folder = self.build_weir(f"weir-{name}", f"-DCMAKE_INSTALL_PREFIX={prefix}", *options)
        self.must("cmake", "--install", folder)
        moved = self.build / f"{name}-moved"
        prefix.rename(moved)
        return moved

    def probe(self, what, program, homes, env=None):
        """One verdict: the program ran on weir, and its symbols lie where they must: {symbol: file}."""
        status, out, error = self.run(program, env=env)
        calls = re.search(r"^weir [\d.]+: (\d+) calls$", out, re.M)
        found = dict(re.findall(r"^(\S+) in (.+)$", out, re.M))
        good = status == 0 and calls is not None and int(calls[1]) >= 2 * PROBE_BLOCKS
        good = good and all(found.get(symbol) == home for symbol, home in homes.items())
        return self.check(what, good, f"status {status}, expected {homes}\n{out}{error}")

    def quiet(self, what, program, env=None):
        """One verdict: a program that never says malloc has weir in it, which writes its figures at exit."""
        status, _, error = self.run(program, env={**(env or {}), "WEIR_STATS": "exit"})
        return self.check(what, status == 0 and '"alloc_calls":' in error, f"status {status}\n{error}")
