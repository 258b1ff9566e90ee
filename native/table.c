/* The rows of the table: opening, closing, reading out; see table.h. The pass is in pass.c. */
#include "table.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io.h"
#include "row.h"

struct kl_table *kl_table_new(int version)
{
    struct kl_table *table = calloc(1, sizeof *table);
    if (!table)
        return NULL;
    table->version = version;
    table->page_bytes = version == 1 ? (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    return table;
}

void kl_row_close_memory(struct row *row)
{
    if (row->memory_dir == row->cpu_dir)
        row->memory_dir = -1;
    kl_close(&row->memory_dir);
    kl_close(&row->raw_fd);
}

void kl_row_close(struct row *row)
{
    kl_row_close_memory(row);
    kl_close(&row->usage_fd);
    kl_close(&row->cpu_dir);
}

void kl_table_free(struct kl_table *table)
{
    if (!table)
        return;
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].state == KL_ALIVE)
            kl_row_close(&table->rows[i]);
    free(table->rows);
    free(table);
}

static bool is_gone(int error)
{
    return error == -ENODEV || error == -ENOENT;
}

static int open_usage(int version, const char *path, struct row *row)
{
    int dir = kl_open_dir(path);
    if (dir < 0)
        return dir;
    row->usage_fd = kl_open_at(dir, version == 1 ? "cpuacct.usage" : "cpu.stat");
    kl_close(&dir);
    return row->usage_fd < 0 ? row->usage_fd : 0;
}

/* A hierarchy without this cgroup or controller is an ordinary state: the values stay absent. */
static int open_memory(int version, const char *path, struct row *row)
{
    row->memory_dir = version == 1 ? kl_open_dir(path) : row->cpu_dir;
    int error = row->memory_dir;
    if (error >= 0)
        error = row->raw_fd = kl_open_at(row->memory_dir, version == 1 ? "memory.usage_in_bytes" : "memory.current");
    if (error < 0) {
        kl_row_close_memory(row);
        return is_gone(error) ? 0 : error;
    }
    if (row->kind == KL_CONTAINER)
        kl_close(&row->raw_fd);
    return 0;
}

static int open_row(int version, const struct kl_row_spec *spec, struct row *row)
{
    int error = open_usage(version, spec->usage_dir, row);
    if (error)
        return error;
    row->cpu_dir = kl_open_dir(spec->cpu_dir);
    if (row->cpu_dir < 0 && !is_gone(row->cpu_dir))
        return row->cpu_dir;
    return open_memory(version, spec->memory_dir, row);
}

static int grow(struct kl_table *table)
{
    int capacity = table->capacity ? table->capacity * 2 : 64;
    struct row *rows = realloc(table->rows, (size_t)capacity * sizeof *rows);
    if (!rows)
        return -ENOMEM;
    table->rows = rows;
    table->capacity = capacity;
    return 0;
}

static int free_slot(struct kl_table *table)
{
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].state == KL_FREE)
            return i;
    if (table->count == table->capacity) {
        int error = grow(table);
        if (error)
            return error;
    }
    return table->count++;
}

int kl_table_add(struct kl_table *table, const struct kl_row_spec *spec)
{
    if (spec->kind < KL_ROOT || spec->kind > KL_HOST || spec->pod < -1 || spec->pod >= table->count)
        return -EINVAL;
    struct row row = {
        .state = KL_ALIVE,
        .kind = spec->kind,
        .pod = spec->pod,
        .be = spec->be != 0,
        .whole = spec->whole != 0,
        .usage_fd = -1,
        .raw_fd = -1,
        .cpu_dir = -1,
        .memory_dir = -1,
        .cpu_series = spec->cpu_series,
        .memory_series = spec->memory_series,
        .mcpu_ns = KL_NEVER,
        .raw_ns = KL_NEVER,
        .memory_ns = KL_NEVER,
        .throttled_ns = KL_NEVER,
    };
    int error = open_row(table->version, spec, &row);
    int slot = error ? error : free_slot(table);
    if (slot < 0) {
        kl_row_close(&row);
        return slot;
    }
    table->rows[slot] = row;
    return slot;
}

static struct row *find(const struct kl_table *table, int row)
{
    if (row < 0 || row >= table->count || table->rows[row].state == KL_FREE)
        return NULL;
    return &table->rows[row];
}

int kl_table_tag(struct kl_table *table, int row, int be)
{
    struct row *r = find(table, row);
    if (!r)
        return -EINVAL;
    r->be = be != 0;
    return 0;
}

int kl_table_remove(struct kl_table *table, int row)
{
    struct row *r = find(table, row);
    if (!r)
        return -EINVAL;
    if (r->state == KL_ALIVE)
        kl_row_close(r);
    r->state = KL_FREE;
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].pod == row)
            table->rows[i].pod = -1;
    return 0;
}

int kl_table_gone(const struct kl_table *table, int *rows, int capacity)
{
    int written = 0;
    for (int i = 0; i < table->count && written < capacity; i++)
        if (table->rows[i].state == KL_GONE)
            rows[written++] = i;
    return written;
}

int kl_table_throttled(const struct kl_table *table, int64_t since_ns, int *rows, int capacity)
{
    int written = 0;
    for (int i = 0; i < table->count && written < capacity; i++) {
        const struct row *row = &table->rows[i];
        if (row->state == KL_ALIVE && kl_row_is_contained(row) && row->throttled_ns >= since_ns && row->throttled > 0.0)
            rows[written++] = i;
    }
    return written;
}

int kl_table_read(const struct kl_table *table, int row, struct kl_row *out)
{
    const struct row *r = find(table, row);
    if (!r)
        return -EINVAL;
    *out = (struct kl_row){
        .kind = r->kind,
        .be = r->be,
        .gone = r->state == KL_GONE,
        .quota = r->quota,
        .mcpu = r->mcpu,
        .throttled = r->throttled,
        .memory = r->memory,
        .memory_cached = r->memory_cached,
        .raw = r->raw,
        .mcpu_ns = r->mcpu_ns,
        .throttled_ns = r->throttled_ns,
        .memory_ns = r->memory_ns,
        .raw_ns = r->raw_ns,
    };
    return 0;
}

int kl_table_descriptors(const struct kl_table *table)
{
    int count = 0;
    for (int i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        if (row->state == KL_ALIVE)
            count += (row->usage_fd >= 0) + (row->raw_fd >= 0) + (row->cpu_dir >= 0) +
                     (row->memory_dir >= 0 && row->memory_dir != row->cpu_dir);
    }
    return count;
}
