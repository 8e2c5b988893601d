// forked.h: a body in the child of a fork. The handlers that the api layer registers are called by hand.
// Unit tests include it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_FORKED_H
#define WEIR_TESTS_UNIT_FORKED_H

#include "child.h"
#include "layers.h"

extern "C" {
#include "pool_glue.h"
}

// The child runs body() and exits with 0 if all its expectations held. Returns its wait status.
template <class Body>
int forked(Body body) {
    unit_pool_fork_prepare();
    unit_fork_prepare();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        unit_pool_fork_child();
        unit_fork_child();
        bool before = ::testing::Test::HasFailure();
        body();
        fflush(stdout);
        _exit(!before && ::testing::Test::HasFailure() ? 1 : 0);
    }
    unit_fork_parent();
    unit_pool_fork_parent();
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

#endif
