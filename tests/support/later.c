/* Makes a program's clock late or early by what the file LATER_BY holds: microseconds, 8 bytes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    static int (*asked)(struct timeval *, void *);
    static volatile int64_t *later;
    if (!asked) {
        int file = open(getenv("LATER_BY"), O_RDONLY);
        later = mmap(NULL, sizeof *later, PROT_READ, MAP_SHARED, file, 0);
        asked = dlsym(RTLD_NEXT, "gettimeofday");
    }
    int result = asked(now, zone);
    int64_t us = now->tv_usec + *later;
    now->tv_sec += us / 1000000;
    now->tv_usec = us % 1000000;
    return result;
}
