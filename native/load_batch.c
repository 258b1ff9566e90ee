/* Batch antagonists: forked processes that do one kind of work until their deadline and count it in shared memory. */
#define _GNU_SOURCE
#include "load.h"
#include "load_work.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

/* One per worker, a cache line apart. */
struct counter {
    atomic_ullong done;
    char pad[56];
};

static int expired(const struct kl_load_batch *cfg)
{
    return kl_clock_ns(CLOCK_MONOTONIC) >= cfg->deadline_ns;
}

static char *map_memory(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void touch(char *memory, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 4096)
        ((volatile char *)memory)[at]++;
}

static void compute(const struct kl_load_batch *cfg, struct counter *counter)
{
    while (!expired(cfg)) {
        for (int i = 0; i < 50; i++)
            kl_work(1000);
        atomic_fetch_add(&counter->done, 50);
    }
}

/* Life of one child of a storm. */
static void map_once(const struct kl_load_batch *cfg)
{
    char *memory = map_memory(cfg->bytes);
    if (memory == NULL)
        return;
    touch(memory, cfg->bytes);
    munmap(memory, (size_t)cfg->bytes);
}

static void storm(const struct kl_load_batch *cfg, struct counter *counter)
{
    pid_t self = getpid();
    int alive = 0;
    while (!expired(cfg)) {
        while (alive < cfg->burst) {
            pid_t child = fork();
            if (child == 0) {
                if (kl_load_die_with_parent(self) == 0)
                    map_once(cfg);
                _exit(0);
            }
            if (child < 0)
                break; /* EAGAIN: some limit of processes; go on with those alive */
            alive++;
        }
        map_once(cfg);
        if (alive > 0 && waitpid(-1, NULL, 0) > 0) {
            alive--;
            atomic_fetch_add(&counter->done, 1);
        }
    }
    while (alive-- > 0)
        waitpid(-1, NULL, 0);
}

static void hold_memory(const struct kl_load_batch *cfg, struct counter *counter)
{
    char *memory = map_memory(cfg->bytes);
    while (memory != NULL && !expired(cfg))
        for (int64_t at = 0; at + MIB <= cfg->bytes && !expired(cfg); at += MIB) {
            touch(memory + at, MIB);
            atomic_fetch_add(&counter->done, 1);
        }
}

static void stream(const struct kl_load_batch *cfg, struct counter *counter)
{
    int64_t half = cfg->bytes / 2;
    char *memory = map_memory(half * 2);
    while (memory != NULL && !expired(cfg))
        for (int64_t at = 0; at + MIB <= half && !expired(cfg); at += MIB) {
            memcpy(memory + at, memory + half + at, MIB);
            atomic_fetch_add(&counter->done, 1);
        }
}

static void disk(const struct kl_load_batch *cfg, struct counter *counter)
{
    int fd = open(cfg->dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600); /* without a name: nothing to clean up */
    char *block = map_memory(MIB);
    while (fd >= 0 && block != NULL && !expired(cfg))
        for (int64_t at = 0; at + MIB <= cfg->bytes && !expired(cfg); at += MIB) {
            if (pwrite(fd, block, MIB, at) != MIB || fdatasync(fd) < 0)
                return;
            atomic_fetch_add(&counter->done, 1);
        }
}

static void (*const KINDS[])(const struct kl_load_batch *, struct counter *) = {
    [KL_LOAD_COMPUTE] = compute, [KL_LOAD_STORM] = storm, [KL_LOAD_MEMORY] = hold_memory,
    [KL_LOAD_STREAM] = stream,   [KL_LOAD_DISK] = disk,
};

static uint64_t sum(const struct counter *counters, int workers)
{
    uint64_t total = 0;
    for (int i = 0; i < workers; i++)
        total += atomic_load(&counters[i].done);
    return total;
}

static int check(const struct kl_load_batch *cfg)
{
    if (cfg->kind < 0 || cfg->kind > KL_LOAD_DISK || cfg->workers < 1 || cfg->workers > KL_LOAD_WORKERS)
        return -EINVAL;
    if (cfg->kind == KL_LOAD_STORM && (cfg->burst < 1 || cfg->burst > KL_LOAD_BURST))
        return -EINVAL;
    int64_t least = cfg->kind == KL_LOAD_STREAM ? 2 * MIB : cfg->kind == KL_LOAD_STORM ? 4096 : MIB;
    if (cfg->kind != KL_LOAD_COMPUTE && cfg->bytes < least)
        return -EINVAL;
    if (cfg->kind == KL_LOAD_DISK) {
        int fd = cfg->dir == NULL ? -1 : open(cfg->dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0)
            return cfg->dir == NULL ? -EINVAL : -errno;
        close(fd);
    }
    return 0;
}

int kl_load_batch_run(const struct kl_load_batch *cfg, uint64_t *work)
{
    int error = check(cfg);
    if (error < 0)
        return error;
    size_t bytes = sizeof(struct counter) * (size_t)cfg->workers;
    struct counter *counters = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counters == MAP_FAILED)
        return -errno;
    pid_t self = getpid(), made[KL_LOAD_WORKERS];
    int n = 0;
    for (; n < cfg->workers; n++) {
        made[n] = fork();
        if (made[n] == 0) {
            if (kl_load_die_with_parent(self) == 0)
                KINDS[cfg->kind](cfg, &counters[n]);
            _exit(0);
        }
        if (made[n] < 0) {
            error = -errno;
            break;
        }
    }
    uint64_t before = 0;
    if (error == 0) {
        kl_sleep_until(cfg->count_from_ns);
        before = sum(counters, n);
        kl_sleep_until(cfg->deadline_ns);
        *work = sum(counters, n) - before;
    }
    for (int i = 0; i < n; i++) {
        kill(made[i], SIGKILL);
        waitpid(made[i], NULL, 0);
    }
    munmap(counters, bytes);
    return error;
}
