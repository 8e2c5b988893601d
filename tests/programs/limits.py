#!/usr/bin/env python3
"""Tries what a preloaded malloc cannot reach or has to bear: static, setuid and sanitized programs, debuggers, sandboxes.

Who may call it: CI or a developer. Each row of the table CASES runs one program of limits/, either by `weir run`,
whose report must say where calls arrived and why not, or with the library in LD_PRELOAD; docs/compatibility.md says
what each row means to a user. A row that this machine forbids is left out by name and counts as nothing. It
deliberately knows nothing of how the library works.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE / "limits"
TIMEOUT_S = 120
CORE_MAX = 64 << 20     # bytes of a core file of a program that uses a few MiB
NOBODY = 65534

# How each program is built: compiler and flags. {own} and the like are other programs, {weir_o} is build/weir.o.
PROGRAMS = {
    "plain": "gcc -O1 -g plain.c",
    "static": "gcc -O1 -static plain.c",
    "static_weir": "gcc -O1 -static -Wl,--no-warnings plain.c {weir_o}",
    "setuid": "gcc -O1 plain.c",
    "capable": "gcc -O1 plain.c",
    "own_malloc": "gcc -O1 -fno-builtin plain.c own.c",
    "bits32": "gcc -m32 -ffreestanding -nostdlib -fno-pie -no-pie bare.c /lib32/libc.so.6 -Wl,-dynamic-linker=/lib/ld-linux.so.2",
    "musl": "musl-gcc -O1 plain.c",
    "musl_static": "musl-gcc -O1 -static plain.c",
    "asan_shared": "gcc -O1 -fsanitize=address plain.c",
    "asan_inside": "clang-19 -O1 -fsanitize=address plain.c",
    "tsan_inside": "clang-19 -O1 -fsanitize=thread plain.c",
    "msan_inside": "clang-19 -O1 -fsanitize=memory plain.c",
    "ubsan": "gcc -O1 -fsanitize=undefined plain.c",
    "cases": "gcc -O1 -g -std=gnu17 cases.c -ldl",
    "cases_jemalloc": "gcc -O1 -std=gnu17 cases.c -ldl -Wl,--no-as-needed -l:libjemalloc.so.2",
    "plugin": "gcc -O1 -shared -fPIC plugin.c",
}

# What a machine may lack, and how that is found out.
REQUIREMENTS = {
    "root": (lambda: os.geteuid() == 0, "needs root"),
    "x86": (lambda: platform.machine() == "x86_64", "needs x86-64"),
    "core": (lambda: pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core", "core files go elsewhere here"),
    "setcap": (lambda: os.geteuid() == 0 and capable(), "may not set file capabilities"),
}


class Case:
    """One row: what is run, and what must come of it.

    by        "run": under `weir run`; "preload": with LD_PRELOAD alone; "neither": without the library.
    command   words, with ~ for a blank inside one; {name} is a program of PROGRAMS, {lib} the library, {root} a root
              directory with `plain` and the library, {scratch} an empty directory.
    where     for "run": where calls must have arrived, for the program of that name: "reached", or a reason's code.
    """

    def __init__(self, name, command, by="run", where=None, status=0, output=r"done", environment=None, requires=(), check=None):
        self.name, self.command, self.by, self.where, self.status = name, command.split(), by, where, status
        self.output, self.environment, self.requires, self.check = output, environment or {}, requires, check


ABORTED = -signal.SIGABRT
INVALID_FREE = r"weir: invalid-free: not a block of this heap"

CASES = [
    Case("an ordinary program", "{plain}", where=("plain", "reached")),
    Case("static", "{static}", where=("static", "static")),
    Case("static, with weir.o", "{static_weir}", where=("static_weir", "reached")),
    Case("setuid", "{setuid}", where=("setuid", "secure_execution"), requires=["root"]),
    Case("file capabilities", "{capable}", where=("capable", "secure_execution"), requires=["setcap"]),
    Case("32-bit", "{bits32}", where=("bits32", "wrong_class"), requires=["x86"]),
    Case("musl", "{musl}", where=("musl", "musl"), status=127, output="symbol not found"),
    Case("musl, static", "{musl_static}", where=("musl_static", "static")),
    Case("malloc in the program", "{own_malloc}", where=("own_malloc", "own_malloc")),
    Case("environment cleared", "env -i {plain} linger", where=("plain", "preload_cleared")),
    Case("AddressSanitizer, shared", "{asan_shared}", where=("asan_shared", "sanitizer"), status=1,
         output="does not come first in initial library list"),
    Case("AddressSanitizer, shared, told to go on", "{asan_shared}", where=("asan_shared", "reached"),
         environment={"ASAN_OPTIONS": "verify_asan_link_order=0"}),
    Case("AddressSanitizer, inside", "{asan_inside}", where=("asan_inside", "sanitizer")),
    Case("AddressSanitizer, inside, finds", "{asan_inside} overrun", where=("asan_inside", "sanitizer"), status=1,
         output="heap-buffer-overflow"),
    Case("ThreadSanitizer, inside", "{tsan_inside}", where=("tsan_inside", "sanitizer")),
    Case("MemorySanitizer", "{msan_inside}", where=("msan_inside", "sanitizer")),
    Case("UndefinedBehaviorSanitizer", "{ubsan}", where=("ubsan", "reached")),
    Case("valgrind replaces weir", "valgrind -q --error-exitcode=9 {plain} overrun", by="preload", status=9,
         output="Invalid write of size 1"),
    Case("valgrind runs weir", "valgrind --soname-synonyms=somalloc=nouserintercepts {plain}", by="preload",
         output=r"total heap usage: 0 allocs"),
    Case("gdb", "gdb -q -batch -nx -ex set~environment~LD_PRELOAD~{lib} -ex break~abort -ex run -ex bt -ex info~symbol~malloc"
         " --args {cases} core", by="neither", output=r"(?s)case_core.*malloc in section .text of \S*libweir"),
    Case("strace", "strace -f -c -o {scratch}/trace {plain}", by="preload"),
    Case("core file", "{cases} core", by="preload", status=ABORTED, output="", requires=["core"], check="core"),
    Case("chroot without /proc", "chroot {root} /plain", by="neither", environment={"LD_PRELOAD": "/libweir.so.1", "WEIR_STATS": "exit"},
         output=r'(?s)"alloc_calls":\d{5}.*done', requires=["root"]),
    Case("seccomp that kills", "{cases} seccomp kill", by="preload"),
    Case("seccomp that refuses, from the first call", "{cases} seccomp refuse", by="preload"),
    Case("seccomp that refuses gettid, several threads", "{cases} unnamed", by="preload"),
    Case("seccomp, a call too many", "{cases} seccomp kill forbidden", by="preload", status=-signal.SIGSYS, output=""),
    Case("a plugin", "{cases} plugin {plugin} shallow cross", where=("cases", "reached")),
    Case("RTLD_DEEPBIND", "{cases} plugin {plugin} deep", where=("cases", "reached")),
    Case("RTLD_DEEPBIND, its block freed outside", "{cases} plugin {plugin} deep cross", by="preload", status=ABORTED, output=INVALID_FREE),
    Case("dlmopen", "{cases} dlmopen", by="preload", output="(?s)another malloc.*done"),
    Case("weir by dlopen", "{cases} dlopen {lib}", by="neither", output="(?s)another malloc.*done"),
    Case("weir by dlopen, an older block freed through it", "{cases} dlopen {lib} mixed", by="neither", status=ABORTED,
         output=INVALID_FREE),
    Case("mcheck and mtrace", "{cases} debugging", by="preload", environment={"MALLOC_TRACE": "{scratch}/trace"},
         output="(?s)mcheck -1.*done.*trace none"),
    Case("glibc's tunables", "{plain}", where=("plain", "reached"),
         environment={"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.arena_max=1", "MALLOC_PERTURB_": "7"}),
    Case("jemalloc's own calls", "{cases_jemalloc} jemalloc", where=("cases_jemalloc", "reached"),
         output="(?s)mallctl does not count.*done"),
    Case("jemalloc's own calls, freed by free", "{cases_jemalloc} jemalloc mixed", by="preload", status=ABORTED, output=INVALID_FREE),
    Case("JVM with native memory tracking", "java -Xmx32m -XX:NativeMemoryTracking=summary -XX:+UnlockDiagnosticVMOptions"
         " -XX:+PrintNMTStatistics -version", where=("java", "reached"), output=r"(?s)Total: reserved=.*malloc="),
]


class Failure(Exception):
    """Why a row is not ok."""


def capable():
    """True where file capabilities can be set: tried on a file."""
    with tempfile.NamedTemporaryFile(dir=HERE) as file:
        return subprocess.run(["setcap", "cap_net_raw+ep", file.name], capture_output=True).returncode == 0


def built(directory, weir_o):
    """All programs of PROGRAMS under `directory`: {name: path}."""
    paths = {}
    for name, command in PROGRAMS.items():
        if name == "bits32" and not REQUIREMENTS["x86"][0]():
            continue
        paths[name] = str(directory / name)
        words = command.format(weir_o=weir_o).split()
        done = subprocess.run([*words, "-o", paths[name]], cwd=SOURCES, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"limits.py: does not build: {' '.join(words)}\n{done.stderr}")
    if os.geteuid() == 0:
        os.chown(paths["setuid"], NOBODY, -1)
        os.chmod(paths["setuid"], 0o4755)
        if capable():
            subprocess.run(["setcap", "cap_net_raw+ep", paths["capable"]], check=True)
    return paths


def root_made(directory, plain, lib):
    """A root directory with the program, the library and what the loader needs; no /proc."""
    root = directory / "root"
    listed = subprocess.run(["ldd", plain], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"(/\S+) \(0x", listed):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(plain, root / "plain")
    shutil.copy(lib, root / "libweir.so.1")
    return root


def core_expected(scratch):
    files = list(pathlib.Path(scratch).glob("core*"))
    if not files:
        raise Failure("no core file")
    stat = files[0].stat()
    if stat.st_size > CORE_MAX:
        raise Failure(f"the core file has {stat.st_size} bytes, {stat.st_blocks * 512} on the disk")


def where_expected(case, report):
    program, wanted = case.where
    found = [p["reason"] or p["verdict"] for p in json.loads(report.read_text())["processes"] if os.path.basename(p["exe"]) == program]
    if wanted not in found or any(f not in (wanted, "inherited") for f in found):
        raise Failure(f"weir run says {', '.join(found) or 'nothing'} of {program}, not {wanted}")


def execute(case, options, paths):
    """Runs one row; raises Failure."""
    with tempfile.TemporaryDirectory(prefix="limits.") as scratch:
        os.chmod(scratch, 0o777)
        report = pathlib.Path(scratch) / "report.json"
        words = {**paths, "lib": options.lib, "scratch": scratch}
        command = [word.replace("~", " ").format(**words) for word in case.command]
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", "HOME": scratch,
                       **{k: v.format(**words) for k, v in case.environment.items()}}
        if case.by == "run":
            command = [options.tool, "run", "--quiet", "--json", str(report), "--", *command]
        elif case.by == "preload":
            environment["LD_PRELOAD"] = str(options.lib)
        core = resource.RLIM_INFINITY if case.check == "core" else 0
        user = NOBODY if "setcap" in case.requires else None
        try:
            done = subprocess.run(command, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=TIMEOUT_S, user=user,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (core, core)))
        except FileNotFoundError as error:
            raise Failure(f"{error.filename} is missing") from error
        except subprocess.TimeoutExpired as error:
            raise Failure(f"still running after {TIMEOUT_S} s") from error
        text = done.stdout.decode(errors="replace")
        shown = "".join(f"\n    {line}" for line in text.splitlines()[-12:])
        if done.returncode != case.status:
            raise Failure(f"exit status {done.returncode}, not {case.status}{shown}")
        if not re.search(case.output, text):
            raise Failure(f"the output has no {case.output!r}{shown}")
        if case.where:
            where_expected(case, report)
        if case.check == "core":
            core_expected(scratch)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True, type=pathlib.Path, help="libweir.so.1; weir.o lies beside it")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the tool, weir")
    parser.add_argument("--only", default="", help="regular expression on the rows' names")
    options = parser.parse_args()
    options.lib, options.tool = options.lib.resolve(), options.tool.resolve()
    for path in (options.lib, options.lib.parent / "weir.o", options.tool):
        if not path.is_file():
            sys.exit(f"limits.py: no such file: {path}")
    passed = failed = 0
    # Where another user may search and a setuid bit counts: not below a private home.
    with tempfile.TemporaryDirectory(prefix="limits-programs.") as directory:
        os.chmod(directory, 0o755)
        directory = pathlib.Path(directory)
        paths = built(directory, options.lib.parent / "weir.o")
        paths["root"] = str(root_made(directory, paths["plain"], options.lib))
        for case in CASES:
            if not re.search(options.only, case.name):
                continue
            lacking = [text for test, text in (REQUIREMENTS[r] for r in case.requires) if not test()]
            if lacking:
                print(f"left out  {case.name}: {', '.join(lacking)}", flush=True)
                continue
            try:
                execute(case, options, paths)
                print(f"ok    {case.name}", flush=True)
                passed += 1
            except Failure as failure:
                print(f"FAIL  {case.name}: {failure}", flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
