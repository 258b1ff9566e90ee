/* What every check_*.c uses: CHECK(condition) prints the place and ends the program with 1 when it does not hold. */
#ifndef KOORDLET_CHECK_H
#define KOORDLET_CHECK_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A copy of exactly `length` bytes on the heap, so that the sanitizer sees one byte read too many. Free it. */
static inline char *exact_copy(const char *text, size_t length)
{
    char *copy = malloc(length); // NOLINT(clang-analyzer-optin.portability.UnixAPI): 0 bytes are wanted too
    CHECK(copy != NULL || length == 0);
    if (length > 0)
        memcpy(copy, text, length);
    return copy;
}

/* Of this process, the one that looks included. */
static inline int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir != NULL);
    int count = 0;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* Reproducible noise for malformed inputs (xorshift). */
static inline uint64_t noise(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

#endif
