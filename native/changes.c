/* Noticing changes of directories and small files; see changes.h. */
#define _GNU_SOURCE 1
#include "changes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "dirwatch.h"
#include "io.h"

enum {
    BUFFER = 4096,
    AGAIN = 5, /* a directory that is removed and made anew does not always tell */
    ENTRIES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF,
    FILES = ENTRIES | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB,
};

struct directory {
    char *path;
    uint32_t mask;
    int watch; /* its number, else -errno */
};

struct content {
    char *path;
    int fd;
    uint64_t print; /* fingerprint of what it said; 0: never looked at */
};

struct kl_changes {
    int inotify; /* -1 before the first directory */
    unsigned looks;
    struct directory *directories;
    struct content *contents;
    int directory_count, content_count;
};

struct kl_changes *kl_changes_new(void)
{
    struct kl_changes *changes = calloc(1, sizeof *changes);
    if (changes)
        changes->inotify = -1;
    return changes;
}

void kl_changes_free(struct kl_changes *changes)
{
    if (!changes)
        return;
    kl_close(&changes->inotify);
    for (int i = 0; i < changes->directory_count; i++)
        free(changes->directories[i].path);
    for (int i = 0; i < changes->content_count; i++) {
        kl_close(&changes->contents[i].fd);
        free(changes->contents[i].path);
    }
    free(changes->directories);
    free(changes->contents);
    free(changes);
}

int kl_changes_follow_directory(struct kl_changes *changes, const char *path, int files)
{
    struct directory *directories =
        realloc(changes->directories, (size_t)(changes->directory_count + 1) * sizeof *directories);
    if (!directories)
        return -ENOMEM;
    changes->directories = directories;
    struct directory directory = {.path = strdup(path), .mask = files ? FILES : ENTRIES, .watch = -ENOENT};
    if (!directory.path)
        return -ENOMEM;
    directories[changes->directory_count++] = directory;
    return 0;
}

/* The number stays the same while it is the same directory; the same directory may be given twice. */
static int watch(struct kl_changes *changes, const struct directory *directory)
{
    if (changes->inotify < 0)
        changes->inotify = kl_dirwatch_open();
    if (changes->inotify < 0)
        return changes->inotify;
    int number = inotify_add_watch(changes->inotify, directory->path, directory->mask | IN_ONLYDIR | IN_MASK_ADD);
    return number < 0 ? -errno : number;
}

/* Whether some directory is another one, or has to be taken for changed because the kernel tells us nothing of it. */
static bool directories_changed(struct kl_changes *changes, bool again)
{
    bool changed = false;
    for (int i = 0; i < changes->directory_count; i++) {
        struct directory *directory = &changes->directories[i];
        if (again) {
            int before = directory->watch;
            directory->watch = watch(changes, directory);
            changed |= directory->watch != before;
        }
        changed |= directory->watch < 0 && directory->watch != -ENOENT && directory->watch != -ENOTDIR;
    }
    return changed;
}

int kl_changes_follow_content(struct kl_changes *changes, const char *path)
{
    struct content *contents = realloc(changes->contents, (size_t)(changes->content_count + 1) * sizeof *contents);
    if (!contents)
        return -ENOMEM;
    changes->contents = contents;
    struct content content = {.path = strdup(path), .fd = -1};
    if (!content.path)
        return -ENOMEM;
    contents[changes->content_count++] = content;
    return 0;
}

/* Takes all events there are; which ones is of no interest. */
static bool had_event(int inotify)
{
    char buffer[BUFFER] __attribute__((aligned(__alignof__(struct inotify_event))));
    bool had = false;
    while (inotify >= 0 && read(inotify, buffer, sizeof buffer) > 0)
        had = true;
    return had;
}

/* FNV-1a, 64 bits. */
static uint64_t add(uint64_t print, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < length; i++)
        print = (print ^ bytes[i]) * UINT64_C(1099511628211);
    return print;
}

/* A file that was made anew under the same path is another one: its old descriptor fails. */
static uint64_t fingerprint(struct content *content)
{
    char buffer[BUFFER];
    ssize_t length = content->fd < 0 ? -EBADF : kl_read_part(content->fd, buffer, sizeof buffer);
    if (length < 0) {
        kl_close(&content->fd);
        content->fd = kl_open_at(AT_FDCWD, content->path);
        length = content->fd < 0 ? content->fd : kl_read_part(content->fd, buffer, sizeof buffer);
    }
    uint64_t print = add(UINT64_C(14695981039346656037), &length, sizeof length);
    return length > 0 ? add(print, buffer, (size_t)length) : print;
}

int kl_changes_look(struct kl_changes *changes)
{
    bool event = had_event(changes->inotify);
    bool changed = event || changes->looks == 0;
    changed |= directories_changed(changes, event || changes->looks++ % AGAIN == 0);
    for (int i = 0; i < changes->content_count; i++) {
        uint64_t print = fingerprint(&changes->contents[i]);
        changed |= print != changes->contents[i].print;
        changes->contents[i].print = print;
    }
    return changed;
}
