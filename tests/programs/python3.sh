# python3.sh: Python's own tests of the parts that stress memory, each test's name and verdict printed.
#
# Who may call it: run.py. Runs twice: with Python's own small-block allocator over malloc, and with malloc alone.
#
# program: name=pymalloc rounds=1 reach=python3[.].* needs=/usr/bin/python3:python3,/usr/lib/python3*/test/test_list.py:libpython3.11-testsuite|libpython3.12-testsuite
# program: name=malloc rounds=1 reach=python3[.].* env=PYTHONMALLOC=malloc needs=/usr/bin/python3:python3,/usr/lib/python3*/test/test_list.py:libpython3.11-testsuite|libpython3.12-testsuite
# version: /usr/bin/python3 --version
#
# SPDX-License-Identifier: Apache-2.0
export PYTHONHASHSEED=0
modules="test_list test_dict test_set test_bytes test_array test_deque test_sort test_tuple test_heapq test_json test_re test_mmap
test_memoryview test_ordered_dict test_zlib test_pickle test_itertools test_unicode"
if [ "$SCALE" -ge 10 ]; then
    modules="$modules test_gc test_weakref test_threading test_fork1"
fi
# Verdicts alone: the tests' own chatter tells of times and of the order of threads.
quiet='import sys, unittest, test.support; test.support.verbose = 0; unittest.main(module=None, argv=["unittest", "-v", *sys.argv[1:]])'
for module in $modules; do
    echo "== $module"
    /usr/bin/python3 -c "$quiet" "test.$module"
done
