/* The table on a copied cgroup tree with missing, empty, huge and garbled files: no descriptor is lost, no bad value
 * enters a sum. */
#define _GNU_SOURCE
#include "check.h"
#include "node.h"
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static char root[] = "/tmp/koordlet-check-XXXXXX";
static const char memory_stat[] = "inactive_anon 100\nactive_anon 20\ninactive_file 3\nactive_file 4\nunevictable 5\n";

static void put_bytes(const char *cgroup, const char *name, const char *bytes, size_t length)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", root, cgroup);
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, cgroup, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, length) == (ssize_t)length && close(fd) == 0);
}

static void put(const char *cgroup, const char *name, const char *text)
{
    put_bytes(cgroup, name, text, strlen(text));
}

static void put_usage(const char *cgroup, int64_t usage_us)
{
    char text[64];
    (void)snprintf(text, sizeof text, "usage_usec %ld\n", (long)usage_us);
    put(cgroup, "cpu.stat", text);
}

static void make_cgroup(const char *cgroup)
{
    put_usage(cgroup, 0);
    put(cgroup, "cpu.max", "max 100000\n");
    put(cgroup, "memory.current", "4096\n");
    put(cgroup, "memory.stat", memory_stat);
}

static int add(struct kl_table *table, const char *cgroup, int kind, int pod)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", root, cgroup);
    struct kl_row_spec spec = {
        .usage_dir = path,
        .cpu_dir = path,
        .memory_dir = path,
        .kind = kind,
        .pod = pod,
        .cpu_series = -1,
        .memory_series = -1,
    };
    return kl_table_add(table, &spec);
}

static void bad_rows_are_refused(void)
{
    struct kl_table *table = kl_table_new(2);
    struct kl_row row;
    int before = open_descriptors();
    make_cgroup("pod");
    CHECK(add(table, "missing", KL_POD, -1) == -ENOENT);
    CHECK(add(table, "pod", 4, -1) == -EINVAL && add(table, "pod", -1, -1) == -EINVAL);
    CHECK(add(table, "pod", KL_CONTAINER, 0) == -EINVAL && add(table, "pod", KL_CONTAINER, -2) == -EINVAL);
    CHECK(kl_table_read(table, 0, &row) == -EINVAL && kl_table_remove(table, 0) == -EINVAL);
    CHECK(kl_table_tag(table, -1, 1) == -EINVAL && open_descriptors() == before);
    struct kl_totals totals;
    CHECK(kl_table_pass(table, NULL, SECOND, 0, &totals) == 0 && totals.rows == 0); /* empty table */
    kl_table_free(table);
    kl_table_free(NULL);
}

static void rates_and_memory(void)
{
    struct kl_table *table = kl_table_new(2);
    make_cgroup("pod");
    int pod = add(table, "pod", KL_POD, -1);
    struct kl_totals totals;
    for (int64_t i = 1; i <= 3; i++) {
        put_usage("pod", i * 250000);
        CHECK(kl_table_pass(table, NULL, i * SECOND, KL_PASS_NOMINAL_TIME, &totals) == 0);
        CHECK(totals.errors == 0 && totals.rows == 1);
        CHECK(totals.cpu[KL_SUM_PODS].rows == (i > 1) && totals.memory[KL_SUM_PODS].value == 125.0);
    }
    struct kl_row row;
    CHECK(totals.cpu[KL_SUM_NONBE_PODS].value == 250.0);
    CHECK(kl_table_read(table, pod, &row) == 0 && row.mcpu == 250.0 && row.memory_cached == 132);
    CHECK(kl_table_tag(table, pod, 1) == 0);
    CHECK(kl_table_pass(table, NULL, 4 * SECOND, KL_PASS_NOMINAL_TIME, &totals) == 0);
    CHECK(totals.cpu[KL_SUM_NONBE_PODS].rows == 0 && totals.cpu[KL_SUM_PODS].rows == 1);
    kl_table_free(table);
}

static void garbled_files_give_no_values(void)
{
    static const char *const bad[] = {
        "",
        "\n",
        "usage_usec",
        "usage_usec 99999999999999999999999\n",
        "usage_usec -5\n",
        "\x80\n",
        "user_usec 4",
        "usage_usec 5 5x",
        "usage_usec 1e9\n",
    };
    struct kl_table *table = kl_table_new(2);
    make_cgroup("pod");
    make_cgroup("pod/container");
    int pod = add(table, "pod", KL_POD, -1);
    CHECK(add(table, "pod/container", KL_CONTAINER, pod) >= 0);
    static char large[40000];
    memset(large, 'x', sizeof large);
    uint64_t seed = 123456789;
    struct kl_totals totals;
    for (int64_t i = 1; i < 400; i++) {
        const char *text = bad[noise(&seed) % (sizeof bad / sizeof *bad)];
        put("pod", "cpu.stat", text);
        put("pod/container", "cpu.stat", text);
        put("pod", "memory.current", text);
        put("pod/container", "cpu.max", text);
        put_bytes("pod", "memory.stat", i % 7 == 0 ? large : memory_stat,
                  i % 7 == 0 ? sizeof large : noise(&seed) % 20);
        put_bytes("pod/container", "memory.stat", "inactive_anon \0 7\n", 18);
        CHECK(kl_table_pass(table, NULL, i * SECOND, KL_PASS_NOMINAL_TIME, &totals) == 0);
        CHECK(totals.memory[KL_SUM_PODS].rows == 0 && totals.rows == 2 && totals.gone == 0);
    }
    CHECK(totals.errors > 0);
    kl_table_free(table);
}

/* A counter that goes back is a first sample again. */
static void counter_back(void)
{
    struct kl_table *table = kl_table_new(2);
    struct kl_totals totals;
    make_cgroup("pod");
    add(table, "pod", KL_POD, -1);
    const int64_t usage_us[] = {900000, 100000, 200000};
    const int rated[] = {0, 0, 1};
    for (int i = 0; i < 3; i++) {
        put_usage("pod", usage_us[i]);
        kl_table_pass(table, NULL, (i + 1) * SECOND, KL_PASS_NOMINAL_TIME, &totals);
        CHECK(totals.cpu[KL_SUM_PODS].rows == rated[i]);
    }
    CHECK(totals.cpu[KL_SUM_PODS].value == 100.0);
    kl_table_free(table);
}

static void rows_come_and_go(void)
{
    struct kl_table *table = kl_table_new(2);
    struct kl_totals totals;
    int before = open_descriptors();
    make_cgroup("pod");
    uint64_t seed = 42;
    int rows[200];
    for (int i = 0; i < 200; i++)
        rows[i] = add(table, "pod", (int)(noise(&seed) % 4), i == 0 ? -1 : (int)(noise(&seed) % (uint64_t)i));
    CHECK(kl_table_descriptors(table) == open_descriptors() - before);
    for (int64_t round = 1; round <= 20; round++) {
        for (int i = 0; i < 20; i++) {
            int at = (int)(noise(&seed) % 200);
            CHECK(kl_table_remove(table, rows[at]) == 0 && kl_table_remove(table, rows[at]) == -EINVAL);
            rows[at] = add(table, "pod", (int)(noise(&seed) % 4), -1);
            CHECK(rows[at] >= 0 && rows[at] < 200);
        }
        CHECK(kl_table_pass(table, NULL, round * SECOND, round % 3 ? KL_PASS_CALM : 0, &totals) == 0 &&
              totals.rows == 200);
    }
    kl_table_free(table);
    CHECK(open_descriptors() == before);
}

static void node_files(void)
{
    struct kl_node node;
    CHECK(kl_node_read(-1, -1, &node) == -EBADF && !node.has_cpu && !node.has_memory);
    put(".", "stat", "cpu  1 2 4 8 16 32 64 0 0 0\n");
    put(".", "meminfo", "MemTotal: 10 kB\n");
    int dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(dir >= 0);
    int stat_fd = openat(dir, "stat", O_RDONLY | O_CLOEXEC);
    int meminfo_fd = openat(dir, "meminfo", O_RDONLY | O_CLOEXEC);
    CHECK(kl_node_read(stat_fd, meminfo_fd, &node) == -EINVAL);
    CHECK(node.has_cpu && node.busy_ticks == 103 && !node.has_memory && node.memory_total == 0);
    CHECK(close(stat_fd) == 0 && close(meminfo_fd) == 0 && close(dir) == 0);
}

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *where)
{
    (void)status;
    (void)flag;
    (void)where;
    return remove(path);
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    bad_rows_are_refused();
    rates_and_memory();
    garbled_files_give_no_values();
    counter_back();
    rows_come_and_go();
    node_files();
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
