// options_test.cc: core/options.h: every row of options.def, every source, exact warnings. Called by
// ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cstdlib>
#include <fcntl.h>
#include <cstring>
#include <vector>

namespace {

enum Type { SIZE, COUNT, WORDS, TEXT };
struct Row {
    std::string name;
    Type type;
    uint64_t value, min, max;
    std::string words, help;
    uint64_t* slot;
};

const std::vector<Row>& rows() {
    static const std::vector<Row> all = {
#define WEIR_OPTION(name, type, value, min, max, help)                                                       \
    {#name, type, value, min, max, "", help, &core_options.name},
#define WEIR_OPTION_ENUM(name, value, words, help)                                                           \
    {#name, WORDS, value, 0, 0, words, help, &core_options.name},
#define WEIR_OPTION_TEXT(name, form, help) {#name, TEXT, 0, 0, 0, form, help, &core_options.name},
#define WEIR_PRESET(preset, option, value)
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
    };
    return all;
}

struct PresetRow {
    std::string preset, option;
    uint64_t value;
};

const std::vector<PresetRow>& preset_rows() {
    static const std::vector<PresetRow> all = {
#define WEIR_OPTION(name, type, value, min, max, help)
#define WEIR_OPTION_ENUM(name, value, words, help)
#define WEIR_OPTION_TEXT(name, form, help)
#define WEIR_PRESET(preset, option, value) {#preset, #option, value},
#include "core/options.def"
#undef WEIR_OPTION
#undef WEIR_OPTION_ENUM
#undef WEIR_OPTION_TEXT
#undef WEIR_PRESET
    };
    return all;
}

std::vector<std::string> words_of(const Row& row) {
    std::vector<std::string> all(1);
    for (char c : row.words) {
        if (c == '|')
            all.emplace_back();
        else
            all.back() += c;
    }
    return all;
}

std::string upper(std::string s) {
    for (char& c : s)
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    return s;
}

const Row& row_of(const std::string& name) {
    for (const Row& row : rows())
        if (row.name == name) return row;
    abort();
}

const std::vector<std::string> preset_names = words_of(row_of("preset"));

// What an option has under a preset when the user does not give it.
uint64_t preset_value(const Row& row, const std::string& preset) {
    if (row.name == "preset")
        for (size_t i = 0; i < preset_names.size(); i++)
            if (preset_names[i] == preset) return i;
    for (const PresetRow& r : preset_rows())
        if (r.preset == preset && r.option == row.name) return r.value;
    return row.value;
}

void expect_preset(const std::string& preset) {
    for (const Row& row : rows())
        EXPECT_EQ(*row.slot, preset_value(row, preset)) << preset << ' ' << row.name;
}

class Options : public ::testing::Test {
  protected:
    void SetUp() override { saved = core_options; }
    void TearDown() override { core_options = saved; }
    struct core_options saved;
};

// Parses in a child: what it prints, and its verdict.
std::string printed_by(const std::string& options, bool good) {
    Ended ended = in_child([&] { EXPECT_EQ(core_options_parse(options.c_str()), good) << options; });
    EXPECT_TRUE(ended.fine()) << options;
    return ended.printed;
}

TEST_F(Options, DefaultsAreTheTables) {
    for (const Row& row : rows()) EXPECT_EQ(*row.slot, row.value) << row.name;
    EXPECT_EQ(core_options.reserve, 0u);
    EXPECT_EQ(core_options.on_error, 0u);
    EXPECT_EQ(core_options.checks, 0u);
    EXPECT_EQ(core_options.check_first, 1024u);
    EXPECT_EQ(core_options.check_every, 8u);
    EXPECT_EQ(core_options.trust_size, 0u);
    EXPECT_EQ(core_options.dirty_max, 1ull << 40);
    EXPECT_EQ(core_options.stats, 0u);
    EXPECT_EQ(core_options.help, 0u);
}

TEST_F(Options, EveryNumberIsTakenUpToTheEndsOfItsRange) {
    for (const Row& row : rows()) {
        if (row.type == WORDS || row.type == TEXT) continue;
        EXPECT_LE(row.min, row.value) << row.name;
        EXPECT_LE(row.value, row.max) << row.name;
        for (uint64_t value : {row.min, row.max, row.min / 2 + row.max / 2}) {
            EXPECT_TRUE(core_options_parse((row.name + "=" + std::to_string(value)).c_str()));
            EXPECT_EQ(*row.slot, value) << row.name;
        }
        std::string warning =
            "weir: option '" + row.name + "' has a value that is no number in its range: " + row.help + "\n";
        *row.slot = row.value;
        EXPECT_EQ(printed_by(row.name + "=" + std::to_string(row.max + 1), false), warning);
        if (row.min != 0) {
            EXPECT_EQ(printed_by(row.name + "=" + std::to_string(row.min - 1), false), warning);
        }
        for (const char* bad :
             {"", "x", "-1", "+1", " 1", "1 ", "0x10", "18446744073709551616", "1kk", "1.5"})
            EXPECT_EQ(printed_by(row.name + "=" + bad, false), warning);
        EXPECT_EQ(*row.slot, row.value);
    }
}

TEST_F(Options, ARefusedValueChangesNothing) {
    EXPECT_FINE(in_child([] {
        int null = open("/dev/null", O_WRONLY);
        int saved = dup(2);
        dup2(null, 2);
        for (const Row& row : rows()) {
            std::string wrong = row.type == TEXT ? std::string(256, 'w') : "wrong";
            EXPECT_FALSE(core_options_parse((row.name + "=" + wrong).c_str()));
            EXPECT_EQ(*row.slot, row.value) << row.name;
        }
        dup2(saved, 2);
    }));
}

TEST_F(Options, EveryEnumIsTakenByWordAndByNumber) {
    for (const Row& row : rows()) {
        if (row.type != WORDS) continue;
        std::vector<std::string> words = words_of(row);
        ASSERT_GE(words.size(), 2u);
        for (size_t i = 0; i < words.size(); i++) {
            *row.slot = 77;
            EXPECT_TRUE(core_options_parse((row.name + "=" + words[i]).c_str()));
            EXPECT_EQ(*row.slot, i) << row.name;
            EXPECT_EQ(printed_by(row.name + "=" + words[i] + "x", false),
                      "weir: option '" + row.name + "' takes one of " + row.words + "\n");
            EXPECT_EQ(printed_by(row.name + "=" + words[i].substr(0, words[i].size() - 1), false),
                      "weir: option '" + row.name + "' takes one of " + row.words + "\n");
        }
        for (uint64_t i = 0; i < 2; i++) {
            *row.slot = 77;
            EXPECT_TRUE(core_options_parse((row.name + "=" + std::to_string(i)).c_str()));
            EXPECT_EQ(*row.slot, i) << row.name;
        }
        EXPECT_NE(printed_by(row.name + "=2", false), "");
        EXPECT_NE(printed_by(row.name + "=", false), "");
        EXPECT_NE(printed_by(row.name + "=" + row.words, false), "");
    }
}

TEST_F(Options, SizesTakeSuffixes) {
    const std::pair<const char*, uint64_t> sizes[] = {
        {"0", 0},         {"1", 1},           {"7k", 7u << 10},   {"7K", 7u << 10},   {"3m", 3u << 20},
        {"3M", 3u << 20}, {"2g", 2ull << 30}, {"2G", 2ull << 30}, {"1t", 1ull << 40}, {"1T", 1ull << 40}};
    for (const auto& [written, value] : sizes) {
        EXPECT_TRUE(core_options_parse((std::string("dirty_max=") + written).c_str())) << written;
        EXPECT_EQ(core_options.dirty_max, value) << written;
    }
    core_options.dirty_max = 5;
    for (const char* bad : {"k", "1b", "1kb", "18014398509481984k", "17179869184g", "1p", "2t"})
        EXPECT_NE(printed_by(std::string("dirty_max=") + bad, false), "") << bad;
    EXPECT_NE(printed_by("check_first=1k", false), "");
    EXPECT_EQ(core_options.dirty_max, 5u);
}

TEST_F(Options, UnknownNamesGetTheNearest) {
    EXPECT_EQ(printed_by("reserv=1", false), "weir: option 'reserv' is unknown; did you mean reserve\n");
    EXPECT_EQ(printed_by("check=full", false), "weir: option 'check' is unknown; did you mean checks\n");
    EXPECT_EQ(printed_by("Stats=exit", false), "weir: option 'Stats' is unknown; did you mean stats\n");
    EXPECT_EQ(printed_by("on-error=abort", false),
              "weir: option 'on-error' is unknown; did you mean on_error\n");
    EXPECT_EQ(printed_by("dirty_mx=1:hlp=1", false),
              "weir: option 'dirty_mx' is unknown; did you mean dirty_max\n"
              "weir: option 'hlp' is unknown; did you mean help\n");
    for (const Row& row : rows())
        EXPECT_EQ(printed_by(row.name + "_=1", false),
                  "weir: option '" + row.name + "_' is unknown; did you mean " + row.name + "\n");
}

TEST_F(Options, AMissingNameIsSaid) {
    EXPECT_EQ(printed_by("=", false), "weir: option '=' has no name; write name=value\n");
    EXPECT_EQ(printed_by("=full", false), "weir: option '=full' has no name; write name=value\n");
}

TEST_F(Options, VeryLongNamesAreCut) {
    std::string name(200, 'n');
    std::string printed = printed_by(name + "=1", false);
    EXPECT_EQ(printed.substr(0, 14 + 64 + 1), "weir: option '" + name.substr(0, 64) + "'");
    EXPECT_EQ(printed.back(), '\n');
    EXPECT_LE(printed.size(), 256u);
}

TEST_F(Options, PartsWithoutAValueAreSaidSo) {
    EXPECT_EQ(printed_by("stats", false), "weir: option 'stats' has no value; write name=value\n");
    EXPECT_EQ(printed_by("stats:help", false), "weir: option 'stats' has no value; write name=value\n"
                                               "weir: option 'help' has no value; write name=value\n");
}

TEST_F(Options, StringsHoldManyPartsAndEmptyOnes) {
    EXPECT_TRUE(core_options_parse(""));
    EXPECT_TRUE(core_options_parse(":::"));
    EXPECT_TRUE(core_options_parse(":reserve=8m::on_error=report:check_every=3:"));
    EXPECT_EQ(core_options.reserve, 8u << 20);
    EXPECT_EQ(core_options.on_error, 1u);
    EXPECT_EQ(core_options.check_every, 3u);
    EXPECT_TRUE(core_options_parse("check_every=4:check_every=5"));
    EXPECT_EQ(core_options.check_every, 5u);
}

TEST_F(Options, AWrongPartDoesNotHideTheOthers) {
    EXPECT_NE(printed_by("reserve=8m:nothing=1:stats=exit", false), "");
    EXPECT_TRUE(in_child([] {
                    core_options_parse("reserve=8m:nothing=1:stats=exit");
                    EXPECT_EQ(core_options.reserve, 8u << 20);
                    EXPECT_EQ(core_options.stats, 1u);
                }).fine());
}

TEST_F(Options, EveryOptionHasAVariable) {
    for (const Row& row : rows()) {
        if (row.name == "help" || row.type == TEXT) continue;
        std::string value = row.type == WORDS ? words_of(row)[1] : std::to_string(row.max);
        uint64_t expected = row.type == WORDS ? 1 : row.max;
        EXPECT_FINE(in_child([&] {
            setenv(("WEIR_" + upper(row.name)).c_str(), value.c_str(), 1);
            core_options_start();
            std::string preset = row.name == "preset" ? value : "balanced";
            for (const Row& other : rows())
                EXPECT_EQ(*other.slot, other.name == row.name ? expected : preset_value(other, preset))
                    << other.name;
        }));
    }
}

TEST_F(Options, LaterSourcesWin) {
    EXPECT_FINE(in_child([] {
        unsetenv("WEIR_OPTIONS");
        core_options_start();
        for (const Row& row : rows()) EXPECT_EQ(*row.slot, row.value) << row.name;
    }));
    EXPECT_FINE(in_child([] {
        weir_options = "check_every=2:check_first=2:stats=exit";
        setenv("WEIR_OPTIONS", "check_every=3:check_first=3", 1);
        setenv("WEIR_CHECK_EVERY", "4", 1);
        core_options_start();
        EXPECT_EQ(core_options.stats, 1u);
        EXPECT_EQ(core_options.check_first, 3u);
        EXPECT_EQ(core_options.check_every, 4u);
    }));
}

TEST_F(Options, PresetsAreRowsOfTheTables) {
    EXPECT_EQ(preset_names, (std::vector<std::string>{"balanced", "small", "fast"}));
    EXPECT_EQ(core_options.preset, 0u);
    for (const PresetRow& r : preset_rows()) {
        const Row& row = row_of(r.option);
        EXPECT_TRUE(r.preset == "small" || r.preset == "fast") << r.preset << ": the defaults are balanced";
        EXPECT_NE(r.option, "preset");
        EXPECT_NE(r.value, row.value) << r.preset << ' ' << r.option << " is what it is without the preset";
        if (row.type == WORDS) {
            EXPECT_LT(r.value, words_of(row).size());
        } else {
            EXPECT_LE(row.min, r.value) << r.option;
            EXPECT_LE(r.value, row.max) << r.option;
        }
        size_t same = 0;
        for (const PresetRow& other : preset_rows())
            same += other.preset == r.preset && other.option == r.option;
        EXPECT_EQ(same, 1u) << r.preset << ' ' << r.option;
    }
}

TEST_F(Options, APresetIsTheDefaultsOfTheOthers) {
    for (const std::string& first : preset_names)
        for (const std::string& last : preset_names) {
            EXPECT_TRUE(core_options_parse(("preset=" + first).c_str()));
            expect_preset(first);
            EXPECT_TRUE(core_options_parse(("preset=" + first + ":preset=" + last).c_str()));
            expect_preset(last);
        }
}

TEST_F(Options, AGivenOptionBeatsAPresetInWhateverOrder) {
    for (const PresetRow& r : preset_rows()) {
        const Row& row = row_of(r.option);
        // Each value also once the default: given is given.
        for (uint64_t value : {row.min, row.value}) {
            std::string given = r.option + "=" + std::to_string(value);
            std::string preset = "preset=" + r.preset;
            for (const std::string& options : {given + ":" + preset, preset + ":" + given}) {
                core_options = saved;
                EXPECT_TRUE(core_options_parse(options.c_str()));
                for (const Row& other : rows())
                    EXPECT_EQ(*other.slot, other.name == r.option ? value : preset_value(other, r.preset))
                        << options << ' ' << other.name;
            }
        }
    }
}

TEST_F(Options, ARefusedValueIsNotGiven) {
    EXPECT_NE(printed_by("release_delay=0", false), "");
    EXPECT_NE(printed_by("preset=tiny", false), "");
    EXPECT_TRUE(in_child([] {
                    core_options_parse("release_delay=0:preset=small:preset=tiny");
                    expect_preset("small");
                }).fine());
}

// A preset and an option in each two of the three sources, both ways round.
TEST_F(Options, PresetsWorkInEverySource) {
    struct Source {
        const char* in_program;
        const char* all;
        const char* preset;
        const char* delay;
        const char* wins;
        bool given; // release_delay=7
    };
    const Source sources[] = {{"preset=small", nullptr, nullptr, nullptr, "small", false},
                              {nullptr, "preset=small", nullptr, nullptr, "small", false},
                              {nullptr, nullptr, "small", nullptr, "small", false},
                              {"preset=small", "preset=fast", nullptr, nullptr, "fast", false},
                              {"preset=small", nullptr, "fast", nullptr, "fast", false},
                              {nullptr, "preset=small", "fast", nullptr, "fast", false},
                              {"preset=fast", "preset=small", "balanced", nullptr, "balanced", false},
                              {"release_delay=7", "preset=small", nullptr, nullptr, "small", true},
                              {"release_delay=7", nullptr, "fast", nullptr, "fast", true},
                              {nullptr, "release_delay=7", "fast", nullptr, "fast", true},
                              {"preset=fast", "release_delay=7", nullptr, nullptr, "fast", true},
                              {"preset=fast", nullptr, nullptr, "7", "fast", true},
                              {nullptr, "preset=small", nullptr, "7", "small", true},
                              {nullptr, nullptr, "small", "7", "small", true}};
    for (const Source& s : sources)
        EXPECT_FINE(in_child([&] {
            weir_options = s.in_program;
            if (s.all != nullptr) setenv("WEIR_OPTIONS", s.all, 1);
            if (s.preset != nullptr) setenv("WEIR_PRESET", s.preset, 1);
            if (s.delay != nullptr) setenv("WEIR_RELEASE_DELAY", s.delay, 1);
            core_options_start();
            if (s.given) {
                EXPECT_EQ(core_options.release_delay, 7u);
                core_options.release_delay = preset_value(row_of("release_delay"), s.wins);
            }
            expect_preset(s.wins);
        }));
}

TEST_F(Options, VariablesWarnLikeStrings) {
    Ended ended = in_child([] {
        setenv("WEIR_CHECK_EVERY", "0", 1);
        setenv("WEIR_CHECKS", "most", 1);
        core_options_start();
        EXPECT_EQ(core_options.check_every, 8u);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(
        ended.printed,
        "weir: option 'checks' takes one of late|full\n"
        "weir: option 'check_every' has a value that is no number in its range: after that, one list in N "
        "is walked in full when it turns over; 1 walks all\n");
}

TEST_F(Options, ATextIsKept) {
    EXPECT_EQ(core_options.pool_debug, 0u);
    std::string source = "pool_debug=poison,fail=3@a,b*:check_every=3";
    EXPECT_TRUE(core_options_parse(source.c_str()));
    source.assign(source.size(), 'x');
    EXPECT_STREQ(reinterpret_cast<const char*>(core_options.pool_debug), "poison,fail=3@a,b*");
    EXPECT_EQ(core_options.check_every, 3u);
    std::string longest(255, 'y');
    EXPECT_TRUE(core_options_parse(("pool_debug=" + longest).c_str()));
    EXPECT_EQ(reinterpret_cast<const char*>(core_options.pool_debug), longest);
    EXPECT_NE(printed_by("pool_debug=" + longest + "y", false).find("' is too long: "), std::string::npos);
    EXPECT_FINE(in_child([] {
        setenv("WEIR_POOL_DEBUG", "guard", 1);
        core_options_start();
        EXPECT_STREQ(reinterpret_cast<const char*>(core_options.pool_debug), "guard");
    }));
}

TEST_F(Options, HelpPrintsEveryOptionWithItsValue) {
    Ended ended = in_child([] {
        setenv("WEIR_OPTIONS",
               "help=1:check_every=5:on_error=report:preset=small:release_delay=9:pool_debug=tag@a", 1);
        core_options_start();
    });
    EXPECT_TRUE(ended.fine());
    std::string expected;
    for (const Row& row : rows()) {
        uint64_t number = preset_value(row, "small");
        std::string value = row.type == WORDS ? words_of(row)[number] : std::to_string(number);
        if (row.type == TEXT) value = row.name == "pool_debug" ? "tag@a" : "";
        if (row.name == "help") value = "yes";
        if (row.name == "check_every") value = "5";
        if (row.name == "on_error") value = "report";
        if (row.name == "release_delay") value = "9";
        expected += "weir: " + row.name + "=" + value;
        if (row.type == WORDS || row.type == TEXT) expected += " (" + row.words + ")";
        expected += ": " + row.help + "\n";
    }
    for (const std::string& preset : preset_names) {
        if (preset == "balanced") continue;
        expected += "weir: preset " + preset + ":";
        for (const PresetRow& r : preset_rows())
            if (r.preset == preset) expected += " " + r.option + "=" + std::to_string(r.value);
        expected += "\n";
    }
    EXPECT_EQ(ended.printed, expected);
}

} // namespace
