/* arch_aarch64.S: the witness's stubs on aarch64.
 *
 * A stub stands in for a function that an object calls: it puts its number into x17, lets witness_hit() say
 * where the function is and jumps there with argument registers and stack as they were. x17 is free to use
 * between a call and the function called; x16 holds the pointer's address, which the loader reads when it
 * binds the pointer. It deliberately does not know which function it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
        .text
        .hidden witness_hit
        .hidden witness_stubs
        .globl  witness_stubs
        .type   witness_stubs, %object
        .p2align 4
witness_stubs:
        .set    number, 0
        .rept   512
        .p2align 4
        hint    34
        movz    w17, #number
        b       witness_common
        .set    number, number + 1
        .endr
        .p2align 4
        .size   witness_stubs, . - witness_stubs

        .type   witness_common, %function
witness_common:
        .cfi_startproc
        stp     x29, x30, [sp, #-96]!
        .cfi_def_cfa_offset 96
        .cfi_offset x29, -96
        .cfi_offset x30, -88
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        stp     x8, x16, [sp, #80]
        mov     w0, w17
        bl      witness_hit
        mov     x17, x0
        ldp     x8, x16, [sp, #80]
        ldp     x6, x7, [sp, #64]
        ldp     x4, x5, [sp, #48]
        ldp     x2, x3, [sp, #32]
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #96
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x17
        .cfi_endproc
        .size   witness_common, . - witness_common
        .section .note.GNU-stack, "", %progbits
