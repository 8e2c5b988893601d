/* support/test-driver.h: what a test may know of the driver that runs it.
 *
 * Who may include it: the tests of glibc's source package, and this shim. It deliberately knows nothing
 * about the driver's insides (shim.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_TEST_DRIVER_H
#define SHIM_SUPPORT_TEST_DRIVER_H

#define EXIT_UNSUPPORTED 77
#define DEFAULT_TIMEOUT 20 /* seconds, for a test that does not say TIMEOUT */

/* How much a test is to print, from the environment (SHIM_VERBOSE); where temporary files go. */
extern unsigned int test_verbose;
extern const char* test_dir;

#endif
