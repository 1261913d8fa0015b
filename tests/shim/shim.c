/* A file system with faults: between a process and libc, by LD_PRELOAD or by shim_install() in a process that runs.

MEGADS_SHIM_RULES holds one rule per line, its fields separated by tabs:

    call  pattern  first  count  after  action  amount

Calls number first .. first + count - 1 (count 0: all from first on) that match are changed. Numbers are counted in
the file MEGADS_SHIM_COUNTS if it is set, by all processes together, else in each process. See rules.py. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, LONG = 4096, CACHED = 512 };

struct rule {
    char call[16], pattern[512], action[16];
    long first, count, after, error;
    double amount;
};

static struct rule rules[MOST];
static int num_rules;
static long own_counts[MOST], *counts = own_counts;
static char host[256];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside; /* calls of this library itself are not changed */

static const struct { const char *name; int number; } errors[] = {
    {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"ESTALE", ESTALE}, {"ENOLCK", ENOLCK}, {"ENOSYS", ENOSYS},
    {"EROFS", EROFS}, {"EACCES", EACCES}, {"EPERM", EPERM}, {"ENOENT", ENOENT}, {"EEXIST", EEXIST}, {"EINTR", EINTR},
    {"EAGAIN", EAGAIN}, {"EBUSY", EBUSY}, {"EXDEV", EXDEV}, {"ETIMEDOUT", ETIMEDOUT}, {"ENOTEMPTY", ENOTEMPTY},
    {"EOPNOTSUPP", EOPNOTSUPP}, {"EREMOTEIO", EREMOTEIO}, {"ENOTCONN", ENOTCONN}, {"EMFILE", EMFILE}, {"EFBIG", EFBIG},
};

static void *real(const char *name) {
    static void *libc;
    if (!libc) libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    return dlsym(libc, name);
}
#define REAL(name) ((__typeof__(&name))({ static void *found; found ? found : (found = real(#name)); }))

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void pause_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (time_t)seconds))};
    while (nanosleep(&t, &t) && errno == EINTR) {}
}

/* Take the rules of a text; called again, the new ones replace the old ones. */
int shim_rules(const char *text, const char *counts_file, const char *host_name) {
    pthread_mutex_lock(&guard);
    num_rules = 0;
    memset(own_counts, 0, sizeof own_counts);
    counts = own_counts;
    snprintf(host, sizeof host, "%s", host_name ? host_name : "");
    while (text && *text && num_rules < MOST) {
        struct rule *each = &rules[num_rules];
        memset(each, 0, sizeof *each);
        if (sscanf(text, "%15[^\t]\t%511[^\t]\t%ld\t%ld\t%ld\t%15[^\t]\t%lf", each->call, each->pattern, &each->first,
                   &each->count, &each->after, each->action, &each->amount) == 7) {
            for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
                if (!strcmp(errors[i].name, each->action)) each->error = errors[i].number;
            num_rules++;
        }
        text = strchr(text, '\n');
        if (text) text++;
    }
    if (counts_file && *counts_file) {
        int handle = REAL(open)(counts_file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (handle >= 0) {
            if (!ftruncate(handle, sizeof own_counts)) {
                void *found = mmap(0, sizeof own_counts, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
                if (found != MAP_FAILED) counts = found;
            }
            REAL(close)(handle);
        }
    }
    pthread_mutex_unlock(&guard);
    return num_rules;
}

__attribute__((constructor)) static void begin(void) {
    shim_rules(getenv("MEGADS_SHIM_RULES"), getenv("MEGADS_SHIM_COUNTS"), getenv("MEGADS_SHIM_HOST"));
}

/* ------------------------------------------------------------------ which rule */

static int is_used(const char *call) {
    for (int i = 0; i < num_rules; i++)
        if (!strcmp(rules[i].call, call)) return 1;
    return 0;
}

/* Return the rule that changes this call; count it for every rule that it matches. */
static struct rule *rule_for(const char *call, const char *path) {
    struct rule *found = 0;
    if (inside || !num_rules || !path) return 0;
    for (int i = 0; i < num_rules; i++) {
        struct rule *each = &rules[i];
        if (strcmp(each->call, call) || fnmatch(each->pattern, path, 0)) continue;
        long number = __atomic_add_fetch(&counts[i], 1, __ATOMIC_SEQ_CST);
        if (!found && number >= each->first && (!each->count || number < each->first + each->count)) found = each;
    }
    return found;
}

static const char *path_at(int folder, const char *path, char *room) {
    if (!path) return 0;
    if (path[0] == '/') return path;
    char link[64];
    ssize_t length;
    if (folder == AT_FDCWD) length = getcwd(room, LONG) ? (ssize_t)strlen(room) : -1;
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = REAL(readlink)(link, room, LONG - 1);
    }
    if (length < 0) return path;
    snprintf(room + length, LONG - length, "%s%s", *path ? "/" : "", path);
    return room;
}

static const char *path_of(int handle, char *room) {
    int before = errno;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = REAL(readlink)(link, room, LONG - 1);
    errno = before;
    if (length < 0) return 0;
    room[length] = 0;
    return room;
}

/* Do what a rule says before the call. Return whether the call fails, with errno set. */
static int fails(struct rule *rule) {
    if (!rule) return 0;
    if (!strcmp(rule->action, "kill")) { if (!rule->after) kill(getpid(), SIGKILL); }
    else if (!strcmp(rule->action, "stop")) { if (!rule->after) kill(getpid(), SIGSTOP); }
    else if (!strcmp(rule->action, "slow")) pause_for(rule->amount);
    if (rule->error && !rule->after) { errno = rule->error; return 1; }
    return 0;
}

/* Return what the call returns, after it was made: an error that a rule has come behind the effect. */
static int behind(struct rule *rule, int result) {
    if (!rule || !rule->after || result < 0) return result;
    if (!strcmp(rule->action, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(rule->action, "stop")) kill(getpid(), SIGSTOP);
    if (rule->error) { errno = rule->error; return -1; }
    return result;
}

/* ------------------------------------------------------------------ attributes that are remembered */

static struct { char path[512]; double until; int error; struct stat is; } cache[CACHED];

static int slot_of(const char *path) {
    unsigned long hash = 5381;
    for (const char *at = path; *at; at++) hash = hash * 33 + (unsigned char)*at;
    return hash % CACHED;
}

static void forget(const char *path) {
    if (!path || !is_used("cache")) return;
    pthread_mutex_lock(&guard);
    int slot = slot_of(path);
    if (!strcmp(cache[slot].path, path)) cache[slot].path[0] = 0;
    pthread_mutex_unlock(&guard);
}

/* Listing a folder makes a client ask again for what is in it. */
static void forget_all_in(const char *folder) {
    size_t length = strlen(folder);
    pthread_mutex_lock(&guard);
    for (int i = 0; i < CACHED; i++)
        if (!strncmp(cache[i].path, folder, length) && cache[i].path[length] == '/') cache[i].path[0] = 0;
    pthread_mutex_unlock(&guard);
}

/* Return 1: is has the attributes that are remembered; -1: that there is no such file; 0: nothing is. */
static int recall(const char *path, struct stat *is) {
    int result = 0;
    if (inside || !path || !is_used("cache")) return 0;
    pthread_mutex_lock(&guard);
    int slot = slot_of(path);
    if (!strcmp(cache[slot].path, path) && now() < cache[slot].until) {
        if (cache[slot].error) errno = cache[slot].error, result = -1;
        else *is = cache[slot].is, result = 1;
    }
    pthread_mutex_unlock(&guard);
    return result;
}

static void remember(const char *path, int error, const struct stat *is) {
    struct rule *rule = rule_for("cache", path);
    if (!rule || strlen(path) >= sizeof cache[0].path || (error && error != ENOENT)) return;
    pthread_mutex_lock(&guard);
    int slot = slot_of(path);
    strcpy(cache[slot].path, path);
    cache[slot].until = now() + rule->amount;
    cache[slot].error = error;
    if (is) cache[slot].is = *is;
    pthread_mutex_unlock(&guard);
}

static void change_times(const char *path, struct stat *is) {
    struct rule *skew = rule_for("skew", path), *coarse = rule_for("coarse", path);
    if (skew) {
        is->st_mtim.tv_sec += (time_t)skew->amount;
        is->st_atim.tv_sec += (time_t)skew->amount;
    }
    if (coarse && coarse->amount >= 1) {
        is->st_mtim.tv_sec -= is->st_mtim.tv_sec % (time_t)coarse->amount;
        is->st_mtim.tv_nsec = 0;
    }
}

static int stat_at(int folder, const char *path, struct stat *is, int flags) {
    char room[LONG], *name = room;
    if (inside || !num_rules) return REAL(fstatat)(folder, path, is, flags);
    const char *whole = *path ? path_at(folder, path, name) : path_of(folder, name);
    struct rule *rule = rule_for("stat", whole);
    if (fails(rule)) return -1;
    int known = *path ? recall(whole, is) : 0;
    if (known) return known < 0 ? -1 : 0;
    int result = REAL(fstatat)(folder, path, is, flags), error = errno;
    if (!result && whole) change_times(whole, is);
    if (*path && whole) remember(whole, result ? error : 0, result ? 0 : is);
    errno = error;
    return result;
}

int stat(const char *path, struct stat *is) { return stat_at(AT_FDCWD, path, is, 0); }
int lstat(const char *path, struct stat *is) { return stat_at(AT_FDCWD, path, is, AT_SYMLINK_NOFOLLOW); }
int fstatat(int folder, const char *path, struct stat *is, int flags) { return stat_at(folder, path, is, flags); }
int fstat(int handle, struct stat *is) { return stat_at(handle, "", is, AT_EMPTY_PATH); }
int stat64(const char *path, struct stat64 *is) { return stat_at(AT_FDCWD, path, (struct stat *)is, 0); }
int lstat64(const char *path, struct stat64 *is) { return stat_at(AT_FDCWD, path, (struct stat *)is, AT_SYMLINK_NOFOLLOW); }
int fstatat64(int folder, const char *path, struct stat64 *is, int flags) {
    return stat_at(folder, path, (struct stat *)is, flags);
}
int fstat64(int handle, struct stat64 *is) { return stat_at(handle, "", (struct stat *)is, AT_EMPTY_PATH); }

int access(const char *path, int mode) {
    char room[LONG];
    struct stat is;
    const char *whole = path_at(AT_FDCWD, path, room);
    if (recall(whole, &is) < 0 || fails(rule_for("stat", whole))) return -1;
    return REAL(access)(path, mode);
}

/* ------------------------------------------------------------------ opening and closing */

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    char room[LONG];
    struct stat is;
    if (inside || !num_rules) return REAL(openat)(folder, path, flags, mode);
    const char *whole = path_at(folder, path, room);
    struct rule *rule = rule_for("open", whole);
    if (!rule && flags & O_CREAT) rule = rule_for("create", whole);
    if (fails(rule)) return -1;
    if (!(flags & O_CREAT) && recall(whole, &is) < 0) return -1;
    int result = REAL(openat)(folder, path, flags, mode);
    if (result >= 0) forget(whole); /* opening asks for new attributes */
    if (result >= 0 && flags & O_DIRECTORY) forget_all_in(whole);
    if (rule && rule->after && rule->error && result >= 0) {
        REAL(close)(result);
        errno = rule->error;
        return -1;
    }
    return behind(rule, result);
}

static mode_t mode_of(int flags, va_list more) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; }
#define OPENS(name)                                             \
    int name(const char *path, int flags, ...) {                \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode_t mode = mode_of(flags, more);                     \
        va_end(more);                                           \
        return open_at(AT_FDCWD, path, flags, mode);            \
    }
#define OPENS_AT(name)                                          \
    int name(int folder, const char *path, int flags, ...) {    \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode_t mode = mode_of(flags, more);                     \
        va_end(more);                                           \
        return open_at(folder, path, flags, mode);              \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

int close(int handle) {
    char room[LONG];
    struct rule *rule = is_used("close") ? rule_for("close", path_of(handle, room)) : 0;
    if (rule && rule->error) { /* as NFS: the descriptor is gone, and what was written may be */
        REAL(close)(handle);
        errno = rule->error;
        return -1;
    }
    fails(rule);
    return REAL(close)(handle);
}

DIR *opendir(const char *path) {
    char room[LONG];
    const char *whole = path_at(AT_FDCWD, path, room);
    if (fails(rule_for("list", whole))) return 0;
    if (num_rules && whole) forget_all_in(whole);
    return REAL(opendir)(path);
}

/* ------------------------------------------------------------------ reading and writing */

/* Return how many of size bytes the call may write or read; -1: it fails. */
static ssize_t allowed(const char *call, int handle, size_t size) {
    char room[LONG];
    if (inside || !is_used(call)) return size;
    struct rule *rule = rule_for(call, path_of(handle, room));
    if (!rule) return size;
    if (!strcmp(rule->action, "rate")) pause_for(size / rule->amount);
    if (fails(rule)) return -1;
    if (!strcmp(rule->action, "short") && size > 1)
        return rule->amount >= 1 && rule->amount < size ? (ssize_t)rule->amount : (ssize_t)(size / 2);
    return size;
}

#define MOVES(call, name, type, ...)                            \
    ssize_t name(int handle, type data, size_t size) {          \
        ssize_t most = allowed(call, handle, size);             \
        return most < 0 ? -1 : REAL(name)(handle, data, most);  \
    }
#define MOVES_AT(call, name, type, offset_type)                                     \
    ssize_t name(int handle, type data, size_t size, offset_type at) {              \
        ssize_t most = allowed(call, handle, size);                                 \
        return most < 0 ? -1 : REAL(name)(handle, data, most, at);                  \
    }
MOVES("write", write, const void *)
MOVES("read", read, void *)
MOVES_AT("write", pwrite, const void *, off_t)
MOVES_AT("write", pwrite64, const void *, off64_t)
MOVES_AT("read", pread, void *, off_t)
MOVES_AT("read", pread64, void *, off64_t)

ssize_t writev(int handle, const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    ssize_t most = allowed("write", handle, size);
    if (most < 0) return -1;
    if ((size_t)most == size) return REAL(writev)(handle, parts, count);
    size_t first = parts[0].iov_len < (size_t)most ? parts[0].iov_len : (size_t)most;
    return REAL(write)(handle, parts[0].iov_base, first);
}

#define ON_HANDLE(call, name, parameters, ...)                                                      \
    int name parameters {                                                                           \
        char room[LONG];                                                                            \
        struct rule *rule = is_used(call) ? rule_for(call, path_of(handle, room)) : 0;              \
        return fails(rule) ? -1 : behind(rule, REAL(name)(__VA_ARGS__));                            \
    }
ON_HANDLE("fsync", fsync, (int handle), handle)
ON_HANDLE("fsync", fdatasync, (int handle), handle)
ON_HANDLE("truncate", ftruncate, (int handle, off_t size), handle, size)
ON_HANDLE("truncate", ftruncate64, (int handle, off64_t size), handle, size)

int flock(int handle, int how) {
    char room[LONG];
    struct rule *rule = is_used("flock") ? rule_for("flock", path_of(handle, room)) : 0;
    if (rule && !strcmp(rule->action, "granted")) return 0; /* nobody on this host holds it */
    return fails(rule) ? -1 : REAL(flock)(handle, how);
}

/* ------------------------------------------------------------------ names */

static int rename_at(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    char room[LONG], from_room[LONG];
    if (inside || !num_rules) goto plain;
    const char *whole = path_at(to_folder, to, room), *source = path_at(from_folder, from, from_room);
    struct rule *rule = rule_for("rename", whole);
    forget(whole);
    forget(source);
    if (rule && !strcmp(rule->action, "gap")) { /* the old one is gone for a while before the new one is there */
        REAL(unlinkat)(to_folder, to, 0);
        pause_for(rule->amount);
    }
    if (fails(rule)) return -1;
    int result = behind(rule, REAL(renameat2)(from_folder, from, to_folder, to, flags));
    forget(whole);
    forget(source);
    return result;
plain:
    return REAL(renameat2)(from_folder, from, to_folder, to, flags);
}
int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return rename_at(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return rename_at(a, from, b, to, flags); }

#define ON_NAME(call, name, parameters, folder, path, ...)                                          \
    int name parameters {                                                                           \
        char room[LONG];                                                                            \
        const char *whole = num_rules ? path_at(folder, path, room) : 0;                            \
        struct rule *rule = rule_for(call, whole);                                                  \
        if (fails(rule)) return -1;                                                                 \
        int result = behind(rule, REAL(name)(__VA_ARGS__));                                         \
        int error = errno;                                                                          \
        forget(whole);                                                                              \
        errno = error;                                                                              \
        return result;                                                                              \
    }
ON_NAME("link", link, (const char *from, const char *to), AT_FDCWD, to, from, to)
ON_NAME("link", linkat, (int a, const char *from, int b, const char *to, int flags), b, to, a, from, b, to, flags)
ON_NAME("link", symlink, (const char *from, const char *to), AT_FDCWD, to, from, to)
ON_NAME("unlink", unlink, (const char *path), AT_FDCWD, path, path)
ON_NAME("unlink", unlinkat, (int folder, const char *path, int flags), folder, path, folder, path, flags)
ON_NAME("mkdir", mkdir, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
ON_NAME("mkdir", mkdirat, (int folder, const char *path, mode_t mode), folder, path, folder, path, mode)
ON_NAME("rmdir", rmdir, (const char *path), AT_FDCWD, path, path)
ON_NAME("utime", utimensat, (int folder, const char *path, const struct timespec times[2], int flags), folder, path,
        folder, path, times, flags)

/* ------------------------------------------------------------------ the name of the host */

int gethostname(char *name, size_t length) {
    if (!*host) return REAL(gethostname)(name, length);
    snprintf(name, length, "%s", host);
    return 0;
}

int uname(struct utsname *is) {
    int result = REAL(uname)(is);
    if (!result && *host) snprintf(is->nodename, sizeof is->nodename, "%s", host);
    return result;
}

/* ------------------------------------------------------------------ in a process that runs already */

static const char *const NAMES[] = {
    "stat", "lstat", "fstatat", "fstat", "stat64", "lstat64", "fstatat64", "fstat64", "access", "open", "open64",
    "openat", "openat64", "close", "opendir", "write", "read", "pwrite", "pwrite64", "pread", "pread64", "writev",
    "fsync", "fdatasync", "ftruncate", "ftruncate64", "flock", "rename", "renameat", "renameat2", "link", "linkat",
    "symlink", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "utimensat", "gethostname", "uname",
};
static void *own;

static int patch_table(struct dl_phdr_info *object, ElfW(Rela) *table, size_t size, ElfW(Sym) *symbols,
                       const char *strings, int *changed) {
    for (size_t i = 0; i < size / sizeof *table; i++) {
        unsigned long type = ELF64_R_TYPE(table[i].r_info);
#if defined(__x86_64__)
        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
#else
        if (type != R_AARCH64_JUMP_SLOT && type != R_AARCH64_GLOB_DAT) continue;
#endif
        const char *name = strings + symbols[ELF64_R_SYM(table[i].r_info)].st_name;
        for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++) {
            if (strcmp(name, NAMES[k])) continue;
            void **slot = (void **)(object->dlpi_addr + table[i].r_offset), *ours = dlsym(own, name);
            long page = sysconf(_SC_PAGESIZE);
            void *start = (void *)((unsigned long)slot & -page);
            if (ours && !mprotect(start, page, PROT_READ | PROT_WRITE)) *slot = ours, ++*changed;
        }
    }
    return 0;
}

static int patch_object(struct dl_phdr_info *object, size_t size, void *changed) {
    Dl_info here;
    ElfW(Rela) *plt = 0, *rela = 0;
    size_t plt_size = 0, rela_size = 0;
    ElfW(Sym) *symbols = 0;
    const char *strings = 0;
    (void)size;
    if (strstr(object->dlpi_name, "libc.so") || strstr(object->dlpi_name, "ld-linux") || strstr(object->dlpi_name, "vdso"))
        return 0;
    if (dladdr((void *)shim_rules, &here) && object->dlpi_name[0] && !strcmp(here.dli_fname, object->dlpi_name)) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (ElfW(Dyn) *at = (void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr); at->d_tag; at++) {
            if (at->d_tag == DT_JMPREL) plt = (void *)at->d_un.d_ptr;
            if (at->d_tag == DT_PLTRELSZ) plt_size = at->d_un.d_val;
            if (at->d_tag == DT_RELA) rela = (void *)at->d_un.d_ptr;
            if (at->d_tag == DT_RELASZ) rela_size = at->d_un.d_val;
            if (at->d_tag == DT_SYMTAB) symbols = (void *)at->d_un.d_ptr;
            if (at->d_tag == DT_STRTAB) strings = (void *)at->d_un.d_ptr;
        }
    }
    if (!symbols || !strings) return 0;
    if (plt) patch_table(object, plt, plt_size, symbols, strings, changed);
    if (rela) patch_table(object, rela, rela_size, symbols, strings, changed);
    return 0;
}

/* Have all libraries that are loaded call this one; return in how many places. */
int shim_install(void) {
    Dl_info here;
    int changed = 0;
    if (!dladdr((void *)shim_rules, &here)) return -1;
    own = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    dl_iterate_phdr(patch_object, &changed);
    return changed;
}
