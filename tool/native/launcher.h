/* launcher.h: what the launcher writes to the tool.
 *
 * Reports of one size, each written whole: one when the command was forked off, one when it ended, or one
 * when it could not be executed. The reader in Rust (`compare/launch.rs`) has the same layout. It
 * deliberately knows nothing of allocators.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef LAUNCHER_H
#define LAUNCHER_H

enum launcher_kind {
    LAUNCHER_FAILED = 1,  /* `status` is the errno of fork or exec */
    LAUNCHER_STARTED = 2, /* `pid` and `start_ns` */
    LAUNCHER_ENDED = 3    /* all fields; `status` as wait gives it */
};

/* Sums over all children that had ended when the report was written, the command's children included. */
struct launcher_usage {
    long user_us, system_us;
    long resident_max_kib; /* of the largest single process */
    long minor_faults, major_faults;
    long switches_voluntary, switches_involuntary;
};

struct launcher_report {
    int kind, status, pid, reserved;
    unsigned long start_ns, end_ns; /* CLOCK_MONOTONIC, right before fork and right after wait */
    struct launcher_usage usage;
};

/* The kernel's struct rusage. */
struct launcher_rusage {
    long user_s, user_us, system_s, system_us, resident_max_kib, unused_text, unused_data, unused_stack;
    long minor_faults, major_faults, unused_swaps, unused_in, unused_out, unused_sent, unused_received;
    long unused_signals, switches_voluntary, switches_involuntary;
};

_Static_assert(sizeof(struct launcher_report) == 88, "the reader knows this size");
_Static_assert(sizeof(struct launcher_rusage) == 144, "the kernel's size");
#endif
