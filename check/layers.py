#!/usr/bin/env python3
"""check/layers.py: the layer check. Reads the tree and says where it breaks the rules of its own shape.

Who may call it: anybody, from anywhere; the test command calls it. It looks at src/ and include/ for
layers, and at every source file of the tree for the opening comment. It needs a C compiler for the
"compiles alone" rules; `--no-compile` leaves those out.

What it deliberately does not know: the build system. A header that compiles only with a macro from
CMake does not compile alone, and that is a finding.

A rule may be broken where a comment on the line, or on the line above, says why:
    /* layers: allow KIND: the reason */
Such waivers are counted and listed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# A file may include files of its own folder and of folders with a lower rank.
RANK = {"base": 0, "arch": 10, "os": 20, "core": 30, "page": 40, "tag": 45, "heap": 50,
        "pool": 60, "race": 60, "api": 70}
CONDITIONALS_ALLOWED = {"base", "arch", "os"}
FREESTANDING = {"stddef.h", "stdint.h", "stdbool.h", "stdatomic.h", "limits.h", "stdalign.h", "stdarg.h"}
ARCHES = {"x86_64": ["gcc", "cc"], "aarch64": ["aarch64-linux-gnu-gcc"]}
SEPARATE_LIBRARIES = {"race"}  # not part of src/weir.c
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
OPENING_LINES_MAX = 40

KINDS = ("upward", "sibling", "unknown-layer", "unresolved", "include-c", "order", "missing-c", "conditional",
         "libc-in-base", "not-alone", "spdx")

INCLUDE_RE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')
COND_RE = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|elifdef|elifndef)\b\s*(.*)$")
WAIVER_RE = re.compile(r"layers: allow ([a-z-]+): *(\S.*)")


class Report:
    """What was found: `problems` fail the check, `warnings` and `waivers` are only listed."""

    def __init__(self):
        self.problems, self.warnings, self.waivers = [], [], []
        self.checks = 0

    def problem(self, kind, path, line, text, raw=None):
        """`raw` is the file's unstripped lines, in which a waiver is looked for."""
        assert kind in KINDS, kind
        if raw is not None and line:
            for number in (line, line - 1):
                match = WAIVER_RE.search(raw[number - 1]) if 0 < number <= len(raw) else None
                if match and match.group(1) == kind:
                    self.waivers.append(f"{path}:{line}: {kind} allowed: {match.group(2).rstrip(' */')}")
                    return
        self.problems.append((kind, f"{path}:{line}: {text}" if line else f"{path}: {text}"))


def without_comments(text):
    """The text with comments blanked out, lines kept; string literals stay."""
    def blank(match):
        found = match.group(0)
        return found if found[0] in "\"'" else re.sub(r"[^\n]", " ", found)
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def layer_of(relative):
    """The layer folder of a path below src/, or None for src/weir.c and its like."""
    parts = relative.parts
    return parts[0] if len(parts) > 1 else None


def resolve(root, path, name):
    for base in (path.parent, root / "src", root / "include"):
        candidate = Path(os.path.normpath(base / name))
        if candidate.is_file():
            return candidate
    return None


def check_include(root, path, line, name, raw, report):
    """One quoted or angled include of the tree's own files from `path`, which is below src/."""
    target = resolve(root, path, name)
    if target is None:
        report.problem("unresolved", path.relative_to(root), line, f'no file for #include "{name}"', raw)
        return
    if root / "include" in target.parents:
        return
    report.checks += 1
    where = path.relative_to(root)
    here = layer_of(path.relative_to(root / "src"))
    if root / "src" not in target.parents:
        report.problem("upward", where, line, f'"{name}" lies outside src/ and include/', raw)
        return
    there = layer_of(target.relative_to(root / "src"))
    if target.suffix in (".c", ".cc", ".cpp") and here is not None:
        report.problem("include-c", where, line, f'"{name}": only src/weir.c includes .c files', raw)
        return
    if here is None:
        return
    if there not in RANK:
        report.problem("unknown-layer", where, line, f'"{name}" is in no layer', raw)
    elif here != there and RANK[here] == RANK[there]:
        report.problem("sibling", where, line, f'{here} includes "{name}" of its sibling {there}', raw)
    elif RANK[here] < RANK[there]:
        report.problem("upward", where, line, f'{here} includes "{name}" of the higher layer {there}', raw)


def guard_of(stripped, suffix):
    """Line number of a header's include guard, or 0."""
    directives = [(i, s) for i, s in enumerate(stripped, 1) if s.lstrip().startswith("#")]
    if suffix not in (".h", ".hpp", ".def") or len(directives) < 3:
        return 0
    first = re.match(r"\s*#\s*ifndef\s+(\w+)\s*$", directives[0][1])
    second = re.match(r"\s*#\s*define\s+(\w+)\s*$", directives[1][1])
    last = re.match(r"\s*#\s*endif", directives[-1][1])
    return directives[0][0] if first and second and last and first.group(1) == second.group(1) else 0


def check_conditionals(root, path, stripped, raw, report):
    """Style rule 3: no #if outside base/, arch/ and os/. X-macro defaults (#ifndef WEIR_OPTION) count too.
    A guard around `#define _GNU_SOURCE` and nothing else chooses no code."""
    if layer_of(path.relative_to(root / "src")) in CONDITIONALS_ALLOWED:
        return
    guard = guard_of(stripped, path.suffix)
    report.checks += 1
    for number, line in enumerate(stripped, 1):
        match = COND_RE.match(line)
        feature = re.sub(r"\s+", "", "".join(stripped[number - 1:number + 2])) == "#ifndef_GNU_SOURCE#define_GNU_SOURCE#endif"
        if match and number != guard and not feature:
            report.problem("conditional", path.relative_to(root), number,
                           f"#{match.group(1)} {match.group(2).strip()}: use `if (config_x)`", raw)


def check_lengths(root, path, stripped, report):
    where = path.relative_to(root)
    if len(stripped) > FILE_LINES_MAX:
        report.warnings.append(f"{where}: {len(stripped)} lines (about {FILE_LINES_MAX} is the measure)")
    start, name = 0, ""
    for number, line in enumerate(stripped, 1):
        if line.startswith("}") and start:
            if number - start + 1 > FUNCTION_LINES_MAX:
                report.warnings.append(f"{where}:{start}: {name} has {number - start + 1} lines "
                                       f"(about {FUNCTION_LINES_MAX} is the measure)")
            start = 0
        elif not start and line[:1] not in ("", " ", "\t", "#", "}"):
            head = re.search(r"(\w+)\s*\(", line)
            name = head.group(1) if head else name
            if line.rstrip().endswith("{") and not re.match(r"(struct|union|enum|extern \"C\"|namespace)\b[^()]*\{", line):
                start = number
        elif not start and line.rstrip().endswith(") {"):
            start = number


def check_unit(root, report):
    """src/weir.c: every .c of the layers once, in the order of the layers."""
    unit = root / "src" / "weir.c"
    if not unit.is_file():
        return
    raw = unit.read_text(errors="replace").splitlines()
    stripped = without_comments(unit.read_text(errors="replace")).splitlines()
    rank, listed = -1, set()
    for number, line in enumerate(stripped, 1):
        match = INCLUDE_RE.match(line)
        name = match and (match.group(1) or "")
        if not name or not name.endswith(".c"):
            continue
        target = resolve(root, unit, name)
        if target is None:
            continue
        report.checks += 1
        if target in listed:
            report.problem("order", unit.relative_to(root), number, f'"{name}" is included twice', raw)
        listed.add(target)
        here = RANK.get(layer_of(target.relative_to(root / "src")), -1)
        if here < rank:
            report.problem("order", unit.relative_to(root), number,
                           f'"{name}" comes after a file of a higher layer', raw)
        rank = max(rank, here)
    for path in sorted((root / "src").rglob("*.c")):
        layer = layer_of(path.relative_to(root / "src"))
        if path != unit and path not in listed and layer not in SEPARATE_LIBRARIES:
            text = path.read_text(errors="replace").splitlines()
            report.problem("missing-c", path.relative_to(root), 1, "is not part of src/weir.c", text)


def compiler_for(root, path):
    """The compiler of the architecture whose folder the file is in; the host's for all others."""
    for arch, compilers in ARCHES.items():
        if arch in path.relative_to(root).parts:
            return next((c for c in compilers if shutil.which(c)), None)
    return next(c for c in ARCHES["x86_64"] if shutil.which(c))


def compile_alone(root, path):
    """None, or the compiler's first error. A header is included by an otherwise empty file."""
    compiler = compiler_for(root, path)
    if compiler is None:
        return None
    language, standard = ("c", "gnu17")
    if path.suffix in (".cc", ".cpp", ".hpp"):
        compiler = compiler.replace("gcc", "g++")
        language, standard = ("c++", "gnu++17")
    command = [compiler, f"-std={standard}", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror",
               "-D_GNU_SOURCE", "-I", "include", "-I", "src", "-x", language, "-"]
    text = path.read_text(errors="replace")
    if path.suffix in (".h", ".hpp"):
        text = f'#include "{path}"\nextern int layers_not_empty;\n'
    else:
        text = f'#include "{path}"\n'
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=root, check=False)
    if done.returncode == 0:
        return None
    errors = [l for l in done.stderr.splitlines() if "error" in l] or [done.stderr.strip()[:200]]
    return errors[0].replace(str(root) + "/", "")


def check_compile(root, paths, report):
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        for path, error in zip(paths, pool.map(lambda p: compile_alone(root, p), paths)):
            report.checks += 1
            if error:
                raw = path.read_text(errors="replace").splitlines()
                report.problem("not-alone", path.relative_to(root), 1, f"does not compile alone: {error}", raw)


SOURCES = {".c", ".h", ".def", ".cc", ".cpp", ".hpp", ".py", ".sh", ".rs", ".cmake"}
SKIPPED_FOLDERS = {"target", "corpus", "__pycache__"}


def source_files(root):
    """Every source file that git tracks or would track; in a tree without git, every source file."""
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"],
                             capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        names = [root / n for n in listing.stdout.splitlines()]
    else:
        names = [p for p in root.rglob("*") if "build" not in p.relative_to(root).parts]
    for path in sorted(set(names)):
        script = path.parent == root and path.name in ("run", "test") or path == root / ".ci" / "run"
        if path.is_file() and (path.suffix in SOURCES or path.name == "CMakeLists.txt" or script):
            if not SKIPPED_FOLDERS & set(path.relative_to(root).parts):
                yield path


def check_opening(root, path, report):
    report.checks += 1
    lines = path.read_text(errors="replace").splitlines()[:OPENING_LINES_MAX]
    body = [l for l in lines if l.strip() and not l.startswith("#!")]
    opens = bool(body) and re.match(r'\s*(/\*|//|#|"""|r""")', body[0]) is not None
    opens = opens and not re.match(r"\s*#\s*(include|define|if|pragma|!\[)", body[0])
    end = len(lines)
    if opens and body[0].lstrip().startswith("/*"):
        end = next((i for i, l in enumerate(lines) if "*/" in l), end - 1) + 1
    if not opens or not any("SPDX-License-Identifier: Apache-2.0" in l for l in lines[:end]):
        report.problem("spdx", path.relative_to(root), 0,
                       "does not open with a comment that holds SPDX-License-Identifier: Apache-2.0")


def check_tree(root, compiles=True):
    report = Report()
    root = root.resolve()
    files = [p for p in sorted((root / "src").rglob("*")) if p.suffix in (".c", ".h", ".def", ".cc", ".cpp", ".hpp")]
    for path in files:
        text = path.read_text(errors="replace")
        raw, stripped = text.splitlines(), without_comments(text).splitlines()
        layer = layer_of(path.relative_to(root / "src"))
        if layer is not None and layer not in RANK:
            report.problem("unknown-layer", path.relative_to(root), 0, f"folder {layer}/ is not a layer")
            continue
        for number, line in enumerate(stripped, 1):
            match = INCLUDE_RE.match(line)
            if not match:
                continue
            quoted, angled = match.groups()
            if quoted or (angled and angled.startswith("weir/")):
                check_include(root, path, number, quoted or angled, raw, report)
            elif layer == "base" and angled not in FREESTANDING:
                report.problem("libc-in-base", path.relative_to(root), number, f"<{angled}> is not freestanding", raw)
        check_conditionals(root, path, stripped, raw, report)
        check_lengths(root, path, stripped, report)
    check_unit(root, report)
    if compiles:
        # The unit includes all the rest; the build itself compiles it.
        alone = [p for p in files if p.suffix != ".def" and p != root / "src" / "weir.c"]
        public = sorted((root / "include").rglob("*.h")) + sorted((root / "include").rglob("*.hpp"))
        check_compile(root, alone + public, report)
    for path in source_files(root):
        check_opening(root, path, report)
    return report


SPDX = "/* what it does.\n *\n * SPDX-License-Identifier: Apache-2.0\n */\n"

# The clean tree of the self-test; each case below overlays it and must raise exactly its own kind.
CLEAN = {
    "include/weir/weir.h": SPDX + "#ifndef W_H\n#define W_H\nint weir_version(void);\n#endif\n",
    "src/base/bits.h": SPDX + "#ifndef B_H\n#define B_H\n#include <stdint.h>\n#if 1\ntypedef int bits;\n#endif\n#endif\n",
    "src/base/bits.c": SPDX + '#include "base/bits.h"\nint bits_one(void) { return 1; }\n',
    "src/page/span.h": SPDX + '#ifndef S_H\n#define S_H\n#include "base/bits.h"\n#endif\n',
    "src/page/span.c": SPDX + '#include "span.h"\nint span_one(void) { return 1; }\n',
    "src/tag/tag.h": SPDX + '#ifndef T_H\n#define T_H\n#include "page/span.h"\n#endif\n',
    "src/heap/slab.h": SPDX + '#ifndef H_H\n#define H_H\n#include "tag/tag.h"\n#include <weir/weir.h>\n#endif\n',
    "src/weir.c": SPDX + '#include "base/bits.c"\n#include "page/span.c"\n',
}
GUARD = "#ifndef X_H\n#define X_H\n%s\n#endif\n"
CASES = [
    ("upward", {"src/base/x.h": SPDX + GUARD % '#include "heap/slab.h"'}),
    ("upward", {"src/page/x.h": SPDX + GUARD % '#include "tag/tag.h"'}),
    ("upward", {"src/core/x.h": SPDX + GUARD % '#include "../page/span.h"'}),
    ("upward", {"src/heap/race.h": SPDX + GUARD % '#include "race/y.h"', "src/race/y.h": SPDX}),
    ("sibling", {"src/pool/x.h": SPDX + GUARD % '#include "race/y.h"', "src/race/y.h": SPDX}),
    ("sibling", {"src/race/x.h": SPDX + GUARD % '#include "pool/y.h"', "src/pool/y.h": SPDX}),
    ("unknown-layer", {"src/misc/x.h": SPDX}),
    ("unresolved", {"src/core/x.h": SPDX + GUARD % '#include "core/gone.h"'}),
    ("include-c", {"src/heap/x.h": SPDX + GUARD % '#include "page/span.c"'}),
    ("order", {"src/weir.c": SPDX + '#include "page/span.c"\n#include "base/bits.c"\n'}),
    ("order", {"src/weir.c": CLEAN["src/weir.c"] + '#include "page/span.c"\n'}),
    ("missing-c", {"src/weir.c": SPDX + '#include "base/bits.c"\n'}),
    ("conditional", {"src/core/x.h": SPDX + GUARD % "#ifdef __x86_64__\n#endif"}),
    ("conditional", {"src/page/span.c": CLEAN["src/page/span.c"] + "#if 1\n#endif\n"}),
    ("conditional", {"src/core/x.h": SPDX + GUARD % "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\nint a;\n#endif"}),
    ("conditional", {"src/weir.c": CLEAN["src/weir.c"] + "#if 1\n#endif\n"}),
    ("libc-in-base", {"src/base/x.h": SPDX + GUARD % "#include <string.h>"}),
    ("not-alone", {"src/core/x.h": SPDX + GUARD % "size_t core_size;"}),
    ("not-alone", {"src/page/span.c": SPDX + "int span_one(void) { return span_two(); }\n"}),
    ("not-alone", {"include/weir/x.h": SPDX + GUARD % "uint32_t weir_x(void);"}),
    ("spdx", {"src/core/x.h": "/* what it does */\n" + GUARD % ""}),
    ("spdx", {"tests/x.py": "import sys\n# SPDX-License-Identifier: Apache-2.0\n"}),
    ("spdx", {"src/core/x.h": GUARD % "/* SPDX-License-Identifier: Apache-2.0 */"}),
]
LONG_FUNCTION = "int span_long(int a) {\n" + "    a++;\n" * 80 + "    return a;\n}\n"


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def self_test():
    """Each violation must be found, and found as itself; the clean tree and a waived one must pass."""
    results = []

    def case(name, overlay, expected, warnings=0, waivers=0):
        with tempfile.TemporaryDirectory(prefix="weir-layers-") as folder:
            root = Path(folder)
            write_tree(root, {**CLEAN, **overlay})
            report = check_tree(root)
            kinds = {k for k, _ in report.problems}
            # A header that includes an upper layer may break a second rule as well; the first must be there.
            good = (expected in kinds if expected else not kinds)
            good = good and len(report.warnings) == warnings and len(report.waivers) == waivers
            results.append(good)
            if not good:
                print(f"self-test: {name}: expected {expected}, found {report.problems} "
                      f"{report.warnings} {report.waivers}")

    case("clean", {}, None)
    for kind, overlay in CASES:
        case(f"{kind} {sorted(overlay)}", overlay, kind)
    waived = SPDX + GUARD % "/* layers: allow conditional: the reason why */\n#ifdef __x86_64__\n#endif"
    case("waiver", {"src/core/x.h": waived}, None, waivers=1)
    case("wrong waiver", {"src/core/x.h": waived.replace("conditional", "upward")}, "conditional")
    case("long function", {"src/page/span.c": CLEAN["src/page/span.c"] + LONG_FUNCTION}, None, warnings=1)
    case("long file", {"src/page/span.c": CLEAN["src/page/span.c"] + "\n" * 801}, None, warnings=1)
    seen = {k for k, _ in CASES}
    results.append(seen == set(KINDS))
    if seen != set(KINDS):
        print(f"self-test: kinds without a case: {set(KINDS) - seen}")
    print(f"layers self-test: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def main():
    parser = argparse.ArgumentParser(description="check the layers of the tree")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--no-compile", action="store_true", help="leave out the rules that need a compiler")
    parser.add_argument("--self-test", action="store_true", help="break each rule once and expect it to be found")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    report = check_tree(arguments.root, compiles=not arguments.no_compile)
    for line in report.warnings:
        print(f"warning: {line}")
    for line in report.waivers:
        print(f"waived: {line}")
    for kind, line in report.problems:
        print(f"error: {line} [{kind}]")
    print(f"layers: {max(report.checks - len(report.problems), 0)} passed, {len(report.problems)} failed")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
