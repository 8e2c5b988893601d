#!/usr/bin/env python3
"""Fibers that change threads, with the allocator linked in every way, and what the compilers made of it.

Who may call it: CI, or a person; see README.md here. Each way of linking is built with the thread word as weir reads it
(`fresh`, or `dynamic` for dlopen) and, where the allocator is melted into the program, with a plain thread-local
variable (`naive`). Two things are checked. By disassembly: after each switch the next heap access is preceded by a read
of the thread pointer. By running: fibers migrate, and each block holds what its fiber wrote. A naive build that
the disassembly finds to keep a thread's address over a switch must be seen failing when it runs: if it is not, the
test has no teeth and fails. It deliberately does not know which compiler keeps what: that is what it finds out.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "check"))
import golden  # noqa: E402  (the disassembler)

KINDS = ("ucontext", "hand", "boost", "coroutine")
SOURCES = {"migrate": "migrate.c", "ucontext": "switch_ucontext.c", "hand": "switch_hand.c", "boost": "switch_boost.cpp",
           "coroutine": "switch_coroutine.cpp"}

# form: program and archive: an executable; library: a shared library with fibers and allocator in it; object: weir.o
# without LTO; shared: libweir.so.1, preloaded; dlopen: libweir-dlopen.so.1, loaded late.
Config = namedtuple("Config", "name arch cc lto form tls")
MELTED = ("program", "archive", "library")
AARCH64 = "--target=aarch64-linux-gnu"  # clang is a cross compiler as it is
CONFIGS = [
    Config(f"{arch}/{cc.replace('aarch64-linux-gnu-', '').split('-')[0]}-{lto or 'plain'}/{form}/{tls}", arch, cc, lto, form, tls)
    for arch, cc, lto, form, variants in [
        ("x86_64", "gcc", "", "object", ("fresh",)),
        ("x86_64", "gcc", "", "shared", ("fresh",)),
        ("x86_64", "gcc", "", "dlopen", ("dynamic",)),
        ("x86_64", "gcc", "lto", "program", ("fresh", "naive")),
        ("x86_64", "gcc", "lto", "library", ("fresh", "naive")),
        ("x86_64", "clang-19", "thin", "program", ("fresh", "naive")),
        ("x86_64", "clang-19", "thin", "archive", ("fresh",)),
        ("x86_64", "clang-19", "thin", "library", ("fresh", "naive")),
        ("x86_64", "clang-19", "full", "program", ("fresh", "naive")),
        ("x86_64", "clang-19", "full", "library", ("fresh", "naive")),
        ("aarch64", "aarch64-linux-gnu-gcc", "", "object", ("fresh",)),
        ("aarch64", "aarch64-linux-gnu-gcc", "lto", "program", ("fresh", "naive")),
        ("aarch64", "aarch64-linux-gnu-gcc", "lto", "library", ("fresh", "naive")),
        ("aarch64", "clang-19", "thin", "program", ("fresh", "naive")),
        ("aarch64", "clang-19", "full", "library", ("fresh", "naive")),
    ] for tls in variants]

# The test of what malloc takes from a bin: a heap is in use there, whoever's it is.
BIN_TEST = {"x86_64": re.compile(r"\$0xffff,"), "aarch64": re.compile(r"#0xffffffffff0000\b")}

# Where some compiler must be found to keep a plain variable's address over a switch.
KEPT_SOMEWHERE = ("x86_64", "aarch64")

SWITCH = {"ucontext": re.compile(r"<swapcontext\b"), "hand": re.compile(r"<fiber_switch\b"),
          "boost": re.compile(r"<jump_fcontext\b")}
# Functions that read the thread word themselves; heap_free_last and the like go on with what their caller read.
ALLOCATOR = re.compile(r"<(__libc_)?(malloc|free|cfree|calloc|realloc|_Znwm|_ZdlPvm|memalign|heap_alloc_(slow|above)"
                       r"|heap_free_slow|heap_free_near|delete_slow|heap_realloc|new_aligned|calloc_slow|weir_pool_(alloc|free)_slow|pool_(alloc|free)_slow)(@plt|\.\w+)*>")
UNWIND = re.compile(r"<ontop_fcontext")  # how Boost ends a fiber that is left over: not taken
TLS_CALL = re.compile(r"__tls_get_addr|tlsdesc")
WINDOW = 120  # instructions looked at behind a switch


class Failure(Exception):
    """Why a build or a run is not ok."""


def run_text(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise Failure(f"{' '.join(str(c) for c in command)}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


# ---------------------------------------------------------------- building

def cc_of(config):
    return [config.cc, AARCH64] if config.arch == "aarch64" and config.cc.startswith("clang") else [config.cc]


def cxx_of(config):
    cc = cc_of(config)
    return [cc[0].replace("clang", "clang++").replace("gcc", "g++"), *cc[1:]]


def lto_flags(config):
    return {"": [], "lto": ["-flto"], "thin": ["-flto=thin"], "full": ["-flto=full"]}[config.lto]


def link_flags(config):
    if config.cc.startswith("clang"):
        return ["-fuse-ld=lld-19"]
    return ["-flto-partition=one"] if config.lto else []


def kinds_of(config):
    # Boost: not packaged for the cross compiler; its headers call std::malloc, which loaded.h cannot catch.
    return [k for k in KINDS if k != "boost" or (config.arch == "x86_64" and config.form != "dlopen")]


def optimisation(config):
    # gcc inlines the fast path beside a switch from -O3 on; what it keeps there is the question.
    return "-O3" if config.cc.endswith("gcc") and config.form in MELTED else "-O2"


def compile_flags(config):
    position = ["-fPIC", "-fno-semantic-interposition"] if config.form == "library" else ["-fPIE"]
    branches = ["-fcf-protection=none"] if config.arch == "x86_64" else []
    return [*position, *lto_flags(config), *branches]


def pools_of(config):
    """How the fibers have their pool: see fiber.h."""
    return {"dlopen": 0, "shared": 2}.get(config.form, 1)


def build_allocator(config, folder):
    """What to link for the allocator."""
    if config.form in ("shared", "dlopen"):
        return []
    unit = folder / "weir.o"
    flags = ["-fPIC"] if config.form == "object" else compile_flags(config)
    run_text([*cc_of(config), "-std=gnu17", optimisation(config), *flags, "-fexceptions", f"-DWEIR_TLS={config.tls}",
              "-I", ROOT / "include", "-I", ROOT / "src", "-c", ROOT / "src/weir.c", "-o", unit])
    if config.form != "archive":
        return [unit]
    archive = folder / "libweir.a"
    archive.unlink(missing_ok=True)
    run_text(["llvm-ar-19" if config.cc.startswith("clang") else "gcc-ar", "rcs", archive, unit])
    return ["-Wl,-u,malloc", archive]


def build(config, folder):
    """(program, the binary that the fibers' code is in)."""
    folder.mkdir(parents=True, exist_ok=True)
    allocator = build_allocator(config, folder)
    objects = {}
    early = ["-include", HERE / "loaded.h"] if config.form == "dlopen" else []
    for part in ("migrate", *kinds_of(config)):
        source = HERE / SOURCES[part]
        is_cxx = source.suffix == ".cpp"
        objects[part] = folder / f"{part}.o"
        run_text([*(cxx_of(config) if is_cxx else cc_of(config)), "-std=gnu++20" if is_cxx else "-std=gnu17", "-Wall",
                  "-Wextra", "-Werror", optimisation(config), *compile_flags(config), f"-DFIBER_POOLS={pools_of(config)}",
                  "-I", ROOT / "include", "-fno-builtin", *early, "-c", source, "-o", objects[part]])
    libraries = ["-lboost_context"] if "boost" in kinds_of(config) else []
    libraries += ["-pthread", "-ldl"]
    program = folder / "migrate"
    fibers = [objects[k] for k in kinds_of(config)]
    linker = [*cxx_of(config), optimisation(config), *lto_flags(config), *link_flags(config)]
    if config.form == "library":
        library = folder / "libfibers.so"
        run_text([*linker, "-fPIC", "-shared", "-Wl,-soname,libfibers.so", "-o", library, *fibers, *allocator, *libraries])
        run_text([*linker, "-pie", "-rdynamic", "-o", program, objects["migrate"], library, "-Wl,-rpath,$ORIGIN",
                  *libraries])
        return program, library
    if config.form == "dlopen":
        run_text([*cc_of(config), "-O2", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-DFIBER_POOLS=0", "-I", ROOT / "include", "-c",
                  HERE / "loaded.c", "-o",
                  folder / "loaded.o"])
        for size in (128, 8):
            filler = folder / f"filler{size}.so"
            run_text([*cc_of(config), "-O2", "-fPIC", f"-DFILLER_BYTES={size}", "-shared", "-o", filler, HERE / "filler.c"])
            for i in range(64):
                shutil.copy(filler, folder / f"filler{size}-{i}.so")
        fibers.append(folder / "loaded.o")
    run_text([*linker, "-pie", "-rdynamic", "-o", program, objects["migrate"], *fibers, *allocator, *libraries])
    return program, program


# ---------------------------------------------------------------- disassembly

def reads_thread(arch, code, insn):
    """Whether the instruction begins a read of the thread's own word. On x86-64 one through %fs at the word's offset: a
    register's, or one written out that is neither 0 (the thread pointer alone, to which something kept may be
    added) nor the stack protector's; or a call for its address. On aarch64 the thread pointer, used as an
    address at once."""
    if arch == "aarch64":
        if insn.mnemonic != "mrs" or "tpidr_el0" not in insn.operands:
            return False
        register = insn.operands.split(",")[0]
        behind = [code.get(insn.at + 4 * i) for i in range(1, 5)]
        return any(i and re.search(rf"(\[|, ){register}\b", i.operands) for i in behind)
    if TLS_CALL.search(insn.operands):
        return True
    offset = re.search(r"%fs:(0x[0-9a-f]+|\(%\w+\))", insn.operands)
    return offset is not None and offset[1] not in ("0x0", "0x28")


def is_call(insn):
    return insn.mnemonic.split()[-1] in ("call", "callq", "bl", "blr")


def is_end(insn):
    return insn.mnemonic.split()[-1].startswith(("ret", "ud2", "udf"))


def is_jump(insn):
    return insn.mnemonic.split()[-1] in ("jmp", "jmpq", "b")


def verdict_behind(arch, code, at):
    """What comes first behind the switch whose next instruction is at `at`: fresh (the thread pointer is read), called
    (an allocator function that reads it itself), or kept (neither: the next heap access uses what was there before)."""
    for _ in range(WINDOW):
        insn = code.get(at)
        if insn is None or is_end(insn):
            return "kept"
        if reads_thread(arch, code, insn):
            return "fresh"
        if BIN_TEST[arch].search(insn.operands):
            return "kept"
        if is_call(insn) and not UNWIND.search(insn.operands):
            return "called" if ALLOCATOR.search(insn.operands) else "kept"
        if is_jump(insn) and not is_call(insn):
            if ALLOCATOR.search(insn.operands):
                return "called"
            if insn.target is None:
                return "kept"
            at = insn.target
        else:
            at = insn.at + insn.length
    return "kept"


def switches_of(arch, binary, kinds):
    """[(kind, verdict)] of each switch in the fibers' bodies. A coroutine has no switch in its frame: it returns."""
    code = golden.disassemble(arch, binary)
    places = golden.symbols(arch, binary)
    starts = sorted(set(places.values()))
    found = []
    for kind in kinds:
        if kind == "coroutine":
            continue
        start = places.get(f"fiber_body_{kind}")
        if start is None:
            raise Failure(f"no fiber_body_{kind} in {binary}")
        end = next((s for s in starts if s > start), max(code))
        for at in sorted(a for a in code if start <= a < end):
            if is_call(code[at]) and SWITCH[kind].search(code[at].operands):
                found.append((kind, verdict_behind(arch, code, at + code[at].length)))
        if kind not in {k for k, _ in found}:
            raise Failure(f"no switch found in fiber_body_{kind} of {binary}")
    return found


# ---------------------------------------------------------------- running

def environment_of(config, options, folder):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("WEIR_", "LD_"))}
    if config.form == "shared":
        environment["LD_PRELOAD"] = str(options.lib)
    if config.form == "dlopen":
        environment.update(FIBER_LIBRARY=str(options.lib.parent / "libweir-dlopen.so.1"),
                           FIBER_FILLER=str(folder / "filler%d-%d.so"), FIBER_REFUSED=str(options.lib))
    return environment


def migrate(config, options, folder, program, kind, switches):
    """(migrations made, None or what went wrong)."""
    command = [str(program), kind, str(switches)]
    if config.arch == "aarch64":
        command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout,
                              env=environment_of(config, options, folder))
    except subprocess.TimeoutExpired:
        return 0, f"still running after {options.timeout:.0f} s"
    counted = re.search(r": (\d+) migrations, (\d+) wrong", done.stdout)
    if done.returncode == 0 and counted and counted[2] == "0" and int(counted[1]) >= switches:
        return int(counted[1]), None
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return int(counted[1]) if counted else 0, f"{how}: {lines[-1][:150] if lines else 'no output'}"


def switches_for(config, options, kind):
    """A share of what was asked for: the slow kinds and the emulator make fewer."""
    share = {"ucontext": 0.05, "hand": 1.0, "boost": 1.0, "coroutine": 1.0}[kind]
    return max(20000, int(options.switches * share * (0.1 if config.arch == "aarch64" else 1.0)))


def check_real(config, options, folder, program):
    """Every kind migrates and nothing is lost; the number of migrations."""
    total = 0
    for kind in kinds_of(config):
        made, wrong = migrate(config, options, folder, program, kind, switches_for(config, options, kind))
        if wrong:
            raise Failure(f"{kind}: {wrong}")
        total += made
    return total


def check_naive(config, options, folder, program, kept):
    """A kind whose code keeps the address must be seen failing, and where none does, none may fail: the disassembly
    and the runs must agree. Returns what happened."""
    if not kept:
        for kind in kinds_of(config):
            _, wrong = migrate(config, options, folder, program, kind, switches_for(config, options, kind))
            if wrong:
                raise Failure(f"the disassembly shows no kept address, but {kind} fails: {wrong}")
        return "this compiler reads it again, as it happens; none lost"
    for kind in sorted(kept):
        for _ in range(5):
            _, wrong = migrate(config, options, folder, program, kind, max(1000000, switches_for(config, options, kind)))
            if wrong:
                return f"{kind} fails: {wrong}"
    raise Failure(f"keeps the thread's address in {', '.join(sorted(kept))} and was not seen failing")


def folder_of(config, options):
    return options.build / config.name.replace("/", "-")


def check(config, options, program, binary):
    """(line, migrations, kept sites) of one configuration that is built; raises Failure."""
    folder, kinds = folder_of(config, options), kinds_of(config)
    sites = [] if config.form == "dlopen" else switches_of(config.arch, binary, kinds)
    count = {v: sum(1 for _, verdict in sites if verdict == v) for v in ("fresh", "called", "kept")}
    text = "{fresh} fresh, {called} called, {kept} kept".format(**count) if sites else "by pointer"
    if config.tls == "naive":
        kept = {kind for kind, verdict in sites if verdict == "kept"}
        return f"{text}; {check_naive(config, options, folder, program, kept)}", 0, count["kept"]
    if count["kept"]:
        raise Failure(f"{text}: a heap access behind a switch uses what was read before it")
    if config.form in MELTED and count["fresh"] == 0:
        raise Failure(f"{text}: nothing was inlined, so that nothing was tested")
    total = check_real(config, options, folder, program)
    return f"{text}; {total} migrations, none lost", total, 0


# What stands behind a switch, and the verdict that it must get. The third is the known wrong cure: the thread pointer is
# read afresh, and an address that was kept is made relative to it.
SAMPLES = [
    ("x86_64", "fresh", ["mov 0x30(%rbx),%rdi", "mov %fs:(%rax),%rcx", "mov (%rcx),%rdx"]),
    ("x86_64", "fresh", ["add %fs:0xfffffffffffffff0,%rcx", "mov (%rcx),%rdx"]),
    ("x86_64", "kept", ["mov %fs:0x0,%rax", "mov %r13,%rdx", "sub %fs:0x0,%rdx", "mov (%rax,%rdx,1),%rcx",
                        "call 1000 <fiber_switch>"]),
    ("x86_64", "kept", ["mov %fs:0x28,%rax", "mov (%r13),%rcx", "call 1000 <fiber_switch>"]),
    ("x86_64", "kept", ["mov (%r13),%rcx", "call 1000 <heap_free_last>"]),
    ("x86_64", "called", ["mov $0x30,%edi", "call 1000 <__libc_malloc>"]),
    ("x86_64", "called", ["mov $0x30,%edi", "jmp 1000 <free@plt>"]),
    ("aarch64", "fresh", ["ldr x1, [x0, #8]", "mrs x2, tpidr_el0", "ldr x3, [x2, x1]"]),
    ("aarch64", "kept", ["mrs x2, tpidr_el0", "ldr x3, [x24]", "ldr x4, [x24, #8]", "mov x5, #0x1", "mov x6, x4",
                         "bl 1000 <fiber_switch>"]),
    ("aarch64", "kept", ["ldr x3, [x24]", "bl 1000 <fiber_switch>"]),
    ("aarch64", "kept", ["ldr x6, [x20]", "ldr x2, [x6, x1]", "tst x2, #0xffffffffff0000", "b.ne 1000", "mrs x3, tpidr_el0",
                         "ldr x0, [x3, x27]"]),
    ("x86_64", "kept", ["mov (%r13),%rcx", "mov (%rcx,%rdx,1),%rax", "cmp $0xffff,%rax", "mov %fs:0x28,%rax",
                        "mov %fs:(%rsi),%rax"]),
]


def self_test():
    """The verdicts on known code."""
    good = 0
    for arch, wanted, lines in SAMPLES:
        code = {}
        for index, line in enumerate(lines):
            mnemonic, operands = line.split(None, 1)
            code[4 * index] = golden.Instruction(4 * index, 4, mnemonic, operands, None)
        found = verdict_behind(arch, code, 0)
        good += found == wanted
        if found != wanted:
            print(f"self-test: {arch} {lines}: {found}, not {wanted}")
    print(f"fiber self-test: {good} passed, {len(SAMPLES) - good} failed")
    return 0 if good == len(SAMPLES) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--self-test", action="store_true", help="the disassembly's verdicts on known code")
    parser.add_argument("--lib", type=Path, help="libweir.so.1; libweir-dlopen.so.1 lies beside it")
    parser.add_argument("--build", type=Path, help="folder for what is built")
    parser.add_argument("--switches", type=int, default=1000000, help="of each fast kind in each build; default 1000000")
    parser.add_argument("--only", default="", help="regular expression on the builds' names")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one run")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if options.lib is None or options.build is None or not options.lib.is_file():
        parser.error("--lib and --build are needed, and the library must be there")
    options.lib, options.build = options.lib.resolve(), options.build.resolve()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    passed = failed = total = 0
    kept = dict.fromkeys(KEPT_SOMEWHERE, 0)
    tried = set()
    chosen = [config for config in CONFIGS if re.search(options.only, config.name)]
    # All are built before the first one runs: threads that wait for each other's fibers need the processors.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = [pool.submit(build, config, folder_of(config, options)) for config in chosen]
    for config, done in zip(chosen, built):
        try:
            text, made, sites = check(config, options, *done.result())
            print(f"ok   {config.name:36} {text}", flush=True)
            passed += 1
            total += made
            kept[config.arch] += sites
            if config.tls == "naive":
                tried.add(config.arch)
        except Failure as failure:
            print(f"FAIL {config.name:36} {failure}", flush=True)
            failed += 1
    for arch in sorted(tried) if not options.only else []:
        if kept[arch] == 0:
            print(f"FAIL {arch}: no compiler kept a plain variable's address over a switch: the test shows nothing")
            failed += 1
        else:
            passed += 1
    print(f"{total} migrations in all, none lost" if not failed else f"{total} migrations in the builds that passed")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
