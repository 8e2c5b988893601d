// span_test.cc: page/span.h against a reference model that knows every span and what was written to it.
// Called by ctest; each test starts the page layer in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <thread>
#include <vector>
extern "C" {
#include "page/hole.h"
#include "page/release.h"
}

namespace {

char* address(const struct slice* s) { return reinterpret_cast<char*>(slice_address(s)); }
size_t bytes_of(size_t slices) { return slices << SLICE_SHIFT; }

// As a large block that ends with its span.
void publish(struct slice* s) {
    s->kind = SLICE_LARGE;
    hole_show(s, 0);
}

// What is live: where it starts -> how long it is, and the stamp in its first, last and some other bytes.
class Model {
  public:
    struct Span {
        struct slice* s;
        size_t slices;
        uint64_t stamp;
    };

    explicit Model(uint64_t seed) : random(seed) {}

    void alloc(size_t slices, size_t align) {
        bool zeroed = false;
        struct slice* s = span_alloc(slices, align, &zeroed);
        if (s == nullptr) {
            refused++;
            return;
        }
        char* p = address(s);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % bytes_of(align), 0u);
        EXPECT_EQ(s->kind, SLICE_META);
        EXPECT_EQ(s->span_slices, slices);
        EXPECT_EQ(slice_find(p), s);
        EXPECT_EQ(s->owner, nullptr);
        if (zeroed) {
            EXPECT_TRUE(is_zero(p, bytes_of(slices)));
            zeroes++;
        }
        auto after = spans.lower_bound(p);
        EXPECT_TRUE(after == spans.end() || p + bytes_of(slices) <= after->first);
        if (after != spans.begin()) {
            auto before = std::prev(after);
            EXPECT_LE(before->first + bytes_of(before->second.slices), p);
        }
        publish(s);
        enter(s, slices);
    }

    void free(size_t which) {
        Span span = pick(which);
        expect_stamps(span, span.slices);
        spans.erase(address(span.s));
        span_free(span.s);
    }

    // A slab whose pages are taken, given up and purged one by one.
    void slab_alloc(size_t slices) {
        bool fresh;
        struct slice* s = span_alloc_slab(slices, random.below(2) == 0, &fresh);
        ASSERT_NE(s, nullptr);
        for (size_t i = 0; i < slices; i++) {
            s[i].region = s->region;
            s[i].back = static_cast<uint32_t>(i);
            s[i].kind = i == 0 ? SLICE_SLAB : SLICE_SLAB_REST;
            uint64_t state = slice_pages(s + i)->state;
            EXPECT_EQ(hole_of(state), hole_all());
            for (unsigned page = 0; page < slice_page_count(); page++)
                if ((hole_clean(state) >> page & 1) != 0) {
                    EXPECT_TRUE(is_zero(page_at(s + i, page), os_page_bytes()));
                    cleans++;
                }
        }
        slabs.push_back(s);
    }
    void slab_step(size_t which) {
        struct slice* s = slabs[which] + random.below(slabs[which]->span_slices);
        unsigned page = static_cast<unsigned>(random.below(slice_page_count()));
        uint64_t* state = &slice_pages(s)->state;
        if (hole_take(s, 1u << page) != 0) {
            memset(page_at(s, page), 0x5a, os_page_bytes());
        } else {
            EXPECT_EQ(page_at(s, page)[os_page_bytes() - 1], 0x5a);
            hole_add(s, 1u << page);
            if (random.below(2) == 0) return;
            ASSERT_TRUE(os_purge(page_at(s, page), os_page_bytes()));
            *state |= 1ull << (PAGES_CLEAN_SHIFT + page) | 1ull << (PAGES_OLD_SHIFT + page);
        }
    }
    void slab_free(size_t which) {
        struct slice* s = slabs[which];
        slabs.erase(slabs.begin() + static_cast<long>(which));
        for (uint32_t i = 0; i < s->span_slices; i++) {
            hole_add(s + i, hole_all() & ~hole_of(slice_pages(s + i)->state));
            if (i != 0) s[i].kind = SLICE_NONE;
        }
        span_free(s);
    }

    void resize(size_t which, size_t slices) {
        Span span = pick(which);
        uint32_t before = span.s->span_slices;
        if (span_resize(span.s, slices)) {
            size_t kept = slices < span.slices ? slices : span.slices;
            EXPECT_TRUE(span.s->span_slices == slices || (span.s->flags & SLICE_MOVED) != 0);
            publish(span.s);
            expect_stamps(span, kept);
            resized++;
            spans.erase(address(span.s));
            enter(span.s, span.s->span_slices);
        } else {
            EXPECT_GT(slices, before);
            EXPECT_EQ(span.s->span_slices, before);
            expect_stamps(span, span.slices);
        }
    }

    void move(size_t which, size_t slices) {
        Span span = pick(which);
        size_t kept = slices < span.slices ? slices : span.slices;
        char* before = address(span.s); // its region may go with it
        struct slice* to = span_move(span.s, slices, 0, bytes_of(kept));
        if (to == nullptr) {
            expect_stamps(span, span.slices);
            return;
        }
        moved++;
        EXPECT_EQ(to->span_slices, slices);
        EXPECT_NE(to->flags & SLICE_MOVED, 0);
        EXPECT_LE(span_totals.moved, core_options.map_count_max);
        publish(to);
        spans.erase(before);
        Span there = {to, slices, span.stamp};
        expect_stamps(there, kept);
        enter(to, slices);
    }

    void step() {
        size_t what = random.below(100);
        size_t slices = random.below(8) != 0 ? 1 + random.below(12) : 1 + random.below(150);
        for (unsigned i = 0; i < 20 && !slabs.empty(); i++) slab_step(random.below(slabs.size()));
        if (random.below(4) == 0) {
            if (slabs.empty() || (slabs.size() < 40 && random.below(2) == 0))
                slab_alloc(1 + random.below(4));
            else
                slab_free(random.below(slabs.size()));
        } else if (spans.empty() || (what < 40 && spans.size() < 120))
            alloc(slices, size_t{1} << (random.below(4) == 0 ? random.below(6) : 0));
        else if (what < 70)
            free(random.below(spans.size()));
        else if (what < 85)
            resize(random.below(spans.size()), slices);
        else if (what < 93)
            move(random.below(spans.size()), slices);
        else if (what < 95)
            span_purge(UINT64_MAX);
        else
            metas += span_meta_bytes();
    }

    void check() {
        EXPECT_TRUE(span_check());
        uint64_t live = 0;
        uint64_t in_moved = 0;
        for (const auto& [p, span] : spans) {
            live += bytes_of(span.slices);
            in_moved += span_pieces(span.s);
        }
        for (const struct slice* s : slabs) live += bytes_of(s->span_slices);
        EXPECT_EQ(span_totals.live, live + meta_slices());
        EXPECT_EQ(span_totals.moved, in_moved);
    }

    void free_all() {
        while (!spans.empty()) free(0);
        while (!slabs.empty()) slab_free(0);
        check();
    }

    size_t count() const { return spans.size(); }

    Random random;
    unsigned refused = 0, zeroes = 0, resized = 0, moved = 0, cleans = 0;
    uint64_t metas = 0;

  private:
    static char* page_at(const struct slice* s, unsigned page) {
        return address(s) + (size_t{page} << page_shift);
    }
    Span pick(size_t which) { return std::next(spans.begin(), static_cast<long>(which))->second; }

    template <class Visit>
    static void stamped(const Span& span, size_t slices, Visit visit) {
        for (size_t i = 0; i < slices; i++) {
            char* p = address(span.s) + bytes_of(i);
            for (size_t offset :
                 {size_t{0}, (span.stamp * (i + 1)) % SLICE_BYTES & ~size_t{7}, size_t{SLICE_BYTES - 8}})
                visit(reinterpret_cast<uint64_t*>(p + offset), span.stamp);
        }
    }
    void expect_stamps(const Span& span, size_t slices) {
        stamped(span, slices, [](const uint64_t* word, uint64_t stamp) { ASSERT_EQ(*word, stamp); });
    }
    void enter(struct slice* s, size_t slices) {
        Span span = {s, slices, random.next() | 1};
        stamped(span, slices, [](uint64_t* word, uint64_t stamp) { *word = stamp; });
        spans[address(s)] = span;
    }
    uint64_t span_meta_bytes() {
        size_t bytes = 1 + random.below(5000);
        char* p = static_cast<char*>(span_meta_alloc(bytes));
        if (p == nullptr) return 0;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
        EXPECT_TRUE(is_zero(p, bytes));
        memset(p, 0xee, bytes);
        return bytes;
    }
    static uint64_t meta_slices() {
        uint64_t bytes = 0;
        span_visit(
            [](struct slice* s, void* context) {
                if (s->kind == SLICE_META) *static_cast<uint64_t*>(context) += bytes_of(s->span_slices);
            },
            &bytes);
        return bytes;
    }

    std::map<char*, Span> spans;
    std::vector<struct slice*> slabs;
};

void random_run(uint64_t seed, unsigned steps) {
    Model model(seed);
    for (unsigned i = 0; i < steps && !::testing::Test::HasFailure(); i++) {
        model.step();
        if (i % 4 == 0) model.check();
    }
    model.check();
    EXPECT_EQ(model.refused, 0u);
    EXPECT_GT(model.zeroes, 0u);
    EXPECT_GT(model.resized, 0u);
    EXPECT_GT(model.cleans, 0u);
    model.free_all();
    EXPECT_LE(span_totals.dirty, core_options.dirty_max);
}

TEST(Span, AgreesWithTheModel) {
    for (uint64_t seed = 1; seed <= 3; seed++)
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            random_run(seed, unit_rounds(3000));
        }));
}

TEST(Span, AgreesWithTheModelWherePurgesAreFrequent) {
    EXPECT_FINE(in_child([] {
        core_options.dirty_max = 2 * MIB;
        region_start(GIB);
        random_run(11, unit_rounds(3000));
    }));
}

TEST(Span, AgreesWithTheModelUnderStrictAccounting) {
    for (uint64_t seed = 21; seed <= 22; seed++)
        EXPECT_FINE(in_child([&] {
            core_options.dirty_max = 1 * MIB;
            region_start(GIB);
            region_commit_strict = true;
            random_run(seed, unit_rounds(3000));
        }));
}

TEST(Span, AgreesWithTheModelAcrossRegions) {
    EXPECT_FINE(in_child([] {
        region_start(4 * MIB);
        random_run(31, unit_rounds(3000));
        EXPECT_GT(region_count, 1u);
        uint32_t in_use = 0;
        for (uint32_t row = 1; row < region_count; row++) in_use += regions[row].live;
        uint64_t meta = span_totals.live;
        EXPECT_EQ(bytes_of(in_use) + bytes_of(regions[0].live), meta);
        for (uint32_t row = 1; row < region_count; row++)
            EXPECT_EQ(regions[row].base != 0, regions[row].live != 0);
    }));
}

TEST(Span, AgreesWithTheModelWithoutAPrimaryRegion) {
    EXPECT_FINE(in_child([] {
        os_fault_hook = [](enum os_call) { return true; };
        region_start(0);
        os_fault_hook = nullptr;
        EXPECT_EQ(regions[0].base, 0u);
        random_run(41, unit_rounds(1500));
    }));
}

TEST(Span, ThreadsDoNotMix) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = 4 * MIB;
        std::vector<std::thread> all;
        for (uint64_t t = 0; t < 4; t++)
            all.emplace_back([t] {
                Random random(t + 1);
                std::vector<struct slice*> mine;
                for (unsigned i = 0; i < unit_rounds(2000); i++) {
                    bool zeroed;
                    if (mine.size() < 20 && random.below(2) == 0) {
                        struct slice* s = span_alloc(1 + random.below(20), 1, &zeroed);
                        ASSERT_NE(s, nullptr);
                        __atomic_store_n(&s->kind, (uint8_t)SLICE_LARGE, __ATOMIC_RELAXED);
                        *reinterpret_cast<uint64_t*>(address(s)) = t;
                        mine.push_back(s);
                    } else if (!mine.empty()) {
                        size_t which = random.below(mine.size());
                        ASSERT_EQ(*reinterpret_cast<uint64_t*>(address(mine[which])), t);
                        span_free(mine[which]);
                        mine[which] = mine.back();
                        mine.pop_back();
                    }
                    EXPECT_TRUE(i % 256 != 0 || span_check());
                }
                for (struct slice* s : mine) span_free(s);
            });
        for (std::thread& t : all) t.join();
        EXPECT_TRUE(span_check());
        EXPECT_EQ(span_totals.live, 0u);
    }));
}

TEST(Span, MergesWithItsFreeNeighbours) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        for (unsigned order = 0; order < 6; order++) {
            bool zeroed;
            struct slice* all = span_alloc(30, 1, &zeroed);
            span_free(all);
            struct slice* s[3];
            for (struct slice*& one : s) one = span_alloc(10, 1, &zeroed);
            EXPECT_EQ(s[0], all);
            static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                  {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
            for (unsigned i : orders[order]) span_free(s[i]);
            EXPECT_TRUE(span_check());
            EXPECT_EQ(all->kind, SLICE_FREE);
            EXPECT_EQ(all->span_slices, 30u);
        }
    }));
}

TEST(Span, LargeAlignmentsHoldAndLeaveTheGapFree) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        for (size_t align = 1; align <= 4096; align *= 4) {
            bool zeroed;
            struct slice* one = span_alloc(1, 1, &zeroed);
            struct slice* s = span_alloc(3, align, &zeroed);
            ASSERT_NE(s, nullptr) << align;
            EXPECT_EQ(slice_address(s) % bytes_of(align), 0u);
            EXPECT_EQ(span_totals.live, bytes_of(4));
            EXPECT_TRUE(span_check());
            span_free(s);
            span_free(one);
        }
        bool zeroed;
        EXPECT_EQ(span_alloc(1, size_t{UINT32_MAX}, &zeroed), nullptr);
    }));
}

TEST(Span, ImpossibleSizesAreRefused) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        EXPECT_EQ(span_alloc(size_t{UINT32_MAX} + 1, 1, &zeroed), nullptr);
        EXPECT_EQ(span_alloc(SIZE_MAX >> SLICE_SHIFT, 1, &zeroed), nullptr);
        EXPECT_EQ(span_alloc(UINT32_MAX / 4, 1, &zeroed), nullptr); // 64 TiB
        struct slice* s = span_alloc(1, 1, &zeroed);
        EXPECT_FALSE(span_resize(s, SIZE_MAX >> SLICE_SHIFT));
        EXPECT_EQ(span_move(s, SIZE_MAX >> SLICE_SHIFT, 0, 1), nullptr);
        EXPECT_EQ(s->span_slices, 1u);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, PurgeGivesMemoryBackAndItReadsAsZero) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        EXPECT_FALSE(span_purge(UINT64_MAX));
        struct slice* s = span_alloc(512, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        memset(address(s), 1, bytes_of(512));
        uint64_t full, after, peak;
        os_resident(&full, &peak);
        span_free(s);
        EXPECT_EQ(span_totals.dirty, bytes_of(512));
        s = span_alloc(512, 1, &zeroed);
        EXPECT_FALSE(zeroed);
        EXPECT_EQ(address(s)[77], 1);
        span_free(s);
        EXPECT_TRUE(span_purge(UINT64_MAX));
        os_resident(&after, &peak);
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_EQ(span_totals.purged, bytes_of(512));
        EXPECT_LE(after + bytes_of(512) * 9 / 10, full);
        s = span_alloc(512, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        EXPECT_TRUE(is_zero(address(s), bytes_of(512)));
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, DirtyMemoryIsBounded) {
    EXPECT_FINE(in_child([] {
        core_options.dirty_max = 4 * MIB;
        region_start(GIB);
        bool zeroed;
        std::vector<struct slice*> all;
        for (int i = 0; i < 200; i++) all.push_back(span_alloc(16, 1, &zeroed));
        for (struct slice* s : all) {
            memset(address(s), 1, bytes_of(16));
            span_free(s);
            EXPECT_LE(span_totals.dirty, 4 * MIB);
        }
        EXPECT_GE(span_totals.purged, 190 * MIB);
        EXPECT_TRUE(span_check());
    }));
}

// What is free between spans that stay serves no longer one: where that is much, growth gives as much of it
// back.
TEST(Span, GrowthPaysWithShortSpans) {
    for (unsigned mib : {12u, 40u})
        for (bool release : {true, false})
            EXPECT_FINE(in_child([=] {
                core_options.release = release;
                region_start(GIB);
                bool zeroed;
                std::vector<struct slice*> all;
                for (unsigned i = 0; i < 2 * mib * 16; i++) all.push_back(span_alloc(1, 1, &zeroed));
                for (size_t i = 0; i < all.size(); i += 2) span_free(all[i]); // of each two neighbours one
                const uint64_t dirty = span_totals.dirty;
                EXPECT_EQ(dirty, bytes_of(mib * 16));
                const bool pays = release && mib > 16;
                struct slice* chunk = span_alloc(16, 1, &zeroed);
                EXPECT_EQ(span_totals.dirty, dirty - (pays ? bytes_of(16) : 0));
                struct slice* block = span_alloc(1000, 1, &zeroed); // no more than some at a time
                EXPECT_EQ(span_totals.dirty, dirty - (pays ? bytes_of(16 + 64) : 0));
                for (unsigned i = 0; i < 100; i++) span_alloc(16, 1, &zeroed); // and not all
                EXPECT_GE(span_totals.dirty, std::min<uint64_t>(dirty, 16 << 20));
                EXPECT_LE(span_totals.dirty, pays ? span_totals.live / 4 + bytes_of(16) : dirty);
                // Those that are long enough for a chunk are none.
                span_free(block);
                span_free(chunk);
                const uint64_t before = span_totals.dirty;
                span_alloc(2000, 1, &zeroed);
                EXPECT_GE(span_totals.dirty, before - bytes_of(64));
                EXPECT_TRUE(span_check());
            }));
}

TEST(Span, StrictAccountingUnchargesWhatIsPurged) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        region_commit_strict = true;
        bool zeroed;
        struct slice* s = span_alloc(64, 1, &zeroed);
        memset(address(s), 1, bytes_of(64));
        span_free(s);
        EXPECT_TRUE(span_purge(UINT64_MAX));
        EXPECT_EQ(s->state, SPAN_UNCOMMITTED);
        EXPECT_FALSE(is_readable(address(s)));
        struct slice* part = span_alloc(10, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        EXPECT_TRUE(is_zero(address(part), bytes_of(10)));
        EXPECT_FALSE(is_readable(address(part) + bytes_of(10)));
        EXPECT_TRUE(span_resize(part, 20));
        EXPECT_TRUE(is_zero(address(part), bytes_of(20)));
        EXPECT_EQ(span_move(part, 30, 0, bytes_of(20)), nullptr);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, LockedMemoryStaysDirtyAndEndsTheAttempt) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s = span_alloc(2, 1, &zeroed);
        address(s)[0] = 1;
        if (mlock(address(s), 4096) != 0) return;
        span_free(s);
        if (span_purge(UINT64_MAX)) return; // a sanitizer's mlock does nothing
        EXPECT_EQ(span_totals.dirty, bytes_of(2));
        EXPECT_EQ(span_totals.purged, 0u);
        EXPECT_TRUE(span_check());
        s = span_alloc(2, 1, &zeroed);
        EXPECT_FALSE(zeroed);
        span_free(s);
    }));
}

TEST(Span, ResizesInPlaceWhereTheNeighbourIsFree) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s = span_alloc(4, 1, &zeroed);
        EXPECT_TRUE(span_resize(s, 4));
        EXPECT_TRUE(span_resize(s, 100)); // at the frontier
        publish(s);
        EXPECT_EQ(regions[0].live, 100u);
        struct slice* wall = span_alloc(1, 1, &zeroed);
        EXPECT_FALSE(span_resize(s, 101));
        EXPECT_TRUE(span_resize(s, 50));
        EXPECT_EQ(span_totals.dirty, bytes_of(50));
        EXPECT_TRUE(span_resize(s, 80));
        EXPECT_TRUE(span_check());
        EXPECT_EQ((s + 80)->kind, SLICE_FREE);
        EXPECT_EQ((s + 80)->span_slices, 20u);
        EXPECT_FALSE(span_resize(s, 101));
        EXPECT_TRUE(span_resize(s, 100));
        span_free(wall);
        span_free(s);
        EXPECT_TRUE(span_check());
    }));
}

// What is free at the frontier is too small: the block lies on it and goes on behind.
TEST(Span, GrowsTheFreeEndByWhatIsLacking) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s = span_alloc(4, 1, &zeroed);
        publish(s);
        struct slice* end = span_alloc(3, 1, &zeroed);
        publish(end);
        memset(address(end), 0x5a, bytes_of(3));
        span_free(end);
        uint32_t frontier = regions[0].frontier;
        EXPECT_EQ(span_alloc(5, 1, &zeroed), end);
        EXPECT_FALSE(zeroed);
        EXPECT_EQ(regions[0].frontier, frontier + 2);
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_EQ(hole_clean(slice_pages(end)->state), hole_all()); // of its last slice
        EXPECT_TRUE(span_check());
        publish(end);
        memset(address(end), 0x5a, bytes_of(5));
        span_free(end);
        EXPECT_TRUE(span_resize(s, 12)); // the same behind a block that grows
        EXPECT_EQ(regions[0].frontier, frontier + 5);
        EXPECT_EQ(span_totals.dirty, 0u);
        publish(s);
        span_free(s);
        // An aligned one does not.
        EXPECT_NE(span_alloc(16, 16, &zeroed), nullptr);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, OfAGrownEndEachPageIsKnown) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        bool ahead;
        // Pages 0 and 1 were purged, the others are as they were used.
        struct slice* s = span_alloc_slab(2, true, &ahead);
        EXPECT_FALSE(ahead);
        for (unsigned i = 0; i < 2; i++) {
            s[i].kind = i == 0 ? SLICE_SLAB : SLICE_SLAB_REST;
            slice_pages(s + i)->state = hole_all() | 3ull << PAGES_CLEAN_SHIFT | 3ull << PAGES_OLD_SHIFT;
        }
        span_free_paged(s);
        EXPECT_EQ(span_alloc_slab(4, true, &ahead), s);
        EXPECT_FALSE(ahead);
        uint64_t old = hole_all() | 3ull << PAGES_CLEAN_SHIFT | 3ull << PAGES_OLD_SHIFT;
        uint64_t fresh = hole_all() | static_cast<uint64_t>(hole_all()) << PAGES_CLEAN_SHIFT;
        for (unsigned i = 0; i < 4; i++) EXPECT_EQ(slice_pages(s + i)->state, i < 2 ? old : fresh);
        // And of a block: what was purged is in use again.
        for (unsigned i = 0; i < 4; i++) s[i].kind = i == 0 ? SLICE_SLAB : SLICE_SLAB_REST;
        slice_pages(s + 3)->state = old;
        span_free_paged(s);
        uint64_t refaulted = load_relaxed(&release_totals.refaulted);
        EXPECT_EQ(span_alloc(6, 1, &zeroed), s);
        EXPECT_FALSE(zeroed);
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), refaulted + (6u << page_shift));
        EXPECT_EQ(slice_pages(s)->state, fresh & ~PAGES_ALL);
        for (unsigned i = 1; i < 6; i++) EXPECT_EQ(slice_pages(s + i)->state, 0u);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, OfFreeSpansThatFitTheSmallestServes) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s[4];
        struct slice* wall[4];
        static const size_t slices[4] = {38, 33, 34, 39}; // one list
        for (unsigned i = 0; i < 4; i++) {
            s[i] = span_alloc(slices[i], 1, &zeroed);
            wall[i] = span_alloc(1, 1, &zeroed);
            publish(s[i]);
        }
        for (struct slice* one : s) span_free(one);
        EXPECT_EQ(span_alloc(33, 1, &zeroed), s[1]);
        EXPECT_EQ(span_alloc(33, 1, &zeroed), s[2]);
        EXPECT_EQ(span_alloc(20, 1, &zeroed), s[0]);
        EXPECT_TRUE(span_check());
        for (struct slice* one : wall) span_free(one);
    }));
}

TEST(Span, MovesUpToTheBoundOfMappings) {
    EXPECT_FINE(in_child([] {
        core_options.map_count_max = 16;
        region_start(GIB);
        bool zeroed;
        std::vector<struct slice*> all;
        unsigned moved = 0;
        for (unsigned i = 0; i < 30; i++) {
            struct slice* s = span_alloc(16, 1, &zeroed);
            memset(address(s), static_cast<int>(i), bytes_of(16));
            struct slice* to = span_move(s, 32, 0, bytes_of(16));
            if (to != nullptr) {
                moved++;
                s = to;
            }
            EXPECT_EQ(address(s)[0], static_cast<char>(i));
            EXPECT_EQ(address(s)[bytes_of(16) - 1], static_cast<char>(i));
            all.push_back(s);
        }
        EXPECT_TRUE(moved == 16 || moved == 0); // emulators have no such call
        EXPECT_EQ(span_totals.moved, moved);
        for (struct slice* s : all) span_free(s);
        EXPECT_EQ(span_totals.moved, 0u);
        EXPECT_EQ(span_totals.live, 0u);
        EXPECT_TRUE(span_check());
        struct slice* again = span_alloc(16 * 30, 1, &zeroed);
        EXPECT_TRUE(!zeroed || is_zero(address(again), bytes_of(16 * 30)));
        memset(address(again), 1, bytes_of(16 * 30));
    }));
}

// A refused move may have unmapped its destination: it is covered again, or out of use.
TEST_UNEMULATED(Span, RefusedMovesLeaveNoHole) {
    static unsigned maps_until_fault;
    for (bool cover_too : {false, true})
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            bool zeroed;
            struct slice* s = span_alloc(16, 1, &zeroed);
            memset(address(s), 5, bytes_of(16));
            struct slice* room = span_alloc(64, 1, &zeroed);
            span_free(room);
            ASSERT_TRUE(os_may_move()); // found out once, with calls of its own
            maps_until_fault = cover_too ? 1 : 1000;
            os_fault_hook = [](enum os_call call) {
                return call == OS_REMAP || (call == OS_MAP && --maps_until_fault == 0);
            };
            EXPECT_EQ(span_move(s, 32, 0, bytes_of(16)), nullptr);
            os_fault_hook = nullptr;
            EXPECT_EQ(address(s)[0], 5);
            EXPECT_TRUE(span_check());
            EXPECT_EQ(span_totals.live, bytes_of(cover_too ? 16 + 32 : 16));
            EXPECT_EQ(span_totals.moved, 0u);
            struct slice* next = span_alloc(32, 1, &zeroed);
            EXPECT_EQ(next == room, !cover_too);
        }));
}

// The place was another's, who wrote to all of it.
TEST_UNEMULATED(Span, TheRoomOfWhatMovedIsNotResident) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        struct slice* before = span_alloc(64, 1, &zeroed);
        struct slice* s = span_alloc(8, 1, &zeroed);
        memset(address(before), 1, bytes_of(64));
        memset(address(s), 2, bytes_of(8));
        span_free(before);
        struct slice* to = span_move(s, 16, 8, bytes_of(8));
        ASSERT_NE(to, nullptr);
        EXPECT_EQ(to, before);
        EXPECT_EQ(to->span_slices, 24u);
        EXPECT_EQ(address(to)[bytes_of(8) - 1], 2);
        for (size_t at = bytes_of(8); at < bytes_of(24); at += os_page_bytes()) {
            unsigned char there;
            ASSERT_TRUE(os_resident_pages(address(to) + at, os_page_bytes(), &there));
            ASSERT_EQ(there & 1, 0) << at;
        }
        span_free(to);
        EXPECT_TRUE(span_check());
    }));
}

// Each mapping moves by a call of its own. Where one of the later calls is refused, the first ones are there
// already: what is left is copied.
TEST_UNEMULATED(Span, PiecesThatMayNotMoveAreCopied) {
    static unsigned moves_until_fault;
    static bool covers_too;
    for (bool cover_too : {false, true})
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            bool zeroed;
            struct slice* s = span_alloc(8, 1, &zeroed);
            auto fill = [&](size_t from, size_t to) {
                for (size_t i = from; i < to; i++) memset(address(s) + bytes_of(i), int(i + 1), SLICE_BYTES);
            };
            fill(0, 8);
            for (size_t slices : {16u, 24u}) {
                s = span_move(s, slices, 0, bytes_of(slices - 8));
                ASSERT_NE(s, nullptr);
                EXPECT_EQ(span_pieces(s), slices / 8 - 1);
                EXPECT_EQ(span_totals.moved, slices / 8 - 1);
                fill(slices - 8, slices);
            }
            moves_until_fault = 2;
            covers_too = cover_too;
            os_fault_hook = [](enum os_call call) {
                if (call == OS_REMAP && moves_until_fault != 0) moves_until_fault--;
                return moves_until_fault == 0 && (call == OS_REMAP || (covers_too && call == OS_MAP));
            };
            s = span_move(s, 32, 0, bytes_of(24));
            os_fault_hook = nullptr;
            ASSERT_NE(s, nullptr);
            EXPECT_EQ(moves_until_fault, 0u);
            for (size_t i = 0; i < bytes_of(24); i++)
                ASSERT_EQ(address(s)[i], static_cast<char>(i / SLICE_BYTES + 1));
            span_free(s);
            EXPECT_EQ(span_totals.moved, 0u);
            EXPECT_EQ(span_totals.live, 0u);
            EXPECT_TRUE(span_check());
            s = span_alloc(100, 1, &zeroed);
            EXPECT_TRUE(!zeroed || is_zero(address(s), bytes_of(100)));
        }));
}

// As of several mappings, since Linux 6.17: those before the one that is refused are there.
TEST_UNEMULATED(Span, WhatAMoveRefusedHalfWayTookComesBack) {
    static char *from, *there;
    static unsigned calls_until_fault;
    for (bool later : {false, true})
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            bool zeroed;
            struct slice* place = span_alloc(64, 1, &zeroed);
            struct slice* s = span_alloc(8, 1, &zeroed);
            struct slice* wall = span_alloc(1, 1, &zeroed);
            memset(address(s), 1, bytes_of(8));
            s = span_move(s, 16, 0, bytes_of(8)); // one piece and the rest
            ASSERT_NE(s, nullptr);
            for (size_t i = 0; i < bytes_of(16); i++) address(s)[i] = static_cast<char>(i / 4096 + 1);
            span_free(place);
            from = address(s) + bytes_of(later ? 8 : 0);
            there = address(place) + bytes_of(later ? 8 : 0);
            calls_until_fault = later ? 2 : 1;
            os_fault_hook = [](enum os_call call) {
                if (call != OS_REMAP || --calls_until_fault != 0) return false;
                int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
                EXPECT_EQ(mremap(from, bytes_of(5), bytes_of(5), flags, there), there);
                return true;
            };
            struct slice* to = span_move(s, 24, 0, bytes_of(16));
            os_fault_hook = nullptr;
            EXPECT_EQ(calls_until_fault, 0u);
            EXPECT_EQ(to, later ? place : nullptr);
            struct slice* now = later ? to : s;
            for (size_t i = 0; i < bytes_of(16); i++)
                ASSERT_EQ(address(now)[i], static_cast<char>(i / 4096 + 1)) << i;
            span_free(now);
            span_free(wall);
            EXPECT_EQ(span_totals.moved, 0u);
            EXPECT_TRUE(span_check());
        }));
}

TEST(Span, MetaMemoryIsZeroAndItsOwn) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        struct slice* s = span_alloc(64, 1, &zeroed);
        memset(address(s), 0xff, bytes_of(64));
        span_free(s); // so that meta memory comes from dirty spans
        std::map<char*, size_t> all;
        Random random(5);
        for (unsigned i = 0; i < 300; i++) {
            size_t bytes = 1 + random.below(i % 50 == 0 ? 200000 : 3000);
            char* p = static_cast<char*>(span_meta_alloc(bytes));
            ASSERT_NE(p, nullptr);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
            ASSERT_TRUE(is_zero(p, bytes));
            memset(p, 1, bytes);
            all[p] = bytes;
        }
        for (auto i = all.begin(); std::next(i) != all.end(); ++i)
            EXPECT_LE(i->first + i->second, std::next(i)->first);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, VisitsEverySpanOnce) {
    EXPECT_FINE(in_child([] {
        region_start(4 * MIB);
        bool zeroed;
        std::map<struct slice*, unsigned> expected;
        for (unsigned i = 1; i < 40; i++) {
            struct slice* s = span_alloc(i, 1, &zeroed);
            if (i % 3 == 0)
                span_free(s);
            else
                expected[s] = 0;
        }
        struct Seen {
            std::map<struct slice*, unsigned>* spans;
            uint64_t records;
            uint64_t slices;
        } seen = {&expected, 0, 0};
        span_visit(
            [](struct slice* s, void* context) {
                Seen* all = static_cast<Seen*>(context);
                all->slices += s->span_slices;
                if (s->kind != SLICE_FREE) (*all->spans)[s]++;
            },
            &seen);
        auto count = [](slice*, struct slice_pages*, void* all) { static_cast<Seen*>(all)->records++; };
        span_visit_records(count, &seen);
        uint64_t below = 0;
        for (uint32_t row = 0; row < region_count; row++) below += regions[row].frontier - regions[row].first;
        EXPECT_EQ(seen.slices, below);
        EXPECT_EQ(seen.records, below);
        EXPECT_EQ(expected.size(), 26u);
        for (const auto& [s, times] : expected) EXPECT_EQ(times, 1u);
    }));
}

TEST(Span, TrimReturnsTheFreeEndAndTheRestServes) {
    EXPECT_FINE(in_child([] {
        region_start(256 * MIB);
        bool zeroed;
        struct slice* keep = span_alloc(3, 1, &zeroed);
        struct slice* end = span_alloc(50, 1, &zeroed);
        const char* last = address(end);
        span_free(end);
        span_trim();
        EXPECT_FALSE(is_mapped(last));
        EXPECT_EQ(regions[0].frontier, regions[0].first + 3);
        EXPECT_EQ(slice_find(last), nullptr);
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_TRUE(span_check());
        struct slice* next = span_alloc(50, 1, &zeroed);
        ASSERT_NE(next, nullptr);
        EXPECT_EQ(next->region, 1);
        memset(address(next), 1, bytes_of(50));
        span_free(next);
        EXPECT_EQ(regions[1].base, 0u);
        span_free(keep);
        span_trim();
        EXPECT_TRUE(span_check());
        EXPECT_NE(span_alloc(2, 1, &zeroed), nullptr);
    }));
}

TEST(Span, RegionsGoBackWhenTheyAreFree) {
    EXPECT_FINE(in_child([] {
        region_start(4 * MIB);
        bool zeroed;
        for (int round = 0; round < 5; round++) {
            struct slice* a = span_alloc(100, 1, &zeroed);
            EXPECT_TRUE(zeroed);
            struct slice* b = span_alloc(100, 1, &zeroed);
            const char* p = address(a);
            memset(address(a), 1, bytes_of(100));
            memset(address(b), 1, bytes_of(100));
            EXPECT_TRUE(span_check());
            span_free(b);
            EXPECT_EQ(address(a)[bytes_of(100) - 1], 1);
            span_free(a);
            EXPECT_FALSE(is_mapped(p));
            EXPECT_TRUE(span_check());
        }
        EXPECT_EQ(region_count, 2u);
        EXPECT_EQ(span_totals.dirty, 0u);
    }));
}

} // namespace
