/* libc-diag.h: where a test says which compiler warnings it provokes on purpose.
 *
 * Who may include it: the tests of glibc's source package. We compile them without -Werror, so that the words
 * mean nothing here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_LIBC_DIAG_H
#define SHIM_LIBC_DIAG_H

#define DIAG_PUSH_NEEDS_COMMENT
#define DIAG_POP_NEEDS_COMMENT
#define DIAG_IGNORE_NEEDS_COMMENT(version, option)
#define DIAG_PUSH_NEEDS_COMMENT_CLANG
#define DIAG_POP_NEEDS_COMMENT_CLANG
#define DIAG_IGNORE_NEEDS_COMMENT_GCC(version, option)
#define DIAG_IGNORE_NEEDS_COMMENT_CLANG(version, option)
#define DIAG_IGNORE_Os_NEEDS_COMMENT(version, option)

#endif
