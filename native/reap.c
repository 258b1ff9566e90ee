/* Freeing what a killed process held; see reap.h. */
#define _GNU_SOURCE /* syscall */
#include "reap.h"

#include <errno.h>
#include <unistd.h>

enum { PROCESS_MRELEASE = 448 }; /* on every architecture but alpha */

int kl_release_memory(int pidfd)
{
    return syscall(PROCESS_MRELEASE, pidfd, 0U) < 0 ? -errno : 0;
}
