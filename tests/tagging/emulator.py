# emulator.py: how the runners here run a program for aarch64: the emulator's command line, the environment
# of the program, and what is done when the emulator locks itself out.
#
# They import it. It deliberately knows no test.
#
# SPDX-License-Identifier: Apache-2.0
import os
import re
import signal
import subprocess
import tempfile
import time

CROSS_ROOT = "/usr/aarch64-linux-gnu"
# The emulator takes DC ZVA at an address with a tag for one at an unmapped address (up to qemu 10.0, user mode; DC
# GVA and DC GZVA are right). This makes libc choose a memset that has none.
TUNABLES = "glibc.cpu.name=kunpeng920"
# How often a program is started in which the emulator gets stuck, as it does every second time in some; and how
# often in a row, at which distance in seconds, it has to look so: a lock that is held for a moment is no lock-out.
STARTS, LOOKS, LOOK_S = 8, 5, 2


def arguments(parser):
    """The options that all runners have."""
    parser.add_argument("--emulator", required=True, help="a qemu-aarch64 that keeps tags (check/emulator.sh)")
    parser.add_argument("--root", default=CROSS_ROOT, help="folder with the C library for aarch64")
    parser.add_argument("--lib", help="the allocator to preload")


def command(args, words, options=()):
    """The command line for a program; args are those above."""
    line = [args.emulator, "-cpu", "max", "-L", args.root, *options]
    if args.lib:
        line += ["-E", f"LD_PRELOAD={os.path.abspath(args.lib)}"]
    return [str(w) for w in [*line, *words]]


def environment(options, **more):
    """The environment with WEIR_OPTIONS alone, or none, of what might reach an allocator."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEIR_", "GLIBC_TUNABLES", "MALLOC_", "SCUDO_"))}
    if options:
        env["WEIR_OPTIONS"] = options
    return env | {"GLIBC_TUNABLES": TUNABLES} | more


def _descendants(pid):
    yield pid
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in file.read().split():
                yield from _descendants(int(child))


def _waits_for_itself(pid):
    """Whether the first thread of an emulator waits for one of the emulator's own locks, not for the program's."""
    futex, bss_bytes_max = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine), 1 << 20
    with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
        words = file.read().split()
    if not words[0].isdigit() or int(words[0]) != futex:
        return False
    image = os.readlink(f"/proc/{pid}/exe")
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        ranges = [re.split(r"[- ]", line)[:2] for line in file if line.rstrip().endswith(image)]
    return any(int(start, 16) <= int(words[1], 16) < int(end, 16) + bss_bytes_max for start, end in ranges)


def is_stuck(pid):
    """Whether an emulator that `pid` has started, or is, has locked itself out: of a process with two threads its
    fork now and then makes one with a lock that nobody is left to give back."""
    try:
        return any(_waits_for_itself(each) for each in _descendants(pid))
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return False  # one has just ended


class Stuck(Exception):
    """The emulator locked itself out; `output` and `errors` are what was printed before."""

    def __init__(self, output, errors):
        super().__init__("the emulator got stuck in a lock of its own")
        self.output, self.errors = output, errors


def _end(child, words, limit_s):
    begun, looks = time.monotonic(), 0
    while True:
        try:
            child.wait(LOOK_S)
            return False
        except subprocess.TimeoutExpired:
            looks = looks + 1 if is_stuck(child.pid) else 0
            if looks == LOOKS:
                return True
            if time.monotonic() - begun > limit_s:
                raise subprocess.TimeoutExpired(words, limit_s) from None


def run_once(words, env, limit_s, merged=True, cwd=None):
    """As subprocess.run with the program's output, as bytes, `merged` or apart. Whatever it has started is gone
    when this returns. Raises TimeoutExpired, with the output, and Stuck."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([str(w) for w in words], env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT if merged else err, start_new_session=True)

        def printed():
            out.seek(0)
            err.seek(0)
            return out.read(), err.read()

        try:
            stuck = _end(child, words, limit_s)
        except subprocess.TimeoutExpired as expired:
            expired.output, expired.stderr = printed()
            raise
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        if stuck:
            raise Stuck(*printed())
        return subprocess.CompletedProcess(words, child.returncode, *printed())


def run(words, env, limit_s, merged=True):
    """The same, with text, and started again where the emulator gets stuck: what a program cannot help."""
    for left in reversed(range(STARTS)):
        try:
            done = run_once(words, env, limit_s, merged)
            break
        except Stuck as stuck:
            if left == 0:
                raise
            print(f"once more: {stuck}", flush=True)
    done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return done
