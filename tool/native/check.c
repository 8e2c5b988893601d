/* check.c: a program for check.py: calls malloc, realloc and calloc, and a function that calls malloc for it.
 *
 * It is built once for each way in which a program can reach a library's function. It deliberately does not
 * know that it is watched.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    char* text = malloc(100);
    if (!text) return 1;
    strcpy(text, "kept");
    char* longer = realloc(text, 100000);
    if (!longer) return 1;
    char* copy = strdup(longer);
    char* zeroes = calloc(10, 100);
    int good = copy && zeroes && strcmp(copy, "kept") == 0 && zeroes[999] == 0;
    free(copy);
    free(zeroes);
    free(longer);
    return good ? 0 : 2;
}
