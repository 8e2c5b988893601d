#!/usr/bin/env python3
"""Runs the malloc tests of glibc's own source package on a library, and on the system's malloc as a control.

Who may call it: the test command, a developer; see README.md in this folder. The tests are fetched by source.py,
compiled against the support shim in shim/, and each run is judged by its row in expected.tsv: a test without a
row, a row without a test, and a test that ends in another way than its row says are all failures. It
deliberately knows no test by name: how each is built and run is in the rows.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import source

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHIM = HERE / "shim"
# proof.c is linked as it is, since nothing calls it; the others are an archive, as in glibc: a static program
# with its own malloc must not be given what would bring in libc's.
SHIM_ARCHIVE = ("record", "drive", "support", "files")

# Every file of this kind must have a row.
MUST_HAVE_ROWS = ("malloc/tst*.[ch]", "malloc/test*.[ch]", "malloc/bug*.[ch]", "malloc/mallocbug*.[ch]")

RECIPES = {
    "with": "files of the source package to compile into the program (globs, commas between)",
    "take": "files of the source package that the test includes (globs, commas between)",
    "libc": "what `with` names is a part of glibc and is compiled as such",
    "env": "NAME=VALUE of the environment; may be repeated",
    "library": "file of the source package that is built as a shared library and preloaded",
    "debug": "libc_malloc_debug is preloaded (after the library on trial)",
    "debuglib": "libc_malloc_debug is linked with",
    "mtrace": "what mtrace writes must name blocks, and all of them as freed",
    "main": "the test has a main of its own: `FAIL` in its output is how it says so",
    "own": "the program brings its own malloc, so that nobody else's may be reached",
    "static": "static program in the control, too",
    "slow": "takes long, so that it is started first",
    "modes": "the modes on weir, of preload, linked and static (commas between)",
}
REPEATED = ("env",)
MODES = ("preload", "linked", "static")

# As glibc builds its tests, but for the built-ins: a call of malloc is to be a call. No -Werror: the tests
# provoke warnings on purpose.
TEST_FLAGS = ["-std=gnu11", "-O1", "-g", "-w", "-pthread", "-U_FORTIFY_SOURCE", "-fno-builtin-malloc", "-fno-builtin-calloc",
              "-fno-builtin-realloc", "-fno-builtin-free", "-D_GNU_SOURCE", "-include", str(SHIM / "libc-symbols.h"),
              "-iquote", str(SHIM / "support"), "-I", str(SHIM)]
SHIM_FLAGS = ["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Wundef", "-Wshadow", "-Werror", "-pthread", "-D_GNU_SOURCE",
              "-I", str(SHIM), "-I", str(ROOT / "include")]
DEBUG_LIBRARY = "libc_malloc_debug.so.0"
MAIN_LIMIT_S = 60  # for a test that has no driver with a limit of its own
LAST_LIMIT_S = 300  # for a driver that does not keep its own


class Row:
    """One line of the table."""

    def __init__(self, name, since, recipe, system, weir, why):
        self.name, self.since, self.system, self.weir, self.why = name, since, system, weir, why
        self.test, _, self.variant = name.partition(":")
        self.recipe = {}
        for word in [] if recipe == "-" else shlex.split(recipe):
            key, _, value = word.partition("=")
            if key not in RECIPES:
                raise SystemExit(f"expected.tsv: {name}: no recipe {key}")
            if key in REPEATED:
                self.recipe.setdefault(key, []).append(value)
            else:
                self.recipe[key] = value
        for expected in (system, weir):
            if expected.partition(" ")[0] not in ("pass", "fails", "nobuild", "piece"):
                raise SystemExit(f"expected.tsv: {name}: no expectation {expected}")
        if weir != "pass" and why in ("", "-"):
            raise SystemExit(f"expected.tsv: {name}: says no reason")

    def files(self, key):
        return [pattern for pattern in self.recipe.get(key, "").split(",") if pattern]

    def is_piece(self):
        return self.weir == "piece"

    def modes(self):
        return self.files("modes") or (["preload"] if {"own", "debug", "library"} & set(self.recipe) else list(MODES))

    def file(self):
        return self.test if self.test.endswith(".h") else self.test + ".c"


def table_read(path):
    """The rows of the table; its lines are name, since, recipe, system, weir, why, with tabs between."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 6:
            raise SystemExit(f"{path.name}:{number}: {len(fields)} fields, not 6")
        rows.append(Row(*fields))
    doubles = {row.name for row in rows if [r.name for r in rows].count(row.name) > 1}
    if doubles:
        raise SystemExit(f"{path.name}: more than one row: {', '.join(sorted(doubles))}")
    return rows


def patterns_of(rows):
    """What has to be fetched for the rows."""
    patterns = set(MUST_HAVE_ROWS)
    for row in rows:
        patterns |= {row.file(), *row.files("with"), *row.files("take"), *row.files("library")}
    return patterns


def version_key(text):
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


class Outcome:
    """How a test ended: it was not built, or it ran; `ok` is its own verdict."""

    def __init__(self, built, ok, text, seconds=0.0):
        self.built, self.ok, self.text, self.seconds = built, ok, text, seconds

    def shown(self):
        lines = [line for line in self.text.strip().splitlines() if line.strip()]
        return "\n".join("    " + line[:300] for line in (lines if len(lines) <= 16 else lines[:8] + ["..."] + lines[-8:]))


def judge(expected, outcome, proof=None):
    """(agrees, what to say). `proof` is what proof.c must have said, None where that is not asked."""
    kind, _, pattern = expected.partition(" ")
    if kind == "nobuild":
        if outcome.built:
            return False, "builds, although its row says that it does not"
        if not re.search(pattern, outcome.text):
            return False, f"does not build, but for another reason than /{pattern}/\n{outcome.shown()}"
        return True, "does not build, as explained"
    if not outcome.built:
        return False, f"does not build\n{outcome.shown()}"
    if proof is not None and f"proof: {proof}\n" not in outcome.text:
        return False, f"no proof that it ran on what it was to run on ({proof})\n{outcome.shown()}"
    if kind == "pass":
        return (True, "passes") if outcome.ok else (False, f"fails\n{outcome.shown()}")
    if outcome.ok:
        return False, "passes, although its row says that it fails"
    if not re.search(pattern, outcome.text):
        return False, f"fails, but in another way than /{pattern}/\n{outcome.shown()}"
    return True, "fails, as explained"


def mtrace_verdict(path):
    """(ok, line) about a trace: blocks must be in it, and none may be left."""
    live, total, strange = set(), 0, 0
    text = path.read_text(errors="replace") if path.is_file() else ""
    for kind, address in re.findall(r"^@ \S+ (?:\S+ )?([-+<>!]) (0x[0-9a-f]+)", text, re.MULTILINE):
        if kind in "+>":
            total += 1
            live.add(address)
        elif kind in "-<":
            strange += address not in live
            live.discard(address)
    line = f"mtrace: {total} blocks traced, {len(live)} not freed, {strange} freed that were not traced"
    return total > 0 and not live and not strange, line + "\n"


class Suite:
    """The tests, built once, and the ways to run them."""

    def __init__(self, sources, build, library, weir_object, cc, factor):
        self.sources, self.build, self.library, self.object = sources, build, library, weir_object
        self.cc, self.factor = cc, factor
        self.used = set()  # files of the source package that a program was built from

    def compile(self, command):
        """The compiler's complaints, empty when it worked."""
        done = subprocess.run([self.cc, *map(str, command)], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr or f"{self.cc} ended with status {done.returncode}"

    def prepare(self):
        """Compiles the shim; where that fails nothing can be said."""
        self.build.mkdir(parents=True, exist_ok=True)
        jobs = [(name, name, []) for name in (*SHIM_ARCHIVE, "proof")] + [("proof", "proof-static", ["-DSHIM_STATIC"])]
        for name, output, flags in jobs:
            complaint = self.compile([*SHIM_FLAGS, *flags, "-c", SHIM / f"{name}.c", "-o", self.build / f"{output}.o"])
            if complaint:
                raise SystemExit(f"the shim does not compile: {complaint}")
        archive = self.build / "libshim.a"
        archive.unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", archive, *(self.build / f"{name}.o" for name in SHIM_ARCHIVE)], check=True)

    def matching(self, patterns):
        found = sorted({path for pattern in patterns for path in self.sources.glob(pattern)})
        if not found:
            raise FileNotFoundError(f"nothing in the source package matches {', '.join(patterns)}")
        return found

    def objects(self, row, base):
        """Compiles the test and what it brings along; (objects, complaint)."""
        flags = [*TEST_FLAGS, "-I", self.sources]
        if "libc" in row.recipe:
            flags += ["-DSHIM_LIBC", "-I", self.sources / "include", "-I", self.sources / "malloc"]
        parts = [self.sources / row.file(), *(self.matching(row.files("with")) if row.files("with") else [])]
        objects = []
        for part in parts:
            output = base.with_name(f"{base.name}.{part.stem}.o")
            deps = output.with_suffix(".d")
            complaint = self.compile([*flags, "-MMD", "-MF", deps, "-c", part, "-o", output])
            if complaint:
                return [], complaint
            self.used |= set(re.findall(r"[^\s\\:]+", deps.read_text()))
            objects.append(output)
        return objects, ""

    def link(self, row, objects, base, mode):
        """Links the program of one mode; (path, complaint). `system` and `preload` run the same program."""
        static = mode == "static" or "static" in row.recipe
        output = base.with_name(f"{base.name}.{'plain' if mode in ('system', 'preload') else mode}")
        proof = self.build / ("proof-static.o" if static else "proof.o")
        command = ["-pthread", *(["-static"] if static else []), *objects, proof, self.build / "libshim.a",
                   *([self.object] if mode in ("linked", "static") else []), "-o", output, "-lm", "-ldl"]
        if "debuglib" in row.recipe:
            command.append(f"-l:{DEBUG_LIBRARY}")
        return output, self.compile(command)

    def preloads(self, row, mode, base):
        """What LD_PRELOAD holds, in order; compiles the row's own library."""
        found = []
        for part in self.matching(row.files("library")) if row.files("library") else []:
            output = base.with_name(f"{base.name}.{part.stem}.{mode}.so")
            complaint = self.compile([*TEST_FLAGS, "-shared", "-fPIC", part, "-o", output])
            if complaint:
                raise RuntimeError(complaint)
            self.used.add(str(part))
            found.append(str(output))
        if mode == "preload":
            found.append(str(self.library))
        if "debug" in row.recipe:
            found.append(DEBUG_LIBRARY)
        return found

    def execute(self, row, program, preloads, extra_environment=()):
        """Runs a program once, in a folder of its own."""
        environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "MALLOC_TRACE")}
        environment.update(TIMEOUTFACTOR=str(self.factor))
        environment.update(pair.split("=", 1) for pair in [*row.recipe.get("env", []), *extra_environment])
        has_main = "main" in row.recipe
        limit = (MAIN_LIMIT_S if has_main else LAST_LIMIT_S) * self.factor
        with tempfile.TemporaryDirectory(prefix="glibc.") as scratch, tempfile.TemporaryFile("w+b") as output:
            trace = pathlib.Path(scratch) / "trace"
            if "mtrace" in row.recipe:
                environment["MALLOC_TRACE"] = str(trace)
            argv = ["env", f"LD_PRELOAD={':'.join(preloads)}", str(program)] if preloads else [str(program)]
            begun = time.monotonic()
            child = subprocess.Popen(argv, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT, start_new_session=True,
                                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
            try:
                code = child.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = None
            # Children of its own may have outlived it, also on the good path.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
            seconds = time.monotonic() - begun
            output.seek(0)
            text = output.read().decode(errors="replace")
            ok = code == 0 and not (has_main and "FAIL" in text)
            ended = f"still running after {limit} s" if code is None else f"status {code}"
            if "mtrace" in row.recipe:
                traced, line = mtrace_verdict(trace)
                ok, text = ok and traced, text + line
        return Outcome(True, ok, f"{text.rstrip()}\n{'' if ok else ended}\n", seconds)

    def outcomes(self, row, modes):
        """The outcome in each mode: a list of (mode, outcome)."""
        base = self.build / row.name.replace("/", ".").replace(":", "+")
        try:
            objects, complaint = self.objects(row, base)
            results = []
            for mode in modes:
                program = None
                if not complaint:
                    program, link_complaint = self.link(row, objects, base, mode)
                if complaint or link_complaint:
                    results.append((mode, Outcome(False, False, complaint or link_complaint)))
                else:
                    results.append((mode, self.execute(row, program, self.preloads(row, mode, base))))
            return results
        except (FileNotFoundError, RuntimeError) as failure:
            return [(mode, Outcome(False, False, str(failure))) for mode in modes]

    def run(self, row):
        """All about one row: a list of (agrees, mode, line)."""
        results = []
        for mode, outcome in self.outcomes(row, ["system", *row.modes()]):
            on_weir = mode != "system"
            proof = None if not outcome.built else "weir" if on_weir and "own" not in row.recipe else "not weir"
            agrees, said = judge(row.weir if on_weir else row.system, outcome, proof)
            results.append((agrees, mode, f"{'ok  ' if agrees else 'FAIL'} {row.name} [{mode}] {said}"
                            + (f" ({outcome.seconds:.1f} s)" if agrees and outcome.built else "")))
        return results


def check_presence(rows, sources, version):
    """(rows to run, lines about files without rows and rows without files, lines about rows of later versions)."""
    have = {str(path.relative_to(sources)) for pattern in MUST_HAVE_ROWS for path in sources.glob(pattern)}
    named = {row.file() for row in rows}
    wrong = [f"FAIL {name} has no row in expected.tsv" for name in sorted(have - named)]
    present, later = [], []
    for row in rows:
        if (sources / row.file()).is_file():
            present.append(row)
        elif version_key(version) >= version_key(row.since):
            wrong.append(f"FAIL {row.name} has a row in expected.tsv, and glibc {version} has no such test")
        else:
            later.append(f"note {row.name} comes with glibc {row.since}; this one is {version}")
    return present, wrong, later


def check_piece(row, suite):
    """A piece must be a part of some program that was built."""
    used = str(suite.sources / row.file()) in suite.used
    return used, f"{'ok  ' if used else 'FAIL'} {row.name} [piece] {'is a part of other tests' if used else 'is a part of nothing that was built'}"


def run_all(suite, rows, jobs, show):
    """Runs the rows; a dictionary of row name -> list of (agrees, mode)."""
    table = {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        programs = sorted((row for row in rows if not row.is_piece()), key=lambda row: "slow" not in row.recipe)
        waiting = {pool.submit(suite.run, row): row for row in programs}
        for done in concurrent.futures.as_completed(waiting):
            results = done.result()
            for _, _, line in results:
                show(line)
            table[waiting[done].name] = [(agrees, mode) for agrees, mode, _ in results]
    for row in rows:
        if row.is_piece():
            agrees, line = check_piece(row, suite)
            show(line)
            table[row.name] = [(agrees, "piece")]
    return table


def markdown(rows, table, version):
    """The results for people: every row of malloc/, the other folders in one line each, and the counts."""
    ran = [row for row in rows if row.name in table]
    wrong = {row.name for row in ran if not all(agrees for agrees, _ in table[row.name])}
    ends = {"pass": "passes", "fails": "fails", "nobuild": "cannot be built", "piece": "part of others"}
    end = lambda row: "**not as expected**" if row.name in wrong else ends[row.weir.split()[0]]
    modes = lambda row: ", ".join(mode for _, mode in table[row.name] if mode not in ("system", "piece"))
    lines = [f"The tests of glibc {version} on weir, as `tests/glibc/run.py --table` wrote it. Each also ran on the system's",
             "malloc, as a control.", "", "| test of `malloc/` | result | run as | why |", "|---|---|---|---|"]
    for row in ran:
        if row.name.startswith("malloc/"):
            why = "" if row.why == "-" or row.is_piece() else row.why
            lines.append(f"| {row.name.removeprefix('malloc/')} | {end(row)} | {modes(row)} | {why} |")
    folders = {}
    for row in ran:
        if not row.name.startswith("malloc/"):
            folders.setdefault((str(pathlib.PurePath(row.test).parent), end(row)), []).append(pathlib.PurePath(row.name).name)
    lines += ["", "| other folder | result | tests |", "|---|---|---|"]
    lines += [f"| {folder} | {len(names)}: {said} | {', '.join(names)} |" for (folder, said), names in sorted(folders.items())]
    counts = [sum(1 for row in ran if row.weir.split()[0] == kind) for kind in ends]
    lines += ["", f"{counts[0]} pass, {counts[1] + counts[2]} do not for the reasons given; {counts[3]} files are parts of others."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", required=True, help="libweir.so.1; weir.o is looked for beside it")
    parser.add_argument("--build", required=True, help="folder for the compiled tests")
    parser.add_argument("--source", default=str(ROOT / "build" / "glibc-src"), help="folder that keeps the fetched tests")
    parser.add_argument("--tree", help="an unpacked glibc source tree to take instead of fetching one")
    parser.add_argument("--expected", default=str(HERE / "expected.tsv"), help="the table")
    parser.add_argument("--only", default="", help="regular expression on the names; files without rows are then not looked for")
    parser.add_argument("--table", help="write the results as Markdown to this file")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    parser.add_argument("--factor", type=int, default=4, help="what the tests' own time limits are multiplied by")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    options = parser.parse_args()

    library = pathlib.Path(options.lib).resolve()
    weir_object = library.parent / "weir.o"
    for path in (library, weir_object):
        if not path.is_file():
            sys.exit(f"run.py: no such file: {path}")
    rows = table_read(pathlib.Path(options.expected))
    begun = time.monotonic()
    try:
        if options.tree:
            sources = pathlib.Path(options.build).resolve() / "tree"
            source.keep(pathlib.Path(options.tree), patterns_of(rows), sources)
            version = re.search(r'VERSION "([\d.]+)"', (pathlib.Path(options.tree) / "version.h").read_text())[1]
        else:
            sources, version = source.source_get(options.source, patterns_of(rows))
    except source.NoSource as failure:
        print(f"FAIL the tests could not be fetched: {failure}\n0 passed, 1 failed")
        return 1
    print(f"glibc {version}, tests fetched in {time.monotonic() - begun:.0f} s", flush=True)

    suite = Suite(sources, pathlib.Path(options.build).resolve(), library, weir_object, options.cc, options.factor)
    suite.prepare()
    present, wrong, later = check_presence(rows, sources, version)
    if options.only:
        present, wrong, later = [row for row in present if re.search(options.only, row.name)], [], []
    for line in wrong + later:
        print(line)
    table = run_all(suite, present, max(1, options.jobs), lambda line: print(line, flush=True))
    if options.table:
        pathlib.Path(options.table).write_text(markdown(rows, table, version))
    verdicts = [agrees for results in table.values() for agrees, _ in results]
    failed = len(wrong) + verdicts.count(False)
    passing = sum(1 for row in present if row.weir == "pass" and all(agrees for agrees, _ in table[row.name]))
    explained = sum(1 for row in present if row.weir != "pass" and not row.is_piece())
    print(f"{passing} tests pass on weir, {explained} do not for the reasons in expected.tsv; {time.monotonic() - begun:.0f} s")
    print(f"{verdicts.count(True)} passed, {failed} failed")
    return 1 if failed or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
