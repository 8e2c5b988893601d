/* launcher_x86_64.S: the launcher's entry and its system calls on x86-64.
 *
 * Only launcher.c uses it. It deliberately does not know which calls are made.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
        .text
        .globl  _start
        .type   _start, @function
_start:
        xorl    %ebp, %ebp
        movq    %rsp, %rdi
        andq    $-16, %rsp
        call    launcher_main
        movl    %eax, %edi
        movl    $231, %eax
        syscall
        hlt
        .size   _start, . - _start

        /* The number, then five arguments. */
        .globl  launcher_call
        .type   launcher_call, @function
launcher_call:
        movq    %rdi, %rax
        movq    %rsi, %rdi
        movq    %rdx, %rsi
        movq    %rcx, %rdx
        movq    %r8, %r10
        movq    %r9, %r8
        syscall
        ret
        .size   launcher_call, . - launcher_call
        .section .note.GNU-stack, "", @progbits
