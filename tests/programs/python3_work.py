"""Three Python programs that keep malloc busy; each prints checksums of what it made.

Who may call it: python3_work.sh, as `python3_work.py json|processes|threads SCALE`. Blocks above 512 bytes, and all
arenas of Python's own allocator, come from malloc: lists, dictionaries, texts and byte strings that grow, shrink, and
pass between threads and processes. It deliberately does nothing whose result depends on order or time.

SPDX-License-Identifier: Apache-2.0
"""

import hashlib
import io
import json
import multiprocessing
import pickle
import queue
import random
import sys
import threading
import zlib


def document(rng, depth):
    """A nested value as JSON knows them."""
    if depth == 0:
        return rng.choice((rng.random(), rng.randrange(10**12), "ä" * rng.randrange(30), "text " * rng.randrange(200), None, True))
    if rng.random() < 0.5:
        return [document(rng, depth - 1) for _ in range(rng.randrange(1, 12))]
    return {f"key{rng.randrange(10**6)}": document(rng, depth - 1) for _ in range(rng.randrange(1, 12))}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def run_json(scale):
    """Writes and reads documents; the last few live on, so that memory is freed out of order."""
    rng = random.Random(1)
    checksum = hashlib.sha256()
    living = []
    for i in range(24 * scale):
        value = document(rng, 5)
        text = json.dumps(value, indent=i % 3 or None, sort_keys=True, ensure_ascii=i % 2 == 0)
        again = json.loads(text)
        if again != value:
            sys.exit(f"document {i} does not come back as it was")
        checksum.update(text.encode())
        living.append((again, pickle.dumps(value)))
        if len(living) > 12:
            kept, pickled = living.pop(rng.randrange(len(living)))
            if pickle.loads(pickled) != kept:
                sys.exit(f"a document that was kept up to {i} has changed")
    print("json", checksum.hexdigest())


def job(number):
    """What a worker process does: the text of a document and its size when packed."""
    rng = random.Random(number)
    text = json.dumps([document(rng, 4) for _ in range(3)])
    packed = zlib.compress(text.encode(), 6)
    return number, digest(packed), zlib.decompress(packed).decode()[:200]


def run_processes(scale):
    """Pools of forked and of spawned processes; results come back through pipes."""
    for method, count in (("fork", 60 * scale), ("spawn", 20 * scale), ("forkserver", 20 * scale)):
        context = multiprocessing.get_context(method)
        ballast = [bytes(1000) * (i % 50) for i in range(2000)]
        with context.Pool(2, maxtasksperchild=20) as pool:
            results = list(pool.imap_unordered(job, range(count), chunksize=5))
        results.sort()
        print(method, len(results), len(ballast), digest(repr(results).encode()))
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=lambda: child.send([b"x" * i for i in range(0, 200000, 997)]))
    process.start()
    received = parent.recv()
    process.join()
    print("pipe", len(received), digest(b"".join(received)), process.exitcode)


def worker(todo, done):
    """Takes blocks that another thread made, frees them, and hands its own to a third."""
    while (item := todo.get()) is not None:
        number, data = item
        stream = io.BytesIO()
        for chunk in data:
            stream.write(chunk[::-1])
        parts = stream.getvalue().split(b"\n")
        done.put((number, len(parts), digest(stream.getvalue()), [p[:100] for p in parts[:50]]))


def run_threads(scale):
    """Four threads between two queues, while short-lived threads come and go."""
    todo, done = queue.Queue(64), queue.Queue()
    workers = [threading.Thread(target=worker, args=(todo, done)) for _ in range(4)]
    for thread in workers:
        thread.start()
    rng = random.Random(3)
    count = 1000 * scale
    for number in range(count):
        todo.put((number, [rng.randbytes(1) * rng.randrange(1, 3000) + b"\n" for _ in range(rng.randrange(1, 60))]))
    for _ in workers:
        todo.put(None)
    for thread in workers:
        thread.join()
    results = sorted(done.get() for _ in range(count))
    print("queues", count, digest(repr(results).encode()))

    made = {}

    def short(number):
        made[number] = digest(b"".join(bytes([i % 256]) * (i * number % 700) for i in range(300)))

    for start in range(0, 100 * scale, 20):
        threads = [threading.Thread(target=short, args=(number,)) for number in range(start, start + 20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("short threads", len(made), digest(repr(sorted(made.items())).encode()))


if __name__ == "__main__":
    {"json": run_json, "processes": run_processes, "threads": run_threads}[sys.argv[1]](int(sys.argv[2]))
