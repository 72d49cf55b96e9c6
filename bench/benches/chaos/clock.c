/* A wall clock that is off by what a file says, in seconds, for the processes that preload this.

   Monotonic clocks, and with them sleeps, stay: as when an administrator sets a machine's date. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t nothing, *offset = &nothing;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) offset = at;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    if (code == 0) now->tv_sec += *offset;
    return code;
}

time_t time(time_t *now) {
    struct timespec spec;
    clock_gettime(CLOCK_REALTIME, &spec);
    if (now) *now = spec.tv_sec;
    return spec.tv_sec;
}
