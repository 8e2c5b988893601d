"""A Python program of some size: parses, sorts, encodes and runs threads; then asks the witness about its own blocks.

    python3 program.py WITNESS_LIBRARY WITNESS

prove.py runs it with an allocator preloaded. Prints what it computed, which is the same under every allocator, and how
many of its blocks the allocator calls its own. It deliberately does not know which allocator that is.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes
import json
import sys
import threading

BLOCKS = 64
THREADS = 4


def work(number):
    rows = [{"key": f"{number}-{i}", "value": [i * number] * (i % 40), "text": "x" * (i % 3000)} for i in range(300)]
    text = json.dumps(sorted(rows, key=lambda row: (len(row["value"]), row["key"])))
    return sum(len(row["text"]) for row in json.loads(text)) + len(text)


def main():
    results = [0] * THREADS

    def run(number):
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    witness = ctypes.CDLL(sys.argv[1])
    witness.witness_owns.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    raw_malloc, raw_free = ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree
    raw_malloc.argtypes, raw_malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    raw_free.argtypes, raw_free.restype = (ctypes.c_void_p,), None
    there = witness.witness_open(sys.argv[2].encode()) == 0
    blocks, owned = [], 0
    for i in range(BLOCKS):
        size = 1000 + 100 * i
        blocks.append(raw_malloc(size))
        owned += witness.witness_owns(blocks[-1], size) == 1
    for block in blocks:
        raw_free(block)
    print("result", sum(results))
    print("witness", ("none" if sys.argv[2] == "none" else "there") if there else "missing", len(blocks), owned)


main()
