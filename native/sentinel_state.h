/* What sentinel.c and sentinel_look.c share; nobody else includes it. */
#ifndef KOORDLET_SENTINEL_STATE_H
#define KOORDLET_SENTINEL_STATE_H

#include "sentinel.h"

#include <pthread.h>
#include <sys/types.h>

static const int64_t KL_SENTINEL_FAST_NS = 1000000000; /* how long looks are frequent after a fire */

struct sources {
    int root_fd, meminfo_fd, memory_psi_fd, usage_kind;
    int be_count, ls_count, trigger_count;
    int be_fds[KL_SENTINEL_BE_ROOTS];
    int ls_fds[KL_SENTINEL_LS_GROUPS];
    int trigger_fds[KL_SENTINEL_TRIGGERS];
};

struct kl_sentinel {
    pthread_mutex_t lock;
    pthread_t thread;
    pid_t pid; /* of the process that runs the thread, 0 without one */
    int epoll_fd, timer_fd, stop_fd, fire_fd;
    uint32_t generation;
    bool triggers_polled;
    struct sources sources;
    struct kl_sentinel_plan plan;
    struct kl_sentinel_state state;
    int64_t fast_until_ns;
    struct kl_meter usage;
    struct kl_meter pressure[KL_SENTINEL_LS_GROUPS];
    struct kl_meter memory_pressure;
};

/* The caller holds the lock. look: what kl_sentinel_look does. retime: set the timer to what the plan and the last fire
 * ask for; from off the first look comes at once. */
bool kl_sentinel_look_locked(struct kl_sentinel *s, int64_t now_ns);
void kl_sentinel_retime(struct kl_sentinel *s, int64_t now_ns);
void kl_sentinel_restart_windows(struct kl_sentinel *s);
bool kl_sentinel_plan_is_off(const struct kl_sentinel_plan *plan);

#endif
