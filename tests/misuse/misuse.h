/* misuse.h: what the parts of the misuse program share.
 *
 * cases.c has one function for each misuse, rates.c random programs with one misuse in them, misuse.c the
 * command line. None of them knows how an allocator finds out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MISUSE_H
#define MISUSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** When the default mode, checks=late, notices. (checks=full always notices at the call.) */
enum misuse_late {
    LATE_CALL,  /* at the call, too */
    LATE_SOON,  /* in one of the calls that follow */
    LATE_MAYBE, /* perhaps never */
};

/** One misuse: what it does, and the line that the allocator must print. */
struct misuse_case {
    const char* name;
    void (*run)(const struct misuse_case* self);
    const char* code;
    const char* what; /* for wrong-size NULL: the text names the size */
    const char* call; /* the call that is named */
    enum misuse_late late;
    size_t size; /* of the block; meaning is the function's */
    size_t offset;
    size_t width;
};

extern const struct misuse_case misuse_cases[];
extern const unsigned misuse_case_count;

/** Calls that follow a misuse: blocks of about `size` bytes come and go, so that lists turn over. */
void misuse_churn(size_t size);
/** `rates` command: returns the exit status. */
int rates_main(int argc, char** argv);

/** Print to `fd` without stdio, hence without malloc. */
__attribute__((format(printf, 2, 3))) void misuse_print(int fd, const char* format, ...);

/* The C++ operators, and what C23 added (looked up; NULL where the C library lacks it). */
void* cxx_new(size_t size);
void cxx_delete(void* p);
void cxx_delete_sized(void* p, size_t size);
void* cxx_new_aligned(size_t size, size_t align);
void cxx_delete_sized_aligned(void* p, size_t size, size_t align);
extern void (*misuse_free_sized)(void* p, size_t size);
extern void (*misuse_free_aligned_sized)(void* p, size_t align, size_t size);
/** Run free(p) on a new thread and wait for it. */
void misuse_free_remote(void* p);

#ifdef __cplusplus
}
#endif
#endif
