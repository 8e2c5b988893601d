"""debian.py: the packages libweir1, libweir-dev and weir: made, judged, installed, used, removed.

Who may import it: run.py. They are installed below a folder, against a copy of this machine's package
database, so that dependencies are looked up and nothing of the machine changes. Of lintian's verdicts
the errors count; docs/packaging.md explains the warnings. It deliberately does not know how the packages are made.

SPDX-License-Identifier: Apache-2.0
"""
import gzip
import os
import re
import shutil

from bench import ROOT
from consumers import CONSUMER, SHARED_HOME, files_below

PACKAGES = ("libweir1", "libweir-dev", "weir")


def packages(bench):
    folder = bench.build / "deb"
    cargo = [f"-DWEIR_CARGO_FOLDER={bench.cargo_target.resolve()}"] if bench.cargo_target else []
    bench.must("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DWEIR_TESTS=OFF", "-DCMAKE_INSTALL_PREFIX=/usr",
               "-DWEIR_TOOL=CARGO", "-DWEIR_CARGO_PROFILE=dev", *cargo)
    bench.must("cmake", "--build", folder, "--", "-j2")
    bench.must("cpack", "-G", "DEB", cwd=folder)
    files = {name: next(iter(folder.glob(f"{name}_*.deb")), None) for name in PACKAGES}
    if not bench.check("cpack makes the three packages", all(files.values()), files):
        return
    control(bench, files)
    lintian(bench, files)
    used(bench, files)
    status, out, error = bench.run("cpack", "-G", "DEB", cwd=bench.build / "weir")
    bench.check("a build for another prefix is not packed", status != 0 and "CMAKE_INSTALL_PREFIX=/usr" in out + error,
                out + error)


def control(bench, files):
    def field(package, name):
        return bench.must("dpkg-deb", "-f", files[package], name).strip()

    version = field("libweir1", "Version")
    bench.check("libweir1 depends on libc alone", re.fullmatch(r"libc6 \(>= [\d.]+\)", field("libweir1", "Depends")),
                field("libweir1", "Depends"))
    bench.check("libweir-dev depends on its libweir1", f"libweir1 (= {version})" in field("libweir-dev", "Depends"))
    depends = field("weir", "Depends")
    bench.check("weir depends on shared libraries alone", "libc6" in depends and "libweir" not in depends, depends)
    folder = bench.build / "control"
    bench.must("dpkg-deb", "-e", files["libweir1"], folder)
    upstream = version.rsplit("-", 1)[0]
    bench.check("libweir1 has shlibs", (folder / "shlibs").read_text().splitlines() ==
                [f"{library} 1 libweir1 (>= {upstream})" for library in ("libweir", "libweir-dlopen")])
    bench.check("libweir1 has ldconfig run", "activate-noawait ldconfig" in (folder / "triggers").read_text())


def lintian(bench, files):
    for name, file in files.items():
        # As root lintian says that it would rather not be, on stderr.
        status, out, _ = bench.run("lintian", "--fail-on", "none", file)
        errors = [line for line in out.splitlines() if line.startswith("E: ")]
        bench.check(f"lintian finds no error in {name}", status == 0 and not errors, "\n".join(errors))


def used(bench, files):
    """Installed below a folder, used from there, removed: nothing is left."""
    root, admin = bench.build / "debian-root", bench.build / "debian-admin"
    root.mkdir()
    admin.mkdir()
    (admin / "updates").mkdir()
    (admin / "info").mkdir()
    shutil.copy("/var/lib/dpkg/status", admin / "status")
    dpkg = [] if os.geteuid() == 0 else ["fakeroot"]
    # Triggers would be run by this machine's libc package.
    dpkg += ["dpkg", f"--admindir={admin}", f"--instdir={root}", "--force-script-chrootless", "--force-not-root",
             "--no-triggers", f"--log={bench.build / 'dpkg.log'}"]
    status, out, error = bench.run(*dpkg, "-i", *files.values())
    if not bench.check("dpkg installs the three", status == 0, out + error):
        return
    installed_works(bench, root)
    plain = [p.name for p in (root / "usr/share/man").rglob("*.[1-9]")]
    bench.check("all manual pages are compressed", not plain, plain)
    status, out, error = bench.run(*dpkg, "--purge", "weir", "libweir-dev", "libweir1")
    bench.check("dpkg removes the three", status == 0, out + error)
    left = files_below(root)
    bench.check("nothing is left", not left, left)


def installed_works(bench, root):
    libdir = next(root.glob("usr/lib/*/libweir.so.1")).parent
    env = {"PKG_CONFIG_PATH": str(libdir / "pkgconfig"), "LD_LIBRARY_PATH": str(libdir)}
    out = bench.build / "deb-consumer"
    out.mkdir()
    status, text, error = bench.run("make", "-C", CONSUMER, f"OUT={out}", "PACKAGE=weir", env=env)
    if bench.check("libweir-dev: a Makefile links it", status == 0, text + error):
        bench.probe("libweir1: the program runs on weir", out / "probe", {"malloc": SHARED_HOME}, env)
    weir = root / "usr/bin/weir"
    status, text, error = bench.run(weir, "run", "--", "sort", "/dev/null")
    bench.check("weir: runs a program on the library inside it", status == 0 and ": on weir" in error, text + error)
    pages = sorted(p.name for p in (root / "usr/share/man/man1").glob("*"))
    bench.check("weir: has its manual pages", "weir.1.gz" in pages and "weir-run.1.gz" in pages, pages)
    for page in [*(root / "usr/share/man").rglob("*.gz")]:
        text = gzip.decompress(page.read_bytes()).decode()
        plain = bench.build / page.name.removesuffix(".gz")
        plain.write_text(text)
        status, said, error = bench.run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", plain)
        bench.check(f"{plain.name}: man has nothing to say", status == 0 and not error.strip(), error)
    completions(bench, root)


def completions(bench, root):
    share = root / "usr/share"
    rows = [("bash", share / "bash-completion/completions/weir", 'source "$1" && complete -p weir', "complete "),
            ("zsh", share / "zsh/vendor-completions/_weir",
             'fpath=("${1:h}" $fpath); autoload -U compinit; compinit -u -D; print $_comps[weir]', "_weir"),
            ("fish", share / "fish/vendor_completions.d/weir.fish", 'source $argv[1]; complete -C "weir ru"', "run")]
    for shell, file, script, word in rows:
        # zsh -f and fish -N read no settings of the user.
        plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["-N"]}[shell]
        extra = [shell] if shell != "fish" else []
        status, out, error = bench.run(shell, *plain, "-c", script, *extra, file)
        bench.check(f"{shell} completes weir", file.is_file() and status == 0 and word in out, out + error)
