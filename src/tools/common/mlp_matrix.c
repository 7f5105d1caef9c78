/* mlp_matrix.c - rows of checkpoints' matrices on the host. */
#include "tools/common/mlp_matrix.h"

#include "formats/gguf_blocks.h"
#include "reference/checkpoint_reference.h"

#include <stdlib.h>
#include <string.h>

llmk_source mlp_matrix_source(mlp_matrix *m, const void *data, uint64_t bytes)
{
    m->bytes += bytes;
    return (llmk_source){.host = data, .size = bytes};
}

/* Files put words at any address, so that they are copied before they are read as words. */
static uint32_t *copy_words(const llmk_source *source, uint64_t count)
{
    uint32_t *words = malloc((size_t)count * sizeof *words + 1);
    if (words)
        memcpy(words, source->host, (size_t)count * sizeof *words);
    return words;
}

/* The reference's view of a description. It only reads. `g_idx` is what the description's source
 * holds; NULL: nothing. */
static linear_weights weights_of(const llmk_weights_desc *d, uint32_t *g_idx)
{
    linear_weights w = {.format = d->format,
                        .n = d->n,
                        .k = d->k,
                        .group = d->group_size,
                        .bits = d->bits,
                        .scale_type = d->scale_dtype};
    if (d->flags & LLMK_WEIGHTS_SYMMETRIC)
        w.zeros_as = LINEAR_SYMMETRIC;
    else if (d->zero_dtype == LLMK_I8)
        w.zeros_as = LINEAR_ZEROS_I8;
    linear_weights_set_sizes(&w);
    w.data = (uint8_t *)d->data.host;
    w.scales = (void *)d->scales.host;
    w.zeros = (uint8_t *)d->zeros.host;
    if (!w.zeros)
        w.zeros_bytes = 0;
    if (g_idx) {
        bool zero = true;
        for (uint64_t i = 0; i < d->k && zero; i++)
            zero = g_idx[i] == 0;
        w.g_idx = g_idx;
        w.order = zero ? LINEAR_ORDER_ZERO : LINEAR_ACT_ORDER;
    }
    return w;
}

static bool table_row(const mlp_matrix *m, uint64_t row, float *values)
{
    const llmk_source *order = &m->desc.g_idx;
    uint32_t *g_idx = order->host ? copy_words(order, m->desc.k) : NULL;
    double *exact = malloc((size_t)m->columns * sizeof *exact);
    const bool good = exact && (g_idx || !order->host);
    if (good) {
        const linear_weights w = weights_of(&m->desc, g_idx);
        checkpoint_row(&w, row, exact);
        for (uint64_t k = 0; k < m->columns; k++)
            values[k] = (float)exact[k];
    }
    free(exact);
    free(g_idx);
    return good;
}

bool mlp_matrix_row(const mlp_matrix *m, uint64_t row, float *values)
{
    static const struct {
        llmk_format format;
        llmk_gguf_type type;
    } types[] = {{LLMK_FORMAT_F32, LLMK_GGUF_F32},        {LLMK_FORMAT_F16, LLMK_GGUF_F16},
                 {LLMK_FORMAT_BF16, LLMK_GGUF_BF16},      {LLMK_FORMAT_GGUF_Q8_0, LLMK_GGUF_Q8_0},
                 {LLMK_FORMAT_GGUF_Q4_0, LLMK_GGUF_Q4_0}, {LLMK_FORMAT_GGUF_Q4_1, LLMK_GGUF_Q4_1},
                 {LLMK_FORMAT_GGUF_Q4_K, LLMK_GGUF_Q4_K}, {LLMK_FORMAT_GGUF_Q6_K, LLMK_GGUF_Q6_K}};
    if (checkpoint_has_tables(m->desc.format))
        return table_row(m, row, values);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].format == m->desc.format) {
            const size_t row_bytes = m->desc.data.size / (size_t)m->rows;
            return llmk_gguf_dequantise(types[i].type,
                                        (const char *)m->desc.data.host + row * row_bytes,
                                        (size_t)m->columns, values);
        }
    return false;
}
