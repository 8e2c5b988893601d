// report_test.cc: core/report.h: exact text, and what follows a report. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cerrno>
#include <thread>
#include <vector>

namespace {

const void* const place = reinterpret_cast<const void*>(0x1234ab0);

TEST(Report, SaysOneLineAndAborts) {
    Ended ended = in_child([] { core_report("double-free", REPORT_FREED, place, "free"); });
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(ended.printed,
              "weir: double-free: already freed 0x1234ab0 in free; see docs/errors/double-free.md\n");
}

TEST(Report, KnowsTheTextOfEachKind) {
    const std::pair<const char*, std::string> kinds[] = {{REPORT_FOREIGN, "not a block of this heap"},
                                                         {REPORT_INTERIOR, "not the start of a block"},
                                                         {REPORT_FREED, "already freed"},
                                                         {REPORT_WRITTEN, "a freed block was written to"}};
    for (const auto& [text, expected] : kinds) {
        Ended ended = in_child([text = text] {
            core_options.on_error = 1;
            core_report("some-code", text, nullptr, "realloc");
        });
        EXPECT_TRUE(ended.fine());
        EXPECT_EQ(ended.printed,
                  "weir: some-code: " + expected + " 0x0 in realloc; see docs/errors/some-code.md\n");
    }
}

TEST(Report, OfSizesAborts) {
    Ended ended = in_child([] { core_report_size(place, 48, "free_sized"); });
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(ended.printed,
              "weir: wrong-size: size 48 does not belong to the block 0x1234ab0 in free_sized; see "
              "docs/errors/wrong-size.md\n");
}

TEST(Report, CarriesOnAndCounts) {
    Ended ended = in_child([] {
        core_options.on_error = 1;
        EXPECT_EQ(core_report_count, 0u);
        errno = EBADMSG;
        core_report("invalid-free", REPORT_FOREIGN, place, "free");
        EXPECT_EQ(errno, EBADMSG);
        EXPECT_EQ(core_report_count, 1u);
        core_report_size(place, SIZE_MAX, "operator delete");
        EXPECT_EQ(core_report_count, 2u);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(
        ended.printed,
        "weir: invalid-free: not a block of this heap 0x1234ab0 in free; see docs/errors/invalid-free.md\n"
        "weir: wrong-size: size 18446744073709551615 does not belong to the block 0x1234ab0 in operator "
        "delete; "
        "see docs/errors/wrong-size.md\n");
}

TEST(Report, CountsFromEveryThread) {
    Ended ended = in_child([] {
        core_options.on_error = 1;
        std::vector<std::thread> all;
        for (int t = 0; t < 4; t++)
            all.emplace_back([] {
                for (int i = 0; i < 25; i++) core_report("double-free", REPORT_FREED, place, "free");
            });
        for (std::thread& t : all) t.join();
        EXPECT_EQ(core_report_count, 100u);
    });
    EXPECT_TRUE(ended.fine());
    std::string line = "weir: double-free: already freed 0x1234ab0 in free; see docs/errors/double-free.md\n";
    std::string expected;
    for (int i = 0; i < 100; i++) expected += line;
    EXPECT_EQ(ended.printed, expected); // whole lines: each is one write
}

TEST(Report, EndsItsLineHoweverLongItIs) {
    std::string call(1000, 'c');
    Ended ended = in_child([&] {
        core_options.on_error = 1;
        core_report("double-free", REPORT_FREED, place, call.c_str());
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(ended.printed.back(), '\n');
    EXPECT_EQ(ended.printed.size(), 320u);
}

TEST(Report, WorksWithAnInternalLockHeld) {
    Ended ended = in_child([] {
        core_options.on_error = 1;
        os_lock_take(&page_lock);
        core_report("double-free", REPORT_FREED, place, "free");
        os_lock_give(&page_lock);
    });
    EXPECT_TRUE(ended.fine());
}

} // namespace
