/* introspect.c: mallinfo, mallinfo2, malloc_info, malloc_stats, malloc_trim and mallopt tell the truth.
 *
 * Who may call it: tests/contract/run.py. Allocates 100 MB in small blocks, in two threads, and looks
 * for them in every report; frees them and looks again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <ctype.h>
#include <pthread.h>

enum { COUNT = 100000, BLOCK = 1000 };
#define BYTES ((long long)COUNT * BLOCK)

static void* blocks[COUNT];

static void* allocate_half(void* from) {
    size_t first = (size_t)(uintptr_t)from;
    for (size_t i = first; i < first + COUNT / 2; i++) {
        blocks[i] = malloc(BLOCK);
        memset(contract_opaque_pointer(blocks[i]), 1, BLOCK);
    }
    return NULL;
}

static void allocate_all(void) {
    pthread_t thread;
    EXPECT_EQ(pthread_create(&thread, NULL, allocate_half, (void*)(uintptr_t)(COUNT / 2)), 0);
    allocate_half(NULL);
    pthread_join(thread, NULL);
}

/* The largest number in a text. */
static unsigned long long largest_number(const char* text) {
    unsigned long long largest = 0;
    while (*text != '\0') {
        if (isdigit((unsigned char)*text)) {
            char* end;
            unsigned long long value = strtoull(text, &end, 10);
            if (value > largest) largest = value;
            text = end;
        } else {
            text++;
        }
    }
    return largest;
}

/* One root element, tags balanced, attributes quoted: enough of XML for what malloc_info may write. */
static int is_balanced_xml(const char* text) {
    static char open[64][64];
    int depth = 0;
    int roots = 0;
    while (*text != '\0') {
        if (*text != '<') {
            if (depth == 0 && !isspace((unsigned char)*text)) return 0;
            text++;
            continue;
        }
        const char* end = strchr(text, '>');
        if (end == NULL || memchr(text + 1, '<', (size_t)(end - text - 1)) != NULL) return 0;
        int quotes = 0;
        for (const char* at = text; at < end; at++) quotes += *at == '"';
        if (quotes % 2 != 0) return 0;
        int closes = text[1] == '/';
        char name[64] = "";
        sscanf(text + 1 + closes, "%63[A-Za-z0-9_:-]", name);
        if (text[1] == '?') {
            if (depth != 0 || roots != 0) return 0;
        } else if (name[0] == '\0') {
            return 0;
        } else if (closes) {
            if (depth == 0 || strcmp(open[--depth], name) != 0) return 0;
        } else if (end[-1] != '/') {
            if (depth == 64 || (depth == 0 && roots++ != 0)) return 0;
            strcpy(open[depth++], name);
        }
        text = end + 1;
    }
    return depth == 0 && roots == 1;
}

static void test_xml_checker(void) {
    EXPECT(is_balanced_xml("<malloc version=\"1\">\n<heap nr=\"0\"/><a></a></malloc>\n"));
    EXPECT(!is_balanced_xml("<malloc><heap></malloc>"));
    EXPECT(!is_balanced_xml("<malloc version=\"1></malloc>"));
    EXPECT(!is_balanced_xml("<malloc>"));
    EXPECT(!is_balanced_xml("<a/></a>"));
    EXPECT(!is_balanced_xml(""));
}

static char report[1 << 20];

static void read_info(void) {
    FILE* file = tmpfile();
    EXPECT(file != NULL);
    fprintf(file, "%s", ""); /* the buffer exists before the report walks the heap */
    EXPECT_EQ(malloc_info(0, file), 0);
    EXPECT_EQ(fflush(file), 0);
    rewind(file);
    report[fread(report, 1, sizeof report - 1, file)] = '\0';
    fclose(file);
}

static void test_info(int holds) {
    read_info();
    EXPECT(is_balanced_xml(report));
    EXPECT(strncmp(report, "<malloc", 7) == 0);
    if (holds) EXPECT_GE(largest_number(report), BYTES);
    EXPECT(malloc_info(1, stdout) != 0);
}

/* malloc_stats writes to stderr; glibc's also to the stdio stream of that name. */
static void test_stats(int holds) {
    FILE* file = tmpfile();
    EXPECT(file != NULL);
    fflush(stderr);
    int saved = dup(2);
    EXPECT(dup2(fileno(file), 2) == 2);
    malloc_stats();
    fflush(stderr);
    EXPECT(dup2(saved, 2) == 2);
    close(saved);
    rewind(file);
    size_t n = fread(report, 1, sizeof report - 1, file);
    report[n] = '\0';
    fclose(file);
    EXPECT_GE(n, 20);
    if (holds) EXPECT_GE(largest_number(report), BYTES);
}

static long long in_use(void) {
    struct mallinfo2 info = mallinfo2();
    EXPECT_GE(info.arena + info.hblkhd, info.uordblks);
    return (long long)info.uordblks;
}

static void test_mallinfo(void) {
    long long before = in_use();
    long long mapped_before = (long long)mallinfo2().hblkhd;
    allocate_all();
    long long during = in_use();
    EXPECT_GE(during - before, BYTES);
    EXPECT_LE(during - before, BYTES + BYTES / 10);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    EXPECT_GE((long long)mallinfo().uordblks - before, BYTES);
    EXPECT_LE((long long)mallinfo().uordblks - before, BYTES + BYTES / 10);
#pragma GCC diagnostic pop
    test_info(1);
    test_stats(1);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    EXPECT_LE(in_use() - before, 2 << 20);

    /* A huge block shows as mapped, or as in use. */
    void* huge = malloc(256u << 20);
    struct mallinfo2 info = mallinfo2();
    EXPECT_GE((long long)(info.uordblks + info.hblkhd) - before - mapped_before, 256ll << 20);
    free(huge);
    info = mallinfo2();
    EXPECT_LE((long long)info.uordblks - before, 4 << 20);
    EXPECT_LE((long long)info.hblkhd - mapped_before, 64 << 20);
}

static void test_trim(void) {
    malloc_trim(0);
    long before = contract_status_kib("VmRSS:");
    allocate_all();
    EXPECT_GE(contract_status_kib("VmRSS:") - before, BYTES / 1024 * 9 / 10);
    /* One block of every hundred stays, untouched by the call. How much of what is between them goes back is
     * the allocator's choice: glibc returns whole pages, weir whole slabs. */
    for (int i = 0; i < COUNT; i++)
        if (i % 100 != 0) {
            free(blocks[i]);
            blocks[i] = NULL;
        }
    int released = malloc_trim(0);
    EXPECT(released == 0 || released == 1);
    for (int i = 0; i < COUNT; i += 100) EXPECT(contract_is_zero(blocks[i], 1) == 0);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    malloc_trim(0);
    EXPECT_LE(contract_status_kib("VmRSS:") - before, 8 * 1024);
}

static void test_mallopt(void) {
    EXPECT_EQ(mallopt(M_TRIM_THRESHOLD, 128 * 1024), 1);
    EXPECT_EQ(mallopt(M_MMAP_THRESHOLD, 1 << 20), 1);
    EXPECT_EQ(mallopt(M_TOP_PAD, 0), 1);
    EXPECT_EQ(mallopt(M_MMAP_MAX, 1000), 1);
    EXPECT_EQ(mallopt(M_ARENA_MAX, 2), 1);
    EXPECT_EQ(mallopt(M_MXFAST, 64), 1);
    EXPECT_EQ(mallopt(M_MXFAST, 1 << 20), 0);
    void* p = malloc(100);
    EXPECT(p != NULL);
    free(p);
    enum { LARGE = 64 << 20 };
    /* What is free is not to stay, however short its time. */
    EXPECT_EQ(mallopt(M_TRIM_THRESHOLD, 0), 1);
    p = malloc(LARGE);
    contract_fill(p, LARGE, 1);
    long full = contract_status_kib("VmRSS:");
    free(p);
    EXPECT_LE(contract_status_kib("VmRSS:"), full - LARGE / 1024 * 3 / 4);
    EXPECT_EQ(mallopt(M_TRIM_THRESHOLD, -1), 1);
}

int main(void) {
    contract_begin();
    test_xml_checker();
    test_info(0);
    test_stats(0);
    test_mallinfo();
    test_trim();
    test_mallopt();
    return contract_end();
}
