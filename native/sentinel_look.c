/* One look of the sentinel: its few files read, windows fed, thresholds of the plan held against them. */
#define _GNU_SOURCE /* memmem */
#include "io.h"
#include "parse.h"
#include "sentinel_state.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

enum {
    FAST_PERIOD_US = 10000, /* for KL_SENTINEL_FAST_NS after a fire */
    READ_BYTES = 256,       /* the wanted number is in the first line of each file */
    MCPU = 1000,
    PERMYRIAD = 10000,
};
static const int64_t PRESSURE_WINDOW_NS = 100000000;
/* ---- Reading ---- */

/* A number that ends with its line: without the newline it may be cut off. */
static int64_t parse_number(const char *text, const char *end)
{
    const char *newline = memchr(text, '\n', (size_t)(end - text));
    uint64_t value;
    if (newline == NULL || kl_parse_u64(text, (size_t)(newline - text), &value) < 0 || value > INT64_MAX)
        return -EINVAL;
    return (int64_t)value;
}

/* First byte behind `key` in [text, end), or NULL. */
static const char *after(const char *text, const char *end, const char *key)
{
    const char *found = memmem(text, (size_t)(end - text), key, strlen(key));
    return found == NULL ? NULL : found + strlen(key);
}

static bool starts_with(const char *text, const char *end, const char *key)
{
    return (size_t)(end - text) >= strlen(key) && memcmp(text, key, strlen(key)) == 0;
}

int64_t kl_counter_parse(const char *text, int64_t length, int kind)
{
    const char *end = text + length;
    const char *number = NULL;
    if (kind == KL_COUNTER_NS) {
        number = text;
    } else if (kind == KL_COUNTER_USAGE_USEC) {
        bool first = starts_with(text, end, "usage_usec ");
        number = after(text, end, first ? "usage_usec " : "\nusage_usec ");
    } else if (kind == KL_COUNTER_PSI_SOME && starts_with(text, end, "some ")) {
        const char *newline = memchr(text, '\n', (size_t)length);
        if (newline != NULL)
            end = newline + 1; /* not the total of a "full" line */
        number = after(text, end, " total=");
    }
    int64_t value = number == NULL ? -EINVAL : parse_number(number, end);
    if (value < 0 || kind == KL_COUNTER_NS)
        return value;
    return __builtin_mul_overflow(value, 1000, &value) ? -EINVAL : value;
}

/* The counter in ns; -ENODEV when its cgroup was removed (the descriptor is then closed and set to -1), else -errno. */
static int64_t read_counter(struct kl_sentinel *s, int *fd, int kind)
{
    if (*fd < 0)
        return -ENODEV;
    char text[READ_BYTES];
    ssize_t got = kl_read_part(*fd, text, sizeof text);
    if (got == -ENODEV || got == -ENOENT) {
        s->state.gone++;
        kl_close(fd);
        return -ENODEV;
    }
    int64_t value = got < 0 ? got : kl_counter_parse(text, got, kind);
    if (value < 0)
        s->state.errors++;
    return value;
}

/* ---- Looking ---- */

static bool look_at_usage(struct kl_sentinel *s, int64_t now_ns)
{
    int64_t counters[1 + KL_SENTINEL_BE_ROOTS];
    struct sources *src = &s->sources;
    counters[0] = read_counter(s, &src->root_fd, src->usage_kind);
    if (counters[0] < 0)
        return false;
    for (int i = 0; i < src->be_count; i++) {
        int64_t value = read_counter(s, &src->be_fds[i], src->usage_kind);
        if (value < 0 && value != -ENODEV)
            return false; /* its usage would look like non-BE usage: better no reading */
        counters[1 + i] = value < 0 ? -1 : value;
    }
    struct kl_growth growth;
    if (!kl_meter_push(&s->usage, now_ns, counters, 1 + src->be_count) || !kl_window_growth(&s->usage.window, &growth))
        return false;
    int64_t limit_mcpu = s->plan.nonbe_mcpu;
    bool above = limit_mcpu >= 0 && kl_growth_above(&growth, s->usage.window.width_ns, MCPU, limit_mcpu);
    if (growth.full || above) {
        s->state.nonbe_mcpu = kl_growth_rate(&growth, MCPU);
        s->state.nonbe_at_ns = now_ns;
    }
    return above;
}

/* The worst group counts: the sum would charge one waiting moment several times. */
static bool look_at_pressure(struct kl_sentinel *s, int64_t now_ns)
{
    int64_t limit = s->plan.pressure_permyriad;
    int64_t worst = -1;
    bool any_above = false;
    for (int i = 0; i < s->sources.ls_count; i++) {
        int64_t stall_ns = read_counter(s, &s->sources.ls_fds[i], KL_COUNTER_PSI_SOME);
        struct kl_growth growth;
        struct kl_meter *meter = &s->pressure[i];
        if (stall_ns < 0 || !kl_meter_push(meter, now_ns, &stall_ns, 1) || !kl_window_growth(&meter->window, &growth))
            continue;
        bool above = limit >= 0 && kl_growth_above(&growth, meter->window.width_ns, PERMYRIAD, limit);
        int64_t rate = kl_growth_rate(&growth, PERMYRIAD);
        if ((growth.full || above) && rate > worst)
            worst = rate;
        any_above |= above;
    }
    if (worst >= 0) {
        s->state.pressure_permyriad = worst;
        s->state.pressure_at_ns = now_ns;
    }
    return any_above;
}

/* MemTotal, MemFree and MemAvailable are the first three lines. */
static bool look_at_memory_used(struct kl_sentinel *s, int64_t now_ns)
{
    char text[READ_BYTES];
    struct kl_meminfo memory;
    if (s->sources.meminfo_fd < 0)
        return false;
    ssize_t got = kl_read_part(s->sources.meminfo_fd, text, sizeof text);
    if (got < 0 || kl_parse_meminfo(text, (size_t)got, &memory) < 0 || memory.total < memory.available) {
        s->state.errors++;
        return false;
    }
    s->state.memory_used_bytes = (int64_t)(memory.total - memory.available);
    s->state.memory_used_at_ns = now_ns;
    return s->plan.memory_used_bytes >= 0 && s->state.memory_used_bytes > s->plan.memory_used_bytes;
}

static bool look_at_memory_pressure(struct kl_sentinel *s, int64_t now_ns)
{
    int64_t limit = s->plan.memory_pressure_permyriad;
    int64_t stall_ns = read_counter(s, &s->sources.memory_psi_fd, KL_COUNTER_PSI_SOME);
    struct kl_meter *meter = &s->memory_pressure;
    struct kl_growth growth;
    if (stall_ns < 0 || !kl_meter_push(meter, now_ns, &stall_ns, 1) || !kl_window_growth(&meter->window, &growth))
        return false;
    bool above = limit >= 0 && kl_growth_above(&growth, meter->window.width_ns, PERMYRIAD, limit);
    if (growth.full || above) {
        s->state.memory_pressure_permyriad = kl_growth_rate(&growth, PERMYRIAD);
        s->state.memory_pressure_at_ns = now_ns;
    }
    return above;
}

static bool look_at_memory(struct kl_sentinel *s, int64_t now_ns)
{
    if (s->plan.memory_used_bytes < 0 && s->plan.memory_pressure_permyriad < 0)
        return false;
    bool used_above = look_at_memory_used(s, now_ns);
    return look_at_memory_pressure(s, now_ns) || used_above;
}

void kl_sentinel_restart_windows(struct kl_sentinel *s)
{
    kl_meter_reset(&s->usage, s->plan.window_us * 1000);
    kl_meter_reset(&s->memory_pressure, PRESSURE_WINDOW_NS);
    for (int i = 0; i < KL_SENTINEL_LS_GROUPS; i++)
        kl_meter_reset(&s->pressure[i], PRESSURE_WINDOW_NS);
}

bool kl_sentinel_plan_is_off(const struct kl_sentinel_plan *plan)
{
    return plan->nonbe_mcpu < 0 && plan->pressure_permyriad < 0 && plan->memory_used_bytes < 0 &&
           plan->memory_pressure_permyriad < 0;
}

void kl_sentinel_retime(struct kl_sentinel *s, int64_t now_ns)
{
    int64_t wanted_us = s->plan.period_us;
    if (kl_sentinel_plan_is_off(&s->plan))
        wanted_us = 0;
    else if (now_ns < s->fast_until_ns && wanted_us > FAST_PERIOD_US)
        wanted_us = FAST_PERIOD_US;
    if (wanted_us == s->state.timer_us)
        return;
    struct timespec period = {.tv_sec = wanted_us / 1000000, .tv_nsec = wanted_us % 1000000 * 1000};
    struct itimerspec timer = {.it_interval = period, .it_value = period};
    if (s->state.timer_us == 0)
        timer.it_value = (struct timespec){.tv_nsec = 1};
    if (timerfd_settime(s->timer_fd, 0, &timer, NULL) < 0)
        s->state.errors++;
    s->state.timer_us = wanted_us;
}

bool kl_sentinel_look_locked(struct kl_sentinel *s, int64_t now_ns)
{
    if (kl_sentinel_plan_is_off(&s->plan))
        return false;
    s->state.looks++;
    bool usage_above = look_at_usage(s, now_ns);
    bool pressure_above = look_at_pressure(s, now_ns);
    bool memory_above = look_at_memory(s, now_ns);
    bool fired = s->state.armed && (usage_above || pressure_above || memory_above);
    if (fired) {
        s->state.armed = false;
        s->state.fires++;
        s->fast_until_ns = now_ns + KL_SENTINEL_FAST_NS;
        (void)eventfd_write(s->fire_fd, 1);
    }
    kl_sentinel_retime(s, now_ns);
    return fired;
}

bool kl_sentinel_look(struct kl_sentinel *s, int64_t now_ns)
{
    pthread_mutex_lock(&s->lock);
    bool fired = kl_sentinel_look_locked(s, now_ns);
    pthread_mutex_unlock(&s->lock);
    return fired;
}
