# sort.sh: sort with two threads, in memory and with files in between.
#
# Who may call it: run.py.
#
# program: reach=sort needs=sort:coreutils input=lines
# version: sort --version
#
# SPDX-License-Identifier: Apache-2.0
export LC_ALL=C
sort --parallel=2 -S 256M "$INPUT/lines.txt" | sha256sum
sort --parallel=2 -S 256M -k1,1n -k2r "$INPUT/lines.txt" | sha256sum
sort --parallel=2 -S 4M -u "$INPUT/lines.txt" | sha256sum
cut -d' ' -f2 "$INPUT/lines.txt" | sort --parallel=2 | uniq -c | sort -rn --parallel=2
