/* introspect.c: glibc's calls that report on the heap, reporting on weir's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>

#include "api/stats.h"
#include "base/text.h"
#include "core/options.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"
#include "pool/pool.h"

/* arena: bytes held in slabs and free spans; ordblks: number of free blocks in slabs; hblkhd: in large
 * blocks; uordblks: live; fordblks: free inside what is held; keepcost: what malloc_trim could give back at
 * once. */
WEIR_EXPORT struct mallinfo2 mallinfo2(void) {
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    uint64_t free_bytes = all.cached_bytes + all.dirty_bytes;
    uint64_t free_blocks = 0;
    for (unsigned c = 0; c < CLASS_COUNT; c++) free_blocks += t.classes[c].cached_blocks;
    return (struct mallinfo2){.arena = all.live_bytes - t.large_bytes + free_bytes,
                              .ordblks = free_blocks,
                              .hblks = t.large_blocks,
                              .hblkhd = t.large_bytes,
                              .uordblks = all.live_bytes,
                              .fordblks = free_bytes,
                              .keepcost = all.dirty_bytes};
}

/* The old form's fields are int: what does not fit is cut to INT_MAX, not wrapped. */
static int clamp(size_t n) { return n > INT_MAX ? INT_MAX : (int)n; }

WEIR_EXPORT struct mallinfo mallinfo(void) {
    struct mallinfo2 m = mallinfo2();
    return (struct mallinfo){.arena = clamp(m.arena),
                             .ordblks = clamp(m.ordblks),
                             .hblks = clamp(m.hblks),
                             .hblkhd = clamp(m.hblkhd),
                             .uordblks = clamp(m.uordblks),
                             .fordblks = clamp(m.fordblks),
                             .keepcost = clamp(m.keepcost)};
}

WEIR_EXPORT void malloc_stats(void) {
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    const struct {
        const char* name;
        uint64_t value;
    } rows[] = {{"live bytes", all.live_bytes},
                {"live blocks", all.live_blocks},
                {"cached bytes", all.cached_bytes},
                {"dirty bytes", all.dirty_bytes},
                {"metadata bytes", all.metadata_bytes},
                {"resident bytes", all.resident_bytes},
                {"resident peak bytes", all.resident_peak_bytes},
                {"allocations", all.alloc_calls},
                {"frees", all.free_calls},
                {"thread heaps", all.heaps_live}};
    char buffer[1024];
    struct text text = text_make(buffer, sizeof buffer);
    text_string(&text, "weir ");
    text_string(&text, weir_version());
    text_char(&text, '\n');
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        text_string(&text, rows[i].name);
        for (size_t n = text_length(rows[i].name, 24); n < 24; n++) text_char(&text, ' ');
        text_string(&text, "= ");
        text_number(&text, rows[i].value);
        text_char(&text, '\n');
    }
    os_write(2, buffer, text.length);
}

/* XML as malloc_info(3) describes it: one heap with a row per size class, then the totals. */
WEIR_EXPORT int malloc_info(int options, FILE* stream) {
    if (options != 0) return EINVAL;
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    fprintf(stream, "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n");
    uint64_t free_blocks = 0;
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        uint64_t n = t.classes[c].cached_blocks;
        uint32_t bytes = size_classes[c].bytes;
        free_blocks += n;
        if (n != 0)
            fprintf(stream, "<size from=\"%u\" to=\"%u\" total=\"%llu\" count=\"%llu\"/>\n", bytes, bytes,
                    (unsigned long long)(n * bytes), (unsigned long long)n);
    }
    fprintf(stream,
            "</sizes>\n</heap>\n<total type=\"fast\" count=\"%llu\" size=\"%llu\"/>\n"
            "<total type=\"rest\" count=\"%llu\" size=\"%llu\"/>\n<total type=\"mmap\" count=\"%llu\" "
            "size=\"%llu\"/>\n"
            "<system type=\"current\" size=\"%llu\"/>\n<system type=\"max\" size=\"%llu\"/>\n"
            "<aspace type=\"total\" size=\"%llu\"/>\n<aspace type=\"mprotect\" size=\"%llu\"/>\n</malloc>\n",
            (unsigned long long)free_blocks, (unsigned long long)all.cached_bytes, 0ull,
            (unsigned long long)all.dirty_bytes, (unsigned long long)t.large_blocks,
            (unsigned long long)t.large_bytes, (unsigned long long)all.resident_bytes,
            (unsigned long long)all.resident_peak_bytes, (unsigned long long)all.reserved_bytes,
            (unsigned long long)all.committed_bytes);
    return ferror(stream) ? -1 : 0;
}

/* 1 when something went back to the kernel. `pad` bytes of free memory may stay, as in glibc. */
WEIR_EXPORT int malloc_trim(size_t pad) {
    pool_gc();
    heap_collect();
    heaps_visit_asked();
    if (pad != 0 && load_relaxed(&span_totals.dirty) + load_relaxed(&hole_pending) <= pad) return 0;
    return release_all() ? 1 : 0;
}

/* M_TRIM_THRESHOLD sets what dirty_max sets; the other parameters of glibc's malloc mean nothing here
 * and are accepted with the values that glibc accepts. */
WEIR_EXPORT int mallopt(int parameter, int value) {
    if (heap_self() == &heap_empty)
        heap_attach(); /* the options are read first: the program's word comes last */
    if (parameter == M_MXFAST && (value < 0 || value > 80 * (int)sizeof(size_t) / 4)) return 0;
    /* glibc: -1 is no trimming at all. Here it is no bound; free memory still goes when its time is up. */
    if (parameter == M_TRIM_THRESHOLD)
        store_relaxed(&core_options.dirty_max, value < 0 ? UINT64_MAX : (uint64_t)value);
    return 1;
}
