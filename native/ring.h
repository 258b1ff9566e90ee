/* Rings of samples in native memory: many series, each the last `capacity` samples, and aggregates over a time window.
 *
 * A sample is a time in milliseconds (monotonic) and a finite number. One mutex per object, so any thread may ask while
 * another pushes. Returns: counts or 0, else -errno.
 */
#ifndef KOORDLET_RING_H
#define KOORDLET_RING_H

#include <stdint.h>

/* cdef */

struct kl_rings;

/* NULL when out of memory. */
struct kl_rings *kl_rings_new(void);

void kl_rings_free(struct kl_rings *rings);

/* A new empty series, or -errno. Takes 12 bytes per sample, as it fills. Numbers of closed series are reused. */
int kl_rings_open(struct kl_rings *rings, uint32_t capacity);

int kl_rings_close(struct kl_rings *rings, int series);

/* Appends; the oldest sample makes room. -EINVAL for a value that is not finite and a time not after the last one. */
int kl_rings_push(struct kl_rings *rings, int series, int64_t at_ms, double value);

/* All samples of [from_ms, to_ms], both ends included. Percentile p is the ascending sample at the 0-based index
 * max(count * p / 100 - 1, 0), the reference's rule (spec/collect 3.2). All zero when count is 0. */
struct kl_aggregate {
    int64_t count, first_ms, latest_ms;
    double avg, min, max, latest, p50, p90, p95, p99;
};
int kl_rings_aggregate(struct kl_rings *rings, int series, int64_t from_ms, int64_t to_ms, struct kl_aggregate *out);

/* end cdef */

/* For a batch of pushes by other C code: lock, push_locked..., unlock. */
void kl_rings_lock(struct kl_rings *rings);
void kl_rings_unlock(struct kl_rings *rings);
int kl_rings_push_locked(struct kl_rings *rings, int series, int64_t at_ms, double value);

#endif
