/*
 * weights.c - weights in the caller's format, repacked once into the layout that kernels read: the
 * description is checked, buffers are made, weights_upload.c fills them.
 */
#include "ops/weights.h"

#include "core/tensor.h"
#include "ops/elementwise.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_EDGE   (uint64_t) INT32_MAX /* of n and k: offsets within a row are 32-bit */
#define MAX_GROUPS ((uint64_t)1 << 24)  /* that a description may state */

/* ---- The description ---- */

static llmk_status check_buffer(llmk_context *ctx, const char *name, const llmk_source *source)
{
    llmk_buffer b;
    const llmk_status status = llmk_buffer_query(ctx, source->buffer, &b);
    if (status != LLMK_OK)
        return llmk_fail_prefix(status, "weights: %s.buffer", name);
    if (!b.is_buffer)
        return llmk_fail(LLMK_INVALID_BUFFER, "weights: %s.buffer is not a buffer", name);
    if (b.owner != ctx->cl)
        return llmk_fail(LLMK_INVALID_BUFFER, "weights: %s.buffer belongs to another context",
                         name);
    /* Weights are repacked on the host. */
    if (b.flags & (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS))
        return llmk_fail(
            LLMK_INVALID_BUFFER, "weights: %s.buffer was made %s, and is read by the host", name,
            b.flags & CL_MEM_HOST_NO_ACCESS ? "CL_MEM_HOST_NO_ACCESS" : "CL_MEM_HOST_WRITE_ONLY");
    if (source->offset > b.size || source->size > b.size - source->offset)
        return llmk_fail(LLMK_BUFFER_TOO_SMALL,
                         "weights: %s.offset %" PRIu64 " and size %" PRIu64
                         " reach beyond the buffer of %zu bytes",
                         name, source->offset, source->size, b.size);
    return LLMK_OK;
}

/* `experts`: of how many the source is, 1 or more. */
static llmk_status check_source(llmk_context *ctx, const char *name, const llmk_source *source,
                                uint64_t needed, uint64_t experts)
{
    char of[48] = "";
    if (experts > 1)
        snprintf(of, sizeof of, " for %" PRIu64 " experts", experts);
    if (source->host && source->buffer)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: %s has both host and buffer", name);
    if (!source->host && !source->buffer && needed > 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: %s has neither host nor buffer", name);
    if (!source->buffer && source->offset != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "weights: %s.offset is %" PRIu64 "; it applies to buffers only", name,
                         source->offset);
    if (source->buffer)
        LLMK_TRY(check_buffer(ctx, name, source));
    if (source->size < needed)
        return llmk_fail(LLMK_BUFFER_TOO_SMALL,
                         "weights: %s.size is %" PRIu64 " bytes; expected at least %" PRIu64 "%s",
                         name, source->size, needed, of);
    return LLMK_OK;
}

/* (rows - 1) * pitch + last, the bytes from the first row to the end of the last. */
static bool span_bytes(uint64_t rows, uint64_t pitch, uint64_t last, uint64_t *bytes)
{
    *bytes = 0;
    return rows == 0 || last == 0 ||
           (!__builtin_mul_overflow(rows - 1, pitch, bytes) &&
            !__builtin_add_overflow(*bytes, last, bytes));
}

/* How many experts the sources of a description hold, one after the other. */
static uint64_t experts_in(const llmk_weights_desc *d)
{
    return d->experts > 1 ? d->experts : 1;
}

/* A tensor with `rows` rows of `bytes`, `pitch` apart (0: packed), for each of `experts`. Absent
 * where rows is 0. */
static llmk_status check_table(llmk_context *ctx, const char *name, const char *pitch_name,
                               const llmk_source *source, uint64_t experts, uint64_t rows,
                               uint64_t bytes, uint64_t pitch, weights_table *table)
{
    uint64_t needed;
    if (pitch != 0 && pitch < bytes)
        return llmk_fail(LLMK_INVALID_STRIDE,
                         "weights: %s is %" PRIu64 "; a row of %s has %" PRIu64 " bytes",
                         pitch_name, pitch, name, bytes);
    *table = (weights_table){name, *source, rows, bytes, pitch ? pitch : bytes};
    if (!span_bytes(experts * rows, table->pitch, bytes, &needed))
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: %" PRIu64 " rows of %s, %" PRIu64 " bytes apart, do not fit 64 "
                         "bits",
                         experts * rows, name, table->pitch);
    return check_source(ctx, name, source, needed, experts);
}

static llmk_status check_absent(const char *name, const llmk_source *source, const char *format)
{
    if (source->host || source->buffer)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: %s must be absent for %s", name, format);
    return LLMK_OK;
}

static llmk_status check_zero(const char *name, uint64_t value, const char *format)
{
    if (value != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: %s is %" PRIu64 "; expected 0 for %s",
                         name, value, format);
    return LLMK_OK;
}

static llmk_status check_multiple(const char *name, uint64_t value, uint64_t of, const char *format)
{
    if (value % of != 0)
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: %s is %" PRIu64 "; expected a multiple of %" PRIu64 " for %s",
                         name, value, of, format);
    return LLMK_OK;
}

/* What only some formats have. */
static llmk_status check_options(const llmk_weights_desc *d, const weights_format *f)
{
    const bool has_order = f->packing == WEIGHTS_GPTQ || f->packing == WEIGHTS_CT;
    const bool has_zeros = f->packing > WEIGHTS_W8;
    if (d->flags & ~LLMK_WEIGHTS_SYMMETRIC)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "weights: flags is 0x%x; expected bits of 0x%x only", d->flags,
                         LLMK_WEIGHTS_SYMMETRIC);
    if (!has_zeros) {
        LLMK_TRY(check_zero("flags", d->flags, f->name));
        LLMK_TRY(check_zero("zero_row_bytes", d->zero_row_bytes, f->name));
        LLMK_TRY(check_absent("zeros", &d->zeros, f->name));
    }
    if (f->packing == WEIGHTS_BLOCKS) {
        LLMK_TRY(check_zero("group_size", d->group_size, f->name));
        LLMK_TRY(check_zero("scale_dtype", d->scale_dtype, f->name));
        LLMK_TRY(check_zero("scale_row_bytes", d->scale_row_bytes, f->name));
        LLMK_TRY(check_absent("scales", &d->scales, f->name));
    }
    if (!has_order) {
        LLMK_TRY(check_absent("g_idx", &d->g_idx, f->name));
        LLMK_TRY(check_zero("bits", d->bits, f->name));
        LLMK_TRY(check_zero("groups", d->groups, f->name));
    }
    if (f->packing != WEIGHTS_CT || d->zero_dtype != LLMK_I8)
        LLMK_TRY(check_zero("zero_dtype", d->zero_dtype, f->name));
    if (d->bits != 0 && d->bits != 4 && d->bits != 8)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: bits is %u; expected 4 or 8", d->bits);
    const llmk_dtype s = d->scale_dtype;
    if (s != LLMK_DTYPE_NONE && s != LLMK_F32 && s != LLMK_F16 && s != LLMK_BF16)
        return llmk_fail(LLMK_INVALID_DTYPE,
                         "weights: scale_dtype is %s; expected f32, f16 or bf16",
                         llmk_dtype_name(s));
    return LLMK_OK;
}

static llmk_scale_kind scale_kind_of(llmk_dtype dtype)
{
    return dtype == LLMK_F32   ? LLMK_SCALE_F32
           : dtype == LLMK_F16 ? LLMK_SCALE_F16
                               : LLMK_SCALE_BF16;
}

/* Tables of blocks or plain elements. */
static llmk_status plan_blocks(llmk_context *ctx, const llmk_weights_desc *d, llmk_weights *w,
                               weights_plan *p)
{
    const weights_format *f = p->format;
    w->described_group = f->group;
    w->layout = f->layout;
    w->scale_kind = f->scale_kind;
    w->zero = f->zero;
    return check_table(ctx, "data", "row_bytes", &d->data, experts_in(d), d->n,
                       d->k / f->block * f->block_bytes, d->row_bytes, &p->data);
}

/* data, and the fields of a word; f->packing > WEIGHTS_BLOCKS from here on. */
static llmk_status plan_codes(llmk_context *ctx, const llmk_weights_desc *d, weights_plan *p)
{
    const char *name = p->format->name;
    uint64_t rows = d->n, bytes = d->k;
    switch (p->format->packing) {
    case WEIGHTS_W4:
        bytes = (d->k + 1) / 2;
        break;
    case WEIGHTS_GPTQ:
        LLMK_TRY(check_multiple("k", d->k, p->fields, name));
        LLMK_TRY(check_multiple("n", d->n, p->fields, name));
        rows = d->k / p->fields;
        bytes = d->n * 4;
        break;
    case WEIGHTS_AWQ:
        LLMK_TRY(check_multiple("n", d->n, p->fields, name));
        rows = d->k;
        bytes = d->n / p->fields * 4;
        break;
    case WEIGHTS_CT:
        bytes = (d->k + p->fields - 1) / p->fields * 4;
        break;
    default:
        break;
    }
    return check_table(ctx, "data", "row_bytes", &d->data, experts_in(d), d->n ? rows : 0, bytes,
                       d->row_bytes, &p->data);
}

static llmk_status plan_zeros(llmk_context *ctx, const llmk_weights_desc *d, const llmk_weights *w,
                              weights_plan *p)
{
    uint64_t rows = d->n, bytes = p->source_groups;
    if (!w->has_zeros)
        return LLMK_OK;
    if (p->by_column) {
        rows = p->source_groups;
        bytes = d->n / p->fields * 4;
    } else if (p->format->packing == WEIGHTS_CT && !p->zeros_are_i8) {
        rows = (d->n + p->fields - 1) / p->fields;
        bytes = 4 * (uint64_t)p->source_groups;
    }
    return check_table(ctx, "zeros", "zero_row_bytes", &d->zeros, experts_in(d), rows, bytes,
                       d->zero_row_bytes, &p->zeros);
}

/* Codes, scales and zeros in tables of their own. */
static llmk_status plan_tables(llmk_context *ctx, const llmk_weights_desc *d, llmk_weights *w,
                               weights_plan *p)
{
    const weights_packing packing = p->format->packing;
    const bool has_dtype = d->scale_dtype != LLMK_DTYPE_NONE;
    const llmk_dtype fallback = packing <= WEIGHTS_W4 ? LLMK_F32 : LLMK_F16;
    const llmk_dtype dtype = has_dtype ? d->scale_dtype : fallback;
    p->bits = packing == WEIGHTS_W8 ? 8 : d->bits ? d->bits : 4;
    p->fields = 32 / p->bits;
    p->by_column = packing == WEIGHTS_GPTQ || packing == WEIGHTS_AWQ;
    p->zeros_are_i8 = d->zero_dtype == LLMK_I8;
    p->scale_size = llmk_dtype_bits(dtype) / 8;
    p->source_groups = w->groups;
    w->layout = p->bits == 4 ? LLMK_LAYOUT_U4_PORTABLE : LLMK_LAYOUT_S8_PORTABLE;
    w->scale_kind = scale_kind_of(dtype);
    w->zero = p->bits == 4 ? 8 : 0;
    /* GPTQ and AWQ say with a flag that there are none: a forgotten table must not pass. */
    w->has_zeros = packing != WEIGHTS_W8 && !(d->flags & LLMK_WEIGHTS_SYMMETRIC) &&
                   (p->by_column || d->zeros.host || d->zeros.buffer);
    LLMK_TRY(plan_codes(ctx, d, p));
    const uint64_t rows = p->by_column ? p->source_groups : d->n;
    const uint64_t row = p->by_column ? d->n : p->source_groups;
    LLMK_TRY(check_table(ctx, "scales", "scale_row_bytes", &d->scales, experts_in(d), rows,
                         row * p->scale_size, d->scale_row_bytes, &p->scales));
    LLMK_TRY(plan_zeros(ctx, d, w, p));
    if (d->g_idx.host || d->g_idx.buffer)
        return check_source(ctx, "g_idx", &d->g_idx, 4 * d->k * experts_in(d), experts_in(d));
    return LLMK_OK;
}

/* The layout in a class of what is in the portable one so far. A step of a matrix unit must not
 * cross groups. */
static llmk_layout layout_in(llmk_layout_class layouts, const llmk_weights *w)
{
    if (layouts != LLMK_CLASS_NV || (w->groups > 1 && w->group_size % 32 != 0))
        return w->layout;
    return w->layout == LLMK_LAYOUT_U4_PORTABLE   ? LLMK_LAYOUT_U4_NV
           : w->layout == LLMK_LAYOUT_S8_PORTABLE ? LLMK_LAYOUT_S8_NV
                                                  : w->layout;
}

static uint64_t blocks_of(const llmk_weights *w, uint64_t rows)
{
    return (rows + w->block - 1) / w->block;
}

/* The order that g_idx asks for, and what follows from it. */
static llmk_status plan_order(llmk_context *ctx, const llmk_weights_desc *d,
                              llmk_layout_class layouts, llmk_weights *w, weights_order *order)
{
    uint32_t *g_idx = NULL;
    llmk_status status = LLMK_OK;
    if ((d->g_idx.host || d->g_idx.buffer) && d->k > 0) {
        g_idx = malloc((size_t)d->k * sizeof *g_idx);
        status = g_idx ? llmk_weights_read_words(ctx, &d->g_idx, d->k, g_idx)
                       : llmk_fail(LLMK_OUT_OF_MEMORY, "weights: no memory for g_idx");
    }
    if (status == LLMK_OK)
        status = llmk_weights_order_make(g_idx, d->k, w->group_size, w->groups, order);
    free(g_idx);
    if (status != LLMK_OK)
        return status;
    w->depth = order->depth;
    w->group_size = order->group_size;
    w->groups = order->groups;
    w->layout = layout_in(layouts, w);
    w->block = llmk_weights_layout_of(w->layout)->block;
    w->pitch = w->block * llmk_weights_pitch(w->layout, w->depth);
    w->scale_pitch = w->block * llmk_weights_scale_pitch(w->scale_kind, w->groups);
    w->zero_pitch = !w->has_zeros                  ? 0
                    : w->block == 1                ? llmk_weights_zero_row(w)
                    : llmk_layout_is_u4(w->layout) ? w->groups * (uint64_t)(w->block / 2)
                                                   : w->groups * (uint64_t)w->block;
    if (__builtin_mul_overflow(blocks_of(w, d->n), w->pitch + w->scale_pitch + w->zero_pitch,
                               &w->device_bytes))
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: the bytes of n %" PRIu64 " x k %" PRIu64 " do not fit 64 bits",
                         d->n, d->k);
    return LLMK_OK;
}

/* Checks `desc`; sets the plan, the order (the caller frees it), and all in `w` but its buffers. */
static llmk_status describe(llmk_context *ctx, const llmk_weights_desc *desc,
                            llmk_layout_class layouts, llmk_weights *w, weights_plan *p,
                            weights_order *order)
{
    const weights_format *f = llmk_weights_format_of(desc->format);
    if (!f)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: format is %d, no weight format",
                         (int)desc->format);
    if (f->format == LLMK_FORMAT_AWQ_GEMV || f->format == LLMK_FORMAT_AWQ_GEMV_FAST)
        return llmk_fail(
            LLMK_UNSUPPORTED,
            "weights: format is %s, whose words are packed differently from awq_gemm's; "
            "convert the checkpoint to AWQ version \"gemm\"",
            f->name);
    if (desc->n > MAX_EDGE || desc->k > MAX_EDGE)
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: n is %" PRIu64 " and k is %" PRIu64 "; at most %" PRIu64 " each",
                         desc->n, desc->k, MAX_EDGE);
    if (f->packing == WEIGHTS_BLOCKS)
        LLMK_TRY(check_multiple("k", desc->k, f->block, f->name));
    LLMK_TRY(check_options(desc, f));
    p->format = f;
    w->ctx = ctx;
    w->experts = 1;
    w->format = f->format;
    w->n = desc->n;
    w->k = desc->k;
    const bool whole = desc->group_size >= desc->k; /* -1, too */
    w->described_group = whole ? 0 : desc->group_size;
    const uint64_t group = f->group                     ? f->group
                           : whole || !desc->group_size ? desc->k
                                                        : desc->group_size;
    w->group_size = (uint32_t)(group ? group : 1);
    w->groups = (uint32_t)((desc->k + w->group_size - 1) / w->group_size);
    if (desc->groups != 0 && (desc->groups < w->groups || desc->groups > MAX_GROUPS))
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: groups is %" PRIu64 "; expected 0, or %" PRIu32 " to %" PRIu64,
                         desc->groups, w->groups, MAX_GROUPS);
    if (desc->groups != 0)
        w->groups = (uint32_t)desc->groups;
    LLMK_TRY(f->packing == WEIGHTS_BLOCKS ? plan_blocks(ctx, desc, w, p)
                                          : plan_tables(ctx, desc, w, p));
    return plan_order(ctx, desc, layouts, w, order);
}

/* ---- Segments ---- */

static uint64_t widest_of(const llmk_weights *w)
{
    uint64_t widest = w->pitch > w->scale_pitch ? w->pitch : w->scale_pitch;
    return widest > w->zero_pitch ? widest : w->zero_pitch;
}

/* Rows of a segment whose buffers stay within max_buffer: whole experts where there are several,
 * else whole tiles of 64 where it can be. */
static llmk_status segment_rows(const llmk_weights *w, uint64_t max_buffer, uint64_t *rows)
{
    const uint64_t widest = widest_of(w), least = w->experts > 1 ? blocks_of(w, w->n) : 1;
    *rows = w->n * w->experts;
    if (widest == 0 || blocks_of(w, *rows) <= max_buffer / widest)
        return LLMK_OK;
    *rows = max_buffer / widest * w->block;
    if (*rows < least * w->block)
        return llmk_fail(LLMK_OUT_OF_DEVICE_MEMORY,
                         "weights: %s takes %" PRIu64
                         " bytes; this device's largest buffer has %" PRIu64,
                         w->experts > 1 ? "an expert" : "a row", least * widest, max_buffer);
    if (w->experts > 1)
        *rows -= *rows % w->n;
    else if (*rows > 64)
        *rows -= *rows % 64;
    return LLMK_OK;
}

static llmk_status make_buffer(llmk_context *ctx, uint64_t bytes, cl_mem *buffer)
{
    cl_int err = CL_SUCCESS;
    if (bytes == 0)
        return LLMK_OK;
    *buffer = clCreateBuffer(ctx->cl, CL_MEM_READ_ONLY, bytes, NULL, &err);
    if (!*buffer)
        return llmk_fail_prefix(llmk_fail_cl(ctx, err, "clCreateBuffer"),
                                "weights: a buffer of %" PRIu64 " bytes", bytes);
    return LLMK_OK;
}

static llmk_status make_segments(llmk_weights *w, uint64_t rows)
{
    const uint64_t all = w->n * w->experts;
    for (uint64_t first = 0; first < all; first += rows) {
        llmk_segment *s = &w->segments[w->segment_count++];
        s->first = first;
        s->rows = all - first < rows ? all - first : rows;
        LLMK_TRY(make_buffer(w->ctx, blocks_of(w, s->rows) * w->pitch, &s->data));
        LLMK_TRY(make_buffer(w->ctx, blocks_of(w, s->rows) * w->scale_pitch, &s->scales));
        LLMK_TRY(make_buffer(w->ctx, blocks_of(w, s->rows) * w->zero_pitch, &s->zeros));
    }
    return LLMK_OK;
}

/* ---- Experts ---- */

/* A description's matrices, described one by one. */
typedef struct matrices {
    const llmk_weights_desc *desc;
    weights_plan first; /* of expert 0: says how far apart experts are */
    llmk_layout_class layouts;
    bool ordered; /* any has an order */
} matrices;

static void move_source(llmk_source *source, uint64_t bytes)
{
    if (source->host)
        source->host = (const uint8_t *)source->host + bytes;
    else if (source->buffer)
        source->offset += bytes;
    source->size = source->size > bytes ? source->size - bytes : 0;
}

/* The description of one expert's matrix alone; of the first one with what the others need, too,
 * where they lie behind it. */
static llmk_weights_desc desc_of(const matrices *m, uint64_t expert)
{
    llmk_weights_desc d = *m->desc;
    d.experts = expert == 0 && !d.expert_sources ? d.experts : 0;
    d.expert_sources = NULL;
    if (m->desc->expert_sources) {
        const llmk_expert_source *s = &m->desc->expert_sources[expert];
        d.data = s->data;
        d.scales = s->scales;
        d.zeros = s->zeros;
        d.g_idx = s->g_idx;
    } else if (expert > 0) {
        move_source(&d.data, expert * m->first.data.rows * m->first.data.pitch);
        move_source(&d.scales, expert * m->first.scales.rows * m->first.scales.pitch);
        move_source(&d.zeros, expert * m->first.zeros.rows * m->first.zeros.pitch);
        move_source(&d.g_idx, expert * 4 * d.k);
    }
    return d;
}

static llmk_status describe_expert(llmk_context *ctx, const matrices *m, uint64_t expert,
                                   llmk_weights *w, weights_plan *plan, weights_order *order)
{
    const llmk_weights_desc d = desc_of(m, expert);
    llmk_status status = describe(ctx, &d, m->layouts, w, plan, order);
    if (status == LLMK_OK && m->ordered)
        status = llmk_weights_order_list(order);
    if (status != LLMK_OK && m->desc->experts > 1 && (expert > 0 || m->desc->expert_sources))
        return llmk_fail_prefix(status, "expert %" PRIu64, expert);
    return status;
}

/* Whether an expert lies in memory as expert 0 does. */
static llmk_status check_alike(const llmk_weights *w, const llmk_weights *other, uint64_t expert)
{
    if (w->layout != other->layout || w->scale_kind != other->scale_kind ||
        w->has_zeros != other->has_zeros)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "weights: expert %" PRIu64 " has other tables than expert 0: zeros, say",
                         expert);
    if (w->depth != other->depth || w->group_size != other->group_size || w->depth != w->k)
        return llmk_fail(LLMK_UNSUPPORTED,
                         "weights: g_idx of expert %" PRIu64 " gives groups of uneven sizes, which "
                         "a part of a matrix along K may have; of several experts none may",
                         expert);
    return LLMK_OK;
}

/* Nothing tells experts without elements apart, of which there may be 2^31 in no memory at all. */
static bool all_empty(const llmk_weights_desc *d)
{
    return (d->n == 0 || d->k == 0) && !d->expert_sources && !d->g_idx.host && !d->g_idx.buffer;
}

/* Describes every expert; `w` is the first, with the memory of all. */
static llmk_status describe_all(llmk_context *ctx, matrices *m, llmk_weights *w)
{
    const uint64_t experts = m->desc->experts > 1 ? m->desc->experts : 1;
    if (experts > 1 && (experts > MAX_EDGE || experts > MAX_EDGE / (m->desc->n ? m->desc->n : 1)))
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: experts is %" PRIu64 " and n %" PRIu64 "; at most %" PRIu64
                         " rows in all",
                         experts, m->desc->n, MAX_EDGE);
    if (m->desc->expert_sources) {
        const llmk_weights_desc *d = m->desc;
        const llmk_source *own[] = {&d->data, &d->scales, &d->zeros, &d->g_idx};
        for (size_t i = 0; i < LLMK_COUNT(own); i++)
            if (own[i]->host || own[i]->buffer || d->experts == 0)
                return llmk_fail(LLMK_INVALID_ARGUMENT,
                                 "weights: expert_sources is given with %s; expected one or the "
                                 "other",
                                 d->experts ? "data, scales, zeros or g_idx" : "experts = 0");
    }
    const uint64_t described = all_empty(m->desc) ? 1 : experts;
    for (uint64_t e = 0; e < described; e++) {
        llmk_weights one = {0};
        weights_plan plan = {0};
        weights_order order = {0};
        const llmk_status status = describe_expert(ctx, m, e, &one, &plan, &order);
        m->ordered = m->ordered || order.column;
        if (order.column)
            w->order_hash = llmk_hash(w->order_hash ? w->order_hash : LLMK_HASH_SEED, order.column,
                                      (size_t)order.depth * sizeof *order.column);
        llmk_weights_order_free(&order);
        if (status != LLMK_OK)
            return status;
        if (e == 0) {
            m->first = plan;
            one.order_hash = w->order_hash;
            *w = one;
        }
        if (experts > 1)
            LLMK_TRY(check_alike(&one, w, e));
    }
    w->experts = experts;
    if (__builtin_mul_overflow(w->device_bytes, experts, &w->device_bytes))
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: the bytes of experts %" PRIu64 " do not fit 64 bits", experts);
    if (m->ordered && w->n > 0)
        w->device_bytes += experts * w->depth * sizeof(uint32_t);
    return LLMK_OK;
}

static llmk_status upload_all(const llmk_weights *w, const matrices *m)
{
    const uint64_t count = w->n == 0 || w->k == 0 ? 0 : w->experts;
    for (uint64_t e = 0; e < count; e++) {
        llmk_weights one = {0};
        weights_plan plan = {0};
        weights_order order = {0};
        llmk_status status = describe_expert(w->ctx, m, e, &one, &plan, &order);
        if (status == LLMK_OK)
            status = llmk_weights_upload(w, e, &plan, &order);
        llmk_weights_order_free(&order);
        if (status != LLMK_OK)
            return status;
    }
    return LLMK_OK;
}

/* Weights of that shape with nothing in them. */
static llmk_status allocate(llmk_context *ctx, const llmk_weights *shape, bool ordered,
                            uint64_t max_buffer, llmk_weights **out)
{
    uint64_t rows = 0;
    LLMK_TRY(segment_rows(shape, max_buffer, &rows));
    const uint64_t all = shape->n * shape->experts;
    const size_t segments = rows ? (size_t)((all + rows - 1) / rows) : 0;
    llmk_weights *w = calloc(1, sizeof *w + segments * sizeof w->segments[0]);
    *out = w;
    if (!w)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "weights: out of memory");
    *w = *shape;
    w->order = NULL;
    w->segment_count = 0;
    llmk_context_retain(ctx);
    llmk_status status = LLMK_OK;
    if (ordered && w->n > 0)
        status = make_buffer(ctx, w->experts * w->depth * sizeof(uint32_t), &w->order);
    if (status == LLMK_OK)
        status = make_segments(w, rows);
    if (status != LLMK_OK) {
        llmk_weights_free(w);
        *out = NULL;
    }
    return status;
}

static llmk_status create(llmk_context *ctx, const llmk_weights *shape, const matrices *m,
                          uint64_t max_buffer, llmk_weights **out)
{
    llmk_weights *w = NULL;
    LLMK_TRY(allocate(ctx, shape, m->ordered, max_buffer, &w));
    const llmk_status status = upload_all(w, m);
    if (status == LLMK_OK)
        *out = w;
    else
        llmk_weights_free(w);
    return status;
}

/* `count` copies of all of `from`, one after the other. */
static cl_int copy_times(cl_command_queue queue, cl_mem from, cl_mem to, uint64_t count)
{
    size_t bytes = 0;
    if (!from || count == 0)
        return CL_SUCCESS;
    cl_int err = clGetMemObjectInfo(from, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    for (uint64_t done = 0; err == CL_SUCCESS && done < count;) {
        const uint64_t more = done == 0 ? 1 : done < count - done ? done : count - done;
        err = clEnqueueCopyBuffer(queue, done ? to : from, to, 0, (size_t)(done * bytes),
                                  (size_t)(more * bytes), 0, NULL, NULL);
        done += more;
    }
    return err;
}

llmk_status llmk_weights_repeat(const llmk_weights *one, uint64_t experts, uint64_t max_buffer,
                                llmk_weights **out)
{
    llmk_context *ctx = one->ctx;
    llmk_weights shape = *one, *w = NULL;
    if (one->experts != 1 || one->segment_count != 1 || one->n % one->block != 0)
        return llmk_fail(LLMK_INTERNAL, "weights to repeat are not one expert in one buffer");
    shape.experts = experts;
    shape.device_bytes = experts * one->device_bytes;
    LLMK_TRY(allocate(ctx, &shape, one->order != NULL,
                      max_buffer ? max_buffer : ctx->caps.max_alloc_bytes, &w));
    cl_int err;
    cl_command_queue queue = clCreateCommandQueue(ctx->cl, ctx->caps.device, 0, &err);
    if (err == CL_SUCCESS)
        err = copy_times(queue, one->order, w->order, experts);
    for (size_t i = 0; err == CL_SUCCESS && i < w->segment_count; i++) {
        const llmk_segment *from = &one->segments[0], *to = &w->segments[i];
        const uint64_t count = to->rows / one->n;
        err = copy_times(queue, from->data, to->data, count);
        if (err == CL_SUCCESS)
            err = copy_times(queue, from->scales, to->scales, count);
        if (err == CL_SUCCESS)
            err = copy_times(queue, from->zeros, to->zeros, count);
    }
    if (queue && err == CL_SUCCESS)
        err = clFinish(queue);
    if (queue)
        clReleaseCommandQueue(queue);
    if (err != CL_SUCCESS) {
        llmk_weights_free(w);
        return llmk_fail_cl(ctx, err, "copying an expert");
    }
    *out = w;
    return LLMK_OK;
}

static llmk_layout_class class_of_device(llmk_context *ctx)
{
    llmk_reason why;
    return llmk_nv_supported(ctx, &why) ? LLMK_CLASS_NV : LLMK_CLASS_PORTABLE;
}

llmk_status llmk_weights_create_as(llmk_context *ctx, const llmk_weights_desc *desc,
                                   llmk_layout_class layouts, uint64_t max_buffer,
                                   llmk_weights **out)
{
    llmk_weights_desc d;
    llmk_weights shape = {0};
    if (!out)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: out is NULL");
    *out = NULL;
    if (!ctx)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: ctx is NULL");
    LLMK_TRY(llmk_context_usable(ctx));
    LLMK_TRY(llmk_take_struct("weights", "desc", desc, sizeof *desc, sizeof d, &d));
    matrices m = {.desc = &d, .layouts = layouts};
    if (layouts == LLMK_CLASS_OF_DEVICE)
        m.layouts = class_of_device(ctx);
    if (max_buffer == 0)
        max_buffer = ctx->caps.max_alloc_bytes;
    LLMK_TRY(describe_all(ctx, &m, &shape));
    /* A row may fit, if a block does not; experts share none. */
    if (shape.block > 1 &&
        (widest_of(&shape) > max_buffer || (shape.experts > 1 && shape.n % shape.block != 0))) {
        m.layouts = LLMK_CLASS_PORTABLE;
        shape = (llmk_weights){0};
        LLMK_TRY(describe_all(ctx, &m, &shape));
    }
    return create(ctx, &shape, &m, max_buffer, out);
}

llmk_status llmk_weights_create(llmk_context *ctx, const llmk_weights_desc *desc,
                                llmk_weights **out)
{
    return llmk_weights_create_as(ctx, desc, LLMK_CLASS_OF_DEVICE, 0, out);
}

void llmk_weights_free(llmk_weights *weights)
{
    if (!weights)
        return;
    for (size_t i = 0; i < weights->segment_count; i++) {
        if (weights->segments[i].data)
            clReleaseMemObject(weights->segments[i].data);
        if (weights->segments[i].scales)
            clReleaseMemObject(weights->segments[i].scales);
        if (weights->segments[i].zeros)
            clReleaseMemObject(weights->segments[i].zeros);
    }
    if (weights->order)
        clReleaseMemObject(weights->order);
    llmk_context_free(weights->ctx);
    free(weights);
}

llmk_status llmk_weights_get_info(const llmk_weights *weights, llmk_weights_info *info)
{
    if (!weights || !info)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_weights_get_info: %s is NULL",
                         weights ? "info" : "weights");
    LLMK_TRY(llmk_check_info("llmk_weights_get_info", info->struct_size, sizeof *info));
    const llmk_weights_info full = {.format = weights->format,
                                    .layout = llmk_layout_name(weights->layout),
                                    .n = weights->n,
                                    .k = weights->k,
                                    .group_size = weights->described_group,
                                    .device_bytes = weights->device_bytes,
                                    .experts = weights->experts};
    llmk_fill_info(info, info->struct_size, &full, sizeof full);
    return LLMK_OK;
}
