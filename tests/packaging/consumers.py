"""consumers.py: C and C++ projects that use weir: CMake, pkg-config, vendored, by its C++ header.

Who may import it: run.py. Each function is a group of verdicts on a bench. It deliberately does not look
into weir's build: a consumer sees a prefix, or a source tree.

SPDX-License-Identifier: Apache-2.0
"""
import re
from pathlib import Path

from bench import CONSUMER, LIBDIR, ROOT, Failure

C_SOURCES = "main.c;pair.c"
CXX_SOURCES = "main.cpp;pair.cpp"
MIXED_SOURCES = "main.cpp;pair.c"
SOURCES = {"C": C_SOURCES, "CXX": CXX_SOURCES, "C;CXX": MIXED_SOURCES}
SHARED_HOME = "libweir.so.1"
CLANG = ("-DCMAKE_C_COMPILER=clang-19", "-DCMAKE_CXX_COMPILER=clang++-19")
# What a project may ask of its own code.
STRICT = ("-DCMAKE_C_FLAGS=-Wall -Wextra -Wconversion -Wcast-align -pedantic -Werror", "-DCMAKE_C_STANDARD=11",
          "-DCMAKE_C_VISIBILITY_PRESET=hidden", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON")
INSTALLED = [
    "include/weir/pool.h", "include/weir/weir.h", "include/weir/weir.hpp", "include/weir/wire.h", f"{LIBDIR}/libweir.a",
    f"{LIBDIR}/libweir.so", f"{LIBDIR}/libweir.so.1", f"{LIBDIR}/libweir.so.1.0.0",
    f"{LIBDIR}/libweir-dlopen.so.1", f"{LIBDIR}/libweir-dlopen.so.1.0.0",
    f"{LIBDIR}/cmake/weir/weirConfig.cmake", f"{LIBDIR}/cmake/weir/weirConfigVersion.cmake",
    f"{LIBDIR}/cmake/weir/weir-object.cmake", f"{LIBDIR}/cmake/weir/weir-shared.cmake",
    f"{LIBDIR}/cmake/weir/weir-shared-release.cmake", f"{LIBDIR}/cmake/weir/weir-static.cmake",
    f"{LIBDIR}/cmake/weir/weir-static-release.cmake", f"{LIBDIR}/pkgconfig/weir.pc",
    f"{LIBDIR}/pkgconfig/weir-static.pc", "share/man/man3/libweir.3",
]


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def layout(bench):
    """What is installed, where, and that it names no folder of the build."""
    found = files_below(bench.moved)
    sources = sorted(f"share/weir/src/{p.relative_to(ROOT / 'src')}" for p in (ROOT / "src").rglob("*")
                     if p.suffix in (".c", ".h", ".def"))
    bench.check("installs these files and no others", found == sorted(INSTALLED + sources),
                set(found) ^ set(INSTALLED + sources))
    texts = [bench.moved / f for f in found if f.startswith((f"{LIBDIR}/cmake", f"{LIBDIR}/pkgconfig", "share/man"))]
    for text in texts:
        named = [word for word in (str(bench.build), str(ROOT)) if word in text.read_text()]
        # The exported targets say the first prefix once, to recognise links into it; see below.
        bench.check(f"{text.name} names no folder of the build", not named or text.name.startswith("weir-s"), named)
    dynamic = bench.must("readelf", "-d", bench.moved / LIBDIR / "libweir.so.1.0.0")
    bench.check("the soname is libweir.so.1", "soname: [libweir.so.1]" in dynamic, dynamic)
    staged = bench.build / "staged"
    bench.must("cmake", "--install", bench.build / "weir", env={"DESTDIR": str(staged)})
    prefix = staged / str(bench.build / "first").lstrip("/")
    bench.check("DESTDIR holds the same", files_below(prefix) == found, set(files_below(prefix)) ^ set(found))
    bench.check("DESTDIR keeps the prefix empty", not (bench.build / "first").exists())
    other = bench.build / "prefix"
    bench.must("cmake", "--install", bench.build / "weir", "--prefix", other, "--component", "runtime")
    bench.check("--component runtime is the library alone", files_below(other) ==
                sorted(f"{LIBDIR}/{name}.so.1{rest}" for name in ("libweir", "libweir-dlopen") for rest in ("", ".0.0")),
                files_below(other))


def configure(bench, name, prefix, languages, kinds, *options):
    """(status, text) of a fresh consumer's configuration."""
    folder = bench.build / "consumer" / name
    status, out, error = bench.run(
        "cmake", "-S", CONSUMER, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DLANGUAGES={languages}", f"-DSOURCES={SOURCES[languages]}", f"-DKINDS={kinds}", *options)
    return folder, status, out + error


def consume(bench, name, prefix, languages, kinds, *options, own=""):
    """A fresh project is configured, built and run: its folder, or None when that already failed. `own`: the
    kinds that a program with operators of its own links too."""
    folder, status, text = configure(bench, name, prefix, languages, kinds, *options, f"-DOWN={own}")
    if not bench.check(f"{name}: configures", status == 0, text):
        return None
    status, out, error = bench.run("cmake", "--build", folder, "--", "-j2")
    if not bench.check(f"{name}: builds", status == 0, out + error):
        return None
    for kind in kinds.split(";"):
        home = SHARED_HOME if kind == "weir" else f"probe_{kind}"
        symbols = {"malloc": home}
        if languages != "C":
            symbols["_Znwm"] = home
        bench.probe(f"{name}: weir::{kind} runs on weir", folder / f"probe_{kind}", symbols)
        bench.quiet(f"{name}: weir::{kind} is linked even where nobody says malloc", folder / f"quiet_{kind}")
    for kind in filter(None, own.split(";")):
        bench.probe(f"{name}: weir::{kind} with a program's own operator new", folder / f"own_{kind}",
                    {"malloc": SHARED_HOME if kind == "weir" else f"own_{kind}"})
    return folder


def refused(bench, what, prefix, languages, kinds, words, *options):
    """One verdict: the project is not configured, and the words say why."""
    _, status, text = configure(bench, re.sub(r"\W+", "-", what), prefix, languages, kinds, *options)
    said = " ".join(text.split())
    return bench.check(what, status != 0 and all(word in said for word in words), text)


def cmake_packages(bench):
    """find_package from the moved prefix: shared, archive and object, in C, C++ and both."""
    kinds = "weir;static;object"
    as_needed = "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed"
    consume(bench, "c", bench.moved, "C", kinds, "-DVERSION=0.1", as_needed)
    consume(bench, "cxx", bench.moved, "CXX", kinds, "-DCOMPONENTS=object", as_needed, own="weir;static")
    consume(bench, "mixed-strict", bench.moved, "C;CXX", "object", "-DCMAKE_BUILD_TYPE=Debug", "-DWEAK=ON", *STRICT,
            own="object")
    refused(bench, "C++ alone is told to add C", bench.moved, "CXX", "object", ["needs the language C"])
    refused(bench, "an unknown component is refused", bench.moved, "C", "weir",
            ["no component shiny", "has the components shared, static and object"], "-DCOMPONENTS=shiny")
    for version in ("0.2", "1.0", "0.0.9"):
        refused(bench, f"version {version} is refused", bench.moved, "C", "weir", ["version"], f"-DVERSION={version}")


def example(bench):
    """The example program as a project of its own: it finds the package, and its heap is weir's."""
    folder = bench.build / "example"
    bench.must("cmake", "-S", ROOT / "examples/http_proxy", "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={bench.moved}",
               "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror")
    bench.must("cmake", "--build", folder, "--", "-j2")
    for program, weir in (("http_proxy", True), ("http_proxy_plain", False)):
        status, out, error = bench.run(folder / program, "--help", env={"WEIR_STATS": "exit"})
        bench.check(f"{program} is {'' if weir else 'not '}on weir", status == 0 and "--backend" in out and
                    ('"alloc_calls":' in error) == weir, f"status {status}\n{out}{error}")


def calls_of(bench, program, function, names):
    """The names that the function still calls or jumps to."""
    code = bench.must("objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", program)
    if f"<{function}>:" not in code:
        raise Failure(f"{program} has no {function}")
    targets = re.findall(r"\b(?:call|jmp|bl|b)\s.*<([\w.]+)(?:@plt)?>", code)
    return sorted(set(targets) & names)


# malloc and what else its address is called.
MALLOC = {"malloc", "__libc_malloc"}


def lto(bench):
    """Link-time optimisation with the project's own compiler takes malloc into its callers."""
    ipo = "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON"
    release = "-DCMAKE_BUILD_TYPE=Release"
    lld = "-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld"
    rows = [("gcc-no-lto", "C", False, (release,)),
            ("gcc-lto", "C;CXX", True, (release, ipo)),
            ("gcc-lto-cxx", "CXX", True, (release, ipo, "-DCOMPONENTS=object")),
            ("clang-full-lto", "C", True, (release, lld, *CLANG, "-DCMAKE_C_FLAGS=-flto")),
            ("clang-thin-lto", "C;CXX", True,
             (release, lld, *CLANG, "-DCMAKE_C_FLAGS=-flto=thin", "-DCMAKE_CXX_FLAGS=-flto=thin"))]
    for name, languages, inlined, options in rows:
        folder = consume(bench, name, bench.moved, languages, "object", *options)
        if folder is not None:
            left = calls_of(bench, folder / "probe_object", "probe_pair", MALLOC)
            bench.check(f"{name}: malloc is {'inlined' if inlined else 'called'}", (not left) == inlined, left)


def partial(bench):
    """Builds of one kind of library alone: what is there works, what is missing is said."""
    shared = bench.installed("shared", "-DWEIR_STATIC=OFF")
    static = bench.installed("static", "-DWEIR_SHARED=OFF")
    bench.check("shared alone has no archive", not list(shared.rglob("libweir.a")))
    bench.check("static alone has no shared library", not list(static.rglob("libweir.so*")))
    consume(bench, "shared-alone", shared, "C", "weir;object", "-DCOMPONENTS=shared")
    consume(bench, "static-alone", static, "C;CXX", "static;object", "-DCOMPONENTS=static")
    refused(bench, "shared alone says that there is no archive", shared, "C", "weir",
            ["no component static", "built with WEIR_STATIC=OFF"], "-DCOMPONENTS=static")
    refused(bench, "static alone says that there is no shared library", static, "C", "static",
            ["no component shared", "built with WEIR_SHARED=OFF"], "-DCOMPONENTS=shared")
    make(bench, "pkg-config of static alone", static, {"malloc": "probe"}, "weir")


def vendored(bench):
    """The source tree inside another project, as people vendor it."""
    here = f"-DVENDORED={ROOT}"
    for kinds, absent in (("weir", "libweir.a"), ("static;object", "libweir.so*")):
        name = f"vendored-{kinds.replace(';', '-')}"
        folder = consume(bench, name, "", "C;CXX", kinds, here, *STRICT)
        if folder is None:
            continue
        bench.check(f"{name}: builds nothing else", not list(folder.rglob(absent)), list(folder.rglob(absent)))
        bench.check(f"{name}: builds no tests", not list(folder.rglob("*gtest*")))
        staged = bench.build / f"{name}-installed"
        bench.must("cmake", "--install", folder, "--prefix", staged)
        bench.check(f"{name}: installs nothing", not staged.exists() or not files_below(staged))


def make(bench, what, prefix, homes, package, *arguments, libraries=False):
    """The Makefile, with the .pc files of a moved prefix."""
    out = bench.build / "make" / re.sub(r"\W+", "-", what)
    out.mkdir(parents=True)
    env = {"PKG_CONFIG_PATH": str(prefix / LIBDIR / "pkgconfig")}
    status, text, error = bench.run("make", "-C", CONSUMER, f"OUT={out}", f"PACKAGE={package}", *arguments, env=env)
    if not bench.check(f"{what}: builds", status == 0, text + error):
        return
    env = {"LD_LIBRARY_PATH": str(prefix / LIBDIR)} if libraries else None
    bench.probe(f"{what}: runs on weir", out / "probe", homes, env)
    bench.quiet(f"{what}: is linked even where nobody says malloc", out / "quiet", env)


def pkgconfig(bench):
    """pkg-config from the moved prefix: shared, the archive, a program without shared libraries."""
    prefix = bench.build / "moved-without-blanks" # make and pkg-config split their words at blanks
    prefix.symlink_to(bench.moved)
    make(bench, "pkg-config weir", prefix, {"malloc": SHARED_HOME}, "weir", libraries=True)
    make(bench, "pkg-config weir-static", prefix, {"malloc": "probe"}, "weir-static")
    make(bench, "pkg-config --static weir", prefix, {}, "weir", "STATIC=--static")
    version = bench.must("pkg-config", "--modversion", "weir",
                         env={"PKG_CONFIG_PATH": str(prefix / LIBDIR / "pkgconfig")}).strip()
    header = (ROOT / "include/weir/weir.h").read_text()
    numbers = re.findall(r"#define WEIR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    bench.check("pkg-config's version is the header's", version == ".".join(numbers), version)


def header(bench):
    """weir.hpp: each standard, two compilers, two C++ libraries, and without exceptions and RTTI."""
    strict = ["-O1", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
    source = Path(__file__).resolve().parent / "cxx" / "weir_hpp.cpp"
    rows = [(compiler, standard, []) for compiler in ("g++", "clang++-19") for standard in (17, 20, 23)]
    rows += [("clang++-19", 23, ["-stdlib=libc++"]), ("g++", 17, ["-fno-exceptions", "-fno-rtti"])]
    for compiler, standard, flags in rows:
        what = " ".join(["weir.hpp", compiler, f"C++{standard}", *flags])
        program = bench.build / re.sub(r"\W+", "-", what)
        status, out, error = bench.run(
            compiler, f"-std=c++{standard}", *strict, *flags, "-I", bench.moved / "include", source, "-o", program,
            "-L", bench.moved / LIBDIR, "-lweir", f"-Wl,-rpath,{bench.moved / LIBDIR}")
        if bench.check(f"{what}: compiles", status == 0, out + error):
            status, out, error = bench.run(program)
            bench.check(f"{what}: works", status == 0 and out.endswith(": 0 failed\n"), out + error)
    status, _, error = bench.run("g++", "-std=c++17", "-I", bench.moved / "include", source, "-o", bench.build / "no")
    bench.check("weir.hpp: does not link without weir", status != 0 and "weir_version" in error, error)
