/* Parsers of the kernel's text files: pure functions over a buffer, no I/O, no allocation.
 *
 * Each returns 0, or -EINVAL when the text is not what the kernel documents (nothing is written to *out then).
 * "Keyed" text is one `key value` pair per line, split by blanks; lines with fewer than two words are skipped, words
 * after the second are ignored and a later duplicate wins (spec/collect 1.5).
 */
#ifndef KOORDLET_PARSE_H
#define KOORDLET_PARSE_H

#include <stddef.h>
#include <stdint.h>

/* cdef */

/* One unsigned decimal number, surrounding newlines allowed. */
int kl_parse_u64(const char *text, size_t length, uint64_t *out);

/* CPU quota in microseconds, -1 for none: v1 cpu.cfs_quota_us ("-1", "50000") or v2 cpu.max ("max 100000"). */
int kl_parse_quota(const char *text, size_t length, int64_t *out);

/* cpu.stat of v1 (throttled_time, ns) and v2 (usage_usec, throttled_usec), in nanoseconds. The has_ fields tell which
 * groups of keys were complete: v2 without the cpu controller has usage only, v1 never has usage. */
struct kl_cpu_stat {
    uint64_t usage_ns, periods, throttled_periods, throttled_ns;
    int has_usage, has_throttling;
};
int kl_parse_cpu_stat(const char *text, size_t length, struct kl_cpu_stat *out);

/* memory.stat, bytes; v1 takes the hierarchical `total_` values. Every key is required. */
enum { KL_MEMORY_KEYS = 5 };
struct kl_memory_stat {
    uint64_t inactive_anon, active_anon, inactive_file, active_file, unevictable;
};

/* Where the keys stood in the last text: key[i] is on line[i], ascending. Zeroed is "unknown". The order is fixed for
 * a running kernel, so lines are skipped by counting newlines; a key not found at its line means a full scan. */
struct kl_memory_layout {
    int known;
    int line[KL_MEMORY_KEYS], key[KL_MEMORY_KEYS];
};
int kl_parse_memory_stat(const char *text, size_t length, int version, struct kl_memory_layout *layout,
                         struct kl_memory_stat *out);

/* memory.numa_stat of v1, in bytes: the same sums in half the time, as the kernel prints 8 lines in place of 44. Both
 * lists of a kind are in the inactive one here. -E2BIG for more than two nodes, whose figures take longer to print. */
int kl_parse_numa_stat(const char *text, size_t length, uint64_t page_bytes, struct kl_memory_stat *out);

/* Busy ticks of the node: user + nice + system + irq + softirq of the `cpu` line. Guest time is inside user; idle,
 * iowait and steal are not work of this node. */
int kl_parse_proc_stat(const char *text, size_t length, uint64_t *busy_ticks);

/* /proc/meminfo in bytes. Kernels before 3.14 have no MemAvailable: then free + file LRUs + reclaimable slab. */
struct kl_meminfo {
    uint64_t total, free, available;
};
int kl_parse_meminfo(const char *text, size_t length, struct kl_meminfo *out);

/* end cdef */

#endif
