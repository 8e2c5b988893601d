/* hollow.c: the names that weir has beside malloc's, with nothing behind them.
 *
 * Who may call it: tests/contract/self_test.py, which links it with broken.c, sees programs that look for
 * these names fail under the two, and pass under broken.c alone. No count ever moves, an idle thread is not
 * heard, and the operators new[] and delete[] and the sized delete go to malloc and free though a program may
 * have operators of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "../../../include/weir/weir.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char* weir_version(void) { return "hollow"; }

int weir_stats_get(struct weir_stats* stats) {
    size_t size = stats->struct_size;
    memset(stats, 0, size);
    stats->struct_size = size;
    return 0;
}

int weir_stats_json(int fd) { return write(fd, "{}\n", 3) == 3 ? 0 : -1; }

void weir_thread_idle(void) {}

/* operator new[](size_t), operator delete[](void*), operator delete(void*, size_t). */
void* _Znam(size_t n);
void _ZdaPv(void* p);
void _ZdlPvm(void* p, size_t n);

void* _Znam(size_t n) { return malloc(n); }
void _ZdaPv(void* p) { free(p); }
void _ZdlPvm(void* p, size_t n) {
    (void)n;
    free(p);
}
