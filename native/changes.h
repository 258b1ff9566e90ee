/* Whether something changed in a set of directories or files since the last look, for two system calls. */
#ifndef KOORDLET_CHANGES_H
#define KOORDLET_CHANGES_H

/* cdef */

struct kl_changes;

/* NULL when out of memory. */
struct kl_changes *kl_changes_new(void);

/* Closes every descriptor. */
void kl_changes_free(struct kl_changes *changes);

/* Follows a directory with inotify(7): entries that come, go and are renamed and, with `files`, that are written to.
 * One that is not there, or is made anew, is found within five looks. 0 or -ENOMEM. */
int kl_changes_follow_directory(struct kl_changes *changes, const char *path, int files);

/* Follows what a small file says, on a kept descriptor: files of the kernel tell nobody when they change. One that is
 * not there is followed too: that is what it says. 0 or -ENOMEM. */
int kl_changes_follow_content(struct kl_changes *changes, const char *path);

/* Whether there was a change since the last look. True at the first one, when changes were too many to be kept, and
 * while the kernel tells nothing of some directory because the user's limits of inotify are reached. */
int kl_changes_look(struct kl_changes *changes);

/* end cdef */

#endif
