#!/usr/bin/env python3
"""The proxy of examples/http_proxy under load and under bad company, on pools and on malloc.

Who may call it: CI, or a person. Each group starts the programs that it needs on ports of their own, and what it looks
at is what a client sees, what /stats says, and how the program ends: with 0 only where every object came back to its
pool. http_load checks each byte. The sanitized builds are of the program without weir, whose malloc would hide from
them what is freed; on pools the same is looked for by the option pool_debug, and races by a build of program and pools
under ThreadSanitizer. It deliberately knows nothing of how fast it is: examples/http_proxy/compare.py measures.

    tests/server/run.py --bin build --build build/server [--only GROUP...]

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXAMPLE = ROOT / "examples/http_proxy"
SOURCES = ["main.c", "worker.c", "connection.c", "local.c", "http.c", "journal.c", "memory.c"]
SANITIZERS = ("thread", "address,undefined")
HEAD = "Host: test\r\n"


class Tally:
    def __init__(self):
        self.passed = self.failed = 0
        self.lock = threading.Lock()

    def check(self, what, good, seen=""):
        with self.lock:
            self.passed += bool(good)
            self.failed += not good
        print(f"{'ok     ' if good else 'FAILED '} {what}" + ("" if good else f": {str(seen)[:600]}"), flush=True)


class Server:
    """One running http_proxy."""

    def __init__(self, program, *options, env=None, files=None):
        limit = ["prlimit", f"--nofile={files}"] if files else []
        self.child = subprocess.Popen([*limit, program, "--listen", "127.0.0.1:0", *map(str, options)], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        said = self.child.stdout.readline()
        if "port " not in said:
            raise RuntimeError(f"{program} {options}: {said}{self.child.stderr.read()}")
        self.port = int(said.split()[-1])
        self.files_idle = self.files()

    def files(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def connect(self, timeout=5):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(self, text, timeout=5):
        """All that comes back until the server closes or stays silent."""
        with self.connect(timeout) as s:
            with contextlib.suppress(ConnectionError):
                s.sendall(text.encode() if isinstance(text, str) else text)
            return read_all(s)

    def get(self, target):
        return self.ask(f"GET {target} HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n")

    def stats(self):
        return json.loads(self.get("/stats").split(b"\r\n\r\n", 1)[1])

    def cpu(self):
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        """(exit status, stderr) after SIGTERM."""
        self.child.send_signal(signal.SIGTERM)
        try:
            _, error = self.child.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            return None, "does not end"
        return self.child.returncode, error


def read_all(s):
    got = bytearray()
    with contextlib.suppress(ConnectionError, TimeoutError):
        while piece := s.recv(65536):
            got += piece
    return bytes(got)


def read_all_of(s, count):
    """So many bytes at least, if they come."""
    got = bytearray()
    while len(got) < count and (piece := s.recv(65536)):
        got += piece
    return bytes(got)


def status_of(answer):
    return int(answer[9:12]) if answer[:9] in (b"HTTP/1.1 ", b"HTTP/1.0 ") else 0


def pattern(seed, count):
    return bytes((seed + i) % 251 for i in range(count))


@contextlib.contextmanager
def pair(tally, name, program, *options, respond=None, env=None, files=None):
    """A proxy before a server of the same program; both must end well."""
    back = Server(respond or program, "--respond", "100", *(["--malloc"] if "--malloc" in options else []))
    front = Server(program, "--backend", f"127.0.0.1:{back.port}", *options, env=env, files=files)
    try:
        yield front
    finally:
        for server, role in ((front, "proxy"), (back, "server")):
            status, error = server.end()
            tally.check(f"{name}: the {role} gives all back and ends", status == 0 and not error, f"{status} {error}")


def load(server, bench, *options, ms=1000):
    done = subprocess.run([bench / "http_load", "--port", str(server.port), "--ms", str(ms), *map(str, options)],
                          capture_output=True, text=True, check=False, timeout=60)
    return json.loads(done.stdout or "{}"), done.stderr


def loaded(tally, name, server, bench, *options, wants=("requests",), ms=1000):
    """One load: no wrong byte, and some of each thing that the load is for."""
    figures, error = load(server, bench, *options, ms=ms)
    good = figures.get("errors") == 0 and all(figures[w] > 0 for w in wants)
    tally.check(f"{name}: every byte is right, some {', some '.join(wants)}", good, f"{figures} {error}")
    return figures


def conserved(tally, name, server):
    """Nothing is out but what the question itself takes, pools know of every object, and no socket is left. The
    workers may still be closing connections, so that it is asked again for a while."""
    stats = {}
    good = False
    for _ in range(250):
        stats = server.stats()
        used = {p["name"]: p["used"] for p in stats["pools"]}
        sums = {}
        for p in stats["pools"]:
            entry = sums.setdefault(p["storage"], [p["allocated"], p["cached"]])
            entry[1] += p["used"]
        good = used.get("buffers") == used.get("connections") == 1 and used.get("journal_lines", 0) <= 1 and all(
            allocated == out for allocated, out in sums.values()) and server.files() == server.files_idle
        if good:
            break
        time.sleep(0.1)
    tally.check(f"{name}: /stats: all objects are back, allocated = used + cached, no socket is left", good,
                f"{server.files()} of {server.files_idle} files, {stats}")


# ---------------------------------------------------------------- groups

def pools(tally, bench):
    for name, size, body in (("small buffers", "4k", 20000), ("large buffers", "1m", 300000)):
        with pair(tally, name, bench / "http_proxy", "--buffer", size, "--journal", "/dev/null") as server:
            loaded(tally, name, server, bench, "--bytes", body, "--requests", 20, "--vanish", 10, "--slow", 8,
                   wants=("requests", "vanished"))
            loaded(tally, f"{name}, posts", server, bench, "--post", body, ms=500)
            conserved(tally, name, server)


def plain(tally, bench):
    for name, program in (("malloc", "http_proxy"), ("without weir", "http_proxy_plain")):
        with pair(tally, name, bench / program, "--malloc", "--journal", "/dev/null") as server:
            loaded(tally, name, server, bench, "--bytes", 20000, "--requests", 20, "--vanish", 10, "--slow", 8,
                   wants=("requests", "vanished"), ms=500)
    done = subprocess.run([bench / "http_proxy_plain"], capture_output=True, text=True, check=False)
    tally.check("without weir there are no pools", done.returncode == 1 and "not supported" in done.stderr, done)


def debugged(tally, bench):
    env = {"WEIR_OPTIONS": "pool_debug=poison,integrity,tag,caller"}
    with pair(tally, "pool_debug", bench / "http_proxy", "--journal", "/dev/null", env=env) as server:
        loaded(tally, "pool_debug", server, bench, "--bytes", 20000, "--requests", 20, "--vanish", 10, ms=700)


def limits(tally, bench):
    for kind in ([], ["--malloc"]):
        name = "limits" + "".join(kind)
        with pair(tally, f"{name}, connections", bench / "http_proxy", "--connections", 8, *kind) as server:
            loaded(tally, f"{name}, connections", server, bench, "--connections", 32, "--requests", 50,
                   wants=("requests", "refused"), ms=500)
            time.sleep(0.3)
            tally.check(f"{name}, connections: served again", server.get("/5/1").endswith(pattern(1, 5)))
        with pair(tally, f"{name}, buffers", bench / "http_proxy", "--buffers", 3, "--buffer", "64k", *kind) as server:
            loaded(tally, f"{name}, buffers", server, bench, "--connections", 48, "--bytes", 400000, "--slow", 2)
            if not kind:
                conserved(tally, f"{name}, buffers", server)
        with pair(tally, f"{name}, one buffer", bench / "http_proxy", "--buffers", 1, *kind) as server:
            one_buffer(tally, f"{name}, one buffer", server)


def one_buffer_round(server, size, pause):
    """The answers to who came while it was taken, who holds it, and who has sent the half of a message before."""
    with server.connect(10) as waits, server.connect(10) as holds:
        waits.sendall(f"POST /5/1 HTTP/1.1\r\n{HEAD}Connection: close\r\nContent-Length: 5\r\n\r\n".encode())
        time.sleep(pause)
        holds.sendall(f"GET /{size}/0 HTTP/1.1\r\n{HEAD}\r\n".encode())
        time.sleep(3 * pause)
        waits.sendall(pattern(1, 5))
        return server.get("/5/1"), len(read_all_of(holds, size)), read_all(waits)


def one_buffer(tally, name, server):
    """Who needs the only buffer is told so before anything went on, and waits for it afterwards."""
    size = 20_000_000  # more than sockets hold
    for pause in (0.1, 0.5, 2):  # on a busy machine the first half may not have gone on yet
        taken, held, waited = one_buffer_round(server, size, pause)
        if status_of(taken) == 503 and status_of(waited) != 503:
            break
    tally.check(f"{name}: 503 while it is taken", status_of(taken) == 503 and taken.endswith(b"503\n"), taken)
    tally.check(f"{name}: who holds it gets all", held > size)
    tally.check(f"{name}: who waits for it gets it", status_of(waited) == 200 and waited.endswith(pattern(1, 5)), waited)


def descriptors(tally, bench):
    with pair(tally, "descriptors", bench / "http_proxy", files=40) as server:
        clients = [server.connect() for _ in range(60)]
        time.sleep(0.2)
        before = server.cpu()
        time.sleep(0.5)
        spent = server.cpu() - before
        tally.check("descriptors: none left, and it does not spin", spent < 0.2, f"{spent} s of CPU in 0.5 s")
        answers = []
        for s in clients[-5:]:
            s.settimeout(0.5)
            answers.append(status_of(read_all(s)))
        tally.check("descriptors: those who find none are told 503", 503 in answers, answers)
        for s in clients:
            s.close()
        time.sleep(0.2)
        tally.check("descriptors: served again", server.get("/5/1").endswith(pattern(1, 5)))


REFUSED = [
    ("no request line", "hello\r\n\r\n", 400), ("no version", f"GET /\r\n{HEAD}\r\n", 400),
    ("two blanks", f"GET  / HTTP/1.1\r\n{HEAD}\r\n", 400), ("HTTP/2.0", f"GET / HTTP/2.0\r\n{HEAD}\r\n", 505),
    ("no host", "GET / HTTP/1.1\r\n\r\n", 400), ("two hosts", f"GET / HTTP/1.1\r\n{HEAD}{HEAD}\r\n", 400),
    ("folded header", f"GET / HTTP/1.1\r\n{HEAD} more\r\n\r\n", 400),
    ("blank before a colon", f"GET / HTTP/1.1\r\n{HEAD}Content-Length : 5\r\n\r\n", 400),
    ("bare LF", f"GET / HTTP/1.1\r\n{HEAD}A: b\nC: d\r\n\r\n", 400),
    ("NUL", f"GET / HTTP/1.1\r\n{HEAD}A: \0\r\n\r\n", 400),
    ("length that is none", f"GET / HTTP/1.1\r\n{HEAD}Content-Length: 1x\r\n\r\n", 400),
    ("negative length", f"GET / HTTP/1.1\r\n{HEAD}Content-Length: -1\r\n\r\n", 400),
    ("two lengths", f"POST / HTTP/1.1\r\n{HEAD}Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ("length and chunks", f"POST / HTTP/1.1\r\n{HEAD}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("another coding", f"POST / HTTP/1.1\r\n{HEAD}Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    ("tunnel", f"CONNECT a:1 HTTP/1.1\r\n{HEAD}\r\n", 501),
    ("head of 9 kB", f"GET / HTTP/1.1\r\n{HEAD}A: {'x' * 9000}\r\n\r\n", 431),
    ("endless head", f"GET / HTTP/1.1\r\n{HEAD}A: {'x' * 100000}", 431),
]


def refusals(tally, bench):
    with pair(tally, "refusals", bench / "http_proxy", "--timeout", 700) as server:
        for what, text, status in REFUSED:
            answer = server.ask(text)
            tally.check(f"refused: {what}: {status}", status_of(answer) == status and answer.endswith(b"%d\n" % status), answer[:200])
        with server.connect() as s:
            s.sendall(b"hello\r\n\r\n")
            told = b"400" in read_all_of(s, 4)
            for _ in range(3):
                with contextlib.suppress(ConnectionError):
                    s.sendall(b"x" * 1000)
                    time.sleep(0.02)
                    continue
                told = False
            tally.check("refused: what the client still sends is taken, so that no reset overtakes the answer", told)
        bad_chunk = f"POST /5/1 HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX"
        tally.check("refused: broken chunk: 400", status_of(server.ask(bad_chunk)) == 400)
        tally.check("a head that does not come to its end: 408", status_of(server.ask("GET / HTT")) == 408)
        conserved(tally, "refusals", server)
    server = Server(bench / "http_proxy", "--backend", "127.0.0.1:1")
    tally.check("no server behind: 502", status_of(server.get("/")) == 502)
    status, error = server.end()
    tally.check("no server behind: ends", status == 0, error)


def requests_odd(tally, bench):
    """Requests in pieces, in rows, and without a body in the answer."""
    with pair(tally, "odd", bench / "http_proxy", "--buffer", "2k") as server:
        one = f"GET /3000/7 HTTP/1.1\r\n{HEAD}\r\n"
        last = f"GET /10/9 HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n"
        answer = server.ask(one * 3 + last)
        tally.check("four requests at once", answer.count(pattern(7, 3000)) == 3 and answer.endswith(pattern(9, 10)), answer[-200:])
        # More than the buffer holds: what begins at its end is moved to its front.
        answer = server.ask(one * 60 + last)
        tally.check("sixty-one requests at once", answer.count(pattern(7, 3000)) == 60 and answer.endswith(pattern(9, 10)), len(answer))
        with server.connect() as s:
            for byte in last.encode():
                s.sendall(bytes([byte]))
                time.sleep(0.001)
            tally.check("one byte at a time", read_all(s).endswith(pattern(9, 10)))
        answer = server.ask(f"HEAD /10/9 HTTP/1.1\r\n{HEAD}\r\n{last}")
        tally.check("HEAD has no body", answer.count(b"Content-Length: 10\r\n\r\n") == 2 and answer.count(pattern(9, 10)) == 1, answer)
        answer = server.ask(f"GET /10/9 HTTP/1.0\r\n\r\n{one}")
        tally.check("HTTP/1.0 is closed after one", answer.count(b"HTTP/1.1 200") == 1, answer)
        wrong = f"POST /5/0 HTTP/1.1\r\n{HEAD}Content-Length: 5\r\n\r\nhello"
        tally.check("a posted byte that changed shows", status_of(server.ask(wrong)) == 400)
        with server.connect() as s:
            s.sendall(last.encode())
            s.shutdown(socket.SHUT_WR)
            tally.check("a client that closes its half is answered", read_all(s).endswith(pattern(9, 10)))


class Backend:
    """Answers each connection with what it is told to, and keeps what it was asked."""

    def __init__(self, answers, closes=True):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.answers, self.closes, self.asked, self.left = answers, closes, [], []
        self.front = None  # a proxy that is stopped meanwhile, so that all comes to it at once
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        for answer in self.answers:
            client, _ = self.socket.accept()
            client.settimeout(0.2)
            self.asked.append(read_all(client))
            os.kill(self.front, signal.SIGSTOP)
            client.sendall(answer)
            if self.closes:
                client.close()
            else:
                self.left.append(client)
            time.sleep(0.01)
            os.kill(self.front, signal.SIGCONT)


CHUNKS = b"5;a=b\r\nhello\r\n1A\r\n" + b"x" * 26 + b"\r\n0\r\nTrailer: t\r\n\r\n"
ANSWERS = [  # what the server says, whether it then closes, what the client gets; None: the same
    ("chunks", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, False, None),
    ("a body until it closes", b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, None),
    ("100, and then 200", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", False, None),
    ("204", b"HTTP/1.1 204 No Content\r\n\r\n", False, None),
    ("a body that is cut off", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", True, 502),
    ("no answer", b"", True, 502), ("no HTTP", b"hello, this is\r\n\r\n", True, 502),
    ("101", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", False, 502), ("silence", b"", False, 504),
]


def answers(tally, bench):
    for what, answer, closes, wanted in ANSWERS:
        backend = Backend([answer], closes)
        server = Server(bench / "http_proxy", "--backend", f"127.0.0.1:{backend.port}", "--timeout", 1500)
        backend.front = server.child.pid
        asked = f"POST /a HTTP/1.1\r\n{HEAD}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + CHUNKS
        got = server.ask(asked)
        tally.check(f"the server says {what}", got == answer if wanted is None else status_of(got) == wanted or
                    (what.startswith("a body that") and got == answer), got)
        tally.check(f"the server was asked for {what} as the client asked", backend.asked == [asked], backend.asked)
        refused = server.stats()["refused"]
        tally.check(f"the proxy counts {what} for what it is", refused == (wanted is not None), refused)
        conserved(tally, what, server)
        status, error = server.end()
        tally.check(f"{what}: ends", status == 0, error)


def stalled(tally, bench, back_port):
    front = Server(bench / "http_proxy", "--backend", f"127.0.0.1:{back_port}")
    with front.connect() as half, front.connect() as silent:
        half.sendall(b"GET / HT")
        silent.sendall(f"POST /5/0 HTTP/1.1\r\n{HEAD}Content-Length: 5\r\n\r\n".encode())
        time.sleep(0.1)
        begun = time.monotonic()
        status, error = front.end()
        took = time.monotonic() - begun
    tally.check("SIGTERM with clients that do nothing: gives all back and ends soon", status == 0 and not error and took < 5,
                f"{status} {error} after {took:.1f} s")


def stopping(tally, bench):
    for kind in ([], ["--malloc"]):
        back = Server(bench / "http_proxy", "--respond", 100)
        front = Server(bench / "http_proxy", "--backend", f"127.0.0.1:{back.port}", "--journal", "/dev/null", *kind)
        # It dies of the missing server in the end: that is not looked at.
        loader = subprocess.Popen([bench / "http_load", "--port", str(front.port), "--ms", "3000", "--bytes", "200000"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.4)
        status, error = front.end()
        tally.check(f"SIGTERM under load{''.join(kind)}: gives all back and ends", status == 0 and not error, f"{status} {error}")
        loader.kill()
        loader.wait()
        if not kind:
            stalled(tally, bench, back.port)
        status, error = back.end()
        tally.check(f"SIGTERM under load{''.join(kind)}: the server that it leaves ends", status == 0 and not error, error)


def sanitize(tally, bench, kind, name, *more):
    """The program, built under a sanitizer, or None."""
    program = bench / name
    done = subprocess.run(["clang-19", "-std=gnu17", "-O1", "-g", f"-fsanitize={kind}", "-fno-sanitize-recover=all",
                           "-D_GNU_SOURCE", "-pthread", *more, *(EXAMPLE / s for s in SOURCES), "-o", program],
                          capture_output=True, text=True, check=False)
    tally.check(f"{kind}: {name} builds", done.returncode == 0, done.stderr)
    return program if done.returncode == 0 else None


def races(tally, bench):
    """Program and pools under ThreadSanitizer: all of weir but malloc."""
    unit = re.findall(r'#include "(.+\.c)"', (ROOT / "src/weir.c").read_text())
    layers = [f'#include "{name}"' for name in unit if not name.startswith("api/") or name == "api/pool.c"]
    source = bench / "pools.c"
    source.write_text("\n".join(["#define WEIR_ONE_UNIT 1", *layers, f'#include "{HERE / "threads.c"}"', ""]))
    program = sanitize(tally, bench, "thread", "http_proxy_races", "-DHTTP_PROXY_POOLS=1", f"-I{ROOT / 'include'}",
                       f"-I{ROOT / 'src'}", source)
    if program is None:
        return
    with pair(tally, "races", program, "--journal", "/dev/null", "--buffer", "4k", respond=bench / "http_proxy") as server:
        loaded(tally, "races", server, bench, "--bytes", 20000, "--requests", 20, "--vanish", 10, wants=("requests", "vanished"))
        conserved(tally, "races", server)


def sanitized(tally, bench):
    for kind in SANITIZERS:
        program = sanitize(tally, bench, kind, f"http_proxy_{kind.split(',')[0]}", "-DHTTP_PROXY_POOLS=0")
        if program is None:
            continue
        options = ["--malloc", "--journal", "/dev/null", "--buffer", "4k"]
        with pair(tally, kind, program, *options, respond=bench / "http_proxy") as server:
            loaded(tally, kind, server, bench, "--bytes", 20000, "--requests", 20, "--vanish", 10, "--slow", 8,
                   wants=("requests", "vanished"), ms=700)
            loaded(tally, f"{kind}, posts", server, bench, "--post", 20000, ms=300)
        with pair(tally, f"{kind}, limits", program, *options, "--connections", 8, "--buffers", 3, respond=bench / "http_proxy") as server:
            loaded(tally, f"{kind}, limits", server, bench, "--connections", 32, "--bytes", 100000, "--requests", 50,
                   wants=("requests", "refused"), ms=500)
    starved(tally, f"{kind}, starved", program, *options)


def starved(tally, name, program, *options):
    """A connection times out while it waits for the buffer that another one holds."""
    with socket.create_server(("127.0.0.1", 0)) as back:
        front = Server(program, "--backend", f"127.0.0.1:{back.getsockname()[1]}", "--threads", 1, "--buffers", 1,
                       "--timeout", 1000, *options)
        with front.connect() as waits, front.connect() as holds:
            waits.sendall(f"GET / HTTP/1.1\r\n{HEAD}\r\n".encode())
            behind = back.accept()[0]
            behind.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
            begun = read_all_of(waits, 40)
            time.sleep(0.5)
            holds.sendall(f"GET / HTTP/1.1\r\n{HEAD}\r\n".encode())
            other = back.accept()[0]
            other.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                other.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + bytes(20_000_000))
            behind.sendall(b", end")
            rest = read_all(waits)
            tally.check(f"{name}: it is cut off", begun.endswith(b"part") and rest == b"", begun + rest)
            behind.close()
            other.close()
        time.sleep(0.2)
        status, error = front.end()
        tally.check(f"{name}: the proxy gives all back and ends", status == 0 and not error, f"{status} {error}")


# The longest first.
GROUPS = {f.__name__: f for f in (sanitized, races, limits, answers, pools, stopping, plain, refusals, descriptors, debugged, requests_odd)}


def group_run(tally, bench, name):
    begun = time.monotonic()
    try:
        GROUPS[name](tally, bench)
    except Exception as why:  # a server that died, an answer that is none: one failure, and the other groups go on
        tally.check(f"{name}: goes on", False, repr(why))
    print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description="the proxy of examples/http_proxy under load and in bad company")
    parser.add_argument("--bin", type=Path, required=True, help="folder with http_proxy, http_proxy_plain, http_load")
    parser.add_argument("--build", type=Path, required=True, help="folder to work in; emptied first")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--jobs", type=int, default=2, help="groups that run at once")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.build, ignore_errors=True)
    arguments.build.mkdir(parents=True)
    bench = arguments.build.resolve()
    for name in ("http_proxy", "http_proxy_plain", "http_load"):
        (bench / name).symlink_to((arguments.bin / name).resolve())
    tally = Tally()
    with ThreadPoolExecutor(max_workers=arguments.jobs) as workers:
        list(workers.map(lambda name: group_run(tally, bench, name), arguments.only))
    print(f"server: {tally.passed} passed, {tally.failed} failed")
    return 0 if tally.failed == 0 and tally.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
