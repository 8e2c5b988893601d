/* unwind.c: see unwind.h. The form of the tables: DWARF 5, 6.4, and the Linux Standard Base's .eh_frame.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "os/linux/unwind.h"

#include "arch/arch.h"

struct reader {
    const unsigned char* at;
    const unsigned char* end;
    bool bad; /* it ended too early, or there is something that this file does not know */
};

static uint64_t read_fixed(struct reader* r, size_t bytes) {
    uint64_t value = 0;
    if ((size_t)(r->end - r->at) < bytes) {
        r->bad = true;
        return 0;
    }
    __builtin_memcpy(&value, r->at, bytes);
    r->at += bytes;
    return value;
}
static unsigned read_byte(struct reader* r) { return (unsigned)read_fixed(r, 1); }

static uint64_t read_number(struct reader* r, bool is_signed) {
    uint64_t value = 0;
    unsigned shift = 0;
    unsigned byte;
    do {
        byte = read_byte(r);
        if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while ((byte & 0x80) != 0 && !r->bad);
    if (is_signed && (byte & 0x40) != 0 && shift < 64) value |= ~0ull << shift;
    return value;
}
static uint64_t read_unsigned(struct reader* r) { return read_number(r, false); }
static int64_t read_signed(struct reader* r) { return (int64_t)read_number(r, true); }

/* ---- What all functions of an object file have in common: the CIE */

struct common {
    struct reader rows;
    uint64_t code_align;
    int64_t data_align;
    size_t pointer_bytes;
    bool augmented;
};

/* 0: not constant, or not known. */
static size_t pointer_bytes(unsigned encoding) {
    static const unsigned char bytes[8] = {sizeof(void*), 0, 2, 4, 8, 0, 0, 0};
    return (encoding & 0x70) == 0x50 ? 0 : bytes[encoding & 7];
}

/* The record at p, behind its length. */
static struct reader record_open(const unsigned char* p) {
    struct reader r = {.at = p, .end = p + 4};
    uint64_t length = read_fixed(&r, 4);
    r.bad = length >= 0xfffffff0;
    r.end = r.bad ? r.at : r.at + length;
    return r;
}

static struct common common_read(const unsigned char* p) {
    struct common c = {.rows = record_open(p), .pointer_bytes = sizeof(void*)};
    struct reader* r = &c.rows;
    (void)read_fixed(r, 4);
    unsigned version = read_byte(r);
    const char* letters = (const char*)r->at;
    while (read_byte(r) != 0)
        if (r->bad) return c;
    c.code_align = read_unsigned(r);
    c.data_align = read_signed(r);
    uint64_t back = version == 1 ? read_byte(r) : read_unsigned(r);
    if ((version != 1 && version != 3) || back != ARCH_DWARF_RETURN) r->bad = true;
    c.augmented = letters[0] == 'z';
    if (!c.augmented) {
        r->bad |= letters[0] != '\0';
        return c;
    }
    uint64_t bytes = read_unsigned(r);
    if (bytes > (size_t)(r->end - r->at)) r->bad = true;
    if (r->bad) return c;
    const unsigned char* rows = r->at + bytes;
    for (letters++; *letters != '\0' && !r->bad; letters++) {
        size_t skipped = 0;
        if (*letters == 'R')
            r->bad = (c.pointer_bytes = pointer_bytes(read_byte(r))) == 0;
        else if (*letters == 'P')
            r->bad = (skipped = pointer_bytes(read_byte(r))) == 0;
        else if (*letters == 'L')
            skipped = 1;
        else
            r->bad = *letters != 'B'; /* 'S', a signal's frame, among others */
        if (skipped != 0) (void)read_fixed(r, skipped);
    }
    r->at = rows;
    return c;
}

/* ---- The rows of a function */

enum kept { KEPT_SAME, KEPT_AT, KEPT_NOWHERE, KEPT_UNKNOWN };
struct place {
    enum kept kept;
    int64_t offset; /* from the CFA */
};
struct row {
    uint64_t base;
    int64_t cfa;
    bool cfa_known;
    struct place frame;
    struct place back;
};
struct run {
    struct reader r;
    const struct common* common;
    uint64_t left; /* bytes of code from the row to the place that is asked for */
    bool done;
    struct row row;
    struct row first; /* as the CIE leaves it */
    struct row kept[4];
    unsigned kept_count;
};

static void place_set(struct run* x, uint64_t number, enum kept kept, int64_t offset) {
    struct place* p = number == ARCH_DWARF_FRAME    ? &x->row.frame
                      : number == ARCH_DWARF_RETURN ? &x->row.back
                                                    : NULL;
    if (p != NULL) *p = (struct place){kept, offset};
}

static void place_restore(struct run* x, uint64_t number) {
    if (number == ARCH_DWARF_FRAME) x->row.frame = x->first.frame;
    if (number == ARCH_DWARF_RETURN) x->row.back = x->first.back;
}

static void row_advance(struct run* x, uint64_t units) {
    uint64_t bytes = units * x->common->code_align;
    x->done = bytes > x->left;
    x->left -= bytes;
}

static void row_keep(struct run* x) {
    if (x->kept_count == sizeof x->kept / sizeof x->kept[0])
        x->r.bad = true;
    else
        x->kept[x->kept_count++] = x->row;
}

static void row_return(struct run* x) {
    if (x->kept_count == 0)
        x->r.bad = true;
    else
        x->row = x->kept[--x->kept_count];
}

static void cfa_set(struct run* x, uint64_t base, int64_t cfa) {
    x->row.base = base;
    x->row.cfa = cfa;
    x->row.cfa_known = true;
}

static void block_skip(struct run* x) {
    uint64_t bytes = read_unsigned(&x->r);
    if (bytes > (size_t)(x->r.end - x->r.at))
        x->r.bad = true;
    else
        x->r.at += bytes;
}

/* An instruction of the tables, by its number there. */
static void row_change(struct run* x, unsigned number) {
    enum { advance = 0x40, offset = 0x80, restore = 0xc0, low = 0x3f };
    const uint64_t names_register = 0x7733e0; /* bit n: the first operand of number n is a register */
    struct reader* r = &x->r;
    int64_t align = x->common->data_align;
    uint64_t of = number & low;
    bool packed = number >= advance;
    if (!packed && (names_register >> number & 1) != 0) of = read_unsigned(r);
    switch (packed ? number & ~(unsigned)low : number) {
    case 0x00:
        break; /* nop */
    case advance:
        row_advance(x, of);
        break;
    case 0x02:
        row_advance(x, read_fixed(r, 1));
        break;
    case 0x03:
        row_advance(x, read_fixed(r, 2));
        break;
    case 0x04:
        row_advance(x, read_fixed(r, 4));
        break;
    case offset:
    case 0x05:
        place_set(x, of, KEPT_AT, (int64_t)read_unsigned(r) * align);
        break;
    case 0x11:
        place_set(x, of, KEPT_AT, read_signed(r) * align);
        break;
    case restore:
    case 0x06:
        place_restore(x, of);
        break;
    case 0x07:
        place_set(x, of, KEPT_NOWHERE, 0);
        break;
    case 0x08:
        place_set(x, of, KEPT_SAME, 0);
        break;
    case 0x09: /* in another register; values that are computed */
    case 0x14:
    case 0x15:
        (void)read_unsigned(r);
        place_set(x, of, KEPT_UNKNOWN, 0);
        break;
    case 0x10:
    case 0x16:
        block_skip(x);
        place_set(x, of, KEPT_UNKNOWN, 0);
        break;
    case 0x0a:
        row_keep(x);
        break;
    case 0x0b:
        row_return(x);
        break;
    case 0x0c:
        cfa_set(x, of, (int64_t)read_unsigned(r));
        break;
    case 0x12:
        cfa_set(x, of, read_signed(r) * align);
        break;
    case 0x0d:
        x->row.base = of;
        break;
    case 0x0e:
        x->row.cfa = (int64_t)read_unsigned(r);
        break;
    case 0x13:
        x->row.cfa = read_signed(r) * align;
        break;
    case 0x0f:
        block_skip(x);
        x->row.cfa_known = false;
        break;
    case 0x2d:
        break; /* return addresses are signed from here on, or no longer */
    case 0x2e:
        (void)read_unsigned(r);
        break;
    default:
        r->bad = true;
    }
}

static void rows_run(struct run* x) {
    while (!x->done && !x->r.bad && x->r.at < x->r.end) row_change(x, read_byte(&x->r));
}

/* Distances that a walk follows: down from the CFA, whole words, not far. */
static bool distance_is_plain(int64_t distance) {
    return distance > 0 && distance < 1 << 22 && distance % (int64_t)sizeof(uintptr_t) == 0;
}

static struct unwind_rule row_rule(const struct row* row) {
    struct unwind_rule none = {.kind = UNWIND_UNKNOWN};
    if (row->back.kept == KEPT_NOWHERE) return (struct unwind_rule){.kind = UNWIND_END};
    bool by_frame = row->base == ARCH_DWARF_FRAME;
    if (!row->cfa_known || (!by_frame && row->base != ARCH_DWARF_STACK)) return none;
    if (row->back.kept != KEPT_AT || row->frame.kept > KEPT_AT) return none;
    int64_t frame = row->frame.kept == KEPT_AT ? -row->frame.offset : 0;
    if (!distance_is_plain(row->cfa) || !distance_is_plain(-row->back.offset)) return none;
    if (frame != 0 && !distance_is_plain(frame)) return none;
    return (struct unwind_rule){.kind = UNWIND_STEP,
                                .by_frame = by_frame,
                                .cfa = (uint32_t)row->cfa,
                                .back = (uint32_t)-row->back.offset,
                                .frame = (uint32_t)frame};
}

WEIR_FN struct unwind_rule unwind_rule_read(const void* entry, uintptr_t function, uintptr_t code) {
    struct reader fde = record_open(entry);
    const unsigned char* distance = fde.at;
    struct common common = common_read(distance - (int32_t)read_fixed(&fde, 4));
    struct run x = {.common = &common, .r = common.rows, .left = UINT64_MAX};
    rows_run(&x);
    (void)read_fixed(&fde, common.pointer_bytes);
    (void)read_fixed(&fde, common.pointer_bytes);
    if (common.augmented) {
        uint64_t bytes = read_unsigned(&fde);
        while (bytes-- != 0 && !fde.bad) (void)read_byte(&fde);
    }
    bool bad = x.r.bad || fde.bad || x.done;
    x.r = fde;
    x.left = code - function;
    x.first = x.row;
    if (!bad) rows_run(&x);
    return bad || x.r.bad ? (struct unwind_rule){.kind = UNWIND_UNKNOWN} : row_rule(&x.row);
}
