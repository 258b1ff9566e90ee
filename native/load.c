/* Online load and surge: threads of the calling process. The batch antagonists are in load_batch.c. */
#define _GNU_SOURCE
#include "load.h"
#include "load_work.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const int64_t SPIN_PERIOD_NS = 10000000;

/* splitmix64: 64 well-mixed bits per call, any seed. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t kl_load_calibrate(int64_t cpu_ns)
{
    const int64_t probe_rounds = 200000;
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < 20; i++) {
        int64_t before = kl_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        kl_work(probe_rounds);
        int64_t took = kl_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
        if (took > 0 && took < best_ns)
            best_ns = took;
    }
    int64_t rounds = (int64_t)((double)cpu_ns * (double)probe_rounds / (double)best_ns);
    return rounds < 1 ? 1 : rounds;
}

int64_t kl_load_schedule(uint64_t seed, double rate_per_s, int64_t duration_ns, int64_t *out_ns, int64_t capacity)
{
    if (!(rate_per_s > 0) || rate_per_s > 1e7)
        return -EINVAL;
    double at_ns = 0;
    for (int64_t n = 0;; n++) {
        double uniform = ((double)(random_next(&seed) >> 11) + 1.0) * 0x1p-53; /* (0, 1] */
        at_ns -= log(uniform) * 1e9 / rate_per_s;
        if (at_ns >= (double)duration_ns)
            return n;
        if (n == capacity)
            return -ENOSPC;
        out_ns[n] = (int64_t)at_ns;
    }
}

/* ---- Online ---- */

struct service {
    const struct kl_load_online *cfg;
    const int64_t *offset_ns;
    int64_t *latency_ns;
    int64_t count;
    atomic_llong next, served;
};

/* A worker claims the next request and waits for its moment: an ideal client, and one queue for all workers. */
static void *serve(void *arg)
{
    struct service *s = arg;
    int64_t served = 0;
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* the default of 50 us would be measured as latency */
    for (;;) {
        int64_t i = atomic_fetch_add(&s->next, 1);
        if (i >= s->count)
            break;
        int64_t due = s->cfg->start_ns + s->offset_ns[i];
        kl_sleep_until(due < s->cfg->deadline_ns ? due : s->cfg->deadline_ns);
        int64_t now = kl_clock_ns(CLOCK_MONOTONIC);
        if (now < s->cfg->deadline_ns) {
            kl_work(s->cfg->rounds);
            now = kl_clock_ns(CLOCK_MONOTONIC);
            served++;
        }
        s->latency_ns[i] = now > due ? now - due : 0;
    }
    atomic_fetch_add(&s->served, served);
    return NULL;
}

/* Runs `body(arg)` in `threads` threads and waits for them. */
static int in_threads(int threads, void *(*body)(void *), void *arg)
{
    if (threads < 1 || threads > KL_LOAD_WORKERS)
        return -EINVAL;
    pthread_t made[KL_LOAD_WORKERS];
    int n = 0, error = 0;
    while (n < threads && error == 0) {
        error = pthread_create(&made[n], NULL, body, arg);
        n += error == 0;
    }
    for (int i = 0; i < n; i++)
        pthread_join(made[i], NULL);
    return -error;
}

int64_t kl_load_online_run(const struct kl_load_online *cfg, const int64_t *offset_ns, int64_t *latency_ns,
                           int64_t count)
{
    if (cfg->rounds < 1 || count < 0)
        return -EINVAL;
    struct service s = {.cfg = cfg, .offset_ns = offset_ns, .latency_ns = latency_ns, .count = count};
    int error = in_threads(cfg->workers, serve, &s);
    return error < 0 ? error : atomic_load(&s.served);
}

/* ---- Surge ---- */

struct spin {
    int64_t busy_ns, deadline_ns;
};

static void *spin(void *arg)
{
    const struct spin *s = arg;
    int64_t period = kl_clock_ns(CLOCK_MONOTONIC), now = period;
    while (now < s->deadline_ns) {
        kl_work(200);
        now = kl_clock_ns(CLOCK_MONOTONIC);
        if (now - period < s->busy_ns)
            continue;
        period += SPIN_PERIOD_NS;
        if (period < now)
            period = now; /* it was kept from running: no catching up */
        if (s->busy_ns < SPIN_PERIOD_NS)
            kl_sleep_until(period < s->deadline_ns ? period : s->deadline_ns);
    }
    return NULL;
}

int kl_load_spin(int threads, int duty_permille, int64_t deadline_ns)
{
    if (duty_permille < 1 || duty_permille > 1000)
        return -EINVAL;
    struct spin s = {.busy_ns = SPIN_PERIOD_NS / 1000 * duty_permille, .deadline_ns = deadline_ns};
    return in_threads(threads, spin, &s);
}

int kl_load_die_with_parent(int parent_pid)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return -errno;
    return getppid() == parent_pid ? 0 : -ESRCH;
}
