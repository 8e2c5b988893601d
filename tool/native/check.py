#!/usr/bin/env python3
"""tool/native/check.py: runs the witness and the launcher alone and reads what they write.

Who may call it: ctest, on the machine's own processor and under an emulator; by hand as check.py --help
says. It checks the layout of witness.h and launcher.h from a second side, and that a program whose calls
were watched goes on as if they were not. It deliberately does not know the tool.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = struct.Struct("=QIIIII36x")
MAGIC, VERSION, SLOT_BYTES, SLOT_COUNT = 0x3153454E54495745, 1, 2048, 8
SLOT = struct.Struct("=IiiIQQQQQQIII4xQ8x256s")
CALL = struct.Struct("=II128s256s")
REPORT = struct.Struct("=4i2Q7q")
LOADED, REACHED, ENDED = 1, 2, 3
FAILED, STARTED, FINISHED = 1, 2, 3


def text(raw):
    return raw.split(b"\0")[0].decode()


def command(emulator, environment, words):
    """The words, behind the emulator if there is one, which hands the variables on."""
    if not emulator:
        return words, {**os.environ, **environment}
    handed = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    return [*emulator, *handed, *words], dict(os.environ)


def check_witness(emulator, witness, program):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "evidence")
        file.write_bytes(HEADER.pack(MAGIC, VERSION, SLOT_COUNT, SLOT_BYTES, 0, 0) + bytes(SLOT_COUNT * SLOT_BYTES))
        words, environment = command(emulator, {"WITNESS_FILE": str(file), "LD_PRELOAD": witness}, [program])
        result = subprocess.run(words, env=environment, check=False)
        assert result.returncode == 0, f"{program} ended with {result.returncode}"
        raw = file.read_bytes()
    claimed, refused = HEADER.unpack_from(raw)[4:6]
    assert (claimed, refused) == (1, 0), (claimed, refused)
    slot = SLOT.unpack_from(raw, HEADER.size)
    state, calls, start, end, peak, resident, watched = slot[0], slot[3], *slot[4:8], slot[11]
    assert state == ENDED and end > start > 0 and watched >= 3, slot
    assert peak >= resident > 0, (peak, resident)
    assert slot[13] != 0 and slot[13] % 16 == 0, f"no stack starts at {slot[13]:#x}"
    assert calls == 1, f"all calls went to one place, but {calls} are named"
    called, bound, caller, target = CALL.unpack_from(raw, HEADER.size + SLOT.size)
    assert called == 1, f"the first call was malloc, not {called:#b}"
    assert bound & 0b111 == 0b111, f"{bound:#b}"
    assert Path(text(caller)).name == Path(program).name, text(caller)
    assert "libc.so" in text(target), text(target)


def check_launcher(emulator, launcher):
    def reports(*words):
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        line, environment = command(emulator, {}, [launcher, str(writer), *words])
        subprocess.run(line, env=environment, close_fds=False, check=True)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            raw = file.read()
        return [REPORT.unpack_from(raw, at) for at in range(0, len(raw), REPORT.size)]

    started, finished = reports("/bin/sh", "sh", "-c", "exit 3")
    assert (started[0], finished[0]) == (STARTED, FINISHED)
    assert started[2] == finished[2] > 0, "one process"
    assert os.waitstatus_to_exitcode(finished[1]) == 3
    assert finished[5] >= finished[4] > 0, "the end comes after the start"
    assert 0 < finished[8] < 100 * 1024, "resident KiB"
    kinds = {kind: status for kind, status, *_ in reports("/no/such/program", "x")}
    assert kinds[FAILED] == 2, kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--witness")
    parser.add_argument("--launcher")
    parser.add_argument("--emulator", default="", help="the emulator and its options, separated by blanks")
    parser.add_argument("programs", nargs="*")
    arguments = parser.parse_args()
    emulator = arguments.emulator.split()
    for program in arguments.programs:
        check_witness(emulator, arguments.witness, program)
    if arguments.launcher:
        check_launcher(emulator, arguments.launcher)
    if not arguments.programs and not arguments.launcher:
        sys.exit("nothing to check")


if __name__ == "__main__":
    main()
