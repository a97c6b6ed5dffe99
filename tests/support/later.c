/* Makes a program's clock late or early by what the file LATER_BY holds: microseconds, 8 bytes.
   Each answer is later than the one before, unless the file says otherwise. */

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
    static int64_t last, last_by;
    if (!asked) {
        int file = open(getenv("LATER_BY"), O_RDONLY);
        later = mmap(NULL, sizeof *later, PROT_READ, MAP_SHARED, file, 0);
        asked = dlsym(RTLD_NEXT, "gettimeofday");
    }
    int result = asked(now, zone);
    int64_t by = *later, us = now->tv_sec * 1000000L + now->tv_usec + by;
    if (us <= last && by == last_by)
        us = last + 1;
    last = us;
    last_by = by;
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return result;
}
