/* malloc.h: stands in front of weir's api/malloc.h in the crate's build.
 *
 * Who may include it: src/api, by -I order. A second name of a function is made under the name that
 * c/names.h has given the function. It deliberately knows no function.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_CRATE_API_MALLOC_H
#define WEIR_CRATE_API_MALLOC_H

#include_next "api/malloc.h"

#define WEIR_ALIAS_EXPANDED(name, target)                                                                    \
    WEIR_EXPORT __typeof__(target) name WEIR_COPY(target) __attribute__((alias(#target)))
#undef WEIR_ALIAS
#define WEIR_ALIAS(name, target) WEIR_ALIAS_EXPANDED(name, target)

#endif
