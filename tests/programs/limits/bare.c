/* bare.c: a program that needs libc's shared library, but no headers and no start files: for other word
 * sizes.
 *
 * Who may call it: limits.py.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
void* malloc(__SIZE_TYPE__ size);
int puts(const char* text);
_Noreturn void exit(int status);
_Noreturn void _start(void);

_Noreturn void _start(void) {
    char* volatile block = malloc(100);
    block[0] = 1;
    puts("done");
    exit(0);
}
