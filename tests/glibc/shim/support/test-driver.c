/* support/test-driver.c: main() of a test, which includes this file as its last line.
 *
 * Who may include it: the tests, after defining what they want: TEST_FUNCTION or TEST_FUNCTION_ARGV (names of
 * functions; do_test when neither is there), PREPARE, CLEANUP_HANDLER, TIMEOUT in seconds, EXPECTED_STATUS,
 * EXPECTED_SIGNAL. It turns the macros into one record; shim_drive in drive.c does the work and is the same
 * for all tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>

#include <support/test-driver.h>

#include "shim.h"

#ifndef TIMEOUT
#    define TIMEOUT DEFAULT_TIMEOUT
#endif
#ifndef EXPECTED_STATUS
#    define EXPECTED_STATUS 0
#endif
#ifndef EXPECTED_SIGNAL
#    define EXPECTED_SIGNAL 0
#endif
#if !defined TEST_FUNCTION && !defined TEST_FUNCTION_ARGV
#    define TEST_FUNCTION do_test
#endif

int main(int argc, char** argv) {
    const struct shim_test test = {
#ifdef TEST_FUNCTION_ARGV
        .with_arguments = TEST_FUNCTION_ARGV,
#else
        .plain = TEST_FUNCTION,
#endif
#ifdef PREPARE
        .prepare = PREPARE,
#endif
#ifdef CLEANUP_HANDLER
        .clean_up = CLEANUP_HANDLER,
#endif
        .timeout_s = TIMEOUT,
        .expected_status = EXPECTED_STATUS,
        .expected_signal = EXPECTED_SIGNAL,
    };
    return shim_drive(&test, argc, argv);
}
