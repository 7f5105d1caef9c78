/* case_parallel.c - threads that take parts of a range in turn. */
#include "cases/case_parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#define MOST_THREADS 16

typedef struct range {
    uint64_t count, grain;
    _Atomic uint64_t next;
    void (*body)(void *user, uint64_t first, uint64_t end);
    void *user;
} range;

static void *take_parts(void *range_)
{
    range *r = range_;
    for (;;) {
        const uint64_t first = atomic_fetch_add(&r->next, r->grain);
        if (first >= r->count)
            return NULL;
        r->body(r->user, first, r->count - first < r->grain ? r->count : first + r->grain);
    }
}

void case_parallel(uint64_t count, uint64_t grain,
                   void (*body)(void *user, uint64_t first, uint64_t end), void *user)
{
    range r = {.count = count, .grain = grain ? grain : 1, .body = body, .user = user};
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const uint64_t parts = (count + r.grain - 1) / r.grain;
    pthread_t threads[MOST_THREADS];
    long started = 0;
    while (started < MOST_THREADS - 1 && started + 1 < processors &&
           (uint64_t)started + 1 < parts &&
           pthread_create(&threads[started], NULL, take_parts, &r) == 0)
        started++;
    take_parts(&r);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}
