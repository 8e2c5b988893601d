# cxx.sh: compiles a template-heavy C++ file, compares the object code, and runs the program.
#
# Who may call it: run.py.
#
# program: reach=cc1plus,(.*-)?as rounds=2 needs=g++:g++
# version: g++ --version
#
# SPDX-License-Identifier: Apache-2.0
cp "$HERE/cxx_input.cpp" .
g++ -std=gnu++17 -O1 -frandom-seed=1 -S -o one.s cxx_input.cpp
g++ -c -o one.o one.s
sha256sum one.s one.o
if [ "$SCALE" -ge 10 ]; then
    g++ -std=gnu++20 -O2 -frandom-seed=1 -c -o two.o cxx_input.cpp
    sha256sum two.o
fi
g++ -o program one.o
./program
