#!/usr/bin/env python3
"""check/abi.py: what libweir.so.1 shows to the dynamic linker, compared with committed lists.

Who may call it: anybody; the test command calls it with the built library.

    check/abi.py LIBRARY...         compare with abi.exports, abi.imports and abi.sizes beside this file
    check/abi.py --self-test        build libraries with one defect each and expect each to be found

It checks exported names and versions (no others), imports (libc alone, nothing after GLIBC_2.34, none
that the list lacks), NEEDED, SONAME, text relocations, the stack, binding, the TLS model, and the
sizes and offsets of the public structs. What it deliberately does not know: what the symbols do.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLIBC_MAX = (2, 34)
# SONAME of each library that is shipped, and what its thread word is reached by.
TLS_OF = {"libweir.so.1": "initial-exec", "libweir-dlopen.so.1": "descriptors"}
NEEDED_ALLOWED = re.compile(r"(libc\.so\.6|ld-linux-[a-z0-9_-]+\.so\.\d)$")
TLS_BY_CALL = re.compile(r"R_\w*(DTPMOD|DTPREL|DTPOFF)\w*")
TLS_DESCRIPTOR = re.compile(r"R_\w*TLSDESC\w*")


def read_list(path):
    """{name: rest of the line}, comments left out."""
    rows = (line.split("#")[0].split(None, 1) for line in path.read_text().splitlines())
    return {row[0]: row[1].strip() if len(row) > 1 else "" for row in rows if row}


def readelf(library, *flags):
    return subprocess.run(["readelf", "-W", *flags, str(library)], capture_output=True, text=True, check=True).stdout


def dynamic_symbols(library):
    """(exports, imports): {name: version or -} and {name: (binding, version or -)}."""
    exports, imports = {}, {}
    for line in readelf(library, "--dyn-syms").splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].rstrip(":").isdigit():
            continue
        binding, section, symbol = words[4], words[6], words[7]
        name, _, version = symbol.partition("@")
        version = version.lstrip("@") or "-"
        if section == "UND":
            imports[name] = (binding, version)
        elif section != "ABS":  # the linker defines each version's name as an absolute symbol
            exports[name] = version
    return exports, imports


def check_symbols(library, lists):
    exports, imports = dynamic_symbols(library)
    wanted = read_list(lists / "abi.exports")
    for name, version in wanted.items():
        yield exports.get(name) == version, f"exports {name} {version}, found {exports.get(name, 'no such symbol')}"
    extra = sorted(set(exports) - set(wanted))
    yield not extra, f"exports nothing else, found {' '.join(extra)}"
    allowed = read_list(lists / "abi.imports")
    for name, (binding, version) in sorted(imports.items()):
        yield name in allowed, f"import {name} {version} is in abi.imports"
        number = re.match(r"GLIBC_(\d+)\.(\d+)", version)
        if number:
            yield (int(number[1]), int(number[2])) <= GLIBC_MAX, f"import {name} {version} is in old libcs too"
        else:
            yield binding == "WEAK" and allowed.get(name) == "weak", f"import {name} {version} is libc's, or weak"
    yield "__tls_get_addr" not in imports, "no import of __tls_get_addr"


def check_dynamic(library):
    dynamic = readelf(library, "-d")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    foreign = [n for n in needed if not NEEDED_ALLOWED.match(n)]
    yield not foreign, f"needs libc alone, found {' '.join(foreign)}"
    soname = (re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) or ["none"])[0]
    yield soname in TLS_OF, f"soname is one of {' '.join(TLS_OF)}, found {soname}"
    yield "TEXTREL" not in dynamic, "no text relocations"
    yield re.search(r"\((RPATH|RUNPATH)\)", dynamic) is None, "no search path of its own"
    relocations = readelf(library, "-r")
    by_descriptor = TLS_OF.get(soname) == "descriptors"
    is_static = re.search(r"\(FLAGS\).*\bSTATIC_TLS\b", dynamic) is not None
    yield is_static != by_descriptor, f"TLS is {TLS_OF.get(soname)} (STATIC_TLS {'set' if is_static else 'not set'})"
    yield (TLS_DESCRIPTOR.search(relocations) is not None) == by_descriptor, "TLS descriptors where they belong"
    yield "NODELETE" in dynamic, "never unloaded"
    yield re.search(r"\bBIND_NOW\b|\bNOW\b", dynamic) is not None, "symbols are bound at load"
    yield TLS_BY_CALL.search(relocations) is None, "no TLS relocations that need a call"
    headers = readelf(library, "-l")
    yield re.search(r"GNU_STACK\s+\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+RW\s", headers) is not None, "the stack is not executable"
    yield "GNU_RELRO" in headers, "relocated data is read-only after load"
    yield re.search(r"LOAD\s.*\sRWE\s", headers) is None, "no segment is writable and executable"


def check_sizes(lists, include):
    with tempfile.TemporaryDirectory(prefix="weir-abi-") as folder:
        program = Path(folder) / "sizes"
        command = ["cc", "-std=c17", "-I", str(include), "-o", str(program), str(HERE / "abi_sizes.c")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            yield False, f"abi_sizes.c does not compile: {done.stderr.strip()[:300]}"
            return
        found = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = [l for l in (lists / "abi.sizes").read_text().splitlines() if l and not l.startswith("#")]
    for line in wanted:
        key = line.rsplit(" ", 1)[0]
        now = [f for f in found if f.rsplit(" ", 1)[0] == key]
        yield now == [line], f"{line}, found {now[0].rsplit(' ', 1)[1] if now else 'nothing'}"
    extra = [f for f in found if f.rsplit(" ", 1)[0] not in {w.rsplit(" ", 1)[0] for w in wanted}]
    yield not extra, f"abi.sizes lists all, missing {extra}"


def check(library, lists=HERE, include=HERE.parent / "include"):
    yield from check_symbols(library, lists)
    yield from check_dynamic(library)
    yield from check_sizes(lists, include)


# ---------------------------------------------------------------- self-test

SOURCE = """
#include <unistd.h>
#include <stdlib.h>
static __thread int word __attribute__((tls_model("initial-exec"), used));
__attribute__((visibility("default"))) void* cfree(void) { word++; return (void*)(long)getpid(); }
__attribute__((visibility("default"))) int weir_version(void) { return 1; }
"""
SONAME = "-Wl,-soname,libweir.so.1"
MAP = "WEIR_1 { global: weir_version; };\n"
FLAGS = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", SONAME, "-Wl,-z,relro,-z,now", "-Wl,-z,nodelete", "-nostartfiles"]
# name, added source, flags to add, flags to drop, a word of the verdict that must fail
DEFECTS = [
    ("an export too many", '__attribute__((visibility("default"))) int other;', [], [], "nothing else"),
    ("an export missing", "#define cfree cfree2\n", [], [], "exports cfree"),
    ("an unversioned export", "", [], ["MAP"], "weir_version WEIR_1"),
    ("an import too many", "int f(void); int f(void) { return getppid(); }\n__attribute__((used)) int (*g)(void) = f;",
     [], [], "getppid"),
    ("a foreign import", "int missing(void);__attribute__((used)) int (*g)(void) = missing;", [], [], "missing"),
    ("another library", "double cos(double);__attribute__((used)) double (*g)(double) = cos;",
     ["-fno-builtin", "-lm"], [], "libc alone"),
    ("no soname", "", [], [SONAME], "soname"),
    ("an unknown soname", "", ["-Wl,-soname,libother.so.1"], [SONAME], "soname"),
    ("initial-exec TLS in the one for dlopen", "", ["-Wl,-soname,libweir-dlopen.so.1"], [SONAME], "descriptors"),
    ("unloading", "", [], ["-Wl,-z,nodelete"], "unloaded"),
    ("a search path", "", ["-Wl,-rpath,/nowhere"], [], "search path"),
    ("late binding", "", ["-Wl,-z,lazy"], ["-Wl,-z,relro,-z,now"], "bound at load"),
    ("dynamic TLS", 'static __thread int late; __attribute__((visibility("hidden"), used)) int* h(void) { return &late; }',
     [], [], "tls_get_addr"),
    ("no initial-exec TLS", "#define tls_model(x) unused\n", [], [], "STATIC_TLS"),
    ("an executable stack", "", ["-Wl,-z,execstack"], [], "executable"),
    ("text relocations", '__asm__(".text\\n.globl t\\n.hidden t\\nt: .quad cfree");', ["-Wl,-z,notext"], [], "text reloc"),
]


def self_test():
    results = []
    with tempfile.TemporaryDirectory(prefix="weir-abi-") as name:
        folder = Path(name)
        (folder / "abi.exports").write_text("cfree -\nweir_version WEIR_1\n")
        (folder / "abi.imports").write_text("getpid\n_GLOBAL_OFFSET_TABLE_\n__tls_get_addr\n")
        (folder / "abi.sizes").write_text((HERE / "abi.sizes").read_text())
        (folder / "map").write_text(MAP)

        def failed(added="", more=(), less=()):
            (folder / "lib.c").write_text(added + SOURCE if added.startswith("#") else SOURCE + added + "\n")
            flags = [f for f in FLAGS if f not in less]
            flags += [] if "MAP" in less else [f"-Wl,--version-script={folder / 'map'}"]
            library = folder / "lib.so"
            command = ["gcc", *flags, "-o", str(library), str(folder / "lib.c"), *more]
            subprocess.run(command, check=True, capture_output=True)
            return [text for good, text in check(library, folder) if not good]

        clean = failed()
        results.append(not clean)
        if clean:
            print(f"self-test: the clean library fails: {clean}")
        for what, added, more, less, expected in DEFECTS:
            found = failed(added, more, less)
            results.append(any(expected in text for text in found))
            if not results[-1]:
                print(f"self-test: {what}: expected a failure with {expected!r}, found {found}")
        sizes = (HERE / "abi.sizes").read_text()
        (folder / "abi.sizes").write_text(re.sub(r"(size weir_stats) \d+", r"\1 1", sizes))
        found = failed()
        results.append(len(found) == 1 and "size weir_stats 1" in found[0])
        if not results[-1]:
            print(f"self-test: a moved size: {found}")
    print(f"abi self-test: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def main():
    parser = argparse.ArgumentParser(description="compare the library's dynamic symbols with the committed lists")
    parser.add_argument("library", type=Path, nargs="*", help=" or ".join(TLS_OF))
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if not arguments.library or not all(library.is_file() for library in arguments.library):
        parser.error(f"no such library: {' '.join(map(str, arguments.library)) or 'none given'}")
    verdicts = [(good, f"{library.name}: {text}") for library in arguments.library for good, text in check(library)]
    for good, text in verdicts:
        if not good:
            print(f"error: {text}")
    passed = sum(good for good, _ in verdicts)
    print(f"abi: {passed} passed, {len(verdicts) - passed} failed")
    return 0 if passed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
