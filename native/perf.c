/* Counters of cgroups; see perf.h. */
#define _GNU_SOURCE 1
#include "perf.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io.h"

/* PERF_FORMAT_GROUP with both times: number of events, enabled, running, then the counts. */
struct reading {
    uint64_t events, enabled_ns, running_ns;
    uint64_t count[KL_PERF_EVENTS];
};

static int open_event(int cgroup, const struct kl_perf_plan *plan, uint32_t event, int cpu, int leader)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = plan->type[event];
    attr.config = plan->config[event];
    attr.disabled = leader < 0;
    attr.inherit = 0; /* a cgroup's event counts whoever runs in it; there is nobody to inherit it */
    attr.read_format = PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    long fd = syscall(SYS_perf_event_open, &attr, cgroup, cpu, leader, PERF_FLAG_PID_CGROUP | PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

static int open_cell(int cgroup, const struct kl_perf_plan *plan, int cpu, struct kl_perf_cell *cell)
{
    for (uint32_t event = 0; event < plan->events && event < KL_PERF_EVENTS; event++) {
        int fd = open_event(cgroup, plan, event, cpu, event ? cell->fd[0] : -1);
        if (fd == -ENODEV && event == 0)
            return 0; /* the CPU went offline */
        if (fd < 0)
            return fd;
        cell->fd[event] = fd;
    }
    return 0;
}

void kl_perf_reset(struct kl_perf_cell *cells, int n)
{
    for (int i = 0; i < n; i++) {
        cells[i] = (struct kl_perf_cell){0};
        for (int event = 0; event < KL_PERF_EVENTS; event++)
            cells[i].fd[event] = -1;
    }
}

int kl_perf_open(int cgroup, const struct kl_perf_plan *plan, const int *cpus, int n, struct kl_perf_cell *cells)
{
    kl_perf_reset(cells, n);
    for (int i = 0; i < n; i++) {
        int error = open_cell(cgroup, plan, cpus[i], &cells[i]);
        if (error < 0) {
            kl_perf_close(cells, n);
            return error;
        }
    }
    return 0;
}

int kl_perf_enable(struct kl_perf_cell *cells, int n, int on)
{
    int first = 0;
    for (int i = 0; i < n; i++) {
        if (cells[i].fd[0] < 0)
            continue;
        if (ioctl(cells[i].fd[0], on ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, PERF_IOC_FLAG_GROUP) && !first)
            first = -errno;
    }
    return first;
}

/* value * enabled / running without overflow, a reading being below 2^64 and the ratio a time's. */
static uint64_t scaled(uint64_t value, uint64_t enabled_ns, uint64_t running_ns)
{
    return (uint64_t)((unsigned __int128)value * enabled_ns / running_ns);
}

static void add(const struct kl_perf_plan *plan, struct kl_perf_cell *cell, const struct reading *now,
                struct kl_perf_sum *out)
{
    uint64_t enabled = now->enabled_ns - cell->enabled_ns, running = now->running_ns - cell->running_ns;
    int forward = now->enabled_ns >= cell->enabled_ns && now->running_ns >= cell->running_ns;
    for (uint32_t event = 0; event < plan->events && event < KL_PERF_EVENTS; event++)
        forward = forward && now->count[event] >= cell->count[event];
    if (forward && running > 0) {
        for (uint32_t event = 0; event < plan->events && event < KL_PERF_EVENTS; event++)
            out->count[event] += scaled(now->count[event] - cell->count[event], enabled, running);
        out->enabled_ns += enabled;
        out->running_ns += running;
        out->cpus++;
        out->scaled += running < enabled;
    }
    cell->enabled_ns = now->enabled_ns;
    cell->running_ns = now->running_ns;
    memcpy(cell->count, now->count, sizeof cell->count);
}

int kl_perf_read(const struct kl_perf_plan *plan, struct kl_perf_cell *cells, int n, struct kl_perf_sum *out)
{
    int first = 0;
    *out = (struct kl_perf_sum){0};
    for (int i = 0; i < n; i++) {
        struct reading now = {0};
        if (cells[i].fd[0] < 0)
            continue;
        ssize_t length = read(cells[i].fd[0], &now, sizeof now);
        if (length < 0 && !first)
            first = -errno;
        /* 0 bytes: the event is in error, its CPU or cgroup went away. */
        if (length >= (ssize_t)(3 * sizeof(uint64_t)) && now.events >= plan->events)
            add(plan, &cells[i], &now, out);
    }
    return first;
}

int kl_perf_pass(const struct kl_perf_plan *plan, struct kl_perf_cell *cells, int cgroups, int n,
                 struct kl_perf_sum *out)
{
    int good = 0;
    for (int i = 0; i < cgroups; i++)
        good += kl_perf_read(plan, cells + (long)i * n, n, &out[i]) == 0;
    return good;
}

void kl_perf_close(struct kl_perf_cell *cells, int n)
{
    for (int i = 0; i < n; i++)
        for (int event = KL_PERF_EVENTS - 1; event >= 0; event--)
            kl_close(&cells[i].fd[event]);
}
