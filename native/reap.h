/* Freeing what a killed process held. */
#ifndef KOORDLET_REAP_H
#define KOORDLET_REAP_H

/* cdef */

/* process_mrelease(2): takes the memory of a process that was killed, in the caller's time. 0, or -errno: -ESRCH gone
 * already, -EINVAL not dying, -EAGAIN its memory map was busy, -ENOSYS before Linux 5.15. */
int kl_release_memory(int pidfd);

/* end cdef */

#endif
