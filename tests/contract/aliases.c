/* aliases.c: the other names of the malloc family work and lead to the same heap.
 *
 * Who may call it: tests/contract/run.py. `__libc_malloc` and its kin, `__posix_memalign`, `cfree`, and the
 * legacy hook variables, which old binaries reference. glibc 2.36 hides some of them: the library shows all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

/* In the library, a name must be its own: glibc's would lead to another heap. */
static void* find(const char* name, int in_glibc) {
    void* symbol = dlsym(RTLD_DEFAULT, name);
    /* But for this one: it is private to glibc and does no more than call the realloc that is in force. */
    int may_be_glibc = strcmp(name, "__libc_reallocarray") == 0;
    if (getenv("CONTRACT_LIB") != NULL && !may_be_glibc) {
        if (!EXPECT(contract_is_from_lib(symbol))) contract_say(1, "  %s is not the library's\n", name);
    } else if (in_glibc) {
        EXPECT(symbol != NULL);
    }
    return symbol;
}

static void take(void* p, size_t n) {
    if (!EXPECT(p != NULL)) return;
    EXPECT_GE(malloc_usable_size(p), n);
    contract_fill(p, n, 5);
    EXPECT(contract_holds(p, n, 5));
    free(p);
}

int main(void) {
    contract_begin();
    void* (*libc_malloc)(size_t) = (void* (*)(size_t))find("__libc_malloc", 1);
    void* (*libc_calloc)(size_t, size_t) = (void* (*)(size_t, size_t))find("__libc_calloc", 1);
    void* (*libc_realloc)(void*, size_t) = (void* (*)(void*, size_t))find("__libc_realloc", 1);
    void* (*libc_reallocarray)(void*, size_t, size_t) =
        (void* (*)(void*, size_t, size_t))find("__libc_reallocarray", 1);
    void* (*libc_memalign)(size_t, size_t) = (void* (*)(size_t, size_t))find("__libc_memalign", 1);
    void* (*libc_valloc)(size_t) = (void* (*)(size_t))find("__libc_valloc", 1);
    void* (*libc_pvalloc)(size_t) = (void* (*)(size_t))find("__libc_pvalloc", 1);
    void (*libc_free)(void*) = (void (*)(void*))find("__libc_free", 1);
    int (*posix_memalign_alias)(void**, size_t, size_t) =
        (int (*)(void**, size_t, size_t))find("__posix_memalign", 0);
    void (*old_cfree)(void*) = (void (*)(void*))find("cfree", 0);

    static const size_t sizes[] = {1, 100, 3000, 100000, 2 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        if (libc_malloc != NULL) take(libc_malloc(n), n);
        if (libc_calloc != NULL) take(libc_calloc(n, 2), n * 2);
        if (libc_realloc != NULL) take(libc_realloc(malloc(n / 2 + 1), n), n);
        if (libc_reallocarray != NULL) take(libc_reallocarray(NULL, n, 2), n * 2);
        if (libc_memalign != NULL) take(libc_memalign(64, n), n);
        if (libc_valloc != NULL) take(libc_valloc(n), n);
        if (libc_pvalloc != NULL) take(libc_pvalloc(n), n);
        if (libc_free != NULL)
            for (int k = 0; k < 100; k++) libc_free(malloc(n));
        if (old_cfree != NULL)
            for (int k = 0; k < 100; k++) old_cfree(malloc(n));
        if (posix_memalign_alias != NULL) {
            void* p = NULL;
            EXPECT_EQ(posix_memalign_alias(&p, 256, n), 0);
            EXPECT_EQ((uintptr_t)p % 256, 0);
            take(p, n);
            EXPECT_EQ(posix_memalign_alias(&p, 3, n), EINVAL);
        }
    }

    static const char* const family[] = {
        "malloc",   "free",           "calloc",    "realloc",      "reallocarray",       "aligned_alloc",
        "memalign", "posix_memalign", "valloc",    "pvalloc",      "malloc_usable_size", "malloc_trim",
        "mallopt",  "mallinfo",       "mallinfo2", "malloc_stats", "malloc_info",
    };
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) find(family[i], 1);
    /* Since 2.34 glibc has the hooks for old binaries only: they carry its first version. */
    static const char* const hooks[] = {"__malloc_hook", "__free_hook", "__realloc_hook", "__memalign_hook"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        void** hook = find(hooks[i], 0);
#ifdef __x86_64__
        if (getenv("CONTRACT_LIB") == NULL) EXPECT(dlvsym(RTLD_DEFAULT, hooks[i], "GLIBC_2.2.5") != NULL);
#endif
        if (hook != NULL) EXPECT(*hook == NULL);
    }
    return contract_end();
}
