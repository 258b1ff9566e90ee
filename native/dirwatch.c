/* Watching directories; see dirwatch.h. */
#include "dirwatch.h"

#include <errno.h>
#include <sys/inotify.h>

int kl_dirwatch_open(void)
{
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int kl_dirwatch_add(int fd, const char *path)
{
    int number = inotify_add_watch(fd, path, IN_CREATE | IN_DELETE | IN_ONLYDIR);
    return number < 0 ? -errno : number;
}
