/* bench_clblast.c - CLBlast's SGEMM and HGEMM on the product of a dense linear case. */
#include "tools/common/bench_clblast.h"

#ifdef LLMK_HAVE_CLBLAST

#include <clblast_c.h>
#include <string.h>

#define MOST_SETS 64

typedef struct product {
    cl_command_queue queue;
    bool half;
    size_t m, n, k;
    cl_mem x[MOST_SETS], w[MOST_SETS], y[MOST_SETS];
    CLBlastStatusCode status;
} product;

/* y = x W^T, all row-major. */
static bool enqueue_product(void *user, size_t set)
{
    product *p = user;
    p->status = p->half
                    ? CLBlastHgemm(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes,
                                   p->m, p->n, p->k, 0x3c00, p->x[set], 0, p->k, p->w[set], 0, p->k,
                                   0, p->y[set], 0, p->n, &p->queue, NULL)
                    : CLBlastSgemm(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes,
                                   p->m, p->n, p->k, 1, p->x[set], 0, p->k, p->w[set], 0, p->k, 0,
                                   p->y[set], 0, p->n, &p->queue, NULL);
    return p->status == CLBlastSuccess;
}

static cl_mem filled(bench_session *s, size_t elements, bool half)
{
    const cl_float number = 0.125f;
    const cl_half half_number = 0x3000;
    const size_t size = half ? sizeof half_number : sizeof number;
    cl_mem buffer = clCreateBuffer(llmk_context_cl_context(s->ctx), CL_MEM_READ_WRITE,
                                   elements * size, NULL, NULL);
    if (buffer)
        clEnqueueFillBuffer(s->queue, buffer, half ? (const void *)&half_number : &number, size, 0,
                            elements * size, 0, NULL, NULL);
    return buffer;
}

static bool find(const case_line *line, const char *name, double *value)
{
    for (size_t i = 0; i < line->op->field_count; i++)
        if (!strcmp(line->op->fields[i].name, name)) {
            *value = line->value[i];
            return true;
        }
    return false;
}

/* Whether the case is a product of one dense type. */
static bool is_dense(const case_line *line, product *p)
{
    double m, n, k, x, y, w;
    if (line->op->op != LLMK_OP_LINEAR || !find(line, "m", &m) || !find(line, "n", &n) ||
        !find(line, "k", &k) || !find(line, "x", &x) || !find(line, "y", &y) ||
        !find(line, "w", &w))
        return false;
    *p = (product){.half = x == LLMK_F16, .m = (size_t)m, .n = (size_t)n, .k = (size_t)k};
    return m > 0 && n > 0 && k > 0 && x == y &&
           ((x == LLMK_F32 && w == LLMK_FORMAT_F32) || (x == LLMK_F16 && w == LLMK_FORMAT_F16));
}

/* CLBlast goes by the extension string. */
static bool has_half(const bench_session *s)
{
    char extensions[8192] = "";
    clGetDeviceInfo(llmk_context_cl_device(s->ctx), CL_DEVICE_EXTENSIONS, sizeof extensions - 1,
                    extensions, NULL);
    return strstr(extensions, "cl_khr_fp16") != NULL;
}

size_t bench_clblast_time(bench_session *s, const case_line *line, bench_row *row)
{
    product p;
    char error[512];
    if (!is_dense(line, &p) || (p.half && !has_half(s)) ||
        !case_possible(s->ctx, line, CASE_TO_TIME, error, sizeof error))
        return 0;
    const uint64_t size = p.half ? 2 : 4;
    *row = (bench_row){.variant = "CLBlast", .matrix = p.half};
    case_print(line, row->text, sizeof row->text);
    row->bytes_read = size * (p.m * p.k + p.n * p.k);
    row->bytes_written = size * p.m * p.n;
    row->flops = 2.0 * (double)p.m * (double)p.n * (double)p.k;
    row->sets = bench_choose_sets(&s->info, row->bytes_read + row->bytes_written);
    row->rotation_bytes = row->sets * (row->bytes_read + row->bytes_written);
    p.queue = s->queue;
    for (size_t i = 0; i < row->sets; i++) {
        p.x[i] = filled(s, p.m * p.k, p.half);
        p.w[i] = filled(s, p.n * p.k, p.half);
        p.y[i] = filled(s, p.m * p.n, p.half);
    }
    const bench_work work = {s->queue, enqueue_product, &p, row->sets, NULL};
    if (!bench_measure(&work, s->options.seconds, &row->timing)) {
        snprintf(row->error, sizeof row->error, "CLBlast's status is %d%s", (int)p.status,
                 p.status == CLBlastNoHalfPrecision ? " (the device offers no half precision)"
                                                    : "");
        row->skipped = true;
    } else {
        row->copy_us = bench_probe_copy_us(s->probe, row->bytes_read + row->bytes_written,
                                           s->options.seconds / 4);
    }
    for (size_t i = 0; i < row->sets; i++) {
        if (p.x[i])
            clReleaseMemObject(p.x[i]);
        if (p.w[i])
            clReleaseMemObject(p.w[i]);
        if (p.y[i])
            clReleaseMemObject(p.y[i]);
    }
    return 1;
}

const char *bench_clblast_note(void)
{
    return NULL;
}

#else

size_t bench_clblast_time(bench_session *s, const case_line *line, bench_row *row)
{
    (void)s, (void)line, (void)row;
    return 0;
}

const char *bench_clblast_note(void)
{
    return "CLBlast: not found when this was built; dense products have no rows of it";
}

#endif
