# emulator.py: how the runners here start a program for aarch64: the emulator's command line, and the
# environment of the program.
#
# They import it. It deliberately knows no test.
#
# SPDX-License-Identifier: Apache-2.0
import os

CROSS_ROOT = "/usr/aarch64-linux-gnu"
# The emulator takes DC ZVA at an address with a tag for one at an unmapped address (up to qemu 10.0, user mode; DC
# GVA and DC GZVA are right). This makes libc choose a memset that has none.
TUNABLES = "glibc.cpu.name=kunpeng920"


def arguments(parser):
    """The options that all runners have."""
    parser.add_argument("--emulator", required=True, help="a qemu-aarch64 that keeps tags (check/emulator.sh)")
    parser.add_argument("--root", default=CROSS_ROOT, help="folder with the C library for aarch64")
    parser.add_argument("--lib", help="the allocator to preload")


def command(args, words, options=()):
    """The command line for a program; args are those above."""
    line = [args.emulator, "-cpu", "max", "-L", args.root, *options]
    if args.lib:
        line += ["-E", f"LD_PRELOAD={os.path.abspath(args.lib)}"]
    return [str(w) for w in [*line, *words]]


def environment(options, **more):
    """The environment with WEIR_OPTIONS alone, or none, of what might reach an allocator."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEIR_", "GLIBC_TUNABLES", "MALLOC_", "SCUDO_"))}
    if options:
        env["WEIR_OPTIONS"] = options
    return env | {"GLIBC_TUNABLES": TUNABLES} | more
