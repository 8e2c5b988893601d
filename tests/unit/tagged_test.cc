// tagged_test.cc: heap/tagged.h: tags of slab blocks, from when they are built until their memory goes.
// Called by ctest; each test starts the heap, with tags, in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>
extern "C" {
#include "page/release.h"
#include "tag/tag.h"
}

#ifdef __aarch64__

namespace {

void start(const char* more = "") {
    std::string all = "tagging=sync" + std::string(more);
    setenv("WEIR_OPTIONS", all.c_str(), 1);
    unit_attach();
    ASSERT_TRUE(tag_is_on());
}

unsigned memory_tag(const void* p) { return tag_of(tag_read(p)); }
uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(tag_clear(p)); }
bool is_tagged(const void* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += TAG_GRANULE)
        if (memory_tag(static_cast<const char*>(p) + i) != tag_of(p)) return false;
    return tag_of(p) != 0;
}
void expect_report(const char* code, const char* what, void (*body)()) {
    Ended ended = in_child(body);
    EXPECT_TRUE(ended.aborted()) << ended.status;
    EXPECT_EQ(ended.printed.find(std::string("weir: ") + code + ": " + what), 0u) << ended.printed;
}

constexpr size_t kSizes[] = {16, 32, 48, 64, 112, 256, 1008, 1024};

TEST(Tagged, NeighboursDifferAndTheSlabEndsWithNobodysGranule) {
    for (size_t size : kSizes) {
        EXPECT_FINE(in_child([size] {
            start();
            const uint32_t capacity = size_classes[class_of(size)].capacity;
            EXPECT_LT(capacity * size, size_t{SLICE_BYTES});
            std::vector<void*> all;
            for (uint32_t i = 0; i < 3 * capacity; i++) all.push_back(unit_alloc(size));
            for (unsigned round = 0; round < 3; round++) {
                for (void* p : all) {
                    EXPECT_TRUE(is_tagged(p, size));
                    uint32_t slot = static_cast<uint32_t>((address(p) % SLICE_BYTES) / size);
                    EXPECT_EQ(tag_of(p) & 1, slot & 1);
                    unsigned behind = memory_tag(static_cast<char*>(p) + size);
                    EXPECT_NE(behind, tag_of(p)); // the next one's, or nobody's
                    EXPECT_EQ(behind == 0, slot + 1 == capacity);
                }
                EXPECT_GT(unit_check_slabs(), 0);
                for (size_t i = round; i < all.size(); i += 2) unit_free(all[i]);
                EXPECT_GT(unit_check_slabs(), 0);
                for (size_t i = round; i < all.size(); i += 2) all[i] = unit_alloc(size);
            }
            for (void* p : all) unit_free(p);
            EXPECT_GT(unit_check_slabs(), 0);
        }));
    }
}

TEST(Tagged, AFreeGivesAllOfTheBlockAnotherTagAndMallocNone) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t size : kSizes) {
            for (int i = 0; i < 300; i++) {
                void* p = unit_alloc(size);
                void* below = unit_alloc(size);
                unsigned before = tag_of(p);
                unit_free(p);
                unsigned after = memory_tag(p);
                EXPECT_NE(after, before);
                EXPECT_NE(after, 0u);
                EXPECT_EQ(after & 1, before & 1);
                EXPECT_TRUE(is_tagged(tag_read(p), size));
                EXPECT_TRUE(is_tagged(below, size)); // no further
                unit_free(below);
            }
        }
    }));
}

TEST(Tagged, EveryTagOfItsParityComes) {
    EXPECT_FINE(in_child([] {
        start();
        std::set<unsigned> even, odd;
        for (int i = 0; i < 2000; i++) {
            void* p = unit_alloc(64);
            (address(p) / 64 % 2 == 0 ? even : odd).insert(tag_of(p));
            void* q = unit_alloc(64);
            (address(q) / 64 % 2 == 0 ? even : odd).insert(tag_of(q));
            unit_free(p);
            unit_free(q);
        }
        EXPECT_EQ(even, (std::set<unsigned>{2, 4, 6, 8, 10, 12, 14}));
        EXPECT_EQ(odd, (std::set<unsigned>{1, 3, 5, 7, 9, 11, 13, 15}));
    }));
}

TEST(Tagged, BlocksThatOtherThreadsFreedComeBackTagged) {
    EXPECT_FINE(in_child([] {
        start();
        for (int round = 0; round < 20; round++) {
            std::vector<void*> all;
            for (int i = 0; i < 2000; i++) all.push_back(memset(unit_alloc(48), i, 48));
            std::thread([&] {
                for (void* p : all) unit_free(p);
                unit_detach();
            }).join();
            for (void* p : all) EXPECT_NE(memory_tag(p), tag_of(p));
            EXPECT_GT(unit_check_slabs(), 0);
            all.clear();
            for (int i = 0; i < 2000; i++) all.push_back(memset(unit_alloc(48), i, 48));
            for (void* p : all) EXPECT_TRUE(is_tagged(p, 48));
            for (void* p : all) unit_free(p);
        }
    }));
}

// A page whose blocks are all free is built anew for the next ones: with the tags that they have.
TEST(Tagged, APageThatIsBuiltAnewGivesNoBlockTheTagOfBefore) {
    EXPECT_FINE(in_child([] {
        start(":release=off");
        for (size_t size : {size_t{64}, size_t{1024}, size_t{2048}}) {
            for (int round = 0; round < 3; round++) {
                std::vector<void*> all;
                for (size_t i = 0; i < 400000 / size; i++) all.push_back(unit_alloc(size));
                std::map<uintptr_t, unsigned> before;
                for (void* p : all) before[address(p)] = tag_of(p);
                for (void* p : all) unit_free(p);
                size_t again = 0;
                for (void*& p : all) {
                    p = unit_alloc(size);
                    EXPECT_TRUE(is_tagged(p, unit_usable(p)));
                    auto found = before.find(address(p));
                    if (found == before.end()) continue;
                    again++;
                    EXPECT_NE(found->second, tag_of(p)) << size;
                }
                EXPECT_GT(again, all.size() / 4);
                for (void* p : all) unit_free(p);
            }
        }
    }));
}

TEST(Tagged, MemoryThatWentBackComesTaggedAndOtherClassesFindNoTags) {
    EXPECT_FINE(in_child([] {
        start(":release=off:thread_free_max=0");
        for (size_t size : {size_t{1024}, size_t{16}, size_t{112}, size_t{3072}, size_t{48}}) {
            std::vector<void*> all;
            for (int i = 0; i < 500; i++) all.push_back(unit_alloc(size));
            for (void* p : all) {
                EXPECT_TRUE(is_tagged(p, unit_usable(p)));
                memset(p, 1, size);
            }
            // All but a few: pages inside the slabs become holes, and half the time are purged.
            for (size_t i = 0; i < all.size(); i++)
                if (i % 97 != 0) unit_free(all[i]);
            if (size != 112) release_all();
            EXPECT_GE(unit_check_slabs(), size > SMALL_MAX ? 0 : 1);
            std::vector<void*> again;
            for (int i = 0; i < 500; i++) again.push_back(memset(unit_alloc(size), 2, size));
            for (void* p : again) EXPECT_TRUE(is_tagged(p, unit_usable(p)));
            for (void* p : again) unit_free(p);
            for (size_t i = 0; i < all.size(); i += 97) unit_free(all[i]);
            unit_collect(); // what the slabs leave is the next size's
        }
    }));
}

TEST(Tagged, ASpareSpanOfAnotherClassHasNoTagsOfTheOldOne) {
    EXPECT_FINE(in_child([] {
        start(":release=off");
        std::vector<void*> all;
        for (int i = 0; i < 9000; i++) all.push_back(unit_alloc(16));
        for (void* p : all) unit_free(p); // some of the slabs' spans are spare now
        for (int round = 0; round < 3; round++) {
            void* p = unit_alloc(1000);
            char* slab = reinterpret_cast<char*>(address(p) & ~uintptr_t{SLICE_BYTES - 1});
            EXPECT_EQ(memory_tag(slab + SLICE_BYTES - TAG_GRANULE), 0u);
            EXPECT_EQ(memory_tag(slab + SLICE_BYTES / 2), 0u); // not built yet
        }
    }));
}

TEST(Tagged, ResizesAndSizesKnowTheTag) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t size : kSizes) {
            void* p = memset(unit_alloc(size), 7, size);
            EXPECT_EQ(unit_usable(p), size);
            EXPECT_EQ(unit_realloc(p, size), p); // stays, with its tag
            char* to = static_cast<char*>(unit_realloc(p, size * 3));
            EXPECT_NE(to, p);
            EXPECT_NE(memory_tag(p), tag_of(p));
            EXPECT_TRUE(is_tagged(to, unit_usable(to)));
            for (size_t i = 0; i < size; i++) ASSERT_EQ(to[i], 7);
            unit_free(to);
        }
        for (size_t align = 32; align <= 4096; align *= 2) {
            void* p = unit_alloc_aligned(40, align);
            EXPECT_EQ(address(p) % align, 0u);
            EXPECT_TRUE(is_tagged(p, unit_usable(p)));
            unit_free(p);
        }
    }));
}

TEST(Tagged, WrongPointersAreReportedAtTheCall) {
    for (const char* options : {"", ":checks=full"}) {
        static const char* with;
        with = options;
        expect_report("double-free", "already freed", [] {
            start(with);
            void* p = unit_alloc(48);
            unit_free(p);
            unit_free(p);
        });
        expect_report("double-free", "already freed", [] {
            start(with);
            void* p = unit_alloc(48);
            unit_free(p);
            unit_usable(p);
        });
        expect_report("tag-mismatch", "the pointer's tag is not the block's", [] {
            start(with);
            unit_free(tag_clear(unit_alloc(48)));
        });
        expect_report("tag-mismatch", "the pointer's tag is not the block's", [] {
            start(with);
            unit_realloc(tag_clear(unit_alloc(48)), 100);
        });
        expect_report("tag-mismatch", "the pointer's tag is not the block's", [] {
            start(with);
            unit_usable(tag_clear(unit_alloc(48)));
        });
        expect_report("invalid-free", "not the start of a block", [] {
            start(with);
            unit_free(static_cast<char*>(unit_alloc(48)) + 16);
        });
        expect_report("invalid-free", "not the start of a block", [] {
            start(with);
            unit_free(static_cast<char*>(unit_alloc(16)) + 8);
        });
        expect_report("invalid-free", "not a block of this heap", [] {
            start(with);
            static char mine[64];
            unit_free(tag_with(reinterpret_cast<uintptr_t>(mine), 3));
        });
    }
}

TEST(Tagged, OffATopByteIsForeign) {
    expect_report("invalid-free", "not a block of this heap",
                  [] { unit_free(tag_with(reinterpret_cast<uintptr_t>(unit_alloc(48)), 3)); });
}

} // namespace

#endif
