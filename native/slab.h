/* Memory of samples for ring.c: series of one capacity lie side by side, row by row. So what a pass appends to a thousand
 * series is written in one piece, and memory is touched only as far as the rings have filled. No locks.
 */
#ifndef KOORDLET_SLAB_H
#define KOORDLET_SLAB_H

#include <stdint.h>

/* `capacity` rows of `lanes` samples. taken: which lanes are in use. */
struct kl_slab {
    struct kl_slab *next;
    double *values;
    uint32_t *ms;
    uint32_t capacity, lanes, used;
    uint8_t taken[];
};

/* The place of one series. */
struct kl_lane {
    struct kl_slab *slab;
    uint32_t number;
};

/* A free lane, of a new slab where all are taken; 0 or -ENOMEM. Its samples hold anything. */
int kl_lane_take(struct kl_slab **slabs, uint32_t capacity, struct kl_lane *out);

/* Frees the slab with its last lane. */
void kl_lane_give_back(struct kl_slab **slabs, struct kl_lane lane);

void kl_slabs_free(struct kl_slab **slabs);

static inline double *kl_lane_value(struct kl_lane lane, uint32_t row)
{
    return &lane.slab->values[(uint64_t)row * lane.slab->lanes + lane.number];
}

static inline uint32_t *kl_lane_ms(struct kl_lane lane, uint32_t row)
{
    return &lane.slab->ms[(uint64_t)row * lane.slab->lanes + lane.number];
}

#endif
