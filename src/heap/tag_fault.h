/* tag_fault.h: an access whose tag is not the memory's, told as what the program did.
 *
 * The library's start calls tag_fault_start, where the options ask for tags; nobody else needs it. It
 * deliberately knows nothing of how blocks get their tags, but that neighbours' differ, and that a slot's are
 * all even or all odd.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_TAG_FAULT_H
#define WEIR_HEAP_TAG_FAULT_H

#include "base/atomic.h"
#include "base/compiler.h"

/* Watch for them, and keep histories where the options say so. Once, before the second thread. May load a
 * library. */
WEIR_FN void tag_fault_start(void);

/* Accesses of which the program went on (on_error=report): their threads do not compare tags, nor do those
 * that they make, until they come by here: on slow paths of malloc and free, where tags are on. Sync: relaxed
 */
WEIR_VAR_DECL uint32_t tag_faults_passed;
WEIR_FN WEIR_COLD void tag_fault_resume_slow(void);
WEIR_INLINE void tag_fault_resume(void) {
    if (weir_unlikely(load_relaxed(&tag_faults_passed) != 0)) tag_fault_resume_slow();
}

#endif
