/* case_line.c - the text of a case: parsing, printing, looking fields up. */
#include "cases/case.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const case_dtype_names[] = {"none", "f32", "f16",      "bf16",     "i8", "i32",
                                        "u8",   "u4",  "fp8_e4m3", "fp8_e5m2", NULL};
const char *const case_float_names[] = {"", "f32", "f16", "bf16", NULL};
const char *const case_float_or_none_names[] = {"none", "f32", "f16", "bf16", NULL};

/* Doubles hold integers exactly up to here. */
#define LARGEST_U64 ((double)(1ull << 53))

typedef struct message {
    char *text;
    size_t size;
} message;

__attribute__((format(printf, 2, 3))) static bool fail(message m, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(m.text, m.size, fmt, list);
    va_end(list);
    return false;
}

/* Appends as far as there is room. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *fmt,
                                                         ...)
{
    size_t used = strlen(text);
    va_list list;
    va_start(list, fmt);
    if (used + 1 < size)
        vsnprintf(text + used, size - used, fmt, list);
    va_end(list);
}

static void list_operators(char *text, size_t size)
{
    text[0] = '\0';
    for (const case_op *const *op = case_ops; *op; op++)
        append(text, size, "%s%s", op == case_ops ? "" : ", ", (*op)->name);
}

static void list_fields(const case_op *op, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < op->field_count; i++)
        append(text, size, "%s%s", i ? ", " : "", op->fields[i].name);
}

static void list_names(const case_field *field, char *text, size_t size)
{
    text[0] = '\0';
    for (const char *const *name = field->names; *name; name++)
        if (**name)
            append(text, size, "%s%s", text[0] ? ", " : "", *name);
}

static int find_field(const case_op *op, const char *name, size_t length)
{
    for (size_t i = 0; i < op->field_count; i++)
        if (strlen(op->fields[i].name) == length && !memcmp(op->fields[i].name, name, length))
            return (int)i;
    return -1;
}

static bool parse_u64(const char *text, double *value)
{
    if (text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *value = (double)number;
    return *end == '\0' && errno == 0 && *value <= LARGEST_U64;
}

static bool parse_float(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

static bool parse_name(const case_field *field, const char *text, double *value)
{
    for (size_t i = 0; field->names[i]; i++) {
        if (field->names[i][0] && !strcmp(field->names[i], text)) {
            *value = (double)i;
            return true;
        }
    }
    return false;
}

static bool parse_value(const case_field *field, const char *text, double *value, message m)
{
    char names[256];
    switch (field->kind) {
    case CASE_U64:
        return parse_u64(text, value) ||
               fail(m, "%s=%s: expected a whole number up to 2^53", field->name, text);
    case CASE_FLOAT:
        return parse_float(text, value) || fail(m, "%s=%s: expected a number", field->name, text);
    case CASE_FLAG:
        *value = !strcmp(text, "1");
        return *value != 0 || !strcmp(text, "0") ||
               fail(m, "%s=%s: expected 0 or 1", field->name, text);
    case CASE_ENUM:
        if (parse_name(field, text, value))
            return true;
        list_names(field, names, sizeof names);
        return fail(m, "%s=%s: expected one of %s", field->name, text, names);
    }
    return fail(m, "%s: a field of unknown kind", field->name);
}

/* One word after the operator: "key=value", or "key" for a flag. */
static bool parse_word(case_line *line, const char *word, bool *seen, message m)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    int i = find_field(line->op, word, length);
    if (i < 0) {
        char fields[512];
        list_fields(line->op, fields, sizeof fields);
        return fail(m, "%s has no field \"%.*s\"; it has %s", line->op->name, (int)length, word,
                    fields);
    }
    const case_field *field = &line->op->fields[i];
    if (seen[i])
        return fail(m, "%s is given twice", field->name);
    seen[i] = true;
    if (!equals && field->kind != CASE_FLAG)
        return fail(m, "%s needs a value: %s=...", field->name, field->name);
    return parse_value(field, equals ? equals + 1 : "1", &line->value[i], m);
}

/* Copies the next word of `*text` and moves behind it; false at the end or where it is too long. */
static bool next_word(const char **text, char *word, size_t size)
{
    *text += strspn(*text, " \t\n");
    const size_t length = strcspn(*text, " \t\n");
    if (!length || length >= size)
        return false;
    memcpy(word, *text, length);
    word[length] = '\0';
    *text += length;
    return true;
}

bool case_parse_fields(const case_op *op, const char *text, case_line *line, char *error,
                       size_t error_size)
{
    message m = {error, error_size};
    bool seen[CASE_MAX_FIELDS] = {false};
    char word[128];
    line->op = op;
    for (size_t i = 0; i < CASE_MAX_FIELDS; i++)
        line->value[i] = i < op->field_count ? op->fields[i].fallback : 0;
    while (next_word(&text, word, sizeof word))
        if (!parse_word(line, word, seen, m))
            return false;
    return !*text || fail(m, "\"%.40s...\": no word is that long", text);
}

bool case_parse(const char *text, case_line *line, char *error, size_t error_size)
{
    message m = {error, error_size};
    char word[128] = "";
    if (!next_word(&text, word, sizeof word))
        return fail(m, "expected an operator, then key=value words");
    const case_op *op = case_op_find(word);
    if (!op) {
        char operators[512];
        list_operators(operators, sizeof operators);
        return fail(m, "no operator \"%s\"; there are %s", word, operators);
    }
    return case_parse_fields(op, text, line, error, error_size);
}

/* The fewest digits that read back as the same number. */
static void print_float(double value, char *text, size_t size)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

void case_print(const case_line *line, char *text, size_t size)
{
    if (!size)
        return;
    text[0] = '\0';
    append(text, size, "%s", line->op->name);
    for (size_t i = 0; i < line->op->field_count; i++) {
        const case_field *field = &line->op->fields[i];
        double value = line->value[i];
        char number[40];
        if (value == field->fallback)
            continue;
        switch (field->kind) {
        case CASE_U64:
            append(text, size, " %s=%.0f", field->name, value);
            break;
        case CASE_FLOAT:
            print_float(value, number, sizeof number);
            append(text, size, " %s=%s", field->name, number);
            break;
        case CASE_FLAG:
            append(text, size, value != 0 ? " %s" : " %s=0", field->name);
            break;
        case CASE_ENUM:
            append(text, size, " %s=%s", field->name, field->names[(size_t)value]);
            break;
        }
    }
}

double case_get(const case_line *line, const char *name)
{
    int i = find_field(line->op, name, strlen(name));
    if (i < 0) {
        fprintf(stderr, "%s has no field \"%s\"\n", line->op->name, name);
        abort();
    }
    return line->value[i];
}

uint64_t case_u64(const case_line *line, const char *field)
{
    return (uint64_t)case_get(line, field);
}

bool case_flag(const case_line *line, const char *field)
{
    return case_get(line, field) != 0;
}

llmk_dtype case_dtype(const case_line *line, const char *field)
{
    return (llmk_dtype)case_get(line, field);
}

const case_op *case_op_find(const char *name)
{
    for (const case_op *const *op = case_ops; *op; op++)
        if (!strcmp((*op)->name, name))
            return *op;
    return NULL;
}
