/* perf.c on this machine's software events: nothing leaks, whatever fails; sums grow; closed cells are left out. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../perf.h"
#include "check.h"

static const struct kl_perf_plan SOFTWARE = {4, {1, 1, 1, 1}, {0, 1, 3, 2}};

/* The root of a hierarchy that perf knows, or -1 where perf may not be used. */
static int find_root(void)
{
    static const char *places[] = {"/sys/fs/cgroup/perf_event", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
    struct kl_perf_cell cell;
    int cpu = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int fd = open(places[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && kl_perf_open(fd, &SOFTWARE, &cpu, 1, &cell) == 0) {
            kl_perf_close(&cell, 1);
            return fd;
        }
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

static void check_counts(int root)
{
    struct kl_perf_cell cell;
    struct kl_perf_sum sum;
    int cpu = 0, before = open_descriptors();
    CHECK(kl_perf_open(root, &SOFTWARE, &cpu, 1, &cell) == 0);
    CHECK(open_descriptors() == before + 4);
    CHECK(kl_perf_enable(&cell, 1, 1) == 0);
    CHECK(kl_perf_read(&SOFTWARE, &cell, 1, &sum) == 0);
    for (volatile long spin = 0; spin < 20000000; spin++)
        ;
    CHECK(kl_perf_read(&SOFTWARE, &cell, 1, &sum) == 0);
    CHECK(sum.cpus <= 1);
    CHECK(sum.scaled == 0);
    CHECK(sum.running_ns == sum.enabled_ns);
    CHECK(kl_perf_enable(&cell, 1, 0) == 0);
    CHECK(kl_perf_pass(&SOFTWARE, &cell, 1, 1, &sum) == 1);
    CHECK(kl_perf_pass(&SOFTWARE, &cell, 1, 1, &sum) == 1);
    CHECK(sum.count[0] == 0); /* off: nothing is added */
    kl_perf_close(&cell, 1);
    kl_perf_close(&cell, 1);
    CHECK(kl_perf_read(&SOFTWARE, &cell, 1, &sum) == 0 && sum.cpus == 0);
    CHECK(open_descriptors() == before);
}

static void check_failures(int root)
{
    struct kl_perf_cell cells[3];
    static const struct kl_perf_plan bad_member = {2, {1, 1}, {0, 9999}};
    static const struct kl_perf_plan bad_leader = {1, {1}, {9999}};
    int cpus[3] = {0, 4095, 0}, before = open_descriptors();
    CHECK(kl_perf_open(root, &bad_member, cpus, 1, cells) < 0);
    CHECK(kl_perf_open(root, &bad_leader, cpus, 1, cells) < 0);
    CHECK(kl_perf_open(-1, &SOFTWARE, cpus, 1, cells) < 0);
    int error = kl_perf_open(root, &SOFTWARE, cpus, 3, cells); /* no such CPU: refused, or like an offline one */
    CHECK(error <= 0);
    kl_perf_close(cells, 3);
    CHECK(open_descriptors() == before);

    struct rlimit limit, low;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = (rlim_t)before + 4; /* open_descriptors() counts one of its own */
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    int same[3] = {0, 0, 0};
    CHECK(kl_perf_open(root, &SOFTWARE, same, 3, cells) == -EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(open_descriptors() == before);
    for (int i = 0; i < 3; i++)
        CHECK(cells[i].fd[0] == -1 && cells[i].fd[3] == -1);
}

int main(void)
{
    int root = find_root();
    if (root < 0) {
        puts("check_perf: perf events of cgroups cannot be opened here, skipped");
        return 0;
    }
    check_counts(root);
    check_failures(root);
    close(root);
    return 0;
}
