/* The node's own figures from /proc; see node.h. */
#include "node.h"

#include <errno.h>

#include "io.h"
#include "parse.h"

enum { FIRST_LINE = 512, MEMINFO = 8192 };

int kl_node_read(int stat_fd, int meminfo_fd, struct kl_node *out)
{
    char buffer[MEMINFO];
    struct kl_meminfo memory = {0};
    *out = (struct kl_node){0};
    /* /proc/stat grows with CPUs and interrupts; the node's line is its first. */
    ssize_t length = kl_read_part(stat_fd, buffer, FIRST_LINE);
    int cpu_error = length < 0 ? (int)length : kl_parse_proc_stat(buffer, (size_t)length, &out->busy_ticks);
    length = kl_read(meminfo_fd, buffer, MEMINFO);
    int memory_error = length < 0 ? (int)length : kl_parse_meminfo(buffer, (size_t)length, &memory);
    out->memory_total = memory.total;
    out->memory_free = memory.free;
    out->memory_available = memory.available;
    out->has_cpu = !cpu_error;
    out->has_memory = !memory_error;
    return cpu_error ? cpu_error : memory_error;
}
