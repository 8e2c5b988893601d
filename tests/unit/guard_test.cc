// guard_test.cc: heap/guard.h and os_fault_watch: what is sampled, where it lies, what is found, and what
// follows. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <regex>
#include <thread>
#include <vector>

// UBSan's runtime asks it: faults are these tests' own, and not to be caught.
extern "C" const char* __ubsan_default_options() { return "handle_segv=0:handle_sigbus=0"; }

namespace {

const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

char* page_of(const void* p) { return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(p) & ~(page - 1)); }
std::string hex(const void* p) {
    char text[32];
    snprintf(text, sizeof text, "0x%zx", reinterpret_cast<size_t>(p));
    return text;
}
// Where a child says where its block is.
char** const shared_place =
    static_cast<char**>(mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
std::string first_line(const Ended& ended) { return ended.printed.substr(0, ended.printed.find('\n') + 1); }
bool died_of(const Ended& ended, int signal) {
    return WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == signal;
}
std::string line_of(const std::string& code, const std::string& what) {
    return "weir: " + code + ": " + what + "; see docs/errors/" + code + ".md\n";
}

// A guarded block that lies at the end of its pages, or at their start.
char* guarded_block(size_t size, bool right) {
    for (int i = 0; i < 200; i++) {
        char* p = static_cast<char*>(unit_alloc(size));
        bool at_start = p == page_of(p);
        if (unit_guarded(p) && at_start != right) return p;
        unit_free(p);
    }
    ADD_FAILURE() << "no such block";
    return nullptr;
}

TEST(Guard, IsOffByDefault) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(0, 0);
        for (size_t i = 0; i < 20000; i++) {
            void* p = unit_alloc(i % 3000);
            EXPECT_FALSE(unit_guarded(p));
            unit_free(p);
        }
        EXPECT_EQ(unit_guard_allocs(), 0u);
    }));
}

TEST(Guard, AtRateOneEveryBlockIsGuarded) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 64);
        for (size_t size = 0; size <= 65536; size += size < 80 ? 1 : size / 9) {
            char* p = static_cast<char*>(unit_alloc(size));
            size_t usable = size == 0 ? 1 : size;
            ASSERT_TRUE(unit_guarded(p)) << size;
            EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 16, 0u);
            EXPECT_EQ(unit_usable(p), usable);
            memset(p, 0x5a, usable);
            EXPECT_FALSE(is_readable(page_of(p) - 1));
            EXPECT_FALSE(is_readable(page_of(p + usable - 1) + page));
            unit_free(p);
            EXPECT_FALSE(is_readable(p));
        }
        void* large = unit_alloc(65537);
        EXPECT_FALSE(unit_guarded(large));
        unit_free(large);
    }));
}

TEST(Guard, AlignedBlocksAreGuardedToo) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 64);
        unsigned guarded = 0;
        for (size_t align = 16; align <= 65536; align *= 2)
            for (size_t size : {1u, 100u, 5000u, 60000u}) {
                void* p = unit_alloc_aligned(size, align);
                EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
                guarded += unit_guarded(p);
                memset(p, 1, size);
                unit_free(p);
            }
        EXPECT_GT(guarded, 36u); // the largest alignments find no place in an area
    }));
}

TEST(Guard, BlocksLieAtEitherEndOfTheirPages) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 64);
        unsigned left = 0;
        for (unsigned i = 0; i < 1000; i++) {
            char* p = static_cast<char*>(unit_alloc(100));
            if (p == page_of(p))
                left++;
            else
                EXPECT_EQ(static_cast<size_t>(p - page_of(p)), page - 112);
            unit_free(p);
        }
        EXPECT_GT(left, 400u);
        EXPECT_LT(left, 600u);
    }));
}

// Five standard deviations of a binomial count.
void expect_share(uint64_t found, double trials, double rate) {
    double mean = trials / rate;
    double slack = 5 * __builtin_sqrt(mean);
    EXPECT_GT(static_cast<double>(found), mean - slack);
    EXPECT_LT(static_cast<double>(found), mean + slack);
}

TEST(Guard, OneInSoManyIsSampled) {
    struct Case {
        size_t size;
        unsigned blocks;
    };
    for (Case c : {Case{16, 50}, {400, 50}, {1024, 50}, {2000, 50}, {40000, 50}, {400, 4001}})
        for (uint64_t rate : {7u, 100u}) {
            const size_t size = c.size;
            EXPECT_FINE(in_child([=] {
                core_options.check_first = 0;
                unit_guard_start(rate, 0);
                unsigned n = unit_rounds(100000);
                std::vector<void*> held(c.blocks);
                for (unsigned i = 0; i < n; i++) { // as many come as go, in another order
                    void** slot = &held[i * 7 % c.blocks];
                    unit_free(*slot);
                    *slot = unit_alloc(size);
                }
                expect_share(unit_guard_allocs(), n, static_cast<double>(rate));
            }));
        }
}

TEST(Guard, NoPlaceInAPatternEscapes) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(10, 0);
        enum { pattern = 10 };
        unsigned found[pattern] = {};
        unsigned n = unit_rounds(20000);
        for (unsigned i = 0; i < n; i++)
            for (unsigned k = 0; k < pattern; k++) {
                void* p = unit_alloc(48);
                found[k] += unit_guarded(p);
                unit_free(p);
            }
        for (unsigned k = 0; k < pattern; k++) expect_share(found[k], n, 10);
    }));
}

TEST(Guard, ThreadsSampleAtTheSameRate) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(20, 0);
        unsigned n = unit_rounds(20000);
        uint64_t before = unit_guard_allocs();
        std::vector<std::thread> all;
        for (int t = 0; t < 4; t++)
            all.emplace_back([n] {
                for (unsigned i = 0; i < n; i++) unit_free(unit_alloc(64));
                unit_detach();
            });
        for (std::thread& t : all) t.join();
        expect_share(unit_guard_allocs() - before, 4.0 * n, 20);
    }));
}

TEST(Guard, TheOldestFreedSlotIsReusedFirst) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 4);
        auto slot = [](void* p) { return reinterpret_cast<uintptr_t>(p) / (65536 + page); };
        void* p[4];
        for (void*& q : p) q = unit_alloc(65536);
        for (int i : {2, 0, 3, 1}) unit_free(p[i]);
        for (int i : {2, 0, 3, 1}) EXPECT_EQ(slot(unit_alloc(65536)), slot(p[i]));
    }));
}

TEST(Guard, WithoutASlotBlocksAreOrdinary) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 4);
        void* p[100];
        unsigned guarded = 0;
        for (void*& q : p) guarded += unit_guarded(q = unit_alloc(50));
        EXPECT_EQ(guarded, 4u);
        EXPECT_EQ(unit_guard_live_blocks(), 4u);
        EXPECT_EQ(unit_guard_live_bytes(), 200u);
        for (void* q : p) unit_free(q);
        EXPECT_EQ(unit_guard_live_blocks(), 0u);
        EXPECT_EQ(unit_guard_live_bytes(), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
        void* again = unit_alloc(50);
        EXPECT_TRUE(unit_guarded(again));
        unit_free(again);
    }));
}

TEST(Guard, StatisticsCountThem) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 0);
        unit_figures before, after;
        unit_census(&before);
        void* p[10];
        for (void*& q : p) q = unit_alloc(100);
        unit_census(&after);
        EXPECT_EQ(after.live_blocks - before.live_blocks, 10u);
        EXPECT_EQ(after.live_bytes - before.live_bytes, 1000u);
        EXPECT_EQ(after.alloc_calls - before.alloc_calls, 10u);
        for (void* q : p) unit_free(q);
        unit_census(&after);
        EXPECT_EQ(after.live_blocks, before.live_blocks);
        EXPECT_EQ(after.guarded_calls - before.guarded_calls, 10u);
        EXPECT_EQ(after.guarded_freed - before.guarded_freed, 10u);
        EXPECT_EQ(after.alloc_calls - before.alloc_calls, 10u);
    }));
}

size_t mappings_count() {
    static char text[1 << 20];
    size_t length = os_read_file("/proc/self/maps", text, sizeof text);
    return static_cast<size_t>(std::count(text, text + length, '\n'));
}
uint64_t system_calls() {
    uint64_t sum = 0;
    for (uint64_t& count : os_call_counts) sum += load_relaxed(&count);
    return sum;
}

TEST(Guard, ASlotInUseAgainCostsTwoSystemCalls) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 4);
        for (int i = 0; i < 4; i++) unit_free(unit_alloc(100));
        for (int i = 0; i < 20; i++) {
            uint64_t calls = system_calls();
            void* p = unit_alloc(100);
            EXPECT_EQ(system_calls() - calls, 1u);
            ASSERT_TRUE(unit_guarded(p));
            unit_free(p);
            EXPECT_EQ(system_calls() - calls, 2u);
        }
    }));
}

TEST_UNEMULATED(Guard, ASlotInUseAgainNeitherSplitsNorMergesMappings) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 4);
        for (int i = 0; i < 4; i++) unit_free(unit_alloc(100));
        size_t mappings = mappings_count();
        for (int i = 0; i < 20; i++) {
            void* p = unit_alloc(100);
            EXPECT_EQ(mappings_count(), mappings);
            unit_free(p);
            EXPECT_EQ(mappings_count(), mappings);
        }
    }));
}

TEST(Guard, OfAFreedBlockOnlyTheFirstPageKeepsItsMemory) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 1);
        for (size_t size = 1; size <= 65536; size = size * 5 + 1) {
            unsigned char* p = static_cast<unsigned char*>(unit_alloc(65536));
            ASSERT_TRUE(unit_guarded(p));
            EXPECT_TRUE(is_zero(p + page, 65536 - page)) << size;
            memset(p, 1, 65536);
            unit_free(p);
            char* q = static_cast<char*>(unit_alloc(size));
            memset(q, 1, size);
            unit_free(q);
        }
    }));
}

TEST(Guard, ReallocMovesAndKeepsWhatFits) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 0);
        char* p = static_cast<char*>(unit_alloc(100));
        for (size_t size : {100u, 50u, 60u, 3000u, 3500u, 80000u, 10u}) {
            memset(p, 7, 10);
            char* q = static_cast<char*>(unit_realloc(p, size));
            ASSERT_NE(q, nullptr);
            EXPECT_EQ(q[0], 7);
            EXPECT_EQ(q[9], 7);
            EXPECT_TRUE(!unit_guarded(q) || unit_usable(q) == size);
            if (unit_guarded(p)) {
                EXPECT_NE(q, p);
                EXPECT_FALSE(is_readable(p));
            }
            p = q;
        }
        unit_free(p);
        EXPECT_EQ(unit_realloc(unit_alloc(10), SIZE_MAX / 2 + 1), nullptr);
    }));
}

TEST(Guard, SizedDeleteKnowsTheirSizes) {
    EXPECT_TRUE(unit_size_matches(100, 100, 1)); // no class has that size
    EXPECT_TRUE(unit_size_matches(1, 0, 1));
    EXPECT_FALSE(unit_size_matches(100, 99, 1));
    EXPECT_FALSE(unit_size_matches(100, 101, 1));
}

TEST(Guard, OtherThreadsFreeThem) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 64);
        for (int i = 0; i < 200; i++) {
            void* p = unit_alloc(30);
            ASSERT_TRUE(unit_guarded(p));
            std::thread([p] { unit_free(p); }).join();
            EXPECT_FALSE(is_readable(p));
        }
        EXPECT_LE(unit_guard_live_blocks(), 20u); // the threads' own records
    }));
}

TEST(Guard, ThreadsNeverShareASlot) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 8);
        unsigned n = unit_rounds(5000);
        std::vector<std::thread> all;
        for (unsigned char t = 1; t <= 4; t++)
            all.emplace_back([n, t] {
                for (unsigned i = 0; i < n; i++) {
                    unsigned char* p[3];
                    for (unsigned char*& q : p)
                        memset(q = static_cast<unsigned char*>(unit_alloc(40)), t, 40);
                    for (unsigned char* q : p) {
                        for (int k = 0; k < 40; k++) ASSERT_EQ(q[k], t);
                        unit_free(q);
                    }
                }
                unit_detach();
            });
        for (std::thread& t : all) t.join();
        EXPECT_GT(unit_guard_allocs(), n);
    }));
}

TEST(Guard, AForksChildKeepsThemAndMakesItsOwn) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 16);
        char* p = static_cast<char*>(unit_alloc(100));
        memset(p, 3, 100);
        EXPECT_FINE(in_child([p] {
            EXPECT_EQ(p[99], 3);
            unit_free(p);
            EXPECT_FALSE(is_readable(p));
            for (int i = 0; i < 50; i++) {
                void* q = unit_alloc(100);
                EXPECT_TRUE(unit_guarded(q));
                unit_free(q);
            }
        }));
        EXPECT_EQ(p[99], 3);
        unit_free(p);
    }));
}

// ---- What the kernel refuses

enum os_call refused_call;
bool refuse(enum os_call call) { return call == refused_call; }

TEST(Guard, WithoutAddressSpaceThereAreNone) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        refused_call = OS_MAP;
        os_fault_hook = refuse;
        unit_guard_start(1, 0);
        os_fault_hook = nullptr;
        void* p = unit_alloc(100);
        EXPECT_NE(p, nullptr);
        EXPECT_FALSE(unit_guarded(p));
        unit_free(p);
    }));
}

TEST(Guard, WithoutMemoryBlocksAreOrdinary) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 2);
        void* first = unit_alloc(100);
        EXPECT_TRUE(unit_guarded(first));
        core_options.thread_free_max = 1 << 20;
        unit_free(unit_alloc(100000)); // the heap has memory of its own
        refused_call = OS_PROTECT;
        os_fault_hook = refuse;
        void* p = unit_alloc(100);
        os_fault_hook = nullptr;
        EXPECT_TRUE(p == nullptr || !unit_guarded(p));
        unit_free(p);
        for (int i = 0; i < 20; i++) { // no slot was lost
            void* q = unit_alloc(100);
            EXPECT_TRUE(unit_guarded(q));
            unit_free(q);
        }
        unit_free(first);
    }));
}

TEST(Guard, PagesThatStayOpenAreClosedBeforeTheyServeAgain) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(1, 1);
        char* p = static_cast<char*>(unit_alloc(65536));
        memset(p, 1, 65536);
        refused_call = OS_PROTECT;
        os_fault_hook = refuse;
        unit_free(p);
        os_fault_hook = nullptr;
        EXPECT_TRUE(is_zero(p, 65536)); // without their memory
        char* q = static_cast<char*>(unit_alloc(10));
        ASSERT_TRUE(unit_guarded(q));
        EXPECT_FALSE(is_readable(q == page_of(q) ? page_of(q) + page : page_of(q) - page));
        unit_free(q);
    }));
}

// ---- Reports

TEST(Guard, SaysOfASecondFreeWhoFreedFirst) {
    Ended ended = in_child([] {
        unit_guard_start(1, 0);
        char* p = *shared_place = static_cast<char*>(unit_alloc(100));
        unit_free(p);
        unit_free(p);
    });
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(first_line(ended), line_of("double-free", "already freed " + hex(*shared_place) + " in free"));
    for (const char* who :
         {"weir:   called by thread ", "weir:   allocated by thread ", "weir:   freed by thread "})
        EXPECT_NE(ended.printed.find(who), std::string::npos) << ended.printed;
}

TEST(Guard, TakesTheExactPointerAlone) {
    for (int delta : {16, -16, 1, 5000}) {
        Ended ended = in_child([delta] {
            core_options.on_error = 1;
            unit_guard_start(1, 0);
            char* p = *shared_place = guarded_block(100, true);
            unit_free(p + delta);
            EXPECT_EQ(unit_usable(p + delta), 0u);
            EXPECT_EQ(unit_realloc(p + delta, 10), nullptr);
            p[99] = 1; // still there
            unit_free(p);
        });
        EXPECT_TRUE(ended.fine());
        std::string start = "not the start of a block " + hex(*shared_place + delta);
        for (const char* call : {"free", "malloc_usable_size", "realloc"})
            EXPECT_NE(ended.printed.find(line_of("invalid-free", start + " in " + call)), std::string::npos)
                << ended.printed;
    }
}

TEST(Guard, OfAFreedBlockNothingIsToBeHad) {
    Ended ended = in_child([] {
        core_options.on_error = 1;
        unit_guard_start(1, 0);
        void* p = unit_alloc(100);
        unit_free(p);
        EXPECT_EQ(unit_usable(p), 0u);
        EXPECT_EQ(unit_realloc(p, 200), nullptr);
        unit_free(p);
        EXPECT_EQ(core_report_count, 3u);
    });
    EXPECT_TRUE(ended.fine());
}

TEST(Guard, FindsWhatWasWrittenBesideABlockWhenItIsFreed) {
    struct {
        bool right;
        int at;
        const char *code, *what;
    } const cases[] = {{true, 100, "guard-overflow", "written 0 bytes behind the end of block "},
                       {true, 111, "guard-overflow", "written 11 bytes behind the end of block "},
                       {true, -1, "guard-underflow", "written 1 bytes before block "},
                       {false, 100, "guard-overflow", "written 0 bytes behind the end of block "},
                       {false, 227, "guard-overflow", "written 127 bytes behind the end of block "}};
    for (const auto& c : cases)
        for (int zero : {0, 1}) {
            Ended ended = in_child([&] {
                unit_guard_start(1, 0);
                char* p = *shared_place = guarded_block(100, c.right);
                p[c.at] = static_cast<char>(zero);
                unit_free(p);
            });
            EXPECT_TRUE(ended.aborted());
            EXPECT_EQ(first_line(ended),
                      line_of(c.code, c.what + hex(*shared_place) + " of 100 bytes, found in free"));
        }
}

// Faults are the sanitizers' own business where there is one. Distances are for pages of 4096 bytes.
struct Fault {
    bool right, freed, writes;
    int at;
    const char *code, *what; // the latter behind "write" or "read", up to the block's address
};
const Fault faults[] = {
    {true, false, true, 112, "guard-overflow", " 12 bytes behind the end of block "},
    {true, false, false, 2100, "guard-overflow", " 2000 bytes behind the end of block "},
    {false, false, true, 4196, "guard-overflow", " 4096 bytes behind the end of block "},
    {false, false, true, 4096, "guard-overflow", " 3996 bytes behind the end of block "},
    {false, false, true, -1, "guard-underflow", " 1 bytes before block "},
    {false, false, false, -2000, "guard-underflow", " 2000 bytes before block "},
    {true, false, true, -4096, "guard-underflow", " 4096 bytes before block "},
    {true, true, false, 8, "guard-use-after-free", " at byte 8 of freed block "},
    {true, true, true, 99, "guard-use-after-free", " at byte 99 of freed block "},
    {true, true, true, 104, "guard-use-after-free", " 4 bytes behind the end of freed block "},
    {false, true, true, -8, "guard-use-after-free", " 8 bytes before freed block "},
};

std::string first_words(const Fault& f, const std::string& verb) {
    return line_of(f.code, verb + f.what + hex(*shared_place) + " of 100 bytes");
}
void fault_make(const Fault& f) {
    unit_guard_start(1, 0);
    volatile char* p = *shared_place = guarded_block(100, f.right);
    if (f.freed) unit_free(*shared_place);
    if (f.writes)
        p[f.at] = 1;
    else
        (void)p[f.at];
}
bool says(const Ended& ended, const Fault& f) {
    std::string line = first_line(ended);
    // Some emulators do not tell reads from writes.
    return line == first_words(f, f.writes ? "write" : "read") ||
           (unit_emulated && line == first_words(f, "access"));
}

TEST_UNSANITIZED(Guard, AccessesBesideABlockAndAfterItsFreeAreReportedAndFatal) {
    for (const Fault& f : faults) {
        Ended ended = in_child([&] { fault_make(f); });
        EXPECT_TRUE(died_of(ended, SIGSEGV)) << ended.status;
        EXPECT_TRUE(says(ended, f)) << ended.printed;
        EXPECT_EQ(ended.printed.find("weir:   freed by thread ") != std::string::npos, f.freed)
            << ended.printed;
    }
}

size_t count_frames(uint64_t frames) {
    Ended ended = in_child([frames] {
        core_options.guard_frames = frames;
        fault_make(faults[8]);
    });
    size_t freed = ended.printed.find("weir:   freed by");
    size_t count = 0;
    for (size_t at = freed; (at = ended.printed.find("weir:     0x", at)) != std::string::npos; at++) count++;
    return count;
}

TEST_UNSANITIZED(Guard, StacksAreAsDeepAsTheOptionSays) {
    EXPECT_EQ(count_frames(8), 8u);
    EXPECT_EQ(count_frames(0), 0u);
    EXPECT_GT(count_frames(32), 12u);
}

TEST_UNSANITIZED(Guard, StacksNameThePlacesInTheProgram) {
    Ended ended = in_child([] { fault_make(faults[8]); });
    std::regex frame("weir:     0x[0-9a-f]+ /[^\n]*weir_unit\\+0x[0-9a-f]+\n");
    auto begin = std::sregex_iterator(ended.printed.begin(), ended.printed.end(), frame);
    EXPECT_GE(std::distance(begin, std::sregex_iterator()), 6)
        << ended.printed; // two at least of each of the three
}

TEST_UNSANITIZED(Guard, WithReportTheProgramGoesOnAndThePlaceIsClosedLater) {
    for (const Fault& f : faults) {
        Ended ended = in_child([&] {
            core_options.on_error = 1;
            core_options.guard_slots = 1;
            fault_make(f);
            char* p = *shared_place;
            if (!f.freed) unit_free(p);
            for (int i = 0; i < 3; i++) {
                char* q = static_cast<char*>(unit_alloc(100));
                EXPECT_TRUE(unit_guarded(q));
                EXPECT_FALSE(is_readable(page_of(q) - 1));
                EXPECT_FALSE(is_readable(page_of(q) + page));
                unit_free(q);
                EXPECT_FALSE(is_readable(q));
            }
        });
        EXPECT_TRUE(ended.fine()) << ended.status;
        EXPECT_TRUE(says(ended, f)) << ended.printed;
        EXPECT_EQ(ended.printed.find("weir: guard", 1), std::string::npos) << ended.printed; // once
    }
}

// ---- Other handlers

void* volatile handled_address;
volatile int handled_code;
sigset_t handled_mask;
void handler_info(int, siginfo_t* info, void*) {
    handled_address = info->si_addr;
    handled_code = info->si_code;
    sigprocmask(SIG_SETMASK, nullptr, &handled_mask);
}
sigjmp_buf handled_back;
void handler_jumps(int number, siginfo_t* info, void* context) {
    handler_info(number, info, context);
    siglongjmp(handled_back, 1);
}
void handler_exits(int) { _exit(7); }

void handler_set(void (*handler)(int, siginfo_t*, void*), int flags) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaction(SIGSEGV, &action, nullptr);
}

TEST_UNSANITIZED(Guard, AHandlerThatWasThereFirstGetsEachFaultToo) {
    Ended ended = in_child([] {
        handler_set(handler_jumps, 0);
        unit_guard_start(1, 0);
        char* p = static_cast<char*>(unit_alloc(100));
        unit_free(p);
        if (sigsetjmp(handled_back, 1) == 0) *static_cast<volatile char*>(p) = 1;
        EXPECT_EQ(handled_address, p);
        EXPECT_EQ(core_report_count, 1u);
        char* elsewhere =
            static_cast<char*>(mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (sigsetjmp(handled_back, 1) == 0) *static_cast<volatile char*>(elsewhere) = 1;
        EXPECT_EQ(handled_address, elsewhere);
        EXPECT_EQ(sigismember(&handled_mask, SIGUSR1), 1); // its mask
        EXPECT_EQ(core_report_count, 1u);                  // and no word of ours
        if (sigsetjmp(handled_back, 1) == 0) raise(SIGSEGV);
        EXPECT_EQ(handled_code, SI_TKILL);
    });
    EXPECT_TRUE(ended.fine()) << ended.status << ended.printed;
}

TEST_UNSANITIZED(Guard, AHandlerOfOneArgumentIsCalledAsWell) {
    Ended ended = in_child([] {
        signal(SIGSEGV, handler_exits);
        fault_make(faults[8]);
    });
    EXPECT_TRUE(ended.exited(7)) << ended.status;
}

TEST_UNSANITIZED(Guard, FaultsElsewhereEndTheProcessAsEver) {
    for (int number : {SIGSEGV, SIGBUS}) {
        Ended sent = in_child([number] {
            unit_guard_start(1, 0);
            raise(number);
        });
        EXPECT_TRUE(died_of(sent, number)) << sent.status;
        EXPECT_EQ(sent.printed, "");
    }
    Ended fault = in_child([] {
        unit_guard_start(1, 0);
        *static_cast<volatile char*>(mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) = 1;
    });
    EXPECT_TRUE(died_of(fault, SIGSEGV)) << fault.status;
    EXPECT_EQ(fault.printed, "");
}

TEST_UNSANITIZED(Guard, ASignalThatWasIgnoredStaysIgnored) {
    EXPECT_FINE(in_child([] {
        signal(SIGSEGV, SIG_IGN);
        unit_guard_start(1, 0);
        raise(SIGSEGV);
    }));
}

TEST_UNSANITIZED(Guard, OffNoHandlerIsInstalled) {
    EXPECT_FINE(in_child([] {
        unit_guard_start(0, 0);
        struct sigaction action;
        sigaction(SIGSEGV, nullptr, &action);
        EXPECT_EQ(action.sa_handler, SIG_DFL);
    }));
}

} // namespace
