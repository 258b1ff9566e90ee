/* Load generators of the demo, the drills and the benches; the agent never calls them. An online service with open-loop
 * arrivals, batch antagonists, and a surge. Everything stops by itself at a deadline. Times are CLOCK_MONOTONIC
 * nanoseconds.
 *
 * Returns: 0 or a count, else -errno.
 */
#ifndef KOORDLET_LOAD_H
#define KOORDLET_LOAD_H

#include <stdint.h>

/* cdef */

#define KL_LOAD_WORKERS 1024 /* most workers of one generator */
#define KL_LOAD_BURST 64     /* most children alive per worker of a storm */

#define KL_LOAD_COMPUTE 0 /* unit of work: 1000 rounds of arithmetic */
#define KL_LOAD_STORM 1   /* one child forked, which maps, touches and unmaps memory, and reaped */
#define KL_LOAD_MEMORY 2  /* one MiB of held memory touched */
#define KL_LOAD_STREAM 3  /* one MiB copied */
#define KL_LOAD_DISK 4    /* one MiB written and synced */

/* An online service: a queue served by `workers` threads, each request costs `rounds` of arithmetic. */
struct kl_load_online {
    int64_t start_ns;    /* moment that offset 0 of the schedule stands for */
    int64_t deadline_ns; /* requests not finished by then are given up */
    int64_t rounds;
    int32_t workers;
};

/* A batch job of `workers` processes. Work is counted from count_from_ns to deadline_ns.
 * bytes: per worker (storm: per child). burst: children alive at a time per worker of a storm. dir: where the disk
 * antagonist keeps its unnamed file of that size, else NULL. */
struct kl_load_batch {
    int32_t kind;
    int32_t workers;
    int32_t burst;
    int64_t bytes;
    int64_t count_from_ns;
    int64_t deadline_ns;
    const char *dir;
};

/* Rounds of arithmetic that cost cpu_ns of thread CPU time on this machine: the best of some tries, at least 1. */
int64_t kl_load_calibrate(int64_t cpu_ns);

/* Poisson arrivals: offsets in ns, ascending, below duration_ns, equal for equal seeds. Returns how many; -ENOSPC when
 * more than capacity are due. */
int64_t kl_load_schedule(uint64_t seed, double rate_per_s, int64_t duration_ns, int64_t *out_ns, int64_t capacity);

/* Serves requests due at start_ns + offset_ns[i]. latency_ns[i]: from that intended moment to completion, so the wait
 * behind a stalled server counts; a request that was given up gets the time it had waited, so it is not forgotten
 * either. Returns how many were served in time. */
int64_t kl_load_online_run(const struct kl_load_online *cfg, const int64_t *offset_ns, int64_t *latency_ns,
                           int64_t count);

/* Runs the batch job in forked processes until its deadline; none of them outlives the caller. work: units done. */
int kl_load_batch_run(const struct kl_load_batch *cfg, uint64_t *work);

/* `threads` threads that compute for duty_permille of each 10 ms. */
int kl_load_spin(int threads, int duty_permille, int64_t deadline_ns);

/* Asks the kernel to kill this process when the thread that made it ends; -ESRCH when parent_pid has already ended. */
int kl_load_die_with_parent(int parent_pid);

/* end cdef */

#endif
