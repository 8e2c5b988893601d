/* release.h: when free memory goes back to the kernel, and by whom.
 *
 * Time is cut into windows. What was free and resident for a whole window goes back at its end: of the
 * dirty spans as many bytes as were never needed during it (the low-water mark), of the holes in slabs
 * those that were there for a part of it. From a process that is quiet all of it goes. A helper thread
 * of the library's own does it; where there may be none, threads on their slow path do, window by window. It
 * deliberately knows nothing of blocks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_RELEASE_H
#define WEIR_PAGE_RELEASE_H

#include "base/atomic.h"
#include "base/compiler.h"
#include "os/lock.h"
#include "page/slice.h"

/* Sync: relaxed atomics; figures for people. Bytes. */
struct release_totals {
    uint64_t refaulted; /* returned, and in use again */
    uint64_t scanned;   /* of slices whose pages a pass looked at */
    uint64_t calls;     /* system calls made to return memory */
    uint64_t window_ns; /* current length of a window */
};
WEIR_VAR_DECL struct release_totals release_totals;

/* Whoever purges holes has it; whoever wants to be sure that none of a slab's is being purged waits for it.
 */
WEIR_VAR_DECL struct os_lock release_lock;

enum release_state { RELEASE_ASLEEP = 0, RELEASE_HELPER = 1, RELEASE_ALONE = 2, RELEASE_OFF = 3 };
WEIR_VAR_DECL uint32_t release_state; /* Sync: atomic */
WEIR_VAR_DECL uint32_t release_busy;  /* Sync: relaxed; something was poked since the helper last looked */

/* Bytes of blocks that threads freed for others, and that nobody looked at since. Sync: relaxed atomic. */
WEIR_VAR_DECL uint64_t release_owed;
/* Bytes in heaps of ended threads, which a look empties out. Sync: relaxed atomic. */
WEIR_VAR_DECL uint64_t release_parked;
/* What is to be looked at: of slabs, what the last look left; all slabs, and what threads keep that did not
 * need it; all slabs, and what any thread keeps. */
enum release_look { RELEASE_LOOK_ON, RELEASE_LOOK_DUE, RELEASE_LOOK_ALL };
/* Called before a pass, with no lock of a rank from LOCK_HEAP on held: make holes of that. True: something is
 * left; RELEASE_LOOK_ALL leaves nothing. Set by the heap layer. */
WEIR_VAR_DECL bool (*release_look_hook)(enum release_look look);
/* Called by the helper where the heap grew by `bytes`, with no lock held: make holes of as much, or somewhat
 * more, unless a look at three times as much shows that less than a third is free. True: they came. Set by
 * the heap layer. */
WEIR_VAR_DECL bool (*release_growth_hook)(uint64_t bytes);
/* Called at the end of each of the helper's windows, with no lock held. Set by the api layer. */
WEIR_VAR_DECL void (*release_tick_hook)(void);

/* Called before the pass: a layer that caches blocks gives back what it does not need. Returns bytes that it
 * may give back at a later look; for as long the helper stays. *shrunk: bytes that its program has done
 * without since the last look and will not need: as many go to the kernel at once. Sync: relaxed. */
WEIR_VAR_DECL uint64_t (*release_above_hook)(uint64_t* shrunk);
/* What it returned last, or who puts the first bytes there says. Sync: relaxed. */
WEIR_VAR_DECL uint64_t release_above;

/* Once, after the options are known. `thread_word`: the helper's. */
WEIR_FN void release_start(void* thread_word);
/* What release_poke does when nobody is at work. */
WEIR_FN WEIR_NOINLINE void release_rouse(void);
/* Now and then: the child of a raw fork, which has no helper, finds that out. */
WEIR_FN void release_recheck(void);
/* There may be something to return: see that somebody is at work. Cheap; with no lock of a rank from
 * LOCK_RELEASE on. */
WEIR_INLINE void release_poke(void) {
    if (load_relaxed(&release_busy) == 0) store_relaxed(&release_busy, 1u);
    if (weir_unlikely(load_relaxed(&release_state) != RELEASE_HELPER)) release_rouse();
}
/* The heap took memory that it never had. Under the page lock. */
WEIR_FN void release_grew(size_t bytes);
/* Bytes that were purged are in use again. */
WEIR_FN void release_refaulted(size_t bytes);
/* Return all that is free and resident, at once. True: something was. */
WEIR_FN bool release_all(void);
/* The most that may be free and resident in spans at any moment, in bytes. */
WEIR_FN uint64_t release_dirty_max(void);
/* Wait until what is being purged just now is purged. False: that is a call of this very thread, which a
 * fork's child was made in the middle of; it has slice s, if that is not NULL, no more. */
WEIR_FN bool release_wait(const struct slice* s);
/* Whether the calling thread is the helper. */
WEIR_FN bool release_is_helper(void);
/* The helper, in the middle of what it does: sleep for `ns`, or until it is told something. False: it was,
 * and is to come to an end with that. `grows`: it does it since the heap grows, and goes on where the heap
 * has grown further. */
WEIR_FN bool release_pause(uint64_t ns, bool grows);
/* Whether it was told to end. */
WEIR_FN bool release_helper_ends(void);
/* End the helper thread and wait for its end. */
WEIR_FN void release_helper_stop(void);
/* After each release_helper_stop: from now on it may be made again. */
WEIR_FN void release_helper_allow(void);
/* In the child of fork: there is no helper, and no pass is under way. */
WEIR_FN void release_fork_child(void);

#endif
