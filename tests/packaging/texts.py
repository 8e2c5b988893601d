"""texts.py: the manual page libweir(3): well formed, and complete.

Who may import it: run.py. It deliberately compares the page with what the library itself prints, not with
the table that the page is made from.

SPDX-License-Identifier: Apache-2.0
"""
import re


def manual(bench):
    page = bench.moved / "share/man/man3/libweir.3"
    for command in (["mandoc", "-T", "lint", "-W", "warning"], ["groff", "-mandoc", "-ww", "-T", "utf8", "-z"],
                    ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]):
        status, out, error = bench.run(*command, page)
        complaint = error if command[0] != "mandoc" else out + error
        bench.check(f"libweir(3): {command[0]} has nothing to say", status == 0 and not complaint.strip(), complaint)
    text = bench.must("mandoc", "-T", "ascii", page)
    text = re.sub(r".\x08", "", text)
    _, _, said = bench.run("env", f"LD_PRELOAD={bench.library}", "WEIR_HELP=1", "sort", "/dev/null")
    options = re.findall(r"^weir: ([a-z_]+)=", said, re.M)
    bench.check("the library names its options", len(options) >= 10, said)
    for option in options:
        bench.check(f"libweir(3) has the option {option}", re.search(rf"^     {option}=", text, re.M) is not None)
    listed = re.findall(r"^     ([a-z_]+)=", text, re.M)
    bench.check("libweir(3) has no other option", sorted(set(listed)) == sorted(set(options)), (listed, options))
    bench.check("libweir(3) has all calls", all(f"{name}(" in text for name in (
        "weir_stats_get", "weir_stats_class_get", "weir_stats_heap_get", "weir_stats_json", "weir_version")))
