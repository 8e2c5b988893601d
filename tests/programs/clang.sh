# clang.sh: compiles a template-heavy C++ file with clang, compares the object code, and runs the program.
#
# Who may call it: run.py. Warnings are off: they would name the place where the system's headers lie.
#
# program: reach=clang,ld|(.*-)?ld[.]bfd rounds=2 needs=clang++-19:clang-19,g++:g++
# version: clang++-19 --version
#
# SPDX-License-Identifier: Apache-2.0
cp "$HERE/cxx_input.cpp" .
clang++-19 -w -std=gnu++17 -O1 -S -o one.s cxx_input.cpp
clang++-19 -c -o one.o one.s
sha256sum one.s one.o
if [ "$SCALE" -ge 10 ]; then
    for level in 0 2 3; do
        clang++-19 -w -std=gnu++20 -O$level -g -fdebug-compilation-dir=. -c -o two.o cxx_input.cpp
        sha256sum two.o
    done
fi
clang++-19 -o program one.o
./program
