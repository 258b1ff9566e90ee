/* Parsers of the kernel's text files; see parse.h. */
#include "parse.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* A piece of the text, [at, end). */
struct span {
    const char *at, *end;
};

static bool blank(char c)
{
    return c == ' ' || c == '\t';
}

static size_t width(struct span s)
{
    return (size_t)(s.end - s.at);
}

static bool equals(struct span s, const char *text, size_t length)
{
    return width(s) == length && memcmp(s.at, text, length) == 0;
}

/* Cuts the next line off the text; false at the end. */
static bool next_line(struct span *text, struct span *line)
{
    if (text->at == text->end)
        return false;
    const char *newline = memchr(text->at, '\n', width(*text));
    line->at = text->at;
    line->end = newline ? newline : text->end;
    text->at = newline ? newline + 1 : text->end;
    return true;
}

/* Cuts the next word off the line; empty at the end. */
static struct span next_word(struct span *line)
{
    while (line->at < line->end && blank(*line->at))
        line->at++;
    struct span word = {line->at, line->at};
    while (word.end < line->end && !blank(*word.end))
        word.end++;
    line->at = word.end;
    return word;
}

static int to_u64(struct span digits, uint64_t *out)
{
    uint64_t value = 0;
    if (digits.at == digits.end)
        return -EINVAL;
    for (const char *p = digits.at; p < digits.end; p++) {
        if (*p < '0' || *p > '9')
            return -EINVAL;
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return -EINVAL;
        value = value * 10 + digit;
    }
    *out = value;
    return 0;
}

static struct span trimmed(const char *text, size_t length)
{
    struct span s = {text, text + length};
    while (s.at < s.end && *s.at == '\n')
        s.at++;
    while (s.at < s.end && s.end[-1] == '\n')
        s.end--;
    return s;
}

int kl_parse_u64(const char *text, size_t length, uint64_t *out)
{
    return to_u64(trimmed(text, length), out);
}

int kl_parse_quota(const char *text, size_t length, int64_t *out)
{
    struct span line = trimmed(text, length);
    struct span first = next_word(&line);
    uint64_t value;
    if (equals(first, "max", 3) || equals(first, "-1", 2)) {
        *out = -1;
        return 0;
    }
    if (to_u64(first, &value) != 0 || value > INT64_MAX)
        return -EINVAL;
    *out = (int64_t)value;
    return 0;
}

static int scaled(struct span digits, uint64_t factor, uint64_t *out)
{
    uint64_t value;
    if (to_u64(digits, &value) != 0 || value > UINT64_MAX / factor)
        return -EINVAL;
    *out = value * factor;
    return 0;
}

int kl_parse_cpu_stat(const char *text, size_t length, struct kl_cpu_stat *out)
{
    enum { USAGE = 1, PERIODS = 2, THROTTLED = 4, TIME = 8 };
    struct kl_cpu_stat found = {0};
    struct span rest = {text, text + length}, line;
    unsigned seen = 0;
    while (next_line(&rest, &line)) {
        struct span key = next_word(&line), value = next_word(&line);
        if (value.at == value.end)
            continue;
        unsigned field;
        uint64_t *to, factor = 1;
        if (equals(key, "usage_usec", 10)) {
            field = USAGE, to = &found.usage_ns, factor = 1000;
        } else if (equals(key, "nr_periods", 10)) {
            field = PERIODS, to = &found.periods;
        } else if (equals(key, "nr_throttled", 12)) {
            field = THROTTLED, to = &found.throttled_periods;
        } else if (equals(key, "throttled_usec", 14)) {
            field = TIME, to = &found.throttled_ns, factor = 1000;
        } else if (equals(key, "throttled_time", 14)) {
            field = TIME, to = &found.throttled_ns;
        } else {
            continue;
        }
        if (scaled(value, factor, to) != 0)
            return -EINVAL;
        seen |= field;
    }
    found.has_usage = (seen & USAGE) != 0;
    found.has_throttling = (seen & (PERIODS | THROTTLED | TIME)) == (PERIODS | THROTTLED | TIME);
    *out = found;
    return 0;
}

/* In the order of struct kl_memory_stat. */
static const struct {
    const char *name;
    size_t length;
} memory_keys[KL_MEMORY_KEYS] = {
    {"inactive_anon", 13}, {"active_anon", 11}, {"inactive_file", 13}, {"active_file", 11}, {"unevictable", 11},
};

static bool is_memory_key(struct span word, int version, int key)
{
    if (version == 1) {
        if (width(word) < 6 || memcmp(word.at, "total_", 6) != 0)
            return false;
        word.at += 6;
    }
    return equals(word, memory_keys[key].name, memory_keys[key].length);
}

static void set_memory(struct kl_memory_stat *out, const uint64_t *value)
{
    *out = (struct kl_memory_stat){value[0], value[1], value[2], value[3], value[4]};
}

/* Reads the learned lines only; false when a key is not where it was, or not a number. */
static bool read_by_layout(struct span rest, int version, const struct kl_memory_layout *layout, uint64_t *value)
{
    struct span line;
    int number = 0;
    for (int i = 0; i < KL_MEMORY_KEYS; i++) {
        do {
            if (!next_line(&rest, &line))
                return false;
        } while (number++ < layout->line[i]);
        struct span key = next_word(&line);
        if (!is_memory_key(key, version, layout->key[i]) || to_u64(next_word(&line), &value[layout->key[i]]) != 0)
            return false;
    }
    return true;
}

static void learn(const int *line_of, struct kl_memory_layout *layout)
{
    for (int i = 0; i < KL_MEMORY_KEYS; i++) {
        int rank = 0;
        for (int other = 0; other < KL_MEMORY_KEYS; other++)
            rank += line_of[other] < line_of[i];
        layout->line[rank] = line_of[i];
        layout->key[rank] = i;
    }
    layout->known = 1;
}

int kl_parse_memory_stat(const char *text, size_t length, int version, struct kl_memory_layout *layout,
                         struct kl_memory_stat *out)
{
    struct span rest = {text, text + length}, line;
    uint64_t value[KL_MEMORY_KEYS] = {0};
    int line_of[KL_MEMORY_KEYS] = {-1, -1, -1, -1, -1};
    if (layout->known && read_by_layout(rest, version, layout, value)) {
        set_memory(out, value);
        return 0;
    }
    layout->known = 0;
    for (int number = 0; next_line(&rest, &line); number++) {
        struct span key = next_word(&line), word = next_word(&line);
        if (word.at == word.end)
            continue;
        for (int i = 0; i < KL_MEMORY_KEYS; i++) {
            if (!is_memory_key(key, version, i))
                continue;
            if (to_u64(word, &value[i]) != 0)
                return -EINVAL;
            line_of[i] = number;
            break;
        }
    }
    for (int i = 0; i < KL_MEMORY_KEYS; i++)
        if (line_of[i] < 0)
            return -EINVAL;
    learn(line_of, layout);
    set_memory(out, value);
    return 0;
}

int kl_parse_numa_stat(const char *text, size_t length, uint64_t page_bytes, struct kl_memory_stat *out)
{
    enum { FILE_PAGES = 1, ANON = 2, UNEVICTABLE = 4 };
    static const size_t prefix = 13; /* hierarchical_ */
    struct kl_memory_stat found = {0};
    struct span rest = {text, text + length}, line;
    unsigned seen = 0;
    while (next_line(&rest, &line)) {
        struct span word = next_word(&line), beyond = word;
        for (int node = 0; node < 3; node++)
            beyond = next_word(&line);
        if (width(beyond) > 0)
            return -E2BIG;
        if (width(word) < prefix || memcmp(word.at, "hierarchical_", prefix) != 0)
            continue;
        struct span key = {word.at + prefix, word.at + prefix};
        while (key.end < word.end && *key.end != '=')
            key.end++;
        struct span value = {key.end < word.end ? key.end + 1 : word.end, word.end};
        unsigned field;
        uint64_t *to;
        if (equals(key, "file", 4)) {
            field = FILE_PAGES, to = &found.inactive_file;
        } else if (equals(key, "anon", 4)) {
            field = ANON, to = &found.inactive_anon;
        } else if (equals(key, "unevictable", 11)) {
            field = UNEVICTABLE, to = &found.unevictable;
        } else {
            continue;
        }
        if (scaled(value, page_bytes, to) != 0)
            return -EINVAL;
        seen |= field;
    }
    if (seen != (FILE_PAGES | ANON | UNEVICTABLE))
        return -EINVAL;
    *out = found;
    return 0;
}

int kl_parse_proc_stat(const char *text, size_t length, uint64_t *busy_ticks)
{
    static const unsigned busy = 1U << 0 | 1U << 1 | 1U << 2 | 1U << 5 | 1U << 6;
    struct span rest = {text, text + length}, line;
    while (next_line(&rest, &line)) {
        if (!equals(next_word(&line), "cpu", 3))
            continue;
        uint64_t sum = 0, ticks;
        for (unsigned column = 0; column < 7; column++) {
            if (to_u64(next_word(&line), &ticks) != 0)
                return -EINVAL;
            if ((busy >> column & 1U) && __builtin_add_overflow(sum, ticks, &sum))
                return -EINVAL;
        }
        *busy_ticks = sum;
        return 0;
    }
    return -EINVAL;
}

int kl_parse_meminfo(const char *text, size_t length, struct kl_meminfo *out)
{
    enum { TOTAL, FREE, AVAILABLE, ACTIVE_FILE, INACTIVE_FILE, RECLAIMABLE, KEYS };
    static const char *const names[KEYS] = {
        "MemTotal:", "MemFree:", "MemAvailable:", "Active(file):", "Inactive(file):", "SReclaimable:"};
    struct span rest = {text, text + length}, line;
    uint64_t value[KEYS] = {0};
    unsigned seen = 0;
    while (next_line(&rest, &line)) {
        struct span key = next_word(&line), word = next_word(&line);
        if (word.at == word.end)
            continue;
        for (unsigned i = 0; i < KEYS; i++) {
            if (!equals(key, names[i], strlen(names[i])))
                continue;
            if (scaled(word, 1024, &value[i]) != 0)
                return -EINVAL;
            seen |= 1U << i;
            break;
        }
    }
    const unsigned base = 1U << TOTAL | 1U << FREE;
    if ((seen & base) != base)
        return -EINVAL;
    if (!(seen & 1U << AVAILABLE))
        for (int i = FREE; i < KEYS; i++)
            if (i != AVAILABLE && __builtin_add_overflow(value[AVAILABLE], value[i], &value[AVAILABLE]))
                return -EINVAL;
    *out = (struct kl_meminfo){value[TOTAL], value[FREE], value[AVAILABLE]};
    return 0;
}
