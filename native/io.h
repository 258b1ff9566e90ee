/* Reading small kernel files whole, for the C files of the hot path. */
#ifndef KOORDLET_IO_H
#define KOORDLET_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The first bytes of a file from a kept descriptor: how many, else -errno. */
ssize_t kl_read_part(int fd, char *buffer, size_t size);

/* A whole file: its length, -EFBIG when it fills the buffer, else -errno. */
ssize_t kl_read(int fd, char *buffer, size_t size);

/* The same for a file of a directory descriptor, opened for this read only. */
ssize_t kl_read_at(int dir, const char *name, char *buffer, size_t size);

/* A descriptor, else -errno. */
int kl_open_dir(const char *path);
int kl_open_at(int dir, const char *name);

/* Closes it if it is one, and forgets it. */
void kl_close(int *fd);

/* CLOCK_MONOTONIC. */
int64_t kl_clock_ns(void);

#endif
