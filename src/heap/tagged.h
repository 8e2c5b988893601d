/* tagged.h: tags of the blocks of slabs: where they get them, and what is wrong with a pointer's.
 *
 * Internal to the heap layer; with tagging on alone, but for what says otherwise. A free block has the tag
 * already that it will be given out with, and lists lead to it by that tag: malloc does nothing. It
 * deliberately does not know which tags there are (tag/tag.h).
 *
 *   slab   [ even ][ odd ][ even ] ... [ odd ][ no block's: 0 ]
 *
 * Invariants: blocks that are built have the tags of their slot's parity; a slab's granules behind the last
 * block, and pages of it that were never built since it got its class, have 0; so do free spans.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_TAGGED_H
#define WEIR_HEAP_TAGGED_H

#include "heap/heap.h"
#include "heap/retag.h"
#include "heap/slab.h"
#include "tag/tag.h"

/* A block that is being built gets its first tag, or the one that it got when it was freed, which nobody has
 * seen yet: a third one might be that of before. Returns it with the tag. */
WEIR_INLINE block_t* tagged_build(const struct slice* s, block_t* p, uint32_t index) {
    uintptr_t excluded = (index & 1) != 0 ? TAG_NOT_ODD : TAG_NOT_EVEN;
    block_t* tagged = tag_read(p);
    if ((excluded >> tag_of(tagged) & 1) != 0) tagged = tag_choose(tagged, excluded);
    tag_set(tagged, slab_class(s)->bytes);
    return tagged;
}
/* A block that is being freed gets its next tag. */
WEIR_INLINE block_t* tagged_free(const struct slice* s, block_t* p) {
    block_t* tagged = tag_next(p);
    tag_set(tagged, slab_class(s)->bytes);
    return tagged;
}

/* Whether p, where a block starts, carries the block's tag; if not it is reported. True where tagging is off.
 */
WEIR_INLINE bool tagged_fits(const void* p, const char* call) {
    return !tag_is_on() || weir_likely(retag_allows(p, call));
}

/* The same of a large block, which has tag 0; its memory is not looked at, and may be inaccessible. */
WEIR_INLINE bool tagged_fits_large(const void* p, const char* call) {
    if (!tag_is_on() || weir_likely(tag_clear(p) == p)) return true;
    retag_misuse(p, call);
    return false;
}

/* All pages of a spare span are holes: its memory gets tag 0, since it is about to serve another class. */
WEIR_FN void tagged_end(struct slice* s);

#endif
