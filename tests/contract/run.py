#!/usr/bin/env python3
"""Compiles the contract programs and runs each under glibc's malloc and under a preloaded library.

Who may call it: CI, a developer, or `make check`; see README.md in this directory. A program is any *.c or
*.cpp here. A line in its opening comment, `contract: key=value ...`, says how to run it; several such
lines are several runs. It deliberately knows no allocator by name: what a library must do is in the
programs.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TALLY = re.compile(r"^contract: (\d+) checks, (\d+) failures$", re.MULTILINE)

# The keys of a `contract:` line. A value has no blanks; lists take commas.
KEYS = {
    "name": "suffix of the run's name, where a program has several runs",
    "args": "arguments",
    "cflags": "more compiler flags",
    "libs": "libraries to link with",
    "timeout": "seconds, 60 unless told",
    "as_mib": "RLIMIT_AS in MiB, set before exec",
    "env": "variables, NAME=VALUE each",
    "plugin": "sources beside the program, each built as a shared library; argv[1..] are their paths",
    "static": "'yes': also linked with the archive that lies beside the library, as a static program",
    "glibc": "'skip': a run that glibc's own malloc cannot pass; the program says why",
}

CFLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-builtin-malloc", "-fno-builtin-calloc",
          "-fno-builtin-realloc", "-fno-builtin-free", "-Wno-deprecated-declarations",
          f"-I{HERE.parent.parent / 'include'}"]


class Failure(Exception):
    """Why a run is not ok, in one line."""


class Run:
    """One way to run one program."""

    def __init__(self, source, keys):
        unknown = set(keys) - set(KEYS)
        if unknown:
            raise SystemExit(f"{source.name}: unknown key in its contract line: {', '.join(sorted(unknown))}")
        self.source = source
        self.program = source.stem
        self.name = source.stem + ("." + keys["name"] if "name" in keys else "")
        self.args = [a for a in keys.get("args", "").split(",") if a]
        self.cflags = [f for f in keys.get("cflags", "").split(",") if f]
        self.libs = [f for f in keys.get("libs", "").split(",") if f]
        self.plugins = [p for p in keys.get("plugin", "").split(",") if p]
        self.env = dict(v.split("=", 1) for v in keys.get("env", "").split(",") if v)
        self.timeout = float(keys.get("timeout", "60"))
        self.as_mib = int(keys.get("as_mib", "0"))
        self.is_static = keys.get("static") == "yes"
        self.on_glibc = keys.get("glibc") != "skip"


def runs_of(source):
    """The runs that a program's opening comment asks for; one without a line gets one plain run."""
    head = source.read_text()[:3000].split("SPDX-License-Identifier")[0]
    lines = re.findall(r"^ \* contract: (.*)$", head, re.MULTILINE)
    keys = [dict(item.split("=", 1) for item in line.split()) for line in lines]
    return [Run(source, k) for k in keys or [{}]]


def runs_all():
    """Every run of every program; plugins are no programs."""
    sources = sorted([*HERE.glob("*.c"), *HERE.glob("*.cpp")])
    return [run for source in sources if not source.stem.startswith("plugin_") for run in runs_of(source)]


def compile_one(compilers, output, sources, flags):
    """Builds `output` unless it is newer than its sources."""
    inputs = [*sources, *HERE.glob("*.h"), HERE / "run.py"]
    if output.exists() and output.stat().st_mtime > max(i.stat().st_mtime for i in inputs):
        return
    is_cpp = any(s.suffix == ".cpp" for s in sources)
    command = [compilers[is_cpp], "-std=gnu++17" if is_cpp else "-std=gnu17", *CFLAGS, "-o", str(output),
               *map(str, sources), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure("does not compile: " + " ".join(command) + "\n" + done.stderr.strip())


def build(run, compilers, directory):
    """Builds a run's program and plugins; the arguments it is to be started with."""
    program = directory / run.program
    compile_one(compilers, program, [run.source], run.cflags + run.libs)
    plugins = []
    for name in run.plugins:
        plugin = directory / (pathlib.Path(name).stem + ".so")
        compile_one(compilers, plugin, [HERE / name], ["-shared", "-fPIC"])
        plugins.append(str(plugin))
    return [str(program), *plugins, *run.args]


def build_static(run, compilers, directory, lib):
    """Builds a run's program with the archive beside `lib`; the arguments it is to be started with, or None."""
    archive = lib.parent / "libweir.a"
    if not run.is_static or not archive.is_file():
        return None
    program = directory / (run.program + ".static")
    compile_one(compilers, program, [run.source, archive], [*run.cflags, "-static", "-DCONTRACT_STATIC", *run.libs])
    return [str(program), *run.args]


def limits_set(as_mib):
    """Runs in the child before exec."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if as_mib:
        resource.setrlimit(resource.RLIMIT_AS, (as_mib << 20, as_mib << 20))


def execute(run, argv, lib):
    """Runs a program once, under `lib` or, where that is None, under glibc; raises Failure."""
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "CONTRACT_LIB")}
    environment.update(run.env)
    if lib:
        environment.update(LD_PRELOAD=str(lib), CONTRACT_LIB=str(lib))
    with tempfile.TemporaryDirectory(prefix="contract.") as scratch, tempfile.TemporaryFile("w+b") as output:
        child = subprocess.Popen(argv, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, start_new_session=True,
                                 preexec_fn=lambda: limits_set(run.as_mib))
        try:
            code = child.wait(timeout=run.timeout)
        except subprocess.TimeoutExpired:
            code = None
        # Children of its own may have outlived it, also on the good path.
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    shown = "\n".join("    " + line for line in text.strip().splitlines()[:25])
    if code is None:
        raise Failure(f"still running after {run.timeout:.0f} s\n{shown}")
    if code < 0:
        raise Failure(f"ended by signal {-code} ({signal.Signals(-code).name})\n{shown}")
    tally = TALLY.findall(text)
    if code != 0:
        raise Failure(f"exit status {code}\n{shown}")
    if not tally:
        raise Failure(f"ended before it gave its tally\n{shown}")
    if int(tally[-1][0]) == 0 or int(tally[-1][1]) != 0:
        raise Failure(f"{tally[-1][0]} checks, {tally[-1][1]} failures\n{shown}")
    return int(tally[-1][0])


def one(run, compilers, directory, libs):
    """All lines about one run: a list of (passed, line)."""
    results = []
    try:
        argv = build(run, compilers, directory)
    except Failure as failure:
        return [(False, f"FAIL {run.name} {failure}")]
    ways = [(label, lib, argv) for label, lib in libs if lib is not None or run.on_glibc]
    for label, lib in libs:
        try:
            static = build_static(run, compilers, directory, lib) if lib is not None else None
            ways += [("static", None, static)] if static else []
        except Failure as failure:
            results.append((False, f"FAIL {run.name} [static] {failure}"))
    for label, lib, argv in ways:
        start = time.monotonic()
        try:
            checks = execute(run, argv, lib)
            results.append((True, f"ok   {run.name} [{label}] {checks} checks, {time.monotonic() - start:.1f} s"))
        except Failure as failure:
            results.append((False, f"FAIL {run.name} [{label}] {failure}"))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", action="append", default=[], help="library to preload; may be repeated")
    parser.add_argument("--build", required=True, help="directory for the compiled programs")
    parser.add_argument("--only", default="", help="regular expression on the runs' names")
    parser.add_argument("--no-glibc", action="store_true", help="leave out the runs under glibc's malloc")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"))
    options = parser.parse_args()

    libs = [] if options.no_glibc else [("glibc", None)]
    for lib in options.lib:
        path = pathlib.Path(lib).resolve()
        if not path.is_file():
            sys.exit(f"run.py: no such library: {lib}")
        libs.append((path.name, path))
    compilers = (options.cc, options.cxx)
    for compiler in compilers:
        if shutil.which(compiler) is None:
            sys.exit(f"run.py: no such compiler: {compiler} (Debian: apt-get install gcc g++)")
    directory = pathlib.Path(options.build).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    runs = [run for run in runs_all() if re.search(options.only, run.name)]
    # The runs of one program share its binary: build them one after the other.
    results = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, options.jobs)) as pool:
        by_program = {}
        for run in runs:
            by_program.setdefault(run.program, []).append(run)
        # Those that may take longest begin first, so that none of them is left running alone at the end.
        groups = sorted(by_program.values(), key=lambda group: -max(run.timeout for run in group))
        chain = lambda group: [r for run in group for r in one(run, compilers, directory, libs)]
        for group_results in pool.map(chain, groups):
            for _, line in group_results:
                print(line, flush=True)
            results += group_results
    passed = sum(1 for ok, _ in results if ok)
    failed = len(results) - passed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
