/* own.c: a malloc that a program brings along, as Firefox, Chromium and rustup's rustc do: a bump pointer.
 *
 * Who may call it: limits.py links it with plain.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>
#include <string.h>

void* malloc(size_t size);
void free(void* block);
void* calloc(size_t count, size_t size);
void* realloc(void* block, size_t size);

static _Alignas(16) char own_heap[256 << 20];
static size_t own_used;

void* malloc(size_t size) {
    const size_t at = own_used + 16;
    own_used = (at + size + 15) & ~(size_t)15;
    if (own_used > sizeof own_heap) return NULL;
    memcpy(own_heap + at - sizeof size, &size, sizeof size);
    return own_heap + at;
}

void free(void* block) { (void)block; }

void* calloc(size_t count, size_t size) { return malloc(count * size); }

void* realloc(void* block, size_t size) {
    void* moved = malloc(size);
    size_t old = 0;
    if (block != NULL) memcpy(&old, (char*)block - sizeof old, sizeof old);
    return moved != NULL && old != 0 ? memcpy(moved, block, old < size ? old : size) : moved;
}
