/* The parsers on malformed input: every prefix of a good text, flipped bytes, huge numbers, no newline, NUL. */
#include "check.h"
#include "parse.h"

#include <errno.h>

static const char cpu_stat_v1[] = "nr_periods 10\nnr_throttled 3\nthrottled_time 500\nnr_bursts 0\nburst_time 0\n";
static const char cpu_stat_v2[] = "usage_usec 7\nuser_usec 5\nsystem_usec 2\nnr_periods 10\nnr_throttled 3\n"
                                  "throttled_usec 4\n";
static const char memory_v1[] = "cache 1\ninactive_anon 9\ntotal_inactive_anon 11\ntotal_active_anon 12\n"
                                "total_inactive_file 13\ntotal_active_file 14\ntotal_unevictable 15\n";
static const char memory_v2[] = "anon 1\ninactive_anon 11\nactive_anon 12\ninactive_file 13\nactive_file 14\n"
                                "unevictable 15\nslab 3\n";
static const char numa_stat[] = "total=9 N0=9\nanon=4 N0=4\nhierarchical_total=12 N0=7 N1=5\nhierarchical_file=3 N0=3\n"
                                "hierarchical_anon=8 N0=8\nhierarchical_unevictable=1 N0=1\n";
static const char proc_stat[] = "cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n";
static const char meminfo[] = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 50 kB\nActive(file): 5 kB\n"
                              "Inactive(file): 6 kB\nSReclaimable: 7 kB\n";

/* Text of one file through the parser of its kind, from a buffer that ends where the text ends. */
enum kind { NUMBER, QUOTA, CPU_STAT, MEMORY_V1, MEMORY_V2, NUMA_STAT, PROC_STAT, MEMINFO, KINDS };

static struct kl_memory_layout layouts[KINDS];

static int parse(enum kind kind, const char *text, size_t length)
{
    union {
        uint64_t number;
        int64_t quota;
        struct kl_cpu_stat cpu;
        struct kl_memory_stat memory;
        struct kl_meminfo meminfo;
    } out;
    char *copy = exact_copy(text, length);
    int rc = 0;
    if (kind == NUMBER)
        rc = kl_parse_u64(copy, length, &out.number);
    else if (kind == QUOTA)
        rc = kl_parse_quota(copy, length, &out.quota);
    else if (kind == CPU_STAT)
        rc = kl_parse_cpu_stat(copy, length, &out.cpu);
    else if (kind == MEMORY_V1 || kind == MEMORY_V2)
        rc = kl_parse_memory_stat(copy, length, kind == MEMORY_V1 ? 1 : 2, &layouts[kind], &out.memory);
    else if (kind == NUMA_STAT)
        rc = kl_parse_numa_stat(copy, length, 4096, &out.memory);
    else if (kind == PROC_STAT)
        rc = kl_parse_proc_stat(copy, length, &out.number);
    else
        rc = kl_parse_meminfo(copy, length, &out.meminfo);
    free(copy);
    CHECK(rc == 0 || rc == -EINVAL || (kind == NUMA_STAT && rc == -E2BIG));
    return rc;
}

static void bad_numbers(void)
{
    static const char *const bad[] = {
        "", "\n", " ", "-1", "+1", "0x10", "1e3", "1 2", "12x", "18446744073709551616", "99999999999999999999999\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(parse(NUMBER, bad[i], strlen(bad[i])) == -EINVAL);
    CHECK(parse(NUMBER, "1\0", 2) == -EINVAL);
    uint64_t number = 7;
    CHECK(kl_parse_u64("18446744073709551615", 20, &number) == 0 && number == UINT64_MAX); /* no newline */
    CHECK(kl_parse_u64("x", 1, &number) == -EINVAL && number == UINT64_MAX);               /* left alone on error */
}

static void bad_quotas(void)
{
    static const char *const bad[] = {"", "\n", "maximum", "-2", "-1x", "9223372036854775808 100000\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(parse(QUOTA, bad[i], strlen(bad[i])) == -EINVAL);
    int64_t quota = 0;
    CHECK(kl_parse_quota("max", 3, &quota) == 0 && quota == -1);
    CHECK(kl_parse_quota("5000 100000", 11, &quota) == 0 && quota == 5000);
}

static void incomplete_tables(void)
{
    struct kl_cpu_stat cpu;
    CHECK(kl_parse_cpu_stat("usage_usec 7\nnr_periods 4\n", 26, &cpu) == 0 && cpu.has_usage && !cpu.has_throttling);
    CHECK(kl_parse_cpu_stat("", 0, &cpu) == 0 && !cpu.has_usage && !cpu.has_throttling);
    CHECK(parse(CPU_STAT, "usage_usec 18446744073709551615\n", 32) == -EINVAL); /* not in ns */
    CHECK(parse(MEMORY_V1, memory_v2, strlen(memory_v2)) == -EINVAL);
    CHECK(parse(MEMORY_V2, memory_v2, strlen(memory_v2) - 22) == -EINVAL);
    CHECK(parse(PROC_STAT, "cpu  1 2 3 4 5 6\n", 17) == -EINVAL);
    CHECK(parse(PROC_STAT, "cpu0 1 2 3 4 5 6 7\n", 19) == -EINVAL);
    CHECK(parse(PROC_STAT, "cpu  18446744073709551615 1 0 0 0 0 0\n", 38) == -EINVAL);
    CHECK(parse(MEMINFO, "MemTotal: 5 kB\n", 15) == -EINVAL);
    CHECK(parse(MEMINFO, "MemTotal: 18014398509481984 kB\nMemFree: 1 kB\n", 46) == -EINVAL);
}

static void memory_layout_is_relearnt(void)
{
    static const char swapped[] =
        "unevictable 15\nactive_file 14\nx\ninactive_file 13\nactive_anon 12\ninactive_anon 11\n";
    const char *const texts[] = {memory_v2, memory_v2, swapped, swapped, memory_v2};
    struct kl_memory_layout layout = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kl_memory_stat out = {0};
        CHECK(kl_parse_memory_stat(texts[i], strlen(texts[i]), 2, &layout, &out) == 0 && layout.known);
        CHECK(out.inactive_anon == 11 && out.active_anon == 12 && out.inactive_file == 13 && out.active_file == 14 &&
              out.unevictable == 15);
    }
}

static void every_prefix_and_flipped_bytes(void)
{
    static const struct {
        enum kind kind;
        const char *text;
    } good[] = {
        {NUMBER, "1234567890\n"}, {QUOTA, "max 100000\n"}, {CPU_STAT, cpu_stat_v1},
        {CPU_STAT, cpu_stat_v2},  {MEMORY_V1, memory_v1},  {MEMORY_V2, memory_v2},
        {PROC_STAT, proc_stat},   {MEMINFO, meminfo},      {NUMA_STAT, numa_stat},
    };
    uint64_t seed = 2463534242;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t length = strlen(good[i].text);
        CHECK(parse(good[i].kind, good[i].text, length) == 0);
        for (size_t cut = 0; cut < length; cut++)
            parse(good[i].kind, good[i].text, cut);
        for (int round = 0; round < 20000; round++) {
            char text[512];
            memcpy(text, good[i].text, length);
            for (int flips = 0; flips < 4; flips++)
                text[noise(&seed) % length] = "\0\n \t9-xm"[noise(&seed) % 8];
            parse(good[i].kind, text, length - noise(&seed) % 3);
        }
    }
}

int main(void)
{
    bad_numbers();
    bad_quotas();
    incomplete_tables();
    memory_layout_is_relearnt();
    every_prefix_and_flipped_bytes();
    return 0;
}
