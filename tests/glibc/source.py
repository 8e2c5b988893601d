#!/usr/bin/env python3
"""Fetches the tests of this machine's glibc: the distribution's source package, of the version that is installed.

Who may call it: run.py, through source_get(); by hand `source.py CACHE PATTERN...` prints the folder, and
`--self-test` tries the reading of package sources on made-up ones. The package client (apt-get source) does
the fetching, with a configuration of its own in a temporary folder: the machine's own package sources, read
from /etc/apt, with `deb` turned into `deb-src`; nothing of the machine is changed. dpkg-source unpacks and
patches; only the files that match the patterns are kept. It deliberately knows no server and no test.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import fcntl
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

APT = pathlib.Path("/etc/apt")
# The package whose version is that of the libc in use, and the fields that name its source.
LIBC_PACKAGES = ("libc6", "libc6:native")
STAMP = ".kept"


class NoSource(Exception):
    """Why there are no sources, in one line."""


def classic_to_source(text):
    """A classic list (one `deb ...` per line) as deb-src lines, without doubles."""
    lines = []
    for line in text.splitlines():
        found = re.match(r"\s*deb(?:-src)?(\s+.*?)\s*(?:#.*)?$", line)
        if found and f"deb-src{found[1]}" not in lines:
            lines.append(f"deb-src{found[1]}")
    return "".join(line + "\n" for line in lines)


def deb822_to_source(text):
    """The stanzas of a .sources file with `Types: deb-src`; those that are switched off are left out."""
    stanzas = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in stanza.splitlines() if line.strip() and not line.startswith("#")]
        field = lambda name: [line for line in lines if re.match(rf"{name}\s*:", line, re.IGNORECASE)]
        off = any(re.match(r".*:\s*(no|false|0|off|without|disable)\s*$", line, re.IGNORECASE) for line in field("Enabled"))
        if not lines or off or not field("Types"):
            continue
        kept = ["Types: deb-src" if line in field("Types") else line for line in lines]
        # An architecture is a matter of binaries.
        stanzas.append("\n".join(line for line in kept if line not in field("Architectures")) + "\n")
    return "\n".join(stanzas)


def private_sources(apt, folder):
    """Writes the machine's package sources, as sources of source packages, to `folder`; how many files."""
    count = 0
    parts = apt / "sources.list.d"
    for path in [apt / "sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]:
        if not path.is_file():
            continue
        turn = deb822_to_source if path.suffix == ".sources" else classic_to_source
        text = turn(path.read_text(errors="replace"))
        if text:
            (folder / path.name.replace("sources.list", "main.list")).write_text(text)
            count += 1
    return count


def command(argv, what, **options):
    """Runs one program quietly; its output, or NoSource with the end of it."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    except FileNotFoundError:
        raise NoSource(f"{what}: there is no {argv[0]}") from None
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-8:]
        raise NoSource(f"{what}: {argv[0]} ended with status {done.returncode}\n    " + "\n    ".join(last))
    return done.stdout


def installed_version():
    """(name, version) of the source package of the libc that is installed."""
    query = ["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}\n"]
    for package in LIBC_PACKAGES:
        try:
            lines = command([*query, package], "which libc is installed").split("\n")
        except NoSource as failure:
            reason = failure
            continue
        return tuple(lines[0].split())
    raise reason


def apt_options(folder):
    """apt-get's options for a state of its own under `folder`."""
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    if private_sources(APT, folder / "parts") == 0:
        raise NoSource(f"no package sources in {APT}")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State::lists": folder / "lists", "Dir::Cache": folder / "cache",
        # The client's unprivileged user cannot enter a private folder.
        "APT::Sandbox::User": "root", "Acquire::Retries": "3", "Acquire::Languages": "none",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def fetch(name, version, folder):
    """Downloads a source package to `folder` and unpacks it; the folder of the patched tree."""
    options = apt_options(folder / "apt")
    # A source that has no source packages fails alone; what matters is that ours is found afterwards.
    subprocess.run(["apt-get", *options, "-qq", "update"], stdin=subprocess.DEVNULL, capture_output=True)
    try:
        command(["apt-get", *options, "-qq", "--only-source", "--download-only", "source", f"{name}={version}"],
                f"source package {name} {version}", cwd=folder)
    except NoSource as failure:
        # Servers keep the newest packages; an older point release of the same glibc has the same tests.
        print(f"source: {failure}\nsource: taking the newest that is there", flush=True)
        command(["apt-get", *options, "-qq", "--only-source", "--download-only", "source", name],
                f"source package {name}", cwd=folder)
    descriptions = list(folder.glob("*.dsc"))
    if len(descriptions) != 1:
        raise NoSource(f"apt-get left {len(descriptions)} .dsc files")
    # apt has checked the files against the signed index.
    command(["dpkg-source", "--no-check", "-x", descriptions[0].name, "tree"], "unpack", cwd=folder)
    return folder / "tree"


def keep(tree, patterns, folder):
    """Copies the files of `tree` that match a pattern to `folder`, under the same names."""
    kept = sorted({path for pattern in patterns for path in tree.glob(pattern) if path.is_file()})
    for path in kept:
        target = folder / path.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return len(kept)


def source_get(cache, patterns):
    """(folder, version) of the tests, fetched unless the cache has them; patterns are globs from the top."""
    name, version = installed_version()
    cache = pathlib.Path(cache).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / version.replace(":", "_")
    wanted = "\n".join(sorted(patterns)) + "\n"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / STAMP
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder, version
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="fetch.", dir=cache) as scratch:
            tree = fetch(name, version, pathlib.Path(scratch))
            if keep(tree, patterns, folder) == 0:
                raise NoSource(f"{name} {version} has none of the files that were asked for")
        stamp.write_text(wanted)
    return folder, version


CLASSIC = """# a comment
deb file:/mirror/debian stable main contrib # why
deb-src file:/mirror/debian stable main contrib
deb [signed-by=/usr/share/keyrings/a.gpg] file:/mirror/other stable main
#deb file:/mirror/off stable main
"""
CLASSIC_WANTED = """deb-src file:/mirror/debian stable main contrib
deb-src [signed-by=/usr/share/keyrings/a.gpg] file:/mirror/other stable main
"""
DEB822 = """# a comment
Types: deb
# another
URIs: file:/mirror/debian
Suites: stable
 stable-updates
Components: main
Architectures: amd64

Types: deb deb-src
URIs: file:/mirror/two
Suites: stable
Components: main

Enabled: no
Types: deb
URIs: file:/mirror/off
"""
DEB822_WANTED = """Types: deb-src
URIs: file:/mirror/debian
Suites: stable
 stable-updates
Components: main

Types: deb-src
URIs: file:/mirror/two
Suites: stable
Components: main
"""


def self_test():
    """Tries both formats, and a machine that has both and one that has none."""
    with tempfile.TemporaryDirectory() as scratch:
        apt, out, empty = (pathlib.Path(scratch) / name for name in ("apt", "out", "empty"))
        for folder in (apt / "sources.list.d", out, empty):
            folder.mkdir(parents=True)
        (apt / "sources.list").write_text(CLASSIC)
        (apt / "sources.list.d" / "b.sources").write_text(DEB822)
        (apt / "sources.list.d" / "c.list").write_text("# nothing\n")
        cases = {
            "classic list": (classic_to_source(CLASSIC), CLASSIC_WANTED),
            "deb822": (deb822_to_source(DEB822), DEB822_WANTED),
            "both kinds of file": (private_sources(apt, out), 2),
            "their names": (sorted(p.name for p in out.iterdir()), ["b.sources", "main.list"]),
            "no sources": (private_sources(empty, out), 0),
        }
    failed = 0
    for name, (found, wanted) in cases.items():
        failed += found != wanted
        print(f"{'ok  ' if found == wanted else 'FAIL'} {name}" + ("" if found == wanted else f": found {found!r}"))
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--self-test", action="store_true", help="try the reading of package sources")
    parser.add_argument("cache", nargs="?", help="folder to keep the files in")
    parser.add_argument("pattern", nargs="*", help="files to keep, as globs from the top of the tree")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if not options.cache or not options.pattern:
        parser.error("need a cache and patterns")
    try:
        print(*source_get(options.cache, options.pattern))
    except NoSource as failure:
        print(f"source: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
