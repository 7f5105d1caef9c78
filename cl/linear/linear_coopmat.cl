// The linear layer on SPIR-V's cooperative matrices (SPV_KHR_cooperative_matrix), for many rows of x:
// f16 x and W, f32 sums.
//
// OpenCL C has no name for these matrices, so the loop that multiplies is LLVM IR, coopmat_multiply()
// of spirv/coopmat.ll, which this file is linked with (images/images.py). What is left for OpenCL C is
// what the loop calls for each stage, and the end. A work-group computes 64 x 64 of y in four parts, of
// which a sub-group has one; where there are other than four sub-groups, they take several passes, or
// the last part together.
//
//     -DSUBGROUP=N         the size of sub-groups to require, or 0
//     -DCOOPMAT_EMULATED   instead: the loop in OpenCL C, for tests
#include "linear/linear_finish.clh"

#ifdef COOPMAT_EMULATED
#define SUBGROUP_REQUIRED
#elif defined(LLMK_IMAGE_SPIRV)
#include "common/subgroup.clh"
#else
#error "cooperative matrices are in SPIR-V images alone"
#endif

// As in spirv/coopmat.ll: rows of x, then of W, each with DEPTH of K and a chunk that spreads the rows
// over the banks; at the end PARTS squares of sums.
#define TILE   64u
#define DEPTH  64u
#define CHUNKS (DEPTH / 8)
#define PITCH  (CHUNKS + 1)
#define PARTS  4u
#define PART   32u

typedef struct {
    linear_t a;
    ulong row;
    uint column;
} coopmat_t;

// The sums of part `part` over `count` stages, into its square. Calls coopmat_stage, between barriers.
void coopmat_multiply(const coopmat_t *c, local uint4 *tiles, uint count, uint part);

// Its stage t: 64 rows of x and 64 of W. Rows beyond M and N are copies of the last, K ends in zeros.
void coopmat_stage(const coopmat_t *c, local uint4 *tiles, uint t)
{
    const linear_t a = c->a;
    for (uint i = (uint)get_local_id(0); i < TILE * CHUNKS; i += (uint)get_local_size(0)) {
        const uint r = i / CHUNKS, chunk = t * CHUNKS + i % CHUNKS;
        global const ushort *x =
            (global const ushort *)a.x + row_begin(a.x_rows, min(c->row + r, a.m - 1));
        global const uint4 *w =
            (global const uint4 *)(a.data + min(c->column + r, a.n - 1) * a.pitch);
        const uint to = r * PITCH + i % CHUNKS;
        tiles[to] = a.x_access == X_ALIGNED && chunk < a.k / 8
                        ? ((global const uint4 *)x)[chunk]
                        : gather(a, x, chunk * 8);
        tiles[TILE * PITCH + to] = chunk < (a.k + 7) / 8 ? w[chunk] : (uint4)(0u);
    }
}

#ifdef COOPMAT_EMULATED
#include "linear/linear_coopmat_emulated.clh"
#else
static inline uint coopmat_waves(void) { return get_num_sub_groups(); }
static inline uint coopmat_wave(void) { return get_sub_group_id(); }
#endif

kernel SUBGROUP_REQUIRED void linear_coopmat(LINEAR_PARAMETERS)
{
    local uint4 tiles[2 * TILE * PITCH];
    const ulong2 tile = tile_of();
    const coopmat_t c = {LINEAR_ARGUMENTS, m_first + tile.y * TILE, (uint)tile.x * TILE};
    const uint waves = coopmat_waves();
    for (uint first = 0; first < PARTS; first += waves) {
        coopmat_multiply(&c, tiles, (k + DEPTH - 1) / DEPTH,
                         min(first + coopmat_wave(), PARTS - 1));
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint end = min(first + waves, PARTS) * PART * PART / 8;
        for (uint v = first * PART * PART / 8 + (uint)get_local_id(0); v < end;
             v += (uint)get_local_size(0)) {
            const uint part = v / (PART * PART / 8), r = v / (PART / 8) % PART;
            const ulong row = c.row + part % 2 * PART + r;
            const uint column = c.column + part / 2 * PART + v % (PART / 8) * 8;
            if (row < m && column < n)
                finish8(c.a, row, column, (local const float *)tiles + v * 8);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
