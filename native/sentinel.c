/* The sentinel's thread, its descriptors and its state. The arithmetic is in window.c.
 *
 * One mutex covers everything that changes after creation. A look holds it for the time of its reads (tens of
 * microseconds); the callers from Python wait at most that long. epoll and timerfd are changed by whoever holds it.
 *
 * Longer than most files: the thread, its sources and its plan share that mutex and the struct, which no other file sees.
 */
#define _GNU_SOURCE /* memmem, pthread_setname_np, F_DUPFD_CLOEXEC */
#include "sentinel.h"
#include "io.h"
#include "parse.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    FAST_PERIOD_US = 10000, /* for FAST_NS after a fire */
    PERIOD_MIN_US = 1000,
    PERIOD_MAX_US = 1000000,
    WINDOW_MAX_US = 10000000,
    STACK_BYTES = 256 * 1024,
    READ_BYTES = 256, /* the wanted number is in the first line of each file */
    MCPU = 1000,
    PERMYRIAD = 10000,
};
static const int64_t FAST_NS = 1000000000;
static const int64_t PRESSURE_WINDOW_NS = 100000000;

/* Tags of epoll events; a trigger's tag also carries the generation of sources it belongs to. */
enum { TAG_STOP, TAG_TIMER, TAG_TRIGGER };

struct sources {
    int root_fd, meminfo_fd, memory_psi_fd, usage_kind;
    int be_count, ls_count, trigger_count;
    int be_fds[KL_SENTINEL_BE_ROOTS];
    int ls_fds[KL_SENTINEL_LS_GROUPS];
    int trigger_fds[KL_SENTINEL_TRIGGERS];
};

struct kl_sentinel {
    pthread_mutex_t lock;
    pthread_t thread;
    pid_t pid; /* of the process that runs the thread, 0 without one */
    int epoll_fd, timer_fd, stop_fd, fire_fd;
    uint32_t generation;
    bool triggers_polled;
    struct sources sources;
    struct kl_sentinel_plan plan;
    struct kl_sentinel_state state;
    int64_t fast_until_ns;
    struct kl_meter usage;
    struct kl_meter pressure[KL_SENTINEL_LS_GROUPS];
    struct kl_meter memory_pressure;
};

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

static void restart_windows(struct kl_sentinel *s)
{
    kl_meter_reset(&s->usage, s->plan.window_us * 1000);
    kl_meter_reset(&s->memory_pressure, PRESSURE_WINDOW_NS);
    for (int i = 0; i < KL_SENTINEL_LS_GROUPS; i++)
        kl_meter_reset(&s->pressure[i], PRESSURE_WINDOW_NS);
}

static bool plan_is_off(const struct kl_sentinel_plan *plan)
{
    return plan->nonbe_mcpu < 0 && plan->pressure_permyriad < 0 && plan->memory_used_bytes < 0 &&
           plan->memory_pressure_permyriad < 0;
}

/* Sets the timer to what the plan and the last fire ask for. From off the first look comes at once. */
static void retime(struct kl_sentinel *s, int64_t now_ns)
{
    int64_t wanted_us = s->plan.period_us;
    if (plan_is_off(&s->plan))
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

static bool look_locked(struct kl_sentinel *s, int64_t now_ns)
{
    if (plan_is_off(&s->plan))
        return false;
    s->state.looks++;
    bool usage_above = look_at_usage(s, now_ns);
    bool pressure_above = look_at_pressure(s, now_ns);
    bool memory_above = look_at_memory(s, now_ns);
    bool fired = s->state.armed && (usage_above || pressure_above || memory_above);
    if (fired) {
        s->state.armed = false;
        s->state.fires++;
        s->fast_until_ns = now_ns + FAST_NS;
        (void)eventfd_write(s->fire_fd, 1);
    }
    retime(s, now_ns);
    return fired;
}

bool kl_sentinel_look(struct kl_sentinel *s, int64_t now_ns)
{
    pthread_mutex_lock(&s->lock);
    bool fired = look_locked(s, now_ns);
    pthread_mutex_unlock(&s->lock);
    return fired;
}

/* ---- The thread ---- */

static uint64_t trigger_tag(uint32_t generation, int index)
{
    return (uint64_t)generation << 8 | (uint64_t)(TAG_TRIGGER + index);
}

static int poll_add(int epoll_fd, int fd, uint32_t events, uint64_t tag)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* Triggers are polled only while a plan is on, so that a sentinel that is off never wakes. */
static void poll_triggers(struct kl_sentinel *s, bool on)
{
    for (int i = 0; on != s->triggers_polled && i < s->sources.trigger_count; i++) {
        int fd = s->sources.trigger_fds[i];
        if (fd < 0)
            continue;
        if (!on)
            epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        else if (poll_add(s->epoll_fd, fd, EPOLLPRI, trigger_tag(s->generation, i)) < 0)
            s->state.errors++;
    }
    s->triggers_polled = on;
}

/* True when the event is of a present trigger, thus a reason to look. */
static bool take_trigger(struct kl_sentinel *s, const struct epoll_event *event)
{
    for (int i = 0; i < s->sources.trigger_count; i++) {
        if (event->data.u64 != trigger_tag(s->generation, i) || s->sources.trigger_fds[i] < 0)
            continue;
        if (event->events & EPOLLERR) { /* cgroup removed: would be reported without end */
            epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->sources.trigger_fds[i], NULL);
            kl_close(&s->sources.trigger_fds[i]);
            s->state.gone++;
            return false;
        }
        s->state.hints++;
        return true;
    }
    return false; /* of sources that were replaced meanwhile */
}

/* True when the timer ran out, unless it was set anew meanwhile. */
static bool take_timer(int timer_fd)
{
    uint64_t expirations;
    return read(timer_fd, &expirations, sizeof expirations) > 0;
}

static void *run(void *argument)
{
    struct kl_sentinel *s = argument;
    struct epoll_event events[2 + KL_SENTINEL_TRIGGERS];
    for (;;) {
        int count = epoll_wait(s->epoll_fd, events, sizeof events / sizeof *events, -1);
        if (count < 0 && errno != EINTR)
            return NULL;
        bool look = false;
        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 == TAG_STOP)
                return NULL;
            if (events[i].data.u64 == TAG_TIMER)
                look = take_timer(s->timer_fd);
        }
        pthread_mutex_lock(&s->lock);
        s->state.wakeups++;
        for (int i = 0; i < count; i++)
            if (take_trigger(s, &events[i]))
                look = true;
        if (look)
            look_locked(s, kl_clock_ns());
        pthread_mutex_unlock(&s->lock);
    }
}

int kl_sentinel_start(struct kl_sentinel *s)
{
    if (s->pid != 0)
        return -EALREADY;
    pthread_attr_t attributes;
    int rc = pthread_attr_init(&attributes);
    if (rc != 0)
        return -rc;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the caller's threads */
    rc = pthread_create(&s->thread, &attributes, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (rc != 0)
        return -rc;
    pthread_setname_np(s->thread, "kl-sentinel"); /* at most 15 characters */
    s->pid = getpid();
    return 0;
}

/* ---- Life and settings ---- */

static void close_sources(struct sources *sources)
{
    kl_close(&sources->root_fd);
    kl_close(&sources->meminfo_fd);
    kl_close(&sources->memory_psi_fd);
    for (int i = 0; i < sources->be_count; i++)
        kl_close(&sources->be_fds[i]);
    for (int i = 0; i < sources->ls_count; i++)
        kl_close(&sources->ls_fds[i]);
    for (int i = 0; i < sources->trigger_count; i++)
        kl_close(&sources->trigger_fds[i]);
}

static int dup_into(int fd, int *out)
{
    *out = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return *out < 0 ? -errno : 0;
}

/* Duplicates `fds` one by one, counting in *count what is to be closed on failure. */
static int dup_all(const int *fds, int wanted, int *out, int *count)
{
    int rc = 0;
    for (; rc == 0 && *count < wanted; ++*count)
        rc = dup_into(fds[*count], &out[*count]);
    return rc;
}

static int open_sources(struct sources *out, const struct kl_sentinel_sources *from)
{
    *out = (struct sources){.root_fd = -1, .meminfo_fd = -1, .memory_psi_fd = -1, .usage_kind = from->usage_kind};
    if (from->be_count < 0 || from->ls_count < 0 || from->trigger_count < 0)
        return -EINVAL;
    if (from->be_count > KL_SENTINEL_BE_ROOTS || from->ls_count > KL_SENTINEL_LS_GROUPS ||
        from->trigger_count > KL_SENTINEL_TRIGGERS)
        return -E2BIG;
    int rc = from->root_fd < 0 ? 0 : dup_into(from->root_fd, &out->root_fd);
    if (rc == 0 && from->meminfo_fd >= 0)
        rc = dup_into(from->meminfo_fd, &out->meminfo_fd);
    if (rc == 0 && from->memory_psi_fd >= 0)
        rc = dup_into(from->memory_psi_fd, &out->memory_psi_fd);
    if (rc == 0)
        rc = dup_all(from->be_fds, from->be_count, out->be_fds, &out->be_count);
    if (rc == 0)
        rc = dup_all(from->ls_fds, from->ls_count, out->ls_fds, &out->ls_count);
    if (rc == 0)
        rc = dup_all(from->trigger_fds, from->trigger_count, out->trigger_fds, &out->trigger_count);
    if (rc < 0)
        close_sources(out);
    return rc;
}

int kl_sentinel_set_sources(struct kl_sentinel *s, const struct kl_sentinel_sources *sources)
{
    struct sources fresh;
    int rc = open_sources(&fresh, sources);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->lock);
    bool polled = s->triggers_polled;
    poll_triggers(s, false);
    struct sources old = s->sources;
    s->sources = fresh;
    s->generation++;
    poll_triggers(s, polled);
    restart_windows(s);
    pthread_mutex_unlock(&s->lock);
    close_sources(&old);
    return 0;
}

int kl_sentinel_set_plan(struct kl_sentinel *s, const struct kl_sentinel_plan *plan)
{
    if (plan->nonbe_mcpu < -1 || plan->pressure_permyriad < -1 || plan->memory_used_bytes < -1 ||
        plan->memory_pressure_permyriad < -1 || plan->period_us < PERIOD_MIN_US || plan->period_us > PERIOD_MAX_US ||
        plan->window_us < plan->period_us || plan->window_us > WINDOW_MAX_US)
        return -EINVAL;
    pthread_mutex_lock(&s->lock);
    bool restart = plan_is_off(&s->plan) || plan->window_us != s->plan.window_us;
    s->plan = *plan;
    s->state.armed = !plan_is_off(plan);
    if (restart)
        restart_windows(s);
    poll_triggers(s, s->state.armed);
    retime(s, kl_clock_ns());
    pthread_mutex_unlock(&s->lock);
    return 0;
}

void kl_sentinel_state_read(struct kl_sentinel *s, struct kl_sentinel_state *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->state;
    pthread_mutex_unlock(&s->lock);
}

int kl_sentinel_eventfd(const struct kl_sentinel *s)
{
    return s->fire_fd;
}

int kl_sentinel_create(struct kl_sentinel **out)
{
    *out = NULL;
    struct kl_sentinel *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->sources.root_fd = -1;
    s->sources.meminfo_fd = -1;
    s->sources.memory_psi_fd = -1;
    s->plan = (struct kl_sentinel_plan){-1, -1, -1, -1, PERIOD_MIN_US, PERIOD_MIN_US};
    s->state.nonbe_mcpu = -1;
    s->state.pressure_permyriad = -1;
    s->state.memory_used_bytes = -1;
    s->state.memory_pressure_permyriad = -1;
    restart_windows(s);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->fire_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = s->epoll_fd < 0 || s->timer_fd < 0 || s->stop_fd < 0 || s->fire_fd < 0 ? -errno : 0;
    if (rc == 0)
        rc = poll_add(s->epoll_fd, s->stop_fd, EPOLLIN, TAG_STOP);
    if (rc == 0)
        rc = poll_add(s->epoll_fd, s->timer_fd, EPOLLIN, TAG_TIMER);
    if (rc < 0) {
        kl_sentinel_destroy(s);
        return rc;
    }
    *out = s;
    return 0;
}

void kl_sentinel_destroy(struct kl_sentinel *s)
{
    if (s == NULL)
        return;
    if (s->pid == getpid()) {
        eventfd_write(s->stop_fd, 1);
        pthread_join(s->thread, NULL);
    }
    close_sources(&s->sources);
    kl_close(&s->epoll_fd);
    kl_close(&s->timer_fd);
    kl_close(&s->stop_fd);
    kl_close(&s->fire_fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
