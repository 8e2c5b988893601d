# python3.sh: Python's own tests of the parts that stress memory, each test's name and verdict printed; those
# that start no other program. Every object is a block of malloc.
#
# Who may call it: programs.py.
#
# SPDX-License-Identifier: Apache-2.0
export PYTHONHASHSEED=0 PYTHONMALLOC=malloc
modules="test_list test_dict test_ordered_dict test_memoryview test_generators test_zlib"
# Verdicts alone: the tests' own chatter tells of times and of the order of threads.
quiet='import sys, unittest, test.support
test.support.verbose = 0
for name in sys.argv[1:]:
    print("==", name, flush=True)
    unittest.main(module="test." + name, argv=["unittest", "-v"], exit=False)'
# shellcheck disable=SC2086 # the modules are words
python3 -c "$quiet" $modules
