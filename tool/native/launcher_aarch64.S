/* launcher_aarch64.S: the launcher's entry and its system calls on aarch64.
 *
 * Only launcher.c uses it. It deliberately does not know which calls are made.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
        .text
        .globl  _start
        .type   _start, %function
_start:
        mov     x29, #0
        mov     x30, #0
        mov     x0, sp
        bl      launcher_main
        mov     x8, #94
        svc     #0
        .size   _start, . - _start

        /* The number, then five arguments. */
        .globl  launcher_call
        .type   launcher_call, %function
launcher_call:
        mov     x8, x0
        mov     x0, x1
        mov     x1, x2
        mov     x2, x3
        mov     x3, x4
        mov     x4, x5
        svc     #0
        ret
        .size   launcher_call, . - launcher_call
        .section .note.GNU-stack, "", %progbits
