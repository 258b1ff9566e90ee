/* The sentinel's thread, its descriptors and its state. The arithmetic is in window.c.
 *
 * One mutex covers everything that changes after creation. A look holds it for the time of its reads (tens of
 * microseconds); the callers from Python wait at most that long. epoll and timerfd are changed by whoever holds it.
 * What a look does is in sentinel_look.c.
 */
#define _GNU_SOURCE /* pthread_setname_np, F_DUPFD_CLOEXEC */
#include "io.h"
#include "sentinel_state.h"

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
    PERIOD_MIN_US = 1000,
    PERIOD_MAX_US = 1000000,
    WINDOW_MAX_US = 10000000,
    STACK_BYTES = 256 * 1024,
};

/* Tags of epoll events; a trigger's tag also carries the generation of sources it belongs to. */
enum { TAG_STOP, TAG_TIMER, TAG_TRIGGER };

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
            kl_sentinel_look_locked(s, kl_clock_ns());
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
    kl_sentinel_restart_windows(s);
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
    bool restart = kl_sentinel_plan_is_off(&s->plan) || plan->window_us != s->plan.window_us;
    s->plan = *plan;
    s->state.armed = !kl_sentinel_plan_is_off(plan);
    if (restart)
        kl_sentinel_restart_windows(s);
    poll_triggers(s, s->state.armed);
    kl_sentinel_retime(s, kl_clock_ns());
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
    kl_sentinel_restart_windows(s);
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
