/*
 * weights.c - weights in the caller's format, repacked once into the layout that kernels read.
 *
 * Rows pass through a staging buffer of bounded size: read back if the source is a buffer,
 * repacked, uploaded. Hosts are little-endian, as the formats and all OpenCL devices of interest
 * are.
 */
#include "core/weights.h"

#include "core/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

#define STAGE_BYTES ((uint64_t)4 << 20)
#define MAX_EDGE    (uint64_t) INT32_MAX /* of n and k: offsets within a row are 32-bit */

/* ---- Formats and layouts ---- */

typedef struct layout_traits {
    const char *name;
    uint32_t bits;  /* of a weight */
    uint32_t chunk; /* rows are zero-filled to a multiple of so many weights */
} layout_traits;

static const layout_traits layouts[] = {
    [LLMK_LAYOUT_F32_PORTABLE] = {"f32/portable", 32, 16},
    [LLMK_LAYOUT_F16_PORTABLE] = {"f16/portable", 16, 16},
    [LLMK_LAYOUT_BF16_PORTABLE] = {"bf16/portable", 16, 16},
    [LLMK_LAYOUT_S8_PORTABLE] = {"s8/portable", 8, 16},
    [LLMK_LAYOUT_U4_PORTABLE] = {"u4-affine/portable", 4, 32},
};

const char *llmk_layout_name(llmk_layout layout)
{
    return (size_t)layout < LLMK_COUNT(layouts) ? layouts[layout].name : NULL;
}

/* Repacks one block of a row. */
typedef void (*repack_fn)(const uint8_t *block, uint8_t *codes, uint8_t *scale);

typedef struct format_traits {
    const char *name;
    repack_fn repack; /* NULL: codes as they are */
    llmk_format format;
    uint32_t block, block_bytes; /* weights in a block along K; its bytes */
    llmk_layout layout;
    llmk_scale_kind scale_kind;
    float zero;
} format_traits;

static void repack_q8_0(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block, 2);
    memcpy(codes, block + 2, 32);
}

/* Byte j of a GGUF block holds weights j and j + 16; here byte j holds weights 2j and 2j + 1. */
static void repack_nibbles(const uint8_t *in, uint8_t *codes)
{
    for (size_t j = 0; j < 8; j++) {
        const uint8_t a = in[2 * j], b = in[2 * j + 1];
        codes[j] = (uint8_t)((a & 15) | b << 4);
        codes[8 + j] = (uint8_t)(a >> 4 | (b & 0xf0));
    }
}

static void repack_q4_0(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block, 2);
    repack_nibbles(block + 2, codes);
}

static void repack_q4_1(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block, 4); /* scale, minimum */
    repack_nibbles(block + 4, codes);
}

static const format_traits formats[] = {
    {"f32", NULL, LLMK_FORMAT_F32, 1, 4, LLMK_LAYOUT_F32_PORTABLE, LLMK_SCALE_NONE, 0},
    {"f16", NULL, LLMK_FORMAT_F16, 1, 2, LLMK_LAYOUT_F16_PORTABLE, LLMK_SCALE_NONE, 0},
    {"bf16", NULL, LLMK_FORMAT_BF16, 1, 2, LLMK_LAYOUT_BF16_PORTABLE, LLMK_SCALE_NONE, 0},
    {"w8", NULL, LLMK_FORMAT_W8, 1, 1, LLMK_LAYOUT_S8_PORTABLE, LLMK_SCALE_F32, 0},
    {"q8_0", repack_q8_0, LLMK_FORMAT_GGUF_Q8_0, 32, 34, LLMK_LAYOUT_S8_PORTABLE, LLMK_SCALE_F16,
     0},
    {"q4_0", repack_q4_0, LLMK_FORMAT_GGUF_Q4_0, 32, 18, LLMK_LAYOUT_U4_PORTABLE, LLMK_SCALE_F16,
     8},
    {"q4_1", repack_q4_1, LLMK_FORMAT_GGUF_Q4_1, 32, 20, LLMK_LAYOUT_U4_PORTABLE,
     LLMK_SCALE_F16_MIN, 0},
};

static const format_traits *find_format(llmk_format format)
{
    for (size_t i = 0; i < LLMK_COUNT(formats); i++)
        if (formats[i].format == format)
            return &formats[i];
    return NULL;
}

const char *llmk_format_name(llmk_format format)
{
    const format_traits *f = find_format(format);
    return f ? f->name : NULL;
}

static uint32_t scale_bytes(llmk_scale_kind kind)
{
    return kind == LLMK_SCALE_NONE ? 0 : kind == LLMK_SCALE_F16 ? 2 : 4;
}

/* ---- The description ---- */

static llmk_status check_buffer(llmk_context *ctx, const char *name, const llmk_source *source)
{
    cl_mem_object_type type = 0;
    cl_context owner = NULL;
    size_t size = 0;
    if (clGetMemObjectInfo(source->buffer, CL_MEM_TYPE, sizeof type, &type, NULL) != CL_SUCCESS ||
        type != CL_MEM_OBJECT_BUFFER)
        return llmk_fail(LLMK_INVALID_BUFFER, "weights: %s.buffer is not a buffer", name);
    clGetMemObjectInfo(source->buffer, CL_MEM_CONTEXT, sizeof owner, &owner, NULL);
    clGetMemObjectInfo(source->buffer, CL_MEM_SIZE, sizeof size, &size, NULL);
    if (owner != ctx->cl)
        return llmk_fail(LLMK_INVALID_BUFFER, "weights: %s.buffer belongs to another context",
                         name);
    if (source->offset > size || source->size > size - source->offset)
        return llmk_fail(LLMK_BUFFER_TOO_SMALL,
                         "weights: %s.offset %" PRIu64 " and size %" PRIu64
                         " reach beyond the buffer of %zu bytes",
                         name, source->offset, source->size, size);
    return LLMK_OK;
}

static llmk_status check_source(llmk_context *ctx, const char *name, const llmk_source *source,
                                uint64_t needed)
{
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
                         "weights: %s.size is %" PRIu64 " bytes; expected at least %" PRIu64, name,
                         source->size, needed);
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

/* Checks `desc`, fills in its row_bytes, and sets everything in `w` but the segments. */
static llmk_status describe(llmk_context *ctx, llmk_weights_desc *desc, llmk_weights *w)
{
    const format_traits *f = find_format(desc->format);
    if (!f)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: format is %d, no weight format",
                         (int)desc->format);
    if (desc->flags != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: flags is 0x%x; expected 0", desc->flags);
    if (desc->n > MAX_EDGE || desc->k > MAX_EDGE)
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: n is %" PRIu64 " and k is %" PRIu64 "; at most %" PRIu64 " each",
                         desc->n, desc->k, MAX_EDGE);
    if (desc->k % f->block != 0)
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: k is %" PRIu64 "; expected a multiple of %u for %s", desc->k,
                         f->block, f->name);
    if (desc->format != LLMK_FORMAT_W8 && desc->group_size != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "weights: group_size is %" PRIu64 "; expected 0 for %s", desc->group_size,
                         f->name);
    const uint64_t packed = desc->k / f->block * f->block_bytes;
    if (desc->row_bytes != 0 && desc->row_bytes < packed)
        return llmk_fail(LLMK_INVALID_STRIDE,
                         "weights: row_bytes is %" PRIu64 "; a row of %s has %" PRIu64 " bytes",
                         desc->row_bytes, f->name, packed);
    if (desc->row_bytes == 0)
        desc->row_bytes = packed;

    const layout_traits *layout = &layouts[f->layout];
    w->ctx = ctx;
    w->format = f->format;
    w->layout = f->layout;
    w->scale_kind = f->scale_kind;
    w->zero = f->zero;
    w->n = desc->n;
    w->k = desc->k;
    w->described_group = f->block > 1 ? f->block : desc->group_size;
    const uint64_t group = w->described_group ? w->described_group : desc->k;
    w->group_size = (uint32_t)(group > MAX_EDGE ? MAX_EDGE : group ? group : 1);
    w->groups = (uint32_t)((desc->k + w->group_size - 1) / w->group_size);
    w->pitch = (desc->k + layout->chunk - 1) / layout->chunk * layout->chunk * layout->bits / 8;
    w->scale_pitch = (uint64_t)w->groups * scale_bytes(f->scale_kind);

    uint64_t data_bytes, scales_bytes;
    if (!span_bytes(desc->n, desc->row_bytes, packed, &data_bytes) ||
        __builtin_mul_overflow(desc->n, w->pitch + w->scale_pitch, &w->device_bytes))
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: the bytes of n %" PRIu64 " x k %" PRIu64 ", row_bytes %" PRIu64
                         ", do not fit 64 bits",
                         desc->n, desc->k, desc->row_bytes);
    LLMK_TRY(check_source(ctx, "data", &desc->data, data_bytes));
    if (desc->format == LLMK_FORMAT_W8) {
        span_bytes(desc->n, w->scale_pitch, w->scale_pitch, &scales_bytes);
        LLMK_TRY(check_source(ctx, "scales", &desc->scales, scales_bytes));
    } else if (desc->scales.host || desc->scales.buffer) {
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: scales must be absent for %s", f->name);
    }
    return LLMK_OK;
}

/* ---- Repacking and upload ---- */

typedef struct upload {
    llmk_context *ctx;
    cl_command_queue queue;
    uint8_t *source; /* rows read back from a buffer */
    uint8_t *data, *scales;
    uint64_t rows; /* that fit */
} upload;

/* `bytes` bytes of a source from `offset` on: where they are, or read back into `stage`. */
static llmk_status take_bytes(const upload *u, const llmk_source *source, uint64_t offset,
                              uint64_t bytes, uint8_t *stage, const uint8_t **at)
{
    *at = source->host ? (const uint8_t *)source->host + offset : stage;
    if (source->host || bytes == 0)
        return LLMK_OK;
    const cl_int err = clEnqueueReadBuffer(u->queue, source->buffer, CL_TRUE,
                                           source->offset + offset, bytes, stage, 0, NULL, NULL);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(u->ctx, err, "clEnqueueReadBuffer");
}

static llmk_status put_bytes(const upload *u, cl_mem buffer, uint64_t offset, uint64_t bytes,
                             const uint8_t *from)
{
    if (bytes == 0)
        return LLMK_OK;
    const cl_int err =
        clEnqueueWriteBuffer(u->queue, buffer, CL_TRUE, offset, bytes, from, 0, NULL, NULL);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(u->ctx, err, "clEnqueueWriteBuffer");
}

static void repack_row(const format_traits *f, const llmk_weights *w, const uint8_t *row,
                       uint8_t *data, uint8_t *scales)
{
    const uint64_t blocks = w->k / f->block;
    if (!f->repack) {
        const uint64_t bytes = blocks * f->block_bytes;
        if (row) /* else there are no bytes */
            memcpy(data, row, bytes);
        memset(data + bytes, 0, w->pitch - bytes);
        return;
    }
    /* A block is a group here, and pitch has no padding: chunks are at most as long. */
    const uint32_t code_bytes = f->block * layouts[w->layout].bits / 8;
    for (uint64_t b = 0; b < blocks; b++)
        f->repack(row + b * f->block_bytes, data + b * code_bytes,
                  scales + b * scale_bytes(w->scale_kind));
}

/* Rows segment->first + row ... + rows - 1 into the segment's buffers. */
static llmk_status upload_rows(const upload *u, const llmk_weights *w,
                               const llmk_weights_desc *desc, const llmk_segment *segment,
                               uint64_t row, uint64_t rows)
{
    const format_traits *f = find_format(w->format);
    const uint64_t first = segment->first + row, packed = w->k / f->block * f->block_bytes;
    const uint8_t *from, *scales = u->scales;
    LLMK_TRY(take_bytes(u, &desc->data, first * desc->row_bytes,
                        (rows - 1) * desc->row_bytes + packed, u->source, &from));
    for (uint64_t r = 0; r < rows; r++)
        repack_row(f, w, from + r * desc->row_bytes, u->data + r * w->pitch,
                   u->scales + r * w->scale_pitch);
    if (w->format == LLMK_FORMAT_W8)
        LLMK_TRY(take_bytes(u, &desc->scales, first * w->scale_pitch, rows * w->scale_pitch,
                            u->scales, &scales));
    LLMK_TRY(put_bytes(u, segment->data, row * w->pitch, rows * w->pitch, u->data));
    return put_bytes(u, segment->scales, row * w->scale_pitch, rows * w->scale_pitch, scales);
}

static llmk_status upload_all(upload *u, const llmk_weights *w, const llmk_weights_desc *desc)
{
    uint64_t widest = w->pitch > w->scale_pitch ? w->pitch : w->scale_pitch;
    if (desc->data.buffer && desc->row_bytes > widest)
        widest = desc->row_bytes;
    if (widest == 0 || w->n == 0)
        return LLMK_OK;
    u->rows = STAGE_BYTES / widest > 0 ? STAGE_BYTES / widest : 1;
    if (u->rows > w->n)
        u->rows = w->n;
    u->data = malloc(u->rows * w->pitch + 1);
    u->scales = malloc(u->rows * w->scale_pitch + 1);
    u->source = desc->data.buffer ? malloc(u->rows * desc->row_bytes + 1) : NULL;
    if (!u->data || !u->scales || (desc->data.buffer && !u->source))
        return llmk_fail(LLMK_OUT_OF_MEMORY, "weights: no memory to repack %" PRIu64 " rows",
                         u->rows);
    cl_int err;
    u->queue = clCreateCommandQueue(u->ctx->cl, u->ctx->caps.device, 0, &err);
    if (!u->queue)
        return llmk_fail_cl(u->ctx, err, "clCreateCommandQueue");
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *s = &w->segments[i];
        for (uint64_t row = 0; row < s->rows; row += u->rows) {
            const uint64_t left = s->rows - row;
            LLMK_TRY(upload_rows(u, w, desc, s, row, left < u->rows ? left : u->rows));
        }
    }
    return LLMK_OK;
}

/* ---- Segments ---- */

/* Rows of a segment whose buffers stay within max_buffer; whole tiles of 64 where it can be. */
static llmk_status segment_rows(const llmk_weights *w, uint64_t max_buffer, uint64_t *rows)
{
    const uint64_t widest = w->pitch > w->scale_pitch ? w->pitch : w->scale_pitch;
    *rows = w->n;
    if (widest == 0 || w->n <= max_buffer / widest)
        return LLMK_OK;
    *rows = max_buffer / widest;
    if (*rows == 0)
        return llmk_fail(LLMK_OUT_OF_DEVICE_MEMORY,
                         "weights: a row takes %" PRIu64
                         " bytes; this device's largest buffer has %" PRIu64,
                         widest, max_buffer);
    if (*rows > 64)
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
    for (uint64_t first = 0; first < w->n; first += rows) {
        llmk_segment *s = &w->segments[w->segment_count++];
        s->first = first;
        s->rows = w->n - first < rows ? w->n - first : rows;
        LLMK_TRY(make_buffer(w->ctx, s->rows * w->pitch, &s->data));
        LLMK_TRY(make_buffer(w->ctx, s->rows * w->scale_pitch, &s->scales));
    }
    return LLMK_OK;
}

llmk_status llmk_weights_create_split(llmk_context *ctx, const llmk_weights_desc *desc,
                                      uint64_t max_buffer, llmk_weights **out)
{
    llmk_weights_desc d;
    llmk_weights shape = {0};
    uint64_t rows = 0;
    if (!out)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: out is NULL");
    *out = NULL;
    if (!ctx)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "weights: ctx is NULL");
    LLMK_TRY(llmk_context_usable(ctx));
    LLMK_TRY(llmk_take_args("weights", desc, sizeof *desc, sizeof d, &d));
    LLMK_TRY(describe(ctx, &d, &shape));
    LLMK_TRY(segment_rows(&shape, max_buffer, &rows));

    const size_t segments = rows ? (size_t)((shape.n + rows - 1) / rows) : 0;
    llmk_weights *w = calloc(1, sizeof *w + segments * sizeof w->segments[0]);
    if (!w)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "weights: out of memory");
    *w = shape;
    llmk_context_retain(ctx);

    upload u = {.ctx = ctx};
    llmk_status status = make_segments(w, rows);
    if (status == LLMK_OK)
        status = upload_all(&u, w, &d);
    if (u.queue)
        clReleaseCommandQueue(u.queue);
    free(u.source);
    free(u.data);
    free(u.scales);
    if (status == LLMK_OK)
        *out = w;
    else
        llmk_weights_free(w);
    return status;
}

llmk_status llmk_weights_create(llmk_context *ctx, const llmk_weights_desc *desc,
                                llmk_weights **out)
{
    return llmk_weights_create_split(ctx, desc, ctx ? ctx->caps.max_alloc_bytes : 0, out);
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
    }
    llmk_context_free(weights->ctx);
    free(weights);
}

llmk_status llmk_weights_get_info(const llmk_weights *weights, llmk_weights_info *info)
{
    if (!weights || !info || info->struct_size != sizeof *info)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "llmk_weights_get_info: weights or info is NULL, or info's struct_size is "
                         "not %zu (LLMK_INIT)",
                         sizeof *info);
    info->format = weights->format;
    info->layout = llmk_layout_name(weights->layout);
    info->n = weights->n;
    info->k = weights->k;
    info->group_size = weights->described_group;
    info->device_bytes = weights->device_bytes;
    return LLMK_OK;
}
