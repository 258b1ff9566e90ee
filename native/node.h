/* The node's own figures from /proc. */
#ifndef KOORDLET_NODE_H
#define KOORDLET_NODE_H

#include <stdint.h>

/* cdef */

/* Bytes, and ticks of 1/CLK_TCK s. */
struct kl_node {
    uint64_t busy_ticks, memory_total, memory_free, memory_available;
    int has_cpu, has_memory;
};

/* Reads kept descriptors of /proc/stat and /proc/meminfo (-1: not there). The has_ field of a part that could not be
 * read is 0; returns the first error, or 0. */
int kl_node_read(int stat_fd, int meminfo_fd, struct kl_node *out);

/* end cdef */

#endif
