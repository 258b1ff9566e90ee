/* Memory of samples; see slab.h. */
#include "slab.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANES_MIN = 16,
    LANES_MAX = 512, /* a row of values is a page */
};

/* Each slab of a capacity is twice as wide as the one before, so that few series take little. */
static struct kl_slab *make(uint32_t capacity, uint32_t lanes)
{
    size_t samples = (size_t)capacity * lanes;
    struct kl_slab *slab = calloc(1, sizeof *slab + lanes);
    if (!slab)
        return NULL;
    /* malloc, not calloc: nothing may touch it before the first sample. One block, values first for their alignment. */
    slab->values = malloc(samples * (sizeof *slab->values + sizeof *slab->ms));
    if (!slab->values) {
        free(slab);
        return NULL;
    }
    slab->ms = (uint32_t *)(slab->values + samples);
    slab->capacity = capacity;
    slab->lanes = lanes;
    return slab;
}

static void destroy(struct kl_slab *slab)
{
    free(slab->values);
    free(slab);
}

int kl_lane_take(struct kl_slab **slabs, uint32_t capacity, struct kl_lane *out)
{
    uint32_t lanes = LANES_MIN;
    struct kl_slab *slab = *slabs;
    for (; slab; slab = slab->next) {
        if (slab->capacity != capacity)
            continue;
        if (slab->used < slab->lanes)
            break;
        if (slab->lanes >= lanes)
            lanes = slab->lanes < LANES_MAX ? slab->lanes * 2 : LANES_MAX;
    }
    if (!slab) {
        slab = make(capacity, lanes);
        if (!slab)
            return -ENOMEM;
        slab->next = *slabs;
        *slabs = slab;
    }
    const uint8_t *free_lane = memchr(slab->taken, 0, slab->lanes);
    *out = (struct kl_lane){slab, (uint32_t)(free_lane - slab->taken)};
    slab->taken[out->number] = 1;
    slab->used++;
    return 0;
}

void kl_lane_give_back(struct kl_slab **slabs, struct kl_lane lane)
{
    lane.slab->taken[lane.number] = 0;
    if (--lane.slab->used > 0)
        return;
    while (*slabs != lane.slab)
        slabs = &(*slabs)->next;
    *slabs = lane.slab->next;
    destroy(lane.slab);
}

void kl_slabs_free(struct kl_slab **slabs)
{
    while (*slabs) {
        struct kl_slab *slab = *slabs;
        *slabs = slab->next;
        destroy(slab);
    }
}
