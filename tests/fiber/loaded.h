/* loaded.h: turns the malloc family into calls of a library that dlopen brought.
 *
 * Who may include it: run.py puts it in front of the fibers' files by -include, for a program whose own
 * malloc stays libc's. loaded.c fills the pointers in before main.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef LOADED_H
#define LOADED_H

#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif
struct loaded {
    void* (*malloc)(size_t size);
    void (*free)(void* p);
    void* (*calloc)(size_t count, size_t size);
    void* (*realloc)(void* p, size_t size);
    void* (*operator_new)(size_t size);
    void (*operator_delete)(void* p, size_t size);
};
extern struct loaded loaded;
#ifdef __cplusplus
}
#endif

#define malloc(size) loaded.malloc(size)
#define free(p) loaded.free(p)
#define calloc(count, size) loaded.calloc(count, size)
#define realloc(p, size) loaded.realloc(p, size)
#define FIBER_NEW(size) loaded.operator_new(size)
#define FIBER_DELETE(p, size) loaded.operator_delete(p, size)

#endif
