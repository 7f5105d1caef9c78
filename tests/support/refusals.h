/* refusals.h - weights that llmk_weights_create() must refuse, and say why. */
#ifndef LLMK_TESTS_REFUSALS_H
#define LLMK_TESTS_REFUSALS_H

#include "support/device.h"

static inline void refuse_weights(fixture *f, const llmk_weights_desc *desc, llmk_status status,
                                  const char *mentioned)
{
    llmk_weights *w = (llmk_weights *)desc; /* must become NULL */
    assert_int_equal(llmk_weights_create(f->ctx, desc, &w), status);
    assert_null(w);
    if (!strstr(llmk_error_message(), mentioned))
        fail_msg("\"%s\" does not mention \"%s\"", llmk_error_message(), mentioned);
}

#endif
