/* witness.h: asks an allocator whether a block is its own.
 *
 * The probe calls it, and program.py through ctypes. It deliberately does not know which allocator is loaded:
 * the table peers.toml names a function that only this allocator has, and how the answer of the function is
 * read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WITNESS_H
#define WITNESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* SPEC is KIND:FUNCTION:ANSWER, or `none`. Kinds:
 *   owns     int FUNCTION(block) says ANSWER for a block of the allocator
 *   size     size_t FUNCTION(block) says at least the block's size, and for a stranger 0 or something beyond
 * all memory end      void* FUNCTION(block) says where the block ends bytes    FUNCTION is jemalloc's
 * mallctl; "thread.allocated" has grown by the block since this thread last asked iterate  FUNCTION is
 * malloc_iterate; it comes by the block Returns 0, or -1 when no library has the function. One thread, before
 * all others. */
int witness_open(const char* spec);

/* 1: the allocator says that a block of SIZE bytes starts at BLOCK; 0: it says no; -1: there is no witness.
 * The thread that made the block asks, at once. */
int witness_owns(const void* block, size_t size);

#ifdef __cplusplus
}
#endif
#endif
