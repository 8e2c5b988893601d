/* tag.c: see tag.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tag/tag.h"

#include "core/options.h"
#include "os/os.h"

WEIR_VAR struct tag_state tag_state;

WEIR_FN uint32_t tag_start(void) {
    uint32_t wanted = (uint32_t)core_options.tagging; /* the words are in the order of the bits */
    static_assert(OS_TAGS_SYNC == 1 && OS_TAGS_ASYNC == 2, "off|sync|async|auto");
    if (wanted == 0) return 0;
    if (!config_tags || !os_tags_exist()) {
        core_options_warn("tagging", "has no effect: this processor, kernel or build has no memory tags");
        return 0;
    }
    uint32_t mode = os_tags_mode();
    if (mode == 0) mode = wanted;
    /* Also where a mode is set: which tags may be chosen, and system calls that take them. Before Linux 5.15
     * there is no choice of the kernel's: the cheaper one, which is what it prefers if nobody asks. */
    bool set = os_tags_set(mode);
    if (!set && mode == (OS_TAGS_SYNC | OS_TAGS_ASYNC)) set = os_tags_set(mode = OS_TAGS_ASYNC);
    if (!set) {
        core_options_warn("tagging", "has no effect: the kernel refuses to compare tags");
        return 0;
    }
    if (os_thread_count() > 1)
        core_options_warn("tagging", "comes late: threads that run already do not compare tags");
    tag_state.mode = mode;
    tag_state.on = true;
    return os_tags_memory();
}
