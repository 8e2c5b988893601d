/* sets.c: `sets SHAPE SIZE ROUNDS`: ROUNDS of the shapes whose instructions check/tags_off.py counts.
 *
 * The shapes of glibc's bench-malloc-thread and bench-malloc-simple: `pair`, a block that comes and goes;
 * `set`, 1024 blocks that are all freed before the next ones. Knows nothing of the allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
    enum { blocks = 1024 };
    static void* volatile held[blocks];
    if (argc != 4) return 2;
    size_t count = strcmp(argv[1], "set") == 0 ? blocks : 1;
    size_t size = (size_t)atol(argv[2]);
    for (long round = atol(argv[3]); round > 0; round--) {
        for (size_t i = 0; i < count; i++) held[i] = malloc(size);
        for (size_t i = 0; i < count; i++) free(held[i]);
    }
    return 0;
}
