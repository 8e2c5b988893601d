/* dlopen_new.c: a C program that opens C++ late, and plugins that come and go.
 *
 * Who may call it: tests/contract/run.py, which hands it the paths of its two plugins. libstdc++ arrives
 * after the allocator: a `new` that fails in the plugin must still throw its std::bad_alloc.
 *
 * contract: plugin=plugin_new.cpp,plugin_plain.c
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <link.h>
#include <pthread.h>

static int seen_libstdcxx;

static int look(struct dl_phdr_info* info, size_t size, void* unused) {
    (void)size;
    (void)unused;
    seen_libstdcxx |= strstr(info->dlpi_name, "libstdc++") != NULL;
    return 0;
}

static void test_cpp(const char* path) {
    seen_libstdcxx = 0;
    dl_iterate_phdr(look, NULL);
    EXPECT(!seen_libstdcxx);
    size_t too_large = contract_opaque((size_t)PTRDIFF_MAX - 1000);
    for (int i = 0; i < 20; i++) {
        void* plugin = dlopen(path, RTLD_NOW | (i % 2 ? RTLD_LOCAL : RTLD_GLOBAL));
        if (!EXPECT(plugin != NULL)) {
            contract_say(1, "  %s\n", dlerror());
            return;
        }
        int (*throws)(size_t) = (int (*)(size_t))dlsym(plugin, "plugin_throws");
        int (*aligned_throws)(size_t) = (int (*)(size_t))dlsym(plugin, "plugin_aligned_throws");
        int (*calls)(size_t) = (int (*)(size_t))dlsym(plugin, "plugin_handler_calls");
        int (*nothrow_null)(size_t) = (int (*)(size_t))dlsym(plugin, "plugin_nothrow_null");
        void* (*work)(size_t, size_t*) = (void* (*)(size_t, size_t*))dlsym(plugin, "plugin_work");
        EXPECT_EQ(throws(too_large), 1);
        EXPECT_EQ(throws(1000), 0);
        EXPECT_EQ(aligned_throws(too_large), 1);
        EXPECT_EQ(aligned_throws(1000), 0);
        EXPECT_EQ(calls(too_large), 2);
        EXPECT_EQ(nothrow_null(too_large), 1);
        EXPECT_EQ(nothrow_null(100), 0);
        size_t bytes = 0;
        void* block = work(1000, &bytes);
        EXPECT_EQ(bytes, 499500);
        EXPECT_EQ(dlclose(plugin), 0);
        EXPECT_GE(malloc_usable_size(block), 1000);
        free(block);
    }
    seen_libstdcxx = 0;
    dl_iterate_phdr(look, NULL);
    EXPECT(seen_libstdcxx);
}

static void* close_elsewhere(void* plugin) {
    EXPECT_EQ(dlclose(plugin), 0);
    return NULL;
}

static void test_plain(const char* path) {
    long resident = 0;
    for (int i = 0; i < 1000; i++) {
        void* plugin = dlopen(path, RTLD_NOW);
        if (!EXPECT(plugin != NULL)) return;
        char* (*duplicate)(const char*) = (char* (*)(const char*))dlsym(plugin, "plugin_strdup");
        char* text = duplicate("a string that outlives its maker");
        if (i % 10 == 0) {
            pthread_t thread;
            EXPECT_EQ(pthread_create(&thread, NULL, close_elsewhere, plugin), 0);
            pthread_join(thread, NULL);
        } else {
            EXPECT_EQ(dlclose(plugin), 0);
        }
        EXPECT(strcmp(text, "a string that outlives its maker") == 0);
        free(text);
        if (i == 100) resident = contract_status_kib("VmRSS:");
    }
    EXPECT(dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL);
    EXPECT_LE(contract_status_kib("VmRSS:") - resident, 2 * 1024);
}

int main(int argc, char** argv) {
    contract_begin();
    if (!EXPECT_EQ(argc, 3)) return contract_end();
    test_plain(argv[2]);
    test_cpp(argv[1]);
    test_plain(argv[2]);
    return contract_end();
}
