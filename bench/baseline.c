/* The yardstick of bench/tick.py: one pread per v1 file of every cgroup on kept descriptors, nothing else. Compiled into
 * a shared object and called from the benchmark's own thread.
 */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {
    "cpuacct/%s/cpuacct.usage",
    "cpu/%s/cpu.stat",
    "memory/%s/memory.stat",
    "memory/%s/memory.usage_in_bytes",
};
enum { FILES = sizeof names / sizeof *names };

static int *fds;
static int count;

/* list: cgroup paths, one per line. Returns the number of descriptors, -1 on any error. */
int baseline_open(const char *root, const char *list)
{
    char line[PATH_MAX], file[PATH_MAX + 64], path[2 * PATH_MAX];
    FILE *cgroups = fopen(list, "re");
    if (!cgroups)
        return -1;
    while (fgets(line, sizeof line, cgroups)) {
        line[strcspn(line, "\n")] = '\0';
        fds = realloc(fds, (size_t)(count + FILES) * sizeof *fds);
        for (int i = 0; i < FILES; i++) {
            snprintf(file, sizeof file, names[i], line);
            snprintf(path, sizeof path, "%s/%s", root, file);
            fds[count] = open(path, O_RDONLY | O_CLOEXEC);
            if (fds[count++] < 0)
                return -1;
        }
    }
    fclose(cgroups);
    return count;
}

/* Bytes read. */
long baseline_pass(void)
{
    static char buffer[32768];
    long total = 0;
    for (int i = 0; i < count; i++)
        total += pread(fds[i], buffer, sizeof buffer, 0);
    return total;
}

void baseline_close(void)
{
    while (count > 0)
        close(fds[--count]);
    free(fds);
    fds = NULL;
}
