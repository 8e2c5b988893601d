"""crate.py: the crate weir-malloc: as it is packaged, in a fresh project, without network.

Who may import it: run.py. It deliberately builds nothing from the tree's own folder: what is not in the
package is missed here.

SPDX-License-Identifier: Apache-2.0
"""
import re
import shutil

from bench import ROOT

CRATE = ROOT / "rust" / "weir-malloc"
PROGRAM = ROOT / "tests" / "packaging" / "crate" / "main.rs"
MANIFEST = """[package]
name = "stranger"
version = "0.0.0"
edition = "2024"

[features]
override = ["weir-malloc/override"]

[dependencies]
weir-malloc = {{ path = "{path}" }}

[workspace]
"""


def packaged(bench):
    work = bench.build / "crate"
    target = {"CARGO_TARGET_DIR": str(work / "target")}
    bench.must("cargo", "fetch", "--locked", "--manifest-path", CRATE / "Cargo.toml")
    offline = {**target, "CARGO_NET_OFFLINE": "true"}
    names(bench)
    bench.must("cargo", "package", "--allow-dirty", "--no-verify", "--locked", "--manifest-path", CRATE / "Cargo.toml",
               env=offline)
    package = next((work / "target" / "package").glob("weir-malloc-*.crate"))
    bench.must("tar", "-xf", package, "-C", work)
    inside = work / package.name.removesuffix(".crate")
    sources = {p.relative_to(ROOT / "src") for p in (ROOT / "src").rglob("*") if p.suffix in (".c", ".h", ".def")}
    missing = [str(s) for s in sources if not (inside / "csrc" / "src" / s).is_file()]
    bench.check("the package has all C sources, as files", not missing and not any(
        p.is_symlink() for p in inside.rglob("*")), missing)
    for features in ([], ["--features", "override"]):
        what = " ".join(["crate", *features])
        status, out, error = bench.run("cargo", "test", "--locked", *features, cwd=inside, env=offline)
        passed = sum(int(n) for n in re.findall(r"^test result: ok\. (\d+) passed", out, re.M))
        bench.check(f"{what}: the package's own tests pass", status == 0 and passed >= 11, out + error)
    lints = ["clippy", "--locked", "--all-targets", "--all-features", "--", "-D", "warnings"]
    for tool, folder in ((["fmt", "--check"], CRATE), (lints, inside)):
        status, out, error = bench.run("cargo", *tool, cwd=folder, env=offline)
        bench.check(f"crate: cargo {tool[0]} has nothing to say", status == 0, out + error)
    stranger(bench, work, inside, offline)


def stranger(bench, work, inside, offline):
    """A fresh project on the package, with libc's malloc left alone and with it replaced."""
    project = work / "stranger"
    (project / "src").mkdir(parents=True)
    shutil.copy(PROGRAM, project / "src" / "main.rs")
    (project / "Cargo.toml").write_text(MANIFEST.format(path=inside))
    shutil.copy(CRATE / "Cargo.lock", project / "Cargo.lock")
    for features, replaced in (([], False), (["--features", "override"], True)):
        what = " ".join(["fresh cargo project", *features])
        status, _, error = bench.run("cargo", "build", *features, cwd=project, env=offline)
        if not bench.check(f"{what}: builds", status == 0, error):
            continue
        program = work / "target" / "debug" / "stranger"
        status, out, error = bench.run(program)
        bench.check(f"{what}: runs on weir", status == 0 and re.match(r"weir [\d.]+: \d{4,} calls", out), out + error)
        defined = set(re.findall(r" [TW] (\w+)$", bench.must("nm", program), re.M))
        # C++'s operators are there too where somebody calls them; this program has no C++.
        taken = {"malloc", "free", "realloc"} & defined
        bench.check(f"{what}: {'replaces' if replaced else 'leaves'} libc's malloc", len(taken) == (3 if replaced else 0),
                    taken)


# Calls that the library passes on: a limit that is lowered, what only a process of one thread may do, handlers of
# signals.
WATCHED = {"setrlimit", "setrlimit64", "prlimit", "prlimit64", "unshare", "setns", "prctl", "chroot", "sigaction", "__sigaction",
           "signal", "bsd_signal", "ssignal", "sysv_signal", "__sysv_signal", "siginterrupt", "sigignore", "sigset"}


def names(bench):
    """c/names.h renames all that the library takes over, but what it has to see of the process."""
    exports = [line.split() for line in (ROOT / "check/abi.exports").read_text().splitlines()]
    taken = {row[0] for row in exports if len(row) == 2 and row[1] == "-"} - WATCHED
    renamed = re.findall(r"^#define (\w+) (\w+)$", (CRATE / "c/names.h").read_text(), re.M)
    bench.check("names.h renames what abi.exports lists", {old for old, _ in renamed} == taken,
                taken ^ {old for old, _ in renamed})
    bench.check("names.h gives each another name", len({new for _, new in renamed}) == len(renamed))
