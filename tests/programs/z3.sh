# z3.sh: problems over integers, reals, bit vectors, arrays and quantifiers in z3, each verdict and value printed.
#
# Who may call it: run.py. One thread and fixed seeds.
#
# program: reach=z3 rounds=2 needs=z3:z3 input=smt
# version: z3 --version
#
# SPDX-License-Identifier: Apache-2.0
for problem in "$INPUT"/smt/*.smt2; do
    echo "== $(basename "$problem")"
    z3 smt.random_seed=0 sat.random_seed=0 "$problem"
done
