"""Counts, inside gdb, how often a program arrives at the entry points of one library and at those of libc's malloc.

    COUNT_LIBRARY=PATH COUNT_NAMES=a,b,… COUNT_OUT=FILE gdb -batch -nx -x count.py --args PROGRAM …

prove.py calls it, with COUNT_ENVIRONMENT (JSON) for the program alone. From the program's first own instruction to its
end; the loader's and the constructors' calls are not in it. Writes JSON: for each of the two libraries the hits of each
address, with the names that share it. It deliberately asks neither the allocator nor the program anything.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import subprocess

import gdb  # pylint: disable=import-error

MANY = 2**31 - 1
# Not entry points of an allocation: reallocarray only computes a size and calls realloc.
LIBC_FORWARDS = {"reallocarray", "malloc_usable_size"}


def program_started():
    for key, value in json.loads(os.environ["COUNT_ENVIRONMENT"]).items():
        gdb.execute(f"set environment {key} {value}")
    gdb.execute("starti", to_string=True)
    auxiliary = gdb.execute("info auxv", to_string=True)
    entry = next(line.split()[-1] for line in auxiliary.splitlines() if "AT_ENTRY" in line)
    stop = gdb.Breakpoint(f"*{entry}", internal=True, temporary=True)
    stop.silent = True
    gdb.execute("continue", to_string=True)


def mapped():
    """File -> its lowest address in the program."""
    bases = {}
    with open(f"/proc/{gdb.selected_inferior().pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                bases.setdefault(fields[5].strip(), int(fields[0].split("-")[0], 16))
    return bases


def defined(library, names):
    """Address in the file -> the names there."""
    found = {}
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        offset, _, symbol = line.split(maxsplit=2)
        name = symbol.split("@")[0]
        if name in names:
            found.setdefault(int(offset, 16), set()).add(name)
    return found


def watched(library, base, names):
    points = []
    for offset, here in defined(library, names).items():
        point = gdb.Breakpoint(f"*{base + offset:#x}", internal=True)
        point.ignore_count = MANY
        points.append((sorted(here), point))
    return points


def main():
    names = set(os.environ["COUNT_NAMES"].split(","))
    for setting in ("confirm off", "debuginfod enabled off", "pagination off", "startup-with-shell off",
                    "disable-randomization off", "print thread-events off", "print inferior-events off",
                    "auto-solib-add off"):
        gdb.execute(f"set {setting}")
    program_started()
    bases = mapped()
    library = os.path.realpath(os.environ["COUNT_LIBRARY"])
    libc = next(path for path in bases if os.path.basename(path).startswith("libc.so"))
    points = {"library": watched(library, bases[library], names) if library in bases else [],
              "libc": watched(libc, bases[libc], names - LIBC_FORWARDS)}
    gdb.execute("continue", to_string=True)
    status = gdb.parse_and_eval("$_exitcode")
    counted = {"status": None if status.type.code == gdb.TYPE_CODE_VOID else int(status)}
    for where, found in points.items():
        counted[where] = [{"names": here, "hits": point.hit_count} for here, point in found]
    with open(os.environ["COUNT_OUT"], "w", encoding="utf-8") as file:
        json.dump(counted, file)


main()
