/* fuzz_options.c: a libFuzzer target for the parser of option strings: whatever it is given, it stays
 * inside the string, leaves every option within its range, and says something when it refuses.
 *
 * run.sh builds it with src/core/options.c and src/base/text.c. It stands in for the os layer, so that
 * nothing is printed. It knows options.def, not how the parser works.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "core/options.h"

#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static unsigned warnings;

int os_write(int fd, const void* data, size_t bytes) {
    const char* text = data;
    if (fd != 2 || bytes == 0 || bytes > 320 || text[bytes - 1] != '\n' || strncmp(text, "weir: ", 6) != 0)
        abort();
    warnings++;
    return 0;
}
const char* os_environment(const char* name) {
    (void)name;
    return NULL;
}
size_t os_environment_count(const char* start) {
    (void)start;
    return 0;
}

static size_t words_count(const char* words) {
    size_t count = 1;
    for (; *words != '\0'; words++) count += *words == '|';
    return count;
}

static void ranges_check(void) {
#define WEIR_OPTION(name, type, value, min, max, help)                                                       \
    if (core_options.name > (max) || core_options.name + 1 < (min) + 1) abort();
#define WEIR_OPTION_ENUM(name, value, words, help)                                                           \
    if (core_options.name >= words_count(words)) abort();
#define WEIR_OPTION_TEXT(name, form, help)                                                                   \
    if (core_options.name != 0 && strlen((const char*)(uintptr_t)core_options.name) > 255) abort();
#define WEIR_PRESET(preset, option, value)
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    /* A copy of exactly the string's length, so that AddressSanitizer sees a read past its end. */
    char* string = malloc(size + 1);
    if (string == NULL) return 0;
    memcpy(string, data, size);
    string[size] = '\0';
    static struct core_options initial;
    static bool have_initial;
    if (!have_initial) initial = core_options;
    have_initial = true;
    core_options = initial;
    warnings = 0;
    bool good = core_options_parse(string);
    if (good != (warnings == 0)) abort();
    ranges_check();
    struct core_options once = core_options;
    core_options = initial;
    if (core_options_parse(string) != good || memcmp(&once, &core_options, sizeof once) != 0) abort();
    core_options = initial;
    free(string);
    return 0;
}
