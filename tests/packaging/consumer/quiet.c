/* quiet.c: a program that never says malloc, while libc allocates for it: weir has to be linked into it
 * all the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

int main(void) {
    FILE* file = fopen("/dev/null", "r");
    return file != NULL && fclose(file) == 0 ? 0 : 1;
}
