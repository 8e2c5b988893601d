/* witness.c: preloaded into a program on aarch64, says at its end what heap it had: one line in the file that
 * $TAGGING_WITNESS names: `PROGRAM LIBRARY MODE TAG`: which library serves malloc, how the thread compares
 * tags (off, sync, async, both), and the tag of a fresh block.
 *
 * programs.py preloads it behind the allocator. It knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { GET_TAGGED = 56 /* PR_GET_TAGGED_ADDR_CTRL */ };

__attribute__((destructor)) static void witness_end(void) {
    static const char* const modes[] = {"off", "sync", "async", "both"};
    const char* path = getenv("TAGGING_WITNESS");
    Dl_info library = {0};
    char line[512];
    void* symbol = dlsym(RTLD_DEFAULT, "malloc_usable_size");
    if (path == NULL || symbol == NULL || dladdr(symbol, &library) == 0) return;
    void* volatile block = malloc(40);
    const char* name = strrchr(library.dli_fname, '/');
    int mode = prctl(GET_TAGGED, 0, 0, 0, 0);
    int n = snprintf(line, sizeof line, "%s %s %s %u\n", program_invocation_short_name,
                     name != NULL ? name + 1 : library.dli_fname, modes[mode < 0 ? 0 : mode >> 1 & 3],
                     (unsigned)((uintptr_t)block >> 56 & 15));
    free(block);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n) _exit(4);
    close(fd);
}
