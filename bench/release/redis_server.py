"""redis_server.py: a redis server that is filled with mixed values and then loses 90 % of its keys: what stays resident.

Who may call it: run.py. The commands are the same in every run. The server talks through a socket in a folder of its
own and writes nothing to disk. That the allocator serves is read from the running server: the word of its relocation
table through which it calls malloc points into the library. It deliberately does not know which allocator it is.

SPDX-License-Identifier: Apache-2.0
"""

import functools
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import time

FULL_BYTES = 1 << 30
DELETED = 0.9
WAIT_S = 60
MIB = 1048576


class ServerFailed(Exception):
    """What went wrong, in one line."""


def command(*words):
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def size_of(source, low, high):
    """Log-uniform."""
    return int(low * (high / low) ** source.random())


@functools.cache
def traces(scale):
    """(folder that must live on, file that fills, file that deletes): 70 % small strings, 20 % medium ones, 10 % hashes."""
    folder = tempfile.TemporaryDirectory()
    fill, delete = pathlib.Path(folder.name) / "fill", pathlib.Path(folder.name) / "delete"
    source, noise = random.Random(1), random.Random(2).randbytes(1 << 18)

    def value(low, high):
        at = source.randrange(len(noise) - high)
        return noise[at:at + size_of(source, low, high)]

    stored = key = 0
    with open(fill, "wb") as filling, open(delete, "wb") as deleting:
        while stored < FULL_BYTES * scale:
            kind, name = source.random(), f"key:{key}"
            if kind < 0.9:
                values = [value(16, 1024) if kind < 0.7 else value(1024, 65536)]
                filling.write(command("SET", name, values[0]))
            else:
                values = [value(8, 256) for _ in range(16)]
                filling.write(command("HSET", name, *(word for i, text in enumerate(values) for word in (f"field:{i}", text))))
            if source.random() < DELETED:
                deleting.write(command("DEL", name))
            stored += sum(map(len, values))
            key += 1
    return folder, fill, delete


def malloc_served_by(pid):
    """The file into which the server's word for malloc points."""
    program = os.path.realpath(f"/proc/{pid}/exe")
    maps = [(*(int(edge, 16) for edge in words[0].split("-")), int(words[2], 16), words[5].strip() if len(words) > 5 else "")
            for words in (line.split(None, 5) for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines())]
    base = min(start for start, _, _, file in maps if file == program)
    table = subprocess.run(["readelf", "-rW", program], capture_output=True, text=True, check=True).stdout
    slots = re.findall(r"^([0-9a-f]+) +\S+ +R_\w+_(?:GLOB_DAT|JUMP_SLO\w*) +[0-9a-f]+ +malloc(?:@\S+)? ", table, re.M)
    if not slots:
        raise ServerFailed("the server has no relocation for malloc")
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(base + int(slots[0], 16))
        address = int.from_bytes(memory.read(8), "little")
    return next((file for start, end, _, file in maps if start <= address < end), "nothing")


def resident(pid):
    """(anonymous and shared, of these what the kernel may take), in MiB."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    field = {name: int(value) / 1024 for name, value in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}
    return field["Pss_Anon"] + field["Pss_Shmem"], field["LazyFree"]


def cpu_s(pid):
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A running server; the context ends it."""

    def __init__(self, folder, variables):
        self.socket = os.path.join(folder, "socket")
        self.log = pathlib.Path(folder) / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no", "--dir", folder,
                 "--daemonize", "no", "--activedefrag", "no"], env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log)

    def __enter__(self):
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if os.path.exists(self.socket) and self.client("PING", check=False).strip() == "PONG":
                return self
            time.sleep(0.05)
        self.__exit__()
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ServerFailed(f"the server did not start: {last}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def client(self, *words, check=True):
        return subprocess.run(["redis-cli", "-s", self.socket, *words], capture_output=True, text=True, check=check,
                              timeout=WAIT_S).stdout

    def pipe(self, file):
        """Sends a file of commands; the seconds that it took."""
        start = time.monotonic()
        with open(file, "rb") as commands:
            done = subprocess.run(["redis-cli", "-s", self.socket, "--pipe"], stdin=commands, capture_output=True, text=True,
                                  check=False, timeout=5 * WAIT_S)
        if done.returncode or "errors: 0" not in done.stdout:
            raise ServerFailed(f"redis-cli: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
        return time.monotonic() - start

    def used_mib(self):
        return int(re.search(r"^used_memory:(\d+)", self.client("INFO", "memory"), re.M)[1]) / MIB


def measured(library, variables, scale):
    """Figures of one server on `library`."""
    if not shutil.which("redis-server") or not shutil.which("redis-cli"):
        raise ServerFailed("redis-server is not installed")
    _, fill, delete = traces(scale)
    facts = {}
    with tempfile.TemporaryDirectory() as folder, Server(folder, variables) as server:
        pid = server.process.pid
        facts["malloc_in"] = malloc_served_by(pid)
        if facts["malloc_in"] != os.path.realpath(library):
            raise ServerFailed(f"malloc lies in {facts['malloc_in']}")
        facts["fill_s"] = server.pipe(fill)
        facts["full_mib"], facts["used_full_mib"] = resident(pid)[0], server.used_mib()
        facts["delete_s"] = server.pipe(delete)
        facts["deleted_mib"] = resident(pid)[0]
        time.sleep(2)
        facts["after_2s_mib"], facts["after_2s_lazy_mib"] = resident(pid)
        facts["used_mib"], facts["cpu_s"] = server.used_mib(), cpu_s(pid)
        facts["keys"] = float(server.client("DBSIZE").strip())
    return facts
