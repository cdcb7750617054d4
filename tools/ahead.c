/* Preloaded into the processes of a pretended host whose clock is AHEAD_S seconds ahead. Only the
 * time of day and the times of files differ, as they would on such a host: what libfaketime does
 * beyond that makes Python's sleep() fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static time_t ahead(void)
{
    const char *seconds = getenv("AHEAD_S");
    return seconds ? atoll(seconds) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int failed = REAL(clock_gettime)(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    int failed = REAL(gettimeofday)(now, zone);
    if (!failed)
        now->tv_sec += ahead();
    return failed;
}

time_t time(time_t *now)
{
    time_t here = REAL(time)(NULL) + ahead();
    if (now)
        *now = here;
    return here;
}

static int moved(int failed, struct stat *about)
{
    if (!failed) {
        about->st_atim.tv_sec += ahead();
        about->st_mtim.tv_sec += ahead();
        about->st_ctim.tv_sec += ahead();
    }
    return failed;
}

int stat(const char *path, struct stat *about) { return moved(REAL(stat)(path, about), about); }
int lstat(const char *path, struct stat *about) { return moved(REAL(lstat)(path, about), about); }
int fstat(int file, struct stat *about) { return moved(REAL(fstat)(file, about), about); }
int fstatat(int folder, const char *path, struct stat *about, int how)
{
    return moved(REAL(fstatat)(folder, path, about, how), about);
}
