#!/usr/bin/env python3
"""Builds the allocators that weir is compared with, from sources that package registries carry.

    bench/peers/build.py [--dir DIR] [--jobs N] [--list] [NAME...]

Who may call it: a developer, the stage `peers` of ./test, every benchmark. Writes DIR/peers.json: the machine, and for
each peer its library, version, origin, compiler, flags and the environment that it needs; a peer that could not be built
stands there under `absent` with the reason. What is up to date is not built again. The last line counts both.

A row of peers.toml: name; crate or package (one of these names); source, a folder of the crate; version, a pattern and
where it is looked for; kind, one of the functions below; library, the file that it leaves; note; environment; and what
the kind reads. It deliberately does not know whether a library replaces anything: prove.py does.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import hashlib
import inspect
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CC = os.environ.get("CC", "gcc")
CXX = os.environ.get("CXX", "g++")
BUILD_TIMEOUT_S = 1000  # of one command; on two processors the slowest takes about two minutes


class Unbuildable(Exception):
    """A peer that is not there, with the reason in one line."""


def table():
    with open(HERE / "peers.toml", "rb") as file:
        return tomllib.load(file)["peer"]


def output(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def first_line(*argv):
    try:
        return output(*argv).splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "none"


class Step:
    """The commands of one peer: their output goes to one log, whose end is the reason when one fails."""

    def __init__(self, log, jobs):
        self.log, self.jobs = log, jobs
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def run(self, *argv, cwd, **environment):
        with open(self.log, "a", encoding="utf-8") as log:
            print("+", shlex.join(map(str, argv)), file=log, flush=True)
            try:
                done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
                                      timeout=BUILD_TIMEOUT_S, env={**os.environ, "CC": CC, "CXX": CXX, **environment})
            except OSError as error:
                raise Unbuildable(str(error)) from error
            except subprocess.TimeoutExpired as error:
                raise Unbuildable(f"{argv[0]} took longer than {BUILD_TIMEOUT_S} s (log: {self.log})") from error
        if done.returncode:
            lines = self.log.read_text(errors="replace").splitlines()
            said = [line for line in lines if re.search(r"\b(error|undefined reference)\b", line, re.I)] or lines[-1:]
            raise Unbuildable(f"{argv[0]} ended with {done.returncode}: {said[0].strip()} (log: {self.log})")


# ---- sources

FETCHING = threading.Lock()  # for all peers at once, by the first one


def locked():
    """Crate name -> its entry in Cargo.lock, which has version and checksum."""
    with open(HERE / "Cargo.lock", "rb") as file:
        return {package["name"]: package for package in tomllib.load(file)["package"]}


def sources_fetched(folder, crates, step):
    """Unpacked crates under FOLDER; cargo compares them with the checksums in Cargo.lock."""
    with FETCHING:
        missing = [name for name, package in crates.items() if not (folder / f"{name}-{package['version']}").is_dir()]
        if missing:
            step.run("cargo", "vendor", "--quiet", "--locked", "--versioned-dirs", "--manifest-path", HERE / "Cargo.toml",
                     folder, cwd=HERE)


def matched(where, file, pattern):
    found = re.search(pattern, file.read_text(errors="replace"), re.MULTILINE)
    if not found:
        raise Unbuildable(f"no {where} in {file}")
    return found


def version_of(row, source, package):
    rule = row["version"]
    if "crate" in rule:
        return re.search(rule["crate"], package["version"])[1]
    parts = matched("version", source / rule["file"], rule["pattern"]).groups()
    return ".".join(part.lstrip("0") or "0" for part in parts)


# ---- kinds of build: each takes the row, its sources and an empty folder, and returns library and flags

# What of a compiler's command line says nothing about the code: paths, dependency files, warnings, pipes.
SILENT_OPTIONS = re.compile(r"-(I|isystem|M|W(?!l,)|w$|pipe$)")
SILENT_PAIRS = {"-o", "-c", "-MT", "-MF", "-isystem", "-include"}


def flags_said(words):
    said, words = [], iter(words)
    for word in words:
        if word in SILENT_PAIRS:
            next(words, None)
        elif not SILENT_OPTIONS.match(word):
            said.append(word)
    return shlex.join(said)


def flags_compiled(folder):
    """Flags of the first command of a compile_commands.json."""
    return flags_said(shlex.split(json.loads((folder / "compile_commands.json").read_text())[0]["command"])[1:])


def build_cmake(row, source, folder, step, package):
    """options: of cmake; target: what is built; files: text of files that upstream has and the crate lacks."""
    del package
    copy = folder / "source"
    shutil.copytree(source, copy)
    for name, text in row.get("files", {}).items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)
    step.run("cmake", "-S", copy, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *row["options"], cwd=folder)
    step.run("cmake", "--build", folder, "--target", row["target"], "-j", str(step.jobs), cwd=folder)
    return folder / row["library"], flags_compiled(folder)


def build_configure(row, source, folder, step, package):
    """configure: the script, from the sources; options; target: of make; flags: pattern in a file that it wrote."""
    copy = folder / "source"
    shutil.copytree(source, copy)
    shutil.copy(source / row["configure"], copy / "configure")
    options = [option.format(crate_build=package["version"].partition("+")[2]) for option in row["options"]]
    step.run("sh", "./configure", *options, cwd=copy)
    step.run("make", f"-j{step.jobs}", row["target"], cwd=copy)
    return copy / row["library"], flags_said(matched("flags", copy / row["flags"]["file"], row["flags"]["pattern"])[1].split())


NINJA = """\
rule cc
  command = {cc} {flags} {cflags} -c $in -o $out
rule cxx
  command = {cxx} {flags} {cxxflags} -c $in -o $out
rule link
  command = {cxx} {flags} -shared $in {ldflags} -o $out
"""


def build_compile(row, source, folder, step, package):
    """sources (a list, or a pattern in a file), with, without; includes; defines_from: a file of NAME=VALUE;
    flags, cflags, cxxflags, ldflags."""
    del package
    listed = row["sources"]
    if isinstance(listed, dict):
        listed = re.findall(listed["pattern"], (source / listed["file"]).read_text())
    names = [name for name in listed if name not in row.get("without", [])] + row.get("with", [])
    defines = []
    if "defines_from" in row:
        defines = re.findall(r"^(\w+=\S+)", (source / row["defines_from"]).read_text(), re.MULTILINE)
    flags = row["flags"] + [f"-D{define}" for define in defines]
    includes = [f"-I{source / include}" for include in row["includes"]]
    join = {key: " ".join(row.get(key, [])) for key in ("cflags", "cxxflags", "ldflags")}
    rules = NINJA.format(cc=CC, cxx=CXX, flags=shlex.join(flags + includes), **join)
    edges, objects = [], []
    for number, name in enumerate(names):
        objects.append(f"{number}.o")
        edges.append(f"build {number}.o: {'cxx' if name.endswith('.cc') else 'cc'} {source / name}")
    library = folder / row["library"]
    edges.append(f"build {library.name}: link {' '.join(objects)}")
    (folder / "build.ninja").write_text(rules + "\n".join(edges) + "\n")
    step.run("ninja", "-C", folder, "-j", str(step.jobs), cwd=folder)
    return library, flags_said([*flags, *(word for key in join for word in row.get(key, []))])


def build_package(row, source, folder, step, package):
    """package: names, of which one is installed; library: a file of it, with {machine} as LLVM says it."""
    del source, folder, step
    name = row["library"].format(machine=platform.machine())
    for line in output("dpkg", "-L", package["name"]).splitlines():
        if os.path.basename(line) == name:
            return pathlib.Path(line), "the package's"
    raise Unbuildable(f"package {package['name']} has no {name}")


KINDS = {"cmake": build_cmake, "configure": build_configure, "compile": build_compile, "package": build_package}


def installed(names):
    """The first of NAMES that is an installed package, with its version."""
    for name in names:
        query = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", name],
                               capture_output=True, text=True, check=False)
        status, _, version = query.stdout.partition(" ")
        if query.returncode == 0 and status == "installed":
            return {"name": name, "version": version}
    raise Unbuildable(f"no package {' or '.join(names)} is installed")


# ---- one peer, the manifest

def compilers():
    return {"cc": first_line(CC, "--version"), "cxx": first_line(CXX, "--version")}


RECORD = "peer.json"  # in a peer's folder
# Keys of a row that change nothing in the library.
SAID_KEYS = {"environment", "note", "witness", "state", "forwarded", "missing"}


def said_of(row):
    return {"environment": row.get("environment", {}), "note": row["note"]}


def stamp_of(row, package, is_package):
    """Everything that the library was made of and by; -march=native makes the processor a part of it."""
    made_of = [{key: row[key] for key in row.keys() - SAID_KEYS}, package, inspect.getsource(KINDS[row["kind"]]), NINJA,
               inspect.getsource(flags_said)]
    if not is_package:
        made_of += [compilers(), processor() if "-march=native" in row.get("flags", []) else ""]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def record_of(folder):
    """What is kept of a peer that was built; None: nothing, or a part of it."""
    try:
        record = json.loads((folder / RECORD).read_text())
        return record if record["stamp"] and record["peer"]["path"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def peer_built(row, directory, jobs):
    """The manifest's row of one peer; built only when something that made it has changed."""
    folder = directory / row["name"]
    is_package = row["kind"] == "package"
    package = installed(row["package"]) if is_package else locked()[row["crate"]]
    stamp = stamp_of(row, package, is_package)
    record = record_of(folder)
    if record and record["stamp"] == stamp and os.path.isfile(record["peer"]["path"]):
        return record["peer"] | said_of(row), 0.0
    begun = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    step = Step(directory / "logs" / f"{row['name']}.log", jobs)
    source, made = None, None
    if not is_package:
        sources_fetched(directory / "sources", {row["crate"]: package}, step)
        source = directory / "sources" / f"{row['crate']}-{package['version']}" / row["source"]
        made = folder / "made"
        made.mkdir()
    library, flags = KINDS[row["kind"]](row, source, made, step, package)
    if not library.is_file():
        raise Unbuildable(f"{library} was not made (log: {step.log})")
    path = library
    if not is_package:
        path = folder / library.name
        shutil.copy(library.resolve(), path)
        shutil.rmtree(made)
    peer = {
        "name": row["name"],
        "path": str(path),
        "version": package["version"] if is_package else version_of(row, source, package),
        "origin": f"{'package' if is_package else 'crate'} {package['name']} {package['version']}",
        "compiler": "the package's" if is_package else "; ".join(dict.fromkeys(compilers().values())),
        "flags": flags,
    }
    (folder / RECORD).write_text(json.dumps({"stamp": stamp, "peer": peer}, indent=2))
    return peer | said_of(row), time.monotonic() - begun


def processor():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def system():
    return {
        "machine": platform.machine(), "cpu": processor(), "cpus": os.cpu_count(), "kernel": platform.release(),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", ""), "glibc": platform.libc_ver()[1],
        "compilers": compilers(),
    }


def manifest_write(directory, rows, reasons):
    """All rows of the table whose library is there, not only those that this call was asked for."""
    peers, absent = [], []
    for row in rows:
        record = record_of(directory / row["name"])
        if row["name"] not in reasons and record:
            peers.append(record["peer"] | said_of(row))
        else:
            absent.append({"name": row["name"], "reason": reasons.get(row["name"], "not built yet")})
    path = directory / "peers.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"system": system(), "peers": peers, "absent": absent}, indent=2) + "\n")
    new.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", default=ROOT / "build" / "peers", type=pathlib.Path,
                        help="where all of it goes (build/peers)")
    parser.add_argument("--jobs", default=os.cpu_count(), type=int, help="commands at a time")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("names", nargs="*", metavar="NAME", help="peers; none means all")
    options = parser.parse_args()
    rows = table()
    if options.list:
        print("\n".join(row["name"] for row in rows))
        return 0
    unknown = set(options.names) - {row["name"] for row in rows}
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; --list names them")
    directory = options.dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    passed, reasons = 0, {}
    chosen = [row for row in rows if not options.names or row["name"] in options.names]
    with ThreadPoolExecutor(2) as pool:  # some are configured for as long as others are compiled
        building = [pool.submit(peer_built, row, directory, options.jobs) for row in chosen]
        for row, built in zip(chosen, building):
            try:
                peer, seconds = built.result()
                print(f"ok      {row['name']:<22} {peer['version']:<18} {f'{seconds:.1f} s' if seconds else 'up to date'}", flush=True)
                passed += 1
            except (Unbuildable, OSError, subprocess.SubprocessError) as error:
                reasons[row["name"]] = str(error)
                print(f"FAILED  {row['name']:<22} {error}", flush=True)
    manifest_write(directory, rows, reasons)
    print(f"{passed} passed, {len(reasons)} failed")
    return 1 if reasons or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
