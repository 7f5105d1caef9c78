/* test_coopmat.c - the linear layer on cooperative matrices is offered where the device says that
 * it has them, and given up where it then does not build (PoCL 6) or not multiply (rusticl). */
#include "core/core.h"
#include "llmk_cmocka.h"
#include "ops/operator.h"
#include "support/calls.h"

#include <stdlib.h>

#define CASE "linear m=70 n=70 k=96 x=f16 w=f16"

static char warning[2048];

static void on_log(void *user, llmk_log_level level, const char *message)
{
    (void)user;
    if (level <= LLMK_LOG_WARN)
        snprintf(warning, sizeof warning, "%s", message);
}

static llmk_context *open_context(bool announced, const char *variant)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.cache_dir = "off";
    options.log = on_log;
    options.variant = variant;
    llmk_context *ctx = NULL;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    ctx->caps.cooperative_matrix = announced;
    warning[0] = '\0';
    return ctx;
}

static llmk_status call(bool announced, const char *variant, char text[CALL_TEXT])
{
    llmk_context *ctx = open_context(announced, variant);
    const llmk_status status = call_and_check(ctx, CASE, text);
    llmk_context_free(ctx);
    return status;
}

static void test_not_announced(void **state)
{
    (void)state;
    char text[CALL_TEXT];
    assert_int_equal(call(false, "linear:coopmat", text), LLMK_NO_VARIANT);
    assert_non_null(strstr(text, "does not list SPV_KHR_cooperative_matrix"));
    assert_int_equal(call(false, NULL, text), LLMK_OK);
    assert_null(strstr(warning, "coopmat"));
}

/* Whatever comes of it, the call is right; and where the variant is not, it says so. */
static void test_announced(void **state)
{
    (void)state;
    char text[CALL_TEXT];
    const llmk_status forced = call(true, "linear:coopmat", text);
    print_message("coopmat on this device: %s\n", forced == LLMK_OK ? "right" : text);
    assert_true(forced == LLMK_OK || forced == LLMK_NO_VARIANT || forced == LLMK_BUILD_FAILED ||
                forced == LLMK_SELFTEST_FAILED);
    assert_int_equal(call(true, NULL, text), LLMK_OK);
    const bool tried = forced == LLMK_BUILD_FAILED || forced == LLMK_SELFTEST_FAILED;
    if (tried != (strstr(warning, "linear:coopmat") && strstr(warning, "is not used")))
        fail_msg("the last warning is \"%s\"", warning);
}

int main(void)
{
    unsetenv("LLMK_CACHE");
    unsetenv("LLMK_VARIANT");
    unsetenv("LLMK_COOPMAT");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_announced),
        cmocka_unit_test(test_announced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
