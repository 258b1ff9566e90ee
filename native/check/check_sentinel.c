/* The sentinel on counter files in memory: looks at given times, the thread, descriptors, fork. */
#define _GNU_SOURCE
#include "check.h"
#include "sentinel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS INT64_C(1000000)
enum { PERIOD_US = 20000, WINDOW_US = 40000 };

static int64_t parse(const char *text, size_t length, int kind)
{
    char *copy = exact_copy(text, length);
    int64_t value = kl_counter_parse(copy, (int64_t)length, kind);
    free(copy);
    return value;
}

static void counters_are_parsed(void)
{
    static const struct {
        const char *text;
        int kind;
        int64_t wanted;
    } rows[] = {
        {"4823\n", KL_COUNTER_NS, 4823},
        {"9223372036854775807\n", KL_COUNTER_NS, INT64_MAX},
        {"9223372036854775808\n", KL_COUNTER_NS, -EINVAL},
        {"99999999999999999999999999\n", KL_COUNTER_NS, -EINVAL},
        {"4823", KL_COUNTER_NS, -EINVAL}, /* maybe cut off */
        {"", KL_COUNTER_NS, -EINVAL},
        {"\n", KL_COUNTER_NS, -EINVAL},
        {"-5\n", KL_COUNTER_NS, -EINVAL},
        {"12x\n", KL_COUNTER_NS, -EINVAL},
        {"usage_usec 17\nuser_usec 5\n", KL_COUNTER_USAGE_USEC, 17000},
        {"user_usec 5\nusage_usec 17\n", KL_COUNTER_USAGE_USEC, 17000},
        {"nice_usage_usec 5\n", KL_COUNTER_USAGE_USEC, -EINVAL},
        {"usage_usec 17", KL_COUNTER_USAGE_USEC, -EINVAL},
        {"usage_usec", KL_COUNTER_USAGE_USEC, -EINVAL},
        {"usage_usec 9223372036854775807\n", KL_COUNTER_USAGE_USEC, -EINVAL},
        {"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 total=9\n", KL_COUNTER_PSI_SOME, 12000},
        {"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n", KL_COUNTER_PSI_SOME, 12000},
        {"some avg10=0.00\nfull avg10=0.00 total=9\n", KL_COUNTER_PSI_SOME, -EINVAL},
        {"full avg10=0.00 total=9\n", KL_COUNTER_PSI_SOME, -EINVAL},
        {"some avg10=0.00 avg60=0.00 avg300=0.00 total=12", KL_COUNTER_PSI_SOME, -EINVAL},
        {"some avg10=0.00 avg60=0.00 avg300=0.00 tot", KL_COUNTER_PSI_SOME, -EINVAL},
        {"4823\n", 7, -EINVAL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK(parse(rows[i].text, strlen(rows[i].text), rows[i].kind) == rows[i].wanted);
    CHECK(parse("12\0\n", 4, KL_COUNTER_NS) == -EINVAL);
    CHECK(parse("some \0 total=3\n", 15, KL_COUNTER_PSI_SOME) == 3000);
}

static void noise_is_refused_or_parsed(void)
{
    static const char base[] = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nusage_usec 18446744073709551615\n";
    uint64_t seed = 362436069;
    for (int i = 0; i < 100000; i++) {
        char text[sizeof base];
        memcpy(text, base, sizeof base);
        for (int flips = 0; flips < 3; flips++)
            text[noise(&seed) % sizeof text] = (char)noise(&seed);
        int64_t value = parse(text, noise(&seed) % sizeof text, (int)(noise(&seed) % 3));
        CHECK(value >= 0 || value == -EINVAL);
    }
}

/* A file in memory with a counter. */
static int counter_file(void)
{
    int fd = memfd_create("counter", MFD_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static void put(int fd, const char *format, int64_t value)
{
    char text[128];
    int length = snprintf(text, sizeof text, format, (long)value);
    CHECK(pwrite(fd, text, (size_t)length, 0) == length && ftruncate(fd, length) == 0);
}

static void put_usec(int fd, int64_t value_us)
{
    put(fd, "usage_usec %ld\nuser_usec 0\n", value_us);
}

static void put_psi(int fd, int64_t total_us)
{
    put(fd, "some avg10=0.00 avg60=0.00 avg300=0.00 total=%ld\n", total_us);
}

static struct kl_sentinel *sentinel_on(int root, int be, int ls)
{
    struct kl_sentinel *s;
    CHECK(kl_sentinel_create(&s) == 0);
    struct kl_sentinel_sources sources = {
        .root_fd = root,
        .meminfo_fd = -1,
        .memory_psi_fd = -1,
        .usage_kind = KL_COUNTER_USAGE_USEC,
        .be_count = be >= 0,
        .ls_count = ls >= 0,
        .be_fds = &be,
        .ls_fds = &ls,
    };
    CHECK(kl_sentinel_set_sources(s, &sources) == 0);
    return s;
}

static int plan(struct kl_sentinel *s, int64_t nonbe_mcpu, int64_t pressure_permyriad)
{
    struct kl_sentinel_plan wanted = {nonbe_mcpu, pressure_permyriad, -1, -1, PERIOD_US, WINDOW_US};
    return kl_sentinel_set_plan(s, &wanted);
}

static bool drained(const struct kl_sentinel *s)
{
    uint64_t fires;
    return read(kl_sentinel_eventfd(s), &fires, sizeof fires) == (ssize_t)sizeof fires;
}

static void fires_once_per_plan(void)
{
    int root = counter_file();
    int be = counter_file();
    struct kl_sentinel *s = sentinel_on(root, be, -1);
    struct kl_sentinel_state state;
    CHECK(!kl_sentinel_look(s, 0)); /* off: not even counted */
    CHECK(plan(s, 1000, -1) == 0);
    for (int64_t i = 0; i <= 10; i++) { /* BE takes all of 2 CPUs: no reason */
        put_usec(root, i * 40000);
        put_usec(be, i * 40000);
        CHECK(!kl_sentinel_look(s, i * 20 * MS));
    }
    kl_sentinel_state_read(s, &state);
    CHECK(state.nonbe_mcpu == 0 && state.nonbe_at_ns == 200 * MS && state.looks == 11 && state.timer_us == PERIOD_US);

    put_usec(root, 440000); /* now non-BE takes 1.5 CPUs */
    put_usec(be, 410000);
    CHECK(!kl_sentinel_look(s, 220 * MS)); /* 0.75 CPU over the window */
    put_usec(root, 480000);
    put_usec(be, 420000);
    CHECK(kl_sentinel_look(s, 240 * MS));
    CHECK(drained(s) && !drained(s));
    kl_sentinel_state_read(s, &state);
    CHECK(state.nonbe_mcpu == 1500 && state.fires == 1 && !state.armed && state.timer_us == 10000);

    put_usec(root, 520000);
    put_usec(be, 430000);
    CHECK(!kl_sentinel_look(s, 260 * MS)); /* disarmed, but it goes on measuring */
    kl_sentinel_state_read(s, &state);
    CHECK(state.nonbe_at_ns == 260 * MS);
    CHECK(plan(s, 1000, -1) == 0);
    put_usec(root, 560000);
    put_usec(be, 440000);
    CHECK(kl_sentinel_look(s, 280 * MS));
    CHECK(plan(s, -1, -1) == 0);
    kl_sentinel_state_read(s, &state);
    CHECK(state.timer_us == 0 && !state.armed && state.fires == 2);
    kl_sentinel_destroy(s);
    close(root);
    close(be);
}

static void fires_on_pressure(void)
{
    int ls = counter_file();
    struct kl_sentinel *s = sentinel_on(-1, -1, ls);
    CHECK(plan(s, -1, 1000) == 0);
    for (int64_t i = 0; i <= 6; i++) { /* 5 % */
        put_psi(ls, i * 1000);
        CHECK(!kl_sentinel_look(s, i * 20 * MS));
    }
    put_psi(ls, 6000 + 10000);
    CHECK(kl_sentinel_look(s, 140 * MS));
    struct kl_sentinel_state state;
    kl_sentinel_state_read(s, &state);
    CHECK(state.pressure_permyriad == 1400 && state.pressure_at_ns == 140 * MS && state.nonbe_mcpu == -1);
    kl_sentinel_destroy(s);
    close(ls);
}

static void put_meminfo(int fd, long available_kib)
{
    char text[128];
    int length = snprintf(text, sizeof text, "MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable: %ld kB\n", available_kib);
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)length, 0) == length);
}

static void fires_on_memory(void)
{
    int meminfo = counter_file();
    int psi = counter_file();
    struct kl_sentinel *s;
    CHECK(kl_sentinel_create(&s) == 0);
    struct kl_sentinel_sources sources = {.root_fd = -1, .meminfo_fd = meminfo, .memory_psi_fd = psi};
    CHECK(kl_sentinel_set_sources(s, &sources) == 0);
    struct kl_sentinel_plan used = {-1, -1, 4096LL * 1024, -1, PERIOD_US, WINDOW_US};
    CHECK(kl_sentinel_set_plan(s, &used) == 0);
    put_psi(psi, 0);
    put_meminfo(meminfo, 4096);
    CHECK(!kl_sentinel_look(s, 0)); /* at the line is not above it */
    put_meminfo(meminfo, 4095);
    CHECK(kl_sentinel_look(s, 20 * MS));
    struct kl_sentinel_state state;
    kl_sentinel_state_read(s, &state);
    CHECK(state.memory_used_bytes == 4097LL * 1024 && state.memory_used_at_ns == 20 * MS && state.errors == 0);
    struct kl_sentinel_plan pressure = {-1, -1, -1, 1000, PERIOD_US, WINDOW_US};
    CHECK(kl_sentinel_set_plan(s, &pressure) == 0);
    put_psi(psi, 30000);
    CHECK(kl_sentinel_look(s, 140 * MS));
    CHECK(ftruncate(meminfo, 0) == 0 && kl_sentinel_set_plan(s, &used) == 0);
    CHECK(!kl_sentinel_look(s, 160 * MS)); /* unreadable is no reading */
    kl_sentinel_state_read(s, &state);
    CHECK(state.errors == 1 && state.memory_used_at_ns == 140 * MS);
    kl_sentinel_destroy(s);
    close(meminfo);
    close(psi);
}

static void unreadable_be_gives_no_reading(void)
{
    int root = counter_file();
    int pipe_fds[2];
    CHECK(pipe(pipe_fds) == 0);
    struct kl_sentinel *s = sentinel_on(root, pipe_fds[0], -1);
    CHECK(plan(s, 1, -1) == 0);
    for (int64_t i = 0; i < 10; i++) {
        put_usec(root, i * 40000);
        CHECK(!kl_sentinel_look(s, i * 20 * MS));
    }
    struct kl_sentinel_state state;
    kl_sentinel_state_read(s, &state);
    CHECK(state.nonbe_mcpu == -1 && state.errors == 10 && state.gone == 0);
    kl_sentinel_destroy(s);
    close(root);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void bad_settings_are_refused(void)
{
    struct kl_sentinel *s = sentinel_on(-1, -1, -1);
    struct kl_sentinel_plan bad[] = {
        {-2, -1, -1, -1, PERIOD_US, WINDOW_US}, {-1, -2, -1, -1, PERIOD_US, WINDOW_US},
        {-1, -1, -2, -1, PERIOD_US, WINDOW_US}, {-1, -1, -1, -2, PERIOD_US, WINDOW_US},
        {1, 1, -1, -1, 999, WINDOW_US},         {1, 1, -1, -1, 2000000, 3000000},
        {1, 1, -1, -1, PERIOD_US, 19999},       {1, 1, -1, -1, PERIOD_US, 10000001},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(kl_sentinel_set_plan(s, &bad[i]) == -EINVAL);
    int good = counter_file();
    int be[2] = {good, -1};
    struct kl_sentinel_sources sources = {
        .root_fd = good, .meminfo_fd = -1, .memory_psi_fd = -1, .be_count = 2, .be_fds = be};
    CHECK(kl_sentinel_set_sources(s, &sources) == -EBADF);
    sources.be_count = KL_SENTINEL_BE_ROOTS + 1;
    CHECK(kl_sentinel_set_sources(s, &sources) == -E2BIG);
    sources.be_count = -1;
    CHECK(kl_sentinel_set_sources(s, &sources) == -EINVAL);
    close(good);
    kl_sentinel_destroy(s);
    kl_sentinel_destroy(NULL);
}

static void thread_fires_and_stops(void)
{
    int root = counter_file();
    int trigger = eventfd(0, EFD_CLOEXEC);
    put_usec(root, 0);
    struct kl_sentinel *s = sentinel_on(root, -1, -1);
    struct kl_sentinel_sources sources = {
        .root_fd = root,
        .meminfo_fd = -1,
        .memory_psi_fd = -1,
        .usage_kind = KL_COUNTER_USAGE_USEC,
        .trigger_count = 1,
        .trigger_fds = &trigger,
    };
    CHECK(kl_sentinel_set_sources(s, &sources) == 0);
    CHECK(kl_sentinel_start(s) == 0 && kl_sentinel_start(s) == -EALREADY);
    CHECK(plan(s, 100, -1) == 0);
    CHECK(kl_sentinel_set_sources(s, &sources) == 0); /* while it runs */
    struct kl_sentinel_state state;
    do {
        kl_sentinel_state_read(s, &state);
        poll(NULL, 0, 1);
    } while (state.looks < 5);
    put_usec(root, 1000000000);
    struct pollfd fire = {.fd = kl_sentinel_eventfd(s), .events = POLLIN};
    CHECK(poll(&fire, 1, 5000) == 1 && drained(s));
    kl_sentinel_state_read(s, &state);
    CHECK(state.fires == 1 && state.errors == 0 && state.nonbe_mcpu > 100);

    pid_t child = fork();
    if (child == 0) { /* has no thread: must neither wait for it nor disturb the parent's */
        kl_sentinel_destroy(s);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    kl_sentinel_destroy(s);
    close(root);
    close(trigger);
}

int main(void)
{
    int before = open_descriptors();
    counters_are_parsed();
    noise_is_refused_or_parsed();
    fires_once_per_plan();
    fires_on_pressure();
    fires_on_memory();
    unreadable_be_gives_no_reading();
    bad_settings_are_refused();
    thread_fires_and_stops();
    CHECK(open_descriptors() == before);
    return 0;
}
