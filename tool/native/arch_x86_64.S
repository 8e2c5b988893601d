/* arch_x86_64.S: the witness's stubs on x86-64.
 *
 * A stub stands in for a function that an object calls: it pushes its number, lets witness_hit() say where
 * the function is and jumps there with argument registers and stack as they were. Vector registers are the
 * caller's to save, and no watched function takes one. It deliberately does not know which function it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
        .text
        .hidden witness_hit
        .hidden witness_stubs
        .globl  witness_stubs
        .type   witness_stubs, @object
        .p2align 4
witness_stubs:
        .set    number, 0
        .rept   512
        .p2align 4
        endbr64
        pushq   $number
        jmp     witness_common
        .set    number, number + 1
        .endr
        .p2align 4
        .size   witness_stubs, . - witness_stubs

        .type   witness_common, @function
witness_common:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %rcx
        .cfi_adjust_cfa_offset 8
        pushq   %r8
        .cfi_adjust_cfa_offset 8
        pushq   %r9
        .cfi_adjust_cfa_offset 8
        movl    48(%rsp), %edi
        call    witness_hit
        movq    %rax, %r11
        popq    %r9
        .cfi_adjust_cfa_offset -8
        popq    %r8
        .cfi_adjust_cfa_offset -8
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        leaq    8(%rsp), %rsp
        .cfi_adjust_cfa_offset -8
        jmp     *%r11
        .cfi_endproc
        .size   witness_common, . - witness_common
        .section .note.GNU-stack, "", @progbits
