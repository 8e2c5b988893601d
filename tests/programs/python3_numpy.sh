# python3_numpy.sh: numpy's own tests, from the package registry, in a virtual environment; each test's verdict is compared.
#
# Who may call it: run.py. The set-up installs numpy with hashes (python3_numpy_requirements.txt). A test that skips
# itself says so on both sides; one that fails must fail on both. The bounded run leaves out
# the modules that take longest.
#
# program: setup=yes rounds=1 reach=python3[.].* needs=/usr/bin/python3:python3,/usr/lib/python3*/ensurepip/__main__.py:python3-venv
# version: sed -n s/^numpy==//p "$HERE/python3_numpy_requirements.txt"
#
# SPDX-License-Identifier: Apache-2.0
modules=(_core/tests/test_{numeric,records,shape_base,indexing,nditer}.py linalg/tests/test_linalg.py lib/tests/test_io.py)
if [ "$SCALE" -ge 10 ]; then
    modules+=(_core/tests/test_{multiarray,ufunc,dtype,strings,mem_overlap,regression}.py fft/tests ma/tests/test_core.py
        random/tests/test_generator_mt19937.py)
fi
tests() {
    local numpy
    numpy=$(printf '%s\n' "$SETUP"/venv/lib/python3*/site-packages/numpy)
    "$SETUP/venv/bin/python" -m pytest -q -p no:cacheprovider -m 'not slow' --color=no -rA --tb=line -W ignore --rootdir "$numpy" -c /dev/null \
        "$@" "${modules[@]/#/$numpy/}"
}
if [ "${1:-}" = setup ]; then
    /usr/bin/python3 -m venv "$SETUP/venv"
    "$SETUP/venv/bin/pip" --quiet --disable-pip-version-check install --only-binary :all: --require-hashes -r "$HERE/python3_numpy_requirements.txt"
    # Compiles the tests; the rounds then read what this leaves.
    tests --collect-only > collected.log || { tail -n 40 collected.log; exit 1; }
    exit
fi
export PYTHONHASHSEED=0 OPENBLAS_NUM_THREADS=2 PYTHONDONTWRITEBYTECODE=1
tests > log 2>&1 || status=$?
grep -E '^(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED)' log | sed -E 's/ - .*//; s|[^ ]*/site-packages/||' | LC_ALL=C sort > verdicts
test -s verdicts || { tail -n 40 log; exit 1; }
sha256sum verdicts
cut -d' ' -f1 verdicts | uniq -c
grep -E '^(FAILED|ERROR|XPASS)' verdicts || true
echo "status ${status:-0}"
