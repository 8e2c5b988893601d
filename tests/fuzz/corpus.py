#!/usr/bin/env python3
# corpus.py: writes the seed inputs of the fuzz targets: for fuzz_malloc patterns of calls that each reach
# another part of an allocator, for fuzz_options strings with each option and each kind of mistake.
#
# Run by hand when the input format changes; the files are committed. It knows the formats that the
# targets describe. Usage: corpus.py [DIRECTORY]
#
# SPDX-License-Identifier: Apache-2.0
import os
import random
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FREE, REALLOC, MALLOC, CALLOC, ALIGNED, ALL, ROW = 0, 5, 7, 11, 12, 14, 15


def size_code(size):
    """Two bytes that stand for about `size`: see size_decode in fuzz_malloc.c."""
    for shift in range(16):
        for mantissa in ([size << (4 - shift)] if shift < 4 else [size >> (shift - 4)]):
            if mantissa < 4096 and (shift < 15 or mantissa < 3840):
                return bytes([shift << 4 | mantissa >> 8, mantissa & 255])
    return bytes([0xFF, min(255, size >> 16)])


def call(op, slot=0, size=0, argument=0, thread=0):
    return bytes([op << 4 | thread, slot & 255]) + size_code(size) + bytes([argument])


def malloc_seeds():
    rng = random.Random(1)
    yield "each-size", b"".join(call(MALLOC, i, s) for i, s in enumerate(range(0, 1041, 16)))
    yield "row-16", call(ROW, 0, 16, 63) + call(ALL)
    yield "row-1024", call(ROW, 0, 1024, 63) + call(ALL)
    yield "row-65536", call(ROW, 0, 65536, 63) + call(ALL)
    yield "turn-over", (call(ROW, 0, 64, 63) + call(ALL)) * 20
    yield "grow", b"".join(call(REALLOC, 0, 1 << k) for k in range(25))
    yield "shrink", b"".join(call(REALLOC, 0, 1 << k) for k in range(24, -1, -1))
    yield "two-grow", b"".join(call(REALLOC, k & 1, 30000 + k * 5000) for k in range(40))
    yield "calloc-reuse", b"".join(call(MALLOC, k, 3000) + call(FREE, k) + call(CALLOC, k, 3000) for k in range(32))
    yield "huge", b"".join(call(op, k, (1 + k) << 20) for k in range(8) for op in (MALLOC, REALLOC, FREE))
    yield "huge-calloc", b"".join(call(op, k, 8 << 20) for k in range(4) for op in (MALLOC, FREE, CALLOC))
    for name, flag in ("aligned", 0), ("posix", 32), ("memalign", 64):
        yield name, b"".join(call(ALIGNED, k, 100 * k, flag | k % 23) for k in range(46)) + call(ALL, 0, 0, 1)
    yield "remote-free", b"".join(call(MALLOC, k, 48) + call(FREE, k, thread=1 + k % 2) for k in range(64))
    yield "remote-rows", (call(ROW, 0, 48, 63) + call(ALL, thread=1) + call(ROW, 0, 48, 63, thread=2) + call(ALL)) * 8
    yield "remote-realloc", b"".join(call(REALLOC, k % 8, 100 * k, thread=k % 3) for k in range(64))
    yield "trim", call(ROW, 0, 60000, 63) + call(ALL) + call(ROW, 0, 0, 0) + call(ROW, 0, 60000, 63)
    for n in range(6):
        top = (128, 1024, 9000, 70000, 1 << 20, 1 << 22)[n]
        yield f"mixed-{n}", b"".join(
            call(rng.choice([FREE, FREE, FREE, REALLOC, MALLOC, MALLOC, MALLOC, CALLOC, ALIGNED]), rng.randrange(64),
                 rng.randrange(top), rng.randrange(256), rng.randrange(3)) for _ in range(200))


def option_seeds():
    with open(os.path.join(HERE, "../../src/core/options.def")) as f:
        text = f.read()
    names = re.findall(r"^WEIR_OPTION(?:_ENUM|_TEXT)?\((\w+)", text, re.M)
    yield "all-1", ":".join(f"{n}=1" for n in names)
    yield "all-words", ":".join(f"{n}={w}" for n, w in re.findall(r"^WEIR_OPTION_ENUM\((\w+), \d+, \"([\w|]+)\"", text, re.M))
    yield "sizes", "reserve=64m:dirty_max=1g:reserve=4k:dirty_max=1t"
    yield "counts", "check_every=1:map_count_max=16"
    yield "unknown", "chekcs=full:reserv=1"
    yield "malformed", "checks:=1::checks=:=:reserve=-1:reserve=99999999999999999999999g:reserve=1x:check_every=0"
    yield "long", "a" * 300 + "=" + "9" * 300


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "corpus")
    for kind, seeds in ("malloc", malloc_seeds()), ("options", option_seeds()):
        os.makedirs(os.path.join(base, kind), exist_ok=True)
        for name, data in seeds:
            with open(os.path.join(base, kind, name), "wb") as f:
                f.write(data if isinstance(data, bytes) else data.encode())


if __name__ == "__main__":
    main()
