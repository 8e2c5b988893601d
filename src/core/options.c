/* options.c: see options.h. The tables come from options.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "core/options.h"

#include <stddef.h>

#include "base/text.h"
#include "os/os.h"
#include "weir/weir.h"

/* The program may define its own; see weir.h. */
WEIR_EXPORT __attribute__((weak)) const char* weir_options = NULL;

enum option_type { SIZE, COUNT, WORDS, TEXT };

struct option_row {
    const char* name;
    enum option_type type;
    uint64_t value;
    uint64_t min;
    uint64_t max;
    const char* words;
    const char* help;
    char* text; /* TEXT: where it is kept */
};

/* Where a text stands when it is read, the program may write later. */
enum { OPTION_TEXT_BYTES = 256 };
#define WEIR_OPTION(name, type, value, min, max, help)
#define WEIR_OPTION_ENUM(name, value, words, help)
#define WEIR_OPTION_TEXT(name, form, help) static char option_text_##name[OPTION_TEXT_BYTES];
#define WEIR_PRESET(preset, option, value)
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET

static const struct option_row option_rows[] = {
#define WEIR_OPTION(name, type, value, min, max, help) {#name, type, value, min, max, NULL, help, NULL},
#define WEIR_OPTION_ENUM(name, value, words, help) {#name, WORDS, value, 0, 0, words, help, NULL},
#define WEIR_OPTION_TEXT(name, form, help) {#name, TEXT, 0, 0, 0, form, help, option_text_##name},
#define WEIR_PRESET(preset, option, value)
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
};
enum { option_count = sizeof option_rows / sizeof option_rows[0] };

/* Written at the start, where the program has options, and by mallopt; mostly not at all. */
WEIR_UNWRITTEN WEIR_VAR struct core_options core_options = {
#define WEIR_OPTION(name, type, value, min, max, help) .name = (value),
#define WEIR_OPTION_ENUM(name, value, words, help) .name = (value),
#define WEIR_OPTION_TEXT(name, form, help) .name = 0,
#define WEIR_PRESET(preset, option, value)
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
};

static_assert(offsetof(struct core_options, given) == option_count * sizeof(uint64_t), "one word per option");
static_assert(option_count <= 64, "one bit per option");

#define OPTION_ROW(name) (offsetof(struct core_options, name) / sizeof(uint64_t))

struct preset_row {
    const char* preset;
    size_t row;
    uint64_t value;
};

static const struct preset_row preset_rows[] = {
#define WEIR_OPTION(name, type, value, min, max, help)
#define WEIR_OPTION_ENUM(name, value, words, help)
#define WEIR_OPTION_TEXT(name, form, help)
#define WEIR_PRESET(preset, option, value) {#preset, OPTION_ROW(option), value},
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
};
enum { preset_count = sizeof preset_rows / sizeof preset_rows[0] };

static uint64_t* option_slot(size_t row) { return (uint64_t*)(void*)&core_options + row; }
static bool option_is_given(size_t row) { return (core_options.given >> row & 1) != 0; }

static void option_warn(const char* text, size_t length, const char* middle, const char* what) {
    char line[256];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "weir: option '");
    for (size_t i = 0; i < length && i < 64; i++) text_char(&t, text[i]);
    text_string(&t, middle);
    text_string(&t, what);
    line[t.length++] = '\n';
    os_write(2, line, t.length);
}

WEIR_FN void core_options_warn(const char* name, const char* what) {
    option_warn(name, text_length(name, 64), "' ", what);
}

static size_t option_find(const char* name, size_t length) {
    for (size_t i = 0; i < option_count; i++)
        if (text_equal(name, length, option_rows[i].name)) return i;
    return option_count;
}

static const char* option_nearest(const char* name, size_t length) {
    size_t best = 0;
    for (size_t i = 1; i < option_count; i++)
        if (text_distance(name, length, option_rows[i].name) <
            text_distance(name, length, option_rows[best].name))
            best = i;
    return option_rows[best].name;
}

/* The word with number `index` in "a|b|c"; it has so many. */
static const char* option_word_at(const char* words, uint64_t index, size_t* length) {
    for (; index != 0; index--) {
        while (*words != '|') words++;
        words++;
    }
    *length = 0;
    while (words[*length] != '\0' && words[*length] != '|') ++*length;
    return words;
}

/* Index of the word `value` in "a|b|c"; also 0 and 1 for the first two. SIZE_MAX: none. */
static size_t option_word(const char* words, const char* value, size_t length) {
    if (length == 1 && (value[0] == '0' || value[0] == '1')) return (size_t)(value[0] - '0');
    size_t index = 0;
    while (*words != '\0') {
        size_t n = 0;
        while (words[n] != '\0' && words[n] != '|') n++;
        size_t same = 0;
        while (same < n && same < length && words[same] == value[same]) same++;
        if (same == n && n == length) return index;
        index++;
        words += words[n] == '|' ? n + 1 : n;
    }
    return SIZE_MAX;
}

/* A decimal number with an optional k, m or g (powers of 1024) where the type is SIZE. */
static bool option_number(const char* value, size_t length, bool suffix, uint64_t* out) {
    uint64_t n = 0;
    size_t i = 0;
    for (; i < length && value[i] >= '0' && value[i] <= '9'; i++) {
        if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(value[i] - '0'), &n))
            return false;
    }
    if (i == 0) return false;
    if (i < length && suffix) {
        static const char units[] = "kmgt";
        unsigned power = 0;
        while (power < 4 && units[power] != (value[i] | 0x20)) power++;
        if (power == 4 || (n << (10 * (power + 1))) >> (10 * (power + 1)) != n) return false;
        n <<= 10 * (power + 1);
        i++;
    }
    *out = n;
    return i == length;
}

/* Put the preset's values in the place of all defaults; an earlier preset is forgotten. */
static void preset_apply(const char* preset, size_t length) {
    for (size_t row = 0; row < option_count; row++)
        if (!option_is_given(row)) *option_slot(row) = option_rows[row].value;
    for (size_t i = 0; i < preset_count; i++)
        if (text_equal(preset, length, preset_rows[i].preset) && !option_is_given(preset_rows[i].row))
            *option_slot(preset_rows[i].row) = preset_rows[i].value;
}

static void option_give(size_t row, uint64_t value) {
    *option_slot(row) = value;
    core_options.given |= 1ull << row;
    if (row != OPTION_ROW(preset)) return;
    size_t length;
    const char* word = option_word_at(option_rows[row].words, value, &length);
    preset_apply(word, length);
}

static bool option_set(const char* name, size_t name_length, const char* value, size_t value_length) {
    size_t row = option_find(name, name_length);
    if (row == option_count) {
        option_warn(name, name_length, "' is unknown; did you mean ", option_nearest(name, name_length));
        return false;
    }
    const struct option_row* o = &option_rows[row];
    if (o->type == WORDS) {
        size_t word = option_word(o->words, value, value_length);
        if (word == SIZE_MAX) {
            option_warn(name, name_length, "' takes one of ", o->words);
            return false;
        }
        option_give(row, word);
        return true;
    }
    if (o->type == TEXT) {
        if (value_length >= OPTION_TEXT_BYTES) {
            option_warn(name, name_length, "' is too long: ", o->help);
            return false;
        }
        __builtin_memcpy(o->text, value, value_length);
        o->text[value_length] = '\0';
        option_give(row, (uintptr_t)o->text);
        return true;
    }
    uint64_t n;
    if (!option_number(value, value_length, o->type == SIZE, &n) || n < o->min || n > o->max) {
        option_warn(name, name_length, "' has a value that is no number in its range: ", o->help);
        return false;
    }
    option_give(row, n);
    return true;
}

WEIR_FN bool core_options_parse(const char* string) {
    bool good = true;
    while (*string != '\0') {
        size_t length = 0;
        while (string[length] != '\0' && string[length] != ':') length++;
        size_t name_length = 0;
        while (name_length < length && string[name_length] != '=') name_length++;
        if (length != 0 && (name_length == 0 || name_length == length)) {
            const char* lacks = name_length == 0 ? "' has no name; write " : "' has no value; write ";
            option_warn(string, length, lacks, "name=value");
            good = false;
        } else if (length != 0) {
            good &= option_set(string, name_length, string + name_length + 1, length - name_length - 1);
        }
        string += string[length] == ':' ? length + 1 : length;
    }
    return good;
}

static void option_print_word(struct text* t, const char* words, uint64_t index) {
    size_t length;
    const char* word = option_word_at(words, index, &length);
    for (size_t i = 0; i < length; i++) text_char(t, word[i]);
}

/* What each preset that is not the default changes. */
static void presets_help(void) {
    for (size_t i = 0; i < preset_count;) {
        const char* preset = preset_rows[i].preset;
        char line[320];
        struct text t = text_make(line, sizeof line - 1);
        text_string(&t, "weir: preset ");
        text_string(&t, preset);
        text_char(&t, ':');
        for (; i < preset_count && text_equal(preset, text_length(preset, 64), preset_rows[i].preset); i++) {
            text_char(&t, ' ');
            text_string(&t, option_rows[preset_rows[i].row].name);
            text_char(&t, '=');
            text_number(&t, preset_rows[i].value);
        }
        line[t.length++] = '\n';
        os_write(2, line, t.length);
    }
}

static void options_help(void) {
    for (size_t row = 0; row < option_count; row++) {
        const struct option_row* o = &option_rows[row];
        char line[320];
        struct text t = text_make(line, sizeof line - 1);
        text_string(&t, "weir: ");
        text_string(&t, o->name);
        text_char(&t, '=');
        if (o->type == WORDS)
            option_print_word(&t, o->words, *option_slot(row));
        else if (o->type == TEXT)
            text_string(&t, *option_slot(row) == 0 ? "" : (const char*)(uintptr_t)*option_slot(row));
        else
            text_number(&t, *option_slot(row));
        if (o->words != NULL) {
            text_string(&t, " (");
            text_string(&t, o->words);
            text_char(&t, ')');
        }
        text_string(&t, ": ");
        text_string(&t, o->help);
        line[t.length++] = '\n';
        os_write(2, line, t.length);
    }
    presets_help();
}

/* Of each option its own variable. */
static WEIR_COLD void options_from_variables(void) {
    for (size_t row = 0; row < option_count; row++) {
        char name[64];
        struct text t = text_make(name, sizeof name - 1);
        text_string(&t, "WEIR_");
        for (const char* c = option_rows[row].name; *c != '\0'; c++)
            text_char(&t, (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c));
        name[t.length] = '\0';
        const char* value = os_environment(name);
        if (value != NULL)
            option_set(option_rows[row].name, text_length(option_rows[row].name, 64), value,
                       text_length(value, 256));
    }
}

/* A process without options reads none of their names and texts, which lie on pages of their own. */
WEIR_FN void core_options_start(void) {
    static const char start[] = "WEIR_", tools[] = "WEIR_WIRE"; /* the last is no option */
    if (weir_options != NULL) core_options_parse(weir_options);
    if (os_environment_count(start) > os_environment_count(tools)) {
        const char* all = os_environment(WEIR_TEXT("WEIR_OPTIONS"));
        if (all != NULL) core_options_parse(all);
        options_from_variables();
    }
    if (core_options.help != 0) options_help();
}
