// full_test.cc: heap/full.h: with checks=full each misuse is caught at the call. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"
#include <cstdlib>
#include <thread>

namespace {

template <class Body>
Ended in_full_mode(Body body) {
    return in_child([&] {
        setenv("WEIR_CHECKS", "full", 1);
        body();
    });
}

void expect_report(const Ended& ended, const char* code, const char* what, const char* call) {
    EXPECT_TRUE(ended.aborted()) << ended.printed;
    std::string starts = std::string("weir: ") + code + ": " + what + " 0x";
    std::string ends = std::string(" in ") + call + "; see docs/errors/" + code + ".md\n";
    EXPECT_EQ(ended.printed.substr(0, starts.size()), starts);
    size_t tail = ended.printed.find(" in ");
    ASSERT_NE(tail, std::string::npos);
    EXPECT_EQ(ended.printed.substr(tail), ends);
}

TEST(Full, WorksWithoutMisuse) {
    EXPECT_FINE(in_full_mode([] {
        Blocks blocks;
        for (size_t size = 0; size < 70000; size += size < 2000 ? 1 : 501) ASSERT_TRUE(blocks.alloc(size));
        EXPECT_GE(unit_check_slabs(), 0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Full, SecondFreeIsCaughtAtOnce) {
    for (size_t size : {16u, 100u, 1024u, 5000u, 60000u})
        expect_report(in_full_mode([&] {
                          void* p = unit_alloc(size);
                          void* q = unit_alloc(size); // so that the slab stays
                          unit_free(p);
                          unit_free(p);
                          unit_free(q);
                      }),
                      "double-free", "already freed", "free");
}

TEST(Full, SecondFreeAfterOthersIsCaught) {
    expect_report(in_full_mode([] {
                      void* p[100];
                      for (void*& q : p) q = unit_alloc(48);
                      for (int i = 0; i < 99; i++) unit_free(p[i]);
                      unit_free(p[50]);
                  }),
                  "double-free", "already freed", "free");
}

TEST(Full, SecondFreeByAnotherThreadIsCaught) {
    expect_report(in_full_mode([] {
                      void* p = unit_alloc(48);
                      void* q = unit_alloc(48);
                      unit_free(p);
                      std::thread([&] { unit_free(p); }).join();
                      unit_free(q);
                  }),
                  "double-free", "already freed", "free");
    expect_report(in_full_mode([] {
                      void* p = unit_alloc(48);
                      void* q = unit_alloc(48);
                      std::thread([&] { unit_free(p); }).join();
                      unit_free(p);
                      unit_free(q);
                  }),
                  "double-free", "already freed", "free");
}

TEST(Full, FreedBlocksHaveNoSizeAndAreNotResized) {
    expect_report(in_full_mode([] {
                      void* p = unit_alloc(48);
                      unit_alloc(48);
                      unit_free(p);
                      unit_usable(p);
                  }),
                  "double-free", "already freed", "malloc_usable_size");
    expect_report(in_full_mode([] {
                      void* p = unit_alloc(48);
                      unit_alloc(48);
                      unit_free(p);
                      unit_realloc(p, 100);
                  }),
                  "double-free", "already freed", "realloc");
}

TEST(Full, InteriorAndForeignPointersAreCaughtAtOnce) {
    expect_report(in_full_mode([] { unit_free(static_cast<char*>(unit_alloc(100)) + 16); }), "invalid-free",
                  "not the start of a block", "free");
    expect_report(in_full_mode([] { unit_free(static_cast<char*>(unit_alloc(100)) + 1); }), "invalid-free",
                  "not the start of a block", "free");
    expect_report(in_full_mode([] {
                      static char local[32];
                      unit_alloc(1);
                      unit_free(local);
                  }),
                  "invalid-free", "not a block of this heap", "free");
}

// Whichever byte of a free block is written to, the allocation that would hand it out says so.
TEST(Full, AWriteToAFreedBlockIsCaughtAnywhere) {
    for (size_t size : {16u, 48u, 1024u, 5000u}) {
        for (size_t offset :
             {size_t{0}, size_t{7}, size_t{8}, size_t{15}, size_t{16}, size_t{40}, size - 1}) {
            if (offset >= size_classes[class_of(size)].bytes) continue;
            expect_report(in_full_mode([&] {
                              char* p = static_cast<char*>(unit_alloc(size));
                              char* q = static_cast<char*>(unit_alloc(size));
                              unit_free(q);
                              unit_free(p);
                              p[offset] = static_cast<char>(p[offset] ^ 0x5a);
                              for (int i = 0; i < 5; i++) unit_alloc(size);
                          }),
                          "corrupt-list", "a freed block was written to", "malloc");
        }
    }
}

TEST(Full, GoesOnAfterAReport) {
    Ended ended = in_child([] {
        setenv("WEIR_OPTIONS", "checks=full:on_error=report", 1);
        char* p = static_cast<char*>(unit_alloc(48));
        char* q = static_cast<char*>(unit_alloc(48));
        unit_free(p);
        unit_free(p);
        EXPECT_EQ(core_report_count, 1u);
        p[20] = 1;
        Blocks blocks;
        for (int i = 0; i < 3000; i++) ASSERT_TRUE(blocks.alloc(48));
        EXPECT_EQ(core_report_count, 2u);
        unit_free(q);
        blocks.free_all();
        EXPECT_TRUE(span_check());
        EXPECT_GE(unit_check_slabs(), 0);
        EXPECT_EQ(core_report_count, 2u);
    });
    EXPECT_TRUE(ended.fine()) << ended.printed;
}

// A block whose content looks like a seal of another process or address is a live block.
TEST(Full, ContentOfLiveBlocksIsNobodysBusiness) {
    EXPECT_FINE(in_full_mode([] {
        unsigned char seal[48];
        void* p = unit_alloc(48);
        void* q = unit_alloc(48);
        unit_free(p);
        memcpy(seal, p, sizeof seal);
        void* again = unit_alloc(48);
        EXPECT_EQ(again, p);
        memcpy(q, seal, sizeof seal);
        unit_free(q);
        memset(again, 0xde, 48);
        unit_free(again);
    }));
}

} // namespace
