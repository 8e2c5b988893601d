"""A memcached client that knows what every answer must be.

Who may call it: memcached.sh, as `memcached_client.py PORT SCALE`. Threads with keys of their own send a fixed random
sequence of commands over connections that come and go, and compare each answer with a dictionary; a wrong answer ends
the program with status 1. It prints counts and a checksum of all that the server holds at the end.

SPDX-License-Identifier: Apache-2.0
"""

import hashlib
import random
import socket
import sys
import threading

THREADS = 4
KEYS = 400
RECONNECT_EVERY = 250


class Connection:
    """One connection that speaks the text protocol."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def close(self):
        self.stream.close()
        self.socket.close()

    def line(self, request):
        """The one line that answers a request."""
        self.socket.sendall(request)
        return self.stream.readline()

    def get(self, keys):
        """The values of those keys that the server has."""
        self.socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while (line := self.stream.readline()) != b"END\r\n":
            _, key, _, size = line.split()
            found[key] = self.stream.read(int(size) + 2)[:-2]
        return found


class Client(threading.Thread):
    """One thread: commands, expected answers, and the checksum of the end."""

    def __init__(self, port, number, commands):
        super().__init__()
        self.port, self.number, self.commands = port, number, commands
        self.rng = random.Random(number)
        self.held = {}
        self.counts = {}
        self.error = None
        self.digest = hashlib.sha256()

    def expect(self, got, wanted, what):
        if got != wanted:
            raise AssertionError(f"{what}: got {got[:60]!r}, expected {wanted[:60]!r}")

    def value(self):
        # Mostly small; some take many of the server's 512 KiB chunks.
        size = self.rng.randrange(1, 2000) if self.rng.random() < 0.98 else self.rng.randrange(100_000, 900_000)
        return self.rng.randbytes(1) * size

    def command(self, connection):
        key = b"t%d:%d" % (self.number, self.rng.randrange(KEYS))
        kind = self.rng.choice(("set", "set", "get", "get", "get", "mget", "append", "delete", "replace"))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "set" or kind == "replace":
            value = self.value()
            stored = kind == "set" or key in self.held
            answer = connection.line(b"%s %s 0 0 %d\r\n%s\r\n" % (kind.encode(), key, len(value), value))
            self.expect(answer, b"STORED\r\n" if stored else b"NOT_STORED\r\n", kind)
            if stored:
                self.held[key] = value
        elif kind == "append":
            value = self.rng.randbytes(1) * self.rng.randrange(1, 500)
            answer = connection.line(b"append %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
            self.expect(answer, b"STORED\r\n" if key in self.held else b"NOT_STORED\r\n", kind)
            if key in self.held:
                self.held[key] += value
        elif kind == "delete":
            answer = connection.line(b"delete %s\r\n" % key)
            self.expect(answer, b"DELETED\r\n" if self.held.pop(key, None) is not None else b"NOT_FOUND\r\n", kind)
        else:
            keys = [key] if kind == "get" else [b"t%d:%d" % (self.number, self.rng.randrange(KEYS)) for _ in range(20)]
            found = connection.get(keys)
            for one in keys:
                self.expect(found.get(one, b""), self.held.get(one, b""), f"{kind} {one.decode()}")

    def run(self):
        try:
            connection = Connection(self.port)
            for i in range(self.commands):
                if i % RECONNECT_EVERY == RECONNECT_EVERY - 1:
                    connection.close()
                    connection = Connection(self.port)
                self.command(connection)
            for key, value in sorted(connection.get([b"t%d:%d" % (self.number, i) for i in range(KEYS)]).items()):
                self.digest.update(key + b" " + value)
            connection.close()
        except (AssertionError, OSError, ValueError) as error:
            self.error = error


def main():
    port, scale = int(sys.argv[1]), int(sys.argv[2])
    clients = [Client(port, number, 1500 * scale) for number in range(THREADS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for client in clients:
        if client.error:
            sys.exit(f"thread {client.number}: {client.error}")
        print(client.number, sorted(client.counts.items()), len(client.held), client.digest.hexdigest())


if __name__ == "__main__":
    main()
