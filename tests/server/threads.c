/* threads.c: in place of weir's src/api/process.c and malloc in a build under ThreadSanitizer, which has a
 * malloc of its own and begins before the library does: threads' ends are seen while the sanitizer still
 * knows the thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/heap.h"
#include "pool/pool.h"
#include "weir/weir.h"

#include <pthread.h>

static pthread_key_t key;

static void thread_exit(void* unused) {
    (void)unused;
    pool_thread_detach();
    heap_detach("thread exit", true);
}

static bool thread_seen(void) { return pthread_setspecific(key, &key) == 0; }

void weir_thread_idle(void) { heap_detach("weir_thread_idle", false); }

static __attribute__((constructor)) void threads_begin(void) {
    pthread_key_create(&key, thread_exit);
    pool_thread_hook = thread_seen;
}
