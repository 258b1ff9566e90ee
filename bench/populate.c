/* Fills cgroups with the processes of a typical node: populate ROOT < list, one "KIND CGROUP" per line.
 *
 * KIND s: asleep. w: wakes once a second. b: wakes ten times a second, burns 0.1 ms, touches and frees 64 pages.
 * Prints "ready" when all are in place and ends, with all of them, when its standard input's other end closes or it is
 * killed.
 */
#define _GNU_SOURCE 1
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const char *const controllers[] = {"cpu", "cpuacct", "memory"};

static int enter(const char *root, const char *cgroup)
{
    char path[PATH_MAX + 64];
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers; i++) {
        snprintf(path, sizeof path, "%s/%s/%s/cgroup.procs", root, controllers[i], cgroup);
        FILE *procs = fopen(path, "we");
        if (!procs || fputs("0\n", procs) < 0 || fclose(procs) != 0)
            return -1;
    }
    return 0;
}

static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void burst(void)
{
    const size_t size = 64 * 4096;
    double end_s = cpu_s() + 1e-4;
    char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED) {
        for (size_t at = 0; at < size; at += 4096)
            pages[at] = 1;
        munmap(pages, size);
    }
    while (cpu_s() < end_s)
        ;
}

static void live(char kind)
{
    if (kind == 's')
        for (;;)
            pause();
    for (;;) {
        usleep(kind == 'w' ? 1000000 : 100000);
        if (kind == 'b')
            burst();
    }
}

int main(int argc, char **argv)
{
    char kind, cgroup[PATH_MAX];
    pid_t parent = getpid();
    if (argc != 2)
        return 2;
    while (scanf(" %c %4000s", &kind, cgroup) == 2 && kind != '.') {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent || enter(argv[1], cgroup) != 0)
                _exit(1);
            live(kind);
        }
    }
    sleep(1);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
