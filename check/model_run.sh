#!/usr/bin/env bash
# check/model_run.sh: one seeded run of the model test on the library, judged as one test.
#
#     check/model_run.sh MODEL LIBRARY ARGUMENT...
#
# Who may call it: the test command. The run has passed when the model ended well and its last line says
# that it lost nothing. It deliberately knows no argument of the model: they are the caller's.
#
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
model=$1 library=$2
shift 2
out=$(LD_PRELOAD=$library "$model" "$@" 2>&1)
status=$?
echo "$out"
if [ $status -eq 0 ] && [[ ${out##*$'\n'} == *"lost: 0" ]]; then echo "1 passed, 0 failed"; else
    echo "model: status $status"
    echo "0 passed, 1 failed"
    exit 1
fi
