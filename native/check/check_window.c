/* The sentinel's windows: worked sequences and hostile values. */
#include "check.h"
#include "sentinel.h"

#define MS INT64_C(1000000)

static bool growth_after(struct kl_window *w, int64_t at_ms, int64_t value, struct kl_growth *out)
{
    return kl_window_push(w, at_ms * MS, value) && kl_window_growth(w, out);
}

static void full_window_and_early_alarm(void)
{
    struct kl_window w;
    struct kl_growth g;
    kl_window_reset(&w, 40 * MS);
    CHECK(!growth_after(&w, 0, 0, &g)); /* one sample says nothing */
    CHECK(growth_after(&w, 20, 30 * MS, &g));
    CHECK(!g.full && kl_growth_rate(&g, 1000) == 1500);
    CHECK(kl_growth_above(&g, w.width_ns, 1000, 749)); /* 30 ms over a whole window of 40 ms: 0.75 CPU */
    CHECK(!kl_growth_above(&g, w.width_ns, 1000, 750));
    CHECK(growth_after(&w, 40, 40 * MS, &g));
    CHECK(g.full && g.span_ns == 40 * MS && kl_growth_rate(&g, 1000) == 1000);
    CHECK(growth_after(&w, 61, 41 * MS, &g)); /* a late timer: the sample of 20 ms is still inside */
    CHECK(g.full && g.delta == 11 * MS && g.span_ns == 41 * MS);
}

static void gap_is_not_diluted(void)
{
    struct kl_window w;
    struct kl_growth g;
    kl_window_reset(&w, 40 * MS);
    growth_after(&w, 0, 0, &g);
    growth_after(&w, 20, 1 * MS, &g);
    CHECK(growth_after(&w, 1000, 491 * MS, &g)); /* starved for a second: the gap itself is judged */
    CHECK(g.full && kl_growth_rate(&g, 1000) == 500);
    CHECK(growth_after(&w, 1020, 511 * MS, &g));
    CHECK(!g.full && g.span_ns == 20 * MS);
}

static void too_soon_and_backwards(void)
{
    struct kl_window w;
    struct kl_growth g;
    kl_window_reset(&w, 160 * MS);
    CHECK(kl_window_push(&w, 100 * MS, 5));
    CHECK(!kl_window_push(&w, 100 * MS, 6));
    CHECK(!kl_window_push(&w, 109 * MS, 6));
    CHECK(kl_window_push(&w, 110 * MS, 3));
    CHECK(kl_window_growth(&w, &g) && g.delta == 0); /* jitter, not negative usage */
    CHECK(kl_window_push(&w, 50 * MS, 3));
    CHECK(!kl_window_growth(&w, &g));
}

static void many_samples_keep_the_window(void)
{
    struct kl_window w;
    struct kl_growth g = {0};
    kl_window_reset(&w, 160 * MS);
    for (int64_t i = 0; i < 1000; i++)
        growth_after(&w, 10 * i, 10 * i * MS, &g);
    CHECK(g.full && g.span_ns == 180 * MS && g.delta == 180 * MS);
}

static void meter_subtracts_and_restarts(void)
{
    struct kl_meter m;
    struct kl_growth g;
    kl_meter_reset(&m, 40 * MS);
    CHECK(!kl_meter_push(&m, 0, (int64_t[]){-1, 5}, 2));
    CHECK(!kl_meter_push(&m, 0, (int64_t[]){1}, 0));
    CHECK(!kl_meter_push(&m, 0, (int64_t[]){1}, KL_METER_COUNTERS + 1));
    CHECK(kl_meter_push(&m, 0, (int64_t[]){100 * MS, 50 * MS}, 2));
    CHECK(kl_meter_push(&m, 20 * MS, (int64_t[]){140 * MS, 70 * MS}, 2));
    CHECK(kl_window_growth(&m.window, &g) && kl_growth_rate(&g, 1000) == 1000);
    CHECK(kl_meter_push(&m, 40 * MS, (int64_t[]){180 * MS, 60 * MS}, 2)); /* the other one went back */
    CHECK(!kl_window_growth(&m.window, &g));
    CHECK(kl_meter_push(&m, 60 * MS, (int64_t[]){200 * MS, -1}, 2)); /* gone */
    CHECK(!kl_window_growth(&m.window, &g));
    CHECK(kl_meter_push(&m, 80 * MS, (int64_t[]){210 * MS, -1}, 2)); /* without it from here on */
    CHECK(kl_window_growth(&m.window, &g) && kl_growth_rate(&g, 1000) == 500);
    CHECK(kl_meter_push(&m, 100 * MS, (int64_t[]){220 * MS}, 1)); /* another set of counters */
    CHECK(!kl_window_growth(&m.window, &g));
}

static int64_t any_number(uint64_t *seed)
{
    uint64_t bits = noise(seed);
    return (int64_t)(noise(seed) >> (bits % 64)) * (bits & 64 ? -1 : 1);
}

static void hostile_values(void)
{
    uint64_t seed = 88172645463325252u;
    struct kl_meter m;
    kl_meter_reset(&m, 40 * MS);
    struct kl_window w;
    kl_window_reset(&w, 0); /* raised to 1 ns */
    int64_t now_ns = 0;
    for (int i = 0; i < 200000; i++) {
        int64_t counters[3] = {any_number(&seed), any_number(&seed), any_number(&seed)};
        struct kl_growth g = {0};
        now_ns += (int64_t)(noise(&seed) % (50 * MS));
        kl_meter_push(&m, now_ns, counters, 3);
        if (kl_window_growth(&m.window, &g))
            CHECK(g.span_ns > 0 && g.delta >= 0 && kl_growth_rate(&g, 1000) >= 0);
        kl_window_push(&w, now_ns, counters[0]);
        if (kl_window_growth(&w, &g))
            CHECK(g.span_ns > 0 && g.delta >= 0 && kl_growth_rate(&g, 10000) >= 0);
        kl_growth_above(&g, 40 * MS, 10000, INT64_MAX);
    }
}

int main(void)
{
    full_window_and_early_alarm();
    gap_is_not_diluted();
    too_soon_and_backwards();
    many_samples_keep_the_window();
    meter_subtracts_and_restarts();
    hostile_values();
    return 0;
}
