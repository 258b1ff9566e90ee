/* Rings of samples in native memory; see ring.h. */
#include "ring.h"
#include "slab.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Times are stored as the low 32 bits of the millisecond and widened against the newest one, so a series may not span
 * more than 2^32 ms; half of that (24 days) keeps the arithmetic far from the edge. */
static const int64_t max_span_ms = INT64_C(1) << 31;

struct series {
    struct kl_lane lane; /* without a slab: the slot is free */
    uint32_t first, used;
    int64_t latest_ms;
};

struct kl_rings {
    pthread_mutex_t mutex;
    struct series *series;
    int count;
    struct kl_slab *slabs;
    double *scratch; /* as long as the longest series; for percentiles */
    uint32_t scratch_length;
};

struct kl_rings *kl_rings_new(void)
{
    struct kl_rings *rings = calloc(1, sizeof *rings);
    if (rings && pthread_mutex_init(&rings->mutex, NULL) != 0) {
        free(rings);
        return NULL;
    }
    return rings;
}

void kl_rings_free(struct kl_rings *rings)
{
    if (!rings)
        return;
    kl_slabs_free(&rings->slabs);
    free(rings->series);
    free(rings->scratch);
    pthread_mutex_destroy(&rings->mutex);
    free(rings);
}

void kl_rings_lock(struct kl_rings *rings)
{
    pthread_mutex_lock(&rings->mutex);
}

void kl_rings_unlock(struct kl_rings *rings)
{
    pthread_mutex_unlock(&rings->mutex);
}

static struct series *find(struct kl_rings *rings, int series)
{
    if (series < 0 || series >= rings->count || !rings->series[series].lane.slab)
        return NULL;
    return &rings->series[series];
}

static int free_slot(struct kl_rings *rings)
{
    for (int i = 0; i < rings->count; i++)
        if (!rings->series[i].lane.slab)
            return i;
    int count = rings->count ? rings->count * 2 : 16;
    struct series *grown = realloc(rings->series, (size_t)count * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    memset(grown + rings->count, 0, (size_t)(count - rings->count) * sizeof *grown);
    rings->series = grown;
    int slot = rings->count;
    rings->count = count;
    return slot;
}

static int open_locked(struct kl_rings *rings, uint32_t capacity)
{
    if (capacity > rings->scratch_length) {
        double *scratch = realloc(rings->scratch, capacity * sizeof *scratch);
        if (!scratch)
            return -ENOMEM;
        rings->scratch = scratch;
        rings->scratch_length = capacity;
    }
    int slot = free_slot(rings);
    if (slot < 0)
        return slot;
    struct series series = {.latest_ms = INT64_MIN};
    int error = kl_lane_take(&rings->slabs, capacity, &series.lane);
    if (error)
        return error;
    rings->series[slot] = series;
    return slot;
}

int kl_rings_open(struct kl_rings *rings, uint32_t capacity)
{
    if (capacity == 0 || capacity > 1U << 20)
        return -EINVAL;
    kl_rings_lock(rings);
    int slot = open_locked(rings, capacity);
    kl_rings_unlock(rings);
    return slot;
}

int kl_rings_close(struct kl_rings *rings, int series)
{
    int result = -EINVAL;
    kl_rings_lock(rings);
    struct series *s = find(rings, series);
    if (s) {
        kl_lane_give_back(&rings->slabs, s->lane);
        *s = (struct series){0};
        result = 0;
    }
    kl_rings_unlock(rings);
    return result;
}

/* Row of the index-th sample, 0 the oldest. */
static uint32_t row_of(const struct series *s, uint32_t index)
{
    uint32_t row = s->first + index;
    return row < s->lane.slab->capacity ? row : row - s->lane.slab->capacity;
}

static int64_t time_of(const struct series *s, uint32_t index)
{
    return s->latest_ms - (int64_t)((uint32_t)s->latest_ms - *kl_lane_ms(s->lane, row_of(s, index)));
}

static void drop_oldest(struct series *s)
{
    s->first = row_of(s, 1);
    s->used--;
}

int kl_rings_push_locked(struct kl_rings *rings, int series, int64_t at_ms, double value)
{
    struct series *s = find(rings, series);
    if (!s || !isfinite(value) || (s->used && at_ms <= s->latest_ms))
        return -EINVAL;
    if (s->used == s->lane.slab->capacity)
        drop_oldest(s);
    while (s->used && at_ms - time_of(s, 0) > max_span_ms)
        drop_oldest(s);
    uint32_t row = row_of(s, s->used++);
    *kl_lane_value(s->lane, row) = value;
    *kl_lane_ms(s->lane, row) = (uint32_t)at_ms;
    s->latest_ms = at_ms;
    return 0;
}

int kl_rings_push(struct kl_rings *rings, int series, int64_t at_ms, double value)
{
    kl_rings_lock(rings);
    int result = kl_rings_push_locked(rings, series, at_ms, value);
    kl_rings_unlock(rings);
    return result;
}

static void swap(double *a, double *b)
{
    double kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves the rank-th smallest of v[low..high] to v[rank], smaller ones before it (Hoare). */
static void select_rank(double *v, int64_t low, int64_t high, int64_t rank)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (v[middle] < v[low])
            swap(&v[middle], &v[low]);
        if (v[high] < v[low])
            swap(&v[high], &v[low]);
        if (v[high] < v[middle])
            swap(&v[high], &v[middle]);
        double pivot = v[middle];
        int64_t i = low, j = high;
        while (i <= j) {
            while (v[i] < pivot)
                i++;
            while (pivot < v[j])
                j--;
            if (i <= j)
                swap(&v[i++], &v[j--]);
        }
        if (rank <= j)
            high = j;
        else if (rank >= i)
            low = i;
        else
            return;
    }
}

static void fill_percentiles(double *v, int64_t count, struct kl_aggregate *out)
{
    static const int64_t percent[] = {50, 90, 95, 99};
    double *const to[] = {&out->p50, &out->p90, &out->p95, &out->p99};
    int64_t low = 0; /* ranks ascend, so each search starts where the last one ended */
    for (int i = 0; i < 4; i++) {
        int64_t rank = count * percent[i] / 100 - 1;
        rank = rank < 0 ? 0 : rank;
        select_rank(v, low, count - 1, rank);
        *to[i] = v[rank];
        low = rank;
    }
}

static void aggregate_locked(const struct kl_rings *rings, const struct series *s, int64_t from_ms, int64_t to_ms,
                             struct kl_aggregate *out)
{
    double sum = 0;
    for (uint32_t index = 0; index < s->used; index++) {
        int64_t at_ms = time_of(s, index);
        if (at_ms < from_ms)
            continue;
        if (at_ms > to_ms)
            break;
        double value = *kl_lane_value(s->lane, row_of(s, index));
        if (out->count == 0) {
            out->first_ms = at_ms;
            out->min = out->max = value;
        }
        out->min = value < out->min ? value : out->min;
        out->max = value > out->max ? value : out->max;
        out->latest = value;
        out->latest_ms = at_ms;
        sum += value;
        rings->scratch[out->count++] = value;
    }
    if (out->count == 0)
        return;
    out->avg = sum / (double)out->count;
    fill_percentiles(rings->scratch, out->count, out);
}

int kl_rings_aggregate(struct kl_rings *rings, int series, int64_t from_ms, int64_t to_ms, struct kl_aggregate *out)
{
    int result = -EINVAL;
    *out = (struct kl_aggregate){0};
    kl_rings_lock(rings);
    const struct series *s = find(rings, series);
    if (s) {
        aggregate_locked(rings, s, from_ms, to_ms, out);
        result = (int)out->count;
    }
    kl_rings_unlock(rings);
    return result;
}
