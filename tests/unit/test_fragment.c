/*
 * test_fragment.c - matrix units behind the fragment interface (cl/common/fragment.clh).
 *
 * On every device the emulated units are run; on a device with the matrix unit of a back end, the
 * real instructions too, so that the lane maps are compared with the hardware. Three things are
 * checked, all exactly, with integers: the product; that the loads put every operand element where
 * the maps say; that what an instruction made of its registers is the product by the maps.
 *
 * `test_fragment --mutate` changes every entry of every map, one at a time, and demands that the
 * product goes wrong each time: tests/mutate_lane_maps.sh.
 */
#include "core/core.h"
#include "core/embed.h"
#include "core/half.h"
#include "llmk_cmocka.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define constant static const
#define ushort   cl_ushort
#include "../../cl/common/fragment_maps.clh"
#undef constant
#undef ushort

extern const llmk_embedded_file llmk_test_kernels[]; /* tests/kernels/fragment.cl */

typedef enum type { F16, BF16, S8 } type;

/* A fragment product is two instructions; the second one's registers are so far from the first's.
 */
typedef struct unit {
    const char *name, *defines;
    type type;
    unsigned wave, size, elements; /* FRAGMENT_WAVE, _SIZE, _ELEMENTS */
    unsigned m, n, k;              /* of an instruction */
    unsigned maps;
    unsigned a_step, b_step, acc_step; /* words, words, elements */
} unit;

static const unit units[] = {
    {"mma.sync f16", "-DFRAGMENT_MMA -DFRAGMENT_TYPE=f16", F16, 32, 16, 8, 16, 8, 16,
     MAP_MMA_M16N8K16, 0, 2, 4},
    {"mma.sync bf16", "-DFRAGMENT_MMA -DFRAGMENT_TYPE=bf16", BF16, 32, 16, 8, 16, 8, 16,
     MAP_MMA_M16N8K16, 0, 2, 4},
    {"mma.sync s8", "-DFRAGMENT_MMA -DFRAGMENT_TYPE=s8", S8, 32, 16, 8, 16, 8, 32, MAP_MMA_M16N8K32,
     0, 2, 4},
    {"MFMA 32x32 f16", "-DFRAGMENT_MFMA=32 -DFRAGMENT_TYPE=f16", F16, 64, 32, 16, 32, 32, 8,
     MAP_MFMA_32X32X8, 2, 2, 0},
    {"MFMA 32x32 bf16", "-DFRAGMENT_MFMA=32 -DFRAGMENT_TYPE=bf16", BF16, 64, 32, 16, 32, 32, 8,
     MAP_MFMA_32X32X8, 2, 2, 0},
    {"MFMA 32x32 s8", "-DFRAGMENT_MFMA=32 -DFRAGMENT_TYPE=s8", S8, 64, 32, 16, 32, 32, 16,
     MAP_MFMA_32X32X16, 2, 2, 0},
    {"MFMA 16x16 f16", "-DFRAGMENT_MFMA=16 -DFRAGMENT_TYPE=f16", F16, 64, 16, 4, 16, 16, 16,
     MAP_MFMA_16X16X16, 2, 2, 0},
    {"MFMA 16x16 bf16", "-DFRAGMENT_MFMA=16 -DFRAGMENT_TYPE=bf16", BF16, 64, 16, 4, 16, 16, 16,
     MAP_MFMA_16X16X16, 2, 2, 0},
    {"MFMA 16x16 s8", "-DFRAGMENT_MFMA=16 -DFRAGMENT_TYPE=s8", S8, 64, 16, 4, 16, 16, 32,
     MAP_MFMA_16X16X32, 2, 2, 0},
};

#define MAX_ROWS  64  /* 2 * size */
#define MAX_DEPTH 128 /* of a tile: 8 chunks of bytes */
#define MAX_LANES 256 /* [wave][j][lane] */
#define MAX_ACC   (MAX_LANES * 16)

/* ---- Values: small integers, exact in every type and in every sum ---- */

static unsigned bytes_of(type t)
{
    return t == S8 ? 1 : 2;
}

static void put(type t, void *tile, size_t i, int value)
{
    if (t == S8)
        ((int8_t *)tile)[i] = (int8_t)value;
    else
        ((uint16_t *)tile)[i] =
            t == F16 ? llmk_f32_to_f16((float)value) : llmk_f32_to_bf16((float)value);
}

static double get(type t, const void *tile, size_t i)
{
    if (t == S8)
        return ((const int8_t *)tile)[i];
    const uint16_t bits = ((const uint16_t *)tile)[i];
    return t == F16 ? llmk_f16_to_f32(bits) : llmk_bf16_to_f32(bits);
}

static double sum_of(type t, const uint32_t *bits)
{
    int32_t integer;
    float single;
    memcpy(&integer, bits, sizeof integer);
    memcpy(&single, bits, sizeof single);
    return t == S8 ? integer : (double)single;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static unsigned position(const fragment_map *map, unsigned lane, unsigned element)
{
    unsigned at = 0;
    for (unsigned bit = 0; bit < 6; bit++)
        at += lane >> bit & 1 ? map->lane[bit] : 0u;
    for (unsigned bit = 0; bit < 4; bit++)
        at += element >> bit & 1 ? map->element[bit] : 0u;
    return at;
}

/* ---- A unit on a device ---- */

typedef struct bench {
    llmk_context *ctx;
    cl_command_queue queue;
    const unit *unit;
    unsigned chunks, rows, depth;
    cl_program program;
    cl_kernel kernel;
    cl_mem buffers[6], maps; /* maps: NULL unless they are an argument */
    uint64_t a[MAX_ROWS * 16], b[MAX_ROWS * 16];
    uint32_t d[MAX_ROWS * MAX_ROWS];
    uint32_t a_words[MAX_LANES * 4], b_words[MAX_LANES * 4], acc_words[MAX_ACC];
} bench;

static llmk_context *context;
static cl_command_queue queue;

static size_t tile_bytes(const bench *b)
{
    return (size_t)b->rows * b->chunks * 16;
}

static cl_mem buffer_of(const bench *b, size_t bytes)
{
    cl_int err;
    cl_mem buffer = clCreateBuffer(b->ctx->cl, CL_MEM_READ_WRITE, bytes, NULL, &err);
    assert_int_equal(err, CL_SUCCESS);
    return buffer;
}

static void open_bench(bench *b, const unit *u, unsigned chunks, bool emulated, bool maps)
{
    memset(b, 0, sizeof *b);
    b->ctx = context;
    b->queue = queue;
    b->unit = u;
    b->chunks = chunks;
    b->rows = 2 * u->size;
    b->depth = chunks * 16 / bytes_of(u->type);

    char *header = NULL;
    assert_int_equal(llmk_source_load("common/fragment.clh", &header), LLMK_OK);
    const char *sources[2] = {header, (const char *)llmk_test_kernels[0].data};
    cl_int err;
    b->program = clCreateProgramWithSource(b->ctx->cl, 2, sources, NULL, &err);
    assert_int_equal(err, CL_SUCCESS);
    free(header);
    char options[256];
    snprintf(options, sizeof options, "-cl-std=CL1.2 %s -DCHUNKS=%u%s%s", u->defines, chunks,
             emulated ? " -DFRAGMENT_EMULATED" : "",
             maps ? " -DMAPS_ARGUMENT -DFRAGMENT_MAPS=maps" : "");
    if (clBuildProgram(b->program, 1, &b->ctx->caps.device, options, NULL, NULL) != CL_SUCCESS) {
        static char log[65536];
        clGetProgramBuildInfo(b->program, b->ctx->caps.device, CL_PROGRAM_BUILD_LOG, sizeof log - 1,
                              log, NULL);
        fail_msg("%s: %s:\n%s", u->name, options, log);
    }
    b->kernel = clCreateKernel(b->program, "fragment_test", &err);
    assert_int_equal(err, CL_SUCCESS);

    const size_t sizes[6] = {tile_bytes(b),     tile_bytes(b),     sizeof b->d,
                             sizeof b->a_words, sizeof b->b_words, sizeof b->acc_words};
    for (unsigned i = 0; i < 6; i++) {
        b->buffers[i] = buffer_of(b, sizes[i]);
        assert_int_equal(clSetKernelArg(b->kernel, i, sizeof b->buffers[i], &b->buffers[i]), 0);
    }
    if (maps) {
        b->maps = buffer_of(b, sizeof fragment_maps);
        assert_int_equal(clSetKernelArg(b->kernel, 6, sizeof b->maps, &b->maps), 0);
    }
}

static void close_bench(bench *b)
{
    for (unsigned i = 0; i < 6; i++)
        clReleaseMemObject(b->buffers[i]);
    if (b->maps)
        clReleaseMemObject(b->maps);
    clReleaseKernel(b->kernel);
    clReleaseProgram(b->program);
}

static void write_buffer(const bench *b, cl_mem buffer, size_t bytes, const void *data)
{
    assert_int_equal(
        clEnqueueWriteBuffer(b->queue, buffer, CL_FALSE, 0, bytes, data, 0, NULL, NULL), 0);
}

static void read_buffer(const bench *b, cl_mem buffer, size_t bytes, void *data)
{
    assert_int_equal(clEnqueueReadBuffer(b->queue, buffer, CL_TRUE, 0, bytes, data, 0, NULL, NULL),
                     0);
}

/* Poisons d, multiplies and reads d. */
static void run(bench *b)
{
    const size_t items = 2 * b->unit->wave;
    memset(b->d, 0xff, sizeof b->d);
    write_buffer(b, b->buffers[2], sizeof b->d, b->d);
    assert_int_equal(
        clEnqueueNDRangeKernel(b->queue, b->kernel, 1, NULL, &items, &items, 0, NULL, NULL), 0);
    read_buffer(b, b->buffers[2], sizeof b->d, b->d);
}

static void fill(bench *b, bool identity, uint32_t seed)
{
    const type t = b->unit->type;
    for (unsigned r = 0; r < b->rows; r++)
        for (unsigned k = 0; k < b->depth; k++) {
            const size_t i = (size_t)r * b->depth + k;
            put(t, b->a, i, (int)(next_random(&seed) % 17) - 8);
            put(t, b->b, i, identity ? r == k : (int)(next_random(&seed) % 17) - 8);
        }
    write_buffer(b, b->buffers[0], tile_bytes(b), b->a);
    write_buffer(b, b->buffers[1], tile_bytes(b), b->b);
}

/* Whether d is the product; says where not. */
static bool product_is_right(const bench *b, char *why, size_t size)
{
    const type t = b->unit->type;
    for (unsigned r = 0; r < b->rows; r++)
        for (unsigned c = 0; c < b->rows; c++) {
            double expected = 0;
            for (unsigned k = 0; k < b->depth; k++)
                expected +=
                    get(t, b->a, (size_t)r * b->depth + k) * get(t, b->b, (size_t)c * b->depth + k);
            const double got = sum_of(t, &b->d[r * b->rows + c]);
            if (got != expected) { /* NaN too */
                snprintf(why, size, "d[%u][%u] is %g; expected %g", r, c, got, expected);
                return false;
            }
        }
    return true;
}

/* ---- Registers against maps ---- */

/* Where in a tile's row the element is that instruction `step` of a fragment product calls k: the
 * loads of MFMA give a lane 16 successive bytes, one half for each instruction. */
static unsigned depth_of(const unit *u, unsigned k, unsigned step)
{
    if (u->a_step == 0)
        return k;
    const unsigned half = 8 / bytes_of(u->type); /* elements */
    return k / half * 2 * half + step * half + k % half;
}

static void check_operands(const bench *b, const void *words, unsigned map, bool is_a)
{
    const unit *u = b->unit;
    const unsigned count = (is_a ? u->m : u->n) * u->k / u->wave;
    for (unsigned place = 0; place < 4 * u->wave; place++)
        for (unsigned step = 0; step < 2; step++)
            for (unsigned e = 0; e < count; e++) {
                const unsigned lane = place % u->wave, j = place / u->wave % 2,
                               wave = place / u->wave / 2;
                const unsigned at = position(&fragment_maps[map], lane, e);
                const unsigned k = is_a ? at & 255 : at >> 8;
                unsigned row = is_a ? at >> 8 : at & 255;
                row += is_a ? wave * u->size : j * u->size + (u->n < u->size ? step * u->n : 0);
                const size_t word = place * 4 + step * (is_a ? u->a_step : u->b_step);
                const double got = get(u->type, (const uint32_t *)words + word, e);
                const double expected =
                    get(u->type, is_a ? b->a : b->b, (size_t)row * b->depth + depth_of(u, k, step));
                if (got != expected)
                    fail_msg("%s: %c of lane %u, instruction %u, element %u is %g; the map says "
                             "row %u, k %u: %g",
                             u->name, is_a ? 'A' : 'B', lane, step, e, got, row, k, expected);
            }
}

/* What the instructions make of these registers by the maps. */
static void multiply_registers(const bench *b, unsigned place, unsigned step, double *acc)
{
    const unit *u = b->unit;
    double am[32][32] = {{0}}, bm[32][32] = {{0}}, dm[32][32] = {{0}};
    for (unsigned lane = 0; lane < u->wave; lane++) {
        for (unsigned e = 0; e < u->m * u->k / u->wave; e++) {
            const unsigned at = position(&fragment_maps[u->maps], lane, e);
            am[at >> 8][at & 255] =
                get(u->type, &b->a_words[(place + lane) * 4 + step * u->a_step], e);
        }
        for (unsigned e = 0; e < u->n * u->k / u->wave; e++) {
            const unsigned at = position(&fragment_maps[u->maps + 1], lane, e);
            bm[at >> 8][at & 255] =
                get(u->type, &b->b_words[(place + lane) * 4 + step * u->b_step], e);
        }
    }
    for (unsigned i = 0; i < u->m; i++)
        for (unsigned j = 0; j < u->n; j++)
            for (unsigned k = 0; k < u->k; k++)
                dm[i][j] += am[i][k] * bm[k][j];
    for (unsigned lane = 0; lane < u->wave; lane++)
        for (unsigned e = 0; e < u->m * u->n / u->wave; e++) {
            const unsigned at = position(&fragment_maps[u->maps + 2], lane, e);
            acc[lane * u->elements + step * u->acc_step + e] += dm[at >> 8][at & 255];
        }
}

static void check_accumulators(const bench *b)
{
    const unit *u = b->unit;
    for (unsigned place = 0; place < 4 * u->wave; place += u->wave) {
        double expected[64 * 16] = {0};
        multiply_registers(b, place, 0, expected);
        multiply_registers(b, place, 1, expected);
        for (unsigned i = 0; i < u->wave * u->elements; i++) {
            const double got = sum_of(u->type, &b->acc_words[place * u->elements + i]);
            if (got != expected[i])
                fail_msg("%s: accumulator of lane %u, element %u is %g; the maps say %g", u->name,
                         i / u->elements, i % u->elements, got, expected[i]);
        }
    }
}

static void check_unit(const unit *u, unsigned chunks, bool emulated)
{
    static bench b;
    open_bench(&b, u, chunks, emulated, false);
    for (unsigned round = 0; round < 3; round++) {
        char why[128];
        fill(&b, round == 0, round + 1);
        run(&b);
        if (!product_is_right(&b, why, sizeof why))
            fail_msg("%s: %s product: %s", u->name, round == 0 ? "identity" : "random", why);
        read_buffer(&b, b.buffers[3], sizeof b.a_words, b.a_words);
        read_buffer(&b, b.buffers[4], sizeof b.b_words, b.b_words);
        read_buffer(&b, b.buffers[5], sizeof b.acc_words, b.acc_words);
        check_operands(&b, b.a_words, u->maps, true);
        check_operands(&b, b.b_words, u->maps + 1, false);
        check_accumulators(&b);
    }
    close_bench(&b);
}

/* ---- The tests ---- */

/* Every map puts every element of its matrix somewhere, once. */
static void maps_are_bijections(void **state)
{
    (void)state;
    for (size_t i = 0; i < LLMK_COUNT(units); i++) {
        const unit *u = &units[i];
        const unsigned rows[3] = {u->m, u->k, u->m}, columns[3] = {u->k, u->n, u->n};
        for (unsigned map = 0; map < 3; map++) {
            bool seen[32][32] = {{false}};
            for (unsigned lane = 0; lane < u->wave; lane++)
                for (unsigned e = 0; e < rows[map] * columns[map] / u->wave; e++) {
                    const unsigned at = position(&fragment_maps[u->maps + map], lane, e);
                    assert_true((at >> 8) < rows[map] && (at & 255) < columns[map]);
                    assert_false(seen[at >> 8][at & 255]);
                    seen[at >> 8][at & 255] = true;
                }
        }
    }
}

static void emulated_units(void **state)
{
    (void)state;
    for (size_t i = 0; i < LLMK_COUNT(units); i++)
        check_unit(&units[i], 4 << i % 2, true);
}

static bool is_real(const unit *u)
{
    const llmk_caps *caps = &context->caps;
    if (u->wave == 32)
        return caps->vendor == LLMK_VENDOR_NVIDIA && caps->compute_capability >= 80;
    const bool gfx942 = strncmp(caps->device_name, "gfx942", 6) == 0;
    return caps->vendor == LLMK_VENDOR_AMD &&
           (gfx942 || (u->type != S8 && strncmp(caps->device_name, "gfx90a", 6) == 0));
}

static void real_units(void **state)
{
    (void)state;
    size_t count = 0;
    for (size_t i = 0; i < LLMK_COUNT(units); i++) {
        if (!is_real(&units[i]))
            continue;
        check_unit(&units[i], 4, false);
        check_unit(&units[i], 8, false);
        print_message("%s: the maps are those of the hardware\n", units[i].name);
        count++;
    }
    if (count == 0) {
        print_message("%s has none of the matrix units\n", context->caps.device_name);
        skip();
    }
}

/* ---- Mutation ---- */

typedef struct tally {
    unsigned mutants, survivors;
} tally;

static bool passes(bench *b, const fragment_map *maps)
{
    char why[128];
    write_buffer(b, b->maps, sizeof fragment_maps, maps);
    run(b);
    return product_is_right(b, why, sizeof why);
}

/* Puts every other contribution that fits the matrix in place of an entry: a wrong row, a wrong
 * column, both exchanged, none at all. */
static void mutate_entry(bench *b, fragment_map *maps, cl_ushort *entry, const char *name, tally *t)
{
    static const unsigned parts[] = {0, 1, 2, 4, 8, 16};
    const cl_ushort right = *entry;
    const unsigned row = right >> 8, column = right & 255;
    cl_ushort mutants[2 * LLMK_COUNT(parts) + 1];
    size_t count = 0;
    for (size_t i = 0; i < LLMK_COUNT(parts); i++) {
        mutants[count++] = (cl_ushort)AT(parts[i], column);
        mutants[count++] = (cl_ushort)AT(row, parts[i]);
    }
    mutants[count++] = (cl_ushort)AT(column, row);
    for (size_t i = 0; i < count; i++) {
        *entry = mutants[i];
        if (mutants[i] == right)
            continue;
        t->mutants++;
        if (passes(b, maps)) {
            t->survivors++;
            print_error("SURVIVED: %s %s: AT(%u, %u) instead of AT(%u, %u)\n", b->unit->name, name,
                        mutants[i] >> 8, mutants[i] & 255, row, column);
        }
    }
    *entry = right;
}

static unsigned bits_of(unsigned count)
{
    return count > 1 ? 1 + bits_of(count / 2) : 0;
}

static tally mutate_unit(const unit *u)
{
    static bench b;
    fragment_map maps[MAP_COUNT];
    tally t = {0, 0};
    memcpy(maps, fragment_maps, sizeof maps);
    open_bench(&b, u, 4, true, true);
    fill(&b, false, 1);
    assert_true(passes(&b, maps));
    const unsigned elements[4] = {u->m * u->k / u->wave, u->n * u->k / u->wave,
                                  u->m * u->n / u->wave, 8};
    const char *const names[4] = {"A", "B", "accumulator", "ldmatrix"};
    for (unsigned i = 0; i < (u->wave == 32 ? 4u : 3u); i++) {
        fragment_map *map = &maps[i < 3 ? u->maps + i : MAP_LDMATRIX];
        char name[64];
        for (unsigned bit = 0; bit < bits_of(u->wave); bit++) {
            snprintf(name, sizeof name, "%s, lane bit %u", names[i], bit);
            mutate_entry(&b, maps, &map->lane[bit], name, &t);
        }
        for (unsigned bit = 0; bit < bits_of(elements[i]); bit++) {
            snprintf(name, sizeof name, "%s, element bit %u", names[i], bit);
            mutate_entry(&b, maps, &map->element[bit], name, &t);
        }
    }
    assert_true(passes(&b, maps));
    close_bench(&b);
    return t;
}

static void every_mutant_fails(void **state)
{
    (void)state;
    unsigned survivors = 0;
    for (size_t i = 0; i < LLMK_COUNT(units); i++) {
        if (units[i].type == BF16) /* the maps of f16 */
            continue;
        const tally t = mutate_unit(&units[i]);
        print_message("%-15s %4u mutants of its maps, %u survived\n", units[i].name, t.mutants,
                      t.survivors);
        survivors += t.survivors;
    }
    assert_int_equal(survivors, 0);
}

static int open_device(void **state)
{
    (void)state;
    if (llmk_context_create(NULL, &context) != LLMK_OK) {
        print_error("%s\n", llmk_error_message());
        return -1;
    }
    cl_int err;
    queue = clCreateCommandQueue(context->cl, context->caps.device, 0, &err);
    print_message("device: %s\n", context->caps.device_name);
    return queue ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    clReleaseCommandQueue(queue);
    llmk_context_free(context);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_are_bijections),
        cmocka_unit_test(emulated_units),
        cmocka_unit_test(real_units),
    };
    const struct CMUnitTest mutation[] = {
        cmocka_unit_test(every_mutant_fails),
    };
    if (argc > 1 && strcmp(argv[1], "--mutate") == 0)
        return cmocka_run_group_tests_name("lane maps", mutation, open_device, close_device);
    return cmocka_run_group_tests_name("fragment", tests, open_device, close_device);
}
