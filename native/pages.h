/* Our own memory on large pages. */
#ifndef KOORDLET_PAGES_H
#define KOORDLET_PAGES_H

#include <stdint.h>

/* cdef */

/* Moves the pages of [start, start + length) of this process onto large ones now, holes filled (madvise(2),
 * MADV_COLLAPSE, Linux 6.1). 0, else -errno: EINVAL also where nothing of the range is in use. */
int kl_pages_collapse(uint64_t start, uint64_t length);

/* end cdef */

#endif
