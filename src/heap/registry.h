/* registry.h: walking over all thread heaps.
 *
 * For statistics. Records are never freed, so a walk needs no lock; its figures are of some moment
 * during the walk.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_REGISTRY_H
#define WEIR_HEAP_REGISTRY_H

#include "heap/heap.h"

WEIR_FN struct heap* registry_first(void);

#endif
