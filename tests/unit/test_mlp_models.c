/* test_mlp_models.c - models from safetensors checkpoints, as llmk-demo opens and runs them. */
#include "tools/common/mlp_model.h"
#include "tools/common/mlp_reference.h"

#include "support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#ifdef LLMK_HAVE_JANSSON

typedef struct fixture {
    char folder[SCRATCH_PATH];
} fixture;

static int set_up(void **state)
{
    fixture *f = test_calloc(1, sizeof *f);
    assert_true(scratch_make(f->folder));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    scratch_remove(f->folder);
    test_free(f);
    return 0;
}

static void generate(const fixture *f, const char *method)
{
    char error[512] = "";
    if (!mlp_model_generate(method, f->folder, error, sizeof error))
        fail_msg("%s", error);
}

static mlp_model open_model(const char *path)
{
    mlp_model model;
    char error[512] = "";
    if (!mlp_model_open(path, &model, error, sizeof error))
        fail_msg("%s", error);
    return model;
}

static void write_text(const fixture *f, const char *name, const char *text)
{
    assert_true(scratch_write(f->folder, name, text, strlen(text)));
}

/* W of a layer's matrix on the device, against its rows on the host. */
static void check_matrix(llmk_context *ctx, cl_command_queue queue, const mlp_matrix *m,
                         const llmk_weights *w)
{
    cl_context cl = llmk_context_cl_context(ctx);
    const size_t k = (size_t)m->columns, n = (size_t)m->rows;
    float *x = calloc(k, sizeof *x), *y = calloc(n, sizeof *y), *row = calloc(k, sizeof *row);
    const size_t picked = k / 3;
    x[picked] = 1;
    cl_mem bx = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, k * sizeof *x, x, NULL);
    cl_mem by = clCreateBuffer(cl, 0, n * sizeof *y, NULL, NULL);
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_matrix(bx, LLMK_F32, 1, k);
    args.weights = w;
    args.y = llmk_matrix(by, LLMK_F32, 1, n);
    if (llmk_linear(ctx, queue, &args, NULL) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    assert_int_equal(clEnqueueReadBuffer(queue, by, CL_TRUE, 0, n * sizeof *y, y, 0, NULL, NULL),
                     CL_SUCCESS);
    for (size_t i = 0; i < n; i++) {
        assert_true(mlp_matrix_row(m, i, row));
        assert_true(y[i] == row[picked]);
    }
    clReleaseMemObject(bx);
    clReleaseMemObject(by);
    free(x);
    free(y);
    free(row);
}

static void generated(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *method;
        llmk_format format;
    } methods[] = {{"gptq", LLMK_FORMAT_GPTQ_V1}, {"awq", LLMK_FORMAT_AWQ_GEMM}};
    llmk_context *ctx = NULL;
    cl_int err;
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    cl_command_queue queue =
        clCreateCommandQueue(llmk_context_cl_context(ctx), llmk_context_cl_device(ctx), 0, &err);
    for (size_t i = 0; i < 2; i++) {
        generate(f, methods[i].method);
        mlp_model m = open_model(f->folder);
        assert_int_equal(m.hidden, 256);
        assert_int_equal(m.intermediate, 704);
        assert_int_equal(m.layer_count, 4);
        assert_string_equal(m.architecture, "llama");
        assert_string_equal(m.note, "");
        const mlp_layer *l = &m.layers[3];
        assert_int_equal(l->gate.desc.format, methods[i].format);
        assert_int_equal(l->gate.desc.group_size, 64);
        assert_int_equal(l->gate.desc.g_idx.host != NULL, i == 0);
        mlp_device_layer device;
        if (mlp_layer_upload(ctx, &m, 3, &device) != LLMK_OK)
            fail_msg("%s", llmk_error_message());
        check_matrix(ctx, queue, &l->gate, device.gate);
        check_matrix(ctx, queue, &l->down, device.down);
        mlp_layer_free(&device);
        char error[64];
        assert_false(mlp_model_slice(&m, 1, 1, "/nowhere", error, sizeof error));
        mlp_model_close(&m);
    }
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

/* A header of one byte more, so that every tensor lies at an odd address. */
static void move_tensors(const fixture *f)
{
    char path[SCRATCH_PATH + 32];
    snprintf(path, sizeof path, "%s/model.safetensors", f->folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(size + 1);
    assert_true(bytes && fread(bytes, 1, size, file) == size);
    fclose(file);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    memmove(bytes + 8 + header + 1, bytes + 8 + header, size - 8 - (size_t)header);
    bytes[8 + header++] = ' ';
    memcpy(bytes, &header, sizeof header);
    assert_true(scratch_write(f->folder, "model.safetensors", bytes, size + 1));
    free(bytes);
}

/* What UndefinedBehaviorSanitizer watches: words that are read where they lie. */
static void unaligned(void **state)
{
    const fixture *f = *state;
    llmk_context *ctx = NULL;
    cl_int err;
    generate(f, "gptq");
    move_tensors(f);
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    cl_command_queue queue =
        clCreateCommandQueue(llmk_context_cl_context(ctx), llmk_context_cl_device(ctx), 0, &err);
    mlp_model m = open_model(f->folder);
    assert_int_equal((uintptr_t)m.layers[0].gate.desc.g_idx.host % 2, 1);
    mlp_device_layer device;
    if (mlp_layer_upload(ctx, &m, 0, &device) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    check_matrix(ctx, queue, &m.layers[0].gate, device.gate);
    check_matrix(ctx, queue, &m.layers[0].down, device.down);
    mlp_layer_free(&device);
    mlp_model_close(&m);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

#define SIZES                                                                                      \
    "\"hidden_size\":256,\"intermediate_size\":704,\"num_hidden_layers\":4,\"rms_norm_eps\":1e-5"
#define GPTQ(more) "\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4," more "}"

/* What quantisers write, in all its places and spellings. */
static void configurations(void **state)
{
    const fixture *f = *state;
    generate(f, "gptq");
    write_text(f, "config.json", "{" SIZES "," GPTQ("\"group_size\":64,\"sym\":true") "}");
    mlp_model m = open_model(f->folder);
    assert_int_equal(m.layers[0].up.desc.flags, LLMK_WEIGHTS_SYMMETRIC);
    assert_null(m.layers[0].up.desc.zeros.host);
    assert_string_equal(m.architecture, "unknown");
    mlp_model_close(&m);

    write_text(f, "config.json",
               "{" SIZES "," GPTQ("\"group_size\":64,\"checkpoint_format\":\"gptq_v2\"") "}");
    m = open_model(f->folder);
    assert_int_equal(m.layers[0].up.desc.format, LLMK_FORMAT_GPTQ_V2);
    assert_non_null(m.layers[0].up.desc.zeros.host);
    mlp_model_close(&m);

    write_text(f, "config.json", "{" SIZES "}");
    write_text(f, "quantize_config.json", "{\"bits\":4,\"group_size\":64,\"desc_act\":true}");
    char path[SCRATCH_PATH + 32];
    snprintf(path, sizeof path, "%s/model.safetensors", f->folder);
    m = open_model(path);
    assert_int_equal(m.layers[0].up.desc.format, LLMK_FORMAT_GPTQ_V1);
    mlp_model_close(&m);

    generate(f, "awq");
    snprintf(path, sizeof path, "%s/quantize_config.json", f->folder);
    assert_int_equal(unlink(path), 0);
    write_text(f, "config.json", "{" SIZES "}");
    write_text(f, "quant_config.json",
               "{\"zero_point\":true,\"q_group_size\":64,\"w_bit\":4,\"version\":\"GEMM\"}");
    m = open_model(f->folder);
    assert_int_equal(m.layers[0].up.desc.format, LLMK_FORMAT_AWQ_GEMM);
    mlp_model_close(&m);
}

static void refuse(const fixture *f, const char *config, const char *mentioned)
{
    mlp_model m;
    char error[512] = "";
    write_text(f, "config.json", config);
    assert_false(mlp_model_open(f->folder, &m, error, sizeof error));
    if (!strstr(error, mentioned))
        fail_msg("\"%s\" does not mention \"%s\"", error, mentioned);
}

static void refusals(void **state)
{
    const fixture *f = *state;
    mlp_model m;
    char error[512];
    assert_false(mlp_model_open(f->folder, &m, error, sizeof error));
    assert_false(mlp_model_generate("other", f->folder, error, sizeof error));
    assert_non_null(strstr(error, "gptq or awq"));
    generate(f, "gptq");
    refuse(f, "[]", "no JSON object");
    refuse(f, "{\"hidden_size\":-1}", "hidden_size");
    refuse(f, "{" SIZES ",\"hidden_act\":\"gelu\"}", "hidden_act");
    refuse(f, "{" SIZES "}", "no tensor model.layers.0.mlp.gate_proj.weight");
    refuse(f, "{" SIZES "," GPTQ("\"group_size\":32") "}", "gate_proj.scales has another shape");
    refuse(f, "{" SIZES "," GPTQ("\"group_size\":0") "}", "group_size");
    refuse(f, "{" SIZES ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":3}}", "bits");
    refuse(f, "{" SIZES ",\"quantization_config\":{\"quant_method\":\"x\",\"bits\":4}}",
           "quant_method is x");
    refuse(f, "{" SIZES ",\"quantization_config\":{\"quant_method\":\"\\u001b[31m\",\"bits\":4}}",
           "quant_method is  [31m"); /* nothing that a terminal obeys */
    refuse(f, "{" SIZES ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}",
           "pack-quantized");
    refuse(f,
           "{\"hidden_size\":256,\"intermediate_size\":704,\"num_hidden_layers\":5,"
           "\"rms_norm_eps\":1e-5," GPTQ("\"group_size\":64") "}",
           "model.layers.4");
    refuse(f,
           "{\"hidden_size\":256,\"intermediate_size\":704,\"num_hidden_layers\":5000,"
           "\"rms_norm_eps\":1e-5}",
           "5000 layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(generated, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unaligned, set_up, tear_down),
        cmocka_unit_test_setup_teardown(configurations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refusals, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 77; /* no JSON library, no safetensors files */
}

#endif
