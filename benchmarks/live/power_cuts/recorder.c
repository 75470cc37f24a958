/*
Logs every change of the files below $RECORDED_FOLDER, in order, for LD_PRELOAD.

Each process writes a log of its own to $RECORDER_LOGS. A record is written when a change has been
made, so that a process that is killed in between leaves one change out of its log: nothing can
depend on it. Its time is that before the change, so that changes of other processes that depend on
it come later. A sync has two records: it covers the changes before the first, and the second says
that it has returned.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536

enum operation {
    CREATE = 'C', WRITE = 'W', TRUNCATE = 'T', RENAME = 'R', LINK = 'L', UNLINK = 'U',
    MAKE_FOLDER = 'M', REMOVE_FOLDER = 'D', SYNC_BEGINS = 's', SYNC_ENDS = 'S', UNKNOWN = '?'
};

/* Numbers of a record; its path, second path and data follow. */
struct record {
    uint64_t time_ns, operation, inode, offset, path_bytes, second_bytes, data_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char tracked[FILES];
static int log_file = -1;
static pid_t log_owner;
static uint64_t begun_ns;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static const char *root(void) {
    static const char *folder;
    if (!folder) folder = getenv("RECORDED_FOLDER");
    return folder ? folder : "";
}

/* Put an absolute path into `full` and return whether its changes are logged. */
static int resolve(int at, const char *path, char *full) {
    if (!path) return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
    } else {
        char folder[PATH_MAX];
        if (at == AT_FDCWD) {
            if (syscall(SYS_getcwd, folder, sizeof folder) <= 0) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, folder, sizeof folder - 1);
            if (size <= 0) return 0;
            folder[size] = 0;
        }
        if (snprintf(full, PATH_MAX, "%s/%s", folder, path) >= PATH_MAX) return 0;
    }
    size_t size = strlen(root()), whole = strlen(full);
    if (!size || strncmp(full, root(), size) || (full[size] && full[size] != '/')) return 0;
    /* SQLite rebuilds this file. */
    return !(whole > 4 && !strcmp(full + whole - 4, "-shm"));
}

static uint64_t inode_of(int file) {
    struct stat about;
    return fstat(file, &about) ? 0 : about.st_ino;
}

static uint64_t inode_at(const char *path) {
    struct stat about;
    return lstat(path, &about) ? 0 : about.st_ino;
}

static void open_log(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%d.log", getenv("RECORDER_LOGS"), (int)getpid());
    int file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    /* Away from the numbers that a program may expect to be free. */
    log_file = fcntl(file, F_DUPFD_CLOEXEC, 1000);
    syscall(SYS_close, file);
    log_owner = getpid();
}

static void put(
    enum operation operation, uint64_t inode, uint64_t offset,
    const char *path, const char *second, const void *data, size_t size
) {
    if (log_owner != getpid()) open_log();
    struct record record = {
        begun_ns, operation, inode, offset,
        path ? strlen(path) : 0, second ? strlen(second) : 0, size
    };
    struct iovec parts[] = {
        {&record, sizeof record}, {(void *)path, record.path_bytes},
        {(void *)second, record.second_bytes}, {(void *)data, size}
    };
    ssize_t whole = sizeof record + record.path_bytes + record.second_bytes + size;
    ssize_t done = syscall(SYS_writev, log_file, parts, 4);
    if (done < 0 && errno == EBADF) {
        /* A process may close all its files after a fork. */
        open_log();
        done = syscall(SYS_writev, log_file, parts, 4);
    }
    if (done != whole) abort();
}

static int is_tracked(int file) { return file >= 0 && file < FILES && tracked[file]; }

static void begin(void) {
    struct timespec now;
    pthread_mutex_lock(&lock);
    clock_gettime(CLOCK_MONOTONIC, &now);
    begun_ns = (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
}
static void end(void) { int error = errno; pthread_mutex_unlock(&lock); errno = error; }

static int open_any(int at, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    if (!resolve(at, path, full) || (flags & O_TMPFILE) == O_TMPFILE)
        return syscall(SYS_openat, at, path, flags, mode);
    begin();
    uint64_t before = inode_at(full);
    int file = syscall(SYS_openat, at, path, flags, mode);
    if (file >= 0 && file < FILES) {
        tracked[file] = 1;
        if (!before) put(CREATE, inode_of(file), 0, full, 0, 0, 0);
        else if (flags & O_TRUNC) put(TRUNCATE, before, 0, 0, 0, 0, 0);
    }
    end();
    return file;
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; va_start(rest, last); mode = va_arg(rest, mode_t); va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags, flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, flags) return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, flags) return open_any(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
int __open_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return open_any(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return open_any(at, path, flags, 0); }

int close(int file) {
    REAL(close);
    if (is_tracked(file)) tracked[file] = 0;
    return real(file);
}

ssize_t write(int file, const void *data, size_t size) {
    if (!is_tracked(file)) return syscall(SYS_write, file, data, size);
    begin();
    ssize_t done = syscall(SYS_write, file, data, size);
    if (done > 0) {
        off_t at = lseek(file, 0, SEEK_CUR) - done;
        put(WRITE, inode_of(file), at, 0, 0, data, done);
    }
    end();
    return done;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    if (!is_tracked(file)) return syscall(SYS_pwrite64, file, data, size, at);
    begin();
    ssize_t done = syscall(SYS_pwrite64, file, data, size, at);
    if (done > 0) put(WRITE, inode_of(file), at, 0, 0, data, done);
    end();
    return done;
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return pwrite64(file, data, size, at); }

/* Changes that nothing here makes: their record fails the replay. */
#define REFUSE(file) if (is_tracked(file)) { begin(); put(UNKNOWN, inode_of(file), 0, __func__, 0, 0, 0); end(); }

ssize_t writev(int file, const struct iovec *parts, int count) {
    REFUSE(file)
    return syscall(SYS_writev, file, parts, count);
}
ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64);
    REFUSE(file)
    return real(file, parts, count, at);
}
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) { return pwritev64(file, parts, count, at); }
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    REFUSE(to)
    return syscall(SYS_sendfile, to, from, at, size);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) { return sendfile64(to, from, at, size); }
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags) {
    REFUSE(to)
    return syscall(SYS_copy_file_range, from, from_at, to, to_at, size, flags);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    REFUSE(file)
    return real(file, at, size);
}
int posix_fallocate(int file, off_t at, off_t size) { return posix_fallocate64(file, at, size); }
void *mmap64(void *address, size_t size, int protection, int flags, int file, off64_t at) {
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE)) REFUSE(file)
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, at);
}
void *mmap(void *address, size_t size, int protection, int flags, int file, off_t at) {
    return mmap64(address, size, protection, flags, file, at);
}

int ftruncate64(int file, off64_t size) {
    if (!is_tracked(file)) return syscall(SYS_ftruncate, file, size);
    begin();
    int failed = syscall(SYS_ftruncate, file, size);
    if (!failed) put(TRUNCATE, inode_of(file), size, 0, 0, 0, 0);
    end();
    return failed;
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int truncate64(const char *path, off64_t size) {
    char full[PATH_MAX];
    if (!resolve(AT_FDCWD, path, full)) return syscall(SYS_truncate, path, size);
    begin();
    int failed = syscall(SYS_truncate, path, size);
    if (!failed) put(TRUNCATE, inode_at(full), size, 0, 0, 0, 0);
    end();
    return failed;
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }

static int change_two(enum operation operation, int at, const char *from, int to_at, const char *to, int flags) {
    char full[PATH_MAX] = "", second[PATH_MAX] = "";
    int number = operation == LINK ? SYS_linkat : SYS_renameat2;
    int logged = resolve(at, from, full) + resolve(to_at, to, second);
    if (!logged) return syscall(number, at, from, to_at, to, flags);
    begin();
    int failed = syscall(number, at, from, to_at, to, flags);
    int known = logged == 2 && (operation == LINK || !flags);
    if (!failed) put(known ? operation : UNKNOWN, inode_at(second), 0, full, second, 0, 0);
    end();
    return failed;
}

int rename(const char *from, const char *to) { return change_two(RENAME, AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int at, const char *from, int to_at, const char *to) { return change_two(RENAME, at, from, to_at, to, 0); }
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) {
    return change_two(RENAME, at, from, to_at, to, flags);
}
int link(const char *from, const char *to) { return change_two(LINK, AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int at, const char *from, int to_at, const char *to, int flags) {
    return change_two(LINK, at, from, to_at, to, flags);
}

int symlinkat(const char *target, int at, const char *path) {
    char full[PATH_MAX];
    int logged = resolve(at, path, full);
    if (logged) begin();
    int failed = syscall(SYS_symlinkat, target, at, path);
    if (logged) { if (!failed) put(UNKNOWN, 0, 0, full, 0, 0, 0); end(); }
    return failed;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int at, const char *path, int flags) {
    char full[PATH_MAX];
    if (!resolve(at, path, full)) return syscall(SYS_unlinkat, at, path, flags);
    begin();
    int failed = syscall(SYS_unlinkat, at, path, flags);
    if (!failed) put(flags & AT_REMOVEDIR ? REMOVE_FOLDER : UNLINK, 0, 0, full, 0, 0, 0);
    end();
    return failed;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode) {
    char full[PATH_MAX];
    if (!resolve(at, path, full)) return syscall(SYS_mkdirat, at, path, mode);
    begin();
    int failed = syscall(SYS_mkdirat, at, path, mode);
    if (!failed) put(MAKE_FOLDER, inode_at(full), 0, full, 0, 0, 0);
    end();
    return failed;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int sync_any(int file, int number) {
    if (!is_tracked(file)) return syscall(number, file);
    uint64_t inode = inode_of(file), thread = syscall(SYS_gettid);
    begin();
    put(SYNC_BEGINS, inode, thread, 0, 0, 0, 0);
    end();
    int failed = syscall(number, file);
    if (failed) return failed;
    begin();
    put(SYNC_ENDS, inode, thread, 0, 0, 0, 0);
    end();
    return 0;
}
int fsync(int file) { return sync_any(file, SYS_fsync); }
int fdatasync(int file) { return sync_any(file, SYS_fdatasync); }
