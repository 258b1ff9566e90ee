/* The pass over the table: which rows are read now, sums, samples for the rings; see table.h. */
#include "io.h"
#include "row.h"

static const int rotation = 10;            /* passes until each row had its turn */
static const unsigned container_turns = 2; /* memory.stat of a container is read every so many turns */
static const unsigned quota_turns = 6;     /* a quota is looked for every so many turns */
static const int64_t max_memory_age_ns = INT64_C(30000000000); /* three rotations at 1 Hz */

/* Pods, host applications and roots. By how much the sum of pods and applications that had a rate has moved. */
static double read_usages(struct pass *pass)
{
    double moved = 0.0;
    for (int i = 0; i < pass->table->count; i++) {
        struct row *row = &pass->table->rows[i];
        if (row->state != KL_ALIVE || row->kind == KL_CONTAINER)
            continue;
        bool rated = row->mcpu_ns != KL_NEVER && row->kind != KL_ROOT;
        double before = row->mcpu;
        if (row->kind == KL_POD)
            kl_read_pod_usage(pass, row);
        else
            kl_read_usage(pass, row);
        moved += rated ? (row->state == KL_ALIVE ? row->mcpu : 0.0) - before : 0.0;
    }
    return moved;
}

/* The node uses as much as before, but others of it: those that wait may be the ones. */
static void read_waiting(struct pass *pass)
{
    pass->calm = false;
    for (int i = 0; i < pass->table->count; i++) {
        struct row *row = &pass->table->rows[i];
        if (row->state == KL_ALIVE && row->kind == KL_POD && row->waits) {
            pass->totals->skipped--;
            kl_read_pod_usage(pass, row);
        }
    }
}

static void read_every_pass(struct pass *pass)
{
    struct kl_table *table = pass->table;
    double moved = read_usages(pass);
    if (pass->calm && (moved > KL_CALM_MCPU || moved < -KL_CALM_MCPU))
        read_waiting(pass);
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].state == KL_ALIVE && table->rows[i].kind == KL_CONTAINER)
            kl_read_container_usage(pass, &table->rows[i]);
    for (int i = 0; i < table->count; i++) {
        struct row *row = &table->rows[i];
        if (row->state == KL_ALIVE && row->raw_fd >= 0 && kl_raw_is_due(row))
            kl_read_raw(pass, row);
        if (row->waits)
            row->waited_to_ns = pass->now_ns;
    }
}

/* True at a row's first turn and then at every n-th, not for all rows in the same pass. */
static bool is_due(const struct row *row, int slot, unsigned every)
{
    return row->turns == 0 || (row->turns + (unsigned)slot) % every == 0;
}

static void take_turn(struct pass *pass, int slot)
{
    struct row *row = &pass->table->rows[slot];
    if (row->state != KL_ALIVE)
        return;
    if (row->raw_fd >= 0 && row->raw_ns < pass->now_ns)
        kl_read_raw(pass, row);
    bool stat_due = row->memory_dir >= 0 && is_due(row, slot, row->kind == KL_CONTAINER ? container_turns : 1);
    if (stat_due && !kl_repeat_memory_stat(pass, row))
        kl_read_memory_stat(pass, row);
    if (row->cpu_dir >= 0 && is_due(row, slot, row->quota ? 1 : quota_turns))
        kl_read_quota(pass, row);
    row->turns++;
}

static void read_rotation(struct pass *pass)
{
    struct kl_table *table = pass->table;
    for (int left = (table->count + rotation - 1) / rotation; left > 0; left--) {
        table->rotation_at = (table->rotation_at + 1) % table->count;
        take_turn(pass, table->rotation_at);
    }
}

/* First memory.stat of every row that has a plain usage, and of those that moved as many as the budget allows. */
static void read_moved(struct pass *pass)
{
    struct kl_table *table = pass->table;
    int budget = pass->totals->raws / rotation + 4;
    int start = table->moved_at;
    for (int step = 0; step < table->count; step++) {
        int at = (start + step) % table->count;
        struct row *row = &table->rows[at];
        if (row->state != KL_ALIVE || row->raw_fd < 0 || row->memory_dir < 0)
            continue;
        if (!row->stat_tried)
            kl_read_memory_stat(pass, row);
        else if (budget > 0 && kl_row_moved(row)) {
            kl_read_memory_stat(pass, row);
            table->moved_at = (at + 1) % table->count;
            budget--;
        }
    }
}

/* What the rotation did not read just now. */
static void read_all_throttling(struct pass *pass)
{
    for (int i = 0; i < pass->table->count; i++) {
        struct row *row = &pass->table->rows[i];
        if (row->state == KL_ALIVE && kl_row_is_contained(row) && row->quota && row->cpu_dir >= 0 &&
            row->throttled_ns < pass->now_ns)
            kl_read_throttling(pass, row);
    }
}

static void add_to(struct kl_sum *sum, bool usable, double value, int64_t at_ns)
{
    if (!usable) {
        sum->missing++;
        return;
    }
    sum->value += value;
    sum->rows++;
    if (sum->oldest_ns == KL_NEVER || at_ns < sum->oldest_ns)
        sum->oldest_ns = at_ns;
}

static void add_row(const struct pass *pass, const struct row *row, int group)
{
    bool rated = row->mcpu_ns >= pass->now_ns || row->waits;
    bool weighed = row->memory_ns != KL_NEVER && pass->now_ns - row->memory_ns <= max_memory_age_ns;
    add_to(&pass->totals->cpu[group], rated, row->mcpu, row->mcpu_ns);
    add_to(&pass->totals->memory[group], weighed, (double)row->memory, row->memory_ns);
}

static void sum_rows(const struct pass *pass)
{
    static const int all[] = {[KL_ROOT] = KL_SUM_ROOTS, [KL_POD] = KL_SUM_PODS, [KL_HOST] = KL_SUM_HOSTS};
    static const int nonbe[] = {[KL_ROOT] = -1, [KL_POD] = KL_SUM_NONBE_PODS, [KL_HOST] = KL_SUM_NONBE_HOSTS};
    for (int group = 0; group < KL_SUMS; group++)
        pass->totals->cpu[group].oldest_ns = pass->totals->memory[group].oldest_ns = KL_NEVER;
    for (int i = 0; i < pass->table->count; i++) {
        const struct row *row = &pass->table->rows[i];
        if (row->state != KL_ALIVE)
            continue;
        pass->totals->rows++;
        if (kl_row_is_contained(row))
            pass->totals->throttled += row->throttled_ns >= pass->now_ns && row->throttled > 0.0;
        if (row->kind == KL_CONTAINER)
            continue;
        add_row(pass, row, all[row->kind]);
        if (!row->be && nonbe[row->kind] >= 0)
            add_row(pass, row, nonbe[row->kind]);
    }
}

static void append_to(struct kl_rings *rings, const struct pass *pass)
{
    int64_t now_ms = pass->now_ns / 1000000;
    kl_rings_lock(rings);
    for (int i = 0; i < pass->table->count; i++) {
        const struct row *row = &pass->table->rows[i];
        if (row->state != KL_ALIVE)
            continue;
        if (row->mcpu_ns >= pass->now_ns || row->waits) /* or times at which it did little would count for less */
            kl_rings_push_locked(rings, row->cpu_series, now_ms, row->mcpu);
        if (row->memory_ns >= pass->now_ns)
            kl_rings_push_locked(rings, row->memory_series, now_ms, (double)row->memory);
    }
    kl_rings_unlock(rings);
}

int kl_table_pass(struct kl_table *table, struct kl_rings *rings, int64_t now_ns, int flags, struct kl_totals *out)
{
    *out = (struct kl_totals){0};
    struct pass pass = {
        .table = table,
        .totals = out,
        .now_ns = now_ns,
        .started_ns = kl_clock_ns(),
        .nominal = (flags & KL_PASS_NOMINAL_TIME) != 0,
        .interval_ns = now_ns - table->passed_ns,
        .calm = (flags & KL_PASS_CALM) != 0,
    };
    table->passes++;
    table->passed_ns = now_ns;
    read_every_pass(&pass);
    if (table->count > 0) {
        read_rotation(&pass);
        read_moved(&pass);
        if (flags & KL_PASS_THROTTLING)
            read_all_throttling(&pass);
    }
    sum_rows(&pass);
    if (rings)
        append_to(rings, &pass);
    return 0;
}
