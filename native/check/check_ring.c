/* Rings: refused calls, wrap-around and percentiles against a sorted copy, two threads. */
#include "check.h"
#include "ring.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>

static void bad_calls(void)
{
    struct kl_rings *rings = kl_rings_new();
    struct kl_aggregate out;
    CHECK(kl_rings_open(rings, 0) == -EINVAL && kl_rings_open(rings, UINT32_MAX) == -EINVAL);
    int series = kl_rings_open(rings, 3);
    CHECK(series >= 0);
    CHECK(kl_rings_aggregate(rings, series, 0, 10, &out) == 0 && out.count == 0);
    CHECK(kl_rings_push(rings, series, 1, (double)NAN) == -EINVAL);
    CHECK(kl_rings_push(rings, series, 1, (double)INFINITY) == -EINVAL);
    CHECK(kl_rings_push(rings, series, 5, 1.0) == 0);
    CHECK(kl_rings_push(rings, series, 5, 1.0) == -EINVAL && kl_rings_push(rings, series, 4, 1.0) == -EINVAL);
    for (int bad = -1; bad < 40; bad++) {
        if (bad == series)
            continue;
        CHECK(kl_rings_push(rings, bad, 1, 1.0) == -EINVAL && kl_rings_close(rings, bad) == -EINVAL);
        CHECK(kl_rings_aggregate(rings, bad, 0, 10, &out) == -EINVAL);
    }
    CHECK(kl_rings_close(rings, series) == 0 && kl_rings_close(rings, series) == -EINVAL);
    CHECK(kl_rings_push(rings, series, 9, 1.0) == -EINVAL);
    CHECK(kl_rings_open(rings, 1) == series); /* numbers are reused, samples are not */
    CHECK(kl_rings_aggregate(rings, series, 0, 10, &out) == 0);
    kl_rings_free(rings);
    kl_rings_free(NULL);
}

static void many_series_and_long_gaps(void)
{
    struct kl_rings *rings = kl_rings_new();
    struct kl_aggregate out;
    for (int i = 0; i < 500; i++)
        CHECK(kl_rings_open(rings, 1 + (uint32_t)i % 7) == i);
    for (int i = 0; i < 500; i += 3)
        CHECK(kl_rings_close(rings, i) == 0);
    CHECK(kl_rings_push(rings, 1, 0, 1.0) == 0 && kl_rings_push(rings, 1, INT64_C(1) << 40, 2.0) == 0);
    CHECK(kl_rings_aggregate(rings, 1, 0, INT64_MAX, &out) == 1 && out.avg == 2.0); /* the old one is too far away */
    kl_rings_free(rings);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int64_t count, int64_t percent)
{
    int64_t rank = count * percent / 100 - 1;
    return sorted[rank < 0 ? 0 : rank];
}

enum { CAPACITY = 37, PUSHES = 2000 };

static void aggregates_equal_a_sorted_copy(void)
{
    struct kl_rings *rings = kl_rings_new();
    int series = kl_rings_open(rings, CAPACITY);
    static double value[PUSHES];
    uint64_t seed = 521288629;
    for (int64_t i = 0; i < PUSHES; i++) {
        value[i] = (double)(noise(&seed) % 10); /* many equal ones */
        CHECK(kl_rings_push(rings, series, 10 * i, value[i]) == 0);
        int64_t oldest = i < CAPACITY ? 0 : i - CAPACITY + 1;
        int64_t from = oldest + (int64_t)(noise(&seed) % (uint64_t)(i - oldest + 1));
        struct kl_aggregate out;
        int count = kl_rings_aggregate(rings, series, 10 * from, 10 * i, &out);
        CHECK(count == i - from + 1 && out.count == count && out.latest == value[i] && out.first_ms == 10 * from);
        double sorted[CAPACITY];
        memcpy(sorted, value + from, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, ascending);
        CHECK(out.min == sorted[0] && out.max == sorted[count - 1]);
        CHECK(out.p50 == percentile(sorted, count, 50) && out.p90 == percentile(sorted, count, 90) &&
              out.p95 == percentile(sorted, count, 95) && out.p99 == percentile(sorted, count, 99));
    }
    kl_rings_free(rings);
}

static void *push_many(void *argument)
{
    struct kl_rings *rings = argument;
    for (int i = 0; i < PUSHES; i++) {
        kl_rings_lock(rings);
        CHECK(kl_rings_push_locked(rings, 0, i, i) == 0);
        kl_rings_unlock(rings);
    }
    return NULL;
}

static void one_pushes_another_asks(void)
{
    struct kl_rings *rings = kl_rings_new();
    CHECK(kl_rings_open(rings, CAPACITY) == 0);
    pthread_t pusher;
    CHECK(pthread_create(&pusher, NULL, push_many, rings) == 0);
    struct kl_aggregate out = {0};
    while (out.latest < PUSHES - 1) {
        int other = kl_rings_open(rings, 2 * CAPACITY); /* moves the table of series and the scratch */
        CHECK(kl_rings_aggregate(rings, 0, 0, PUSHES, &out) >= 0 && kl_rings_close(rings, other) == 0);
    }
    pthread_join(pusher, NULL);
    kl_rings_free(rings);
}

int main(void)
{
    bad_calls();
    many_series_and_long_gaps();
    aggregates_equal_a_sorted_copy();
    one_pushes_another_asks();
    return 0;
}
