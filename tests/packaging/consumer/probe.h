/* probe.h: proves in a program that its heap is weir's, and says where malloc lies.
 *
 * Who may include it: the programs of the packaging tests, C and C++. The count of blocks comes from
 * weir_stats_get alone, and libc's own strdup has to be in it. It deliberately does not know how weir was
 * linked.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef PROBE_H
#define PROBE_H

#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weir/weir.h>

enum { PROBE_BLOCKS = 1000 };

#ifdef __cplusplus
extern "C" {
#endif
/* One pair of malloc and free, for the disassembler to look at. */
void probe_pair(void);
#ifdef __cplusplus
}
#endif

static inline unsigned long long probe_calls(void) {
    struct weir_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = (uint32_t)sizeof stats;
    if (weir_stats_get(&stats) != 0) exit(3);
    return stats.alloc_calls;
}

/* The file that has the symbol which every library of the process is bound to. */
static inline const char* probe_home(const char* symbol) {
    Dl_info info;
    void* address = dlsym(RTLD_DEFAULT, symbol);
    if (address == NULL || dladdr(address, &info) == 0 || info.dli_fname == NULL) return "nowhere";
    const char* slash = strrchr(info.dli_fname, '/');
    return slash != NULL ? slash + 1 : info.dli_fname;
}

static inline int probe_malloc(void) {
    unsigned long long before = probe_calls();
    for (int i = 0; i < PROBE_BLOCKS; i++) {
        probe_pair();
        char* copy = strdup("libc allocates this");
        if (copy == NULL || copy[0] != 'l') return 2;
        free(copy);
    }
    unsigned long long calls = probe_calls() - before;
    printf("weir %s: %llu calls\n", weir_version(), calls);
    return calls >= 2 * PROBE_BLOCKS ? 0 : 1;
}

static inline void probe_show(const char* symbol) { printf("%s in %s\n", symbol, probe_home(symbol)); }

#endif
