/* Reading one row: CPU counter, plain memory usage, memory.stat, quota and throttling. */
#include <errno.h>

#include "io.h"
#include "row.h"

static const int64_t max_gap_ns = INT64_C(20000000000); /* a longer gap makes the next read a first sample */
static const unsigned max_repeats = 3;
static const unsigned wait_turns = 3;
static const int64_t max_span_ns = INT64_C(3500000000); /* of a rate after waiting: three passes a second apart */
static const double little_mcpu = 5.0;
static const uint64_t charge_ns = UINT64_C(1000000); /* of CPU; the kernel can charge some megabytes in it, not more */
/* The kernel charges ahead in batches of 64 pages, one for each CPU that the group runs on. */
static const uint64_t batch_bytes = 256U << 10; /* what one that hardly ran is off by: no news */
static const uint64_t moved_bytes = 1U << 20;   /* what one that ran is often off by: not worth an early look */

static bool is_gone(ssize_t error)
{
    return error == -ENODEV || error == -ENOENT;
}

/* When a value is being read. A pass over a thousand cold files takes milliseconds, longer when it is preempted. */
static int64_t moment_ns(const struct pass *pass)
{
    return pass->nominal ? pass->now_ns : pass->now_ns + kl_clock_ns() - pass->started_ns;
}

/* The CPU counter could not be read; when it is gone, so is the cgroup. */
static void lose_row(struct pass *pass, struct row *row, ssize_t error)
{
    if (!is_gone(error)) {
        pass->totals->errors++;
        return;
    }
    kl_row_close(row);
    row->state = KL_GONE;
    pass->totals->gone++;
}

/* v1 removes a cgroup one hierarchy after the other, and v2 can switch off the memory controller alone. */
static void lose_memory(struct pass *pass, struct row *row, ssize_t error)
{
    if (!is_gone(error)) {
        pass->totals->errors++;
        return;
    }
    kl_row_close_memory(row);
    row->raw_ns = row->memory_ns = KL_NEVER;
}

/* While it waited its last rate stood for it; what it used beyond that came since. */
static double rate_since(const struct row *row, double used_ns, int64_t at_ns)
{
    int64_t from_ns =
        row->waited_to_ns > row->usage_at_ns && row->waited_to_ns < at_ns ? row->waited_to_ns : row->usage_at_ns;
    used_ns -= row->mcpu * (double)(from_ns - row->usage_at_ns) / 1000.0;
    return used_ns > 0.0 ? used_ns * 1000.0 / (double)(at_ns - from_ns) : 0.0;
}

static void count_usage(struct row *row, uint64_t usage_ns, int64_t at_ns)
{
    int64_t elapsed_ns = at_ns - row->usage_at_ns;
    if (row->counted && elapsed_ns <= 0)
        return;
    row->still = row->counted && usage_ns == row->usage_ns;
    if (row->counted && usage_ns >= row->usage_ns && elapsed_ns <= max_gap_ns) {
        row->mcpu = rate_since(row, (double)(usage_ns - row->usage_ns), at_ns);
        row->mcpu_ns = at_ns;
    }
    row->counted = true;
    row->usage_ns = usage_ns;
    row->usage_at_ns = at_ns;
}

static int parse_usage(struct kl_table *table, struct row *row, size_t length, uint64_t *usage_ns)
{
    if (table->version == 1)
        return kl_parse_u64(table->buffer, length, usage_ns);
    struct kl_cpu_stat stat;
    if (kl_parse_cpu_stat(table->buffer, length, &stat) != 0 || !stat.has_usage)
        return -EINVAL;
    *usage_ns = stat.usage_ns;
    row->has_throttling = stat.has_throttling;
    row->periods = stat.periods;
    row->throttled_periods = stat.throttled_periods;
    return 0;
}

void kl_read_usage(struct pass *pass, struct row *row)
{
    struct kl_table *table = pass->table;
    row->still = false;
    pass->totals->counters++;
    ssize_t length = kl_read(row->usage_fd, table->buffer, KL_BUFFER);
    int64_t at_ns = moment_ns(pass);
    uint64_t usage_ns;
    if (length < 0)
        lose_row(pass, row, length);
    else if (parse_usage(table, row, (size_t)length, &usage_ns) != 0)
        pass->totals->errors++;
    else
        count_usage(row, usage_ns, at_ns);
}

/* The numbers of pods have a pattern (so many containers follow each), so they are mixed (Fibonacci hashing). */
static bool is_turn(const struct kl_table *table, int number)
{
    return (table->passes + ((uint32_t)number * UINT32_C(2654435769) >> 16)) % wait_turns == 0;
}

/* In a calm pass what used little last time waits for its turn: one that hurries shows in the node's own usage. A pod
 * and its containers, whose counters share pages, have the same turn. */
static bool waits(struct pass *pass, struct row *row, int number)
{
    row->waits = pass->calm && row->mcpu_ns != KL_NEVER && row->mcpu < little_mcpu &&
                 pass->now_ns - row->usage_at_ns + pass->interval_ns <= max_span_ns &&
                 !(row->quota && kl_row_is_contained(row)) && !is_turn(pass->table, number);
    pass->totals->skipped += row->waits;
    return row->waits;
}

void kl_read_pod_usage(struct pass *pass, struct row *row)
{
    if (waits(pass, row, (int)(row - pass->table->rows)))
        row->still = false; /* not known */
    else
        kl_read_usage(pass, row);
}

/* A pod's counter contains its containers': when it stood still, so did theirs, and none of them used more. */
void kl_read_container_usage(struct pass *pass, struct row *row)
{
    const struct row *pod = row->pod >= 0 ? &pass->table->rows[row->pod] : NULL;
    bool known = pod && pod->state == KL_ALIVE && row->counted;
    if (known && pod->still) {
        pass->totals->skipped++;
        count_usage(row, row->usage_ns, pod->usage_at_ns);
        row->waits = false;
    } else if (!known || pod->mcpu >= little_mcpu || !waits(pass, row, row->pod)) {
        row->waits = false;
        kl_read_usage(pass, row);
    }
}

void kl_read_raw(struct pass *pass, struct row *row)
{
    pass->totals->raws++;
    ssize_t length = kl_read(row->raw_fd, pass->table->buffer, KL_BUFFER);
    uint64_t raw;
    if (length < 0)
        lose_memory(pass, row, length);
    else if (kl_parse_u64(pass->table->buffer, (size_t)length, &raw) != 0)
        pass->totals->errors++;
    else {
        row->raw = raw;
        row->raw_ns = moment_ns(pass);
        row->usage_at_raw = row->usage_ns;
    }
}

bool kl_raw_is_due(const struct row *row)
{
    return row->raw_ns == KL_NEVER || row->usage_ns - row->usage_at_raw >= charge_ns;
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

bool kl_row_moved(const struct row *row)
{
    uint64_t change = distance(row->raw, row->raw_at_stat);
    return change > moved_bytes && change > row->raw_at_stat / 50;
}

/* Whose plain usage tells about this row's memory: its own or, of a container, its pod's. NULL when there is none. */
static const struct row *charged_row(const struct pass *pass, const struct row *row)
{
    if (row->kind != KL_CONTAINER)
        return row;
    const struct row *pod = row->pod >= 0 ? &pass->table->rows[row->pod] : NULL;
    return pod && pod->state == KL_ALIVE ? pod : NULL;
}

/* Only what runs can charge memory, and what reclaim takes shows in the plain usage. */
bool kl_repeat_memory_stat(struct pass *pass, struct row *row)
{
    const struct row *charged = charged_row(pass, row);
    if (row->memory_ns == KL_NEVER || !charged || charged->raw_ns == KL_NEVER || row->repeats >= max_repeats ||
        row->usage_ns - row->usage_at_stat >= charge_ns || distance(charged->raw, row->raw_at_stat) > batch_bytes)
        return false;
    row->repeats++;
    row->memory_ns = moment_ns(pass);
    return true;
}

/* v1 on a machine of one or two NUMA nodes; false where memory.stat has to be asked. */
static bool read_numa_stat(struct kl_table *table, const struct row *row, struct kl_memory_stat *stat)
{
    if (table->page_bytes == 0)
        return false;
    ssize_t length = kl_read_at(row->memory_dir, "memory.numa_stat", table->buffer, KL_BUFFER);
    return length >= 0 && kl_parse_numa_stat(table->buffer, (size_t)length, table->page_bytes, stat) == 0;
}

void kl_read_memory_stat(struct pass *pass, struct row *row)
{
    struct kl_table *table = pass->table;
    const struct row *charged = charged_row(pass, row);
    row->stat_tried = true;
    row->repeats = 0;
    row->usage_at_stat = row->usage_ns;
    row->raw_at_stat = charged ? charged->raw : 0;
    pass->totals->memory_stats++;
    struct kl_memory_stat stat;
    if (!read_numa_stat(table, row, &stat)) {
        ssize_t length = kl_read_at(row->memory_dir, "memory.stat", table->buffer, KL_BUFFER);
        if (length < 0) {
            lose_memory(pass, row, length);
            return;
        }
        table->page_bytes = 0; /* there is one, but not the cheaper file */
        if (kl_parse_memory_stat(table->buffer, (size_t)length, table->version, &table->layout, &stat) != 0) {
            pass->totals->errors++;
            return;
        }
    }
    row->memory = stat.inactive_anon + stat.active_anon + stat.unevictable;
    row->memory_cached = row->memory + stat.inactive_file + stat.active_file;
    row->memory_ns = moment_ns(pass);
}

/* v1 has its own file for it; on v2 the counters came with the usage. False when there is nothing to learn. */
static bool read_throttling(struct pass *pass, struct row *row)
{
    struct kl_table *table = pass->table;
    if (table->version != 1)
        return row->has_throttling;
    struct kl_cpu_stat stat;
    ssize_t length = kl_read_at(row->cpu_dir, "cpu.stat", table->buffer, KL_BUFFER);
    if (length < 0 || kl_parse_cpu_stat(table->buffer, (size_t)length, &stat) != 0 || !stat.has_throttling) {
        pass->totals->errors += !is_gone(length);
        return false;
    }
    row->periods = stat.periods;
    row->throttled_periods = stat.throttled_periods;
    return true;
}

/* Share of the periods since the last rotation; 0 when none began, and after a counter that went back. */
static double throttled_share(const struct row *row)
{
    if (row->periods <= row->periods_base || row->throttled_periods <= row->throttled_periods_base)
        return 0.0;
    double share =
        (double)(row->throttled_periods - row->throttled_periods_base) / (double)(row->periods - row->periods_base);
    return share > 1.0 ? 1.0 : share;
}

void kl_read_throttling(struct pass *pass, struct row *row)
{
    if (!row->quota || !read_throttling(pass, row)) {
        row->throttling_based = false;
        row->throttled_ns = KL_NEVER;
        return;
    }
    if (row->throttling_based) {
        row->throttled = throttled_share(row);
        row->throttled_ns = moment_ns(pass);
    }
    row->throttling_based = true;
    row->periods_base = row->periods;
    row->throttled_periods_base = row->throttled_periods;
}

/* No such file: the cgroup is going away, or lives without the cpu controller (v2). */
void kl_read_quota(struct pass *pass, struct row *row)
{
    struct kl_table *table = pass->table;
    pass->totals->quotas++;
    const char *name = table->version == 1 ? "cpu.cfs_quota_us" : "cpu.max";
    ssize_t length = kl_read_at(row->cpu_dir, name, table->buffer, KL_BUFFER);
    int64_t quota_us = -1;
    if (length >= 0 && kl_parse_quota(table->buffer, (size_t)length, &quota_us) != 0)
        length = -EINVAL;
    pass->totals->errors += length < 0 && !is_gone(length);
    row->quota = quota_us > 0;
    kl_read_throttling(pass, row);
}
