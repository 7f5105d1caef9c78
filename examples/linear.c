/* linear.c - a linear layer with 4-bit weights: quantises a matrix on the host, gives it to
 * llmk_weights_create(), which repacks it for the device, and computes y = x W^T + bias. */
#include <llmk/llmk.h>
#include <stdio.h>

enum { M = 2, N = 8, K = 64, GROUP = 32 };

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, llmk_error_message());
    return 1;
}

int main(void)
{
    static float w[N * K], x[M * K], bias[N], y[M * N], scales[N * K / GROUP];
    static unsigned char codes[N * K / 2]; /* two a byte */
    for (int i = 0; i < N * K; i++)
        w[i] = (float)(i * 37 % 101 - 50) / 50;
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i * 29 % 97 - 48) / 48;
    for (int i = 0; i < N; i++)
        bias[i] = (float)i;

    llmk_context *ctx = NULL;
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        return fail("no context");
    cl_int err;
    cl_context cl = llmk_context_cl_context(ctx);
    cl_command_queue queue = clCreateCommandQueue(cl, llmk_context_cl_device(ctx), 0, &err);
    cl_mem bx = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, sizeof x, x, &err);
    cl_mem bb = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, sizeof bias, bias, &err);
    cl_mem by = clCreateBuffer(cl, CL_MEM_READ_WRITE, sizeof y, NULL, &err);

    /* A checkpoint's tensors go in as they are: the format says where their bits are. */
    if (llmk_quantize_host(LLMK_QUANT_INT4_SYMMETRIC, N, K, GROUP, w, codes, scales, NULL) !=
        LLMK_OK)
        return fail("quantising");
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_W4;
    desc.n = N;
    desc.k = K;
    desc.group_size = GROUP;
    desc.data.host = codes;
    desc.data.size = sizeof codes;
    desc.scales.host = scales;
    desc.scales.size = sizeof scales;
    llmk_weights *weights = NULL;
    if (llmk_weights_create(ctx, &desc, &weights) != LLMK_OK)
        return fail("weights");

    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_matrix(bx, LLMK_F32, M, K);
    args.weights = weights;
    args.bias = llmk_vector(bb, LLMK_F32, N);
    args.y = llmk_matrix(by, LLMK_F32, M, N);
    if (llmk_linear(ctx, queue, &args, NULL) != LLMK_OK)
        return fail("linear");
    clEnqueueReadBuffer(queue, by, CL_TRUE, 0, sizeof y, y, 0, NULL, NULL);

    /* What the codes stand for, multiplied on the host. */
    int wrong = 0;
    if (llmk_dequantize_host(LLMK_QUANT_INT4_SYMMETRIC, N, K, GROUP, codes, scales, NULL, w) !=
        LLMK_OK)
        return fail("dequantising");
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double sum = bias[n];
            for (int k = 0; k < K; k++)
                sum += (double)x[m * K + k] * w[n * K + k];
            const double error = y[m * N + n] - sum;
            wrong += error > 1e-4 || error < -1e-4;
            printf("%9.5f%c", y[m * N + n], n + 1 < N ? ' ' : '\n');
        }

    llmk_weights_free(weights);
    clReleaseMemObject(bx);
    clReleaseMemObject(bb);
    clReleaseMemObject(by);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    return wrong != 0;
}
