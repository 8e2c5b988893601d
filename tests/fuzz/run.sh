#!/bin/bash
# run.sh: builds the fuzz targets and runs each for a while from the committed corpus.
#
#   run.sh [SECONDS [OBJECT_OR_ARCHIVE]]
#
# SECONDS (60) are for each run: options, then malloc in each checking mode. The allocator under test is
# the given file; without one, the library's sources compiled here with coverage and its own
# invariants checked, where src/weir.c exists; else the C library's malloc, which tries the target itself. Run by hand and by CI.
# Findings and new inputs stay in $FUZZ_WORK (a new directory below $TMPDIR). It knows where the sources
# are, and nothing of what is in them. Last line: N passed, N failed.
#
# SPDX-License-Identifier: Apache-2.0
set -u
export WEIR_OPTIONS=
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
seconds=${1:-60}
library=${2:-}
cc=${CC:-clang-19}
work=${FUZZ_WORK:-$(mktemp -d "${TMPDIR:-/tmp}/weir-fuzz.XXXXXX")}
case $work in /*) ;; *) work=$PWD/$work ;; esac
mkdir -p "$work"
jobs=$(nproc)
passed=0
failed=0
flags=(-std=gnu17 -O1 -g -Wall -Wextra -Wundef -Werror -I"$root/src" -I"$root/include")

fuzz() { # NAME BINARY CORPUS SECONDS
    local name=$1 binary=$2 corpus=$3
    mkdir -p "$work/$name.corpus"
    rm -f "$work/$name.status"
    (cd "$work" && "$binary" -max_total_time="$4" -timeout=20 -rss_limit_mb=4096 -max_len=8192 -print_final_stats=1 \
        -artifact_prefix="$work/$name-" "$work/$name.corpus" "$corpus") >"$work/$name.log" 2>&1
    echo $? >"$work/$name.status"
}

note() { # NAME BINARY: how it ended
    local log="$work/$1.log" status
    status=$(cat "$work/$1.status") || status=none
    if [ "$status" = 0 ]; then
        passed=$((passed + 1))
        echo "ok      $1: $(grep -a 'DONE' "$log" | tail -1)"
    else
        failed=$((failed + 1))
        echo "FAILED  $1 (exit $status); the log is $log:"
        grep -aE '^(weir|fuzz_[a-z]+|==[0-9]+==|SUMMARY|.*Test unit written)|^ *#[0-9]+ .*/(src|tests)/|Assertion' "$log" | head -n 24
        echo "        again: WEIR_OPTIONS=$WEIR_OPTIONS $2 $(sed -n 's/.*Test unit written to //p' "$log" | head -n 1)"
    fi
}

build() { # NAME COMMAND...
    local name=$1
    shift
    if ! "$@" >"$work/$name.build.log" 2>&1; then
        failed=$((failed + 1))
        echo "FAILED  $name does not build: $*"
        cat "$work/$name.build.log"
        return 1
    fi
}

if [ -f "$root/src/core/options.c" ]; then
    build options "$cc" "${flags[@]}" -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        "$here/fuzz_options.c" "$root/src/core/options.c" "$root/src/base/text.c" -o "$work/fuzz_options" &&
        fuzz options "$work/fuzz_options" "$here/corpus/options" "$seconds" && note options "$work/fuzz_options"
fi

# The library's comparisons are not traced: those of checks=full would tell the fuzzer the secret mark of a
# freed block, and with it in an input the fuzzer's own block of that input looks freed.
if [ -z "$library" ] && [ -f "$root/src/weir.c" ]; then
    library="$work/weir.o"
    build weir "$cc" "${flags[@]}" -Wno-error -DWEIR_DEBUG -fPIC -fexceptions -fvisibility=hidden -fno-builtin-malloc \
        -fno-builtin-calloc -fno-builtin-realloc -fno-builtin-free -fsanitize=fuzzer-no-link \
        -fno-sanitize-coverage=trace-cmp -c \
        "$root/src/weir.c" -o "$library" || library=missing
fi
if [ "$library" != missing ] &&
    build malloc "$cc" "${flags[@]}" -fno-builtin -fsanitize=fuzzer "$here/fuzz_malloc.c" ${library:+"$library"} \
        -pthread -o "$work/fuzz_malloc"; then
    modes=("" check_every=1 checks=full reserve=64m thread_free_max=0)
    for ((i = 0; i < ${#modes[@]}; i += jobs)); do # each has a processor of its own
        for mode in "${modes[@]:i:jobs}"; do
            WEIR_OPTIONS=$mode fuzz "malloc${mode:+-$mode}" "$work/fuzz_malloc" "$here/corpus/malloc" "$seconds" &
        done
        wait
    done
    for mode in "${modes[@]}"; do WEIR_OPTIONS=$mode note "malloc${mode:+-$mode}" "$work/fuzz_malloc"; done
fi
[ -n "$library" ] || echo "no weir here: the C library's malloc was tried"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
