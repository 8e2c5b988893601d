/* array_length.h: the number of elements of an array, and its end.
 *
 * Who may include it: the tests of glibc's source package. It deliberately knows nothing else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_ARRAY_LENGTH_H
#define SHIM_ARRAY_LENGTH_H

#define array_length(array) (sizeof(array) / sizeof((array)[0]))
#define array_end(array) (&(array)[array_length(array)])

#endif
