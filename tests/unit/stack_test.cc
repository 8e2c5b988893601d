// stack_test.cc: os_stack_take and os/linux/unwind.h: the stacks are those of the compiler's unwinder, and
// most are taken without it. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <unwind.h>
#include <vector>
extern "C" {
#include "arch/arch.h"
#include "os/linux/unwind.h"
}

namespace {

enum { MOST = 200 };
using Stack = std::vector<uintptr_t>;

_Unwind_Reason_Code reference_step(_Unwind_Context* context, void* stack) {
    uintptr_t address = _Unwind_GetIP(context);
    if (address != 0) static_cast<Stack*>(stack)->push_back(address);
    return static_cast<Stack*>(stack)->size() < MOST ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// The same stack twice, by us and by the unwinder, but for the innermost addresses: those of the calls
// themselves. Returns how deep it is.
WEIR_NOINLINE size_t stacks_compare(bool fast) {
    Stack ours(MOST), theirs;
    uint64_t before = load_relaxed(&os_stack_unwinder_calls);
    ours.resize(os_stack_take(ours.data(), MOST));
    EXPECT_EQ(load_relaxed(&os_stack_unwinder_calls) - before, fast ? 0u : 1u);
    _Unwind_Backtrace(reference_step, &theirs);
    ours.erase(ours.begin());
    EXPECT_GT(ours.size(), 1u);
    ours[0] = theirs[0];
    EXPECT_EQ(ours, theirs);
    return ours.size();
}

// `keep` is never true: no call is the last thing that its function does.
volatile bool keep;

template <size_t bytes>
WEIR_NOINLINE size_t frame_of(unsigned depth) {
    volatile char space[bytes];
    space[bytes / 2] = 1;
    size_t found = depth == 0 ? stacks_compare(true) : frame_of<bytes>(depth - 1);
    return keep ? space[0] : found;
}

WEIR_NOINLINE size_t frame_of_any_size(unsigned depth) {
    volatile char* space = static_cast<volatile char*>(alloca(16 + depth * 40));
    space[0] = 1;
    size_t found = depth == 0 ? stacks_compare(true) : frame_of_any_size(depth - 1);
    return keep ? space[0] : found;
}

WEIR_NOINLINE size_t frame_through_qsort() {
    static size_t found;
    int two[2] = {2, 1};
    qsort(two, 2, sizeof two[0], [](const void*, const void*) {
        found = stacks_compare(true);
        return 0;
    });
    return found;
}

TEST_UNSANITIZED(Stack, IsTheUnwinders) {
    EXPECT_FINE(in_child([] {
        os_stack_start();
        for (int twice = 0; twice < 2; twice++) { // the second time from memory
            EXPECT_GT(frame_of<8>(0), 2u);
            EXPECT_GT(frame_of<8>(40), 40u);
            EXPECT_GT(frame_of<200>(20), 20u);
            EXPECT_GT(frame_of<20000>(3), 4u);
            EXPECT_GT(frame_of_any_size(30), 30u);
            EXPECT_GT(frame_through_qsort(), 2u);
            std::thread([] { EXPECT_GT(frame_of<100>(5), 6u); }).join();
        }
    }));
}

TEST_UNSANITIZED(Stack, FromManyThreadsIsTheUnwindersToo) {
    EXPECT_FINE(in_child([] {
        os_stack_start();
        std::vector<std::thread> all;
        for (int t = 0; t < 4; t++)
            all.emplace_back([] {
                Stack ours(MOST), theirs;
                for (unsigned i = 0; i < 500; i++) {
                    uint32_t count = os_stack_take(ours.data(), MOST);
                    theirs.clear();
                    _Unwind_Backtrace(reference_step, &theirs);
                    ASSERT_EQ(count, theirs.size() + 1);
                    ASSERT_TRUE(std::equal(theirs.begin() + 1, theirs.end(), ours.begin() + 2));
                }
            });
        for (std::thread& t : all) t.join();
    }));
}

TEST_UNSANITIZED(Stack, AboveASignalTheUnwinderTakesIt) {
    EXPECT_FINE(in_child([] {
        os_stack_start();
        signal(SIGUSR1, [](int) { stacks_compare(false); });
        raise(SIGUSR1);
    }));
}

TEST_UNSANITIZED(Stack, HoldsNoMoreThanAskedFor) {
    EXPECT_FINE(in_child([] {
        os_stack_start();
        for (uint32_t most = 0; most < 4; most++) {
            uintptr_t frames[5] = {7, 7, 7, 7, 7};
            EXPECT_EQ(os_stack_take(frames, most), most);
            EXPECT_EQ(frames[most], 7u);
        }
    }));
}

// ---- The tables, by hand

// A CIE that says CFA = sp + 8 (x86-64) and an FDE for a function at 0x1000, with the rows given.
struct Table {
    std::vector<unsigned char> bytes;
    size_t entry;
    explicit Table(const std::vector<unsigned char>& rows, const char* letters = "zR") {
        unsigned char sp = ARCH_DWARF_STACK;
        unsigned char back = ARCH_DWARF_RETURN;
        std::vector<unsigned char> common = {0, 0, 0, 0, 1};
        for (const char* p = letters; *p != '\0'; p++) common.push_back(static_cast<unsigned char>(*p));
        for (unsigned char b :
             {0, 1, 0x78, static_cast<int>(back), 1, 0x1b, 0x0c, static_cast<int>(sp), 8, 0x80 | back, 1})
            common.push_back(b);
        add(common);
        entry = bytes.size();
        std::vector<unsigned char> own(4 + 4 + 4 + 1, 0);
        uint32_t distance = static_cast<uint32_t>(entry + 4);
        memcpy(own.data(), &distance, 4);
        own.insert(own.end(), rows.begin(), rows.end());
        add(own);
    }
    void add(const std::vector<unsigned char>& record) {
        uint32_t length = static_cast<uint32_t>(record.size());
        for (int i = 0; i < 4; i++) bytes.push_back(static_cast<unsigned char>(length >> 8 * i));
        bytes.insert(bytes.end(), record.begin(), record.end());
    }
    unwind_rule at(uintptr_t offset) const {
        return unwind_rule_read(bytes.data() + entry, 0x1000, 0x1000 + offset);
    }
};

enum : unsigned char { FP = ARCH_DWARF_FRAME, RA = ARCH_DWARF_RETURN };

TEST(Unwind, FollowsTheRows) {
    // at 1: cfa 16, fp at cfa - 16; at 4: by fp; at 260: as at 1; at 261: as the CIE
    Table t({0x41, 0x0e, 16, 0x80 | FP, 2, 0x43, 0x0a, 0x0d, FP, 0x03, 0, 1, 0x0b, 0x41, 0x0e, 8, 0xc0 | FP});
    struct {
        uintptr_t from, to;
        bool by_frame;
        uint32_t cfa, frame;
    } const rows[] = {{0, 0, false, 8, 0},
                      {1, 3, false, 16, 16},
                      {4, 259, true, 16, 16},
                      {260, 260, false, 16, 16},
                      {261, 5000, false, 8, 0}};
    for (const auto& row : rows)
        for (uintptr_t at : {row.from, row.to}) {
            unwind_rule rule = t.at(at);
            EXPECT_EQ(rule.kind, UNWIND_STEP) << at;
            EXPECT_EQ(rule.by_frame, row.by_frame) << at;
            EXPECT_EQ(rule.cfa, row.cfa) << at;
            EXPECT_EQ(rule.frame, row.frame) << at;
            EXPECT_EQ(rule.back, 8u) << at;
        }
}

TEST(Unwind, EndsWhereThereIsNoCaller) { EXPECT_EQ(Table({0x07, RA}).at(0).kind, UNWIND_END); }

TEST(Unwind, SaysWhatItDoesNotKnow) {
    std::vector<unsigned char> const unknown[] = {
        {0x0f, 1, 0x77},     // a CFA that is computed
        {0x10, RA, 1, 0x77}, // a return address that is
        {0x10, FP, 1, 0x77}, // a frame pointer that is
        {0x09, FP, 3},       // in another register
        {0x08, RA},          // still in its register
        {0x0d, 3},           // from another register
        {0x0e, 12},          // not a whole word
        {0x0e, 0},           // no distance
        {0x0b},              // back to what was not kept
        {0x0a, 0x0a, 0x0a, 0x0a, 0x0a},
        {0x3f}, // no such number
        {0x0e}, // ends too early
        {0x0f, 9, 0x77},
    };
    for (const auto& rows : unknown)
        EXPECT_EQ(Table(rows).at(0).kind, UNWIND_UNKNOWN) << int(rows[0]) << ", " << rows.size();
    EXPECT_EQ(Table({}, "zRS").at(0).kind, UNWIND_UNKNOWN); // a signal's frame
    EXPECT_EQ(Table({}, "eh").at(0).kind, UNWIND_UNKNOWN);
    EXPECT_EQ(Table({}).at(0).kind, UNWIND_STEP);
}

TEST(Unwind, PassesOverWhatDoesNotMatter) {
    Table t({0x10, 3,  2,    0x77, 0x00, 0x83, 3, 0xc3, 0x05, 12, 4, 0x06, 12, 0x07, 3,    0x08, 3,  0x09,
             3,    12, 0x11, 3,    0x7f, 0x14, 3, 1,    0x15, 3,  1, 0x16, 3,  1,    0x77, 0x2e, 16, 0x00});
    unwind_rule rule = t.at(0);
    EXPECT_EQ(rule.kind, UNWIND_STEP);
    EXPECT_EQ(rule.cfa, 8u);
    EXPECT_EQ(rule.frame, 0u);
}

} // namespace
