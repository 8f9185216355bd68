/* What all calls share: one lock, the log, faults on order, and finding functions by name. */

#define _GNU_SOURCE
#include "stub.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *record;
static char details[4000]; /* names of kernels are long */
static const char *under_way;
static Result lasting; /* the error that ended the context */
static int initialized;

typedef struct {
    const char *name;
    long calls;
} Counter;
static Counter counters[200];

static long count(const char *name) {
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        if (!counters[i].name)
            counters[i].name = name;
        if (!strcmp(counters[i].name, name))
            return ++counters[i].calls;
    }
    abort(); /* more functions than counters */
}

long long setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoll(text) : otherwise;
}

int capability(void) {
    const char *text = getenv("STUB_CUDA_CAPABILITY");
    int major = 9, minor = 0;
    if (text)
        sscanf(text, "%d.%d", &major, &minor);
    return 10 * major + minor;
}

static int ends_context(Result code) {
    return code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 719);
}

/* The error ordered for this call, if any. */
static Result ordered(const char *name, long number) {
    const char *at = getenv("STUB_CUDA_FAIL");
    while (at && *at) {
        char wanted[100];
        long when;
        int code, used = 0;
        if (sscanf(at, "%99[^:]:%ld:%d%n", wanted, &when, &code, &used) != 3) {
            fprintf(stderr, "STUB_CUDA_FAIL is not NAME:N:CODE: %s\n", at);
            abort();
        }
        if (!strcmp(wanted, name) && when == number)
            return code;
        at += used;
        at += *at == ',';
    }
    return OK;
}

static void write_line(const char *name, Result code, const char *more) {
    if (!record) {
        const char *path = getenv("STUB_CUDA_LOG");
        record = fopen(path && *path ? path : "/dev/null", "a");
        if (!record)
            abort();
        setvbuf(record, NULL, _IOLBF, 0);
    }
    fprintf(record, "%s %d%s%s\n", name, code, *more ? " " : "", more);
}

Result enter(const char *name, int needs) {
    pthread_mutex_lock(&lock);
    under_way = name;
    details[0] = 0;
    int device;
    Result code = ordered(name, count(name));
    if (ends_context(code))
        lasting = code;
    if (code)
        return code;
    if (needs >= AFTER_INIT && !initialized)
        return NOT_INITIALIZED;
    if (needs >= IN_CONTEXT && lasting)
        return lasting;
    if (needs >= IN_CONTEXT && current_device(&device))
        return INVALID_CONTEXT;
    return OK;
}

Result leave(Result code) {
    write_line(under_way, code, details);
    pthread_mutex_unlock(&lock);
    return code;
}

void note(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(details, sizeof details, format, values);
    va_end(values);
}

Result cuInit(unsigned flags) {
    BEGIN("cuInit", ANYTIME);
    if (flags)
        return leave(INVALID_VALUE);
    if (!setting("STUB_CUDA_DEVICES", 1))
        return leave(NO_DEVICE);
    initialized = 1;
    return leave(OK);
}

Result cuDriverGetVersion(int *version) {
    BEGIN("cuDriverGetVersion", ANYTIME);
    *version = (int)setting("STUB_CUDA_DRIVER", 13050);
    return leave(OK);
}

static const struct {
    Result code;
    const char *name;
} NAMES[] = {
    {OK, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {NOT_READY, "CUDA_ERROR_NOT_READY"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {HOST_MEMORY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
};

Result cuGetErrorName(Result code, const char **name) {
    *name = NULL;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].code == code)
            *name = NAMES[i].name;
    return *name ? OK : INVALID_VALUE;
}

Result cuGetErrorString(Result code, const char **text) {
    return cuGetErrorName(code, text);
}

/* Functions have the newest of their numbered names here: NAME asks for NAME_v3, NAME_v2 or NAME itself. */
Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    BEGIN("cuGetProcAddress", ANYTIME);
    static const char *const VARIANTS[] = {"_v3", "_v2", ""};
    static void *self;
    Dl_info here;
    (void)version, (void)flags;
    if (!self && dladdr((void *)cuInit, &here))
        self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    *function = NULL;
    for (size_t i = 0; self && i < sizeof VARIANTS / sizeof *VARIANTS && !*function; i++) {
        char whole[200];
        snprintf(whole, sizeof whole, "%s%s", name, VARIANTS[i]);
        *function = dlsym(self, whole);
    }
    note("%s%s", name, *function ? "" : " absent");
    if (status)
        *status = *function ? 0 : 1;
    return leave(*function ? OK : NOT_FOUND);
}

/* Not the driver's: a line between calls in the log, and counting from the start again. */

void stub_mark(void) {
    pthread_mutex_lock(&lock);
    write_line("mark", OK, "");
    pthread_mutex_unlock(&lock);
}

/* For a process that was forked: its own log, and its own orders for faults. */
void stub_restart(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        counters[i].calls = 0;
    if (record)
        fclose(record);
    record = NULL;
    pthread_mutex_unlock(&lock);
}
