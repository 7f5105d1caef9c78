/*
 * weights_upload.c - weights repacked, tile by tile of N, and written to the device.
 *
 * A tile's part of each table is where the caller has it, or read back from a buffer into a stage;
 * repacked into rows of our layout, it goes up. Hosts are little-endian, as the formats and all
 * OpenCL devices of interest are.
 */
#include "ops/weights.h"

#include <inttypes.h>
#include <stdlib.h>

#define TILE_BYTES ((uint64_t)4 << 20)

/* A growing buffer. */
typedef struct stage {
    uint8_t *bytes;
    size_t capacity;
} stage;

typedef struct upload {
    const llmk_weights *w;
    const weights_plan *plan;
    const weights_order *order;
    cl_command_queue queue;
    uint64_t expert;
    uint64_t first, rows; /* of the tile, in the expert's N */
    stage data_stage, scale_stage, zero_stage;
    uint64_t pitch, scale_pitch, zero_pitch; /* bytes of a row of the tile */
    uint8_t *data, *scales, *zeros;          /* the tile row by row */
    weights_rows blocks;                     /* and as the device gets it, where that differs */
    uint8_t *row;                            /* one row of codes before it is reordered */
} upload;

/* Part of a table. */
typedef struct view {
    const uint8_t *at;
    uint64_t pitch;
} view;

/* ---- Reading ---- */

/* `rows` pieces of `bytes` bytes, `pitch` apart in a buffer, to consecutive memory. */
static cl_int read_rows(cl_command_queue queue, cl_mem buffer, size_t start, uint64_t rows,
                        uint64_t bytes, uint64_t pitch, uint8_t *to)
{
    if (rows == 1 || pitch == bytes)
        return clEnqueueReadBuffer(queue, buffer, CL_TRUE, start, (size_t)(rows * bytes), to, 0,
                                   NULL, NULL);
    /* Row by row: drivers differ in which rectangles they refuse. */
    for (uint64_t r = 0; r < rows; r++) {
        const cl_int err =
            clEnqueueReadBuffer(queue, buffer, r + 1 == rows, start + (size_t)(r * pitch),
                                (size_t)bytes, to + r * bytes, 0, NULL, NULL);
        if (err != CL_SUCCESS) {
            clFinish(queue); /* `to` may be freed now */
            return err;
        }
    }
    return CL_SUCCESS;
}

/* Rows first ... first + rows - 1 of a table, bytes from ... from + bytes - 1 of each. */
static llmk_status take(const upload *u, const weights_table *t, uint64_t first, uint64_t rows,
                        uint64_t from, uint64_t bytes, stage *s, view *out)
{
    out->pitch = t->pitch;
    out->at = NULL;
    if (rows == 0 || bytes == 0)
        return LLMK_OK;
    if (t->source.host) {
        out->at = (const uint8_t *)t->source.host + first * t->pitch + from;
        return LLMK_OK;
    }
    if (s->capacity < rows * bytes) {
        free(s->bytes);
        s->capacity = (size_t)(rows * bytes);
        s->bytes = malloc(s->capacity);
        if (!s->bytes) {
            s->capacity = 0;
            return llmk_fail(LLMK_OUT_OF_MEMORY,
                             "weights: no memory to read back %" PRIu64 " bytes", rows * bytes);
        }
    }
    out->at = s->bytes;
    out->pitch = bytes;
    const cl_int err =
        read_rows(u->queue, t->source.buffer, (size_t)(t->source.offset + first * t->pitch + from),
                  rows, bytes, t->pitch, s->bytes);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(u->w->ctx, err, "reading a source buffer");
}

static uint32_t word_at(const uint8_t *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static void put_word(uint8_t *p, uint32_t word)
{
    memcpy(p, &word, sizeof word);
}

/* The words that hold fields first ... first + count - 1. */
static uint64_t words_begin(const upload *u)
{
    return u->first / u->plan->fields;
}
static uint64_t words_count(const upload *u)
{
    return (u->first + u->rows + u->plan->fields - 1) / u->plan->fields - words_begin(u);
}

/* ---- Codes: rows in the order of the source ---- */

static void repack_blocks(const upload *u, view from)
{
    const llmk_weights *w = u->w;
    const weights_format *f = u->plan->format;
    const uint64_t blocks = w->k / f->block;
    const uint64_t code_bytes = (uint64_t)f->block * llmk_weights_layout_of(f->layout)->bits / 8;
    const uint64_t scale_bytes =
        f->group ? llmk_weights_scale_pitch(f->scale_kind, f->block / f->group) : 0;
    for (uint64_t r = 0; r < u->rows; r++) {
        const uint8_t *row = from.at + r * from.pitch;
        if (!f->repack)
            memcpy(u->data + r * u->pitch, row, blocks * f->block_bytes);
        for (uint64_t b = 0; f->repack && b < blocks; b++)
            f->repack(row + b * f->block_bytes, u->data + r * u->pitch + b * code_bytes,
                      u->scales + r * u->scale_pitch + b * scale_bytes);
    }
}

/* Codes of 8 bits count from -128 here. */
static uint32_t signed_codes(const upload *u, uint32_t word)
{
    return u->plan->bits == 8 ? word ^ 0x80808080u : word;
}

/* A word is one of our row's, at the same place. `rows` is what lies one after the other in memory,
 * words or rows; sixteen words make a line of a cache. */
static void repack_gptq(const upload *u, view from)
{
    enum { LINE = 16 };
    const uint64_t words = u->plan->data.rows, pitch = u->pitch;
    for (uint64_t r0 = 0; r0 < u->rows; r0 += LINE) {
        const uint64_t end = r0 + LINE < u->rows ? r0 + LINE : u->rows;
        for (uint64_t i = 0; i < words; i++)
            for (uint64_t r = r0; r < end; r++)
                put_word(u->data + r * pitch + 4 * i,
                         signed_codes(u, word_at(from.at + i * from.pitch + 4 * r)));
    }
}

static void repack_ct(const upload *u, view from)
{
    const uint64_t words = u->plan->data.bytes / 4, rest = u->w->k % u->plan->fields;
    for (uint64_t r = 0; r < u->rows; r++) {
        uint8_t *row = u->data + r * u->pitch;
        for (uint64_t i = 0; i < words; i++)
            put_word(row + 4 * i, signed_codes(u, word_at(from.at + r * from.pitch + 4 * i)));
        if (rest) { /* fields beyond K may hold anything */
            const uint32_t mask = (1u << rest * u->plan->bits) - 1;
            uint8_t *last = row + 4 * (words - 1);
            put_word(last, word_at(last) & mask);
        }
    }
}

/* Column 8c + j of word c is in field awq_field[j]. */
static const uint8_t awq_field[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static void repack_awq(const upload *u, view from)
{
    const uint64_t skip = u->first % 8;
    for (uint64_t c = 0; c < words_count(u); c++)
        for (uint64_t k0 = 0; k0 < u->w->k; k0 += 8) {
            const uint64_t depth = u->w->k - k0 < 8 ? u->w->k - k0 : 8;
            uint32_t in[8] = {0};
            for (uint64_t i = 0; i < depth; i++)
                in[i] = word_at(from.at + (k0 + i) * from.pitch + 4 * c);
            for (uint64_t j = 0; j < 8; j++) {
                const uint64_t row = 8 * c + j - skip; /* wraps before the tile's first */
                if (row >= u->rows)
                    continue;
                uint32_t out = 0;
                for (unsigned i = 0; i < 8; i++)
                    out |= (in[i] >> 4 * awq_field[j] & 15) << 4 * i;
                put_word(u->data + row * u->pitch + k0 / 2, out);
            }
        }
}

static void copy_rows(const upload *u, view from)
{
    const uint64_t bytes = u->plan->data.bytes;
    for (uint64_t r = 0; r < u->rows; r++) {
        uint8_t *row = u->data + r * u->pitch;
        memcpy(row, from.at + r * from.pitch, bytes);
        if (u->plan->bits == 4 && u->w->k % 2) /* a nibble beyond K may hold anything */
            row[bytes - 1] &= 15;
    }
}

static llmk_status take_codes(upload *u)
{
    const weights_table *t = &u->plan->data;
    const weights_packing packing = u->plan->format->packing;
    view from;
    if (packing == WEIGHTS_GPTQ)
        LLMK_TRY(take(u, t, 0, t->rows, 4 * u->first, 4 * u->rows, &u->data_stage, &from));
    else if (packing == WEIGHTS_AWQ)
        LLMK_TRY(
            take(u, t, 0, t->rows, 4 * words_begin(u), 4 * words_count(u), &u->data_stage, &from));
    else
        LLMK_TRY(take(u, t, u->first, u->rows, 0, t->bytes, &u->data_stage, &from));
    if (!from.at)
        return LLMK_OK;
    switch (packing) {
    case WEIGHTS_BLOCKS:
        repack_blocks(u, from);
        break;
    case WEIGHTS_W8:
    case WEIGHTS_W4:
        copy_rows(u, from);
        break;
    case WEIGHTS_GPTQ:
        repack_gptq(u, from);
        break;
    case WEIGHTS_AWQ:
        repack_awq(u, from);
        break;
    case WEIGHTS_CT:
        repack_ct(u, from);
        break;
    }
    return LLMK_OK;
}

/* ---- Scales and zeros ---- */

static uint32_t source_group(const upload *u, uint32_t group)
{
    return u->order->group ? u->order->group[group] : group;
}

static llmk_status take_scales(upload *u)
{
    const weights_plan *p = u->plan;
    const uint64_t size = p->scale_size;
    view from;
    if (p->by_column)
        LLMK_TRY(take(u, &p->scales, 0, p->source_groups, size * u->first, size * u->rows,
                      &u->scale_stage, &from));
    else
        LLMK_TRY(take(u, &p->scales, u->first, u->rows, 0, size * p->source_groups, &u->scale_stage,
                      &from));
    if (!from.at)
        return LLMK_OK;
    for (uint64_t r = 0; r < u->rows; r++)
        for (uint32_t g = 0; g < u->w->groups; g++) {
            const uint64_t s = source_group(u, g);
            const uint8_t *at =
                from.at + (p->by_column ? s * from.pitch + size * r : r * from.pitch + size * s);
            memcpy(u->scales + r * u->scale_pitch + size * g, at, size);
        }
    return LLMK_OK;
}

static llmk_status bad_zero(const upload *u, uint64_t row, uint32_t group, int value, int low,
                            int high)
{
    return llmk_fail(LLMK_CORRUPT_DATA,
                     "weights: the zero of row %" PRIu64 ", group %" PRIu32
                     " is %d; expected %d to "
                     "%d",
                     u->first + row, group, value, low, high);
}

/* The zero of the tile's row r, as the code that means 0: from 0 on. */
static llmk_status zero_of(const upload *u, view from, uint64_t r, uint32_t group, uint32_t *zero)
{
    const weights_plan *p = u->plan;
    const uint64_t n = u->first + r;
    const uint32_t field = (uint32_t)(n % p->fields), mask = p->bits == 4 ? 15 : 255;
    const uint64_t word = n / p->fields - words_begin(u);
    switch (p->format->packing) {
    case WEIGHTS_GPTQ: {
        /* The inverse of a subtraction from the whole word, borrows included. */
        const uint32_t one = p->format->format != LLMK_FORMAT_GPTQ_V1 ? 0
                             : p->bits == 4                           ? 0x11111111u
                                                                      : 0x01010101u;
        *zero = (word_at(from.at + group * from.pitch + 4 * word) + one) >> field * p->bits & mask;
        return LLMK_OK;
    }
    case WEIGHTS_AWQ:
        *zero = word_at(from.at + group * from.pitch + 4 * word) >> 4 * awq_field[field] & mask;
        return LLMK_OK;
    case WEIGHTS_CT: {
        if (!p->zeros_are_i8) {
            *zero = word_at(from.at + word * from.pitch + 4 * (uint64_t)group) >> field * p->bits &
                    mask;
            return LLMK_OK;
        }
        const int half = 1 << (p->bits - 1);
        const int v = (from.at[r * from.pitch + group] ^ 0x80) - 128; /* of an int8 */
        if (v < -half || v >= half)
            return bad_zero(u, r, group, v, -half, half - 1);
        *zero = (uint32_t)(v + half);
        return LLMK_OK;
    }
    default:
        *zero = from.at[r * from.pitch + group];
        return *zero <= mask ? LLMK_OK : bad_zero(u, r, group, (int)*zero, 0, (int)mask);
    }
}

static llmk_status take_zeros(upload *u)
{
    const weights_plan *p = u->plan;
    const weights_table *t = &p->zeros;
    view from;
    if (p->by_column)
        LLMK_TRY(
            take(u, t, 0, t->rows, 4 * words_begin(u), 4 * words_count(u), &u->zero_stage, &from));
    else if (p->format->packing == WEIGHTS_CT && !p->zeros_are_i8)
        LLMK_TRY(take(u, t, words_begin(u), words_count(u), 0, t->bytes, &u->zero_stage, &from));
    else
        LLMK_TRY(take(u, t, u->first, u->rows, 0, t->bytes, &u->zero_stage, &from));
    if (!from.at)
        return LLMK_OK;
    for (uint64_t r = 0; r < u->rows; r++)
        for (uint32_t g = 0; g < u->w->groups; g++) {
            uint32_t zero = 0;
            uint8_t *row = u->zeros + r * u->zero_pitch;
            LLMK_TRY(zero_of(u, from, r, source_group(u, g), &zero));
            if (p->bits == 4)
                row[g / 2] = (uint8_t)(row[g / 2] | zero << (g & 1) * 4);
            else
                row[g] = (uint8_t)(zero ^ 0x80);
        }
    return LLMK_OK;
}

/* ---- Act-order ---- */

static uint8_t code_at(const upload *u, const uint8_t *row, uint64_t i)
{
    return u->plan->bits == 4 ? row[i / 2] >> (i & 1) * 4 & 15 : row[i];
}

/* A filler has the code that means 0, whatever its group's scale. */
static uint8_t filler_of(const upload *u, uint64_t r, uint64_t i)
{
    if (!u->w->has_zeros)
        return u->plan->bits == 4 ? 8 : 0;
    return code_at(u, u->zeros + r * u->zero_pitch, i / u->w->group_size);
}

static void reorder(const upload *u)
{
    const uint64_t pitch = u->pitch;
    for (uint64_t r = 0; r < u->rows; r++) {
        uint8_t *row = u->data + r * pitch;
        memcpy(u->row, row, pitch);
        memset(row, 0, pitch);
        for (uint64_t i = 0; i < u->order->depth; i++) {
            const uint32_t from = u->order->column[i];
            const uint8_t code =
                from == WEIGHTS_FILLER ? filler_of(u, r, i) : code_at(u, u->row, from);
            if (u->plan->bits == 4)
                row[i / 2] = (uint8_t)(row[i / 2] | code << (i & 1) * 4);
            else
                row[i] = code;
        }
    }
}

/* Where a group's scale is 0, all of its codes become the one that means 0: sums that count in
 * units of the group's scale (linear_packed_turn.clh) then need no masks. */
static void silence(const upload *u)
{
    const llmk_weights *w = u->w;
    const uint64_t size = w->scale_pitch / w->block / w->groups;
    for (uint64_t r = 0; r < u->rows; r++)
        for (uint64_t g = 0; g < w->groups; g++) {
            const uint8_t *scale = u->scales + r * u->scale_pitch + g * size;
            uint8_t bits = scale[size - 1] & 0x7f;
            for (uint64_t b = 0; b + 1 < size; b++)
                bits |= scale[b];
            if (bits)
                continue;
            uint8_t *row = u->data + r * u->pitch;
            const uint64_t first = g * w->group_size, last = first + w->group_size;
            const uint8_t zero = filler_of(u, r, first);
            for (uint64_t i = first; i < last && i < w->depth; i++)
                row[i / 2] = (uint8_t)((row[i / 2] & 0xf0 >> (i & 1) * 4) | zero << (i & 1) * 4);
        }
}

/* Fillers read any column of x. */
static llmk_status put_order(const upload *u)
{
    const size_t bytes = (size_t)u->order->depth * sizeof(uint32_t);
    uint32_t *columns = malloc(bytes);
    if (!columns)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "weights: no memory for an order of %zu bytes", bytes);
    for (uint64_t i = 0; i < u->order->depth; i++)
        columns[i] = u->order->column[i] == WEIGHTS_FILLER ? 0 : u->order->column[i];
    const cl_int err = clEnqueueWriteBuffer(
        u->queue, u->w->order, CL_TRUE, (size_t)u->expert * bytes, bytes, columns, 0, NULL, NULL);
    free(columns);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(u->w->ctx, err, "clEnqueueWriteBuffer");
}

/* ---- Tiles ---- */

static llmk_status put(const upload *u, cl_mem buffer, uint64_t row, uint64_t pitch,
                       const uint8_t *from)
{
    if (!buffer)
        return LLMK_OK;
    const uint64_t block = u->w->block, blocks = (u->rows + block - 1) / block;
    const cl_int err =
        clEnqueueWriteBuffer(u->queue, buffer, CL_TRUE, (size_t)(row / block * pitch),
                             (size_t)(blocks * pitch), from, 0, NULL, NULL);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(u->w->ctx, err, "clEnqueueWriteBuffer");
}

static llmk_status upload_tile(upload *u, const llmk_segment *s)
{
    const llmk_weights *w = u->w;
    const uint64_t row = u->expert * w->n + u->first - s->first;
    weights_rows tile = {u->data, u->scales, u->zeros};
    memset(u->data, 0, u->rows * u->pitch);
    memset(u->zeros, 0, u->rows * u->zero_pitch);
    LLMK_TRY(take_codes(u));
    if (u->plan->scales.rows)
        LLMK_TRY(take_scales(u));
    if (w->has_zeros)
        LLMK_TRY(take_zeros(u));
    if (u->order->column)
        reorder(u);
    if (w->layout == LLMK_LAYOUT_U4_NV && w->groups > 1)
        silence(u);
    if (w->block > 1) {
        llmk_weights_block_rows(w, u->rows, &tile, &u->blocks);
        tile = u->blocks;
    }
    LLMK_TRY(put(u, s->data, row, w->pitch, tile.data));
    LLMK_TRY(put(u, s->scales, row, w->scale_pitch, tile.scales));
    return put(u, s->zeros, row, w->zero_pitch, tile.zeros);
}

static uint64_t widest_row(const upload *u)
{
    const weights_plan *plan = u->plan;
    uint64_t widest = u->pitch > u->scale_pitch ? u->pitch : u->scale_pitch;
    if (!plan->by_column && plan->data.source.buffer && plan->data.bytes > widest)
        widest = plan->data.bytes;
    return widest;
}

/* Rows of a tile: whole words of fields along N, and whole blocks. */
static uint64_t tile_rows(const llmk_weights *w, uint64_t widest)
{
    const uint64_t rows = TILE_BYTES / widest > 16 ? TILE_BYTES / widest / 16 * 16 : 16;
    return rows < w->n ? rows : w->n;
}

/* Memory for a tile; what has no bytes gets one. */
static llmk_status make_tile(upload *u, uint64_t rows)
{
    const llmk_weights *w = u->w;
    const uint64_t blocks = w->block > 1 ? (rows + w->block - 1) / w->block : 0;
    struct {
        uint8_t **at;
        uint64_t bytes;
    } parts[] = {{&u->data, rows * u->pitch},
                 {&u->scales, rows * u->scale_pitch},
                 {&u->zeros, rows * u->zero_pitch},
                 {&u->row, u->pitch},
                 {&u->blocks.data, blocks * w->pitch},
                 {&u->blocks.scales, blocks * w->scale_pitch},
                 {&u->blocks.zeros, blocks * w->zero_pitch}};
    for (size_t i = 0; i < LLMK_COUNT(parts); i++) {
        *parts[i].at = malloc(parts[i].bytes + 1);
        if (!*parts[i].at)
            return llmk_fail(LLMK_OUT_OF_MEMORY, "weights: no memory to repack %" PRIu64 " rows",
                             rows);
    }
    return LLMK_OK;
}

static llmk_status upload_all(upload *u)
{
    const llmk_weights *w = u->w;
    const uint64_t widest = widest_row(u);
    if (widest == 0 || w->n == 0)
        return LLMK_OK;
    const uint64_t rows = tile_rows(w, widest);
    LLMK_TRY(make_tile(u, rows));
    cl_int err;
    u->queue = clCreateCommandQueue(w->ctx->cl, w->ctx->caps.device, 0, &err);
    if (!u->queue)
        return llmk_fail_cl(w->ctx, err, "clCreateCommandQueue");
    if (w->order)
        LLMK_TRY(put_order(u));
    const uint64_t base = u->expert * w->n; /* the expert's first row */
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *s = &w->segments[i];
        const uint64_t begin = s->first > base ? s->first : base;
        const uint64_t end = s->first + s->rows < base + w->n ? s->first + s->rows : base + w->n;
        for (uint64_t row = begin; row < end; row += rows) {
            u->first = row - base;
            u->rows = end - row < rows ? end - row : rows;
            LLMK_TRY(upload_tile(u, s));
        }
    }
    return LLMK_OK;
}

llmk_status llmk_weights_upload(const llmk_weights *w, uint64_t expert, const weights_plan *plan,
                                const weights_order *order)
{
    upload u = {.w = w,
                .plan = plan,
                .order = order,
                .expert = expert,
                .pitch = w->pitch / w->block,
                .scale_pitch = w->scale_pitch / w->block,
                .zero_pitch = w->has_zeros ? llmk_weights_zero_row(w) : 0};
    const llmk_status status = upload_all(&u);
    if (u.queue)
        clReleaseCommandQueue(u.queue);
    free(u.data_stage.bytes);
    free(u.scale_stage.bytes);
    free(u.zero_stage.bytes);
    free(u.data);
    free(u.scales);
    free(u.zeros);
    free(u.row);
    free(u.blocks.data);
    free(u.blocks.scales);
    free(u.blocks.zeros);
    return status;
}

llmk_status llmk_weights_read_words(llmk_context *ctx, const llmk_source *source, uint64_t count,
                                    uint32_t *words)
{
    const size_t bytes = (size_t)count * sizeof *words;
    if (source->host) {
        memcpy(words, source->host, bytes);
        return LLMK_OK;
    }
    cl_int err;
    cl_command_queue queue = clCreateCommandQueue(ctx->cl, ctx->caps.device, 0, &err);
    if (!queue)
        return llmk_fail_cl(ctx, err, "clCreateCommandQueue");
    err = clEnqueueReadBuffer(queue, source->buffer, CL_TRUE, (size_t)source->offset, bytes, words,
                              0, NULL, NULL);
    clReleaseCommandQueue(queue);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(ctx, err, "clEnqueueReadBuffer");
}
