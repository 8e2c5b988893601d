// tagged.cc: runs all the tests with tagging on where $WEIR_TAGGING says so: `sync` or `async`. Children of
// fork, in which heaps are, have the option from here.
//
// It deliberately knows no test; those that cannot hold with tags are named in tests/tagging/units.txt.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>
#include "layers.h"

namespace {
struct Tagged {
    Tagged() {
        const char* mode = getenv("WEIR_TAGGING");
        if (mode != nullptr && !core_options_parse((std::string("tagging=") + mode).c_str())) abort();
    }
} tagged;
} // namespace
