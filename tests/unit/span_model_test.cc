// span_model_test.cc: page/span.h against a reference model that knows every span and what was written to it.
// Called by ctest; each test starts the page layer in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "spans.h"
#include <map>
#include <thread>

namespace {

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

} // namespace
