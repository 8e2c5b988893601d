/* cxx.cpp: calls each of the 8 operators new and the 12 operators delete.
 *
 * entry.c calls it. It is C++ because only C++ can name them; it knows nothing of the model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cxx.h"

#include <new>

void* cxx_new(unsigned variant, size_t size, size_t align) {
    const std::align_val_t a{align};
    try {
        switch (variant) {
        case 0:
            return ::operator new(size);
        case CXX_ARRAY:
            return ::operator new[](size);
        case CXX_NOTHROW:
            return ::operator new(size, std::nothrow);
        case CXX_NOTHROW | CXX_ARRAY:
            return ::operator new[](size, std::nothrow);
        case CXX_ALIGNED:
            return ::operator new(size, a);
        case CXX_ALIGNED | CXX_ARRAY:
            return ::operator new[](size, a);
        case CXX_ALIGNED | CXX_NOTHROW:
            return ::operator new(size, a, std::nothrow);
        case CXX_ALIGNED | CXX_NOTHROW | CXX_ARRAY:
            return ::operator new[](size, a, std::nothrow);
        default:
            __builtin_trap();
        }
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void cxx_delete(unsigned variant, void* p, size_t size, size_t align) {
    const std::align_val_t a{align};
    switch (variant) {
    case 0:
        return ::operator delete(p);
    case CXX_ARRAY:
        return ::operator delete[](p);
    case CXX_NOTHROW:
        return ::operator delete(p, std::nothrow);
    case CXX_NOTHROW | CXX_ARRAY:
        return ::operator delete[](p, std::nothrow);
    case CXX_SIZED:
        return ::operator delete(p, size);
    case CXX_SIZED | CXX_ARRAY:
        return ::operator delete[](p, size);
    case CXX_ALIGNED:
        return ::operator delete(p, a);
    case CXX_ALIGNED | CXX_ARRAY:
        return ::operator delete[](p, a);
    case CXX_ALIGNED | CXX_NOTHROW:
        return ::operator delete(p, a, std::nothrow);
    case CXX_ALIGNED | CXX_NOTHROW | CXX_ARRAY:
        return ::operator delete[](p, a, std::nothrow);
    case CXX_ALIGNED | CXX_SIZED:
        return ::operator delete(p, size, a);
    case CXX_ALIGNED | CXX_SIZED | CXX_ARRAY:
        return ::operator delete[](p, size, a);
    default:
        __builtin_trap();
    }
}
