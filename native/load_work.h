/* Clock, sleep and a unit of CPU work, shared by load.c and load_batch.c. Not part of the extension's surface. */
#ifndef KOORDLET_LOAD_WORK_H
#define KOORDLET_LOAD_WORK_H

#include <stdint.h>
#include <time.h>

static inline int64_t kl_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns at `at_ns` or later; at once when that has passed. */
static inline void kl_sleep_until(int64_t at_ns)
{
    if (at_ns <= kl_clock_ns(CLOCK_MONOTONIC))
        return;
    struct timespec t = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ; /* a signal that is handled: sleep on */
}

/* Dependent arithmetic in registers: neither the compiler nor the cache can shorten it. */
static inline void kl_work(int64_t rounds)
{
    uint64_t x = (uint64_t)rounds;
    for (int64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : "+r"(x));
    }
}

#endif
