/* shlib-compat.h: binds a name to an old version of a libc symbol, as an old program is bound.
 *
 * Who may include it: the tests of glibc's source package. A version that is older than the platform's first
 * glibc means that first one, as in glibc itself. It deliberately knows versions of symbols and no more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SHLIB_COMPAT_H
#define SHIM_SHLIB_COMPAT_H

#if defined __x86_64__
#    define SHIM_VERSION_GLIBC_2_0 "GLIBC_2.2.5"
#elif defined __aarch64__
#    define SHIM_VERSION_GLIBC_2_0 "GLIBC_2.17"
#endif

#define compat_symbol_reference(library, local, symbol, version)                                             \
    __asm__(".symver " #local "," #symbol "@" SHIM_VERSION_##version)

#endif
