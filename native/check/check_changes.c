/* changes.c on files of our own: what is told, what a failure leaves open, nothing leaks. */
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../changes.h"
#include "check.h"

enum { MANY = 40 };

static char base[] = "/tmp/koordlet-check-changes-XXXXXX";

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void directories_and_contents(const char *file)
{
    int before = open_descriptors();
    struct kl_changes *changes = kl_changes_new();
    CHECK(changes != NULL);
    CHECK(kl_changes_follow_directory(changes, "/nonexistent", 1) == 0);
    CHECK(kl_changes_follow_directory(changes, base, 0) == 0 && kl_changes_follow_directory(changes, base, 1) == 0);
    put(file, "0-3\n");
    for (int i = 0; i < MANY; i++)
        CHECK(kl_changes_follow_content(changes, i % 2 ? file : "/nonexistent") == 0);
    CHECK(kl_changes_look(changes) && !kl_changes_look(changes));
    put(file, "0-2\n");
    CHECK(kl_changes_look(changes) && !kl_changes_look(changes));
    CHECK(unlink(file) == 0);
    CHECK(kl_changes_look(changes));
    CHECK(open_descriptors() <= before + 1 + MANY / 2);
    kl_changes_free(changes);
    CHECK(open_descriptors() == before);
}

int main(void)
{
    char file[PATH_MAX];
    CHECK(mkdtemp(base) != NULL);
    snprintf(file, sizeof file, "%s/online", base);
    directories_and_contents(file);
    kl_changes_free(NULL);
    CHECK(rmdir(base) == 0);
    return 0;
}
