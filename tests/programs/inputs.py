"""Generated input of the real programs: the same bytes in every run and on every machine.

Who may call it: run.py. Each generator writes into a directory; `scale` is the amount of work, 10 for a full
run and 2 for a bounded one.

SPDX-License-Identifier: Apache-2.0
"""

import random

WORDS = ("weir water gate stream river bank flood lock pond mill wheel sluice basin channel drain spring brook delta "
         "ebb tide current eddy rapid fall pool reach bend ford bridge ferry").split()


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def table(directory, scale):
    """table.csv: rows of id, number, word and text, for sqlite3."""
    rng = random.Random(1)
    with open(directory / "table.csv", "w", encoding="ascii") as file:
        for i in range(20000 * scale):
            file.write(f"{i},{rng.randrange(10**9)},{rng.choice(WORDS)}{rng.randrange(500)},{text(rng, rng.randrange(1, 20))}\n")


def tree(directory, scale):
    """tree/: 200 files per unit of scale in directories of 50, for git, tar and xz."""
    rng = random.Random(2)
    for i in range(200 * scale):
        path = directory / "tree" / f"d{i // 50:03}" / f"file{i:05}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{n} {text(rng, rng.randrange(1, 15))}\n" for n in range(rng.randrange(5, 200))), encoding="ascii")
        path.chmod(0o644)


def lines(directory, scale):
    """lines.txt: lines of different length, many of them equal, for sort."""
    rng = random.Random(3)
    with open(directory / "lines.txt", "w", encoding="ascii") as file:
        for _ in range(100000 * scale):
            file.write(f"{rng.randrange(10**6)} {text(rng, rng.randrange(0, 6))}\n")


def commands(directory, scale):
    """commands.txt: commands for redis, strings to sorted sets, that add, change and delete."""
    rng = random.Random(4)
    with open(directory / "commands.txt", "w", encoding="ascii") as file:
        for i in range(20000 * scale):
            key = rng.randrange(4000)
            file.write([
                f"SET string:{key} {'v' * rng.randrange(1, 3000)}",
                f"APPEND string:{key} {'w' * rng.randrange(1, 500)}",
                f"RPUSH list:{key % 200} {i} {'x' * rng.randrange(1, 200)}",
                f"HSET hash:{key % 300} field{i % 700} {'y' * rng.randrange(1, 100)}",
                f"SADD set:{key % 100} member{rng.randrange(5000)}",
                f"ZADD sorted:{key % 100} {rng.randrange(10**6)} member{rng.randrange(3000)}",
                f"DEL string:{rng.randrange(4000)}",
                f"LPOP list:{key % 200}",
                f"SETRANGE string:{key} {rng.randrange(5000)} patch",
            ][rng.randrange(9)] + "\n")


GENERATORS = {"table": table, "tree": tree, "lines": lines, "commands": commands}
