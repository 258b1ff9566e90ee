/* The table of watched cgroups: one row each, read in one pass per tick on kept descriptors.
 *
 * A pass reads, parses, differentiates and sums; nothing is allocated and no path is walked from the root. What is read
 * how often (per row of N cgroups):
 *   every pass       CPU counter of roots, pods and host applications, and of containers whose pod's counter moved;
 *                    plain memory usage of roots, pods and host applications that ran for a millisecond since the last
 *   every third      in calm passes (KL_PASS_CALM), CPU counter of pods and containers that used less than half a percent
 *                    of a CPU when last read
 *   in turn          a tenth of the rows per pass, through directory descriptors: memory.stat (of containers every second
 *                    turn; not of what has hardly run since and is charged the same within 1 MiB, for three turns), plain
 *                    memory usage of what hardly ran, throttling where a quota is set, every sixth turn whether there is one
 *   on request       throttling of containers with a quota, in every pass (KL_PASS_THROTTLING)
 *   at once          memory.stat of a row whose plain usage moved by more than 2 % (and 1 MiB) since the last one,
 *                    a bounded number per pass; the rest follow in the next passes
 *
 * A removed cgroup's CPU counter answers ENODEV: its row is closed and marked gone, and never tried again.
 * Times are nanoseconds on the caller's monotonic clock. One thread at a time per table. Returns: 0, a row or a count,
 * else -errno.
 */
#ifndef KOORDLET_TABLE_H
#define KOORDLET_TABLE_H

#include <stdint.h>

#include "ring.h"

/* cdef */

struct kl_table;

/* What a row is. Roots and containers never enter the sums of pods. */
enum { KL_ROOT = 0, KL_POD = 1, KL_CONTAINER = 2, KL_HOST = 3 };

/* Directories on v1: cpuacct, cpu and memory hierarchy; on v2 all three are the same path. pod: row of a container's
 * pod, else -1. whole: of a pod that is its only container, too. Series numbers for kl_table_pass, -1 for none. */
struct kl_row_spec {
    const char *usage_dir, *cpu_dir, *memory_dir;
    int kind, be, pod, whole;
    int cpu_series, memory_series;
};

/* Time of a value that is not there. */
enum { KL_NEVER = -1 };

/* Latest figures of a row. mcpu: rate over the last interval; throttled: share of periods, over the last rotation
 * (of a container or a whole pod with KL_PASS_THROTTLING: over the last pass), absent without a quota; memory: anonymous + unevictable bytes; memory_cached: that + file LRUs; raw: as the kernel
 * counts it. A value counts only when its _ns is not KL_NEVER. */
struct kl_row {
    int kind, be, gone, quota;
    double mcpu, throttled;
    uint64_t memory, memory_cached, raw;
    int64_t mcpu_ns, throttled_ns, memory_ns, raw_ns;
};

/* version: 1 or 2. NULL when out of memory. */
struct kl_table *kl_table_new(int version);

/* Closes every descriptor. */
void kl_table_free(struct kl_table *table);

/* Opens the descriptors of a cgroup. -ENOENT when it or its CPU counter does not exist; a missing memory controller
 * only leaves the memory values absent. On error nothing stays open. */
int kl_table_add(struct kl_table *table, const struct kl_row_spec *spec);

/* Moves a row between best effort (1) and the rest (0). */
int kl_table_tag(struct kl_table *table, int row, int be);

int kl_table_remove(struct kl_table *table, int row);

/* Rows that are gone and not yet removed; fills at most `capacity` numbers and returns how many it wrote. */
int kl_table_gone(const struct kl_table *table, int *rows, int capacity);

/* Containers and whole pods that were throttled, as read at `since_ns` or later; fills and returns as kl_table_gone. */
int kl_table_throttled(const struct kl_table *table, int64_t since_ns, int *rows, int capacity);

int kl_table_read(const struct kl_table *table, int row, struct kl_row *out);

/* Open descriptors held by the table. */
int kl_table_descriptors(const struct kl_table *table);

/* A sum over rows. missing: living rows that could not contribute; oldest_ns: oldest value inside, KL_NEVER for none.
 * CPU sums hold rates of this pass, and the last one of what waits in a calm pass; memory sums the latest values not
 * older than 30 s. */
struct kl_sum {
    double value;
    int64_t oldest_ns;
    int rows, missing;
};

enum {
    KL_SUM_PODS = 0,
    KL_SUM_NONBE_PODS = 1,
    KL_SUM_HOSTS = 2,
    KL_SUM_NONBE_HOSTS = 3,
    KL_SUM_ROOTS = 4,
    KL_SUMS = 5
};

/* What one pass did. gone: rows that went away in it. errors: reads that failed or made no sense. counters, raws,
 * memory_stats, quotas: files read; skipped: containers whose pod's counter stood still, and what waits in a calm pass;
 * throttled: containers and whole pods of which this pass learned that they were throttled. */
struct kl_totals {
    struct kl_sum cpu[KL_SUMS], memory[KL_SUMS];
    int rows, gone, errors;
    int counters, raws, memory_stats, quotas, skipped, throttled;
};

/* NOMINAL_TIME: takes every value at now_ns instead of at now_ns plus the time spent in the pass so far.
 * THROTTLING: reads the throttling of every container with a quota, instead of in turn.
 * CALM: the node's use has moved by no more than KL_CALM_MCPU since the last pass; without it nothing that may have
 * moved is left out. */
enum { KL_PASS_NOMINAL_TIME = 1, KL_PASS_THROTTLING = 2, KL_PASS_CALM = 4 };
enum { KL_CALM_MCPU = 100 };

/* One pass. Rates and memory values of this pass, and the last rate of what waits, are appended to `rings` (NULL:
 * nowhere) at now_ns. The rate of what has waited is that since it waited last, its earlier rate taken for granted until
 * then. Rates are dropped after a counter that went back, when no time passed, and over gaps longer than 20 s. */
int kl_table_pass(struct kl_table *table, struct kl_rings *rings, int64_t now_ns, int flags, struct kl_totals *out);

/* end cdef */

#endif
