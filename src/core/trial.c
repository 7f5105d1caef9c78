/* trial.c - self-tests: a variant run on small problems with poisoned outputs. */
#include "core/half.h"
#include "ops/operator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void trial_fail(llmk_trial *t, llmk_status status)
{
    if (t->status == LLMK_OK)
        t->status = status;
}

static void *trial_alloc(llmk_trial *t, size_t bytes)
{
    void *p = t->host_count < LLMK_COUNT(t->hosts) ? calloc(bytes ? bytes : 1, 1) : NULL;
    if (p)
        t->hosts[t->host_count++] = p;
    else
        trial_fail(t, llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a self-test"));
    return p;
}

cl_mem llmk_trial_buffer(llmk_trial *t, const void *data, size_t bytes)
{
    if (t->status != LLMK_OK)
        return NULL;
    if (t->buffer_count == LLMK_COUNT(t->buffers)) {
        trial_fail(t, llmk_fail(LLMK_INTERNAL, "too many tensors in a self-test"));
        return NULL;
    }
    cl_int err;
    cl_mem buffer = clCreateBuffer(t->ctx->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes,
                                   (void *)data, &err);
    if (!buffer) {
        trial_fail(t, llmk_fail_cl(t->ctx, err, "clCreateBuffer"));
        return NULL;
    }
    t->buffers[t->buffer_count++] = buffer;
    return buffer;
}

/* A small generator, the same on every host: Numerical Recipes' LCG, upper bits. */
static float next_uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static float stored(llmk_dtype dtype, float v, void *out)
{
    if (dtype == LLMK_F32) {
        memcpy(out, &v, sizeof v);
        return v;
    }
    const uint16_t bits = dtype == LLMK_F16 ? llmk_f32_to_f16(v) : llmk_f32_to_bf16(v);
    memcpy(out, &bits, sizeof bits);
    return dtype == LLMK_F16 ? llmk_f16_to_f32(bits) : llmk_bf16_to_f32(bits);
}

llmk_tensor llmk_trial_input(llmk_trial *t, llmk_dtype dtype, uint64_t rows, uint64_t cols,
                             uint32_t seed, float scale, const float **host)
{
    const size_t count = (size_t)(rows * cols), size = llmk_dtype_bits(dtype) / 8;
    float *values = trial_alloc(t, count * sizeof *values);
    unsigned char *bytes = trial_alloc(t, count * size);
    uint32_t state = seed * 2654435761u + 12345u;
    for (size_t i = 0; t->status == LLMK_OK && i < count; i++)
        values[i] = stored(dtype, scale * next_uniform(&state), bytes + i * size);
    if (host)
        *host = values;
    return llmk_matrix(llmk_trial_buffer(t, bytes, count * size), dtype, rows, cols);
}

llmk_tensor llmk_trial_output(llmk_trial *t, llmk_dtype dtype, uint64_t rows, uint64_t cols)
{
    const size_t bytes = (size_t)(rows * cols * llmk_dtype_bits(dtype) + 7) / 8;
    void *poison = trial_alloc(t, bytes);
    if (poison)
        memset(poison, 0xff, bytes); /* NaN in every float type */
    return llmk_matrix(llmk_trial_buffer(t, poison, bytes), dtype, rows, cols);
}

double *llmk_trial_doubles(llmk_trial *t, size_t count)
{
    return trial_alloc(t, count * sizeof(double));
}

void llmk_trial_run(llmk_trial *t, const void *args)
{
    union {
        max_align_t align;
        unsigned char bytes[LLMK_PROBLEM_SIZE];
    } problem;
    if (t->status != LLMK_OK)
        return;
    memset(&problem, 0, t->op->problem_size);
    llmk_reason why = {""};
    llmk_status status = t->op->check(t->ctx, args, false, &problem);
    if (status == LLMK_OK && !t->variant->supports(t->ctx, &problem, &why))
        status = llmk_fail(LLMK_INTERNAL, "%s:%s does not support its self-test: %s", t->op->name,
                           t->variant->name, why.text);
    const bool fits =
        t->config && (!t->op->config_fits || t->op->config_fits(t->ctx, &problem, t->config, &why));
    t->config_ran |= fits;
    if (status == LLMK_OK)
        status = llmk_launch_variant(t->op, (llmk_choice){t->variant, fits ? t->config : NULL},
                                     t->ctx, t->queue, &problem, NULL, false);
    if (status == LLMK_OK) {
        const cl_int err = clFinish(t->queue);
        if (err != CL_SUCCESS) { /* whatever it is called, this context is not to be trusted */
            status = llmk_fail_cl(t->ctx, err, "clFinish");
            atomic_store(&t->ctx->lost, true);
        }
    }
    trial_fail(t, status);
}

void llmk_trial_compare(llmk_trial *t, const char *name, const llmk_tensor *tensor,
                        const double *expected, double rtol, double atol)
{
    const size_t count = (size_t)(tensor->dim[0] * (tensor->rank > 1 ? tensor->dim[1] : 1));
    const size_t size = llmk_dtype_bits(tensor->dtype) / 8;
    unsigned char *bytes = t->status == LLMK_OK ? trial_alloc(t, count * size) : NULL;
    if (t->status != LLMK_OK || !bytes)
        return;
    const cl_int err = clEnqueueReadBuffer(t->queue, tensor->buffer, CL_TRUE, 0, count * size,
                                           bytes, 0, NULL, NULL);
    if (err != CL_SUCCESS) {
        trial_fail(t, llmk_fail_cl(t->ctx, err, "clEnqueueReadBuffer"));
        atomic_store(&t->ctx->lost, true);
        return;
    }
    const double epsilon = tensor->dtype == LLMK_F16    ? 1.0 / 2048
                           : tensor->dtype == LLMK_BF16 ? 1.0 / 256
                                                        : 1.0 / 16777216;
    for (size_t i = 0; i < count; i++) {
        double got;
        uint16_t half = 0;
        float single = 0;
        int32_t whole = 0;
        memcpy(&half, bytes + i * size, size < 2 ? size : 2);
        switch (tensor->dtype) {
        case LLMK_F16:
            got = llmk_f16_to_f32(half);
            break;
        case LLMK_BF16:
            got = llmk_bf16_to_f32(half);
            break;
        case LLMK_F32:
            memcpy(&single, bytes + i * size, sizeof single);
            got = single;
            break;
        case LLMK_I32:
            memcpy(&whole, bytes + i * size, sizeof whole);
            got = whole;
            break;
        case LLMK_I8:
            got = (int8_t)bytes[i];
            break;
        default:
            got = bytes[i];
            break;
        }
        const double bound = atol + (rtol + epsilon) * fabs(expected[i]);
        if (isnan(expected[i]) ? !isnan(got) : !(fabs(got - expected[i]) <= bound)) {
            trial_fail(t, llmk_fail(LLMK_SELFTEST_FAILED,
                                    "self-test: %s[%zu] is %.9g; expected %.9g within %.3g", name,
                                    i, got, expected[i], bound));
            return;
        }
    }
}

llmk_status llmk_trial_of(llmk_context *ctx, const llmk_operator *op, llmk_choice choice,
                          const void *problem, bool *ran)
{
    llmk_trial t = {
        .op = op, .variant = choice.variant, .config = choice.config, .status = LLMK_OK};
    *ran = false;
    LLMK_TRY(llmk_context_trial(ctx, &t.ctx));
    cl_int err;
    t.queue = clCreateCommandQueue(t.ctx->cl, t.ctx->caps.device, 0, &err);
    if (!t.queue)
        return llmk_fail_cl(t.ctx, err, "clCreateCommandQueue");
    *ran = true;
    const llmk_status status = op->self_test(&t, problem);
    trial_fail(&t, status);
    if (t.status == LLMK_OK && t.config && !t.config_ran)
        trial_fail(&t, llmk_fail(LLMK_SELFTEST_FAILED, "no self-test of %s:%s has what %s serves",
                                 op->name, choice.variant->name, choice.config->name));
    clFinish(t.queue);
    for (size_t i = 0; i < t.buffer_count; i++)
        clReleaseMemObject(t.buffers[i]);
    for (size_t i = 0; i < t.host_count; i++)
        free(t.hosts[i]);
    clReleaseCommandQueue(t.queue);
    return t.status;
}
