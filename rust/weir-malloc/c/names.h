/* names.h: other names for what weir would take from the C library and the C++ runtime.
 *
 * Who may include it: the crate's build, by -include, so that it comes before every header. A Rust program
 * then has two allocators: weir for what Rust allocates, and libc's for C and C++. With the feature
 * `override` it is left out. setrlimit and prlimit keep their names: weir has to see an address space limit
 * that is lowered; so do unshare, setns, prctl and chroot, before which its helper thread has to end or to
 * know what is read, and sigaction and its kin, behind which it watches faults. It deliberately renames all
 * of the exported family, so that none is mixed up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_CRATE_NAMES_H
#define WEIR_CRATE_NAMES_H

#define malloc weir_malloc
#define free weir_free
#define calloc weir_calloc
#define realloc weir_realloc
#define reallocarray weir_reallocarray
#define aligned_alloc weir_aligned_alloc
#define memalign weir_memalign
#define posix_memalign weir_posix_memalign
#define valloc weir_valloc
#define pvalloc weir_pvalloc
#define malloc_usable_size weir_malloc_usable_size
#define free_sized weir_free_sized
#define free_aligned_sized weir_free_aligned_sized
#define malloc_trim weir_malloc_trim
#define mallopt weir_mallopt
#define mallinfo weir_mallinfo
#define mallinfo2 weir_mallinfo2
#define malloc_stats weir_malloc_stats
#define malloc_info weir_malloc_info
#define cfree weir_cfree
#define __libc_malloc weir_libc_malloc
#define __libc_free weir_libc_free
#define __libc_calloc weir_libc_calloc
#define __libc_realloc weir_libc_realloc
#define __libc_memalign weir_libc_memalign
#define __libc_valloc weir_libc_valloc
#define __libc_pvalloc weir_libc_pvalloc
#define __posix_memalign weir_libc_posix_memalign
#define __malloc_hook weir_malloc_hook
#define __free_hook weir_free_hook
#define __realloc_hook weir_realloc_hook
#define __memalign_hook weir_memalign_hook
#define __malloc_initialize_hook weir_malloc_initialize_hook
#define __after_morecore_hook weir_after_morecore_hook
#define _Znwm weir_cxx_Znwm
#define _Znam weir_cxx_Znam
#define _ZnwmSt11align_val_t weir_cxx_ZnwmSt11align_val_t
#define _ZnamSt11align_val_t weir_cxx_ZnamSt11align_val_t
#define _ZdlPv weir_cxx_ZdlPv
#define _ZdaPv weir_cxx_ZdaPv
#define _ZdlPvm weir_cxx_ZdlPvm
#define _ZdaPvm weir_cxx_ZdaPvm
#define _ZdlPvSt11align_val_t weir_cxx_ZdlPvSt11align_val_t
#define _ZdaPvSt11align_val_t weir_cxx_ZdaPvSt11align_val_t
#define _ZdlPvmSt11align_val_t weir_cxx_ZdlPvmSt11align_val_t
#define _ZdaPvmSt11align_val_t weir_cxx_ZdaPvmSt11align_val_t
#define __libc_reallocarray weir_libc_reallocarray

#endif
