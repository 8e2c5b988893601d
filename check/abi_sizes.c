/* check/abi_sizes.c: prints the sizes and field offsets of the public structs, one per line.
 *
 * Who may call it: check/abi.py, which compiles it, runs it and compares with check/abi.sizes. It
 * deliberately knows the public headers alone. A field that is added goes in here and in abi.sizes; a
 * field that moves breaks programs that were compiled before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>
#include <stdio.h>
#include <weir/weir.h>
#include <weir/wire.h>

#define SIZE(type) printf("size " #type " %zu\n", sizeof(struct type))
#define FIELD(type, field) printf("field " #type "." #field " %zu\n", offsetof(struct type, field))

int main(void) {
    SIZE(weir_stats);
    FIELD(weir_stats, struct_size);
    FIELD(weir_stats, version);
    FIELD(weir_stats, live_bytes);
    FIELD(weir_stats, resident_bytes);
    FIELD(weir_stats, alloc_calls);
    FIELD(weir_stats, heaps_live);
    FIELD(weir_stats, sys_map);
    FIELD(weir_stats, sys_other);
    FIELD(weir_stats, misuse_reports);
    FIELD(weir_stats, hole_bytes);
    FIELD(weir_stats, guarded_freed);
    SIZE(weir_stats_class);
    FIELD(weir_stats_class, slab_bytes);
    SIZE(weir_stats_heap);
    FIELD(weir_stats_heap, cached_bytes);
    SIZE(weir_wire_header);
    FIELD(weir_wire_header, slots_claimed);
    SIZE(weir_wire_slot);
    FIELD(weir_wire_slot, start_ns);
    FIELD(weir_wire_slot, misuse_reports);
    FIELD(weir_wire_slot, hole_bytes);
    FIELD(weir_wire_slot, exe);
    FIELD(weir_wire_header, pool_chunks_claimed);
    FIELD(weir_wire_slot, pools_turn);
    SIZE(weir_wire_pool);
    FIELD(weir_wire_pool, object_bytes);
    FIELD(weir_wire_pool, name);
    printf("value WEIR_WIRE_MAGIC %llx\n", (unsigned long long)WEIR_WIRE_MAGIC);
    printf("value WEIR_WIRE_VERSION %u\n", WEIR_WIRE_VERSION);
    printf("value WEIR_STATS_VERSION %u\n", WEIR_STATS_VERSION);
    return 0;
}
