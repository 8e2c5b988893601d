/* options.h: the run-time options, parsed once at start-up.
 *
 * Upper layers read `core_options.NAME`. Sources in rising priority: the default in options.def, the
 * program's `weir_options` string, the environment's WEIR_OPTIONS, one variable WEIR_<NAME> per option. A
 * preset takes the place of the defaults, in whatever source it comes. It deliberately knows nothing of what
 * an option does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_CORE_OPTIONS_H
#define WEIR_CORE_OPTIONS_H

#include "base/compiler.h"

/* Values in the units that options.def names; of an enum, the index of its word; of a text, its
 * address, 0 for none.
 * Sync: written before the first thread can exist, read-only afterwards, but for dirty_max, which mallopt
 * sets (relaxed). */
struct core_options {
#define WEIR_OPTION(name, type, value, min, max, help) uint64_t name;
#define WEIR_OPTION_ENUM(name, value, words, help) uint64_t name;
#define WEIR_OPTION_TEXT(name, form, help) uint64_t name;
#define WEIR_PRESET(preset, option, value)
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
    uint64_t given; /* bit i: the user gave the option of row i, which a preset then leaves alone */
};
/* The words of `reuse`. */
enum { REUSE_SOON, REUSE_LATE };
WEIR_VAR_DECL struct core_options core_options;

/* Read every source. Warnings (unknown name, value out of range) go to stderr, one line each. */
WEIR_FN void core_options_start(void);
/* A line on stderr: what is to be said of the option of this name, whose user is to know of it. */
WEIR_FN void core_options_warn(const char* name, const char* what);
/* Apply one string `name=value:name=value`. True when every part was understood. */
WEIR_FN bool core_options_parse(const char* string);

#endif
