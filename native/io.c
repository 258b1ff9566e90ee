/* Reading small kernel files whole; see io.h. */
#define _GNU_SOURCE 1
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

ssize_t kl_read_part(int fd, char *buffer, size_t size)
{
    ssize_t length;
    do
        length = pread(fd, buffer, size, 0);
    while (length < 0 && errno == EINTR);
    return length < 0 ? -errno : length;
}

ssize_t kl_read(int fd, char *buffer, size_t size)
{
    ssize_t length = kl_read_part(fd, buffer, size);
    return length == (ssize_t)size ? -EFBIG : length;
}

ssize_t kl_read_at(int dir, const char *name, char *buffer, size_t size)
{
    int fd = kl_open_at(dir, name);
    if (fd < 0)
        return fd;
    ssize_t length = kl_read(fd, buffer, size);
    close(fd);
    return length;
}

int kl_open_dir(const char *path)
{
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int kl_open_at(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

void kl_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int64_t kl_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
