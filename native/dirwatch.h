/* Directories that come and go below a directory, told by the kernel (inotify). */
#ifndef KOORDLET_DIRWATCH_H
#define KOORDLET_DIRWATCH_H

/* cdef */

/* A non-blocking descriptor that becomes readable with events in inotify(7)'s own format, or -errno. */
int kl_dirwatch_open(void);

/* Tell what is made and removed directly in the directory `path`. Its number in the events, or -errno (ENOSPC: the
 * limit fs.inotify.max_user_watches). Of a directory that is watched already it is the same number again. */
int kl_dirwatch_add(int fd, const char *path);

/* end cdef */

#endif
