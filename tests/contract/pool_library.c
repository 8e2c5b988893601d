/* pool_library.c: pool.c as code of a shared library, whose words are reached another way.
 *
 * contract: glibc=skip cflags=-fPIC
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool.c"
