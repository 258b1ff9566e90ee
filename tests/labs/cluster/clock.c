// Preloaded into one process: its wall clock is off by what the file named by LAB_CLOCK says (one long, seconds, shared
// with the test that steps it). No other clock, no sleep and no file's time is touched.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long no_step;
static const volatile long *step_s = &no_step;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void
attach(void)
{
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("LAB_CLOCK");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        step_s = page;
    close(fd);
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
    if (real_clock_gettime == NULL) // another constructor came first
        attach();
    int failed = real_clock_gettime(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += *step_s;
    return failed;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t
time(time_t *to)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (to != NULL)
        *to = found.tv_sec;
    return found.tv_sec;
}
