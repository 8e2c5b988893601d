#!/usr/bin/env bash
# check/emulator.sh: puts in place a qemu-aarch64 that keeps memory tags, as build/emulator/qemu-aarch64.
#
#     check/emulator.sh             exits 0 when it is there, else says why it cannot be had
#
# Who may call it: anybody; the stage `tagging` does. Older emulators have the instructions but lose tags
# when two threads store the first ones of a page at a time (up to qemu 8.0, user mode), so what counts is
# what check/emulator_probe.c sees, not a version. Tried in this order: what an earlier call found, the
# distribution's own qemu-aarch64, one of a newer release, unpacked beside it without installing anything.
# It deliberately does not know what will run under it.
#
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
source "$ROOT/check/setup.sh"
source "$ROOT/check/foreign.sh"
FOLDER=$ROOT/build/emulator
EMULATOR=$FOLDER/qemu-aarch64

emulator_probe() { # PROGRAM: what the probe says of it, on stdout; the status is the verdict
    local said
    [ -x "$1" ] || { echo "there is none"; return 1; }
    said=$("$1" -cpu max -L /usr/aarch64-linux-gnu "$FOLDER/probe" 2>&1)
    local status=$?
    echo "$("$1" --version | sed -n '1s/^qemu-aarch64 version //p'): ${said:-status $status}"
    return $status
}

# The release to take a newer one from, as a line of sources.list: of the archive that the system is from.
emulator_source() {
    local code archive keyring release
    code=$(foreign_release VERSION_CODENAME)
    case $(foreign_release ID) in
        debian) keyring=debian-archive-keyring.gpg release="$code-backports main" ;;
        ubuntu) keyring=ubuntu-archive-keyring.gpg release="${EMULATOR_RELEASE:-questing} main universe" ;;
        *) return 1 ;;
    esac
    archive=$(foreign_archives | awk -v code="$code" 'NR == 1 || $2 == code { archive = $1 } END { print archive }')
    [ -n "$archive" ] && echo "deb [signed-by=/usr/share/keyrings/$keyring] $archive $release"
}

emulator_try() { # NAME PROGRAM: takes the program if it keeps tags
    local said
    if said=$(emulator_probe "$2"); then
        [ "$2" = "$EMULATOR" ] || ln -sfn "$2" "$EMULATOR"
        echo "emulator: $1: $said"
        exit 0
    fi
    reasons+=("$1: $said")
}

mkdir -p "$FOLDER"
reasons=()
aarch64-linux-gnu-gcc -march=armv8.5-a+memtag -O1 -Wall -Wextra -Werror -pthread -o "$FOLDER/probe" \
    "$ROOT/check/emulator_probe.c" || setup_die "the probe of the emulator does not compile"
emulator_try "as found before" "$EMULATOR"
emulator_try "the system's" "$(command -v qemu-aarch64)"
if command -v apt-get >/dev/null && source_line=$(emulator_source); then
    setup_say "fetching a newer qemu-user"
    if foreign_unpack "$FOLDER/newer" "$(dpkg --print-architecture)" "$source_line" qemu-user >"$FOLDER/fetch.log" 2>&1; then
        find "$FOLDER/newer/usr/bin" -name 'qemu-*' ! -name qemu-aarch64 -delete
        emulator_try "of ${source_line##*://}" "$FOLDER/newer/usr/bin/qemu-aarch64"
    else
        reasons+=("of ${source_line##*://}: $(grep -m 1 '^[EW]:' "$FOLDER/fetch.log" || echo "not to be had"); see $FOLDER/fetch.log")
    fi
fi
rm -f "$EMULATOR"
echo "emulator: no qemu-aarch64 that keeps memory tags can be had here:"
printf '  %s\n' "${reasons[@]}"
exit 1
