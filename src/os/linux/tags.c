/* tags.c (Linux): the kernel's side of memory tags, as os.h has it.
 *
 * The numbers are the kernel's for arm64, spelled out for headers that lack them. It deliberately knows
 * nothing of what the tags are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "arch/arch.h"
#include "os/linux/call.h"
#include "os/os.h"

enum { TAGS_PROT = 0x20, TAGS_HWCAP2 = 1 << 18 };
enum { TAGGED_CONTROL_SET = 55, TAGGED_CONTROL_GET = 56 };
enum {
    TAGGED_ADDRESSES = 1,
    TAGS_MODE_SHIFT = 1,
    TAGS_MODE = (OS_TAGS_SYNC | OS_TAGS_ASYNC) << TAGS_MODE_SHIFT,
    TAGS_ALLOWED_SHIFT = 3,
    TAGS_ALLOWED = 0xfffe /* all but 0 */
};

#ifdef WEIR_TESTING
WEIR_VAR uint32_t os_tags_refused;
static bool tags_refused(uint32_t mode) { return (os_tags_refused >> mode & 1) != 0; }
#else
static inline bool tags_refused(uint32_t mode) {
    (void)mode;
    return false;
}
#endif

WEIR_FN bool os_tags_exist(void) {
    if (!ARCH_HAS_TAGS || (getauxval(AT_HWCAP2) & TAGS_HWCAP2) == 0) return false;
    return os_call6(OS_OTHER, SYS_prctl, TAGGED_CONTROL_GET, 0, 0, 0, 0, 0) >= 0;
}

WEIR_FN uint32_t os_tags_mode(void) {
    long word = os_call6(OS_OTHER, SYS_prctl, TAGGED_CONTROL_GET, 0, 0, 0, 0, 0);
    return word < 0 ? 0 : (uint32_t)(word & TAGS_MODE) >> TAGS_MODE_SHIFT;
}

WEIR_FN bool os_tags_set(uint32_t mode) {
    long word = TAGGED_ADDRESSES | (long)mode << TAGS_MODE_SHIFT | (long)TAGS_ALLOWED << TAGS_ALLOWED_SHIFT;
    return !tags_refused(mode) && os_call6(OS_OTHER, SYS_prctl, TAGGED_CONTROL_SET, word, 0, 0, 0, 0) == 0;
}

WEIR_FN uint32_t os_tags_memory(void) { return TAGS_PROT; }

WEIR_FN uint32_t os_thread_count(void) {
    char stat[1024];
    size_t length = os_read_file("/proc/self/stat", stat, sizeof stat);
    enum { field = 20, after_name = 2 };
    size_t at = length;
    while (at != 0 && stat[at - 1] != ')') at--; /* a name may have any other character */
    for (unsigned before = after_name; at < length && before < field; at++) before += stat[at] == ' ';
    uint32_t n = 0;
    for (; at < length && stat[at] >= '0' && stat[at] <= '9'; at++) n = n * 10 + (uint32_t)(stat[at] - '0');
    return n;
}
