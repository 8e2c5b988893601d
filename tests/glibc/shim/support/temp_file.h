/* support/temp_file.h: files and folders that go away when the test is over.
 *
 * Who may include it: the tests of glibc's source package, and this shim. They are made in the current
 * folder, which the runner makes for each run. It deliberately does not know when the driver removes them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_TEMP_FILE_H
#define SHIM_SUPPORT_TEMP_FILE_H

#include <sys/types.h>

void add_temp_file(const char* path);
/* create_temp_file: its descriptor, and at *path, unless that is NULL, its name in a block to be freed. */
int create_temp_file(const char* base, char** path);
int create_temp_file_in_dir(const char* base, const char* folder, char** path);
char* support_create_temp_directory(const char* base);

#endif
