/* text.c - short texts and their hashes, on the path of every call. */
#include "core/core.h"

#include <stdarg.h>
#include <stdio.h>

/* Of a text that was cut after `length` bytes: takes off what it has of a character of UTF-8 that is
 * not all there. */
static void drop_part(char *text, size_t length)
{
    size_t first = length;
    while (first > 0 && length - first < 3 && ((unsigned char)text[first - 1] & 0xc0) == 0x80)
        first--;
    const unsigned char lead = first > 0 ? (unsigned char)text[first - 1] : 0;
    const size_t wanted = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (length - first < wanted)
        text[first - 1] = '\0';
}

void llmk_join(char *out, size_t size, ...)
{
    va_list parts;
    size_t length = 0;
    bool whole = true;
    va_start(parts, size);
    for (const char *part; (part = va_arg(parts, const char *)) != NULL;) {
        while (*part && length + 1 < size)
            out[length++] = *part++;
        whole = whole && !*part;
    }
    va_end(parts);
    if (size == 0)
        return;
    out[length] = '\0';
    if (!whole)
        drop_part(out, length);
}

void llmk_vprint(char *out, size_t size, const char *fmt, va_list args)
{
    const int length = vsnprintf(out, size, fmt, args);
    if (size > 0 && length >= 0 && (size_t)length >= size)
        drop_part(out, size - 1);
}

void llmk_make_printable(char *text, bool lines)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p == '\n' ? !lines : *p < ' ' || *p == 0x7f)
            *p = ' ';
        else if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) /* U+0080 ... U+009F */
            p[0] = p[1] = ' ';
}

const char *llmk_digits(uint32_t value)
{
    static const char texts[100][3] = {
        "0",  "1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",  "9",  "10", "11", "12", "13", "14",
        "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29",
        "30", "31", "32", "33", "34", "35", "36", "37", "38", "39", "40", "41", "42", "43", "44",
        "45", "46", "47", "48", "49", "50", "51", "52", "53", "54", "55", "56", "57", "58", "59",
        "60", "61", "62", "63", "64", "65", "66", "67", "68", "69", "70", "71", "72", "73", "74",
        "75", "76", "77", "78", "79", "80", "81", "82", "83", "84", "85", "86", "87", "88", "89",
        "90", "91", "92", "93", "94", "95", "96", "97", "98", "99"};
    return value < LLMK_COUNT(texts) ? texts[value] : "?";
}

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

uint64_t llmk_hash(uint64_t seed, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint64_t word;
    for (; size >= sizeof word; bytes += sizeof word, size -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        seed = mix(seed, word);
    }
    word = size; /* so that trailing zeros count */
    for (size_t i = 0; i < size; i++)
        word = word << 8 | bytes[i];
    return mix(seed, word);
}
