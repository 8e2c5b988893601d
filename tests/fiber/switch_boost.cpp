/* switch_boost.cpp: fibers by Boost.Context.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fiber.h"

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>

namespace {

struct boost_fiber {
    boost::context::fiber own;     /* where the fiber is to go on, while it is suspended */
    boost::context::fiber resumer; /* where it came from, while it runs */
};

boost_fiber* self(fiber* f) { return static_cast<boost_fiber*>(f->context); }

} // namespace

#define FIBER_SWITCH(f) (self(f)->resumer = static_cast<boost::context::fiber&&>(self(f)->resumer).resume())

extern "C" __attribute__((noinline, used)) void fiber_body_boost(fiber* f);
extern "C" void fiber_body_boost(fiber* f) {
#include "body.h"
}

static void fiber_make(fiber* f) {
    boost_fiber* b = new boost_fiber;
    f->context = b;
    b->own = boost::context::fiber(std::allocator_arg, boost::context::fixedsize_stack(FIBER_STACK_BYTES),
                                   [f](boost::context::fiber&& resumer) {
                                       self(f)->resumer = static_cast<boost::context::fiber&&>(resumer);
                                       fiber_body_boost(f);
                                       f->ended = 1;
                                       return static_cast<boost::context::fiber&&>(self(f)->resumer);
                                   });
}

static void fiber_resume(fiber* f) {
    self(f)->own = static_cast<boost::context::fiber&&>(self(f)->own).resume();
}

static void fiber_drop(fiber* f) { delete self(f); }

extern "C" const struct fiber_kind fiber_kind_boost = {"boost", fiber_make, fiber_resume, fiber_drop};
