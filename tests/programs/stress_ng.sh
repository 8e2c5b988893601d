# stress_ng.sh: stress-ng's memory and process classes with a fixed number of operations, each verified by stress-ng.
#
# Who may call it: run.py. What is compared is that every class did its operations and that none failed. The brk
# class is not among them: it writes below the start of the heap, which exists only where malloc is glibc's; on any
# other malloc its children are killed and started again until the time is over. The malloc class calls malloc_trim
# some 50,000 times, where up to 65,536 blocks of up to 2 KiB are in use. Weir's looks at each slab of the thread every
# time: 1.6 to 1.9 times the system's time (x86-64, 2 processors), hence the bound of its own.
#
# program: name=malloc ratio_max=2.5 env=CLASS=malloc reach=stress-ng main=- needs=stress-ng:stress-ng
# program: name=fork env=CLASS=fork reach=stress-ng main=- needs=stress-ng:stress-ng
# program: name=map env=CLASS=map reach=stress-ng main=- needs=stress-ng:stress-ng
# version: stress-ng --version
#
# SPDX-License-Identifier: Apache-2.0
case $CLASS in
    malloc)
        # Large blocks that are touched, then small ones in large numbers, each in four threads of two processes.
        classes=("--malloc 2 --malloc-ops $((60000 * SCALE)) --malloc-max 20000 --malloc-bytes 16K --malloc-pthreads 2 --malloc-touch"
            "--malloc 2 --malloc-ops $((400000 * SCALE)) --malloc-max 65536 --malloc-bytes 2K --malloc-pthreads 2") ;;
    fork)
        classes=("--fork 2 --fork-ops $((500 * SCALE)) --fork-max 4" "--vfork 2 --vfork-ops $((2000 * SCALE))"
            "--pthread 1 --pthread-ops $((1000 * SCALE)) --pthread-max 64") ;;
    map)
        # One class at a time: the mappings of one are no noise to the other.
        classes=("--mmap 1 --mmap-ops $((2 * SCALE)) --mmap-bytes 8M" "--mremap 1 --mremap-ops $((40 * SCALE)) --mremap-bytes 4M"
            "--vm 2 --vm-ops $((5000 * SCALE)) --vm-bytes 32M") ;;
esac
for class in "${classes[@]}"; do
    # shellcheck disable=SC2086 # the options are words
    stress-ng --no-rand-seed --verify --timeout 300 --metrics-brief $class > log 2>&1 || { cat log; exit 1; }
    sed -nE 's/^stress-ng: (metrc|info): +\[[0-9]+\] ([a-z]+) +([0-9]+) +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+.*/\2 \3/p' log
    sed -nE 's/^stress-ng: [a-z]+: +\[[0-9]+\] (successful run|unsuccessful run).*/\1/p' log
    # Anything that stress-ng reports as wrong is compared too.
    sed -nE 's/^stress-ng: (fail|error|warn): +\[[0-9]+\] /\1: /p' log
done
