/* witness_arch.h: what the witness has to know about the processor: numbers of two relocations, and the
 * stubs of arch_*.S.
 *
 * Only witness.c includes it. It deliberately does not know what a stub is used for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WITNESS_ARCH_H
#define WITNESS_ARCH_H

#include <elf.h>

#if defined(__x86_64__)
#    define ARCH_RELOCATION_CALL R_X86_64_JUMP_SLOT
#    define ARCH_RELOCATION_ADDRESS R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#    define ARCH_RELOCATION_CALL R_AARCH64_JUMP_SLOT
#    define ARCH_RELOCATION_ADDRESS R_AARCH64_GLOB_DAT
#else
#    error "the witness knows x86-64 and aarch64"
#endif

#define WITNESS_STUBS 512 /* as in arch_*.S */
#define WITNESS_STUB_BYTES 16

/* WITNESS_STUBS pieces of code. Number N calls witness_hit(N) and goes on at the address that it returns,
 * with all argument registers as they were. */
extern const unsigned char witness_stubs[];
#endif
