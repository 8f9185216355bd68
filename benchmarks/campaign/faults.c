/* A file layer that counts the calls on files below one folder, and fails, shortens, delays or ends the process at the
   Nth, or sets the clock back or ahead from there on. Loaded with LD_PRELOAD, so that Python, NumPy and SQLite alike go
   through it; armed by faults.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { OFF, NO_SPACE, IO_ERROR, FULL_FROM_HERE, SHORT, SLOW, KILL, BACK, AHEAD };
static char folder[PATH_MAX];
static int mode = OFF;
static long target, count;
static unsigned char ours[4096];

void faults_arm(const char *path, int how, long at) {
    snprintf(folder, sizeof folder, "%s", path);
    mode = how; target = at; count = 0;
}
long faults_count(void) { return count; }

#define REAL(type, name) static type (*real)() = 0; if (!real) real = dlsym(RTLD_NEXT, #name)
static int below(const char *path) { return folder[0] && path && !strncmp(path, folder, strlen(folder)); }
static int known(int fd) { return fd >= 0 && fd < 4096 && ours[fd]; }

/* Returns -1 if the call is to fail (errno is set), 1 if it is to be cut short, else 0. */
static int hit(int may_fail) {
    if (mode == OFF) return 0;
    count++;
    if (count != target && !(mode == FULL_FROM_HERE && count > target)) return 0;
    if (mode == KILL) _exit(137);
    if (mode == SLOW) usleep(20000);
    if (mode == SHORT) return 1;
    if (mode == SLOW || mode >= BACK || !may_fail) return 0;
    errno = mode == IO_ERROR ? EIO : ENOSPC;
    return -1;
}

#define OPEN(name, head, args, path)                                                    \
    int name head {                                                                     \
        REAL(int, name);                                                                \
        va_list list; va_start(list, flags); mode_t m = va_arg(list, mode_t); va_end(list); \
        int mine = below(path);                                                         \
        if (mine && (flags & (O_CREAT | O_WRONLY | O_RDWR)) && hit(1) < 0) return -1;  \
        int fd = real args;                                                             \
        if (fd >= 0 && fd < 4096) ours[fd] = mine;                                      \
        return fd;                                                                      \
    }
OPEN(open, (const char *path, int flags, ...), (path, flags, m), path)
OPEN(open64, (const char *path, int flags, ...), (path, flags, m), path)
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, m), path)
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, m), path)

#define WRITE(name, head, args)                                                         \
    ssize_t name head {                                                                 \
        REAL(ssize_t, name);                                                            \
        int h = known(fd) ? hit(1) : 0;                                                 \
        if (h < 0) return -1;                                                           \
        if (h > 0 && size > 1) size /= 2;                                               \
        return real args;                                                               \
    }
WRITE(write, (int fd, const void *data, size_t size), (fd, data, size))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))

#define OTHER(name, head, args, mine, may_fail)                                         \
    int name head {                                                                     \
        REAL(int, name);                                                                \
        if ((mine) && hit(may_fail) < 0) return -1;                                     \
        return real args;                                                               \
    }
OTHER(fsync, (int fd), (fd), known(fd), 1)
OTHER(fdatasync, (int fd), (fd), known(fd), 1)
OTHER(ftruncate, (int fd, off_t size), (fd, size), known(fd), 1)
OTHER(ftruncate64, (int fd, off64_t size), (fd, size), known(fd), 1)
OTHER(rename, (const char *from, const char *to), (from, to), below(to), 1)
OTHER(mkdir, (const char *path, mode_t m), (path, m), below(path), 1)
OTHER(unlink, (const char *path), (path), below(path), 0)
OTHER(rmdir, (const char *path), (path), below(path), 0)

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(int, clock_gettime);
    int failed = real(which, now);
    if (!failed && which == CLOCK_REALTIME && mode >= BACK && count >= target)
        now->tv_sec += mode == BACK ? -86400 : 366 * 86400;
    return failed;
}
