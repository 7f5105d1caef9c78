/* coopmat_loop.c - spirv/coopmat.ll with matrices of 16 x 16 in memory, against the sums it is to
 * compute: small whole numbers, so that they are exact. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS   64
#define DEPTH  64
#define PITCH  72
#define STAGES 3
#define PART   32

typedef _Float16 half;
typedef struct matrix {
    float v[16][16];
} matrix;

static half tiles[2 * ROWS * PITCH];
static unsigned barriers, stages;

static int x_at(int row, int k)
{
    return (row * 7 + k * 5) % 13 - 6;
}
static int w_at(int row, int k)
{
    return (row * 11 + k * 3) % 17 - 8;
}

static matrix *make(void)
{
    matrix *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    return m;
}

/* ---- What the loop calls, by the names that llvm-spirv knows ---- */

static matrix *load(const half *p, unsigned layout, unsigned stride)
{
    matrix *m = make();
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 16; j++)
            m->v[i][j] = (float)(layout ? p[j * stride + i] : p[i * stride + j]);
    return m;
}
matrix *_Z32__spirv_CooperativeMatrixLoadKHR_a(const half *p, unsigned layout, unsigned stride)
{
    return load(p, layout, stride);
}
matrix *_Z32__spirv_CooperativeMatrixLoadKHR_b(const half *p, unsigned layout, unsigned stride)
{
    return load(p, layout, stride);
}
matrix *_Z26__spirv_CompositeConstruct(float value)
{
    matrix *m = make();
    for (unsigned i = 0; i < 256; i++)
        m->v[i / 16][i % 16] = value;
    return m;
}
matrix *_Z34__spirv_CooperativeMatrixMulAddKHR(const matrix *a, const matrix *b, const matrix *c)
{
    matrix *m = make();
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 16; j++) {
            m->v[i][j] = c->v[i][j];
            for (unsigned k = 0; k < 16; k++)
                m->v[i][j] += a->v[i][k] * b->v[k][j];
        }
    return m;
}
void _Z33__spirv_CooperativeMatrixStoreKHR(float *p, const matrix *m, unsigned layout,
                                           unsigned stride)
{
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 16; j++)
            p[layout ? j * stride + i : i * stride + j] = m->v[i][j];
}
void _Z7barrierj(unsigned flags)
{
    if (flags != 1)
        abort();
    barriers++;
}
void coopmat_stage(const void *c, half *to, unsigned t)
{
    if (c != &stages || t != stages++ || barriers != 2 * t + 1)
        abort();
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < DEPTH; k++) {
            to[r * PITCH + k] = (half)x_at(r, (int)t * DEPTH + k);
            to[(ROWS + r) * PITCH + k] = (half)w_at(r, (int)t * DEPTH + k);
        }
}

void coopmat_multiply(const void *c, half *to, unsigned count, unsigned part);

static int wrong(unsigned part)
{
    int count = 0;
    for (int i = 0; i < PART; i++)
        for (int j = 0; j < PART; j++) {
            int expected = 0;
            float got;
            for (int k = 0; k < STAGES * DEPTH; k++)
                expected +=
                    x_at(PART * (int)(part % 2) + i, k) * w_at(PART * (int)(part / 2) + j, k);
            memcpy(&got, (const float *)(const void *)tiles + part * PART * PART + i * PART + j,
                   sizeof got);
            count += got != (float)expected;
        }
    return count;
}

int main(void)
{
    int failed = 0;
    for (unsigned part = 0; part < 4; part++) {
        barriers = stages = 0;
        memset(tiles, 0xff, sizeof tiles);
        coopmat_multiply(&stages, tiles, STAGES, part);
        const int errors = wrong(part) + (barriers != 2 * STAGES + 1) + (stages != STAGES);
        printf("part %u: %s\n", part, errors ? "WRONG" : "right");
        failed += errors != 0;
    }
    return failed != 0;
}
