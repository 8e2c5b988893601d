#!/usr/bin/env python3
"""check/golden.py: the golden fast path. Counts the instructions, loads, stores, branches and calls on
the fast path of the malloc family and compares them with tests/golden/fastpath.json. Calls into other libraries
(memset) count as calls; what the library itself calls is counted through.

Who may call it: anybody, from anywhere; the test command calls it. It configures and builds the library
once for each flavour below build/golden/, runs each function one instruction at a time for every size
from 1 to 1024 bytes (ptrace on x86-64, the emulator's log on aarch64), and classifies what ran by its
disassembly. The straight path that the disassembly alone predicts must be the one that ran.

    check/golden.py                 compare; fails when a count grows, a limit is passed or the flags differ
    check/golden.py --update        rewrite the golden file from what is measured now
    check/golden.py --lib FILE      compare one shared library of this machine (gcc) instead of building
    check/golden.py --save FILE     write what is measured to FILE as well, for check/tls_counts.py
    check/golden.py --self-test     the classifier and the comparison against known code

What it deliberately does not know: how the heap works, and how fast an instruction is.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter, namedtuple
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "fastpath.json"
SHARED = ["malloc", "free", "calloc", "_Znwm", "_ZdlPvm"]
PAIRS = ["pair_malloc_free", "pair_new_delete"]

# arch, how it is built, compiler, the sizes' step (the emulator's log is long), and more flags for the library's unit
Flavour = namedtuple("Flavour", "name arch kind cc step more", defaults=((),))
FLAVOURS = [
    Flavour("x86_64/shared-gcc", "x86_64", "shared", "gcc", 1),
    Flavour("x86_64/shared-clang", "x86_64", "shared", "clang-19", 1),
    Flavour("x86_64/lto-gcc", "x86_64", "lto", "gcc", 1),
    Flavour("x86_64/lto-clang", "x86_64", "lto", "clang-19", 1),
    Flavour("x86_64/trusted-gcc", "x86_64", "trusted", "gcc", 1),
    Flavour("x86_64/trusted-clang", "x86_64", "trusted", "clang-19", 1),
    Flavour("aarch64/shared-gcc", "aarch64", "shared", "aarch64-linux-gnu-gcc", 15),
]
OBJDUMP = {"x86_64": "objdump", "aarch64": "aarch64-linux-gnu-objdump"}

# A limit holds for the worst size to 1 KiB, in the shared library of an architecture. `--update` keeps the limits that the file has.
# `trusted`: a program that compiles the unit in with WEIR_TRUST_SIZE=1.
LIMITS = {"x86_64": {"malloc": 14, "free": 18}}
LIMITED_KINDS = ("shared",)
# Of warm calls some leave the fast path by design (a list that turns over); a drop by more is a finding.
FAST_CALLS_PERCENT_SLACK = 5
COUNTS = ("instructions", "instructions_max", "loads", "stores", "branches", "calls")

Instruction = namedtuple("Instruction", "at length mnemonic operands target")


class Failure(Exception):
    """The measurement itself could not be made."""


# ---------------------------------------------------------------- disassembly

LINE_RE = re.compile(r"^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+|[0-9a-f]{8})\s*\t?(.*)$")
PREFIXES = {"lock", "rep", "repz", "repnz", "notrack", "bnd", "data16", "cs", "ds", "addr32", "rex.W"}


def disassemble(arch, binary):
    """Every instruction of the executable sections, by address."""
    command = [OBJDUMP[arch], "-d", "-w", str(binary)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = {}
    for line in text.splitlines():
        match = LINE_RE.match(line)
        if not match or not match.group(3):
            continue
        at = int(match.group(1), 16)
        length = 4 if arch == "aarch64" else len(match.group(2).split())
        words = match.group(3).split("#" if arch == "x86_64" else "//")[0].split(None, 1)
        prefix = []
        while words and (words[0] in PREFIXES) and len(words) > 1:
            prefix.append(words[0])
            words = words[1].split(None, 1)
        mnemonic = words[0]
        operands = words[1].strip() if len(words) > 1 else ""
        target = re.match(r"(?:[wx]\w+, )?(?:#\d+, )?([0-9a-f]+) <", operands)
        code[at] = Instruction(at, length, " ".join(prefix + [mnemonic]), operands,
                               int(target.group(1), 16) if target else None)
    if not code:
        raise Failure(f"no code in {binary}")
    return code


def symbols(arch, binary):
    """Address by name of every function that the binary defines."""
    text = subprocess.run([OBJDUMP[arch], "-t", "-T", str(binary)], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        match = re.match(r"([0-9a-f]{8,})\s.*\sF?\s*\.text\s+[0-9a-f]+\s+(.*)$", line)
        if match:
            found.setdefault(match.group(2).split()[-1].split("@")[0], int(match.group(1), 16))
    return found


def split_operands(text):
    """`8(%rax,%rbx,2),%rcx` -> two operands; brackets keep their commas."""
    out, depth, current = [], 0, ""
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            out.append(current.strip())
            current = ""
        else:
            current += char
    return out + [current.strip()] if current.strip() else out


READ_ONLY_X86 = re.compile(r"(cmp(?!xchg)|test|bt[lqw]?$|ucomi|comi|ptest|vptest|v?ucomi|mul|div|idiv|push)")
WRITE_ONLY_X86 = re.compile(r"(mov|vmov|set|pop|stmxcsr|fst|extract|v?pextr|vextract)")
NO_ACCESS_X86 = re.compile(r"(lea|nop|prefetch|endbr)")


def classify_x86(insn):
    """(loads, stores, branches, calls) of one AT&T instruction; the return address of call and ret is no access."""
    name = insn.mnemonic.split()[-1]
    operands = split_operands(insn.operands)
    memory = ["(" in o or re.match(r"\*?%[fg]s:", o) is not None or re.match(r"\*?0x[0-9a-f]+$", o) is not None
              for o in operands]
    if name.startswith("ret"):
        return 0, 0, 0, 0
    if name.startswith("call"):
        return int(any(memory)), 0, 0, 1
    if name.startswith("j"):
        return int(any(memory) and insn.operands.startswith("*")), 0, 1, 0
    if NO_ACCESS_X86.match(name):
        return 0, 0, 0, 0
    if name.startswith(("stos", "movs")) and "%es:" in insn.operands:
        return int(name.startswith("movs")), 1, 0, 0
    loads, stores = int(name.startswith("pop")), int(name.startswith("push"))
    if not any(memory):
        return loads, stores, 0, 0
    if not memory[-1]:
        return loads + 1, stores, 0, 0
    if READ_ONLY_X86.match(name):
        return loads + 1, stores, 0, 0
    if WRITE_ONLY_X86.match(name):
        return loads, stores + 1, 0, 0
    return loads + 1, stores + 1, 0, 0


def classify_arm(insn):
    name = insn.mnemonic
    if name in ("bl", "blr"):
        return 0, 0, 0, 1
    if name == "b" or name == "br" or name.startswith(("b.", "cbz", "cbnz", "tbz", "tbnz")):
        return 0, 0, 1, 0
    if re.match(r"(swp|cas|ldadd|ldclr|ldset|ldeor)", name):
        return 1, 1, 0, 0
    if re.match(r"(ld|ldr)", name):
        return 1, 0, 0, 0
    if re.match(r"st", name) or name == "dc":
        return 0, 1, 0, 0
    return 0, 0, 0, 0


CLASSIFY = {"x86_64": classify_x86, "aarch64": classify_arm}
FORBIDDEN = re.compile(r"(endbr|bti$|paciasp|pacibsp|autiasp|autibsp|hint$)")
RETURN = re.compile(r"(ret)")
JUMP = {"x86_64": "jmp", "aarch64": "b"}


def is_call(arch, insn):
    return insn.mnemonic.split()[-1].startswith("call") if arch == "x86_64" else insn.mnemonic in ("bl", "blr")


def straight_path(arch, code, entry, limit=400):
    """The addresses from entry to the first ret where no conditional branch is taken."""
    path, at = [], entry
    while len(path) < limit:
        insn = code.get(at)
        if insn is None:
            return path
        path.append(at)
        name = insn.mnemonic.split()[-1]
        if RETURN.match(name):
            return path
        if name == JUMP[arch]:
            if insn.target is None:
                return path
            at = insn.target
        elif arch == "aarch64" and name == "br":
            return path
        else:
            at += insn.length
    return path


def module_path(traced):
    """The traced addresses of the module itself. `~` stands for a stay in another one."""
    return tuple(at for at in traced if at != "~")


def own_path(arch, code, traced):
    """The traced addresses without what ran inside calls."""
    path, until = [], None
    for at in traced:
        if until is not None:
            if at != until:
                continue
            until = None
        path.append(at)
        insn = code.get(at)
        if insn is None:
            raise Failure(f"{at:#x} ran but was not disassembled")
        if is_call(arch, insn):
            until = at + insn.length
    return tuple(path)


# ---------------------------------------------------------------- measuring

def run_text(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Failure(f"{' '.join(str(c) for c in command)}: status {done.returncode}\n{tail}")
    return done.stdout


def trace_stepped(program, names, step, library):
    """[(name, size, addresses)] for each traced call, by ptrace."""
    environment = dict(os.environ)
    # No look at the slabs' pages, which a free now and then makes way for: the paths are the subject here.
    environment["WEIR_OPTIONS"] = "thread_free_max=1g"
    if library:
        environment["LD_PRELOAD"] = str(library)
    out = []
    for line in run_text([program, "step", step, *names], env=environment, timeout=300).splitlines():
        name, size, text = line.split(" ", 2)
        out.append((name, int(size), [a if a == "~" else int(a, 16) for a in text.split(",")]))
    return out


EXEC_RE = re.compile(r"^Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/")


def trace_emulated(program, names, step, library, folder):
    """The same from the log of qemu-aarch64, which writes one line for each instruction. There is no helper thread
    under it, and threads sort what they free now and then, in free: not while it is traced."""
    log = folder / "exec.log"
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-singlestep", "-d", "exec,nochain", "-D", log]
    command += ["-E", "WEIR_OPTIONS=thread_free_max=1g"]
    if library:
        command += ["-E", f"LD_PRELOAD={library}"]
    listing = run_text(command + [program, "plain", step, *names], timeout=600).splitlines()
    bases, calls, marks = {}, [], (0, 0)
    for line in listing:
        words = line.split()
        if words[0] == "base":
            bases[words[1]] = tuple(int(w, 16) for w in words[2:])
        elif words[0] == "marks":
            marks = tuple(int(w, 16) for w in words[1:])
        elif words[0] == "call":
            calls.append((words[1], int(words[2])))
    out, begun, inside, path = [], False, False, []
    with log.open() as lines:
        for line in lines:
            match = EXEC_RE.match(line)
            if not match:
                continue
            at = int(match.group(1), 16)
            if at == marks[0] and not begun:
                if len(out) == len(calls):
                    break
                begun, inside, path = True, False, []
            elif at == marks[1] and begun:
                name, size = calls[len(out)]
                out.append((name, size, path))
                begun = False
            elif begun:
                entry, base, end = bases[calls[len(out)][0]]
                inside = inside or at == entry
                if inside and base <= at < end:
                    path.append(at - base)
                elif inside and path and path[-1] != "~":
                    path.append("~")
    log.unlink()
    if len(out) != len(calls):
        raise Failure(f"{len(calls)} calls made, {len(out)} found in the emulator's log")
    return out


def summarise(arch, code, entry, calls):
    """The figures of one function from all of its traced calls."""
    classify = CLASSIFY[arch]
    best, lengths = {}, Counter()
    for _, size, traced in calls:
        path = module_path(traced)
        lengths[len(path)] += 1
        if size not in best or len(path) < len(best[size]):
            best[size] = path
    fast, _ = Counter(best.values()).most_common(1)[0]
    worst = max(len(p) for p in best.values())
    kinds = [classify(code[a]) for a in fast]
    forbidden = [f"{code[a].mnemonic} at {a:#x}" for p in set(best.values()) for a in p
                 if FORBIDDEN.match(code[a].mnemonic.split()[-1])]
    totals = [sum(k[i] for k in kinds) for i in range(4)]
    if not RETURN.match(code[fast[-1]].mnemonic.split()[-1]):
        totals[3] += 1  # the path ends in a jump to another library: a call in tail position
    fast_calls = sum(n for length, n in lengths.items() if length <= worst)
    return {
        "instructions": len(fast),
        "instructions_max": worst,
        "loads": totals[0], "stores": totals[1], "branches": totals[2], "calls": totals[3],
        "straight": tuple(straight_path(arch, code, entry)) in {own_path(arch, code, p) for p in set(best.values())},
        "sizes": len(best),
        "sizes_on_fast_path": sum(p == fast for p in best.values()),
        "fast_calls_percent": round(100 * fast_calls / sum(lengths.values())),
        "_forbidden": forbidden,
        "_path": [f"{a:x}: {code[a].mnemonic} {code[a].operands}" for a in fast],
    }


def compile_trace(flavour, folder):
    program = folder / "trace"
    run_text([flavour.cc, "-O2", "-std=gnu17", "-rdynamic", "-o", program, ROOT / "tests/golden/trace.c", "-ldl"])
    return program


def build_flags(folder):
    """How CMake compiles src/weir.c for the shared library: the flags, without paths."""
    commands = json.loads((folder / "compile_commands.json").read_text())
    unit = [c for c in commands if c["file"].endswith("/src/weir.c")]
    shared = [c for c in unit if "weir.dir" in c.get("output", c["command"])] or unit
    if not shared:
        raise Failure("CMake does not compile src/weir.c")
    words, flags, skip = shlex.split(shared[0]["command"])[1:], [], False
    for word in words:
        if skip or word in ("-o", "-c", "-MF", "-MT", "-MQ", "-isystem"):
            skip = not skip and word != "-c"
        elif not word.startswith(("-I", "/", "-MD", "-fdebug-prefix", "-ffile-prefix", "-fdiagnostics", "-fcolor")):
            flags.append(word)
    return flags


def configure(folder, flavour, more=()):
    """A build tree of the library, not built yet. Returns the flags."""
    options = ["-DWEIR_TESTS=OFF", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    if flavour.arch == "aarch64":
        options.append(f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake/aarch64.cmake'}")
    else:
        options += [f"-DCMAKE_C_COMPILER={flavour.cc}",
                    f"-DCMAKE_CXX_COMPILER={flavour.cc.replace('gcc', 'g++').replace('clang', 'clang++')}"]
    options.append(f"-DCMAKE_C_FLAGS={' '.join(more)}")
    run_text(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options])
    return build_flags(folder)


def folder_of(flavour):
    folder = ROOT / "build" / "golden" / flavour.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build_shared(flavour, folder):
    flags = configure(folder, flavour, flavour.more)
    run_text(["cmake", "--build", folder, "--target", "weir"])
    return folder / "libweir.so.1", flags


def build_lto(flavour, folder):
    """One program from trace.c, pair.c and the library's unit, melted at link time."""
    flags = configure(folder / "flags", flavour)
    flags = ["-fPIE" if f == "-fPIC" else f for f in flags if not f.startswith(("-W", "-Dweir", "-DWEIR_WEAK"))] + ["-flto"]
    if flavour.kind == "trusted":
        flags.append("-DWEIR_TRUST_SIZE=1")
    run_text([flavour.cc, *flags, *flavour.more, "-I", ROOT / "include", "-I", ROOT / "src", "-c", ROOT / "src/weir.c",
              "-o", folder / "weir.o"])
    thin = [f for f in flavour.more if f == "-flto=thin"]
    run_text([flavour.cc, "-O2", "-std=c17", "-fPIE", "-flto", *thin, "-fcf-protection=none", "-c", ROOT / "tests/golden/pair.c",
              "-o", folder / "pair.o"])
    run_text([flavour.cc, "-O2", "-std=gnu17", "-fPIE", "-c", ROOT / "tests/golden/trace.c", "-o", folder / "trace.o"])
    program = folder / "trace"
    linker = ["-fuse-ld=lld-19"] if "clang" in flavour.cc else ["-flto-partition=one"]
    run_text([flavour.cc, "-O2", "-flto", *linker, "-pie", "-o", program, folder / "trace.o",
              folder / "pair.o", folder / "weir.o", "-ldl", "-lpthread"])
    return program, flags


def compiler_version(compiler):
    """`gcc 12.2.0`: a distribution's own revision is left out."""
    number = re.search(r"\d+\.\d+\.\d+", run_text([compiler, "--version"]).splitlines()[0])
    return f"{compiler} {number.group(0) if number else 'unknown'}"


# The program that traces, and the library that it preloads; None: the program holds it.
Built = namedtuple("Built", "program library flags")


def build(flavour, library=None):
    folder, flags = folder_of(flavour), []
    if flavour.kind != "shared":
        program, flags = build_lto(flavour, folder)
        return Built(program, None, flags)
    if library is None:
        library, flags = build_shared(flavour, folder)
    return Built(compile_trace(flavour, folder), library, flags)


def measure(flavour, library=None):
    """{"compiler", "flags", "functions"} of one flavour, or of a library instead of its build."""
    program, library, flags = build(flavour, library)
    names, step = SHARED if library else PAIRS, flavour.step
    if flavour.arch == "aarch64":
        calls = trace_emulated(program, names, step, library, program.parent)
    else:
        calls = trace_stepped(program, names, step, library)
    binary = library or program
    code, entries = disassemble(flavour.arch, binary), symbols(flavour.arch, binary)
    functions = {}
    for name in names:
        if name not in entries:
            raise Failure(f"{binary} does not define {name}")
        functions[name] = summarise(flavour.arch, code, entries[name], [c for c in calls if c[0] == name])
    return {"compiler": compiler_version(flavour.cc), "flags": " ".join(flags), "functions": functions}


# ---------------------------------------------------------------- comparing

def compare(name, kind, golden, now, limits):
    """[(good, text)]: one verdict for each figure of a flavour, and one for the flags. With another
    compiler than the pinned one the counts say nothing; what it must keep is the limits."""
    pinned = golden.get("compiler") == now["compiler"]
    same = golden.get("flags") == now["flags"] or not now["flags"]
    verdicts = [(same, f"{name}: the flags are the pinned ones" if same else
                 f"{name}: the flags differ; the counts hold for the pinned ones only\n"
                 f"    - {golden.get('flags')}\n    + {now['flags']}")]
    if golden and not pinned:
        print(f"note: {name}: {now['compiler']} is not {golden['compiler']}, which the counts are pinned to; "
              "only the limits are checked")
    for function, figures in now["functions"].items():
        old = golden.get("functions", {}).get(function)
        label = f"{name} {function}"
        if old is None:
            verdicts.append((False, f"{label}: not in the golden file"))
            continue
        if not pinned:
            old = {**figures, "straight": False, "sizes_on_fast_path": 0}
        grown = [k for k in COUNTS if figures[k] > old[k]]
        lines = "".join(f"\n    {'+' if figures[k] > old[k] else ' '} {k:17} {old[k]:4} -> {figures[k]:4}"
                        for k in COUNTS if figures[k] != old[k])
        path = "".join(f"\n        {i}" for i in figures["_path"])
        verdicts.append((not grown, f"{label}: {figures['instructions']} instructions"
                         + (" (fewer than the golden file says)" if lines and not grown else "") if not grown
                         else f"{label}: grew{lines}\n    the path now:{path}"))
        straight = figures["straight"] or not old["straight"]
        verdicts.append((straight, f"{label}: the straight path is "
                         + ("the traced one" if straight else f"no longer the one that ran{path}")))
        every = figures["sizes_on_fast_path"] >= old["sizes_on_fast_path"] or figures["sizes"] != old["sizes"]
        verdicts.append((every, f"{label}: {figures['sizes_on_fast_path']} of {figures['sizes']} sizes on one path"
                         + ("" if every else f", were {old['sizes_on_fast_path']}")))
        often = figures["fast_calls_percent"] >= old["fast_calls_percent"] - FAST_CALLS_PERCENT_SLACK
        verdicts.append((often, f"{label}: {figures['fast_calls_percent']} % of warm calls on the fast path, "
                         f"were {old['fast_calls_percent']} %"))
        clean = not figures["_forbidden"]
        verdicts.append((clean, f"{label}: " + ("no landing pads" if clean else f"{figures['_forbidden'][0]}")))
        if function in limits and kind in LIMITED_KINDS:
            within = figures["instructions_max"] <= limits[function]
            verdicts.append((within, f"{label}: {figures['instructions_max']} instructions, "
                             f"limit {limits[function]}{'' if within else path}"))
    return verdicts


def public(figures):
    return {k: v for k, v in figures.items() if not k.startswith("_")}


def update(path, measured):
    old = json.loads(path.read_text()) if path.is_file() else {}
    data = {"about": "counts on the fast path, ret included; check/golden.py writes and compares this file",
            "limits": old.get("limits", LIMITS),
            "flavours": old.get("flavours", {})}
    for name, figures in measured.items():
        data["flavours"][name] = {**figures, "functions": {f: public(v) for f, v in figures["functions"].items()}}
    path.write_text(json.dumps(data, indent=2) + "\n")


# ---------------------------------------------------------------- self-test

X86_CASES = [
    ("mov", "0x8(%rdi),%rax", (1, 0, 0, 0)), ("mov", "%rax,0x8(%rdi)", (0, 1, 0, 0)),
    ("mov", "%fs:0x0,%rax", (1, 0, 0, 0)), ("lea", "0x0(,%rdi,8),%rax", (0, 0, 0, 0)),
    ("addl", "$0x1,0x10(%rax)", (1, 1, 0, 0)), ("cmp", "%rax,(%rdx)", (1, 0, 0, 0)),
    ("cmpq", "$0x0,(%rdx)", (1, 0, 0, 0)), ("push", "%rbx", (0, 1, 0, 0)), ("pop", "%rbx", (1, 0, 0, 0)),
    ("jne", "1234 <malloc+0x4>", (0, 0, 1, 0)), ("jmp", "*0x8(%rip)", (1, 0, 1, 0)),
    ("call", "1234 <memset@plt>", (0, 0, 0, 1)), ("ret", "", (0, 0, 0, 0)),
    ("lock cmpxchg", "%rcx,(%rdx)", (1, 1, 0, 0)), ("xchg", "%rax,(%rdi)", (1, 1, 0, 0)),
    ("subw", "$0x1,0x4(%rdx)", (1, 1, 0, 0)), ("movups", "%xmm0,(%rdi)", (0, 1, 0, 0)),
    ("rep stos", "%rax,%es:(%rdi)", (0, 1, 0, 0)), ("movzwl", "(%rax,%rcx,2),%edx", (1, 0, 0, 0)),
    ("nopw", "0x0(%rax,%rax,1)", (0, 0, 0, 0)), ("sete", "(%rax)", (0, 1, 0, 0)),
    ("imul", "0x8(%rax),%rcx", (1, 0, 0, 0)), ("xor", "%eax,%eax", (0, 0, 0, 0)),
]
ARM_CASES = [
    ("ldr", "x0, [x1]", (1, 0, 0, 0)), ("stp", "x0, x1, [sp, #-16]!", (0, 1, 0, 0)),
    ("b.ne", "1234 <malloc+0x4>", (0, 0, 1, 0)), ("cbz", "x0, 1234 <a>", (0, 0, 1, 0)),
    ("bl", "1234 <a>", (0, 0, 0, 1)), ("mrs", "x0, tpidr_el0", (0, 0, 0, 0)),
    ("swpal", "x0, x1, [x2]", (1, 1, 0, 0)), ("ret", "", (0, 0, 0, 0)), ("ldrb", "w0, [x1]", (1, 0, 0, 0)),
]


def self_test():
    results = []

    def case(good, text):
        results.append(bool(good))
        if not good:
            print(f"self-test: {text}")

    for cases, classify in ((X86_CASES, classify_x86), (ARM_CASES, classify_arm)):
        for mnemonic, operands, expected in cases:
            got = classify(Instruction(0, 4, mnemonic, operands, None))
            case(got == expected, f"{mnemonic} {operands}: {got} instead of {expected}")
    insn = lambda at, name, target=None: (at, Instruction(at, 1, name, "", target))
    code = dict([insn(0, "mov"), insn(1, "jne", 9), insn(2, "call", 20), insn(3, "jmp", 7), insn(7, "ret"), insn(20, "ret")])
    case(straight_path("x86_64", code, 0) == [0, 1, 2, 3, 7], "straight path")
    case(own_path("x86_64", code, [0, 1, 2, 20, 21, 3, 7]) == (0, 1, 2, 3, 7), "own path")
    figures = summarise("x86_64", code, 0, [("f", 1, [0, 1, 2, 20, "~", 3, 7]), ("f", 2, [0, 1, 2, 20, 3, 7])])
    case(figures["straight"] and figures["instructions"] == 6 and figures["calls"] == 1, f"figures {figures}")
    now = {"compiler": "c", "flags": "-O2", "functions": {"malloc": figures}}

    def failures(edit, limits=None):
        golden = json.loads(json.dumps({**now, "functions": {"malloc": public(figures)}}))
        edit(golden)
        return [t for good, t in compare("n", "shared", golden, now, limits or {"malloc": 14}) if not good]

    case(not failures(lambda g: None), "equal must pass")
    case(not failures(lambda g: g["functions"]["malloc"].update(instructions=6)), "fewer must pass")
    for key in COUNTS:
        # One less in the golden file: the count has grown since.
        grown = failures(lambda g, k=key: g["functions"]["malloc"].update({k: g["functions"]["malloc"][k] - 1}))
        case(len(grown) == 1 and key in grown[0], f"a larger {key} must fail: {grown}")
    case(not failures(lambda g: g.update(compiler="d")), "another compiler within the limits must pass")
    case(failures(lambda g: g.update(compiler="d"), {"malloc": 4}), "another compiler must keep the limits")
    case(failures(lambda g: g.update(flags="-O3")), "other flags must fail")
    case(failures(lambda g: g["functions"].clear()), "an unknown function must fail")
    case(failures(lambda g: None, {"malloc": 4}), "a passed limit must fail")
    case(failures(lambda g: g["functions"]["malloc"].update(fast_calls_percent=106)), "a lower rate must fail")
    figures["straight"] = False
    case(failures(lambda g: g["functions"]["malloc"].update(straight=True)), "a path no longer straight must fail")
    figures["straight"], figures["_forbidden"] = True, ["endbr64 at 0x0"]
    case(failures(lambda g: None), "a landing pad must fail")
    print(f"golden self-test: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def stay_on(processors):
    """A tracer and the program that it traces take turns: on one processor neither waits for another to wake up."""
    os.sched_setaffinity(0, {processors.get()})


def measure_all(chosen, library):
    """{name: figures} and the failures. Each flavour has a folder of its own, and one at a time is built and traced on
    each processor."""
    running, measured, failures = {}, {}, []
    processors = multiprocessing.Queue()
    for processor in sorted(os.sched_getaffinity(0)):
        processors.put(processor)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=stay_on, initargs=(processors,)) as pool:
        for flavour in chosen:
            if shutil.which(flavour.cc):
                running[flavour.name] = pool.submit(measure, flavour, library)
            else:
                failures.append((False, f"{flavour.name}: no {flavour.cc} here"))
        for name, future in running.items():
            try:
                measured[name] = future.result()
            except (Failure, subprocess.SubprocessError) as error:
                failures.append((False, f"{name}: {error}"))
    return measured, failures


def main():
    parser = argparse.ArgumentParser(description="compare the fast path with its golden counts")
    parser.add_argument("--update", action="store_true", help="rewrite the golden file")
    parser.add_argument("--golden", type=Path, default=GOLDEN, help="the golden file")
    parser.add_argument("--lib", type=Path, help="check this library instead of building the flavours")
    parser.add_argument("--flavour", action="append", help="only this flavour (may be repeated)")
    parser.add_argument("--save", type=Path, help="write what is measured to this file")
    parser.add_argument("--paths", action="store_true", help="print the instructions of each fast path")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if arguments.save:
        arguments.save.unlink(missing_ok=True)  # where measuring fails, an older one is not to stand for it
    chosen = [f for f in FLAVOURS if not arguments.flavour or f.name in arguments.flavour]
    if arguments.lib:
        chosen = FLAVOURS[:1]
    measured, verdicts = measure_all(chosen, arguments.lib and arguments.lib.resolve())
    if arguments.save:
        arguments.save.write_text(json.dumps(measured))
    print(f"{'':20} {'function':17} insns  worst loads stores branches calls  sizes on one path  fast calls")
    for name, figures in measured.items():
        for function, row in figures["functions"].items():
            print(f"{name:20} {function:17} {row['instructions']:5} {row['instructions_max']:6} {row['loads']:5} "
                  f"{row['stores']:6} {row['branches']:8} {row['calls']:5} "
                  f"{row['sizes_on_fast_path']:9} of {row['sizes']:4} {row['fast_calls_percent']:9} %"
                  f"{'' if row['straight'] else '  not straight'}")
            for line in row["_path"] if arguments.paths else ():
                print(f"        {line}")
    if arguments.update and all(good for good, _ in verdicts):
        update(arguments.golden, measured)
        print(f"golden: wrote {arguments.golden}")
        return 0
    golden = json.loads(arguments.golden.read_text()) if arguments.golden.is_file() else {}
    for flavour in chosen:
        if flavour.name in measured:
            verdicts += compare(flavour.name, flavour.kind, golden.get("flavours", {}).get(flavour.name, {}),
                                measured[flavour.name], golden.get("limits", LIMITS).get(flavour.arch, {}))
    for good, text in verdicts:
        if not good:
            print(f"error: {text}")
    passed = sum(good for good, _ in verdicts)
    print(f"golden: {passed} passed, {len(verdicts) - passed} failed")
    return 1 if passed != len(verdicts) or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
