#!/usr/bin/env bash
# check/style.sh: everything about the text of the tree that a machine can judge: formatting, compiler
# warnings, clang-tidy, rustfmt and clippy, and words that must not be there.
#
# Who may call it: anybody, from anywhere; the test command calls it. It reads tracked files alone and
# changes nothing. Arguments choose parts (format warn tidy rust words scripts); none means all.
# It deliberately does not know how the library is built: the flags here are stricter than the build's.
#
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

passed=0 failed=0
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

# part NAME COMMAND...: one verdict; the command's output is shown when it fails.
part() {
    local name=$1 begun=$SECONDS
    shift
    if "$@" >"$scratch/out" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name ($((SECONDS - begun)) s)"
    else
        failed=$((failed + 1))
        head -n "${STYLE_LINES_MAX:-60}" "$scratch/out"
        echo "FAILED  $name ($((SECONDS - begun)) s)"
    fi
}

# tracked PATTERN...: the files that are tracked and still there, NUL-terminated.
tracked() {
    git ls-files -z -- "$@" | while IFS= read -r -d '' file; do
        if [ -f "$file" ]; then printf '%s\0' "$file"; fi
    done
}

tracked_formatted() { tracked '*.c' '*.h' '*.cc' '*.cpp' '*.hpp'; }

# Some tracked C must be there, or the check looks at nothing.
format_all() {
    [ -n "$(tracked_formatted | head -c 1)" ] || { echo "no tracked C files"; return 1; }
    tracked_formatted | xargs -0 clang-format-19 --dry-run -Werror >"$scratch/format" 2>&1 && return 0
    grep -o '^[^: ]*:[0-9]*:[0-9]*: error' "$scratch/format" | cut -d: -f1 | sort | uniq -c
    echo "(lines to reformat in each file; clang-format-19 -i FILE does it)"
    return 1
}

# none_match PATTERN: reads names, NUL-terminated; fails and shows the lines when one matches.
none_match() {
    xargs -0 grep -InHE "$1" >"$scratch/matches"
    cat "$scratch/matches"
    [ ! -s "$scratch/matches" ]
}

includes=(-I include -I src)
warnings=(-Wall -Wextra -Wundef -Wshadow -Werror -fsyntax-only)

# A public header has to be readable by the oldest standard that it promises.
header_alone() {
    local compiler=$1 standard=$2 language=$3 header
    for header in include/weir/*.h; do
        "$compiler" "-std=$standard" "${warnings[@]}" -pedantic -I include -x "$language" - <<<"#include <${header#include/}>" ||
            return 1
    done
}

# A to-do marker is a word in capitals; the pattern is in two pieces so that it does not find itself.
no_markers() {
    tracked . | none_match "\\b(TO""DO|FIX""ME|XX""X|HA""CK)\\b"
}

# Nothing tracked may name a directory of the machine that it was written on.
no_machine_paths() {
    tracked . | none_match "(^|[^A-Za-z0-9_.-])/(ho""me|ro""ot|wo""rk|Us""ers)/"
}

no_trailing_blanks() {
    tracked '*.c' '*.h' '*.cpp' '*.hpp' '*.py' '*.sh' '*.rs' '*.md' '*.txt' '*.cmake' run test .ci/run |
        none_match '[[:space:]]+$'
}

# Sources and kept results are far smaller; what a program records is not, and is not the tree's.
no_large_files() {
    tracked . | xargs -0 -r stat --format='%s %n' | awk '$1 > 1048576 { print $2 ": " $1 " bytes"; found = 1 } END { exit found }'
}

shell_syntax() {
    local file status=0
    while IFS= read -r -d '' file; do
        bash -n "$file" || status=1
    done < <(tracked '*.sh' run test .ci/run)
    return $status
}

python_syntax() {
    tracked '*.py' | xargs -0 python3 -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]'
}

wanted() { # PART CHOSEN...
    local name=$1
    shift
    [ $# -eq 0 ] && return 0
    [[ " $* " == *" $name "* ]]
}

if wanted format "$@"; then part "clang-format" format_all; fi
if wanted warn "$@"; then
    for compiler in gcc clang-19; do
        part "$compiler warnings" "$compiler" -std=gnu17 "${warnings[@]}" "${includes[@]}" src/weir.c
        part "$compiler, public headers as C11" header_alone "$compiler" c11 c
    done
    part "g++, public headers as C++11" header_alone g++ c++11 c++
    part "clang++-19, public headers as C++11" header_alone clang++-19 c++11 c++
fi
if wanted tidy "$@"; then
    part "clang-tidy" clang-tidy-19 --quiet --config-file=check/.clang-tidy src/weir.c -- -std=gnu17 "${includes[@]}"
fi
if wanted rust "$@"; then
    part "cargo fmt" cargo fmt --manifest-path tool/Cargo.toml --all -- --check
    part "cargo clippy" cargo clippy --quiet --locked --manifest-path tool/Cargo.toml --target-dir build/tool \
        --workspace --all-targets -- -D warnings
fi
if wanted words "$@"; then
    part "no to-do markers" no_markers
    part "no paths of a machine" no_machine_paths
    part "no trailing blanks" no_trailing_blanks
    part "no file above 1 MiB" no_large_files
fi
if wanted scripts "$@"; then
    part "shell scripts parse" shell_syntax
    part "python scripts parse" python_syntax
fi

echo "style: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
