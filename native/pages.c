/* Our own memory on large pages; see pages.h. */
#define _GNU_SOURCE 1
#include "pages.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

int kl_pages_collapse(uint64_t start, uint64_t length)
{
    /* Any address of our own may be given. */
    void *address = (void *)(uintptr_t)start; // NOLINT(performance-no-int-to-ptr)
    return madvise(address, length, MADV_COLLAPSE) ? -errno : 0;
}
