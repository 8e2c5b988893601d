/* pool_calls.c: pool.c as compilers have it that weir has no assembly for: by calls.
 *
 * contract: glibc=skip cflags=-DWEIR_POOL_CALLS
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool.c"
