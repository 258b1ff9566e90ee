/* Counters of cgroups: one event group per cgroup and CPU, kept open, read as a whole, scaled where the kernel
 * time-sliced them (man 2 perf_event_open). */
#ifndef KOORDLET_PERF_H
#define KOORDLET_PERF_H

#include <stdint.h>

/* cdef */

enum { KL_PERF_EVENTS = 4 };

/* What to count, the leader first; type and config as in struct perf_event_attr. */
struct kl_perf_plan {
    uint32_t events;
    uint32_t type[4];
    uint64_t config[4];
};

/* One cgroup on one CPU, the caller's. fd: of each event, -1 where none is open (CPU offline, or closed). The rest is
 * what the last read said. */
struct kl_perf_cell {
    int fd[4];
    uint64_t enabled_ns, running_ns;
    uint64_t count[4];
};

/* Growth since the read before, summed over CPUs. cpus: how many counted; scaled: of these, time-sliced ones. */
struct kl_perf_sum {
    uint64_t count[4];
    uint64_t enabled_ns, running_ns;
    uint32_t cpus, scaled;
};

/* Marks n cells as closed. */
void kl_perf_reset(struct kl_perf_cell *cells, int n);

/* Opens the plan's group for a cgroup (descriptor of its directory) on each of n CPUs, not counting yet; cells[i] is
 * for cpus[i]. A CPU that went offline stays closed and is no error. 0, else -errno and every cell is closed again. */
int kl_perf_open(int cgroup, const struct kl_perf_plan *plan, const int *cpus, int n, struct kl_perf_cell *cells);

/* Counting on or off, all open groups of n cells. -errno of the first that failed, else 0. */
int kl_perf_enable(struct kl_perf_cell *cells, int n, int on);

/* Reads n cells of one cgroup and says how far they went since the read before. A count that went back is left out. */
int kl_perf_read(const struct kl_perf_plan *plan, struct kl_perf_cell *cells, int n, struct kl_perf_sum *out);

/* The same for many cgroups with n CPUs each, their cells one after another. How many could be read. */
int kl_perf_pass(const struct kl_perf_plan *plan, struct kl_perf_cell *cells, int cgroups, int n,
                 struct kl_perf_sum *out);

void kl_perf_close(struct kl_perf_cell *cells, int n);

/* end cdef */

#endif
