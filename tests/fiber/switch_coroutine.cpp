/* switch_coroutine.cpp: C++20 coroutines that another thread resumes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fiber.h"

#include <coroutine>
#include <exception>

namespace {

struct task {
    struct promise_type {
        task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
};

} // namespace

#define FIBER_SWITCH(f) co_await std::suspend_always()

static task fiber_body_coroutine(fiber* f) {
#include "body.h"
    f->ended = 1;
}

static void fiber_make(fiber* f) { f->context = fiber_body_coroutine(f).handle.address(); }
static void fiber_resume(fiber* f) { std::coroutine_handle<>::from_address(f->context).resume(); }
static void fiber_drop(fiber* f) { std::coroutine_handle<>::from_address(f->context).destroy(); }

extern "C" const struct fiber_kind fiber_kind_coroutine = {"coroutine", fiber_make, fiber_resume, fiber_drop};
