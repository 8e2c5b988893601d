// medium_long_test.cc: blocks of 64 to 512 KiB, which chunks have and slabs do not: where they come from,
// what is kept of them, how they grow and shrink, misuse. Called by ctest; each test starts the heap in a
// child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"
#include "forked.h"
#include <thread>

namespace {

constexpr size_t bytes_of = 300000; // a size in the midst of them

unsigned medium_of(size_t size) { return class_of(size) - SMALL_CLASSES; }

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

TEST(MediumLong, ChunksHaveThem) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        Blocks blocks; // looks at contents, usable size and the size that delete may name
        for (size_t size = SLAB_MAX + 1; size <= CHUNK_MAX; size += 2039) {
            ASSERT_TRUE(blocks.alloc(size));
            const Block& b = blocks.all.back();
            EXPECT_TRUE(unit_in_chunk(b.p)) << size;
            EXPECT_EQ(b.usable, size_classes[class_of(size)].bytes);
            EXPECT_LE(b.usable, size + size / 8 + 1);
            if (blocks.all.size() > 40)
                while (blocks.all.size() > 10) blocks.free(blocks.all.size() / 2);
            ASSERT_TRUE(unit_arena_check());
        }
        void* largest = unit_alloc(CHUNK_MAX);
        void* larger = unit_alloc(CHUNK_MAX + 1);
        EXPECT_TRUE(unit_in_chunk(largest));
        EXPECT_TRUE(unit_is_large(unit_slice(larger)));
        unit_free(largest);
        unit_free(larger);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// calloc knows of spans that they read as zero; a slab's alignment is the most that a chunk looks for.
TEST(MediumLong, SpansServeWhatHasToBeZeroOrAligned) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc_zeroable(bytes_of));
        for (size_t align : {size_t{32}, size_t{4096}, size_t{1} << 20})
            ASSERT_TRUE(blocks.alloc_aligned(bytes_of, align));
        for (const Block& b : blocks.all) EXPECT_TRUE(unit_is_large(unit_slice(b.p)));
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Also where memory is tagged, whatever the options.
TEST(MediumLong, SpansServeWhereThereAreNoChunks) {
    for (const char* options : {"release=off:sparse_max=0", "release=off:checks=full", "release=off"})
        EXPECT_FINE(in_child([=] {
            start(options);
            const bool chunks = !tag_is_on() && strcmp(options, "release=off") == 0;
            Blocks blocks;
            for (size_t size = SLAB_MAX + 1; size <= CHUNK_MAX; size *= 2) ASSERT_TRUE(blocks.alloc(size));
            for (const Block& b : blocks.all) {
                EXPECT_EQ(unit_is_large(unit_slice(b.p)), !chunks) << options;
                EXPECT_EQ(unit_in_chunk(b.p), chunks) << options;
            }
            blocks.free_all();
            expect_nothing_left();
        }));
}

TEST(MediumLong, SpansServeWhereTheArenaIsFull) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        stay_on_one_processor();
        std::vector<void*> all;
        do all.push_back(unit_alloc(bytes_of));
        while (unit_in_chunk(all.back()));
        EXPECT_EQ(all.size(), UNIT_ARENA_CHUNKS * (UNIT_CHUNK_BYTES / class_bytes(medium_of(bytes_of))) + 1);
        EXPECT_EQ(chunk_count(), unsigned{UNIT_ARENA_CHUNKS});
        EXPECT_TRUE(unit_is_large(unit_slice(all.back())));
        unit_free(all[7]);
        EXPECT_EQ(all[7] = unit_alloc(bytes_of), all[7]);
        EXPECT_TRUE(unit_in_chunk(all[7]));
        EXPECT_TRUE(unit_arena_check());
        for (void* p : all) unit_free(p);
        expect_nothing_left();
    }));
}

// ---- Kept blocks.

// Such a block has room beside what the thread keeps of shorter ones.
TEST(MediumLong, OneIsKeptThatIsLongerThanAllShorterOnes) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        const size_t least = 65536;
        unit_free(unit_alloc(3000));
        EXPECT_LE(unit_kept_medium_max(), least + 3072 / 4);
        void* p = unit_alloc(bytes_of);
        unit_free(p);
        EXPECT_EQ(unit_kept_block(medium_of(bytes_of)), p);
        uint64_t before = unit_slow_calls();
        for (unsigned i = 0; i < 1000; i++) {
            unit_free(unit_alloc(bytes_of));
            unit_free(unit_alloc(3000 + i % 4 * 2000));
        }
        EXPECT_LE(unit_slow_calls(), before + 40); // each of the shorter classes has to have a first one
        EXPECT_NE(unit_kept_block(medium_of(bytes_of)), nullptr);
        // Once as the longest, once as what comes and goes.
        EXPECT_LE(unit_kept_medium_max(), least + class_bytes(medium_of(bytes_of)) * 9 / 4 + 16384);
        // Only as long as such blocks come.
        std::vector<void*> others;
        for (before = unit_slow_calls(); unit_slow_calls() < before + 1500;)
            others.push_back(unit_alloc(5000));
        for (void* q : others) unit_free(q);
        unit_free(unit_alloc(50000));
        const unsigned m = medium_of(5000);
        size_t kept = unit_kept_count_max(m) * class_bytes(m) + class_bytes(medium_of(50000));
        EXPECT_LE(unit_kept_medium_max(), least + kept / 4); // a part of what it has, which is what it keeps
        EXPECT_LT(unit_kept_medium_max(), least + class_bytes(medium_of(bytes_of)) / 2);
        expect_no_live_blocks();
    }));
}

TEST(MediumLong, NoneIsKeptThatIsLongerThanTheOptionSays) {
    EXPECT_FINE(in_child([] {
        start("release=off:thread_kept_max=64k");
        unit_free(unit_alloc(bytes_of));
        EXPECT_EQ(unit_kept_block(medium_of(bytes_of)), nullptr);
        EXPECT_EQ(used_blocks(), 0u);
        unit_free(unit_alloc(3000));
        EXPECT_LE(unit_kept_medium_max(), 65536u);
        expect_nothing_left();
    }));
}

// ---- Resizing.

TEST(MediumLong, ReallocGrowsByLittleWhereTheBlockLies) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc(50000));
        const unsigned char* p = blocks.all[0].p;
        for (size_t size = 60000; size <= CHUNK_MAX; size += size / 3) {
            ASSERT_TRUE(blocks.realloc(0, size));
            EXPECT_EQ(blocks.all[0].p, p) << size;
            EXPECT_EQ(unit_medium_out_bytes(), blocks.all[0].usable);
            EXPECT_TRUE(unit_arena_check());
        }
        EXPECT_TRUE(unit_in_chunk(p));
        ASSERT_TRUE(blocks.realloc(0, CHUNK_MAX + 1));
        EXPECT_TRUE(unit_is_large(unit_slice(blocks.all[0].p)));
        blocks.free_all();
        expect_nothing_left();
    }));
}

// What grows by much, or cannot grow where it lies, goes where there is room to go on.
TEST(MediumLong, ReallocGoesToASpanElse) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc(100000));
        ASSERT_TRUE(blocks.realloc(0, 200000));
        EXPECT_TRUE(unit_is_large(unit_slice(blocks.all[0].p)));
        ASSERT_TRUE(blocks.alloc(100000));
        ASSERT_TRUE(blocks.alloc(3000)); // behind it
        ASSERT_EQ(unit_slice(blocks.all[1].p), unit_slice(blocks.all[2].p));
        ASSERT_TRUE(blocks.realloc(1, 120000));
        EXPECT_TRUE(unit_is_large(unit_slice(blocks.all[1].p)));
        ASSERT_TRUE(blocks.realloc(1, 240000)); // where it lies
        EXPECT_EQ(blocks.moved, 2u);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(MediumLong, ReallocToMuchLessGivesTheRestBack) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc(400000));
        size_t usable = blocks.all[0].usable;
        ASSERT_TRUE(blocks.realloc(0, usable - usable / 4));
        EXPECT_EQ(blocks.moved, 0u);
        EXPECT_EQ(blocks.all[0].usable, usable);
        for (size_t size : {usable - usable / 4 - 1, size_t{150000}, size_t{70000}, size_t{20000}}) {
            ASSERT_TRUE(blocks.realloc(0, size));
            EXPECT_EQ(blocks.all[0].usable, size_classes[class_of(size)].bytes);
            EXPECT_TRUE(unit_in_chunk(blocks.all[0].p));
        }
        EXPECT_EQ(blocks.moved, 4u);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// ---- Misuse, and other threads.

TEST(MediumLong, MisuseIsReportedAtTheCall) {
    const struct {
        const char* line;
        size_t offset;
        bool twice;
    } cases[] = {{"weir: double-free: already freed 0x", 0, true},
                 {"weir: invalid-free: not the start of a block 0x", 65536, false},
                 {"weir: invalid-free: not the start of a block 0x", 299904, false}};
    for (const auto& c : cases) {
        const Ended ended = in_child([&] {
            start("release=off:on_error=report");
            char* p = static_cast<char*>(unit_alloc(bytes_of));
            unit_free(p + c.offset);
            if (c.twice) unit_free(p);
            EXPECT_TRUE(unit_arena_check());
        });
        EXPECT_EQ(ended.printed.rfind(c.line, 0), 0u) << ended.printed;
    }
}

// The span waits for the page lock, and the record may be the next chunk's, or its memory gone.
TEST(MediumLong, WhatIsFreedTwiceIsReportedWhileItsChunkGoes) {
    const Ended ended = in_child([] {
        start("release=off:on_error=report:thread_kept_max=0");
        std::vector<void*> blocks;
        for (unsigned i = 0; i < 12; i++) blocks.push_back(unit_alloc(bytes_of));
        for (void* p : blocks) unit_free(p);
        ASSERT_TRUE(unit_in_chunk(blocks[0]));
        std::atomic<bool> attached{false};
        std::atomic<bool> may_trim{false};
        std::thread other([&] {
            unit_attach();
            attached = true;
            while (!may_trim) std::this_thread::yield();
            unit_arena_trim();
            unit_detach();
        });
        while (!attached) std::this_thread::yield();
        os_lock_take(&page_lock);
        may_trim = true;
        for (unsigned i = 0; i < 20000 && unit_in_chunk(blocks[0]); i++) usleep(100);
        EXPECT_FALSE(unit_in_chunk(blocks[0]));
        unit_free(blocks[0]);
        os_lock_give(&page_lock);
        other.join();
        EXPECT_TRUE(unit_arena_check());
    });
    EXPECT_EQ(ended.printed.rfind("weir: double-free: already freed 0x", 0), 0u) << ended.printed;
    EXPECT_EQ(ended.printed.find("Failure"), std::string::npos) << ended.printed;
}

TEST(MediumLong, ThreadsFreeEachOthersBlocks) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        constexpr unsigned count = 4;
        std::atomic<unsigned char*> slots[16] = {};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < count; t++)
            threads.emplace_back([&, t] {
                Random random(t + 1);
                for (unsigned i = 0; i < unit_rounds(4000); i++) {
                    size_t size = SLAB_MAX + 1 + random.below(CHUNK_MAX - SLAB_MAX);
                    auto* p = static_cast<unsigned char*>(unit_alloc(size));
                    auto stamp = static_cast<unsigned char>(t * 50 + i % 50 + 1);
                    p[0] = stamp;
                    for (size_t at = 4096; at < size; at += 4096) p[at] = stamp;
                    p[size - 1] = stamp;
                    unsigned char* q = slots[random.below(16)].exchange(p);
                    if (q == nullptr) continue;
                    size_t usable = unit_usable(q);
                    for (size_t at = 4096; at + 65536 < usable; at += 4096) EXPECT_EQ(q[at], q[0]);
                    unit_free(q);
                }
                unit_detach();
            });
        for (std::thread& t : threads) t.join();
        EXPECT_TRUE(unit_arena_check());
        for (auto& slot : slots) unit_free(slot.load());
        expect_nothing_left();
    }));
}

} // namespace
