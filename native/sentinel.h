/* The sentinel: one thread that watches a few counters while best-effort (BE) work is capped, and writes an eventfd
 * when the present plan no longer holds. It reads only kept descriptors, allocates nothing after creation, holds no
 * Python object and shares no state with another sentinel. Times are CLOCK_MONOTONIC.
 *
 * Returns: 0 or a count, else -errno.
 */
#ifndef KOORDLET_SENTINEL_H
#define KOORDLET_SENTINEL_H

#include <stdbool.h>
#include <stdint.h>

/* cdef */

/* ---- Sliding window over one growing counter (window.c) ---- */

#define KL_WINDOW_SAMPLES 32

struct kl_window {
    int64_t width_ns;
    int64_t at_ns[KL_WINDOW_SAMPLES];
    int64_t value[KL_WINDOW_SAMPLES];
    int32_t first, used;
};

/* What the newest sample says: growth over span_ns. full: the span covers the window. */
struct kl_growth {
    int64_t delta, span_ns;
    bool full;
};

/* Empties the window and sets its width (>= 1). */
void kl_window_reset(struct kl_window *w, int64_t width_ns);

/* Adds a sample. Its value may be lower than the one before (a difference of two counters jitters); time going back
 * empties the window first. A sample closer than width/16 to the one before is ignored: returns false. */
bool kl_window_push(struct kl_window *w, int64_t at_ns, int64_t value);

/* Growth since the oldest sample that lies in the window (with a slack of width/8 for late timers), or since the
 * previous sample after a gap longer than that. False with fewer than two samples. Never negative. */
bool kl_window_growth(const struct kl_window *w, struct kl_growth *out);

/* growth * scale / span, rounded down and kept within int64: ns of CPU with 1000 gives milli-CPU, ns of stall with
 * 10000 gives permyriad. span_ns must be > 0. */
int64_t kl_growth_rate(const struct kl_growth *g, int64_t scale);

/* Whether the growth, spread over a whole window, is above `limit` (in the unit of kl_growth_rate). So before the
 * window is full only a rate of a multiple of the limit counts. */
bool kl_growth_above(const struct kl_growth *g, int64_t width_ns, int64_t scale, int64_t limit);

/* ---- Counters that belong together (window.c) ---- */

#define KL_METER_COUNTERS 65

/* Counter 0 minus the others, through a window. count: of the last reading, 0 before the first. */
struct kl_meter {
    struct kl_window window;
    int64_t total;
    int64_t last[KL_METER_COUNTERS];
    int32_t count;
};

void kl_meter_reset(struct kl_meter *m, int64_t width_ns);

/* Adds one reading of n counters (n <= KL_METER_COUNTERS), -1 for one that is not there. A counter that went back, or
 * one that came or went, restarts the window at this reading. Without counter 0 nothing is added: returns false, as it
 * does when kl_window_push ignored the sample. */
bool kl_meter_push(struct kl_meter *m, int64_t at_ns, const int64_t *counters, int n);

/* ---- Counter files ---- */

#define KL_COUNTER_NS 0         /* v1 cpuacct.usage: one number, nanoseconds */
#define KL_COUNTER_USAGE_USEC 1 /* v2 cpu.stat: "usage_usec N" */
#define KL_COUNTER_PSI_SOME 2   /* pressure file: "some ... total=N", microseconds */

/* Parses the first bytes of such a file into nanoseconds. -EINVAL when the number is missing, cut off or too large. */
int64_t kl_counter_parse(const char *text, int64_t length, int kind);

/* ---- The sentinel (sentinel.c) ---- */

#define KL_SENTINEL_BE_ROOTS 64
#define KL_SENTINEL_LS_GROUPS 16
#define KL_SENTINEL_TRIGGERS 4

struct kl_sentinel;

/* The descriptors stay the caller's: the sentinel duplicates them. root_fd -1: non-BE usage is not watched; so with
 * meminfo_fd (/proc/meminfo) and memory_psi_fd (/proc/pressure/memory).
 * trigger_fds: pressure files to which a trigger was written; an event only makes the sentinel look at once. */
struct kl_sentinel_sources {
    int root_fd;
    int meminfo_fd, memory_psi_fd;
    int usage_kind;
    int be_count, ls_count, trigger_count;
    const int *be_fds;
    const int *ls_fds;
    const int *trigger_fds;
};

/* nonbe_mcpu, pressure_permyriad, memory_used_bytes (MemTotal - MemAvailable of the node), memory_pressure_permyriad (of
 * the node): -1 switches that watch off; all off stops the timer. Memory is read only while one of its watches is on. */
struct kl_sentinel_plan {
    int64_t nonbe_mcpu;
    int64_t pressure_permyriad;
    int64_t memory_used_bytes;
    int64_t memory_pressure_permyriad;
    int64_t period_us;
    int64_t window_us;
};

/* nonbe_mcpu, pressure_permyriad and the two of memory: latest readings, -1 for none yet, with the time they were taken. fires: thresholds
 * crossed; looks: readings made; wakeups: returns from epoll; hints: trigger events; errors: failed or unreadable
 * reads other than of a removed cgroup; gone: sources lost because their cgroup was removed. timer_us: present
 * period, 0 when off. */
struct kl_sentinel_state {
    int64_t nonbe_mcpu, nonbe_at_ns;
    int64_t pressure_permyriad, pressure_at_ns;
    int64_t memory_used_bytes, memory_used_at_ns;
    int64_t memory_pressure_permyriad, memory_pressure_at_ns;
    uint64_t fires, looks, wakeups, hints, errors, gone;
    int64_t timer_us;
    bool armed;
};

/* Makes a sentinel without sources, with everything off and no thread; 0 or -errno. */
int kl_sentinel_create(struct kl_sentinel **out);

/* Starts the thread. -EALREADY when it runs. */
int kl_sentinel_start(struct kl_sentinel *s);

/* Stops the thread, closes every descriptor, frees. In a forked child only closes and frees. NULL is allowed. */
void kl_sentinel_destroy(struct kl_sentinel *s);

/* Replaces all sources, or on error keeps the old ones. Restarts the windows. */
int kl_sentinel_set_sources(struct kl_sentinel *s, const struct kl_sentinel_sources *sources);

/* Sets the plan and arms. Measuring goes on, unless it was off or the window changed: then the windows restart. */
int kl_sentinel_set_plan(struct kl_sentinel *s, const struct kl_sentinel_plan *plan);

void kl_sentinel_state_read(struct kl_sentinel *s, struct kl_sentinel_state *out);

/* Becomes readable when the sentinel fires; read 8 bytes to drain it. Owned by the sentinel. */
int kl_sentinel_eventfd(const struct kl_sentinel *s);

/* One look as the thread makes it, at a time given by the caller: for checks, without kl_sentinel_start. True: fired. */
bool kl_sentinel_look(struct kl_sentinel *s, int64_t now_ns);

/* end cdef */

#endif
