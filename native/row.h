/* What the table keeps per cgroup, and the readings of one row. table.c opens and closes rows, read.c reads one, pass.c
 * decides which ones to read. */
#ifndef KOORDLET_ROW_H
#define KOORDLET_ROW_H

#include <stdbool.h>
#include <stdint.h>

#include "parse.h"
#include "table.h"

enum kl_state { KL_FREE, KL_ALIVE, KL_GONE };

/* Descriptors are -1 when there is no such file. */
struct row {
    enum kl_state state;
    int kind, pod;
    bool be, whole;
    int usage_fd, raw_fd;    /* kept open for reading: CPU counter, plain memory usage */
    int cpu_dir, memory_dir; /* O_PATH; the same descriptor on v2 */
    int cpu_series, memory_series;
    unsigned turns; /* of the rotation, so far */

    bool counted, still; /* usage_ns is valid; the counter did not move in this pass */
    uint64_t usage_ns;
    int64_t usage_at_ns;
    double mcpu;
    int64_t mcpu_ns;

    bool waits;           /* was not read in this pass though it may have moved a little */
    int64_t waited_to_ns; /* until when its last rate stands for what it used: when it waited last */

    uint64_t raw;
    int64_t raw_ns;
    uint64_t usage_at_raw;
    bool stat_tried;
    unsigned repeats;                    /* turns since memory.stat was read in which nothing had happened */
    uint64_t usage_at_stat, raw_at_stat; /* raw: of a container its pod's */
    uint64_t memory, memory_cached;
    int64_t memory_ns;

    bool quota, has_throttling, throttling_based;
    uint64_t periods, throttled_periods;           /* latest */
    uint64_t periods_base, throttled_periods_base; /* at the last rotation */
    double throttled;
    int64_t throttled_ns;
};

enum { KL_BUFFER = 32768 }; /* memory.stat has 2-3 KB; a full buffer counts as an error */

struct kl_table {
    int version;
    struct row *rows;
    int count, capacity;
    int rotation_at, moved_at; /* where the next pass goes on */
    unsigned passes;
    int64_t passed_ns; /* when the last one began */
    struct kl_memory_layout layout;
    uint64_t page_bytes; /* 0: memory.numa_stat is of no use here */
    char buffer[KL_BUFFER];
};

/* A container, or a pod that is its own. */
static inline bool kl_row_is_contained(const struct row *row)
{
    return row->kind == KL_CONTAINER || row->whole;
}

void kl_row_close(struct row *row);
void kl_row_close_memory(struct row *row);

/* One pass: its clock and its result. */
struct pass {
    struct kl_table *table;
    struct kl_totals *totals;
    int64_t now_ns, started_ns, interval_ns;
    bool nominal, calm;
};

void kl_read_usage(struct pass *pass, struct row *row);
void kl_read_pod_usage(struct pass *pass, struct row *row);
void kl_read_container_usage(struct pass *pass, struct row *row);
void kl_read_raw(struct pass *pass, struct row *row);

/* It ran long enough since then to have been charged for more than a trifle. */
bool kl_raw_is_due(const struct row *row);
void kl_read_memory_stat(struct pass *pass, struct row *row);
void kl_read_quota(struct pass *pass, struct row *row);
void kl_read_throttling(struct pass *pass, struct row *row);

/* Takes memory.stat for read where its cgroup has hardly run since and is charged the same; false: read it. */
bool kl_repeat_memory_stat(struct pass *pass, struct row *row);

/* The plain usage went far enough from where it was at the last memory.stat. */
bool kl_row_moved(const struct row *row);

#endif
