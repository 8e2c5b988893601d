#!/usr/bin/env bash
# packages.sh: the programs that run with tagging, from the distribution's packages for arm64, unpacked
# under build/tagging/root. Nothing is installed, and the system's own package lists stay as they are.
#
#     tests/tagging/packages.sh     exits 0 when they are there, else says why they cannot be had
#
# Who may call it: the stage `tagging`, and anybody. It deliberately does not know how they are run.
#
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
source "$ROOT/check/setup.sh"
source "$ROOT/check/foreign.sh"
FOLDER=$ROOT/build/tagging/root
PACKAGES=(libc6 'libpython3.*-testsuite' libclang-rt-19-dev perl python3 redis-server redis-tools sqlite3)
WANTED="$(foreign_release VERSION_CODENAME): ${PACKAGES[*]}"

# The archives of the system, or where those have not this architecture, the ports that lie beside them.
packages_sources() {
    local keyring components
    case $(foreign_release ID) in
        debian) keyring=debian-archive-keyring.gpg components=main ;;
        ubuntu) keyring=ubuntu-archive-keyring.gpg components="main universe" ;;
        *) return 1 ;;
    esac
    foreign_archives | sed -E 's#//([a-z.]*\.)?(archive|security)\.(.*)/ubuntu/? #//ports.\3/ubuntu-ports #' | sort -u |
        sed -E "s#.*#deb [signed-by=/usr/share/keyrings/$keyring] & $components#"
}

if [ "$(cat "$FOLDER/complete" 2>/dev/null)" = "$WANTED" ]; then
    echo "packages: as unpacked before"
    exit 0
fi
if ! command -v apt-get >/dev/null || ! sources=$(packages_sources) || [ -z "$sources" ]; then
    echo "packages: neither Debian nor Ubuntu: packages for arm64 are not to be had"
    exit 1
fi
rm -rf "$FOLDER"
mkdir -p "$FOLDER/usr/lib" "$FOLDER/usr/bin" "$FOLDER/usr/sbin"
# Packages may come with either layout; the loader has to find both in one place.
for name in lib bin sbin; do ln -s "usr/$name" "$FOLDER/$name"; done
setup_say "fetching packages for arm64"
if ! foreign_unpack "$FOLDER" arm64 "$sources" "${PACKAGES[@]}" >"$FOLDER.log" 2>&1; then
    echo "packages: $(grep -m 1 '^[EW]:' "$FOLDER.log" || echo "not to be had"); see $FOLDER.log"
    exit 1
fi
echo "$WANTED" >"$FOLDER/complete"
echo "packages: unpacked"
