/* test-skeleton.c: main() of an older test, whose TEST_FUNCTION is a call and not a name, as is its PREPARE.
 *
 * Who may include it: the tests that say `#include "../test-skeleton.c"` as their last line. Such a test also
 * counts on the headers below, and on add_temp_file and create_temp_file. All else is support/test-driver.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <support/check.h>
#include <support/support.h>
#include <support/temp_file.h>
#include <support/xsignal.h>
#include <support/xthread.h>
#include <support/xunistd.h>

#ifndef TEST_FUNCTION
#    define TEST_FUNCTION do_test(argc, argv)
#endif

static int skeleton_test(int argc, char** argv) {
    (void)argc;
    (void)argv;
    return TEST_FUNCTION;
}

#ifdef PREPARE
static void skeleton_prepare(int argc, char** argv) { PREPARE(argc, argv); }
#    undef PREPARE
#    define PREPARE skeleton_prepare
#endif

#undef TEST_FUNCTION
#define TEST_FUNCTION_ARGV skeleton_test

#include <support/test-driver.c>
