/* Sliding windows over growing counters, as the sentinel uses them: integers only, no I/O, no clock. */
#include "sentinel.h"

#include <string.h>

/* Timers come late by a little: a sample this much (width/8) before the window still counts as inside. */
static int64_t slack_ns(int64_t width_ns)
{
    return width_ns / 8;
}

static int slot(const struct kl_window *w, int index)
{
    return (w->first + index) % KL_WINDOW_SAMPLES;
}

void kl_window_reset(struct kl_window *w, int64_t width_ns)
{
    w->width_ns = width_ns > 0 ? width_ns : 1;
    w->first = 0;
    w->used = 0;
}

bool kl_window_push(struct kl_window *w, int64_t at_ns, int64_t value)
{
    if (w->used > 0) {
        int64_t newest_ns = w->at_ns[slot(w, w->used - 1)];
        if (at_ns < newest_ns)
            w->used = 0;
        else if (at_ns == newest_ns || at_ns - newest_ns < w->width_ns / 16)
            return false;
    }
    /* Samples are at least width/16 apart, so a full ring is always longer than the window. */
    if (w->used == KL_WINDOW_SAMPLES) {
        w->first = slot(w, 1);
        w->used--;
    }
    int at = slot(w, w->used++);
    w->at_ns[at] = at_ns;
    w->value[at] = value;
    return true;
}

bool kl_window_growth(const struct kl_window *w, struct kl_growth *out)
{
    if (w->used < 2)
        return false;
    int newest = slot(w, w->used - 1);
    int64_t reach_ns = w->width_ns + slack_ns(w->width_ns);
    int base = slot(w, w->used - 2);
    for (int i = w->used - 3; i >= 0 && w->at_ns[newest] - w->at_ns[slot(w, i)] <= reach_ns; i--)
        base = slot(w, i);
    out->span_ns = w->at_ns[newest] - w->at_ns[base];
    if (__builtin_sub_overflow(w->value[newest], w->value[base], &out->delta))
        out->delta = w->value[newest] > 0 ? INT64_MAX : 0;
    if (out->delta < 0)
        out->delta = 0;
    out->full = out->span_ns >= w->width_ns - slack_ns(w->width_ns);
    return true;
}

int64_t kl_growth_rate(const struct kl_growth *g, int64_t scale)
{
    __int128 rate = (__int128)g->delta * scale / g->span_ns;
    return rate > INT64_MAX ? INT64_MAX : (int64_t)rate;
}

bool kl_growth_above(const struct kl_growth *g, int64_t width_ns, int64_t scale, int64_t limit)
{
    int64_t over_ns = g->full ? g->span_ns : width_ns;
    return (__int128)g->delta * scale > (__int128)limit * over_ns;
}

void kl_meter_reset(struct kl_meter *m, int64_t width_ns)
{
    kl_window_reset(&m->window, width_ns);
    m->total = 0;
    m->count = 0;
}

/* Growth of counter 0 minus that of the others since the last reading; false when the readings do not compare. */
static bool meter_step(const struct kl_meter *m, const int64_t *counters, int n, int64_t *step)
{
    *step = 0;
    for (int i = 0; i < n; i++) {
        if ((counters[i] < 0) != (m->last[i] < 0) || counters[i] < m->last[i])
            return false;
        int64_t grown = counters[i] < 0 ? 0 : counters[i] - m->last[i];
        if (__builtin_add_overflow(*step, i == 0 ? grown : -grown, step))
            return false;
    }
    return true;
}

bool kl_meter_push(struct kl_meter *m, int64_t at_ns, const int64_t *counters, int n)
{
    if (n < 1 || n > KL_METER_COUNTERS || counters[0] < 0)
        return false;
    int64_t step = 0;
    if (m->count != n || !meter_step(m, counters, n, &step) || __builtin_add_overflow(m->total, step, &m->total))
        kl_meter_reset(m, m->window.width_ns);
    m->count = n;
    memcpy(m->last, counters, (size_t)n * sizeof *counters);
    return kl_window_push(&m->window, at_ns, m->total);
}
